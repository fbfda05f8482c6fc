"""The client's state machine: no socket, no thread, no clock.

Its runner (or a test, or the simulator) passes in requests, messages of brokers and the time; it
gives out messages through `ClientMachine.flush`, the requests to notify in ``to_notify`` and the
sockets to replace in ``reopen``. ``now`` is monotonic time in seconds.

Nothing is sent to a broker before it has acknowledged our INFORM: only then are its store, its
epoch and its maximum frame length known. Whenever a broker acknowledges an INFORM, all requests in
flight there are sent again: the broker refuses to do anything twice.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from eventmq.client.connection import LOST, BrokerConnection, ConnectionPhase
from eventmq.client.requests import (
    NEVER,
    NO_BROKER,
    OneWayMessage,
    OutgoingMessage,
    PendingCall,
    PendingRequest,
    PendingSubmit,
    add_rows,
    credit_frames,
    read_answer,
)
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
from eventmq.wire.outcomes import read_row, refusal
from eventmq.wire.results import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ClientMachine", "InFlightRequests"]

#: The end of the error text where no broker can be reached.
_HINT = 'start one with "eventmq broker"'

logger = logging.getLogger(__name__)

#: Operations that the broker keeps answering until it is told to ``forget`` them.
_UNTIL_FORGOTTEN = frozenset({"get", "stream", "subscribe"})

#: Seconds between two handshakes with a broker that refuses.
RETRY = 1.0


class ClientMachine:
    """The protocol of a client: one connection per broker; requests are resent until they end.

    Args:
        addresses: Addresses of the brokers; new jobs go to the first that is ready.
        session: Id of this run of the client.
        name: Its name, for people.
        heartbeat: Seconds between heartbeats while requests are in flight.
        heartbeat_timeout: Seconds of silence, while requests are in flight, after which a broker
            is dead.
        role: What it informs as: ``client`` or ``scheduler``.
        legacy: The brokers are routers of EventMQ 0.3: a client sends them no INFORM, which they
            would not answer, and takes each for ready. Schedulers they do answer.
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
        self.connections = [BrokerConnection(i, at, role=role) for i, at in enumerate(addresses)]
        #: Indexes of brokers whose socket is to be closed and opened anew.
        self.reopen: list[int] = []
        #: SCHEDULE and UNSCHEDULE from brokers, for a scheduler; None if it does not listen.
        self.schedule_requests: deque[Schedule] | None = None
        self._in_flight = InFlightRequests(self.connections)
        #: Requests with an answer or an end; the runner notifies their callers and clears it.
        self.to_notify = self._in_flight.to_notify
        self._features = Features(session=session, name=name).format()
        self._heartbeat = heartbeat
        self._heartbeat_timeout = heartbeat_timeout
        self._legacy = legacy and role == "client"
        self._ids = count(1)
        self._prefix = session[:8] or "client"

    # Requests

    def begin(self, request: PendingRequest, now: float) -> None:
        """Begin a request; it is resent until it has ended or its deadline passes."""
        if type(request) is PendingCall and request.submit is not None:
            request.submit.result = request
            request = request.submit
        if self._in_flight.add(request):
            self._assign(request, now)

    def forget(self, call: PendingCall) -> None:
        """End a call whose further answers are not needed.

        A call that is not in flight here is left alone: a forked child may drop one of its parent.
        """
        if call.done:
            return
        if call.submit is not None:
            self._in_flight.abandon_result(call.submit)
            return
        if self._in_flight.find(call.id) is not call:
            return
        connection = self.connections[call.assigned_to] if call.assigned_to != NO_BROKER else None
        self._in_flight.end(call, None)
        if connection is not None:
            self._forget_at(connection, call)

    def credit(self, call: PendingCall) -> None:
        """Tell the broker how many parts of a stream were read."""
        in_flight = self._in_flight.find(call.id) is call
        if in_flight and call.assigned_to != NO_BROKER and call.sent:
            self._credit_at(self.connections[call.assigned_to], call)

    def _credit_at(self, connection: BrokerConnection, call: PendingCall) -> None:
        frames = credit_frames(self.message_id(), call)
        connection.unsent.append(OutgoingMessage(frames))

    def keepalive(self, unix: float) -> PendingRequest:
        """Return a request that never ends: while it is open, heartbeats go both ways."""
        message_id = self.message_id()
        return PendingRequest(Heartbeat(message_id, f"{unix:.2f}").frames(), id=message_id)

    @property
    def busy(self) -> bool:
        """Whether requests are in flight."""
        return len(self._in_flight) > 0

    def queue_kbai(self) -> None:
        """Queue a KBAI to every broker that is ready."""
        for connection in self.connections:
            if connection.ready:
                connection.unsent.append(OutgoingMessage(Kbai(self.message_id()).frames()))

    def abandon(self, reason: str) -> None:
        """Settle all requests as failed, for a reason."""
        self._in_flight.abandon(reason)

    # Transport events

    def opened(self, index: int, now: float) -> None:
        """Handle a new socket to a broker: INFORM comes first on it."""
        connection = self.connections[index]
        connection.busy_since = now
        connection.disconnected = False
        connection.retry_at = 0.0
        self._inform(connection, now)

    def lost(self, index: int, now: float) -> None:
        """Handle the loss of a connection; the transport reconnects by itself."""
        connection = self.connections[index]
        connection.disconnected = True
        if not connection.retry_at:
            connection.last_error = LOST
        if self._legacy:
            self._release(connection, now)  # nothing else tells whether it is there
        else:
            self._inform(connection, now)

    def restored(self, index: int, now: float) -> None:
        """Handle a connection that came back: ask for a new socket.

        This one has the routing id of the connection that was lost. A broker that has not noticed
        the loss would not receive from it.
        """
        connection = self.connections[index]
        if connection.disconnected and index not in self.reopen:
            connection.inform = OutgoingMessage([])
            self.reopen.append(index)
        connection.disconnected = False

    # hot loop: python -m benchmarks enqueue_one
    def flush(self, index: int, send: Callable[[Sequence[bytes]], bool], now: float) -> bool:
        """Send what is queued for a broker; return False if the socket is full before the end.

        What gets no receipt has ended then: one-way messages, and jobs for legacy brokers.
        """
        connection = self.connections[index]
        unsent = connection.unsent
        while unsent:
            message = unsent[0]
            if not message.done:
                if not send(message.frames):
                    return False
                message.sent = connection.last_sent = now
                if type(message) is PendingSubmit:
                    message.broker, message.store = index, connection.store
                    if connection.features is None:
                        self._unconfirmed(connection, message, now)
                elif type(message) is OneWayMessage:
                    self._in_flight.end(message, None)
            unsent.popleft()
        return True

    def received(self, index: int, frames: Sequence[bytes], now: float) -> None:
        """Handle a message from a broker. Raises nothing: a bad message is logged and dropped."""
        connection = self.connections[index]
        connection.last_received = now
        try:
            command = decode(frames)
            if type(command) is Ack:
                self._on_ack(connection, command, now)
            elif type(command) is Reply:
                self._on_reply(command, now)
            elif type(command) is Error:
                self._on_error(connection, command, now)
            elif type(command) is Kbai:
                self._on_kbai(connection, now)
            elif type(command) is Disconnect:
                self._on_kbai(connection, now)
                connection.unsent.append(OutgoingMessage(Kbai(self.message_id()).frames()))
            elif type(command) is Schedule and self.schedule_requests is not None:
                self.schedule_requests.append(command)
        except (ProtocolError, ValueError, TypeError, AttributeError, LookupError) as error:
            logger.warning("message of broker %s dropped: %s", connection.address, error)

    # Time

    def tick(self, now: float, unix: float) -> None:
        """Do what is due at ``now``; ``unix`` is the Unix time, for HEARTBEAT."""
        if now >= self._in_flight.next_deadline:
            self._expire(now)
        for connection in self.connections:
            dead_at = connection.dead_at(self._heartbeat_timeout)
            if connection.retry_at and now >= connection.retry_at:
                connection.retry_at = 0.0
                self._drop(connection, now, connection.last_error)
                continue
            if dead_at is not None and now >= dead_at:
                silent = f"it was silent for {self._heartbeat_timeout:g} s"
                self._drop(
                    connection, now, silent if connection.ready else connection.unready_reason
                )
                continue
            heartbeat_at = connection.next_heartbeat(self._heartbeat)
            if heartbeat_at is None or now < heartbeat_at:
                continue
            if connection.ready:
                connection.last_sent = now
                connection.queue_heartbeat(self.message_id(), unix)
            else:
                self._inform(connection, now)

    def next_tick(self) -> float:
        """Return when `tick` has something to do next, or `NEVER`."""
        due = self._in_flight.next_deadline
        for connection in self.connections:
            for at in (
                connection.dead_at(self._heartbeat_timeout),
                connection.next_heartbeat(self._heartbeat),
                connection.retry_at or None,
            ):
                if at is not None and at < due:
                    due = at
        return due

    def message_id(self) -> str:
        """Return a new message id."""
        return f"{self._prefix}.{next(self._ids)}"

    def _expire(self, now: float) -> None:
        assigned = [
            (self.connections[request.assigned_to], request)
            for request in self._in_flight.overdue(now)
            if isinstance(request, PendingCall) and request.assigned_to != NO_BROKER
        ]
        silent, new_leaders = self._in_flight.expire(now, timeout=self._heartbeat)
        for connection, call in assigned:
            self._forget_at(connection, call)
        for index in silent:
            self._drop(self.connections[index], now, "it left a message unanswered")
        for leader in new_leaders:
            self._assign(leader, now)

    # Choice of a broker

    def _choose(self, request: PendingRequest) -> BrokerConnection | None:
        """Return the ready connection that a request may go to."""
        store = ""
        if type(request) is PendingCall and request.target != NO_BROKER:
            target = self.connections[request.target]
            if target.ready:
                return target
            store = request.store or target.store
        elif type(request) is PendingSubmit and request.sent:
            store = request.store
        for connection in self.connections:
            if connection.ready and store in {"", connection.store}:
                return connection
        return None

    def _assign(self, request: PendingRequest, now: float) -> None:
        """Assign a request to a broker, or leave it until one is ready."""
        connection = self._choose(request)
        if connection is None:
            return
        if type(request) is PendingCall:
            request.encode()
        error = connection.incompatibility(request)
        if error is not None:
            self._in_flight.end(request, error)
        else:
            self._in_flight.assign(request, connection, now)

    def _assign_all(self, now: float) -> None:
        for request in self._in_flight.unassigned():
            self._assign(request, now)

    def _release(self, connection: BrokerConnection, now: float) -> None:
        """Take all requests from a broker that is not ready, and assign them to others."""
        connection.phase = ConnectionPhase.INFORMING
        self._in_flight.release_all(connection)
        self._assign_all(now)

    def _inform(self, connection: BrokerConnection, now: float) -> None:
        self._release(connection, now)
        if self._legacy:
            connection.assume_legacy()
            self._assign_all(now)
            return
        connection.begin_inform(self.message_id(), self._features)

    def _unconfirmed(
        self, connection: BrokerConnection, pending: PendingSubmit, now: float
    ) -> None:
        """Settle a job that was sent to a broker without FEATURES, from which no receipt comes."""
        pending.confirmed = False
        self._on_receipt(pending, None, now)
        if not connection.warned:
            connection.warned = True
            logger.warning(
                "broker %s is a legacy one, without FEATURES: it gives no receipts, so a job "
                "counts as submitted when it was sent, may be lost, and its result cannot be read",
                connection.address,
            )

    def refused(self, index: int, last_error: str, now: float) -> None:
        """Handle a failed handshake; its reason goes into the errors of requests."""
        connection = self.connections[index]
        connection.last_error = last_error
        connection.retry_at = connection.retry_at or now + RETRY

    def _drop(self, connection: BrokerConnection, now: float, last_error: str) -> None:
        """Replace a connection: the runner opens a new socket."""
        connection.last_error = last_error
        connection.inform = OutgoingMessage([])
        self._release(connection, now)
        if connection.index not in self.reopen:
            self.reopen.append(connection.index)

    def _forget_at(self, connection: BrokerConnection, call: PendingCall) -> None:
        if call.name in _UNTIL_FORGOTTEN and call.sent and connection.ready:
            if call.name == "stream":
                self._credit_at(connection, call)
            arguments = pack({"call": call.id})
            frames = Call(self.message_id(), "forget", arguments).frames()
            connection.unsent.append(OutgoingMessage(frames))

    # Messages from brokers

    def _on_ack(self, connection: BrokerConnection, ack: Ack, now: float) -> None:
        pending = self._in_flight.find(ack.acked)
        if type(pending) is PendingSubmit:
            if pending.count and ack.extra:
                pending.refused = decode_exceptions(ack.extra)
            pushed = connection if connection.ready and not ack.extra else None
            self._on_receipt(pending, pushed, now)
        elif ack.acked == connection.inform_id and not connection.ready:
            connection.features = Features.parse(str(ack.extra, "utf-8")) if ack.extra else None
            connection.phase = ConnectionPhase.READY
            connection.disconnected = False
            connection.last_error = ""
            self._assign_all(now)

    def _on_kbai(self, connection: BrokerConnection, now: float) -> None:
        """Leave a broker that is shutting down; ask it again after an interval."""
        connection.last_error = "it is shutting down"
        self._release(connection, now)
        connection.inform.sent = now

    def _on_receipt(
        self, pending: PendingSubmit, connection: BrokerConnection | None, now: float
    ) -> None:
        """Settle a submission, and begin the calls for its result.

        Args:
            pending: The submission.
            connection: Where its result will be pushed if it was asked for, None where the broker
                pushes none.
            now: The time.
        """
        pushed = connection if pending.asks_for_result else None
        for call in self._in_flight.end(pending, None):
            self._in_flight.add(call)
            if pushed is not None and call.subject not in self._in_flight.pushed:
                self._in_flight.expect_push(call, pushed, now)
            else:  # it comes not at all, or once and another call has it
                self._assign(call, now)

    def _on_reply(self, reply: Reply, now: float) -> None:
        if reply.outcome == ENDED:
            self._on_pushed_result(reply, now)
            return
        call = self._in_flight.find(reply.request or "")
        if type(call) is not PendingCall:
            return
        more = reply.outcome == "part"
        try:
            if call.name == "stream":
                call.add(read_answer(reply))
                more = True
            else:
                answer = unpack(reply.result, f"the answer to {call.name}")
                if call.name == "get":
                    add_rows(call, answer)
                    more = more and bool(call.ids)
                else:
                    call.add(answer)
        except ProtocolError as error:
            self._in_flight.end(call, error)
            return
        if more:
            self.to_notify.append(call)
        else:
            self._in_flight.end(call, None)

    def _on_pushed_result(self, reply: Reply, now: float) -> None:
        """Handle a pushed result, which is also the receipt of its job."""
        row = read_row(unpack(reply.result, "the end of a job"))
        pending = self._in_flight.find(row[0])
        if type(pending) is PendingSubmit and pending.sent:
            self._on_receipt(pending, self.connections[pending.broker], now)
        call = self._in_flight.pushed.get(row[0])
        if call is not None:
            add_rows(call, [row])
            self._in_flight.end(call, None)

    def _on_error(self, connection: BrokerConnection, error: Error, now: float) -> None:
        if error.code == "inform-again":
            if connection.ready:
                self._inform(connection, now)
            return
        if error.request in {"", connection.inform_id} and not connection.ready:
            connection.last_error = error.text
            return
        if error.code == "closing":
            self._on_kbai(connection, now)
            return
        request = self._in_flight.find(error.request)
        if request is not None:
            subject = request.subject if type(request) is PendingCall else request.id
            self._in_flight.end(request, refusal(error.code, error.text, subject))


class InFlightRequests:
    """Requests in flight by message id, in the order in which they began.

    A request whose id is in flight already becomes a follower: it ends with the first
    (single flight). If the first times out, the oldest follower is the new leader.

    Args:
        connections: By index, as requests name them.
    """

    def __init__(self, connections: Sequence[BrokerConnection]) -> None:
        self._connections = connections
        self._open: dict[str, PendingRequest] = {}
        #: Requests with an answer or an end that their callers have not been notified of.
        self.to_notify: list[PendingRequest] = []
        #: When the first of them times out.
        self.next_deadline = NEVER
        #: Job -> the ``get`` whose answer a broker pushes: no CALL was sent for it.
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
        """Return the requests that no broker has."""
        return [request for request in self._open.values() if request.assigned_to == NO_BROKER]

    def assign(self, request: PendingRequest, connection: BrokerConnection, now: float) -> None:
        """Assign a request to a broker, and queue its message."""
        request.assigned_to = connection.index
        connection.assign(now)
        connection.unsent.append(request)

    def expect_push(self, call: PendingCall, connection: BrokerConnection, now: float) -> None:
        """Assign a ``get`` to a broker that pushes the result; if it gets lost, it is asked for."""
        call.assigned_to = connection.index
        connection.assign(now)
        self.pushed[call.subject] = call

    def release(self, request: PendingRequest) -> None:
        """Take a request from its broker."""
        if request.assigned_to != NO_BROKER:
            self._connections[request.assigned_to].in_flight -= 1
            request.assigned_to = NO_BROKER

    def release_all(self, connection: BrokerConnection) -> None:
        """Take all requests from a broker."""
        connection.unsent.clear()
        for request in self._open.values():
            if request.assigned_to == connection.index:
                self.release(request)

    def end(self, request: PendingRequest, error: Exception | None) -> list[PendingCall]:
        """End a request, with its followers; return the calls for results that now begin."""
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
        """Return the call for the result of a job, None without one; with an error it ends too."""
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
        """Ask for the result of a job no more; the submission goes on."""
        call, pending.result = pending.result, None
        if call is not None:
            call.submit = None
            self._end(call, None)

    def _end_by(self, pending: PendingSubmit, error: Exception) -> None:
        """End a submission by an error, with the call for its result."""
        self._end(pending, error)
        self._end_submit(pending, error)

    def overdue(self, now: float) -> list[PendingRequest]:
        """Return the requests whose deadline has passed."""
        return [request for request in self._open.values() if request.deadline <= now]

    def expire(self, now: float, *, timeout: float) -> tuple[set[int], list[PendingRequest]]:
        """Time out the requests whose deadline has passed.

        Args:
            now: The time.
            timeout: Seconds in which a live broker answers a message.

        Returns:
            The brokers that left a message unanswered for so long and sent nothing else since,
            and the new leaders, which need a broker.
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
                last_received = self._connections[request.assigned_to].last_received
                if last_received <= request.sent <= now - timeout:
                    silent.add(request.assigned_to)
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
            leader.asks_for_result = False  # the receipt may be that of the earlier REQUEST
        self._open[request.id] = leader
        self._end_by(request, error)
        return [leader]

    def _reason(self, request: PendingRequest) -> str:
        if request.assigned_to != NO_BROKER:
            connection = self._connections[request.assigned_to]
            if connection.features is None and not request.sent:
                what = f"{connection.address} ({connection.unready_reason})"
                return f"nothing could be sent to broker {what} in time"
            return f"no answer from broker {connection.address} in time"
        reasons = (f"{c.address} ({c.unready_reason})" for c in self._connections)
        return f"no broker could be reached in time: {', '.join(reasons)}; {_HINT}"

    def abandon(self, reason: str) -> None:
        """Settle all requests as failed."""
        for request in list(self._open.values()):
            is_call = isinstance(request, PendingCall)
            error = BrokerUnavailable(reason) if is_call else request.failure(reason)
            self.end(request, error)
