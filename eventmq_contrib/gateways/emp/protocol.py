"""EMP 1 without sockets: its messages as bytes, and a connection as a state machine.

Each message is preceded by its length as 4 bytes, big-endian, not counting itself. The document
omits the framing; deployed software uses this one (specification: "Encoding", "Messages").

An `EmpConnection` is the same for both roles: it receives bytes and the time, and returns bytes
with `EmpConnection.take_output`. ``now`` is monotonic seconds (specification: "Communication
flow").
"""

from __future__ import annotations

import json
import struct
from collections import deque
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
    "EmpConnection",
    "EmpError",
    "EmpErrorCode",
    "EmpFailure",
    "EmpKind",
    "EmpLimits",
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

#: The version of the protocol that this module speaks.
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
    """An ERROR that ends the connection, sent by either side.

    Attributes:
        code: Code of the ERROR.
        description: Description for people.
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
    """Return a message, preceded by its length; unused bytes are 0."""
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
    """Return a character string; a text that is too long is cut between two characters."""
    data = text.encode(errors="replace")
    if len(data) > MAX_STRING:
        data = data[:MAX_STRING].decode(errors="ignore").encode()
    return len(data).to_bytes(2, "big") + data


class Decoder:
    """Splits a stream of bytes into messages.

    Args:
        max_frame: Maximum bytes of a message; bytes after a longer one are not read.
    """

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def messages(self) -> Iterator[Message]:
        """Yield the complete messages.

        Raises:
            EmpError: Code 1: a message is too long, too short or of an unknown type.
        """
        while len(self._buffer) >= 4:  # noqa: PLR2004 - the length
            length = int.from_bytes(self._buffer[:4], "big")
            if length > self._max_frame:
                raise EmpError(
                    EmpErrorCode.PROTOCOL,
                    f"a message of {length} bytes is over the limit of {self._max_frame}",
                )
            if length < _HEADER:
                raise EmpError(
                    EmpErrorCode.PROTOCOL,
                    f"a message of {length} bytes has no header, which takes {_HEADER}",
                )
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
    raise EmpError(EmpErrorCode.PROTOCOL, f"unknown message type {kind}")


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
    """The application data of a request."""

    op: str
    data: dict[str, Any]


class EmpResult(NamedTuple):
    """The application data of a response; ``code`` and ``description`` are "" for a success."""

    ok: bool
    data: dict[str, Any]
    code: str = ""
    description: str = ""


class EmpFailure(EventMQError):
    """A ``failure`` response.

    Attributes:
        code: Name of the cause, such as ``unknown_job``.
        description: Description for people.
        data: Further data.
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


def _load(data: bytes, subject: str) -> dict[str, Any]:
    """Return application data as a JSON object."""
    if data.startswith(_BOM):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"the {subject} begins with a byte order mark")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"the {subject} is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"the {subject} is no JSON object")
    return value


def _object(value: dict[str, Any], subject: str) -> dict[str, Any]:
    data = value.get("data", {})
    if not isinstance(data, dict):
        raise EmpError(EmpErrorCode.BAD_REQUEST, f"data of the {subject} is no JSON object")
    return data


def encode_operation(op: str, data: dict[str, Any] | None = None) -> bytes:
    """Return the data of a request; None is sent as ``{}``.

    In the document ``data`` is optional, but deployed servers refuse a request without it.

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
    payload = _object(value, "response")
    match value.get("status"):
        case "success":
            return EmpResult(True, payload, code, description)  # noqa: FBT003 - a tuple
        case "failure" if "description" in value:
            return EmpResult(False, payload, code, description)  # noqa: FBT003
        case "failure":
            raise EmpError(EmpErrorCode.BAD_REQUEST, "a failure has a description")
    raise EmpError(EmpErrorCode.BAD_REQUEST, "the status of a response is success or failure")


#: Bytes around the application data of a request or response: header and identifier.
_AROUND = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpLimits:
    """The limits of a connection. Times are seconds.

    Attributes:
        max_frame: Maximum bytes of a message.
        max_pending: Maximum open requests of the other side; at the maximum, or when the open ones
            have ``max_frame`` bytes in total, no more are read.
        hello: Timeout of the other side's HELLO.
        ping_interval: Time between two pings of this side.
        ping_timeout: Timeout of the pong.
    """

    max_frame: int = 16 * 1024 * 1024
    max_pending: int = 100
    hello: float = 5.0
    ping_interval: float = 30.0
    ping_timeout: float = 10.0


class EmpConnection:
    """One side of a connection.

    Args:
        limits: The limits.
        now: The time of the connection.

    Attributes:
        ready: Whether both sides have sent HELLO.
        closed: Whether to close the connection after sending the rest of `take_output`.
        error: Why it was closed, None for a normal end.
        requests: Requests of the other side, in order: (id, operation).
        responses: Responses to requests of this side: (id, result).
    """

    def __init__(self, limits: EmpLimits, now: float) -> None:
        self.ready = False
        self.closed = False
        self.error: EmpError | None = None
        self.requests: deque[tuple[int, EmpOperation]] = deque()
        self.responses: deque[tuple[int, EmpResult]] = deque()
        self._limits = limits
        self._decoder = Decoder(limits.max_frame)
        self._output = bytearray()
        self._last_id = 0
        #: Ids of sent requests without a response; id -> bytes of received ones without a response.
        self._sent_ids: set[int] = set()
        self._received: dict[int, int] = {}
        self._bytes = 0
        self._deadline = now + limits.hello
        self._pinged = False
        self._send(Hello())

    # Input

    def receive(self, data: bytes, now: float) -> None:
        """Receive bytes of the other side; ignored after the end of the connection."""
        if self.closed:
            return
        self._decoder.feed(data)
        try:
            for message in self._decoder.messages():
                self._receive(message, now)
                if self.closed:
                    return
        except EmpError as error:
            self.fail(error)

    def _receive(self, message: Message, now: float) -> None:
        match message:
            case Bye():
                self.closed = True
            case Error(code, description):
                self.error = EmpError(code, f"the other side says: {description}")
                self.closed = True
            case Hello(version):
                self._receive_hello(version, now)
            case _ if not self.ready:
                raise EmpError(EmpErrorCode.PROTOCOL, "the first message is hello")
            case Ping():
                self._send(Pong())
            case Pong():
                self._pinged = False
                self._deadline = now + self._limits.ping_interval
            case Request(id, data):
                self._receive_request(id, data)
            case Response(id, data):
                self._receive_response(id, data)

    def _receive_hello(self, version: int, now: float) -> None:
        if self.ready:
            raise EmpError(EmpErrorCode.PROTOCOL, "hello was sent twice")
        if version != VERSION:
            raise EmpError(
                EmpErrorCode.PROTOCOL, f"version {version} is not supported, {VERSION} is"
            )
        self.ready = True
        self._deadline = now + self._limits.ping_interval

    def _receive_request(self, id: int, data: bytes) -> None:
        if id == 0 or id in self._received:
            why = "0 is never used" if id == 0 else f"{id} is pending already"
            raise EmpError(EmpErrorCode.BAD_ID, f"invalid request identifier: {why}")
        operation = decode_operation(data)
        self._received[id] = len(data)
        self._bytes += len(data)
        self.requests.append((id, operation))

    def _receive_response(self, id: int, data: bytes) -> None:
        if id not in self._sent_ids:
            raise EmpError(EmpErrorCode.BAD_ID, f"there is no pending request {id}")
        self._sent_ids.discard(id)
        self.responses.append((id, decode_result(data)))

    # Output

    def take_output(self) -> bytes:
        """Return the bytes to send and clear them."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def _send(self, message: Message) -> None:
        self._output += encode(message)

    def request(self, op: str, data: dict[str, Any] | None = None) -> int:
        """Send a request and return its id; the connection must be ready and open.

        Raises:
            EmpError: It is closed, or the request is over the limit; it was not sent.
            TypeError: The data cannot be written as JSON.
            ValueError: As before.
        """
        if self.closed or not self.ready:
            raise self.error or EmpError(EmpErrorCode.UNAVAILABLE, "the connection is not open")
        encoded = encode_operation(op, data)
        if len(encoded) + _AROUND > self._limits.max_frame:
            limit = self._limits.max_frame
            raise EmpError(
                EmpErrorCode.BAD_REQUEST, f"the request is over the limit of {limit} bytes"
            )
        self._last_id += 1
        self._sent_ids.add(self._last_id)
        self._send(Request(self._last_id, encoded))
        return self._last_id

    def respond(self, id: int, result: EmpResult) -> None:
        """Answer a request; ignored when the connection is closed."""
        if self.closed:
            return
        try:
            encoded = encode_result(result)
        except (TypeError, ValueError, RecursionError):
            encoded = _failure("not_json", "the result cannot be written as JSON", result)
        if len(encoded) + _AROUND > self._limits.max_frame:
            encoded = _failure("too_large", "the result is over the limit of a message", result)
        self._bytes -= self._received.pop(id, 0)
        self._send(Response(id, encoded))

    def fail(self, error: EmpError) -> None:
        """End the connection by an ERROR. Idempotent."""
        if not self.closed:
            self.closed = True
            self.error = error
            self._send(Error(error.code, error.description))

    def bye(self) -> None:
        """End the connection. Idempotent."""
        if not self.closed:
            self.closed = True
            self._send(Bye())

    # Time

    @property
    def pending(self) -> int:
        """Number of requests of the other side without a response."""
        return len(self._received)

    @property
    def full(self) -> bool:
        """Whether open requests are at their limit, so that no more should be read."""
        limits = self._limits
        return len(self._received) >= limits.max_pending or self._bytes >= limits.max_frame

    def tick(self, now: float) -> None:
        """Send a ping or close the connection, if that is due."""
        if self.closed or now < self._deadline:
            return
        if not self.ready:
            self.fail(EmpError(EmpErrorCode.PROTOCOL, f"no hello within {self._limits.hello:g} s"))
        elif self.full:  # its messages are not read, so its silence is no sign of failure
            self._deadline = now + self._limits.ping_timeout
        elif self._pinged:
            wait = self._limits.ping_timeout
            self.fail(EmpError(EmpErrorCode.INTERNAL, f"no pong within {wait:g} s"))
        else:
            self._pinged = True
            self._deadline = now + self._limits.ping_timeout
            self._send(Ping())

    def wait(self, now: float) -> float:
        """Return the seconds until `tick` must be called."""
        return max(0.0, self._deadline - now)


def _failure(code: str, description: str, result: EmpResult) -> bytes:
    """Return a failure response in place of a response that cannot be sent."""
    job_id = result.data.get("job_id")
    data = {"job_id": job_id} if isinstance(job_id, str) else {}
    return encode_result(EmpResult(False, data, code, description))  # noqa: FBT003 - a tuple
