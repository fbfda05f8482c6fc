"""The row about graphs: the cost of a chord compared with its members alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.system import running
from eventmq import EventMQ, chord

if TYPE_CHECKING:
    from benchmarks.figures import Figures

__all__ = ["chord_members"]

_MEMBERS = 10_000


def _tasks(address: str) -> tuple[EventMQ, Any, Any]:
    app = EventMQ("bench", broker=address)

    @app.task(name="benchmarks.bench_app.same")
    def same(number: int) -> int:
        """Return the number."""
        return number

    @app.task(name="benchmarks.bench_app.count")
    def count(numbers: list[int]) -> int:
        """Return the number of numbers."""
        return len(numbers)

    return app, same, count


def chord_members(figures: Figures) -> None:
    """A chord of 10,000 members until the end of its callback, against as many plain jobs."""
    with running(workers=2) as system:
        app, same, count = _tasks(system.address)
        app.wait(same.map([(i,) for i in range(1000)]))
        begin = time.perf_counter()
        jobs = same.map([(i,) for i in range(_MEMBERS)])
        done, _ = app.wait(jobs, timeout=120)
        plain = time.perf_counter() - begin
        assert len(done) == _MEMBERS
        begin = time.perf_counter()
        job = chord((same.s(i) for i in range(_MEMBERS)), count.s()).delay()
        sent = time.perf_counter() - begin
        assert job.get(timeout=120) == _MEMBERS
        whole = time.perf_counter() - begin
        figures.add(plain_s=plain, chord_s=whole, submit_s=sent, ratio=whole / plain)
        app.close()
