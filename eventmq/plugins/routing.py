"""Built-in routing strategies and queue orders: which worker gets which jobs next.

A routing strategy chooses among the workers of a queue:

- ``least-recently-used``, the default: the worker that has waited longest gets the next jobs. It
  spreads work evenly and needs no measurement. Each worker gets one chunk per round.
- ``round-robin``: the workers of a queue get chunks in turn, in the order in which they connected.
- ``least-loaded``: the worker with the lowest load gets the next jobs. It balances workers with
  different numbers of slots, and jobs of very different run times.
- ``sticky``: jobs with the same key go to the same worker, for example to use its caches.

A queue order chooses among the queues of a worker:

- ``weighted-fair``, the default: a queue of weight 40 gets four jobs for each job of a queue of
  weight 10.
- ``strict``: always the queue of the largest weight that has jobs.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.sdk import factory, hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.sdk import Factory, PluginContext, QueueOrder, RoutingStrategy, WorkerView

__all__ = [
    "LeastLoaded",
    "LeastRecentlyUsed",
    "RoundRobin",
    "Sticky",
    "Strict",
    "WeightedFair",
    "eventmq_queue_orders",
    "eventmq_routing_strategies",
]

#: Maximum number of sessions that are remembered: twice the peers that a broker serves by default.
#: The least recently used ones are dropped first, and then count as never used.
MAX_SESSIONS = 20_000

#: Maximum number of queues whose position is remembered; others start at the first worker.
MAX_QUEUES = 10_000

#: Points of a worker on the hash ring. The largest share is then about 30 % above the average.
POINTS = 64

#: Maximum number of cached rings, and of workers that are remembered as full.
MAX_RINGS = 10_000

#: Chunks that a worker may hold whatever the bound.
FREE_CHUNKS = 2

#: If a chunk has less than this part of the jobs of the last chunk from its queue, its jobs take
#: longer than before.
SHRUNK = 0.5


class LeastRecentlyUsed:
    """A `RoutingStrategy`; O(workers) for one chunk, a sort for more."""

    by_key = False

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._round = 0

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, the least recently used first."""
        used = self._used
        if len(workers) == 1:
            chosen = [workers[0].session] * min(n, workers[0].credit)
        elif n == 1:
            chosen = [min(workers, key=lambda worker: used.get(worker.session, 0)).session]
        else:
            chosen = _deal(sorted(workers, key=lambda worker: used.get(worker.session, 0)), n)
        for session in chosen:
            self._round += 1
            used.pop(session, None)
            used[session] = self._round
        while len(used) > MAX_SESSIONS:
            del used[next(iter(used))]
        return chosen


def _deal(workers: Sequence[WorkerView], n: int) -> list[str]:
    """Deal chunks to workers in order, round after round, while they have credit."""
    dealt: list[str] = []
    round_ = 0
    while len(dealt) < n:
        able = [worker.session for worker in workers if worker.credit > round_]
        if not able:
            break
        dealt += able[: n - len(dealt)]
        round_ += 1
    return dealt


class RoundRobin:
    """A `RoutingStrategy` with a position per queue; O(workers + n).

    The position is an index in the list of workers, not a session: after workers come, go or run
    out of credit, the turn goes on at the same index among the others.
    """

    by_key = False

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions in turn, from where the last call for the queue ended."""
        count = len(workers)
        index = self._positions.pop(queue, 0)
        credit = [worker.credit for worker in workers]
        target = min(n, sum(credit))
        chosen: list[str] = []
        while len(chosen) < target:
            at = index % count
            if credit[at]:
                credit[at] -= 1
                chosen.append(workers[at].session)
            index += 1
        self._positions[queue] = index
        if len(self._positions) > MAX_QUEUES:
            del self._positions[next(iter(self._positions))]
        return chosen


class LeastLoaded:
    """A `RoutingStrategy`; O(workers + n log workers).

    A worker's load is the share of its credit that is in use. The order of workers with equal loads
    rotates at every call, so that idle workers share few jobs evenly.
    """

    by_key = False

    def __init__(self) -> None:
        self._round = 0

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, the least loaded first; each chunk counts at once."""
        count, start = len(workers), self._round
        self._round += 1
        loads = [
            (
                worker.busy / (worker.busy + worker.credit),
                (index - start) % count,
                index,
                worker.busy,
            )
            for index, worker in enumerate(workers)
        ]
        heapify(loads)
        target = min(n, sum(worker.credit for worker in workers))
        chosen: list[str] = []
        while len(chosen) < target:
            _, rank, index, busy = loads[0]
            worker = workers[index]
            chosen.append(worker.session)
            # A full worker has the load 1.0 and comes after all others.
            load = (busy + 1) / (worker.busy + worker.credit)
            heapreplace(loads, (load, rank, index, busy + 1))
        return chosen


def _point(text: str) -> int:
    """Return the point of a text on a hash ring; the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class _HashRing:
    """Hash ring of a set of workers, for consistent hashing."""

    def __init__(self, sessions: tuple[str, ...]) -> None:
        self.sessions = sessions
        points = [
            (_point(f"{session}.{number}"), index)
            for index, session in enumerate(sessions)
            for number in range(POINTS)
        ]
        points.sort()
        self._points = [point for point, _ in points]
        self._indexes = [index for _, index in points]

    def walk(self, key: str) -> Iterator[int]:
        """Yield the indexes of all workers, in ring order from the point of a key."""
        start = bisect(self._points, _point(key))
        seen: set[int] = set()
        for index in (*self._indexes[start:], *self._indexes[:start]):
            if index not in seen:
                seen.add(index)
                yield index


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``sticky``.

    Attributes:
        header: Name of the header whose value is the key; with ``task``, the name of the task is.
        bound: A worker that is at least half full passes keys on to the next one while it holds
            more chunks than the average times this.
        timeout: Seconds for which a key waits for a worker without credit.
    """

    header: str = "routing-key"
    bound: float = option(2.0, ge=1)
    timeout: float = option(0.5, ge=0)

    def __post_init__(self) -> None:
        if not self.header:
            raise ValueError("header must name a header")


class Sticky:
    """A `KeyedRouting` by consistent hashing with bounded loads.

    The key is the value of a header, ``routing-key`` unless the option ``header`` names another
    one::

        report.apply_async((7,), headers={"routing-key": "tenant-7"})

    When a worker comes or goes, only the keys next to it on the ring move. Loads are bounded as in
    "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup, Zadimoghaddam, 2016): a worker that
    holds more than its share passes a key on to the next worker on the ring. So does a worker
    without credit for ``timeout`` seconds. Jobs without a key go to the least loaded worker.
    """

    by_key = True

    def __init__(self, options: Options | None = None) -> None:
        options = options or Options()
        self._header = options.header
        self._bound = options.bound
        self._timeout = options.timeout
        self._unkeyed = LeastLoaded()
        self._rings: dict[tuple[str, ...], _HashRing] = {}
        #: Session -> time since which it has no credit.
        self._full: dict[str, float] = {}
        self._workers: Sequence[WorkerView] = ()
        self._updated_at = 0.0
        self._ring = _HashRing(())
        self._max_busy = 0.0

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return the least loaded sessions, for jobs without a key."""
        return self._unkeyed.choose(queue, workers, n)

    def key(self, queue: str, headers: str) -> str:
        """Return the value of the header, "" if the job has none."""
        parsed = parse_headers(headers)
        if self._header == "task":
            return parsed.task
        return next((value for name, value in parsed.extra if name == self._header), "")

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return the first session on the ring, from the key on, that can take it; None to wait."""
        if workers is not self._workers or now != self._updated_at:
            self._update(workers, now)
        spare: str | None = None
        for index in self._ring.walk(key):
            worker = workers[index]
            half_full = worker.busy >= max(FREE_CHUNKS, worker.credit)
            overloaded = half_full and worker.busy + 1 > self._max_busy
            if worker.credit > 0:
                if not overloaded:
                    return worker.session
                spare = spare or worker.session
            elif not overloaded and now - self._full[worker.session] < self._timeout:
                return None
        return spare

    def _update(self, workers: Sequence[WorkerView], now: float) -> None:
        """Compute the values that are the same for all keys, once for each list of workers."""
        self._workers, self._updated_at = workers, now
        self._ring = self._ring_of(tuple([worker.session for worker in workers]))
        self._max_busy = self._bound * (sum([worker.busy for worker in workers]) + 1) / len(workers)
        full = self._full
        for worker in workers:
            if worker.credit > 0:
                full.pop(worker.session, None)
            elif full.get(worker.session, now + 1.0) > now:  # not recorded, or the clock went back
                full[worker.session] = now
        while len(full) > max(MAX_RINGS, len(workers)):
            del full[next(iter(full))]

    def _ring_of(self, sessions: tuple[str, ...]) -> _HashRing:
        ring = self._rings.get(sessions)
        if ring is None:
            if len(self._rings) * max(len(sessions), 1) > MAX_RINGS:
                self._rings.clear()
            ring = self._rings[sessions] = _HashRing(sessions)
        return ring


def make_sticky(context: PluginContext) -> RoutingStrategy:
    """Return the strategy ``sticky``; raises `PluginError` for a wrong option."""
    return Sticky(read_options(context, Options))


@hookimpl
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide the strategies."""
    return {
        "least-recently-used": factory(LeastRecentlyUsed),
        "round-robin": factory(RoundRobin),
        "least-loaded": factory(LeastLoaded),
        "sticky": make_sticky,
    }


class WeightedFair:
    """A `QueueOrder` by start-time fair queueing; one object per session.

    Each queue has a virtual time, which grows by jobs / weight. The queue with the smallest virtual
    time is served. A queue that had no backlog continues at the virtual time of the queue that was
    served last, so it neither loses its share nor accumulates one.
    """

    def __init__(self) -> None:
        self._virtual_times: dict[str, float] = {}
        self._virtual_now = 0.0
        #: Queue -> virtual time of its last chunk.
        self._steps: dict[str, float] = {}

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the queue with the smallest virtual time; of equals the one of largest weight."""
        if len(queues) == 1:
            return queues[0][1]
        now, times = self._virtual_now, self._virtual_times
        best = min(queues, key=lambda queue: (max(times.get(queue[1], now), now), -queue[0]))
        return best[1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Advance a queue by ``jobs`` / ``weight``; a weight below 1 counts as 1.

        Jobs that were handed back, a negative number, move it back, even before the other queues:
        the queue had a backlog all the time.
        """
        times, now, step = self._virtual_times, self._virtual_now, jobs / max(weight, 1)
        if jobs > 0:
            self._virtual_now = start = max(times.get(queue, now), now)
            self._catch_up(start, step / self._steps.get(queue, step))
            times[queue] = start + step
            self._steps[queue] = step
        else:
            times[queue] = max(times.get(queue, now) + step, now)

    def _catch_up(self, now: float, part: float) -> None:
        """Scale down the lead of the other queues when the chunks of a queue have shrunk.

        A queue's lead comes from a large chunk of short jobs. If jobs take longer now, it would
        otherwise wait for as many jobs of the other queues, which take much longer. Its lead stays
        the same in number of chunks.
        """
        if part < SHRUNK:
            times = self._virtual_times
            for queue, time in times.items():
                if time > now:
                    times[queue] = now + (time - now) * part


class Strict:
    """A `QueueOrder` without memory.

    **Warning**: a queue gets nothing while a queue of larger weight has jobs.
    """

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the queue of the largest weight; among equals the first by name."""
        return min((-weight, name) for weight, name in queues)[1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Do nothing, since this order has no state."""


@hookimpl
def eventmq_queue_orders() -> Mapping[str, Factory[QueueOrder]]:
    """Provide the orders."""
    return {"weighted-fair": factory(WeightedFair), "strict": factory(Strict)}
