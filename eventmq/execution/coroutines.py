"""Runs the coroutines that ``async def`` tasks return, with one event loop per slot.

asyncio takes 70 ms to import, so it is imported for the first coroutine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.execution.streaming import past_soft_limit

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Coroutine

    from eventmq.execution.streaming import Cancellation

__all__ = ["CoroutineRunner", "Interruptible"]


class Interruptible:
    """Awaits a coroutine, and can let another exception than CancelledError be raised in it.

    ``await Interruptible(coroutine)`` is as good as ``await coroutine``.
    """

    __slots__ = ("_coroutine", "_instead", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._instead: BaseException | None = None
        self._task: Task[Any] | None = None

    def interrupt(self, task: Task[Any], error: BaseException) -> None:
        """Raise ``error`` where the coroutine waits. In the thread of the loop, between steps.

        Args:
            task: In which the coroutine runs.
            error: What is raised.
        """
        self._instead = error
        self._task = task
        task.cancel()

    def __await__(self) -> Interruptible:
        return self

    def __iter__(self) -> Interruptible:
        return self

    def __next__(self) -> Any:
        return self._coroutine.send(None)

    def send(self, value: Any) -> Any:
        """Go on with the coroutine."""
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an exception in the coroutine: the one that `interrupt` was given, if it was."""
        error = kind if value is None else value
        instead, self._instead = self._instead, None
        if instead is not None:
            error = instead
            uncancel = getattr(self._task, "uncancel", None)  # Python 3.11
            if uncancel is not None:  # for the task it was no cancellation
                uncancel()
        return self._coroutine.throw(error)

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()


async def _await(coroutine: Interruptible) -> Any:
    return await coroutine


class CoroutineRunner:
    """Owns an event loop that is made for the first coroutine. One thread."""

    __slots__ = ("_loop", "_task")

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None
        self._task: Task[Any] | None = None

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        soft: float = 0.0,
        stop: Cancellation | None = None,
    ) -> Any:
        """Return what the coroutine returns; what it left running is cancelled.

        Args:
            coroutine: Of a task.
            soft: Seconds after which `SoftTimeLimitExceeded` is raised in it, 0.0 for never.
            stop: Of the job, which may have been cancelled before there was a coroutine.
        """
        import asyncio

        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
        body = Interruptible(coroutine)
        task = self._task = loop.create_task(_await(body))
        if stop is not None and stop.requested:  # after the task is known to `cancel`
            loop.call_soon(task.cancel)
        if soft:
            timer = loop.call_later(soft, body.interrupt, task, past_soft_limit(soft))
        try:
            return loop.run_until_complete(task)
        finally:
            self._task = None
            if soft:
                timer.cancel()
            left = asyncio.all_tasks(loop)
            if left:
                for other in left:
                    other.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def cancel(self) -> bool:
        """Cancel the coroutine that runs; say whether there is one. From any thread or signal."""
        task, loop = self._task, self._loop
        if task is None or loop is None:
            return False
        loop.call_soon_threadsafe(task.cancel)
        return True

    def close(self) -> None:
        """Close the loop. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
