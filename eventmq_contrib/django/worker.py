"""The app of a backend, for workers and schedulers: ``-A eventmq_contrib.django.worker:default``.

The attribute is an alias of ``TASKS``. Its first use sets Django up and imports the ``tasks``
modules of ``INSTALLED_APPS``, in each process that loads the app.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import django
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import autodiscover_modules

if TYPE_CHECKING:
    from eventmq import EventMQ

__all__ = ["load"]

_loaded: dict[str, EventMQ] = {}


def __getattr__(name: str) -> EventMQ:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return load(name)
    except ImproperlyConfigured as error:
        raise AttributeError(str(error)) from error


def load(alias: str) -> EventMQ:
    """Return the app of a backend, with the tasks of the project.

    Raises:
        InvalidTaskBackend: There is no such backend, it is none of EventMQ, or an option is wrong.
        InvalidTask: The options of a task are wrong.
    """
    if alias in _loaded:
        return _loaded[alias]
    django.setup()
    from eventmq_contrib.django.backend import EventMQBackend
    from eventmq_contrib.django.framework import InvalidTaskBackend, Task, task_backends

    backend = task_backends[alias] if alias in task_backends.settings else None
    if not isinstance(backend, EventMQBackend):
        raise InvalidTaskBackend(f"TASKS has no backend of EventMQ called {alias!r}")
    app = backend.app
    autodiscover_modules("tasks")
    for module in filter(None, [*sys.modules.values()]):
        for value in [*vars(module).values()]:
            # By the type: `isinstance` evaluates lazy objects.
            if issubclass(type(value), Task) and value.module_path not in app.tasks:
                backend.register(value)
    connections.close_all()  # those opened until now must not be shared by children
    app.on_worker_start(_announce)
    app.on_child_start(_forget_connections)
    _loaded[alias] = app
    return app


def _announce() -> None:
    """Let the children of this worker know its name."""
    from eventmq_contrib.django.execution import WORKER, worker_name

    os.environ.pop(WORKER, None)
    os.environ[WORKER] = worker_name()


def _forget_connections() -> None:
    """Drop connections that a fork inherited, without a word to their servers."""
    for connection in connections.all(initialized_only=True):
        del connections[connection.alias]
