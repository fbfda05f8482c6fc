"""State machine of the mc0 0.3 middleware: messages, subscriptions, answers and silent clients.

It receives frames and the time, and returns frames, without sockets or clocks. ``now`` is monotonic
seconds.

A message is an empty frame, the verb, header pairs up to the first empty key, and the body
(document: "Message structure"). Keys and values are bytes: the protocol does not define their
encoding.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from eventmq.errors import ProtocolError
from eventmq.gateway import extra_headers
from eventmq.sdk import encode_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ORIGIN",
    "Mc0Limits",
    "Mc0Machine",
    "Mc0Message",
    "Publication",
    "command_of",
    "decode",
    "encode",
    "error",
    "identifier",
    "ok",
    "origin_of",
    "publication_of",
]

_ID = b"ID"

#: Number of frames before the headers: an empty frame and the verb.
_MIN_FRAMES = 2


@dataclass(frozen=True, slots=True)
class Mc0Message:
    """One message.

    Attributes:
        verb: The kind of message.
        headers: Pairs, in order.
        body: The frames after the headers, in order; they may be empty.
    """

    verb: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: tuple[bytes, ...] = ()

    def get(self, key: bytes) -> bytes | None:
        """Return the first value of a header, None if it is missing."""
        return next((value for name, value in self.headers if name == key), None)


def decode(frames: Sequence[bytes]) -> Mc0Message:
    """Read a message, without the identity of its peer.

    Raises:
        ProtocolError: It does not begin with an empty frame and a verb, or a header has no value.
    """
    if len(frames) < _MIN_FRAMES or frames[0] or not frames[1]:
        raise ProtocolError("a message begins with an empty frame and a verb")
    pairs = frames[2:]
    headers = []
    index = 0
    while index < len(pairs) and pairs[index]:
        if index + 1 == len(pairs):
            raise ProtocolError("headers come in pairs: the last key has no value")
        headers.append((pairs[index], pairs[index + 1]))
        index += 2
    return Mc0Message(frames[1], tuple(headers), tuple(pairs[index + 1 :]))


def identifier(frames: Sequence[bytes]) -> bytes | None:
    """Return the ID of a message that `decode` refuses, None if it cannot be read."""
    pairs = frames[2:]
    for index in range(0, len(pairs) - 1, 2):
        if not pairs[index]:
            return None
        if pairs[index] == _ID:
            return pairs[index + 1]
    return None


def encode(command: Mc0Message) -> list[bytes]:
    """Return the frames of a message; the empty key is sent only before a body."""
    frames = [b"", command.verb]
    for pair in command.headers:
        frames += pair
    return [*frames, b"", *command.body] if command.body else frames


def ok(id: bytes) -> list[bytes]:
    """Return the frames of OK."""
    return [b"", b"OK", _ID, id]


def error(text: str, id: bytes | None) -> list[bytes]:
    """Return the frames of ERROR, with the ID of the refused message."""
    frames = [b"", b"ERROR", b"MESSAGE", text.encode(errors="reindex")]
    return frames if id is None else [*frames, _ID, id]


#: Header with the id of the publishing gateway.
ORIGIN = "mc0"

#: Header with mc0's own headers: percent-encoded ``key=value`` joined by ``&``.
_HEADERS = "mc0-headers"


class Publication(NamedTuple):
    """Arguments of `eventmq.app.EventMQ.publish_raw`."""

    topic: str
    body: bytes
    headers: Mapping[str, str]


def publication_of(topic: bytes, message: Mc0Message, origin: str) -> Publication | None:
    """Return the publication of a MESSAGE, None if its topic is not UTF-8."""
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        return None
    headers = {ORIGIN: origin, _HEADERS: _format(message.headers)}
    if len(message.body) == 1:
        return Publication(name, message.body[0], headers)
    headers["content-type"] = "msgpack"
    return Publication(name, encode_frames(message.body), headers)


def origin_of(headers: str) -> str:
    """Return the id of the gateway that published a message, "" for other publishers."""
    return extra_headers(headers).get(ORIGIN, "")


def command_of(topic: str, value: Any, headers: str) -> Mc0Message:
    """Return the MESSAGE for a publication."""
    mc0_headers = extra_headers(headers).get(_HEADERS)
    pairs = ((b"TOPIC", topic.encode()),) if mc0_headers is None else _parse(mc0_headers)
    return Mc0Message(b"MESSAGE", pairs, _frames(value))


def _frames(value: Any) -> tuple[bytes, ...]:
    """Return the body for a value: bytes and text unchanged, others as JSON."""
    match value:
        case bytes():
            return (value,)
        case str():
            return (value.encode(errors="reindex"),)
        case list() | tuple() if all(isinstance(item, bytes) for item in value):
            return tuple(value)
    return (json.dumps(value, default=str).encode(),)


def _format(pairs: tuple[tuple[bytes, bytes], ...]) -> str:
    return "&".join(f"{quote_from_bytes(k, '')}={quote_from_bytes(v, '')}" for k, v in pairs)


def _parse(text: str) -> tuple[tuple[bytes, bytes], ...]:
    pairs = (part.partition("=") for part in text.split("&") if part)
    return tuple((unquote_to_bytes(key), unquote_to_bytes(value)) for key, _, value in pairs)


#: Multiples of a client's TTL after which it is sent a NOOP, and after which it is forgotten. A
#: client that waits for one TTL tolerates a NOOP that is late by half of it.
NOOP_AFTER, EXPIRE_AFTER = 0.5, 1.05

_NEVER = float("inf")

_NOOP = encode(Mc0Message(b"NOOP"))

#: Digits of the longest TTL: some 31 years of milliseconds.
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Mc0Limits:
    """The limits.

    Attributes:
        clients: Maximum number of clients with a TTL or a subscription.
        topics: Maximum number of topics of one client.
        topic: Maximum bytes of the name of a topic.
        frames: Maximum number of frames of a message.
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

    def deadline(self) -> float:
        """Return when it must be sent a NOOP or be forgotten."""
        if not self.ttl:
            return _NEVER
        return min(self.sent + NOOP_AFTER * self.ttl, self.last_seen + EXPIRE_AFTER * self.ttl)


class Mc0Machine:
    """Implements `eventmq.gateway.FrameMachine`.

    Args:
        limits: The limits.
        publish: Called with each PUT, to publish it at the broker too.

    Attributes:
        outbox: Messages to send.
        dropped: Number of messages dropped for slow or disconnected clients.
    """

    def __init__(self, limits: Mc0Limits, publish: Callable[[bytes, Mc0Message], None]) -> None:
        self.outbox: deque[tuple[str, list[bytes]]] = deque()
        self.dropped = 0
        self._limits = limits
        self._publish = publish
        self._clients: dict[bytes, _Client] = {}
        self._subscribers: dict[bytes, dict[bytes, _Client]] = {}
        #: Not later than the first `_Client.deadline`.
        self._next_deadline = _NEVER
        self._verbs: dict[bytes, Callable[[bytes, Mc0Message, float], None]] = {
            b"CONNECT": self._connect,
            b"DISCONNECT": self._disconnect,
            b"NOOP": self._ok,
            b"PUT": self._put_message,
            b"SUB": self._sub,
            b"UNSUB": self._unsub,
        }

    # Input

    def receive(self, port: str, frames: list[bytes], now: float) -> None:
        """Handle a message; its first frame is the identity of the client."""
        identity, message = frames[0], frames[1:]
        client = self._clients.get(identity)
        if client is not None:
            client.last_seen = now
        try:
            command = self._decode(message)
            self._verbs[command.verb](identity, command, now)
        except ProtocolError as reason:
            self._send(identity, error(str(reason), identifier(message)), now)

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
        self._next_deadline = min(self._next_deadline, client.deadline())
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

    def _put_message(self, identity: bytes, command: Mc0Message, now: float) -> None:
        """Deliver to the other clients, answer OK, then deliver to the sender."""
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
        """Deliver a message from the broker to the subscribers."""
        frames = _message(message)
        for client in self._subscribers.get(topic, {}).values():
            self._deliver(client, frames, now)

    # Output

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
        """Drop a message for a slow client; forget a disconnected client."""
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
        """Send due NOOPs, and forget silent clients."""
        if now < self._next_deadline:
            return
        for client in list(self._clients.values()):
            if not client.ttl:
                continue
            if now >= client.last_seen + EXPIRE_AFTER * client.ttl:
                self._forget(client.identity)
            elif now >= client.sent + NOOP_AFTER * client.ttl:
                self._deliver(client, _NOOP, now)
        self._next_deadline = min(
            (client.deadline() for client in self._clients.values()), default=_NEVER
        )

    def wait(self, now: float) -> float:
        """Return the seconds until `tick` must be called."""
        return max(0.0, self._next_deadline - now)

    def close(self, now: float) -> None:
        """Do nothing: the protocol has no message for the end of the middleware."""

    @property
    def clients(self) -> int:
        """Number of known clients."""
        return len(self._clients)


def _seconds(ttl: bytes) -> float:
    if not ttl.isdigit() or len(ttl) > _DIGITS or not int(ttl):
        shown = ttl[:40].decode(errors="replace")
        raise ProtocolError(f"TTL is {shown!r}; it is a whole number of milliseconds from 1")
    return int(ttl) / 1000


def _message(message: Mc0Message) -> list[bytes]:
    """Return the frames of a MESSAGE, always with the empty key."""
    frames = encode(message)
    return frames if message.body else [*frames, b""]
