"""The rows of the suite: one function each, one call per run."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import bare
from benchmarks.floor import inserts_per_second
from benchmarks.graphs import chord_members
from benchmarks.schedules import schedules
from benchmarks.stream import stream
from benchmarks.system import System, running
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

_BULK = 100_000

#: Number of jobs one by one, as a part of a row.
_SINGLES = 1000

#: Jobs that wait in the two parts of `backlog`.
_BACKLOGS = (1_000, 1_000_000)


def _client(system: System) -> tuple[EventMQ, Any]:
    """A client app of this system, and its no-op task."""
    app = EventMQ("bench", broker=system.address)

    @app.task(name="benchmarks.bench_app.nothing")
    def nothing() -> None:
        """Do nothing."""

    return app, nothing


def _waiting(app: EventMQ) -> int:
    rows = app.ask("queues")
    return sum(row["waiting"] + row["running"] for row in rows)


def _drained(app: EventMQ, deadline: float = 600.0) -> float:
    """Wait until the queue is empty; return the time at which that was noticed."""
    end = time.monotonic() + deadline
    while _waiting(app):
        if time.monotonic() > end:
            raise TimeoutError("the queue is not drained")
        time.sleep(0.02)
    return time.perf_counter()


def _submit(task: Any, n: int) -> float:
    """Submit ``n`` jobs by ``map``; return jobs per second up to the last receipt."""
    arguments: list[tuple[()]] = [()] * n
    begin = time.perf_counter()
    task.map(arguments)
    return n / (time.perf_counter() - begin)


def enqueue_one(figures: Figures) -> None:
    """``.delay()`` in a loop, one thread, receipt after fsync."""
    floor = bare.receipts_per_second()
    with running() as system:
        app, nothing = _client(system)
        nothing.delay()
        begin = time.perf_counter()
        for _ in range(5000):
            nothing.delay()
        rate = 5000 / (time.perf_counter() - begin)
        figures.add(per_second=rate, bare_per_second=floor, ratio_to_bare=rate / floor)
        app.close()


def enqueue_bulk(figures: Figures) -> None:
    """100,000 jobs through ``map``, receipts after fsync."""
    floor = inserts_per_second(_BULK)
    with running() as system:
        app, nothing = _client(system)
        rate = _submit(nothing, _BULK)
        figures.add(per_second=rate, floor_per_second=floor, ratio_to_floor=rate / floor)
        app.close()


def drain(figures: Figures) -> None:
    """100,000 waiting no-op jobs, two prefork children, until all outcomes are stored."""
    floor = inserts_per_second(_BULK)
    with running() as system:
        app, nothing = _client(system)
        _submit(nothing, _BULK)
        before = system.cpu()
        system.start_worker(2)
        begin = time.perf_counter()
        rate = _BULK / (_drained(app) - begin)
        cpu = (system.cpu() - before) / _BULK * 1e6
        figures.add(
            per_second=rate, floor_per_second=floor, ratio_to_floor=rate / floor,
            broker_cpu_us_per_job=cpu,
        )  # fmt: skip
        app.close()


def flow(figures: Figures) -> None:
    """Producer and two children together for ten seconds."""
    with running(workers=2) as system:
        app, nothing = _client(system)
        begin = time.perf_counter()
        sent = 0
        while time.perf_counter() - begin < 10:
            _submit(nothing, 5000)
            sent += 5000
            while _waiting(app) > 50_000:
                time.sleep(0.01)
        figures.add(per_second=sent / (_drained(app) - begin))
        app.close()


def call(figures: Figures) -> None:
    """``Task.call`` one at a time: submit and wait for the result."""
    _wait_one_by_one(figures, bare.call_seconds(), lambda task: task.call(timeout=10))


def round_trip(figures: Figures) -> None:
    """``delay().get()`` one at a time."""
    floor = bare.round_trip_seconds()
    _wait_one_by_one(figures, floor, lambda task: task.delay().get(timeout=10))


def _wait_one_by_one(figures: Figures, floor: float, wait: Callable[[Any], object]) -> None:
    """Add the times from a job to its result.

    Args:
        figures: Figures of the row.
        floor: Seconds that bare sockets and syncs take.
        wait: Submits a job of a task, and waits for its result.
    """
    with running(workers=2) as system:
        app, nothing = _client(system)
        for _ in range(50):
            wait(nothing)
        times = []
        for _ in range(2000):
            begin = time.perf_counter()
            wait(nothing)
            times.append(time.perf_counter() - begin)
        times.sort()
        median = times[len(times) // 2]
        figures.add(
            p50_ms=median * 1000, p99_ms=times[len(times) * 99 // 100] * 1000,
            bare_p50_ms=floor * 1000, ratio_to_bare=median / floor,
        )  # fmt: skip
        app.close()


def backlog(figures: Figures) -> None:
    """A million waiting jobs of 300 bytes, against a thousand: submit, drain, round trip."""
    few, many = figures.sizes or _BACKLOGS
    with running() as system:
        app, nothing = _client(system)

        @app.task(name="benchmarks.bench_app.later", queue="later")
        def later(text: str) -> None:
            """Wait in a queue without workers."""

        later.map([("x" * 230,)] * few)
        before = _speeds(system, app, nothing)
        for start in range(few, many, 50_000):
            later.map([("x" * 230,)] * min(50_000, many - start))
        rss = system.rss()
        after = _speeds(system, app, nothing)
        figures.add(rss_mib=rss / 2**20, rss_after_mib=system.rss() / 2**20)
        figures.add(**{f"{name}_ratio": after[name] / before[name] for name in before}, **after)
        app.close()


def _speeds(system: System, app: EventMQ, task: Any) -> dict[str, float]:
    """Return jobs per second: one by one, by ``map``, drained, and round trips."""
    begin = time.perf_counter()
    for _ in range(_SINGLES):
        task.delay()
    one = _SINGLES / (time.perf_counter() - begin)
    submit = _submit(task, _BULK)
    others = _waiting(app) - _BULK - _SINGLES
    system.start_worker(2)
    begin = time.perf_counter()
    while _waiting(app) > others:
        time.sleep(0.02)
    drained = (_BULK + _SINGLES) / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(_SINGLES):
        task.delay().get(timeout=10)
    trips = _SINGLES / (time.perf_counter() - begin)
    system.stop_workers()
    return {"one": one, "submit": submit, "drain": drained, "round_trips": trips}


def start(figures: Figures) -> None:
    """``import eventmq``, and ``eventmq worker`` until it is ready."""
    bare = _seconds("pass")
    figures.add(import_ms=(_seconds("import eventmq") - bare) * 1000)
    with running() as system:
        begin = time.perf_counter()
        system.start_worker(2)
        figures.add(worker_ready_s=time.perf_counter() - begin)


def _seconds(code: str) -> float:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - begin)
    return min(times)


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {
    row.__name__: row
    for row in (
        enqueue_one,
        enqueue_bulk,
        drain,
        flow,
        call,
        round_trip,
        backlog,
        start,
        schedules,
        chord_members,
        stream,
    )
}

#: Name -> figure -> its goal on two cores.
GOALS: dict[str, dict[str, str]] = {
    "enqueue_one": {"per_second": ">= 4,000"},
    "enqueue_bulk": {"ratio_to_floor": ">= 0.5"},
    "drain": {"ratio_to_floor": ">= 0.35"},
    "call": {"ratio_to_bare": "<= 1.5"},
    "round_trip": {"p50_ms": "< 1"},
    "backlog": {
        "rss_mib": "< 150",
        "one_ratio": ">= 0.9",
        "submit_ratio": ">= 0.9",
        "drain_ratio": ">= 0.9",
        "round_trips_ratio": ">= 0.9",
    },
    "chord_members": {"ratio": "< 1.5"},
    "schedules": {"ready_s": "< 5", "p99_ms": "< 50", "rss_mib": "< 300"},
    "stream": {"per_second": ">= 50,000", "first_p50_ms": "< 2"},
    "start": {"import_ms": "<= 100", "worker_ready_s": "<= 0.5"},
}
