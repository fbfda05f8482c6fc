"""Wakeup: lets any thread or signal handler wake a thread that polls descriptors."""

from __future__ import annotations

import _socket  # `socket` before gevent's monkey patching

__all__ = ["Wakeup"]


class Wakeup:
    """Wakes a thread that polls: its descriptor is readable from `set` to `clear`.

    It consists of sockets, not of plain descriptors: a write to a closed socket is an error, and
    cannot reach another file that has since got its number.

    Attributes:
        fd: The descriptor to poll.
        writer_fd: The descriptor to write to, for `signal.set_wakeup_fd`.
    """

    __slots__ = ("_reader", "_writer", "fd", "writer_fd")

    def __init__(self) -> None:
        self._reader, self._writer = _socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self.fd = self._reader.fileno()
        self.writer_fd = self._writer.fileno()

    def set(self) -> None:
        """Make it readable, from any thread or signal handler. Does nothing once it is closed."""
        try:  # noqa: SIM105 - suppress() costs more than all the rest
            self._writer.send(b"!")
        except OSError:
            pass  # full: it is set already; closed: nothing polls it

    def clear(self) -> None:
        """Make it not readable. Does nothing if it is not set."""
        try:  # noqa: SIM105 - as above
            self._reader.recv(4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close it. Idempotent."""
        self._reader.close()
        self._writer.close()
