"""The folder of a journal: its lock, its identity and its sealed files.

A file is written under a temporary name that readers skip, synced and renamed, and its folder is
synced. Only then is the file valid: the names of the files are the journal's record of its
progress. The seal log gets its line last.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

from eventmq.errors import StoreError
from eventmq.sdk.events import EventColumns, FileName, partition
from eventmq_contrib.atomic import sync_folder, write_file
from eventmq_contrib.journal.lock import lock_file
from eventmq_contrib.journal.parquet import encode_events, is_whole
from eventmq_contrib.journal.seals import SealLog, seal_of

__all__ = ["JournalFolder"]

logger = logging.getLogger("eventmq.journal")

#: Files without events: readers skip names that begin with ``_``.
_LOCK, _IDENTITY = "_lock", "_journal.json"


class JournalFolder:
    """A folder that one process writes. Call `open` first, and `close` even if that failed.

    Args:
        path: Path of the folder, made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = contextlib.ExitStack()
        #: The journal's id, made once per folder; a broker recognises its journal by it.
        self.id = ""
        self._logs: dict[str, SealLog] = {}

    # Opening

    def open(self) -> None:
        """Lock the folder, and remove unfinished files of an earlier process.

        Raises:
            StoreError: It cannot be written, or another ``eventmq journal`` uses it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            hint = ": stop that one, or name another folder with --out"
            lock = lock_file(self.path / _LOCK, "another eventmq journal", hint)
            self._held.enter_context(lock)
            self._read_identity()
            self._clear()
        except OSError as error:
            self.close()
            raise self._unwritable(error) from error

    def _read_identity(self) -> None:
        identity = self.path / _IDENTITY
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            self.id = str(json.loads(identity.read_text(encoding="utf-8"))["id"])
        if self.id:
            return
        self.id = secrets.token_hex(8)
        write_file(identity, json.dumps({"id": self.id}))

    def _clear(self) -> None:
        """Remove unfinished files, and log foreign ones."""
        foreign = []
        for path in self._files():
            if path.name.startswith("_") and FileName.parse(path.name[1:]) is not None:
                logger.info("removing %s, which was not finished", path)
                path.unlink()
            elif FileName.parse(path.name) is None and path.name[:1] not in {"_", "."}:
                foreign.append(path)
        if foreign:
            logger.warning(
                "%d files in the journal's folder were not written by a journal and are left "
                "alone; the first is %s", len(foreign), foreign[0],
            )  # fmt: skip

    def _unwritable(self, error: OSError) -> StoreError:
        msg = (
            f"cannot write the journal {self.path}: {error.strerror or error}; make it writable, "
            "make room, or name another folder with --out"
        )
        return StoreError(msg)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._held.close()

    # Sealed files

    def _files(self) -> Iterator[Path]:
        for hour in sorted(self.path.glob("date=*/hour=*")):
            yield from sorted(hour.iterdir())

    def sealed(self, broker_id: str) -> list[tuple[FileName, Path]]:
        """Return the sealed files of a broker, by their first numbers."""
        files = [(FileName.parse(path.name), path) for path in self._files()]
        return sorted((name, path) for name, path in files if name and name.broker == broker_id)

    def checkpoint(self, broker_id: str) -> int:
        """Open the seal log of a broker; return the last event number that is sealed, 0 for none.

        Raises:
            StoreError: The newest file is torn, or the log cannot be written.
        """
        files = self.sealed(broker_id)
        name, path = max(files, key=lambda item: item[0].last, default=(None, None))
        if path is not None and not is_whole(path):
            raise StoreError(
                f"the newest file, {path}, is torn: move it away, and the journal reads its events "
                "again, if the broker still has them"
            )
        log = SealLog(self.path, broker_id)
        try:
            log.open(files)
        except OSError as error:
            raise self._unwritable(error) from error
        self._logs[broker_id] = log
        return name.last if name is not None else 0

    # Sealing

    def seal(self, broker_id: str, events: EventColumns) -> FileName:
        """Write events of one hour, with consecutive numbers, as one file that is never changed.

        Call `checkpoint` for this broker first.

        Raises:
            StoreError: The file cannot be written. The broker still has the events.
        """
        numbers = events.values["seq"]
        name = FileName(broker_id, numbers[0], numbers[-1])
        hour = partition(events.values["ts_us"][0])
        folder = self.path / hour
        data = encode_events(events.values)
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sync_folder(folder.parent)
                sync_folder(self.path)
            write_file(folder / str(name), data)
            self._logs[broker_id].append(seal_of(name, hour, data))
        except OSError as error:
            raise self._unwritable(error) from error
        return name
