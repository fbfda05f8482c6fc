"""Table of the built-in plugins, so that listing and choosing import none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.registry.names import (
    MIDDLEWARE,
    QUEUE_ORDER,
    QUEUE_STORE,
    RESULT_BACKEND,
    RETRY_POLICY,
    ROUTING_STRATEGY,
    SCHEDULE_STORE,
    SERIALIZER,
    TRIGGER,
    WORKER_POOL,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.registry.names import PluginKind

__all__ = ["BUILT_INS", "PACKAGE", "WITH_OPTIONS", "plugin_name"]

#: Package of the modules.
PACKAGE = "eventmq.plugins."

#: Module below `PACKAGE` -> what it provides: kind and name. A test compares it to the modules.
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


#: Those that declare options of a command. A test compares it to the modules as well.
WITH_OPTIONS = ("pools.prefork",)


def plugin_name(module: str) -> str:
    """Return the plugin's name: the module's without the underscore that spares a library."""
    return module.rstrip("_")
