"""Relays of a standby: pass messages of its peers to the owner of the store, and its answers back.

The standby opens one connection to the owner for each peer, so that the owner applies its limits to
each peer:

- A legacy peer does not know about owners and may be connected to any broker. All its messages go
  to the owner unchanged, and all messages of the owner come back. This works only without CURVE
  keys, since a peer proves its key to one broker.
- For a peer that reads the answers of a standby, the standby informs as a client with the grant of
  that peer, and relays calls and published messages (`Relays.forward`). ACK, REPLY and ERROR come
  back. When the connection or the owner is lost, the peer is asked to inform again, as after a
  restart; it then sends unanswered messages again.
- For the PUB socket the standby subscribes to all topics.

No message is relayed twice: brokers recognise these connections by the `PREFIX` of their routing
ids. So the owner receives a published message once, and sends it to each subscriber.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

from eventmq.broker.calls import SUBSCRIBE
from eventmq.broker.grants import Grant
from eventmq.errors import ProtocolError
from eventmq.wire.batches import pack, unpack
from eventmq.wire.calls import CALLS
from eventmq.wire.commands import (
    Ack,
    Call,
    Error,
    Heartbeat,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
    Schedule,
    decode,
)
from eventmq.wire.curve import ClientKeys, decode_key, fingerprint
from eventmq.wire.features import EXTENSIONS, Features, is_ours
from eventmq.wire.sockets import MAX_UNSENT_BYTES, RouterLink, use_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from eventmq.broker.peers import Key, Peer
    from eventmq.wire.commands import Command
    from eventmq.wire.curve import Certificate
    from eventmq.wire.owner import OwnerInfo
    from eventmq.wire.sockets import BufferUsage, TotalUsage

__all__ = ["PREFIX", "Relays"]

logger = logging.getLogger("eventmq.broker")

#: Prefix of the routing ids of relay connections.
PREFIX = b"passed."

#: Number of relays at a time. Beyond it, the relay of the peer that was silent longest is closed.
MAX_PEERS = 1000

#: Messages that may wait in one connection, in each direction. Beyond it, published messages are
#: dropped.
MAX_WAITING = 1000

#: Messages that are read from one connection at a time.
_READ_AT_MOST = 100

#: Seconds until the owner is tried again after it has refused the key of this broker.
REFUSED = 10.0

#: Commands of the published document, which legacy peers send.
_LEGACY = (Request, Reply, Ready, Heartbeat, Schedule, Publish, Kbai)

#: Calls that a standby does not relay: the next owner would give the store up as well.
_NOT_RELAYED = frozenset({"handover"})

#: Message ids that the standby itself uses on a connection to the owner.
_INFORM, _SUBSCRIBED, _BEAT = "standby.inform", "standby.subscribe", "standby.beat"


@dataclass(slots=True, eq=False)
class _Relay:
    """A connection to the owner for a peer.

    Attributes:
        key: The connection between the peer and the standby.
        link: The connection between the standby and the owner.
        informed: The standby has sent INFORM over ``link``.
        peer: The peer with whose grant it informed: another peer may use the same routing id
            later. None for a legacy peer and for the PUB socket.
    """

    key: Key
    link: RouterLink
    informed: bool
    peer: Peer | None = None


class _OwnerLink(RouterLink):
    """A connection to the owner for a peer, with a limit on the bytes that wait in it.

    Without the limit they would wait for ever where the owner cannot be reached or has stopped.
    """

    __slots__ = ()

    def _full(self, peer: bytes, usage: BufferUsage) -> bool:
        if not usage.warned:
            usage.warned = True
            logger.warning(
                "the owner of the store does not read relayed messages: %d bytes of a peer wait, "
                "which gets ERROR no-owner until they are read; check whether this machine reaches "
                "the address that the owner advertises", usage.count_waiting(),
            )  # fmt: skip
        return False

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket and forget the messages that wait in it. Idempotent."""
        self.buffers.forget(b"")  # frame 0
        super().close(linger_ms)


class Relays:
    """The connections of a standby to the owner, one for each peer whose messages it relays.

    Args:
        context: The ZeroMQ context of the connections.
        answer: Sends frames to a peer; to the PUB socket with the key `SUBSCRIBE`.
        own: Keys of this broker; None if it has none.
        publishes: Whether this broker has a PUB socket.
        max_bytes: Bytes that may wait in one connection.
        total: Counts the bytes that wait in all connections and for the peers of this broker; None
            for no common limit.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        answer: Callable[[Key, list[bytes]], None],
        own: Certificate | None = None,
        *,
        publishes: bool = False,
        max_bytes: int = MAX_UNSENT_BYTES,
        total: TotalUsage | None = None,
    ) -> None:
        self._context = context
        self._answer = answer
        self._own = own
        self._publishes = publishes
        self._max_bytes, self._total = max_bytes, total
        #: The owner that messages are relayed to, None before `follow`.
        self._owner: OwnerInfo | None = None
        #: In the order of their last messages, the newest last.
        self._relays: dict[Key, _Relay] = {}
        self._next_beat = self._retry_at = 0.0
        self._warned = False

    def follow(self, owner: OwnerInfo) -> None:
        """Relay messages to this owner; close the connections to another one."""
        if owner == self._owner:
            return
        relays = list(self._relays.values())
        self.close()
        self._owner, self._warned = owner, False
        self._next_beat = self._retry_at = 0.0
        for relay in relays:
            self._end(relay)

    def tick(self, now: float, wall: float, interval: float, connected: Mapping[Key, Peer]) -> None:
        """Close the relays of lost peers, send HEARTBEATs, and subscribe for the PUB socket.

        Args:
            now: Monotonic time.
            wall: Unix time.
            interval: Seconds between HEARTBEATs.
            connected: The peers of this broker.
        """
        for relay in [each for each in self._relays.values() if each.peer is not None]:
            if connected.get(relay.key) is not relay.peer:
                self._relays.pop(relay.key).link.close(0)
        if now < self._next_beat:
            return
        self._next_beat = now + interval
        if now >= self._retry_at:
            self._retry_at = 0.0
        for relay in self._relays.values():
            if relay.informed:
                relay.link.send(Heartbeat(_BEAT, f"{wall:.2f}").frames())
        if self._publishes and SUBSCRIBE not in self._relays and self._can_relay:
            self._subscribe()

    def _subscribe(self) -> None:
        grant = None
        if self._own is not None:
            user = fingerprint(decode_key(self._own.public))
            grant = Grant(user, "standby", frozenset({"client"}))
        if (relay := self._connect(SUBSCRIBE)) is None:
            return
        self._inform(relay, grant, EXTENSIONS)
        relay.link.send(Call(_SUBSCRIBED, "subscribe", pack({"topics": [""]})).frames())

    @property
    def _can_relay(self) -> bool:
        """Whether an owner is known that uses keys if this broker does, and has not refused it."""
        owner = self._owner
        keyed = self._own is not None
        return (
            owner is not None
            and owner.address != ""
            and bool(owner.key) == keyed
            and not self._retry_at
        )

    # To the owner

    def forward_legacy(self, key: Key, frames: Sequence[bytes], message: Command) -> bool:
        """Relay a message of a legacy peer; return False if this broker has to handle the message.

        Args:
            key: The connection of the peer.
            frames: The message, from frame 0 on.
            message: The same message, decoded.
        """
        legacy = isinstance(message, _LEGACY) or (type(message) is Inform and not message.features)
        if not legacy or self._own is not None or is_ours(key.identity):
            return False
        if key.identity.startswith(PREFIX) or not self._can_relay:
            return True  # the peer gets no answer, as from a broker that is down
        relay = self._relays.get(key)
        if relay is None or relay.informed:
            relay = self._connect(key)
        if relay is not None:
            self._touch(relay)
            relay.link.send(list(frames))
        return True

    def forward(self, peer: Peer, message: Any) -> bool:
        """Relay a message that a standby cannot handle; return whether that was done.

        The standby has checked that the role of the peer allows the message. The owner checks it
        again, with the rules that depend on the job.
        """
        key = peer.key
        if key.identity.startswith(PREFIX) or not self._can_relay:
            return False
        if type(message) is Call:
            spec = CALLS.get(message.name)
            if message.name in _NOT_RELAYED or (spec is not None and spec.role == "worker"):
                return False
            if peer.grant is not None and peer.grant.keyless:
                message = _without_actor(message)
        relay = self._relays.get(key)
        if relay is None or relay.peer is not peer:
            relay = self._connect(key)
            if relay is None:
                return False
            relay.peer = peer
            extensions = EXTENSIONS if peer.features is None else peer.features.extensions
            self._inform(relay, peer.grant, extensions)
        self._touch(relay)
        return relay.link.send(message.frames())

    @staticmethod
    def _inform(relay: _Relay, grant: Grant | None, extensions: tuple[str, ...]) -> None:
        """Tell the owner which peer a new connection stands for."""
        relay.informed = True
        sender = "" if grant is None or grant.keyless else grant.format()
        names = tuple(name for name in extensions if name != "owner")
        features = Features(extensions=names, sender=sender).format()
        relay.link.send(Inform(_INFORM, "", "client", features).frames())

    def _connect(self, key: Key) -> _Relay | None:
        """Return a new relay; None if the connection to the owner cannot be opened."""
        if key in self._relays:
            self._relays.pop(key).link.close(0)
        while len(self._relays) >= MAX_PEERS:
            self._end(self._relays.pop(next(iter(self._relays))))
        owner = self._owner
        assert owner is not None  # noqa: S101 - checked by the caller
        try:
            link = self._open(owner)
        except zmq.ZMQError as error:
            self._log_once(f"nothing can be relayed to {owner.address}: {error}")
            return None
        logger.info("messages of %s are relayed to %s", key, owner.address)
        relay = self._relays[key] = _Relay(key, link, informed=False)
        return relay

    def _open(self, owner: OwnerInfo) -> RouterLink:
        """Return a new connection to the owner.

        Raises:
            zmq.ZMQError: The process has no descriptor left, or the address is malformed.
        """
        socket, own = self._context.socket(zmq.DEALER), self._own
        link = _OwnerLink(socket, self._max_bytes, self._total)
        try:
            socket.linger = 0
            socket.set(zmq.SNDHWM, MAX_WAITING)
            socket.set(zmq.RCVHWM, MAX_WAITING)
            socket.routing_id = PREFIX + uuid.uuid4().hex.encode()
            if own is not None:
                public, secret = own.public.encode(), own.secret.encode()
                use_keys(socket, ClientKeys(owner.key.encode(), public, secret))
                link.watch()
            socket.connect(owner.address)
        except BaseException:
            link.close(0)
            raise
        return link

    def _touch(self, relay: _Relay) -> None:
        """Move a relay to the end of the order, so that it is closed last."""
        self._relays[relay.key] = self._relays.pop(relay.key)

    # From the owner

    @property
    def sockets(self) -> list[Any]:
        """The sockets and monitor descriptors to poll."""
        links = [relay.link for relay in self._relays.values()]
        monitors = [link.monitor_fd for link in links if link.monitor_fd >= 0]
        return [*(link.socket for link in links), *monitors]

    def read(self, ready: Container[object], now: float) -> None:
        """Send peers the messages of the owner.

        Args:
            ready: The readable ones of `sockets`.
            now: Monotonic time.
        """
        for relay in list(self._relays.values()):
            link = relay.link
            if link.monitor_fd in ready:
                link.connections()
                if link.handshake_error:
                    self._pause(link.handshake_error, now)
                    return
            if link.socket in ready:
                for _ in range(_READ_AT_MOST):
                    frames = link.receive()
                    if frames is None or not self._deliver(relay, frames, now):
                        break

    def _deliver(self, relay: _Relay, frames: list[bytes], now: float) -> bool:
        """Send a message of the owner to its peer; return whether the relay is still open."""
        if not relay.informed:
            self._answer(relay.key, frames)
            return True
        try:
            message = decode(frames)
            if type(message) is Reply and relay.key == SUBSCRIBE:
                if part := unpack(message.result, "a published message"):
                    topic, _, body = part
                    self._answer(SUBSCRIBE, [topic.encode(), body])
                return True
        except (ProtocolError, ValueError, TypeError) as error:
            logger.warning("a message of the owner was dropped: %s", error)
            return True
        if type(message) is Error and message.request == _INFORM:
            self._pause(message.text, now)
            return False
        if type(message) is Error and (relay.key == SUBSCRIBE or message.code == "inform-again"):
            self._end(self._relays.pop(relay.key))
            return False
        if type(message) in {Reply, Error} or (type(message) is Ack and message.acked != _INFORM):
            self._answer(relay.key, frames)
        return True

    def _end(self, relay: _Relay) -> None:
        """Close a relay; ask its peer to inform again and to repeat unanswered messages."""
        relay.link.close(0)
        if relay.informed and relay.key != SUBSCRIBE:
            text = "the connection to the owner of the store was lost: send INFORM again"
            error = Error(uuid.uuid4().hex, "", "inform-again", text)
            self._answer(relay.key, error.frames())

    def _log_once(self, text: str) -> None:
        """Log why nothing is relayed, as a warning the first time for each owner."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(level, "%s", text)

    def _pause(self, why: str, now: float) -> None:
        """Relay nothing for `REFUSED` seconds: the owner has refused this broker."""
        assert self._owner is not None  # noqa: S101 - there is a connection to it
        self._log_once(
            f"nothing can be relayed to the owner of the store at {self._owner.address}: {why}; "
            "authorise the key of this broker there with the role broker"
        )
        relays, self._relays = list(self._relays.values()), {}
        self._retry_at = now + REFUSED
        for relay in relays:
            self._end(relay)

    def close(self) -> None:
        """Close all connections."""
        for relay in self._relays.values():
            relay.link.close(0)
        self._relays.clear()
        self._owner = None


def _without_actor(call: Call) -> Call:
    """Return a call without its argument ``actor``.

    For peers without a key on another machine, whose actor is not trusted. The owner cannot decide
    this: it sees the address of the standby, which may be on its own machine.
    """
    arguments = unpack(call.arguments, "the arguments")
    if not isinstance(arguments, dict) or "actor" not in arguments:
        return call
    del arguments["actor"]
    return call._replace(arguments=pack(arguments))
