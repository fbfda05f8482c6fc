"""What a process tells the service manager that started it, such as systemd.

The protocol of ``sd_notify(3)``: datagrams of ``NAME=value`` lines to the socket in the variable
``NOTIFY_SOCKET``. Where that is not set nothing is sent. Commands make a `Notifier`, and loops that
serve give a sign of life by `Notifier.turn`, so that a watchdog notices one that is stuck.
"""

from __future__ import annotations

import _socket  # `socket` where gevent has not put its own in its place
import logging
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEVER", "Notifier"]

logger = logging.getLogger("eventmq.notify")

#: Seconds between signs of life where there is no watchdog.
NEVER = float("inf")

#: Characters of the longest status.
_LONGEST = 200


class Notifier:
    """Tells a service manager how this process is. Never blocks, never raises.

    Args:
        environ: With ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``, as systemd sets
            them; without them every method does nothing.

    Attributes:
        every: Seconds between two signs of life: half of what the watchdog waits; `NEVER` for none.
    """

    __slots__ = ("_address", "_next_at", "every")

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.every = NEVER
        self._next_at = NEVER
        self._address = environ.get("NOTIFY_SOCKET", "")
        if not self._address:
            return
        if self._address[0] not in "/@" or not hasattr(_socket, "AF_UNIX"):
            logger.warning("NOTIFY_SOCKET %r is no path and no abstract name", self._address)
            self._address = ""
            return
        if self._address[0] == "@":  # an abstract name begins with NUL
            self._address = f"\0{self._address[1:]}"
        usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if usec.isascii() and usec.isdigit() and int(usec) and pid in {"", str(os.getpid())}:
            self.every = int(usec) / 2_000_000
            self._next_at = 0.0

    def tell(self, *, status: str = "", **fields: str) -> None:
        """Send fields, such as ``READY="1"``; from any thread or signal handler.

        Args:
            status: One line for people, which ``systemctl status`` shows.
            **fields: Others, by their names.
        """
        if not self._address:
            return
        if status:
            fields["STATUS"] = " ".join(status.split())[:_LONGEST]
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        sock = None
        try:
            sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            sock.settimeout(0)
            sock.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError as error:  # it is not read, or not fast enough; or no descriptor is left
            logger.debug("the service manager was not told: %s", error)
        finally:
            if sock is not None:
                sock.close()

    def ready(self, status: str) -> None:
        """Say that this process serves now, at first or again."""
        self.tell(READY="1", status=status)

    def stopping(self, status: str) -> None:
        """Say that this process is about to end."""
        self.tell(STOPPING="1", status=status)

    def reloading(self, status: str) -> None:
        """Say that this process loads its code, or keys, anew; `ready` says that it has."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.tell(RELOADING="1", MONOTONIC_USEC=str(usec), status=status)

    def turn(self, now: float) -> None:
        """Give a sign of life if one is due: what serves calls this in each turn of its loop.

        Args:
            now: Monotonic time in seconds.
        """
        if now >= self._next_at:
            self._next_at = now + self.every
            self.tell(WATCHDOG="1")
