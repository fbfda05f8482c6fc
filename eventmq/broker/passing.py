"""Passes messages on, from a standby to the broker that owns the store, and its answers back.

Each peer has a connection of its own to the owner, so that the owner's limits are those of a peer:

- of a legacy peer, which knows nothing of owners and may be connected to any broker, all messages
  go as they are, and everything comes back. Only without keys: a key is proven to one broker.
- for a peer that reads what a standby says, the standby informs as a client, with the grant of
  that peer, and passes on what `Passing.forward` is given: calls and published messages. ACK, REPLY
  and ERROR come back. When the connection or the owner is lost, the peer is asked to inform again,
  as after a restart; it then sends again what is not answered.
- for the PUB socket the standby subscribes to all topics.

A message that was passed on is never passed on again: the routing ids of these connections say
what they are. So a published message reaches the owner once, and from there each subscriber.
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

__all__ = ["PASSED", "Passing"]

logger = logging.getLogger("eventmq.broker")

#: What the routing ids of connections begin with over which messages are passed on.
PASSED = b"passed."

#: Peers whose messages are passed on at a time; of more, those silent for longest are forgotten.
MAX_PEERS = 1000

#: Messages that wait in one connection, each way; of more, published ones are dropped.
MAX_WAITING = 1000

#: Messages that one connection gives at a time.
_READ_AT_MOST = 100

#: Seconds until the owner is tried again that has refused the key of this broker.
REFUSED = 10.0

#: Commands of the published document, and of software that knows no more.
_LEGACY = (Request, Reply, Ready, Heartbeat, Schedule, Publish, Kbai)

#: Calls that a standby does not pass on: the next owner would give the store up as well.
_NOT_PASSED = frozenset({"handover"})

#: Message ids of the standby itself on a connection to the owner.
_INFORM, _SUBSCRIBED, _BEAT = "standby.inform", "standby.subscribe", "standby.beat"


@dataclass(slots=True, eq=False)
class _Passed:
    """A connection to the owner for a peer.

    Attributes:
        key: The peer's connection.
        link: That to the owner.
        informed: The standby has informed over it.
        peer: For whom, with its rights: another peer may have the routing id by now. None for a
            legacy one, and for the PUB socket.
    """

    key: Key
    link: RouterLink
    informed: bool
    peer: Peer | None = None


class _OwnerLink(RouterLink):
    """A peer's connection to the owner, with a bound on the bytes that wait in it.

    Where the owner cannot be reached, or has been stopped, they would wait for ever.
    """

    __slots__ = ()

    def _full(self, peer: bytes, usage: BufferUsage) -> bool:
        if not usage.warned:
            usage.warned = True
            logger.warning(
                "the owner of the store does not read what is passed on to it: %d bytes of a peer "
                "wait, which gets ERROR no-owner until it has; see whether this machine reaches "
                "the address that the owner advertises", usage.count_waiting(),
            )  # fmt: skip
        return False

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket, and forget what waits. Idempotent."""
        self.buffers.forget(b"")  # frame 0
        super().close(linger_ms)


class Passing:
    """The connections of a standby to the owner.

    Args:
        context: For the connections.
        answer: Sends frames to a peer; to the PUB socket with the key `SUBSCRIBE`.
        own: Keys of this broker, None without.
        publishes: Whether this broker has a PUB socket.
        max_bytes: Bytes that may wait in one connection.
        total: What may wait in all of them, and for the peers of this broker; None for any number.
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
        #: The owner to whom messages go, None while there is none that can be used.
        self._owner: OwnerInfo | None = None
        #: The last one heard stands last.
        self._peers: dict[Key, _Passed] = {}
        self._next_beat = self._retry_at = 0.0
        self._warned = False

    def follow(self, owner: OwnerInfo) -> None:
        """Pass messages on to this owner; the connections to the one before are closed."""
        if owner == self._owner:
            return
        passed = list(self._peers.values())
        self.close()
        self._owner, self._warned = owner, False
        self._next_beat = self._retry_at = 0.0
        for each in passed:
            self._again(each)

    def tick(self, now: float, wall: float, interval: float, connected: Mapping[Key, Peer]) -> None:
        """Forget peers that are gone, send HEARTBEATs, and subscribe for the PUB socket.

        Args:
            now: Monotonic time.
            wall: Unix time.
            interval: Seconds between HEARTBEATs.
            connected: The peers of this broker.
        """
        for passed in [each for each in self._peers.values() if each.peer is not None]:
            if connected.get(passed.key) is not passed.peer:
                self._peers.pop(passed.key).link.close(0)
        if now < self._next_beat:
            return
        self._next_beat = now + interval
        if now >= self._retry_at:
            self._retry_at = 0.0
        for passed in self._peers.values():
            if passed.informed:
                passed.link.send(Heartbeat(_BEAT, f"{wall:.2f}").frames())
        if self._publishes and SUBSCRIBE not in self._peers and self._can_pass:
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
    def _can_pass(self) -> bool:
        """Whether there is an owner, which has keys as this broker has, and takes its own."""
        owner = self._owner
        keyed = self._own is not None
        return (
            owner is not None
            and owner.address != ""
            and bool(owner.key) == keyed
            and not self._retry_at
        )

    # To the owner

    def passes(self, key: Key, frames: Sequence[bytes], message: Command) -> bool:
        """Pass a message of a peer that has not informed on; return False if it is not one to pass.

        Args:
            key: The peer's connection.
            frames: The message, from frame 0 on.
            message: The same, decoded.
        """
        legacy = isinstance(message, _LEGACY) or (type(message) is Inform and not message.features)
        if not legacy or self._own is not None or is_ours(key.identity):
            return False
        if key.identity.startswith(PASSED) or not self._can_pass:
            return True  # the peer finds out as where a broker is down
        passed = self._peers.get(key)
        if passed is None or passed.informed:
            passed = self._connect(key)
        if passed is not None:
            self._heard(passed)
            passed.link.send(list(frames))
        return True

    def forward(self, peer: Peer, message: Any) -> bool:
        """Pass a message of a peer on that a standby cannot handle; return whether that was done.

        What the peer may do has been checked; the owner checks it as well, and what depends on the
        job.
        """
        key = peer.key
        if key.identity.startswith(PASSED) or not self._can_pass:
            return False
        if type(message) is Call:
            spec = CALLS.get(message.name)
            if message.name in _NOT_PASSED or (spec is not None and spec.role == "worker"):
                return False
            if peer.grant is not None and peer.grant.keyless:
                message = _without_actor(message)
        passed = self._peers.get(key)
        if passed is None or passed.peer is not peer:
            passed = self._connect(key)
            if passed is None:
                return False
            passed.peer = peer
            extensions = EXTENSIONS if peer.features is None else peer.features.extensions
            self._inform(passed, peer.grant, extensions)
        self._heard(passed)
        return passed.link.send(message.frames())

    @staticmethod
    def _inform(passed: _Passed, grant: Grant | None, extensions: tuple[str, ...]) -> None:
        """Say to the owner for whom a new connection is."""
        passed.informed = True
        sender = "" if grant is None or grant.keyless else grant.format()
        names = tuple(name for name in extensions if name != "owner")
        features = Features(extensions=names, sender=sender).format()
        passed.link.send(Inform(_INFORM, "", "client", features).frames())

    def _connect(self, key: Key) -> _Passed | None:
        """Return a new connection to the owner; None where this process may have no more."""
        if key in self._peers:
            self._peers.pop(key).link.close(0)
        while len(self._peers) >= MAX_PEERS:
            self._again(self._peers.pop(next(iter(self._peers))))
        owner = self._owner
        assert owner is not None  # noqa: S101 - the caller has looked
        try:
            link = self._open(owner)
        except zmq.ZMQError as error:
            self._log_once(f"nothing can be passed on to {owner.address}: {error}")
            return None
        logger.info("messages of %s are passed on to %s", key, owner.address)
        passed = self._peers[key] = _Passed(key, link, informed=False)
        return passed

    def _open(self, owner: OwnerInfo) -> RouterLink:
        """Return a connection to the owner.

        Raises:
            zmq.ZMQError: There is no descriptor left, or the address is malformed.
        """
        socket, own = self._context.socket(zmq.DEALER), self._own
        link = _OwnerLink(socket, self._max_bytes, self._total)
        try:
            socket.linger = 0
            socket.set(zmq.SNDHWM, MAX_WAITING)
            socket.set(zmq.RCVHWM, MAX_WAITING)
            socket.routing_id = PASSED + uuid.uuid4().hex.encode()
            if own is not None:
                public, secret = own.public.encode(), own.secret.encode()
                use_keys(socket, ClientKeys(owner.key.encode(), public, secret))
                link.watch()
            socket.connect(owner.address)
        except BaseException:
            link.close(0)
            raise
        return link

    def _heard(self, passed: _Passed) -> None:
        """Let a peer stand last: it is forgotten last."""
        self._peers[passed.key] = self._peers.pop(passed.key)

    # From the owner

    @property
    def sockets(self) -> list[Any]:
        """What is to be polled."""
        links = [passed.link for passed in self._peers.values()]
        monitors = [link.monitor_fd for link in links if link.monitor_fd >= 0]
        return [*(link.socket for link in links), *monitors]

    def read(self, ready: Container[object], now: float) -> None:
        """Give peers what the owner has sent them.

        Args:
            ready: Of `sockets`, those that can be read.
            now: Monotonic time.
        """
        for passed in list(self._peers.values()):
            link = passed.link
            if link.monitor_fd in ready:
                link.connections()
                if link.handshake_error:
                    self._refused(link.handshake_error, now)
                    return
            if link.socket in ready:
                for _ in range(_READ_AT_MOST):
                    frames = link.receive()
                    if frames is None or not self._give(passed, frames, now):
                        break

    def _give(self, passed: _Passed, frames: list[bytes], now: float) -> bool:
        """Give a message of the owner to a peer; return whether its connection is still there."""
        if not passed.informed:
            self._answer(passed.key, frames)
            return True
        try:
            message = decode(frames)
            if type(message) is Reply and passed.key == SUBSCRIBE:
                if part := unpack(message.result, "a published message"):
                    topic, _, body = part
                    self._answer(SUBSCRIBE, [topic.encode(), body])
                return True
        except (ProtocolError, ValueError, TypeError) as error:
            logger.warning("a message of the owner was dropped: %s", error)
            return True
        if type(message) is Error and message.request == _INFORM:
            self._refused(message.text, now)
            return False
        if type(message) is Error and (passed.key == SUBSCRIBE or message.code == "inform-again"):
            self._again(self._peers.pop(passed.key))
            return False
        if type(message) in {Reply, Error} or (type(message) is Ack and message.acked != _INFORM):
            self._answer(passed.key, frames)
        return True

    def _again(self, passed: _Passed) -> None:
        """Close a connection; ask its peer to inform, and then to send again what is open."""
        passed.link.close(0)
        if passed.informed and passed.key != SUBSCRIBE:
            text = "the connection to the owner of the store was lost: say INFORM again"
            again = Error(uuid.uuid4().hex, "", "inform-again", text)
            self._answer(passed.key, again.frames())

    def _log_once(self, text: str) -> None:
        """Log why nothing is passed on: once for each owner."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(level, "%s", text)

    def _refused(self, why: str, now: float) -> None:
        """Pass nothing on for a while: the owner does not take this broker for one."""
        assert self._owner is not None  # noqa: S101 - there is a connection to it
        self._log_once(
            f"nothing can be passed on to the owner of the store at {self._owner.address}: {why}; "
            "authorise the key of this broker there with the role broker"
        )
        passed, self._peers = list(self._peers.values()), {}
        self._retry_at = now + REFUSED
        for each in passed:
            self._again(each)

    def close(self) -> None:
        """Close all connections."""
        for passed in self._peers.values():
            passed.link.close(0)
        self._peers.clear()
        self._owner = None


def _without_actor(call: Call) -> Call:
    """Return a call of a peer without a key on another machine, whose word does not count.

    The owner cannot know: it sees the address of the standby, which may be its own machine.
    """
    arguments = unpack(call.arguments, "the arguments")
    if not isinstance(arguments, dict) or "actor" not in arguments:
        return call
    del arguments["actor"]
    return call._replace(arguments=pack(arguments))
