"""Reads the events of an SQLite store while its broker runs, or does not: nothing is written.

Each read is a short transaction of its own, so that it keeps no log from being used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import ReadEvents
from eventmq.errors import StoreError
from eventmq.plugins.database import UNREADABLE, first_row, has_moved
from eventmq.plugins.queue_stores.outbox import Outbox
from eventmq.plugins.queue_stores.reading import open_to_read
from eventmq.plugins.queue_stores.schema import check_schema
from eventmq.plugins.queue_stores.sqlite import FILE_NAME
from eventmq.wire.bulk import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from eventmq.entries import EventRow, OutboxHead

__all__ = ["OutboxReader"]


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
            self._db = open_to_read(self._path)
        except UNREADABLE as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error
        try:
            check_schema(self._db, self._path)
            self._outbox = Outbox(self._db, 0, 0)
            self._has_moved = has_moved(self._db)
            sql = "SELECT value FROM meta WHERE key = 'store_id'"
            (self.store_id,) = first_row(self._db, sql)
        except BaseException as error:
            self._db.close()
            if isinstance(error, UNREADABLE):
                raise StoreError(f"cannot read the store {self._path}: {error}") from error
            raise

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], OutboxHead]:
        """Return the rows of events after a number, as in `eventmq.entries.ReadEvents`.

        Raises:
            StoreError: The store cannot be read any more, or is not where it was opened.
        """
        try:
            if self._has_moved():
                msg = (
                    f"the store {self._path} was deleted, moved or replaced: begin anew on what is"
                )
                raise StoreError(f"{msg} there now")
            self._db.execute("BEGIN")
            try:
                self._outbox.reload()
                return self._outbox.read(ReadEvents(after, max_bytes))
            finally:
                self._db.execute("COMMIT")
        except UNREADABLE as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error

    def addresses(self) -> dict[str, str]:
        """Return where the broker is, or was, by port."""
        row = first_row(self._db, "SELECT value FROM meta WHERE key = 'addresses'")
        found: dict[str, str] = unpack(row[0], "the addresses of the broker") if row else {}
        return found

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()
