"""How long failed jobs are kept: by age and by bytes. The oldest go first, with a warning."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.operations import PruneFailed

if TYPE_CHECKING:
    from eventmq.broker.state import State
    from eventmq.operations import Pruned

__all__ = ["Retention"]

logger = logging.getLogger("eventmq.broker")

#: Failed jobs that one commit forgets.
SLICE = 1000

#: Seconds between two looks while jobs fail.
EVERY = 1.0


class Retention:
    """Keeps failed jobs within their bounds."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._busy = False
        self._looked = float("-inf")
        self._seen = -1
        #: Store time at which the oldest failed job is too old.
        self._due = 0.0

    def tick(self) -> None:
        """Look whether failed jobs must go, if some may have to."""
        state = self.state
        failed = state.counters["failed"]
        new = failed != self._seen and state.now - self._looked >= EVERY
        if self._busy or state.now < state.hold_until or not (new or state.now >= self._due):
            return
        self._looked, self._seen = state.now, failed
        if not any(queue.counts.failed for queue in state.queues.values()):
            self._due = float("inf")
            return
        self._busy = True
        limits = state.limits
        before = state.keeper.before(state.now - limits.failed_ttl)
        entry = PruneFailed(before, limits.max_failed_bytes, SLICE)
        state.write(entry, self._pruned, lambda: setattr(self, "_busy", False))

    def _pruned(self, verdict: Pruned) -> None:
        state = self.state
        self._busy = False
        for name, n in verdict.queues.items():
            state.queue(name).counts.failed -= n
            state.counters["failed_forgotten"] += n
            logger.warning(
                "%d failed jobs of queue %s were forgotten: too old, or too many", n, name
            )
        oldest = float("inf") if verdict.oldest is None else verdict.oldest
        oldest += state.keeper.spared(oldest)
        self._due = 0.0 if verdict.more else oldest + state.limits.failed_ttl + EVERY
