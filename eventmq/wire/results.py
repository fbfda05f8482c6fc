"""How an outcome's value or error is written, so that both ends agree.

A success is the serializer's bytes with its content type. Everything else is an error: content
type `ERROR_TYPE`, MessagePack ``[type, message, traceback, arguments]``, readable by any client
whatever serializer the task uses.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from eventmq.errors import ProtocolError
from eventmq.job import JobState
from eventmq.wire.bulk import is_text, pack, unpack

__all__ = [
    "ERROR_TYPE",
    "PLAIN_TYPE",
    "RemoteError",
    "decode_error",
    "encode_error",
    "plain_result",
]

#: Content type of an error.
ERROR_TYPE = "error"

#: Content type of what a plain peer answers: JSON ``{"value": ...}`` or any text.
PLAIN_TYPE = "plain"

#: A traceback longer than this many characters loses its middle.
TRACEBACK_LIMIT = 16 * 1024

#: A message longer than this many characters is cut.
MESSAGE_LIMIT = 4 * 1024


class RemoteError(NamedTuple):
    """An exception of a worker: dotted type name, message, traceback, plain arguments."""

    type: str
    message: str
    traceback: str = ""
    arguments: tuple[object, ...] | None = None


def _shorten(text: str) -> str:
    if len(text) <= TRACEBACK_LIMIT:
        return text
    half = TRACEBACK_LIMIT // 2
    return f"{text[:half]}\n  [...]\n{text[-half:]}"


def encode_error(error: RemoteError) -> bytes:
    """Encode an error; arguments that are not plain data are left out."""
    head = [error.type, error.message[:MESSAGE_LIMIT], _shorten(error.traceback)]
    try:
        packed = pack([*head, error.arguments])
    except (TypeError, ValueError, OverflowError):
        return pack([*head, None])
    return packed if len(packed) < 4 * TRACEBACK_LIMIT else pack([*head, None])


def plain_result(state: JobState, result: bytes | None) -> bytes:
    """Return what a REPLY says to a peer that knows only the published document: text.

    A job that succeeded without information is answered with a True value (emqp-1.0, "Headers",
    reply-requested), one that failed with the text of its exception, and ``TimeoutError`` for a
    time-out, as deployed software says it.
    """
    if state is JobState.SUCCEEDED:
        return result if result and is_text(result) else _plain(value=True)
    if not result or state is JobState.CANCELLED:
        return _plain(state.value)
    error = decode_error(result)
    if error.type.endswith("TimeLimitExceeded"):
        return _plain("TimeoutError")
    return _plain(error.message or error.type)


def _plain(value: object) -> bytes:
    return json.dumps({"value": value}).encode()


def decode_error(data: bytes) -> RemoteError:
    """Decode an error; bytes of any other shape become a message of type ``""``."""
    try:
        value = unpack(data, "the error")
    except ProtocolError:
        return RemoteError("", data[:MESSAGE_LIMIT].decode(errors="replace"))
    match value:
        case [str(kind), str(message), str(traceback), arguments]:
            args = tuple(arguments) if isinstance(arguments, list) else None
            return RemoteError(kind, message, traceback, args)
        case _:
            return RemoteError("", data[:MESSAGE_LIMIT].decode(errors="replace"))
