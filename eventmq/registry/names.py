"""Registries: name -> factory of plugin objects, one `Registry` per `PluginKind`.

The table of built-in plugins is here, so that listing and choosing import none of them.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from eventmq.errors import HookError, PluginCollision, PluginNotFound, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
    "BUILT_INS",
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
    "WITH_OPTIONS",
    "WORKER_POOL",
    "PluginKind",
    "Registration",
    "Registry",
    "module_of",
    "plugin_name",
    "scheme",
]

T = TypeVar("T")

#: Matches a name. A slash is for content types, such as ``application/json``.
_NAME = re.compile(r"[a-z0-9][a-z0-9+._-]*(/[a-z0-9][a-z0-9+._-]*)?")


@dataclass(frozen=True, slots=True)
class PluginKind(Generic[T]):
    """A kind of plugin object.

    Attributes:
        name: Its name in messages.
        hook: The hook that provides it.
        contract: Name of the contract of its objects, in `eventmq.interfaces`.
        wider: An attribute, and the name of the contract of objects with a true value of it.
    """

    name: str
    hook: str
    contract: str
    wider: tuple[str, str] = ("", "")

    def lack(self, instance: object) -> str:
        """Return what an object lacks of the contract, "" if it is complete."""
        from eventmq import interfaces

        required, (flag, wider) = [self.contract], self.wider
        if flag and getattr(instance, flag, False):
            required.append(wider)
        for contract in required:
            for name in _members(getattr(interfaces, contract)):
                if not _has(instance, name):
                    return f"has no {name!r}, which the contract {contract} asks for"
        return ""


@lru_cache(maxsize=32)
def _members(contract: type) -> Sequence[str]:
    """Return the names of the methods and attributes of a contract."""
    classes = [kind for kind in contract.__mro__ if kind not in {Protocol, Generic, object}]
    names = [name for kind in classes for name in (*inspect.get_annotations(kind), *vars(kind))]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _has(instance: object, name: str) -> bool:
    """Return whether an object has an attribute, without computing a property."""
    if hasattr(type(instance), name):  # fast path: a scheduler makes thousands of triggers
        return True
    try:
        inspect.getattr_static(instance, name)
    except AttributeError:
        kind = type(instance)
        delegates = hasattr(kind, "__getattr__") or (
            kind.__getattribute__ is not object.__getattribute__
        )
        return delegates and hasattr(instance, name)
    return True


SERIALIZER: PluginKind[Serializer] = PluginKind("serializer", "eventmq_serializers", "Serializer")
ROUTING_STRATEGY: PluginKind[RoutingStrategy] = PluginKind(
    "routing strategy", "eventmq_routing_strategies", "RoutingStrategy", ("by_key", "KeyedRouting")
)
QUEUE_ORDER: PluginKind[QueueOrder] = PluginKind(
    "queue order", "eventmq_queue_orders", "QueueOrder"
)
RETRY_POLICY: PluginKind[RetryPolicy] = PluginKind(
    "retry policy", "eventmq_retry_policies", "RetryPolicy"
)
TRIGGER: PluginKind[Trigger] = PluginKind("trigger", "eventmq_triggers", "Trigger")
SCHEDULE_STORE: PluginKind[ScheduleStore] = PluginKind(
    "schedule store", "eventmq_schedule_stores", "ScheduleStore"
)
RESULT_BACKEND: PluginKind[ResultBackend] = PluginKind(
    "result backend", "eventmq_result_backends", "ResultBackend"
)
QUEUE_STORE: PluginKind[QueueStore] = PluginKind(
    "queue store", "eventmq_queue_stores", "QueueStore"
)
WORKER_POOL: PluginKind[WorkerPool] = PluginKind(
    "worker pool", "eventmq_worker_pools", "WorkerPool", ("shared", "SharedPool")
)
GATEWAY: PluginKind[Gateway] = PluginKind("gateway", "eventmq_gateways", "Gateway")
MIDDLEWARE: PluginKind[Middleware] = PluginKind("middleware", "eventmq_middleware", "Middleware")

#: All kinds, in the order of listings.
KINDS: tuple[PluginKind[object], ...] = (
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


class Registration(NamedTuple):
    """A registered factory: its name, and the name of the plugin that provides it."""

    name: str
    factory: Factory[object]
    plugin: str


def scheme(text: str) -> str:
    """Return the scheme of a URL, or the text itself if it is a plain name."""
    return text.partition("://")[0]


class Registry(Generic[T]):
    """Name -> factory of one kind.

    Args:
        kind: Kind of the objects that the factories make.
    """

    def __init__(self, kind: PluginKind[T]) -> None:
        self.kind = kind
        self._registrations: dict[str, Registration] = {}

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._registrations.values())

    def add(
        self,
        name: str,
        factory: Factory[T],
        plugin: str,
        full_name: Callable[[str], str] = "plugin {!r}".format,
    ) -> None:
        """Add a factory.

        Args:
            name: The name that users choose; for an object chosen by URL, the scheme.
            factory: Makes the object.
            plugin: The plugin that provides it, for messages and listings.
            full_name: Returns the name of a colliding plugin for messages.

        Raises:
            HookError: The name or the factory is invalid.
            PluginCollision: Another plugin provides the name.
        """
        subject = f"{self.kind.name} {name!r}"
        if not _NAME.fullmatch(name):
            raise HookError(f"{subject}: a name has small letters, digits and + . _ - / only")
        if not callable(factory):
            raise HookError(
                f"{subject}: the factory cannot be called, it is {type(factory).__name__}"
            )
        existing = self._registrations.get(name)
        if existing is not None:
            raise PluginCollision(f"{subject} is provided by {full_name(existing.plugin)} too")
        self._registrations[name] = Registration(name, factory, plugin)

    def find(self, text: str) -> Registration:
        """Return the registration of a name, or of the scheme of a URL.

        Raises:
            PluginNotFound: No factory has the name; the message has the nearest name, or all.
        """
        name = scheme(text)
        registration = self._registrations.get(name)
        if registration is None:
            raise PluginNotFound(
                f"no {self.kind.name} is called {name!r}; {did_you_mean(name, self._registrations)}"
            )
        return registration


#: Package of the built-in plugins.
_PACKAGE = "eventmq.plugins."

#: Modules of `_PACKAGE` that have several plugins.
_SHARED = frozenset({"retries", "routing", "schedule_stores", "triggers"})

#: Plugin -> kind and name of its object. A test compares it to the modules.
BUILT_INS: Mapping[str, tuple[PluginKind[Any], str]] = {
    "serializers.msgpack_": (SERIALIZER, "msgpack"),
    "serializers.json_": (SERIALIZER, "json"),
    "serializers.dill_": (SERIALIZER, "dill"),
    "routing.least_recently_used": (ROUTING_STRATEGY, "least-recently-used"),
    "routing.round_robin": (ROUTING_STRATEGY, "round-robin"),
    "routing.least_loaded": (ROUTING_STRATEGY, "least-loaded"),
    "routing.sticky": (ROUTING_STRATEGY, "sticky"),
    "routing.weighted_fair": (QUEUE_ORDER, "weighted-fair"),
    "routing.strict": (QUEUE_ORDER, "strict"),
    "retries.none": (RETRY_POLICY, "none"),
    "retries.fixed": (RETRY_POLICY, "fixed"),
    "retries.exponential": (RETRY_POLICY, "exponential"),
    "triggers.every": (TRIGGER, "every"),
    "triggers.cron": (TRIGGER, "cron"),
    "triggers.at": (TRIGGER, "at"),
    "schedule_stores.broker": (SCHEDULE_STORE, "broker"),
    "schedule_stores.sqlite": (SCHEDULE_STORE, "sqlite"),
    "schedule_stores.memory": (SCHEDULE_STORE, "memory"),
    "result_backends.broker": (RESULT_BACKEND, "broker"),
    "result_backends.sqlite": (RESULT_BACKEND, "sqlite"),
    "result_backends.memory": (RESULT_BACKEND, "memory"),
    "queue_stores.sqlite": (QUEUE_STORE, "sqlite"),
    "queue_stores.memory": (QUEUE_STORE, "memory"),
    "pools.asyncio": (WORKER_POOL, "asyncio"),
    "pools.prefork": (WORKER_POOL, "prefork"),
    "pools.threads": (WORKER_POOL, "threads"),
    "middleware.log_context": (MIDDLEWARE, "log-context"),
}


#: Plugins that declare options of a command. A test compares it to the modules as well.
WITH_OPTIONS = ("pools.prefork",)


def module_of(plugin: str) -> str:
    """Return the module of a built-in plugin."""
    package = plugin.partition(".")[0]
    return _PACKAGE + (package if package in _SHARED else plugin)


def plugin_name(plugin: str) -> str:
    """Return the plugin's name: that of the module without the underscore that avoids a clash."""
    return plugin.rstrip("_")
