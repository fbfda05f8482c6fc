"""A broker and workers in processes of their own, on free ports and a temporary data directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["ROOT", "System", "children", "resident", "running"]

ROOT = Path(__file__).resolve().parent.parent


class System:
    """The running processes. ``address`` is the address for clients."""

    #: Module of the program ``eventmq``, and the app of workers, beats and gateways.
    program = "eventmq"
    app = "benchmarks.bench_app:app"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        #: Of all ports of the broker, by name.
        self.addresses: dict[str, str] = {}
        self.broker: subprocess.Popen[str] | None = None
        self.workers: list[subprocess.Popen[str]] = []

    def start_broker(self, *more: str) -> None:
        """Start the broker, at its previous address if it had one, and wait until it is ready."""
        bind = self.address or "tcp://127.0.0.1:0"
        self.broker, line = self._start(
            "broker", "--bind", bind, "--data-dir", str(self.folder / "data"), *more
        )
        words = [word.partition("=") for word in line.split() if "tcp://" in word]
        self.addresses = {name: address for name, _, address in words}
        self.address = words[0][2]

    def kill_broker(self) -> None:
        """Kill the broker, like a crash."""
        assert self.broker is not None
        self.broker.kill()
        self.broker.wait(30)
        if self.broker.stdout:
            self.broker.stdout.close()

    def start_worker(self, concurrency: int = 2, *more: str) -> subprocess.Popen[str]:
        """Start a prefork worker and wait until it is ready."""
        worker, _ = self._start(
            "worker", "-A", self.app, "--broker", self.address,
            "-c", str(concurrency), *more,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def start_beat(self) -> subprocess.Popen[str]:
        """Start a scheduler and wait until it is ready."""
        beat, _ = self._start("beat", "-A", self.app, "--broker", self.address)
        self.workers.append(beat)
        return beat

    def start_gateway(self, name: str, ports: int) -> list[str]:
        """Start a gateway with this app; return the addresses of its ports."""
        binds = ["--bind", "tcp://127.0.0.1:0", "--worker-bind", "tcp://127.0.0.1:0"][: 2 * ports]
        gateway, line = self._start(
            "gateway", name, "-A", self.app, "--broker", self.address, *binds
        )
        self.workers.append(gateway)
        return [word.partition("=")[2] for word in line.split() if "tcp://" in word]

    def _start(self, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        log = (self.folder / f"{arguments[0]}.log").open("a")
        process = subprocess.Popen(
            [sys.executable, "-m", self.program, *arguments],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
        )  # fmt: skip
        log.close()
        assert process.stdout is not None
        for line in process.stdout:
            if "ready" in line:
                return process, line
        raise RuntimeError(
            f"{arguments[0]} ended: {(self.folder / f'{arguments[0]}.log').read_text()}"
        )

    def rss(self, process: subprocess.Popen[str] | None = None) -> int:
        """Return the resident bytes of a process, of the broker by default."""
        process = process or self.broker
        assert process is not None
        return resident(process.pid)

    def cpu(self, process: subprocess.Popen[str] | None = None) -> float:
        """Return the CPU seconds that a process has used."""
        process = process or self.broker
        assert process is not None
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop_workers(self) -> None:
        """Stop all workers."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(30)
            if worker.stdout:
                worker.stdout.close()
        self.workers.clear()

    def stop(self) -> None:
        """Stop everything."""
        self.stop_workers()
        if self.broker is not None:
            self.broker.send_signal(signal.SIGTERM)
            self.broker.wait(30)
            if self.broker.stdout:
                self.broker.stdout.close()


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    pids = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        pids += [int(child) for child in path.read_text().split()]
    return sorted(pids)


@contextlib.contextmanager
def running(
    workers: int = 0,
    prepare: Callable[[Path], object] | None = None,
    ports: Sequence[str] = (),
) -> Iterator[System]:
    """Run a new system with a broker, and with a worker if it has children.

    ``prepare`` fills the data directory before the broker starts; ``ports`` are further arguments
    of the broker.
    """
    folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    system = System(folder)
    try:
        if prepare is not None:
            prepare(folder / "data")
        system.start_broker(*ports)
        if workers:
            system.start_worker(workers)
        yield system
    finally:
        system.stop()
        shutil.rmtree(folder, ignore_errors=True)
