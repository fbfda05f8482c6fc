"""Wakeup: lets any thread or signal handler wake a thread that polls descriptors."""

from __future__ import annotations

import _socket  # `socket` where gevent has not put its own in its place

__all__ = ["Wakeup"]


class Wakeup:
    """Wakes a thread that polls: its descriptor is readable from `set` to `clear`.

    It is made of sockets, not of descriptors: writing to a closed one is an error, and never
    goes to another file that has got its number since.

    Attributes:
        fd: The descriptor to poll.
        writer_fd: The one that is written to, for `signal.set_wakeup_fd`.
    """

    __slots__ = ("_reader", "_writer", "fd", "writer_fd")

    def __init__(self) -> None:
        self._reader, self._writer = _socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self.fd = self._reader.fileno()
        self.writer_fd = self._writer.fileno()

    def set(self) -> None:
        """Make it readable. Any thread or signal handler; nothing happens when it is closed."""
        try:  # noqa: SIM105 - suppress() costs more than all the rest
            self._writer.send(b"!")
        except OSError:
            pass  # full: it is set already; closed: nothing polls it

    def clear(self) -> None:
        """Make it not readable. Nothing happens when it is not set."""
        try:  # noqa: SIM105 - as above
            self._reader.recv(4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close it. Idempotent."""
        self._reader.close()
        self._writer.close()
