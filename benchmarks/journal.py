"""The rows about the journal: events per second out of a store, and losses over kills."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.system import ROOT
from eventmq.clock import SystemClock
from eventmq.events import FileName
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.reads import ReadEvents
from eventmq.store.writes import Admit, Finish, Finished, SealEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

_JOBS = 500_000
_BATCH = 500
_KILLS = 50
_HEADERS = "task:shop.send,content-type:msgpack,ack-requested"


def _fill(data: Path, jobs: int) -> int:
    """Start and end a number of jobs in a store; return the number of its events."""
    clock = SystemClock()
    store = SqliteStore(data, clock, durability="memory", reserve=0)
    store.open()
    store.submit([SealEvents("j", 0, 1.0, 0.0)])  # so that all of them are kept
    ids = IdFactory(clock)
    for start in range(0, jobs, _BATCH):
        now = clock.now()
        made = [
            JobRecord(job_id, "default", _HEADERS, b"x" * 40, start + index + 1, start, created=now)
            for index, job_id in enumerate(ids.new_many(_BATCH))
        ]
        store.submit([Admit(made)])
        for job in made:
            job.delivery = 1
        ends = [
            Finished(job, JobState.SUCCEEDED, now + 0.01, 0.0, "msgpack", b"\xc0",
                     now + 0.001, 1e-4, "host-7:4242")
            for job in made
        ]  # fmt: skip
        store.submit([Finish(ends, now)])
    store.finished()
    store.submit([ReadEvents(0, 1)])
    [[(_, head)]] = store.finished()  # type: ignore[misc]
    store.close()
    return int(head.next) - 1


def _start(data: Path, out: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "eventmq", "-q", "-p", "eventmq_contrib.journal", "journal",
        "--data-dir", str(data), "--out", str(out), "--once",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _sealed(out: Path) -> list[tuple[int, int]]:
    names = [FileName.parse(path.name) for path in out.glob("date=*/hour=*/*.parquet")]
    return sorted((name.first, name.last) for name in names if name is not None)


def _check(out: Path, events: int) -> dict[str, int]:
    """Return how many numbers are in no file, and how many are in several."""
    after = lost = twice = 0
    for first, last in _sealed(out):
        lost += max(0, first - after - 1)
        twice += max(0, min(after, last) - first + 1)
        after = max(after, last)
    return {"lost": lost + max(0, events - after), "twice": twice + max(0, after - events)}


def journal(figures: Figures) -> None:
    """A million events out of a store into sealed files, without the work of the broker."""
    folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    try:
        events = _fill(folder / "data", _JOBS)
        process = _start(folder / "data", folder / "journal")
        assert process.stdout is not None
        process.stdout.readline()
        begin = time.perf_counter()
        process.wait(600)
        seconds = time.perf_counter() - begin
        process.stdout.close()
        counts = _check(folder / "journal", events)
        size = sum(path.stat().st_size for path in (folder / "journal").rglob("*.parquet"))
        stored = (folder / "data" / "queue.sqlite").stat().st_size
        figures.add(
            per_second=events / seconds, parquet_bytes=size / events, store_bytes=stored / events,
            **counts,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def journal_kills(figures: Figures) -> None:
    """The same with 50 kills of the journal: each event is in one file."""
    folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    try:
        events = _fill(folder / "data", _JOBS)
        kills = 0
        chance = random.Random(1)
        for _ in range(_KILLS):
            process = _start(folder / "data", folder / "journal")
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.25))
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            process.stdout.close()
        process = _start(folder / "data", folder / "journal")
        process.communicate(timeout=600)
        counts = _check(folder / "journal", events)
        figures.add(kills=kills, files=len(_sealed(folder / "journal")), **counts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {row.__name__: row for row in (journal, journal_kills)}

#: Name -> figure -> its goal on two cores.
GOALS = {
    "journal": {"per_second": ">= 120,000", "lost": "0", "twice": "0"},
    "journal_kills": {"kills": "50", "lost": "0", "twice": "0"},
}
