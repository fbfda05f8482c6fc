"""The row about schedules: 100,000 of them, 10,000 of which are due within one second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.system import running
from eventmq import EventMQ
from eventmq.job import id_time
from eventmq.policies import every
from eventmq.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["schedules"]

_ALL, _N_DUE = 100_000, 10_000

#: Seconds between two fire times of one schedule.
_INTERVAL = 36_000.0

#: Seconds until the first due schedule, in which the beat starts.
_LEAD = 15.0

#: Seconds from the first due schedule within which all must have fired.
_PATIENCE = 30.0


def schedules(figures: Figures) -> None:
    """100,000 schedules: start of a beat, lateness of 10,000 due in one second, memory."""
    many, due = _ALL, _N_DUE
    with running() as system:
        app = EventMQ("bench", broker=system.address)
        _store(app, 0, many - due, lambda n: time.time() - n / 10)
        first = time.time() + _LEAD
        _store(app, many - due, many, lambda n: first - _INTERVAL + (n - many + due) / due)
        begin = time.perf_counter()
        beat = system.start_beat()
        ready = time.perf_counter() - begin
        assert time.time() < first, "the beat was not up in time"
        time.sleep(max(0.0, first - time.time()))
        before = system.cpu(beat), system.cpu()
        time.sleep(max(0.0, first + 1.5 - time.time()))
        while _fired(app) < due and time.time() < first + _PATIENCE:
            time.sleep(0.5)
        spent = system.cpu(beat) - before[0], system.cpu() - before[1]
        delays = sorted(_lateness(app))
        assert len(delays) == due, len(delays)
        figures.add(
            ready_s=ready,
            p50_ms=delays[due // 2] * 1000,
            p99_ms=delays[due * 99 // 100] * 1000,
            max_ms=delays[-1] * 1000,
            rss_mib=system.rss(beat) / 2**20,
            broker_rss_mib=system.rss() / 2**20,
            cpu_s=system.cpu(beat),
            beat_cpu_us_per_job=spent[0] / due * 1e6,
            broker_cpu_us_per_job=spent[1] / due * 1e6,
        )
        app.close()


def _fired(app: EventMQ) -> int:
    """Return the number of jobs that the broker has received."""
    return sum(row["waiting"] for row in app.ask("queues"))


def _store(app: EventMQ, first: int, last: int, slot_of: Callable[[int], float]) -> None:
    """Store schedules with the last fire times that a function returns, 5,000 at a time."""
    trigger = str(every(seconds=_INTERVAL))
    headers = "task:benchmarks.bench_app.nothing,content-type:msgpack"
    for begin in range(first, last, 5000):
        rows = [
            (
                Schedule(
                    name=f"schedule number {n}", task="benchmarks.bench_app.nothing",
                    queue="default", headers=headers, body=b"\x92\x90\x80", trigger=trigger,
                    last_fire_time=slot_of(n),
                ),
                None,
            )
            for n in range(begin, min(begin + 5000, last))
        ]  # fmt: skip
        assert all(app.schedules.store.save(rows).done)


def _lateness(app: EventMQ) -> list[float]:
    """Return how long after its fire time the broker received each job."""
    delays: list[float] = []
    cursor = ""
    while True:
        page = app.ask("jobs", {"queue": "default", "cursor": cursor, "limit": 1000})
        delays += [row["created"] - (id_time(row["id"]) or 0.0) for row in page["jobs"]]
        cursor = page["cursor"]
        if not cursor:
            return delays
