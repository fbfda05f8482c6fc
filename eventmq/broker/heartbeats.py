"""HEARTBEATs of the broker: when a peer gets one, and probes after a connection was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.wire.commands import Heartbeat
from eventmq.wire.features import format_waiting

if TYPE_CHECKING:
    from eventmq.broker.peers import Peer, Session
    from eventmq.broker.state import State

__all__ = ["Heartbeats"]

#: Seconds after the monitor reports a lost connection until sending to that peer fails.
_SETTLE = 0.02

#: Seconds between two probes, however many connections are lost.
_PROBE_EVERY = 0.1


class Heartbeats:
    """Sends HEARTBEATs, and probes sessions whose connection may be lost.

    Args:
        state: Of the broker.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        #: When `run` must probe, 0.0 for at once, None while no connection was lost.
        self.due: float | None = None
        #: When `run` must send HEARTBEATs.
        self.next_beat = 0.0
        #: A connection was lost since `run`.
        self._lost = False
        #: When the last loss was, when the last probe was, and when the next one is.
        self._lost_at = self._probed_at = 0.0
        self._next_probe: float | None = None

    def connection_lost(self) -> None:
        """Record that a connection was lost: `run` probes.

        The monitor does not say which peer was lost. So every worker with jobs is sent a HEARTBEAT;
        where that fails, the grace of its session begins.
        """
        self._lost = True
        self.due = 0.0

    def shift(self, seconds: float) -> None:
        """Move every timestamp: the broker itself was away, or the clock jumped."""
        self.next_beat = self.state.now + self.state.limits.lease_interval / 2
        self._lost_at += seconds
        self._probed_at += seconds
        if self._next_probe is not None:
            self._next_probe += seconds
        self.due = 0.0 if self._lost else self._next_probe

    def run(self) -> None:
        """Send the HEARTBEATs and probes that are due."""
        now = self.state.now
        if self._lost:
            self._lost, self._lost_at = False, now
            if self._next_probe is None:
                self._next_probe = max(now + _SETTLE, self._probed_at + _PROBE_EVERY)
        if self._next_probe is not None and now >= self._next_probe:
            self._probe()
            self._probed_at = now
            # The ROUTER may not know yet of a connection that was lost just now.
            self._next_probe = now + _PROBE_EVERY if now < self._lost_at + _SETTLE else None
        self.due = self._next_probe
        if now >= self.next_beat:
            self.next_beat = now + self.state.limits.lease_interval / 2
            self._beat()

    def _probe(self) -> None:
        for session in self.state.sessions.values():
            if session.peer is not None and session.leases and not session.legacy:
                self.send(session.peer)

    def _beat(self) -> None:
        limits, now = self.state.limits, self.state.now
        for peer in self.state.peers.values():
            if peer.role and not peer.leaving:
                session = peer.session
                busy = session is not None and self._works(session)
                every = limits.lease_interval if busy else limits.heartbeat_interval
                if now - peer.sent >= every or (
                    busy
                    and session is not None
                    and not session.legacy
                    and now - session.notified_at >= every
                ):
                    self.send(peer)

    def _works(self, session: Session) -> bool:
        """Return whether a session holds jobs, or jobs wait in its queues."""
        return bool(session.leases) or (not session.legacy and self._waiting(session) > 0)

    def send(self, peer: Peer) -> None:
        """Send a HEARTBEAT; that to a worker with FEATURES has the number of jobs in its queues."""
        state, session = self.state, peer.session
        status = None
        if session is not None and not session.legacy:
            session.notified_at = state.now
            status = format_waiting(self._waiting(session))
        state.send(peer, Heartbeat(state.message_id(), f"{state.wall:.2f}", status).frames())

    def _waiting(self, session: Session) -> int:
        """Return how many jobs wait in the queues of a session."""
        queues = [self.state.queue(name) for _, name in session.queues]
        stored = sum([queue.counts.queued - queue.running for queue in queues])
        return max(0, stored)
