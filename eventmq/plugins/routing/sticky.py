"""Sticky: jobs with the same key go to the same worker, so that they meet warm caches.

The key is the value of a header, ``routing-key`` unless the option ``header`` names another one::

    report.apply_async((7,), headers={"routing-key": "tenant-7"})

Keys are spread by consistent hashing: a worker that comes or goes moves only the keys next to it.
Loads are bounded as in "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup, Zadimoghaddam,
2016): a worker that holds more than its share passes a key on to the next on the ring, and so does
one that had no credit for ``timeout`` seconds. Jobs without a key go to the least loaded worker.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.plugins.routing.least_loaded import LeastLoaded
from eventmq.sdk import hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.sdk import Factory, PluginContext, RoutingStrategy, WorkerView

__all__ = ["Sticky", "eventmq_routing_strategies"]

#: Points of a worker on the ring: the largest share is then within about 30 % of the average.
POINTS = 64

#: Rings and full workers that are remembered; the oldest are computed anew.
MAX_REMEMBERED = 10_000

#: Chunks that a worker may always hold, whatever the bound.
FREE_CHUNKS = 2


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
    """Options of the strategy.

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
    """A `KeyedRouting`."""

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
        while len(full) > max(MAX_REMEMBERED, len(workers)):
            del full[next(iter(full))]

    def _ring_of(self, sessions: tuple[str, ...]) -> _Ring:
        ring = self._rings.get(sessions)
        if ring is None:
            if len(self._rings) * max(len(sessions), 1) > MAX_REMEMBERED:
                self._rings.clear()
            ring = self._rings[sessions] = _Ring(sessions)
        return ring


def make_strategy(context: PluginContext) -> RoutingStrategy:
    """Return a strategy; raises `PluginError` for a wrong option."""
    return Sticky(read_options(context, Options))


@hookimpl
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide ``sticky``."""
    return {"sticky": make_strategy}
