"""The protocol without sockets: parses bytes into requests."""

from __future__ import annotations


class Lines:
    """One connection: splits bytes into lines of words.

    Args:
        limit: Maximum bytes of a line.

    Attributes:
        requests: The received lines, as lists of words.
        broken: Whether a line was too long, so that the connection must end.
    """

    def __init__(self, limit: int) -> None:
        self.requests: list[list[str]] = []
        self.broken = False
        self._buffer = b""
        self._limit = limit

    def receive(self, data: bytes) -> None:
        """Receive bytes; bytes with a line that is too long are dropped."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self.broken = max(map(len, [*lines, self._buffer])) > self._limit
        if not self.broken:
            self.requests += [line.decode(errors="replace").split() for line in lines]
