"""Starts `broker_process` on free ports, kills it, and starts it again where it was."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.raw_peer import DEADLINE, RawPeer

__all__ = ["BrokerProcess", "Connect", "StartBroker"]

PROGRAM = Path(__file__).with_name("broker_process.py")
PORTS = ("main", "worker", "admin", "publish", "subscribe")
ROOT = Path(__file__).resolve().parents[2]


class BrokerProcess:
    """A broker; ``start`` again after ``kill`` uses the same addresses and the same directory."""

    def __init__(self, folder: Path, limits: dict[str, Any], keys: Path | None = None) -> None:
        self.addresses = dict.fromkeys(PORTS, "tcp://127.0.0.1:0")
        self._folder = folder
        self._limits = limits
        self._keys = keys
        self._log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __getitem__(self, port: str) -> str:
        return self.addresses[port]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait for its line."""
        command = [sys.executable, str(PROGRAM), str(self._folder / "data")]
        command += [json.dumps(self.addresses), json.dumps(self._limits)]
        command += [str(self._keys)] if self._keys else []
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONPATH": path}
            )
        self.addresses = json.loads(self._line())

    def _line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], DEADLINE)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            self.kill()
            raise AssertionError(f"the broker did not start:\n{self.log()}")
        return line

    def log(self) -> str:
        """Return what it logged."""
        return self._log.read_text(encoding="utf-8")

    def wait(self) -> int:
        """Wait for its end and return the exit status."""
        assert self._process is not None
        status = self._process.wait(DEADLINE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def stop(self) -> None:
        """Ask it to end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                status = self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            assert status == 0, self.log()

    def rss(self) -> int:
        """Return the bytes of memory that it has."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


#: Limits by name -> a broker that was started.
StartBroker = Callable[..., BrokerProcess]

#: Address, perhaps a routing id -> a raw peer.
Connect = Callable[..., RawPeer]
