"""The broker as a state machine: messages, write results and ``now`` in; writes and messages out.

In one tick the runner calls `BrokerCore.receive` for every readable message and
`BrokerCore.decide`, commits the writes of `take_batch`, calls `settle` with their results and
`decide` once more for the effects of the commit, and sends the messages of `take_deferred_sends`.
Nothing here has a socket, a file or a clock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.acts import act_of, by
from eventmq.broker.admission import Admission
from eventmq.broker.calls import Calls, answer
from eventmq.broker.dispatch import Dispatch
from eventmq.broker.events import EventFeed
from eventmq.broker.graphs import GraphTracker
from eventmq.broker.listings import ListingCalls
from eventmq.broker.maintenance import Expiry, IdleQueues, Promotion, Retention
from eventmq.broker.metrics import BrokerMetrics
from eventmq.broker.operations import BulkOperations, OperatorCalls
from eventmq.broker.outcomes import Outcomes
from eventmq.broker.peers import LEGACY_PREFIX, Key, Lease, Peer, Session
from eventmq.broker.schedules import ScheduleCalls
from eventmq.broker.sessions import Sessions, reads_refusal
from eventmq.broker.state import FULL, DeferredSend, State
from eventmq.broker.streams import Streams
from eventmq.broker.unroutable import UnroutableJobs
from eventmq.broker.waiters import ResultWaiters
from eventmq.errors import ProtocolError, QueueFull
from eventmq.store.metrics import OTHER
from eventmq.store.reads import (
    CountJobs,
    FindJobs,
    FindLineage,
    GroupFailures,
    History,
    ListFailed,
    ListGraph,
    ListJobs,
    LoadSchedules,
    ReadEvents,
    ReadLogs,
)
from eventmq.store.writes import KeepTime, PartlyStored, RecordOperation
from eventmq.wire.batches import has_nul, unpack
from eventmq.wire.calls import CALLS
from eventmq.wire.commands import (
    Ack,
    Admin,
    Call,
    Cancel,
    Credit,
    Disconnect,
    Error,
    Heartbeat,
    Hello,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
    Schedule,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.broker.limits import Limits
    from eventmq.interfaces import QueueOrder, RoutingStrategy
    from eventmq.store import Write
    from eventmq.store.recovery import Recovered
    from eventmq.store.writes import Chunk
    from eventmq.wire.commands import Command

__all__ = ["PORTS", "WORKER_PORTS", "BrokerCore"]

logger = logging.getLogger("eventmq.broker")

#: Port -> commands that it accepts; None for all commands except DISCONNECT.
PORTS: dict[str, frozenset[type] | None] = {
    "main": None,
    "worker": frozenset({Inform, Ready, Reply, Heartbeat, Kbai, Ack, Error}),
    "admin": frozenset({Inform, Hello, Admin, Disconnect, Call, Heartbeat, Kbai, Ack, Error}),
    "publish": frozenset({Inform, Publish, Heartbeat, Kbai, Ack, Error}),
}

#: Ports that accept messages of workers.
WORKER_PORTS = frozenset(
    name for name, allowed in PORTS.items() if allowed is None or Reply in allowed
)

#: Seconds without dispatch after a commit that did not fit on the disk.
HOLD = 0.5

_BAD_VALUE = (
    "the store cannot keep a value of this message, of which nothing was stored; the log of the "
    "broker says why"
)

#: Reads: they change nothing, so they can be repeated.
_READS = (
    CountJobs, FindJobs, FindLineage, GroupFailures, History, ListFailed, ListGraph, ListJobs,
    LoadSchedules, ReadEvents, ReadLogs,
)  # fmt: skip


class BrokerCore:
    """A broker without its I/O: makes all of its decisions."""

    #: Store time at which silent peers were last checked.
    _ticked = 0.0

    #: Whether this broker does not own the store: then `idle` takes the place of `decide`, and
    #: nothing is written (`eventmq.broker.ownership.stand_by`).
    standby = False

    #: Set for a standby: called with the connection, the frames and the decoded message of a peer
    #: that has not informed. Relays the messages of legacy peers to the owner and returns False for
    #: all others (`eventmq.broker.relays.Relays.forward_legacy`).
    forward_legacy: Callable[[Key, Sequence[bytes], Command], bool] | None = None

    def __init__(
        self,
        limits: Limits,
        routing: RoutingStrategy,
        new_order: Callable[[], QueueOrder],
        *,
        version: str = "",
        durability: str = "",
    ) -> None:
        self.state = state = State(limits, version=version, durability=durability)
        self.streams = Streams(state, lambda *job: self.operations.cancel(*job))  # noqa: PLW0108 - made later
        self.waiters = ResultWaiters(state, self.streams)
        self.admission = Admission(state, self.waiters)
        self.outcomes = Outcomes(state, self.waiters)
        self.dispatch = Dispatch(state, routing, self.outcomes)
        self.unroutable = UnroutableJobs(state, self.outcomes)
        self.sessions = Sessions(
            state, self.dispatch, self.outcomes, self.waiters, self.unroutable, new_order=new_order
        )
        self.calls = Calls(state, self.waiters)
        self.metrics = BrokerMetrics(state)
        self.events = EventFeed(state)
        self.operations = OperatorCalls(state, self.outcomes, self.sessions, self.calls)
        self.graphs = GraphTracker(state, self.operations)
        #: Sends HEARTBEATs; the runner notifies it of lost connections.
        self.heartbeats = self.sessions.heartbeats
        self.bulk = BulkOperations(state, self.operations)
        self.listings = ListingCalls(state, self.calls, self.bulk.read_operation)
        self.promotion = Promotion(state, self.outcomes)
        self.expiry = Expiry(state, self.outcomes)
        self.retention = Retention(state)
        self.idle_queues = IdleQueues(state)
        self.schedules = ScheduleCalls(state)
        #: Command -> handler.
        self._handlers: dict[type, Callable[[Peer, Any], None]] = {
            Request: self.admission.request,
            Reply: self._reply,
            Ready: self.sessions.ready,
            Heartbeat: self._heartbeat,
            Call: self._call,
            Inform: self._inform,
            Publish: self.calls.publish,
            Schedule: self.schedules.schedule,
            Kbai: lambda peer, _: self.sessions.goodbye(peer),
            Hello: lambda _peer, _message: None,
            Admin: lambda peer, message: answer(state, peer, message),
            Disconnect: self._disconnect,
            Ack: lambda _peer, _message: None,
            Error: lambda _peer, _message: None,
            Cancel: self._misplaced,
            Credit: self.streams.credit,
        }

    def guard(
        self, wrap: Callable[[type, Callable[[Peer, Any], None]], Callable[[Peer, Any], None]]
    ) -> None:
        """Replace each handler by what ``wrap`` returns for its command and the handler."""
        self._handlers = {kind: wrap(kind, old) for kind, old in self._handlers.items()}

    # Life

    def recover(self, recovered: Recovered, now: float) -> None:
        """Load the recovered state; leased jobs wait one heartbeat timeout for their session.

        Args:
            recovered: The state that the store has returned.
            now: Store time, as every ``now`` of this class (`eventmq.timekeeping`).
        """
        self.state.keeper, self.state.metrics = recovered.keeper, recovered.metrics
        recovered.metrics.limits = self.state.limits.metrics
        recovered.metrics.on_limit = self._metrics_limited
        self.state.now = self.state.started = self._ticked = now
        self.events.observed = recovered.next_event - 1
        self.bulk.recover(recovered.bulk_operations)
        self._load(recovered)
        self.graphs.unfinished = recovered.graphs

    def _metrics_limited(self, field: str, name: str) -> None:
        """Log the first queue, or task, that has no metrics of its own."""
        logger.warning(
            "the %s %r and later ones have no metrics of their own: they are counted as %r, since "
            "there are %d already (setting metrics_%s)",
            field.removeprefix("max_").removesuffix("s"), name, OTHER,
            getattr(self.state.limits.metrics, field), field,
        )  # fmt: skip

    def _load(self, recovered: Recovered) -> None:
        """Fill the state, and lease the jobs of open chunks again."""
        state = self.state
        state.epoch, state.store_id = recovered.epoch, recovered.store_id
        state.events_id = recovered.events_id or recovered.store_id
        state.next_seq, state.next_ready_at = recovered.next_seq, recovered.next_ready_at
        state.next_expiry = recovered.next_expiry
        state.graphs, state.next_deadline = recovered.graphs, recovered.next_deadline
        state.limiters.recover(recovered.limiters)
        state.suspects.recover(recovered.suspects)
        for name in state.limiters.of_queues:
            state.queue(name)  # queues in the settings are always listed
        for name, counts in recovered.counts.items():
            state.queue(name).counts = counts
        for name, subqueue, first in recovered.subqueues:
            queue = state.busy[name] = state.queue(name)
            queue.rewind(subqueue, first)
        for chunk in recovered.chunks:
            session = self._recovered_session(chunk)
            self._lease_again(session, chunk)
            if not session.legacy:
                # Jobs that have ended: the broker may have died before it cancelled them there.
                for (job, delivery), job_id in zip(chunk.leases, chunk.ids, strict=True):
                    if job is None and job_id:
                        revoked = self.sessions.revoked
                        revoked.add_unconfirmed(session, chunk.number, job_id, delivery)

    def _recovered_session(self, chunk: Chunk) -> Session:
        state = self.state
        session = state.sessions.get(chunk.session)
        if session is None:
            session = Session(chunk.session, self.sessions.new_order(), name=chunk.session)
            session.disconnected_at = state.now
            session.reconnect_timeout = state.limits.heartbeat_timeout
            session.legacy = chunk.session.startswith(LEGACY_PREFIX)
            state.sessions[chunk.session] = session
        return session

    def _lease_again(self, session: Session, chunk: Chunk) -> None:
        state, number = self.state, chunk.number
        jobs = [job for job, _ in chunk.leases]
        deliveries = [delivery for _, delivery in chunk.leases]
        open_jobs = [job for job in jobs if job is not None]
        queue = open_jobs[0].queue if open_jobs else ""
        message_id = f"{session.id[:64]}.{number}"
        lease = Lease(
            number, queue, jobs, deliveries, message_id, state.now, remaining=len(open_jobs)
        )
        lease.until = state.now + state.limits.heartbeat_timeout  # for legacy sessions only
        lease.sent = state.now if session.legacy else 0.0
        lease.leased = chunk.leased
        session.leases[number] = lease
        session.next_number = max(session.next_number, number + 1)
        for position, job in enumerate(lease.jobs):
            if job is not None:
                job.delivery = lease.deliveries[position]
                state.jobs[job.id] = job
                state.queue(job.queue)
                state.update_limits(job.headers, job.seq)
                if job.deaths:
                    state.suspects.add(job)
                state.leased(job, (session, lease, position), recovered=True)
        if not open_jobs:
            self.outcomes.close(session, lease)

    @property
    def done(self) -> bool:
        """Whether a DISCONNECT was carried out: nothing is leased any more."""
        return self.state.closing and not any(s.leases for s in self.state.sessions.values())

    def close(self, now: float) -> None:
        """Queue the last messages, such as KBAI for all peers; the runner sends them and stops."""
        self.state.now = now
        self.waiters.send_receipts(float("inf"))
        if not self.state.closing:  # else DISCONNECT has done this already
            self.state.closing = True
            self.sessions.queue_kbai()
        if unfinished := len(self.state.transient.jobs):
            logger.warning("%d unfinished jobs without guarantee are lost", unfinished)
        self.events.tick()

    # In

    def receive(self, port: str, frames: Sequence[bytes], now: float) -> None:
        """Handle one message of a ROUTER: the identity, then the frames from frame 0 on."""
        state = self.state
        state.now = now
        peer = self.peer(Key(port, frames[0]), now, frames)
        if peer is None:
            return
        peer.last_seen = now
        state.counters["messages"] += 1
        try:
            if len(frames) > state.limits.max_frames:
                raise ProtocolError(
                    f"a message has at most {state.limits.max_frames} frames", code="frame-count"
                )
            message = decode(frames[1:])
            if not peer.role:
                forward = self.forward_legacy
                if forward is not None and forward(peer.key, frames[1:], message):
                    return
                self.sessions.check_registered(peer, message)
            if len(message.id) > state.limits.max_id:
                raise ProtocolError(
                    f"a message id has at most {state.limits.max_id} characters", code="too-large"
                )
            allowed = PORTS[port]
            if allowed is None:
                if type(message) is Disconnect and peer.grant is None:
                    self._refuse_on_port(message, port)
            elif type(message) not in allowed:
                self._refuse_on_port(message, port)
            self._handlers[type(message)](peer, message)
        except ProtocolError as error:
            state.error(peer, self.id_of(frames), error.code, str(error))

    @staticmethod
    def _refuse_on_port(message: object, port: str) -> None:
        name = type(message).__name__.upper()
        raise ProtocolError(f"{name} is not accepted on the {port} port", code="not-allowed")

    @staticmethod
    def id_of(frames: Sequence[bytes]) -> str:
        """Return the message id in the frames that a ROUTER received, "" if it is missing."""
        return frames[4][:255].decode(errors="replace") if len(frames) > 4 else ""  # noqa: PLR2004

    def peer(self, key: Key, now: float, frames: Sequence[bytes]) -> Peer | None:
        """Return the peer of a connection; register a new one, or refuse it if there are too many.

        A new peer may replace the one that was silent for the longest time (`Sessions.evict`).

        Args:
            key: The connection.
            now: Store time.
            frames: Its message, as in `receive`.
        """
        state = self.state
        peer = state.peers.get(key)
        if peer is not None:
            return peer
        if len(state.peers) >= state.limits.max_peers:
            state.now = now
            self.sessions.evict()
        if len(state.peers) >= state.limits.max_peers:
            state.counters["errors.too-many-peers"] += 1
            if reads_refusal(frames):
                text = f"this broker has its maximum of {state.limits.max_peers} peers (max_peers)"
                refusal = Error(state.message_id(), "", "too-many-peers", text).frames()
                state.deferred_sends.append(DeferredSend(key, refusal))
            return None
        peer = state.peers[key] = Peer(key, now)
        return peer

    def _reply(self, peer: Peer, message: Reply) -> None:
        """Handle a REPLY of a worker: outcomes, or parts and progress of a running job."""
        if message.outcome is not None and message.outcome.startswith(("part:", "progress:")):
            self.streams.reply(peer, message)
        else:
            self.outcomes.reply(peer, message)

    def _heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        if not peer.role:
            self.state.error(peer, message.id, "inform-again", "send INFORM first")
        elif self.standby:
            return
        elif peer.session is not None and not peer.session.legacy and message.status is not None:
            self.sessions.status(peer.session, message.status)

    def _call(self, peer: Peer, message: Call) -> None:
        handler = self.state.calls.get(message.name)
        if handler is None:
            known = ", ".join(CALLS)
            raise ProtocolError(
                f"unknown call {message.name[:80]!r}; known are {known}", code="unknown-call"
            )
        arguments = unpack(message.arguments, "the arguments of the call")
        if not isinstance(arguments, dict):
            raise ProtocolError("the arguments of a call must be a map", code="bad-arguments")
        if has_nul(arguments):
            raise ProtocolError("an argument has a NUL character", code="bad-arguments")
        first = len(self.state.writes)
        handler(peer, message.id, arguments)
        self.state.report_refused(peer, message.id, first)

    def _inform(self, peer: Peer, message: Inform) -> None:
        self.sessions.inform(peer, message)
        if not self.standby:
            self.schedules.informed(peer)

    def _misplaced(self, _peer: Peer, _message: Cancel) -> None:
        raise ProtocolError("CANCEL goes from the broker to a worker", code="not-allowed")

    def _disconnect(self, peer: Peer, message: Disconnect) -> None:
        act = act_of(self.state, peer, {}, "disconnect")
        logger.info("this broker was asked to stop%s", by(act))
        if not self.standby:
            self.state.record(RecordOperation(act))
        self.state.ack(peer, message.id)
        self.waiters.send_receipts(float("inf"))
        self.state.closing = True
        self.sessions.queue_kbai()

    # Decisions

    def shift(self, now: float, seconds: float) -> None:
        """Move every deadline, before anything is received after the gap.

        Args:
            now: Store time.
            seconds: Time for which the broker did not read, or by which store time jumped.
        """
        self.state.now = self._ticked = now
        self.state.hold_until = 0.0
        self.sessions.shift(seconds)
        self.heartbeats.shift(seconds)
        self.unroutable.shift(seconds)

    def jump(self, seconds: float) -> None:
        """Move every deadline by a jump of store time: no peer was silent meanwhile.

        Args:
            seconds: Time that the store has added.
        """
        state = self.state
        self.shift(state.keeper.now, seconds)
        state.limiters.shift(seconds, state.keeper.anchor)
        state.transient.shift(seconds)
        self.schedules.shift(seconds)

    def decide(self, now: float, *, caught_up: bool = True) -> None:
        """End the reading part of a tick: time, dispatch and refills.

        Args:
            now: Store time.
            caught_up: Whether everything readable has been read, so that silence means something.
        """
        state = self.state
        state.now = now
        heartbeats = self.heartbeats
        if heartbeats.probe_at is not None or now >= heartbeats.next_beat:
            heartbeats.run()
        if caught_up and now - self._ticked >= state.limits.lease_interval / 2:
            self._ticked = now
            if state.keeper.ripe:  # only a commit adds the time, and there may be no other commit
                state.write(KeepTime(), lambda _: None)
            self.sessions.tick()
            self.unroutable.tick()
            self.expiry.tick()
            self.retention.tick()
            self.idle_queues.tick()
            state.prune_limiters()
            if self.streams.of:
                self.streams.tick()
            self.schedules.tick()
            self.events.tick()
        elif (
            caught_up
            and self.sessions.next_grace_end is not None
            and self.sessions.next_grace_end <= now
        ):
            self.sessions.end_graces()
        # Most ticks have a few jobs and nothing else, so parts without work are not called.
        if state.next_ready_at is not None:
            self.promotion.run()
        if state.transient.delayed or state.transient.by_wall:
            self.promotion.run_transient()
        if state.next_deadline is not None:
            self.graphs.tick()
        if self.bulk.open:
            self.bulk.run()
        if self.waiters.receipts:
            self.waiters.send_receipts(now)
        if self.waiters.lookups.requested:
            self.waiters.lookups.run()
        self.dispatch.run()
        if state.suspects.changed or state.suspects.cleared:
            write, undo = state.suspects.take_changes()
            state.write(write, lambda _: None, undo)

    def idle(self, now: float) -> None:
        """Keep the peers of a standby: send HEARTBEATs, and drop silent peers."""
        self.state.now = now
        if self.heartbeats.probe_at is not None or now >= self.heartbeats.next_beat:
            self.heartbeats.run()
        if now - self._ticked >= self.state.limits.lease_interval / 2:
            self._ticked = now
            self.sessions.tick()

    def next_tick(self, now: float) -> float:
        """Return the store time at which to call `decide` although nothing was received."""
        state = self.state
        transient, lookups = state.transient, self.waiters.lookups
        tick_at = latest = now + min(state.limits.lease_interval / 2, lookups.timeout)
        deadlines = (
            state.next_ready_at, state.next_deadline, self.dispatch.ready_at,
            transient.next_ready_at if transient.delayed or transient.by_wall else None,
            self.heartbeats.probe_at, self.sessions.next_grace_end, self.waiters.next_receipt,
            state.commit_at,
        )  # fmt: skip
        for deadline in deadlines:
            if deadline is not None and deadline < tick_at:
                tick_at = deadline
        return min(latest, max(tick_at, state.hold_until))

    # Out

    def take_batch(self) -> tuple[list[Write], Callable[[Sequence[Any] | Exception], None]]:
        """Return the writes to commit, and the function to call with their results.

        Adds the write for the graphs of ended jobs first.
        """
        if self.state.graphs:
            self.graphs.follow_ends()
        writes, settles, undos = self.state.take_batch()

        def settle(write_results: Sequence[Any] | Exception) -> None:
            if isinstance(write_results, Exception):
                self._failed(write_results, writes, settles, undos)
                return
            if isinstance(write_results, PartlyStored):
                self._settle_partly(write_results, writes, settles, undos)
                return
            for callback, write_result in zip(settles, write_results, strict=True):
                callback(write_result)
            self.waiters.flush()

        return writes, settle

    def _settle_partly(
        self,
        write_results: PartlyStored,
        writes: Sequence[Write],
        settles: Sequence[Callable[[Any], None]],
        undos: Sequence[Callable[[], None]],
    ) -> None:
        """Settle the writes that were stored; undo the others, and tell their peers."""
        refused = write_results.refused
        for index, (settle, undo) in enumerate(zip(settles, undos, strict=True)):
            if index not in refused:
                settle(write_results[index])
                continue
            what = type(writes[index]).__name__
            logger.error(
                "the store cannot keep a value, so %s is refused: %s", what, refused[index]
            )
            self.state.failure = "bad-value", _BAD_VALUE
            undo()
            self.state.failure = FULL
        self.waiters.flush()

    def _failed(
        self,
        error: Exception,
        writes: Sequence[Write],
        settles: Sequence[Callable[[Any], None]],
        undos: Sequence[Callable[[], None]],
    ) -> None:
        """Undo all writes of a commit that failed; repeat its reads, which need no space."""
        if not isinstance(error, QueueFull):
            raise error
        state = self.state
        state.hold_until = state.now + HOLD
        for undo in reversed(undos):
            undo()
        for write, settle, undo in zip(writes, settles, undos, strict=True):
            if isinstance(write, _READS):
                state.write(write, settle, undo)
        self.waiters.flush()

    @property
    def has_writes(self) -> bool:
        """Whether `take_batch` has writes."""
        state = self.state  # advancing graphs may take more than one commit
        return state.has_writes or (self.graphs.unfinished and state.now >= state.hold_until)

    def must_commit(self, now: float) -> bool:
        """Return whether the writes must be committed now, since one of them may not wait."""
        commit_at = self.state.commit_at
        return self.has_writes and (commit_at is None or now >= commit_at)

    def take_deferred_sends(self) -> list[DeferredSend]:
        """Return the messages to send now, in order."""
        state = self.state
        sends, receipts = state.deferred_sends, state.receipts
        if not sends and not receipts:  # several times in a tick
            return []
        state.deferred_sends, state.receipts = [], []
        return sends + receipts

    def not_sent(self, message: DeferredSend, now: float, *, reachable: bool) -> None:
        """Undo a message that could not be sent: requeue its chunk, let its peer inform again."""
        self.state.now = now
        self.state.counters["unread"] += reachable
        if message.lease is not None and message.session is not None:
            self.dispatch.not_sent(message.session, message.lease, reachable=reachable)
        peer = self.state.peers.get(message.key)
        if peer is not None and not reachable:
            self.sessions.unreachable(peer)
        elif peer is not None and peer.session is None and peer.features is not None:
            self.sessions.drop(peer)
            peer.warned = True  # the sender of the message has logged it
            self.state.error(
                peer, "", "inform-again", "read the messages that wait for you, then call again"
            )
        elif peer is not None:
            self.waiters.end_streams(peer)
