"""The middleware of mc0 0.3: subscriptions, answers and silent clients.

Frames and the time go in, frames come out; no socket, no clock. ``now`` is monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventmq.errors import ProtocolError
from eventmq_contrib.gateways.mc0.messages import (
    Mc0Message,
    decode,
    encode,
    error,
    identifier,
    ok,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Mc0Limits", "Mc0Machine"]

#: Parts of a client's TTL after which a NOOP is sent, and after which it is forgotten. A client
#: that waits for one TTL does not mind that a NOOP is late by half of it.
SEND_BY, HEAR_BY = 0.5, 1.05

_NEVER = float("inf")

_NOOP = encode(Mc0Message(b"NOOP"))

#: Digits of the longest TTL: some 31 years of milliseconds.
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Mc0Limits:
    """The limits.

    Attributes:
        clients: Clients that have a TTL or a subscription.
        topics: Topics of one client.
        topic: Bytes of the name of a topic.
        frames: Frames of one message.
    """

    clients: int = 10_000
    topics: int = 1000
    topic: int = 255
    frames: int = 256


@dataclass(slots=True)
class _Client:
    """One client. Times are monotonic seconds; ``ttl`` is in seconds, 0.0 for none."""

    identity: bytes
    last_seen: float
    sent: float
    ttl: float = 0.0
    topics: set[bytes] = field(default_factory=set)

    def due(self) -> float:
        """Return when something must be done about it."""
        if not self.ttl:
            return _NEVER
        return min(self.sent + SEND_BY * self.ttl, self.last_seen + HEAR_BY * self.ttl)


class Mc0Machine:
    """Implements `eventmq.gateway.FrameMachine`.

    Args:
        limits: The limits.
        publish: Called with each PUT, to publish it at the broker too.

    Attributes:
        outbox: What is to be sent.
        dropped: Number of messages that slow or disconnected clients did not get.
    """

    def __init__(self, limits: Mc0Limits, publish: Callable[[bytes, Mc0Message], None]) -> None:
        self.outbox: deque[tuple[str, list[bytes]]] = deque()
        self.dropped = 0
        self._limits = limits
        self._publish = publish
        self._clients: dict[bytes, _Client] = {}
        self._subscribers: dict[bytes, dict[bytes, _Client]] = {}
        #: Not later than the first `_Client.due`.
        self._due = _NEVER
        self._verbs: dict[bytes, Callable[[bytes, Mc0Message, float], None]] = {
            b"CONNECT": self._connect,
            b"DISCONNECT": self._disconnect,
            b"NOOP": self._ok,
            b"PUT": self._put,
            b"SUB": self._sub,
            b"UNSUB": self._unsub,
        }

    # What comes in

    def receive(self, port: str, frames: list[bytes], now: float) -> None:
        """Take a message; the first frame is the identity of the client."""
        identity, rest = frames[0], frames[1:]
        client = self._clients.get(identity)
        if client is not None:
            client.last_seen = now
        try:
            command = self._decode(rest)
            self._verbs[command.verb](identity, command, now)
        except ProtocolError as reason:
            self._send(identity, error(str(reason), identifier(rest)), now)

    def _decode(self, frames: Sequence[bytes]) -> Mc0Message:
        limit = self._limits.frames
        if len(frames) > limit:
            raise ProtocolError(f"a message has at most {limit} frames")
        command = decode(frames)
        if command.verb not in self._verbs:
            known = b", ".join(self._verbs).decode()
            verb = command.verb[:80].decode(errors="replace")
            raise ProtocolError(f"unknown verb {verb!r}; known are {known}")
        if command.verb != b"PUT":
            return command
        self._check_topic(command.get(b"TOPIC"))
        return command

    def _check_topic(self, topic: bytes | None) -> None:
        if topic is None:
            raise ProtocolError("PUT needs a header TOPIC")
        if len(topic) > self._limits.topic:
            raise ProtocolError(f"a topic has at most {self._limits.topic} bytes")

    # Verbs

    def _connect(self, identity: bytes, command: Mc0Message, now: float) -> None:
        ttl = command.get(b"TTL")
        seconds = 0.0 if ttl is None else _seconds(ttl)
        client = self._client(identity, now)
        client.ttl = seconds
        self._due = min(self._due, client.due())
        self._forget_idle(client)
        self._ok(identity, command, now)

    def _disconnect(self, identity: bytes, command: Mc0Message, now: float) -> None:
        self._forget(identity)
        self._ok(identity, command, now)

    def _sub(self, identity: bytes, command: Mc0Message, now: float) -> None:
        for topic in command.body:
            self._check_topic(topic)
        known = self._clients.get(identity)
        topics = set(command.body) | (known.topics if known else set())
        if len(topics) > self._limits.topics:
            raise ProtocolError(f"a client has at most {self._limits.topics} topics")
        if topics:
            client = self._client(identity, now)
            client.topics = topics
            for topic in command.body:
                self._subscribers.setdefault(topic, {})[identity] = client
        self._ok(identity, command, now)

    def _unsub(self, identity: bytes, command: Mc0Message, now: float) -> None:
        client = self._clients.get(identity)
        if client is not None:
            for topic in command.body:
                client.topics.discard(topic)
                self._unlink(topic, identity)
            self._forget_idle(client)
        self._ok(identity, command, now)

    def _put(self, identity: bytes, command: Mc0Message, now: float) -> None:
        """Deliver to all others, answer, then deliver to the sender: nothing comes before OK."""
        topic = command.get(b"TOPIC") or b""
        headers = tuple(pair for pair in command.headers if pair[0] != b"ID")
        message = Mc0Message(b"MESSAGE", headers, command.body)
        frames = _message(message)
        others = self._subscribers.get(topic, {})
        for other in others.values():
            if other.identity != identity:
                self._deliver(other, frames, now)
        self._ok(identity, command, now)
        if identity in others:
            self._deliver(others[identity], frames, now)
        self._publish(topic, message)

    def deliver(self, topic: bytes, message: Mc0Message, now: float) -> None:
        """Give subscribers a message that was published elsewhere."""
        frames = _message(message)
        for client in self._subscribers.get(topic, {}).values():
            self._deliver(client, frames, now)

    # What goes out

    def _ok(self, identity: bytes, command: Mc0Message, now: float) -> None:
        id = command.get(b"ID")
        if id is not None:
            self._send(identity, ok(id), now)

    def _send(self, identity: bytes, frames: list[bytes], now: float) -> None:
        client = self._clients.get(identity)
        if client is not None:
            client.sent = now
        self.outbox.append(("main", [identity, *frames]))

    def _deliver(self, client: _Client, frames: list[bytes], now: float) -> None:
        client.sent = now
        self.outbox.append(("main", [client.identity, *frames]))

    def not_sent(self, port: str, frames: list[bytes], *, disconnected: bool) -> None:
        """Drop a message for a slow client; forget one that is disconnected."""
        self.dropped += frames[2:3] == [b"MESSAGE"]
        if disconnected:
            self._forget(frames[0])

    def expel(self, port: str, peer: bytes) -> None:
        """Forget a client whose key was revoked."""
        self._forget(peer)

    # Clients

    def _client(self, identity: bytes, now: float) -> _Client:
        client = self._clients.get(identity)
        if client is None:
            if len(self._clients) >= self._limits.clients:
                raise ProtocolError(f"there are {self._limits.clients} clients already")
            client = self._clients[identity] = _Client(identity, now, now)
        return client

    def _forget_idle(self, client: _Client) -> None:
        """Forget a client that has neither a TTL nor topics."""
        if not client.ttl and not client.topics:
            self._clients.pop(client.identity, None)

    def _forget(self, identity: bytes) -> None:
        client = self._clients.pop(identity, None)
        if client is not None:
            for topic in client.topics:
                self._unlink(topic, identity)

    def _unlink(self, topic: bytes, identity: bytes) -> None:
        subscribers = self._subscribers.get(topic, {})
        subscribers.pop(identity, None)
        if not subscribers:
            self._subscribers.pop(topic, None)

    # Time

    def tick(self, now: float) -> None:
        """Send the NOOPs that are due, and forget silent clients."""
        if now < self._due:
            return
        for client in list(self._clients.values()):
            if not client.ttl:
                continue
            if now >= client.last_seen + HEAR_BY * client.ttl:
                self._forget(client.identity)
            elif now >= client.sent + SEND_BY * client.ttl:
                self._deliver(client, _NOOP, now)
        self._due = min((client.due() for client in self._clients.values()), default=_NEVER)

    def wait(self, now: float) -> float:
        """Return in how many seconds `tick` has something to do."""
        return max(0.0, self._due - now)

    def close(self, now: float) -> None:
        """Do nothing: the protocol has no goodbye of the middleware."""

    @property
    def clients(self) -> int:
        """Number of clients that are known."""
        return len(self._clients)


def _seconds(ttl: bytes) -> float:
    if not ttl.isdigit() or len(ttl) > _DIGITS or not int(ttl):
        shown = ttl[:40].decode(errors="replace")
        raise ProtocolError(f"TTL is {shown!r}; it is a whole number of milliseconds from 1")
    return int(ttl) / 1000


def _message(message: Mc0Message) -> list[bytes]:
    """Return the frames of a MESSAGE; the empty key is always there."""
    frames = encode(message)
    return frames if message.body else [*frames, b""]
