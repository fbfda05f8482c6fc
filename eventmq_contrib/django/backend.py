"""The backend of Django's tasks framework: submits tasks as jobs, and reads their results."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.apps import apps
from django.core.checks import Error
from django.core.signals import setting_changed
from django.db import connections, transaction
from django.dispatch import receiver
from django.utils.module_loading import import_string

from eventmq import EventMQ
from eventmq.errors import (
    DuplicateJob,
    EventMQError,
    JobNotFound,
    ResultUnavailable,
    SettingsError,
)
from eventmq.sdk import Envelope, did_you_mean, parse_headers
from eventmq_contrib.django import framework
from eventmq_contrib.django.execution import (
    PRIORITY,
    RUN_AFTER,
    call_of,
    enqueued_at,
    from_unix,
    make_function,
    options_of,
)
from eventmq_contrib.django.framework import (
    InvalidTask,
    InvalidTaskBackend,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
    make_result,
    normalize_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EventMQBackend", "delay_on_commit"]

logger = logging.getLogger("eventmq.django")

_OPTIONS = ("app", "broker", "database", "on_commit", "outbox")

#: States of jobs -> statuses. All others are READY.
_STATUSES = {
    "running": TaskResultStatus.RUNNING, "succeeded": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED, "cancelled": TaskResultStatus.FAILED,
    "expired": TaskResultStatus.FAILED,
}  # fmt: skip

#: States without an error of the task -> the exception that stands for it.
_EXCEPTIONS = {"cancelled": "eventmq.JobCancelled", "expired": "eventmq.JobExpired"}

#: Apps made for the option ``broker``, which all backends share: Django makes one per thread.
_apps: dict[tuple[str, ...], EventMQ] = {}

#: App -> the EventMQ tasks of its Django tasks, by name.
_tasks: WeakKeyDictionary[EventMQ, dict[str, Any]] = WeakKeyDictionary()

_lock = threading.Lock()


class EventMQBackend(framework.BaseTaskBackend):
    """Runs Django tasks as jobs of EventMQ. Thread-safe.

    Its ``OPTIONS`` in ``TASKS``:

    ``app``
        ``"module:attribute"`` of an `EventMQ` of the project.
    ``broker``
        URL of the broker, or a list. Without both, the settings of EventMQ count.
    ``on_commit``
        Whether a job of a transaction is sent when that was committed; default: True. **A broker
        that is away then loses the job**, which is logged.
    ``outbox``
        Whether jobs are written to the table ``eventmq_outbox`` in the transaction; default: False.
    ``database``
        Alias of the database of both; default: ``"default"``.

    Attributes:
        inline: Whether jobs run in the thread of a test.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    inline = False

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.on_commit = self.options.get("on_commit", True)
        self.outbox = self.options.get("outbox", False)
        self.database = self.options.get("database", "default")

    @property
    def app(self) -> EventMQ:
        """The app that submits the jobs.

        Raises:
            InvalidTaskBackend: The option ``app`` or ``broker`` is wrong.
        """
        if "app" in self.options:
            return _import_app(self.options["app"])
        broker = self.options.get("broker", ())
        try:
            key = (broker,) if isinstance(broker, str) else tuple(broker)
            with _lock:
                if key not in _apps:
                    _apps[key] = EventMQ("django", broker=list(key) or None)
                return _apps[key]
        except (SettingsError, TypeError) as error:
            raise InvalidTaskBackend(f"OPTIONS['broker'] is {broker!r}: {error}") from error

    def register(self, task: Any) -> Any:
        """Return the EventMQ task that runs a Django task, declared when first used.

        Raises:
            InvalidTask: An option of `task_options` is wrong, or an EventMQ task has its name.
        """
        app, name = self.app, task.module_path
        with _lock:
            known = _tasks.setdefault(app, {})
            if name not in known:
                options = {"queue": task.queue_name, "priority": int(task.priority) + PRIORITY}
                options |= {"name": name, "serializer": "json", **options_of(task.func)}
                try:
                    known[name] = app.task(**options)(make_function(task, self))
                except SettingsError as error:
                    raise InvalidTask(f"task {name}: {error}") from error
            return known[name]

    # Submission

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Submit a task; inside a transaction when that is committed, see the class.

        Raises:
            InvalidTask: The task cannot run on this backend.
            TypeError: The arguments are not JSON, or the function does not accept them.
            BrokerUnavailable: Outside a transaction: there was no receipt.
            SubmitError: Outside a transaction: the broker refused the job.
        """
        self.validate_task(task)
        options: dict[str, Any] = {"priority": int(task.priority) + PRIORITY}
        if task.run_after is not None:
            options["eta"] = task.run_after.astimezone(timezone.utc)
            options["headers"] = {RUN_AFTER: task.run_after.isoformat()}
        args, kwargs = normalize_json(list(args)), normalize_json(kwargs)
        bound = self.register(task).options(queue=task.queue_name, **options)
        signature, connection = bound.s(*args, **kwargs), connections[self.database]
        if self.outbox:
            from eventmq_contrib import outbox

            result = make_result(task, outbox.send(connection, signature).id, args, kwargs)
            connection.on_commit(partial(self._announce, result))
            return result
        job, message = signature.encode()
        result = make_result(task, job.id, args, kwargs)
        manual = connection.connection is not None and not connection.autocommit
        if self.on_commit and (connection.in_atomic_block or manual):
            connection.on_commit(partial(self._send_late, result, message))
        else:
            self._send(result, message)
        return result

    def _send(self, result: Any, message: tuple[str, str, str, bytes]) -> None:
        self.app.send_encoded(*message)
        self._announce(result)

    def _send_late(self, result: Any, message: tuple[str, str, str, bytes]) -> None:
        with _logged(f"job {result.id} of task {result.task.module_path}"):
            self._send(result, message)

    def _announce(self, result: Any) -> None:
        framework.change(result, enqueued_at=enqueued_at(result.id))
        framework.task_enqueued.send(type(self), task_result=result)

    # Results

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task by its id, as the broker has it now.

        Raises:
            TaskResultDoesNotExist: The broker does not have the job, since it was not sent yet or
                is forgotten; or it is none of a Django task of the project.
            BrokerUnavailable: No answer.
        """
        result = self._from_broker(result_id)
        if result is None and self.outbox:
            # The broker once more: the relay may have sent it in between.
            result = self._from_outbox(result_id) or self._from_broker(result_id)
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def _from_broker(self, result_id: str) -> Any:
        kept: Mapping[str, Any] = {}
        try:
            job = self.app.job(result_id)
            info = job.info(args=True)
            if info["state"] == "succeeded":
                kept = job.get()
        except (JobNotFound, ResultUnavailable):
            return None
        return self._result(info, kept)

    def _result(self, info: Mapping[str, Any], kept: Mapping[str, Any]) -> Any:
        """Return the result for what the broker has; ``kept`` is the result of the job."""
        state, attempts = info["state"], info["attempts"]
        call = kept
        if info["args"] is not None:  # as they are until the end, and after a failure
            call = {**call_of(info["headers"]), "args": info["args"], "kwargs": info["kwargs"]}
        runs = [(each["started"], each["worker"]) for each in attempts]
        if state != "failed" and (info["started"] or info["leased"]):
            runs.append((info["started"] or info["leased"], info["worker"]))
        # The broker keeps the last ten failed attempts.
        unknown = [""] * (info["attempt"] - len(runs)) if runs else []
        errors = [
            TaskError(exception_class_path=each["error"].type, traceback=each["error"].traceback)
            for each in attempts
            if each["error"] is not None
        ]
        if state in _EXCEPTIONS:
            reason = info["error"].message if info["error"] is not None else state
            text = f"{_EXCEPTIONS[state]}: {reason}\n"
            errors.append(TaskError(exception_class_path=_EXCEPTIONS[state], traceback=text))
        task = self.changed(self._task(info), info["queue"], call)
        result = make_result(
            task, info["id"], call.get("args", []), call.get("kwargs", {}), errors=errors,
            status=_STATUSES.get(state, TaskResultStatus.READY),
            enqueued_at=enqueued_at(info["id"], info["created"]),
            finished_at=from_unix(info["finished"]),
            started_at=from_unix(runs[0][0]) if runs else None,
            last_attempted_at=from_unix(runs[-1][0]) if runs else None,
            worker_ids=[*unknown, *(worker for _, worker in runs)],
        )  # fmt: skip
        framework.change(result, _return_value=kept.get("return_value"))
        return result

    def _task(self, info: Mapping[str, Any]) -> Any:
        """Return the task of a job as it was declared; raise `TaskResultDoesNotExist` for none."""
        try:
            task = import_string(info["task"])
        except ImportError:
            task = None
        if not isinstance(task, framework.Task):
            raise TaskResultDoesNotExist(
                f"job {info['id']} is of {info['task']!r}, which is no task of this project"
            )
        return task

    def changed(self, task: Any, queue: str, call: Mapping[str, Any]) -> Any:
        """Return a task with the queue of a job, and with its `call_of`, if that is known."""
        run_after = call.get("run_after")
        return replace(
            task, queue_name=queue, priority=call.get("priority", task.priority),
            backend=self.alias, run_after=datetime.fromisoformat(run_after) if run_after else None,
        )  # fmt: skip

    def _from_outbox(self, result_id: str) -> Any:
        """Return the result of a job that waits in the outbox, None if it does not."""
        with connections[self.database].cursor() as cursor:
            query = "SELECT queue, headers, body FROM eventmq_outbox WHERE job_id = %s"
            cursor.execute(query, [result_id])
            row = cursor.fetchone()
        if row is None:
            return None
        queue, headers, body = row
        task = self._task({"id": result_id, "task": parse_headers(headers).task})
        serializer = self.app.plugins.serializer("json")
        args, kwargs = serializer.decode(bytes(body), Envelope(result_id, "json"))
        return make_result(self.changed(task, queue, call_of(headers)), result_id, args, kwargs)

    # Checks

    def check(self, **_: Any) -> list[Error]:
        """Return what is wrong with the settings, for ``manage.py check``."""
        where, options = f"OPTIONS of TASKS[{self.alias!r}]", self.options
        found = [
            (1, f"has an unknown option {name!r}: {did_you_mean(str(name), _OPTIONS)}")
            for name in options
            if name not in _OPTIONS
        ]
        if "app" in options and "broker" in options:
            found.append((2, "has 'app' and 'broker': the broker is a setting of the app"))
        try:
            if "json" not in self.app.settings.accept_content:
                found.append((3, "needs an app whose setting accept_content has 'json'"))
        except InvalidTaskBackend as error:
            found.append((4, str(error)))
        for name in ("on_commit", "outbox"):
            if not isinstance(options.get(name, True), bool):
                found.append((5, f"has {name!r}: {options[name]!r}; allowed is: True or False"))
        if self.database not in connections:
            found.append((6, f"has 'database': {self.database!r}; known is: {[*connections]}"))
        if self.outbox and not apps.is_installed("eventmq_contrib.django"):
            found.append((7, "has 'outbox', which needs 'eventmq_contrib.django' as an app"))
        return [Error(f"{where}: {text}", id=f"eventmq.E{number:03}") for number, text in found]


def delay_on_commit(task: Any, *args: Any, **kwargs: Any) -> None:
    """Submit a job of an EventMQ task when the transaction of the database has been committed.

    For tasks of ``@app.task`` and `shared_task`. After a rollback nothing is sent; outside a
    transaction this sends at once. **A broker that is away after the commit loses the job**, which
    is logged.

    Args:
        task: The task, or ``task.options(...)``.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.

    Raises:
        TypeError: The function does not accept these arguments.
        SerializationError: They cannot be encoded.
    """
    signature = task.s(*args, **kwargs)
    signature.encode()  # raises what `delay` would, while the transaction can be rolled back

    def send() -> None:
        with _logged(f"a job of task {signature.task}"):
            signature.delay()

    transaction.on_commit(send)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log why a job was not sent after a commit, where nothing can be undone."""
    try:
        yield
    except DuplicateJob as error:
        logger.info("%s was not stored: %s", what, error)
    except EventMQError as error:
        logger.error("%s is lost: %s", what, error)  # noqa: TRY400 - the text says it all


def _import_app(path: Any) -> EventMQ:
    text = f"OPTIONS['app'] is {path!r}"
    try:
        module, _, attribute = path.partition(":")
        app = getattr(importlib.import_module(module), attribute or "app", None)
    except (AttributeError, ImportError, ValueError) as error:
        raise InvalidTaskBackend(f"{text}, which cannot be imported: {error}") from error
    if not isinstance(app, EventMQ):
        raise InvalidTaskBackend(f"{text}; allowed is: 'module:attribute' of an EventMQ(...)")
    return app


@receiver(setting_changed)
def _close_apps(*, setting: str, **_: Any) -> None:
    """Close the apps of earlier settings, in tests."""
    if setting == "TASKS":
        with _lock:
            closing = [*_apps.values()]
            _apps.clear()
        for app in closing:
            app.close()
