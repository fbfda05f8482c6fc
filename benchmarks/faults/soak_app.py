"""The app of `benchmarks.faults.soak`: a task for each feature, which records what it finished.

Workers load a copy of it from the folder of the soak.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

from eventmq import EventMQ, every, fixed

if TYPE_CHECKING:
    from collections.abc import Iterator

app = EventMQ("soak")


def _note(name: str, number: object) -> None:
    """Append a finished job to the record; a line is written atomically."""
    file = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{name} {number}|{os.environ['WHO']}\n".encode())
    os.close(file)


@app.task(name="soak.plain")
def plain(number: int) -> int:
    """Take a little time."""
    time.sleep(0.0001)
    _note("plain", number)
    return number


@app.task(name="soak.moody", retries=30, retry_policy=fixed(0.05))
def moody(number: int) -> int:
    """Fail every third time."""
    if random.random() < 0.33:
        raise ValueError("not now")
    _note("moody", number)
    return number


@app.task(name="soak.hopeless")
def hopeless(number: int) -> None:
    """Fail for good."""
    _note("hopeless", number)
    raise ValueError("never")


@app.task(name="soak.add")
def add(numbers: list[int], number: int) -> int:
    """End a chord."""
    _note("chord", number)
    return sum(numbers)


@app.task(name="soak.only", unique="{key}")
def only(number: int, key: int) -> int:
    """Be the only job of a key, and return the key."""
    _note("only", number)
    return key


@app.task(name="soak.step")
def step(number: int) -> int:
    """Be a member of a chord, or a link."""
    return number


@app.task(name="soak.parts")
def parts(number: int, count: int) -> Iterator[int]:
    """Stream."""
    yield from range(count)
    _note("parts", number)


@app.task(name="soak.long")
def long(number: int) -> None:
    """Run until it is stopped."""
    time.sleep(30.0)
    _note("long", number)


@app.task(name="soak.tick", schedule=every(seconds=2), max_concurrency=1)
def tick() -> None:
    """Run by a schedule."""
    _note("tick", time.time())
