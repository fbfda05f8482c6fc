"""One lane: the jobs of a queue with the same task and key, of which the best ranked are in memory.

Every queued job of the lane whose (rank, seq) is at or below ``edge`` is in memory: in the window,
leased, or put aside. Those above are in the store only, as long as ``outside`` is true.
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
    from eventmq.store.writes import LaneKey

    Judge = Callable[[str], float]
    Refuses = Callable[[JobRecord], bool] | None

__all__ = [
    "ANY",
    "BEFORE_ALL",
    "NOTHING",
    "PLAIN_ONLY",
    "Lane",
    "Load",
    "Picker",
    "Place",
    "Skill",
    "Turn",
    "View",
    "Views",
]


#: (rank, seq) of a job, or something at or before it.
Place = tuple[int, int]

#: What orders lanes: a `Place`, or before it how much was served where they share fairly.
Turn = tuple[int, ...]

#: A key below that of every job.
BEFORE_ALL: Place = (-(1 << 62), 0)

#: The window's list is cut when so many taken entries stand before its head.
_CUT = 4096


class Lane:
    """A lane of a queue.

    Args:
        key: As `eventmq.store.lane_of` says.
        number: Of the lane in its queue: orders lanes whose first jobs stand at one place.
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

    def __init__(self, key: LaneKey, number: int = 0, limiter: Limiter | None = None) -> None:
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
        #: Jobs taken so far, where lanes share fairly; with a head start of what others had taken
        #: when this one, being ``fresh``, began to take part, or did so again.
        self.served = 0
        self.fresh = True

    def __len__(self) -> int:
        return len(self.items) - self.head

    @property
    def first(self) -> Place | None:
        """The (rank, seq) before which no job of the lane waits, None where none waits at all."""
        if len(self.items) > self.head:
            return self.items[self.head][:2]
        return self.edge if self.outside else None

    @property
    def turn(self) -> Turn | None:
        """What orders lanes that share fairly: how much was served, then `first`."""
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
            before: No job of the lane in the store stands before this place.
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


class Picker:
    """Takes jobs of one lane, in rank order, for one chunk.

    Args:
        lane: The lane.
        judge: Header text -> seconds that such a job costs, below 0 if it does not suit; asked
            once per text.
        refuses: Asked for each job in addition, or None.
    """

    __slots__ = ("_costs", "_judge", "_place", "_refuses", "_skipped", "lane", "spent")

    def __init__(self, lane: Lane, judge: Judge, refuses: Refuses) -> None:
        self.lane = lane
        #: Seconds that the jobs taken so far cost.
        self.spent = 0.0
        self._judge = judge
        self._refuses = refuses
        self._place = lane.head
        self._skipped: list[tuple[int, int, JobRecord]] = []
        self._costs: dict[str, float] = {}

    @property
    def next(self) -> Place | None:
        """The (rank, seq) of what comes next: a lower bound where that is in the store only."""
        if self._place < len(self.lane.items):
            return self.lane.items[self._place][:2]
        return self.lane.edge if self.lane.outside else None

    @property
    def dry(self) -> bool:
        """Whether nothing more is in memory."""
        return self._place >= len(self.lane.items)

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
            load: What the chunk may hold; its seconds are for the jobs of this lane.
            before: Stop at a job that ranks after this, None for no bound.
        """
        budget, limit, max_bytes = load
        items, place, end = self.lane.items, self._place, len(self.lane.items)
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
            self.lane.bytes -= length
            taken.append(job)
            spent += cost
        self._place, self.spent = place, spent
        return -1 if full else size

    def close(self) -> None:
        """Remove what was taken from the window."""
        lane, place = self.lane, self._place
        skipped = self._skipped
        if place - lane.head == len(skipped):
            return
        place -= len(skipped)
        lane.items[place : place + len(skipped)] = skipped
        lane.head = place
        if place > _CUT:
            del lane.items[:place]
            lane.head = 0


#: What orders the lanes of a view.
_FIRST: Callable[[Lane], Turn | None] = attrgetter("first")

_TURN: Callable[[Lane], Turn | None] = attrgetter("turn")

#: Views of a queue: the one made first goes, and is made again when a session looks.
_MOST = 100

#: Lanes that are looked at together when the first of them has to be read from the store.
_EARLY = 16

#: A heap of at most so many entries is not looked through for those that are out of date.
_SMALL = 64


class Skill(NamedTuple):
    """Which jobs a session takes."""

    #: Names of tasks; None means any.
    tasks: frozenset[str] | None
    #: Whether it takes plain jobs.
    plain: bool

    def admits(self, task: str | None) -> bool:
        """Say whether jobs of a task suit, or plain ones where it is None."""
        if task is None:
            return self.plain
        return self.tasks is None or task in self.tasks


#: The skill of a session that did not say yet what it knows.
NOTHING = Skill(frozenset(), plain=False)

#: The skill of a session that takes plain jobs only.
PLAIN_ONLY = Skill(frozenset(), plain=True)


class View:
    """The lanes of a queue that suit a skill.

    Args:
        skill: Of the sessions that look.
        key: Lane -> what orders it, None where it has nothing.
    """

    __slots__ = ("_floor", "_heap", "_limit", "_placed", "key", "skill")

    def __init__(self, skill: Skill, key: Callable[[Lane], Turn | None]) -> None:
        self.skill = skill
        self.key = key
        self._heap: list[tuple[Turn, int, Lane]] = []
        self._limit = _SMALL
        #: The key with which a lane stands in the heap; its other entries are out of date.
        self._placed: dict[Lane, Turn] = {}
        self._floor = 0

    def add(self, lane: Lane) -> None:
        """Note that a lane has something to lease, or something better than before."""
        place = self.key(lane)
        old = self._placed.get(lane)
        if place is not None and (old is None or place < old):
            self._placed[lane] = place
            heap = self._heap
            heappush(heap, (place, lane.number, lane))
            if len(heap) > self._limit:
                self._rebuild()

    def _rebuild(self) -> None:
        key = self.key
        places = [(lane, key(lane)) for lane in self._placed]
        self._placed = {lane: place for lane, place in places if place is not None}
        self._heap = [(place, lane.number, lane) for lane, place in self._placed.items()]
        heapify(self._heap)
        self._limit = max(_SMALL, 2 * len(self._heap))

    # hot loop: benchmarks/drain.py
    def first(self) -> Lane | None:
        """Return the lane with the best job, or perhaps: its best may be in the store only."""
        heap, placed, key = self._heap, self._placed, self.key
        while heap:
            place, number, lane = heap[0]
            if placed.get(lane) != place:
                heappop(heap)
                continue
            now = key(lane)
            if now == place:
                return lane
            if now is None:
                heappop(heap)
                del placed[lane]
            else:
                placed[lane] = now
                heapreplace(heap, (now, number, lane))
        return None

    def pop(self) -> None:
        """Take the lane out that `first` just returned, until it is added again."""
        _, _, lane = heappop(self._heap)
        del self._placed[lane]

    @property
    def floor(self) -> int:
        """What the lane was served that was served least, of those that may be taken from."""
        lane = self.first()
        return self._floor if lane is None else max(self._floor, lane.served)

    def rise(self, served: int) -> None:
        """Note that no lane that may be taken from was served less."""
        self._floor = max(self._floor, served)

    def following(self) -> list[Lane]:
        """Return some lanes that come early."""
        return [lane for _, _, lane in self._heap[:_EARLY]]


class Views:
    """The views of a queue, by skill."""

    __slots__ = ("_fair", "_of")

    def __init__(self) -> None:
        self._of: dict[Skill, View] = {}
        self._fair = False

    def order(self, *, fair: bool) -> None:
        """Order lanes by who was served least, or by their ranks."""
        if fair != self._fair:
            self._fair = fair
            self._of.clear()

    def of(self, skill: Skill, lanes: Iterable[Lane]) -> View:
        """Return the view of a skill, making it from the lanes of the queue if it is new."""
        view = self._of.get(skill)
        if view is None:
            if len(self._of) >= _MOST:
                del self._of[next(iter(self._of))]
            suits = [lane for lane in lanes if skill.admits(lane.task)]
            view = self._of[skill] = View(skill, _TURN if self._fair else _FIRST)
            view.rise(min((lane.served for lane in suits if not lane.fresh), default=0))
            for lane in suits:
                self._join(lane, view.floor)
                view.add(lane)
        return view

    def show(self, lane: Lane) -> None:
        """Let workers see that a lane has something, or something better than before."""
        views = [view for skill, view in self._of.items() if skill.admits(lane.task)]
        if views and lane.fresh:
            self._join(lane, max(view.floor for view in views))
        for view in views:
            view.add(lane)

    @staticmethod
    def _join(lane: Lane, floor: int) -> None:
        """Let a lane take part: what it did not ask for, or was not given, is no credit."""
        if lane.fresh:
            lane.fresh = False
            lane.served = max(lane.served, floor)
