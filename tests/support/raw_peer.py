"""A peer made of pyzmq and the published document, without any import from EventMQ."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence

import zmq

PROTOCOL = b"eMQP/1.0"

#: Seconds within which an expected message must arrive.
DEADLINE = 10.0

#: Seconds of silence after which no message is expected, on a working connection.
QUIET = 0.3

_ids = itertools.count(1)


class RawPeer:
    """A DEALER. Frames are bytes; the first three and the message id are written by `send`."""

    def __init__(
        self,
        context: zmq.Context,
        address: str,
        identity: bytes = b"",
        keys: tuple[bytes, bytes, bytes] | None = None,
        *,
        cramped: bool = False,
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = int(DEADLINE * 1000)
        if keys is not None:
            server, public, secret = keys
            self.socket.curve_serverkey = server
            self.socket.curve_publickey = public
            self.socket.curve_secretkey = secret
        if identity:
            self.socket.identity = identity
        if cramped:  # small buffers for unread messages
            self.socket.rcvhwm = 1
            self.socket.rcvbuf = 65536
        self.socket.connect(address)

    def send(self, command: bytes, *rest: bytes, id: bytes = b"") -> bytes:
        """Send a command and return its message id."""
        id = id or f"raw-{next(_ids)}".encode()
        self.socket.send_multipart([b"", PROTOCOL, command, id, *rest])
        return id

    def send_unheard(self, command: bytes, *rest: bytes) -> None:
        """Send a command on a connection that is or will be refused."""
        with contextlib.suppress(zmq.Again):  # a socket without a connection accepts no message
            self.socket.send_multipart([b"", PROTOCOL, command, b"raw", *rest], zmq.DONTWAIT)

    def receive(self, timeout: float = DEADLINE) -> list[bytes] | None:
        """Return the next message, or None if there is none in time."""
        if not self.socket.poll(int(timeout * 1000)):
            return None
        frames = self.socket.recv_multipart()
        assert frames[:2] == [b"", PROTOCOL]
        assert len(frames) >= 4
        return frames

    def expect(self, command: bytes, timeout: float = DEADLINE) -> list[bytes]:
        """Return the next message that is not a HEARTBEAT; it must have this command."""
        end = time.monotonic() + timeout
        while (remaining := end - time.monotonic()) > 0:
            frames = self.receive(remaining)
            if frames is not None and (frames[2] != b"HEARTBEAT" or command == b"HEARTBEAT"):
                assert frames[2] == command, frames
                return frames
        raise AssertionError(f"no {command!r} within {timeout:g} s")

    def all_within(self, seconds: float) -> list[list[bytes]]:
        """Return all messages received within a time."""
        end = time.monotonic() + seconds
        messages = []
        while (remaining := end - time.monotonic()) > 0:
            frames = self.receive(remaining)
            if frames is not None:
                messages.append(frames)
        return messages

    def silent(self, seconds: float = QUIET) -> bool:
        """Return whether only HEARTBEATs arrive within a time."""
        return all(frames[2] == b"HEARTBEAT" for frames in self.all_within(seconds))

    def inform(self, role: bytes, queues: bytes = b"", *features: bytes) -> list[bytes]:
        """Send INFORM and return its ACK."""
        id = self.send(b"INFORM", queues, role, *features)
        ack = self.expect(b"ACK")
        assert ack[4] == id
        return ack

    def close(self) -> None:
        self.socket.close(0)


def all_unheard(peers: Sequence[RawPeer], seconds: float = QUIET) -> bool:
    """Return whether none of the peers receives a message within a time, not even a HEARTBEAT."""
    poller = zmq.Poller()
    for peer in peers:
        poller.register(peer.socket, zmq.POLLIN)
    return poller.poll(int(seconds * 1000)) == []


def beat_until(peer: RawPeer, done: Callable[[], bool], every: float, limit: float) -> None:
    """Send HEARTBEATs until something is true."""
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, "it never came true"
        peer.send(b"HEARTBEAT", f"{time.time():.2f}".encode())
        peer.socket.poll(int(every * 1000))
