"""The tasks that `WorkerPoolSuite` has run, and the executor that knows them.

A pool in other processes loads ``eventmq.testing.suites.pool_tasks:make_executor``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.clock import SystemClock
from eventmq.errors import SoftTimeLimitExceeded
from eventmq.pluginmanager import PluginManager
from eventmq.settings import load_settings
from eventmq.worker.context import current_job
from eventmq.worker.execution import Executor
from eventmq.worker.taskspec import TaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LOADER", "make_executor"]

#: What a pool that loads its executor elsewhere is told.
LOADER = f"{__name__}:make_executor"


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


def fail(text: str) -> None:
    """Raise what a task would."""
    raise ValueError(text)


def wait(pipe: str) -> str:
    """Wait until the other side opens the named pipe and closes it again."""
    return Path(pipe).read_text(encoding="utf-8")


def die() -> None:
    """End the process as a crash would."""
    os._exit(3)


def _sign(path: str) -> None:
    Path(path).touch()


def spin(path: str) -> None:
    """Run until told otherwise, checking now and then; say that it runs by making a file."""
    Path(path).touch()
    while True:
        current_job().check()
        time.sleep(0.01)


def block(path: str, seconds: float) -> str:
    """Block, without checking; say that it runs by making a file."""
    Path(path).touch()
    time.sleep(seconds)
    return "blocked"


async def linger(path: str) -> None:
    """Wait in a coroutine for ever; say that it runs, and that it was told to end."""
    import asyncio

    _sign(path)
    try:
        await asyncio.sleep(3600.0)
    except asyncio.CancelledError:
        _sign(path + ".cancelled")
        raise


async def late(path: str) -> str:
    """Wait in a coroutine; return the exception that ended the wait."""
    import asyncio

    _sign(path)
    try:
        await asyncio.sleep(3600.0)
    except SoftTimeLimitExceeded as error:
        return type(error).__name__
    return "not told"


_TASKS: tuple[Callable[..., Any], ...] = (
    add,
    fail,
    wait,
    die,
    spin,
    block,
    linger,
    late,
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
