"""Tasks of `WorkerPoolSuite`, and the executor that runs them.

A pool in other processes loads ``eventmq.testing.suites.pool_tasks:make_executor``.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.clock import SystemClock
from eventmq.errors import SoftTimeLimitExceeded
from eventmq.execution.executor import Executor
from eventmq.execution.spec import TaskSpec
from eventmq.interfaces import current_job
from eventmq.registry.manager import PluginManager
from eventmq.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

__all__ = ["LOADER", "make_executor"]

#: Loader of the executor, for pools that run it in other processes.
LOADER = f"{__name__}:make_executor"


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


def fail(text: str) -> None:
    """Raise a ValueError."""
    raise ValueError(text)


def wait(pipe: str) -> str:
    """Wait until the other side opens the named pipe and closes it again."""
    return Path(pipe).read_text(encoding="utf-8")


def die() -> None:
    """End the process as by a crash."""
    os._exit(3)


def _sign(path: str) -> None:
    Path(path).touch()


def spin(path: str) -> None:
    """Make a file, then run until it is cancelled, checking for that now and then."""
    Path(path).touch()
    while True:
        current_job().check()
        time.sleep(0.01)


def block(path: str, seconds: float) -> str:
    """Make a file, then block without checking for cancellation."""
    Path(path).touch()
    time.sleep(seconds)
    return "blocked"


async def linger(path: str) -> None:
    """Make a file, then wait until the coroutine is cancelled; make another file then."""
    _sign(path)
    try:
        await asyncio.sleep(3600.0)
    except asyncio.CancelledError:
        _sign(path + ".cancelled")
        raise


async def late(path: str) -> str:
    """Make a file, then wait in a coroutine; return the exception that ended the wait."""
    _sign(path)
    try:
        await asyncio.sleep(3600.0)
    except SoftTimeLimitExceeded as error:
        return type(error).__name__
    return "not interrupted"


def count_up(to: int) -> Generator[int, None, str]:
    """Yield numbers."""
    yield from range(to)
    return "done"


async def acount_up(to: int) -> AsyncIterator[int]:
    """Yield numbers from a coroutine."""
    for number in range(to):
        yield number


def _until(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.005)


def yield_and_wait(parts: int, path: str) -> Iterator[int]:
    """Yield numbers, then wait for a file."""
    yield from range(parts)
    _until(path)


def yield_what() -> Iterator[object]:
    """Yield a part, then one that no serializer knows."""
    yield "fine"
    yield object()


async def ayield_what() -> AsyncIterator[object]:
    """Do the same in a coroutine."""
    yield "fine"
    yield object()


def yield_and_fail(text: str) -> Iterator[int]:
    """Yield a part, then raise."""
    yield 0
    raise ValueError(text)


def endless(path: str) -> Iterator[int]:
    """Yield for ever; make a file when the generator is closed."""
    try:
        while True:
            yield 1
    finally:
        _sign(path)


async def aendless(path: str) -> AsyncIterator[int]:
    """Do the same in a coroutine."""
    try:
        while True:
            yield 1
    finally:
        _sign(path)


def tell(times: int, path: str) -> None:
    """Report progress again and again, then wait for a file."""
    for done in range(times):
        current_job().progress(done + 1, times, "telling")
    _until(path)


async def atell(times: int, path: str) -> None:
    """Do the same in a coroutine."""
    for done in range(times):
        current_job().progress(done + 1, times, "telling")
    while not Path(path).exists():  # noqa: ASYNC110,ASYNC240 - another process makes it
        await asyncio.sleep(0.005)


_TASKS: tuple[Callable[..., Any], ...] = (
    add,
    fail,
    wait,
    die,
    spin,
    block,
    linger,
    late,
    count_up,
    acount_up,
    yield_and_wait,
    yield_what,
    ayield_what,
    yield_and_fail,
    endless,
    aendless,
    tell,
    atell,
)


def make_executor() -> Executor:
    """Return an executor of the tasks above, by their own names."""
    plugins = PluginManager(load_settings({}, directory=os.devnull, environ={}))
    tasks = {task.__name__: TaskSpec(name=task.__name__, function=task) for task in _TASKS}
    return Executor(
        tasks,
        serializer=plugins.serializer,
        retry_policy=plugins.retry_policy,
        clock=SystemClock(),
    )
