"""Least loaded: the worker that is filled least gets the next jobs.

It evens out where workers have different numbers of slots, or jobs run for very different times.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from eventmq.hookspecs import hookimpl
from eventmq.plugins.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.interfaces import Factory, PluginContext, RoutingStrategy, WorkerView

__all__ = ["LeastLoaded", "eventmq_routing_strategies"]


class LeastLoaded:
    """A `RoutingStrategy`; O(workers + n log workers).

    A worker's load is the part of what it wants to hold that it holds already. Among equals the
    turn goes round, so that idle workers share what little there is.
    """

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, the least loaded first; each chunk counts at once."""
        count, start = len(workers), self._turn
        self._turn += 1
        loads = [
            (worker.busy / (worker.busy + worker.room), (place - start) % count, place, worker.busy)
            for place, worker in enumerate(workers)
        ]
        heapify(loads)
        wanted = min(n, sum(worker.room for worker in workers))
        chosen: list[str] = []
        while len(chosen) < wanted:
            _, turn, place, busy = loads[0]
            worker = workers[place]
            chosen.append(worker.session)
            # At 1.0 it is full; those that are not come before it.
            load = (busy + 1) / (worker.busy + worker.room)
            heapreplace(loads, (load, turn, place, busy + 1))
        return chosen


def make_strategy(context: PluginContext) -> RoutingStrategy:
    """Return a strategy; there are no options."""
    read_options(context, {})
    return LeastLoaded()


@hookimpl
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide ``least-loaded``."""
    return {"least-loaded": make_strategy}
