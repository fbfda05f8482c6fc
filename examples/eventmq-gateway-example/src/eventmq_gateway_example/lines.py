"""The protocol without sockets: bytes go in, requests come out."""

from __future__ import annotations


class Lines:
    """One connection: cuts bytes into lines of words.

    Args:
        limit: Bytes of the longest line.

    Attributes:
        requests: The lines that were received, as lists of words.
        broken: A line was too long: the connection must end.
    """

    def __init__(self, limit: int) -> None:
        self.requests: list[list[str]] = []
        self.broken = False
        self._buffer = b""
        self._limit = limit

    def receive(self, data: bytes) -> None:
        """Take bytes as they came; those with a line that is too long are dropped."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self.broken = max(map(len, [*lines, self._buffer])) > self._limit
        if not self.broken:
            self.requests += [line.decode(errors="replace").split() for line in lines]
