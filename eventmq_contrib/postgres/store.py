"""Queue store ``postgresql``: the engine on PostgreSQL, owned by one broker at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from eventmq.engine import CannotUndo, Engine, check_expected
from eventmq.sdk import EventMQError, Fenced, ProtocolError, QueueFull, StoreError, Unknown
from eventmq_contrib.postgres.connection import DatabaseUnavailable
from eventmq_contrib.postgres.events import PostgresEventLogReader, PostgresReader
from eventmq_contrib.postgres.ownership import PostgresOwnership
from eventmq_contrib.postgres.pipeline import ConnectionLost
from eventmq_contrib.postgres.upkeep import PostgresUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.sdk import Clock
    from eventmq_contrib.outbox.relay import Inbox
    from eventmq_contrib.postgres.connection import Database
    from eventmq_contrib.postgres.tools import PostgresTools

__all__ = ["PostgresStore"]

#: Maximum seconds for which a broker waits before it claims a store again after failed commits, and
#: seconds without a failure after which it does not wait any more.
MAX_PAUSE, RESET_AFTER = 2.0, 10.0


class PostgresStore:
    """A `QueueStore` in a schema of a database.

    Args:
        database: The database of the tables.
        clock: Reads time.
        upkeep: Upkeep of the store; None to compare no settings.
        expect_store: Id that the store must have; "" accepts any.
        options: Options of `eventmq.engine.Engine`.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        upkeep: PostgresUpkeep | None = None,
        expect_store: str = "",
        **options: Any,
    ) -> None:
        self._database = database
        self._name = database.name
        self._expected = expect_store
        self._engine = Engine(clock, **options)
        self.upkeep = upkeep or PostgresUpkeep(database, {})
        self.ownership = PostgresOwnership(database, self.upkeep)
        #: Read while this broker owns the store; set before the store is opened.
        self.inbox: Inbox | None = None
        self._write_results: list[Sequence[Any] | Exception] = []
        #: Result of all commits until the store is claimed again; None if commits work.
        self._broken: Exception | None = None
        #: Seconds of the wait after the last failure, and monotonic time at which it is reset.
        self._pause = self._reset_at = 0.0

    @property
    def tools(self) -> PostgresTools:
        """Tools that check the rows."""
        from eventmq_contrib.postgres.tools import PostgresTools  # imports SQLite

        return PostgresTools(self._database)

    def event_log(self) -> PostgresEventLogReader:
        """Return a reader of the events, with its own connection."""
        return PostgresEventLogReader(self._database)

    def reader(self) -> Callable[[], PostgresReader]:
        """Return what opens a reader with its own connection."""
        return lambda: PostgresReader(self._database, self._engine.reader)

    def open(self) -> Any:
        """Read the stored state, on the session of the last successful claim.

        Raises:
            ConnectionLost: That session has ended: claim the store again.
            StoreError: The store is not the expected one, or is damaged.
        """
        rows = self.ownership.rows
        if rows is None:
            raise ConnectionLost(f"the store in {self._name} is not owned by this broker")
        self._broken = None
        try:
            with self.ownership.recovering(rows):
                check_expected(rows.values(), self._name, self._expected)
                own = self.ownership
                recovered = self._engine.open(rows, epoch=own.epoch, passed=own.claimed.passed)
        except ProtocolError as error:
            rows.rollback()
            raise StoreError(f"the store in {self._name} is damaged: {error}") from error
        except DatabaseUnavailable as error:  # may also be from the session that raises the beat
            rows.rollback()
            raise ConnectionLost(str(error)) from error
        except BaseException:
            rows.rollback()
            raise
        if self.inbox is not None:
            self.inbox.start(self.ownership.address)
        return recovered

    def submit(self, batch: Sequence[Any]) -> None:
        """Commit a batch; the commit has ended when this returns."""
        self._write_results.append(self._commit(batch))

    def _commit(self, batch: Sequence[Any]) -> Sequence[Any] | Exception:
        if self._broken is not None:
            return self._broken
        try:
            return self._engine.commit(batch)
        except QueueFull as error:
            return error
        except (Fenced, Unknown) as error:
            self.ownership.drop()
            return error
        except CannotUndo as error:
            self._broken = self._connection_lost(error.cause)
            return self._broken
        except Exception as error:  # noqa: BLE001 - every failure is a result
            return self._connection_lost(error)

    def _connection_lost(self, cause: Exception) -> Unknown:
        """Return the error after which the broker claims the store and reads its state again.

        As the failure may repeat, on any broker, each time the wait before the claim gets longer.
        """
        if isinstance(cause, Unknown):
            return cause
        now = time.monotonic()
        self._pause = min(MAX_PAUSE, 2.0 * self._pause + 0.1) if now < self._reset_at else 0.0
        self._reset_at = now + self._pause + RESET_AFTER
        self.ownership.delay_claim(self._pause)
        kind = "" if isinstance(cause, EventMQError) else f"{type(cause).__name__}: "
        return ConnectionLost(
            f"a batch was not stored, so the state of {self._name} is read again: {kind}{cause}"
        )

    def finished(self) -> list[Sequence[Any] | Exception]:
        """Return the write results of the commits since the last call."""
        write_results, self._write_results = self._write_results, []
        return write_results

    def verify(self) -> None:
        """Do nothing, since the owner renews its lease."""

    def gauges(self) -> Mapping[str, float]:
        """Return the last ``standbys``, ``dead_rows`` and ``oldest_snapshot_seconds``."""
        return self.ownership.gauges

    def fileno(self) -> int | None:
        """Return None: a commit never ends between two calls."""
        return None

    def close(self) -> None:
        """Close all sessions. Idempotent."""
        if self.inbox is not None:
            self.inbox.close()
        self.ownership.close()
