"""Execution of Django tasks in workers: the function of a job, its signals and connections."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import traceback
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.db import connections, reset_queries
from django.utils.timezone import now

from eventmq import EventMQError, JobCancelled, Reject, Retry, current_job
from eventmq.sdk import JobContext, parse_headers
from eventmq_contrib.django import framework
from eventmq_contrib.django.framework import TaskError, TaskResultStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "announce_worker", "enqueued_at", "from_unix", "make_function", "options_of", "task_options",
]  # fmt: skip

logger = logging.getLogger("eventmq.django")

F = TypeVar("F", bound="Callable[..., Any]")

#: Environment variable with the name that the broker knows the worker by, for its children.
_WORKER = "DJANGO_EVENTMQ_WORKER"

#: Options that Django's task decides, or that its result needs.
_RESERVED = frozenset({
    "name", "queue", "priority", "ignore_result", "serializer", "guarantee", "keep_arguments",
})  # fmt: skip


def task_options(**options: Any) -> Callable[[F], F]:
    """Give a Django task options of EventMQ. Write it below ``@task``; other backends ignore it.

    Args:
        **options: Those of ``app.task(...)``, such as ``retries=3`` and ``timeout=60``, but not
            name, queue, priority, ``ignore_result``, ``serializer``, ``guarantee`` and
            ``keep_arguments``.

    Raises:
        TypeError: An option is one of these.
    """
    if wrong := sorted(_RESERVED.intersection(options)):
        raise TypeError(f"task_options does not take {', '.join(wrong)}: the backend sets it")

    def decorate(function: F) -> F:
        function._eventmq_options = options  # type: ignore[attr-defined]  # noqa: SLF001
        return function

    return decorate


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options that `task_options` gave a function."""
    return dict(getattr(function, "_eventmq_options", {}))


def announce_worker() -> None:
    """Let the children of this worker know the name that the broker knows it by."""
    os.environ[_WORKER] = _process_name()


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def from_unix(timestamp: float | None) -> datetime | None:
    """Return a time as Django has it, aware with ``USE_TZ``; None for none."""
    if not timestamp:
        return None
    return datetime.fromtimestamp(timestamp, timezone.utc if settings.USE_TZ else None)


def enqueued_at(job_id: str, created: float = 0.0) -> datetime | None:
    """Return the time of ``enqueue()``, which is in the id that it made; ``created`` for another.

    The time at which the broker got the job is later, with an outbox much later.
    """
    return from_unix(JobContext(job_id, "", "", 1, 1, "").created or created)


def make_function(task: Any, backend: Any) -> Callable[..., Any]:
    """Return the function of the EventMQ task that runs a Django task."""

    def run(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(task, backend, args, kwargs)
        try:
            return attempt.succeed(task.call(*attempt.begin(), **kwargs))
        except BaseException as error:
            attempt.fail(error)
            raise
        finally:
            attempt.release()

    async def arun(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(task, backend, args, kwargs)
        async with ThreadSensitiveContext():  # a thread, and connections, of its own
            try:
                value = await task.func(*await sync_to_async(attempt.begin)(), **kwargs)
                return await sync_to_async(attempt.succeed)(value)
            except BaseException as error:
                await sync_to_async(attempt.fail)(error)
                raise
            finally:
                await sync_to_async(connections.close_all)()

    function: Any = run
    if inspect.iscoroutinefunction(task.func) and not backend.inline:
        function = arun
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, name, getattr(task.func, name))
    # For keys made from arguments. Without annotations: Django converts no arguments.
    parameters = [*inspect.signature(task.func).parameters.values()][bool(task.takes_context) :]
    function.__signature__ = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
    return function  # type: ignore[no-any-return]


class _Attempt:
    """One attempt of a job: a Django task with its arguments."""

    def __init__(
        self, task: Any, backend: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._task, self._backend = task, backend
        self._args, self._kwargs = list(args), dict(kwargs)
        self._job = current_job()
        #: Transactions that were open before, as inside a test.
        self._outer: list[str] = []
        self._result: Any = None

    def begin(self) -> list[Any]:
        """Close old connections, send `task_started`, and return the positional arguments."""
        _close_old_connections()
        reset_queries()
        self._outer = _open_transactions()
        self._result = self._running()
        framework.task_started.send(type(self._backend), task_result=self._result)
        if self._task.takes_context:
            return [framework.TaskContext(task_result=self._result), *self._args]
        return self._args

    def _running(self) -> Any:
        """Return the result of the running job; the broker has what was before."""
        job, started = self._job, now()
        if job.attempt > 1:
            try:
                return self._backend.get_result(job.id)
            except EventMQError as error:
                logger.warning("the earlier attempts of job %s are not known: %s", job.id, error)
        return framework.make_result(
            self._backend.task_of(job.id, job.queue, job.headers), job.id, self._args,
            self._kwargs, status=TaskResultStatus.RUNNING, enqueued_at=from_unix(job.created),
            started_at=started, last_attempted_at=started,
            worker_ids=[os.environ.get(_WORKER) or _process_name()] * job.attempt,
        )  # fmt: skip

    def succeed(self, value: Any) -> Any:
        """Send `task_finished`; return the value as JSON."""
        value = framework.normalize_json(value)
        self._finish(TaskResultStatus.SUCCESSFUL, _return_value=value)
        return value

    def fail(self, error: BaseException) -> None:
        """Send `task_finished` if no other attempt follows."""
        if self._result is None or self._result.is_finished or not self._is_last(error):
            return
        kind = type(error)
        text = "".join(traceback.format_exception(kind, error, error.__traceback__))
        path = f"{kind.__module__}.{kind.__qualname__}"
        errors = [*self._result.errors, TaskError(exception_class_path=path, traceback=text)]
        self._finish(TaskResultStatus.FAILED, errors=errors)

    def _is_last(self, error: BaseException) -> bool:
        """Return whether a job has failed for good, as its executor decides it."""
        if self._job.attempt > parse_headers(self._job.headers).retry_count:
            return True
        if isinstance(error, Retry | Reject | JobCancelled):
            return not isinstance(error, Retry)
        declared = self._backend.register(self._task).declared
        return isinstance(error, declared.no_retry_on) or not isinstance(error, declared.retry_on)

    def _finish(self, status: Any, **values: Any) -> None:
        framework.change(self._result, status=status, finished_at=now(), **values)
        framework.task_finished.send(type(self._backend), task_result=self._result)

    def release(self) -> None:
        """Roll back a transaction that the task left open, and close old connections."""
        for alias in _open_transactions():
            if alias not in self._outer:
                text = "task %s left a transaction of the database %r open; it is rolled back"
                logger.warning(text, self._job.task, alias)
                connections[alias].close()
                del connections[alias]
        _close_old_connections()


def _close_old_connections() -> None:
    """Close connections as around a request, but not those of a transaction around the job.

    In it, which is that of a test, Django would take autocommit for changed, and close it.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _open_transactions() -> list[str]:
    """Return the databases with a transaction of ``atomic`` in this thread."""
    opened = connections.all(initialized_only=True)
    return [connection.alias for connection in opened if connection.in_atomic_block]
