"""Django: a backend of its tasks framework, workers, the dashboard behind its login, a test runner.

For ``django.tasks`` of Django 6, and for its backport ``django_tasks`` on Django 5.2. Django comes
with ``eventmq[django]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq_contrib.django.backend import EventMQBackend, delay_on_commit
    from eventmq_contrib.django.execution import task_options
    from eventmq_contrib.django.framework import TaskError
    from eventmq_contrib.django.testing import EventMQTestRunner

__all__ = ["EventMQBackend", "EventMQTestRunner", "TaskError", "delay_on_commit", "task_options"]

_MODULES = {
    "EventMQBackend": "backend", "EventMQTestRunner": "testing", "TaskError": "framework",
    "delay_on_commit": "backend", "task_options": "execution",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the settings name this package."""
    if name in _MODULES:
        need("django", user=__name__, extra="django")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
