"""Bridge from Celery: an EventMQ worker runs what Celery clients have sent.

A message of Celery (protocol 2, in a job of `eventmq_contrib.kombu`) becomes a job of the task with
all of its options, followed by a job that reports the outcome to Celery: result, callbacks, and the
chain or chord that it belongs to. Both are one graph, so an outcome is not lost with a worker.
"""

from __future__ import annotations

import importlib
import logging
import time
import weakref
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq import (
    BrokerUnavailable,
    EventMQError,
    JobCancelled,
    JobNotFound,
    ProtocolError,
    SerializationError,
    SettingsError,
)
from eventmq.errors import PluginError
from eventmq.sdk import parse_headers, read_options
from eventmq_contrib.bodies import begin_body
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from eventmq import EventMQ, Job
    from eventmq.sdk import Envelope, JobContext, PluginContext

__all__ = [
    "Bridge", "MessageReader", "declare_reports", "find_job", "make_bridge", "make_serializer",
    "report_failure", "report_success", "revoke",
]  # fmt: skip

logger = logging.getLogger(__name__)

#: Names of the tasks that report to Celery.
SUCCEEDED, FAILED = "eventmq_contrib.celery.succeeded", "eventmq_contrib.celery.failed"

#: How often a report is retried, by default with growing pauses of up to ten minutes.
RETRIES = 20

#: Attempts to submit a job while the broker is away, each as long as ``submit_timeout``.
ATTEMPTS = 20

#: Rows of a page of a listing, and bodies of those that are asked for at once.
PAGE, AT_ONCE = 1000, 50

#: Seconds before each search for the job of a message that a worker had when it was cancelled.
SEARCHES = (0.0, 0.1, 0.2, 0.5, 1.0)

#: States of jobs that no worker has.
WAITING = frozenset({"queued", "delayed"})

#: Task of Celery's results, which are delayed jobs, but no messages.
RESULT = "celery.result"

#: Header of a job with the id of its task in Celery.
HEADER = "celery-id"


class _Message(NamedTuple):
    """A message of Celery, and the job that brought it."""

    job_id: str
    request: dict[str, Any]
    args: list[Any]
    kwargs: dict[str, Any]


#: The message of the running job: read as its arguments, used by the middleware.
_read: ContextVar[_Message | None] = ContextVar("celery_message", default=None)


class MessageReader:
    """Serializer of jobs that are messages of Celery; reads only.

    Args:
        content_type: The content type.
    """

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Raise `SerializationError`: kombu makes these messages."""
        raise SerializationError(f"{self._content_type} is for messages that Celery sent")

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Read a message, and leave it to the middleware; return no arguments.

        Raises:
            SerializationError: It is no message of protocol 2.
        """
        from eventmq_contrib.kombu.messages import decode

        _read.set(_parsed(envelope.job_id, decode(data), {self._content_type}))
        return [], {}


def _parsed(job_id: str, fields: Mapping[str, Any], accept: Container[str]) -> _Message:
    """Return a message with its callbacks, chain and chord.

    Raises:
        SerializationError: It is no message of protocol 2, or of another content type.
    """
    from kombu.message import Message

    headers = fields["headers"]
    try:
        message = Message(
            body=fields["body"], content_type=fields["content-type"], headers=headers,
            content_encoding=fields["content-encoding"], accept=accept,
        )  # fmt: skip
        args, kwargs, embed = message.decode()
        more = {**embed, "priority": fields["properties"].get("priority"), "id": headers["id"]}
        return _Message(job_id, {**headers, **more}, args, kwargs)
    except Exception as error:
        raise SerializationError(
            f"job {job_id} is no message of Celery with task_protocol 2: {error}"
        ) from error


class Bridge:
    """Middleware ``celery``: submits the job that a message of Celery asks for.

    Args:
        app: The app.
        path: The app of Celery, as ``module:attribute``.
    """

    def __init__(self, app: EventMQ, path: str) -> None:
        self._app = weakref.ref(app)
        self._path = path

    def execute(self, job: JobContext, proceed: Callable[[], Any]) -> Any:
        """Run a job; for a message of Celery, submit its job instead."""
        message = _read.get()
        if message is None or message.job_id != job.id:
            return proceed()
        _read.set(None)
        app = self._app()
        assert app is not None  # noqa: S101 - it runs the job
        try:
            graph = _graph(app, job, message)
            for attempt in range(ATTEMPTS):
                try:
                    job.check()
                    graph.delay()
                    break
                except BrokerUnavailable as error:
                    logger.warning("the job of task %s cannot be submitted: %s", job.task, error)
                    if attempt == ATTEMPTS - 1:
                        raise
        except (EventMQError, TypeError) as error:
            state = "cancelled" if isinstance(error, JobCancelled) else "failed"
            report_failure(_load(self._path), error, message.request, state=state)
            raise


def _graph(app: EventMQ, job: JobContext, message: _Message) -> Any:
    """Return the job of a message, and those that report its outcome."""
    request, task = message.request, app.tasks[job.task]
    hard, soft = request.get("timelimit") or (None, None)
    options: dict[str, Any] = {
        "queue": job.queue if task.declared.queue is None else None, "timeout": hard,
        "soft_timeout": soft, "priority": request["priority"],
        "headers": {HEADER: str(request["id"])},
        "expires": _moment(request.get("expires")), "eta": _moment(request.get("eta")),
    }  # fmt: skip
    chosen = {name: value for name, value in options.items() if value is not None}
    call = task.options(**chosen).s(*message.args, **message.kwargs)
    more: Any = {"queue": job.queue, "retries": RETRIES, "ignore_result": True}
    if request.get("ignore_result") is None:  # the call does not say
        request["ignore_result"] = task.declared.ignore_result
    failed, succeeded = (app.signature(name, request, options=more) for name in (FAILED, SUCCEEDED))
    return call.on_error(failed) | succeeded


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def declare_reports(app: EventMQ) -> None:
    """Declare the tasks that report outcomes to Celery."""
    path = _path(app)

    @app.task(name=SUCCEEDED)
    def succeeded(result: Any, request: dict[str, Any]) -> None:
        report_success(_load(path), result, request)

    @app.task(name=FAILED)
    def failed(error: dict[str, str], request: dict[str, Any]) -> None:
        celery = _load(path)
        exception = _exception(app, error)
        state, traceback = error["state"], error["traceback"]
        report_failure(celery, exception, request, state=state, traceback=traceback)


def _exception(app: EventMQ, error: Mapping[str, str]) -> Exception:
    """Return the exception of a job, rebuilt, or else one with its name and message."""
    from celery.utils.serialization import create_exception_cls

    try:
        if error["state"] == "failed":
            app.job(error["id"]).get(timeout=0)
    except BrokerUnavailable:
        raise  # the report is retried
    except EventMQError as failure:
        if isinstance(failure.__cause__, Exception):
            return failure.__cause__
    module, _, name = error["type"].rpartition(".")
    kind: type[Exception] = create_exception_cls(name or error["state"], module)
    return kind(error["message"])


def report_success(celery: Any, result: Any, request: Mapping[str, Any]) -> None:
    """Do what Celery's worker does after a task: store its result, and send what follows it.

    Args:
        celery: The app of Celery.
        result: Result of the task.
        request: Headers of its message, callbacks, chain and chord.
    """
    from celery.app.trace import ExceptionInfo, build_tracer

    task = type("Reported", (celery.Task,), {"name": request["task"]})()
    task.bind(celery)
    task.run = lambda: result
    outcome = build_tracer(task.name, task, app=celery)(request["id"], (), {}, {**request})
    if isinstance(outcome.retval, ExceptionInfo) and outcome.info is None:
        raise outcome.retval.exception  # it could not be reported


def report_failure(
    celery: Any, error: Exception, request: Mapping[str, Any], *, state: str, traceback: str = ""
) -> None:
    """Store the failure of a task, and send what follows it.

    Args:
        celery: The app of Celery.
        error: The exception.
        request: As for `report_success`.
        state: State of the job.
        traceback: The traceback as text.
    """
    from celery.app.task import Context

    context = Context({"delivery_info": {}, **request})  # errbacks called by name read it
    stored = not request.get("ignore_result")
    if state in {"cancelled", "expired"}:
        celery.backend.mark_as_revoked(
            request["id"], str(error) or state, request=context, store_result=stored
        )
        return
    celery.backend.mark_as_failure(
        request["id"], error, traceback, request=context, store_result=stored
    )


def find_job(app: EventMQ, celery_id: str) -> Job[Any]:
    """Return the unfinished job of a call from Celery, or its message if no worker has read it.

    The jobs of the broker are searched, the newest first, and messages that wait are read for it;
    only admins and viewers may list those of other owners.

    Args:
        app: The app of EventMQ.
        celery_id: Id of the task in Celery, as in ``AsyncResult``.

    Raises:
        JobNotFound: There is none that has not ended; or, for milliseconds, a worker is reading the
            message.
        BrokerUnavailable: There was no answer within ``submit_timeout``.
        NotAllowed: The key of the app may not list jobs.
        ValueError: The id is empty.
    """
    return _find(app, celery_id)[0]


def revoke(app: EventMQ, celery_id: str) -> bool:
    """Cancel the job of a call from Celery, whose state in Celery is ``REVOKED`` then.

    Args:
        app: The app of EventMQ, with the option ``app`` of the plugin ``celery``.
        celery_id: Id of the task in Celery, as in ``AsyncResult``.

    Returns:
        False if there is no unfinished job of that id, or if a worker is reading its message at
        this moment.

    Raises:
        BrokerUnavailable: There was no answer within ``submit_timeout``.
        NotAllowed: The key of the app may not list jobs, or not cancel this one.
        SerializationError: The message has a serializer that is not in ``accept_content``.
        SettingsError: The app has no option ``app`` of the plugin.
        ValueError: The id is empty.
    """
    path = _path(app)
    if not path:
        raise SettingsError(
            f"revoke() needs the option 'app' of the plugin 'celery', which app {app.name!r} lacks"
        )
    try:
        job, waiting = _find(app, celery_id)
    except JobNotFound:
        return False
    if waiting is None:
        return job.cancel("revoked")
    message = _parsed(job.id, waiting, app.settings.accept_content)
    ((_, state, before),) = app.ask("cancel", {"ids": [job.id], "reason": "revoked"})
    if before not in WAITING:  # a worker has taken it since, and may have submitted its job
        for seconds in SEARCHES:
            time.sleep(seconds)
            with suppress(JobNotFound):
                return _find(app, celery_id, messages=False)[0].cancel("revoked")
            if state != "cancelled":
                return False  # the job was submitted before, and has ended
    # No worker will report it.
    report_failure(_load(path), JobCancelled("revoked"), message.request, state="cancelled")
    return True


def _find(
    app: EventMQ, celery_id: object, *, messages: bool = True
) -> tuple[Job[Any], dict[str, Any] | None]:
    """Return the job of a task, and its message if no worker has read it."""
    if not celery_id:
        raise ValueError(f"celery_id must not be empty: got {celery_id!r}")
    wanted, cursor = str(celery_id), ""  # it may be a UUID
    while True:
        page = app.ask("jobs", {"cursor": cursor, "limit": PAGE})
        for row in page["jobs"]:
            if (HEADER, wanted) in parse_headers(row["headers"]).extra:
                return app.job(row["id"]), None
        for job_id, message in _waiting(app, page["jobs"]) if messages else ():
            if str(message["headers"].get("id")) == wanted:
                return app.job(job_id), message
        cursor = page["cursor"]
        if not cursor:
            raise JobNotFound(wanted)


def _waiting(app: EventMQ, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the messages that wait, each with the id of its job."""
    from eventmq_contrib.kombu.messages import decode

    waiting = [row["id"] for row in rows if row["state"] in WAITING and row["task"] != RESULT]
    for start in range(0, len(waiting), AT_ONCE):
        ids = waiting[start : start + AT_ONCE]
        for job_id, read in [(job_id, begin_body(app, job_id)) for job_id in ids]:
            with suppress(JobNotFound, ProtocolError):  # forgotten meanwhile; no message
                yield job_id, decode(read())


def _path(app: EventMQ) -> str:
    return str(app.settings.plugin_options.get("celery", {}).get("app", ""))


def _load(path: str) -> Any:
    """Return the app of Celery, and make the scheme of its broker known."""
    import eventmq_contrib.kombu  # noqa: F401 - for the scheme

    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the plugin.

    Attributes:
        app: The app of Celery, as ``module:attribute``: its result backend gets the results.
    """

    app: str = ""


def make_bridge(context: PluginContext) -> Bridge:
    """Return the middleware.

    Raises:
        PluginError: An option or a setting is wrong, or Celery is missing.
    """
    path = read_options(context, Options).app
    module, _, attribute = path.partition(":")
    if not module or not attribute.isidentifier():
        raise PluginError(f"option 'app' is {path!r}; allowed is the app of Celery, as 'shop:app'")
    need("celery", user="the middleware 'celery'", extra="celery")
    if "application/json" not in context.app.settings.accept_content:
        raise PluginError("messages of Celery need 'application/json' in accept_content")
    return Bridge(context.app, path)


def make_serializer(context: PluginContext) -> MessageReader:
    """Return the reader of a content type.

    Raises:
        PluginError: The middleware that the messages are for is not used, or Celery is missing.
    """
    need("celery", user=f"the content type {context.name!r}", extra="celery")
    if "celery" not in context.app.settings.middleware:
        raise PluginError("messages of Celery need 'celery' in the setting middleware")
    return MessageReader(context.name)
