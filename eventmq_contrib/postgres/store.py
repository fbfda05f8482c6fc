"""Queue store ``postgresql``: the engine on rows in PostgreSQL, owned by one broker at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from eventmq.engine import CannotUndo, Engine, check_expected
from eventmq.sdk import EventMQError, Fenced, ProtocolError, QueueFull, StoreError, Unknown
from eventmq_contrib.postgres.connection import Away
from eventmq_contrib.postgres.events import PostgresEventLogReader
from eventmq_contrib.postgres.ownership import PostgresOwnership
from eventmq_contrib.postgres.pipeline import ConnectionLost
from eventmq_contrib.postgres.upkeep import PostgresUpkeep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Clock
    from eventmq_contrib.postgres.connection import Database
    from eventmq_contrib.postgres.tools import PostgresTools

__all__ = ["PostgresStore"]

#: Seconds that a broker waits at most before it claims a store again whose commits fail, and after
#: which without such a failure it does not wait.
PAUSE, CALM = 2.0, 10.0


class PostgresStore:
    """A `QueueStore` in a schema of a database.

    Args:
        database: Where the tables are.
        clock: Reads time.
        upkeep: Of the store; None compares no settings.
        expect_store: Id that the store must have; empty: any.
        options: Those of `eventmq.engine.Engine`.
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
        self._write_results: list[Sequence[Any] | Exception] = []
        #: Why nothing is committed any more, before the store is claimed again.
        self._broken: Exception | None = None
        #: Seconds that the last such failure was waited after, and when it is forgotten.
        self._pause = self._calm_at = 0.0

    @property
    def tools(self) -> PostgresTools:
        """What checks the rows."""
        from eventmq_contrib.postgres.tools import PostgresTools  # and SQLite with it

        return PostgresTools(self._database)

    def event_log(self) -> PostgresEventLogReader:
        """Return a reader of the events, on a connection of its own."""
        return PostgresEventLogReader(self._database)

    def open(self) -> Any:
        """Read what is stored, on the session of the claim that succeeded last.

        Raises:
            ConnectionLost: That session has ended: claim again.
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
                return self._engine.open(rows, epoch=own.epoch, passed=own.claimed.passed)
        except ProtocolError as error:
            rows.rollback()
            raise StoreError(f"the store in {self._name} is damaged: {error}") from error
        except Away as error:  # also of the session that beats beside it
            rows.rollback()
            raise ConnectionLost(str(error)) from error
        except BaseException:
            rows.rollback()
            raise

    def submit(self, batch: Sequence[Any]) -> None:
        """Commit a batch; it has ended when this returns."""
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
            self._broken = self._give_up(error.cause)
            return self._broken
        except Exception as error:  # noqa: BLE001 - every failure is a result
            return self._give_up(error)

    def _give_up(self, cause: Exception) -> Unknown:
        """Return what lets the broker claim the store and read it anew, after a failure.

        It may fail again, and so would another broker: each waits longer than the time before.
        """
        if isinstance(cause, Unknown):
            return cause
        now = time.monotonic()
        self._pause = min(PAUSE, 2.0 * self._pause + 0.1) if now < self._calm_at else 0.0
        self._calm_at = now + self._pause + CALM
        self.ownership.wait(self._pause)
        kind = "" if isinstance(cause, EventMQError) else f"{type(cause).__name__}: "
        return ConnectionLost(
            f"a batch was not stored, so what {self._name} has is read anew: {kind}{cause}"
        )

    def finished(self) -> list[Sequence[Any] | Exception]:
        """Return the write results of the commits since the last call."""
        write_results, self._write_results = self._write_results, []
        return write_results

    def verify(self) -> None:
        """Do nothing: the owner renews its lease."""

    def gauges(self) -> Mapping[str, float]:
        """Return ``dead_rows`` and ``oldest_snapshot_seconds``, as of the last seconds."""
        return self.ownership.gauges

    def fileno(self) -> int | None:
        """Return None: nothing ever ends between two calls."""
        return None

    def close(self) -> None:
        """Close all sessions. Idempotent."""
        self.ownership.close()
