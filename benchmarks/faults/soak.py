"""An hour of everything: what a system that runs for long has to keep flat, and an audit."""

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

__all__ = ["bear"]

_Value = TypeVar("_Value")

#: What is kept is kept for minutes, so that what goes with age goes within the soak.
SETTINGS = {
    "EVENTMQ_DEDUPE_WINDOW": "120", "EVENTMQ_RESULT_TTL": "60",
    "EVENTMQ_MAX_FAILED_BYTES": "1000000",
}  # fmt: skip

#: Seconds in which the peak is measured, and the share of it that the soak has.
PEAK, SHARE = 20.0, 0.7

#: The share of the soak after which a slope begins, and seconds between two samples.
WARM, EVERY = 0.3, 5.0

#: Seconds that the end may take.
TIMEOUT = 300.0


def bear(folder: Path, seconds: float) -> Row:
    """Run everything for so long; see `Row`."""
    os.environ.update(SETTINGS)
    shutil.copy(str(soak_app.__file__), folder / "survivor.py")
    system = System(folder)
    shutil.copy(str(soak_app.__file__), folder / "survivor.py")
    try:
        watched = _start(system)
        soak_app.app.override(broker=system.address, submit_timeout=60.0)
        rounds = Rounds()
        peak = _pace(rounds, PEAK, 0.0)
        samples = Samples(folder, watched)
        with samples:
            reached = _pace(rounds, seconds, SHARE * peak)
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
    """Start all processes; return those that are watched, by name."""
    broker = system.broker()
    data, out = (str(system.folder / name) for name in ("data", "journal"))
    journal, _ = system.start("journal", "--data-dir", data, "--out", out)
    worker = system.worker()
    common = ("-A", "survivor", "--broker", system.address)
    beat, _ = system.start("beat", *common)
    return {"broker": broker.pid, "worker": worker.pid, "beat": beat.pid, "journal": journal.pid}


def _pace(rounds: Rounds, seconds: float, rate: float) -> float:
    """Do rounds for so long, at a rate or as fast as they go; return how many a second."""
    begun, done = time.monotonic(), 0
    while (now := time.monotonic() - begun) < seconds:
        if rate and now < done / rate:
            time.sleep(done / rate - now)
        rounds.once()
        done += 1
    return done / (time.monotonic() - begun)


def _idle() -> bool:
    rows = soak_app.app.ask("queues")
    return not sum(row["waiting"] + row["running"] + row["delayed"] for row in rows)


class Samples:
    """Looks at processes and files again and again, in a thread of its own; for ``with``."""

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
        """Look at a process, and at those that it has started."""
        family = [pid, *(one for child in children(pid) for one in (child, *children(child)))]
        found = {
            "MiB": sum(map(resident, family)) / 2**20,
            "descriptors": float(sum(map(descriptors, family))),
            "threads": float(sum(len(os.listdir(f"/proc/{one}/task")) for one in family)),  # noqa: PTH208 - only counted
        }
        for what, value in found.items():
            self._taken.setdefault(f"{name}, {what}", []).append((now, value))

    def result(self, rounds: Rounds) -> dict[str, Any]:
        """Return first, last and slope per hour of all, after the warm-up; and latencies."""
        found: dict[str, Any] = {}
        for name, samples in self._taken.items():
            warm = samples[int(len(samples) * WARM) :]
            first, last = warm[0][1], warm[-1][1]
            if name.endswith("MiB"):
                found[name] = f"{first:.1f} to {last:.1f}, {slope(warm) * 3600:+.2f} per hour"
                parts = [statistics.median(v for _, v in part) for part in tenths(samples) if part]
                found[f"{name}, tenth by tenth"] = " ".join(f"{mib:.1f}" for mib in parts)
            else:
                found[name] = f"{min(v for _, v in warm):.0f} to {max(v for _, v in warm):.0f}"
        for name, times in (("receipts", rounds.receipts), ("results", rounds.results)):
            worst = [1000 * sorted(part)[len(part) * 99 // 100] for part in tenths(times)]
            found[f"p99 of {name}, ms, tenth by tenth"] = " ".join(f"{ms:.1f}" for ms in worst)
        return found


def tenths(values: Sequence[_Value]) -> list[Sequence[_Value]]:
    """Return ten parts of as many values each."""
    return [values[i * len(values) // 10 : (i + 1) * len(values) // 10] for i in range(10)]


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return by how much a value grows in a second: least squares."""
    n = len(samples)
    middle, mean = sum(t for t, _ in samples) / n, sum(v for _, v in samples) / n
    spread = sum((t - middle) ** 2 for t, _ in samples)
    return sum((t - middle) * (v - mean) for t, v in samples) / spread if spread else 0.0


def _verify(system: System) -> dict[str, str]:
    """End the processes; ask fsck and the audit of the journal what they find."""
    for process in reversed(system.processes):
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT)
    ended = {process.args[3]: process.returncode for process in system.processes}  # type: ignore[index]
    fsck = _ask("fsck", str(system.folder / "data"))
    audit = _ask("spark", "audit", "--journal", str(system.folder / "journal"), "--json")
    return {"exit codes": json.dumps(ended), "fsck": fsck, "audit": audit}


def _ask(*arguments: str) -> str:
    """Run a command; return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "eventmq", *arguments], capture_output=True, text=True, check=False
    )
    return f"{done.returncode}: {' '.join(done.stdout.split())[:2000]}"
