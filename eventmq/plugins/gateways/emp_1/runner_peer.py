"""Runs one `Connection` over a stream: reads, answers requests one after the other, pings.

Both roles use it. Requests are handled strictly in order, each when the response to the one before
has been sent; while too many wait, nothing more is read.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from eventmq.plugins.gateways.emp_1.connection import Connection
from eventmq.plugins.gateways.emp_1.messages import Code, EmpError
from eventmq.plugins.gateways.emp_1.payload import Failure, Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eventmq.plugins.gateways.emp_1.connection import Patience

    Handle = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

__all__ = ["Peer"]

logger = logging.getLogger(__name__)

#: Bytes that are read at once.
_CHUNK = 65_536

#: Seconds that the other side may take to read what we send, before we give it up.
WRITE_TIMEOUT = 30.0

#: Seconds that the last bytes may take.
CLOSE_TIMEOUT = 2.0


class Peer:
    """One side of one connection, in an event loop.

    Args:
        reader: Of the stream.
        writer: Of the stream.
        patience: The limits.
        handle: Called with op and data of each request; returns the data of a success.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        patience: Patience,
        handle: Handle,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handle = handle
        self._now = asyncio.get_running_loop().time
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._draining = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        #: Set when both have said hello, or it is over.
        self.greeted = asyncio.Event()
        self.connection = Connection(patience, self._now())

    # The life of a connection

    async def run(self) -> None:
        """Serve until the connection ends, whoever ends it. Raises nothing but cancellation."""
        parts = [self._read(), self._tick(), self._work()]
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await self._flush()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # gone before it began
        finally:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception) and not isinstance(error, OSError):
                    logger.debug("a connection ended by %r", error)
            await self._close()

    def abort(self) -> None:
        """Cut the connection."""
        self._writer.transport.abort()

    async def _read(self) -> None:
        connection = self.connection
        while not connection.closed:
            while connection.full:
                self._room.clear()
                await self._room.wait()
            data = await self._reader.read(_CHUNK)
            if not data:
                return
            connection.receive(data, self._now())
            self._settle()
            await self._flush()

    def _settle(self) -> None:
        """Hand on what came."""
        connection = self.connection
        if connection.ready:
            self.greeted.set()
        if connection.requests:
            self._news.set()
        while connection.responses:
            id, result = connection.responses.popleft()
            future = self._waiting.pop(id, None)
            if future is not None and not future.done():
                future.set_result(result)

    async def _tick(self) -> None:
        connection = self.connection
        with suppress(asyncio.TimeoutError):  # what is due changes when hello was said
            await asyncio.wait_for(self.greeted.wait(), connection.wait(self._now()))
        while not connection.closed:
            await asyncio.sleep(max(0.01, connection.wait(self._now())))
            connection.tick(self._now())
            await self._flush()

    async def _work(self) -> None:
        """Answer requests, one after the other."""
        connection = self.connection
        while True:
            while not connection.requests and not connection.closed:
                self._news.clear()
                await self._news.wait()
            if connection.closed:
                return
            id, operation = connection.requests.popleft()
            connection.respond(id, await self._answer(*operation))
            self._room.set()
            await self._flush()

    async def _answer(self, op: str, data: dict[str, Any]) -> Result:
        try:
            return Result(True, await self._handle(op, data))  # noqa: FBT003 - a tuple
        except Failure as failure:
            code = failure.code or "failed"
            return Result(False, failure.data, code, failure.description)  # noqa: FBT003
        except Exception:
            logger.exception("an operation failed by an error of the gateway")
            msg = "the operation failed inside the gateway; its log says why"
            return Result(False, {}, "internal_error", msg)  # noqa: FBT003

    async def _flush(self) -> None:
        data = self.connection.take_output()
        if data:
            self._writer.write(data)
            async with self._draining:  # early releases of Python 3.10 let one wait at a time
                await asyncio.wait_for(self._writer.drain(), WRITE_TIMEOUT)

    async def _close(self) -> None:
        connection = self.connection
        error = connection.error or EmpError(Code.UNAVAILABLE, "the connection was closed")
        connection.closed = True
        self.greeted.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        with suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError, RuntimeError):
            await asyncio.wait_for(self._last_words(), CLOSE_TIMEOUT)
        self.abort()

    async def _last_words(self) -> None:
        """Send what is left, and let the other side read it before the connection is cut."""
        self._writer.write(self.connection.take_output())
        await self._writer.drain()
        if self._writer.can_write_eof():
            self._writer.write_eof()
            while await self._reader.read(_CHUNK):
                continue
        else:
            self._writer.close()
            await self._writer.wait_closed()

    # What we ask

    async def call(self, op: str, data: dict[str, Any] | None) -> Result:
        """Send a request and return what the other side says.

        Raises:
            EmpError: The connection is closed, or ended before.
        """
        await self.greeted.wait()
        id = self.connection.request(op, data)
        future = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        try:
            await self._flush()
            return await future  # type: ignore[no-any-return]
        finally:
            self._waiting.pop(id, None)

    async def bye(self, grace: float = 0.0) -> None:
        """Let what was asked be answered within ``grace`` seconds, say goodbye; `run` then ends."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle(), grace)
        self.connection.bye()
        self._news.set()
        with suppress(OSError, asyncio.TimeoutError):
            await self._flush()

    async def _idle(self) -> None:
        while self.connection.pending and not self.connection.closed:
            self._room.clear()
            await self._room.wait()
