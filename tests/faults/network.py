"""Network faults between real processes: confirmed jobs, executed jobs, time of recovery."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.faults.load import Load
from tests.faults.proxy import MODES, Proxy
from tests.support.system import Process, System, until

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["FAULTS", "Network", "Outcome"]

#: Faults: modes of the proxy, and processes that are stopped.
FAULTS = (*MODES, "stop broker", "stop worker")

#: Heartbeats are frequent, so that a fault of some seconds exceeds the timeout.
SETTINGS = {"EVENTMQ_HEARTBEAT_INTERVAL": "0.5", "EVENTMQ_HEARTBEAT_TIMEOUT": "2"}

#: Seconds after the end of a fault within which a new job must be done.
SERVING = 5.0

#: Jobs that the load submits at a time.
PART = 50

#: Confirmed jobs that may wait; few, so that a new one is done soon even on a slow machine.
AHEAD = 200


class Outcome(NamedTuple):
    """Result of one fault, with the seconds until a new job was done."""

    fault: str
    lasted: float
    served: float


class Network:
    """Broker, with a client and a worker that reach it through a proxy.

    Args:
        folder: Folder of the processes and of the load's records.
        seed: Seed of the proxy's delays.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        os.environ.update(SETTINGS)
        self.system = System(folder)
        self.broker = self.system.broker()
        self.proxy = Proxy(int(self.system.address.rpartition(":")[2]), seed)
        self.system.address = f"tcp://127.0.0.1:{self.proxy.port}"
        self.worker = self.system.worker()
        self.load = Load(self.system, part=PART, ahead=AHEAD, submit_timeout=30.0)

    def __enter__(self) -> Self:
        self.load.start()
        return self

    def inject(self, fault: str, seconds: float) -> Outcome:
        """Inject a fault for a while; return how soon a new job was done afterwards."""
        if fault.startswith("stop"):
            process: Process = self.broker if fault.endswith("broker") else self.worker
            process.send_signal(signal.SIGSTOP)
            self.load.last(seconds)
            process.send_signal(signal.SIGCONT)
        else:
            self.proxy.fault(fault)
            self.load.last(seconds)
            self.proxy.heal()
        start = time.monotonic()
        self.load.wait_for_progress(f"after {fault}")
        return Outcome(fault, seconds, time.monotonic() - start)

    def finish(self) -> tuple[set[int], int]:
        """Finish the load; return which jobs are lost, and how many ran again."""
        self.load.stop()
        done = {str(number) for number in self.load.confirmed}
        until(lambda: done <= self.system.executed().keys(), "every confirmed job was executed")
        return self.load.compare(self.system.executed())

    def __exit__(self, *_: object) -> None:
        self.proxy.heal()
        self.broker.send_signal(signal.SIGCONT)
        self.worker.send_signal(signal.SIGCONT)
        self.load.stop()
        self.system.stop()
        self.proxy.close()
        for name in SETTINGS:
            del os.environ[name]
