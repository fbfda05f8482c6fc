"""The rows about the life of a job: delays, long jobs among short ones, tasks that only wait."""

from __future__ import annotations

import asyncio
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

#: Jobs per second of `mixed`: few enough that four long ones at once, for which no scheduling
#: helps, are rarer than one in a hundred; what is left is waiting behind a long job.
_MIXED_RATE = 60


def _client(system: System) -> tuple[EventMQ, Any, Any, Any]:
    """A client app with the tasks of `benchmarks.bench_app`."""
    app = EventMQ("bench", broker=system.address)

    @app.task(name="benchmarks.bench_app.started")
    def started() -> float:
        """Return when it was started."""
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


def delays(figures: Figures) -> None:
    """A million delayed jobs: the broker's memory, and how late 2,000 others then start."""
    with running(workers=2) as system:
        app, started, _, _ = _client(system)
        empty = system.rss()
        later = started.options(countdown=86_400.0)
        for _ in range(20):
            later.map([()] * 50_000)
        grown = system.rss() - empty
        pace = random.Random(1)
        jobs = []
        for _ in range(2000):
            wait = 1.0 + pace.random() * 9.0
            due = time.time() + wait
            jobs.append((due, started.options(countdown=wait).delay()))
        late = [job.get(timeout=60) - due for due, job in jobs]
        figures.add(grown_mib=grown / 2**20, **_percentiles(late, "late"))
        app.close()


def mixed(figures: Figures) -> None:
    """1 % jobs of one second among no-ops, 4 children, 60 jobs/s: start delay of the short."""
    with running(workers=4) as system:
        app, started, hold, _ = _client(system)
        app.wait([started.delay() for _ in range(20)], timeout=30)
        pace = random.Random(1)
        jobs = []
        begin = time.perf_counter()
        for i in range(2400):
            time.sleep(max(0.0, begin + i / _MIXED_RATE - time.perf_counter()))
            if pace.random() < _LONG_SHARE:
                hold.delay(_LONG_SECONDS)
            else:
                jobs.append((time.time(), started.delay()))
        waited = [job.get(timeout=60) - sent for sent, job in jobs]
        figures.add(**_percentiles(waited, "start"))
        app.close()


def _bare(count: int, slots: int, seconds: float) -> float:
    """Return how long as many awaits take in a bare event loop, so many at once."""

    async def one(left: Iterator[int]) -> None:
        for _ in left:
            await asyncio.sleep(seconds)

    async def everything() -> None:
        left = iter(range(count))
        await asyncio.gather(*(one(left) for _ in range(slots)))

    begin = time.perf_counter()
    asyncio.run(everything())
    return time.perf_counter() - begin


def async_io(figures: Figures) -> None:
    """50,000 awaits of 100 ms, concurrency 1,000 in one process, against the ideal of 5 s.

    From "ready" until every outcome is stored. ``bare`` is what the same awaits without jobs reach
    in an event loop of their own, a moment later.
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


#: Name -> one run of it.
ROWS = {row.__name__: row for row in (delays, mixed, async_io)}

#: Name -> figure -> what it must reach on two cores.
GOALS: dict[str, dict[str, str]] = {
    "delays": {"late_p99_ms": "< 50", "grown_mib": "< 64"},
    "async_io": {"of_ideal": ">= 0.95"},
}
