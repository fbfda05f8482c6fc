"""The sockets of a client for one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zmq

from eventmq.wire.runner_monitors import event_fd, event_of, handshake_trouble
from eventmq.wire.socket import Link, open_dealer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.client.connection import Connection
    from eventmq.wire.curve import ClientKeys

__all__ = ["BrokerSockets"]

#: Milliseconds that a closing socket may spend on what was not sent yet.
CLOSE_LINGER_MS = 200

_MADE, _LOST = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class BrokerSockets:
    """The link to one broker, and the monitor that says when it is cut.

    Args:
        context: What it is opened in.
        connection: Whose it is.
        keys: For CURVE.
    """

    __slots__ = (
        "_early", "address", "blocked", "link", "monitor", "monitor_fd", "send", "trouble",
    )  # fmt: skip

    def __init__(
        self, context: zmq.Context[Any], connection: Connection, keys: ClientKeys | None = None
    ) -> None:
        self.address = connection.address
        self.link = open_dealer(context, self.address, kind=connection.role, keys=keys)
        self.send = self.link.send
        self.monitor = Link(self.link.socket.get_monitor_socket(_MADE | _LOST | _FAILED))
        #: Readable when there are `events`.
        self.monitor_fd = event_fd(self.monitor.socket)
        #: Why the last handshake failed, for people.
        self.trouble = ""
        #: The link takes nothing more for now.
        self.blocked = False
        #: What happened before the descriptor could say so.
        self._early = list(self._read())

    def events(self) -> Iterator[bool]:
        """Yield True for every connection that was made, False for every one that was lost."""
        yield from self._early
        self._early.clear()
        yield from self._read()

    def _read(self) -> Iterator[bool]:
        while (frames := self.monitor.receive()) is not None:
            event = event_of(frames)
            self.trouble = handshake_trouble(event) or self.trouble
            if event in {_MADE, _LOST}:
                yield event == _MADE

    def close(self) -> None:
        """Close both."""
        self.link.socket.disable_monitor()
        self.monitor.close(0)
        self.link.close(CLOSE_LINGER_MS)
