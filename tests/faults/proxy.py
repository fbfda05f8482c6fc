"""TCP proxy on loopback that simulates network faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from typing import Any

__all__ = ["MODES", "Proxy"]

#: All data is held back; bytes pass one by one, one per second; data is delayed by 100 to 300 ms;
#: connections are reset; the server's end is closed, and the client's end is not notified.
MODES = ("blackhole", "trickle", "late", "reset", "half-open")

#: Sends RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards the connections to a port, in a thread of its own, until `close`.

    Args:
        target: Port of the server on loopback.
        seed: Seed of the delays.
    """

    def __init__(self, target: int, seed: int = 0) -> None:
        self._target = target
        self._chance = random.Random(seed)
        self.mode = ""
        self._open: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._healed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._server: asyncio.Server = self._call(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _listen(self) -> asyncio.Server:
        self._healed.set()
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    # Faults

    def fault(self, mode: str) -> None:
        """Start a fault of `MODES`."""
        self._call(self._break(mode))

    async def _break(self, mode: str) -> None:
        if mode == "reset":
            self._cut(reset=True)
        elif mode == "half-open":
            self._cut(reset=False)
        else:
            self.mode = mode
            self._healed.clear()

    def heal(self) -> None:
        """End the fault; data that was held back is sent on."""
        self._call(self._heal())

    async def _heal(self) -> None:
        self.mode = ""
        self._healed.set()

    def _cut(self, *, reset: bool) -> None:
        """Abort all connections: both ends with a reset, or the server's end alone."""
        for down, up in self._open:
            for writer in (down, up) if reset else (up,):
                sock = writer.get_extra_info("socket")
                if sock is not None and sock.fileno() >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    # Forwarding

    async def _serve(self, down_in: asyncio.StreamReader, down: asyncio.StreamWriter) -> None:
        while self.mode == "blackhole":
            await self._healed.wait()
        try:
            up_in, up = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            down.transport.abort()
            return
        pair = (down, up)
        self._open.add(pair)
        try:
            await asyncio.gather(self._pump(down_in, up, down), self._pump(up_in, down, None))
        finally:
            self._open.discard(pair)
            for writer in pair:
                writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: Any
    ) -> None:
        """Forward one direction; data for a server's end that is closed is dropped."""
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._pass(data, writer)
        if other is None and not writer.is_closing() and not self._half_open(reader):
            writer.close()

    def _half_open(self, reader: asyncio.StreamReader) -> bool:
        return reader.exception() is not None or reader.at_eof()

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data:
            if self.mode == "blackhole":
                await self._healed.wait()
            piece = data
            if self.mode == "trickle":
                piece = data[:1]
                await self._delay(1.0)
            elif self.mode == "late":
                await self._delay(0.1 + 0.2 * self._chance.random())
            data = data[len(piece) :]
            if not writer.is_closing():
                writer.write(piece)
                await writer.drain()

    async def _delay(self, seconds: float) -> None:
        """Wait for some seconds, at most until the fault ends."""
        with contextlib.suppress(asyncio.TimeoutError):  # TimeoutError itself from Python 3.11 on
            await asyncio.wait_for(self._healed.wait(), seconds)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    async def _end(self) -> None:
        self._healed.set()
        self._server.close()
        self._cut(reset=True)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
