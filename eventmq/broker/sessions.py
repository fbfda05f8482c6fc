"""INFORM, READY, STATUS and KBAI: registers peers, tracks what workers hold, ends silent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.heartbeats import Heartbeats
from eventmq.broker.peers import LEGACY_PREFIX, Session
from eventmq.broker.revoked import Revoked
from eventmq.broker.status import forget_worker
from eventmq.broker.subqueues import Eligibility
from eventmq.broker.suspects import ISOLATION_TIMEOUT, Death
from eventmq.errors import ProtocolError
from eventmq.job import JobState
from eventmq.store.reads import FindJobs
from eventmq.wire.commands import Cancel, Kbai
from eventmq.wire.features import Features, Status, parse_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.broker.dispatch import Dispatch
    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Lease, Peer
    from eventmq.broker.state import State
    from eventmq.broker.unroutable import UnroutableJobs
    from eventmq.broker.waiters import ResultWaiters
    from eventmq.interfaces import QueueOrder
    from eventmq.store.reads import JobRow
    from eventmq.wire.commands import Inform, Ready

__all__ = ["Sessions"]

#: Seconds after INFORM in which a legacy worker's READYs say how many slots it has.
LEGACY_START = 5.0

#: Seconds for which a session may hold a chunk without a lease: its REPLY or the ACK is on its way.
ORPHAN_GRACE = 0.5

#: Seconds that a legacy peer's REPLY may come after the READY of the same slot.
LEGACY_REPLY_DELAY = 2.0


class Sessions:
    """Registers peers, and keeps worker sessions and their leases alive."""

    def __init__(
        self,
        state: State,
        dispatch: Dispatch,
        outcomes: Outcomes,
        waiters: ResultWaiters,
        unroutable: UnroutableJobs,
        *,
        new_order: Callable[[], QueueOrder],
    ) -> None:
        self.state = state
        self.dispatch = dispatch
        self.outcomes = outcomes
        self.waiters = waiters
        self.unroutable = unroutable
        self.heartbeats = Heartbeats(state)
        self.new_order = new_order
        #: When `end_graces` must be called, None for not before the next `tick`.
        self.next_grace_end: float | None = None
        self.revoked = Revoked()

    # INFORM

    def inform(self, peer: Peer, message: Inform) -> None:
        """Register a peer and answer with ACK, then HEARTBEAT at once."""
        state = self.state
        if message.role not in {"worker", "scheduler", "client"}:
            msg = f"a peer is a worker, scheduler or client, not {message.role[:40]!r}"
            raise ProtocolError(msg, code="bad-role")
        limits = state.limits
        if max(len(message.queues), len(message.features or "")) > limits.max_inform:
            msg = f"a frame of INFORM is over {limits.max_inform} characters"
            raise ProtocolError(msg, code="too-large")
        queues = parse_queues(message.queues) if message.role == "worker" else ()
        if len(queues) > limits.max_inform_queues:
            msg = f"a worker serves at most {limits.max_inform_queues} queues"
            raise ProtocolError(msg, code="bad-queues")
        features = None if message.features is None else self._read_features(message.features)
        new = list(dict.fromkeys(name for _, name in queues if name not in state.queues))
        if new and (refusal := state.queue_refusal(new[-1], peer, "worker", len(new) - 1)):
            raise ProtocolError(refusal, code="bad-queues")
        state.begin_queues(new, peer)
        peer.role, peer.features, peer.leaving = message.role, features, False
        if message.role == "worker":
            self._worker(peer, queues, features)
        elif peer.session is not None:
            self.end(peer.session)
        extra = None if features is None else self._features().format().encode()
        state.ack(peer, message.id, extra)
        self.heartbeats.send(peer)
        if peer.session is not None and features is not None:
            self._reconcile(peer.session, features.received, set(features.held), resend=True)
            self._cancel_revoked(peer, peer.session, features.held)

    def _cancel_revoked(self, peer: Peer, session: Session, held: tuple[int, ...]) -> None:
        """Cancel the deliveries of a returned session that it has lost while it was given up."""
        state = self.state
        given_up = self.revoked.take(session, held) + state.suspects.returned(session, held)
        for job_id, delivery in given_up:
            self._cancel(peer, job_id, delivery, "the session was given up")
            # Its worker was disconnected, and had not died of it.
            state.suspects.absolve(job_id, delivery, state.jobs.get(job_id))
        unconfirmed = self.revoked.take_unconfirmed(session, held)
        if unconfirmed:  # a broker may have been killed before it sent the CANCEL

            def settle(rows: Mapping[str, JobRow]) -> None:
                for job_id, row in rows.items():
                    if row.job.state is JobState.CANCELLED:
                        self._cancel(peer, job_id, unconfirmed[job_id], "the job was cancelled")

            state.write(FindJobs(list(unconfirmed), 0), settle)

    def _cancel(self, peer: Peer, job_id: str, delivery: int, reason: str) -> None:
        message = Cancel(self.state.message_id(), job_id, str(delivery), reason)
        self.state.send(peer, message.frames())

    def _read_features(self, text: str) -> Features:
        features = Features.parse(text)
        if features.session.startswith(LEGACY_PREFIX):
            msg = f"a session id does not begin with {LEGACY_PREFIX!r}: those the broker makes"
            raise ProtocolError(msg, code="bad-features")
        if max(len(features.session), len(features.name)) > self.state.limits.max_id:
            msg = f"session and name have at most {self.state.limits.max_id} characters"
            raise ProtocolError(msg, code="too-large")
        return features

    def _features(self) -> Features:
        state = self.state
        return Features(
            epoch=state.epoch,
            store=state.store_id,
            max_frame=state.limits.max_frame,
            publish=state.addresses.get("subscribe", ""),
        )

    def _worker(
        self, peer: Peer, queues: tuple[tuple[int, str], ...], features: Features | None
    ) -> None:
        state = self.state
        legacy = features is None
        session = self._session(peer, features)
        session.name = (features.name if features else "") or session.id
        session.queues = queues or ((10, state.limits.default_queue),)
        session.weights = {name: weight for weight, name in reversed(session.queues)}
        session.tasks = frozenset(features.tasks) if features else frozenset()
        session.callables = bool(features and features.callables)
        session.inputs = bool(features and "inputs" in features.extensions)
        session.legacy = legacy
        tasks = None if not legacy and not session.tasks else session.tasks
        session.eligibility = Eligibility(tasks, legacy or session.callables)
        if features:  # a broker that was restarted goes on above what the worker has seen
            session.next_number = max(session.next_number, features.received + 1)
        session.disconnected_at = session.reconnect_timeout = 0.0
        session.closing = False
        session.blocked.clear()
        if legacy:
            session.free = session.slots = 0
            session.informed_at = state.now
        for _, name in session.queues:
            queue = state.queue(name)
            queue.served_at = state.now
            if queue.maker != peer.maker:
                state.disown(queue)  # who named it first had a reason to
        self.unroutable.session_changed(session)

    def session_id(self, peer: Peer, features: Features | None) -> str:
        """Return the id of the session that a worker begins or goes on with at its INFORM."""
        key = peer.key
        made = f"{LEGACY_PREFIX}{self.state.epoch}.{key.port}.{key.identity.hex()}"
        return (features.session if features else "") or made

    def _session(self, peer: Peer, features: Features | None) -> Session:
        """Return the session that a peer names, or one for it, and connect the two."""
        state = self.state
        session_id = self.session_id(peer, features)
        old = peer.session
        if old is not None and (features is None or old.id != session_id):
            self.end(old)  # a legacy peer starts anew; another one is another run now
        session = state.sessions.get(session_id)
        if session is None:
            session = state.sessions[session_id] = Session(session_id, self.new_order())
        elif session.peer is not None and session.peer is not peer:
            session.peer.session = None
        session.peer, peer.session = peer, session
        return session

    # What a worker holds

    def ready(self, peer: Peer, message: Ready) -> None:
        """Take a READY: a free slot of a legacy worker, the status of any other."""
        session = peer.session
        if session is None:
            self.state.error(peer, message.id, "inform-again", "say INFORM as a worker first")
        elif session.legacy:
            session.full = False
            session.free += 1
            if self.state.now - session.informed_at <= LEGACY_START:
                session.slots = max(session.slots, session.free + len(session.leases))
            session.blocked.clear()
        elif message.status is not None:
            self.status(session, message.status)

    def status(self, session: Session, text: str) -> None:
        """Take a STATUS: what the worker received, holds and wants."""
        status = Status.parse(text)
        session.max_chunks = min(status.window, 10_000)
        session.jobs = min(status.jobs, 10_000)
        session.full = False
        self._reconcile(session, status.received, set(status.held), resend=False)

    def _reconcile(self, session: Session, received: int, held: set[int], *, resend: bool) -> None:
        """Check what a worker holds: chunks that it does not have are queued or sent again.

        Args:
            session: The session.
            received: Highest chunk number that it received.
            held: Chunks that it has, or whose REPLYs it still has to get acknowledged.
            resend: Whether chunks above ``received`` are lost for certain (a new connection).
        """
        session.received = received
        self._update_orphaned_chunks(session, held)
        timeout = self.state.limits.heartbeat_interval
        for lease in list(session.leases.values()):
            if not lease.sent and not resend:
                continue
            if lease.number <= received:
                if lease.number not in held:
                    self.outcomes.give_back(session, lease, unstarted=True)
                if not lease.sent:  # by an earlier run of the broker: from now on it has a deadline
                    lease.sent = self.state.now
            elif resend or self.state.now - lease.sent >= timeout:
                self.dispatch.send_again(session, lease)

    def _update_orphaned_chunks(self, session: Session, held: set[int]) -> None:
        """Record chunks that it holds without a lease: they take its slots while they run."""
        now, known = self.state.now, session.orphaned_chunks
        session.orphaned_chunks = {n: known.get(n, now) for n in held if n not in session.leases}
        session.running_orphans = sum(
            now - since >= ORPHAN_GRACE for since in session.orphaned_chunks.values()
        )

    # Liveness

    def shift(self, seconds: float) -> None:
        """Move every deadline: the broker itself was away, or the clock jumped."""
        for peer in self.state.peers.values():
            peer.last_seen += seconds
            peer.sent += seconds
        for session in self.state.sessions.values():
            session.disconnected_at += seconds if session.disconnected_at else 0.0
            session.idle_since = 0.0
            for lease in session.leases.values():
                lease.until += seconds
                lease.sent += seconds if lease.sent else 0.0
        if self.next_grace_end is not None:
            self.next_grace_end += seconds

    def tick(self) -> None:
        """Drop peers that were silent for too long, and end what timed out."""
        state, limits = self.state, self.state.limits
        now = state.now
        for peer in list(state.peers.values()):
            if now - peer.last_seen > limits.heartbeat_timeout and not peer.may_be_silent:
                self.drop(peer)
        for session in list(state.sessions.values()):
            self._check(session)
        self.end_graces()
        if state.suspects.by_id:
            for name in state.suspects.overdue(now):
                state.queue(name).version += 1  # any worker may have them now

    def end_graces(self) -> None:
        """End the sessions that were without a connection for too long."""
        ends = []
        for session in list(self.state.sessions.values()):
            if session.peer is None and session.disconnected_at:
                end = session.disconnected_at + (
                    session.reconnect_timeout or self.state.limits.grace
                )
                if self.state.now >= end:
                    self.end(session)
                else:
                    ends.append(end)
        self.next_grace_end = min(ends, default=None)

    def evict(self) -> None:
        """Make room for a new peer: forget a dead client that was only kept for its REPLY."""
        silent = [peer for peer in self.state.peers.values() if peer.may_be_silent]
        oldest = min(silent, key=lambda peer: peer.last_seen, default=None)
        limit = self.state.now - self.state.limits.heartbeat_timeout
        if oldest is not None and oldest.last_seen < limit:
            self.drop(oldest)

    def _check(self, session: Session) -> None:
        state = self.state
        session.full = False
        if session.dedicated_to and state.now - session.dedicated_since > ISOLATION_TIMEOUT:
            session.dedicated_to = ""
            session.blocked.clear()
        for lease in [lease for lease in session.leases.values() if not lease.remaining]:
            self.outcomes.close(session, lease)  # the commit that closed it has failed
        if session.peer is not None:
            for _, name in session.queues:
                state.queue(name).served_at = state.now
        if session.orphaned_chunks:
            self._update_orphaned_chunks(session, set(session.orphaned_chunks))
        if session.legacy:
            self._check_legacy(session)

    def _check_legacy(self, session: Session) -> None:
        now = self.state.now
        all_free = session.leases and session.free >= session.slots > 0
        if not all_free:
            session.idle_since = 0.0
        elif not session.idle_since:
            session.idle_since = now
        died = bool(session.idle_since) and now - session.idle_since >= LEGACY_REPLY_DELAY
        for lease in list(session.leases.values()):
            if died or now >= lease.until:
                death = Death.SHARED if died else Death.SILENT
                self.outcomes.give_back(session, lease, death=death)
        if session.closing and not session.leases:
            self.end(session)

    # Leaving

    def goodbye(self, peer: Peer) -> None:
        """Take a KBAI or KBYE: the peer gets no more messages."""
        session = peer.session
        if session is None:
            self.drop(peer)
            return
        if session.legacy:
            self._leave(peer)
        else:
            session.closing = True
            self.drop(peer)
            self.end(session)

    @staticmethod
    def _leave(peer: Peer) -> None:
        if peer.session is not None:
            peer.leaving = peer.session.closing = True

    def unreachable(self, peer: Peer) -> None:
        """Disconnect a peer that a message could not be sent to: it has a grace to inform again."""
        session = peer.session
        self._remove_peer(peer)
        if session is not None and session.peer is peer:
            session.peer = None
            limits, now = self.state.limits, self.state.now
            session.disconnected_at = now
            session.reconnect_timeout = limits.heartbeat_timeout if session.legacy else 0.0
            end = now + (session.reconnect_timeout or limits.grace)
            old = self.next_grace_end
            self.next_grace_end = end if old is None else min(old, end)

    def drop(self, peer: Peer) -> None:
        """Forget a dead peer, and give back what its session holds."""
        session = peer.session
        self._remove_peer(peer)
        if session is not None and session.peer is peer:
            session.peer = None
            if session.legacy and session.closing:
                return  # it finishes what it has; the leases end by themselves
            self.end(session, silent=True)

    def _remove_peer(self, peer: Peer) -> None:
        self.waiters.remove_peer(peer)
        self.state.peers.pop(peer.key, None)

    def end(self, session: Session, *, silent: bool = False) -> None:
        """End a session: its jobs are queued again, and a death is charged where one is certain.

        Args:
            session: Which; its peer is dead, has said goodbye or has informed as another one.
            silent: The peer may still be alive.
        """
        death = Death.ALONE if session.unanswered == 1 else Death.SHARED
        if silent:
            death = Death.SILENT
        for lease in list(session.leases.values()):
            self.revoked.add(session, lease)
            # A session that has not returned since the broker's start may have ended in any way.
            certain = not session.legacy and not session.closing and lease.sent > 0.0
            charge = _charge(session, lease, death) if certain else None
            self.outcomes.give_back(session, lease, death=charge)
        forget_worker(self.state, session)
        self.state.sessions.pop(session.id, None)
        self.revoked.forget_session(session)
        if session.peer is not None:
            # If the commit fails, the session is there again as one whose connection is lost.
            session.peer.session = None
            session.peer = None
        self.unroutable.session_changed(session)

    def queue_kbai(self) -> None:
        """Send KBAI to all registered peers, and KBYE as well to those without FEATURES.

        A legacy peer sends only the REPLYs of its jobs after that (emqp-1.0, "DISCONNECT and
        KBAI"), so its silence does not count until its leases end.
        """
        state = self.state
        for peer in state.peers.values():
            if peer.role and not peer.leaving:
                state.send(peer, Kbai(state.message_id()).frames())
                if peer.features is None:
                    state.send(peer, Kbai(state.message_id(), "KBYE").frames())
                    self._leave(peer)


def _charge(session: Session, lease: Lease, death: Death) -> Death:
    """Return what the loss of a session says about the jobs of a chunk.

    A chunk that was on its way when the network broke was never started. That is known of a
    suspect, since its worker asks before it starts; of any other job it is possible.
    """
    if lease.asks and not lease.started:
        return Death.UNREACHED
    if death is Death.ALONE and not lease.asks and lease.number > session.received:
        return Death.SHARED
    return death
