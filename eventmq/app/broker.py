"""Broker of an app, made from its settings and plugins: what ``eventmq broker`` runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from eventmq.app.wiring import Triggers
from eventmq.errors import NotAllowed
from eventmq.registry.manager import own_distribution
from eventmq.registry.names import QUEUE_ORDER, QUEUE_STORE, ROUTING_STRATEGY, scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import zmq

    from eventmq.broker.limits import Limits
    from eventmq.broker.runner import BrokerRunner
    from eventmq.clock import Clock
    from eventmq.interfaces import (
        KeyedRouting,
        QueueOrder,
        QueueStore,
        RoutingStrategy,
        WorkerView,
    )
    from eventmq.registry.manager import PluginManager
    from eventmq.settings import Settings

__all__ = [
    "PerQueue",
    "check_metrics_address",
    "keys_dir_of",
    "make_broker",
    "make_routing",
    "make_store",
    "version",
]

#: Port of a broker -> setting with its address.
_PORTS = {
    "main": "bind",
    "worker": "worker_bind",
    "admin": "admin_bind",
    "publish": "publish_bind",
    "subscribe": "subscribe_bind",
}

#: Stores to which the settings about storage apply.
_BUILT_IN_STORES = frozenset({"sqlite", "memory"})

#: Maximum number of bytes of arguments and results in one row of events, with a redactor; one value
#: may have a sixteenth of it. A row has to fit into a frame with others.
_EVENT_VALUES = 256 * 1024


def version() -> str:
    """Return the version of this package, "" in a checkout that is not installed."""
    distribution = own_distribution()
    return distribution.version if distribution else ""


def check_metrics_address(address: str, *, insecure: bool) -> None:
    """Raise `NotAllowed` if other machines can reach the metrics address and may not."""
    from eventmq.wire.sockets import is_local  # only servers need it

    if address and not insecure and not is_local(f"tcp://{address}"):
        raise NotAllowed(
            f"metrics_bind = {address} can be reached from other machines and nothing would be "
            "encrypted or checked: name a loopback address, or say --insecure"
        )


def make_broker(
    settings: Settings,
    plugins: PluginManager,
    clock: Clock,
    *,
    binds: Mapping[str, str] | None = None,
    store: str | None = None,
    store_options: Mapping[str, Any] | None = None,
    context: zmq.Context[Any] | None = None,
) -> BrokerRunner:
    """Return a broker for the app's settings; see `EventMQ.make_broker`."""
    from eventmq.broker.runner import BrokerRunner

    check_metrics_address(settings.metrics_bind, insecure=settings.insecure)
    binds = binds_of(settings) if binds is None else binds
    inside = all(address.startswith("inproc:") for address in binds.values())
    runner = BrokerRunner(
        store=make_store(settings, plugins, store, store_options),
        limits=limits_of(settings),
        routing=make_routing(settings, plugins, guarded=True),
        queue_order=_make_orders(settings, plugins),
        binds=binds,
        clock=clock,
        context=context,
        version=version(),
        durability=settings.durability,
        insecure=settings.insecure,
        keys_dir=None if inside else _keys_in_use(settings),
        expect_store=settings.expect_store,
        advertise=settings.advertise,
    )
    runner.observer = plugins.observer()
    runner.core.schedules.check = Triggers(plugins)
    return runner


class PerQueue:
    """Routing strategy that delegates to the strategy of each queue.

    Args:
        default: Strategy of the other queues.
        named: Queue -> strategy.
    """

    def __init__(self, default: RoutingStrategy, named: Mapping[str, RoutingStrategy]) -> None:
        self._default = default
        self._named = named
        self.by_key = any(strategy.by_key for strategy in (default, *named.values()))

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return the sessions that the queue's strategy chooses."""
        return self._named.get(queue, self._default).choose(queue, workers, n)

    def key(self, queue: str, headers: str) -> str:
        """Return the key from the queue's strategy, "" if it has no keys."""
        strategy = self._named.get(queue, self._default)
        return cast("KeyedRouting", strategy).key(queue, headers) if strategy.by_key else ""

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return the session that the queue's strategy prefers; called only if it has keys."""
        strategy = cast("KeyedRouting", self._named.get(queue, self._default))
        return strategy.prefer(queue, key, workers, now)


def _make_orders(settings: Settings, plugins: PluginManager) -> Callable[[], QueueOrder]:
    """Return the factory of queue orders, one per session; those of plugins are guarded.

    Raises:
        PluginError: No plugin provides it, or it cannot be made; checked now, before any worker.
    """
    from eventmq.app.guards import guarded_orders

    name = settings.queue_order
    plugins.make(QUEUE_ORDER, name)

    def make() -> QueueOrder:
        return plugins.make(QUEUE_ORDER, name)

    description = plugins.foreign(QUEUE_ORDER, name)
    return guarded_orders(make, description) if description else make


def make_routing(
    settings: Settings, plugins: PluginManager, *, guarded: bool = False
) -> RoutingStrategy:
    """Return the strategy for ``routing_strategy`` and ``queue_routing_strategies``.

    Queues with the same strategy share one object.

    Args:
        settings: Settings of the app.
        plugins: Plugins of the app.
        guarded: Log and replace a plugin's strategy that fails, instead of raising.

    Raises:
        PluginNotFound: No plugin provides a strategy.
    """
    names = {settings.routing_strategy, *(name for _, name in settings.queue_routing_strategies)}
    strategies = {name: plugins.make(ROUTING_STRATEGY, name) for name in sorted(names)}
    if guarded:
        from eventmq.app.guards import GuardedRouting

        for name, strategy in strategies.items():
            if description := plugins.foreign(ROUTING_STRATEGY, name):
                strategies[name] = GuardedRouting(strategy, description)
    if not settings.queue_routing_strategies:
        return strategies[settings.routing_strategy]
    named = {queue: strategies[name] for queue, name in settings.queue_routing_strategies}
    return PerQueue(strategies[settings.routing_strategy], named)


def make_store(
    settings: Settings,
    plugins: PluginManager,
    store: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> QueueStore:
    """Return the store of the app's settings, or of a name or URL, unopened.

    Args:
        settings: Settings of the app.
        plugins: Plugins of the app.
        store: Name or URL, None for the setting.
        more: Further options of the store.
    """
    text = store or ("memory" if settings.durability == "memory" else settings.store)
    options: dict[str, Any] = {
        "durability": settings.durability,
        "dedupe_window": settings.dedupe_window,
        "events_values": _event_values(settings),
        "expect_store": settings.expect_store,
    }
    if scheme(text) in _BUILT_IN_STORES:
        options |= {
            "directory": settings.data_dir,
            "fsync_interval": settings.fsync_interval,
            "reserve": settings.disk_reserve,
        }
    return plugins.make(QUEUE_STORE, text, options={**options, **(more or {})})


def limits_of(settings: Settings) -> Limits:
    """Return the broker's limits from the settings."""
    from eventmq.broker.limits import Limits
    from eventmq.settings.record import parse_buckets
    from eventmq.store.metrics import MetricsLimits

    def buckets(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, tuple[float, ...]], ...]:
        return tuple((pattern, parse_buckets(bounds)) for pattern, bounds in pairs)

    return Limits(
        max_frame=settings.max_frame,
        max_input_bytes=settings.max_input_bytes,
        max_queue_length=settings.max_queue_length,
        max_queues=settings.max_queues,
        max_new_queues=settings.max_new_queues,
        empty_queue_ttl=settings.empty_queue_ttl,
        max_peers=settings.max_peers,
        max_message_rate=settings.max_message_rate,
        max_unsent_bytes=settings.max_unsent_bytes,
        max_total_unsent_bytes=settings.max_total_unsent_bytes,
        queue_window=settings.queue_window,
        heartbeat_interval=settings.heartbeat_interval,
        heartbeat_timeout=settings.heartbeat_timeout,
        unknown_task_grace=settings.unknown_task_grace,
        legacy_queue_fallback=settings.legacy_queue_fallback,
        default_queue=settings.default_queue,
        queue_limits=settings.queue_limits,
        priority_seconds=settings.priority_seconds,
        result_ttl=settings.result_ttl,
        failed_ttl=settings.failed_ttl,
        max_failed_bytes=settings.max_failed_bytes,
        max_job_log_bytes=settings.max_job_log_bytes,
        metrics=MetricsLimits(
            max_queues=settings.metrics_max_queues,
            max_tasks=settings.metrics_max_tasks,
            wait_buckets=buckets(settings.metrics_wait_buckets),
            run_buckets=buckets(settings.metrics_run_buckets),
        ),
    )


def binds_of(settings: Settings) -> dict[str, str]:
    """Return port -> address: all ports, or only those set explicitly if ``bind`` is."""
    named = settings.source("bind") != "default"
    binds = {}
    for port, name in _PORTS.items():
        address = getattr(settings, name)
        if address and (port == "main" or not named or settings.source(name) != "default"):
            binds[port] = address
    return binds


def keys_dir_of(settings: Settings) -> Path:
    """Return the directory of the broker's keys: the setting, or ``keys`` in its data directory."""
    return Path(settings.keys_dir) if settings.keys_dir else Path(settings.data_dir, "keys")


def _keys_in_use(settings: Settings) -> Path | None:
    """Return that directory if the broker uses keys: it is set, or has the broker's key."""
    from eventmq.wire.zap_thread import has_keys

    directory = keys_dir_of(settings)
    return directory if settings.keys_dir or has_keys(directory) else None


def _event_values(settings: Settings) -> int:
    """Return the maximum number of bytes of values in a row of events, 0 without a redactor."""
    return min(_EVENT_VALUES, settings.max_frame // 8) if settings.redactor else 0
