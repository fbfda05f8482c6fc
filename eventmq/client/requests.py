"""What a client has under way: requests, each pending until it has ended.

A `PendingSubmit` is one REQUEST, with one job or a batch, until its receipt; a `PendingCall` is one
CALL until its last answer; a `OneWayMessage` has ended when it was sent. A ``get`` with ``submit``
is one exchange: the REQUEST asks for the result of its job, and the CALL is sent only where that
does not come by itself. The runner calls ``notify`` in its thread when a request has news. Times
are on the monotonic clock of the caller. The functions at the end read the answers to ``get`` and
``stream``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import BrokerUnavailable, EventMQError, ProtocolError, ResultTimeout
from eventmq.wire.batches import pack, unpack
from eventmq.wire.commands import Call, Credit
from eventmq.wire.outcomes import read_row
from eventmq.wire.streams import END, PART, PartHead, parse_end

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from eventmq.wire.commands import Reply

__all__ = [
    "NEVER",
    "NO_BROKER",
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

#: No deadline.
NEVER = float("inf")

#: Index of the broker of a request that no broker has.
NO_BROKER = -1


def no_notify() -> None:
    """Do nothing: the request is not waited for."""


@dataclass(slots=True, eq=False)
class OutgoingMessage:
    """A message to a broker, before and after it was sent.

    Attributes:
        frames: From frame 0 on.
        sent: When it was last handed to a connection, 0.0 before.
        done: It has ended, or no longer needed: do not send it.
    """

    frames: list[bytes]
    sent: float = 0.0
    done: bool = False


@dataclass(slots=True, eq=False)
class PendingRequest(OutgoingMessage):
    """A message whose end its caller waits for.

    Attributes:
        id: The message id.
        deadline: When it fails.
        notify: Called when it has an answer or has ended.
        assigned_to: Index of the broker that has it, or `NO_BROKER`.
        error: Why it failed.
        begun: It was handed to the I/O loop.
    """

    id: str = ""
    deadline: float = NEVER
    notify: Callable[[], None] = no_notify
    assigned_to: int = NO_BROKER
    error: Exception | None = None
    begun: bool = False

    @property
    def last_deadline(self) -> float:
        """When it ends at the latest."""
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
        asks_for_result: The REQUEST asks the broker to push the result of its job, and so did
            those that were sent for an earlier submission of the same id.
        result: The ``get`` for the result of its job; None where only the receipt is waited for,
            and after the receipt.
        confirmed: False if it ended without a receipt: the broker gives none.
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
        name: Name of the operation, see `eventmq.wire.calls`.
        arguments: Its arguments; for ``get`` without the ids.
        ids: For ``get``: the jobs that are not answered yet.
        subject: The job id that error messages name.
        target: Index of the broker to ask, or `NO_BROKER` for any.
        store: Id of the store to ask while ``target`` is not connected, "" for none.
        answers: Answers that the caller has not read yet: rows of a ``get``, else results.
        limit: Maximum length of ``answers``, 0 for none; the oldest are dropped.
        dropped: Number of answers dropped.
        submit: For ``get``: the submission that comes before it, None for none and after the
            receipt; ``target`` and ``store`` then say which broker has the job.
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
        """When it ends at the latest: a submission has a deadline of its own."""
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
        what = f"job {self.subject}" if self.subject else f"{len(self.ids)} jobs"
        return ResultTimeout(f"{what} had not ended in time ({reason})", job_id=self.subject)


@dataclass(slots=True, eq=False)
class OneWayMessage(PendingRequest):
    """A message without a receipt, such as PUBLISH; ended when it was sent."""


class News(NamedTuple):
    """The next answers of calls that have begun: waited for until one has some, or has ended.

    Attributes:
        calls: The calls.
        timeout: Seconds to wait, None for no limit.
    """

    calls: Collection[PendingCall]
    timeout: float | None

    @property
    def ready(self) -> bool:
        """Whether there are some."""
        return any(call.answers or call.done for call in self.calls)

    def watch(self, notify: Callable[[], None]) -> None:
        """Call a function, from any thread, whenever there are some."""
        for call in self.calls:
            call.notify = notify


def add_rows(call: PendingCall, rows: object) -> None:
    """Add the rows of a ``get`` to its answers, without those that it has already."""
    if not isinstance(rows, list):
        raise ProtocolError("the answer to get is no list", code="bad-body")
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
        ProtocolError: It is none of them.
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
    """Return the CREDIT of a call, whose arguments say which parts were read."""
    delivery, taken = call.arguments["delivery"], call.arguments["taken"]
    return Credit(message_id, call.id, str(delivery), str(taken)).frames()
