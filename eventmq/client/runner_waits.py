"""How callers and the loop wait: a thread on a lock, a coroutine on a future, a poll on a bell."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["AsyncWaiter", "Bell", "Waiter"]


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


class Bell:
    """Wakes a thread that polls: readable from `ring` to `hush`.

    It is made of sockets, not of descriptors: writing to a closed one is an error, and never
    goes to another file that has got its number since.
    """

    __slots__ = ("_reader", "_writer", "fd")

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self.fd = self._reader.fileno()

    def ring(self) -> None:
        """Make it readable. Any thread; nothing happens when it is closed."""
        try:  # noqa: SIM105 - suppress() costs more than all the rest
            self._writer.send(b"!")
        except OSError:
            pass  # full: it rings already; closed: nobody listens

    def hush(self) -> None:
        """Make it not readable."""
        self._reader.recv(4096)

    def close(self) -> None:
        """Close it. Idempotent."""
        self._reader.close()
        self._writer.close()


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

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until `wake`; raises `TimeoutError` if ``timeout`` seconds pass before."""
        if timeout is None:
            await self._future
        else:
            import asyncio

            try:
                await asyncio.wait_for(self._future, timeout)
            except asyncio.TimeoutError:
                raise TimeoutError from None
        self._future = self._loop.create_future()
