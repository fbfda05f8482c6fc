"""Requests and connections of a client.

A `PendingSubmit` is one REQUEST, with one job or a batch, until its receipt; a `PendingCall` is one
CALL until its last answer; a `OneWayMessage` ends when it is sent. A ``get`` with ``submit`` is one
exchange: the REQUEST asks for the result of its job, and the CALL is sent only if the result is not
pushed. The runner calls ``notify`` in its thread when a request has news. Times are on the
monotonic clock of the caller. `BrokerConnection` is the state of the connection to one broker, and
`InFlightRequests` records which connection has which request. The functions at the end read the
answers to ``get`` and ``stream``.
"""

from __future__ import annotations

import enum
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import (
    BrokerUnavailable,
    EventMQError,
    MessageTooLarge,
    ProtocolError,
    ResultTimeout,
    SerializationError,
)
from eventmq.wire.batches import is_text, pack, unpack
from eventmq.wire.commands import Call, Credit, Heartbeat, Inform
from eventmq.wire.outcomes import read_row
from eventmq.wire.streams import END, PART, PartHead, parse_end

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from eventmq.wire.commands import Reply
    from eventmq.wire.features import Features
    from eventmq.wire.owner import OwnerInfo

__all__ = [
    "ACTOR",
    "LOST",
    "NEVER",
    "NO_BROKER",
    "OPERATION",
    "UNTIL_FORGOTTEN",
    "BrokerConnection",
    "ConnectionPhase",
    "InFlightRequests",
    "News",
    "OneWayMessage",
    "OutgoingMessage",
    "PendingCall",
    "PendingRequest",
    "PendingSubmit",
    "add_rows",
    "credit_frames",
    "no_notify",
    "read_answer",
    "take_answer",
]

#: The user's operation on whose behalf a call is made, if that is not the call itself; else "".
OPERATION: ContextVar[str] = ContextVar("eventmq_operation", default="")

#: The actor of calls, in place of the setting ``actor``; "" for that.
ACTOR: ContextVar[str] = ContextVar("eventmq_actor", default="")

#: No deadline.
NEVER = float("inf")

#: Index of the broker of a request that is not assigned.
NO_BROKER = -1

#: Calls that the broker keeps answering until it is told to ``forget`` them.
UNTIL_FORGOTTEN = frozenset({"get", "stream", "subscribe"})

#: Calls that are sent only once: the next owner would give up the store as well.
_SENT_ONCE = frozenset({"handover"})

#: `BrokerConnection.last_error` after the connection was lost.
LOST = "the connection was lost"

#: `BrokerConnection.unready_reason` of a connected broker that does not answer.
UNANSWERED = (
    "connected, and INFORM is not answered: the broker hangs or waits for its store, or it is a "
    "router of EventMQ 0.3, which answers none of a client: see the setting legacy_broker"
)

#: The end of the error text if no broker can be reached.
_HINT = 'start one with "eventmq broker"'


def no_notify() -> None:
    """Do nothing: no caller waits for the request."""


@dataclass(slots=True, eq=False)
class OutgoingMessage:
    """A message to a broker, before and after it was sent.

    Attributes:
        frames: All frames, from frame 0 on.
        sent: Time at which it was last handed to a connection, 0.0 before.
        done: It has ended, or is no longer needed: do not send it.
    """

    frames: list[bytes]
    sent: float = 0.0
    done: bool = False


@dataclass(slots=True, eq=False)
class PendingRequest(OutgoingMessage):
    """A message whose end its caller waits for.

    Attributes:
        id: The message id.
        deadline: Time at which it fails.
        notify: Called when it has an answer or has ended.
        assigned_to: Index of the broker that has it, or `NO_BROKER`.
        error: The error with which it failed.
        started: It was handed to the I/O loop.
    """

    id: str = ""
    deadline: float = NEVER
    notify: Callable[[], None] = no_notify
    assigned_to: int = NO_BROKER
    error: Exception | None = None
    started: bool = False

    @property
    def last_deadline(self) -> float:
        """The latest time at which it ends."""
        return self.deadline

    def failure(self, reason: str) -> EventMQError:
        """Return the exception of a request that has timed out."""
        return BrokerUnavailable(reason)


@dataclass(slots=True, eq=False)
class PendingSubmit(PendingRequest):
    """One REQUEST on its way to its receipt; ``id`` is that of the job, or of the batch.

    Attributes:
        count: Number of jobs in a batch, 0 for a single job.
        broker: Index of the broker that it was last sent to, or `NO_BROKER`.
        store: Id of the store of that broker.
        refused: For a batch with a receipt: position -> (code, text).
        followers: Later submissions of the same id, ended together with this one.
        extension: The protocol extension that the broker must have, "" for none.
        asks_for_result: The REQUEST asks the broker to push the result of its job, as did those
            that were sent for an earlier submission of the same id.
        result: The ``get`` for the result of its job; None if only the receipt is waited for,
            and after the receipt.
        confirmed: False if it ended without a receipt: the broker sends none.
    """

    count: int = 0
    broker: int = NO_BROKER
    store: str = ""
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    followers: list[PendingSubmit] = field(default_factory=list)
    extension: str = ""
    asks_for_result: bool = False
    result: PendingCall | None = None
    confirmed: bool = True

    def failure(self, reason: str) -> EventMQError:
        """Return the exception of a request that has timed out."""
        job_id = None if self.count else self.id
        return BrokerUnavailable(reason, job_id=job_id, maybe_accepted=bool(self.sent))


@dataclass(slots=True, eq=False)
class PendingCall(PendingRequest):
    """One CALL on its way to its last answer.

    Attributes:
        name: Name of the call, see `eventmq.wire.calls`.
        arguments: Its arguments; for ``get`` without the ids.
        ids: For ``get``: the jobs that are not answered yet.
        subject: The job id for error messages.
        target: Index of the broker to ask, or `NO_BROKER` for any.
        store: Id of the store to ask while ``target`` is not connected, "" for none.
        answers: Answers that the caller has not read yet: rows of a ``get``, else results.
        limit: Maximum length of ``answers``, 0 for none; the oldest are dropped.
        dropped: Number of dropped answers.
        submit: For ``get``: the submission that precedes it, None for none and after the receipt;
            ``target`` and ``store`` then identify the broker that has the job.
    """

    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    subject: str = ""
    target: int = NO_BROKER
    store: str = ""
    answers: deque[Any] = field(default_factory=deque)
    limit: int = 0
    dropped: int = 0
    submit: PendingSubmit | None = None

    @property
    def last_deadline(self) -> float:
        """The latest time at which it ends: a submission has its own deadline."""
        return self.deadline if self.submit is None else max(self.deadline, self.submit.deadline)

    def encode(self) -> None:
        """Encode its CALL, without the jobs that are answered."""
        arguments = self.arguments
        if self.name == "get":
            arguments = {**arguments, "ids": list(self.ids)}
        self.frames = Call(self.id, self.name, pack(arguments)).frames()

    def add(self, answer: Any) -> None:
        """Keep one answer."""
        if self.limit and len(self.answers) >= self.limit:
            self.answers.popleft()
            self.dropped += 1
        self.answers.append(answer)

    def failure(self, reason: str) -> EventMQError:
        """Return the exception of a request that has timed out."""
        if self.submit is not None:
            return self.submit.failure(reason)
        if self.name != "get":
            return BrokerUnavailable(reason)
        jobs = f"job {self.subject}" if self.subject else f"{len(self.ids)} jobs"
        return ResultTimeout(f"{jobs} had not ended in time ({reason})", job_id=self.subject)


@dataclass(slots=True, eq=False)
class OneWayMessage(PendingRequest):
    """A message without a receipt, such as PUBLISH; it ends when it is sent."""


class News(NamedTuple):
    """The next answers of calls that have begun: wait until a call has answers, or has ended.

    Attributes:
        calls: The calls.
        timeout: Seconds to wait, None for no limit.
    """

    calls: Collection[PendingCall]
    timeout: float | None

    @property
    def ready(self) -> bool:
        """Whether a call has answers, or has ended."""
        return any(call.answers or call.done for call in self.calls)

    def watch(self, notify: Callable[[], None]) -> None:
        """Call a function, from any thread, whenever a call has answers or has ended."""
        for call in self.calls:
            call.notify = notify


class ConnectionPhase(enum.Enum):
    """State of the handshake of a connection."""

    #: INFORM was sent or is about to be; no other message may be sent.
    INFORMING = "informing"
    #: The broker acknowledged the INFORM, and the connection was not lost since.
    READY = "ready"
    #: The INFORM is acknowledged, but another broker owns the store as far as is known.
    STANDBY = "standby"


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """The connection to one broker.

    Attributes:
        index: Position in the list of brokers.
        address: Its address, for messages.
        phase: `ConnectionPhase`.
        features: What the broker announced, None before that or if it is a legacy one.
        unsent: Messages that the socket has not accepted yet, in order.
        in_flight: Number of submissions and calls in flight at this broker.
        busy_since: Time at which the first of these began, or the socket was opened.
        last_received: Time of the last message from it.
        last_sent: Time of the last message to it.
        inform: The last INFORM.
        inform_id: Its message id.
        disconnected: The transport was lost, and no reconnection was noticed.
        last_error: The reason why it does not answer, as text, "" if that is not known.
        role: The role in the client's INFORM.
        retry_at: Time at which a socket is replaced whose handshake failed: libzmq does not retry.
        warned: The warning about missing receipts was logged.
        doubted_since: Time of the first unanswered call since the last message from it.
        owner: The last information from the broker about the owner of its store; None if the store
            is not shared.
        named_store: Id of the store that the broker must have, if another broker named its
            address; else "".
        server_key: The broker's public CURVE key in Z85, if another broker named it; else "".
        passes: It is a standby whose owner this client may not connect to: it gets calls and
            one-way messages, and relays them to the owner.
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
    doubted_since: float = 0.0
    owner: OwnerInfo | None = None
    named_store: str = ""
    server_key: str = ""
    passes: bool = False

    @property
    def informed(self) -> bool:
        """Whether the broker acknowledged the INFORM."""
        return self.phase is not ConnectionPhase.INFORMING

    @property
    def ready(self) -> bool:
        """Whether submissions and calls may be sent."""
        return self.phase is ConnectionPhase.READY

    @property
    def ownerless(self) -> bool:
        """Whether the broker is a standby that knows no owner, and has given no reason."""
        owner = self.owner if self.phase is ConnectionPhase.STANDBY else None
        return owner is not None and not owner.address and not self.last_error

    @property
    def awaits_refusal(self) -> bool:
        """Whether a standby has requests, which it will refuse with a reason."""
        return self.phase is ConnectionPhase.STANDBY and self.in_flight > 0

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
        """Return the error of a request that this broker cannot handle, None if it can."""
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
        return MessageTooLarge(
            f"a body of {length} bytes is longer than the {self.max_frame} bytes "
            f"that broker {self.address} takes",
            job_id=request.id if type(request) is PendingSubmit else None,
        )

    def _no_extension(self, extension: str) -> str:
        """Return the error text for a protocol extension that this broker lacks."""
        if self.features is not None:
            return f"broker {self.address} lacks the protocol extension {extension!r}"
        msg = f"broker {self.address} is a legacy one, without FEATURES: "
        if extension in {"call", "late-ack"}:
            return f"{msg}it answers no calls, so states and results of jobs cannot be read"
        feature = "many jobs in one message" if extension == "batch" else f"a {extension}"
        return (
            f"{msg}it does not know the protocol extension {extension!r}; submit jobs one by "
            f"one instead of {feature}"
        )

    def _unreadable(self, request: PendingRequest) -> str:
        """Return the error text for a message that a legacy broker cannot read."""
        subject = f"the body of job {request.id}" if type(request) is PendingSubmit else "the body"
        return (
            f"{subject} is not UTF-8, and broker {self.address} is a legacy one, without FEATURES, "
            "which may end when it reads that: use serializer='json', or app.send_raw() with the "
            "text that its workers know"
        )

    def assume_legacy(self) -> None:
        """Treat the broker as a legacy one that is connected, without an INFORM."""
        self.phase = ConnectionPhase.READY
        self.features = None
        self.unsent.clear()
        self.inform, self.inform_id = OutgoingMessage([]), ""

    def begin_inform(self, message_id: str, features: str) -> None:
        """Replace unsent messages by an INFORM."""
        self.phase = ConnectionPhase.INFORMING
        self.unsent.clear()
        self.inform_id = message_id
        self.inform = OutgoingMessage(Inform(message_id, "", self.role, features).frames())
        self.unsent.append(self.inform)

    def queue_heartbeat(self, message_id: str, unix: float) -> None:
        """Queue a HEARTBEAT."""
        if not self.ready and self.last_received >= self.busy_since:
            self.busy_since = self.last_sent
        self.unsent.append(OutgoingMessage(Heartbeat(message_id, f"{unix:.2f}").frames()))

    def assign(self, now: float) -> None:
        """Count one more request in flight."""
        if not self.in_flight:
            self.busy_since = now
        self.in_flight += 1

    @property
    def unready_reason(self) -> str:
        """The reason why it is not ready, as text."""
        if self.phase is ConnectionPhase.STANDBY and self.owner is not None:
            owner = self.owner.address
            owner_text = f"the owner is {owner}" if owner else "no owner is known"
            return f"a standby; {self.last_error or owner_text}"
        if not self.inform.sent or self.ready or self.last_error not in {"", LOST}:
            return self.last_error or "no connection"
        return "connected, and INFORM is not answered" if self.role != "client" else UNANSWERED

    def next_heartbeat(self, interval: float) -> float | None:
        """Return the time of the next HEARTBEAT or INFORM, None if none is needed."""
        if self.ready and self.features is None and self.role == "client":
            return None  # the published document requires none of a client; no answer is pending
        if self.ready:
            return self.last_sent + interval if self.in_flight else None
        if self.phase is ConnectionPhase.STANDBY:
            return self.last_sent + interval
        return self.inform.sent + interval if self.inform.sent else None

    def dead_at(self, heartbeat_timeout: float) -> float | None:
        """Return the time at which its silence means that it is dead, None if none is expected."""
        expected: float = self.in_flight
        if self.phase is not ConnectionPhase.READY:
            expected = self.inform.sent
            if self.phase is ConnectionPhase.STANDBY:  # since the first unanswered HEARTBEAT
                expected = self.busy_since > self.last_received
        return max(self.last_received, self.busy_since) + heartbeat_timeout if expected else None

    def is_unresponsive(
        self, request: PendingRequest, now: float, *, heartbeat: float, heartbeat_timeout: float
    ) -> bool:
        """Return whether the timeout of a request shows that the broker is dead.

        A broker answers most messages within a heartbeat, but some only when an event has happened,
        such as the end of a job. The broker is in doubt from the first of these on, and dead if
        nothing was received from it for the heartbeat timeout.
        """
        if self.last_received > request.sent:
            return False
        if type(request) is not PendingCall or request.name not in UNTIL_FORGOTTEN:
            return request.sent <= now - heartbeat
        if self.doubted_since < self.last_received:
            self.doubted_since = request.sent
        return self.doubted_since <= now - heartbeat_timeout


class InFlightRequests:
    """Requests in flight by message id, in the order in which they began.

    A request whose id is in flight already becomes a follower: it ends with the first one
    (single flight). If the first one times out, the oldest follower is the new leader.

    Args:
        connections: The connections by index.
    """

    def __init__(self, connections: Sequence[BrokerConnection]) -> None:
        self._connections = connections
        self._open: dict[str, PendingRequest] = {}
        #: Requests with an answer or an end that their callers have not been notified of.
        self.to_notify: list[PendingRequest] = []
        #: Time at which the first of them times out.
        self.next_deadline = NEVER
        #: Job -> the ``get`` whose answer a broker pushes; no CALL was sent for it.
        self.pushed: dict[str, PendingCall] = {}

    def add(self, request: PendingRequest) -> bool:
        """Add a request; return False if it follows one of the same id."""
        self.next_deadline = min(self.next_deadline, request.deadline)
        first = self._open.setdefault(request.id, request)
        if first is request:
            return True
        if isinstance(first, PendingSubmit) and isinstance(request, PendingSubmit):
            first.followers.append(request)
        return False

    def __len__(self) -> int:
        return len(self._open)

    def find(self, message_id: str) -> PendingRequest | None:
        """Return the request with a message id."""
        return self._open.get(message_id)

    def unassigned(self) -> list[PendingRequest]:
        """Return the requests that are not assigned to a broker."""
        return [request for request in self._open.values() if request.assigned_to == NO_BROKER]

    def assign(self, request: PendingRequest, connection: BrokerConnection, now: float) -> None:
        """Assign a request to a broker, and queue its message."""
        request.assigned_to = connection.index
        connection.assign(now)
        connection.unsent.append(request)

    def expect_push(self, call: PendingCall, connection: BrokerConnection, now: float) -> None:
        """Assign a ``get`` to a broker that pushes the result; if it is lost, the CALL is sent."""
        call.assigned_to = connection.index
        connection.assign(now)
        self.pushed[call.subject] = call

    def release(self, request: PendingRequest) -> None:
        """Unassign a request from its broker."""
        if request.assigned_to != NO_BROKER:
            self._connections[request.assigned_to].in_flight -= 1
            request.assigned_to = NO_BROKER

    def release_all(self, connection: BrokerConnection) -> None:
        """Unassign all requests from a broker, except those that no other may get."""
        connection.unsent.clear()
        for request in self._open.values():
            if request.assigned_to == connection.index:
                if request.sent and type(request) is PendingCall and request.name in _SENT_ONCE:
                    continue
                self.release(request)

    def end(self, request: PendingRequest, error: Exception | None) -> list[PendingCall]:
        """End a request and its followers; return the calls for results that now begin."""
        del self._open[request.id]
        self._end(request, error)
        if type(request) is not PendingSubmit or not (request.followers or request.result):
            return []
        for follower in request.followers:
            follower.refused, follower.sent = request.refused, request.sent
            follower.broker, follower.store = request.broker, request.store
            follower.confirmed = request.confirmed
            self._end(follower, error)
        calls = [self._end_submit(each, error) for each in (request, *request.followers)]
        return [call for call in calls if call is not None]

    def _end(self, request: PendingRequest, error: Exception | None) -> None:
        self.release(request)
        request.done = True
        request.error = error
        self.to_notify.append(request)
        if type(request) is PendingCall and self.pushed.get(request.subject) is request:
            del self.pushed[request.subject]

    def _end_submit(self, pending: PendingSubmit, error: Exception | None) -> PendingCall | None:
        """Return the call for the result of a job, None without one; an error ends it too."""
        call, pending.result = pending.result, None
        if call is None:
            return None
        call.submit = None
        if error is not None:
            self._end(call, error)
            return None
        call.target, call.store = pending.broker, pending.store
        return call

    def abandon_result(self, pending: PendingSubmit) -> None:
        """Stop waiting for the result of a job; the submission continues."""
        call, pending.result = pending.result, None
        if call is not None:
            call.submit = None
            self._end(call, None)

    def _end_by(self, pending: PendingSubmit, error: Exception) -> None:
        """End a submission with an error, and the call for its result."""
        self._end(pending, error)
        self._end_submit(pending, error)

    def overdue(self, now: float) -> list[PendingRequest]:
        """Return the requests whose deadline has passed."""
        return [request for request in self._open.values() if request.deadline <= now]

    def expire(
        self, now: float, *, heartbeat: float, heartbeat_timeout: float
    ) -> tuple[set[int], list[PendingRequest]]:
        """Time out the requests whose deadline has passed.

        Args:
            now: The time.
            heartbeat: Seconds within which a live broker answers a message.
            heartbeat_timeout: Seconds within which it sends some message.

        Returns:
            The brokers whose answer is overdue by that and that sent nothing else since, and the
            new leaders, which need a broker.
        """
        silent, new_leaders = set(), []
        for request in list(self._open.values()):
            if isinstance(request, PendingSubmit) and request.followers:
                self._expire_followers(request, now)
            if request.deadline > now:
                continue
            if request.assigned_to != NO_BROKER and isinstance(
                request, PendingSubmit | PendingCall
            ):
                connection = self._connections[request.assigned_to]
                if connection.is_unresponsive(
                    request, now, heartbeat=heartbeat, heartbeat_timeout=heartbeat_timeout
                ):
                    silent.add(connection.index)
            new_leaders += self._time_out(request)
        self.next_deadline = min(
            (request.deadline for request in self._with_followers()), default=NEVER
        )
        return silent, new_leaders

    def _with_followers(self) -> list[PendingRequest]:
        requests = list(self._open.values())
        submits = [request for request in requests if isinstance(request, PendingSubmit)]
        return requests + [follower for pending in submits for follower in pending.followers]

    def _expire_followers(self, pending: PendingSubmit, now: float) -> None:
        for follower in [follower for follower in pending.followers if follower.deadline <= now]:
            pending.followers.remove(follower)
            follower.sent = pending.sent
            self._end_by(follower, follower.failure(self._reason(pending)))

    def _time_out(self, request: PendingRequest) -> list[PendingRequest]:
        """Settle an overdue request; return the follower that is the new leader, if any."""
        error = request.failure(self._reason(request))
        if not isinstance(request, PendingSubmit) or not request.followers:
            self.end(request, error)
            return []
        leader, *leader.followers = request.followers
        leader.sent, leader.broker, leader.store = request.sent, request.broker, request.store
        if request.sent and not request.asks_for_result:
            leader.asks_for_result = False  # the receipt may belong to the earlier REQUEST
        self._open[request.id] = leader
        self._end_by(request, error)
        return [leader]

    def _reason(self, request: PendingRequest) -> str:
        if request.assigned_to != NO_BROKER:
            connection = self._connections[request.assigned_to]
            if connection.features is None and not request.sent:
                broker = f"{connection.address} ({connection.unready_reason})"
                return f"nothing could be sent to broker {broker} in time"
            return f"no answer from broker {connection.address} in time"
        reasons = ", ".join(f"{c.address} ({c.unready_reason})" for c in self._connections)
        if any(connection.owner is not None for connection in self._connections):
            return f"the owner of the store could not be reached in time: {reasons}"
        return f"no broker could be reached in time: {reasons}; {_HINT}"

    def abandon(self, reason: str) -> None:
        """Settle all requests as failed."""
        for request in list(self._open.values()):
            is_call = isinstance(request, PendingCall)
            self.end(request, BrokerUnavailable(reason) if is_call else request.failure(reason))


def add_rows(call: PendingCall, rows: object) -> None:
    """Add the rows of a ``get`` to its answers, except those that it has already."""
    if not isinstance(rows, list):
        raise ProtocolError("the answer to get is not a list", code="bad-body")
    for row in map(read_row, rows):
        if row[0] in call.ids:
            call.ids.discard(row[0])
            call.add(row)


def take_answer(call: PendingCall) -> Any:
    """Return the only answer of a call that has ended, or raise its error.

    Raises:
        EventMQError: The call failed.
        ProtocolError: The broker ended it without an answer.
    """
    if call.error is not None:
        raise call.error
    if not call.answers:
        raise ProtocolError(f"the broker answered {call.name} with nothing")
    return call.answers.popleft()


def read_answer(reply: Reply) -> Any:
    """Return a batch (head, bytes), the end (head, row), or the first answer, a map.

    Raises:
        ProtocolError: It is malformed.
    """
    outcome = reply.outcome or ""
    if outcome.startswith(PART):
        return PartHead.parse(outcome), reply.result
    answer = unpack(reply.result, "the answer to stream")
    if outcome.startswith(END):
        match answer:
            case [str(), str(), str(), bytes() | None]:
                return parse_end(outcome), answer
    elif isinstance(answer, dict) and {"delivery", "base", "replayable"} <= answer.keys():
        return answer
    raise ProtocolError("an answer to stream is malformed", code="bad-body")


def credit_frames(message_id: str, call: PendingCall) -> list[bytes]:
    """Return the CREDIT of a call, whose arguments have the number of parts that were read."""
    delivery, taken = call.arguments["delivery"], call.arguments["taken"]
    return Credit(message_id, call.id, str(delivery), str(taken)).frames()
