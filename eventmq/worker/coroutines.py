"""Runs the coroutines that ``async def`` tasks return, with one event loop per slot.

asyncio takes 70 ms to import, so it is imported for the first coroutine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Coroutine

__all__ = ["CoroutineRunner"]


class CoroutineRunner:
    """Owns an event loop that is made for the first coroutine. One thread."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what the coroutine returns; what it left running is cancelled."""
        import asyncio

        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            left = asyncio.all_tasks(loop)
            if left:
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def close(self) -> None:
        """Close the loop. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
