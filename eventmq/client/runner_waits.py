"""How a caller waits for the client's thread: a thread on a lock, a coroutine on a future."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["AsyncWaiter", "Waiter"]


class Waiter:
    """A raw lock used as a flag: half a microsecond, where an event takes ten."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Let `wait` return, now or when it is called next."""
        try:  # noqa: SIM105 - suppress() costs more than all the rest
            self._lock.release()
        except RuntimeError:
            pass  # it was woken and has not looked yet

    def wait(self, timeout: float | None) -> bool:
        """Wait until `wake`; return False if ``timeout`` seconds passed before."""
        if timeout is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


class AsyncWaiter:
    """The same for a coroutine of the running event loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """Let `wait` return, now or when it is called next. From any thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait until `wake`."""
        await self._future
        self._future = self._loop.create_future()
