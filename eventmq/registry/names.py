"""Names and the factories behind them, with the plugin that each came from.

There is one `Registry` per `Kind` of plugin object. It knows nothing of plugins' loading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from eventmq.errors import HookError, PluginCollision, PluginNotFound, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.interfaces import (
        Factory,
        Gateway,
        Middleware,
        QueueOrder,
        QueueStore,
        ResultBackend,
        RetryPolicy,
        RoutingStrategy,
        ScheduleStore,
        Serializer,
        Trigger,
        WorkerPool,
    )

__all__ = [
    "GATEWAY",
    "KINDS",
    "MIDDLEWARE",
    "QUEUE_ORDER",
    "QUEUE_STORE",
    "RESULT_BACKEND",
    "RETRY_POLICY",
    "ROUTING_STRATEGY",
    "SCHEDULE_STORE",
    "SERIALIZER",
    "TRIGGER",
    "WORKER_POOL",
    "Kind",
    "Provided",
    "Registry",
    "scheme",
]

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9+._-]*")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of plugin object: its name for people, and the hook that provides it."""

    name: str
    hook: str


SERIALIZER: Kind[Serializer] = Kind("serializer", "eventmq_serializers")
ROUTING_STRATEGY: Kind[RoutingStrategy] = Kind("routing strategy", "eventmq_routing_strategies")
QUEUE_ORDER: Kind[QueueOrder] = Kind("queue order", "eventmq_queue_orders")
RETRY_POLICY: Kind[RetryPolicy] = Kind("retry policy", "eventmq_retry_policies")
TRIGGER: Kind[Trigger] = Kind("trigger", "eventmq_triggers")
SCHEDULE_STORE: Kind[ScheduleStore] = Kind("schedule store", "eventmq_schedule_stores")
RESULT_BACKEND: Kind[ResultBackend] = Kind("result backend", "eventmq_result_backends")
QUEUE_STORE: Kind[QueueStore] = Kind("queue store", "eventmq_queue_stores")
WORKER_POOL: Kind[WorkerPool] = Kind("worker pool", "eventmq_worker_pools")
GATEWAY: Kind[Gateway] = Kind("gateway", "eventmq_gateways")
MIDDLEWARE: Kind[Middleware] = Kind("middleware", "eventmq_middleware")

#: All kinds, in the order in which people are told of them.
KINDS: tuple[Kind[object], ...] = (
    SERIALIZER,
    ROUTING_STRATEGY,
    QUEUE_ORDER,
    RETRY_POLICY,
    TRIGGER,
    SCHEDULE_STORE,
    RESULT_BACKEND,
    QUEUE_STORE,
    WORKER_POOL,
    GATEWAY,
    MIDDLEWARE,
)  # type: ignore[assignment]  # a tuple of kinds of anything


class Provided(NamedTuple):
    """A name, its factory, and the name of the plugin that provides it."""

    name: str
    factory: Factory[object]
    plugin: str


def scheme(text: str) -> str:
    """Return the scheme of a URL, or the text itself where it is a plain name."""
    return text.partition("://")[0]


class Registry(Generic[T]):
    """Name -> factory of one kind.

    Args:
        kind: What the factories make.
    """

    def __init__(self, kind: Kind[T]) -> None:
        self.kind = kind
        self._provided: dict[str, Provided] = {}

    def __iter__(self) -> Iterator[Provided]:
        return iter(self._provided.values())

    def add(self, name: str, factory: Factory[T], plugin: str) -> None:
        """Add a factory.

        Args:
            name: How users choose it; for what is chosen by URL, the scheme.
            factory: Makes the object.
            plugin: Who provides it, for messages and listings.

        Raises:
            HookError: The name or the factory is none.
            PluginCollision: Another plugin provides the name.
        """
        what = f"{self.kind.name} {name!r} of plugin {plugin!r}"
        if not _NAME.fullmatch(name):
            msg = f"{what}: a name has small letters, digits and + . _ - only"
            raise HookError(msg)
        if not callable(factory):
            msg = f"{what}: the factory cannot be called, it is {type(factory).__name__}"
            raise HookError(msg)
        other = self._provided.get(name)
        if other is not None:
            msg = f"{what} is provided by plugin {other.plugin!r} too; switch one off: -p no:NAME"
            raise PluginCollision(msg)
        self._provided[name] = Provided(name, factory, plugin)

    def find(self, text: str) -> Provided:
        """Return what a name, or the scheme of a URL, stands for.

        Raises:
            PluginNotFound: Nothing; the message has the nearest name, or all.
        """
        name = scheme(text)
        found = self._provided.get(name)
        if found is None:
            msg = f"no {self.kind.name} is called {name!r}; {did_you_mean(name, self._provided)}"
            raise PluginNotFound(msg)
        return found
