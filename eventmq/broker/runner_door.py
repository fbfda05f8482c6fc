"""The door of a broker: CURVE on its sockets, the ZAP thread, the self-test, and the gate behind.

`BrokerRunner` opens one where there are keys, a limit of messages, or addresses that other
machines can reach. Without it, no message costs anything more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.core import WORKER_PORTS
from eventmq.broker.gate import Gate
from eventmq.wire.runner_monitors import event_fd, lost_connection
from eventmq.wire.runner_zap import ZapThread
from eventmq.wire.socket import KnownLink, encrypt, watch_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import zmq

    from eventmq.broker.core import BrokerCore
    from eventmq.broker.roles import Grant
    from eventmq.wire.runner_zap import KeyRing
    from eventmq.wire.socket import Link

__all__ = ["Door"]

logger = logging.getLogger("eventmq.broker")


class Door:
    """Lets in whom the keys allow.

    Args:
        core: The broker.
        ring: Its keys, None for no CURVE.
        rate: Messages per second that a peer may send, 0.0 for any number.
    """

    def __init__(self, core: BrokerCore, ring: KeyRing[Grant] | None, *, rate: float) -> None:
        self._ring = ring
        self._grants = None if ring is None else ring.grants
        self._gate = Gate(core, self._grants, rate=rate)
        self._zap: ZapThread | None = None
        self._counters = core.state.counters
        self._tell_lost = core.heartbeats.connection_lost
        #: Port -> its link, and where its failed handshakes are told.
        self._watched: dict[str, tuple[Link, Link]] = {}
        self._warned: set[str] = set()
        #: Peer -> number of its connection, and back, as long as it is there; only with keys.
        self._connections: dict[tuple[str, bytes], int] = {}
        self._routes: dict[tuple[str, int], tuple[str, bytes]] = {}

    @property
    def known_by(self) -> str:
        """What of a connection says who is at its other end."""
        return "Peer-Address" if self._ring is None else "User-Id"

    def open(self, context: zmq.Context[Any]) -> None:
        """Start to answer libzmq, before anything is bound."""
        if self._ring is not None:
            self._zap = ZapThread(context, self._ring)

    def arm(self, context: zmq.Context[Any], port: str, link: Link) -> int | None:
        """Turn CURVE on, where there are keys, before a link is bound.

        Returns:
            A descriptor that is readable when there may be something to `look` at; None without
            keys, where the link is not watched, and for a port where no workers are.
        """
        if self._ring is None:
            return None
        encrypt(link, self._ring.broker.secret.encode())
        self.disarm(port)
        told = watch_failures(context, link)
        self._watched[port] = (link, told)
        return event_fd(told.socket) if port in WORKER_PORTS else None

    def disarm(self, port: str) -> None:
        """Watch a link no more, before it is closed."""
        if port in self._watched:
            link, failures = self._watched.pop(port)
            if not link.socket.closed:
                link.socket.disable_monitor()
            failures.close(0)

    def test(self, addresses: Mapping[str, str]) -> None:
        """See that a key that nobody has authorised is refused.

        Raises:
            NotAllowed: It was let in, or there was no answer. The broker must not serve.
        """
        if self._zap is None:
            return
        for port, address in addresses.items():
            self._zap.test(address, subscribing=port == "subscribe")
        logger.info("CURVE is on; a key that nobody authorised was refused on every address")

    def read(self, port: str, link: Link, most: int, now: float) -> bool:
        """Take what a link has, ``most`` messages; return whether that was all."""
        assert isinstance(link, KnownLink)  # noqa: S101 - opened so by the runner
        receive, take = link.receive, self._gate.receive
        keyed, connections = self._ring is not None, self._connections
        for _ in range(most):
            frames = receive()
            if frames is None:
                return True
            if keyed and connections.get((port, frames[0])) != link.connection:
                self._note_connection(port, frames[0], link.connection)
            take(port, frames, link.user, now)
        return False

    def _note_connection(self, port: str, identity: bytes, connection: int) -> None:
        self._take_note(port)  # of the loss of one that had this number before
        self._connections[port, identity] = connection
        self._routes[port, connection] = (port, identity)

    def is_there(self, port: str, identity: bytes) -> bool:
        """Say whether the connection still is there that a peer was heard on.

        Its routing id may be that of somebody else by now, who has not said a word yet.
        """
        return self._ring is None or (port, identity) in self._connections

    def take_note(self) -> None:
        """Take note of connections that were lost. Before anything is sent."""
        for port in self._watched:
            self._take_note(port)

    def look(self, now: float, on_revoked: Callable[[], None]) -> None:
        """Take note of keys that were authorised or revoked.

        Args:
            now: Unix time.
            on_revoked: Called if a key is not there any more.
        """
        if self._ring is None or self._grants is None:
            return
        self.take_note()
        grants = self._ring.refresh()
        if grants is not self._grants:
            old, self._grants = self._grants, grants
            self._gate.update(grants, now)
            if old.keys() - grants.keys():
                on_revoked()

    def _take_note(self, port: str) -> None:
        _, told = self._watched[port]
        while (frames := told.receive()) is not None:
            connection = lost_connection(frames)
            if connection is None:
                self._note_failure(port)
                continue
            if port in WORKER_PORTS:
                self._tell_lost()
            peer = self._routes.pop((port, connection), None)
            if peer is not None and self._connections.get(peer) == connection:
                del self._connections[peer]

    def _note_failure(self, port: str) -> None:
        self._counters["errors.handshake"] += 1
        if port not in self._warned:
            self._warned.add(port)
            what = "a peer without CURVE or without this broker's key was refused on port %s"
            logger.warning(what, port)

    def close(self) -> None:
        """End the thread, and watch no more. Before the links close; idempotent."""
        for port in list(self._watched):
            self.disarm(port)
        if self._zap is not None:
            self._zap.stop()
            self._zap = None
