"""Which lanes a worker may take from, the one with the best job first.

Sessions of one app know the same tasks, so they share a `Skill`, and per queue a `View`: a heap of
the lanes that suit this skill. Its entries are put right when they come to the top.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eventmq.broker.lanes import Lane, Place

__all__ = ["NOTHING", "PLAIN_ONLY", "Skill", "View"]

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
    """The lanes of a queue that suit a skill."""

    __slots__ = ("_heap", "_limit", "_placed", "skill")

    def __init__(self, skill: Skill) -> None:
        self.skill = skill
        self._heap: list[tuple[Place, int, Lane]] = []
        self._limit = _SMALL
        #: The place with which a lane stands in the heap; its other entries are out of date.
        self._placed: dict[Lane, Place] = {}

    def add(self, lane: Lane) -> None:
        """Note that a lane has something to lease, or something better than before."""
        place = lane.first
        old = self._placed.get(lane)
        if place is not None and (old is None or place < old):
            self._placed[lane] = place
            heap = self._heap
            heappush(heap, (place, lane.number, lane))
            if len(heap) > self._limit:
                self._rebuild()

    def _rebuild(self) -> None:
        places = [(lane, lane.first) for lane in self._placed]
        self._placed = {lane: place for lane, place in places if place is not None}
        self._heap = [(place, lane.number, lane) for lane, place in self._placed.items()]
        heapify(self._heap)
        self._limit = max(_SMALL, 2 * len(self._heap))

    # hot loop: benchmarks/drain.py
    def first(self) -> Lane | None:
        """Return the lane with the best job, or perhaps: its best may be in the store only."""
        heap, placed = self._heap, self._placed
        while heap:
            place, number, lane = heap[0]
            if placed.get(lane) != place:
                heappop(heap)
                continue
            now = lane.first
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

    def following(self) -> list[Lane]:
        """Return some lanes that come early."""
        return [lane for _, _, lane in self._heap[:_EARLY]]
