"""One queue of the broker: its subqueues, what they hold in memory, and who is served next.

A worker takes the jobs that it knows, in rank order over all of its subqueues. The subqueues share
the memory of the queue; what it does not hold is in the store, and is read from there before memory
runs low, or when a worker asks for it.

Where jobs have a ``limit-key``, the subqueues share the queue by weighted fair queueing: the one
with the least virtual time comes first, and the rank counts inside of it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from eventmq.broker.limiters import Limiters
from eventmq.broker.subqueues import ANY, BEFORE_ALL, ReadyIndex, Selector, Subqueue
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import subqueue_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from eventmq.broker.limiters import Limiter
    from eventmq.broker.subqueues import Eligibility, Judge, Load, Place, ReadyHeap, Refuses, Turn
    from eventmq.job import JobRecord
    from eventmq.store.writes import SubqueueKey

__all__ = ["LEAST", "MemoryBudget", "Queue", "RefillRequests", "SubqueueCounts", "share"]


#: Jobs that a subqueue may have in memory, however many subqueues share it, as long
#: as the queue's memory lasts.
LEAST = 16


class SubqueueCounts:
    """Counts the subqueues of all queues of a broker, and knows which are limited."""

    __slots__ = ("coming", "limiters", "subqueues")

    def __init__(self) -> None:
        self.subqueues = 0
        self.limiters = Limiters()
        #: Queue and key of subqueues that may begin with what this turn admits.
        self.coming: set[tuple[str, SubqueueKey]] = set()


class MemoryBudget:
    """The memory of one queue, which its subqueues share.

    Args:
        size_limit: Jobs that subqueues have in memory together.
        bytes_limit: Bytes of their bodies.
    """

    __slots__ = ("bytes", "bytes_limit", "size", "size_limit")

    def __init__(self, size_limit: int, bytes_limit: int) -> None:
        self.size = self.bytes = 0
        self.size_limit, self.bytes_limit = size_limit, bytes_limit

    @property
    def over(self) -> bool:
        """Whether subqueues have more than they may."""
        return self.size > self.size_limit or self.bytes > self.bytes_limit

    def crowded(self, subqueues: int) -> bool:
        """Say whether so many subqueues have used it up that none can give way."""
        full = self.size >= self.size_limit or self.bytes >= self.bytes_limit
        return full and subqueues * LEAST > self.size_limit

    def left(self, size: int, length: int) -> None:
        """Count jobs that left, and the bytes of their bodies."""
        self.size -= size
        self.bytes -= length

    def victim(
        self, subqueues: Mapping[SubqueueKey, Subqueue], subqueue: Subqueue
    ) -> Subqueue | None:
        """Return which subqueue leaves a job to the store, None if all may stay.

        Args:
            subqueues: Of the queue.
            subqueue: That has a new job: it gives way if it has more than its share.
        """
        spent = self.bytes > self.bytes_limit
        if not spent and self.size <= self.size_limit:
            return None
        gives = self._choose(subqueues, subqueue, spent=spent)
        return gives if len(gives) > 1 else None

    def _choose(
        self, subqueues: Mapping[SubqueueKey, Subqueue], subqueue: Subqueue, *, spent: bool
    ) -> Subqueue:
        n = len(subqueues)
        if len(subqueue) * n > self.size_limit or subqueue.bytes * n > self.bytes_limit:
            return subqueue
        if n * LEAST > self.size_limit and len(subqueue) > 1:
            return subqueue
        if not spent:
            return max(subqueues.values(), key=len)
        several = [each for each in subqueues.values() if len(each) > 1]
        return max(several, key=lambda each: each.bytes, default=subqueue)


class RefillRequests:
    """Subqueues to be looked at for what they lack, and those of them that a worker waits for."""

    __slots__ = ("_demanded", "_subqueues")

    def __init__(self) -> None:
        self._subqueues: dict[Subqueue, None] = {}
        self._demanded: set[Subqueue] = set()

    def note(self, subqueue: Subqueue) -> None:
        """Look at a subqueue: something was taken from it, or is in the store now."""
        self._subqueues[subqueue] = None

    def demand(self, subqueue: Subqueue) -> None:
        """Note that somebody waits for what a subqueue has in the store."""
        self._demanded.add(subqueue)
        self._subqueues[subqueue] = None

    def forget(self, subqueue: Subqueue) -> None:
        """Look at a subqueue no more."""
        self._subqueues.pop(subqueue, None)

    def take(
        self, subqueues: Mapping[SubqueueKey, Subqueue], memory: MemoryBudget, now: float
    ) -> Iterator[tuple[Subqueue, int, int]]:
        """Yield the subqueues to be filled, with how many jobs and bytes to read.

        Args:
            subqueues: Of the queue; others are forgotten.
            memory: The memory that they share.
            now: Unix time.
        """
        n = max(1, len(subqueues))
        size = max(min(LEAST, memory.size_limit), memory.size_limit // n)
        length = memory.bytes_limit // n
        left, demanded = memory.size_limit - memory.size, self._demanded
        for subqueue in list(self._subqueues):
            wanted = subqueue in demanded and not len(subqueue)
            most = size if subqueue.limiter is None or subqueue.allowance(now) else min(size, LEAST)
            half = len(subqueue) * 2 < most and subqueue.bytes * 2 < length and left > 0
            if subqueue.claiming or subqueues.get(subqueue.key) is not subqueue:
                del self._subqueues[subqueue]
            elif subqueue.outside and (wanted or half):
                del self._subqueues[subqueue]
                many = 1 if wanted and memory.crowded(len(subqueues)) else most - len(subqueue)
                left -= many
                yield subqueue, many, max(1, length // 2)
            elif not half or not subqueue.outside:
                del self._subqueues[subqueue]  # until something is taken from it
        demanded.clear()


#: Subqueues that are asked of the store at a time.
_EARLY = 16


# hot loop: benchmarks/drain.py
def share(
    follow: Callable[[], Subqueue | None],
    pick: Callable[[Subqueue], Selector],
    taken: list[JobRecord],
    load: Load,
    now: float,
    *,
    fair: bool,
) -> list[Subqueue]:
    """Take jobs of subqueues within their limits; return the subqueues to be read from the store.

    Args:
        follow: Returns the next subqueue that may be taken from, the one whose turn it is first.
        pick: Makes the selector of a subqueue.
        taken: Where the jobs go.
        load: What the chunk may hold.
        now: Unix time.
        fair: The subqueue that was served least comes first, job by job; else ranks decide, and
            nothing is taken after a job that is in the store only.
    """
    heap: list[tuple[Turn, int, Selector]] = []  # of opened subqueues, by whose turn it is
    quota: dict[Subqueue, int] = {}
    dry: list[Subqueue] = []
    size, left = 0, load.seconds
    subqueue = follow()
    turn = None if subqueue is None else subqueue.turn if fair else subqueue.first
    while len(taken) < load.jobs and (turn is not None or heap):
        if subqueue is not None and turn is not None and (not heap or turn < heap[0][0]):
            selector, quota[subqueue] = pick(subqueue), subqueue.allowance(now)
            subqueue = follow()
            turn = None if subqueue is None else subqueue.turn if fair else subqueue.first
        else:
            selector = heappop(heap)[2]
        mine = selector.subqueue
        if selector.dry:  # what comes next is in the store
            dry.append(mine)
            if fair and len(dry) < _EARLY:
                continue
            break
        rival = heap[0][0] if heap else None
        if turn is not None and (rival is None or turn < rival):
            rival = turn
        start, before = len(taken), selector.spent
        most = quota[mine]
        if fair and rival is not None:
            most = min(most, max(1, rival[0] - mine.served))
        most = min(load.jobs, start + most)
        part = load._replace(seconds=before + left, jobs=most)
        full = selector.take(taken, size, part, None if fair else rival) < 0
        got = len(taken) - start
        size += sum(len(job.body) for job in taken[start:])
        left -= selector.spent - before
        quota[mine] -= got
        mine.served += got
        if full and len(taken) < most:
            break  # no more seconds or bytes
        if quota[mine] > 0 and (following := selector.next) is not None:
            heappush(
                heap, ((mine.served, *following) if fair else following, mine.number, selector)
            )
    return dry


class Queue:
    """A queue of the broker.

    Args:
        name: Its name.
        size_limit: Jobs that its subqueues have in memory together.
        bytes_limit: Bytes of their bodies.
        now: Unix time.
        subqueue_counts: Of the broker.
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
        "counts",
        "given",
        "idle_since",
        "limited",
        "limiter",
        "maker",
        "name",
        "running",
        "served_at",
        "subqueues",
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
        #: Subqueues made so far; those with a key; those that a limit blocks.
        self._made = self._keyed = 0
        self._blocked: set[Subqueue] = set()
        self._ready = ReadyIndex()
        self._memory = MemoryBudget(size_limit, bytes_limit)
        self._refills = RefillRequests()
        #: A subqueue that is not here has no queued job, neither in memory nor in the store.
        self.subqueues: dict[SubqueueKey, Subqueue] = {}
        #: Whether a subqueue may have limits or a key.
        self.limited = False
        #: Of the queue as a whole, None for no limits.
        self.limiter: Limiter | None = None
        #: Jobs that every worker of the queue refused: id -> job and since when.
        self.unroutable: dict[str, tuple[JobRecord, float]] = {}
        #: Jobs of this turn's commit, which may be leased in the same commit.
        self.arriving: list[JobRecord] = []
        self.counts = QueueCounts()
        #: Number of leased jobs.
        self.running = 0
        #: Number of jobs that workers were given since the broker started.
        self.given = 0
        #: When a worker last served this queue.
        self.served_at = now
        #: When it was first seen to be empty and not served, 0.0 while it is neither.
        self.idle_since = 0.0
        #: Who has named it first, None where that does not count any more.
        self.maker: object = None
        #: Grows whenever a job joins, so that sessions know when to look again.
        self.version = 0

    def __len__(self) -> int:
        return self._memory.size

    def allowance(self, now: float) -> int:
        """Return how many jobs of the whole queue may be taken now."""
        return ANY if self.limiter is None else self.limiter.allowance(now)

    def ready(self, now: float) -> bool:
        """Say whether there may be a job to dispatch now, or to be read for a worker that asks."""
        if self.limiter is not None and not self.limiter.allowance(now):
            return False
        return len(self.subqueues) > len(self._blocked) or bool(self.arriving)

    @property
    def outside(self) -> bool:
        """Whether queued jobs may be in the store only."""
        return any(subqueue.outside for subqueue in self.subqueues.values())

    @property
    def head(self) -> Place | None:
        """The (rank, seq) of the best ranked job in memory, None for none."""
        firsts = (
            subqueue.items[subqueue.head][:2]
            for subqueue in self.subqueues.values()
            if len(subqueue)
        )
        arriving = ((job.rank, job.seq) for job in self.arriving)
        return min(firsts, default=min(arriving, default=None))

    # Subqueues

    def subqueue(self, key: SubqueueKey) -> Subqueue:
        """Return a subqueue, making it if it is new."""
        subqueue = self.subqueues.get(key)
        if subqueue is None:
            self._made += 1
            self._totals.subqueues += 1
            limiter = self._totals.limiters.of.get(key)
            subqueue = self.subqueues[key] = Subqueue(key, self._made, limiter)
            self.limited |= limiter is not None or bool(key.key)
            if key.key:
                self._keyed += 1
                self._ready.order(fair=True)
        return subqueue

    def limit(self, limiter: Limiter) -> None:
        """Let a new limiter count for the jobs that wait already."""
        subqueue = self.subqueues.get(limiter.subqueue)
        if subqueue is not None:
            subqueue.limiter = limiter
            self.limited = True

    def unblock(self, subqueue: Subqueue) -> None:
        """Let workers take from a subqueue again that a limit had blocked."""
        self._blocked.discard(subqueue)
        if self.subqueues.get(subqueue.key) is subqueue:
            self.version += 1
            self._ready.show(subqueue)

    def _follow(self, ready: ReadyHeap, now: float) -> Subqueue | None:
        """Pop the first subqueue that no limit blocks; those that one blocks are popped too."""
        while (subqueue := ready.first()) is not None:
            ready.pop()
            if subqueue.limiter is None or subqueue.limiter.allowance(now):
                return subqueue
            self._blocked.add(subqueue)
            subqueue.fresh = True
            self._totals.limiters.block(subqueue, self, now)
        return None

    def _left(self, subqueue: Subqueue, size: int, length: int) -> None:
        """Count what left the window of a subqueue; forget the subqueue if that was all."""
        self._memory.left(size, length)
        if subqueue.outside:
            self._refills.note(subqueue)
        elif (
            not len(subqueue)
            and not subqueue.claiming
            and self.subqueues.get(subqueue.key) is subqueue
        ):
            self._forget(subqueue)

    def _forget(self, subqueue: Subqueue) -> None:
        del self.subqueues[subqueue.key]
        self.limited &= bool(self.subqueues)
        self._refills.forget(subqueue)
        self._totals.subqueues -= 1
        self._blocked.discard(subqueue)
        if subqueue.limiter is not None:
            subqueue.limiter.waiting.pop(subqueue, None)
        if subqueue.key.key:
            self._keyed -= 1
            self._ready.order(fair=bool(self._keyed))

    # Jobs that come

    def takes(self, job: JobRecord) -> bool:
        """Say whether a queued job belongs into memory."""
        subqueue = self.subqueues.get(subqueue_of(job.headers))
        return subqueue is None or subqueue.takes(job)

    def join(self, job: JobRecord) -> list[JobRecord]:
        """Add a queued job that is on disk; return those that leave memory for it, or itself."""
        subqueue = self.subqueue(subqueue_of(job.headers))
        if not subqueue.takes(job):
            return [job]
        self.version += 1
        memory = self._memory
        if not len(subqueue) and memory.crowded(len(self.subqueues)):
            subqueue.leave(job.rank, job.seq)
            self._ready.show(subqueue)
            return [job]
        memory.size += 1
        memory.bytes += len(job.body)
        if subqueue.join(job):
            self._ready.show(subqueue)
        return self._displace(subqueue) if memory.over else []

    def fill(self, subqueue: Subqueue, jobs: list[JobRecord]) -> list[JobRecord]:
        """Add jobs read for a subqueue, in order; return those that leave memory for them.

        The subqueue keeps one of them although the memory is used up.
        """
        length = sum([len(job.body) for job in jobs])
        self._memory.size += len(jobs)
        self._memory.bytes += length
        if jobs and subqueue.fill(jobs, length):
            self._ready.show(subqueue)
        return self._displace(subqueue) if self._memory.over else []

    def _displace(self, subqueue: Subqueue) -> list[JobRecord]:
        displaced = []
        while (gives := self._memory.victim(self.subqueues, subqueue)) is not None:
            job = gives.displace()
            self._memory.left(1, len(job.body))
            self._refills.note(gives)
            displaced.append(job)
        return displaced

    # The store

    def take_refills(self, now: float = 0.0) -> Iterator[tuple[Subqueue, int, int]]:
        """Yield the subqueues to be filled from the store, with how many jobs and bytes to read."""
        return self._refills.take(self.subqueues, self._memory, now)

    def claimed(
        self, subqueue: Subqueue, after: Place, jobs: list[JobRecord], *, more: bool
    ) -> bool:
        """Take note of the write result on a claim; say whether its jobs may join.

        Args:
            subqueue: For which it was.
            after: Where it began.
            jobs: What it found.
            more: Whether there are others after them.
        """
        subqueue.claiming = False
        self.version += 1  # others may have waited for what this subqueue has
        if subqueue.edge != after:  # something was displaced meanwhile: claim again, from there
            self._refills.note(subqueue)
            return False
        subqueue.outside = more
        if jobs:
            subqueue.edge = (jobs[-1].rank, jobs[-1].seq)
        if more:
            self._refills.note(subqueue)
        return True

    def failed(self, subqueue: Subqueue) -> None:
        """Note that a claim could not be made."""
        subqueue.claiming = False
        self.version += 1
        self._refills.note(subqueue)

    def rest(self, subqueue: Subqueue) -> None:
        """Forget a subqueue if it has nothing."""
        self._left(subqueue, 0, 0)

    def rewind(self, key: SubqueueKey, before: Place = BEFORE_ALL) -> None:
        """Look into the store for the best ranked jobs of a subqueue.

        Args:
            key: Of the subqueue.
            before: No job of the subqueue in the store stands before this place.
        """
        subqueue = self.subqueue(key)
        subqueue.rewind(before)
        self._refills.note(subqueue)
        self.version += 1
        self._ready.show(subqueue)

    # Jobs that go

    # hot loop: benchmarks/drain.py
    def take(
        self, eligibility: Eligibility, judge: Judge, refuses: Refuses, load: Load, now: float = 0.0
    ) -> list[JobRecord]:
        """Remove and return the best ranked jobs that suit a worker.

        Nothing is taken that ranks after a job which is in the store only: first come, first
        served. Where subqueues have keys, this holds inside of each subqueue.

        Args:
            eligibility: Of which subqueues the worker may get jobs.
            judge: See `eventmq.broker.subqueues.Selector`, as ``refuses``.
            refuses: Asked for each job, or None.
            load: What the chunk may hold.
            now: Unix time.
        """
        ready = self._ready.of(eligibility, self.subqueues.values())
        if self.limited:
            return self._share(
                ready, lambda subqueue: Selector(subqueue, judge, refuses), load, now
            )
        taken: list[JobRecord] = []
        opened: list[tuple[Selector, int, int]] = []
        heap: list[tuple[Place, int, Selector]] = []  # of opened subqueues, by what comes next
        size, left = 0, load.seconds
        subqueue = ready.first()
        while size >= 0 and (subqueue is not None or heap):
            if subqueue is not None and (not heap or subqueue.first < heap[0][0]):  # type: ignore[operator]
                ready.pop()
                selector = Selector(subqueue, judge, refuses)
                opened.append((selector, len(subqueue), subqueue.bytes))
                subqueue = ready.first()
            else:
                selector = heappop(heap)[2]
            if selector.dry:  # what comes next is in the store
                self._demand(selector.subqueue, ready)
                break
            bound = heap[0][0] if heap else None
            if subqueue is not None and (bound is None or subqueue.first < bound):  # type: ignore[operator]
                bound = subqueue.first
            before = selector.spent
            size = selector.take(taken, size, load._replace(seconds=before + left), bound)
            left -= selector.spent - before
            following = selector.next
            if following is not None:
                heappush(heap, (following, selector.subqueue.number, selector))
        self._close(opened)
        for selector, _, _ in opened:
            ready.add(selector.subqueue)
        return taken

    def _share(
        self, ready: ReadyHeap, pick: Callable[[Subqueue], Selector], load: Load, now: float
    ) -> list[JobRecord]:
        """Take jobs where subqueues have limits or keys."""
        taken: list[JobRecord] = []
        opened: list[tuple[Selector, int, int]] = []
        fair = bool(self._keyed)
        followed: list[Subqueue] = []

        def follow() -> Subqueue | None:
            subqueue = self._follow(ready, now)
            if subqueue is not None:
                if not followed:  # nobody who may be taken from was served less
                    ready.rise(subqueue.served)
                followed.append(subqueue)
            return subqueue

        def opening(subqueue: Subqueue) -> Selector:
            opened.append((pick(subqueue), len(subqueue), subqueue.bytes))
            return opened[-1][0]

        for subqueue in share(follow, opening, taken, load, now, fair=fair):
            self._refills.demand(subqueue)
        self._close(opened)
        for subqueue in followed:
            ready.add(subqueue)
        return taken

    def _close(self, opened: list[tuple[Selector, int, int]]) -> None:
        for selector, jobs, length in opened:
            selector.close()
            subqueue = selector.subqueue
            self._left(subqueue, jobs - len(subqueue), length - subqueue.bytes)

    def _demand(self, subqueue: Subqueue, ready: ReadyHeap) -> None:
        """Read what a worker waits for, and what it will want after that."""
        for each in (subqueue, *ready.following()):
            if each.outside and not len(each):
                self._refills.demand(each)
        self._refills.note(subqueue)

    def remove(self, job: JobRecord) -> bool:
        """Remove a job that waits in memory; say whether it was there."""
        if self.unroutable.pop(job.id, None) is not None:
            return True
        subqueue = self.subqueues.get(subqueue_of(job.headers))
        found = subqueue is not None and subqueue.remove(job)
        if subqueue is not None and found:
            self._left(subqueue, 1, len(job.body))
        return found

    def forget(self, ids: Collection[str]) -> None:
        """Remove jobs that wait in memory by their ids."""
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
        left = subqueue.drop(leave)
        if left:
            self._left(subqueue, len(left), sum(len(job.body) for job in left))
        return left

    def want(self, subqueue: Subqueue) -> None:
        """Read jobs of a subqueue that nobody takes, because they are to end."""
        if subqueue.outside and not len(subqueue):
            self._refills.demand(subqueue)
