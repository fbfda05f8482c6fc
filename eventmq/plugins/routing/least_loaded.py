"""Least loaded: the worker with the lowest load gets the next jobs.

It balances workers with different numbers of slots, and jobs of very different run times.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from eventmq.sdk import factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, RoutingStrategy, WorkerView

__all__ = ["LeastLoaded", "eventmq_routing_strategies"]


class LeastLoaded:
    """A `RoutingStrategy`; O(workers + n log workers).

    A worker's load is the share of its credit that is in use. Among equals the first one changes
    at every call, so that idle workers share few jobs.
    """

    by_key = False

    def __init__(self) -> None:
        self._round = 0

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, the least loaded first; each chunk counts at once."""
        count, start = len(workers), self._round
        self._round += 1
        loads = [
            (
                worker.busy / (worker.busy + worker.credit),
                (index - start) % count,
                index,
                worker.busy,
            )
            for index, worker in enumerate(workers)
        ]
        heapify(loads)
        target = min(n, sum(worker.credit for worker in workers))
        chosen: list[str] = []
        while len(chosen) < target:
            _, rank, index, busy = loads[0]
            worker = workers[index]
            chosen.append(worker.session)
            # At 1.0 it is full; those that are not come before it.
            load = (busy + 1) / (worker.busy + worker.credit)
            heapreplace(loads, (load, rank, index, busy + 1))
        return chosen


make_strategy = factory(LeastLoaded)


@hookimpl
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide ``least-loaded``."""
    return {"least-loaded": make_strategy}
