"""Connections of a server's sockets: who is on which, which were lost, which handshakes failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from eventmq.wire.sockets import FAILURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.wire.sockets import Link

__all__ = ["Connections"]


class Connections:
    """Tracks the connections of a broker or a gateway by the monitors of its ports.

    Args:
        on_lost: Called with the port for each connection that was lost.
        on_failure: Called with the port for each handshake that failed before ZAP was asked.

    Attributes:
        peers: (port, routing id) -> the connection that was last heard under it, by its number,
            and its user; as long as the connection is there.
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
        """Watch a link that is not bound yet, in the place of one that the port had before."""
        link.watch(FAILURES | zmq.EVENT_DISCONNECTED)
        self._links[port] = link

    def forget(self, port: str) -> None:
        """Stop watching a port whose link is about to be closed."""
        self._links.pop(port, None)

    def add(self, port: str, identity: bytes, connection: int, user: str) -> None:
        """Record that a message came over another connection than those before it."""
        self.read(port)  # of the loss of one that had this number before
        self.peers[port, identity] = connection, user
        self._identities[port, connection] = identity

    def remove(self, port: str, identity: bytes) -> None:
        """Forget a peer that is connected."""
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
        """Do the same for all ports."""
        for port in self._links:
            self.read(port)
