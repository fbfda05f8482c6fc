"""mc0's messages as publications on topics, and back: values, headers, where they come from.

One body frame travels as it is, several as a MessagePack list. What comes from mc0 carries the
mark of its gateway, so that it is not delivered there twice, and its headers in their order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.plugins.gateways.mc0_03.messages import Command
from eventmq.wire.bulk import pack

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ORIGIN", "Publication", "command_of", "origin_of", "publication_of"]

#: Header with the mark of the gateway that published.
ORIGIN = "mc0"

#: Header with mc0's own headers: percent-encoded ``key=value`` joined by ``&``.
_HEADERS = "mc0-headers"


class Publication(NamedTuple):
    """What `eventmq.app.EventMQ.publish_raw` takes."""

    topic: str
    body: bytes
    headers: Mapping[str, str]


def publication_of(topic: bytes, message: Command, origin: str) -> Publication | None:
    """Return what to publish for a MESSAGE, None where its topic is no text."""
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        return None
    headers = {ORIGIN: origin, _HEADERS: _format(message.headers)}
    if len(message.body) == 1:
        return Publication(name, message.body[0], headers)
    headers["content-type"] = "msgpack"
    return Publication(name, pack(list(message.body)), headers)


def origin_of(headers: str) -> str:
    """Return the mark of the gateway that published something, "" for another publisher."""
    return _extra(headers).get(ORIGIN, "")


def command_of(topic: str, value: Any, headers: str) -> Command:
    """Return the MESSAGE for a publication."""
    own = _extra(headers).get(_HEADERS)
    pairs = ((b"TOPIC", topic.encode()),) if own is None else _parse(own)
    return Command(b"MESSAGE", pairs, _frames(value))


def _frames(value: Any) -> tuple[bytes, ...]:
    """Return the body for a value: bytes and text as they are, the rest as JSON."""
    match value:
        case bytes():
            return (value,)
        case str():
            return (value.encode(errors="replace"),)
        case list() | tuple() if all(isinstance(item, bytes) for item in value):
            return tuple(value)
    return (json.dumps(value, default=str).encode(),)


def _extra(headers: str) -> dict[str, str]:
    try:
        return dict(parse_headers(headers).extra)
    except ProtocolError:
        return {}


def _format(pairs: tuple[tuple[bytes, bytes], ...]) -> str:
    return "&".join(f"{quote_from_bytes(k, '')}={quote_from_bytes(v, '')}" for k, v in pairs)


def _parse(text: str) -> tuple[tuple[bytes, bytes], ...]:
    pairs = (part.partition("=") for part in text.split("&") if part)
    return tuple((unquote_to_bytes(key), unquote_to_bytes(value)) for key, _, value in pairs)
