"""Seen leases: a file on a broker's disk, by which it notices that a database was restored.

Only brokers know that a database had later data, and all of them may have been down while it was
restored. So each broker stores the last epoch and beat that it saw, and the server that had them.
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

__all__ = ["FILE_NAME", "SeenLease", "SeenLeaseFile"]

logger = logging.getLogger(__name__)

#: Name of the file in the data directory of a broker.
FILE_NAME = "seen.json"

#: Minimum seconds between two writes in the same epoch.
WRITE_EVERY = 10.0

#: Maximum number of stores in the file; those that were written last stay.
MAX_STORES = 16


class SeenLease(NamedTuple):
    """The lease of a store as a broker saw it last."""

    epoch: int = 0
    beat: int = 0
    #: System identifier and timeline of the server.
    system: str = ""
    timeline: str = ""


class SeenLeaseFile:
    """Reads and writes the file, which brokers may share. Used by one thread.

    If the file cannot be read or written, one warning is logged and nothing is remembered.

    Args:
        folder: The data directory; it is created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        #: Last lease that was read or written, and monotonic time of the next write.
        self._stored = SeenLease()
        self._write_at = 0.0
        self._warned = False

    def load(self, store_id: str) -> SeenLease:
        """Return the last seen lease of a store; an empty one if there is none."""
        self._stored = self._read().get(store_id, SeenLease())
        return self._stored

    def save(self, store_id: str, seen: SeenLease, *, now: bool = False) -> None:
        """Write the lease of a store; in one epoch only every `WRITE_EVERY`, unless ``now``."""
        new_epoch = seen[0] != self._stored[0]
        if seen <= self._stored or not (now or new_epoch or time.monotonic() >= self._write_at):
            return
        self._write_at = time.monotonic() + WRITE_EVERY
        stores = self._read()
        # Another broker that shares the file may have seen more.
        self._stored = max(seen, stores.pop(store_id, seen))
        stores[store_id] = self._stored
        newest = list(stores.items())[-MAX_STORES:]
        try:
            self._write(json.dumps({name: each._asdict() for name, each in newest}, indent=1))
        except OSError as error:
            self._warn(f"cannot write {self._path}: {error}")

    def _read(self) -> dict[str, SeenLease]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            leases = {name: SeenLease(**values) for name, values in data.items()}
            for epoch, beat, *server in leases.values():
                if not (type(epoch) is type(beat) is int and all(type(v) is str for v in server)):
                    raise ValueError("it has values of wrong types")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self._warn(f"cannot read {self._path}: {error}")
            return {}
        return leases

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{FILE_NAME}.{os.getpid()}")
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
                stream.flush()
                os.fsync(file)
            temporary.replace(self._path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def _warn(self, reason: str) -> None:
        if not self._warned:
            logger.warning(
                "%s; so this broker may not notice that the database was restored to an earlier "
                "time while all brokers were down", reason,
            )  # fmt: skip
        self._warned = True
