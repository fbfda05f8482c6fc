"""Affinity: which jobs are meant for which session, where the routing strategy has keys.

`Dispatch` asks it while it takes jobs from a queue; it does not exist where the strategy has no
keys. The answers depend on loads and on the time, so a session that found nothing scans again when
another one takes no more, and from time to time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from eventmq.headers import parse_headers
from eventmq.interfaces import WorkerView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventmq.broker.peers import Session
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.interfaces import KeyedRouting, RoutingStrategy

    Admits = Callable[[Session, str], bool]
    CostOf = Callable[[str], float]

__all__ = ["Affinity"]

#: Seconds after which sessions that found nothing scan again.
RESCAN_EVERY = 0.2


class Affinity:
    """Asks the strategy which session a key is for.

    Args:
        state: The memory of the broker.
        routing: The strategy.
        admits: Returns whether a session may be offered a header text.
    """

    def __init__(self, state: State, routing: KeyedRouting, admits: Admits) -> None:
        self._state = state
        self._routing = routing
        self._admits = admits
        self._scanned_at = 0.0
        #: Queue and session of those that took a chunk at their last scan.
        self._taking: set[tuple[str, str]] = set()

    @classmethod
    def of(cls, state: State, routing: RoutingStrategy, admits: Admits) -> Affinity | None:
        """Return the affinity of a strategy, None if it has no keys."""
        if not routing.by_key:
            return None
        return cls(state, cast("KeyedRouting", routing), admits)

    def narrow(self, queue: Queue, session: Session, cost_of: CostOf) -> CostOf:
        """Return ``cost_of`` for the jobs of a queue that are meant for a session, or for any."""
        routing, name, now = self._routing, queue.name, self._state.now
        views: dict[str, list[WorkerView]] = {}

        def narrowed(text: str) -> float:
            cost = cost_of(text)
            if cost < 0.0:
                return cost
            headers = parse_headers(text)
            key = routing.key(name, text) if headers.content_type else ""
            if not key:
                return cost
            workers = views.get(headers.task)
            if workers is None:
                workers = views[headers.task] = self._views(name, session, text)
            return cost if routing.prefer(name, key, workers, now) == session.id else -1.0

        return narrowed

    def _views(self, name: str, session: Session, text: str) -> list[WorkerView]:
        """Return all sessions that may get the jobs of a header text, with or without credit."""
        refused = set().union(*self._state.refusals.values())
        return [
            WorkerView(s.id, max(s.credit, 0), len(s.leases))
            for s in self._state.sessions.values()
            if s is session
            or (
                s.peer is not None
                and not s.closing
                and s.id not in refused
                and any(own == name for _, own in s.queues)
                and self._admits(s, text)
            )
        ]

    def leased(self, queue: Queue, session: Session) -> None:
        """Record that a session got a chunk; with its last one it may pass keys on."""
        self._taking.add((queue.name, session.id))
        if session.credit <= 0:
            self.declined(queue, session)

    def declined(self, queue: Queue, session: Session) -> None:
        """Let others scan again when a session takes no more: it may pass keys on."""
        if (queue.name, session.id) in self._taking:
            self._taking.remove((queue.name, session.id))
            queue.version += 1

    def rescan(self, queues: Iterable[Queue]) -> None:
        """Let sessions scan again, if they did not for a while."""
        now = self._state.now
        if not 0.0 <= now - self._scanned_at < RESCAN_EVERY:
            self._scanned_at = now
            self._taking.clear()
            for queue in queues:
                queue.version += 1
