"""Readers of a store that work beside the commits of its broker: of events, and of listings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.engine import TABLES, EventLog, ReadEvents
from eventmq.errors import StoreError
from eventmq.plugins.database import UNREADABLE, SqliteRows, has_moved, open_to_read
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.schema import check_schema
from eventmq.sdk import unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eventmq.engine import Reader, RowStore
    from eventmq.sdk.events import EventLogHead, EventRow

__all__ = ["SqliteEventLogReader", "SqliteReader"]


class SqliteEventLogReader:
    """Reads the events of the store in a data directory. Used by one thread.

    Args:
        directory: The data directory of a broker.

    Raises:
        StoreError: There is no store, or it cannot be read; the message has advice.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        if not self._path.is_file():
            raise StoreError(
                f"there is no store in {directory}: name the data directory of a broker"
            )
        try:
            self._db = open_to_read(self._path)
        except UNREADABLE as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error
        try:
            check_schema(self._db, self._path)
            self._store = SqliteRows(self._db, TABLES)
            self._event_log = EventLog(self._store, 0, 0)
            self._has_moved = has_moved(self._db)
            self.store_id: str = self._store.values()["store_id"]
        except BaseException as error:
            self._db.close()
            if isinstance(error, UNREADABLE):
                raise StoreError(f"cannot read the store {self._path}: {error}") from error
            raise

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """Return the rows of events after a number; see `eventmq.engine.ReadEvents`.

        Raises:
            StoreError: The store cannot be read any more, or was moved.
        """
        try:
            if self._has_moved():
                raise StoreError(
                    f"the store {self._path} was deleted, moved or replaced: start again to read "
                    "the one that is there now"
                )
            self._db.execute("BEGIN")
            try:
                self._event_log.reload()
                return self._event_log.read(ReadEvents(after, max_bytes))
            finally:
                self._db.execute("COMMIT")
        except UNREADABLE as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the broker at its last start, by port."""
        packed = self._store.values().get("addresses")
        addresses: dict[str, str] = unpack(packed, "the addresses of the broker") if packed else {}
        return addresses

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()


class SqliteReader:
    """A `StoreReader` of a file.

    Args:
        path: The file, which the broker has open.
        answers: Returns what answers reads of rows.
    """

    def __init__(self, path: Path, answers: Callable[[RowStore], Reader]) -> None:
        self._db = open_to_read(path)
        try:
            self._reader = answers(SqliteRows(self._db, TABLES))
        except BaseException:
            self._db.close()
            raise

    def read(self, query: Any) -> Any:
        """Return the result of a read, from one snapshot."""
        self._db.execute("BEGIN")
        try:
            return self._reader.answer(query)
        finally:
            self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()
