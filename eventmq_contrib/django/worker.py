"""The app of a backend, for workers and schedulers: ``-A eventmq_contrib.django.worker:default``.

The attribute is an alias of ``TASKS``. Its first use sets Django up and imports the ``tasks``
modules of ``INSTALLED_APPS``, in each process that loads the app.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import django
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from eventmq.errors import SettingsError
from eventmq_contrib.django import execution, framework
from eventmq_contrib.django.backend import EventMQBackend

if TYPE_CHECKING:
    from eventmq import EventMQ

_loaded: dict[str, EventMQ] = {}

#: Pools of a parent, which would close their connections when nothing refers to them.
_inherited: list[dict[str, Any]] = []


def __getattr__(alias: str) -> EventMQ:
    if alias.startswith("_"):
        raise AttributeError(alias)
    if alias not in _loaded:
        try:
            _loaded[alias] = _load(alias)
        except (ImproperlyConfigured, framework.InvalidTask) as error:
            raise SettingsError(str(error)) from error
    return _loaded[alias]


def _load(alias: str) -> EventMQ:
    """Return the app of a backend, with the tasks of the project."""
    django.setup()
    known = alias in framework.task_backends.settings
    backend = framework.task_backends[alias] if known else None
    if not isinstance(backend, EventMQBackend):
        raise SettingsError(f"TASKS has no backend of EventMQ called {alias!r}")
    autodiscover_modules("tasks")
    for module in filter(None, [*sys.modules.values()]):
        for value in [*vars(module).values()]:
            if issubclass(type(value), framework.Task):  # `isinstance` evaluates lazy objects
                backend.register(value)
    connections.close_all()  # those opened until now must not be shared by children
    app = backend.app
    app.on_worker_start(execution.announce_worker)
    app.on_child_start(_forget_connections)
    return app


def _forget_connections() -> None:
    """Drop connections and pools that a fork inherited, without a word to their servers."""
    for connection in connections.all():
        pools = getattr(connection, "_connection_pools", {})  # of all threads
        _inherited.append(dict(pools))
        pools.clear()
        del connections[connection.alias]
