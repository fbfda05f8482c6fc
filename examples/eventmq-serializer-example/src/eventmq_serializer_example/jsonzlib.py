"""Serializer ``json-zlib``: JSON, compressed where that makes it shorter.

The first byte is the format: ``j`` for plain JSON, ``z`` for zlib (RFC 1950).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq.sdk import SerializationError, factory, hookimpl, option, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Envelope, Factory, Serializer

#: Maximum bytes of JSON that are unpacked: a few bytes could expand to gigabytes.
MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class JsonZlib:
    """The serializer; its field is its option."""

    level: int = option(6, "Level of zlib: 1 is fast, 9 is short.", ge=1, le=9)

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Encode a value; there is no signature."""
        try:
            # What has a plain form is written in it: dataclasses, enums, paths ...
            text = json.dumps(value, allow_nan=False, separators=(",", ":"), default=plain).encode()
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"json-zlib cannot encode this {type(value).__name__}: {error}"
            raise SerializationError(msg) from error
        packed = zlib.compress(text, self.level)
        return (b"z" + packed if len(packed) < len(text) else b"j" + text), ""

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Decode a value that ``encode`` has encoded."""
        try:
            return json.loads(_unpack(data))
        except (ValueError, RecursionError, zlib.error) as error:
            msg = f"these {len(data)} bytes cannot be decoded as json-zlib: {error}"
            raise SerializationError(msg) from error


def _unpack(data: bytes) -> bytes:
    if data[:1] == b"j":
        return data[1:]
    if data[:1] != b"z":
        msg = "they begin with neither j nor z"
        raise ValueError(msg)
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data[1:], MAX_BYTES)
    if not unpacker.eof:
        msg = "they are cut off or too long"
        raise ValueError(msg)
    return text


@hookimpl
def eventmq_serializers() -> Mapping[str, Factory[Serializer]]:
    """Provide ``json-zlib``."""
    return {"json-zlib": factory(JsonZlib)}
