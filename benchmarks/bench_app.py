"""The app of the benchmarks: tasks that do nothing, in several ways."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Iterator

app = EventMQ("bench")


@app.task
def nothing() -> None:
    """Do nothing."""


@app.task
def fail() -> None:
    """Fail."""
    raise ValueError("the task of the benchmark fails")


@app.task
def same(number: int) -> int:
    """Return the number."""
    return number


@app.task
def count(numbers: list[int]) -> int:
    """Return the number of numbers."""
    return len(numbers)


@app.task
def started() -> float:
    """Return the start time of the job, as Unix time."""
    return time.time()


@app.task
def hold(seconds: float) -> float:
    """Occupy a slot."""
    time.sleep(seconds)
    return seconds


@app.task
def numbers(to: int) -> Iterator[int]:
    """Yield numbers without a pause."""
    yield from range(to)


@app.task
def yield_time(seconds: float) -> Iterator[float]:
    """Yield the Unix time of the yield, after a number of seconds."""
    time.sleep(seconds)
    yield time.time()


@app.task
async def rest(seconds: float) -> None:
    """Wait without occupying anything."""
    await asyncio.sleep(seconds)
