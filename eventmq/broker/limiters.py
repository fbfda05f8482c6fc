"""Limiters: how many jobs may start per time, and run at a time, over all workers.

A `Limiter` stands for one task and key in all queues, or for one queue with all of its tasks;
`Limiters` has all of them and knows which leased jobs they count. `eventmq.broker.queues` asks them
before it takes jobs. Their buckets are written as `SaveLimits` beside the lease; what runs is not
written, since it is in the open chunks.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.rates import parse_rate, show_limits
from eventmq.store.writes import LimitRow, SubqueueKey, subqueue_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from eventmq.job import JobRecord
    from eventmq.rates import Rate

__all__ = ["ANY", "Limiter", "Limiters"]

#: More than any chunk has.
ANY = 1 << 30

#: What is missing of a token because seconds are no exact numbers.
_SLACK = 1e-6

#: Seconds for which a limiter is kept that is not needed.
_IDLE = 10.0

#: The task in the rows of limited queues, whose key is the name of the queue.
_QUEUE = "\x01queue"


class Limiter:
    """The limits of one task and key, or of one queue, and what remains of them.

    Args:
        key: Task and key.
    """

    __slots__ = (
        "headers",
        "key",
        "max_running",
        "rate",
        "ready_at",
        "running",
        "seq",
        "tokens",
        "updated",
        "used",
        "waiting",
    )

    def __init__(self, key: SubqueueKey) -> None:
        self.key = key
        self.rate: Rate | None = None
        #: Jobs that may run at a time, 0 for any number.
        self.max_running = 0
        #: Leased jobs.
        self.running = 0
        #: Never more than ``rate.jobs`` once there is a rate.
        self.tokens = float("inf")
        self.updated = 0.0
        #: Number of the job whose headers set the limits: those of the newest one count.
        self.seq = -1
        self.headers: str | None = None
        #: When a new job last named it.
        self.used = 0.0
        #: What it blocks, with what resumes it; and when that is to be resumed at the latest.
        self.waiting: dict[object, Callable[[], None]] = {}
        self.ready_at = float("inf")

    def set(self, text: str, now: float) -> None:
        """Take over the limits that the headers of a job set."""
        if text == self.headers:
            return
        self.headers, headers = text, parse_headers(text)
        rate = parse_rate(headers.limit_rate) if headers.limit_rate else None
        if rate is None:
            self.tokens = float("inf")
        else:
            self.rate = self.rate or rate  # of a recovered bucket, this is the first one known
            self._refill(now)
            self.tokens = min(self.tokens, float(rate.jobs))
        self.rate, self.max_running = rate, headers.limit_running

    def bound(self, rate: str, max_running: int) -> None:
        """Take over the limits of a queue; the bucket is full."""
        self.rate, self.max_running = parse_rate(rate) if rate else None, max_running
        self.headers = show_limits(rate, max_running)
        self.tokens = float(self.rate.jobs) if self.rate else float("inf")

    def restore(self, row: LimitRow) -> None:
        """Take over what was written of the bucket, where the limits are known."""
        if self.rate is not None:
            self.tokens = min(float(self.rate.jobs), row.tokens)
            self.updated = row.updated

    def _refill(self, now: float) -> None:
        rate = self.rate
        if rate is not None and now > self.updated:
            more = (now - self.updated) * rate.jobs / rate.seconds
            self.tokens = min(float(rate.jobs), self.tokens + more)
        if rate is not None:
            self.updated = now  # also after the clock went back

    def allowance(self, now: float) -> int:
        """Return how many jobs may start now."""
        free = self.max_running - self.running if self.max_running else ANY
        if free > 0 and self.rate is not None:
            self._refill(now)
            free = min(free, int(self.tokens + _SLACK))
        return max(0, free)

    def next_start(self, now: float) -> float | None:
        """Return when a job may start at the latest, None if that is now or not known."""
        rate = self.rate
        full = self.max_running and self.running >= self.max_running
        if rate is None or full or self.allowance(now):
            return None
        return now + (1.0 - self.tokens) * rate.seconds / rate.jobs

    def acquire(self, now: float) -> None:
        """Count a job that is leased."""
        self.running += 1
        if self.rate is not None:
            self._refill(now)
            self.tokens -= 1.0

    def refund(self) -> None:
        """Take back the token of a job that did not start."""
        if self.rate is not None:
            self.tokens = min(float(self.rate.jobs), self.tokens + 1.0)

    def full(self, now: float) -> bool:
        """Return whether a new limiter with the same limits would be the same."""
        if self.rate is not None:
            self._refill(now)
        return not self.running and (self.rate is None or self.tokens >= self.rate.jobs - _SLACK)


class Limiters:
    """All limiters of a broker."""

    def __init__(self) -> None:
        self.of: dict[SubqueueKey, Limiter] = {}
        #: Limiters of queues, by name.
        self.of_queues: dict[str, Limiter] = {}
        #: Leased jobs that are counted: id -> the limiters that count it.
        self.counted: dict[str, tuple[Limiter, ...]] = {}
        #: Limiters whose tokens changed since they were written.
        self.changed: set[Limiter] = set()
        #: Limiters that may let jobs start that had to wait.
        self.freed: dict[Limiter, None] = {}
        #: When tokens come that something waits for.
        self.ready_times: list[tuple[float, int, Limiter]] = []
        self._pushed = 0
        self._pruned = 0.0

    def limit_queues(self, limits: Iterable[tuple[str, str, int]]) -> None:
        """Make the limiters of queues: name, rate or "", jobs at a time or 0."""
        for queue, rate, max_running in limits:
            limiter = self.of_queues[queue] = Limiter(SubqueueKey(_QUEUE, queue))
            limiter.bound(rate, max_running)

    def recover(self, rows: Iterable[LimitRow]) -> None:
        """Take over the buckets that were written; the limits come with the jobs."""
        for row in rows:
            if row.subqueue.task == _QUEUE:
                if row.subqueue.key in self.of_queues:
                    self.of_queues[row.subqueue.key].restore(row)
                continue
            limiter = self.make(row.subqueue)
            limiter.tokens, limiter.updated = row.tokens, row.updated
            limiter.rate = None
            limiter.used = row.updated + row.period

    def make(self, key: SubqueueKey) -> Limiter:
        """Return the limiter of a task and key, making it if it is new."""
        return self.of.setdefault(key, Limiter(key))

    def leased(self, job: JobRecord, now: float, *, again: bool = False) -> None:
        """Count a leased job.

        Args:
            job: On its way to a worker.
            now: Store time.
            again: Its tokens were taken in an earlier run of the broker.
        """
        both = (self.of.get(subqueue_of(job.headers)), self.of_queues.get(job.queue))
        limiters = tuple(limiter for limiter in both if limiter is not None)
        if limiters:
            self.counted[job.id] = limiters
        for limiter in limiters:
            self._count(limiter, now, again=again)

    def leased_before(self, job: JobRecord, limiter: Limiter, now: float) -> None:
        """Count a job that was leased before there was the limiter of its task."""
        self.counted[job.id] = (limiter, *self.counted.get(job.id, ()))
        self._count(limiter, now, again=True)

    def _count(self, limiter: Limiter, now: float, *, again: bool) -> None:
        if again:
            limiter.running += 1
            return
        limiter.acquire(now)
        if limiter.rate is not None:
            self.changed.add(limiter)

    def released(self, job_id: str, *, unstarted: bool) -> None:
        """End the count of a job; its tokens come back if it never started."""
        for limiter in self.counted.pop(job_id, ()):
            if 0 < limiter.max_running <= limiter.running:
                self.free(limiter)
            limiter.running -= 1
            if unstarted and limiter.rate is not None:
                limiter.refund()
                self.changed.add(limiter)
                self.free(limiter)

    # What waits

    def block(
        self, limiter: Limiter, blocked: object, resume: Callable[[], None], now: float
    ) -> None:
        """Record that a limiter blocks something; `unblock` resumes it when it may start jobs."""
        limiter.waiting[blocked] = resume
        ready_at = limiter.next_start(now)
        if ready_at is not None and ready_at < limiter.ready_at:
            limiter.ready_at = ready_at
            self._pushed += 1
            heappush(self.ready_times, (ready_at, self._pushed, limiter))

    def free(self, limiter: Limiter) -> None:
        """Record that a limiter may let more jobs start."""
        if limiter.waiting:
            self.freed[limiter] = None

    def unblock(self, now: float) -> None:
        """Resume and forget what is blocked and may start jobs now."""
        while (ready_at := self.ready_at) is not None and ready_at <= now:
            limiter = heappop(self.ready_times)[2]
            limiter.ready_at = float("inf")
            self.free(limiter)
        resumed: list[Callable[[], None]] = []
        for limiter in self.freed:
            resumed += limiter.waiting.values()
            limiter.waiting.clear()
        self.freed.clear()
        for resume in resumed:
            resume()

    @property
    def ready_at(self) -> float | None:
        """When the first token comes that something waits for, None where nothing does."""
        times = self.ready_times
        while times and (times[0][0] != times[0][2].ready_at or not times[0][2].waiting):
            ready_at, _, limiter = heappop(times)
            if ready_at == limiter.ready_at:
                limiter.ready_at = float("inf")
        return times[0][0] if times else None

    def shift(self, seconds: float, since: float) -> None:
        """Add no tokens for seconds by which store time jumped.

        Args:
            seconds: How many.
            since: They had passed before that; a bucket that is older has them coming.
        """
        for limiter in (*self.of.values(), *self.of_queues.values()):
            if limiter.updated >= since:
                limiter.updated += seconds
            if limiter.used >= since:
                limiter.used += seconds

    # What is written, and what goes

    def take_rows(self) -> list[LimitRow]:
        """Return what is to be written, once."""
        rows = [
            LimitRow(limiter.key, limiter.tokens, limiter.updated, limiter.rate.seconds)
            for limiter in self.changed
            if limiter.rate is not None
        ]
        self.changed.clear()
        return rows

    def prune(self, now: float, waiting: Container[SubqueueKey]) -> None:
        """Forget limiters that are not needed: no job waits or runs, and the bucket is full."""
        if 0.0 <= now - self._pruned < 1.0:
            return
        self._pruned = now
        for key, limiter in list(self.of.items()):
            idle = limiter.used + _IDLE < now and limiter.full(now)
            if idle and key not in waiting and limiter not in self.changed:
                del self.of[key]
