"""Least recently used, the default: the worker that waited longest for jobs gets the next ones.

It spreads work evenly and needs no measurement. Workers get one chunk each, round after round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk import factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, RoutingStrategy, WorkerView

__all__ = ["LeastRecentlyUsed", "eventmq_routing_strategies"]

#: Sessions that are remembered; twice the peers that a broker serves by default. The oldest are
#: forgotten first, and a forgotten session counts as unused, which it nearly is.
MAX_REMEMBERED = 20_000


class LeastRecentlyUsed:
    """A `RoutingStrategy`; O(workers) for one chunk, a sort for more."""

    by_key = False

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._round = 0

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, the least recently used first."""
        used = self._used
        if len(workers) == 1:
            chosen = [workers[0].session] * min(n, workers[0].credit)
        elif n == 1:
            chosen = [min(workers, key=lambda worker: used.get(worker.session, 0)).session]
        else:
            chosen = _deal(sorted(workers, key=lambda worker: used.get(worker.session, 0)), n)
        for session in chosen:
            self._round += 1
            used.pop(session, None)
            used[session] = self._round
        while len(used) > MAX_REMEMBERED:
            del used[next(iter(used))]
        return chosen


def _deal(workers: Sequence[WorkerView], n: int) -> list[str]:
    """Deal chunks to workers in order, round after round, while they have credit."""
    dealt: list[str] = []
    round_ = 0
    while len(dealt) < n:
        able = [worker.session for worker in workers if worker.credit > round_]
        if not able:
            break
        dealt += able[: n - len(dealt)]
        round_ += 1
    return dealt


make_strategy = factory(LeastRecentlyUsed)


@hookimpl
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide ``least-recently-used``."""
    return {"least-recently-used": make_strategy}
