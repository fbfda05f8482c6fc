"""The app that the benchmarks run: a task that does nothing, and one that returns its start."""

from __future__ import annotations

import time

from eventmq import EventMQ

app = EventMQ("bench")


@app.task
def nothing() -> None:
    """Do nothing."""


@app.task
def started() -> float:
    """Return when it was started, as Unix time."""
    return time.time()
