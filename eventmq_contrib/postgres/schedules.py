"""Schedule store ``postgresql``: schedules in a schema that beats and clients of all hosts share.

What is changed is changed by one process at a time. Beats may be on several hosts, whose clocks
differ, and the database's may be set. So the one that fires raises a number each time that it asks
for the lease; another one takes the lease when by its own clock the number has been the same for
as long as a lease lasts.
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
from eventmq_contrib.postgres.connection import Away
from eventmq_contrib.postgres.rowstore import PostgresRows
from eventmq_contrib.postgres.tables import SCHEDULE_STORE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.sdk import Clock, Progress, Schedule
    from eventmq_contrib.postgres.connection import Database

__all__ = ["PostgresSchedules"]

#: Seconds that a change may take, also where it waits for others.
LIMIT = 10.0

#: Schedules that one transaction saves.
PAGE = 1000

#: More schedules, or bytes, than a store can have.
_ALL = 1 << 62

#: Locks a row which all have in common, so that one transaction comes after the other.
_ALONE = "SELECT name FROM meta WHERE name = 'identity' FOR UPDATE"

T = TypeVar("T")


class PostgresSchedules:
    """A `ScheduleStore` in PostgreSQL.

    It reconnects where it has to; a call during which the database is away fails. A process that
    was forked has a connection of its own.

    Args:
        database: Where the tables are.
        clock: Its monotonic time says how long a lease has been the same.

    Raises:
        BrokerUnavailable: The database cannot be reached now.
        StoreError: It cannot be used; the message says why.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        #: The lease as it was seen last, its holder and number, and since when by this clock.
        self._lease: tuple[str, int] | None = None
        self._since = 0.0
        #: A program may use the store of its app in several threads.
        self._lock = threading.RLock()
        #: By process: a forked child leaves the connection of its parent alone.
        self._rows: dict[int, PostgresRows] = {}
        try:
            self.identity = self._do(self._identify)
        except Away as error:
            raise BrokerUnavailable(str(error)) from error

    @staticmethod
    def _identify(rows: PostgresRows) -> str:
        new = f"postgresql.{secrets.token_hex(8)}"
        rows.insert_new("meta", ("name", "text_value"), [("identity", new)])
        return str(rows.values()["identity"])

    # Transactions

    def _do(self, work: Callable[[PostgresRows], T]) -> T:
        """Do something with the store, on a new connection where the one of before was lost."""
        with self._lock:
            if os.getpid() in self._rows:
                with suppress(Away):
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
            if isinstance(error, Away) or not rows.pipeline.is_open:
                self._rows.pop(os.getpid()).close()
            raise

    def _change(self, work: Callable[[ScheduleTable, PostgresRows], T]) -> T:
        """Do something in a transaction that no other one of these runs beside."""

        def alone(rows: PostgresRows) -> T:
            rows.fence = _ALONE, ()
            rows.begin(careful=True)
            done = work(ScheduleTable(rows), rows)
            rows.commit()
            return done

        return self._do(alone)

    # The lease

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Ask to be the one who fires."""

        def ask(table: ScheduleTable, rows: PostgresRows) -> SchedulerLease:
            values, now = rows.values(), self._clock.monotonic()
            lease = values.get("lease", ""), values.get("lease_number", 0)
            ended = lease == self._lease and now - self._since >= seconds
            held = lease[0] in {"", holder} or ended
            if held:
                lease = holder, lease[1] + 1
                rows.set_values({"lease": holder, "lease_number": lease[1]})
            if lease != self._lease:
                self._lease, self._since = lease, now
            return SchedulerLease(held, table.revision)

        return self._change(ask)

    def release(self, holder: str) -> None:
        """Give the lease back."""

        def give_back(_: ScheduleTable, rows: PostgresRows) -> None:
            if rows.values().get("lease") == holder:
                rows.set_values({"lease": None})

        self._change(give_back)

    # Schedules

    def load(self, after: int = 0) -> Loaded:
        """Return what changed after a revision.

        All of them are read beside what others change, who need not wait for it.
        """
        asked = LoadSchedules(after, _ALL, max_bytes=_ALL)
        if after:
            page = self._change(lambda table, _: table.load(asked))
        else:
            page = self._do(lambda rows: ScheduleTable(rows).load(asked))
        return Loaded(page.revision, read_rows(page.rows), page.gone, page.whole)

    def find(self, name: str) -> Schedule | None:
        """Return a schedule by its name."""
        return self._do(lambda rows: ScheduleTable(rows).find(name))

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each schedule whose version is the expected one."""
        made = [(pack_row(schedule.check()), version) for schedule, version in changes]
        done: list[bool] = []
        revision = 0
        for first in range(0, len(made) or 1, PAGE):
            codes, revision = self._change(
                lambda table, _, page=made[first : first + PAGE]: table.save(page)  # type: ignore[misc]
            )
            if "full" in codes:
                raise QueueFull(f"the store has {MAX_SCHEDULES} schedules; remove some")
            done += [code == "done" for code in codes]
        return Saved(done, revision)

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Store the steps of schedules."""
        return self._change(lambda table, _: Saved(*table.advance(rows)))

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove it if its version is ``expected``."""
        return self._change(lambda table, _: table.remove(name, expected)[0])

    def close(self) -> None:
        """Close the connection of this process; the next use makes a new one."""
        rows = self._rows.pop(os.getpid(), None)
        if rows is not None:
            rows.close()
