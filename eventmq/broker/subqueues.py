"""Subqueues: the jobs of a queue with the same task and key, and which of them a worker may take.

The best ranked jobs of a `Subqueue` are in memory: every queued job whose (rank, seq) is at or
below ``edge`` is in the window, leased, or put aside. Those above are in the store only, as long as
``outside`` is true. A `Selector` takes jobs of one subqueue for a chunk; a `ReadyHeap` orders the
subqueues that suit the sessions of one `Eligibility`.
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
    from eventmq.job import JobRecord
    from eventmq.store.writes import SubqueueKey

    Judge = Callable[[str], float]
    Refuses = Callable[[JobRecord], bool] | None

__all__ = [
    "ANY",
    "BEFORE_ALL",
    "LEGACY_ONLY",
    "NOTHING",
    "Eligibility",
    "Load",
    "Place",
    "ReadyHeap",
    "ReadyIndex",
    "Selector",
    "Subqueue",
    "Turn",
]


#: (rank, seq) of a job, or something at or before it.
Place = tuple[int, int]

#: What orders subqueues: a `Place`, or before it how much was served where they share fairly.
Turn = tuple[int, ...]

#: A key below that of every job.
BEFORE_ALL: Place = (-(1 << 62), 0)

#: The window's list is cut when so many taken entries stand before its head.
_CUT = 4096


class Subqueue:
    """A subqueue of a queue.

    Args:
        key: As `eventmq.store.subqueue_of` says.
        number: Of the subqueue in its queue: orders subqueues whose first jobs stand at one place.
        limiter: Of this task and key, None for no limits.
    """

    __slots__ = (
        "bytes",
        "claiming",
        "edge",
        "fresh",
        "head",
        "items",
        "key",
        "limiter",
        "number",
        "outside",
        "served",
        "task",
        "unknown_since",
    )

    def __init__(self, key: SubqueueKey, number: int = 0, limiter: Limiter | None = None) -> None:
        self.key = key
        self.task = key.task
        self.limiter = limiter
        self.number = number
        #: The window: (rank, seq, job), of which those before ``head`` were taken.
        self.items: list[tuple[int, int, JobRecord]] = []
        self.head = 0
        self.bytes = 0
        self.edge = BEFORE_ALL
        self.outside = False
        self.claiming = False
        #: Since when there are workers of the queue, of which none knows the task.
        self.unknown_since: float | None = None
        #: Virtual time of fair sharing: jobs taken so far, and what others had taken when this
        #: subqueue, being ``fresh``, began to compete, or did so again.
        self.served = 0
        self.fresh = True

    def __len__(self) -> int:
        return len(self.items) - self.head

    @property
    def first(self) -> Place | None:
        """The (rank, seq) before which no job waits here, None where none waits at all."""
        if len(self.items) > self.head:
            return self.items[self.head][:2]
        return self.edge if self.outside else None

    @property
    def turn(self) -> Turn | None:
        """What orders subqueues that share fairly: how much was served, then `first`."""
        first = self.first
        return None if first is None else (self.served, *first)

    def allowance(self, now: float) -> int:
        """Return how many jobs may be taken now, far more than there are for any number."""
        return ANY if self.limiter is None else self.limiter.allowance(now)

    def takes(self, job: JobRecord) -> bool:
        """Say whether a job belongs into memory."""
        return not self.outside or (job.rank, job.seq) <= self.edge

    def join(self, job: JobRecord) -> bool:
        """Add a queued job that `takes` said to belong here; say whether it is the first now."""
        items = self.items
        if self.head == len(items):
            items.clear()  # what stands before the head was taken
            self.head = 0
        entry = (job.rank, job.seq, job)
        self.bytes += len(job.body)
        if not items or entry[:2] > items[-1][:2]:
            items.append(entry)
            return len(items) == 1
        insort(items, entry, lo=self.head)
        return items[self.head] is entry

    def fill(self, jobs: list[JobRecord], length: int) -> bool:
        """Add jobs of the store after all that are here; say whether their first is the first.

        Args:
            jobs: In order, at least one.
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
        """Leave the job that ranks last to the store, and return it."""
        rank, seq, job = self.items.pop()
        self.bytes -= len(job.body)
        self.leave(rank, seq)
        return job

    def leave(self, rank: int, seq: int) -> None:
        """Leave a job at this place, and all after it, to the store."""
        edge = (rank, seq - 1)
        self.edge = min(self.edge, edge) if self.outside else edge
        self.outside = True

    def remove(self, job: JobRecord) -> bool:
        """Remove a job from the window; say whether it was there."""
        for place in range(self.head, len(self.items)):
            if self.items[place][2] is job:
                del self.items[place]
                self.bytes -= len(job.body)
                return True
        return False

    def drop(self, leave: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """Remove and return the jobs of the window for which ``leave`` is true."""
        kept: list[tuple[int, int, JobRecord]] = []
        left: list[tuple[int, int, JobRecord]] = []
        for entry in self.items[self.head :]:
            (left if leave(entry[2]) else kept).append(entry)
        if left:
            self.items, self.head = kept, 0
            self.bytes -= sum(len(entry[2].body) for entry in left)
        return [entry[2] for entry in left]

    def rewind(self, before: Place = BEFORE_ALL) -> None:
        """Forget the edge: the next claim starts at the best ranked job of the store.

        Args:
            before: No job of the subqueue in the store stands before this place.
        """
        self.outside = True
        self.edge = (before[0], before[1] - 1)


class Load(NamedTuple):
    """What a chunk may hold. The first job is always taken."""

    #: That the jobs cost together.
    seconds: float
    jobs: int
    #: Of their bodies.
    bytes: int


class Selector:
    """Takes jobs of one subqueue, in rank order, for one chunk.

    Args:
        subqueue: The subqueue.
        judge: Header text -> seconds that such a job costs, below 0 if it does not suit; asked
            once per text.
        refuses: Asked for each job in addition, or None.
    """

    __slots__ = ("_costs", "_judge", "_place", "_refuses", "_skipped", "spent", "subqueue")

    def __init__(self, subqueue: Subqueue, judge: Judge, refuses: Refuses) -> None:
        self.subqueue = subqueue
        #: Seconds that the jobs taken so far cost.
        self.spent = 0.0
        self._judge = judge
        self._refuses = refuses
        self._place = subqueue.head
        self._skipped: list[tuple[int, int, JobRecord]] = []
        self._costs: dict[str, float] = {}

    @property
    def next(self) -> Place | None:
        """The (rank, seq) of what comes next: a lower bound where that is in the store only."""
        if self._place < len(self.subqueue.items):
            return self.subqueue.items[self._place][:2]
        return self.subqueue.edge if self.subqueue.outside else None

    @property
    def dry(self) -> bool:
        """Whether nothing more is in memory."""
        return self._place >= len(self.subqueue.items)

    # hot loop: benchmarks/drain.py
    def take(
        self,
        taken: list[JobRecord],
        size: int,
        load: Load,
        before: Turn | None,
    ) -> int:
        """Append jobs to ``taken``; return how many bytes their bodies have now, or -1 when full.

        Args:
            taken: The jobs of the chunk so far.
            size: Bytes of their bodies.
            load: What the chunk may hold; its seconds are for the jobs of this subqueue.
            before: Stop at a job that ranks after this, None for no bound.
        """
        budget, limit, max_bytes = load
        items, place, end = self.subqueue.items, self._place, len(self.subqueue.items)
        costs, judge, refuses, spent = self._costs, self._judge, self._refuses, self.spent
        full = False
        while place < end:
            if len(taken) >= limit or spent >= budget:
                full = True
                break
            entry = items[place]
            job = entry[2]
            if before is not None and entry[:2] > before:
                break
            headers = job.headers
            cost = costs.get(headers)
            if cost is None:
                cost = costs[headers] = judge(headers)
            if cost < 0.0 or (refuses is not None and refuses(job)):
                self._skipped.append(entry)
                place += 1
                continue
            length = len(job.body)
            if size + length > max_bytes and taken:
                full = True
                break
            place += 1
            size += length
            self.subqueue.bytes -= length
            taken.append(job)
            spent += cost
        self._place, self.spent = place, spent
        return -1 if full else size

    def close(self) -> None:
        """Remove what was taken from the window."""
        subqueue, place = self.subqueue, self._place
        skipped = self._skipped
        if place - subqueue.head == len(skipped):
            return
        place -= len(skipped)
        subqueue.items[place : place + len(skipped)] = skipped
        subqueue.head = place
        if place > _CUT:
            del subqueue.items[:place]
            subqueue.head = 0


#: What orders the subqueues of a heap.
_FIRST: Callable[[Subqueue], Turn | None] = attrgetter("first")

_TURN: Callable[[Subqueue], Turn | None] = attrgetter("turn")

#: ReadyIndex of a queue: the one made first goes, and is made again when a session looks.
_MOST = 100

#: Subqueues that are looked at together when the first of them has to be read from the store.
_EARLY = 16

#: A heap of at most so many entries is not looked through for those that are out of date.
_SMALL = 64


class Eligibility(NamedTuple):
    """Which jobs a session takes."""

    #: Names of tasks; None means any.
    tasks: frozenset[str] | None
    #: Whether it takes legacy jobs.
    legacy: bool

    def admits(self, task: str | None) -> bool:
        """Say whether jobs of a task suit, or legacy ones where it is None."""
        if task is None:
            return self.legacy
        return self.tasks is None or task in self.tasks


#: The eligibility of a session that did not say yet what it knows.
NOTHING = Eligibility(frozenset(), legacy=False)

#: The eligibility of a session that takes legacy jobs only.
LEGACY_ONLY = Eligibility(frozenset(), legacy=True)


class ReadyHeap:
    """The subqueues of a queue that suit an eligibility.

    Args:
        eligibility: Of the sessions that look.
        key: Subqueue -> what orders it, None where it has nothing.
    """

    __slots__ = ("_floor", "_heap", "_limit", "_placed", "eligibility", "key")

    def __init__(self, eligibility: Eligibility, key: Callable[[Subqueue], Turn | None]) -> None:
        self.eligibility = eligibility
        self.key = key
        self._heap: list[tuple[Turn, int, Subqueue]] = []
        self._limit = _SMALL
        #: The key with which a subqueue stands in the heap; its other entries are out of date.
        self._placed: dict[Subqueue, Turn] = {}
        self._floor = 0

    def add(self, subqueue: Subqueue) -> None:
        """Note that a subqueue has something to lease, or something better than before."""
        place = self.key(subqueue)
        old = self._placed.get(subqueue)
        if place is not None and (old is None or place < old):
            self._placed[subqueue] = place
            heap = self._heap
            heappush(heap, (place, subqueue.number, subqueue))
            if len(heap) > self._limit:
                self._rebuild()

    def _rebuild(self) -> None:
        key = self.key
        places = [(subqueue, key(subqueue)) for subqueue in self._placed]
        self._placed = {subqueue: place for subqueue, place in places if place is not None}
        self._heap = [
            (place, subqueue.number, subqueue) for subqueue, place in self._placed.items()
        ]
        heapify(self._heap)
        self._limit = max(_SMALL, 2 * len(self._heap))

    # hot loop: benchmarks/drain.py
    def first(self) -> Subqueue | None:
        """Return the subqueue with the best job, or perhaps: its best may be in the store only."""
        heap, placed, key = self._heap, self._placed, self.key
        while heap:
            place, number, subqueue = heap[0]
            if placed.get(subqueue) != place:
                heappop(heap)
                continue
            now = key(subqueue)
            if now == place:
                return subqueue
            if now is None:
                heappop(heap)
                del placed[subqueue]
            else:
                placed[subqueue] = now
                heapreplace(heap, (now, number, subqueue))
        return None

    def pop(self) -> None:
        """Take the subqueue out that `first` just returned, until it is added again."""
        _, _, subqueue = heappop(self._heap)
        del self._placed[subqueue]

    @property
    def floor(self) -> int:
        """What the subqueue was served that was served least, of those that may be taken from."""
        subqueue = self.first()
        return self._floor if subqueue is None else max(self._floor, subqueue.served)

    def rise(self, served: int) -> None:
        """Note that no subqueue that may be taken from was served less."""
        self._floor = max(self._floor, served)

    def following(self) -> list[Subqueue]:
        """Return some subqueues that come early."""
        return [subqueue for _, _, subqueue in self._heap[:_EARLY]]


class ReadyIndex:
    """The heaps of a queue, by eligibility."""

    __slots__ = ("_fair", "_of")

    def __init__(self) -> None:
        self._of: dict[Eligibility, ReadyHeap] = {}
        self._fair = False

    def order(self, *, fair: bool) -> None:
        """Order subqueues by who was served least, or by their ranks."""
        if fair != self._fair:
            self._fair = fair
            self._of.clear()

    def of(self, eligibility: Eligibility, subqueues: Iterable[Subqueue]) -> ReadyHeap:
        """Return the heap of an eligibility, making it from the queue's subqueues if it is new."""
        heap = self._of.get(eligibility)
        if heap is None:
            if len(self._of) >= _MOST:
                del self._of[next(iter(self._of))]
            suits = [subqueue for subqueue in subqueues if eligibility.admits(subqueue.task)]
            heap = self._of[eligibility] = ReadyHeap(eligibility, _TURN if self._fair else _FIRST)
            heap.rise(min((subqueue.served for subqueue in suits if not subqueue.fresh), default=0))
            for subqueue in suits:
                self._join(subqueue, heap.floor)
                heap.add(subqueue)
        return heap

    def show(self, subqueue: Subqueue) -> None:
        """Let workers see that a subqueue has something, or something better than before."""
        heaps = [
            heap for eligibility, heap in self._of.items() if eligibility.admits(subqueue.task)
        ]
        if heaps and subqueue.fresh:
            self._join(subqueue, max(heap.floor for heap in heaps))
        for heap in heaps:
            heap.add(subqueue)

    @staticmethod
    def _join(subqueue: Subqueue, floor: int) -> None:
        """Let a subqueue take part: what it did not ask for, or was not given, is no credit."""
        if subqueue.fresh:
            subqueue.fresh = False
            subqueue.served = max(subqueue.served, floor)
