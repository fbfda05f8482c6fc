"""A broker with keys, in a process of its own, and peers with some of the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils import z85

from eventmq.broker.grants import Grant
from eventmq.wire.curve import Certificate, fingerprint, write_new, write_over
from tests.support.emqp_broker import BrokerProcess
from tests.support.raw_peer import RawPeer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Keys", "Pair"]

Pair = tuple[bytes, bytes]

LIMITS = {"heartbeat_interval": 0.25, "lease_interval": 0.25, "heartbeat_timeout": 3.0}


class Keys:
    """The keys of a broker and its clients; each client has a name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "keys"
        self.clients = self.folder / "clients"
        self.clients.mkdir(parents=True)
        self.broker = zmq.curve_keypair()
        self.pairs: dict[str, Pair] = {}
        public, secret = (key.decode() for key in self.broker)
        write_new(self.folder / "broker.key", Certificate(public), "test")
        write_new(self.folder / "broker.key_secret", Certificate(public, secret), "test")

    def authorize(self, name: str, *roles: str, **more: Any) -> Grant:
        """Authorise a client, or change its roles."""
        public, _ = self.pair(name)
        grant = Grant(self.user(name), name, frozenset(roles), **more)
        grant.check()
        certificate = Certificate(public.decode(), "", grant.metadata())
        write_over(self.clients / f"{name}.key", certificate, "test")
        return grant

    def pair(self, name: str) -> Pair:
        """Return the key pair of a name, authorised or not."""
        return self.pairs.setdefault(name, zmq.curve_keypair())

    def user(self, name: str) -> str:
        """Return the name of a key in the log."""
        return fingerprint(z85.decode(self.pair(name)[0]))

    def revoke(self, name: str) -> None:
        """Revoke a key."""
        (self.clients / f"{name}.key").unlink()

    def of(self, name: str) -> tuple[bytes, bytes, bytes]:
        """Return the keys with which a client connects."""
        return (self.broker[0], *self.pair(name))

    def settings(self, name: str) -> dict[str, str]:
        """Return the settings of an app for a name, whose key is written into a file."""
        public, secret = (key.decode() for key in self.pair(name))
        path = self.folder / f"{name}.key_secret"
        if not path.exists():
            write_new(path, Certificate(public, secret), "test")
        return {"key_file": str(path), "broker_key_file": str(self.folder / "broker.key")}

    def start(self, folder: Path, **limits: Any) -> BrokerProcess:
        """Start a broker with these keys."""
        broker = BrokerProcess(folder, LIMITS | limits, self.folder)
        broker.start()
        return broker


class House:
    """A broker, its keys, and its peers by name."""

    def __init__(self, folder: Path, context: zmq.Context, **limits: Any) -> None:
        self.keys = Keys(folder)
        self.context = context
        self._folder = folder
        self._limits = limits
        self._peers: list[RawPeer] = []
        self.broker: BrokerProcess

    def start(self) -> None:
        """Start the broker."""
        self.broker = self.keys.start(self._folder, **self._limits)

    def peer(self, name: str, port: str = "main", identity: bytes = b"") -> RawPeer:
        """Return a connection with the key of a client."""
        peer = RawPeer(self.context, self.broker[port], identity, self.keys.of(name))
        self._peers.append(peer)
        return peer

    def stranger(self, port: str = "main", keys: Any = None) -> RawPeer:
        """Return a connection with other keys, or none."""
        peer = RawPeer(self.context, self.broker[port], b"", keys)
        self._peers.append(peer)
        return peer

    def warnings(self, text: str) -> int:
        """Return how many warnings of the broker contain a text."""
        lines = self.broker.log().splitlines()
        return sum(line.startswith("WARNING") and text in line for line in lines)

    def stop(self) -> None:
        """End everything."""
        for peer in self._peers:
            peer.close()
        self.broker.stop()
