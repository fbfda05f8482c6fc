"""Forgets idle queues: those that have been empty, and served by no worker, for some time.

A queue comes back with its next job, with its next worker, or when it is paused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.store.writes import ForgetQueues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State

__all__ = ["IdleQueues"]

logger = logging.getLogger("eventmq.broker")

#: Most queues that one tick scans, and one commit forgets.
SLICE = 1000

#: Seconds between two scans.
EVERY = 1.0


class IdleQueues:
    """Forgets queues that are not used.

    Args:
        state: The memory of the broker.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._names: list[str] = []
        self._scanned_at = float("-inf")
        self._busy = False

    def tick(self) -> None:
        """Scan some queues, if it is time."""
        state, now = self.state, self.state.now
        if self._busy or abs(now - self._scanned_at) < EVERY or now < state.hold_until:
            return
        if state.limits.legacy_queue_fallback == "refuse":
            return  # only workers make queues then; jobs for a forgotten one would be refused
        self._scanned_at = now
        if not self._names:
            self._names = list(state.queues)
        names, self._names = self._names[:SLICE], self._names[SLICE:]
        idle = [name for name in names if self._is_due(name)]
        if idle:
            self._busy = True
            state.write(ForgetQueues(idle, now), self._forgotten, self._undone)

    def _is_due(self, name: str) -> bool:
        """Return whether a queue has been unused for long enough; record since when it is."""
        queue, now = self.state.queues.get(name), self.state.now
        if queue is None:
            return False
        if self._is_used(queue):
            queue.idle_since = 0.0
            return False
        if not queue.idle_since or queue.idle_since > now:
            queue.idle_since = now
        return now - queue.idle_since >= self.state.limits.empty_queue_ttl

    def _is_used(self, queue: Queue) -> bool:
        state, counts = self.state, queue.counts
        return bool(
            counts.queued
            or counts.delayed
            or counts.blocked
            or counts.failed
            or counts.paused
            or queue.running
            or queue.coming
            or queue.unroutable
            or queue.subqueues
            or queue.limiter is not None
            or queue.name in state.busy
            or queue.name == state.limits.default_queue
            or abs(state.now - queue.served_at) <= state.limits.heartbeat_timeout
        )

    def _forgotten(self, names: Sequence[str]) -> None:
        state = self.state
        self._busy = False
        count = 0
        for name in names:
            queue = state.queues.get(name)
            if queue is not None and not self._is_used(queue):
                state.forget_queue(queue)
                count += 1
        state.counters["queues_forgotten"] += count
        if count:
            logger.debug("%d queues were empty and not served, and are forgotten", count)

    def _undone(self) -> None:
        self._busy = False
