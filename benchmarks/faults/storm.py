"""Repeated kill -9 under load, and the files with promised and executed jobs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.load import Load
from tests.support.system import Process, System, until

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Storm"]

#: Jobs that a client submits at a time.
PART = 500

#: Maximum number of waiting jobs: further ones are submitted as these end.
AHEAD = 20_000

#: Timeout of the end, in seconds.
TIMEOUT = 300.0


class Storm:
    """A broker and a worker with two children, which are killed, and a client.

    Args:
        folder: Folder of the processes, and of the oracle's files.
    """

    def __init__(self, folder: Path) -> None:
        self.system = System(folder)
        self.chance = random.Random()
        self.broker = self.system.broker()
        self.worker: Process = self.system.worker()
        self.load = Load(self.system, part=PART, ahead=AHEAD, submit_timeout=60.0)
        self.killed: Counter[str] = Counter()
        self.serving: list[float] = [0.0]
        self.failed = 0

    def __enter__(self) -> Self:
        self.load.start()
        return self

    # Kills

    def inject(self) -> None:
        """Kill one process at a random time, and start it again."""
        self.load.last(0.05 + self.chance.random() * 0.5)
        victim = self.chance.choice(("broker", "worker", "child", "child"))
        self.killed[victim] += 1
        if victim == "child":
            self._kill_child()
        elif victim == "worker":
            self.worker.kill9()
            self.worker = self.system.worker()
        else:
            self.broker.kill9()
            start = time.monotonic()
            self.broker = self.system.broker()
            self.load.app.ask("ping")
            self.serving.append(time.monotonic() - start)

    def _kill_child(self) -> None:
        """Kill the youngest process of the worker, since the first ones start others."""
        children = _descendants(self.worker.pid)
        if children:
            os.kill(self.chance.choice(children), signal.SIGKILL)

    # The end

    def finish(self) -> tuple[set[int], int]:
        """Wait for all jobs; return the lost confirmed jobs, and how many ran again."""
        self.load.stop()
        until(lambda: not self._waiting(), "all is done", TIMEOUT)
        kept, again = self.load.compare(self.system.executed())
        ids, job = self.load.confirmed, self.load.app.job
        failed = {number for number in kept if job(ids[number]).state == "failed"}
        self.failed = len(failed)
        return kept - failed, again

    def _waiting(self) -> int:
        rows = self.load.app.ask("queues")
        return sum(row["waiting"] + row["running"] + row["delayed"] for row in rows)

    def __exit__(self, *_: object) -> None:
        self.load.stop()
        self.system.stop()


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process that have no children."""
    below = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        direct = [int(text) for text in below.read_text().split()]
    except OSError:
        return []
    leaves: list[int] = []
    for child in direct:
        leaves += _descendants(child) or [child]
    return leaves
