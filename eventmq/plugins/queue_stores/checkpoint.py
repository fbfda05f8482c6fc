"""Moves the write-ahead log into the database file, on a thread and a connection of its own."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress

__all__ = ["Checkpointer"]

#: A log of this many bytes wakes the thread.
WAKE_BYTES = 8 * 1024 * 1024

#: At this many bytes the committing thread waits for a full checkpoint.
FORCE_BYTES = 64 * 1024 * 1024


class Checkpointer:
    """Checkpoints a database file that another connection writes.

    With ``sync_every`` above 0 the thread also syncs the log that often: the ``relaxed``
    durability.
    """

    def __init__(self, path: str, sync_every: float = 0.0) -> None:
        self._path = path
        self._wal = f"{path}-wal"
        self._sync_every = sync_every
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="eventmq-checkpoint", daemon=True)
        #: How often the log reached `FORCE_BYTES`.
        self.forced = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def committed(self, db: sqlite3.Connection) -> None:
        """Note a commit of ``db``; called by the committing thread."""
        size = self._size()
        if size > FORCE_BYTES:
            self.forced += 1
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        elif size > WAKE_BYTES:
            self._wake.set()

    def _size(self) -> int:
        try:
            return os.stat(self._wal).st_size  # noqa: PTH116 - a Path costs as much again
        except OSError:
            return 0

    def _run(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None, timeout=5.0)
        with suppress(sqlite3.Error):
            db.execute("PRAGMA synchronous = NORMAL")
        while not self._stop:
            woken = self._wake.wait(self._sync_every or None)
            self._wake.clear()
            with suppress(sqlite3.Error):  # a busy database is checkpointed next time
                if woken and self._size() > WAKE_BYTES:
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if self._sync_every:
                self._sync()
        db.close()

    def _sync(self) -> None:
        with suppress(OSError):
            fd = os.open(self._wal, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def stop(self) -> None:
        """End the thread. Idempotent."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
