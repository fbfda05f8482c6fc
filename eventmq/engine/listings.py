"""Listings: bounded searches among the jobs of a store, by pages.

A page examines at most `MAX_ROWS` rows for at most `MAX_SECONDS`, whatever the store has and
whatever matches, so that a listing delays nothing. Pages follow each other by the key of the last
examined row, so a job that moves from one table to another between two pages is neither missed nor
listed twice.

`Listings` belongs to a broker's commits; `Reader` has a connection of its own and one other thread.
"""

from __future__ import annotations

from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from eventmq.engine import damaged
from eventmq.engine.operations import fits, fits_job
from eventmq.engine.rows import (
    BARE_FAILED_ROW,
    BARE_OUTCOME_ROW,
    BARE_ROW,
    NO_QUEUE,
    Tables,
    error_label,
    task_of,
)
from eventmq.engine.writes import SKEW, id_horizon
from eventmq.job import JobState, id_time
from eventmq.store.reads import (
    CountJobs,
    FailureGroup,
    GroupFailures,
    JobPage,
    JobRow,
    ListFailed,
    ListJobs,
)
from eventmq.store.writes import subqueue_of
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eventmq.clock import Clock
    from eventmq.engine.contract import RowStore
    from eventmq.store.writes import Operation
    from eventmq.timekeeping import Timekeeper

__all__ = ["Listings", "Reader"]

#: Limits of one page.
MAX_ROWS = 5000
MAX_SECONDS = 0.020

#: Rows between two looks at the clock, and maximum number of rows that one statement reads.
_STRIDE, _PORTION = 64, 500

#: Maximum number of groups of failed jobs whose error is read for a page.
_SAMPLES = 100

#: Below all version 7 ids.
_OLDEST_ID = "01"

_ENDED = frozenset({JobState.SUCCEEDED, JobState.CANCELLED, JobState.EXPIRED})

_GROUPED = ("task", "error", "queue", "at", "seq", "id")


class _Budget:
    """What one page may still examine."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._end = self._monotonic() + MAX_SECONDS
        self.examined = 0

    def spend(self) -> bool:
        """Count a row; return whether it is the last one that the page may examine."""
        self.examined += 1
        return self.examined >= MAX_ROWS or (
            self.examined % _STRIDE == 0 and self._monotonic() >= self._end
        )


class Listings:
    """Handlers of `ListJobs`, `ListFailed`, `CountJobs` and `GroupFailures`.

    Args:
        tables: The rows.
        keeper: Time of the store.
        clock: Measures the time of a page.
    """

    def __init__(self, tables: Tables, keeper: Timekeeper, clock: Clock) -> None:
        self.tables = tables
        self.keeper = keeper
        self._clock = clock
        self.handlers: dict[type, Callable[[Any], Any]] = {
            ListJobs: self.list_jobs,
            ListFailed: self.list_failed,
            CountJobs: self.count,
            GroupFailures: self.group_failures,
        }

    # Jobs of all states

    def list_jobs(self, query: ListJobs) -> JobPage:
        """List jobs, the newest first: by id, which begins with the time.

        Version 7 ids outside of ``since`` and ``until``, widened by `SKEW` for the clocks of
        clients, are skipped by their key. Other ids are examined.
        """
        names = ["jobs", "failed", *self.tables.periods.values()]
        names = [name for name in names if _may_hold(name, query.state)]
        rows: list[JobRow] = []
        budget, searched_to, below = _Budget(self._clock), 0.0, query.cursor
        skipped: str | None = below
        while skipped is not None:
            below, skipped = skipped, None
            tables = [self._rows(name, below, query.limit) for name in names]
            for job_id, row in merge(*tables, key=itemgetter(0), reverse=True):
                skipped = self._skip(job_id, query)
                if skipped is not None:
                    break
                searched_to = row.job.created or searched_to
                if self._matches(row, query):
                    rows.append(row)
                if budget.spend() or len(rows) >= query.limit:
                    return JobPage(rows, job_id, searched_to, budget.examined)
        return JobPage(rows, "", searched_to, budget.examined)

    def _skip(self, job_id: str, query: ListJobs) -> str | None:
        """Return the key below which to go on instead of with this id, None to examine it."""
        if not (query.since or query.until):
            return None
        made = id_time(job_id)
        if made is None:
            return None
        ahead = self.keeper.ahead
        if query.until and job_id > (newest := id_horizon(query.until + ahead)):
            return newest
        if query.since and made < query.since + ahead - SKEW:
            return _OLDEST_ID
        return None

    def _rows(self, table: str, below: str, limit: int) -> Iterator[tuple[str, JobRow]]:
        """Yield (id, job) of a table in descending order, from below an id."""
        tables = self.tables
        kinds: dict[str, tuple[str, Sequence[str], int, Callable[[tuple[Any, ...]], JobRow]]] = {
            "jobs": ("jobs_id", BARE_ROW, 1, lambda row: JobRow(tables.job(row))),
            "failed": ("failed_id", BARE_FAILED_ROW, 1, tables.failed),
        }
        index, columns, id_position, read = kinds.get(table) or (
            table, BARE_OUTCOME_ROW, 0, lambda row: tables.outcome(row[:-1], self.keeper),
        )  # fmt: skip
        rows = damaged.pages(
            tables.store, index, columns, lambda row: (damaged.shown(row[id_position]),),
            portion=_PORTION, limit=limit + 1, lt=(below,) if below else (), descending=True,
        )  # fmt: skip
        for row in rows:
            job_row = read(row)
            yield job_row.job.id, job_row

    @staticmethod
    def _matches(row: JobRow, query: ListJobs) -> bool:
        job = row.job
        return (
            (query.queue is None or job.queue == query.queue)
            and (query.task is None or task_of(job) == query.task)
            and (query.key is None or subqueue_of(job.headers).key == query.key)
            and (query.state is None or job.state is query.state)
            and (not query.since or job.created >= query.since)
            and (not query.until or job.created < query.until)
        )

    # Failed jobs

    def list_failed(self, query: ListFailed) -> JobPage:
        """List failed jobs; the cursor is ``time:number`` of the last examined row."""
        rows: list[JobRow] = []
        budget, searched_to = _Budget(self._clock), 0.0
        text = query.text.casefold()
        columns = BARE_FAILED_ROW
        at = columns.index("at")
        for row in self._failures(query.operation, columns, query.cursor, (at, 0), query.limit + 1):
            failed = self.tables.failed(row)
            searched_to = failed.at
            if fits(failed, query.operation) and (not text or _contains(failed, text)):
                rows.append(failed)
            if budget.spend() or len(rows) >= query.limit:
                cursor = f"{failed.at!r}:{failed.job.seq}"
                return JobPage(rows, cursor, searched_to, budget.examined)
        return JobPage(rows, "", searched_to, budget.examined)

    def _failures(
        self,
        operation: Operation,
        columns: Sequence[str],
        cursor: str,
        positions: tuple[int, int],
        limit: int,
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows of failed jobs, the last failed first, by the index with the fewest of them.

        Args:
            operation: The filters; the rows may also match some of them only.
            columns: The columns to read.
            cursor: ``time:number`` to begin below, "" for the end.
            positions: Positions of ``at`` and ``seq`` among the columns.
            limit: Maximum number of rows of the first statement.
        """
        index: str = "failed_at"
        prefix: tuple[Any, ...] = ()
        if operation.error:
            index, prefix = "failed_error", (error_label(operation.error),)
        elif operation.task:
            index, prefix = "failed_task", (operation.task,)
        elif operation.queue:
            index, prefix = "failed_queue", (self.tables.known_queue(operation.queue),)
        below: tuple[Any, ...] = _position(cursor) if cursor else ()
        if operation.until:
            below = min(below, (operation.until,)) if below else (operation.until,)
        return damaged.pages(
            self.tables.store, index, columns, itemgetter(*positions), prefix=prefix,
            portion=_PORTION, limit=limit, lt=below, descending=True,
            ge=(operation.since,) if operation.since else (),
        )  # fmt: skip

    def count(self, query: CountJobs) -> tuple[int, bool]:
        """Count the jobs that match the filters of an operation, in its order."""
        operation, budget, count = query.operation, _Budget(self._clock), 0
        tables = self.tables
        if operation.action != "cancel":
            is_dotted = "." in operation.error  # only the last part is indexed
            columns = BARE_FAILED_ROW if is_dotted else _GROUPED
            at, seq = columns.index("at"), columns.index("seq")
            for row in self._failures(operation, columns, "", (at, seq), _PORTION):
                if is_dotted:
                    count += fits(tables.failed(row), operation)
                else:
                    count += self._is_of(operation, row)
                if budget.spend():
                    return count, False
            return count, True
        jobs = damaged.pages(
            tables.store, "jobs", BARE_ROW, lambda row: row[:1], portion=_PORTION,
        )  # fmt: skip
        for row in jobs:
            count += row[0] not in query.excluded and fits_job(tables.job(row), operation)
            if budget.spend():
                return count, False
        return count, True

    def group_failures(self, query: GroupFailures) -> tuple[list[FailureGroup], str, float]:
        """Group failed jobs by task and type of the error."""
        operation, budget, cursor, at = query.operation, _Budget(self._clock), "", 0.0
        groups: dict[tuple[str, str], FailureGroup] = {}
        for row in self._failures(operation, _GROUPED, query.cursor, (3, 4), _PORTION):
            task, error, job_id = (damaged.shown(row[n]) for n in (0, 1, 5))
            key, at, seq = row[2:5]
            if self._is_of(operation, row):
                name = self._queue_name(key)
                group = groups.get((task, error))
                if group is None:
                    group = FailureGroup(task, error, 0, {}, at, at, job_id, b"")
                group.queues[name] = group.queues.get(name, 0) + 1
                groups[task, error] = group._replace(size=group.size + 1, first=at)
            if budget.spend():
                cursor = f"{at!r}:{seq}"
                break
        listed = list(groups.values())
        ids = [group.sample for group in listed[:_SAMPLES]]
        errors = self._errors(ids) if ids else {}
        return (
            [group._replace(result=errors.get(group.sample, b"")) for group in listed],
            cursor,
            at,
        )

    def _queue_name(self, key: int) -> str:
        try:
            return self.tables.queue_name(key)
        except KeyError:
            return NO_QUEUE

    def _is_of(self, operation: Operation, row: Sequence[Any]) -> bool:
        """Return whether filters other than the times match a row of `_GROUPED`."""
        return (
            operation.task in {"", row[0]}
            and (not operation.error or error_label(operation.error) == row[1])
            and (not operation.queue or operation.queue == self._queue_name(row[2]))
        )

    def _errors(self, ids: Sequence[str]) -> dict[str, bytes]:
        tables = self.tables
        rows = tables.get("failed", BARE_FAILED_ROW, ids, by="failed_id")
        return {row.job.id: row.result or b"" for row in map(tables.failed, rows)}


class Reader:
    """Answers the reads of listings from a connection of its own, in one thread.

    Args:
        rows: The store, through a connection that writes nothing.
        period: Seconds of a period of outcomes, `eventmq.engine.Engine.period`.
        keeper: Time of the store, which another thread advances.
        clock: Measures the time of a page.
    """

    def __init__(self, rows: RowStore, period: float, keeper: Timekeeper, clock: Clock) -> None:
        self._tables = Tables(rows, period)
        self._handlers = Listings(self._tables, keeper, clock).handlers

    def answer(self, query: Any) -> Any:
        """Return the result of a read; called inside a transaction."""
        self._tables.reload()
        return self._handlers[type(query)](query)


def _may_hold(table: str, state: JobState | None) -> bool:
    if state is None:
        return True
    if state is JobState.FAILED:
        return table == "failed"
    return table.startswith("outcomes_") if state in _ENDED else table == "jobs"


def _contains(failed: JobRow, text: str) -> bool:
    error = decode_error(failed.result or b"")
    return any(text in part.casefold() for part in (error.type, error.message, error.traceback))


def _position(cursor: str) -> tuple[float, int]:
    at, _, seq = cursor.partition(":")
    try:
        return float(at), int(seq)
    except ValueError:
        return float("inf"), 0
