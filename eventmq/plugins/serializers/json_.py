"""Serializer ``json``: text that people and other languages can read.

Plain data is plain JSON. Other types are objects with the key ``$eventmq``, which names the type,
and the key ``value``: ``{"$eventmq": "datetime", "value": "2026-01-01T00:00:00"}``. Tuples are
decoded as lists, except as keys of dicts and in sets.
"""

from __future__ import annotations

import base64
import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from eventmq.errors import SerializationError
from eventmq.plugins.serializers.extended import BY_TAG, BY_TYPE, explain, freeze
from eventmq.sdk import factory, hookimpl, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.sdk import Envelope, Factory, Serializer

__all__ = ["Json", "eventmq_serializers"]

_TAG = "$eventmq"

#: Maximum bits of integers that are written as JSON numbers; longer ones get a tag.
_NUMBER_BITS = 64

_WRITE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Json:
    """A `Serializer` for UTF-8 JSON."""

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Encode a value; raises `SerializationError` with the type and path of the wrong part."""
        try:
            return _WRITE(_plain(value)).encode(), ""
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(explain("json", value, error)) from error

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Decode the data of ``encode``, or any other JSON."""
        try:
            return _READ(data.decode())
        except Exception as error:
            raise SerializationError(
                f"these {len(data)} bytes cannot be decoded as json: "
                f"{type(error).__name__}: {error}"
            ) from error


def _tagged(tag: str, value: object) -> dict[str, object]:
    return {_TAG: tag, "value": value}


def _plain(value: Any) -> Any:
    """Return the value in the types of JSON."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _NUMBER_BITS else _tagged("int", hex(value))
    if isinstance(value, float):
        return value if isfinite(value) else _tagged("float", str(value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _tagged("bytes", base64.b64encode(value).decode())
    extension = BY_TYPE.get(type(value))
    if extension is None:
        return _plain(plain(value))
    return _tagged(extension.tag, _plain(extension.encode(value)))


def _plain_dict(value: dict[Any, Any]) -> dict[str, Any]:
    """Return a dict as an object, or as tagged pairs if JSON cannot have its keys."""
    if _TAG not in value and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    return _tagged("dict", [[_plain(key), _plain(item)] for key, item in value.items()])


_TYPES: Mapping[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dict": lambda pairs: {freeze(key): item for key, item in pairs},
    **{tag: extension.decode for tag, extension in BY_TAG.items()},
}


def _typed(item: dict[str, Any]) -> Any:
    """Return the value of a tagged object; other objects are returned unchanged."""
    return _TYPES[item[_TAG]](item["value"]) if _TAG in item else item


_READ = json.JSONDecoder(object_hook=_typed).decode


make_serializer = factory(Json)


@hookimpl
def eventmq_serializers() -> Mapping[str, Factory[Serializer]]:
    """Provide ``json``."""
    return {"json": make_serializer}
