"""Built-in routing strategies and queue orders: which worker gets which jobs next.

A routing strategy chooses among the workers of a queue:

- ``least-recently-used``, the default: the worker that waited longest for jobs gets the next ones.
  It spreads work evenly and needs no measurement. Workers get one chunk each, round after round.
- ``round-robin``: the workers of a queue get chunks in turn, in the order in which they came.
- ``least-loaded``: the worker with the lowest load gets the next jobs. It balances workers with
  different numbers of slots, and jobs of very different run times.
- ``sticky``: jobs with the same key go to the same worker, so that they meet warm caches.

A queue order chooses among the queues of a worker:

- ``weighted-fair``, the default: a queue of weight 40 gets four jobs for one of weight 10.
- ``strict``: the heaviest queue that has jobs, always.
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

#: Sessions that are remembered; twice the peers that a broker serves by default. The oldest are
#: forgotten first, and a forgotten session counts as unused, which it nearly is.
MAX_SESSIONS = 20_000

#: Queues whose position is remembered; the least recently used start anew at the first worker.
MAX_QUEUES = 10_000

#: Points of a worker on the ring: the largest share is then within about 30 % of the average.
POINTS = 64

#: Rings and full workers that are remembered; the oldest are computed anew.
MAX_RINGS = 10_000

#: Chunks that a worker may always hold, whatever the bound.
FREE_CHUNKS = 2

#: A chunk with less than this part of the jobs of the last one from its queue is so much smaller
#: because each job takes so much longer.
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
    """A `RoutingStrategy` with a turn per queue; O(workers + n).

    It counts places, not sessions: where workers come and go, or have no credit, the turn goes on
    from the same place among those that are left.
    """

    by_key = False

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, going round from where this queue's last turn ended."""
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

    A worker's load is the share of its credit that is in use. Among equals the first one changes
    at every call, so that idle workers share few jobs.
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
            # At 1.0 it is full; those that are not come before it.
            load = (busy + 1) / (worker.busy + worker.credit)
            heapreplace(loads, (load, rank, index, busy + 1))
        return chosen


def _point(text: str) -> int:
    """Return the point of a text on the ring; the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class _Ring:
    """The hash ring of a set of workers."""

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
        """Yield the indexes of all workers, in ring order from a key."""
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
        header: Header whose value is the key; ``task`` keeps the jobs of a task together.
        bound: A half full worker passes keys on while it holds more than the average times this.
        timeout: Seconds that a key waits for a worker without credit.
    """

    header: str = "routing-key"
    bound: float = option(2.0, ge=1)
    timeout: float = option(0.5, ge=0)

    def __post_init__(self) -> None:
        if not self.header:
            raise ValueError("header must name a header")


class Sticky:
    """A `KeyedRouting`.

    The key is the value of a header, ``routing-key`` unless the option ``header`` names another
    one::

        report.apply_async((7,), headers={"routing-key": "tenant-7"})

    Keys are spread by consistent hashing: a worker that comes or goes moves only the keys next to
    it. Loads are bounded as in "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup,
    Zadimoghaddam, 2016): a worker that holds more than its share passes a key on to the next on the
    ring, and so does one that had no credit for ``timeout`` seconds. Jobs without a key go to the
    least loaded worker.
    """

    by_key = True

    def __init__(self, options: Options | None = None) -> None:
        options = options or Options()
        self._header = options.header
        self._bound = options.bound
        self._timeout = options.timeout
        self._others = LeastLoaded()
        self._rings: dict[tuple[str, ...], _Ring] = {}
        #: Session -> since when it has no credit.
        self._full: dict[str, float] = {}
        self._workers: Sequence[WorkerView] = ()
        self._updated_at = 0.0
        self._ring = _Ring(())
        self._max_busy = 0.0

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return the least loaded sessions: for jobs without a key."""
        return self._others.choose(queue, workers, n)

    def key(self, queue: str, headers: str) -> str:
        """Return the value of the header, "" if the job has none."""
        parsed = parse_headers(headers)
        if self._header == "task":
            return parsed.task
        return next((value for name, value in parsed.extra if name == self._header), "")

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return the first worker on the ring from the key on that can take it, None to wait."""
        if workers is not self._workers or now != self._updated_at:
            self._update(workers, now)
        spare: str | None = None
        for index in self._ring.walk(key):
            worker = workers[index]
            half = worker.busy >= max(FREE_CHUNKS, worker.credit)
            over = half and worker.busy + 1 > self._max_busy
            if worker.credit > 0:
                if not over:
                    return worker.session
                spare = spare or worker.session
            elif not over and now - self._full[worker.session] < self._timeout:
                return None
        return spare

    def _update(self, workers: Sequence[WorkerView], now: float) -> None:
        """Compute what is the same for all keys: once for each list of workers."""
        self._workers, self._updated_at = workers, now
        self._ring = self._ring_of(tuple([worker.session for worker in workers]))
        self._max_busy = self._bound * (sum([worker.busy for worker in workers]) + 1) / len(workers)
        full = self._full
        for worker in workers:
            if worker.credit > 0:
                full.pop(worker.session, None)
            elif full.get(worker.session, now + 1.0) > now:  # not known, or the clock went back
                full[worker.session] = now
        while len(full) > max(MAX_RINGS, len(workers)):
            del full[next(iter(full))]

    def _ring_of(self, sessions: tuple[str, ...]) -> _Ring:
        ring = self._rings.get(sessions)
        if ring is None:
            if len(self._rings) * max(len(sessions), 1) > MAX_RINGS:
                self._rings.clear()
            ring = self._rings[sessions] = _Ring(sessions)
        return ring


def make_sticky(context: PluginContext) -> RoutingStrategy:
    """Return a strategy; raises `PluginError` for a wrong option."""
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
    """A `QueueOrder`; keeps one virtual time per queue of its session.

    Start-time fair queueing by jobs: each queue has a virtual time that grows by jobs / weight, and
    the queue with the least one is served. A queue that had no backlog for a while starts at the
    virtual time of the one that was served last, so it neither loses its share nor saves one up.
    """

    def __init__(self) -> None:
        self._virtual_times: dict[str, float] = {}
        self._virtual_now = 0.0
        #: Queue -> virtual time of its last chunk.
        self._steps: dict[str, float] = {}

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the queue with the least virtual time; of equals the heaviest, then the first."""
        if len(queues) == 1:
            return queues[0][1]
        now, times = self._virtual_now, self._virtual_times
        best = min(queues, key=lambda queue: (max(times.get(queue[1], now), now), -queue[0]))
        return best[1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Move the queue on by ``jobs`` / ``weight``; a weight below 1 counts as 1.

        What was handed back moves it back, below the other queues too: it had a backlog all along.
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
        """Let the queues that are ahead be so by as many chunks as before, which shrank.

        What a queue got in a large chunk, of jobs as short as they were then, would else keep it
        waiting for as many jobs of the others, however long they take now.
        """
        if part < SHRUNK:
            times = self._virtual_times
            for queue, time in times.items():
                if time > now:
                    times[queue] = now + (time - now) * part


class Strict:
    """A `QueueOrder` without memory.

    **Warning**: a queue gets nothing for as long as a heavier one has jobs.
    """

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the queue of the largest weight; among equals the first by name."""
        return min((-weight, name) for weight, name in queues)[1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Do nothing: this order has no state."""


@hookimpl
def eventmq_queue_orders() -> Mapping[str, Factory[QueueOrder]]:
    """Provide the orders."""
    return {"weighted-fair": factory(WeightedFair), "strict": factory(Strict)}
