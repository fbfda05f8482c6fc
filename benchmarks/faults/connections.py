"""Thousands of peers: some stay and only send heartbeats, others connect and disconnect."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.crowd import Crowd
from benchmarks.faults.probe import Probe
from benchmarks.system import resident
from tests.faults.load import Load
from tests.faults.shortage import descriptors
from tests.faults.visitors import Visitors
from tests.support.system import Process, System, until

if TYPE_CHECKING:
    from typing import Any

__all__ = ["come_and_go"]

#: Number of peers that stay, and seconds between their heartbeats.
IDLE, SIGN = 2000, 3.0

#: Number of visitors that stay half-connected, mute or silent.
STAYING = 500

#: Visitors a second.
RATE = 200.0

#: Seconds during which latencies are measured without visitors.
QUIET = 20.0

#: Jobs that the load submits at a time, and that may wait: few, since latencies are measured.
PART, AHEAD = 10, 10


def come_and_go(visits: int, idle: int = IDLE) -> tuple[Load, set[int], int, dict[str, Any]]:
    """Let a number of visitors connect while jobs are submitted and run.

    Returns:
        The load, the lost confirmed jobs, how many ran again, and the measurements.
    """
    with tempfile.TemporaryDirectory() as folder:
        system = System(Path(folder))
        broker = system.broker()
        system.worker()
        load = Load(system, part=PART, ahead=AHEAD, submit_timeout=60.0)
        try:
            load.start()
            counts = _measure(system, broker, visits, idle)
            load.stop()
            done = {str(number) for number in load.confirmed}
            until(lambda: done <= system.executed().keys(), "every confirmed job was executed")
            ran = system.executed()
            ran.pop("-1")  # the probe's
            return load, *load.compare(ran), counts
        finally:
            load.stop()
            system.stop()


def _measure(system: System, broker: Process, visits: int, idle: int) -> dict[str, Any]:
    """Measure latencies without and with the crowd, and the broker after it has left."""
    before = descriptors(broker.pid)
    alone = Probe(system.address, QUIET).result()
    rss = resident(broker.pid)
    source = Visitors(system.address, max_staying=STAYING)
    with Crowd(system.address, idle) as crowd, source as visitors:
        probe = Probe(system.address, visits / RATE)
        max_descriptors = _visit(crowd, visitors, visits, broker.pid)
        crowded = probe.result()
        came = dict(sorted(visitors.came.items()))
    grown = (resident(broker.pid) - rss) / 2**20
    until(
        lambda: descriptors(broker.pid) <= before + 2,
        "the broker closes the sockets of peers that have left",
        60.0,
    )
    return {
        "idle peers": idle, "visits": came, "descriptors at worst": max_descriptors,
        "receipt p99 before, ms at worst": alone["p99"],
        "receipt p99 with them, ms at worst": crowded["p99"],
        "receipt with them, ms at worst": crowded["worst"],
        "broker grew by MiB at worst": round(grown, 1),
    }  # fmt: skip


def _visit(crowd: Crowd, visitors: Visitors, visits: int, pid: int) -> int:
    """Let visitors connect at a rate beside the crowd; return the broker's maximum descriptors."""
    start, max_descriptors, signs = time.monotonic(), 0, 0.0
    for number in range(visits):
        visitors.come()
        now = time.monotonic() - start
        signs += crowd.live(int(now / SIGN * crowd.size - signs))
        if number % 100 == 0:
            max_descriptors = max(max_descriptors, descriptors(pid))
        time.sleep(max(0.0, number / RATE - now))
    return max_descriptors
