"""Measures receipts: ``python -m benchmarks.faults.probe ADDRESS SECONDS``.

It is a separate process, so that the other work of a row does not slow it down. It prints JSON.
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

#: Jobs per second: few, since the machine has other work.
RATE = 50.0


class Probe:
    """Receipts of jobs, one by one, in a running process.

    Args:
        address: Address of the broker.
        seconds: Duration of the measurement.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, address, str(seconds)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether the measurement runs."""
        return self._process.poll() is None

    def result(self) -> dict[str, float]:
        """Wait for the end; return ``p50 p99 worst`` in milliseconds and the number of receipts."""
        output, _ = self._process.communicate()
        result: dict[str, float] = json.loads(output)
        return result


def measure(submit: Callable[[], object], seconds: float) -> dict[str, float]:
    """Call a function at `RATE` for a time; return the times of the calls."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        submit()
        took.append(time.perf_counter() - start)
        time.sleep(max(0.0, 1 / RATE - took[-1]))
    took.sort()
    positions = {"p50": len(took) // 2, "p99": len(took) * 99 // 100, "worst": len(took) - 1}
    return {name: round(took[position] * 1000, 2) for name, position in positions.items()} | {
        "calls": len(took)
    }


def main(address: str, seconds: float) -> None:
    """Measure receipts of a task that needs no worker."""
    with EventMQ("probe", broker=address, submit_timeout=60.0) as app:
        task = app.task(name="survivor.work")(_stand_in)
        task.delay(-1)
        print(json.dumps(measure(lambda: task.delay(-1), seconds)))


def _stand_in(number: int) -> None:
    """Run in a worker."""


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
