"""What a broker remembers of a store on its own disk, to notice that the database was put back.

Nobody but a broker knows that a database had more before, and all of them may have been down
meanwhile. So each keeps the last epoch and beat that it saw, and the server that had them.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FILE_NAME", "Memory", "Seen"]

logger = logging.getLogger(__name__)

#: In the data directory of a broker.
FILE_NAME = "seen.json"

#: Seconds between two writes, unless there is a new epoch.
WRITE_EVERY = 10.0

#: Stores that are remembered; those that were written last stay.
MOST_STORES = 16


class Seen(NamedTuple):
    """What was seen of a store."""

    epoch: int = 0
    beat: int = 0
    #: The system identifier of the server, and its timeline.
    system: str = ""
    timeline: str = ""


class Memory:
    """The file; brokers may share it. One thread.

    A file that cannot be read or written is said once, and nothing is remembered.

    Args:
        folder: The data directory; it is made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        #: What is on disk, as far as this broker knows, and when it is written next.
        self._stored = Seen()
        self._due = 0.0
        self._warned = False

    def load(self, store_id: str) -> Seen:
        """Return what was seen of a store; nothing of one that is not known here."""
        self._stored = self._read().get(store_id, Seen())
        return self._stored

    def save(self, store_id: str, seen: Seen, *, now: bool = False) -> None:
        """Write what was seen; of one epoch only now and then, unless ``now`` is said."""
        new = seen[0] != self._stored[0]
        if seen <= self._stored or not (now or new or time.monotonic() >= self._due):
            return
        self._due = time.monotonic() + WRITE_EVERY
        stores = self._read()
        # Another broker that shares the file may have seen more.
        self._stored = max(seen, stores.pop(store_id, seen))
        stores[store_id] = self._stored
        kept = list(stores.items())[-MOST_STORES:]
        try:
            self._write(json.dumps({name: each._asdict() for name, each in kept}, indent=1))
        except OSError as error:
            self._warn(f"cannot write {self._path}: {error}")

    def _read(self) -> dict[str, Seen]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            found = {name: Seen(**values) for name, values in data.items()}
            for epoch, beat, *server in found.values():
                if not (type(epoch) is type(beat) is int and all(type(v) is str for v in server)):
                    raise ValueError("it has other values than numbers and texts")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self._warn(f"cannot read {self._path}: {error}")
            return {}
        return found

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._path.with_name(f"{FILE_NAME}.{os.getpid()}")
        try:
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as opened:
                opened.write(text + "\n")
                opened.flush()
                os.fsync(file)
            beside.replace(self._path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise

    def _warn(self, what: str) -> None:
        if not self._warned:
            logger.warning(
                "%s; so a database that is put back to an earlier time while all brokers are down "
                "may not be noticed here", what,
            )  # fmt: skip
        self._warned = True
