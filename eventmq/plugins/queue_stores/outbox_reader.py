"""Reads the events of an SQLite store while its broker runs, or does not: nothing is written.

Each read is a short transaction of its own, so that it keeps no log from being used again.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from eventmq.entries import ReadEvents
from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.outbox import Outbox
from eventmq.plugins.queue_stores.schema import APPLICATION_ID, SCHEMA_VERSION
from eventmq.plugins.queue_stores.sqlite import FILE_NAME
from eventmq.wire.bulk import unpack

if TYPE_CHECKING:
    from eventmq.entries import EventRow, OutboxHead

__all__ = ["OutboxReader"]

#: Seconds to wait where a broker that starts has the file for itself.
_PATIENCE = 5.0


class OutboxReader:
    """The events of the store in a data directory. One thread.

    Args:
        directory: The data directory of a broker.

    Raises:
        StoreError: There is no store, or one that cannot be read; it says what would help.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        if not self._path.is_file():
            msg = f"there is no store in {directory}: name the data directory of a broker"
            raise StoreError(msg)
        try:
            self._db = self._open()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error
        try:
            self._check()
            self._outbox = Outbox(self._db, 0, 0)
            sql = "SELECT value FROM meta WHERE key = 'store_id'"
            (self.store_id,) = self._db.execute(sql).fetchone()
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"cannot read the store {self._path}: {error}") from error
            raise

    def _open(self) -> sqlite3.Connection:
        """Return a connection that cannot write.

        Where nobody may make the index of the log, and there is no log, the file does not change.
        """
        name = quote(str(self._path.absolute()))
        db = self._connect(f"file:{name}?mode=ro")
        try:
            db.execute("SELECT 1 FROM sqlite_master")
        except sqlite3.OperationalError:
            db.close()
            if Path(f"{self._path}-wal").exists():
                raise
            db = self._connect(f"file:{name}?mode=ro&immutable=1")
        return db

    @staticmethod
    def _connect(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=_PATIENCE, check_same_thread=False
        )

    def _check(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StoreError(f"{self._path} is not a store of EventMQ")
        if version > SCHEMA_VERSION:
            msg = (
                f"{self._path} has store version {version}, this EventMQ knows up to "
                f"{SCHEMA_VERSION}: use the newer EventMQ that wrote it"
            )
            raise StoreError(msg)
        there = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'events'").fetchone()
        if not there:
            msg = f"{self._path} is of an older EventMQ, without events: start a broker on it once"
            raise StoreError(msg)

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], OutboxHead]:
        """Return the rows of events after a number, as in `eventmq.entries.ReadEvents`.

        Raises:
            StoreError: The store cannot be read any more.
        """
        try:
            self._db.execute("BEGIN")
            try:
                self._outbox.reload()
                return self._outbox.read(ReadEvents(after, max_bytes))
            finally:
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error

    def addresses(self) -> dict[str, str]:
        """Return where the broker is, or was, by port."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'addresses'").fetchone()
        found: dict[str, str] = unpack(row[0], "the addresses of the broker") if row else {}
        return found

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()
