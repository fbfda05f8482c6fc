"""Weighted-fair, the default queue order: a queue of weight 40 gets four jobs for one of weight 10.

Start-time fair queueing by jobs: each queue has a virtual time that grows by jobs / weight, and the
queue with the least one is served. A queue that had no backlog for a while starts at the virtual
time of the one that was served last, so it neither loses its share nor saves one up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk import factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, QueueOrder

__all__ = ["WeightedFair", "eventmq_queue_orders"]


class WeightedFair:
    """A `QueueOrder`; keeps one virtual time per queue of its session."""

    def __init__(self) -> None:
        self._virtual_times: dict[str, float] = {}
        self._virtual_now = 0.0

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the queue with the least virtual time; of equals the heaviest, then the first."""
        if len(queues) == 1:
            return queues[0][1]
        now, times = self._virtual_now, self._virtual_times
        best = min(queues, key=lambda queue: (max(times.get(queue[1], now), now), -queue[0]))
        return best[1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Move the queue on by ``jobs`` / ``weight``; a weight below 1 counts as 1."""
        self._virtual_now = max(
            self._virtual_times.get(queue, self._virtual_now), self._virtual_now
        )
        self._virtual_times[queue] = self._virtual_now + jobs / max(weight, 1)


make_order = factory(WeightedFair)


@hookimpl
def eventmq_queue_orders() -> Mapping[str, Factory[QueueOrder]]:
    """Provide ``weighted-fair``."""
    return {"weighted-fair": make_order}
