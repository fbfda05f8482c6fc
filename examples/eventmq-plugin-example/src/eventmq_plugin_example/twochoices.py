"""Routing strategy ``random-two-choices``: two workers at random, the less busy one gets the chunk.

Nearly as even as asking all of them, at a cost that does not grow with their number
(Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from eventmq.sdk import read_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.sdk import PluginContext, RoutingStrategy, WorkerView


class RandomTwoChoices:
    """A routing strategy. ``random`` makes the choices."""

    by_key = False

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return up to ``n`` sessions, one choice after the other."""
        able = list(range(len(workers)))
        given = [0] * len(workers)
        chosen: list[str] = []
        while able and len(chosen) < n:
            place = self._better(able, workers, given)
            worker = workers[able[place]]
            given[able[place]] += 1
            chosen.append(worker.session)
            if given[able[place]] == worker.credit:
                able[place] = able[-1]
                able.pop()
        return chosen

    def _better(
        self, able: Sequence[int], workers: Sequence[WorkerView], given: Sequence[int]
    ) -> int:
        """Return the place in ``able`` of the less busy one of two."""
        first, second = (int(self._random.random() * len(able)) for _ in range(2))
        busy = [workers[able[i]].busy + given[able[i]] for i in (first, second)]
        return first if busy[0] <= busy[1] else second


@dataclass(frozen=True)
class Options:
    """Options of the strategy. ``seed``: makes the choices repeatable; 0 is none."""

    seed: int = 0


def make_strategy(context: PluginContext) -> RoutingStrategy:
    """Return a strategy for its options."""
    return RandomTwoChoices(Random(read_options(context, Options).seed or None))
