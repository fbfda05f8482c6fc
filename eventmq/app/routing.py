"""Makes the routing strategy of a broker: one for all queues, or others for some."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from eventmq.registry.names import ROUTING_STRATEGY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.app.app import EventMQ
    from eventmq.interfaces import KeyedRouting, RoutingStrategy, WorkerView

__all__ = ["PerQueue", "make_routing"]


class PerQueue:
    """A `KeyedRouting` that hands on to the strategy of each queue.

    Args:
        default: For queues that are not named.
        named: Queue -> strategy.
    """

    def __init__(self, default: RoutingStrategy, named: Mapping[str, RoutingStrategy]) -> None:
        self._default = default
        self._named = named
        strategies = (default, *named.values())
        self.by_key = any(getattr(strategy, "by_key", False) for strategy in strategies)

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return what the queue's strategy chooses."""
        return self._named.get(queue, self._default).choose(queue, workers, n)

    def key(self, queue: str, headers: str) -> str:
        """Return the key of the queue's strategy, "" if it has none."""
        strategy = self._named.get(queue, self._default)
        if not getattr(strategy, "by_key", False):
            return ""
        return cast("KeyedRouting", strategy).key(queue, headers)

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return what the queue's strategy prefers; asked only where it has keys."""
        strategy = cast("KeyedRouting", self._named.get(queue, self._default))
        return strategy.prefer(queue, key, workers, now)


def make_routing(app: EventMQ) -> RoutingStrategy:
    """Return what ``routing_strategy`` and ``queue_routing_strategies`` choose.

    Queues of one strategy share one object of it.

    Raises:
        PluginNotFound: No plugin provides it.
    """
    settings, plugins = app.settings, app.plugins
    wanted = {settings.routing_strategy, *(name for _, name in settings.queue_routing_strategies)}
    made = {name: plugins.make(ROUTING_STRATEGY, name, app=app) for name in sorted(wanted)}
    if not settings.queue_routing_strategies:
        return made[settings.routing_strategy]
    named = {queue: made[name] for queue, name in settings.queue_routing_strategies}
    return PerQueue(made[settings.routing_strategy], named)
