"""The rows about the life of a job: long jobs among short ones, and tasks that only wait."""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from typing import TYPE_CHECKING, Any

from benchmarks.system import running
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Figures
    from benchmarks.system import System

__all__ = ["GOALS", "ROWS"]

_LONG_SHARE = 0.01
_LONG_SECONDS = 1.0

#: Jobs per second of `mixed`: on average one of the four slots is busy with long jobs, sometimes
#: all four are.
_MIXED_RATE = 100
_MIXED_SLOTS = 4


def _client(system: System) -> tuple[EventMQ, Any, Any, Any]:
    """A client app with the tasks of `benchmarks.bench_app`."""
    app = EventMQ("bench", broker=system.address)

    @app.task(name="benchmarks.bench_app.started")
    def started() -> float:
        """Return the start time of the job."""
        return 0.0

    @app.task(name="benchmarks.bench_app.hold")
    def hold(seconds: float) -> float:
        """Occupy a slot."""
        return seconds

    @app.task(name="benchmarks.bench_app.rest")
    async def rest(seconds: float) -> None:
        """Wait without occupying anything."""

    return app, started, hold, rest


def _percentiles(values: list[float], prefix: str) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    values = sorted(values)
    return {
        f"{prefix}_p50_ms": values[len(values) // 2] * 1000,
        f"{prefix}_p99_ms": values[len(values) * 99 // 100] * 1000,
    }


def _ideal(sent: list[tuple[float, bool]], slots: int) -> list[float]:
    """Return the waits of short jobs if each job takes the first free slot at no cost.

    Args:
        sent: For each job in order, the time of its submission and whether it is long.
        slots: Number of slots.
    """
    free = [0.0] * slots
    waits = []
    for at, long in sent:
        start = max(at, heapq.heappop(free))
        heapq.heappush(free, start + (_LONG_SECONDS if long else 0.0))
        if not long:
            waits.append(start - at)
    return waits


def mixed(figures: Figures) -> None:
    """1 % jobs of one second among no-ops, 4 children, 100 jobs/s: start delay of the short.

    Sometimes all four children have a long job, which no scheduler can avoid: ``ideal`` is the
    delay of the same arrivals with a perfect scheduler, ``excess`` the delay of each short job
    beyond it.
    """
    with running(workers=_MIXED_SLOTS) as system:
        app, started, hold, _ = _client(system)
        app.wait([started.delay() for _ in range(20)], timeout=30)
        pace = random.Random(1)
        jobs, sent = [], []
        begin = time.perf_counter()
        for i in range(4000):
            time.sleep(max(0.0, begin + i / _MIXED_RATE - time.perf_counter()))
            long = pace.random() < _LONG_SHARE
            sent.append((time.time(), long))
            if long:
                hold.delay(_LONG_SECONDS)
            else:
                jobs.append((sent[-1][0], started.delay()))
        waited = [job.get(timeout=60) - at for at, job in jobs]
        ideal = _ideal(sent, _MIXED_SLOTS)
        excess = [wait - best for wait, best in zip(waited, ideal, strict=True)]
        start, best = _percentiles(waited, "start"), _percentiles(ideal, "ideal")
        ratio = start["start_p99_ms"] / best["ideal_p99_ms"]
        figures.add(**start, **best, **_percentiles(excess, "excess"), p99_to_ideal=ratio)
        app.close()


def _bare(count: int, slots: int, seconds: float) -> float:
    """Return the time of the same number of awaits in a bare event loop."""

    async def one(left: Iterator[int]) -> None:
        for _ in left:
            await asyncio.sleep(seconds)

    async def everything() -> None:
        remaining = iter(range(count))
        await asyncio.gather(*(one(remaining) for _ in range(slots)))

    begin = time.perf_counter()
    asyncio.run(everything())
    return time.perf_counter() - begin


def async_io(figures: Figures) -> None:
    """50,000 awaits of 100 ms, concurrency 1,000 in one process, against the ideal of 5 s.

    It is measured from "ready" until every outcome is stored. ``bare`` is the figure of the same
    awaits without jobs, in an event loop of their own, measured right afterwards.
    """
    count, slots, seconds = 50_000, 1000, 0.1
    ideal = count / slots * seconds
    with running() as system:
        app, _, _, rest = _client(system)
        rest.map([(seconds,)] * count)
        worker = system.start_worker(slots, "--pool", "asyncio")
        spent = system.cpu(worker)
        begin = time.perf_counter()
        while any(row["waiting"] + row["running"] for row in app.ask("queues")):
            time.sleep(0.005)
        took = time.perf_counter() - begin
        spent = system.cpu(worker) - spent
        app.close()
    bare = ideal / _bare(count, slots, seconds)
    figures.add(of_ideal=ideal / took, bare=bare, worker_us=spent / count * 1e6)


#: Name -> function that runs the row once.
ROWS = {row.__name__: row for row in (mixed, async_io)}

#: Name -> figure -> its goal on two cores.
GOALS: dict[str, dict[str, str]] = {
    "async_io": {"of_ideal": ">= 0.95"},
}
