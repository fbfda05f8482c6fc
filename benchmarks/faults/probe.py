"""How long a receipt takes: ``python -m benchmarks.faults.probe ADDRESS SECONDS``.

A process of its own, so that what else a row does takes it no time. Prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Probe"]

ROOT = Path(__file__).resolve().parents[2]

#: Jobs per second: few, since the machine is to do something else.
RATE = 50.0


class Probe:
    """Receipts of jobs, one after the other, in a process that has begun.

    Args:
        address: Of the broker.
        seconds: For how long.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, address, str(seconds)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether it still measures."""
        return self._process.poll() is None

    def result(self) -> dict[str, float]:
        """Wait for its end; return ``p50 p99 worst`` in milliseconds, and how many there were."""
        said, _ = self._process.communicate()
        found: dict[str, float] = json.loads(said)
        return found


def measure(submit: Callable[[], object], seconds: float) -> dict[str, float]:
    """Call at `RATE` for so long; return what the calls took."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        submit()
        took.append(time.perf_counter() - begun)
        time.sleep(max(0.0, 1 / RATE - took[-1]))
    took.sort()
    places = {"p50": len(took) // 2, "p99": len(took) * 99 // 100, "worst": len(took) - 1}
    return {name: round(took[place] * 1000, 2) for name, place in places.items()} | {
        "calls": len(took)
    }


def main(address: str, seconds: float) -> None:
    """Measure receipts of a task that nobody has to run."""
    with EventMQ("probe", broker=address, submit_timeout=60.0) as app:
        task = app.task(name="survivor.work")(_stand_in)
        task.delay(-1)
        print(json.dumps(measure(lambda: task.delay(-1), seconds)))


def _stand_in(number: int) -> None:
    """Run in a worker."""


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
