"""One connection of EMP 1 as a state machine, the same for both roles.

Bytes and the time go in, bytes come out (`EmpConnection.take_output`); no socket, no clock. ``now``
is monotonic seconds (specification: "Communication flow").
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq_contrib.gateways.emp.protocol import (
    VERSION,
    Bye,
    Decoder,
    EmpError,
    EmpErrorCode,
    EmpOperation,
    EmpResult,
    Error,
    Hello,
    Ping,
    Pong,
    Request,
    Response,
    decode_operation,
    decode_result,
    encode,
    encode_operation,
    encode_result,
)

if TYPE_CHECKING:
    from eventmq_contrib.gateways.emp.protocol import Message

__all__ = ["EmpConnection", "EmpLimits"]

#: Bytes around the application data of a request or response: header and identifier.
_AROUND = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpLimits:
    """The limits of a connection. Times are seconds.

    Attributes:
        max_frame: Most bytes of one message.
        max_pending: Open requests of the other side, beyond which no more are read; nor are they
            when the open ones have ``max_frame`` bytes in sum.
        hello: Until HELLO of the other side.
        ping_interval: Between two pings of ours.
        ping_timeout: Until the pong.
    """

    max_frame: int = 16 * 1024 * 1024
    max_pending: int = 100
    hello: float = 5.0
    ping_interval: float = 30.0
    ping_timeout: float = 10.0


class EmpConnection:
    """A connection from our side.

    Args:
        limits: The limits.
        now: The time of the connection.

    Attributes:
        ready: Both sides have sent HELLO.
        closed: Send what `take_output` has, then close.
        error: Why it was closed, None for a normal end.
        requests: Requests of the other side, in order: (id, operation).
        responses: Responses to ours: (id, result).
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
        #: Ids of our requests without a response; of theirs, with the bytes of each.
        self._ours: set[int] = set()
        self._theirs: dict[int, int] = {}
        self._bytes = 0
        self._deadline = now + limits.hello
        self._pinged = False
        self._send(Hello())

    # What comes in

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
            raise EmpError(EmpErrorCode.PROTOCOL, "hello is said once")
        if version != VERSION:
            raise EmpError(
                EmpErrorCode.PROTOCOL, f"version {version} is not spoken here, {VERSION} is"
            )
        self.ready = True
        self._deadline = now + self._limits.ping_interval

    def _receive_request(self, id: int, data: bytes) -> None:
        if id == 0 or id in self._theirs:
            why = "0 is never used" if id == 0 else f"{id} is pending already"
            raise EmpError(EmpErrorCode.BAD_ID, f"invalid request identifier: {why}")
        operation = decode_operation(data)
        self._theirs[id] = len(data)
        self._bytes += len(data)
        self.requests.append((id, operation))

    def _receive_response(self, id: int, data: bytes) -> None:
        if id not in self._ours:
            raise EmpError(EmpErrorCode.BAD_ID, f"there is no pending request {id}")
        self._ours.discard(id)
        self.responses.append((id, decode_result(data)))

    # What goes out

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
            EmpError: It is closed, or the request is over the limit; nothing was sent.
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
        self._ours.add(self._last_id)
        self._send(Request(self._last_id, encoded))
        return self._last_id

    def respond(self, id: int, result: EmpResult) -> None:
        """Answer a request; ignored when the connection is closed."""
        if self.closed:
            return
        try:
            encoded = encode_result(result)
        except (TypeError, ValueError, RecursionError):
            encoded = _failed("not_json", "the result cannot be written as JSON", result)
        if len(encoded) + _AROUND > self._limits.max_frame:
            encoded = _failed("too_large", "the result is over the limit of a message", result)
        self._bytes -= self._theirs.pop(id, 0)
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
        return len(self._theirs)

    @property
    def full(self) -> bool:
        """Whether open requests are at their limit, so that no more should be read."""
        limits = self._limits
        return len(self._theirs) >= limits.max_pending or self._bytes >= limits.max_frame

    def tick(self, now: float) -> None:
        """Ping, or close the connection, when that is due."""
        if self.closed or now < self._deadline:
            return
        if not self.ready:
            self.fail(EmpError(EmpErrorCode.PROTOCOL, f"no hello within {self._limits.hello:g} s"))
        elif self.full:  # what it sent was not read: its silence says nothing
            self._deadline = now + self._limits.ping_timeout
        elif self._pinged:
            wait = self._limits.ping_timeout
            self.fail(EmpError(EmpErrorCode.INTERNAL, f"no pong within {wait:g} s"))
        else:
            self._pinged = True
            self._deadline = now + self._limits.ping_timeout
            self._send(Ping())

    def wait(self, now: float) -> float:
        """Return in how many seconds `tick` has something to do."""
        return max(0.0, self._deadline - now)


def _failed(code: str, description: str, result: EmpResult) -> bytes:
    """Return a response in the place of one that cannot be sent."""
    job_id = result.data.get("job_id")
    data = {"job_id": job_id} if isinstance(job_id, str) else {}
    return encode_result(EmpResult(False, data, code, description))  # noqa: FBT003 - a tuple
