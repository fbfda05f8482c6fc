"""The task of the harness, and the status file that its worker writes twice a second."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import deque
from pathlib import Path

from eventmq import EventMQ

__all__ = ["STATUS_FILE", "TASK", "WINDOW", "app", "percentiles", "work"]

#: Name of the task.
TASK = "benchmarks.harness.app.work"

#: Environment variable with the path of the file.
STATUS_FILE = "EVENTMQ_HARNESS_STATUS"

#: Seconds of starts that percentiles are computed from, and maximum number of starts.
WINDOW, _MAX_STARTS = 30.0, 65_536

app = EventMQ("harness")

_WORK = float(os.environ.get("JOB_WORK_MS", "1")) / 1000


class _Starts:
    """Counts and delays of the jobs that this process started."""

    def __init__(self) -> None:
        self.completed = 0
        self.delays: deque[tuple[float, float]] = deque(maxlen=_MAX_STARTS)

    def write_status(self, path: Path) -> None:
        """Write the status repeatedly."""
        while True:
            now = time.monotonic()
            status = {"completed": self.completed, **percentiles(list(self.delays), now)}
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(status))
            beside.replace(path)
            time.sleep(0.5)


def percentiles(delays: list[tuple[float, float]], now: float) -> dict[str, float]:
    """Return p50, p95 and p99 in ms of the delays of the window, each with its monotonic time."""
    recent = sorted(delay for at, delay in delays if at >= now - WINDOW) or [0.0]
    return {f"claim_p{p}_ms": recent[len(recent) * p // 100] * 1000 for p in (50, 95, 99)}


_starts = _Starts()
if STATUS_FILE in os.environ:
    status = (Path(os.environ[STATUS_FILE]),)
    threading.Thread(target=_starts.write_status, args=status, daemon=True).start()


@app.task(name=TASK)
async def work(created: float, payload: str) -> None:  # noqa: ARG001 - it is carried
    """Wait for the time that the harness configures."""
    _starts.delays.append((time.monotonic(), max(0.0, time.time() - created)))
    if _WORK:
        await asyncio.sleep(_WORK)
    _starts.completed += 1
