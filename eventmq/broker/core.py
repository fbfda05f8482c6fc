"""The broker as a state machine: messages, verdicts and ``now`` in; writes and messages out.

One turn of the runner is: `BrokerCore.receive` for everything readable, `BrokerCore.decide`,
`take_batch` to the store, `settle` with its verdicts, then send what `take_outbox` gives. Nothing
here has a socket, a file or a clock.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from eventmq.broker.admission import Admission
from eventmq.broker.calls import Calls, status_keys
from eventmq.broker.dispatch import Dispatch
from eventmq.broker.outcomes import Outcomes
from eventmq.broker.parking import Parking
from eventmq.broker.peers import PLAIN_PREFIX, Key, Lease, Peer, Session
from eventmq.broker.sessions import Sessions
from eventmq.broker.state import Outgoing, State
from eventmq.broker.waits import Waits
from eventmq.entries import Promote
from eventmq.errors import ProtocolError, QueueFull
from eventmq.headers import parse_headers
from eventmq.wire.bulk import is_text, pack
from eventmq.wire.commands import (
    Ack,
    Admin,
    Call,
    Cancel,
    Disconnect,
    Error,
    Heartbeat,
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
    from eventmq.entries import Recovered, Write
    from eventmq.interfaces import QueueOrder, RoutingStrategy
    from eventmq.job import Job

__all__ = ["PORTS", "BrokerCore"]

#: Port -> commands that it takes; None is all but DISCONNECT.
PORTS: dict[str, frozenset[type] | None] = {
    "main": None,
    "worker": frozenset({Inform, Ready, Reply, Heartbeat, Kbai, Ack, Error}),
    "admin": frozenset({Inform, Admin, Disconnect, Call, Heartbeat, Kbai, Ack, Error}),
    "publish": frozenset({Inform, Publish, Heartbeat, Kbai, Ack, Error}),
}

#: Jobs that one turn may move from delayed to queued.
_PROMOTE = 2000

#: Where a published message for the PUB socket is addressed to.
_SUBSCRIBE = Key("subscribe", b"")


class BrokerCore:
    """All decisions of a broker."""

    def __init__(
        self,
        limits: Limits,
        routing: RoutingStrategy,
        new_order: Callable[[], QueueOrder],
        *,
        version: str = "",
    ) -> None:
        self.state = state = State(limits, version=version)
        self.waits = Waits(state)
        self.admission = Admission(state, self.waits)
        self.outcomes = Outcomes(state, self.waits)
        self.dispatch = Dispatch(state, routing, self.outcomes)
        self.parking = Parking(state, self.outcomes)
        self.sessions = Sessions(
            state, self.dispatch, self.outcomes, self.waits, self.parking, new_order=new_order
        )
        self.calls = Calls(state, self.waits)
        self._promoting = False
        self._ticked = 0.0
        self._disconnecting: tuple[Peer, str] | None = None
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type, Callable[[Peer, Any], None]]:
        return {
            Request: self.admission.request,
            Reply: self.outcomes.reply,
            Ready: self.sessions.ready,
            Heartbeat: self._heartbeat,
            Call: self.calls.call,
            Inform: self.sessions.inform,
            Publish: self._publish,
            Schedule: self._schedule,
            Kbai: lambda peer, _: self.sessions.goodbye(peer),
            Admin: self._admin,
            Disconnect: self._disconnect,
            Ack: lambda _peer, _message: None,
            Error: lambda _peer, _message: None,
            Cancel: self._misplaced,
        }

    # Life

    def recover(
        self, recovered: Recovered, now: float, new_order: Callable[[], QueueOrder]
    ) -> None:
        """Take over what the store has; leased jobs wait one liveness period for their session."""
        state = self.state
        state.now = state.started = self._ticked = now
        state.epoch, state.store_id = recovered.epoch, recovered.store_id
        state.next_seq, state.next_due = recovered.next_seq, recovered.next_due
        for name, counts in recovered.counts.items():
            queue = state.queue(name)
            queue.counts = counts
            if counts.waiting:
                queue.rewind()
                state.busy[name] = queue
        for chunk in recovered.chunks:
            session = state.sessions.get(chunk.session)
            if session is None:
                session = Session(chunk.session, new_order(), name=chunk.session, gone_at=now)
                session.patience = state.limits.liveness
                session.plain = chunk.session.startswith(PLAIN_PREFIX)
                state.sessions[chunk.session] = session
            jobs = [job for job, _ in chunk.leases]
            deliveries = [delivery for _, delivery in chunk.leases]
            self._recover_lease(session, chunk.number, jobs, deliveries)

    def _recover_lease(
        self, session: Session, number: int, jobs: list[Job | None], deliveries: list[int]
    ) -> None:
        state = self.state
        there = [job for job in jobs if job is not None]
        queue = there[0].queue if there else ""
        message_id = f"{session.id[:64]}.{number}"
        lease = Lease(number, queue, jobs, deliveries, message_id, state.now, left=len(there))
        lease.until = state.now + state.limits.liveness  # of a plain one: as long as its session
        session.leases[number] = lease
        session.next_number = max(session.next_number, number + 1)
        for place, job in enumerate(jobs):
            if job is not None:
                job.delivery = deliveries[place]
                state.jobs[job.id] = job
                state.running[job.id] = (session, lease, place)
                state.queue(job.queue).running += 1
        if not there:
            self.outcomes.close(session, lease)

    @property
    def done(self) -> bool:
        """Whether a DISCONNECT was carried out: nothing is leased any more."""
        return self.state.closing and not any(s.leases for s in self.state.sessions.values())

    def close(self, now: float) -> None:
        """Say goodbye to all peers; the runner sends it and stops."""
        self.state.now = now
        if not self.state.closing:  # a DISCONNECT has said it already
            self.state.closing = True
            self.sessions.say_goodbye()

    # In

    def receive(self, port: str, frames: Sequence[bytes], now: float) -> None:
        """Take one message of a ROUTER: the identity, then the frames from frame 0 on."""
        state = self.state
        state.now = now
        peer = self._peer(Key(port, frames[0]), now)
        if peer is None:
            return
        peer.heard = now
        state.counters["messages"] += 1
        try:
            if len(frames) > state.limits.max_frames:
                msg = f"a message has at most {state.limits.max_frames} frames"
                raise ProtocolError(msg, code="frame-count")
            message = decode(frames[1:])
            if len(message.id) > state.limits.max_id:
                msg = f"a message id has at most {state.limits.max_id} characters"
                raise ProtocolError(msg, code="too-large")
            allowed = PORTS[port]
            if allowed is None:
                if type(message) is Disconnect:
                    self._not_here(message, port)
            elif type(message) not in allowed:
                self._not_here(message, port)
            self._handlers[type(message)](peer, message)
        except ProtocolError as error:
            state.error(peer, self._id_of(frames), error.code, str(error))

    @staticmethod
    def _not_here(message: object, port: str) -> None:
        name = type(message).__name__.upper()
        msg = f"{name} is not taken on the {port} port"
        raise ProtocolError(msg, code="not-allowed")

    @staticmethod
    def _id_of(frames: Sequence[bytes]) -> str:
        return frames[4][:255].decode(errors="replace") if len(frames) > 4 else ""  # noqa: PLR2004

    def _peer(self, key: Key, now: float) -> Peer | None:
        state = self.state
        peer = state.peers.get(key)
        if peer is not None:
            return peer
        if len(state.peers) >= state.limits.max_peers:
            state.counters["errors.too-many-peers"] += 1
            text = f"this broker has its {state.limits.max_peers} peers"
            frames = Error(state.message_id(), "", "too-many-peers", text).frames()
            state.outbox.append(Outgoing(key, frames))
            return None
        peer = state.peers[key] = Peer(key, now)
        return peer

    def _heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        if not peer.role:
            self.state.error(peer, message.id, "inform-again", "say INFORM first")
        elif peer.session is not None and not peer.session.plain and message.status is not None:
            self.sessions.status(peer.session, message.status)

    def _misplaced(self, _peer: Peer, _message: Cancel) -> None:
        raise ProtocolError("CANCEL goes from the broker to a worker", code="not-allowed")

    # Topics and schedules

    def _publish(self, peer: Peer, message: Publish) -> None:
        state = self.state
        headers = message.headers or ""
        wants_ack = parse_headers(headers).ack_requested
        if len(message.topic) > state.limits.max_id:
            msg = f"a topic has at most {state.limits.max_id} characters"
            raise ProtocolError(msg, code="too-large")
        state.counters["published"] += 1
        if "subscribe" in state.addresses:
            frames = [message.topic.encode(), message.body]
            state.outbox.append(Outgoing(_SUBSCRIBE, frames))
        part = pack([message.topic, headers, message.body])
        for other in list(state.peers.values()):
            for call, topics in other.topics.items():
                if message.topic.startswith(topics):
                    state.reply(other, part, call, "part")
        if wants_ack:
            state.ack(peer, message.id)

    def _schedule(self, peer: Peer, message: Schedule) -> None:
        """Pass it on: SCHEDULE to one scheduler, or each would fire; UNSCHEDULE to all."""
        state = self.state
        headers = parse_headers(message.headers)
        triggers = (message.interval, headers.interval, headers.cron or None)
        if not message.remove and triggers == (None, None, None):
            msg = "SCHEDULE of 7 frames needs a header interval:SECONDS or cron:EXPRESSION"
            raise ProtocolError(msg, code="no-trigger")
        text = is_text(message.body)
        schedulers = [
            other
            for other in state.peers.values()
            if other.role == "scheduler" and (text or other.features is not None)
        ]
        if not schedulers:
            msg = "no scheduler is connected to this broker that could read this"
            raise ProtocolError(msg, code="no-scheduler")
        for scheduler in schedulers if message.remove else schedulers[:1]:
            state.send(scheduler, message.frames())
        if headers.ack_requested:
            state.ack(peer, message.id)

    # Administration

    def _admin(self, peer: Peer, message: Admin) -> None:
        state = self.state
        keys = status_keys(state)
        if message.name == "ROUTER_SHOW_WORKERS":
            keys = {
                "connected_workers": {
                    s.name: {
                        "queues": [list(pair) for pair in s.queues],
                        "available_slots": max(0, s.room),
                        "hb": s.peer.heard if s.peer else None,
                    }
                    for s in state.sessions.values()
                },
                "connected_queues": keys["connected_queues"],
            }
        elif message.name == "ROUTER_SHOW_SCHEDULERS":
            keys = {"connected_schedulers": keys["connected_schedulers"]}
        state.reply(peer, json.dumps(keys).encode(), message.id)

    def _disconnect(self, peer: Peer, message: Disconnect) -> None:
        self.state.ack(peer, message.id)
        self.state.closing = True
        self.sessions.say_goodbye()

    # Decisions

    def decide(self, now: float, *, stalled: float = 0.0, judge: bool = True) -> None:
        """End the reading part of a turn: time, dispatch and refills.

        Args:
            now: Unix time.
            stalled: Seconds by which every deadline moves: the broker did not read for so long,
                or the clock jumped (negative for a jump back).
            judge: Whether everything readable has been read, so that silence means something.
        """
        state = self.state
        state.now = now
        if stalled:
            self.sessions.shift(stalled)
            self._ticked = now
        elif judge and not 0 <= now - self._ticked < state.limits.lease_interval / 2:
            self._ticked = now
            self.sessions.tick()
            self.parking.tick()
        if state.next_due is not None and state.next_due <= now and not self._promoting:
            self._promote(now)
        self.dispatch.run()

    def _promote(self, now: float) -> None:
        state = self.state
        self._promoting = True

        def settle(verdict: tuple[list[Job], float | None]) -> None:
            self._promoting = False
            jobs, state.next_due = verdict
            for job in jobs:
                counts = state.queue(job.queue).counts
                counts.delayed -= 1
                counts.waiting += 1
                state.joined(job)

        state.write(Promote(now, _PROMOTE), settle, lambda: setattr(self, "_promoting", False))

    def wake_at(self, now: float) -> float:
        """Return the Unix time at which `decide` is wanted although nothing was received."""
        wake = now + self.state.limits.lease_interval / 2
        due = self.state.next_due
        return wake if due is None else min(wake, due)

    # Out

    def take_batch(self) -> tuple[list[Write], Callable[[Sequence[Any] | Exception], None]]:
        """Return the entries to commit, and the function that wants their verdicts."""
        entries, settles, undos = self.state.take_batch()

        def settle(verdicts: Sequence[Any] | Exception) -> None:
            if isinstance(verdicts, Exception):
                self._failed(verdicts, undos)
                return
            for callback, verdict in zip(settles, verdicts, strict=True):
                callback(verdict)
            self.waits.flush()

        return entries, settle

    def _failed(self, error: Exception, undos: list[Callable[[], None]]) -> None:
        if not isinstance(error, QueueFull):
            raise error
        for undo in reversed(undos):
            undo()
        self.waits.flush()

    @property
    def has_writes(self) -> bool:
        """Whether `take_batch` has entries."""
        return self.state.has_writes

    def take_outbox(self) -> list[Outgoing]:
        """Return what is to be sent now, in order."""
        outbox, self.state.outbox = self.state.outbox, []
        return outbox

    def not_sent(self, message: Outgoing, now: float, *, reachable: bool) -> None:
        """Say that a message could not be sent: its chunk goes back, its peer may be gone."""
        state = self.state
        state.now = now
        if message.lease is not None and message.session is not None:
            self.dispatch.not_sent(message.session, message.lease)
        peer = state.peers.get(message.key)
        if not reachable and peer is not None:
            self.sessions.unreachable(peer)
