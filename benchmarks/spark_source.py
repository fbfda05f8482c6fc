"""The rows about the Spark connector: its speed, and losses of replay and stream over kills.

Each row starts Spark, rows with kills once per kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.session import measured_on
from benchmarks.system import ROOT, running
from eventmq import EventMQ
from eventmq.clock import SystemClock
from eventmq.events import COLUMNS, FileName, partition
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.writes import Admit, Finish, Finished, SealEvents
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

_JOBS = int(os.environ.get("EVENTMQ_BENCH_JOBS", "100000"))
_REPLAY_KILLS = int(os.environ.get("EVENTMQ_BENCH_KILLS", "10"))
_STREAM_KILLS = int(os.environ.get("EVENTMQ_BENCH_KILLS", "50"))

#: Events per second of the stream, its seconds, and the events of a file, as in a journal.
_RATE, _SECONDS, _SEAL = 20_000, 60, 65_536

#: Seconds within which a command of Spark must do something.
_PATIENCE = 900.0

_HEADERS = "task:shop.send,content-type:msgpack"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Generated journals


def _values(broker: str, first: int, n: int, at: float, span: float) -> dict[str, list[Any]]:
    """Return the columns of events of jobs that started and ended, two events per job."""
    columns: dict[str, list[Any]] = {column.name: [None] * n for column in COLUMNS}
    ts = [int((at + span * index / n) * 1_000_000) for index in range(n)]
    ends = [index % 2 == 1 for index in range(n)]
    columns |= {
        "broker_id": [broker] * n, "seq": list(range(first, first + n)), "ts_us": ts,
        "kind": ["succeeded" if end else "enqueued" for end in ends],
        "job_id": [f"{(first - 1 + index) // 2:032x}" for index in range(n)],
        "task": [f"shop.task{index // 2 % 8}" for index in range(n)],
        "queue": [f"queue{index // 2 % 4}" for index in range(n)], "attempt": [1] * n,
        "wait_us": [index % 3_000_000 if end else None for index, end in enumerate(ends)],
        "run_us": [index % 50_000 if end else None for index, end in enumerate(ends)],
        "schema_version": [1] * n,
    }  # fmt: skip
    return columns


def _seal(journal: Path, values: dict[str, list[Any]]) -> None:
    from eventmq_contrib.journal.parquet import encode_events

    name = FileName(values["broker_id"][0], values["seq"][0], values["seq"][-1])
    path = journal / partition(values["ts_us"][0]) / str(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"_{name}").open("wb") as file:
        file.write(encode_events(values))
    path.with_name(f"_{name}").replace(path)


def _history(journal: Path, events: int, size: int = _SEAL) -> None:
    begin = time.time() - 3600.0
    for first in range(1, events + 1, size):
        n = min(size, events + 1 - first)
        _seal(journal, _values("b", first, n, begin + first / 10_000, n / 10_000))


# Reading and writing


def spark_source(figures: Figures) -> None:
    """Rows per second out of a journal, and jobs per second into a broker, by two tasks."""
    from pyspark.sql import functions as f

    from eventmq_contrib.spark.source import EventMQDataSource

    with _folder() as folder, running(workers=0) as system, measured_on(figures) as spark:
        spark.dataSource.register(EventMQDataSource)
        _history(folder / "journal", 1_000_000)
        frame = spark.read.format("eventmq").load(str(folder / "journal"))

        def read() -> None:
            assert frame.agg(f.sum("seq")).first()[0] == 500_000_500_000  # type: ignore[index]

        rows = spark.range(_JOBS).select("id", f.lit("a@b.c").alias("to"))
        writer = rows.write.format("eventmq").options(
            broker=system.address, task="shop.send", queue="parked", idColumns="id",
        )  # fmt: skip

        def write(**options: str) -> Callable[[], None]:
            return writer.options(**options).mode("append").save

        frame.limit(1).count()  # the first query of a session takes seconds more
        write_seconds = _seconds(write(idTime="2030-01-01", rate="1e9"))
        figures.add(
            read_rows_per_second=1_000_000 / _seconds(read),
            write_jobs_per_second=_JOBS / write_seconds,
            write_again_per_second=_JOBS / _seconds(write(idTime="2030-01-01", rate="1e9")),
            write_without_time_per_second=_JOBS
            / _seconds(write(queue="other", idTime="2000-01-01")),
        )
        app = EventMQ("bench", broker=system.address)
        waiting_by_queue = {row["name"]: row["waiting"] for row in app.ask("queues")}
        app.close()
        assert waiting_by_queue == {"parked": _JOBS, "other": _JOBS}, waiting_by_queue


def _seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# Kills


def _start(*arguments: str) -> subprocess.Popen[str]:
    """Start a command of Spark in its own process group, with its JVM and its Python."""
    command = [
        sys.executable,
        "-m",
        "eventmq",
        "-q",
        "-p",
        "eventmq_contrib.spark",
        "spark",
        *arguments,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip


def _kill(process: subprocess.Popen[str]) -> bool:
    """Kill a process and its descendants; return whether it was still running."""
    alive = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    if process.stdout is not None:
        process.stdout.close()
    return alive


def _until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, or the process has ended."""
    end = time.monotonic() + _PATIENCE
    while process.poll() is None and not condition():
        if time.monotonic() > end:
            _kill(process)
            raise TimeoutError(f"not within {_PATIENCE} s")
        time.sleep(0.02)


def _fail(data: Path, jobs: int) -> None:
    """Make a store with a number of failed jobs."""
    clock = SystemClock()
    store = SqliteStore(data, clock, durability="memory", reserve=0)
    store.open()
    store.submit([SealEvents("j", 0, 1.0, 0.0)])  # so that all of them are kept
    ids, error = IdFactory(clock), encode_error(RemoteError("builtins.ValueError", "it broke"))
    for start in range(1, jobs + 1, 500):
        now = clock.now()
        made = [
            JobRecord(
                i, "default", _HEADERS, b"\x92\x90\x80", start + n, start, created=now, delivery=1
            )
            for n, i in enumerate(ids.new_many(500))
        ]
        ends = [
            Finished(job, JobState.FAILED, now, 0.0, ERROR_TYPE, error, now, 0.1, "host:1")
            for job in made
        ]
        store.submit([Admit(made), Finish(ends, now)])
        store.finished()
    store.close()


def spark_replay(figures: Figures) -> None:
    """100,000 failed jobs replayed while the command is killed ten times: each once."""
    with running(workers=0, prepare=lambda data: _fail(data, _JOBS)) as system:
        journal, checkpoint = system.folder / "journal", system.folder / "replay"
        _journal(system.folder / "data", journal)
        arguments = (
            "replay", "--journal", str(journal), "--checkpoint", str(checkpoint), "--broker",
            system.address, "--json",
        )  # fmt: skip
        app = EventMQ("bench", broker=system.address, submit_timeout=30.0)
        chance, kills, begin = random.Random(1), 0, time.perf_counter()

        def failed() -> int:
            return int(next(row["failed"] for row in app.ask("queues")))

        while kills < _REPLAY_KILLS:
            before = failed()
            minimum = max(1, before // (_REPLAY_KILLS + 1 - kills)) * chance.uniform(0.2, 1.0)
            process = _start(*arguments)
            _until(process, lambda: failed() <= before - minimum)  # noqa: B023 - used at once
            kills += _kill(process)
        process = _start(*arguments)
        answer = json.loads(process.communicate(timeout=600)[0])
        seconds = time.perf_counter() - begin
        assert answer["jobs"] == answer["replayed"] + answer["before"] == _JOBS, answer
        _journal(system.folder / "data", journal)
        replays = Counter(_replayed(journal))
        remaining = failed()
        app.close()
    figures.add(
        jobs=_JOBS, kills=kills, replayed_once=sum(n == 1 for n in replays.values()),
        replayed_more=sum(n > 1 for n in replays.values()), left_failed=remaining, seconds=seconds,
    )  # fmt: skip
    assert len(replays) == _JOBS, "jobs were not replayed"


def _journal(data: Path, out: Path) -> None:
    command = [
        sys.executable, "-m", "eventmq", "-q", "-p", "eventmq_contrib.journal", "journal",
        "--data-dir", str(data), "--out", str(out), "--once",
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def _replayed(journal: Path) -> list[str]:
    import pyarrow.parquet as pq

    ids: list[str] = []
    for path in journal.glob("*/*/*.parquet"):
        table = pq.ParquetFile(path).read(columns=["kind", "job_id"]).to_pydict()
        pairs = zip(table["kind"], table["job_id"], strict=True)
        ids += [job_id for kind, job_id in pairs if kind == "replayed"]
    return ids


def spark_stream_kills(figures: Figures) -> None:
    """A stream whose driver is killed 50 times: its tables count every event once."""
    events = 2_000_000
    size = 5_000
    with _folder() as folder:
        journal, out = folder / "journal", folder / "live"
        _history(journal, events, size=size)
        (folder / "spark").mkdir()
        arguments = (
            "stream", "--journal", str(journal), "--out", str(out), "--trigger", "0.1",
            "--at-once", str(max(size, events // (4 * _STREAM_KILLS))),
        )  # fmt: skip
        chance, kills, begin = random.Random(1), 0, time.perf_counter()
        while kills < _STREAM_KILLS:
            process = _start(*arguments)
            before = _batches(out)
            _until(process, lambda: _batches(out) > before)  # noqa: B023 - used at once
            time.sleep(chance.uniform(0.0, 1.5))
            kills += _kill(process)
        process = _start(*arguments[:5], "--once")
        process.communicate(timeout=1200)
        assert process.returncode == 0
        counted = _counted(out)
    figures.add(events=events, counted=counted, kills=kills, seconds=time.perf_counter() - begin)
    assert counted == events, f"{counted} of {events} events were counted"


def _batches(out: Path) -> int:
    """Return the number of the last started batch."""
    names = [path.name for path in (out / "_checkpoint" / "offsets").glob("[0-9]*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _counted(out: Path) -> int:
    import pyarrow.parquet as pq

    return sum(
        sum(pq.ParquetFile(path).read(columns=["events"]).column("events").to_pylist())
        for path in (out / "stats").glob("*/*/stats.parquet")
    )


def spark_stream(figures: Figures) -> None:
    """A minute of 20,000 events a second, with a trigger of 1 s: the age of the tables."""
    from eventmq_contrib.spark.livetables import LiveTables
    from eventmq_contrib.spark.streaming import Stream, start_stream

    updates: list[tuple[float, int]] = []

    class Timed(LiveTables):
        def _update_slo(self, newest: Any) -> None:
            super()._update_slo(newest)
            rows = self._hour(newest.replace(minute=0))
            updates.append((time.time(), max(row["newest_us"] for row in rows)))

    two = {"spark.sql.shuffle.partitions": "2"}
    with _folder() as folder, measured_on(figures, two) as spark:
        journal = folder / "journal"
        # Something to count before it is measured: the first batch takes seconds.
        _seal(journal, _values("a", 1, 1000, time.time(), 0.1))
        query = start_stream(spark, Stream(journal=str(journal), out=folder / "out"), tables=Timed)
        end = time.monotonic() + 120.0
        while not updates:
            assert time.monotonic() < end, "no first batch"
            time.sleep(0.1)
        begin = time.time()
        writer = threading.Thread(target=_write_for, args=(journal, _SECONDS))
        writer.start()
        writer.join()
        last = int(_RATE * _SECONDS // _SEAL * _SEAL)
        while _counted(folder / "out") < last + 1000:
            assert time.monotonic() < end + 300.0, "it does not keep up"
            time.sleep(0.2)
        behind = time.time() - begin - _SECONDS
        query.stop()
        ages = _ages(updates, begin, last / _RATE)
    ages.sort()
    figures.add(
        events_per_second=_RATE, p50_age_seconds=ages[len(ages) // 2],
        p95_age_seconds=ages[int(len(ages) * 0.95)], most_age_seconds=ages[-1],
        behind_at_the_end=behind,
    )  # fmt: skip


def _write_for(journal: Path, seconds: float) -> None:
    """Seal files like a journal with a constant rate of events, each after its last event."""
    begin, n = time.time(), 0
    span = _SEAL / _RATE
    while (n + 1) * span <= seconds:
        values = _values("b", 1 + n * _SEAL, _SEAL, begin + n * span, span)
        time.sleep(max(0.0, begin + (n + 1) * span - time.time()))
        _seal(journal, values)
        n += 1


def _ages(updates: list[tuple[float, int]], begin: float, seconds: float) -> list[float]:
    """Return the ages of sampled events at the time when they came into the tables."""
    ages = []
    for sample in range(int(seconds * 100)):
        at = begin + sample / 100
        ages.append(next(when for when, newest in updates if newest >= at * 1_000_000) - at)
    return ages


ROWS = {
    "spark_source": spark_source,
    "spark_replay": spark_replay,
    "spark_stream": spark_stream,
    "spark_stream_kills": spark_stream_kills,
}

GOALS = {
    "spark_replay": {"replayed_once": "100,000", "replayed_more": "0", "kills": "10"},
    "spark_stream": {
        "events_per_second": ">= 20,000",
        "p95_age_seconds": "< 5",
        "behind_at_the_end": "< 5",
    },
    "spark_stream_kills": {"counted": "2,000,000", "kills": "50"},
}
