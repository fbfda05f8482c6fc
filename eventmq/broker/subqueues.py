"""Subqueues: the jobs of a queue with the same task and key, and which of them a worker may take.

The best ranked jobs of a `Subqueue` are in memory: every queued job whose (rank, seq) sorts at or
before ``edge`` is in the window, leased, or unroutable. While ``spilled`` is true, those after it
are in the store only. A `Selector` takes jobs of one subqueue for a chunk; a `ReadyHeap` orders
the subqueues that suit the sessions of one `Eligibility`.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from eventmq.broker.limiters import ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventmq.broker.limiters import Limiter
    from eventmq.broker.peers import Eligibility
    from eventmq.job import JobRecord
    from eventmq.store.writes import SubqueueKey

    CostOf = Callable[[str], float]
    Refuses = Callable[[JobRecord], bool] | None

__all__ = [
    "ANY",
    "BEFORE_ALL",
    "Load",
    "RankKey",
    "ReadyHeap",
    "ReadyIndex",
    "Selector",
    "SortKey",
    "Subqueue",
]


#: (rank, seq) of a job, or a lower bound of it.
RankKey = tuple[int, int]

#: Sort key of subqueues: a `RankKey`, preceded by the virtual time under fair queueing.
SortKey = tuple[int, ...]

#: A key below that of every job.
BEFORE_ALL: RankKey = (-(1 << 62), 0)

#: Number of taken entries before the head at which the list of a window is cut.
_CUT = 4096


class Subqueue:
    """The jobs of a queue with the same task and key: its window, and where the store continues.

    Args:
        key: What `eventmq.store.writes.subqueue_of` returns for its jobs.
        number: Number of the subqueue in its queue, which breaks ties between equal keys.
        limiter: The limiter of this task and key, None without limits.
    """

    __slots__ = (
        "bytes",
        "edge",
        "head",
        "idle",
        "items",
        "key",
        "limiter",
        "number",
        "reading",
        "spilled",
        "task",
        "transient",
        "unknown_since",
        "virtual_time",
    )

    def __init__(self, key: SubqueueKey, number: int = 0, limiter: Limiter | None = None) -> None:
        self.key = key
        self.task = key.task
        #: Whether its jobs are without guarantee; then all of them are in memory.
        self.transient = key.transient
        self.limiter = limiter
        self.number = number
        #: The window: (rank, seq, job). Entries before ``head`` were taken.
        self.items: list[tuple[int, int, JobRecord]] = []
        self.head = 0
        self.bytes = 0
        self.edge = BEFORE_ALL
        self.spilled = False
        self.reading = False
        #: Time since which the queue has workers but none of them knows the task.
        self.unknown_since: float | None = None
        #: Virtual time of fair queueing: the number of jobs taken, starting at the level of the
        #: other subqueues when this one was last no longer ``idle``.
        self.virtual_time = 0
        self.idle = True

    def __len__(self) -> int:
        return len(self.items) - self.head

    @property
    def first(self) -> RankKey | None:
        """Lower bound of the (rank, seq) of waiting jobs, None if none waits."""
        if len(self.items) > self.head:
            return self.items[self.head][:2]
        return self.edge if self.spilled else None

    @property
    def fair_key(self) -> SortKey | None:
        """Sort key under fair queueing: the virtual time, then `first`."""
        first = self.first
        return None if first is None else (self.virtual_time, *first)

    def allowance(self, now: float) -> int:
        """Return how many jobs may be taken now, `ANY` without limits."""
        return ANY if self.limiter is None else self.limiter.allowance(now)

    def takes(self, job: JobRecord) -> bool:
        """Return whether a job belongs into the window."""
        return not self.spilled or (job.rank, job.seq) <= self.edge

    def join(self, job: JobRecord) -> bool:
        """Add a queued job that belongs into the window; return whether it is the first now."""
        items = self.items
        if self.head == len(items):
            items.clear()  # all entries were taken
            self.head = 0
        entry = (job.rank, job.seq, job)
        self.bytes += len(job.body)
        if not items or entry[:2] > items[-1][:2]:
            items.append(entry)
            return len(items) == 1
        insort(items, entry, lo=self.head)
        return items[self.head] is entry

    def fill(self, jobs: list[JobRecord], length: int) -> bool:
        """Append jobs of the store to the window; return whether it was empty before.

        Args:
            jobs: At least one job, in order.
            length: Bytes of their bodies.
        """
        items = self.items
        if self.head == len(items):
            items.clear()
            self.head = 0
        self.bytes += length
        items += [(job.rank, job.seq, job) for job in jobs]
        return len(items) == len(jobs)

    def displace(self) -> JobRecord:
        """Remove the last job of the window, which stays in the store, and return it."""
        rank, seq, job = self.items.pop()
        self.bytes -= len(job.body)
        self.leave(rank, seq)
        return job

    def leave(self, rank: int, seq: int) -> None:
        """Move the edge before a rank and number: jobs from there on are in the store only."""
        edge = (rank, seq - 1)
        self.edge = min(self.edge, edge) if self.spilled else edge
        self.spilled = True

    def remove(self, job: JobRecord) -> bool:
        """Remove a job from the window; return whether it was there."""
        for index in range(self.head, len(self.items)):
            if self.items[index][2] is job:
                del self.items[index]
                self.bytes -= len(job.body)
                return True
        return False

    def drop(self, leave: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """Remove and return the jobs of the window for which ``leave`` is true."""
        kept: list[tuple[int, int, JobRecord]] = []
        removed: list[tuple[int, int, JobRecord]] = []
        for entry in self.items[self.head :]:
            (removed if leave(entry[2]) else kept).append(entry)
        if removed:
            self.items, self.head = kept, 0
            self.bytes -= sum(len(entry[2].body) for entry in removed)
        return [entry[2] for entry in removed]

    def rewind(self, before: RankKey = BEFORE_ALL) -> None:
        """Move the edge back, so that the next read starts at ``before``.

        Args:
            before: Lower bound of all jobs of the subqueue in the store.
        """
        self.spilled = True
        self.edge = (before[0], before[1] - 1)


class Load(NamedTuple):
    """Limits of a chunk. The first job is taken even if it exceeds them."""

    #: Total run time of the jobs.
    seconds: float
    jobs: int
    #: Total bytes of their bodies.
    bytes: int


class Selector:
    """Takes jobs of one subqueue, in rank order, for one chunk.

    Args:
        subqueue: The subqueue.
        cost_of: Returns the cost of jobs with a header text in seconds, below 0 to refuse them;
            called once per text.
        refuses: Called for each other job; returns whether to refuse it. None refuses none.
    """

    __slots__ = ("_cost_of", "_costs", "_index", "_refuses", "_skipped", "spent", "subqueue")

    def __init__(self, subqueue: Subqueue, cost_of: CostOf, refuses: Refuses) -> None:
        self.subqueue = subqueue
        #: Cost of the jobs taken so far, in seconds.
        self.spent = 0.0
        self._cost_of = cost_of
        self._refuses = refuses
        self._index = subqueue.head
        self._skipped: list[tuple[int, int, JobRecord]] = []
        self._costs: dict[str, float] = {}

    @property
    def next(self) -> RankKey | None:
        """The (rank, seq) of the next job, or a lower bound if that job is in the store only."""
        if self._index < len(self.subqueue.items):
            return self.subqueue.items[self._index][:2]
        return self.subqueue.edge if self.subqueue.spilled else None

    @property
    def exhausted(self) -> bool:
        """Whether no more jobs are in memory."""
        return self._index >= len(self.subqueue.items)

    # hot loop: python -m benchmarks drain
    def select(
        self, selected: list[JobRecord], size: int, load: Load, before: SortKey | None
    ) -> int:
        """Append jobs to ``selected``; return the bytes of their bodies, or -1 when it is full.

        Args:
            selected: The jobs of the chunk so far.
            size: Bytes of their bodies so far.
            load: Limits of the chunk; the seconds count only jobs of this subqueue.
            before: Stop before a job that ranks after this; None for no bound.
        """
        budget, limit, max_bytes = load
        items, index, end = self.subqueue.items, self._index, len(self.subqueue.items)
        costs, cost_of, refuses, spent = self._costs, self._cost_of, self._refuses, self.spent
        full = False
        while index < end:
            if len(selected) >= limit or spent >= budget:
                full = True
                break
            entry = items[index]
            job = entry[2]
            if before is not None and entry[:2] > before:
                break
            headers = job.headers
            cost = costs.get(headers)
            if cost is None:
                cost = costs[headers] = cost_of(headers)
            if cost < 0.0 or (refuses is not None and refuses(job)):
                self._skipped.append(entry)
                index += 1
                continue
            length = len(job.body)
            if size + length > max_bytes and selected:
                full = True
                break
            index += 1
            size += length
            self.subqueue.bytes -= length
            selected.append(job)
            spent += cost
        self._index, self.spent = index, spent
        return -1 if full else size

    def close(self) -> None:
        """Remove the taken jobs from the window."""
        subqueue, index = self.subqueue, self._index
        skipped = self._skipped
        if index - subqueue.head == len(skipped):
            return
        index -= len(skipped)
        subqueue.items[index : index + len(skipped)] = skipped
        subqueue.head = index
        if index > _CUT:
            del subqueue.items[:index]
            subqueue.head = 0


#: The order of a heap: by rank, or by virtual time.
_RANKED: Callable[[Subqueue], SortKey | None] = attrgetter("first")
_FAIR: Callable[[Subqueue], SortKey | None] = attrgetter("fair_key")

#: Largest number of heaps of a queue; beyond it the oldest is dropped, and rebuilt if needed.
_MAX_HEAPS = 100

#: Number of subqueues that are read from the store together when the first of them has to be.
_LOOKAHEAD = 16

#: Heaps up to this size are not purged of stale entries.
_SMALL = 64


class ReadyHeap:
    """The subqueues of a queue with jobs for an eligibility, the next one first.

    Args:
        eligibility: Eligibility of the sessions that are served from it.
        key: Returns the sort key of a subqueue, None if it has no job.
    """

    __slots__ = ("_heap", "_keys", "_limit", "_virtual_time", "eligibility", "key")

    def __init__(self, eligibility: Eligibility, key: Callable[[Subqueue], SortKey | None]) -> None:
        self.eligibility = eligibility
        self.key = key
        self._heap: list[tuple[SortKey, int, Subqueue]] = []
        self._limit = _SMALL
        #: Subqueue -> the key of its valid entry in the heap; its other entries are stale.
        self._keys: dict[Subqueue, SortKey] = {}
        self._virtual_time = 0

    def add(self, subqueue: Subqueue) -> None:
        """Record that a subqueue has a job to lease, or a better one than before."""
        key = self.key(subqueue)
        old = self._keys.get(subqueue)
        if key is not None and (old is None or key < old):
            self._keys[subqueue] = key
            heap = self._heap
            heappush(heap, (key, subqueue.number, subqueue))
            if len(heap) > self._limit:
                self._rebuild()

    def _rebuild(self) -> None:
        keys = [(subqueue, self.key(subqueue)) for subqueue in self._keys]
        self._keys = {subqueue: key for subqueue, key in keys if key is not None}
        self._heap = [(key, subqueue.number, subqueue) for subqueue, key in self._keys.items()]
        heapify(self._heap)
        self._limit = max(_SMALL, 2 * len(self._heap))

    # hot loop: python -m benchmarks drain
    def first(self) -> Subqueue | None:
        """Return the subqueue with the best job, which may be in the store only."""
        heap, keys, key_of = self._heap, self._keys, self.key
        while heap:
            key, number, subqueue = heap[0]
            if keys.get(subqueue) != key:
                heappop(heap)
                continue
            now = key_of(subqueue)
            if now == key:
                return subqueue
            if now is None:
                heappop(heap)
                del keys[subqueue]
            else:
                keys[subqueue] = now
                heapreplace(heap, (now, number, subqueue))
        return None

    def pop(self) -> None:
        """Remove the subqueue that `first` just returned, until it is added again."""
        _, _, subqueue = heappop(self._heap)
        del self._keys[subqueue]

    @property
    def virtual_time(self) -> int:
        """Virtual time of the heap: the smallest one of the subqueues that limits do not block."""
        first = self.first()
        return max(self._virtual_time, 0 if first is None else first.virtual_time)

    def advance(self, virtual_time: int) -> None:
        """Record that no subqueue has a smaller virtual time, except blocked ones."""
        self._virtual_time = max(self._virtual_time, virtual_time)

    def following(self) -> list[Subqueue]:
        """Return up to `_LOOKAHEAD` of the first subqueues."""
        return [subqueue for _, _, subqueue in self._heap[:_LOOKAHEAD]]


class ReadyIndex:
    """The ready heaps of a queue, by eligibility."""

    __slots__ = ("_fair", "_of")

    def __init__(self) -> None:
        self._of: dict[Eligibility, ReadyHeap] = {}
        self._fair = False

    def order(self, *, fair: bool) -> None:
        """Order subqueues by virtual time if ``fair``, else by rank."""
        if fair != self._fair:
            self._fair = fair
            self._of.clear()

    def of(self, eligibility: Eligibility, subqueues: Iterable[Subqueue]) -> ReadyHeap:
        """Return the heap of an eligibility, making it from the queue's subqueues if it is new."""
        heap = self._of.get(eligibility)
        if heap is None:
            if len(self._of) >= _MAX_HEAPS:
                del self._of[next(iter(self._of))]
            eligible = [each for each in subqueues if eligibility.admits(each.task)]
            heap = self._of[eligibility] = ReadyHeap(eligibility, _FAIR if self._fair else _RANKED)
            heap.advance(min((each.virtual_time for each in eligible if not each.idle), default=0))
            for subqueue in eligible:
                self._join(subqueue, heap.virtual_time)
                heap.add(subqueue)
        return heap

    def offer(self, subqueue: Subqueue) -> None:
        """Offer the jobs of a subqueue to workers: it has its first job, or a better one."""
        heaps = [heap for each, heap in self._of.items() if each.admits(subqueue.task)]
        if heaps and subqueue.idle:
            self._join(subqueue, max(heap.virtual_time for heap in heaps))
        for heap in heaps:
            heap.add(subqueue)

    @staticmethod
    def _join(subqueue: Subqueue, virtual_time: int) -> None:
        """Let a subqueue compete from now on, without an advantage for the time it was idle."""
        if subqueue.idle:
            subqueue.idle = False
            subqueue.virtual_time = max(subqueue.virtual_time, virtual_time)
