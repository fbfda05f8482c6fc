"""One queue of the broker: its lanes, of which each worker takes what it knows, in rank order.

The lanes share the memory of the queue. What it does not hold is in the store, and is read from
there before it runs low, or when a worker asks for it.

Where jobs have a ``limit-key``, lanes share the queue fairly: the one that was served least comes
first, and the rank counts inside of it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from eventmq.broker.limiters import Limiters
from eventmq.broker.subqueues import ANY, BEFORE_ALL, Lane, Picker, Views
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import lane_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from eventmq.broker.limiters import Limiter
    from eventmq.broker.subqueues import Judge, Load, Place, Refuses, Skill, Turn, View
    from eventmq.job import JobRecord
    from eventmq.store.writes import LaneKey

__all__ = ["LEAST", "Census", "Needs", "Queue", "Room", "share"]


#: Jobs that a lane may have in memory, however many lanes share it, while there is room.
LEAST = 16


class Census:
    """Counts the lanes of all queues of a broker, and knows which are limited."""

    __slots__ = ("coming", "lanes", "limiters")

    def __init__(self) -> None:
        self.lanes = 0
        self.limiters = Limiters()
        #: Queue and key of lanes that may begin with what this turn admits.
        self.coming: set[tuple[str, LaneKey]] = set()


class Room:
    """The memory of one queue, which its lanes share.

    Args:
        size_limit: Jobs that lanes have in memory together.
        bytes_limit: Bytes of their bodies.
    """

    __slots__ = ("bytes", "bytes_limit", "size", "size_limit")

    def __init__(self, size_limit: int, bytes_limit: int) -> None:
        self.size = self.bytes = 0
        self.size_limit, self.bytes_limit = size_limit, bytes_limit

    @property
    def over(self) -> bool:
        """Whether lanes have more than they may."""
        return self.size > self.size_limit or self.bytes > self.bytes_limit

    def crowded(self, lanes: int) -> bool:
        """Say whether so many lanes have used it up that none can give way."""
        full = self.size >= self.size_limit or self.bytes >= self.bytes_limit
        return full and lanes * LEAST > self.size_limit

    def left(self, size: int, length: int) -> None:
        """Count jobs that left, and the bytes of their bodies."""
        self.size -= size
        self.bytes -= length

    def victim(self, lanes: Mapping[LaneKey, Lane], lane: Lane) -> Lane | None:
        """Return which lane leaves a job to the store, None if all may stay.

        Args:
            lanes: Of the queue.
            lane: That has a new job: it gives way if it has more than its share.
        """
        spent = self.bytes > self.bytes_limit
        if not spent and self.size <= self.size_limit:
            return None
        gives = self._choose(lanes, lane, spent=spent)
        return gives if len(gives) > 1 else None

    def _choose(self, lanes: Mapping[LaneKey, Lane], lane: Lane, *, spent: bool) -> Lane:
        n = len(lanes)
        if len(lane) * n > self.size_limit or lane.bytes * n > self.bytes_limit:
            return lane
        if n * LEAST > self.size_limit and len(lane) > 1:
            return lane
        if not spent:
            return max(lanes.values(), key=len)
        several = [each for each in lanes.values() if len(each) > 1]
        return max(several, key=lambda each: each.bytes, default=lane)


class Needs:
    """Lanes to be looked at for what they lack, and those of them that a worker waits for."""

    __slots__ = ("_demanded", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[Lane, None] = {}
        self._demanded: set[Lane] = set()

    def note(self, lane: Lane) -> None:
        """Look at a lane: something was taken from it, or is in the store now."""
        self._lanes[lane] = None

    def demand(self, lane: Lane) -> None:
        """Note that somebody waits for what a lane has in the store."""
        self._demanded.add(lane)
        self._lanes[lane] = None

    def forget(self, lane: Lane) -> None:
        """Look at a lane no more."""
        self._lanes.pop(lane, None)

    def take(
        self, lanes: Mapping[LaneKey, Lane], room: Room, now: float
    ) -> Iterator[tuple[Lane, int, int]]:
        """Yield the lanes to be filled, with how many jobs and bytes to read.

        Args:
            lanes: Of the queue; others are forgotten.
            room: The memory that they share.
            now: Unix time.
        """
        n = max(1, len(lanes))
        size = max(min(LEAST, room.size_limit), room.size_limit // n)
        length = room.bytes_limit // n
        left, demanded = room.size_limit - room.size, self._demanded
        for lane in list(self._lanes):
            wanted = lane in demanded and not len(lane)
            most = size if lane.limiter is None or lane.allowance(now) else min(size, LEAST)
            half = len(lane) * 2 < most and lane.bytes * 2 < length and left > 0
            if lane.claiming or lanes.get(lane.key) is not lane:
                del self._lanes[lane]
            elif lane.outside and (wanted or half):
                del self._lanes[lane]
                many = 1 if wanted and room.crowded(len(lanes)) else most - len(lane)
                left -= many
                yield lane, many, max(1, length // 2)
            elif not half or not lane.outside:
                del self._lanes[lane]  # until something is taken from it
        demanded.clear()


#: Lanes that are asked of the store at a time.
_EARLY = 16


# hot loop: benchmarks/drain.py
def share(
    follow: Callable[[], Lane | None],
    pick: Callable[[Lane], Picker],
    taken: list[JobRecord],
    load: Load,
    now: float,
    *,
    fair: bool,
) -> list[Lane]:
    """Take jobs of lanes, of each what its limits allow; return those to be read from the store.

    Args:
        follow: Returns the next lane that may be taken from, the one whose turn it is first.
        pick: Makes the picker of a lane.
        taken: Where the jobs go.
        load: What the chunk may hold.
        now: Unix time.
        fair: The lane that was served least comes first, job by job; else ranks decide, and
            nothing is taken after a job that is in the store only.
    """
    heap: list[tuple[Turn, int, Picker]] = []  # of opened lanes, by whose turn it is
    quota: dict[Lane, int] = {}
    dry: list[Lane] = []
    size, left = 0, load.seconds
    lane = follow()
    turn = None if lane is None else lane.turn if fair else lane.first
    while len(taken) < load.jobs and (turn is not None or heap):
        if lane is not None and turn is not None and (not heap or turn < heap[0][0]):
            picker, quota[lane] = pick(lane), lane.allowance(now)
            lane = follow()
            turn = None if lane is None else lane.turn if fair else lane.first
        else:
            picker = heappop(heap)[2]
        mine = picker.lane
        if picker.dry:  # what comes next is in the store
            dry.append(mine)
            if fair and len(dry) < _EARLY:
                continue
            break
        rival = heap[0][0] if heap else None
        if turn is not None and (rival is None or turn < rival):
            rival = turn
        start, before = len(taken), picker.spent
        most = quota[mine]
        if fair and rival is not None:
            most = min(most, max(1, rival[0] - mine.served))
        most = min(load.jobs, start + most)
        part = load._replace(seconds=before + left, jobs=most)
        full = picker.take(taken, size, part, None if fair else rival) < 0
        got = len(taken) - start
        size += sum(len(job.body) for job in taken[start:])
        left -= picker.spent - before
        quota[mine] -= got
        mine.served += got
        if full and len(taken) < most:
            break  # no more seconds or bytes
        if quota[mine] > 0 and (following := picker.next) is not None:
            heappush(heap, ((mine.served, *following) if fair else following, mine.number, picker))
    return dry


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
        "_blocked",
        "_census",
        "_keyed",
        "_made",
        "_needs",
        "_room",
        "_views",
        "arriving",
        "aside",
        "counts",
        "given",
        "idle_since",
        "lanes",
        "limited",
        "limiter",
        "maker",
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
        #: Lanes made so far; those with a key; those that a limit blocks.
        self._made = self._keyed = 0
        self._blocked: set[Lane] = set()
        self._views = Views()
        self._room = Room(size_limit, bytes_limit)
        self._needs = Needs()
        #: A lane that is not here has no queued job, neither in memory nor in the store.
        self.lanes: dict[LaneKey, Lane] = {}
        #: Whether a lane may have limits or a key.
        self.limited = False
        #: Of the queue as a whole, None for no limits.
        self.limiter: Limiter | None = None
        #: Jobs that every worker of the queue refused: id -> job and since when.
        self.aside: dict[str, tuple[JobRecord, float]] = {}
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
        return self._room.size

    def allowance(self, now: float) -> int:
        """Return how many jobs of the whole queue may be taken now."""
        return ANY if self.limiter is None else self.limiter.allowance(now)

    def ready(self, now: float) -> bool:
        """Say whether there may be a job to dispatch now, or to be read for a worker that asks."""
        if self.limiter is not None and not self.limiter.allowance(now):
            return False
        return len(self.lanes) > len(self._blocked) or bool(self.arriving)

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
            limiter = self._census.limiters.of.get(key)
            lane = self.lanes[key] = Lane(key, self._made, limiter)
            self.limited |= limiter is not None or bool(key.key)
            if key.key:
                self._keyed += 1
                self._views.order(fair=True)
        return lane

    def limit(self, limiter: Limiter) -> None:
        """Let a new limiter count for the jobs that wait already."""
        lane = self.lanes.get(limiter.lane)
        if lane is not None:
            lane.limiter = limiter
            self.limited = True

    def unblock(self, lane: Lane) -> None:
        """Let workers take from a lane again that a limit had blocked."""
        self._blocked.discard(lane)
        if self.lanes.get(lane.key) is lane:
            self.version += 1
            self._views.show(lane)

    def _follow(self, view: View, now: float) -> Lane | None:
        """Take the first lane out of a view that no limit blocks; the blocked ones leave it."""
        while (lane := view.first()) is not None:
            view.pop()
            if lane.limiter is None or lane.limiter.allowance(now):
                return lane
            self._blocked.add(lane)
            lane.fresh = True
            self._census.limiters.block(lane, self, now)
        return None

    def _left(self, lane: Lane, size: int, length: int) -> None:
        """Count what left the window of a lane; forget the lane if that was all."""
        self._room.left(size, length)
        if lane.outside:
            self._needs.note(lane)
        elif not len(lane) and not lane.claiming and self.lanes.get(lane.key) is lane:
            self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        del self.lanes[lane.key]
        self.limited &= bool(self.lanes)
        self._needs.forget(lane)
        self._census.lanes -= 1
        self._blocked.discard(lane)
        if lane.limiter is not None:
            lane.limiter.waiting.pop(lane, None)
        if lane.key.key:
            self._keyed -= 1
            self._views.order(fair=bool(self._keyed))

    # Jobs that come

    def takes(self, job: JobRecord) -> bool:
        """Say whether a queued job belongs into memory."""
        lane = self.lanes.get(lane_of(job.headers))
        return lane is None or lane.takes(job)

    def join(self, job: JobRecord) -> list[JobRecord]:
        """Add a queued job that is on disk; return those that leave memory for it, or itself."""
        lane = self.lane(lane_of(job.headers))
        if not lane.takes(job):
            return [job]
        self.version += 1
        room = self._room
        if not len(lane) and room.crowded(len(self.lanes)):
            lane.leave(job.rank, job.seq)
            self._views.show(lane)
            return [job]
        room.size += 1
        room.bytes += len(job.body)
        if lane.join(job):
            self._views.show(lane)
        return self._displace(lane) if room.over else []

    def fill(self, lane: Lane, jobs: list[JobRecord]) -> list[JobRecord]:
        """Add jobs read for a lane, in order; return those that leave memory for them.

        The lane keeps one of them although the memory is used up.
        """
        length = sum([len(job.body) for job in jobs])
        self._room.size += len(jobs)
        self._room.bytes += length
        if jobs and lane.fill(jobs, length):
            self._views.show(lane)
        return self._displace(lane) if self._room.over else []

    def _displace(self, lane: Lane) -> list[JobRecord]:
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

    def claimed(self, lane: Lane, after: Place, jobs: list[JobRecord], *, more: bool) -> bool:
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
        self._views.show(lane)

    # Jobs that go

    # hot loop: benchmarks/drain.py
    def take(
        self, skill: Skill, judge: Judge, refuses: Refuses, load: Load, now: float = 0.0
    ) -> list[JobRecord]:
        """Remove and return the best ranked jobs that suit a worker.

        Nothing is taken that ranks after a job which is in the store only: first come, first
        served. Where lanes have keys, this holds inside of each lane.

        Args:
            skill: Of which lanes the worker may get jobs.
            judge: See `eventmq.broker.subqueues.Picker`, as ``refuses``.
            refuses: Asked for each job, or None.
            load: What the chunk may hold.
            now: Unix time.
        """
        view = self._views.of(skill, self.lanes.values())
        if self.limited:
            return self._share(view, lambda lane: Picker(lane, judge, refuses), load, now)
        taken: list[JobRecord] = []
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
        self, view: View, pick: Callable[[Lane], Picker], load: Load, now: float
    ) -> list[JobRecord]:
        """Take jobs where lanes have limits or keys."""
        taken: list[JobRecord] = []
        opened: list[tuple[Picker, int, int]] = []
        fair = bool(self._keyed)
        followed: list[Lane] = []

        def follow() -> Lane | None:
            lane = self._follow(view, now)
            if lane is not None:
                if not followed:  # nobody who may be taken from was served less
                    view.rise(lane.served)
                followed.append(lane)
            return lane

        def opening(lane: Lane) -> Picker:
            opened.append((pick(lane), len(lane), lane.bytes))
            return opened[-1][0]

        for lane in share(follow, opening, taken, load, now, fair=fair):
            self._needs.demand(lane)
        self._close(opened)
        for lane in followed:
            view.add(lane)
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

    def remove(self, job: JobRecord) -> bool:
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

    def drop(self, leave: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """Remove and return the jobs of the windows for which ``leave`` is true."""
        return [job for lane in list(self.lanes.values()) for job in self.drop_from(lane, leave)]

    def drop_from(self, lane: Lane, leave: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """Remove and return the jobs of one window for which ``leave`` is true."""
        left = lane.drop(leave)
        if left:
            self._left(lane, len(left), sum(len(job.body) for job in left))
        return left

    def want(self, lane: Lane) -> None:
        """Read jobs of a lane that nobody takes, because they are to end."""
        if lane.outside and not len(lane):
            self._needs.demand(lane)
