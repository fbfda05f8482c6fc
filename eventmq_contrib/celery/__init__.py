"""Celery's tasks on EventMQ, one by one: their decorator, and calls between both.

`shared_task` takes the options of Celery's decorator of that name; it does not need Celery. The
middleware ``celery`` lets an EventMQ worker run what Celery clients have sent through
`eventmq_contrib.kombu`; that needs ``eventmq[celery]``. `find_job` finds the job by Celery's id,
and `revoke` cancels it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eventmq import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq import EventMQ
    from eventmq.sdk import Factory, Middleware, PluginContext, Serializer
    from eventmq_contrib.celery.bridge import find_job, revoke
    from eventmq_contrib.celery.tasks import MaxRetriesExceededError, shared_task

__all__ = [
    "MaxRetriesExceededError",
    "eventmq_configure",
    "eventmq_middleware",
    "eventmq_serializers",
    "find_job",
    "revoke",
    "shared_task",
]

_NAME = "celery"

#: Content types of Celery's serializers that are read. Pickle is not one: it runs code.
_CONTENT_TYPES = ("application/json", "application/x-msgpack")


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: a program that only loads plugins needs none."""
    if name in __all__:
        module = "bridge" if name in {"find_job", "revoke"} else "tasks"
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hookimpl
def eventmq_middleware() -> Mapping[str, Factory[Middleware]]:
    """Provide ``celery``."""
    return {_NAME: _make_bridge}


@hookimpl
def eventmq_serializers() -> Mapping[str, Factory[Serializer]]:
    """Provide the content types of Celery's messages."""
    return dict.fromkeys(_CONTENT_TYPES, _make_serializer)


@hookimpl
def eventmq_configure(app: EventMQ) -> None:
    """Declare the tasks that report outcomes to Celery."""
    if _NAME in app.settings.middleware:
        from eventmq_contrib.celery.bridge import declare_reports

        declare_reports(app)


def _make_bridge(context: PluginContext) -> Middleware:
    from eventmq_contrib.celery.bridge import make_bridge

    return make_bridge(context)


def _make_serializer(context: PluginContext) -> Serializer:
    from eventmq_contrib.celery.bridge import make_serializer

    return make_serializer(context)
