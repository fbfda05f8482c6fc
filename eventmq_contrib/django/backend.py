"""The backend of Django's tasks framework: submits tasks as jobs, and reads their results."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import Error
from django.db import connections
from django.utils.module_loading import import_string

import eventmq
from eventmq import EventMQ, EventMQError, SettingsError
from eventmq.sdk import Envelope, did_you_mean, parse_headers
from eventmq_contrib.bodies import begin_body
from eventmq_contrib.django import framework
from eventmq_contrib.django.execution import enqueued_at, from_unix, make_function, options_of
from eventmq_contrib.django.framework import InvalidTaskBackend, TaskResultDoesNotExist, make_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["EventMQBackend", "delay_on_commit"]

logger = logging.getLogger("eventmq.django")

_OPTIONS = ("app", "broker", "database", "on_commit", "outbox")

#: Added to a priority of Django, -100 to 100, for one of EventMQ, 0 to 255.
_PRIORITY = 100

#: States of jobs -> statuses. All others are READY.
_STATUSES = {
    "running": framework.TaskResultStatus.RUNNING,
    "succeeded": framework.TaskResultStatus.SUCCESSFUL,
    **dict.fromkeys(["failed", "cancelled", "expired"], framework.TaskResultStatus.FAILED),
}

#: States without an error of the task -> the exception that stands for it.
_EXCEPTIONS = {"cancelled": "eventmq.JobCancelled", "expired": "eventmq.JobExpired"}

#: Apps made for the option ``broker``, which all backends share: Django makes one per thread.
_apps: dict[tuple[str, ...], EventMQ] = {}

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
    """

    supports_defer = supports_async_task = supports_get_result = supports_priority = True

    #: Whether jobs run in the thread of a test.
    inline = False

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if not isinstance(self.options, dict):
            raise InvalidTaskBackend(
                f"OPTIONS of TASKS[{alias!r}] is {self.options!r}, and no dict"
            )
        self.on_commit = self.options.get("on_commit", True)
        self.outbox = self.options.get("outbox", False)
        self.database = self.options.get("database", "default")

    @property
    def app(self) -> EventMQ:
        """The app that submits the jobs.

        Raises:
            InvalidTaskBackend: The option ``app`` or ``broker`` is wrong.
        """
        name = "app" if "app" in self.options else "broker"
        value = self.options.get(name)
        try:
            app = import_string(value.replace(":", ".")) if name == "app" else _client(value)
        except (AttributeError, ImportError, SettingsError, TypeError) as error:
            raise InvalidTaskBackend(f"OPTIONS[{name!r}] is {value!r}: {error}") from error
        if not isinstance(app, EventMQ):
            allowed = "allowed is: 'module:attribute' of an EventMQ(...)"
            raise InvalidTaskBackend(f"OPTIONS[{name!r}] is {value!r}; {allowed}")
        return app

    def register(self, task: Any) -> Any:
        """Return the EventMQ task that runs a Django task, declared when first used.

        Raises:
            InvalidTask: An option of `task_options` is wrong.
        """
        app, name = self.app, task.module_path
        with _lock:
            if name not in app.tasks:
                options = {
                    "name": name, "queue": task.queue_name, "serializer": "json",
                    "priority": int(task.priority) + _PRIORITY, "keep_arguments": True,
                    "guarantee": True, "ignore_result": False, **options_of(task.func),
                }  # fmt: skip
                try:
                    app.task(**options)(make_function(task, self))
                except SettingsError as error:
                    raise framework.InvalidTask(f"task {name}: {error}") from error
            return app.tasks[name]

    # Submission

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Submit a task; inside a transaction when that is committed, see the class.

        Raises:
            InvalidTask: The task cannot run on this backend.
            TypeError: The arguments are not JSON, or the function does not accept them.
            SerializationError: A text among them is not Unicode.
            BrokerUnavailable: Outside a transaction: there was no receipt.
            SubmitError: Outside a transaction: the broker refused the job.
        """
        self.validate_task(task)
        args, kwargs = framework.normalize_json(list(args)), framework.normalize_json(kwargs)
        try:
            bound = self.register(task).options(
                queue=task.queue_name, priority=int(task.priority) + _PRIORITY,
                eta=task.run_after and task.run_after.astimezone(),  # naive without USE_TZ
            )  # fmt: skip
        except (SettingsError, OverflowError, ValueError) as error:  # such as datetime.max
            raise framework.InvalidTask(f"task {task.module_path}: {error}") from error
        signature, connection = bound.s(*args, **kwargs), connections[self.database]
        if self.outbox:
            from eventmq_contrib import outbox

            result = make_result(task, outbox.send(connection, signature).id, args, kwargs)
            if connection.in_atomic_block or connection.get_autocommit():  # else there are no hooks
                connection.on_commit(partial(self._announce, result))
            return result
        job, message = signature.encode()
        result = make_result(task, job.id, args, kwargs)
        manual = connection.connection is not None and not connection.autocommit
        if self.on_commit and (connection.in_atomic_block or manual):
            what = f"job {job.id} of task {task.module_path}"
            _send_on_commit(connection, bound.app, what, partial(self._send, result, message))
        else:
            self._send(result, message)
        return result

    def _send(self, result: Any, message: tuple[str, str, str, bytes]) -> None:
        self.app.send_encoded(*message)
        self._announce(result)

    def _announce(self, result: Any) -> None:
        framework.change(result, enqueued_at=enqueued_at(result.id))
        framework.task_enqueued.send(type(self), task_result=result)

    # Results

    def get_result(self, result_id: Any) -> Any:
        """Return the result of a task by its id, as the broker has it now.

        Raises:
            TaskResultDoesNotExist: The broker does not have the job, since it was not sent yet or
                is forgotten; or it is none of a Django task of the project.
            BrokerUnavailable: No answer.
        """
        if not (isinstance(result_id, str) and result_id.isprintable()):
            raise TaskResultDoesNotExist(repr(result_id))  # it cannot be asked for
        result = self._from_broker(result_id)
        if result is None and self.outbox:
            # The broker once more: the relay may have sent it in between.
            result = self._from_outbox(result_id) or self._from_broker(result_id)
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def _from_broker(self, result_id: str) -> Any:
        try:
            job = self.app.job(result_id)
            info = job.info(args=True)
            value = job.get() if info["state"] == "succeeded" else None
            result = self._result(info)
            if info["args"] is None:  # over 1 MiB
                body = begin_body(self.app, result_id)() or b"[[], {}]"
                args, kwargs = self._decode(result_id, body)
                framework.change(result, args=args, kwargs=kwargs)
        except (eventmq.JobNotFound, eventmq.ResultUnavailable):
            return None
        framework.change(result, _return_value=value)
        return result

    def _result(self, info: Mapping[str, Any]) -> Any:
        state, attempts = info["state"], info["attempts"]
        runs = [(each["started"], each["worker"]) for each in attempts]
        if state != "failed" and (info["started"] or info["leased"]):
            runs.append((info["started"] or info["leased"], info["worker"]))
        # The broker keeps the last ten failed attempts.
        unknown = [""] * (info["attempt"] - len(runs)) if runs else []
        errors = [(e.type, e.traceback) for each in attempts if (e := each["error"]) is not None]
        if state in _EXCEPTIONS:
            reason = info["error"].message if info["error"] is not None else state
            errors.append((_EXCEPTIONS[state], f"{_EXCEPTIONS[state]}: {reason}\n"))
        return make_result(
            self.task_of(info["id"], info["queue"], info["headers"]), info["id"],
            info["args"] or [], info["kwargs"] or {},
            errors=[framework.TaskError(exception_class_path=p, traceback=t) for p, t in errors],
            status=_STATUSES.get(state, framework.TaskResultStatus.READY),
            enqueued_at=enqueued_at(info["id"], info["created"]),
            finished_at=from_unix(info["finished"]),
            started_at=from_unix(runs[0][0]) if runs else None,
            last_attempted_at=from_unix(runs[-1][0]) if runs else None,
            worker_ids=[*unknown, *(worker for _, worker in runs)],
        )  # fmt: skip

    def task_of(self, job_id: str, queue: str, text: str) -> Any:
        """Return the task of a job with its queue, priority and ``run_after``.

        Args:
            job_id: The id of the job.
            queue: Its queue.
            text: Its headers.

        Raises:
            TaskResultDoesNotExist: The job is of no task of this project.
        """
        headers = parse_headers(text)
        try:
            task = import_string(headers.task)
        except ImportError:
            task = None
        if not isinstance(task, framework.Task):
            raise TaskResultDoesNotExist(
                f"job {job_id} is of {headers.task!r}, which is no task of this project"
            )
        return replace(
            task, queue_name=queue, priority=min(headers.priority - _PRIORITY, _PRIORITY),
            backend=self.alias, run_after=from_unix(headers.eta),
        )  # fmt: skip

    def _from_outbox(self, result_id: str) -> Any:
        """Return the result of a job that waits in the outbox, None if it does not."""
        from eventmq_contrib.django.models import OutboxJob

        row = OutboxJob.objects.using(self.database).filter(job_id=result_id).first()
        if row is None:
            return None
        args, kwargs = self._decode(result_id, bytes(row.body))
        return make_result(self.task_of(result_id, row.queue, row.headers), result_id, args, kwargs)

    def _decode(self, job_id: str, body: bytes) -> Any:
        """Return the positional and keyword arguments of a job."""
        return self.app.plugins.serializer("json").decode(body, Envelope(job_id, "json"))

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


def _client(broker: Any) -> EventMQ:
    key = (broker,) if isinstance(broker, str) else tuple(broker or ())
    with _lock:
        if key not in _apps:
            _apps[key] = EventMQ("django", broker=list(key) or None)
        return _apps[key]


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
    what = f"a job of task {signature.task}"
    _send_on_commit(connections["default"], task.app, what, signature.delay)


def _send_on_commit(connection: Any, app: Any, what: str, send: Callable[[], Any]) -> None:
    """Send a job after the commit, and log why it was not: nothing can be undone then."""
    # Jobs of one transaction share what their commit finds out: app -> when its broker was away.
    # Those before this one are functions in the list of the connection.
    before = (func for _, func, *_ in reversed(connection.run_on_commit))
    shared = (func.args[0] for func in before if getattr(func, "func", None) is _sends)
    away: dict[Any, float] = next(shared, {})
    connection.on_commit(partial(_sends, away, time.monotonic(), app, what, send))


def _sends(
    away: dict[Any, float], called: float, app: Any, what: str, send: Callable[[], Any]
) -> None:
    try:
        if away.get(app, 0.0) > called:  # else a request waits for each of its jobs
            raise eventmq.BrokerUnavailable("the broker was away for another job of the commit")
        send()
    except eventmq.DuplicateJob as error:
        logger.info("%s was not stored: %s", what, error)
    except EventMQError as error:
        if isinstance(error, eventmq.BrokerUnavailable):
            away[app] = time.monotonic()
        logger.error("%s is lost: %s", what, error)  # noqa: TRY400 - the text says it all
