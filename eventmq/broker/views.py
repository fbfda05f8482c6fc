"""Which lanes a worker may take from, the one with the best job first.

Sessions of one app know the same tasks, so they share a `Skill`, and per queue a `View`: a heap of
the lanes that suit this skill. Its entries are put right when they come to the top. A lane that a
limit blocks is in no view, until the limit lets it come back.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventmq.broker.lanes import Lane, Turn

__all__ = ["NOTHING", "PLAIN_ONLY", "Skill", "View", "Views"]

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
