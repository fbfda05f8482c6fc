"""A broker that has few of what an operating system gives, while others take it all."""

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

#: Descriptors that the broker may have.
DESCRIPTORS = 256

#: Visitors that stay at a time: some more than it can have, who wait until they are let in.
CROWD = DESCRIPTORS + 40

#: Jobs that a client submits at a time, and that may wait: the log of the store is moved often.
PART, AHEAD = 500, 2000


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only counted


class FewDescriptors:
    """A broker with so few descriptors that visitors have all of them, and its usual load.

    Args:
        folder: For the processes, and the oracle's files.
    """

    def __init__(self, folder: Path) -> None:
        self.system = System(folder)
        limit = f'ulimit -n {DESCRIPTORS}; exec "$@"'
        self.broker = self.system.broker(under=("sh", "-c", limit, "sh"))
        self.before = descriptors(self.broker.pid)
        self.worker = self.system.worker()
        self.visitors = Visitors(self.system.address, most=CROWD)
        self.load = Load(self.system, part=PART, ahead=AHEAD, submit_timeout=30.0)

    def __enter__(self) -> Self:
        self.load.start()
        return self

    def strike(self, seconds: float) -> float:
        """Take all descriptors for a while; return the seconds until the broker serves a new peer.

        Whoever was there before is served all the while: new jobs are confirmed and done.
        """
        for _ in range(CROWD):
            self.visitors.come("mute")
        until(lambda: descriptors(self.broker.pid) >= DESCRIPTORS - 1, "no descriptor is left")
        self.load.last(seconds)
        self.load.goes_on("without a descriptor")
        self.visitors.leave()
        begun = time.monotonic()
        self.system.app(submit_timeout=30.0).ask("ping")
        return time.monotonic() - begun

    def finish(self) -> tuple[set[int], int]:
        """Have everything done; return which confirmed jobs are lost, and how many ran again."""
        self.load.stop()
        done = {str(number) for number in self.load.confirmed}
        until(lambda: done <= self.system.executed().keys(), "every confirmed job was executed")
        assert self.broker.poll() is None, "the broker has ended"
        return self.load.compare(self.system.executed())

    def log(self) -> str:
        """Return what the broker logged."""
        return (self.system.folder / "broker.log").read_text()

    def __exit__(self, *_: object) -> None:
        self.visitors.leave()
        self.load.stop()
        self.system.stop()
