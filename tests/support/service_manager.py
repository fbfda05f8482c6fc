"""The notification socket of a service manager, such as systemd."""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ServiceManager"]


class ServiceManager:
    """Listens at a path or an abstract name, given as in ``NOTIFY_SOCKET``."""

    def __init__(self, path: Path, *, abstract: bool = False) -> None:
        self.address = f"@eventmq-test{path}" if abstract else str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.address[1:]}" if abstract else self.address)

    def environ(self, watchdog: float = 0.0) -> dict[str, str]:
        """Return the environment of a service; ``watchdog`` is in seconds."""
        usec = {"WATCHDOG_USEC": str(int(watchdog * 1_000_000))} if watchdog else {}
        return {"NOTIFY_SOCKET": self.address, **usec}

    def notifications(self, timeout: float) -> dict[str, str]:
        """Return the fields of the next datagram, empty after a timeout in seconds."""
        if not select.select([self._socket], [], [], timeout)[0]:
            return {}
        lines = self._socket.recv(65536).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def until(self, name: str, timeout: float) -> dict[str, str]:
        """Return the first datagram with a field; earlier ones are dropped."""
        while fields := self.notifications(timeout):
            if name in fields:
                return fields
        raise AssertionError(f"no {name} within {timeout} s")

    def drain(self) -> None:
        """Drop all received datagrams."""
        while self.notifications(0.0):
            pass

    def close(self) -> None:
        self._socket.close()
