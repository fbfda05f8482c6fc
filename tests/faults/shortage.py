"""Shortage of file descriptors: a broker with few of them, all of which other peers use."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.load import Load
from tests.faults.visitors import Visitors
from tests.support.system import System, until

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DESCRIPTORS", "FewDescriptors", "descriptors"]

#: Limit of the broker's descriptors.
DESCRIPTORS = 256

#: Visitors that stay at a time: more than the broker has descriptors for.
CROWD = DESCRIPTORS + 40

#: Jobs that the load submits at a time, and jobs that may wait; many, to move the log often.
PART, AHEAD = 500, 2000


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only counted


class FewDescriptors:
    """Broker with few descriptors, visitors that use all of them, and a load.

    Args:
        folder: Folder of the processes and of the load's records.
    """

    def __init__(self, folder: Path) -> None:
        self.system = System(folder)
        limit = f'ulimit -n {DESCRIPTORS}; exec "$@"'
        self.broker = self.system.broker(under=("sh", "-c", limit, "sh"))
        self.before = descriptors(self.broker.pid)
        self.worker = self.system.worker()
        self.visitors = Visitors(self.system.address, max_staying=CROWD)
        self.load = Load(self.system, part=PART, ahead=AHEAD, submit_timeout=30.0)

    def __enter__(self) -> Self:
        self.load.start()
        return self

    def inject(self, seconds: float) -> float:
        """Use up all descriptors for a while; return the seconds until a new peer is served.

        Peers that were connected before are served all the time.
        """
        for _ in range(CROWD):
            self.visitors.come("mute")
        until(lambda: descriptors(self.broker.pid) >= DESCRIPTORS - 1, "no descriptor is left")
        self.load.last(seconds)
        self.load.wait_for_progress("without a descriptor")
        self.visitors.leave()
        start = time.monotonic()
        self.system.app(submit_timeout=30.0).ask("ping")
        return time.monotonic() - start

    def finish(self) -> tuple[set[int], int]:
        """Finish the load; return which confirmed jobs are lost, and how many ran again."""
        self.load.stop()
        done = {str(number) for number in self.load.confirmed}
        until(lambda: done <= self.system.executed().keys(), "every confirmed job was executed")
        assert self.broker.poll() is None, "the broker has ended"
        return self.load.compare(self.system.executed())

    def log(self) -> str:
        """Return the log of the broker."""
        return (self.system.folder / "broker.log").read_text()

    def __exit__(self, *_: object) -> None:
        self.visitors.leave()
        self.load.stop()
        self.system.stop()
