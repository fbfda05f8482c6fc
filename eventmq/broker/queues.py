"""One queue of the broker: its lanes, of which each worker takes what it knows, in rank order.

The lanes share the memory of the queue. What it does not hold is in the store, and is read from
there before it runs low, or when a worker asks for it.

Where jobs have a ``limit-key``, lanes share the queue fairly: the one that was served least comes
first, and the rank counts inside of it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from eventmq.broker.lanes import ANY, BEFORE_ALL, Lane, Picker
from eventmq.broker.needs import Needs
from eventmq.broker.room import Census, Room
from eventmq.broker.sharing import allowed, share
from eventmq.broker.views import Skill, View
from eventmq.entries import QueueCounts, lane_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from eventmq.broker.lanes import Judge, Load, Place, Refuses
    from eventmq.broker.limiters import Limiter
    from eventmq.entries import LaneKey
    from eventmq.job import Job

__all__ = ["Queue"]

#: Views of a queue: the one made first goes, and is made again when a session looks.
_MOST_VIEWS = 100


class Queue:
    """A queue of the broker.

    Args:
        name: Its name.
        size_limit: Jobs that its lanes have in memory together.
        bytes_limit: Bytes of their bodies.
        now: Unix time.
        census: Of the broker.
    """

    __slots__ = (
        "_census",
        "_floor",
        "_made",
        "_needs",
        "_room",
        "_views",
        "arriving",
        "aside",
        "counts",
        "lanes",
        "limited",
        "limiter",
        "name",
        "running",
        "served_at",
        "version",
    )

    def __init__(
        self, name: str, size_limit: int, bytes_limit: int, now: float, census: Census | None = None
    ) -> None:
        self.name = name
        self._census = census or Census()
        self._made = 0
        self._views: dict[Skill, View] = {}
        self._room = Room(size_limit, bytes_limit)
        self._needs = Needs()
        #: A lane that is not here has no queued job, neither in memory nor in the store.
        self.lanes: dict[LaneKey, Lane] = {}
        #: Whether a lane may have limits or a key; how much was served of the one served least.
        self.limited, self._floor = False, 0
        #: Of the queue as a whole, None for no limits.
        self.limiter: Limiter | None = None
        #: Jobs that every worker of the queue refused: id -> job and since when.
        self.aside: dict[str, tuple[Job, float]] = {}
        #: Jobs of this turn's commit, which may be leased in the same commit.
        self.arriving: list[Job] = []
        self.counts = QueueCounts()
        #: Number of leased jobs.
        self.running = 0
        #: When a worker last served this queue.
        self.served_at = now
        #: Grows whenever a job joins, so that sessions know when to look again.
        self.version = 0

    def __len__(self) -> int:
        return self._room.size

    def allowance(self, now: float) -> int:
        """Return how many jobs of the whole queue may be taken now."""
        return ANY if self.limiter is None else self.limiter.allowance(now)

    def ready(self, now: float) -> bool:
        """Say whether there may be a job to dispatch now, or to be read for a worker that asks."""
        if self.arriving or not self.limited:
            return bool(self.arriving or self.lanes)
        return any(lane.allowance(now) for lane in self.lanes.values())

    @property
    def outside(self) -> bool:
        """Whether queued jobs may be in the store only."""
        return any(lane.outside for lane in self.lanes.values())

    @property
    def head(self) -> Place | None:
        """The (rank, seq) of the best ranked job in memory, None for none."""
        firsts = (lane.items[lane.head][:2] for lane in self.lanes.values() if len(lane))
        arriving = ((job.rank, job.seq) for job in self.arriving)
        return min(firsts, default=min(arriving, default=None))

    # Lanes

    def lane(self, key: LaneKey) -> Lane:
        """Return a lane, making it if it is new."""
        lane = self.lanes.get(key)
        if lane is None:
            self._made += 1
            self._census.lanes += 1
            limiter = self._census.limiters.get(key)
            lane = self.lanes[key] = Lane(key, self._made, limiter)
            self.limited |= limiter is not None or bool(key.key)
        return lane

    def limit(self, limiter: Limiter) -> None:
        """Let a new limiter count for the jobs that wait already."""
        lane = self.lanes.get(limiter.lane)
        if lane is not None:
            lane.limiter = limiter
            self.limited = True

    def _view(self, skill: Skill) -> View:
        view = self._views.get(skill)
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                del self._views[next(iter(self._views))]
            view = self._views[skill] = View(skill)
            for lane in self.lanes.values():
                if skill.admits(lane.task):
                    view.add(lane)
        return view

    def _show(self, lane: Lane) -> None:
        """Let workers see that a lane has something, or something better than before."""
        for skill, view in self._views.items():
            if skill.admits(lane.task):
                view.add(lane)

    def _left(self, lane: Lane, size: int, length: int) -> None:
        """Count what left the window of a lane; forget the lane if that was all."""
        self._room.left(size, length)
        if lane.outside:
            self._needs.note(lane)
        elif not len(lane) and not lane.claiming and self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
            self.limited &= bool(self.lanes)
            self._needs.forget(lane)
            self._census.lanes -= 1

    # Jobs that come

    def takes(self, job: Job) -> bool:
        """Say whether a queued job belongs into memory."""
        lane = self.lanes.get(lane_of(job.headers))
        return lane is None or lane.takes(job)

    def join(self, job: Job, *, claimed: bool = False) -> list[Job]:
        """Add a queued job; return the jobs that leave memory for it, perhaps itself.

        Args:
            job: On disk, not leased.
            claimed: It was read for its lane, which keeps one job although the memory is used up.
        """
        lane = self.lane(lane_of(job.headers))
        if not lane.takes(job):
            return [job]
        self.version += 1
        room = self._room
        if not claimed and not len(lane) and room.crowded(len(self.lanes)):
            lane.leave(job.rank, job.seq)
            self._show(lane)
            return [job]
        room.size += 1
        room.bytes += len(job.body)
        if lane.join(job):
            self._show(lane)
        return self._displace(lane) if room.over else []

    def _displace(self, lane: Lane) -> list[Job]:
        displaced = []
        while (gives := self._room.victim(self.lanes, lane)) is not None:
            job = gives.displace()
            self._room.left(1, len(job.body))
            self._needs.note(gives)
            displaced.append(job)
        return displaced

    # The store

    def hungry(self, now: float = 0.0) -> Iterator[tuple[Lane, int, int]]:
        """Yield the lanes to be filled from the store, with how many jobs and bytes to read."""
        return self._needs.take(self.lanes, self._room, now)

    def claimed(self, lane: Lane, after: Place, jobs: list[Job], *, more: bool) -> bool:
        """Take note of the verdict on a claim; say whether its jobs may join.

        Args:
            lane: For which it was.
            after: Where it began.
            jobs: What it found.
            more: Whether there are others after them.
        """
        lane.claiming = False
        self.version += 1  # others may have waited for what this lane has
        if lane.edge != after:  # something was displaced meanwhile: claim again, from there
            self._needs.note(lane)
            return False
        lane.outside = more
        if jobs:
            lane.edge = (jobs[-1].rank, jobs[-1].seq)
        if more:
            self._needs.note(lane)
        return True

    def failed(self, lane: Lane) -> None:
        """Note that a claim could not be made."""
        lane.claiming = False
        self.version += 1
        self._needs.note(lane)

    def rest(self, lane: Lane) -> None:
        """Forget a lane if it has nothing."""
        self._left(lane, 0, 0)

    def rewind(self, key: LaneKey, before: Place = BEFORE_ALL) -> None:
        """Look into the store for the best ranked jobs of a lane.

        Args:
            key: Of the lane.
            before: No job of the lane in the store stands before this place.
        """
        lane = self.lane(key)
        lane.rewind(before)
        self._needs.note(lane)
        self.version += 1
        self._show(lane)

    # Jobs that go

    # hot loop: benchmarks/drain.py
    def take(
        self, skill: Skill, judge: Judge, refuses: Refuses, load: Load, now: float = 0.0
    ) -> list[Job]:
        """Remove and return the best ranked jobs that suit a worker.

        Nothing is taken that ranks after a job which is in the store only: first come, first
        served. Where lanes have keys, this holds inside of each lane.

        Args:
            skill: Of which lanes the worker may get jobs.
            judge: See `eventmq.broker.lanes.Picker`, as ``refuses``.
            refuses: Asked for each job, or None.
            load: What the chunk may hold.
            now: Unix time.
        """
        if self.limited:
            return self._share(skill, lambda lane: Picker(lane, judge, refuses), load, now)
        view = self._view(skill)
        taken: list[Job] = []
        opened: list[tuple[Picker, int, int]] = []
        heap: list[tuple[Place, int, Picker]] = []  # of opened lanes, by what comes next
        size, left = 0, load.seconds
        lane = view.first()
        while size >= 0 and (lane is not None or heap):
            if lane is not None and (not heap or lane.first < heap[0][0]):  # type: ignore[operator]
                view.pop()
                picker = Picker(lane, judge, refuses)
                opened.append((picker, len(lane), lane.bytes))
                lane = view.first()
            else:
                picker = heappop(heap)[2]
            if picker.dry:  # what comes next is in the store
                self._demand(picker.lane, view)
                break
            bound = heap[0][0] if heap else None
            if lane is not None and (bound is None or lane.first < bound):  # type: ignore[operator]
                bound = lane.first
            before = picker.spent
            size = picker.take(taken, size, load._replace(seconds=before + left), bound)
            left -= picker.spent - before
            following = picker.next
            if following is not None:
                heappush(heap, (following, picker.lane.number, picker))
        self._close(opened)
        for picker, _, _ in opened:
            view.add(picker.lane)
        return taken

    def _share(
        self, skill: Skill, pick: Callable[[Lane], Picker], load: Load, now: float
    ) -> list[Job]:
        """Take jobs where lanes have limits or keys."""
        taken: list[Job] = []
        opened: list[tuple[Picker, int, int]] = []

        def opening(lane: Lane) -> Picker:
            opened.append((pick(lane), len(lane), lane.bytes))
            return opened[-1][0]

        suits = [lane for lane in self.lanes.values() if skill.admits(lane.task)]
        lanes, self._floor = allowed(suits, now, self._floor)
        fair = any(key.key for key in self.lanes)
        for lane in share(lanes, opening, taken, load, now, fair=fair):
            self._needs.demand(lane)
        self._close(opened)
        return taken

    def _close(self, opened: list[tuple[Picker, int, int]]) -> None:
        for picker, jobs, length in opened:
            picker.close()
            lane = picker.lane
            self._left(lane, jobs - len(lane), length - lane.bytes)

    def _demand(self, lane: Lane, view: View) -> None:
        """Read what a worker waits for, and what it will want after that."""
        for each in (lane, *view.following()):
            if each.outside and not len(each):
                self._needs.demand(each)
        self._needs.note(lane)

    def remove(self, job: Job) -> bool:
        """Remove a job that waits in memory; say whether it was there."""
        if self.aside.pop(job.id, None) is not None:
            return True
        lane = self.lanes.get(lane_of(job.headers))
        found = lane is not None and lane.remove(job)
        if lane is not None and found:
            self._left(lane, 1, len(job.body))
        return found

    def forget(self, ids: Collection[str]) -> None:
        """Remove jobs that wait in memory by their ids."""
        self.drop(lambda job: job.id in ids)
        for job_id in ids:
            self.aside.pop(job_id, None)

    def drop(self, leave: Callable[[Job], bool]) -> list[Job]:
        """Remove and return the jobs of the windows for which ``leave`` is true."""
        return [job for lane in list(self.lanes.values()) for job in self.drop_from(lane, leave)]

    def drop_from(self, lane: Lane, leave: Callable[[Job], bool]) -> list[Job]:
        """Remove and return the jobs of one window for which ``leave`` is true."""
        left = lane.drop(leave)
        if left:
            self._left(lane, len(left), sum(len(job.body) for job in left))
        return left

    def want(self, lane: Lane) -> None:
        """Read jobs of a lane that nobody takes, because they are to end."""
        if lane.outside and not len(lane):
            self._needs.demand(lane)
