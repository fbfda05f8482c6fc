"""Runs one job: decodes its arguments, calls the task through the middlewares, encodes the end.

Pools call it, in a child process or a thread; it knows no socket, file or process. What depends
on a job's headers only is decided once (`Executor.route`) and then bound.
"""

from __future__ import annotations

import logging
from copy import copy
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError, NotAllowed, ResultTooLarge, SerializationError
from eventmq.execution import joblog
from eventmq.execution.context import current
from eventmq.execution.coroutines import CoroutineRunner
from eventmq.execution.failures import Retry, describe, error_text, reason_of, retry_delay
from eventmq.execution.legacy import encode_plain, parse_plain, resolve
from eventmq.execution.routes import RouteTable, nothing_fetched, part_encoder
from eventmq.execution.streaming import (
    Cancellation,
    PartError,
    adrive,
    cancelled,
    drive,
    past_hard_limit,
)
from eventmq.interfaces import Envelope, JobContext
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

__all__ = ["Caller", "Executor", "compose"]


#: What a function may return that is not its result yet.
_UNFINISHED = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


class Caller:
    """Calls one function after the other; `eventmq.execution.executor.Executor` is one.

    Args:
        monotonic: Reads the time.

    Attributes:
        stop: Whether the job that runs is to stop.
        alarm: Raises in blocking code at its soft limit; None where nothing can.
        sink: Takes the parts of generators; None where nobody does.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._coroutines = CoroutineRunner()
        self.stop = Cancellation(monotonic)
        self.alarm: Alarm | None = None
        self.sink: Sink | None = None

    def close(self) -> None:
        """End the event loop of the slot, if a task needed one. Idempotent."""
        self._coroutines.close()

    def set_sink(self, sink: Sink) -> None:
        """Let a pool take what jobs yield, and how far they are."""
        self.sink = sink
        self.stop.report = sink.progress

    def _part_encoder(self, job: JobContext) -> Encode:
        raise NotImplementedError

    def _call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any, soft: float
    ) -> Any:
        stop = self.stop
        stop.inside = True
        try:
            if stop.requested:  # before it began
                raise cancelled()
            if soft:
                return self._call_limited(function, args, kwargs, soft)
            value = function(*args, **kwargs)
            if type(value) in _UNFINISHED:
                return self._finish(value, 0.0)
            return value
        finally:
            stop.inside = False

    def _call_limited(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any, soft: float
    ) -> Any:
        """Call what has a soft limit: coroutines end by their loop, blocking code by an alarm."""
        alarm, stop = self.alarm, self.stop
        stop.limit(soft)
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
            if alarm is None and stop.late:
                joblog.not_kept(current.get())
            return value
        finally:
            if alarm is not None:
                alarm.disarm()
            stop.limit(0.0)

    def cancel(self) -> bool:
        """Cancel the job that runs; say whether its coroutine hears of it by itself.

        From any thread or signal handler. Blocking code hears of it where it checks.
        """
        self.stop.requested = True
        return self._coroutines.cancel()

    def _finish(self, value: Any, soft: float) -> Any:
        """Return the result of what is a coroutine or generator."""
        if type(value) is CoroutineType:
            return self._coroutines.run(value, soft, self.stop)
        sink, encode = self._sink(), self._part_encoder(current.get())
        if type(value) is GeneratorType:
            return drive(value, sink, encode, self.stop)
        return self._coroutines.run(adrive(value, sink, encode), soft, self.stop)

    def _sink(self) -> Sink:
        if self.sink is None:
            raise EventMQError("this worker pool takes no parts: it cannot run a generator")
        return self.sink


def compose(
    calls: Sequence[Callable[..., Any]],
) -> Callable[[JobContext, Callable[[], Any]], Any] | None:
    """Join what middlewares do around a job, outermost first; None where there is none."""
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


_log = logging.getLogger(__name__)

_SUCCEEDED = int(OutcomeKind.SUCCEEDED)

_FAILED = int(OutcomeKind.FAILED)

_RETRY = int(OutcomeKind.RETRY)

_EXPIRED = int(OutcomeKind.EXPIRED)

_UNKNOWN = int(OutcomeKind.UNKNOWN_TASK)

_CANCELLED = int(OutcomeKind.CANCELLED)


class Executor(Caller):
    """Runs jobs one after the other; each slot has its own (`for_slot`).

    Args:
        tasks: The registered tasks by name.
        serializer: Returns the serializer of a content type; raises `PluginError`.
        retry_policy: Returns the policy of a name with options; raises `PluginError`.
        clock: Reads time.
        accept_content: Content types that are decoded.
        middleware: Outermost first; only its ``execute`` is used.
        allow_callables: Patterns of dotted paths that legacy jobs may call.
        location: Where results are kept; the broker unless told.
        fetched: Returns what the job manager has fetched for a job, as lists of id, content type
            and bytes.
        on_start: Called by `start`.

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
    ) -> None:
        self.tasks = tasks
        self.allow_callables = tuple(allow_callables)
        self._on_start = on_start
        self._location = location or ResultLocation()
        self.around = tuple(m for m in middleware if hasattr(m, "execute"))
        self._around = compose([m.execute for m in self.around])
        self._now = clock.now
        self._offset = clock.now() - clock.monotonic()
        super().__init__(clock.monotonic)
        self._routes = RouteTable(
            tasks, serializer, retry_policy, accept_content, self._location, fetched=fetched
        )

    def for_slot(self) -> Executor:
        """Return an executor of the same tasks for another thread or process."""
        other = copy(self)
        other._routes = self._routes.empty()  # noqa: SLF001 - its own kind
        Caller.__init__(other, self._monotonic)
        vars(other).pop("run", None)
        if joblog.wants_everything():
            other.run = joblog.narrated(other.run)  # type: ignore[method-assign,assignment]
        return other

    def start(self) -> None:
        """Run what is to run in a process before its first job; a pool calls it in each of its own.

        Raises:
            EventMQError: It failed: this process must run no job.
        """
        if self._on_start is not None:
            self._on_start()

    def routes(self, queue: str, texts: Sequence[str]) -> list[Route]:
        """Return the routes of the jobs of a chunk; call it at the chunk's start.

        Args:
            queue: The chunk's queue.
            texts: The header texts of its jobs.
        """
        self._offset = self._now() - self._monotonic()
        route = self._routes.route
        return [route(queue, text) for text in texts]

    # hot loop: benchmarks/pool.py
    def run(self, route: Route, position: int, entry: ChunkEntry, payload: bytes) -> OutcomeRow:
        """Run one job to its end. Raises nothing, whatever the task does.

        Args:
            route: Of the job's queue and header text.
            position: The job's place in its chunk.
            entry: Id, delivery, attempt and expiry.
            payload: The encoded ``[args, kwargs]``, or the body of a legacy job.
        """
        monotonic = self._monotonic
        start = monotonic()
        started = start + self._offset
        # Too late, or nothing that could be tried.
        if entry.expires and entry.expires < started:
            return OutcomeRow(position, _EXPIRED, 0.0, 0.0, "", b"")
        if route.refusal is not None:
            return self._refused(route, position, entry, started)
        job_id = entry.id
        task = route.task
        queue = route.queue
        stop = self.stop
        job = JobContext(job_id, task, queue, entry.attempt, entry.delivery, route.text, stop)
        token = current.set(job)
        try:
            if route.legacy:
                return self._run_plain(route, position, job, payload, start)
            # Decoding: not the task's fault, and no better next time.
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
                return self._failed(route, position, job, start, error)
            run_time = monotonic() - start
            if route.ignore_result:
                return OutcomeRow(position, _SUCCEEDED, started, run_time, "", b"")
            return self._succeeded(route, position, job, value, started, run_time, envelope)
        finally:
            current.reset(token)

    def timed_out(
        self, queue: str, text: str, position: int, entry: ChunkEntry, run_time: float
    ) -> OutcomeRow:
        """Return the outcome of a job that was stopped after its hard limit.

        For the job manager: whoever ran the job is gone.

        Args:
            queue: Of the job.
            text: Its headers.
            position: Its place in its chunk.
            entry: Id, attempt and limit.
            run_time: Seconds that it ran.
        """
        route = self._routes.route(queue, text)
        now = self._monotonic()
        self._offset = self._now() - now
        job = JobContext(entry.id, route.task, queue, entry.attempt, entry.delivery, text)
        error = past_hard_limit(entry.timeout)
        row = self._failed(route, position, job, now - run_time, error)
        if route.legacy:  # the broker makes of it what deployed clients know
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
            # Only what whoever asks for the result knows too, and can verify.
            envelope = Envelope(envelope.job_id, content_type, created=started)
        try:
            result, signature = route.encode(value, envelope)
            if signature:
                content_type = f"{content_type};{signature};{started!r}"
            content_type, result = self._keep(route, envelope.job_id, content_type, result)
        except Exception as error:  # noqa: BLE001 - serializers are plugins
            what = f"the result, a {type(value).__name__}, cannot be serialised"
            return self._ended(position, job, error, what, started, run_time)
        return OutcomeRow(position, _SUCCEEDED, started, run_time, content_type, result)

    def _part_encoder(self, job: JobContext) -> Encode:
        route = self._routes.route(job.queue, job.headers)
        if route.legacy:
            what = "a legacy job cannot yield parts, which no legacy peer understands"
            raise PartError(SerializationError(f"{what}: return a list instead"))
        return part_encoder(route, job, self._location.max_result, started=self._now())

    def _keep(
        self, route: Route, job_id: str, content_type: str, result: bytes
    ) -> tuple[str, bytes]:
        """Return what the outcome says: the result, or a reference to it where it is elsewhere.

        A backend that fails costs the result, not the job: it did succeed. What other jobs take
        goes through the broker then.
        """
        location = self._location
        if location.inline or content_type == FRAMES_TYPE:
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
        what = "the payload cannot be read as [args, kwargs]"
        return self._ended(position, job, error, what, start + self._offset, 0.0)

    def _ended(  # noqa: PLR0917 - called twice, by what is called once
        self,
        position: int,
        job: JobContext,
        error: Exception,
        what: str,
        started: float,
        run_time: float,
    ) -> OutcomeRow:
        """Return the outcome of a job that failed for good and by no fault of its task.

        What we or serializers check says it all in its text, so the log shows no frames of that.
        """
        checked = isinstance(error, EventMQError)
        if not checked:
            msg = f"{what}: {error_text(error)}"
            error = SerializationError(msg).with_traceback(error.__traceback__)
        told = describe(error, ours=__file__)
        joblog.failed(job, told._replace(traceback="") if checked else told)
        return OutcomeRow(position, _FAILED, started, run_time, ERROR_TYPE, encode_error(told))

    def _refused(
        self, route: Route, position: int, entry: ChunkEntry, started: float
    ) -> OutcomeRow:
        """Return the outcome of a job that cannot even be tried."""
        assert route.refusal is not None  # noqa: S101 - the caller looked
        kind, error = route.refusal
        joblog.refused(entry.id, route.task, entry.attempt, kind, error)
        return OutcomeRow(position, kind, started, 0.0, ERROR_TYPE, encode_error(error))

    def _failed(
        self, route: Route, position: int, job: JobContext, start: float, error: BaseException
    ) -> OutcomeRow:
        """Return the outcome of an exception that left the task."""
        run_time = self._monotonic() - start
        started = start + self._offset
        if job.stop is not None and job.stop.requested:  # whatever came of it
            joblog.cancelled(job, run_time)
            return OutcomeRow(position, _CANCELLED, started, run_time, "", b"")
        if isinstance(error, PartError):
            return self._ended(position, job, error.error, "", started, run_time)
        policy: Any = route.policy
        delay = retry_delay(error, job.attempt, route.retries, route.spec, policy)
        reason = reason_of(error, route.retries, again=delay is not None)
        told = describe(reason, function=route.spec.function, ours=__file__)
        if route.legacy:
            content_type, body = LEGACY_TYPE, told.message.encode(errors="replace")
        else:
            content_type, body = ERROR_TYPE, encode_error(told)
        if delay is None:
            joblog.failed(job, told)
            return OutcomeRow(position, _FAILED, started, run_time, content_type, body)
        joblog.retried(job, told, delay, asked=isinstance(error, Retry))
        return OutcomeRow(position, _RETRY, started, run_time, content_type, body, delay)

    def _run_plain(
        self, route: Route, position: int, job: JobContext, payload: bytes, start: float
    ) -> OutcomeRow:
        """Run a job that names a callable instead of a task."""
        started = start + self._offset
        try:
            call = parse_plain(payload)
            function = resolve(call, self.allow_callables)
        except NotAllowed as error:
            told = describe(error, ours=__file__)
            joblog.refused(job.id, "", job.attempt, _UNKNOWN, told)
            return OutcomeRow(position, _UNKNOWN, started, 0.0, ERROR_TYPE, encode_error(told))
        except BaseException as error:  # noqa: BLE001 - an import can raise anything
            return self._failed(route, position, job, start, error)
        try:
            bound = partial(self._call, function, call.args, call.kwargs, route.soft)
            value = bound() if self._around is None else self._around(job, bound)
            result = encode_plain(value)
            self._location.check(result)
        except BaseException as error:  # noqa: BLE001 - as in run
            return self._failed(route, position, job, start, error)
        run_time = self._monotonic() - start
        return OutcomeRow(position, _SUCCEEDED, started, run_time, LEGACY_TYPE, result)
