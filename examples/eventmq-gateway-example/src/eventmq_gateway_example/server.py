"""The gateway: a server in an event loop of its own, and a client of the broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eventmq.errors import BindError, EventMQError
from eventmq.gateway import LoopThread, check_reach, close_server, split_address

from eventmq_gateway_example.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq import EventMQ


class LineGateway:
    """A gateway.

    Args:
        app: Its tasks are what lines call.
        address: ``tcp://host:port``.
        insecure: Other machines may reach the address.
        max_line: Bytes of the longest line.
    """

    def __init__(self, app: EventMQ, address: str, *, insecure: bool, max_line: int) -> None:
        self._app = app
        self._address = address
        self._insecure = insecure
        self._max_line = max_line
        self._thread = LoopThread("line-gateway")
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    # The contract

    def start(self) -> Sequence[str]:
        """Bind and serve; return the real address."""
        check_reach(self._address, insecure=self._insecure)
        self._thread.start()
        try:
            return [self._thread.run(self._listen())]
        except OSError as error:
            self._thread.stop()
            raise BindError(f"cannot bind {self._address}: {error}") from error

    def running(self) -> bool:
        """Return whether it serves."""
        return self._server is not None and self._thread.running()

    def stop(self, grace: float) -> None:
        """Stop accepting, and end within the grace. Idempotent."""
        if self._thread.running():
            self._thread.run(self._end())
            self._thread.stop(grace)
        self._server = None

    # In the event loop

    async def _listen(self) -> str:
        host, port = split_address(self._address)
        self._server = await asyncio.start_server(self._serve, host, port, backlog=512)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"tcp://{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        lines = Lines(self._max_line)
        try:
            while not lines.broken and (data := await reader.read(4096)):
                lines.receive(data)
                while lines.requests:
                    writer.write(await self._answer(lines.requests.pop(0)))
                    await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, words: Sequence[str]) -> bytes:
        try:
            name, *numbers = words
            task = self._app.tasks[name]
            arguments = [int(word) for word in numbers]
            task.check(arguments, {})
            job = await self._app.asend(name, arguments)
            return f"{await job.aget()}\n".encode()
        except KeyError:
            return f"error: there is no task {name}\n".encode()
        except (EventMQError, TypeError, ValueError) as error:
            return f"error: {error}\n".encode()

    async def _end(self) -> None:
        if self._server is not None:
            await close_server(self._server)
        for writer in list(self._writers):
            writer.transport.abort()
