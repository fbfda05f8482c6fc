"""The task of the harness, and what its worker tells of it: a file, written twice a second."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import deque
from pathlib import Path

from eventmq import EventMQ

__all__ = ["TASK", "TOLD", "WINDOW", "app", "percentiles", "work"]

#: Name of the task.
TASK = "benchmarks.harness.app.work"

#: Environment variable with the file.
TOLD = "EVENTMQ_HARNESS_TOLD"

#: Seconds of starts that percentiles are of, and how many of the last starts at most.
WINDOW, _KEPT = 30.0, 65_536

app = EventMQ("harness")

_WORK = float(os.environ.get("JOB_WORK_MS", "1")) / 1000


class _Starts:
    """What has run in this process."""

    def __init__(self) -> None:
        self.completed = 0
        self.delays: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def tell(self, path: Path) -> None:
        """Write it, again and again."""
        while True:
            told = {"completed": self.completed, **percentiles(list(self.delays), time.monotonic())}
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(told))
            beside.replace(path)
            time.sleep(0.5)


def percentiles(delays: list[tuple[float, float]], now: float) -> dict[str, float]:
    """Return p50, p95 and p99 in ms of the delays of the window, each with its monotonic time."""
    some = sorted(delay for at, delay in delays if at >= now - WINDOW) or [0.0]
    return {f"claim_p{p}_ms": some[len(some) * p // 100] * 1000 for p in (50, 95, 99)}


_starts = _Starts()
if TOLD in os.environ:
    told = (Path(os.environ[TOLD]),)
    threading.Thread(target=_starts.tell, args=told, daemon=True).start()


@app.task(name=TASK)
async def work(created: float, payload: str) -> None:  # noqa: ARG001 - it is carried
    """Wait as long as the harness wants."""
    _starts.delays.append((time.monotonic(), max(0.0, time.time() - created)))
    if _WORK:
        await asyncio.sleep(_WORK)
    _starts.completed += 1
