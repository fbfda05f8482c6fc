"""The client's state machine: no socket, no thread, no clock.

Its runner (or a test, or the simulator) tells it what callers want, what came from the brokers
and what time it is; it says through `ClientMachine.flush` what to send, in ``settled`` whom to
wake and in ``reopen`` which sockets to replace. ``now`` is monotonic time in seconds.

Nothing is sent to a broker before it has acknowledged our INFORM: only then are its store, its
epoch and its longest frame known. Whenever a broker acknowledges an INFORM, all that still waits
for it is sent again: the broker refuses to do anything twice.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.connection import LOST, Connection, Phase
from eventmq.client.outcomes import credit_frames, read_answer, read_row, refusal, take_rows
from eventmq.client.requests import NEVER, NOWHERE, Errand, Notice, Outgoing, Parcel, Question
from eventmq.client.templates import BOTH, END, RECEIPT
from eventmq.errors import BrokerUnavailable, ProtocolError
from eventmq.wire.batches import decode_exceptions, pack, unpack
from eventmq.wire.commands import (
    Ack,
    Call,
    Disconnect,
    Error,
    Heartbeat,
    Kbai,
    Reply,
    Schedule,
    decode,
)
from eventmq.wire.features import Features
from eventmq.wire.results import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ClientMachine", "Habit", "Ledger", "Promises"]


#: What to do where there is no broker.
_HINT = 'start one with "eventmq broker"'


class Ledger:
    """Open errands by message id, in the order in which they came.

    Args:
        connections: By index, as errands name them.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections
        self._open: dict[str, Errand] = {}
        #: Errands with something new for whoever waits for them.
        self.settled: list[Errand] = []
        #: When the first of them is to be given up.
        self.next_deadline = NEVER

    def add(self, errand: Errand) -> bool:
        """Note a new errand; return False if an open one of the same id stands for it."""
        self.next_deadline = min(self.next_deadline, errand.deadline)
        first = self._open.setdefault(errand.id, errand)
        if first is errand:
            return True
        if isinstance(first, Parcel) and isinstance(errand, Parcel):
            first.twins.append(errand)
        return False

    def __len__(self) -> int:
        return len(self._open)

    def find(self, message_id: str) -> Errand | None:
        """Return an open errand."""
        return self._open.get(message_id)

    def homeless(self) -> list[Errand]:
        """Return the errands that no broker has."""
        return [errand for errand in self._open.values() if errand.at == NOWHERE]

    def enter(self, errand: Errand, connection: Connection, now: float) -> None:
        """Give an errand to a broker."""
        errand.at = connection.index
        connection.enter(now)
        connection.unsent.append(errand)

    def hold(self, question: Question, connection: Connection, now: float) -> None:
        """Let a question wait for what a broker says without being asked, or has said already."""
        question.at = connection.index
        connection.enter(now)
        if question.answers:
            self.settle(question, None)

    def leave(self, errand: Errand) -> None:
        """Take an errand from its broker."""
        if errand.at != NOWHERE:
            self._connections[errand.at].waiting -= 1
            errand.at = NOWHERE

    def evict(self, connection: Connection) -> None:
        """Take everything from a broker."""
        connection.unsent.clear()
        for errand in self._open.values():
            if errand.at == connection.index:
                self.leave(errand)

    def settle(self, errand: Errand, error: Exception | None) -> None:
        """End an errand, with its twins."""
        del self._open[errand.id]
        self._end(errand, error)
        if isinstance(errand, Parcel):
            for twin in errand.twins:
                twin.refused, twin.sent = errand.refused, errand.sent
                twin.broker, twin.store = errand.broker, errand.store
                twin.confirmed = errand.confirmed
                self._end(twin, error)

    def _end(self, errand: Errand, error: Exception | None) -> None:
        self.leave(errand)
        errand.over = True
        errand.error = error
        self.settled.append(errand)

    def overdue(self, now: float) -> list[Errand]:
        """Return the open errands whose deadline has passed."""
        return [errand for errand in self._open.values() if errand.deadline <= now]

    def expire(self, now: float, *, patience: float) -> tuple[set[int], list[Errand]]:
        """Give up what is late.

        Args:
            now: The time.
            patience: Seconds in which a living broker has answered a message.

        Returns:
            The brokers that left a message unanswered for so long and said nothing else since,
            and errands that now stand for a late one of the same id and need a broker.
        """
        silent, heirs = set(), []
        for errand in list(self._open.values()):
            if isinstance(errand, Parcel) and errand.twins:
                self._expire_twins(errand, now)
            if errand.deadline > now:
                continue
            if errand.at != NOWHERE and isinstance(errand, Parcel | Question):
                heard = self._connections[errand.at].heard
                if heard <= errand.sent <= now - patience:
                    silent.add(errand.at)
            heirs += self._give_up(errand)
        self.next_deadline = min((e.deadline for e in self._everything()), default=NEVER)
        return silent, heirs

    def _everything(self) -> list[Errand]:
        found = list(self._open.values())
        return found + [t for e in found if isinstance(e, Parcel) for t in e.twins]

    def _expire_twins(self, parcel: Parcel, now: float) -> None:
        for twin in [twin for twin in parcel.twins if twin.deadline <= now]:
            parcel.twins.remove(twin)
            twin.sent = parcel.sent
            self._end(twin, twin.failure(self._reason(parcel)))

    def _give_up(self, errand: Errand) -> list[Errand]:
        """Settle a late errand; return the twin that takes its place, if there is one."""
        error = errand.failure(self._reason(errand))
        if not isinstance(errand, Parcel) or not errand.twins:
            self.settle(errand, error)
            return []
        heir, *heir.twins = errand.twins
        heir.sent, heir.broker, heir.store = errand.sent, errand.broker, errand.store
        self._open[errand.id] = heir
        self._end(errand, error)
        return [heir]

    def _reason(self, errand: Errand) -> str:
        if errand.at != NOWHERE:
            connection = self._connections[errand.at]
            if connection.features is None and not errand.sent:
                what = f"{connection.address} ({connection.absence})"
                return f"nothing could be sent to broker {what} in time"
            return f"no answer from broker {connection.address} in time"
        said = (f"{c.address} ({c.absence})" for c in self._connections)
        return f"no broker could be reached in time: {', '.join(said)}; {_HINT}"

    def abandon(self, reason: str) -> None:
        """Give everything up."""
        for errand in list(self._open.values()):
            asked = isinstance(errand, Question)
            error = BrokerUnavailable(reason) if asked else errand.failure(reason)
            self.settle(errand, error)


#: Promises that nobody has asked for yet; then the oldest are forgotten.
MOST = 100

#: Jobs in a row that were waited for at once, after which the next one is expected to be.
ENOUGH = 2

#: Seconds after its receipt in which somebody waits for a job who had nothing else to do: the
#: receipt need not come before the end then.
PROMPT = 0.001


class Habit:
    """Guesses whether the next job is waited for at once, as the last ones were.

    Threads may share it: a wrong guess costs a message, or 10 ms, nothing else.

    Args:
        monotonic: Reads the time.
    """

    __slots__ = ("_last", "_monotonic", "_prompt", "_streak", "_submitted")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last = ""
        self._submitted = 0.0
        #: How many jobs in a row were waited for, and by whom had nothing else to do first.
        self._streak = self._prompt = 0

    def begins(self, job_id: str) -> str:
        """Note that a job is submitted; return what should be asked for with it."""
        if self._last:
            self._streak = self._prompt = 0
        self._last = job_id
        if self._streak < ENOUGH:
            return RECEIPT
        return END if self._prompt >= ENOUGH else BOTH

    def submitted(self) -> None:
        """Note that the caller goes on: it has the receipt."""
        self._submitted = self._monotonic()

    def waits(self, job_id: str) -> None:
        """Note that somebody waits for a job."""
        if job_id == self._last:
            self._last = ""
            self._streak += 1
            prompt = self._monotonic() - self._submitted < PROMPT
            self._prompt = self._prompt + 1 if prompt else 0


class _Promise(NamedTuple):
    broker: int
    since: float
    row: list[Any] | None = None


class Promises:
    """What brokers have promised.

    Args:
        patience: Seconds in which somebody has to ask. A broker that hears nothing of a client
            for longer may forget it, with what it promised.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        #: Job -> what nobody has asked for.
        self._idle: dict[str, _Promise] = {}
        #: Job -> broker, and who waits for it.
        self._awaited: dict[str, tuple[int, Question]] = {}

    def made(self, job_id: str, broker: int, now: float) -> None:
        """Note that a broker will send the end of a job."""
        if len(self._idle) >= MOST:
            del self._idle[next(iter(self._idle))]
        self._idle[job_id] = _Promise(broker, now)

    def await_(self, question: Question, broker: int, now: float) -> bool:
        """Let a ``get`` of one job wait for a promise; say whether there is one.

        A row that is here already is among its answers then.
        """
        if question.name != "get" or len(question.ids) != 1:
            return False
        (job_id,) = question.ids
        promise = self._idle.pop(job_id, None)
        if promise is None or promise.broker != broker:
            return False
        if promise.row is not None:
            question.ids.clear()
            question.add(promise.row)
        elif now - promise.since > self._patience:
            return False
        else:
            self._awaited[job_id] = (broker, question)
        return True

    def kept(self, row: list[Any]) -> Question | None:
        """Take the end of a job; return who waits for it."""
        job_id: str = row[0]
        _, question = self._awaited.pop(job_id, (0, None))
        if question is not None and not question.over:
            return question
        promise = self._idle.get(job_id)
        if promise is not None:
            self._idle[job_id] = promise._replace(row=row)
        return None

    def broken(self, broker: int) -> None:
        """Forget what a broker has promised: it is away, or was."""
        self._idle = {i: promise for i, promise in self._idle.items() if promise.broker != broker}
        self._awaited = {i: each for i, each in self._awaited.items() if each[0] != broker}


logger = logging.getLogger(__name__)

#: Operations that the broker keeps answering until it is told to ``forget`` them.
_LASTING = frozenset({"get", "stream", "subscribe"})

#: Seconds between two handshakes with a broker that refuses.
RETRY = 1.0


class ClientMachine:
    """Submits, asks and keeps at it, over one connection per broker.

    Args:
        addresses: Of the brokers; new jobs go to the first that is ready.
        session: Id of this run of the client.
        name: What people call it.
        heartbeat: Seconds between signs of life while something is waited for.
        heartbeat_timeout: A broker that was silent for so long, while something is waited for, is
            dead.
        role: What it informs as: ``client`` or ``scheduler``.
        legacy: The brokers are routers of EventMQ 0.3: a client sends them no INFORM, which they
            would not answer, and takes each for there. Schedulers they do answer.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        session: str,
        name: str = "",
        heartbeat: float = 3.0,
        heartbeat_timeout: float = 15.0,
        role: str = "client",
        legacy: bool = False,
    ) -> None:
        self.connections = [Connection(i, at, role=role) for i, at in enumerate(addresses)]
        #: Indexes of brokers whose socket is to be closed and opened anew.
        self.reopen: list[int] = []
        #: What brokers asked us as a scheduler to do; None: nobody reads it.
        self.asked: deque[Schedule] | None = None
        self._ledger = Ledger(self.connections)
        #: Errands with something new; the runner wakes whoever waits and clears the list.
        self.settled = self._ledger.settled
        self._features = Features(session=session, name=name).format()
        self._heartbeat = heartbeat
        self._heartbeat_timeout = heartbeat_timeout
        self._promises = Promises(heartbeat)
        self._legacy = legacy and role == "client"
        self._ids = count(1)
        self._prefix = session[:8] or "client"

    # What callers want

    def begin(self, errand: Errand, now: float) -> None:
        """Keep at an errand until it is settled or its deadline passes."""
        if self._ledger.add(errand):
            self._place(errand, now)

    def forget(self, question: Question) -> None:
        """End a question whose answers nobody wants any more."""
        if question.over:
            return
        connection = self.connections[question.at] if question.at != NOWHERE else None
        self._ledger.settle(question, None)
        if connection is not None:
            self._forget_at(connection, question)

    def credit(self, question: Question) -> None:
        """Tell the broker how many parts of a stream were taken."""
        if question.at != NOWHERE and question.sent:
            self._credit_at(self.connections[question.at], question)

    def _credit_at(self, connection: Connection, question: Question) -> None:
        frames = credit_frames(self.message_id(), question)
        connection.unsent.append(Outgoing(frames))

    def presence(self, unix: float) -> Errand:
        """Return an errand without end: while it is open, a broker hears of us and is heard."""
        message_id = self.message_id()
        return Errand(Heartbeat(message_id, f"{unix:.2f}").frames(), id=message_id)

    @property
    def busy(self) -> bool:
        """Whether something is not settled yet."""
        return len(self._ledger) > 0

    def say_goodbye(self) -> None:
        """Queue a KBAI to every broker that is ready."""
        for connection in self.connections:
            if connection.ready:
                connection.unsent.append(Outgoing(Kbai(self.message_id()).frames()))

    def abandon(self, reason: str) -> None:
        """Settle everything as failed for a reason."""
        self._ledger.abandon(reason)

    # What the transport says

    def opened(self, index: int, now: float) -> None:
        """Note that a broker has a new socket: INFORM comes first on it."""
        connection = self.connections[index]
        connection.since = now
        connection.broken = False
        connection.retry_at = 0.0
        self._inform(connection, now)

    def lost(self, index: int, now: float) -> None:
        """Note that the transport lost its connection; it reconnects by itself."""
        connection = self.connections[index]
        connection.broken = True
        if not connection.retry_at:
            connection.trouble = LOST
        if self._legacy:
            self._leave(connection, now)  # nothing else tells whether it is there
        else:
            self._inform(connection, now)

    def restored(self, index: int, now: float) -> None:
        """Note that the transport has a connection again: a new socket is wanted.

        This one has the routing id of the connection that was lost. A broker that has not noticed
        the loss would not hear it.
        """
        connection = self.connections[index]
        if connection.broken and index not in self.reopen:
            connection.inform = Outgoing([])
            self.reopen.append(index)
        connection.broken = False

    # hot loop: benchmarks/enqueue_one.py
    def flush(self, index: int, send: Callable[[Sequence[bytes]], bool], now: float) -> bool:
        """Send what is queued for a broker; return False if the socket took not all of it."""
        connection = self.connections[index]
        unsent = connection.unsent
        while unsent:
            message = unsent[0]
            if not message.over:
                if not send(message.frames):
                    return False
                message.sent = connection.said = now
                if type(message) is Parcel:
                    message.broker, message.store = index, connection.store
                    if connection.features is None:
                        self._unconfirmed(connection, message)
                elif type(message) is Notice:
                    self._ledger.settle(message, None)
            unsent.popleft()
        return True

    def received(self, index: int, frames: Sequence[bytes], now: float) -> None:
        """Take a message from a broker. Raises nothing: a bad message is logged and dropped."""
        connection = self.connections[index]
        connection.heard = now
        try:
            command = decode(frames)
            if type(command) is Ack:
                self._on_ack(connection, command, now)
            elif type(command) is Reply:
                self._on_reply(command)
            elif type(command) is Error:
                self._on_error(connection, command, now)
            elif type(command) is Kbai:
                self._on_kbai(connection, now)
            elif type(command) is Disconnect:
                self._on_kbai(connection, now)
                connection.unsent.append(Outgoing(Kbai(self.message_id()).frames()))
            elif type(command) is Schedule and self.asked is not None:
                self.asked.append(command)
        except (ProtocolError, ValueError, TypeError, AttributeError, LookupError) as error:
            logger.warning("message of broker %s dropped: %s", connection.address, error)

    # Time

    def tick(self, now: float, unix: float) -> None:
        """Do what is due; ``unix`` is the Unix time, for HEARTBEAT."""
        if now >= self._ledger.next_deadline:
            self._expire(now)
        for connection in self.connections:
            dead_at = connection.dead_at(self._heartbeat_timeout)
            if connection.retry_at and now >= connection.retry_at:
                connection.retry_at = 0.0
                self._drop(connection, now, connection.trouble)
                continue
            if dead_at is not None and now >= dead_at:
                silent = f"it was silent for {self._heartbeat_timeout:g} s"
                self._drop(connection, now, silent if connection.ready else connection.absence)
                continue
            beat_at = connection.next_beat(self._heartbeat)
            if beat_at is None or now < beat_at:
                continue
            if connection.ready:
                connection.said = now
                connection.beat(self.message_id(), unix)
            else:
                self._inform(connection, now)

    def next_tick(self) -> float:
        """Return when `tick` has something to do, `NEVER` if nothing waits for time."""
        due = self._ledger.next_deadline
        for connection in self.connections:
            for at in (
                connection.dead_at(self._heartbeat_timeout),
                connection.next_beat(self._heartbeat),
                connection.retry_at or None,
            ):
                if at is not None and at < due:
                    due = at
        return due

    def message_id(self) -> str:
        """Return a new message id."""
        return f"{self._prefix}.{next(self._ids)}"

    def _expire(self, now: float) -> None:
        late = [q for q in self._ledger.overdue(now) if isinstance(q, Question)]
        asked = [(self.connections[q.at], q) for q in late if q.at != NOWHERE]
        silent, heirs = self._ledger.expire(now, patience=self._heartbeat)
        for connection, question in asked:
            self._forget_at(connection, question)
        for index in silent:
            self._drop(self.connections[index], now, "it left a message unanswered")
        for heir in heirs:
            self._place(heir, now)

    # Where errands go

    def _choose(self, errand: Errand) -> Connection | None:
        """Return the ready connection that an errand may go to."""
        store = ""
        if type(errand) is Question and errand.home != NOWHERE:
            home = self.connections[errand.home]
            if home.ready:
                return home
            store = errand.store or home.store
        elif type(errand) is Parcel and errand.sent:
            store = errand.store
        for connection in self.connections:
            if connection.ready and store in {"", connection.store}:
                return connection
        return None

    def _place(self, errand: Errand, now: float) -> None:
        """Give an errand to a broker, or leave it until one is ready."""
        connection = self._choose(errand)
        if connection is None:
            return
        if type(errand) is Question:
            if self._promises.await_(errand, connection.index, now):
                self._ledger.hold(errand, connection, now)
                return
            errand.write()
        error = connection.obstacle(errand)
        if error is not None:
            self._ledger.settle(errand, error)
        else:
            self._ledger.enter(errand, connection, now)

    def _place_all(self, now: float) -> None:
        for errand in self._ledger.homeless():
            self._place(errand, now)

    def _leave(self, connection: Connection, now: float) -> None:
        """Take everything from a broker that is away, and offer it to the others."""
        connection.phase = Phase.INFORMING
        self._ledger.evict(connection)
        self._promises.broken(connection.index)
        self._place_all(now)

    def _inform(self, connection: Connection, now: float) -> None:
        self._leave(connection, now)
        if self._legacy:
            connection.assume()
            self._place_all(now)
            return
        connection.begin_inform(self.message_id(), self._features)

    def _unconfirmed(self, connection: Connection, parcel: Parcel) -> None:
        """Settle a job that was sent to a broker without FEATURES, from which no receipt comes."""
        parcel.confirmed = False
        self._ledger.settle(parcel, None)
        if not connection.warned:
            connection.warned = True
            logger.warning(
                "broker %s is a legacy one, without FEATURES: it gives no receipts, so a job "
                "counts as submitted when it was sent, may be lost, and its result cannot be read",
                connection.address,
            )

    def refused(self, index: int, trouble: str, now: float) -> None:
        """Note that a handshake failed, and why: for the error of what waits for the broker."""
        connection = self.connections[index]
        connection.trouble = trouble
        connection.retry_at = connection.retry_at or now + RETRY

    def _drop(self, connection: Connection, now: float, trouble: str) -> None:
        """Give a connection up; the runner opens a new one."""
        connection.trouble = trouble
        connection.inform = Outgoing([])
        self._leave(connection, now)
        if connection.index not in self.reopen:
            self.reopen.append(connection.index)

    def _forget_at(self, connection: Connection, question: Question) -> None:
        if question.name in _LASTING and question.sent and connection.ready:
            if question.name == "stream":
                self._credit_at(connection, question)
            arguments = pack({"call": question.id})
            frames = Call(self.message_id(), "forget", arguments).frames()
            connection.unsent.append(Outgoing(frames))

    # What brokers say

    def _on_ack(self, connection: Connection, ack: Ack, now: float) -> None:
        parcel = self._ledger.find(ack.acked)
        if type(parcel) is Parcel:
            if parcel.count and ack.extra:
                parcel.refused = decode_exceptions(ack.extra)
            elif parcel.asks and not ack.extra and connection.speaks("ended"):
                self._promises.made(parcel.id, connection.index, now)
            self._ledger.settle(parcel, None)
        elif ack.acked == connection.inform_id and not connection.ready:
            connection.features = Features.parse(str(ack.extra, "utf-8")) if ack.extra else None
            connection.phase = Phase.READY
            connection.broken = False
            connection.trouble = ""
            self._place_all(now)

    def _on_kbai(self, connection: Connection, now: float) -> None:
        """Leave a broker that is shutting down; ask it again after an interval."""
        connection.trouble = "it is shutting down"
        self._leave(connection, now)
        connection.inform.sent = now

    def _on_reply(self, reply: Reply) -> None:
        if reply.outcome == ENDED:
            self._on_end(reply)
            return
        question = self._ledger.find(reply.request or "")
        if type(question) is not Question:
            return
        lasts = reply.outcome == "part"
        try:
            if question.name == "stream":
                question.add(read_answer(reply))
                lasts = True
            else:
                answer = unpack(reply.result, f"the answer to {question.name}")
                if question.name == "get":
                    take_rows(question, answer)
                    lasts = lasts and bool(question.ids)
                else:
                    question.add(answer)
        except ProtocolError as error:
            self._ledger.settle(question, error)
            return
        if lasts:
            self.settled.append(question)
        else:
            self._ledger.settle(question, None)

    def _on_end(self, reply: Reply) -> None:
        """Take the end of a job that was asked for with its REQUEST, and is its receipt, too."""
        row = read_row(unpack(reply.result, "the end of a job"))
        parcel = self._ledger.find(row[0])
        if type(parcel) is Parcel and parcel.at != NOWHERE:
            self._promises.made(parcel.id, parcel.at, 0.0)
            self._ledger.settle(parcel, None)
        question = self._promises.kept(row)
        if question is not None:
            take_rows(question, [row])
            self._ledger.settle(question, None)

    def _on_error(self, connection: Connection, error: Error, now: float) -> None:
        if error.code == "inform-again":
            if connection.ready:
                self._inform(connection, now)
            return
        if error.request in {"", connection.inform_id} and not connection.ready:
            connection.trouble = error.text
            return
        if error.code == "closing":
            self._on_kbai(connection, now)
            return
        errand = self._ledger.find(error.request)
        if errand is not None:
            subject = errand.subject if type(errand) is Question else errand.id
            self._ledger.settle(errand, refusal(error.code, error.text, subject))
