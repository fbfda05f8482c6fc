"""A worker of the Majordomo draft 0.1, without EventMQ: it needs only pyzmq.

It registers one service with ``eventmq gateway majordomo``, answers one request at a time, and
registers again when the gateway is silent. Run it as::

    python majordomo_worker.py tcp://127.0.0.1:47280 upper

and end it with Ctrl-C. ``upper`` answers with the frames of the request in capitals, in two parts
where there are two frames or more.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME = b"MDPW02"
READY, REQUEST, PARTIAL, FINAL, DISCONNECT = b"\x01", b"\x02", b"\x03", b"\x04", b"\x06"

#: Seconds between two pings, and seconds of silence after which the gateway counts as lost.
INTERVAL, GONE = 2.5, 10.0

#: Minimum number of frames of a REQUEST.
REQUEST_FRAMES = 6


class Worker:
    """One worker of one service.

    Args:
        address: Address of the gateway for workers.
        service: Name of the service.
        work: Called with the list of frames of a request; yields the frames of the reply's parts,
            the last of which is the end.
        interval: Seconds between two pings.
    """

    def __init__(
        self,
        address: str,
        service: str,
        work: Callable[[list[bytes]], Iterable[list[bytes]]],
        interval: float = INTERVAL,
    ) -> None:
        self._address = address
        self._service = service.encode()
        self._work = work
        self._interval = interval
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None

    def run(self) -> None:
        """Work for ever."""
        while True:
            self._register()
            self._serve()

    def _register(self) -> None:
        """Connect a new socket and register."""
        if self._socket is not None:
            self._socket.close(0)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(self._address)
        self._send(READY, self._service)

    def _send(self, *frames: bytes) -> None:
        assert self._socket is not None  # noqa: S101 - `_register` made it
        self._socket.send_multipart([NAME, *frames])

    def _serve(self) -> None:
        """Answer requests until the gateway disconnects the worker, or is silent for too long."""
        assert self._socket is not None  # noqa: S101 - `_register` made it
        heard = time.monotonic()
        pinged = heard
        while time.monotonic() - heard < GONE:
            if self._socket.poll(self._interval * 1000):
                frames = self._socket.recv_multipart()
                heard = time.monotonic()
                if frames[1:2] == [DISCONNECT]:
                    return
                if frames[1:2] == [REQUEST] and len(frames) >= REQUEST_FRAMES:
                    self._answer(*frames[2:5], body=frames[5:])
            if time.monotonic() - pinged >= self._interval:
                pinged = time.monotonic()
                self._send(b"PING")

    def _answer(self, client: bytes, empty: bytes, request: bytes, body: list[bytes]) -> None:
        last: list[bytes] | None = None
        for part in self._work(body):
            if last is not None:
                self._send(PARTIAL, client, empty, request, *last)
            last = part
        self._send(FINAL, client, empty, request, *(last or [b""]))


def upper(frames: list[bytes]) -> Iterable[list[bytes]]:
    """Yield each frame in capitals."""
    for frame in frames:
        yield [frame.upper()]


if __name__ == "__main__":
    worker = Worker(sys.argv[1], sys.argv[2], upper)
    print(f"ready service={sys.argv[2]}", flush=True)
    try:
        worker.run()
    except KeyboardInterrupt:
        print("stopped")
