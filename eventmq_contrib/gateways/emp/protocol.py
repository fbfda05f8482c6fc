"""The messages of EMP 1 as bytes, and back (specification: "Encoding", "Messages").

Each message is preceded by its length as 4 bytes, big-endian, not counting itself: the document
omits the framing, and deployed software has this one. No state but a buffer; no socket.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "VERSION",
    "Bye",
    "Decoder",
    "EmpError",
    "EmpErrorCode",
    "EmpFailure",
    "EmpKind",
    "EmpOperation",
    "EmpResult",
    "Error",
    "Hello",
    "Message",
    "Ping",
    "Pong",
    "Request",
    "Response",
    "decode_operation",
    "decode_result",
    "encode",
    "encode_operation",
    "encode_result",
]


#: The version of the protocol that we speak.
VERSION = 1

#: Bytes of the longest character string: its length has 16 bits.
MAX_STRING = 65_535

_HEADER = 4

_ID = struct.Struct(">Q")


class EmpKind(IntEnum):
    """The type of a message."""

    HELLO = 0
    BYE = 1
    PING = 2
    PONG = 3
    ERROR = 4
    REQUEST = 5
    RESPONSE = 6


class EmpErrorCode(IntEnum):
    """The code of an ERROR."""

    INTERNAL = 0
    PROTOCOL = 1
    UNAVAILABLE = 2
    BAD_ID = 3
    BAD_REQUEST = 4


class EmpError(EventMQError):
    """What ends a connection by an ERROR, sent by us or by the other side.

    Attributes:
        code: Of the ERROR.
        description: For people.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"EMP error {int(code)}: {description}")
        self.code = int(code)
        self.description = description


@dataclass(frozen=True, slots=True)
class Hello:
    """``hello``: the highest version that the sender speaks."""

    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Bye:
    """``bye``: the sender closes the connection."""


@dataclass(frozen=True, slots=True)
class Ping:
    """``ping``: answered by `Pong`."""


@dataclass(frozen=True, slots=True)
class Pong:
    """``pong``."""


@dataclass(frozen=True, slots=True)
class Error:
    """``error``: the sender closes the connection, and the receiver must."""

    code: int
    description: str


@dataclass(frozen=True, slots=True)
class Request:
    """``request``, with its application data as bytes."""

    id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """``response`` to the request of the same id."""

    id: int
    data: bytes


Message = Hello | Bye | Ping | Pong | Error | Request | Response

_EMPTY: dict[EmpKind, Message] = {EmpKind.BYE: Bye(), EmpKind.PING: Ping(), EmpKind.PONG: Pong()}


def encode(message: Message) -> bytes:
    """Return a message with its length in front; unused bytes are 0."""
    match message:
        case Hello(version):
            kind, body = EmpKind.HELLO, bytes([version, 0, 0, 0])
        case Bye():
            kind, body = EmpKind.BYE, b""
        case Ping():
            kind, body = EmpKind.PING, b""
        case Pong():
            kind, body = EmpKind.PONG, b""
        case Error(code, description):
            kind, body = EmpKind.ERROR, bytes([code, 0, 0, 0]) + _string(description)
        case Request(id, data):
            kind, body = EmpKind.REQUEST, _ID.pack(id) + data
        case Response(id, data):
            kind, body = EmpKind.RESPONSE, _ID.pack(id) + data
    frame = bytes([kind, 0, 0, 0]) + body
    return len(frame).to_bytes(4, "big") + frame


def _string(text: str) -> bytes:
    """Return a character string; one that is too long is cut between two characters."""
    data = text.encode(errors="replace")
    if len(data) > MAX_STRING:
        data = data[:MAX_STRING].decode(errors="ignore").encode()
    return len(data).to_bytes(2, "big") + data


class Decoder:
    """Cuts a stream of bytes into messages.

    Args:
        max_frame: Most bytes of one message; what follows a longer one is not read.
    """

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes as they came."""
        self._buffer += data

    def messages(self) -> Iterator[Message]:
        """Yield the messages that are there in full.

        Raises:
            EmpError: Code 1: one is too long, too short or of no known type.
        """
        while len(self._buffer) >= 4:  # noqa: PLR2004 - the length
            length = int.from_bytes(self._buffer[:4], "big")
            if length > self._max_frame:
                msg = f"a message of {length} bytes is over the limit of {self._max_frame}"
                raise EmpError(EmpErrorCode.PROTOCOL, msg)
            if length < _HEADER:
                msg = f"a message of {length} bytes has no header, which takes {_HEADER}"
                raise EmpError(EmpErrorCode.PROTOCOL, msg)
            if len(self._buffer) < 4 + length:
                return
            frame = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            yield _decode(frame[0], frame[_HEADER:])


def _decode(kind: int, body: bytes) -> Message:
    match kind:
        case EmpKind.HELLO:
            _expect(len(body) == 4, "hello")  # noqa: PLR2004 - version and unused
            return Hello(body[0])
        case EmpKind.BYE | EmpKind.PING | EmpKind.PONG:
            _expect(not body, EmpKind(kind).name.lower())
            return _EMPTY[EmpKind(kind)]
        case EmpKind.ERROR:
            return _decode_error(body)
        case EmpKind.REQUEST | EmpKind.RESPONSE:
            _expect(len(body) >= _ID.size, EmpKind(kind).name.lower())
            made = Request if kind == EmpKind.REQUEST else Response
            return made(_ID.unpack_from(body)[0], body[_ID.size :])
    raise EmpError(EmpErrorCode.PROTOCOL, f"there is no message type {kind}")


def _decode_error(body: bytes) -> Error:
    _expect(len(body) >= 6 and len(body) == 6 + int.from_bytes(body[4:6], "big"), "error")  # noqa: PLR2004
    try:
        return Error(body[0], body[6:].decode())
    except UnicodeDecodeError:
        raise EmpError(EmpErrorCode.PROTOCOL, "the description of an error is not UTF-8") from None


def _expect(right: bool, name: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not right:
        raise EmpError(EmpErrorCode.PROTOCOL, f"the body of a message {name} has the wrong length")


_BOM = b"\xef\xbb\xbf"


class EmpOperation(NamedTuple):
    """What a request asks for."""

    op: str
    data: dict[str, Any]


class EmpResult(NamedTuple):
    """What a response says; ``code`` and ``description`` are "" for a success."""

    ok: bool
    data: dict[str, Any]
    code: str = ""
    description: str = ""


class EmpFailure(EventMQError):
    """A ``failure`` response.

    Attributes:
        code: Names the cause, as ``unknown_job``.
        description: For people.
        data: More about it.
    """

    def __init__(self, code: str, description: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {description}" if code else description)
        self.code = code
        self.description = description
        self.data = data or {}


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _load(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object that the application data are."""
    if data.startswith(_BOM):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"the {what} begins with a byte order mark")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"the {what} is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"the {what} is no JSON object")
    return value


def _object(value: dict[str, Any], what: str) -> dict[str, Any]:
    data = value.get("data", {})
    if not isinstance(data, dict):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"data of the {what} is no JSON object")
    return data


def encode_operation(op: str, data: dict[str, Any] | None = None) -> bytes:
    """Return the data of a request; None is sent as ``{}``.

    The document says that ``data`` is optional, but deployed servers refuse a request without it.

    Raises:
        TypeError: The data cannot be written as JSON.
        ValueError: As before.
    """
    return _dump({"op": op, "data": {} if data is None else data})


def decode_operation(data: bytes) -> EmpOperation:
    """Read the data of a request.

    Raises:
        EmpError: Code 4: they are not what the document says.
    """
    value = _load(data, "request")
    op = value.get("op")
    if not isinstance(op, str):
        raise EmpError(EmpErrorCode.BAD_REQUEST, "the request has no op that is a string")
    return EmpOperation(op, _object(value, "request"))


def encode_result(result: EmpResult) -> bytes:
    """Return the data of a response.

    Raises:
        TypeError: The data cannot be written as JSON.
        ValueError: As before.
    """
    value: dict[str, Any] = {"status": "success" if result.ok else "failure"}
    if not result.ok:
        value |= {"code": result.code, "description": result.description}
    if result.data:
        value["data"] = result.data
    return _dump(value)


def decode_result(data: bytes) -> EmpResult:
    """Read the data of a response.

    Raises:
        EmpError: Code 4: they are not what the document says.
    """
    value = _load(data, "response")
    code, description = value.get("code", ""), value.get("description", "")
    if not isinstance(code, str) or not isinstance(description, str):
        raise EmpError(EmpErrorCode.BAD_REQUEST, "code and description of a response are strings")
    found = _object(value, "response")
    match value.get("status"):
        case "success":
            return EmpResult(True, found, code, description)  # noqa: FBT003 - a tuple
        case "failure" if "description" in value:
            return EmpResult(False, found, code, description)  # noqa: FBT003
        case "failure":
            raise EmpError(EmpErrorCode.BAD_REQUEST, "a failure has a description")
    raise EmpError(EmpErrorCode.BAD_REQUEST, "the status of a response is success or failure")
