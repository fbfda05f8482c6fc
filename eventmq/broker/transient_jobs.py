"""Jobs without guarantee as the broker keeps them: in memory alone, bounded, gone with it.

`TransientJobs` has the unfinished ones, a `TransientQueue` of the waiting ones of each queue, and
the outcomes of the last that have ended. `eventmq.broker.transient` decides what happens to them.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.job import JobState
from eventmq.store.reads import JobRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from eventmq.broker.limiters import Limiters
    from eventmq.broker.limits import Limits
    from eventmq.broker.peers import Lease, Session
    from eventmq.job import JobRecord
    from eventmq.store.reads import ListJobs

__all__ = ["TransientJobs", "TransientQueue", "TransientResults"]


class TransientQueue:
    """The waiting transient jobs of one queue, best rank first."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[tuple[int, int, JobRecord]] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def head(self) -> tuple[int, int]:
        """The (rank, seq) of the first job; there must be one."""
        return self._items[0][:2]

    def join(self, job: JobRecord) -> None:
        """Add a job."""
        insort(self._items, (job.rank, job.seq, job))

    def pop(
        self, cost: Callable[[JobRecord], float], budget: float, limit: int, room: int, bound: float
    ) -> list[JobRecord]:
        """Remove and return the best ranked jobs that suit a worker.

        Args:
            cost: Seconds that a job costs, below 0 if it does not suit.
            budget: Seconds; the job that exceeds it is the last.
            limit: Jobs.
            room: Bytes of payload; the first job is taken whatever it has.
            bound: Jobs of a larger rank stay.
        """
        popped: list[JobRecord] = []
        skipped: list[tuple[int, int, JobRecord]] = []
        place = 0
        for entry in self._items:
            rank, _, job = entry
            if len(popped) >= limit or budget <= 0 or rank > bound:
                break
            seconds = cost(job)
            if seconds < 0:
                skipped.append(entry)
            elif popped and len(job.body) > room:
                break
            else:
                popped.append(job)
                budget -= seconds
                room -= len(job.body)
            place += 1
        if popped:
            self._items[:place] = skipped
        return popped

    def drop(self, leave: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """Remove and return the jobs for which ``leave`` is true."""
        left = [entry[2] for entry in self._items if leave(entry[2])]
        if left:
            gone = set(map(id, left))
            self._items = [entry for entry in self._items if id(entry[2]) not in gone]
        return left


class TransientResults:
    """How the last transient jobs ended, bounded in number, bytes and time."""

    def __init__(self, limits: Limits) -> None:
        self._max, self._max_bytes = limits.transient_results, limits.transient_result_bytes
        #: An OrderedDict, since the first goes often: a dict would search longer and longer for it.
        self.kept: OrderedDict[str, tuple[float, JobRow]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, row: JobRow, until: float) -> None:
        """Keep an outcome until a time; the oldest ones make room."""
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
        """Return what is kept of a job."""
        until, row = self.kept.get(job_id, (0.0, None))
        return row if until > now else None

    def shift(self, seconds: float) -> None:
        """Keep everything for as long as it was to be kept: store time went on at once."""
        for job_id, (until, row) in self.kept.items():
            self.kept[job_id] = (until + seconds, row)

    def prune(self, now: float) -> None:
        """Forget what is past its time, oldest first."""
        while self.kept:
            job_id, (until, _) = next(iter(self.kept.items()))
            if until > now:
                return
            self._drop(job_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)


class TransientJobs:
    """All jobs without guarantee of a broker."""

    def __init__(self, limits: Limits, limiters: Limiters) -> None:
        self.limits = limits
        #: Their queues may be limited.
        self.limiters = limiters
        #: Unfinished jobs by id.
        self.jobs: dict[str, JobRecord] = {}
        #: Leased jobs: id -> (session, chunk, position).
        self.running: dict[str, tuple[Session, Lease, int]] = {}
        self.queues: dict[str, TransientQueue] = {}
        self.results = TransientResults(limits)
        self.bytes = 0
        #: Delayed jobs by the store time at which they become ready, or by the wall time.
        self.delayed: list[tuple[float, int, JobRecord]] = []
        self.by_wall: list[tuple[float, int, JobRecord]] = []
        self._ahead = 0.0

    # Life

    def add(self, job: JobRecord) -> None:
        """Keep a new job."""
        self.jobs[job.id] = job
        self.bytes += len(job.body)
        if job.state is JobState.DELAYED:
            self._delay(job)
        else:
            self.join(job)

    def _delay(self, job: JobRecord) -> None:
        if job.eta:
            heappush(self.by_wall, (job.eta, job.seq, job))
        else:
            heappush(self.delayed, (job.ready_at, job.seq, job))

    def join(self, job: JobRecord) -> None:
        """Make a job of the memory one that waits for a worker."""
        waiting = self.queues.get(job.queue)
        if waiting is None:
            waiting = self.queues[job.queue] = TransientQueue()
        waiting.join(job)

    def leased(self, job: JobRecord, entry: tuple[Session, Lease, int], now: float) -> None:
        """Note that a job is leased."""
        self.running[job.id] = entry
        if self.limiters.of_queues:
            self.limiters.leased(job, now, held=_held(job))

    def released(self, job: JobRecord, *, unstarted: bool = False) -> None:
        """Note that a job is not leased any more, and did not start perhaps."""
        if self.running.pop(job.id, None) is not None and self.limiters.held:
            self.limiters.released(_held(job), unstarted=unstarted)

    def remove(self, job: JobRecord) -> None:
        """Forget a job that has ended."""
        self.released(job)
        if self.jobs.pop(job.id, None) is not None:
            self.bytes -= len(job.body)

    def shift(self, seconds: float) -> None:
        """Let everything last as long as it was to last: store time went on at once."""
        for _, _, job in self.delayed:
            job.ready_at += seconds
            job.rank += int(seconds * 1_000_000)
        self.delayed = [(due + seconds, seq, job) for due, seq, job in self.delayed]
        self.results.shift(seconds)

    @property
    def next_ready_at(self) -> float | None:
        """Store time at which the first delayed job becomes ready, as far as is known."""
        dues = [self.delayed[0][0]] if self.delayed else []
        dues += [self.by_wall[0][0] - self._ahead] if self.by_wall else []
        return min(dues, default=None)

    def tidy(self, queue: str) -> None:
        """Forget a queue in which no job waits."""
        waiting = self.queues.get(queue)
        if waiting is not None and not len(waiting):
            del self.queues[queue]

    def due(self, now: float, ahead: float) -> list[JobRecord]:
        """Remove and return the delayed jobs whose time has come.

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
                    job.state = JobState.QUEUED
                    jobs.append(job)
        return jobs

    def full(self, job: JobRecord) -> tuple[str, str] | None:
        """Return why there is no room for a job, or None."""
        limits = self.limits
        if len(self.jobs) >= limits.transient_jobs:
            return (
                "queue-full",
                f"the broker has its {limits.transient_jobs} jobs without guarantee",
            )
        if self.bytes + len(job.body) > limits.transient_bytes:
            text = f"jobs without guarantee have at most {limits.transient_bytes} bytes in all"
            return "queue-full", text
        return None

    def ready(self) -> set[str]:
        """Return the names of queues with a waiting job."""
        return set(self.queues)

    # Reading

    def find(self, ids: Iterable[str], now: float) -> dict[str, JobRow]:
        """Return what is known of jobs, the unfinished and the ended ones."""
        rows = {}
        for job_id in ids:
            job = self.jobs.get(job_id)
            known = self._live(job) if job is not None else self.results.get(job_id, now)
            if known is not None:
                rows[job_id] = known
        return rows

    def _live(self, job: JobRecord) -> JobRow:
        entry = self.running.get(job.id)
        if entry is None:
            return JobRow(job)
        return JobRow(replace(job, state=JobState.RUNNING), worker=entry[0].name)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return (queue, state) -> number of unfinished jobs."""
        return Counter(
            (job.queue, "running" if job.id in self.running else job.state.value)
            for job in self.jobs.values()
        )

    def merge(
        self, entry: ListJobs, rows: list[JobRow], cursor: str, now: float
    ) -> tuple[list[JobRow], str]:
        """Add the jobs of the memory to a page of the store, the newest id first.

        Args:
            entry: What was asked.
            rows: What the store found.
            cursor: The last id that it scanned, "" if there is no more.
            now: Unix time.
        """
        first = entry.cursor
        ids = {i for i in (*self.jobs, *self.results) if cursor <= i and (not first or i < first)}
        mine: list[JobRow] = []
        for job_id in sorted(ids, reverse=True):
            match = self.find([job_id], now).get(job_id)
            if match is not None and _matches(match, entry):
                mine.append(match)
                if len(mine) > entry.limit:
                    break
        if not mine:
            return rows, cursor
        rows = sorted([*rows, *mine], key=lambda match: match.job.id, reverse=True)
        if len(rows) <= entry.limit:
            return rows, cursor
        return rows[: entry.limit], rows[entry.limit - 1].job.id


def _held(job: JobRecord) -> str:
    """Return under which id a job is counted: a stored one may have the same."""
    return f"\0{job.id}"


def _matches(match: JobRow, entry: ListJobs) -> bool:
    job = match.job
    return (
        (entry.state is None or job.state is entry.state)
        and (entry.queue is None or job.queue == entry.queue)
        and (entry.task is None or parse_headers(job.headers).task == entry.task)
    )
