"""Soak: an hour of all features, the growth of resources, and an audit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.faults import soak_app
from benchmarks.faults.results import Row
from benchmarks.faults.soak_load import Rounds
from benchmarks.system import children, resident
from tests.faults.shortage import descriptors
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run_soak"]

_Value = TypeVar("_Value")

#: Retention of minutes, so that expiry by age happens within the soak.
SETTINGS = {
    "EVENTMQ_DEDUPE_WINDOW": "120", "EVENTMQ_RESULT_TTL": "60",
    "EVENTMQ_MAX_FAILED_BYTES": "1000000",
}  # fmt: skip

#: Seconds of the measurement of the peak, and share of the peak during the soak.
PEAK, SHARE = 20.0, 0.7

#: Share of the soak before the slope is measured, and seconds between two samples.
WARM, EVERY = 0.3, 5.0

#: Timeout of the end, in seconds.
TIMEOUT = 300.0


def run_soak(folder: Path, seconds: float) -> Row:
    """Run all features for a number of seconds; see `Row`."""
    os.environ.update(SETTINGS)
    shutil.copy(str(soak_app.__file__), folder / "survivor.py")
    system = System(folder)
    shutil.copy(str(soak_app.__file__), folder / "survivor.py")
    try:
        watched = _start(system)
        soak_app.app.override(broker=system.address, submit_timeout=60.0)
        rounds = Rounds()
        peak = _run_at_rate(rounds, PEAK, 0.0)
        samples = Samples(folder, watched)
        with samples:
            reached = _run_at_rate(rounds, seconds, SHARE * peak)
        until(_idle, "all is done", TIMEOUT)
        lost, twice = rounds.compare(system.record)
        more = {
            "rounds a second": round(reached, 1), "at its peak": round(peak, 1),
            **samples.result(rounds), **dict(rounds.counted), **_verify(system),
        }  # fmt: skip
        return Row(rounds.confirmed, 0, lost.total(), twice, more)
    finally:
        soak_app.app.close()
        system.stop()
        for name in SETTINGS:
            del os.environ[name]


def _start(system: System) -> dict[str, int]:
    """Start all processes; return the sampled ones by name."""
    broker = system.broker()
    data, out = (str(system.folder / name) for name in ("data", "journal"))
    journal, _ = system.start("journal", "--data-dir", data, "--out", out)
    worker = system.worker()
    common = ("-A", "survivor", "--broker", system.address)
    beat, _ = system.start("beat", *common)
    return {"broker": broker.pid, "worker": worker.pid, "beat": beat.pid, "journal": journal.pid}


def _run_at_rate(rounds: Rounds, seconds: float, rate: float) -> float:
    """Do rounds for some seconds, at a rate or without a limit; return rounds per second."""
    start, done = time.monotonic(), 0
    while (now := time.monotonic() - start) < seconds:
        if rate and now < done / rate:
            time.sleep(done / rate - now)
        rounds.once()
        done += 1
    return done / (time.monotonic() - start)


def _idle() -> bool:
    rows = soak_app.app.ask("queues")
    return not sum(row["waiting"] + row["running"] + row["delayed"] for row in rows)


class Samples:
    """Samples processes and files in a thread of its own; a context manager."""

    def __init__(self, folder: Path, watched: dict[str, int]) -> None:
        self._data = folder / "data"
        self._watched = watched
        self._taken: dict[str, list[tuple[float, float]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            now = time.monotonic()
            for name, pid in self._watched.items():
                self._take(name, now, pid)
            sizes = sum(path.stat().st_size for path in self._data.glob("queue.sqlite*"))
            self._taken.setdefault("store, MiB", []).append((now, sizes / 2**20))

    def _take(self, name: str, now: float, pid: int) -> None:
        """Sample a process and its descendants."""
        family = [pid, *(one for child in children(pid) for one in (child, *children(child)))]
        sizes = {
            "MiB": sum(map(resident, family)) / 2**20,
            "descriptors": float(sum(map(descriptors, family))),
            "threads": float(sum(len(os.listdir(f"/proc/{one}/task")) for one in family)),  # noqa: PTH208 - only counted
        }
        for unit, value in sizes.items():
            self._taken.setdefault(f"{name}, {unit}", []).append((now, value))

    def result(self, rounds: Rounds) -> dict[str, Any]:
        """Return first, last and slope per hour of each series after the warm-up; and latencies."""
        result: dict[str, Any] = {}
        for name, samples in self._taken.items():
            warm = samples[int(len(samples) * WARM) :]
            first, last = warm[0][1], warm[-1][1]
            if name.endswith("MiB"):
                result[name] = f"{first:.1f} to {last:.1f}, {slope(warm) * 3600:+.2f} per hour"
                parts = [statistics.median(v for _, v in part) for part in tenths(samples) if part]
                result[f"{name}, tenth by tenth"] = " ".join(f"{mib:.1f}" for mib in parts)
            else:
                result[name] = f"{min(v for _, v in warm):.0f} to {max(v for _, v in warm):.0f}"
        for name, times in (("receipts", rounds.receipts), ("results", rounds.results)):
            worst = [1000 * sorted(part)[len(part) * 99 // 100] for part in tenths(times)]
            result[f"p99 of {name}, ms, tenth by tenth"] = " ".join(f"{ms:.1f}" for ms in worst)
        return result


def tenths(values: Sequence[_Value]) -> list[Sequence[_Value]]:
    """Return ten parts with equal numbers of values."""
    return [values[i * len(values) // 10 : (i + 1) * len(values) // 10] for i in range(10)]


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return the growth of a value per second, by least squares."""
    n = len(samples)
    middle, mean = sum(t for t, _ in samples) / n, sum(v for _, v in samples) / n
    spread = sum((t - middle) ** 2 for t, _ in samples)
    return sum((t - middle) * (v - mean) for t, v in samples) / spread if spread else 0.0


def _verify(system: System) -> dict[str, str]:
    """End the processes; return the findings of fsck and of the audit of the journal."""
    for process in reversed(system.processes):
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT)
    ended = {process.args[3]: process.returncode for process in system.processes}  # type: ignore[index]
    fsck = _ask("fsck", str(system.folder / "data"))
    audit = _ask("spark", "audit", "--journal", str(system.folder / "journal"), "--json")
    return {"exit codes": json.dumps(ended), "fsck": fsck, "audit": audit}


def _ask(*arguments: str) -> str:
    """Run a command; return its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "eventmq", *arguments], capture_output=True, text=True, check=False
    )
    return f"{done.returncode}: {' '.join(done.stdout.split())[:2000]}"
