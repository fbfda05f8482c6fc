"""Sessions: registers peers, tracks the chunks that workers hold, and ends silent sessions.

`Sessions` handles INFORM, READY, STATUS and KBAI. `Heartbeats` sends the HEARTBEATs of the broker,
and `Revoked` has the leases of sessions that were given up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.broker.calls import forget_worker
from eventmq.broker.peers import LEGACY_PREFIX, Eligibility, Session
from eventmq.broker.suspects import ISOLATION_TIMEOUT, Death
from eventmq.errors import ProtocolError
from eventmq.job import JobState
from eventmq.store.reads import FindJobs
from eventmq.wire.commands import Cancel, Disconnect, Heartbeat, Inform, Kbai, Ready, Reply
from eventmq.wire.features import (
    EXTENSIONS,
    Features,
    Status,
    format_waiting,
    is_ours,
    is_version_0_3,
    parse_queues,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.broker.dispatch import Dispatch
    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Lease, Peer
    from eventmq.broker.state import State
    from eventmq.broker.unroutable import UnroutableJobs
    from eventmq.broker.waiters import ResultWaiters
    from eventmq.interfaces import QueueOrder
    from eventmq.store.reads import JobRow
    from eventmq.wire.commands import Command

__all__ = ["Heartbeats", "Revoked", "Sessions", "reads_refusal"]

logger = logging.getLogger("eventmq.broker")

#: Seconds after INFORM in which the READYs of a legacy worker show how many slots it has.
LEGACY_START = 5.0

#: Seconds for which a session may hold a chunk without a lease: its REPLY or the ACK may be in
#: transit.
ORPHAN_GRACE = 0.5

#: Seconds by which the REPLY of a legacy worker may arrive after the READY of the same slot.
LEGACY_REPLY_DELAY = 2.0

#: Largest memory of a worker that is believed, in bytes: 1 PiB.
_MAX_RSS = 1 << 50

#: Seconds between the report of the monitor about a lost connection and the first failing send.
_SETTLE = 0.02

#: Shortest time in seconds between two probes, however many connections are lost.
_PROBE_EVERY = 0.1

#: Commands that EventMQ 0.3 sends only after its INFORM.
_AFTER_INFORM = frozenset({b"HEARTBEAT", b"READY", b"REPLY"})

#: Number of revoked chunks that are remembered. Older ones are not cancelled at the worker; its
#: replies are stale anyway.
MAX_REVOKED = 1000


class Sessions:
    """Registers peers, and maintains worker sessions and their leases."""

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
        #: Time at which `end_graces` must be called, None if `tick` calls it early enough.
        self.next_grace_end: float | None = None
        self.revoked = Revoked()

    # INFORM

    def inform(self, peer: Peer, message: Inform) -> None:
        """Register a peer and answer with ACK, then with HEARTBEAT."""
        state = self.state
        if message.role not in {"worker", "scheduler", "client"}:
            raise ProtocolError(
                f"a peer is a worker, scheduler or client, not {message.role[:40]!r}",
                code="bad-role",
            )
        limits = state.limits
        if max(len(message.queues), len(message.features or "")) > limits.max_inform:
            raise ProtocolError(
                f"a frame of INFORM is over {limits.max_inform} characters", code="too-large"
            )
        queues = parse_queues(message.queues) if message.role == "worker" else ()
        if len(queues) > limits.max_inform_queues:
            raise ProtocolError(
                f"a worker serves at most {limits.max_inform_queues} queues", code="bad-queues"
            )
        if any(len(name) > limits.max_id for _, name in queues):
            raise ProtocolError(
                f"a queue name has at most {limits.max_id} characters", code="too-large"
            )
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
        known = tuple(name for name in EXTENSIONS if state.owner is not None or name != "owner")
        own = Features(
            extensions=known,
            epoch=state.epoch,
            store=state.store_id,
            max_frame=limits.max_frame,
            publish=state.addresses.get("subscribe", ""),
            owner=state.owner,
        )
        state.ack(peer, message.id, None if features is None else own.format().encode())
        self.heartbeats.send(peer)
        if peer.session is not None and features is not None:
            self._reconcile(peer.session, features.received, set(features.held), resend=True)
            self._cancel_revoked(peer, peer.session, features.held)

    def _cancel_revoked(self, peer: Peer, session: Session, held: tuple[int, ...]) -> None:
        """Cancel the deliveries that a returned session lost while it was given up."""
        state = self.state
        given_up = self.revoked.pop(session, held) + state.suspects.returned(session, held)
        for job_id, delivery in given_up:
            self._cancel(peer, job_id, delivery, "the session was given up")
            # The worker was only disconnected: the job has not killed it.
            state.suspects.absolve(job_id, delivery, state.jobs.get(job_id))
        unconfirmed = self.revoked.pop_unconfirmed(session, held)
        if unconfirmed:  # the broker may have been killed before it sent CANCEL

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
            raise ProtocolError(
                f"a session id does not begin with {LEGACY_PREFIX!r}: the broker makes such ids",
                code="bad-features",
            )
        texts = (features.session, features.name, features.pool, features.version)
        if max(map(len, texts)) > self.state.limits.max_id:
            raise ProtocolError(
                "session, name, pool and version have at most "
                f"{self.state.limits.max_id} characters",
                code="too-large",
            )
        return features

    def _worker(
        self, peer: Peer, queues: tuple[tuple[int, str], ...], features: Features | None
    ) -> None:
        state = self.state
        legacy = features is None
        session = self._session(peer, features)
        session.about = features
        session.name = (features.name if features else "") or session.id
        session.queues = queues or ((10, state.limits.default_queue),)
        session.weights = {name: weight for weight, name in reversed(session.queues)}
        session.tasks = frozenset(features.tasks) if features else frozenset()
        session.callables = bool(features and features.callables)
        session.inputs = bool(features and "inputs" in features.extensions)
        session.legacy = legacy
        tasks = None if not legacy and not session.tasks else session.tasks
        session.eligibility = Eligibility(tasks, legacy or session.callables)
        if features:  # after a restart, continue above the numbers that the worker has received
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
                state.disown(queue)  # another peer uses it now
        self.unroutable.session_changed(session)

    def session_id(self, peer: Peer, features: Features | None) -> str:
        """Return the id of the session that a worker begins or resumes with INFORM."""
        key = peer.key
        generated = f"{LEGACY_PREFIX}{self.state.epoch}.{key.port}.{key.identity.hex()}"
        return (features.session if features else "") or generated

    def _session(self, peer: Peer, features: Features | None) -> Session:
        """Return the session of a peer, making it if it is new, and connect the two."""
        state = self.state
        session_id = self.session_id(peer, features)
        old = peer.session
        if old is not None and (features is None or old.id != session_id):
            self.end(old)  # a new run of the worker
        session = state.sessions.get(session_id)
        if session is None:
            session = state.sessions[session_id] = Session(session_id, self.new_order())
        elif session.peer is not None and session.peer is not peer:
            session.peer.session = None
        session.peer, peer.session = peer, session
        return session

    # Peers without INFORM

    def check_registered(self, peer: Peer, message: Command) -> None:
        """Mute or unmute a peer that has not informed, before its message is handled.

        Such a peer registered before the broker was restarted. Peers with FEATURES get ERROR
        ``inform-again``. EventMQ 0.3 counts every message as a sign of life and knows no ERROR: its
        job managers and schedulers send INFORM again only after 15 seconds without a message. So
        they are muted: nothing is sent to them, not even an ACK, until they do.
        """
        kind = type(message)
        if kind is Inform:
            peer.muted = False
            return
        if kind not in {Heartbeat, Ready, Reply} or _reads_errors(peer, message):
            return
        if not peer.muted:
            peer.muted = peer.warned = True
            self.state.counters["muted"] += 1
            logger.info("peer %s has not sent INFORM; it is sent nothing until it does", peer.key)
        if kind is not Heartbeat:
            self._dismiss(peer)

    def _dismiss(self, peer: Peer) -> None:
        """Make a job manager of EventMQ 0.3 inform again, by a DISCONNECT.

        A DISCONNECT stops other peers, and ends a scheduler of EventMQ 0.3. So it is sent only if
        the message can only come from a job manager, and the routing id is of EventMQ 0.3.
        """
        if peer.dismissed or self.state.closing or not is_version_0_3(peer.key.identity):
            return
        peer.dismissed, peer.muted = True, False
        self.state.send(peer, Disconnect(self.state.message_id()).frames())
        peer.muted = True

    # Chunks that a worker holds

    def ready(self, peer: Peer, message: Ready) -> None:
        """Handle a READY: a free slot of a legacy worker, the STATUS of any other."""
        session = peer.session
        if session is None:
            self.state.error(peer, message.id, "inform-again", "send INFORM as a worker first")
        elif session.legacy:
            session.full = False
            session.free += 1
            if self.state.now - session.informed_at <= LEGACY_START:
                session.slots = max(session.slots, session.free + len(session.leases))
            session.blocked.clear()
        elif message.status is not None:
            self.status(session, message.status)

    def status(self, session: Session, text: str) -> None:
        """Handle a STATUS: the chunks that the worker received, holds and wants."""
        status = Status.parse(text)
        session.max_chunks = min(status.window, 10_000)
        session.jobs = min(status.jobs, 10_000)
        session.rss = min(status.rss, _MAX_RSS) or session.rss
        session.full = False
        self._reconcile(session, status.received, set(status.held), resend=False)

    def _reconcile(self, session: Session, received: int, held: set[int], *, resend: bool) -> None:
        """Compare leases with the chunks of a worker; requeue or resend those that it lacks.

        Args:
            session: The session.
            received: Highest chunk number that it has received.
            held: Chunks that it has, or whose REPLYs were not acknowledged.
            resend: Whether chunks above ``received`` are certainly lost: the connection is new.
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
                if not lease.sent:  # sent by an earlier run of the broker: its time starts now
                    lease.sent = self.state.now
            elif resend or self.state.now - lease.sent >= timeout:
                self.dispatch.send_again(session, lease)

    def _update_orphaned_chunks(self, session: Session, held: set[int]) -> None:
        """Record held chunks without a lease: they occupy slots while they run."""
        now, known = self.state.now, session.orphaned_chunks
        session.orphaned_chunks = {n: known.get(n, now) for n in held if n not in session.leases}
        session.running_orphans = sum(
            now - since >= ORPHAN_GRACE for since in session.orphaned_chunks.values()
        )

    # Liveness

    def shift(self, seconds: float) -> None:
        """Move every deadline: the broker was suspended, or store time jumped."""
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
        """Drop peers that were silent for too long, and end sessions and leases that timed out."""
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
                state.queue(name).version += 1  # any worker may get the suspects now

    def end_graces(self) -> None:
        """End the sessions that were disconnected for too long."""
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
        """Make room for a new peer: drop a silent client that was kept only for its REPLY."""
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
        """Handle KBAI or KBYE: the peer gets no more messages."""
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
        """Disconnect a peer that cannot be sent messages; it may inform again within a grace."""
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
        """Forget a dead peer, and give back the chunks of its session."""
        session = peer.session
        self._remove_peer(peer)
        if session is not None and session.peer is peer:
            session.peer = None
            if session.legacy and session.closing:
                return  # it finishes its jobs, or its leases expire
            self.end(session, silent=True)

    def _remove_peer(self, peer: Peer) -> None:
        self.waiters.remove_peer(peer)
        self.state.peers.pop(peer.key, None)

    def end(self, session: Session, *, silent: bool = False) -> None:
        """End a session: requeue its jobs, and charge a death to those that may have caused one.

        Args:
            session: The session; its peer is dead, has said goodbye or has informed as another one.
            silent: Whether the peer may still be alive.
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
            # If the commit fails, the session is restored without a connection.
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
    """Return the kind of death to charge to the jobs of a chunk when its session is lost.

    A chunk that was in transit when the network broke was never started. For a suspect the broker
    knows this, since the worker announces the start; for any other job it is possible.
    """
    if lease.asks and not lease.started:
        return Death.UNREACHED
    if death is Death.ALONE and not lease.asks and lease.number > session.received:
        return Death.SHARED
    return death


class Heartbeats:
    """Sends HEARTBEATs to peers, and probes to sessions after a connection was lost.

    Args:
        state: The memory of the broker.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        #: Time from which `run` must probe, 0.0 for at once, None if no connection was lost.
        self.probe_at: float | None = None
        #: Time at which `run` must send HEARTBEATs.
        self.next_beat = 0.0
        #: Whether a connection was lost since the last `run`.
        self._lost = False
        #: Times of the last loss, of the last probe, and of the next probe.
        self._lost_at = self._probed_at = 0.0
        self._next_probe: float | None = None

    def connection_lost(self) -> None:
        """Record that a connection was lost, so that `run` probes.

        The monitor does not tell which peer was lost. So every worker with jobs is sent a
        HEARTBEAT; if that fails, the grace of its session begins.
        """
        self._lost = True
        self.probe_at = 0.0

    def shift(self, seconds: float) -> None:
        """Move every timestamp: the broker was suspended, or store time jumped."""
        self.next_beat = self.state.now + self.state.limits.lease_interval / 2
        self._lost_at += seconds
        self._probed_at += seconds
        if self._next_probe is not None:
            self._next_probe += seconds
        self.probe_at = 0.0 if self._lost else self._next_probe

    def run(self) -> None:
        """Send the HEARTBEATs and probes that are due."""
        now = self.state.now
        if self._lost:
            self._lost, self._lost_at = False, now
            if self._next_probe is None:
                self._next_probe = max(now + _SETTLE, self._probed_at + _PROBE_EVERY)
        if self._next_probe is not None and now >= self._next_probe:
            for session in self.state.sessions.values():
                if session.peer is not None and session.leases and not session.legacy:
                    self.send(session.peer)
            self._probed_at = now
            # The ROUTER may not have noticed the last loss yet.
            self._next_probe = now + _PROBE_EVERY if now < self._lost_at + _SETTLE else None
        self.probe_at = self._next_probe
        if now >= self.next_beat:
            self.next_beat = now + self.state.limits.lease_interval / 2
            self._beat()

    def _beat(self) -> None:
        limits, now = self.state.limits, self.state.now
        for peer in self.state.peers.values():
            if peer.role and not peer.leaving:
                session = peer.session
                busy = session is not None and (
                    bool(session.leases) or (not session.legacy and self._waiting(session) > 0)
                )
                every = limits.lease_interval if busy else limits.heartbeat_interval
                if now - peer.sent >= every or (
                    busy
                    and session is not None
                    and not session.legacy
                    and now - session.notified_at >= every
                ):
                    self.send(peer)

    def send(self, peer: Peer) -> None:
        """Send a HEARTBEAT, with the number of waiting jobs and the owner of a shared store."""
        state, session, features = self.state, peer.session, peer.features
        waiting = None
        if session is not None and not session.legacy:
            session.notified_at = state.now
            waiting = self._waiting(session)
        reads_owner = features is not None and "owner" in features.extensions
        status = format_waiting(waiting, state.owner if reads_owner else None)
        state.send(peer, Heartbeat(state.message_id(), f"{state.wall:.2f}", status).frames())

    def _waiting(self, session: Session) -> int:
        """Return how many jobs wait in the queues of a session."""
        queues = [self.state.queue(name) for _, name in session.queues]
        return max(0, sum([queue.counts.queued - queue.running for queue in queues]))


def reads_refusal(frames: Sequence[bytes]) -> bool:
    """Return whether an ERROR is safe to send to an unknown peer, judged by its first message.

    Args:
        frames: The unchecked message, from the routing id on.
    """
    return is_ours(frames[0]) or not _AFTER_INFORM.intersection(frames[3:4])


def _reads_errors(peer: Peer, message: Command) -> bool:
    """Return whether a peer understands an ERROR, or is certainly not EventMQ 0.3.

    Its routing id shows that, or a key, since EventMQ 0.3 knows no CURVE, or a frame that only
    peers with FEATURES send.
    """
    if is_ours(peer.key.identity) or (peer.grant is not None and not peer.grant.keyless):
        return True
    if isinstance(message, Reply):
        return message.outcome is not None
    return isinstance(message, Heartbeat | Ready) and message.status is not None


class Revoked:
    """Revoked leases: deliveries to cancel at sessions that return after they were given up."""

    def __init__(self) -> None:
        #: The last revoked chunks: (session id, number) -> (job id, delivery) of the open jobs.
        self._chunks: dict[tuple[str, int], list[tuple[str, int]]] = {}
        #: Deliveries that were cancelled while their session was disconnected: session id ->
        #: (chunk, job id, delivery).
        self._cancelled: dict[str, list[tuple[int, str, int]]] = {}
        #: Unconfirmed cancels: deliveries that had ended when the broker was started, in the same
        #: form; at most those of the open chunks.
        self._unconfirmed: dict[str, list[tuple[int, str, int]]] = {}

    def add(self, session: Session, lease: Lease) -> None:
        """Record a chunk before it is given back."""
        if session.legacy:
            return
        if len(self._chunks) >= MAX_REVOKED:
            del self._chunks[next(iter(self._chunks))]
        self._chunks[session.id, lease.number] = [
            (job.id, delivery)
            for job, delivery in zip(lease.jobs, lease.deliveries, strict=True)
            if job is not None
        ]

    def add_cancelled(self, session: Session, number: int, job_id: str, delivery: int) -> None:
        """Record a delivery that was cancelled while its session is disconnected."""
        if session.id not in self._cancelled and len(self._cancelled) >= MAX_REVOKED:
            del self._cancelled[next(iter(self._cancelled))]
        cancelled = self._cancelled.setdefault(session.id, [])
        cancelled.append((number, job_id, delivery))
        del cancelled[:-MAX_REVOKED]

    def add_unconfirmed(self, session: Session, number: int, job_id: str, delivery: int) -> None:
        """Record a delivery that ended before a restart; its session may not know that."""
        self._unconfirmed.setdefault(session.id, []).append((number, job_id, delivery))

    def pop_unconfirmed(self, session: Session, held: Iterable[int]) -> dict[str, int]:
        """Return and forget the unconfirmed cancels of chunks that a session holds.

        Returns:
            Job id -> delivery.
        """
        ended, numbers = self._unconfirmed.pop(session.id, ()), set(held)
        return {job_id: delivery for number, job_id, delivery in ended if number in numbers}

    def forget_session(self, session: Session) -> None:
        """Forget the unconfirmed cancels of a session that never came back."""
        self._unconfirmed.pop(session.id, None)

    def pop(self, session: Session, held: Iterable[int]) -> list[tuple[str, int]]:
        """Return and forget the deliveries of chunks that the session still holds."""
        numbers = set(held)
        cancelled = self._cancelled.pop(session.id, ())
        return [
            entry
            for number in numbers
            if number not in session.leases
            for entry in self._chunks.pop((session.id, number), [])
        ] + [(job_id, delivery) for number, job_id, delivery in cancelled if number in numbers]
