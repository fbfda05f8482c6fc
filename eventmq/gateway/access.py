"""Access to a gateway: its addresses and their protection, CURVE on its ports and its keys.

The directory of keys has the same form as a broker's (`eventmq.wire.zap_thread`), and the same
commands write it. A `eventmq.gateway.router.RouterLoop` with an authenticator names each peer by
its routing id *and* its key, so that a peer cannot pass for another one by its routing id.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from eventmq.errors import KeyFileError, NotAllowed, PluginError
from eventmq.sdk.options import read_options
from eventmq.wire.connections import Connections
from eventmq.wire.curve import fingerprint
from eventmq.wire.sockets import DOMAIN, IdentifiedLink, encrypt, is_local
from eventmq.wire.zap_thread import KeyRing, ZapThread

if TYPE_CHECKING:
    from collections.abc import Mapping

    import zmq

    from eventmq.interfaces import PluginContext
    from eventmq.wire.sockets import Link

__all__ = [
    "CLIENTS",
    "WITH_KEYS",
    "WORKERS",
    "GatewayAuthenticator",
    "check_reach",
    "gateway_options",
    "make_authenticator",
    "split_address",
]

T = TypeVar("T")

#: Alternative to ``insecure`` for a gateway over ZeroMQ.
WITH_KEYS = "give it keys with --keys-dir"

_HIGHEST_PORT = 65_535


def gateway_options(context: PluginContext, kind: type[T]) -> T:
    """Return the options of a gateway, as an object of a dataclass with a field for each.

    If the option ``insecure`` is not set, the field has the value of the app's setting.

    Args:
        context: The argument of the factory.
        kind: The dataclass, as for `eventmq.sdk.read_options`.

    Raises:
        PluginError: There is no app, or an option is unknown, missing or not allowed.
    """
    if context.app is None:
        raise PluginError(f"the gateway {context.name!r} needs an app")
    options = {"insecure": bool(context.app.settings.insecure), **context.options}
    return read_options(replace(context, options=options), kind)


def check_reach(address: str, *, insecure: bool, protected: str = "") -> None:
    """Raise `NotAllowed` for an address that other machines can reach, unless that is allowed.

    Args:
        address: Address of an unencrypted port.
        insecure: Whether the user has allowed this.
        protected: How to protect the port instead; for the message.
    """
    if insecure or is_local(address):
        return
    instead = f"{protected}, " if protected else ""
    raise NotAllowed(
        f"{address} can be reached from other machines and nothing would be encrypted or checked"
        f": bind a loopback address, {instead}or say --insecure"
    )


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, with or without a scheme such as ``tcp://``.

    Raises:
        PluginError: The address is malformed.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    host = host.strip("[]")
    digits = port.isascii() and port.isdigit() and len(port) < 6  # noqa: PLR2004 - of 65535
    if not colon or not host or not digits or int(port) > _HIGHEST_PORT:
        raise PluginError(f"{address!r} is not an address; write tcp://HOST:PORT")
    return ("0.0.0.0" if host == "*" else host), int(port)  # noqa: S104 - as ZeroMQ reads it


logger = logging.getLogger("eventmq.keys")

#: Number of characters in the name of a key.
_USER = len(fingerprint(bytes(32)))

#: Roles of a broker that may use a port for clients.
CLIENTS = frozenset({"client", "admin"})

#: Roles of a broker that may use a port for workers.
WORKERS = frozenset({"worker"})

#: Maximum number of refused keys that are logged.
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
        directory: Directory of the keys.
        roles: Port -> roles, one of which a key needs to connect there.
        any_key: Serve every peer that knows the gateway's public key: messages are encrypted, and
            no key is checked.

    Raises:
        KeyFileError: The gateway's own key pair is missing or malformed.
    """

    def __init__(
        self, directory: Path, roles: Mapping[str, frozenset[str]], *, any_key: bool = False
    ) -> None:
        self._authorised_keys = KeyRing(directory, _roles)
        self._roles = dict(roles)
        self._any = any_key
        self._grants = self._authorised_keys.grants
        self._connections = Connections(lambda _: None, self._log_failure)
        self._zap: ZapThread | None = None
        self._warned: set[str] = set()

    # Connections

    def open(self, context: zmq.Context[Any]) -> None:
        """Start the ZAP thread, which libzmq asks. Call it before anything is bound."""
        self._zap = ZapThread(context, self._authorised_keys, self._connects)

    def encrypt(self, port: str, link: Link) -> None:
        """Turn CURVE on for a link that is not bound yet."""
        encrypt(link, self._authorised_keys.broker.secret.encode(), _domain(port))
        self._connections.watch(port, link)

    def test(self, addresses: Mapping[str, str]) -> None:
        """Check on every port that an unauthorised key is refused.

        Raises:
            NotAllowed: It was admitted, or there was no answer. The gateway must not serve.
        """
        if self._any:
            logger.warning("CURVE is on, and the option any_key admits every key")
        elif self._zap is not None:
            for address in addresses.values():
                self._zap.test(address)
            logger.info("CURVE is on; an unauthorised key was refused on every address")

    def _connects(self, user: str, domain: bytes) -> bool:
        if self._any:
            return True
        port = domain.removeprefix(_domain("")).decode(errors="replace")
        return self._authorised_keys.knows(user) and self._may(user, port)

    def _may(self, user: str, port: str) -> bool:
        roles = self._authorised_keys.grants.get(user, frozenset())
        return self._any or not roles.isdisjoint(self._roles.get(port, ()))

    # Messages

    def peer_of(self, port: str, link: Link, identity: bytes) -> bytes | None:
        """Record a message's connection; return its peer, None if its key may not use the port.

        Args:
            port: The port on which it arrived.
            link: The link that has just received it.
            identity: Its routing id.
        """
        assert isinstance(link, IdentifiedLink)  # noqa: S101 - opened so by the loop
        user, connection = link.user, link.connection
        if len(user) != _USER or not self._may(user, port):
            self._warn(user)
            return None
        if self._connections.peers.get((port, identity)) != (connection, user):
            self._connections.add(port, identity, connection, user)
        return identity + user.encode()

    def routing_id_of(self, port: str, peer: bytes) -> bytes | None:
        """Return the routing id of a peer, None if it was disconnected or its key was revoked.

        Another peer may have that routing id now.
        """
        self._connections.read(port)
        identity, user = peer[:-_USER], peer[-_USER:].decode("ascii", "replace")
        connection = self._connections.peers.get((port, identity))
        return identity if connection is not None and connection[1] == user else None

    def refresh(self) -> list[tuple[str, bytes]]:
        """Apply changes of the authorised keys; return the peers that must be disconnected."""
        self._connections.read_all()
        grants = self._authorised_keys.refresh()
        if grants is self._grants:
            return []
        self._grants = grants
        revoked = [
            (port, identity, user)
            for (port, identity), (_, user) in self._connections.peers.items()
            if not self._may(user, port)
        ]
        if revoked:
            logger.info(
                "%d peers are disconnected: their keys were changed or revoked", len(revoked)
            )
        for port, identity, _ in revoked:
            self._connections.remove(port, identity)
        return [(port, identity + user.encode()) for port, identity, user in revoked]

    def _warn(self, user: str) -> None:
        if user not in self._warned and len(self._warned) < _WARNED:
            self._warned.add(user)
            logger.warning("message of key %s refused: it is not authorised any more", user)

    def _log_failure(self, port: str) -> None:
        if port not in self._warned:
            self._warned.add(port)
            text = "a peer without CURVE or without this gateway's key was refused on port %s"
            logger.warning(text, port)

    def close(self) -> None:
        """Stop the ZAP thread. Call it before the links close; idempotent."""
        if self._zap is not None:
            self._zap.stop()
            self._zap = None


def _domain(port: str) -> bytes:
    return b"%s.%s" % (DOMAIN, port.encode())


def make_authenticator(
    keys_dir: str, roles: Mapping[str, frozenset[str]], *, any_key: bool
) -> GatewayAuthenticator | None:
    """Return the authenticator for the options ``keys_dir`` and ``any_key``, None without keys.

    Raises:
        KeyFileError: The directory has no key pair of a server, or a malformed one.
        PluginError: ``any_key`` is set without ``keys_dir``.
    """
    if any_key and not keys_dir:
        raise PluginError("option 'any_key' needs 'keys_dir': a gateway without keys asks for none")
    return GatewayAuthenticator(Path(keys_dir), roles, any_key=any_key) if keys_dir else None
