"""Schedule store ``postgresql``: a schema that beats and clients of all hosts share.

One process at a time changes the schema. Beats may run on hosts whose clocks differ, and the clock
of the database may be set, so a lease does not contain a time. Instead, the holder raises a number
each time it renews the lease. Another beat takes the lease over when the number has not changed for
the duration of a lease, by its own monotonic clock.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from eventmq import BrokerUnavailable
from eventmq.engine import MAX_SCHEDULES, ScheduleTable, pack_row, read_rows
from eventmq.sdk import Loaded, LoadSchedules, QueueFull, Saved, SchedulerLease
from eventmq_contrib.postgres.connection import DatabaseUnavailable
from eventmq_contrib.postgres.rowstore import PostgresRows
from eventmq_contrib.postgres.tables import SCHEDULE_STORE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.sdk import Clock, Progress, Schedule
    from eventmq_contrib.postgres.connection import Database

__all__ = ["PostgresSchedules"]

#: Maximum seconds of a transaction, including the wait for others.
LIMIT = 10.0

#: Maximum number of schedules that one transaction saves.
PAGE = 1000

#: A limit above the number and bytes of schedules in any store.
_ALL = 1 << 62

#: Locks a row that all transactions lock first, so that they run one after the other.
_LOCK = "SELECT name FROM meta WHERE name = 'identity' FOR UPDATE"

T = TypeVar("T")


class PostgresSchedules:
    """A `ScheduleStore` in PostgreSQL.

    It reconnects if the connection was lost. A call fails while the database cannot be reached. A
    forked process opens its own connection.

    Args:
        database: The database of the tables.
        clock: Reads the monotonic time, to measure for how long a lease has not changed.

    Raises:
        BrokerUnavailable: The database cannot be reached now.
        StoreError: The database cannot be used; the message says why.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        #: Holder and number of the lease as last read, and the time since which they are the same.
        self._lease: tuple[str, int] | None = None
        self._unchanged_since = 0.0
        #: A program may use the store of its app in several threads.
        self._lock = threading.RLock()
        #: Process id -> connection; a forked child must not use the connection of its parent.
        self._rows: dict[int, PostgresRows] = {}
        try:
            self.identity = self._do(self._identify)
        except DatabaseUnavailable as error:
            raise BrokerUnavailable(str(error)) from error

    @staticmethod
    def _identify(rows: PostgresRows) -> str:
        new = f"postgresql.{secrets.token_hex(8)}"
        rows.insert_new("meta", ("name", "text_value"), [("identity", new)])
        return str(rows.values()["identity"])

    # Transactions

    def _do(self, work: Callable[[PostgresRows], T]) -> T:
        """Call ``work``; call it again on a new connection if the previous one was lost."""
        with self._lock:
            if os.getpid() in self._rows:
                with suppress(DatabaseUnavailable):
                    return self._try(work)
            return self._try(work)

    def _try(self, work: Callable[[PostgresRows], T]) -> T:
        rows = self._rows.get(os.getpid())
        if rows is None:
            rows = PostgresRows.open(self._database, LIMIT, SCHEDULE_STORE)
            self._rows[os.getpid()] = rows
        try:
            return work(rows)
        except BaseException as error:
            rows.rollback()
            if isinstance(error, DatabaseUnavailable) or not rows.pipeline.is_open:
                self._rows.pop(os.getpid()).close()
            raise

    def _change(self, work: Callable[[ScheduleTable, PostgresRows], T]) -> T:
        """Call ``work`` in a transaction that excludes all others of these."""

        def exclusive(rows: PostgresRows) -> T:
            rows.fence = _LOCK, ()
            rows.begin(careful=True)
            result = work(ScheduleTable(rows), rows)
            rows.commit()
            return result

        return self._do(exclusive)

    # The lease

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Acquire or renew the scheduler lease, unless another holder has it."""

        def acquire(table: ScheduleTable, rows: PostgresRows) -> SchedulerLease:
            values, now = rows.values(), self._clock.monotonic()
            lease = values.get("lease", ""), values.get("lease_number", 0)
            ended = lease == self._lease and now - self._unchanged_since >= seconds
            held = lease[0] in {"", holder} or ended
            if held:
                lease = holder, lease[1] + 1
                rows.set_values({"lease": holder, "lease_number": lease[1]})
            if lease != self._lease:
                self._lease, self._unchanged_since = lease, now
            return SchedulerLease(held, table.revision)

        return self._change(acquire)

    def release(self, holder: str) -> None:
        """Release the scheduler lease if ``holder`` has it."""

        def clear(_: ScheduleTable, rows: PostgresRows) -> None:
            if rows.values().get("lease") == holder:
                rows.set_values({"lease": None})

        self._change(clear)

    # Schedules

    def load(self, after: int = 0) -> Loaded:
        """Return the schedules that changed after a revision.

        All schedules, after revision 0, are read without the lock, so that others need not wait.
        """
        request = LoadSchedules(after, _ALL, max_bytes=_ALL)
        if after:
            page = self._change(lambda table, _: table.load(request))
        else:
            page = self._do(lambda rows: ScheduleTable(rows).load(request))
        return Loaded(page.revision, read_rows(page.rows), page.gone, page.whole)

    def find(self, name: str) -> Schedule | None:
        """Return the schedule with a name, None if there is none."""
        return self._do(lambda rows: ScheduleTable(rows).find(name))

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each schedule whose version is the expected one."""
        rows = [(pack_row(schedule.check()), version) for schedule, version in changes]
        done: list[bool] = []
        revision = 0
        for first in range(0, len(rows) or 1, PAGE):
            codes, revision = self._change(
                lambda table, _, page=rows[first : first + PAGE]: table.save(page)  # type: ignore[misc]
            )
            if "full" in codes:
                raise QueueFull(f"the store has {MAX_SCHEDULES} schedules; remove some")
            done += [code == "done" for code in codes]
        return Saved(done, revision)

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Store the progress of schedules."""
        return self._change(lambda table, _: Saved(*table.advance(rows)))

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove a schedule if its version is ``expected``."""
        return self._change(lambda table, _: table.remove(name, expected)[0])

    def close(self) -> None:
        """Close the connection of this process; the next use opens a new one."""
        rows = self._rows.pop(os.getpid(), None)
        if rows is not None:
            rows.close()
