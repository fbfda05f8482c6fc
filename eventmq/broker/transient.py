"""Jobs without guarantee: kept in memory only, bounded, and lost when the broker ends.

They wait in the windows of their queues and are leased like stored jobs, but in chunks of their own
that are not written. `TransientJobs` takes the place of the store: it has all of these jobs, the
delayed ones by time, and the last results.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.job import JobState
from eventmq.store.reads import JobRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from eventmq.broker.limits import Limits
    from eventmq.broker.peers import Lease, Session
    from eventmq.headers import Headers
    from eventmq.job import JobRecord
    from eventmq.store.reads import ListJobs
    from eventmq.store.writes import Finished, SubqueueKey

__all__ = ["TransientJobs", "TransientResults", "header_refusal"]


def header_refusal(headers: Headers) -> tuple[str, str] | None:
    """Return why headers with ``guarantee:False`` are refused, None if they are not."""
    excluded = {
        "retry-count": headers.retry_count,
        "unique": headers.unique,
        "limits": headers.limit_rate or headers.limit_running or headers.limit_key,
    }
    what = next((name for name, value in excluded.items() if value), None)
    return (
        None if what is None else ("bad-header", f"guarantee:False and {what} exclude each other")
    )


class TransientResults:
    """The results of the last transient jobs, limited in number, bytes and age."""

    def __init__(self, limits: Limits) -> None:
        self._max, self._max_bytes = limits.transient_results, limits.transient_result_bytes
        #: An OrderedDict: to pop the first of a dict takes longer the more were popped before.
        self.kept: OrderedDict[str, tuple[float, JobRow]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, row: JobRow, until: float) -> None:
        """Keep an outcome until a time; forget the oldest ones if there are too many."""
        self._drop(row.job.id)
        self.kept[row.job.id] = (until, row)
        self._bytes += len(row.result or b"")
        while len(self.kept) > self._max or self._bytes > self._max_bytes:
            self._drop(next(iter(self.kept)))

    def _drop(self, job_id: str) -> None:
        entry = self.kept.pop(job_id, None)
        if entry is not None:
            self._bytes -= len(entry[1].result or b"")

    def get(self, job_id: str, now: float) -> JobRow | None:
        """Return the kept outcome of a job, or None."""
        until, row = self.kept.get(job_id, (0.0, None))
        return row if until > now else None

    def shift(self, seconds: float) -> None:
        """Extend the times of all outcomes, since store time has jumped."""
        for job_id, (until, row) in self.kept.items():
            self.kept[job_id] = (until + seconds, row)

    def prune(self, now: float) -> None:
        """Forget the outcomes whose time has passed."""
        while self.kept:
            job_id, (until, _) = next(iter(self.kept.items()))
            if until > now:
                return
            self._drop(job_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)


class TransientJobs:
    """All jobs without guarantee of a broker.

    Args:
        limits: The limits of jobs and results.
        running: The leased jobs of the broker, by id.
    """

    def __init__(self, limits: Limits, running: Mapping[str, tuple[Session, Lease, int]]) -> None:
        self.limits = limits
        #: Unfinished jobs by id.
        self.jobs: dict[str, JobRecord] = {}
        self.bytes = 0
        self.results = TransientResults(limits)
        #: Heaps of delayed jobs: by the store time at which they become ready, and by wall time.
        self.delayed: list[tuple[float, int, JobRecord]] = []
        self.by_wall: list[tuple[float, int, JobRecord]] = []
        #: Stored jobs that stay in the store until a transient job with the same id has ended: id
        #: -> queue and subqueue.
        self.kept_out: dict[str, tuple[str, SubqueueKey]] = {}
        #: Guarded wall time at which the first of the jobs expires.
        self.next_expiry = float("inf")
        self._running = running
        self._ahead = 0.0

    # Life

    def full(self, job: JobRecord) -> tuple[str, str] | None:
        """Return why there is no room for a job, or None."""
        limits = self.limits
        if len(self.jobs) >= limits.transient_jobs:
            text = f"the broker has {limits.transient_jobs} jobs without guarantee, its maximum"
            return "queue-full", text
        if self.bytes + len(job.body) > limits.transient_bytes:
            text = f"jobs without guarantee have at most {limits.transient_bytes} bytes in all"
            return "queue-full", text
        return None

    def add(self, job: JobRecord) -> None:
        """Add a new job; a delayed one waits here until it is ready."""
        self.jobs[job.id] = job
        self.bytes += len(job.body)
        if job.expires:
            self.next_expiry = min(self.next_expiry, job.expires)
        if job.state is JobState.DELAYED and job.eta:
            self._delay(self.by_wall, job.eta, job)
        elif job.state is JobState.DELAYED:
            self._delay(self.delayed, job.ready_at, job)

    def _delay(self, heap: list[tuple[float, int, JobRecord]], at: float, job: JobRecord) -> None:
        """Add a delayed job to a heap, and purge the heap of ended jobs if it is large."""
        if len(heap) > 2 * len(self.jobs):
            heap[:] = [entry for entry in heap if self.jobs.get(entry[2].id) is entry[2]]
            heapify(heap)
        heappush(heap, (at, job.seq, job))

    def end(self, row: Finished) -> None:
        """Forget an ended job except for its result."""
        job, limits = row.job, self.limits
        del self.jobs[job.id]
        self.bytes -= len(job.body)
        job.state, job.body = row.state, b""
        result = row.result if row.ttl > 0 else None
        outcome = (row.content_type, result, row.started, row.run_time, row.worker)
        ttl = min(row.ttl, limits.transient_result_ttl) or limits.transient_result_ttl
        self.results.add(JobRow(job, row.at, *outcome), row.at + ttl)

    def shift(self, seconds: float) -> None:
        """Extend all times, since store time has jumped."""
        for _, _, job in self.delayed:
            job.ready_at += seconds
            job.rank += int(seconds * 1_000_000)
        self.delayed = [(at + seconds, seq, job) for at, seq, job in self.delayed]
        self.results.shift(seconds)

    @property
    def next_ready_at(self) -> float | None:
        """Store time at which the first delayed job becomes ready, as far as is known."""
        times = [self.delayed[0][0]] if self.delayed else []
        times += [self.by_wall[0][0] - self._ahead] if self.by_wall else []
        return min(times, default=None)

    def pop_ready(self, now: float, ahead: float) -> list[JobRecord]:
        """Remove and return the delayed jobs that are ready now.

        Args:
            now: Store time.
            ahead: Seconds by which wall time is ahead of it.
        """
        self._ahead = ahead
        jobs = []
        for heap, until in ((self.delayed, now), (self.by_wall, now + ahead)):
            while heap and heap[0][0] <= until:
                job = heappop(heap)[2]
                if self.jobs.get(job.id) is job:  # not cancelled meanwhile
                    jobs.append(job)
        return jobs

    def expired(self, wall: float) -> list[JobRecord]:
        """Return the expired jobs that have not started."""
        jobs = [job for job in self.jobs.values() if job.expires]
        following = (max(job.expires, wall + 1.0) for job in jobs)  # one may be handed back
        self.next_expiry = min(following, default=float("inf"))
        return [job for job in jobs if job.expires <= wall and job.id not in self._running]

    # Reading

    def find(self, ids: Iterable[str], now: float) -> dict[str, JobRow]:
        """Return the known jobs by id, unfinished and ended ones."""
        rows = {}
        for job_id in ids:
            job = self.jobs.get(job_id)
            known = self._live(job) if job is not None else self.results.get(job_id, now)
            if known is not None:
                rows[job_id] = known
        return rows

    def _live(self, job: JobRecord) -> JobRow:
        entry = self._running.get(job.id)
        if entry is None:
            return JobRow(job)
        return JobRow(replace(job, state=JobState.RUNNING), worker=entry[0].name)

    def merge(
        self, query: ListJobs, rows: list[JobRow], cursor: str, now: float
    ) -> tuple[list[JobRow], str]:
        """Add the jobs of the memory to a page of the store, the newest id first.

        Args:
            query: The read that was sent to the store.
            rows: The rows that it returned.
            cursor: The last id that it scanned, "" at the end.
            now: Store time.
        """
        first = query.cursor
        ids = {i for i in (*self.jobs, *self.results) if cursor <= i and (not first or i < first)}
        matches: list[JobRow] = []
        for job_id in sorted(ids, reverse=True):
            row = self.find([job_id], now).get(job_id)
            if row is not None and _matches(row, query):
                matches.append(row)
                if len(matches) > query.limit:
                    break
        if not matches:
            return rows, cursor
        rows = sorted([*rows, *matches], key=lambda row: row.job.id, reverse=True)
        if len(rows) <= query.limit:
            return rows, cursor
        return rows[: query.limit], rows[query.limit - 1].job.id


def _matches(row: JobRow, query: ListJobs) -> bool:
    job = row.job
    return (
        (query.state is None or job.state is query.state)
        and (query.queue is None or job.queue == query.queue)
        and (query.task is None or parse_headers(job.headers).task == query.task)
    )
