"""How an outcome's value or error is written, so that both ends agree.

A success is the serializer's bytes with its content type. Everything else is an error: content
type `ERROR_TYPE`, MessagePack ``[type, message, traceback, arguments]``, with attributes and
members in a fifth place where there are any, readable by any client whatever serializer the task
uses.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import ProtocolError
from eventmq.job import JobState
from eventmq.wire.bulk import is_text, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ENDED",
    "ERROR_TYPE",
    "NO_REPLY",
    "PLAIN_TYPE",
    "RemoteError",
    "decode_error",
    "encode_error",
    "plain_result",
    "shorten",
]

#: OUTCOME of a REPLY that carries the row of an ended job (extension ``ended``).
ENDED = "ended"

#: Frame 5 of the ACK of a REQUEST whose ``reply-requested`` will not be answered (same).
NO_REPLY = b"no-reply"

#: Content type of an error.
ERROR_TYPE = "error"

#: Content type of what a plain peer answers: JSON ``{"value": ...}`` or any text.
PLAIN_TYPE = "plain"

#: A traceback longer than this many characters loses its middle.
TRACEBACK_LIMIT = 16 * 1024

#: A message longer than this many characters is cut.
MESSAGE_LIMIT = 4 * 1024


#: Bytes that an error may take; arguments and attributes are left out where they make it longer.
ERROR_LIMIT = 64 * 1024


class RemoteError(NamedTuple):
    """An exception of a worker.

    Attributes:
        type: Dotted name of its class.
        message: ``str()`` of it.
        traceback: As text.
        arguments: As it was made with, where they are plain data.
        state: Its plain attributes by name.
        members: Of a group: the exceptions in it.
    """

    type: str
    message: str
    traceback: str = ""
    arguments: tuple[object, ...] | None = None
    state: Mapping[str, object] | None = None
    members: tuple[RemoteError, ...] = ()


def shorten(text: str) -> str:
    """Return a traceback without its middle, if it is long."""
    if len(text) <= TRACEBACK_LIMIT:
        return text
    half = TRACEBACK_LIMIT // 2
    return f"{text[:half]}\n  [...]\n{text[-half:]}"


def encode_error(error: RemoteError) -> bytes:
    """Encode an error; what is not plain data is left out, and what is too long."""
    packed = pack(_row(error))
    if len(packed) > ERROR_LIMIT:
        packed = pack(_row(error._replace(state=None, members=())))
    return packed if len(packed) <= ERROR_LIMIT else pack(_row(RemoteError(*error[:3])))


def _row(error: RemoteError) -> list[object]:
    arguments = error.arguments if _is_plain(error.arguments) else None
    row: list[object] = [
        error.type,
        error.message[:MESSAGE_LIMIT],
        shorten(error.traceback),
        arguments,
    ]
    more: dict[str, object] = {}
    if error.state and _is_plain(error.state):
        more["state"] = error.state
    if error.members:
        more["members"] = [_row(member) for member in error.members]
    return [*row, more] if more else row


def _is_plain(value: object) -> bool:
    try:
        pack(value)
    except Exception:  # noqa: BLE001 - values of users
        return False
    return True


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
        found = _read(unpack(data, "the error"))
    except ProtocolError:
        found = None
    return found or RemoteError("", data[:MESSAGE_LIMIT].decode(errors="replace"))


def _read(value: object) -> RemoteError | None:
    match value:
        case [str(kind), str(message), str(traceback), arguments, *rest]:
            args = tuple(arguments) if isinstance(arguments, list) else None
            state, members = _more(rest[0] if rest else None)
            return RemoteError(kind, message, traceback, args, state, members)
    return None


def _more(value: object) -> tuple[Mapping[str, object] | None, tuple[RemoteError, ...]]:
    """Return the attributes and the members of an error."""
    if not isinstance(value, dict):
        return None, ()
    state, members = value.get("state"), value.get("members")
    rows = map(_read, members if isinstance(members, list) else ())
    named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    return state if named else None, tuple(row for row in rows if row is not None)
