"""The rows about the outbox: jobs that are written with transactions, and relayed by whom.

PostgreSQL has its own defaults, so a commit is synced, and the broker gives a receipt after its
commit is on disk. The relays, their broker and the server are on one machine. A broker with an
inbox has its store in the same database.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from benchmarks.peers.servers import Server, postgresql, server_versions
from benchmarks.system import System
from eventmq import EventMQ
from eventmq_contrib import outbox as outbox_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Rows that wait for a relay, and rows of one transaction that writes them.
_ROWS, _TOGETHER = 50_000, 500

#: Transactions of one row each, with and without a relay at work.
_SINGLES = 500


#: Seconds in which a broker has nothing to do, and calls one after the other.
_IDLE, _CALLS = 10.0, 500


class _System(System):
    def start_relay(self, url: str) -> None:
        """Start a relay."""
        relay, _ = self._start("outbox", "relay", "--database", url, "--broker", self.address)
        self.workers.append(relay)


def outbox(figures: Figures) -> None:
    """Rows/s from PostgreSQL to receipts by one relay and by two, and the time from a commit."""
    rows = figures.sizes[0] if figures.sizes else _ROWS
    with _database(figures) as (server, connection, folder), EventMQ("bench") as app:
        task = app.task(name="benchmarks.bench_app.nothing")(nothing)
        for relays in (1, 2):
            system = _System(folder / f"relays{relays}")
            system.folder.mkdir()
            try:
                system.start_broker()
                begin = time.perf_counter()
                _write(connection, task, rows)
                written = time.perf_counter() - begin
                began = time.perf_counter()
                for _ in range(relays):
                    system.start_relay(server.url)
                started = time.perf_counter()
                left = _waiting(connection)
                _empty(connection)
                # Rows that were sent before all relays were ready do not count.
                per_second = left / (time.perf_counter() - started)
                if relays == 1:
                    figures.add(written_per_second=rows / written, per_second=per_second)
                    figures.add(start_s=started - began, **_delays(connection, task))
                else:
                    figures.add(two_relays_per_second=per_second)
                with EventMQ("bench", broker=system.address) as client:
                    stored = sum(row["waiting"] for row in client.ask("queues"))
                assert stored == rows + (_SINGLES if relays == 1 else 0), "a row is not a job"
            finally:
                system.stop()


def inbox(figures: Figures) -> None:
    """Rows/s that a broker itself reads; its idle CPU and ``call``, without and with an inbox."""
    rows = figures.sizes[0] if figures.sizes else _ROWS
    with _database(figures) as (server, connection, folder), EventMQ("bench") as app:
        task = app.task(name="benchmarks.bench_app.nothing")(nothing)
        for name, more in (("without", []), ("with", ["--store-option", "inbox=true"])):
            system = System(folder / name)
            system.folder.mkdir()
            try:
                system.start_broker("--store", server.url, *more)
                system.start_worker(1)
                figures.add(**{f"{name}_{key}": value for key, value in _costs(system).items()})
                system.stop_workers()
                if more:
                    for _ in range(rows):
                        outbox_table.delay(connection, task)
                    cpu, begin = system.cpu(), time.perf_counter()
                    connection.commit()  # at once, so that the broker begins with all of them
                    _empty(connection)
                    per_second = rows / (time.perf_counter() - begin)
                    cpu_us = (system.cpu() - cpu) / rows * 1e6
                    figures.add(per_second=per_second, broker_cpu_us_per_row=cpu_us)
            finally:
                system.stop()


def _costs(system: System) -> dict[str, float]:
    """Return the time of a call, and the CPU of a broker that has nothing to do."""
    with EventMQ("bench", broker=system.address) as client:
        task = client.task(name="benchmarks.bench_app.nothing")(nothing)
        seconds = []
        for _ in range(_CALLS):
            begin = time.perf_counter()
            task.call(timeout=10)
            seconds.append(time.perf_counter() - begin)
    cpu = system.cpu()
    time.sleep(_IDLE)
    percent = (system.cpu() - cpu) / _IDLE * 100
    return {"call_p50_ms": statistics.median(seconds) * 1000, "idle_cpu_percent": percent}


@contextlib.contextmanager
def _database(figures: Figures) -> Iterator[tuple[Server, psycopg.Connection, Path]]:
    """Yield a server, a connection to its outbox table, and a folder."""
    figures.more |= {**server_versions(["postgresql"])}
    folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    folder.chmod(0o755)  # the server has a user of its own
    (folder / "server").mkdir()
    try:
        with postgresql(folder / "server") as server, _connect(server.url) as connection:
            for statement in outbox_table.DDL["postgresql"]:
                connection.execute(statement)
            connection.commit()
            yield server, connection, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _connect(url: str) -> psycopg.Connection:
    """Return a connection to a server that may still be starting."""
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        with contextlib.suppress(psycopg.OperationalError):
            return psycopg.connect(url)
        time.sleep(0.05)
    return psycopg.connect(url)


def nothing() -> None:
    """Do nothing."""


def _write(connection: psycopg.Connection, task: object, rows: int) -> None:
    for first in range(0, rows, _TOGETHER):
        for _ in range(min(_TOGETHER, rows - first)):
            outbox_table.delay(connection, task)
        connection.commit()


def _waiting(connection: psycopg.Connection) -> int:
    found = connection.execute(f"SELECT count(*) FROM {outbox_table.TABLE}").fetchone()  # noqa: S608
    connection.rollback()
    assert found is not None
    return int(found[0])


def _empty(connection: psycopg.Connection) -> None:
    """Wait until all rows are sent."""
    end = time.monotonic() + 300.0
    while _waiting(connection):
        assert time.monotonic() < end, "the relay does not end"
        time.sleep(0.005)


def _delays(connection: psycopg.Connection, task: object) -> dict[str, float]:
    """Return the time from a commit until the row was sent and deleted, one row at a time."""
    seconds = []
    for _ in range(_SINGLES):
        outbox_table.delay(connection, task)
        connection.commit()
        begin = time.perf_counter()
        while _waiting(connection):
            pass
        seconds.append(time.perf_counter() - begin)
    seconds.sort()
    return {
        "commit_to_sent_p50_ms": seconds[len(seconds) // 2] * 1000,
        "commit_to_sent_p99_ms": seconds[len(seconds) * 99 // 100] * 1000,
    }


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"outbox": outbox, "inbox": inbox}

#: Name -> figure -> its goal on two cores.
GOALS: dict[str, dict[str, str]] = {"outbox": {"per_second": ">= 5,000"}}
