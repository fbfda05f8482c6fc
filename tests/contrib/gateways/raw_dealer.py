"""A DEALER that sends any frames, for gateways over ZeroMQ."""

from __future__ import annotations

import contextlib

import zmq

__all__ = ["DEADLINE", "RawDealer"]

#: Seconds that anything may take.
DEADLINE = 20.0


class RawDealer:
    """One peer in a context."""

    def __init__(self, context, address, identity=b"", keys=None, *, cramped=False):
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        if identity:
            self.socket.set(zmq.IDENTITY, identity)
        self.socket.set(zmq.SNDTIMEO, int(DEADLINE * 1000))
        if cramped:  # small buffers for unread messages
            self.socket.set(zmq.RCVHWM, 1)
            self.socket.set(zmq.RCVBUF, 65536)
        if keys is not None:
            (
                self.socket.curve_serverkey,
                self.socket.curve_publickey,
                self.socket.curve_secretkey,
            ) = keys
        self.socket.connect(address if "://" in address else f"tcp://{address}")

    def send(self, *frames):
        self.socket.send_multipart([f.encode() if isinstance(f, str) else f for f in frames])

    def send_if_connected(self, *frames):
        """Send, but not over a connection that libzmq has given up because it was refused."""
        parts = [f.encode() if isinstance(f, str) else f for f in frames]
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(parts, zmq.NOBLOCK)

    def send_when_routable(self, *frames):
        """Send, and return once pyzmq's thread, which all sockets of a process share, has sent it.

        Then it knows of what left before as well, and takes no peer for slower than it is.
        """
        self.socket.copy_threshold = 0
        parts = [f.encode() if isinstance(f, str) else f for f in frames]
        self.socket.send_multipart(parts, copy=False, track=True).wait(DEADLINE)

    def next(self, timeout=DEADLINE):
        """Return the next message, None if none comes in time."""
        if not self.socket.poll(timeout * 1000):
            return None
        return self.socket.recv_multipart()

    def ask(self, *frames):
        self.send(*frames)
        return self.next()

    def close(self):
        self.socket.close(0)
