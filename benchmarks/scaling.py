"""The rows that scale, measured at several sizes for curves. ``--sizes`` sets other sizes.

The name of a figure, such as ``children=4 per_second``, has the axis, the size and the measure.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.crowd import Crowd
from benchmarks.system import System, running
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Number of drained jobs.
_JOBS = 50_000

#: Seconds during which a crowd of clients submits.
_SECONDS = 3.0

#: Workers that start at a time.
_STARTING = 4

_CHILDREN = (1, 2, 4, 8)
_WORKERS = (1, 10, 50, 200)
_CLIENTS = (1, 10, 100, 500, 2000)


def _client(system: System) -> tuple[EventMQ, Any]:
    app = EventMQ("bench", broker=system.address)

    @app.task(name="benchmarks.bench_app.nothing")
    def nothing() -> None:
        """Do nothing."""

    return app, nothing


def _drained(app: EventMQ) -> float:
    """Wait until the queue is empty; return the time at which that was noticed."""
    while True:
        if not any(row["waiting"] + row["running"] for row in app.ask("queues")):
            return time.perf_counter()
        time.sleep(0.01)


def scale_children(figures: Figures) -> None:
    """Draining no-op jobs with 1 to 8 children of one worker."""
    for count in figures.sizes or _CHILDREN:
        with running() as system:
            app, nothing = _client(system)
            nothing.map([()] * _JOBS)
            system.start_worker(count)
            begin = time.perf_counter()
            figures.add(**{f"children={count} per_second": _JOBS / (_drained(app) - begin)})
            app.close()


def scale_workers(figures: Figures) -> None:
    """Draining no-op jobs with 1 to 200 workers, each a process with one thread for jobs."""
    with running() as system, ThreadPoolExecutor(_STARTING) as starting:
        app, nothing = _client(system)
        for count in sorted(figures.sizes or _WORKERS):
            new = count - len(system.workers)
            list(starting.map(lambda _: system.start_worker(1, "--pool", "threads"), range(new)))
            app.ask("pause", {"queue": "default"})
            nothing.map([()] * _JOBS)
            before, begin = system.cpu(), time.perf_counter()
            app.ask("resume", {"queue": "default"})
            rate = _JOBS / (_drained(app) - begin)
            cpu = (system.cpu() - before) / _JOBS * 1e6
            at = f"workers={count}"
            figures.add(**{f"{at} per_second": rate, f"{at} broker_cpu_us_per_job": cpu})
        app.close()


def scale_clients(figures: Figures) -> None:
    """Jobs of 1 to 2,000 clients, each waiting for the receipt of one before it sends the next."""
    for count in figures.sizes or _CLIENTS:
        with running() as system, Crowd(system.address, count) as crowd:
            crowd.submit(_SECONDS / 10)
            rate, waits = crowd.submit(_SECONDS)
            p99 = sorted(waits)[len(waits) * 99 // 100] * 1000
            at = f"clients={count}"
            figures.add(**{f"{at} per_second": rate, f"{at} receipt_p99_ms": p99})


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {
    row.__name__: row for row in (scale_children, scale_workers, scale_clients)
}

#: None: these rows are for curves.
GOALS: dict[str, dict[str, str]] = {}
