"""One row against one peer in one process: ``python -m benchmarks.peers.measure PEER ROW FOLDER``.

The parent gives the server's address and the board's folder in the environment, and reads one line
of JSON from stdout: the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.board import FOLDER, Board
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.tasks import starts
from benchmarks.system import children

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from benchmarks.peers.catalog import Peer
    from benchmarks.peers.client import Client

__all__ = ["ROWS", "SECONDS", "SETTINGS", "SPAN", "descendants_of", "main"]

#: Seconds of a row that runs for a time, for which `Peer.drain` is chosen.
SPAN = 8.0

#: Environment variable with other seconds of a row.
SECONDS = "PEERS_SECONDS"

#: A job of a killed worker counts as lost after this multiple of the seconds, and this many more.
RECOVERY, LEAST_RECOVERY = 2.5, 5.0

#: Seconds within which a second worker must get a job while the first one is busy.
SECOND = 15.0

#: Seconds before a job is due during which its client polls: a timer of asyncio may be late.
_SPIN = 0.003

#: Figures that describe the measurement and are not compared.
SETTINGS = frozenset({"jobs", "patience_s", "rate"})

ROOT = Path(__file__).resolve().parents[2]


class Bench:
    """A peer under measurement: its client, its workers, and the records of its jobs."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.folder = folder
        self.board = Board(folder)
        self.client: Client = importlib.import_module(peer.app).client()
        self.workers: list[subprocess.Popen[bytes]] = []
        #: Seconds of work.
        self.span = float(os.environ.get(SECONDS, SPAN))
        #: Number of jobs that take about that long.
        self.drain = max(100, int(peer.drain * self.span / SPAN) // 100 * 100)

    @contextlib.asynccontextmanager
    async def working(self, processes: int) -> AsyncIterator[None]:
        """Run workers that have proved that they run jobs."""
        self.start(processes)
        await self.proved()
        yield

    def start(self, processes: int) -> None:
        """Start workers, in a process group of their own."""
        with (self.folder / "workers.log").open("ab") as log:
            self.workers.append(subprocess.Popen(
                self.peer.command(processes), stdout=log, stderr=log, cwd=ROOT,
                start_new_session=True,
            ))  # fmt: skip

    async def proved(self) -> None:
        """Wait until a job has run, and forget it."""
        before = self.board.count()
        await done(self.client.submit("nothing"))
        await self.until(before + 1)
        await asyncio.sleep(0.5)  # until the other processes have started too
        self.board.clear()

    async def until(self, n: int, seconds: float = 120.0) -> float:
        """Wait until ``n`` jobs have started; return the time at which that was noticed."""
        end = time.monotonic() + seconds
        while self.board.count() < n:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.board.count()} of {n} jobs after {seconds} s")
            await asyncio.sleep(0.005)
        return time.perf_counter()

    def stop(self) -> None:
        """End the workers with all their processes."""
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGTERM)
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # children that outlived it


async def done(result: Awaitable[Any] | Any) -> Any:
    """Await a result if it is awaitable."""
    return await result if hasattr(result, "__await__") else result


def share(values: list[float], part: float) -> float:
    """Return a quantile of sorted values, in ms."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1000


async def enqueue_one(bench: Bench) -> dict[str, float]:
    """Submit one by one from one thread, each when the library's call has returned."""
    submit = bench.client.submit
    await done(submit("nothing"))
    begin, n = time.perf_counter(), 0
    while (now := time.perf_counter()) - begin < bench.span / 2:
        for _ in range(50):
            await done(submit("nothing"))
        n += 50
    return {"per_second": n / (now - begin)}


async def enqueue_bulk(bench: Bench) -> dict[str, float]:
    """Submit many in the fastest documented way: as many as ``drain`` uses."""
    await done(bench.client.submit("nothing"))
    n = bench.drain
    begin = time.perf_counter()
    await done(bench.client.submit_many(n))
    return {"per_second": n / (time.perf_counter() - begin)}


async def drain(bench: Bench) -> dict[str, float]:
    """Run waiting jobs with two worker processes, from the first start to the last."""
    n = bench.drain
    await done(bench.client.submit_many(n))
    bench.start(2)
    await bench.until(1)
    first, begin = bench.board.count(), time.perf_counter()
    return {"per_second": (n - first) / (await bench.until(n) - begin)}


async def flow(bench: Bench) -> dict[str, float]:
    """Submit and run jobs at the same time, with two worker processes."""
    async with bench.working(2):
        return {"per_second": await _flow(bench, bench.span)}


async def _flow(bench: Bench, seconds: float) -> float:
    """Keep about two batches waiting; return jobs per second from begin to the last start."""
    part = max(100, bench.drain // 20)
    begin, sent = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        await done(bench.client.submit_many(part))
        sent += part
        while sent - bench.board.count() > 2 * part:  # noqa: ASYNC110 - other processes count
            await asyncio.sleep(0.002)
    return sent / (await bench.until(sent) - begin)


async def call(bench: Bench) -> dict[str, float]:
    """Submit one job and wait for its result, one at a time."""
    async with bench.working(2):
        for number in range(30):
            assert await done(bench.client.call(number)) == number
        times: list[float] = []
        begin = time.perf_counter()
        while time.perf_counter() - begin < bench.span / 2:
            started = time.perf_counter()
            await done(bench.client.call(7))
            times.append(time.perf_counter() - started)
        return {"p50_ms": share(times, 0.5), "p99_ms": share(times, 0.99)}


async def latency_under_load(bench: Bench) -> dict[str, float]:
    """Start delay at half of the system's own peak, two worker processes."""
    async with bench.working(2):
        alone = await _one_by_one(bench)
        rate = min(await _flow(bench, bench.span / 2), alone) / 2
        bench.board.clear()
        before = len(bench.board.delays())
        n = await _paced(rate, bench.span, lambda due: bench.client.submit("stamp", due))
        await bench.until(n)
        delays = bench.board.delays()
        assert len(delays) >= before + n
        stamped = [delay for delay in delays if delay > 0]  # the others were not stamped
        return {"rate": rate, "p50_ms": share(stamped, 0.5), "p99_ms": share(stamped, 0.99)}


async def _one_by_one(bench: Bench) -> float:
    """Return the rate of jobs submitted one by one, the limit of any paced submission."""
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < 1.0:
        await done(bench.client.submit("nothing"))
        n += 1
    rate = n / (time.perf_counter() - begin)
    await bench.until(n)
    bench.board.clear()
    return rate


async def _paced(
    rate: float, seconds: float, submit: Callable[[float], Awaitable[None] | None]
) -> int:
    """Submit at a rate, whether or not the system keeps up; return the number of jobs.

    A job carries the time at which it was due, so delays of the client itself count as well.
    """
    n = int(rate * seconds)
    begin = time.time()
    for number in range(n):
        due = begin + number / rate
        while (early := due - time.time()) > 0:  # noqa: ASYNC110 - a pace, nobody sets an event
            await asyncio.sleep(max(0.0, early - _SPIN))
        await done(submit(due))
    return n


async def mixed(bench: Bench) -> dict[str, float]:
    """Start delay of short jobs among one percent of jobs of 1 s, four processes, 100/s."""
    async with bench.working(4):
        sent = 0

        def submit(due: float) -> Awaitable[None] | None:
            nonlocal sent
            sent += 1
            if sent % 100 == 50:
                return bench.client.submit("hold", 1.0)
            return bench.client.submit("stamp", due)

        n = await _paced(100.0, 2 * bench.span, submit)
        await bench.until(n - n // 100)
        delays = [delay for delay in bench.board.delays() if delay > 0]
        return {"p50_ms": share(delays, 0.5), "p99_ms": share(delays, 0.99)}


async def memory(bench: Bench) -> dict[str, float]:
    """Resident memory of server and workers, idle and after jobs."""
    async with bench.working(2):
        idle = _resident(bench)
        for _ in range(5):
            await done(bench.client.submit_many(bench.drain))
            await bench.until(bench.drain)
            bench.board.clear()
        return {"idle_mib": idle, "after_mib": _resident(bench), "jobs": 5.0 * bench.drain}


def _resident(bench: Bench) -> float:
    """Return the proportional share of memory of server and workers in MiB.

    This includes the processes of their sessions and their descendants: those of PostgreSQL have
    sessions of their own.
    """
    servers = map(int, os.environ["PEERS_SERVER"].split())
    groups = {worker.pid for worker in bench.workers} | set(servers)
    family = descendants_of(groups)
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            if session in groups or int(folder.name) in family:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def descendants_of(pids: Iterable[int]) -> set[int]:
    """Return these processes and all their descendants."""
    descendants: set[int] = set()
    generation = set(pids)
    while generation:
        descendants |= generation
        generation = {child for pid in generation for child in _children(pid)} - descendants
    return descendants


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has ended
        return children(pid)
    return []


async def recovery(bench: Bench) -> dict[str, float]:
    """Kill the process that runs a job, and its descendants, until the job runs elsewhere."""
    async with bench.working(1):
        await done(bench.client.submit("hold", 60.0))
        while not starts(bench.folder):  # noqa: ASYNC110 - another process starts
            await asyncio.sleep(0.01)
        await _second(bench)
        os.killpg(bench.workers[0].pid, signal.SIGKILL)
        killed = time.time()
        patience = max(LEAST_RECOVERY, RECOVERY * bench.span)
        while time.time() - killed < patience:
            again = starts(bench.folder)[1:]
            if again:
                return {"seconds": again[0][1] - killed, "patience_s": patience}
            await asyncio.sleep(0.01)
        return {"seconds": float("inf"), "patience_s": patience}


async def _second(bench: Bench) -> None:
    """Start another worker, and wait until a process has run its first job."""
    before, end = bench.board.processes(), time.monotonic() + SECOND
    bench.start(1)
    while bench.board.processes() == before and time.monotonic() < end:
        await done(bench.client.submit("nothing"))
        await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)


#: Name -> the row.
ROWS = {
    row.__name__: row
    for row in (
        enqueue_one, enqueue_bulk, drain, flow, call, latency_under_load, mixed, memory,
        recovery,
    )
}  # fmt: skip


async def measured(peer: Peer, row: str, folder: Path) -> dict[str, float]:
    """Run a row and return its figures."""
    bench = Bench(peer, folder)
    await done(bench.client.open())
    try:
        return await ROWS[row](bench)
    finally:
        bench.stop()
        await done(bench.client.close())


def main() -> None:
    """Run one row and print its figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name, row = sys.argv[1:]
    figures = asyncio.run(measured(PEERS[name], row, Path(os.environ[FOLDER])))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
