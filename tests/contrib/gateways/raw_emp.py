"""A peer of EMP that sends any bytes, and reads messages."""

from __future__ import annotations

import socket

from eventmq_contrib.gateways.emp.protocol import Decoder, Hello, encode

__all__ = ["DEADLINE", "RawEmp", "split"]

#: Seconds that anything may take.
DEADLINE = 20.0


def split(address):
    """Return host and port of the address of a gateway."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    return host, int(port)


class RawEmp:
    """A connection; hello is sent and read unless ``greet`` is False."""

    def __init__(self, address, *, greet=True):
        self.socket = socket.create_connection(split(address), DEADLINE)
        self.decoder = Decoder(1 << 24)
        self.found = []
        if greet:
            self.send(Hello())
            assert Hello(1) == self.next()

    def send(self, *messages):
        self.socket.sendall(b"".join(map(encode, messages)))

    def next(self):
        """Return the next message, None at the end of the connection."""
        while not self.found:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.decoder.feed(data)
            self.found += self.decoder.messages()
        return self.found.pop(0)

    def rest(self):
        """Return all messages up to the end of the connection."""
        return list(iter(self.next, None))

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
