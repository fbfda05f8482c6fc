"""The row about the limit: CPU of the broker per job, against a lower bound.

The bound is measured in the same run: the same frames through a loop that only forwards them
(`benchmarks.forward`), and the same rows into a store with the same tables, with the same number of
rows per commit. It includes no work of the broker itself: no checks, no order, no leases.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq

from benchmarks.system import ROOT, System, running
from eventmq import EventMQ
from eventmq.plugins.database import connect
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.schema import bucket_ddl, bucket_name, buckets, prepare
from eventmq.wire.batches import OutcomeRow, encode_batch, encode_outcomes, pack
from eventmq.wire.commands import PROTOCOL, Reply, Request
from eventmq.wire.sockets import Link, new_context, open_dealer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Jobs through `map`, jobs one at a time, and maximum number of jobs of a message.
_BULK, _SINGLES, _TOGETHER = 100_000, 2000, 1000

_HEADERS = "task:benchmarks.bench_app.nothing,content-type:msgpack"
_BODY = b"\x92\x90\x80"


def limit(figures: Figures) -> None:
    """CPU of the broker per job, many and one by one, against bare forwarding and bare SQLite."""
    with running() as system:
        app = EventMQ("bench", broker=system.address)
        nothing = app.task(name="benchmarks.bench_app.nothing")(_nothing)
        path = system.folder / "data" / FILE_NAME
        many, bulk = _many(system, app, nothing, path)
        one, single = _one_by_one(system, nothing, path, many)
        app.close()
    for name, cpu, rows, together in (("bulk", bulk, many, _TOGETHER), ("single", single, one, 1)):
        forward, store = _forwarding(rows, together), _storing(rows, together)
        floor = forward + store
        figures.add(**{
            f"{name}_us": cpu, f"{name}_floor_us": floor, f"{name}_forward_us": forward,
            f"{name}_sqlite_us": store, f"{name}_ratio": cpu / floor,
        })  # fmt: skip


def _nothing() -> None:
    """Do nothing."""


class _Rows(NamedTuple):
    """Content of a store: jobs before they ran, their outcomes, and bytes of events per job."""

    jobs: list[tuple[Any, ...]]
    outcomes: list[tuple[Any, ...]]
    event_bytes: float


def _read(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(connect(path, busy=5.0, read_only=True)) as db:
        return db.execute(sql).fetchall()


def _event_bytes(path: Path) -> int:
    [(size,)] = _read(path, "SELECT coalesce(sum(length(body)), 0) FROM events")
    return int(size)


def _many(system: System, app: EventMQ, nothing: Any, path: Path) -> tuple[_Rows, float]:
    """Submit and drain many; return their rows, and the broker's microseconds per job."""
    nothing.delay()
    before = system.cpu()
    arguments: list[tuple[()]] = [()] * _BULK
    nothing.map(arguments)
    jobs = _read(path, "SELECT * FROM jobs")[-_BULK:]
    worker = system.start_worker(2)
    while any(row["waiting"] + row["running"] for row in app.ask("queues")):
        time.sleep(0.05)
    cpu = system.cpu() - before
    with closing(connect(path, busy=5.0, read_only=True)) as db:
        names = [bucket_name(bucket) for bucket in buckets(db)]
    outcomes = [row for name in names for row in _read(path, f"SELECT * FROM {name}")]  # noqa: S608 - our own names
    assert worker.poll() is None
    rows = _Rows(jobs, outcomes[-_BULK:], _event_bytes(path) / _BULK)
    assert len(rows.jobs) == len(rows.outcomes) == _BULK
    return rows, cpu / _BULK * 1e6


def _one_by_one(system: System, nothing: Any, path: Path, many: _Rows) -> tuple[_Rows, float]:
    """Do the same with jobs that are submitted and awaited one at a time."""
    before, events = system.cpu(), _event_bytes(path)
    for _ in range(_SINGLES):
        nothing.delay().get(timeout=10)
    size = (_event_bytes(path) - events) / _SINGLES
    cpu = (system.cpu() - before) / _SINGLES * 1e6
    return _Rows(many.jobs[:_SINGLES], many.outcomes[:_SINGLES], size), cpu


# The floor


def _forwarding(rows: _Rows, together: int) -> float:
    """Return microseconds of CPU per job for forwarding its messages, several jobs at a time."""
    ids = [row[1] for row in rows.jobs]
    command = [sys.executable, "-m", "benchmarks.forward"]
    loop = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT)
    assert loop.stdin is not None
    assert loop.stdout is not None
    context = new_context()
    client, worker = (open_dealer(context, address) for address in loop.stdout.readline().split())
    for link in (client, worker):
        assert link.socket.poll(10_000, zmq.POLLOUT), "no connection"
    worker.send([b"", PROTOCOL, b"READY", b"1"])
    loop.stdout.readline()
    for start in range(0, len(ids), together):
        some = ids[start : start + together]
        request, reply = _messages(some)
        client.send(request)
        _await(worker)
        worker.send(reply)
        _await(client)  # the receipt
        _await(client)  # the result
    loop.stdin.close()
    seconds = float(loop.stdout.read())
    loop.wait(10)
    loop.stdout.close()
    for link in (client, worker):
        link.close(0)
    context.term()
    return seconds / len(ids) * 1e6


def _messages(ids: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
    """Return the messages of a client and of a worker for some jobs."""
    outcomes = [OutcomeRow(i, 1, 1.8e9, 1e-6, "msgpack", b"\xc0") for i in range(len(ids))]
    reply = Reply("1", encode_outcomes(outcomes), ids[0], "chunk:1").frames()
    if len(ids) == 1:
        return Request(ids[0], "default", _HEADERS, _BODY).frames(), reply
    body = encode_batch([("default", _HEADERS)], [(job_id, 0, _BODY) for job_id in ids])
    return Request(ids[0], "", f"batch:{len(ids)}", body).frames(), reply


def _await(link: Link) -> None:
    while link.receive() is None:
        assert link.socket.poll(10_000), "no message came"


def _storing(rows: _Rows, together: int) -> float:
    """Return microseconds of CPU per job for writing its rows, several jobs per commit."""
    with (
        tempfile.TemporaryDirectory(prefix="eventmq-floor-") as folder,
        closing(connect(Path(folder) / FILE_NAME, busy=0.0)) as db,
    ):
        prepare(db, "the floor")
        db.execute(bucket_ddl(1))
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -32768"):
            db.execute(f"PRAGMA {pragma}")
        begin = time.process_time()
        _write(db, rows, together)
        seconds = time.process_time() - begin
    return seconds / len(rows.jobs) * 1e6


def _write(db: apsw.Connection, rows: _Rows, together: int) -> None:
    """Admit all jobs; then lease and end them."""
    jobs, outcomes = (
        f"INSERT INTO {table} VALUES ({', '.join('?' * len(some[0]))})"  # noqa: S608 - our own names
        for table, some in (("jobs", rows.jobs), (bucket_name(1), rows.outcomes))
    )
    events = "INSERT INTO events VALUES (?, ?, 0, ?)"
    body = b"x" * int(rows.event_bytes * together / 2)
    leases = pack([(seq, 1, job_id) for seq, job_id, *_ in rows.jobs[:together]])
    starts = range(0, len(rows.jobs), together)
    for start in starts:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(jobs, rows.jobs[start : start + together])
        db.execute(events, (start + 1, together, body))
        db.execute("COMMIT")
    ends = sorted(rows.outcomes)
    for number, start in enumerate(starts):
        some = rows.jobs[start : start + together]
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO chunks VALUES ('session', ?, 1, ?, 0)", (number, leases))
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM chunks WHERE number = ?", (number,))
        db.execute("DELETE FROM jobs WHERE seq BETWEEN ? AND ?", (some[0][0], some[-1][0]))
        db.executemany(outcomes, ends[start : start + together])
        db.execute(events, (len(rows.jobs) + start + 1, together, body))
        db.execute("COMMIT")


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"limit": limit}

#: Name -> figure -> its goal.
GOALS: dict[str, dict[str, str]] = {"limit": {"bulk_ratio": "<= 2", "single_ratio": "<= 2"}}
