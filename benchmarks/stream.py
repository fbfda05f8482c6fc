"""The row ``stream``: parts through one stream, and the latency of its first part."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.system import running
from eventmq import EventMQ

if TYPE_CHECKING:
    from benchmarks.figures import Figures

__all__ = ["stream"]

#: Parts of the long stream.
PARTS = 300_000

#: Streams of one part.
STREAMS = 300


def stream(figures: Figures) -> None:
    """Small parts through one stream, one worker process; the first part after its ``yield``."""
    with running(workers=2) as system:
        app = EventMQ("bench", broker=system.address)
        sum(1 for _ in app.send("benchmarks.bench_app.numbers", (10_000,)).stream())
        before, begin = system.cpu(), time.perf_counter()
        parts = sum(1 for _ in app.send("benchmarks.bench_app.numbers", (PARTS,)).stream())
        rate = parts / (time.perf_counter() - begin)
        cpu = (system.cpu() - before) / parts * 1e6
        rss = system.rss() / 2**20
        figures.add(per_second=rate, broker_cpu_us_per_part=cpu, broker_rss_mib=rss)
        waits = sorted(_first(app) for _ in range(STREAMS))
        figures.add(
            first_p50_ms=waits[len(waits) // 2] * 1000,
            first_p99_ms=waits[len(waits) * 99 // 100] * 1000,
        )
        app.close()


def _first(app: EventMQ) -> float:
    """Return the seconds from the ``yield`` of a first part until it was read."""
    parts = app.send("benchmarks.bench_app.yield_time", (0.005,)).stream()
    yielded = next(parts)
    return time.time() - float(yielded)
