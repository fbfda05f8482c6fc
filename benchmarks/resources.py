"""The row about memory: of broker, job manager and child."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.system import System, children, resident, running
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Total number of jobs, and the tenth after which the slope is measured: until then caches fill.
_JOBS, _WARM = 1_000_000, 3


def memory(figures: Figures) -> None:
    """Resident memory of broker, job manager and child: idle, after a million jobs, and slope."""
    (jobs,) = figures.sizes or (_JOBS,)
    part: list[tuple[()]] = [()] * (jobs // 10)
    with running(workers=1) as system:
        app = EventMQ("bench", broker=system.address)
        nothing = app.task(name="benchmarks.bench_app.nothing")(_nothing)
        nothing.delay().get(timeout=10)
        idle = warm = _resident(system)
        for number in range(10):
            nothing.map(part)
            while any(row["waiting"] + row["running"] for row in app.ask("queues")):
                time.sleep(0.02)
            if number + 1 == _WARM:
                warm = _resident(system)
        after = _resident(system)
        app.close()
    for name, value in idle.items():
        figures.add(**{f"{name}_idle_mib": value / 2**20, f"{name}_after_mib": after[name] / 2**20})
    grown = sum(after.values()) - sum(warm.values())
    figures.add(
        sum_after_mib=sum(after.values()) / 2**20,
        slope_bytes_per_job=grown / (len(part) * (10 - _WARM)),
    )


def _nothing() -> None:
    """Do nothing."""


def _resident(system: System) -> dict[str, int]:
    """Return the resident bytes of each process."""
    [worker] = system.workers
    return {
        "broker": system.rss(),
        "manager": system.rss(worker),
        "child": sum(map(resident, children(worker.pid))),
    }


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"memory": memory}

#: Name -> figure -> its goal.
GOALS: dict[str, dict[str, str]] = {"memory": {"slope_bytes_per_job": "< 1"}}
