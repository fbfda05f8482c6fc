"""The client's state machine: no socket, no thread, no clock.

Its runner (or a test, or the simulator) passes in requests, messages of brokers and the time; it
outputs messages through `ClientMachine.flush`, the requests to notify in ``to_notify`` and the
sockets to replace in ``reopen``. ``now`` is monotonic time in seconds.

Nothing is sent to a broker before it has acknowledged the client's INFORM: only then are its store,
its epoch and its maximum frame length known. Whenever a broker acknowledges an INFORM, all requests
in flight there are sent again: the broker refuses to do anything twice.

Of the brokers of a shared store only the owner gets requests. When one of them reports an owner
with a higher epoch, the requests are unassigned from the previous one, and the client sends an
INFORM to the new one, over a new connection if its address is not among the given ones.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

from eventmq.client.requests import (
    LOST,
    NEVER,
    NO_BROKER,
    UNTIL_FORGOTTEN,
    BrokerConnection,
    ConnectionPhase,
    InFlightRequests,
    OneWayMessage,
    OutgoingMessage,
    PendingCall,
    PendingRequest,
    PendingSubmit,
    add_rows,
    credit_frames,
    read_answer,
)
from eventmq.errors import EventMQError, ProtocolError, SerializationError
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
from eventmq.wire.owner import OwnerInfo, Owners, untrusted
from eventmq.wire.results import ENDED

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from eventmq.wire.curve import ClientKeys

__all__ = ["NAMED", "ClientMachine"]

logger = logging.getLogger(__name__)

#: Calls about the broker itself: the client's only broker answers them even as a standby.
_STANDBY_CALLS = frozenset({"ping", "status"})

#: Seconds after which a request that was refused with ``no-owner`` is sent again.
NO_OWNER_RETRY = 0.2

#: Seconds between two handshakes with a broker that refuses them.
RETRY = 1.0

#: `BrokerConnection.last_error` of an owner at an address that was not given.
NAMED = "another broker named it as the owner of the store"


class ClientMachine:
    """The protocol of a client: one connection per broker; requests are resent until they end.

    Args:
        addresses: Addresses of the brokers; new jobs go to the first that is ready.
        session: Id of this run of the client.
        name: Its name in listings.
        heartbeat: Seconds between heartbeats while requests are in flight.
        heartbeat_timeout: Seconds of silence, while requests are in flight, after which a broker
            counts as dead.
        role: The role in its INFORM: ``client`` or ``scheduler``.
        legacy: The brokers are routers of EventMQ 0.3: a client sends them no INFORM, which they
            would not answer, and treats each as ready. They do answer schedulers.
        keys: CURVE keys; an owner at an address that was not given must have one of them.
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
        keys: ClientKeys | None = None,
    ) -> None:
        #: Those of the given addresses, then at most one per store for an owner at another address.
        self.connections = [BrokerConnection(i, at, role=role) for i, at in enumerate(addresses)]
        #: Indexes of brokers whose socket has to be opened, or closed and opened again.
        self.reopen: list[int] = []
        self._alone = self.connections[0] if len(self.connections) == 1 else None
        self._keys = keys
        self._owners = Owners()
        #: Store id -> the connection to its owner at an address that was not given.
        self._extra: dict[str, BrokerConnection] = {}
        #: Time at which requests that were refused with ``no-owner`` are sent again.
        self._retry_at = NEVER
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

        A call that is not in flight here is ignored: a forked child may drop one of its parent.
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
        """Report to the broker how many parts of a stream were read."""
        if self._in_flight.find(call.id) is call and call.assigned_to != NO_BROKER and call.sent:
            self._credit_at(self.connections[call.assigned_to], call)

    def _credit_at(self, connection: BrokerConnection, call: PendingCall) -> None:
        connection.unsent.append(OutgoingMessage(credit_frames(self.message_id(), call)))

    def keepalive(self, unix: float) -> PendingRequest:
        """Return a request that never ends: while it is open, both sides send heartbeats."""
        message_id = self.message_id()
        return PendingRequest(Heartbeat(message_id, f"{unix:.2f}").frames(), id=message_id)

    @property
    def busy(self) -> bool:
        """Whether requests are in flight."""
        return len(self._in_flight) > 0

    def queue_kbai(self) -> None:
        """Queue a KBAI to every broker that is ready."""
        for connection in self.connections:
            if connection.informed:
                connection.unsent.append(OutgoingMessage(Kbai(self.message_id()).frames()))

    def abandon(self, reason: str) -> None:
        """Fail all requests, with a reason."""
        self._in_flight.abandon(reason)

    # Transport events

    def opened(self, index: int, now: float) -> None:
        """Handle a new socket to a broker: INFORM comes first on it."""
        connection = self.connections[index]
        connection.busy_since = now
        connection.disconnected = False
        connection.retry_at = connection.doubted_since = 0.0
        self._inform(connection, now)

    def lost(self, index: int, now: float) -> None:
        """Handle the loss of a connection; the transport reconnects by itself."""
        connection = self.connections[index]
        connection.disconnected = True
        if not connection.retry_at:
            connection.last_error = LOST
        if self._legacy:
            self._release(connection, now)  # nothing else shows whether it is alive
        else:
            self._inform(connection, now)

    def restored(self, index: int, now: float) -> None:
        """Handle a connection that came back: request a new socket.

        The old one has the routing id of the lost connection. A broker that has not noticed the
        loss would not receive from it.
        """
        connection = self.connections[index]
        if connection.disconnected and index not in self.reopen:
            connection.last_error = connection.last_error or LOST
            connection.inform = OutgoingMessage([])
            self.reopen.append(index)
        connection.disconnected = False

    # hot loop: python -m benchmarks enqueue_one
    def flush(self, index: int, send: Callable[[Sequence[bytes]], bool], now: float) -> bool:
        """Send the queue of a broker; return False if the socket is full before its end.

        Messages without a receipt then end: one-way messages, and jobs for legacy brokers.
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
        """Handle a message from a broker. Never raises: a bad message is logged and dropped."""
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
            elif type(command) is Heartbeat:
                if command.status:
                    self._on_owner(connection, OwnerInfo.of_heartbeat(command.status), now)
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
        if now >= self._retry_at:
            self._retry_at = NEVER
            self._assign_all(now)
        for connection in self.connections:
            dead_at = connection.dead_at(self._heartbeat_timeout)
            if connection.retry_at and now >= connection.retry_at:
                connection.retry_at = 0.0
                self._drop(connection, now, connection.last_error)
                continue
            if dead_at is not None and now >= dead_at:
                silent = f"it was silent for {self._heartbeat_timeout:g} s"
                self._drop(
                    connection, now, silent if connection.informed else connection.unready_reason
                )
                continue
            heartbeat_at = connection.next_heartbeat(self._heartbeat)
            if heartbeat_at is None or now < heartbeat_at:
                continue
            if connection.informed:
                connection.last_sent = now
                connection.queue_heartbeat(self.message_id(), unix)
            else:
                self._inform(connection, now)

    def next_tick(self) -> float:
        """Return the time at which `tick` has something to do next, or `NEVER`."""
        due = self._in_flight.next_deadline
        due = min(due, self._retry_at)
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
        silent, new_leaders = self._in_flight.expire(
            now, heartbeat=self._heartbeat, heartbeat_timeout=self._heartbeat_timeout
        )
        for connection, call in assigned:
            self._forget_at(connection, call)
        for index in silent:
            self._drop(self.connections[index], now, "it left a message unanswered")
        for leader in new_leaders:
            self._assign(leader, now)

    # Choice of a broker

    def _choose(self, request: PendingRequest) -> BrokerConnection | None:
        """Return the ready connection that a request may use.

        If no broker knows an owner, this is a standby that has not given a reason yet.
        """
        store = ""
        if type(request) is PendingCall and request.target != NO_BROKER:
            target = self.connections[request.target]
            if target.ready:
                return target
            store = request.store or self._store_at(target)
        elif (
            type(request) is PendingCall
            and request.name in _STANDBY_CALLS
            and self._alone is not None
            and self._alone.phase is ConnectionPhase.STANDBY
        ):
            return self._alone
        elif type(request) is PendingSubmit and request.sent:
            store = request.store
        for connection in self.connections:
            if connection.ready and store in {"", connection.store}:
                return connection
        if type(request) is PendingSubmit or type(request) is PendingCall:
            for connection in self.connections:
                if connection.ownerless and store in {"", connection.store}:
                    return connection
        if type(request) is not PendingSubmit:
            for connection in self.connections:
                standby = connection.phase is ConnectionPhase.STANDBY
                if standby and connection.passes and store in {"", connection.store}:
                    return connection
        return None

    def _store_at(self, connection: BrokerConnection) -> str:
        """Return the id of a broker's store; if it is not known yet, the store of the others."""
        if connection.features is None:
            shared = (c.store for c in self.connections if c.ready and c.owner is not None)
            return next(shared, connection.store)
        return connection.store

    def _assign(self, request: PendingRequest, now: float) -> None:
        """Assign a request to a broker, or leave it unassigned until one is ready."""
        connection = self._choose(request)
        if connection is None:
            return
        error = self._encode(request) or connection.incompatibility(request)
        if error is not None:
            self._in_flight.end(request, error)
        else:
            self._in_flight.assign(request, connection, now)

    @staticmethod
    def _encode(request: PendingRequest) -> EventMQError | None:
        """Encode a call; return why its arguments cannot be sent, which is no fault of others."""
        if type(request) is not PendingCall:
            return None
        try:
            request.encode()
        except (ArithmeticError, TypeError, ValueError) as error:
            return SerializationError(f"the call {request.name!r} cannot be encoded: {error}")
        return None

    def _assign_all(self, now: float) -> None:
        for request in self._in_flight.unassigned():
            self._assign(request, now)

    def _release(self, connection: BrokerConnection, now: float) -> None:
        """Unassign all requests from a broker that is not ready, and assign them to others."""
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
        """Settle a job that was sent to a broker without FEATURES, which sends no receipts."""
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
        """Handle a failed handshake; errors of requests name its reason."""
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
        if call.name in UNTIL_FORGOTTEN and call.sent and connection.ready:
            if call.name == "stream":
                self._credit_at(connection, call)
            frames = Call(self.message_id(), "forget", pack({"call": call.id})).frames()
            connection.unsent.append(OutgoingMessage(frames))

    # Messages from brokers

    def _on_ack(self, connection: BrokerConnection, ack: Ack, now: float) -> None:
        pending = self._in_flight.find(ack.acked)
        if type(pending) is PendingSubmit:
            if pending.count and ack.extra:
                if self._is_outdated(connection, pending):
                    return
                pending.refused = decode_exceptions(ack.extra)
            pushed = connection if connection.ready and not ack.extra else None
            self._on_receipt(pending, pushed, now)
        elif ack.acked == connection.inform_id and not connection.informed:
            features = Features.parse(str(ack.extra, "utf-8")) if ack.extra else None
            if connection.named_store not in {"", features and features.store}:
                connection.last_error = f"it does not have the store {connection.named_store}"
                return
            connection.features = features
            connection.phase = ConnectionPhase.READY
            connection.disconnected = False
            connection.last_error = ""
            connection.owner = features.owner if features else None
            if connection.owner is not None:
                self._follow(connection, connection.owner, now)
            self._assign_all(now)

    def _on_owner(
        self, connection: BrokerConnection, owner_info: OwnerInfo | None, now: float
    ) -> None:
        """Handle the information of a HEARTBEAT about the owner of a shared store."""
        if owner_info is None or owner_info == connection.owner or not connection.informed:
            return
        connection.owner = owner_info
        connection.last_error = ""
        self._follow(connection, owner_info, now)
        if self._owners.owns(owner_info):
            self._inform(connection, now)
        else:
            self._assign_all(now)

    def _follow(self, connection: BrokerConnection, owner_info: OwnerInfo, now: float) -> None:
        """Unassign the requests from brokers that do not own the store, and connect to its owner.

        Args:
            connection: The connection to the broker that reported the owner.
            owner_info: Its report.
            now: The time.
        """
        owner, connection.passes = self._owners.register(owner_info), False
        for each in self.connections:
            if (each.ready or each.awaits_refusal) and not self._owners.owns(each.owner):
                each.phase = ConnectionPhase.STANDBY
                self._in_flight.release_all(each)
        addresses = {each.address for each in self.connections}
        if not owner.address or owner.address in addresses or self._owners.owns(owner_info):
            return
        if any(each.ready and each.store == owner_info.store_id for each in self.connections):
            return  # the owner is connected under another address
        if reason := untrusted(self._keys, owner.key):
            connection.passes = True
            connection.last_error = f"the owner is {owner.address}, but {reason}"
            logger.warning("broker %s: %s", connection.address, connection.last_error)
            return
        extra = self._extra.get(owner_info.store_id)
        if extra is None:
            extra = BrokerConnection(len(self.connections), "", role=connection.role)
            extra.named_store = owner_info.store_id
            self._extra[owner_info.store_id] = extra
            self.connections.append(extra)
        extra.address, extra.server_key = owner.address, owner.key
        self._drop(extra, now, NAMED)

    def _on_kbai(self, connection: BrokerConnection, now: float) -> None:
        """Stop using a broker that is shutting down; send it INFORM again after an interval."""
        connection.last_error = "it is shutting down"
        self._release(connection, now)
        connection.inform.sent = now

    def _on_receipt(
        self, pending: PendingSubmit, connection: BrokerConnection | None, now: float
    ) -> None:
        """Settle a submission, and begin the calls for its result.

        Args:
            pending: The submission.
            connection: The connection over which its result will be pushed if it was requested,
                None if the broker pushes none.
            now: The time.
        """
        pushed = connection if pending.asks_for_result else None
        for call in self._in_flight.end(pending, None):
            self._in_flight.add(call)
            if pushed is not None and call.subject not in self._in_flight.pushed:
                self._in_flight.expect_push(call, pushed, now)
            else:  # not pushed, or only to another call
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
            if connection.informed:
                self._inform(connection, now)
            return
        if error.request in {"", connection.inform_id} and not connection.informed:
            connection.last_error = error.text
            return
        if error.code == "closing":
            self._on_kbai(connection, now)
            return
        request = self._in_flight.find(error.request)
        if request is not None and error.code == "no-owner":
            self._on_no_owner(connection, request, error, now)
        elif request is not None and not self._is_outdated(connection, request):
            subject = request.subject if type(request) is PendingCall else request.id
            self._in_flight.end(request, refusal(error.code, error.text, subject))

    def _is_outdated(self, connection: BrokerConnection, request: PendingRequest) -> bool:
        """Return whether a refusal comes from an owner before the one that has the request.

        The later owner decides, and may have stored a job already. What an earlier owner has stored
        is stored, whenever its receipt arrives.
        """
        elsewhere = request.assigned_to != connection.index
        return elsewhere and not self._owners.owns(connection.owner)

    def _on_no_owner(
        self, connection: BrokerConnection, request: PendingRequest, error: Error, now: float
    ) -> None:
        """Keep a request until an owner accepts it, or its deadline has passed."""
        if request.assigned_to == connection.index:
            connection.last_error = error.text
            self._in_flight.release(request)
            if connection.ready or connection.passes:  # it may have learned of an owner since
                self._retry_at = min(self._retry_at, now + NO_OWNER_RETRY)
            else:
                self._assign(request, now)
