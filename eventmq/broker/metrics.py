"""Metrics of a broker, for the CALL ``metrics`` and for its own metrics page.

A limited number of queues and tasks have metrics of their own (`eventmq.store.metrics`); the
metrics of all others are added up under `OTHER`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from eventmq.store.metrics import OTHER
from eventmq.wire.owner import ACTIVE

if TYPE_CHECKING:
    from eventmq.broker.peers import Session
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State

__all__ = ["MAX_WORKERS", "BrokerMetrics"]

#: Number of workers that have metrics of their own.
MAX_WORKERS = 1000

#: Keys whose values are added up if several queues share a row. For ``paused`` and ``oldest`` the
#: row has the largest value.
_SUMMED = ("waiting", "delayed", "blocked", "running", "failed", "workers")


class BrokerMetrics:
    """Metrics of a broker.

    Args:
        state: The memory of the broker.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        state.calls["metrics"] = lambda peer, call, _: state.answer(peer, call, self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        """Return all metrics now, as plain values; times are in seconds."""
        state = self.state
        owner = state.owner
        return {
            "version": state.version,
            "role": ACTIVE if owner is None else owner.role,
            "epoch": state.epoch,
            "started": state.started + state.keeper.ahead,
            "without_owner": state.without_owner(),
            "peers": len(state.peers),
            "sessions": len(state.sessions),
            "unsent_bytes": state.unread_bytes(),
            "counters": dict(state.counters),
            "commits": state.commits.plain(),
            "store": dict(state.store_gauges()),
            "jobs": state.metrics.rows(),
            "queues": self._queues(),
            "workers": self._workers(),
        }

    def _queues(self) -> list[dict[str, Any]]:
        """Return a row for each queue with a label of its own, and one for all others.

        Queues with jobs or a worker get the remaining labels first.
        """
        state, rows = self.state, dict[str, dict[str, Any]]()
        served = Counter(
            name
            for session in state.sessions.values()
            if session.peer
            for _, name in session.queues
        )
        pairs = [(_values(queue, served[queue.name]), queue) for queue in state.queues.values()]
        for values, queue in sorted(pairs, key=lambda pair: not any(pair[0])):
            label = state.metrics.queue_label(queue.name)
            row = rows.setdefault(
                label, {"name": label, **dict.fromkeys(_SUMMED, 0), "paused": 0, "oldest": 0.0}
            )
            for key, value in zip(_SUMMED, values, strict=True):
                row[key] += value
            row["paused"] = max(row["paused"], int(queue.counts.paused))
            row["oldest"] = max(row["oldest"], queue.waited(state.now))
        return list(rows.values())

    def _workers(self) -> list[list[Any]]:
        """Return name, used slots and all slots of each connected worker."""
        rows: dict[str, list[Any]] = {}
        for session in self.state.sessions.values():
            if session.peer is None:
                continue
            own = session.name in rows or len(rows) < MAX_WORKERS
            name = session.name if own else OTHER
            row = rows.setdefault(name, [name, 0, 0])
            used, slots = _slots(session)
            row[1] += used
            row[2] += slots
        return list(rows.values())


def _values(queue: Queue, workers: int) -> tuple[int, ...]:
    """Return the values of `_SUMMED` of one queue."""
    counts, running = queue.counts, queue.running
    return (
        counts.queued - running, counts.delayed, counts.blocked, running, counts.failed, workers,
    )  # fmt: skip


def _slots(session: Session) -> tuple[int, int]:
    """Return the number of slots of a worker that have a job, and of all its slots."""
    slots = (session.about.slots if session.about else 0) or session.slots
    return min(slots, sum(lease.remaining for lease in session.leases.values())), slots
