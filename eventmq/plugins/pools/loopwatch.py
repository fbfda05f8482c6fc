"""Watches the event loop of the asyncio pool: which task blocks it, and how late it is.

A coroutine that computes, or waits without ``await``, stops all others. Each step is measured where
it is made, so the task that blocks can be named; one that never comes back is seen from the
manager's thread.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from eventmq.worker.coroutines import Interruptible

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["LoopWatch", "MeasuredBody"]

_log = logging.getLogger(__name__)

#: Seconds that a step may take before it is spoken of.
BLOCKED = 0.1

#: Seconds after which a step that has not ended is spoken of.
STUCK = 1.0

#: Seconds between two warnings of one task.
AGAIN = 10.0


class LoopWatch:
    """Of one loop.

    Attributes:
        lag: Seconds by which the loop was late at the last look.
    """

    def __init__(self) -> None:
        self.lag = 0.0
        #: The step under way: task and monotonic start.
        self.step: tuple[str, float] | None = None
        self._warned: dict[str, float] = {}
        self._stuck = 0.0

    def blocked(self, task: str, seconds: float, now: float) -> None:
        """A step took too long. In the thread of the loop."""
        if now - self._warned.get(task, -AGAIN) >= AGAIN:
            self._warned[task] = now
            _log.warning(
                "task %s blocked the event loop for %.0f ms, and every other job with it: use "
                "await, or make it a plain function, which runs in a thread", task, seconds * 1000,
            )  # fmt: skip

    def look(self, now: float) -> None:
        """Speak of a step that does not end. In the manager's thread."""
        step = self.step
        if step is not None and now - step[1] > STUCK and self._stuck != step[1]:
            self._stuck = step[1]
            _log.warning(
                "task %s has blocked the event loop for %.1f s, and every other job with it",
                step[0], now - step[1],
            )  # fmt: skip

    def measure(self, due: float, now: float) -> None:
        """Take note of when the loop came to what was due. In its thread."""
        self.lag = max(0.0, now - due)
        if self.lag > BLOCKED:
            _log.debug("the event loop was %.0f ms late", self.lag * 1000)

    def body(self, coroutine: Coroutine[Any, Any, Any], task: str) -> Interruptible:
        """Return what awaits the coroutine of a task, step by step."""
        return MeasuredBody(coroutine, task, self)


class MeasuredBody(Interruptible):
    """Measures the steps of a coroutine."""

    __slots__ = ("_name", "_watch")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str, watch: LoopWatch) -> None:
        self._coroutine = coroutine  # as super() does: one for every job
        self._instead = self._task = None
        self._name = name
        self._watch = watch

    def __next__(self) -> Any:
        start = self._begin()
        try:
            return self._coroutine.send(None)
        finally:
            self._end(start)

    def send(self, value: Any) -> Any:
        """Go on with the coroutine."""
        start = self._begin()
        try:
            return self._coroutine.send(value)
        finally:
            self._end(start)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an exception in the coroutine."""
        start = self._begin()
        try:
            return super().throw(kind, value, traceback)
        finally:
            self._end(start)

    def _begin(self) -> float:
        start = time.monotonic()
        self._watch.step = (self._name, start)
        return start

    def _end(self, start: float) -> None:
        self._watch.step = None
        now = time.monotonic()
        if now - start > BLOCKED:
            self._watch.blocked(self._name, now - start, now)
