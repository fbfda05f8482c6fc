"""The row about the store in PostgreSQL: rates, commits, CPU by part, recovery.

One broker, one worker of two children and one client, on the machine of the server, which has its
own defaults: a receipt comes after the commit is on disk, and every result is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import timed
from benchmarks.peers.measure import descendants_of
from benchmarks.peers.servers import Server, postgresql, server_versions
from benchmarks.system import System
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS", "cpu_seconds"]

#: Jobs submitted and drained at once, jobs waiting while a broker starts, and seconds of `flow`.
_SIZES = (100_000, 1_000_000, 30)

#: Jobs of one ``map`` of `flow`, and the maximum number that wait.
_PART, _PARTS = 10_000, 5

#: Jobs that are submitted one by one, each after the receipt of the one before.
_SINGLES = 1000


class _Broker(System):
    """A system whose broker keeps jobs in PostgreSQL and reports how long that took."""

    program = "benchmarks.timed"

    def __init__(self, folder: Path, server: Server) -> None:
        super().__init__(folder)
        self.server = server
        self.times = folder / "times.json"
        self.client: EventMQ | None = None
        os.environ[timed.FILE] = str(self.times)

    def start(self) -> None:
        """Start the broker, and wait until it owns the store or stands by."""
        self.start_broker("--store", self.server.url)
        self.client = self.client or EventMQ("bench", broker=self.address)

    def stop(self) -> None:
        """Stop everything."""
        super().stop()
        self.broker = None

    def task(self, function: Callable[..., None], **options: Any) -> Any:
        """Return a task of `benchmarks.bench_app`, or one without a worker, for this client."""
        assert self.client is not None
        return self.client.task(name=f"benchmarks.bench_app.{function.__name__}", **options)(
            function
        )

    def unfinished(self, queue: str = "default") -> int:
        """Return how many jobs of a queue wait or run."""
        assert self.client is not None
        rows = [row for row in self.client.ask("queues") if row["name"] == queue]
        return sum(row["waiting"] + row["running"] for row in rows)

    def drained(self) -> float:
        """Wait until every outcome is stored; return the time at which that was noticed."""
        end = time.monotonic() + 600.0
        while self.unfinished():
            assert time.monotonic() < end, "the queue is not drained"
            time.sleep(0.02)
        return time.perf_counter()


@contextlib.contextmanager
def _running() -> Iterator[_Broker]:
    folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    folder.chmod(0o755)  # the server has a user of its own
    (folder / "server").mkdir()
    try:
        with postgresql(folder / "server") as server:
            system = _Broker(folder, server)
            try:
                system.start()
                yield system
            finally:
                if system.client is not None:
                    system.client.close()
                system.stop()
    finally:
        os.environ.pop(timed.FILE, None)
        shutil.rmtree(folder, ignore_errors=True)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds of processes and all their descendants, including ended ones."""
    total = 0
    for pid in descendants_of(pids):
        with contextlib.suppress(OSError):  # it has ended, and its parent has its time
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def _submit(task: Any, n: int, *arguments: Any) -> float:
    """Submit ``n`` jobs by ``map``; return the seconds until the last receipt."""
    many = [arguments] * n
    begin = time.perf_counter()
    task.map(many)
    return time.perf_counter() - begin


def _shares(seconds: Sequence[float], name: str) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    ordered = sorted(seconds)
    return {
        f"{name}_p50_ms": ordered[len(ordered) // 2] * 1000,
        f"{name}_p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
    }


def postgres(figures: Figures) -> None:
    """Jobs in PostgreSQL: lives/s, drain, bulk, commits, CPU by part, recovery with a million."""
    bulk, waiting, seconds = figures.sizes or _SIZES
    figures.more |= {"store": "postgresql", **server_versions(["postgresql"])}
    with _running() as system:
        task = system.task(nothing)
        task.delay()  # connected, and known to the store
        figures.add(bulk_per_second=bulk / _submit(task, bulk))
        system.start_worker(2)
        begin = time.perf_counter()
        figures.add(drain_per_second=bulk / (system.drained() - begin))
        lasted = _flow(figures, system, task, min(bulk, _PART), seconds)
        figures.add(**_shares([_receipt(task) for _ in range(_SINGLES)], "receipt"))
        system.drained()
        system.stop()
        _commits(figures, timed.read(system.times), *lasted)
        system.start()
        _recovery(figures, system, task, waiting)


def _receipt(task: Any) -> float:
    begin = time.perf_counter()
    task.delay()
    return time.perf_counter() - begin


def nothing() -> None:
    """Do nothing."""


def _flow(
    figures: Figures, system: _Broker, task: Any, part: int, seconds: int
) -> tuple[float, float, int]:
    """Submit and run at the same time; return begin and end as Unix times, and the jobs."""
    _submit(task, part)
    system.drained()
    assert system.broker is not None
    groups = {
        "client": [os.getpid()],
        "broker": [system.broker.pid],
        "server": [system.server.pid],
        "worker": [worker.pid for worker in system.workers],
    }
    before = {name: _cpu(name, pids) for name, pids in groups.items()}
    begin, wall, sent = time.perf_counter(), time.time(), 0
    while time.perf_counter() - begin < seconds:
        _submit(task, part)
        sent += part
        while system.unfinished() > _PARTS * part:
            time.sleep(0.005)
    lasted = system.drained() - begin
    spent = {name: _cpu(name, pids) - before[name] for name, pids in groups.items()}
    figures.add(
        lives_per_second=sent / lasted,
        **{f"{name}_cpu_us": value / sent * 1e6 for name, value in spent.items()},
        cpu_us=sum(spent.values()) / sent * 1e6,
    )
    return wall, wall + lasted, sent


def _cpu(name: str, pids: Sequence[int]) -> float:
    """Return the CPU seconds of a part; the client has started all the others."""
    return time.process_time() if name == "client" else cpu_seconds(pids)


def _commits(figures: Figures, times: timed.Times, begin: float, end: float, jobs: int) -> None:
    """Add how long commits took, those of `_flow` and of jobs one by one, and jobs per commit."""
    together = [took for at, took in times.commits if begin <= at <= end]
    single = [took for at, took in times.commits if at > end]
    figures.add(
        **_shares(together, "commit"),
        **_shares(single, "commit_single"),
        jobs_per_commit=jobs / len(together),
    )


def _recovery(figures: Figures, system: _Broker, task: Any, waiting: int) -> None:
    """Add how long a broker takes after kill -9 to load waiting jobs, from its claim on."""
    waits = system.task(later, queue="later")
    for start in range(0, waiting, 50_000):
        _submit(waits, min(50_000, waiting - start), "x" * 230)
    killed = time.time()
    system.kill_broker()
    system.start()
    _receipt(task)
    receipt = time.time()
    assert system.unfinished("later") == waiting, "jobs are lost"
    system.stop()
    times = timed.read(system.times)
    assert killed < times.claim < times.ready, "it was not the broker of this start"
    figures.add(
        recovery_s=times.ready - times.claim,
        recovery_read_s=times.opened - times.claim,
        killed_to_receipt_s=receipt - killed,
    )


def later(text: str) -> None:
    """Wait in a queue without workers."""


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"postgres": postgres}

#: Name -> figure -> its goal on two cores.
GOALS: dict[str, dict[str, str]] = {
    "postgres": {"lives_per_second": ">= 20,000", "cpu_us": "<= 48", "recovery_s": "< 1"},
}
