"""The row about recovery: kill -9 of the broker with a million jobs waiting, and of a worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.peers.compare import one_run
from benchmarks.system import running
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Jobs that wait in a queue without workers.
_WAITING = 1_000_000

#: Seconds until the delayed job of a killed broker is due.
_COUNTDOWN = 0.1


def recovery(figures: Figures) -> None:
    """Kill -9 of a worker, and of a broker with a million waiting jobs: time until jobs run."""
    figures.add(worker_s=one_run("eventmq", "recovery")["seconds"])
    (waiting,) = figures.sizes or (_WAITING,)
    with running(workers=2) as system:
        app = EventMQ("bench", broker=system.address)
        nothing = app.task(name="benchmarks.bench_app.nothing")(_nothing)
        started = app.task(name="benchmarks.bench_app.started")(_started)
        started.delay().get(timeout=10)
        part: list[tuple[()]] = [()] * min(50_000, waiting)
        for _ in range(0, waiting, len(part)):
            nothing.options(queue="later").map(part)
        job = started.options(countdown=_COUNTDOWN).delay()
        killed, begin = time.time(), time.perf_counter()
        system.kill_broker()
        system.start_broker()
        ready = time.perf_counter() - begin
        figures.add(broker_ready_s=ready, broker_s=job.get(timeout=60) - killed)
        app.close()


def _nothing() -> None:
    """Do nothing."""


def _started() -> float:
    """Return the start time of the job."""
    return 0.0


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"recovery": recovery}

#: Name -> figure -> its goal.
GOALS: dict[str, dict[str, str]] = {"recovery": {"worker_s": "< 1", "broker_s": "< 2"}}
