"""Limiters: how many jobs may start per time, and run at a time, over all workers.

A `Limiter` stands for one task and key in all queues, or for one queue with all of its tasks;
`Limiters` has all of them and knows which leased jobs they count. `eventmq.broker.queues` asks them
before it takes jobs. The token buckets are written with `SaveLimits` in the commit of the lease.
The running jobs need not be written, since the open chunks have them.
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

#: Allowance without a limit: more jobs than any chunk has.
ANY = 1 << 30

#: Part of a token that may be missing because of rounding.
_SLACK = 1e-6

#: Seconds for which an unused limiter is kept.
_IDLE = 10.0

#: The task in the rows of limited queues; their key is the name of the queue.
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
        #: At most ``rate.jobs`` if there is a rate.
        self.tokens = float("inf")
        self.updated = 0.0
        #: Number of the job whose headers have set the limits: the newest one.
        self.seq = -1
        self.headers: str | None = None
        #: Time of the last new job that has this task and key.
        self.used = 0.0
        #: Blocked object -> function that resumes it; and the latest time at which to resume them.
        self.waiting: dict[object, Callable[[], None]] = {}
        self.ready_at = float("inf")

    def set(self, text: str, now: float) -> None:
        """Apply the limits in the headers of a job."""
        if text == self.headers:
            return
        self.headers, headers = text, parse_headers(text)
        rate = parse_rate(headers.limit_rate) if headers.limit_rate else None
        if rate is None:
            self.tokens = float("inf")
        else:
            self.rate = self.rate or rate  # a recovered bucket has no rate yet
            self._refill(now)
            self.tokens = min(self.tokens, float(rate.jobs))
        self.rate, self.max_running = rate, headers.limit_running

    def bound(self, rate: str, max_running: int) -> None:
        """Apply the limits of a queue; the bucket is full."""
        self.rate, self.max_running = parse_rate(rate) if rate else None, max_running
        self.headers = show_limits(rate, max_running)
        self.tokens = float(self.rate.jobs) if self.rate else float("inf")

    def restore(self, row: LimitRow) -> None:
        """Restore a written bucket, if there is a rate."""
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
        """Return the latest time at which a job may start, None if that is now or not known."""
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
        """Return whether no job runs and the bucket is full, as in a new limiter."""
        if self.rate is not None:
            self._refill(now)
        return not self.running and (self.rate is None or self.tokens >= self.rate.jobs - _SLACK)


class Limiters:
    """All limiters of a broker."""

    def __init__(self) -> None:
        self.of: dict[SubqueueKey, Limiter] = {}
        #: Limiters of queues, by name.
        self.of_queues: dict[str, Limiter] = {}
        #: Ids of counted leased jobs -> the limiters that count them.
        self.counted: dict[str, tuple[Limiter, ...]] = {}
        #: Limiters whose tokens have changed since they were last written.
        self.changed: set[Limiter] = set()
        #: Limiters that may let blocked jobs start now.
        self.freed: dict[Limiter, None] = {}
        #: Heap of the times at which tokens become available for blocked jobs.
        self.ready_times: list[tuple[float, int, Limiter]] = []
        self._pushed = 0
        self._pruned = 0.0

    def limit_queues(self, limits: Iterable[tuple[str, str, int]]) -> None:
        """Make the limiters of queues from their names, rates ("" for none) and limits of jobs."""
        for queue, rate, max_running in limits:
            limiter = self.of_queues[queue] = Limiter(SubqueueKey(_QUEUE, queue))
            limiter.bound(rate, max_running)

    def recover(self, rows: Iterable[LimitRow]) -> None:
        """Restore the written buckets; jobs bring the limits themselves."""
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

    def leased(self, job: JobRecord, now: float, *, recovered: bool = False) -> None:
        """Count a leased job.

        Args:
            job: The job.
            now: Store time.
            recovered: Its tokens were taken when it was leased in an earlier run of the broker.
        """
        both = (self.of.get(subqueue_of(job.headers)), self.of_queues.get(job.queue))
        limiters = tuple(limiter for limiter in both if limiter is not None)
        if limiters:
            self.counted[job.id] = limiters
        for limiter in limiters:
            self._count(limiter, now, recovered=recovered)

    def leased_before(self, job: JobRecord, limiter: Limiter, now: float) -> None:
        """Count a job that was leased before its limiter was made."""
        self.counted[job.id] = (limiter, *self.counted.get(job.id, ()))
        self._count(limiter, now, recovered=True)

    def _count(self, limiter: Limiter, now: float, *, recovered: bool) -> None:
        if recovered:
            limiter.running += 1
            return
        limiter.acquire(now)
        if limiter.rate is not None:
            self.changed.add(limiter)

    def released(self, job_id: str, *, unstarted: bool) -> None:
        """Stop counting a job; refund its tokens if it never started."""
        for limiter in self.counted.pop(job_id, ()):
            if 0 < limiter.max_running <= limiter.running:
                self.free(limiter)
            limiter.running -= 1
            if unstarted and limiter.rate is not None:
                limiter.refund()
                self.changed.add(limiter)
                self.free(limiter)

    # Blocked jobs

    def block(
        self, limiter: Limiter, blocked: object, resume: Callable[[], None], now: float
    ) -> None:
        """Record what a limiter blocks; `unblock` resumes it when the limiter may start jobs."""
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
        """Resume and forget everything blocked that may start jobs now."""
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
        """When the first token for blocked jobs becomes available, None if none are blocked."""
        times = self.ready_times
        while times and (times[0][0] != times[0][2].ready_at or not times[0][2].waiting):
            ready_at, _, limiter = heappop(times)
            if ready_at == limiter.ready_at:
                limiter.ready_at = float("inf")
        return times[0][0] if times else None

    def shift(self, seconds: float, since: float) -> None:
        """Move the times of buckets, so that a jump of store time adds no tokens.

        Args:
            seconds: Length of the jump.
            since: Store time before which these seconds had passed: older buckets do get tokens.
        """
        for limiter in (*self.of.values(), *self.of_queues.values()):
            if limiter.updated >= since:
                limiter.updated += seconds
            if limiter.used >= since:
                limiter.used += seconds

    # Writes and removal

    def take_rows(self) -> list[LimitRow]:
        """Return the rows of changed buckets, each change once."""
        rows = [
            LimitRow(limiter.key, limiter.tokens, limiter.updated, limiter.rate.seconds)
            for limiter in self.changed
            if limiter.rate is not None
        ]
        self.changed.clear()
        return rows

    def prune(self, now: float, waiting: Container[SubqueueKey]) -> None:
        """Forget unused limiters: no job waits or runs, and the bucket is full."""
        if 0.0 <= now - self._pruned < 1.0:
            return
        self._pruned = now
        for key, limiter in list(self.of.items()):
            idle = limiter.used + _IDLE < now and limiter.full(now)
            if idle and key not in waiting and limiter not in self.changed:
                del self.of[key]
