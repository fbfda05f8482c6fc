"""The folder of a journal: its lock, its identity and its sealed files.

A file is written under a temporary name that readers skip, synced and renamed, and its folder is
synced. Only then does the file count: a journal reads from its files' names how far it has got. The
seal log gets its line last.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.sdk.events import FileName, partition
from eventmq_contrib.atomic import sync_folder, write_file
from eventmq_contrib.journal.parquet import encode_events, is_whole
from eventmq_contrib.journal.seals import SealLog, seal_of

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventmq.sdk.events import EventColumns

__all__ = ["JournalFolder"]

logger = logging.getLogger("eventmq.journal")

#: Files that hold no events: readers skip names that begin with ``_``.
_LOCK, _IDENTITY = "_lock", "_journal.json"


class JournalFolder:
    """A folder that one process writes. Call `open` first, and `close` even where that failed.

    Args:
        path: Path of the folder, made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        #: The journal's id, made once per folder; a broker recognises its journal by it.
        self.id = ""
        self._logs: dict[str, SealLog] = {}

    # Opening

    def open(self) -> None:
        """Lock the folder, and remove unfinished files of an earlier process.

        Raises:
            StoreError: It cannot be written, or another ``eventmq journal`` has it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._lock = os.open(self.path / _LOCK, flags, 0o644)
            self._acquire_lock()
            self._read_identity()
            self._clear()
        except OSError as error:
            self.close()
            raise self._unwritable(error) from error

    def _acquire_lock(self) -> None:
        assert self._lock is not None  # noqa: S101 - set by open
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            self.close()
            msg = (
                f"the folder {self.path} is in use by another eventmq journal (process {owner}): "
                "stop that one, or name another folder with --out"
            )
            raise StoreError(msg) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

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
            message = (
                "%d files in the journal's folder were not written by a journal and are left "
                "alone; the first is %s"
            )
            logger.warning(message, len(foreign), foreign[0])

    def _unwritable(self, error: OSError) -> StoreError:
        msg = (
            f"cannot write the journal {self.path}: {error.strerror or error}; make it writable, "
            "make room, or name another with --out"
        )
        return StoreError(msg)

    def close(self) -> None:
        """Free the lock. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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
            msg = (
                f"the newest file, {path}, is torn: move it away, and the journal takes its events "
                "again, where the broker still has them"
            )
            raise StoreError(msg)
        log = SealLog(self.path, broker_id)
        try:
            log.open(files)
        except OSError as error:
            raise self._unwritable(error) from error
        self._logs[broker_id] = log
        return name.last if name is not None else 0

    # Sealing

    def seal(self, broker_id: str, events: EventColumns) -> FileName:
        """Write one hour's events, numbered consecutively, as one file that is never changed.

        Call `checkpoint` for this broker first.

        Raises:
            StoreError: It cannot be written. The broker still has the events.
        """
        numbers = events.values["seq"]
        name = FileName(broker_id, numbers[0], numbers[-1])
        hour = partition(events.values["ts_us"][0])
        folder = self.path / hour
        data = encode_events(events.values)
        try:
            self._make(folder)
            write_file(folder / str(name), data)
            self._logs[broker_id].append(seal_of(name, hour, data))
        except OSError as error:
            raise self._unwritable(error) from error
        return name

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
            sync_folder(self.path)
