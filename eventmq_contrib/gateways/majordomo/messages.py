"""The messages of the Majordomo draft 0.1 as frames, and back.

NAME is frame 0 of every message. The two sub-protocols share command bytes, so each has a port of
its own. Where the draft is silent, Majordomo 0.2 (RFC 18) applies. No sockets, no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CLIENT",
    "DISCONNECT_NAME",
    "WORKER",
    "Disconnect",
    "Final",
    "Heartbeat",
    "OtherVersion",
    "Partial",
    "Ping",
    "Ready",
    "Request",
    "command",
    "decode_client",
    "decode_worker",
    "detect_version",
    "reply",
    "request",
]

#: Default of NAME on either port.
CLIENT, WORKER = b"MDPC02", b"MDPW02"

#: What the draft names in DISCONNECT.
DISCONNECT_NAME = b"MDPW02"

_READY, _REQUEST, _PARTIAL, _FINAL, _HEARTBEAT, _DISCONNECT = (bytes([n]) for n in range(1, 7))

#: Minimum number of frames of a message with a body, and number of one without.
_LONG, _READY_FRAMES, _SHORT = 5, 3, 2


@dataclass(frozen=True, slots=True)
class Request:
    """A client's REQUEST."""

    service: str
    id: bytes
    body: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker's READY."""

    service: str


@dataclass(frozen=True, slots=True)
class Partial:
    """A worker's PARTIAL: one part of a reply; ``client`` and ``id`` are those of its REQUEST."""

    client: bytes
    id: bytes
    body: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Final(Partial):
    """A worker's FINAL: the end of a reply."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A worker's PING, answered by PONG."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The HEARTBEAT of Majordomo 0.2; not answered."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A worker's DISCONNECT."""


class OtherVersion(NamedTuple):
    """A detected message of another protocol of the family.

    Attributes:
        version: The protocol of the message.
        service: The service that it requests or serves.
        evidence: The feature that shows the protocol.
    """

    version: str
    service: str
    evidence: str


#: Protocols of the family that this gateway does not speak.
RFC_7, RFC_18 = "Majordomo 0.1 (ZeroMQ RFC 7)", "Majordomo 0.2 (ZeroMQ RFC 18)"

#: Their NAMEs.
_NAMES = {b"MDPC01": RFC_7, b"MDPW01": RFC_7, b"MDPC02": RFC_18, b"MDPW02": RFC_18}


WorkerMessage = Ready | Partial | Ping | Heartbeat | Disconnect


def _service(frame: bytes) -> str:
    """Return the name of a service, "a printable string"."""
    try:
        name = frame.decode()
    except UnicodeDecodeError:
        name = ""
    if not name or not name.isprintable():
        raise ProtocolError("the name of a service is text that can be printed")
    return name


def _body_of(frames: Sequence[bytes], names: tuple[bytes, ...]) -> Sequence[bytes]:
    """Return a message without a leading empty frame, which is accepted; check NAME."""
    if frames and not frames[0]:
        frames = frames[1:]
    if len(frames) < _SHORT or frames[0] not in names:
        raise ProtocolError(f"a message begins with {names[0]!r} and a command")
    return frames


def decode_client(frames: Sequence[bytes], name: bytes) -> Request:
    """Read a message of the front port, without the identity.

    Raises:
        ProtocolError: It is not a REQUEST.
    """
    frames = _body_of(frames, (name,))
    if frames[1] != _REQUEST_OF_CLIENT or len(frames) < _LONG or not frames[3]:
        raise ProtocolError("a client sends REQUEST: name, 01, service, request id, body...")
    return Request(_service(frames[2]), frames[3], tuple(frames[4:]))


_REQUEST_OF_CLIENT = b"\x01"


def decode_worker(frames: Sequence[bytes], name: bytes) -> WorkerMessage:
    """Read a message of the back port, without the identity.

    Raises:
        ProtocolError: It is not a message of a worker.
    """
    frames = _body_of(frames, (name, DISCONNECT_NAME))
    match frames[1]:
        case b"\x06" if len(frames) == _SHORT:
            return Disconnect()
        case _ if frames[0] != name:
            pass
        case b"\x01" if len(frames) == _READY_FRAMES:
            return Ready(_service(frames[2]))
        case (b"\x03" | b"\x04") as kind if len(frames) >= _LONG and not frames[3]:
            kind_class = Partial if kind == _PARTIAL else Final
            return kind_class(frames[2], frames[4], tuple(frames[5:]))
        case b"PING" if len(frames) == _SHORT:
            return Ping()
        case b"\x05" if len(frames) == _SHORT:
            return Heartbeat()
    raise ProtocolError("a worker sends READY, PARTIAL, FINAL, PING or DISCONNECT")


def detect_version(frames: Sequence[bytes], name: bytes) -> OtherVersion | None:
    """Return the protocol of an invalid message that requests or serves a service.

    Args:
        frames: Message without the identity.
        name: NAME on the port of the message.

    Returns:
        None if the protocol is not known.
    """
    if frames and not frames[0]:
        frames = frames[1:]
    if len(frames) < _READY_FRAMES or (version := _NAMES.get(frames[0])) is None:
        return None
    begins = frames[0].decode()
    evidence = f"its messages begin with {begins}, not with {name.decode(errors='replace')}"
    # A client of RFC 7 sends no command.
    service, command = (frames[1], _READY) if begins == "MDPC01" else (frames[2], frames[1])
    if frames[0] == name:
        if begins != "MDPC02" or len(frames) != _LONG - 1:
            return None
        evidence = "its REQUEST has no request id"
    if command != _READY:  # the REQUEST of a client has the same byte
        return None
    try:
        return OtherVersion(version, _service(service), evidence)
    except ProtocolError:
        return None


def reply(
    name: bytes, service: str, id: bytes, body: Sequence[bytes], *, final: bool
) -> list[bytes]:
    """Return the frames of PARTIAL or FINAL to a client; the body has at least one frame."""
    kind = _PARTIAL if final else _REQUEST
    return [name, kind, service.encode(), id, *(body or [b""])]


def request(name: bytes, client: bytes, id: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the frames of REQUEST to a worker; the body has at least one frame."""
    return [name, _REQUEST, client, b"", id, *(body or [b""])]


def command(name: bytes, name_of_command: str) -> list[bytes]:
    """Return the frames of ``PONG`` or ``DISCONNECT`` to a worker."""
    return [name, b"PONG" if name_of_command == "PONG" else _DISCONNECT]
