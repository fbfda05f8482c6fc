"""Round robin: the workers of a queue get chunks in turn, in the order in which they came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk import factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, RoutingStrategy, WorkerView

__all__ = ["RoundRobin", "eventmq_routing_strategies"]

#: Queues whose position is remembered; the least recently used start anew at the first worker.
MAX_REMEMBERED = 10_000


class RoundRobin:
    """A `RoutingStrategy` with a turn per queue; O(workers + n).

    It counts places, not sessions: where workers come and go, or have no credit, the turn goes on
    from the same place among those that are left.
    """

    by_key = False

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, going round from where this queue's last turn ended."""
        count = len(workers)
        index = self._positions.pop(queue, 0)
        credit = [worker.credit for worker in workers]
        target = min(n, sum(credit))
        chosen: list[str] = []
        while len(chosen) < target:
            at = index % count
            if credit[at]:
                credit[at] -= 1
                chosen.append(workers[at].session)
            index += 1
        self._positions[queue] = index
        if len(self._positions) > MAX_REMEMBERED:
            del self._positions[next(iter(self._positions))]
        return chosen


make_strategy = factory(RoundRobin)


@hookimpl
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide ``round-robin``."""
    return {"round-robin": make_strategy}
