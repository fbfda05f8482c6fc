"""The connection to one broker: whether it answers, what it announced, what is unsent."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventmq.client.requests import OneWayMessage, OutgoingMessage, PendingCall, PendingSubmit
from eventmq.errors import MessageTooLarge, ProtocolError, SerializationError
from eventmq.wire.batches import is_text
from eventmq.wire.commands import Heartbeat, Inform

if TYPE_CHECKING:
    from eventmq.client.requests import PendingRequest
    from eventmq.wire.features import Features

__all__ = ["LOST", "BrokerConnection", "ConnectionPhase"]

#: `BrokerConnection.last_error` after the connection was lost.
LOST = "the connection was lost"

#: `BrokerConnection.unready_reason` of a broker that is reached and does not answer.
UNANSWERED = (
    "connected, and INFORM is not answered; a router of EventMQ 0.3 answers none of a client: see "
    "the setting legacy_broker"
)


class ConnectionPhase(enum.Enum):
    """How far the handshake of a connection is."""

    #: INFORM is on its way; nothing else may be sent.
    INFORMING = "informing"
    #: The broker acknowledged the INFORM, and the connection was not lost since.
    READY = "ready"


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """The connection to one broker.

    Attributes:
        index: Position in the list of brokers.
        address: For people.
        phase: `ConnectionPhase`.
        features: What the broker announced, None before that or if it is a legacy one.
        unsent: Messages that the socket has not accepted yet, in order.
        in_flight: Number of submissions and calls in flight at this broker.
        busy_since: When the first of these began, or the socket was opened.
        last_received: When a message last came from it.
        last_sent: When a message was last sent to it.
        inform: The last INFORM.
        inform_id: Its message id.
        disconnected: The transport was lost and has not been seen to be back.
        last_error: For people: why it does not answer, "" if that is not known.
        role: What the client informs as.
        retry_at: When a socket whose handshake failed is replaced: libzmq does not try again.
        warned: The warning that no receipts come was logged.
    """

    index: int
    address: str
    phase: ConnectionPhase = ConnectionPhase.INFORMING
    features: Features | None = None
    unsent: deque[OutgoingMessage] = field(default_factory=deque)
    in_flight: int = 0
    busy_since: float = 0.0
    last_received: float = 0.0
    last_sent: float = 0.0
    inform: OutgoingMessage = field(default_factory=lambda: OutgoingMessage([]))
    inform_id: str = ""
    disconnected: bool = False
    last_error: str = ""
    role: str = "client"
    retry_at: float = 0.0
    warned: bool = False

    @property
    def ready(self) -> bool:
        """Whether submissions and calls may be sent."""
        return self.phase is ConnectionPhase.READY

    @property
    def store(self) -> str:
        """The id of the broker's store; for a legacy broker its address."""
        return (self.features.store if self.features else "") or self.address

    @property
    def max_frame(self) -> int:
        """Maximum length of a frame for the broker, 0 if it announced none."""
        return self.features.max_frame if self.features else 0

    def supports(self, extension: str) -> bool:
        """Whether the broker announced an extension."""
        return self.features is not None and extension in self.features.extensions

    def incompatibility(self, request: PendingRequest) -> Exception | None:
        """Return the error of a request that this broker cannot take, None if it can."""
        if type(request) is not OneWayMessage:
            extension = "call" if type(request) is PendingCall else ""
            if type(request) is PendingSubmit:
                extension = request.extension or ("batch" if request.count else "")
            if extension and not self.supports(extension):
                return ProtocolError(self._no_extension(extension), code="no-extension")
        if self.features is None and not is_text(request.frames[-1]):
            return SerializationError(self._unreadable(request))
        length = len(request.frames[-1])
        if length <= self.max_frame or not self.max_frame:
            return None
        msg = f"a body of {length} bytes is longer than the {self.max_frame} bytes "
        msg += f"that broker {self.address} takes"
        return MessageTooLarge(msg, job_id=request.id if type(request) is PendingSubmit else None)

    def _no_extension(self, extension: str) -> str:
        """Return the error text for a protocol extension that this broker lacks."""
        if self.features is not None:
            return f"broker {self.address} lacks the protocol extension {extension!r}"
        msg = f"broker {self.address} is a legacy one, without FEATURES: "
        if extension in {"call", "late-ack"}:
            return f"{msg}it answers no calls, so states and results of jobs cannot be read"
        what = "many jobs in one message" if extension == "batch" else f"a {extension}"
        return (
            f"{msg}it does not know the protocol extension {extension!r}; submit jobs one by "
            f"one instead of {what}"
        )

    def _unreadable(self, request: PendingRequest) -> str:
        """Return the error text for a message that a legacy broker cannot read."""
        what = f"the body of job {request.id}" if type(request) is PendingSubmit else "the body"
        return (
            f"{what} is not UTF-8, and broker {self.address} is a legacy one, without FEATURES, "
            "which may end when it reads that: use serializer='json', or app.send_raw() with the "
            "text that its workers know"
        )

    def assume_legacy(self) -> None:
        """Take the broker for a legacy one that is connected, without an INFORM."""
        self.phase = ConnectionPhase.READY
        self.features = None
        self.unsent.clear()
        self.inform, self.inform_id = OutgoingMessage([]), ""

    def begin_inform(self, message_id: str, features: str) -> None:
        """Replace what is unsent by an INFORM."""
        self.phase = ConnectionPhase.INFORMING
        self.unsent.clear()
        self.inform_id = message_id
        self.inform = OutgoingMessage(Inform(message_id, "", self.role, features).frames())
        self.unsent.append(self.inform)

    def queue_heartbeat(self, message_id: str, unix: float) -> None:
        """Queue a HEARTBEAT."""
        self.unsent.append(OutgoingMessage(Heartbeat(message_id, f"{unix:.2f}").frames()))

    def assign(self, now: float) -> None:
        """Count one more request in flight."""
        if not self.in_flight:
            self.busy_since = now
        self.in_flight += 1

    @property
    def unready_reason(self) -> str:
        """Why it is not ready, for people."""
        if not self.inform.sent or self.ready or self.last_error not in {"", LOST}:
            return self.last_error or "no connection"
        if self.role != "client":
            return "connected, and INFORM is not answered"
        return UNANSWERED

    def next_heartbeat(self, interval: float) -> float | None:
        """Return when to send the next HEARTBEAT or INFORM, None if none is needed."""
        if self.ready and self.features is None and self.role == "client":
            return (
                None  # the published document asks for none of a client, and no answer is awaited
            )
        if self.ready:
            return self.last_sent + interval if self.in_flight else None
        return self.inform.sent + interval if self.inform.sent else None

    def dead_at(self, heartbeat_timeout: float) -> float | None:
        """Return when its silence means that it is dead, None if no message is expected."""
        expected = self.in_flight if self.ready else self.inform.sent
        return max(self.last_received, self.busy_since) + heartbeat_timeout if expected else None
