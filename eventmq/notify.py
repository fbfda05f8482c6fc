"""Reports of a process to the service manager that started it, such as systemd.

The protocol is ``sd_notify(3)``: datagrams of ``NAME=value`` lines to the socket in the variable
``NOTIFY_SOCKET``. Without the variable nothing is sent. Commands make a `Notifier`; serving loops
call `Notifier.turn`, which sends keep-alive messages, so that a watchdog notices a stuck loop.
"""

from __future__ import annotations

import _socket  # `socket` before gevent's monkey patching
import logging
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEVER", "Notifier"]

logger = logging.getLogger("eventmq.notify")

#: Seconds between keep-alive messages if there is no watchdog.
NEVER = float("inf")

#: Maximum number of characters of a status.
_MAX_STATUS = 200


class Notifier:
    """Reports the state of this process to a service manager. Never blocks, never raises.

    Args:
        environ: With ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``, as systemd sets
            them; without them every method does nothing.

    Attributes:
        every: Seconds between keep-alive messages: half the watchdog's timeout; `NEVER` for none.
    """

    __slots__ = ("_address", "_next_at", "every")

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.every = NEVER
        self._next_at = NEVER
        self._address = environ.get("NOTIFY_SOCKET", "")
        if not self._address:
            return
        if self._address[0] not in "/@" or not hasattr(_socket, "AF_UNIX"):
            logger.warning("NOTIFY_SOCKET %r is neither a path nor an abstract name", self._address)
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
            status: One line of text, which ``systemctl status`` shows.
            **fields: Other fields, by name.
        """
        if not self._address:
            return
        if status:
            fields["STATUS"] = " ".join(status.split())[:_MAX_STATUS]
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        sock = None
        try:
            sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            sock.settimeout(0)
            sock.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError as error:  # no reader, a slow one, or no descriptor left
            logger.debug("cannot notify the service manager: %s", error)
        finally:
            if sock is not None:
                sock.close()

    def ready(self, status: str) -> None:
        """Report that this process serves, for the first time or again."""
        self.tell(READY="1", status=status)

    def stopping(self, status: str) -> None:
        """Report that this process is about to end."""
        self.tell(STOPPING="1", status=status)

    def reloading(self, status: str) -> None:
        """Report that this process reloads its code or keys; `ready` follows when it is done."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.tell(RELOADING="1", MONOTONIC_USEC=str(usec), status=status)

    def turn(self, now: float) -> None:
        """Send a keep-alive message if one is due; called in each turn of a serving loop.

        Args:
            now: Monotonic time in seconds.
        """
        if now >= self._next_at:
            self._next_at = now + self.every
            self.tell(WATCHDOG="1")
