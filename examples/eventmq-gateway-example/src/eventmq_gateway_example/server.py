"""The gateway: a server in an event loop of its own, and a client of the broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import BindError, EventMQError
from eventmq.gateway import LoopThread, call_task, check_reach, close_server, split_address
from eventmq.sdk import option

from eventmq_gateway_example.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq import EventMQ


@dataclass(frozen=True)
class LineOptions:
    """Options of the gateway.

    Attributes:
        bind: ``tcp://host:port``.
        insecure: Whether other machines may reach the address.
        max_line: Maximum bytes of a line.
    """

    bind: str = "tcp://127.0.0.1:7000"
    insecure: bool = False
    max_line: int = option(1000, ge=1)


class LineGateway:
    """A gateway.

    Args:
        app: App whose tasks lines can call.
        options: Address and limits.
    """

    def __init__(self, app: EventMQ, options: LineOptions) -> None:
        self._app = app
        self._options = options
        self._thread = LoopThread("line-gateway")
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    # Gateway

    def start(self) -> Sequence[str]:
        """Bind and serve; return the bound address."""
        check_reach(self._options.bind, insecure=self._options.insecure)
        self._thread.start()
        try:
            return [self._thread.run(self._listen())]
        except OSError as error:
            self._thread.stop()
            raise BindError(f"cannot bind {self._options.bind}: {error}") from error

    def running(self) -> bool:
        """Return whether the server runs."""
        return self._server is not None and self._thread.running()

    def stop(self, grace: float) -> None:
        """Stop accepting, and end within the grace. Idempotent."""
        if self._thread.running():
            self._thread.run(self._end())
            self._thread.stop(grace)
        self._server = None

    # In the event loop

    async def _listen(self) -> str:
        host, port = split_address(self._options.bind)
        self._server = await asyncio.start_server(self._serve, host, port, backlog=512)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"tcp://{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        lines = Lines(self._options.max_line)
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
            job = await call_task(task, [int(word) for word in numbers], {}, timeout=60.0)
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
