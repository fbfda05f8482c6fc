"""A client of the Majordomo draft 0.1, without EventMQ: it needs only pyzmq.

It sends a request to ``eventmq gateway majordomo``, repeats it if there is no answer, and prints
each part of the reply. Run it as::

    python majordomo_client.py tcp://127.0.0.1:47281 upper hello world
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = b"MDPC02"
REQUEST, PARTIAL, FINAL = b"\x01", b"\x02", b"\x03"


class Client:
    """A client; any number of requests may be in flight.

    Args:
        address: Address of the gateway for clients.
        identity: Identity of this client. With one it also gets replies after a restart of the
            gateway, and may repeat a request without another execution.
    """

    def __init__(self, address: str, identity: str = "") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.IDENTITY, (identity or f"client-{os.urandom(8).hex()}").encode())
        self._socket.connect(address)

    def ask(
        self, service: str, *body: bytes, timeout: float = 60.0, again: float = 5.0
    ) -> Iterator[tuple[bool, list[bytes]]]:
        """Send a request; yield whether a part is the last one, and its frames.

        Args:
            service: Name of the service.
            *body: The frames of the request.
            timeout: Seconds to wait for the end of the reply.
            again: Seconds without an answer after which the request is sent again.

        Raises:
            TimeoutError: The reply had not ended in time.
        """
        id = os.urandom(16)
        message = [NAME, REQUEST, service.encode(), id, *body]
        self._socket.send_multipart(message)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self._socket.poll(min(again, timeout) * 1000):
                self._socket.send_multipart(message)
                continue
            name, kind, _, answered, *part = self._socket.recv_multipart()
            if name == NAME and answered == id and kind in {PARTIAL, FINAL}:
                yield kind == FINAL, part
                if kind == FINAL:
                    return
        msg = f"no reply of {service} within {timeout:g} s"
        raise TimeoutError(msg)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close(0)
        self._context.term()


if __name__ == "__main__":
    client = Client(sys.argv[1])
    for last, frames in client.ask(sys.argv[2], *(word.encode() for word in sys.argv[3:])):
        print("final" if last else "part", *(frame.decode() for frame in frames), flush=True)
    client.close()
