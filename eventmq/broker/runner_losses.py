"""Tells a broker that a connection was lost, so that it looks whose it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.broker.core import WORKER_PORTS
from eventmq.wire.runner_monitors import event_fd, lost_connection
from eventmq.wire.socket import watch_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    import zmq

    from eventmq.wire.socket import Link

__all__ = ["Losses"]


class Losses:
    """Reads the monitors of a broker's ROUTERs, where no door does.

    Args:
        tell: Called when a connection was lost.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        #: Descriptor -> link, and its monitor.
        self._watched: dict[int, tuple[Link, Link]] = {}

    def watch(self, context: zmq.Context[Any], port: str, link: Link) -> int | None:
        """Begin with a link that is not bound yet.

        Returns:
            The descriptor to poll; None for a port where no workers are, which is not watched.
        """
        if port not in WORKER_PORTS:
            return None
        monitor = watch_failures(context, link)
        fd = event_fd(monitor.socket)
        self._watched[fd] = (link, monitor)
        return fd

    def look(self, ready: Container[object]) -> None:
        """Read what the monitors have whose descriptors are readable."""
        for fd, (_, monitor) in self._watched.items():
            if fd in ready:
                while (frames := monitor.receive()) is not None:
                    if lost_connection(frames) is not None:
                        self._tell()

    def close(self) -> None:
        """Watch no more. Before the links close; idempotent."""
        for link, monitor in self._watched.values():
            link.socket.disable_monitor()
            monitor.close(0)
        self._watched.clear()
