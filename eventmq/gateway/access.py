"""Access to a gateway over ZeroMQ: CURVE on its ports, which key may connect to which, self-test.

The directory is one as a broker has (`eventmq.wire.zap_thread`), and made by the same commands. A
`eventmq.gateway.router.RouterLoop` with an authenticator names each peer by its routing id
*and* its key, so that a peer which uses the routing id of another one is not taken for it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.errors import KeyFileError, PluginError
from eventmq.wire import zap
from eventmq.wire.curve import fingerprint
from eventmq.wire.sockets import IdentifiedLink, encrypt, lost_connection, watch_failures
from eventmq.wire.zap_thread import KeyRing, ZapThread

if TYPE_CHECKING:
    from collections.abc import Mapping

    import zmq

    from eventmq.wire.sockets import Link

__all__ = ["CLIENTS", "WORKERS", "GatewayAuthenticator", "make_authenticator"]

logger = logging.getLogger("eventmq.keys")

#: Characters of the name of a key.
_USER = len(fingerprint(bytes(32)))

#: Roles of who uses a port for clients, as a broker has them.
CLIENTS = frozenset({"client", "admin"})

#: Roles of who uses a port for workers.
WORKERS = frozenset({"worker"})

#: Refused keys that are logged; of more none are.
_WARNED = 1000


def _roles(_: str, metadata: Mapping[str, str]) -> frozenset[str]:
    """Return the roles of an authorised certificate."""
    roles = frozenset(filter(None, metadata.get("roles", "").split(",")))
    if not roles:
        raise KeyFileError("no role; write it with: eventmq keys authorize")
    return roles


class GatewayAuthenticator:
    """Admits peers by the keys of a directory.

    Args:
        directory: Of the keys.
        roles: Port -> roles of which a key needs one to connect there.
        any_key: Serve every peer that knows the gateway's public key: messages are encrypted, and
            no key is checked.

    Raises:
        KeyFileError: The gateway's own pair is not there, or not in order.
    """

    def __init__(
        self, directory: Path, roles: Mapping[str, frozenset[str]], *, any_key: bool = False
    ) -> None:
        self._ring = KeyRing(directory, _roles)
        self._roles = dict(roles)
        self._any = any_key
        self._grants = self._ring.grants
        #: (port, routing id) -> user and number of the connection that last sent under it.
        self._users: dict[tuple[str, bytes], tuple[str, int]] = {}
        #: (port, number of a connection) -> its routing id.
        self._routes: dict[tuple[str, int], bytes] = {}
        self._zap: ZapThread | None = None
        #: Port -> its link, and the monitor that reports its failed handshakes.
        self._watched: dict[str, tuple[Link, Link]] = {}
        self._warned: set[str] = set()

    # Connections

    def open(self, context: zmq.Context[Any]) -> None:
        """Start to answer libzmq. To be called before anything is bound."""
        self._zap = ZapThread(context, self._ring, self._connects)

    def encrypt(self, context: zmq.Context[Any], port: str, link: Link) -> None:
        """Turn CURVE on for a link that is not bound yet."""
        encrypt(link, self._ring.broker.secret.encode(), _domain(port))
        self._watched[port] = (link, watch_failures(context, link))

    def test(self, addresses: Mapping[str, str]) -> None:
        """Check on every port that a key which is not authorised is refused.

        Raises:
            NotAllowed: It was let in, or there was no answer. The gateway must not serve.
        """
        if self._any:
            logger.warning("CURVE is on, and any key is served: the option any_key says so")
        elif self._zap is not None:
            for address in addresses.values():
                self._zap.test(address)
            logger.info("CURVE is on; an unauthorised key was refused on every address")

    def _connects(self, user: str, domain: bytes) -> bool:
        if self._any:
            return True
        port = domain.removeprefix(_domain("")).decode(errors="replace")
        return self._ring.knows(user) and self._may(user, port)

    def _may(self, user: str, port: str) -> bool:
        roles = self._ring.grants.get(user, frozenset())
        return self._any or not roles.isdisjoint(self._roles.get(port, ()))

    # Messages

    def peer_of(self, port: str, link: Link, identity: bytes) -> bytes | None:
        """Return the peer that a message came from, None if its key may not use the port.

        Args:
            port: Where it came from.
            link: The link that has just received it.
            identity: Its routing id.
        """
        assert isinstance(link, IdentifiedLink)  # noqa: S101 - opened so by the loop
        user, connection = link.user, link.connection
        if len(user) != _USER or not self._may(user, port):
            self._warn(user)
            return None
        if self._users.get((port, identity)) != (user, connection):
            # An earlier connection that had this number was lost: the monitor has said so already.
            self._read_monitor(port)
            self._users[port, identity] = user, connection
            self._routes[port, connection] = identity
        return identity + user.encode()

    def routing_id_of(self, port: str, peer: bytes) -> bytes | None:
        """Return the routing id of a peer, None if it was disconnected or its key was revoked.

        Another peer may have that routing id now.
        """
        self._read_monitor(port)
        identity, user = peer[:-_USER], peer[-_USER:].decode("ascii", "replace")
        held = self._users.get((port, identity))
        return identity if held is not None and held[0] == user else None

    def refresh(self) -> list[tuple[str, bytes]]:
        """Apply changes of the authorised keys; return the peers that must be disconnected."""
        for port in self._watched:
            self._read_monitor(port)
        grants = self._ring.refresh()
        if grants is self._grants:
            return []
        self._grants = grants
        revoked = [
            (port, identity, user, connection)
            for (port, identity), (user, connection) in self._users.items()
            if not self._may(user, port)
        ]
        if revoked:
            logger.info("%d peers are cut: their keys were changed or revoked", len(revoked))
        for port, identity, _, connection in revoked:
            del self._users[port, identity], self._routes[port, connection]
        return [(port, identity + user.encode()) for port, identity, user, _ in revoked]

    def _warn(self, user: str) -> None:
        if user not in self._warned and len(self._warned) < _WARNED:
            self._warned.add(user)
            logger.warning("message of key %s refused: it is not authorised any more", user)

    def _read_monitor(self, port: str) -> None:
        """Forget the peers of lost connections, and log failed handshakes."""
        _, monitor = self._watched[port]
        while (frames := monitor.receive()) is not None:
            connection = lost_connection(frames)
            if connection is None:
                self._log_failure(port)
                continue
            identity = self._routes.pop((port, connection), None)
            if identity is not None:
                held = self._users.get((port, identity))
                if held is not None and held[1] == connection:
                    del self._users[port, identity]

    def _log_failure(self, port: str) -> None:
        if port not in self._warned:
            self._warned.add(port)
            what = "a peer without CURVE or without this gateway's key was refused on port %s"
            logger.warning(what, port)

    def close(self) -> None:
        """Stop the ZAP thread and the monitors. To be called before the links close; idempotent."""
        for link, failures in self._watched.values():
            if not link.socket.closed:
                link.socket.disable_monitor()
            failures.close(0)
        self._watched.clear()
        if self._zap is not None:
            self._zap.stop()
            self._zap = None


def _domain(port: str) -> bytes:
    return b"%s.%s" % (zap.DOMAIN, port.encode())


def make_authenticator(
    keys_dir: str, roles: Mapping[str, frozenset[str]], *, any_key: bool
) -> GatewayAuthenticator | None:
    """Return the authenticator for the options ``keys_dir`` and ``any_key``, None without keys.

    Raises:
        KeyFileError: There is no pair of a server in the directory, or it is not in order.
        PluginError: Any key is to be served where there are none.
    """
    if any_key and not keys_dir:
        raise PluginError("option 'any_key' needs 'keys_dir': a gateway without keys asks for none")
    return GatewayAuthenticator(Path(keys_dir), roles, any_key=any_key) if keys_dir else None
