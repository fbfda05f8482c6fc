"""The row about listings: pages of a million jobs, and a retry of all failed jobs that match."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from benchmarks.system import running
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Jobs that wait, and jobs that have failed.
_SIZES = (1_000_000, 100_000)

#: Times that each call is made; the median counts.
_CALLS = 7

_PART = 50_000


def listings(figures: Figures) -> None:
    """Milliseconds of calls of listings, and failed jobs per second that a bulk operation retries.

    ``search`` looks for a task that does not exist, so it examines as much as a page may.
    """
    waiting, failing = figures.sizes or _SIZES
    with running() as system:
        app = EventMQ("bench", broker=system.address)

        @app.task(name="benchmarks.bench_app.later", queue="later")
        def later(number: int) -> None:
            """Wait in a queue without workers."""

        @app.task(name="benchmarks.bench_app.fail")
        def fail() -> None:
            """Fail."""

        for first in range(0, waiting, _PART):
            later.map([(n,) for n in range(min(_PART, waiting - first))])
        figures.add(
            jobs_ms=_milliseconds(app, "jobs", limit=50),
            search_ms=_milliseconds(app, "jobs", task="no.such.task"),
            count_ms=_milliseconds(app, "count", action="cancel", task="no.such.task"),
        )
        fail.options(retries=0).map([()] * failing)
        system.start_worker(2)
        while _failed(app) < failing:
            time.sleep(0.2)
        system.stop_workers()
        figures.add(
            failed_ms=_milliseconds(app, "failed", error="ValueError", limit=50),
            failures_ms=_milliseconds(app, "failures"),
            text_ms=_milliseconds(app, "failed", text="no such text"),
        )
        bulk_id, begin = uuid.uuid4().hex, time.perf_counter()
        answer = app.ask("bulk", {"id": bulk_id, "action": "retry", "error": "ValueError"})
        while not answer["done"]:
            time.sleep(0.02)
            answer = app.ask("bulk", {"id": bulk_id})
        assert answer["count"] == failing, answer
        figures.add(retried_per_second=failing / (time.perf_counter() - begin))
        app.close()


def _failed(app: EventMQ) -> int:
    return sum(row["failed"] for row in app.ask("queues"))


def _milliseconds(app: EventMQ, call: str, **arguments: Any) -> float:
    times = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        app.ask(call, arguments)
        times.append(time.perf_counter() - begin)
    return sorted(times)[_CALLS // 2] * 1000


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"listings": listings}

#: Name -> figure -> its goal.
GOALS: dict[str, dict[str, str]] = {
    "listings": {
        "jobs_ms": "<= 200", "search_ms": "<= 200", "failed_ms": "<= 200", "failures_ms": "<= 200",
        "text_ms": "<= 200", "count_ms": "<= 200", "retried_per_second": "> 20,000",
    },
}  # fmt: skip
