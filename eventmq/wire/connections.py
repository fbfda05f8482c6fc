"""Connections of a server's sockets: their peers, lost connections and failed handshakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from eventmq.wire.sockets import FAILURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.wire.sockets import Link

__all__ = ["Connections"]


class Connections:
    """Tracks the connections of a broker or a gateway through the monitors of its ports.

    Args:
        on_lost: Called with the port for each lost connection.
        on_failure: Called with the port for each handshake that failed before the ZAP request.

    Attributes:
        peers: (port, routing id) -> number and user of the connection of the last message with this
            routing id, while that connection exists.
    """

    def __init__(
        self, on_lost: Callable[[str], None], on_failure: Callable[[str], None] = lambda _: None
    ) -> None:
        self.peers: dict[tuple[str, bytes], tuple[int, str]] = {}
        self.on_failure = on_failure
        self._on_lost = on_lost
        #: Port -> its link.
        self._links: dict[str, Link] = {}
        #: (port, number of a connection) -> its routing id.
        self._identities: dict[tuple[str, int], bytes] = {}

    def watch(self, port: str, link: Link) -> None:
        """Watch a link that is not bound yet, instead of an earlier link of the port."""
        link.watch(FAILURES | zmq.EVENT_DISCONNECTED)
        self._links[port] = link

    def forget(self, port: str) -> None:
        """Stop watching a port whose link is about to be closed."""
        self._links.pop(port, None)

    def add(self, port: str, identity: bytes, connection: int, user: str) -> None:
        """Record the connection of a message if it is another one than before."""
        self.read(port)  # first, since an earlier connection with this number may be lost
        self.peers[port, identity] = connection, user
        self._identities[port, connection] = identity

    def remove(self, port: str, identity: bytes) -> None:
        """Forget a connected peer."""
        connection, _ = self.peers.pop((port, identity))
        del self._identities[port, connection]

    def read(self, port: str) -> None:
        """Forget the peers of a port whose connections were lost."""
        for event, value in self._links[port].events():
            if event != zmq.EVENT_DISCONNECTED:
                self.on_failure(port)
                continue
            self._on_lost(port)
            identity = self._identities.pop((port, value), None)
            if identity is not None and self.peers.get((port, identity), (-1, ""))[0] == value:
                del self.peers[port, identity]

    def read_all(self) -> None:
        """Forget the peers of all ports whose connections were lost."""
        for port in self._links:
            self.read(port)
