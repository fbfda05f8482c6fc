"""Recovery: takes over counts, subqueues and open chunks from a store that was opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.peers import LEGACY_PREFIX, Lease, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.revoked import Revoked
    from eventmq.broker.state import State
    from eventmq.interfaces import QueueOrder
    from eventmq.store.recovery import Recovered
    from eventmq.store.writes import Chunk

__all__ = ["Recovery"]


class Recovery:
    """Fills an empty state from what a store has."""

    def __init__(
        self,
        state: State,
        outcomes: Outcomes,
        revoked: Revoked,
        new_order: Callable[[], QueueOrder],
    ) -> None:
        self.state = state
        self.outcomes = outcomes
        self.revoked = revoked
        self.new_order = new_order

    def run(self, recovered: Recovered) -> None:
        """Fill the state; leased jobs wait one heartbeat timeout for their session."""
        state = self.state
        state.epoch, state.store_id = recovered.epoch, recovered.store_id
        state.next_seq, state.next_ready_at = recovered.next_seq, recovered.next_ready_at
        state.next_expiry = recovered.next_expiry
        state.graphs, state.next_deadline = recovered.graphs, recovered.next_deadline
        state.limiters.recover(recovered.limiters)
        state.suspects.recover(recovered.suspects)
        for name in state.limiters.of_queues:
            state.queue(name)  # it is in the settings, so it is listed
        for name, counts in recovered.counts.items():
            state.queue(name).counts = counts
        for name, subqueue, first in recovered.subqueues:
            queue = state.busy[name] = state.queue(name)
            queue.rewind(subqueue, first)
        for chunk in recovered.chunks:
            session = self._session(chunk)
            self._lease(session, chunk)
            if not session.legacy:
                self._record(session, chunk)

    def _record(self, session: Session, chunk: Chunk) -> None:
        """Record what has ended: the broker may have died before it sent that to the worker."""
        for (job, delivery), job_id in zip(chunk.leases, chunk.ids, strict=True):
            if job is None and job_id:
                self.revoked.add_unconfirmed(session, chunk.number, job_id, delivery)

    def _session(self, chunk: Chunk) -> Session:
        state = self.state
        session = state.sessions.get(chunk.session)
        if session is None:
            session = Session(chunk.session, self.new_order(), name=chunk.session)
            session.disconnected_at = state.now
            session.reconnect_timeout = state.limits.heartbeat_timeout
            session.legacy = chunk.session.startswith(LEGACY_PREFIX)
            state.sessions[chunk.session] = session
        return session

    def _lease(self, session: Session, chunk: Chunk) -> None:
        state, number = self.state, chunk.number
        jobs = [job for job, _ in chunk.leases]
        deliveries = [delivery for _, delivery in chunk.leases]
        there = [job for job in jobs if job is not None]
        queue = there[0].queue if there else ""
        message_id = f"{session.id[:64]}.{number}"
        lease = Lease(number, queue, jobs, deliveries, message_id, state.now, remaining=len(there))
        lease.until = (
            state.now + state.limits.heartbeat_timeout
        )  # of a legacy one: as long as its session
        lease.sent = state.now if session.legacy else 0.0
        lease.leased = chunk.leased
        session.leases[number] = lease
        session.next_number = max(session.next_number, number + 1)
        self._hold(session, lease)
        if not there:
            self.outcomes.close(session, lease)

    def _hold(self, session: Session, lease: Lease) -> None:
        state = self.state
        for position, job in enumerate(lease.jobs):
            if job is not None:
                job.delivery = lease.deliveries[position]
                state.jobs[job.id] = job
                state.queue(job.queue)
                state.update_limits(job.headers, job.seq)
                if job.deaths:
                    state.suspects.add(job)
                state.leased(job, (session, lease, position), again=True)
