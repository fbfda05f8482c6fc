"""Executor: runs one job, from its encoded arguments to its encoded outcome.

Pools call it, in a child process or a thread; it uses no socket, file or process. `TaskCaller`
calls the task, with cancellation and soft limit; `compose` chains the middlewares around the call.
What depends only on the headers of a job is computed once (`Executor.routes`).
"""

from __future__ import annotations

import logging
from copy import copy
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from eventmq.errors import (
    ArgumentError,
    EventMQError,
    NotAllowed,
    ResultTooLarge,
    SerializationError,
)
from eventmq.execution import joblog, kept_logs
from eventmq.execution.failures import (
    Retry,
    describe,
    error_text,
    is_misfit,
    reported_error,
    retry_delay,
)
from eventmq.execution.legacy import encode_legacy, parse_legacy, resolve
from eventmq.execution.routes import RouteTable, nothing_fetched, part_encoder
from eventmq.execution.streaming import (
    Cancellation,
    CoroutineRunner,
    PartError,
    cancelled,
    past_hard_limit,
    run_async_generator,
    run_generator,
)
from eventmq.interfaces import Envelope, Execution, JobContext, current
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow
from eventmq.wire.results import ERROR_TYPE, FRAMES_TYPE, LEGACY_TYPE, ResultLocation, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from eventmq.clock import Clock
    from eventmq.execution.routes import Fetched, Route
    from eventmq.execution.spec import TaskSpec
    from eventmq.execution.streaming import Alarm, Encode, Sink
    from eventmq.interfaces import Middleware, RetryPolicy, Serializer
    from eventmq.wire.batches import ChunkEntry

__all__ = ["Executor", "TaskCaller", "compose"]

_log = logging.getLogger(__name__)

_SUCCEEDED = int(OutcomeKind.SUCCEEDED)

#: Types of return values of a function that are not its result yet.
_UNFINISHED = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


class TaskCaller:
    """Calls the functions of tasks, one after the other; the base of `Executor`.

    Args:
        monotonic: Reads the time.

    Attributes:
        cancellation: Cancellation and soft limit of the running job.
        alarm: Raises in blocking code at its soft limit; None if the pool cannot.
        sink: Receives the parts of generators; None if the pool does not support parts.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._coroutines = CoroutineRunner()
        self.cancellation = Cancellation(monotonic)
        self.alarm: Alarm | None = None
        self.sink: Sink | None = None

    def close(self) -> None:
        """Close the event loop of the slot, if a task needed one. Idempotent."""
        self._coroutines.close()

    def set_sink(self, sink: Sink) -> None:
        """Set the receiver of the parts and the progress of jobs."""
        self.sink = sink
        self.cancellation.report = sink.progress

    def _part_encoder(self, job: JobContext) -> Encode:
        raise NotImplementedError

    def _call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any, soft: float
    ) -> Any:
        cancellation = self.cancellation
        cancellation.in_task = True
        try:
            if cancellation.requested:  # before it started
                raise cancelled()
            if soft:
                return self._call_limited(function, args, kwargs, soft)
            value = function(*args, **kwargs)
            if type(value) in _UNFINISHED:
                return self._finish(value, 0.0)
            return value
        finally:
            cancellation.in_task = False

    def _call_limited(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any, soft: float
    ) -> Any:
        """Call a task with a soft limit, raised in a coroutine by its loop, else by an alarm."""
        alarm, cancellation = self.alarm, self.cancellation
        cancellation.set_soft_limit(soft)
        try:
            if alarm is not None:
                alarm.arm(soft)
            value = function(*args, **kwargs)
            if type(value) is GeneratorType:
                return self._finish(value, soft)
            if alarm is not None:
                alarm.disarm()
            if type(value) in _UNFINISHED:
                return self._finish(value, soft)
            if alarm is None and cancellation.soft_limit_passed:
                joblog.soft_limit_missed(current.get())
            return value
        finally:
            if alarm is not None:
                alarm.disarm()
            cancellation.set_soft_limit(0.0)

    def cancel(self) -> bool:
        """Cancel the running job; return whether its event loop cancels a coroutine.

        From any thread or signal handler. Blocking code notices at its next check.
        """
        self.cancellation.requested = True
        return self._coroutines.cancel()

    def _finish(self, value: Any, soft: float) -> Any:
        """Run a coroutine or generator to its end; return the result."""
        if type(value) is CoroutineType:
            return self._coroutines.run(value, soft, self.cancellation)
        if self.sink is None:
            raise EventMQError("this worker pool does not support parts: it cannot run a generator")
        sink, encode = self.sink, self._part_encoder(current.get())
        if type(value) is GeneratorType:
            return run_generator(value, sink, encode, self.cancellation)
        return self._coroutines.run(
            run_async_generator(value, sink, encode), soft, self.cancellation
        )


def compose(
    calls: Sequence[Callable[..., Any]],
) -> Callable[[JobContext, Callable[[], Any]], Any] | None:
    """Chain the calls of middlewares around a job, outermost first; None if there are none."""
    if not calls:
        return None
    chain = calls[-1]
    for call in reversed(calls[:-1]):
        chain = partial(_nest, call, chain)
    return chain


def _nest(
    outer: Callable[..., Any], inner: Callable[..., Any], job: JobContext, call: Callable[[], Any]
) -> Any:
    return outer(job, partial(inner, job, call))


class Executor(TaskCaller):
    """Runs jobs one after the other; each slot has its own executor (`for_slot`).

    Args:
        tasks: The registered tasks by name.
        serializer: Returns the serializer of a content type; raises `PluginError`.
        retry_policy: Returns a retry policy by name and options; raises `PluginError`.
        clock: Reads time.
        accept_content: Content types that may be decoded.
        middleware: Middlewares, the outermost first; only ``execute`` is used.
        allow_callables: Patterns of dotted paths that legacy jobs may call.
        location: Where results are kept; by default in the broker.
        fetched: Returns the inputs that the job manager has fetched for a job, as lists of id,
            content type and bytes.
        on_start: Called by `start`.
        on_stop: Called by `stop`.
        max_log: Maximum number of bytes to keep of a job's log, if its task keeps logs.

    Attributes:
        around: The middlewares that wrap execution.
    """

    def __init__(
        self,
        tasks: Mapping[str, TaskSpec],
        *,
        serializer: Callable[[str], Serializer],
        retry_policy: Callable[[str, Mapping[str, Any]], RetryPolicy],
        clock: Clock,
        accept_content: Container[str] = ("msgpack", "json"),
        middleware: Sequence[Middleware] = (),
        allow_callables: Sequence[str] = (),
        location: ResultLocation | None = None,
        fetched: Fetched = nothing_fetched,
        on_start: Callable[[], None] | None = None,
        on_stop: Callable[[], None] | None = None,
        max_log: int = kept_logs.MAX_BYTES,
    ) -> None:
        self._max_log = max_log
        self._logs_kept = False
        self.tasks = tasks
        self.allow_callables = tuple(allow_callables)
        self._on_start = on_start
        self._on_stop = on_stop
        self._location = location or ResultLocation()
        self.around = tuple(m for m in middleware if isinstance(m, Execution))
        self._around = compose([m.execute for m in self.around])
        self._now = clock.now
        self._offset = clock.now() - clock.monotonic()
        super().__init__(clock.monotonic)
        self._routes = RouteTable(
            tasks, serializer, retry_policy, accept_content, self._location, fetched=fetched
        )

    def for_slot(self) -> Executor:
        """Return an executor of the same tasks for another thread or process."""
        executor = copy(self)
        executor._routes = self._routes.empty()  # noqa: SLF001 - its own kind
        TaskCaller.__init__(executor, self._monotonic)
        vars(executor).pop("run", None)
        executor._logs_kept = False  # noqa: SLF001
        if joblog.logs_success():
            executor.run = joblog.logged(executor.run)  # type: ignore[method-assign,assignment]
        return executor

    def start(self) -> None:
        """Prepare a process for its first job; a pool calls it in each of its processes.

        Raises:
            EventMQError: A callback failed: this process must run no job.
        """
        if self._on_start is not None:
            self._on_start()

    def stop(self) -> None:
        """Undo `start`; a pool with processes of its own calls it as each of them ends.

        Never raises.
        """
        if self._on_stop is not None:
            self._on_stop()

    def routes(self, queue: str, texts: Sequence[str]) -> list[Route]:
        """Return the routes of a chunk's jobs; also read the clocks for the times of outcomes.

        Call it at the start of the chunk.

        Args:
            queue: The chunk's queue.
            texts: The header texts of its jobs.
        """
        self._offset = self._now() - self._monotonic()
        table = self._routes
        route = table.route
        routes = [route(queue, text) for text in texts]
        if table.keeps_logs and not self._logs_kept:
            self._logs_kept = True
            self._keep_logs()
        return routes

    def _keep_logs(self) -> None:
        """Add the logs of jobs to their outcomes: there is a task that keeps its logs."""
        self.run = kept_logs.keeping(self.run, self._max_log)  # type: ignore[method-assign,assignment]

    # hot loop: python -m benchmarks drain
    def run(self, route: Route, position: int, entry: ChunkEntry, payload: bytes) -> OutcomeRow:
        """Run one job to its end. Never raises, whatever the task does.

        Args:
            route: Route of the job's queue and header text.
            position: Position of the job in its chunk.
            entry: Id, delivery, attempt and expiry.
            payload: The encoded ``[args, kwargs]``, or the body of a legacy job.
        """
        monotonic = self._monotonic
        start = monotonic()
        started = start + self._offset
        # Expired, or refused by its route.
        if entry.expires and entry.expires < started:
            return OutcomeRow(position, OutcomeKind.EXPIRED)
        if route.refusal is not None:
            return self._refused(route, position, entry, started)
        job_id = entry.id
        task = route.task
        queue = route.queue
        cancellation = self.cancellation
        job = JobContext(
            job_id, task, queue, entry.attempt, entry.delivery, route.text, cancellation
        )
        token = current.set(job)
        try:
            if route.legacy:
                return self._run_legacy(route, position, job, payload, start)
            # Decoding. A failure is not the task's fault, and a retry would not help.
            content_type = route.content_type
            envelope = Envelope(
                job_id, content_type, task, queue, route.created, route.expires, route.signature
            )
            try:
                args, kwargs = route.decode(payload, envelope)
            except Exception as error:  # noqa: BLE001 - serializers are plugins
                return self._unreadable(route, position, job, start, error)
            # The call. SystemExit and KeyboardInterrupt end the job, never the slot.
            try:
                if self._around is None:
                    value = self._call(route.spec.function, args, kwargs, route.soft)
                else:
                    call = partial(self._call, route.spec.function, args, kwargs, route.soft)
                    value = self._around(job, call)
            except BaseException as error:  # noqa: BLE001
                misfit = is_misfit(error, route.spec.function, args, kwargs)
                return self._failed(route, position, job, start, error, final=misfit)
            run_time = monotonic() - start
            if route.ignore_result:
                return OutcomeRow(position, _SUCCEEDED, started, run_time)
            return self._succeeded(route, position, job, value, started, run_time, envelope)
        finally:
            current.reset(token)

    def timed_out(
        self, queue: str, text: str, position: int, entry: ChunkEntry, run_time: float
    ) -> OutcomeRow:
        """Return the outcome of a job that was stopped after its hard limit.

        Called by the job manager, which killed the process that ran the job.

        Args:
            queue: Queue of the job.
            text: Header text of the job.
            position: Position of the job in its chunk.
            entry: Id, attempt and limit.
            run_time: Seconds for which it ran.
        """
        route = self._routes.route(queue, text)
        now = self._monotonic()
        self._offset = self._now() - now
        job = JobContext(entry.id, route.task, queue, entry.attempt, entry.delivery, text)
        error = past_hard_limit(entry.timeout)
        row = self._failed(route, position, job, now - run_time, error)
        if route.legacy:  # the broker converts it for legacy clients
            row = row._replace(content_type=ERROR_TYPE, result=encode_error(describe(error)))
        return row

    def _succeeded(  # noqa: PLR0917 - called once, in the hot loop
        self,
        route: Route,
        position: int,
        job: JobContext,
        value: object,
        started: float,
        run_time: float,
        envelope: Envelope,
    ) -> OutcomeRow:
        content_type = route.result_type
        if envelope.signature or content_type != envelope.content_type:
            # Only fields that the reader of the result knows too, and can verify.
            envelope = Envelope(envelope.job_id, content_type, created=started)
        try:
            result, signature = route.encode(value, envelope)
            if signature:
                content_type = f"{content_type};{signature};{started!r}"
            content_type, result = self._store_result(route, envelope.job_id, content_type, result)
        except Exception as error:  # noqa: BLE001 - serializers are plugins
            subject = f"the result, a {type(value).__name__}, cannot be serialised"
            return self._ended(position, job, error, subject, started, run_time)
        return OutcomeRow(position, _SUCCEEDED, started, run_time, content_type, result)

    def _part_encoder(self, job: JobContext) -> Encode:
        route = self._routes.route(job.queue, job.headers)
        if route.legacy:
            reason = "a legacy job cannot yield parts, which legacy peers do not support"
            raise PartError(SerializationError(f"{reason}: return a list instead"))
        return part_encoder(route, job, self._location.max_result, started=self._now())

    def _store_result(
        self, route: Route, job_id: str, content_type: str, result: bytes
    ) -> tuple[str, bytes]:
        """Return content type and bytes of the outcome: the result, or a reference to it.

        If the result backend fails, the job succeeds without a result. A result that other jobs
        need then goes through the broker.
        """
        location = self._location
        if location.inline or content_type == FRAMES_TYPE:
            if len(result) > location.max_result:
                location.check(result)
            return content_type, result
        try:
            return location.put(job_id, content_type, result, route.result_ttl, fed=route.fed)
        except ResultTooLarge:
            raise
        except Exception:  # noqa: BLE001 - backends are plugins
            _log.exception("the result of job %s, which succeeded, could not be kept", job_id)
            if not route.fed:
                return "", b""
        location.check(result)
        return content_type, result

    def _unreadable(
        self, route: Route, position: int, job: JobContext, start: float, error: Exception
    ) -> OutcomeRow:
        """Return the outcome of a job whose payload cannot be decoded."""
        text = "the payload cannot be read as [args, kwargs]"
        return self._ended(position, job, error, text, start + self._offset, 0.0)

    def _ended(  # noqa: PLR0917 - called twice, by what is called once
        self,
        position: int,
        job: JobContext,
        error: Exception,
        text: str,
        started: float,
        run_time: float,
    ) -> OutcomeRow:
        """Return the outcome of a job that failed for good through no fault of its task.

        The text of an EventMQ error is sufficient, so the log shows no frames.
        """
        checked = isinstance(error, EventMQError)
        if not checked:
            msg = f"{text}: {error_text(error)}"
            error = SerializationError(msg).with_traceback(error.__traceback__)
        if isinstance(error, ArgumentError):
            error = error.with_traceback(None)  # all frames are EventMQ's
        described = describe(error, ours=__file__)
        joblog.failed(job, described._replace(traceback="") if checked else described, error)
        return OutcomeRow(
            position, OutcomeKind.FAILED, started, run_time, ERROR_TYPE, encode_error(described)
        )

    def _refused(
        self, route: Route, position: int, entry: ChunkEntry, started: float
    ) -> OutcomeRow:
        """Return the outcome of a job that its route refuses."""
        assert route.refusal is not None  # noqa: S101 - the caller checked
        kind, error = route.refusal
        joblog.refused(entry.id, route.task, route.queue, entry.attempt, kind, error)
        return OutcomeRow(position, kind, started, 0.0, ERROR_TYPE, encode_error(error))

    def _failed(
        self,
        route: Route,
        position: int,
        job: JobContext,
        start: float,
        error: BaseException,
        *,
        final: bool = False,
    ) -> OutcomeRow:
        """Return the outcome of a job whose task raised an exception.

        With ``final`` there is no further attempt.
        """
        run_time = self._monotonic() - start
        started = start + self._offset
        if (
            job.cancellation is not None and job.cancellation.requested
        ):  # whatever exception it raised
            joblog.cancelled(job, run_time)
            return OutcomeRow(position, OutcomeKind.CANCELLED, started, run_time)
        if isinstance(error, PartError):
            return self._ended(position, job, error.error, "", started, run_time)
        policy: Any = route.policy
        delay = None if final else retry_delay(error, job, route.retries, route.spec, policy)
        reason = reported_error(error, job.attempt, route.retries, again=delay is not None)
        described = describe(reason, function=route.spec.function, ours=__file__)
        if route.legacy:
            content_type, body = LEGACY_TYPE, described.message.encode(errors="replace")
        else:
            content_type, body = ERROR_TYPE, encode_error(described)
        if delay is None:
            joblog.failed(job, described, reason)
            return OutcomeRow(position, OutcomeKind.FAILED, started, run_time, content_type, body)
        joblog.retried(job, described, delay, requested=isinstance(error, Retry))
        return OutcomeRow(position, OutcomeKind.RETRY, started, run_time, content_type, body, delay)

    def _run_legacy(
        self, route: Route, position: int, job: JobContext, payload: bytes, start: float
    ) -> OutcomeRow:
        """Run a legacy job, which names a callable instead of a task."""
        started = start + self._offset
        try:
            call = parse_legacy(payload)
            function = resolve(call, self.allow_callables)
        except NotAllowed as error:
            described = describe(error, ours=__file__)
            kind = OutcomeKind.UNKNOWN_TASK
            joblog.refused(job.id, "", job.queue, job.attempt, kind, described)
            return OutcomeRow(
                position,
                OutcomeKind.UNKNOWN_TASK,
                started,
                0.0,
                ERROR_TYPE,
                encode_error(described),
            )
        except BaseException as error:  # noqa: BLE001 - an import can raise anything
            return self._failed(route, position, job, start, error)
        try:
            bound = partial(self._call, function, call.args, call.kwargs, route.soft)
            value = bound() if self._around is None else self._around(job, bound)
            result = encode_legacy(value)
            self._location.check(result)
        except BaseException as error:  # noqa: BLE001 - as in run
            return self._failed(route, position, job, start, error)
        run_time = self._monotonic() - start
        return OutcomeRow(position, _SUCCEEDED, started, run_time, LEGACY_TYPE, result)
