"""Serializer ``msgpack``, the default: compact, fast, and read by every language.

It takes plain data, what has a plain form, and the types of
`eventmq.plugins.serializers.extended` as MessagePack extension types. Tuples come back as lists,
except as keys of dicts and in sets.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.errors import SerializationError
from eventmq.plugins.serializers.extended import BY_CODE, BY_TYPE, complaint, freeze
from eventmq.sdk import factory, hookimpl, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.sdk import Envelope, Factory, Serializer

__all__ = ["Msgpack", "eventmq_serializers"]

#: Sets within sets; each level costs the decoder 40 KiB of stack, so a bound is needed.
MAX_DEPTH = 16


class Msgpack:
    """A `Serializer`. The library is imported when one is made."""

    def __init__(self) -> None:
        import msgpack

        self._pack = msgpack.packb
        self._unpack = msgpack.unpackb
        self._extend = msgpack.ExtType
        self._default = self._defaults(MAX_DEPTH)
        self._hook = self._hooks(MAX_DEPTH)

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Encode a value; raises `SerializationError` with the type and its place."""
        try:
            return self._pack(value, default=self._default), ""
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SerializationError(complaint("msgpack", value, error)) from error

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Decode what ``encode`` made."""
        try:
            return self._unpack(data, ext_hook=self._hook, strict_map_key=False)
        except TypeError:
            return self._decode_keys(data)
        except Exception as error:
            raise _unreadable(data, error) from error

    def _decode_keys(self, data: bytes) -> Any:
        """Decode data with a dict whose keys are lists: they were tuples."""
        try:
            return self._unpack(
                data, ext_hook=self._hook, strict_map_key=False, object_pairs_hook=_frozen_keys
            )
        except Exception as error:
            raise _unreadable(data, error) from error

    def _defaults(self, depth: int) -> Callable[[Any], Any]:
        """Return what packs a value that MessagePack lacks, with ``depth`` levels to go."""
        return partial(self._write, [self._defaults(depth - 1)] if depth else [])

    def _write(self, inner: Sequence[Callable[[Any], Any]], value: object) -> Any:
        extension = BY_TYPE.get(type(value))
        if extension is None:
            return plain(value)
        if not inner:
            raise RecursionError("sets within sets are nested too deeply")
        return self._extend(extension.code, self._pack(extension.encode(value), default=inner[0]))

    def _hooks(self, depth: int) -> Callable[[int, bytes], Any]:
        """Return what reads an extension type, with ``depth`` levels to go."""
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
