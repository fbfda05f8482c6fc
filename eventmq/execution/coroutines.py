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
    """Awaits a coroutine, and can raise another exception than CancelledError in it.

    ``await Interruptible(coroutine)`` does what ``await coroutine`` does.
    """

    __slots__ = ("_coroutine", "_instead", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._instead: BaseException | None = None
        self._task: Task[Any] | None = None

    def interrupt(self, task: Task[Any], error: BaseException) -> None:
        """Raise ``error`` where the coroutine waits. In the thread of the loop, between steps.

        Args:
            task: Task in which the coroutine runs.
            error: The exception.
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
        """Raise an exception in the coroutine: that of `interrupt`, if it was called."""
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
    """Owns the event loop of a slot, made for the first coroutine. One thread."""

    __slots__ = ("_loop", "_task")

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None
        self._task: Task[Any] | None = None

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        soft: float = 0.0,
        cancellation: Cancellation | None = None,
    ) -> Any:
        """Return what the coroutine returns; tasks that it left running are cancelled.

        Args:
            coroutine: Coroutine of a task.
            soft: Seconds after which `SoftTimeLimitExceeded` is raised in it, 0.0 for never.
            cancellation: The job may have been cancelled before there was a coroutine.
        """
        import asyncio

        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
        body = Interruptible(coroutine)
        task = self._task = loop.create_task(_await(body))
        if (
            cancellation is not None and cancellation.requested
        ):  # after the task is known to `cancel`
            loop.call_soon(task.cancel)
        if soft:
            timer = loop.call_later(soft, body.interrupt, task, past_soft_limit(soft))
        try:
            return loop.run_until_complete(task)
        finally:
            self._task = None
            if soft:
                timer.cancel()
            remaining = asyncio.all_tasks(loop)
            if remaining:
                for other in remaining:
                    other.cancel()
                loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))

    def cancel(self) -> bool:
        """Cancel the running coroutine, from any thread or signal; return whether there is one."""
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
