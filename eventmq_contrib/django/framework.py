"""The tasks framework: ``django.tasks`` of Django 6, else its backport ``django_tasks``."""

from __future__ import annotations

from typing import Any

from django import VERSION
from django.core.exceptions import ImproperlyConfigured

if VERSION >= (6, 0):
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    try:
        from django_tasks import task_backends
    except ModuleNotFoundError as error:
        raise ImproperlyConfigured(
            "this Django has no django.tasks: use Django 6, or pip install django-tasks"
        ) from error
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

__all__ = [
    "BaseTaskBackend", "InvalidTask", "InvalidTaskBackend", "Task", "TaskContext", "TaskError",
    "TaskResult", "TaskResultDoesNotExist", "TaskResultStatus", "change", "make_result",
    "normalize_json", "task_backends", "task_enqueued", "task_finished", "task_started",
]  # fmt: skip


def make_result(task: Any, id: str, args: Any, kwargs: Any, **known: Any) -> Any:
    """Return the result of a task that is READY, but for what is known of it."""
    times = dict.fromkeys(["enqueued_at", "started_at", "finished_at", "last_attempted_at"])
    initial = {"status": TaskResultStatus.READY, "errors": [], "worker_ids": [], **times}
    call = {"task": task, "id": id, "args": args, "kwargs": kwargs, "backend": task.backend}
    return TaskResult(**{**initial, **call, **known})


def change(result: Any, **values: Any) -> None:
    """Set fields of a result, which is frozen for others."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
