"""One queue of the broker: its subqueues, their jobs in memory, and the choice of the next jobs.

A worker gets the jobs that it knows, in rank order over all subqueues. The subqueues share the
memory of the queue. The other jobs are in the store, and are read before memory runs low, or when a
worker needs them.

If jobs have a ``limit-key``, the subqueues share the queue by weighted fair queueing: the subqueue
with the smallest virtual time comes first, and ranks count only within a subqueue.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from eventmq.broker.limiters import Limiters
from eventmq.broker.subqueues import ANY, BEFORE_ALL, ReadyIndex, Selector, Subqueue
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import subqueue_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from eventmq.broker.limiters import Limiter
    from eventmq.broker.peers import Eligibility
    from eventmq.broker.subqueues import (
        CostOf,
        Load,
        RankKey,
        ReadyHeap,
        Refuses,
        SortKey,
    )
    from eventmq.job import JobRecord
    from eventmq.store.writes import SubqueueKey

__all__ = ["MIN_JOBS", "MemoryBudget", "Queue", "RefillRequests", "SubqueueCounts", "select_shared"]


#: Microseconds of rank by which a job without guarantee may overtake a stored one of its queue. A
#: chunk has only one of both kinds; without this, chunks would be short while both kinds arrive.
_OVERTAKE = 20_000

#: Number of jobs that a subqueue may have in memory, however many subqueues share it, while there
#: is space.
MIN_JOBS = 16


class SubqueueCounts:
    """Number of subqueues in all queues of a broker, with their limiters."""

    __slots__ = ("coming", "limiters", "total")

    def __init__(self) -> None:
        self.total = 0
        self.limiters = Limiters()
        #: Queues and keys of new subqueues for the jobs that this tick admits.
        self.coming: set[tuple[str, SubqueueKey]] = set()


class MemoryBudget:
    """The memory of one queue, which its subqueues share.

    Args:
        size_limit: Number of jobs that all subqueues together may have in memory.
        bytes_limit: Bytes of their bodies.
    """

    __slots__ = ("bytes", "bytes_limit", "size", "size_limit")

    def __init__(self, size_limit: int, bytes_limit: int) -> None:
        self.size = self.bytes = 0
        self.size_limit, self.bytes_limit = size_limit, bytes_limit

    @property
    def over(self) -> bool:
        """Whether the subqueues exceed the budget."""
        return self.size > self.size_limit or self.bytes > self.bytes_limit

    def crowded(self, subqueues: int) -> bool:
        """Return whether the budget is used up by too many subqueues for any to give way."""
        full = self.size >= self.size_limit or self.bytes >= self.bytes_limit
        return full and subqueues * MIN_JOBS > self.size_limit

    def release(self, size: int, length: int) -> None:
        """Subtract jobs that left memory, and the bytes of their bodies."""
        self.size -= size
        self.bytes -= length

    def victim(
        self, subqueues: Mapping[SubqueueKey, Subqueue], subqueue: Subqueue
    ) -> Subqueue | None:
        """Return the subqueue whose last job leaves memory, None if all jobs may stay.

        Args:
            subqueues: The subqueues of the queue.
            subqueue: The subqueue with a new job, which gives way if it has more than its share.
        """
        over_bytes = self.bytes > self.bytes_limit
        if not over_bytes and self.size <= self.size_limit:
            return None
        victim = self._choose(subqueues, subqueue, over_bytes=over_bytes)
        return victim if len(victim) > 1 else None

    def _choose(
        self, subqueues: Mapping[SubqueueKey, Subqueue], subqueue: Subqueue, *, over_bytes: bool
    ) -> Subqueue:
        n = len(subqueues)
        if len(subqueue) * n > self.size_limit or subqueue.bytes * n > self.bytes_limit:
            return subqueue
        if n * MIN_JOBS > self.size_limit and len(subqueue) > 1:
            return subqueue
        if not over_bytes:
            return max(subqueues.values(), key=len)
        several = [each for each in subqueues.values() if len(each) > 1]
        return max(several, key=lambda each: each.bytes, default=subqueue)


class RefillRequests:
    """Subqueues that may need jobs of the store, and those of them that a worker waits for."""

    __slots__ = ("_demanded", "_subqueues")

    def __init__(self) -> None:
        self._subqueues: dict[Subqueue, None] = {}
        self._demanded: set[Subqueue] = set()

    def request(self, subqueue: Subqueue) -> None:
        """Request a refill: jobs were taken from a subqueue, or it has jobs in the store."""
        self._subqueues[subqueue] = None

    def demand(self, subqueue: Subqueue) -> None:
        """Request a refill that a worker waits for."""
        self._demanded.add(subqueue)
        self._subqueues[subqueue] = None

    def cancel(self, subqueue: Subqueue) -> None:
        """Drop the request of a subqueue."""
        self._subqueues.pop(subqueue, None)

    def pop(
        self, subqueues: Mapping[SubqueueKey, Subqueue], memory: MemoryBudget, now: float
    ) -> Iterator[tuple[Subqueue, int, int]]:
        """Yield the subqueues to refill, with the numbers of jobs and bytes to read.

        Args:
            subqueues: The subqueues of the queue; requests of other ones are dropped.
            memory: The memory that they share.
            now: Store time.
        """
        n = max(1, len(subqueues))
        size = max(min(MIN_JOBS, memory.size_limit), memory.size_limit // n)
        length = memory.bytes_limit // n
        remaining, demanded = memory.size_limit - memory.size, self._demanded
        for subqueue in list(self._subqueues):
            urgent = subqueue in demanded and not len(subqueue)
            limit = size if subqueue.allowance(now) else min(size, MIN_JOBS)
            half = len(subqueue) * 2 < limit and subqueue.bytes * 2 < length and remaining > 0
            if subqueue.reading or subqueues.get(subqueue.key) is not subqueue:
                del self._subqueues[subqueue]
            elif subqueue.spilled and (urgent or half):
                del self._subqueues[subqueue]
                count = 1 if urgent and memory.crowded(len(subqueues)) else limit - len(subqueue)
                remaining -= count
                yield subqueue, count, max(1, length // 2)
            elif not half or not subqueue.spilled:
                del self._subqueues[subqueue]  # the next job taken from it requests again
        demanded.clear()


#: Number of subqueues that are read from the store at a time.
_LOOKAHEAD = 16


# hot loop: python -m benchmarks drain
def select_shared(
    next_ready: Callable[[], Subqueue | None],
    make_selector: Callable[[Subqueue], Selector],
    selected: list[JobRecord],
    load: Load,
    now: float,
    *,
    fair: bool,
) -> list[Subqueue]:
    """Take jobs of subqueues within their limits; return the subqueues to read from the store.

    Args:
        next_ready: Pops the next subqueue that no limit blocks, in the order of the queue.
        make_selector: Makes the selector of a subqueue.
        selected: Receives the jobs.
        load: Limits of the chunk.
        now: Store time.
        fair: Use fair queueing: the subqueue with the smallest virtual time comes first, for each
            job. Else ranks decide, and no job is taken after one that is in the store only.
    """
    heap: list[tuple[SortKey, int, Selector]] = []  # opened subqueues by their next jobs
    quota: dict[Subqueue, int] = {}
    exhausted: list[Subqueue] = []
    transient: bool | None = None  # whether the jobs of the chunk are transient
    size, remaining = 0, load.seconds
    head = next_ready()
    head_key = None if head is None else head.fair_key if fair else head.first
    while len(selected) < load.jobs and (head_key is not None or heap):
        if head is not None and head_key is not None and (not heap or head_key < heap[0][0]):
            selector, quota[head] = make_selector(head), head.allowance(now)
            head = next_ready()
            head_key = None if head is None else head.fair_key if fair else head.first
        else:
            selector = heappop(heap)[2]
        subqueue = selector.subqueue
        if selected and subqueue.transient is not transient:
            if transient and not fair:
                break
            continue
        transient = subqueue.transient
        if selector.exhausted:  # the next job is in the store only
            exhausted.append(subqueue)
            if fair and len(exhausted) < _LOOKAHEAD:
                continue
            break
        bound = heap[0][0] if heap else None
        if head_key is not None and (bound is None or head_key < bound):
            bound = head_key
        start, before = len(selected), selector.spent
        limit = quota[subqueue]
        if fair and bound is not None:
            limit = min(limit, max(1, bound[0] - subqueue.virtual_time))
        limit = min(load.jobs, start + limit)
        part = load._replace(seconds=before + remaining, jobs=limit)
        full = selector.select(selected, size, part, None if fair else bound) < 0
        count = len(selected) - start
        size += sum(len(job.body) for job in selected[start:])
        remaining -= selector.spent - before
        quota[subqueue] -= count
        subqueue.virtual_time += count
        if full and len(selected) < limit:
            break  # seconds or bytes are used up
        if quota[subqueue] > 0 and (following := selector.next) is not None:
            key = (subqueue.virtual_time, *following) if fair else following
            heappush(heap, (key, subqueue.number, selector))
    return exhausted


class Queue:
    """One queue of the broker.

    Args:
        name: Name of the queue.
        size_limit: Number of jobs that its subqueues together may have in memory.
        bytes_limit: Bytes of their bodies.
        now: Store time.
        subqueue_counts: Counts of the subqueues of the broker, with its limiters.
    """

    __slots__ = (
        "_blocked",
        "_keyed",
        "_made",
        "_memory",
        "_ready",
        "_refills",
        "_totals",
        "arriving",
        "assigned",
        "coming",
        "counts",
        "idle_since",
        "limited",
        "limiter",
        "maker",
        "name",
        "running",
        "served_at",
        "subqueues",
        "transient",
        "unroutable",
        "version",
    )

    def __init__(
        self,
        name: str,
        size_limit: int,
        bytes_limit: int,
        now: float,
        subqueue_counts: SubqueueCounts | None = None,
    ) -> None:
        self.name = name
        self._totals = subqueue_counts or SubqueueCounts()
        #: Number of subqueues made so far, and number of subqueues with a key; blocked subqueues.
        self._made = self._keyed = 0
        self._blocked: set[Subqueue] = set()
        self._ready = ReadyIndex()
        self._memory = MemoryBudget(size_limit, bytes_limit)
        self._refills = RefillRequests()
        #: Subqueues with queued jobs, in memory or in the store.
        self.subqueues: dict[SubqueueKey, Subqueue] = {}
        #: Whether any subqueue may have limits or a key.
        self.limited = False
        #: Limits of the whole queue, None without limits.
        self.limiter: Limiter | None = None
        #: Jobs that every worker of the queue has refused: id -> job and time since then.
        self.unroutable: dict[str, tuple[JobRecord, float]] = {}
        #: Jobs that the commit of this tick admits; the same commit may lease them.
        self.arriving: list[JobRecord] = []
        #: Number of jobs that the commit of this tick stores; ``counts`` does not include them yet.
        self.coming = 0
        self.counts = QueueCounts()
        #: Number of leased jobs.
        self.running = 0
        #: Number of waiting jobs without guarantee.
        self.transient = 0
        #: Number of jobs that were assigned to workers since the broker started.
        self.assigned = 0
        #: When a worker last served this queue.
        self.served_at = now
        #: Time since which it is empty and not served, 0.0 otherwise.
        self.idle_since = 0.0
        #: Who counts as its maker (`Peer.maker`), None if it counts for no one any more.
        self.maker: object = None
        #: Grows whenever a job joins, so that sessions that got no job try again.
        self.version = 0

    def __len__(self) -> int:
        return self._memory.size + self.transient

    @property
    def length(self) -> int:
        """Number of unfinished jobs that are stored, or that the commit of this tick stores."""
        counts = self.counts
        return counts.queued + counts.delayed + counts.blocked + self.coming

    def waited(self, now: float) -> float:
        """Return the longest waiting time in seconds of the next jobs, 0.0 if none waits.

        These are the first jobs of the subqueues, and the unroutable jobs.
        """
        heads = [each.items[each.head][2] for each in self.subqueues.values() if len(each)]
        jobs = (*heads, *(job for job, _ in self.unroutable.values()))
        return max((now - job.waiting_since for job in jobs), default=0.0)

    def allowance(self, now: float) -> int:
        """Return how many jobs the limits of the whole queue allow now."""
        return ANY if self.limiter is None else self.limiter.allowance(now)

    def ready(self, now: float) -> bool:
        """Return whether there may be a job to dispatch now, in memory or in the store."""
        if self.limiter is not None and not self.limiter.allowance(now):
            return False
        return len(self.subqueues) > len(self._blocked) or bool(self.arriving)

    @property
    def spilled(self) -> bool:
        """Whether there may be queued jobs in the store only."""
        return any(subqueue.spilled for subqueue in self.subqueues.values())

    # Subqueues

    def subqueue(self, key: SubqueueKey) -> Subqueue:
        """Return a subqueue, making it if it is new."""
        subqueue = self.subqueues.get(key)
        if subqueue is None:
            self._made += 1
            self._totals.total += 1
            limiter = self._totals.limiters.of.get(key)
            subqueue = self.subqueues[key] = Subqueue(key, self._made, limiter)
            self.limited |= limiter is not None or bool(key.key)
            if key.key:
                self._keyed += 1
                self._ready.order(fair=True)
        return subqueue

    def limit(self, limiter: Limiter) -> None:
        """Apply a new limiter to the waiting jobs."""
        subqueue = self.subqueues.get(limiter.key)
        if subqueue is not None:
            subqueue.limiter = limiter
            self.limited = True

    def unblock(self, subqueue: Subqueue) -> None:
        """Offer the jobs of a subqueue that a limit had blocked to workers again."""
        self._blocked.discard(subqueue)
        if self.subqueues.get(subqueue.key) is subqueue:
            self.version += 1
            self._ready.offer(subqueue)

    def _next_ready(self, ready: ReadyHeap, now: float) -> Subqueue | None:
        """Pop the first subqueue that no limit blocks, and all blocked ones before it."""
        while (subqueue := ready.first()) is not None:
            ready.pop()
            limiter = subqueue.limiter
            if limiter is None or limiter.allowance(now):
                return subqueue
            self._blocked.add(subqueue)
            subqueue.idle = True
            self._totals.limiters.block(limiter, subqueue, partial(self.unblock, subqueue), now)
        return None

    def _released(self, subqueue: Subqueue, size: int, length: int) -> None:
        """Subtract jobs that left the window of a subqueue; forget the subqueue if it is empty."""
        if subqueue.transient:
            self.transient -= size
        else:
            self._memory.release(size, length)
        if subqueue.spilled:
            self._refills.request(subqueue)
        elif not (subqueue or subqueue.reading) and self.subqueues.get(subqueue.key) is subqueue:
            self._remove_subqueue(subqueue)

    def _remove_subqueue(self, subqueue: Subqueue) -> None:
        del self.subqueues[subqueue.key]
        self.limited &= bool(self.subqueues)
        self._refills.cancel(subqueue)
        self._totals.total -= 1
        self._blocked.discard(subqueue)
        if subqueue.limiter is not None:
            subqueue.limiter.waiting.pop(subqueue, None)
        if subqueue.key.key:
            self._keyed -= 1
            self._ready.order(fair=bool(self._keyed))

    # Arriving jobs

    def takes(self, job: JobRecord) -> bool:
        """Return whether a queued job belongs into memory."""
        subqueue = self.subqueues.get(subqueue_of(job.headers))
        return subqueue is None or subqueue.takes(job)

    def join(self, job: JobRecord) -> list[JobRecord]:
        """Add a queued job that is on disk; return the jobs that leave memory, perhaps itself."""
        subqueue = self.subqueue(subqueue_of(job.headers))
        if not subqueue.takes(job):
            return [job]
        self.version += 1
        memory = self._memory
        if subqueue.transient:
            self.transient += 1
            if subqueue.join(job):
                self._ready.offer(subqueue)
            return []
        if not len(subqueue) and memory.crowded(len(self.subqueues)):
            subqueue.leave(job.rank, job.seq)
            self._ready.offer(subqueue)
            return [job]
        memory.size += 1
        memory.bytes += len(job.body)
        if subqueue.join(job):
            self._ready.offer(subqueue)
        return self._displace(subqueue) if memory.over else []

    def fill(self, subqueue: Subqueue, jobs: list[JobRecord]) -> list[JobRecord]:
        """Add jobs read for a subqueue, in order; return the jobs that leave memory for them.

        The subqueue keeps at least one job, even if the memory is used up.
        """
        length = sum([len(job.body) for job in jobs])
        self._memory.size += len(jobs)
        self._memory.bytes += length
        if jobs and subqueue.fill(jobs, length):
            self._ready.offer(subqueue)
        return self._displace(subqueue) if self._memory.over else []

    def _displace(self, subqueue: Subqueue) -> list[JobRecord]:
        displaced, subqueues = [], self.subqueues
        if self.transient:
            subqueues = {key: each for key, each in subqueues.items() if not each.transient}
        while (victim := self._memory.victim(subqueues, subqueue)) is not None:
            job = victim.displace()
            self._memory.release(1, len(job.body))
            self._refills.request(victim)
            displaced.append(job)
        return displaced

    # The store

    def pop_refills(self, now: float = 0.0) -> Iterator[tuple[Subqueue, int, int]]:
        """Yield the subqueues to refill, with the numbers of jobs and bytes to read."""
        return self._refills.pop(self.subqueues, self._memory, now)

    def read_done(
        self, subqueue: Subqueue, after: RankKey, jobs: list[JobRecord], *, more: bool
    ) -> bool:
        """Record the result of a read for a subqueue; return whether the jobs may join.

        Args:
            subqueue: The subqueue.
            after: The edge at which the read began.
            jobs: The jobs that were read.
            more: Whether the store has more jobs after them.
        """
        subqueue.reading = False
        self.version += 1  # other subqueues may have waited for this one
        if subqueue.edge != after:  # a job was displaced meanwhile: read again from there
            self._refills.request(subqueue)
            return False
        subqueue.spilled = more
        if jobs:
            subqueue.edge = (jobs[-1].rank, jobs[-1].seq)
        if more:
            self._refills.request(subqueue)
        return True

    def read_failed(self, subqueue: Subqueue) -> None:
        """Record that the read for a subqueue has failed."""
        subqueue.reading = False
        self.version += 1
        self._refills.request(subqueue)

    def forget_if_empty(self, subqueue: Subqueue) -> None:
        """Forget a subqueue if it has no jobs."""
        self._released(subqueue, 0, 0)

    def rewind(self, key: SubqueueKey, before: RankKey = BEFORE_ALL) -> None:
        """Request the best ranked jobs of a subqueue from the store.

        Args:
            key: Key of the subqueue.
            before: Lower bound of all jobs of the subqueue in the store.
        """
        subqueue = self.subqueue(key)
        subqueue.rewind(before)
        self._refills.request(subqueue)
        self.version += 1
        self._ready.offer(subqueue)

    # Leaving jobs

    # hot loop: python -m benchmarks drain
    def select(  # noqa: PLR0912 - one loop, without calls
        self,
        eligibility: Eligibility,
        cost_of: CostOf,
        refuses: Refuses,
        load: Load,
        now: float = 0.0,
    ) -> list[JobRecord]:
        """Remove and return the best ranked jobs that suit a worker.

        No job is taken that ranks after one that is in the store only: first come, first served. If
        subqueues have keys, this holds within each subqueue.

        Args:
            eligibility: The jobs that the worker may get.
            cost_of: See `eventmq.broker.subqueues.Selector`.
            refuses: See there as well.
            load: Limits of the chunk.
            now: Store time.
        """
        ready = self._ready.of(eligibility, self.subqueues.values())
        if self.limited:
            return self._select_shared(
                ready, lambda subqueue: Selector(subqueue, cost_of, refuses), load, now
            )
        selected: list[JobRecord] = []
        opened: list[tuple[Selector, int, int]] = []
        heap: list[tuple[RankKey, int, Selector]] = []  # opened subqueues by their next jobs
        size, remaining = 0, load.seconds
        transient: bool | None = None  # whether the jobs of the chunk are transient
        others: list[Subqueue] = []
        subqueue = ready.first()
        while size >= 0 and (subqueue is not None or heap):
            if subqueue is not None and (not heap or subqueue.first < heap[0][0]):  # type: ignore[operator]
                other = selected and subqueue.transient is not transient
                if other and transient:
                    break  # the stored job comes next, in another chunk
                ready.pop()
                if other:
                    others.append(subqueue)
                    subqueue = ready.first()
                    continue
                selector = Selector(subqueue, cost_of, refuses)
                opened.append((selector, len(subqueue), subqueue.bytes))
                subqueue = ready.first()
            else:
                selector = heappop(heap)[2]
                if selected and selector.subqueue.transient is not transient:
                    if transient:
                        break
                    continue
            if selector.exhausted:  # the next job is in the store only
                self._read_ahead(selector.subqueue, ready)
                break
            bound = heap[0][0] if heap else None
            if subqueue is not None and (bound is None or subqueue.first < bound):  # type: ignore[operator]
                bound = subqueue.first
            transient = selector.subqueue.transient
            if transient and bound is not None:
                bound = (bound[0] + _OVERTAKE, bound[1])
            before = selector.spent
            size = selector.select(selected, size, load._replace(seconds=before + remaining), bound)
            remaining -= selector.spent - before
            following = selector.next
            if following is not None:
                heappush(heap, (following, selector.subqueue.number, selector))
        self._close(opened)
        for selector, _, _ in opened:
            ready.add(selector.subqueue)
        for subqueue in others:
            ready.add(subqueue)
        return selected

    def _select_shared(
        self,
        ready: ReadyHeap,
        make_selector: Callable[[Subqueue], Selector],
        load: Load,
        now: float,
    ) -> list[JobRecord]:
        """Take jobs from subqueues with limits or keys."""
        selected: list[JobRecord] = []
        opened: list[tuple[Selector, int, int]] = []
        fair = bool(self._keyed)
        popped: list[Subqueue] = []

        def next_ready() -> Subqueue | None:
            subqueue = self._next_ready(ready, now)
            if subqueue is not None:
                if not popped:  # no other subqueue has a smaller virtual time, except blocked ones
                    ready.advance(subqueue.virtual_time)
                popped.append(subqueue)
            return subqueue

        def opening(subqueue: Subqueue) -> Selector:
            opened.append((make_selector(subqueue), len(subqueue), subqueue.bytes))
            return opened[-1][0]

        for subqueue in select_shared(next_ready, opening, selected, load, now, fair=fair):
            self._refills.demand(subqueue)
        self._close(opened)
        for subqueue in popped:
            ready.add(subqueue)
        return selected

    def _close(self, opened: list[tuple[Selector, int, int]]) -> None:
        for selector, jobs, length in opened:
            selector.close()
            subqueue = selector.subqueue
            self._released(subqueue, jobs - len(subqueue), length - subqueue.bytes)

    def _read_ahead(self, subqueue: Subqueue, ready: ReadyHeap) -> None:
        """Request jobs of a subqueue that a worker waits for, and of those that follow."""
        for each in (subqueue, *ready.following()):
            if each.spilled and not len(each):
                self._refills.demand(each)
        self._refills.request(subqueue)

    def remove(self, job: JobRecord) -> bool:
        """Remove a waiting job from memory; return whether it was there."""
        if self.unroutable.pop(job.id, None) is not None:
            return True
        subqueue = self.subqueues.get(subqueue_of(job.headers))
        if subqueue is None or not subqueue.remove(job):
            return False
        self._released(subqueue, 1, len(job.body))
        return True

    def remove_ids(self, ids: Collection[str]) -> None:
        """Remove waiting jobs from memory by their ids."""
        self.drop(lambda job: job.id in ids)
        for job_id in ids:
            self.unroutable.pop(job_id, None)

    def drop(self, leave: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """Remove and return the jobs of the windows for which ``leave`` is true."""
        return [
            job
            for subqueue in list(self.subqueues.values())
            for job in self.drop_from(subqueue, leave)
        ]

    def drop_from(self, subqueue: Subqueue, leave: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """Remove and return the jobs of one window for which ``leave`` is true."""
        removed = subqueue.drop(leave)
        if removed:
            self._released(subqueue, len(removed), sum(len(job.body) for job in removed))
        return removed

    def demand(self, subqueue: Subqueue) -> None:
        """Request jobs of a subqueue that no worker takes, in order to end them."""
        if subqueue.spilled and not len(subqueue):
            self._refills.demand(subqueue)
