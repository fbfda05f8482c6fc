"""Serializer ``msgpack``, the default: compact, fast, and supported by most languages.

It encodes plain data, values with a plain form, and the types of
`eventmq.plugins.serializers.extended`, which become MessagePack extension types. Tuples are decoded
as lists, except as keys of dicts and in sets.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.errors import SerializationError
from eventmq.plugins.serializers.extended import BY_CODE, BY_TYPE, explain, freeze
from eventmq.sdk import factory, hookimpl, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.sdk import Envelope, Factory, Serializer

__all__ = ["Msgpack", "eventmq_serializers"]

#: Maximum depth of sets within sets. Each level needs 40 KiB of stack to decode.
MAX_DEPTH = 16


class Msgpack:
    """A `Serializer` for MessagePack. The library is imported when an object is created."""

    def __init__(self) -> None:
        import msgpack

        self._pack = msgpack.packb
        self._unpack = msgpack.unpackb
        self._extend = msgpack.ExtType
        self._default = self._defaults(MAX_DEPTH)
        self._hook = self._hooks(MAX_DEPTH)

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Encode a value; raises `SerializationError` with the type and path of the wrong part."""
        try:
            return self._pack(value, default=self._default), ""
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SerializationError(explain("msgpack", value, error)) from error

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Decode the data of ``encode``."""
        try:
            return self._unpack(data, ext_hook=self._hook, strict_map_key=False)
        except TypeError:
            return self._decode_keys(data)
        except Exception as error:
            raise _unreadable(data, error) from error

    def _decode_keys(self, data: bytes) -> Any:
        """Decode data with a dict whose keys are lists; they were encoded as tuples."""
        try:
            return self._unpack(
                data, ext_hook=self._hook, strict_map_key=False, object_pairs_hook=_frozen_keys
            )
        except Exception as error:
            raise _unreadable(data, error) from error

    def _defaults(self, depth: int) -> Callable[[Any], Any]:
        """Return a function that packs extended types, up to ``depth`` levels deep."""
        return partial(self._write, [self._defaults(depth - 1)] if depth else [])

    def _write(self, inner: Sequence[Callable[[Any], Any]], value: object) -> Any:
        extension = BY_TYPE.get(type(value))
        if extension is None:
            return plain(value)
        if not inner:
            raise RecursionError("sets within sets are nested too deeply")
        return self._extend(extension.code, self._pack(extension.encode(value), default=inner[0]))

    def _hooks(self, depth: int) -> Callable[[int, bytes], Any]:
        """Return a function that unpacks extension types, up to ``depth`` levels deep."""
        return partial(self._read, [self._hooks(depth - 1)] if depth else [])

    def _read(self, inner: Sequence[Callable[[int, bytes], Any]], code: int, data: bytes) -> Any:
        if not inner:
            raise ValueError("too many levels")
        return BY_CODE[code].decode(self._unpack(data, ext_hook=inner[0], strict_map_key=False))


def _frozen_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {freeze(key): value for key, value in pairs}


def _unreadable(data: bytes, error: Exception) -> SerializationError:
    return SerializationError(
        f"these {len(data)} bytes cannot be decoded as msgpack: {type(error).__name__}: {error}"
    )


make_serializer = factory(Msgpack)


@hookimpl
def eventmq_serializers() -> Mapping[str, Factory[Serializer]]:
    """Provide ``msgpack``."""
    return {"msgpack": make_serializer}
