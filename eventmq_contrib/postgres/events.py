"""Readers of a store in PostgreSQL beside the commits of its owner: of events, and of listings."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq import BrokerUnavailable
from eventmq.engine import EventLog, ReadEvents
from eventmq.sdk import StoreError
from eventmq_contrib.postgres.connection import IDLE, DatabaseUnavailable, connect
from eventmq_contrib.postgres.rowstore import SETTINGS, PostgresRows
from eventmq_contrib.postgres.tables import VALUES
from eventmq_contrib.postgres.versions import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.engine import Reader, RowStore
    from eventmq.sdk.events import EventLogHead, EventRow
    from eventmq_contrib.postgres.connection import Database

__all__ = ["PostgresEventLogReader", "PostgresReader"]

#: Maximum seconds of a read.
LIMIT = 30.0

#: Settings with which all statements of a read see the same snapshot.
_SNAPSHOT = {**SETTINGS, "default_transaction_isolation": "repeatable read"}


class _Read(NamedTuple):
    store_id: str
    #: Address of the owner, "" if there is none.
    address: str
    rows: Sequence[EventRow]
    head: EventLogHead


class PostgresEventLogReader:
    """An `eventmq.sdk.EventLogReader`; it reconnects if the connection was lost.

    Args:
        database: The database of the store.

    Raises:
        BrokerUnavailable: The database cannot be reached now.
        StoreError: There is no store, or it cannot be used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows: PostgresRows | None = None
        self.store_id = self._read(0, 0).store_id

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """Return rows of events after a number, and the head of the event log.

        Raises:
            BrokerUnavailable: The database cannot be reached now.
            StoreError: The events have another id since a failover or a restore.
        """
        read = self._read(after, max_bytes)
        if read.store_id != self.store_id:
            raise StoreError(
                f"the events of the store in {self._database.name} have the id {read.store_id} "
                f"since it failed over or was restored, and had {self.store_id}: begin another "
                "journal, with another --out"
            )
        return list(read.rows), read.head

    def addresses(self) -> Mapping[str, str]:
        """Return the address of the owner as ``main``, empty if there is no owner."""
        address = self._read(0, 0).address
        return {"main": address} if address else {}

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _read(self, after: int, max_bytes: int) -> _Read:
        try:
            rows = self._rows = self._rows or self._open()
            rows.begin()
            values: dict[str, Any] = rows.values()
            [(address,)] = rows.ask("SELECT address FROM lease")
            events, head = EventLog(rows, 0, 0).read(ReadEvents(after, max_bytes))
            rows.commit()
        except DatabaseUnavailable as error:
            self.close()
            raise BrokerUnavailable(str(error)) from error
        except BaseException:
            self.close()
            raise
        return _Read(values.get("events_id") or values["store_id"], address, events, head)

    def _open(self) -> PostgresRows:
        connection = connect(self._database, "journal", idle=IDLE, **_SNAPSHOT)
        try:
            with closing(connection.execute("SELECT to_regclass(%s)", [VALUES.name])) as cursor:
                if cursor.fetchone() == (None,):
                    raise StoreError(
                        f"there is no store in the schema {self._database.schema} of "
                        f"{self._database.name}: name the schema of a broker"
                    )
            prepare(connection, self._database)
            return PostgresRows(connection, self._database.name, LIMIT)
        except BaseException:
            connection.close()
            raise


class PostgresReader:
    """An `eventmq.sdk.StoreReader` with its own connection.

    Args:
        database: The database of the store.
        answers: Returns what answers reads of rows.
    """

    def __init__(self, database: Database, answers: Callable[[RowStore], Reader]) -> None:
        connection = connect(database, "listings", idle=IDLE, **_SNAPSHOT)
        try:
            self._rows = PostgresRows(connection, database.name, LIMIT)
            self._rows.begin()
            self._reader = answers(self._rows)
            self._rows.commit()
        except BaseException:
            connection.close()
            raise

    def read(self, query: Any) -> Any:
        """Return the result of a read, from one snapshot."""
        self._rows.begin()
        try:
            return self._reader.answer(query)
        finally:
            self._rows.rollback()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._rows.close()
