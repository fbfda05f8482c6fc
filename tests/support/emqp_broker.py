"""Starts brokers on free ports, kills them, and restarts them at the same address."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.fork_server import Forked, ForkServer
from tests.support.raw_peer import DEADLINE, RawPeer

__all__ = ["BrokerProcess", "Connect", "StartBroker"]

PORTS = ("main", "worker", "admin", "publish", "subscribe")


class BrokerProcess:
    """A broker; ``start`` again after ``kill`` uses the same addresses and the same directory."""

    def __init__(self, folder: Path, limits: dict[str, Any], keys: Path | None = None) -> None:
        self.addresses = dict.fromkeys(PORTS, "tcp://127.0.0.1:0")
        self._folder = folder
        self._limits = limits
        self._keys = keys
        self._log = folder / "broker.log"
        self._process: Forked | None = None

    def __getitem__(self, port: str) -> str:
        return self.addresses[port]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait for its line with the addresses."""
        arguments = [str(self._folder / "data"), json.dumps(self.addresses)]
        arguments += [json.dumps(self._limits), *([str(self._keys)] if self._keys else [])]
        with self._log.open("ab") as log:
            self._process = ForkServer.running().start(arguments, log.fileno())
        self.addresses = json.loads(self._line())

    def _line(self) -> bytes:
        assert self._process is not None
        readable, _, _ = select.select([self._process.stdout], [], [], DEADLINE)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            self.kill()
            raise AssertionError(f"the broker did not start:\n{self.log()}")
        return line

    def log(self) -> str:
        """Return its log."""
        return self._log.read_text(encoding="utf-8")

    def wait(self) -> int:
        """Wait for its end and return the exit status."""
        assert self._process is not None
        status = self._process.wait(DEADLINE)
        self._process = None
        return status

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self.wait()

    def stop(self) -> None:
        """End it with SIGTERM."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                status = self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            assert status == 0, self.log()

    def cpu(self) -> float:
        """Return its CPU seconds."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def rss(self) -> int:
        """Return its resident bytes."""
        return self._memory("VmRSS:")

    def peak(self) -> int:
        """Return its peak of resident bytes."""
        return self._memory("VmHWM:")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024


#: Limits by name -> a started broker.
StartBroker = Callable[..., BrokerProcess]

#: Address, and optionally a routing id -> a raw peer.
Connect = Callable[..., RawPeer]
