"""The messages of mc0 0.3 as frames, and back (document: "Message structure").

A message is an empty frame, the verb, header pairs up to the first empty key, and the body. Keys
and values are bytes: the protocol says nothing of their encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command", "decode", "encode", "error", "identifier", "ok"]

_ID = b"ID"

#: An empty frame, a verb.
_LEAST = 2


@dataclass(frozen=True, slots=True)
class Command:
    """One message.

    Attributes:
        verb: What it is.
        headers: Pairs, in order.
        body: The frames after the headers, in order; they may be empty.
    """

    verb: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: tuple[bytes, ...] = ()

    def get(self, key: bytes) -> bytes | None:
        """Return the first value of a header, None where it is missing."""
        return next((value for name, value in self.headers if name == key), None)


def decode(frames: Sequence[bytes]) -> Command:
    """Read a message, without the identity of its peer.

    Raises:
        ProtocolError: It does not begin with an empty frame and a verb, or a header has no value.
    """
    if len(frames) < _LEAST or frames[0] or not frames[1]:
        raise ProtocolError("a message begins with an empty frame and a verb")
    rest = frames[2:]
    headers = []
    place = 0
    while place < len(rest) and rest[place]:
        if place + 1 == len(rest):
            raise ProtocolError("headers come in pairs: the last key has no value")
        headers.append((rest[place], rest[place + 1]))
        place += 2
    return Command(frames[1], tuple(headers), tuple(rest[place + 1 :]))


def identifier(frames: Sequence[bytes]) -> bytes | None:
    """Return the value of ID of a message that `decode` refuses, as far as it can be read."""
    rest = frames[2:]
    for place in range(0, len(rest) - 1, 2):
        if not rest[place]:
            return None
        if rest[place] == _ID:
            return rest[place + 1]
    return None


def encode(command: Command) -> list[bytes]:
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
    frames = [b"", b"ERROR", b"MESSAGE", text.encode(errors="replace")]
    return frames if id is None else [*frames, _ID, id]
