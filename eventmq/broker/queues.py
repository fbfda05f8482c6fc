"""One queue of the broker: its lanes, of which each worker takes what it knows, in rank order."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from eventmq.broker.lanes import Lane, Picker
from eventmq.entries import QueueCounts, lane_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from eventmq.broker.lanes import Judge, Load, Refuses
    from eventmq.job import Job

__all__ = ["Queue"]

#: Jobs that a lane may have in memory at least, however many lanes share the window.
_LEAST = 16


class Queue:
    """A queue of the broker.

    Args:
        name: Its name.
        size_limit: Jobs that its lanes have in memory together, unless they are very many.
        bytes_limit: Bytes of their bodies.
        now: Unix time.
    """

    __slots__ = (
        "_bytes_limit",
        "_size_limit",
        "arriving",
        "aside",
        "counts",
        "lanes",
        "name",
        "running",
        "served_at",
        "version",
    )

    def __init__(self, name: str, size_limit: int, bytes_limit: int, now: float) -> None:
        self.name = name
        self._size_limit = size_limit
        self._bytes_limit = bytes_limit
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
        return sum(map(len, self.lanes.values()))

    @property
    def ready(self) -> bool:
        """Whether there may be a job to dispatch now."""
        return bool(self.arriving) or any(map(len, self.lanes.values()))

    @property
    def outside(self) -> bool:
        """Whether queued jobs may be in the store only."""
        return any(lane.outside for lane in self.lanes.values())

    @property
    def head(self) -> tuple[int, int] | None:
        """The (rank, seq) of the best ranked job in memory, None for none."""
        firsts = [lane.items[lane.head][:2] for lane in self.lanes.values() if len(lane)]
        if not firsts:
            firsts = [(job.rank, job.seq) for job in self.arriving]
        return min(firsts, default=None)

    def lane(self, task: str | None) -> Lane:
        """Return a lane, making it if it is new."""
        lane = self.lanes.get(task)
        if lane is None:
            lane = self.lanes[task] = Lane(task)
        return lane

    def takes(self, job: Job) -> bool:
        """Say whether a queued job belongs into memory."""
        lane = self.lanes.get(lane_task(job.headers))
        return lane is None or lane.takes(job)

    def join(self, job: Job) -> list[Job]:
        """Add a queued job; return the jobs that leave memory for it, perhaps itself."""
        lane = self.lane(lane_task(job.headers))
        if not lane.takes(job):
            return [job]
        lane.join(job)
        self.version += 1
        displaced = []
        size, length = self._share()
        while len(lane) > 1 and (len(lane) > size or lane.bytes > length):
            displaced.append(lane.displace())
        return displaced

    def _share(self) -> tuple[int, int]:
        """Return how many jobs and bytes a lane may have in memory."""
        lanes = len(self.lanes)
        if lanes < 2:  # noqa: PLR2004 - the usual case
            return self._size_limit, self._bytes_limit
        return max(_LEAST, self._size_limit // lanes), self._bytes_limit // lanes

    def hungry(self) -> Iterator[tuple[Lane, int, int]]:
        """Yield the lanes to be filled from the store, with how many jobs and bytes to read."""
        size, length = self._share()
        for lane in self.lanes.values():
            half = len(lane) * 2 < size and lane.bytes * 2 < length
            if lane.outside and not lane.claiming and half:
                yield lane, size - len(lane), max(1, length // 2)

    def rest(self) -> bool:
        """Forget lanes without jobs; say whether none is left."""
        idle = [task for task, lane in self.lanes.items() if lane.first is None]
        for task in idle:
            if not self.lanes[task].claiming:
                del self.lanes[task]
        return not self.lanes

    def take(
        self, knows: Callable[[str | None], bool], judge: Judge, refuses: Refuses, load: Load
    ) -> list[Job]:
        """Remove and return the best ranked jobs that suit a worker.

        Nothing is taken that ranks after a job which is in the store only: first come, first
        served.

        Args:
            knows: Says whether the worker may get jobs of a lane, by its task.
            judge: See `eventmq.broker.lanes.Picker`, as ``refuses``.
            refuses: Asked for each job, or None.
            load: What the chunk may hold.
        """
        taken: list[Job] = []
        lanes = [lane for lane in self.lanes.values() if lane.first is not None]
        pickers = [Picker(lane, judge, refuses) for lane in lanes if knows(lane.task)]
        if len(pickers) == 1:
            pickers[0].take(taken, 0, load, None)
        elif pickers:
            _merge(pickers, taken, load)
        for picker in pickers:
            picker.close()
        return taken

    def remove(self, job: Job) -> bool:
        """Remove a job that waits in memory; say whether it was there."""
        if self.aside.pop(job.id, None) is not None:
            return True
        lane = self.lanes.get(lane_task(job.headers))
        return lane is not None and lane.remove(job)

    def forget(self, ids: Collection[str]) -> None:
        """Remove jobs that wait in memory by their ids."""
        self.drop(lambda job: job.id in ids)
        for job_id in ids:
            self.aside.pop(job_id, None)

    def drop(self, leave: Callable[[Job], bool]) -> list[Job]:
        """Remove and return the jobs of the windows for which ``leave`` is true."""
        return [job for lane in self.lanes.values() for job in lane.drop(leave)]

    def rewind(self, task: str | None) -> None:
        """Look into the store for the best ranked jobs of a task."""
        self.lane(task).rewind()


def _merge(pickers: list[Picker], taken: list[Job], load: Load) -> None:
    """Take jobs of several lanes in the order of their ranks."""
    heap = [(picker.next, place) for place, picker in enumerate(pickers) if picker.next]
    heapify(heap)
    size, left = 0, load.seconds
    while heap and size >= 0:
        _, place = heappop(heap)
        picker = pickers[place]
        if picker.dry:
            return  # what comes next is in the store
        before = picker.spent
        bound = heap[0][0] if heap else None
        size = picker.take(taken, size, load._replace(seconds=before + left), bound)
        left -= picker.spent - before
        following = picker.next
        if following is not None:
            heappush(heap, (following, place))
