"""One queue: the window of its best ranked jobs in memory, and the edge to those in the store.

Every queued job whose (rank, seq) is at or below ``edge`` is in memory: in the window, leased or
parked. Those above are in the store only, as long as ``outside`` is true.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from eventmq.entries import QueueCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from eventmq.job import Job

__all__ = ["BEFORE_ALL", "Queue"]

#: A key below that of every job.
BEFORE_ALL = (-(1 << 62), 0)

#: The window's list is cut when so many taken entries stand before its head.
_CUT = 4096


class Queue:
    """A queue of the broker."""

    __slots__ = (
        "_bytes",
        "_head",
        "_items",
        "arriving",
        "bytes_limit",
        "claiming",
        "counts",
        "edge",
        "name",
        "outside",
        "parked",
        "parked_since",
        "running",
        "served_at",
        "size_limit",
        "version",
    )

    def __init__(self, name: str, size_limit: int, bytes_limit: int, now: float) -> None:
        self.name = name
        self.size_limit = size_limit
        self.bytes_limit = bytes_limit
        self._items: list[tuple[int, int, Job]] = []
        self._head = 0
        self._bytes = 0
        #: Jobs of this turn's commit, which may be leased in the same commit.
        self.arriving: list[Job] = []
        self.edge = BEFORE_ALL
        self.outside = False
        self.claiming = False
        self.counts = QueueCounts()
        #: Number of leased jobs.
        self.running = 0
        #: Jobs whose task no connected worker knows, and since when.
        self.parked: dict[str, list[Job]] = {}
        self.parked_since: dict[str, float] = {}
        #: When a worker last served this queue.
        self.served_at = now
        #: Grows whenever a job joins, so that sessions know when to look again.
        self.version = 0

    def __len__(self) -> int:
        return len(self._items) - self._head

    @property
    def ready(self) -> bool:
        """Whether there may be a job to dispatch now."""
        return len(self._items) > self._head or bool(self.arriving)

    @property
    def head(self) -> tuple[int, int] | None:
        """The (rank, seq) of the best ranked job in memory, None for none."""
        if len(self):
            return self._items[self._head][:2]
        return min(((job.rank, job.seq) for job in self.arriving), default=None)

    def join(self, job: Job) -> list[Job]:
        """Add a queued job; return the jobs that leave memory for it, perhaps itself."""
        key = (job.rank, job.seq)
        if self.outside and key > self.edge:
            return [job]
        items = self._items
        if self._head == len(items):
            items.clear()  # what stands before the head was taken
            self._head = 0
        entry = (job.rank, job.seq, job)
        if not items or key > items[-1][:2]:
            items.append(entry)
        else:
            insort(items, entry, lo=self._head)
        self._bytes += len(job.body)
        self.version += 1
        displaced = []
        while len(self) > 1 and (len(self) > self.size_limit or self._bytes > self.bytes_limit):
            displaced.append(self._displace())
        return displaced

    def _displace(self) -> Job:
        rank, seq, job = self._items.pop()
        self._bytes -= len(job.body)
        self.outside = True
        self.edge = (rank, seq - 1)
        return job

    def wants_claim(self) -> bool:
        """Whether the window should be filled from the store."""
        half = len(self) * 2 < self.size_limit and self._bytes * 2 < self.bytes_limit
        return self.outside and not self.claiming and half

    # hot loop: benchmarks/drain.py
    def take(
        self,
        judge: Callable[[str], float],
        refuses: Callable[[Job], bool] | None,
        budget: float,
        limit: int,
        max_bytes: int,
    ) -> list[Job]:
        """Remove and return the best ranked jobs that suit a worker.

        Stops after ``limit`` jobs, or when their costs reach ``budget`` seconds or their bodies
        ``max_bytes``; the first suitable job is always taken.

        Args:
            judge: Header text -> seconds that such a job costs, below 0 if it does not suit;
                asked once per text.
            refuses: Asked for each job in addition, or None.
            budget: Seconds.
            limit: Jobs.
            max_bytes: Bytes of payload.
        """
        items = self._items
        taken: list[Job] = []
        place = self._head
        end = len(items)
        size = 0
        skipped: list[tuple[int, int, Job]] = []
        costs: dict[str, float] = {}
        while place < end and len(taken) < limit and budget > 0.0:
            entry = items[place]
            job = entry[2]
            headers = job.headers
            cost = costs.get(headers)
            if cost is None:
                cost = costs[headers] = judge(headers)
            if cost < 0.0 or (refuses is not None and refuses(job)):
                skipped.append(entry)
                place += 1
                continue
            length = len(job.body)
            if size + length > max_bytes and taken:
                break
            place += 1
            size += length
            taken.append(job)
            budget -= cost
        if taken:
            self._bytes -= size
            place -= len(skipped)
            items[place : place + len(skipped)] = skipped
            self._head = place
            if place > _CUT:
                del items[:place]
                self._head = 0
        return taken

    def remove(self, job: Job) -> bool:
        """Remove a job from the window or from the parked; say whether it was there."""
        parked = self.parked
        for task, jobs in parked.items():
            if job in jobs:
                jobs.remove(job)
                if not jobs:
                    del parked[task], self.parked_since[task]
                return True
        for place in range(self._head, len(self._items)):
            if self._items[place][2] is job:
                del self._items[place]
                self._bytes -= len(job.body)
                return True
        return False

    def forget(self, ids: Collection[str]) -> None:
        """Remove jobs by id from the window and from the parked."""
        self.drop(lambda job: job.id in ids)
        for task, jobs in list(self.parked.items()):
            jobs[:] = [job for job in jobs if job.id not in ids]
            if not jobs:
                del self.parked[task], self.parked_since[task]

    def drop(self, leave: Callable[[Job], bool]) -> list[Job]:
        """Remove and return the jobs of the window for which ``leave`` is true."""
        kept: list[tuple[int, int, Job]] = []
        left: list[tuple[int, int, Job]] = []
        for entry in self._items[self._head :]:
            (left if leave(entry[2]) else kept).append(entry)
        if left:
            self._items, self._head = kept, 0
            self._bytes -= sum(len(entry[2].body) for entry in left)
        return [entry[2] for entry in left]

    def rewind(self) -> None:
        """Forget the edge: the next claim starts at the best ranked job of the store."""
        self.outside = True
        self.edge = BEFORE_ALL
