"""The messages of mc0 0.3 as frames, and back (document: "Message structure").

A message is an empty frame, the verb, header pairs up to the first empty key, and the body. Keys
and values are bytes: the protocol says nothing of their encoding.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from eventmq.errors import ProtocolError
from eventmq.gateway import extra_headers
from eventmq.sdk import encode_frames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ORIGIN",
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

#: An empty frame, a verb.
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
        """Return the first value of a header, None where it is missing."""
        return next((value for name, value in self.headers if name == key), None)


def decode(frames: Sequence[bytes]) -> Mc0Message:
    """Read a message, without the identity of its peer.

    Raises:
        ProtocolError: It does not begin with an empty frame and a verb, or a header has no value.
    """
    if len(frames) < _MIN_FRAMES or frames[0] or not frames[1]:
        raise ProtocolError("a message begins with an empty frame and a verb")
    rest = frames[2:]
    headers = []
    index = 0
    while index < len(rest) and rest[index]:
        if index + 1 == len(rest):
            raise ProtocolError("headers come in pairs: the last key has no value")
        headers.append((rest[index], rest[index + 1]))
        index += 2
    return Mc0Message(frames[1], tuple(headers), tuple(rest[index + 1 :]))


def identifier(frames: Sequence[bytes]) -> bytes | None:
    """Return the value of ID of a message that `decode` refuses, as far as it can be read."""
    rest = frames[2:]
    for index in range(0, len(rest) - 1, 2):
        if not rest[index]:
            return None
        if rest[index] == _ID:
            return rest[index + 1]
    return None


def encode(command: Mc0Message) -> list[bytes]:
    """Return the frames of a message; the empty key is there where there is a body."""
    frames = [b"", command.verb]
    for pair in command.headers:
        frames += pair
    return [*frames, b"", *command.body] if command.body else frames


def ok(id: bytes) -> list[bytes]:
    """Return the frames of OK."""
    return [b"", b"OK", _ID, id]


def error(text: str, id: bytes | None) -> list[bytes]:
    """Return the frames of ERROR, with the ID of what it answers."""
    frames = [b"", b"ERROR", b"MESSAGE", text.encode(errors="reindex")]
    return frames if id is None else [*frames, _ID, id]


#: Header with the id of the gateway that published.
ORIGIN = "mc0"

#: Header with mc0's own headers: percent-encoded ``key=value`` joined by ``&``.
_HEADERS = "mc0-headers"


class Publication(NamedTuple):
    """What `eventmq.app.EventMQ.publish_raw` takes."""

    topic: str
    body: bytes
    headers: Mapping[str, str]


def publication_of(topic: bytes, message: Mc0Message, origin: str) -> Publication | None:
    """Return what to publish for a MESSAGE, None where its topic is no text."""
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
    """Return the id of the gateway that published a message, "" for another publisher."""
    return extra_headers(headers).get(ORIGIN, "")


def command_of(topic: str, value: Any, headers: str) -> Mc0Message:
    """Return the MESSAGE for a publication."""
    own = extra_headers(headers).get(_HEADERS)
    pairs = ((b"TOPIC", topic.encode()),) if own is None else _parse(own)
    return Mc0Message(b"MESSAGE", pairs, _frames(value))


def _frames(value: Any) -> tuple[bytes, ...]:
    """Return the body for a value: bytes and text as they are, the rest as JSON."""
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
