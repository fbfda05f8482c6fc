"""How long a process that waits takes to run again: what each step between two processes costs.

As a program it passes on what it reads, with the time at which it has.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from subprocess import PIPE
from typing import TYPE_CHECKING

from benchmarks.system import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS", "times_of"]

#: A Unix time in a pipe.
_TIME = struct.Struct("d")


def wakes(figures: Figures) -> None:
    """Until processes that wait run again, 100 times a second: one, and four in a row."""
    for hops in (1, 4):
        times = sorted(times_of(1000, hops))
        figures.add(
            **{f"hops_{hops}_p{p}_ms": times[len(times) * p // 100] * 1000 for p in (50, 99)}
        )


def times_of(count: int, hops: int, pause: float = 0.01) -> list[float]:
    """Return the seconds from a write until the last of so many processes has read it.

    Each waits for a pipe, and writes what it has read to the next one.

    Args:
        count: How many.
        hops: Processes in a row.
        pause: Seconds before each write, in which nothing runs.
    """
    command = [sys.executable, "-m", "benchmarks.wakes"]
    chain = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=ROOT)]
    while len(chain) < hops:
        chain.append(subprocess.Popen(command, stdin=chain[-1].stdout, stdout=PIPE, cwd=ROOT))
        chain[-2].stdout.close()  # type: ignore[union-attr]
    into, out = chain[0].stdin, chain[-1].stdout
    assert into is not None
    assert out is not None
    times: list[float] = []
    for _ in range(count):
        time.sleep(pause)
        os.write(into.fileno(), _TIME.pack(time.time()))
        sent, read = struct.unpack("dd", os.read(out.fileno(), 2 * _TIME.size))
        times.append(read - sent)
    into.close()
    out.close()
    for process in chain:
        process.wait()
    return times


def main() -> None:
    """Pass on what comes until nobody writes any more."""
    while some := os.read(0, 2 * _TIME.size):
        os.write(1, some[: _TIME.size] + _TIME.pack(time.time()))


#: Name -> one run of it.
ROWS: dict[str, Callable[[Figures], None]] = {"wakes": wakes}

#: Name -> figure -> what it must reach.
GOALS: dict[str, dict[str, str]] = {}

if __name__ == "__main__":
    main()
