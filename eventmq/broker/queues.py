"""One queue of the broker: its lanes, of which each worker takes what it knows, in rank order.

The lanes share the memory of the queue. What it does not hold is in the store, and is read from
there before it runs low, or when a worker asks for it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from eventmq.broker.lanes import BEFORE_ALL, Lane, Picker
from eventmq.broker.views import Skill, View
from eventmq.entries import QueueCounts, lane_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from eventmq.broker.lanes import Judge, Load, Place, Refuses
    from eventmq.job import Job

__all__ = ["Census", "Queue"]

#: Jobs that a lane may have in memory, however many lanes share it, while there is room.
_LEAST = 16

#: Views of a queue: the one made first goes, and is made again when a session looks.
_MOST_VIEWS = 100


class Census:
    """Counts the lanes of all queues of a broker."""

    __slots__ = ("coming", "lanes")

    def __init__(self) -> None:
        self.lanes = 0
        #: Queue and task of lanes that may begin with what this turn admits.
        self.coming: set[tuple[str, str | None]] = set()


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
        "_bytes",
        "_bytes_limit",
        "_census",
        "_demanded",
        "_hungry",
        "_made",
        "_size",
        "_size_limit",
        "_views",
        "arriving",
        "aside",
        "counts",
        "lanes",
        "name",
        "running",
        "served_at",
        "version",
    )

    def __init__(
        self,
        name: str,
        size_limit: int,
        bytes_limit: int,
        now: float,
        census: Census | None = None,
    ) -> None:
        self.name = name
        self._size_limit = size_limit
        self._bytes_limit = bytes_limit
        self._census = census or Census()
        self._size = self._bytes = self._made = 0
        self._views: dict[Skill, View] = {}
        #: Lanes to be looked at for what they lack, and those of them that a worker waits for.
        self._hungry: dict[Lane, None] = {}
        self._demanded: set[Lane] = set()
        #: By task; a lane that is not here has no queued job, neither in memory nor in the store.
        self.lanes: dict[str | None, Lane] = {}
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
        return self._size

    @property
    def ready(self) -> bool:
        """Whether there may be a job to dispatch now, or to be read for a worker that asks."""
        return bool(self.arriving or self.lanes)

    @property
    def outside(self) -> bool:
        """Whether queued jobs may be in the store only."""
        return any(lane.outside for lane in self.lanes.values())

    @property
    def head(self) -> Place | None:
        """The (rank, seq) of the best ranked job in memory, None for none."""
        firsts = [lane.items[lane.head][:2] for lane in self.lanes.values() if len(lane)]
        if not firsts:
            firsts = [(job.rank, job.seq) for job in self.arriving]
        return min(firsts, default=None)

    # Lanes

    def lane(self, task: str | None) -> Lane:
        """Return a lane, making it if it is new."""
        lane = self.lanes.get(task)
        if lane is None:
            self._made += 1
            self._census.lanes += 1
            lane = self.lanes[task] = Lane(task, self._made)
        return lane

    def _view(self, skill: Skill) -> View:
        view = self._views.get(skill)
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                del self._views[next(iter(self._views))]
            view = self._views[skill] = View(skill)
            for task, lane in self.lanes.items():
                if skill.admits(task):
                    view.add(lane)
        return view

    def _show(self, lane: Lane) -> None:
        """Let workers see that a lane has something, or something better than before."""
        for skill, view in self._views.items():
            if skill.admits(lane.task):
                view.add(lane)

    def _left(self, lane: Lane, size: int, length: int) -> None:
        """Count what left the window of a lane; forget the lane if that was all."""
        self._size -= size
        self._bytes -= length
        if lane.outside:
            self._hungry[lane] = None
        elif not len(lane) and not lane.claiming and self.lanes.get(lane.task) is lane:
            del self.lanes[lane.task]
            self._hungry.pop(lane, None)
            self._census.lanes -= 1

    # Jobs that come

    def takes(self, job: Job) -> bool:
        """Say whether a queued job belongs into memory."""
        lane = self.lanes.get(lane_task(job.headers))
        return lane is None or lane.takes(job)

    def join(self, job: Job, *, claimed: bool = False) -> list[Job]:
        """Add a queued job; return the jobs that leave memory for it, perhaps itself.

        Args:
            job: On disk, not leased.
            claimed: It was read for its lane, which keeps one job although the memory is used up.
        """
        lane = self.lane(lane_task(job.headers))
        if not lane.takes(job):
            return [job]
        self.version += 1
        if not claimed and not len(lane) and self._crowded():
            lane.leave(job.rank, job.seq)
            self._show(lane)
            return [job]
        self._size += 1
        self._bytes += len(job.body)
        if lane.join(job):
            self._show(lane)
        if self._size > self._size_limit or self._bytes > self._bytes_limit:
            return self._displace(lane)
        return []

    def _crowded(self) -> bool:
        """Whether the memory is used up by so many lanes that none can give way."""
        full = self._size >= self._size_limit or self._bytes >= self._bytes_limit
        return full and len(self.lanes) * _LEAST > self._size_limit

    def _displace(self, lane: Lane) -> list[Job]:
        displaced = []
        while self._size > self._size_limit or self._bytes > self._bytes_limit:
            victim = self._victim(lane)
            if len(victim) <= 1:
                break
            job = victim.displace()
            self._size -= 1
            self._bytes -= len(job.body)
            self._hungry[victim] = None
            displaced.append(job)
        return displaced

    def _victim(self, lane: Lane) -> Lane:
        """Return which lane leaves a job to the store: this one if it has more than its share."""
        n = len(self.lanes)
        if len(lane) * n > self._size_limit or lane.bytes * n > self._bytes_limit:
            return lane
        if n * _LEAST > self._size_limit and len(lane) > 1:
            return lane
        if self._bytes <= self._bytes_limit:
            return max(self.lanes.values(), key=len)
        several = [each for each in self.lanes.values() if len(each) > 1]
        return max(several, key=lambda each: each.bytes, default=lane)

    # The store

    def hungry(self) -> Iterator[tuple[Lane, int, int]]:
        """Yield the lanes to be filled from the store, with how many jobs and bytes to read."""
        n = max(1, len(self.lanes))
        size = max(min(_LEAST, self._size_limit), self._size_limit // n)
        length = self._bytes_limit // n
        room, demanded = self._size_limit - self._size, self._demanded
        for lane in list(self._hungry):
            wanted = lane in demanded and not len(lane)
            half = len(lane) * 2 < size and lane.bytes * 2 < length and room > 0
            if lane.claiming or self.lanes.get(lane.task) is not lane:
                del self._hungry[lane]
            elif lane.outside and (wanted or half):
                del self._hungry[lane]
                many = 1 if wanted and self._crowded() else size - len(lane)
                room -= many
                yield lane, many, max(1, length // 2)
            elif not half or not lane.outside:
                del self._hungry[lane]  # until something is taken from it
        demanded.clear()

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
            self._hungry[lane] = None
            return False
        lane.outside = more
        if jobs:
            lane.edge = (jobs[-1].rank, jobs[-1].seq)
        if more:
            self._hungry[lane] = None
        return True

    def failed(self, lane: Lane) -> None:
        """Note that a claim could not be made."""
        lane.claiming = False
        self.version += 1
        self._hungry[lane] = None

    def rest(self, lane: Lane) -> None:
        """Forget a lane if it has nothing."""
        self._left(lane, 0, 0)

    def rewind(self, task: str | None, before: Place = BEFORE_ALL) -> None:
        """Look into the store for the best ranked jobs of a task.

        Args:
            task: Of the lane.
            before: No job of the lane in the store stands before this place.
        """
        lane = self.lane(task)
        lane.rewind(before)
        self._hungry[lane] = None
        self.version += 1
        self._show(lane)

    # Jobs that go

    # hot loop: benchmarks/drain.py
    def take(self, skill: Skill, judge: Judge, refuses: Refuses, load: Load) -> list[Job]:
        """Remove and return the best ranked jobs that suit a worker.

        Nothing is taken that ranks after a job which is in the store only: first come, first
        served.

        Args:
            skill: Of which lanes the worker may get jobs.
            judge: See `eventmq.broker.lanes.Picker`, as ``refuses``.
            refuses: Asked for each job, or None.
            load: What the chunk may hold.
        """
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
        for picker, jobs, length in opened:
            picker.close()
            lane = picker.lane
            self._left(lane, jobs - len(lane), length - lane.bytes)
            view.add(lane)
        return taken

    def _demand(self, lane: Lane, view: View) -> None:
        """Read what a worker waits for, and what it will want after that."""
        for each in (lane, *view.following()):
            if each.outside and not len(each):
                self._demanded.add(each)
                self._hungry[each] = None
        self._hungry[lane] = None

    def remove(self, job: Job) -> bool:
        """Remove a job that waits in memory; say whether it was there."""
        if self.aside.pop(job.id, None) is not None:
            return True
        lane = self.lanes.get(lane_task(job.headers))
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
            self._demanded.add(lane)
            self._hungry[lane] = None
