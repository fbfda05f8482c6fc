"""Queue order ``lottery``: each queue has as many tickets as its weight, and one is drawn.

In the long run a queue of weight 40 gets four times the jobs of one of weight 10, as with the order
``weighted-fair``, but without any state (Waldspurger and Weihl, "Lottery Scheduling", 1994).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from eventmq.sdk import hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, PluginContext, QueueOrder


@dataclass(frozen=True)
class Options:
    """Options in the settings, in ``[eventmq.plugins.lottery]``."""

    seed: int | None = option(None, "Makes the draws repeatable.")
    least: int = option(1, "Minimum number of tickets of a queue, with any weight.", ge=1)


class Lottery:
    """The order; the broker makes one for each session of a worker, and uses it in one thread."""

    def __init__(self, options: Options) -> None:
        self._random = Random(options.seed)
        self._least = options.least

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return one of the (weight, name) pairs' names; they are two or more."""
        tickets = [max(weight, self._least) for weight, _ in queues]
        return self._random.choices(queues, tickets)[0][1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Do nothing: earlier jobs of a queue do not count."""


def make_order(context: PluginContext) -> QueueOrder:
    """Return an order for its options."""
    return Lottery(read_options(context, Options))


@hookimpl
def eventmq_queue_orders() -> Mapping[str, Factory[QueueOrder]]:
    """Provide ``lottery``."""
    return {"lottery": make_order}
