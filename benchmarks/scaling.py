"""The rows that scale: the same at several sizes, for curves. ``--sizes`` says others.

A figure is called ``children=4 per_second``: what grows, how much of it, and what was measured.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.crowd import Crowd
from benchmarks.schedules import measure
from benchmarks.system import System, running
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Jobs that are drained, and submitted one by one.
_JOBS, _SINGLES = 50_000, 500

#: Jobs of a call of `map`.
_PART = 50_000

#: Seconds that a crowd of clients submits.
_SECONDS = 3.0

#: Workers that start at a time.
_STARTING = 4

_CHILDREN = (1, 2, 4, 8)
_WORKERS = (1, 10, 50, 200)
_CLIENTS = (1, 10, 100, 500, 2000)
_BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
_SCHEDULES = (100, 1_000, 10_000, 100_000)


def _client(system: System) -> tuple[EventMQ, Any]:
    app = EventMQ("bench", broker=system.address)

    @app.task(name="benchmarks.bench_app.nothing")
    def nothing(text: str = "") -> None:
        """Do nothing."""

    return app, nothing


def _submit(task: Any, n: int, *arguments: str) -> float:
    """Submit so many jobs; return seconds."""
    begin = time.perf_counter()
    for start in range(0, n, _PART):
        task.map([arguments] * min(_PART, n - start))
    return time.perf_counter() - begin


def _drained(app: EventMQ) -> float:
    """Wait until the queue ``default`` is empty; return when that was seen."""
    while True:
        rows = [row for row in app.ask("queues") if row["name"] == "default"]
        if not any(row["waiting"] + row["running"] for row in rows):
            return time.perf_counter()
        time.sleep(0.01)


def scale_children(figures: Figures) -> None:
    """Draining no-op jobs with 1 to 8 children of one worker."""
    for count in figures.sizes or _CHILDREN:
        with running() as system:
            app, nothing = _client(system)
            _submit(nothing, _JOBS)
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
            _submit(nothing, _JOBS)
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


def scale_backlog(figures: Figures) -> None:
    """What a job costs with 1,000 to a million others of 300 bytes waiting; 10000000 as --sizes."""
    with running() as system:
        app, nothing = _client(system)
        waiting = 0
        for count in sorted(figures.sizes or _BACKLOGS):
            _submit(nothing.options(queue="later"), count - waiting, "x" * 230)
            waiting = count
            figures.add(**{f"backlog={count} {k}": v for k, v in _costs(system, app, nothing)})
        app.close()


def _costs(system: System, app: EventMQ, nothing: Any) -> list[tuple[str, float]]:
    """Return what jobs cost now, in microseconds, and the broker's memory."""
    begin = time.perf_counter()
    for _ in range(_SINGLES):
        nothing.delay()
    single = (time.perf_counter() - begin) / _SINGLES
    submit = _submit(nothing, _JOBS) / _JOBS
    system.start_worker(2)
    begin = time.perf_counter()
    drain = (_drained(app) - begin) / (_JOBS + _SINGLES)
    system.stop_workers()
    return [
        ("delay_us", single * 1e6),
        ("map_us_per_job", submit * 1e6),
        ("drain_us_per_job", drain * 1e6),
        ("rss_mib", system.rss() / 2**20),
    ]


def scale_schedules(figures: Figures) -> None:
    """100 to 100,000 schedules, a tenth of them due within one second: lateness, start, memory."""
    for count in figures.sizes or _SCHEDULES:
        found = measure(count, count // 10, lead=5.0 + count / 10_000)
        figures.add(**{f"schedules={count} {key}": value for key, value in found.items()})


#: Name -> one run of it.
ROWS: dict[str, Callable[[Figures], None]] = {
    row.__name__: row
    for row in (scale_children, scale_workers, scale_clients, scale_backlog, scale_schedules)
}

#: They are for curves.
GOALS: dict[str, dict[str, str]] = {}
