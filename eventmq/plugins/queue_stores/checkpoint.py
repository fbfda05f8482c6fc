"""Moves the write-ahead log into the database file, most of it on a thread of its own.

The log is used again from its beginning as soon as all of it has been moved: a commit into blocks
that the file has already measured 59 us, one that makes the file grow 109 us. So the thread moves
what is there once the log has some size, and the committing thread, which alone can, moves the
small rest and begins anew.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from contextlib import suppress

from eventmq.errors import StoreError

__all__ = ["Checkpointer"]

#: Frames (pages of 4 KiB) in the log at which the thread begins to move them.
WAKE_FRAMES = 1024

#: Frames at which the committing thread tries to begin the log anew.
RESTART_FRAMES = 2 * WAKE_FRAMES

#: Frames (64 MiB) that the log has only if a reader kept it from beginning anew; counted.
FORCED_FRAMES = 16 * 1024

#: Words of errors after which a checkpoint is simply tried again.
_PASSING = ("locked", "busy", "disk is full")

#: Where the number of frames stands in the index file ("WAL-Index Header", field mxFrame).
_MX_FRAME = 16


class Checkpointer:
    """Checkpoints a database file that another connection writes.

    With ``sync_every`` above 0 the thread also syncs the log that often: the ``relaxed``
    durability.
    """

    def __init__(self, path: str, sync_every: float = 0.0) -> None:
        self._path = path
        self._sync_every = sync_every
        self._index = -1
        self._next_wake, self._next_try = WAKE_FRAMES, RESTART_FRAMES
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="eventmq-checkpoint", daemon=True)
        self._failure: Exception | None = None
        #: How often the log reached `FORCED_FRAMES`.
        self.forced = 0

    def start(self) -> None:
        """Start the thread, once the database is in WAL mode and was read."""
        self._index = os.open(f"{self._path}-shm", os.O_RDONLY)
        self._thread.start()

    def committed(self, db: sqlite3.Connection) -> None:
        """Note a commit of ``db``; called by the committing thread.

        Raises:
            StoreError: The log could not be moved or synced, for another reason than a lack of
                space, which the next commits meet themselves.
        """
        if self._failure is not None:
            raise StoreError(f"the store {self._path} cannot be synced") from self._failure
        frames = self._frames()
        if frames < WAKE_FRAMES:
            self._next_wake, self._next_try = WAKE_FRAMES, RESTART_FRAMES
        elif frames >= self._next_try:
            self.forced += frames >= FORCED_FRAMES
            self._next_wake, self._next_try = frames + WAKE_FRAMES, frames + RESTART_FRAMES
            self._checkpoint(db, "RESTART")
            if self._failure is not None:
                raise StoreError(f"the store {self._path} cannot be synced") from self._failure
        elif frames >= self._next_wake:
            self._next_wake = frames + WAKE_FRAMES // 2
            self._wake.set()

    def _frames(self) -> int:
        return int.from_bytes(os.pread(self._index, 4, _MX_FRAME), sys.byteorder)

    def _run(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None, timeout=5.0)
        with suppress(sqlite3.Error):
            db.execute("PRAGMA synchronous = NORMAL")
        while not self._stop:
            woken = self._wake.wait(self._sync_every or None)
            self._wake.clear()
            if woken and not self._stop:
                self._checkpoint(db, "PASSIVE")
            if self._sync_every:
                self._sync()
        db.close()

    def _checkpoint(self, db: sqlite3.Connection, mode: str) -> None:
        try:
            db.execute(f"PRAGMA wal_checkpoint({mode})")
        except sqlite3.Error as error:
            if not any(word in str(error) for word in _PASSING):
                self._failure = error

    def _sync(self) -> None:
        try:
            fd = os.open(f"{self._path}-wal", os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            self._failure = error

    def stop(self) -> None:
        """End the thread. Idempotent."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._index >= 0:
            os.close(self._index)
            self._index = -1
