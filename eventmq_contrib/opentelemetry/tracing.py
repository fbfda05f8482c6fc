"""Middleware ``opentelemetry``: spans for sending, waiting and running, linked across processes.

The headers of a job carry the context of the span that sent it, as written by the propagators of
the
process: ``traceparent`` and others that are set up. Jobs that are sent together share one span, and
a header marks its context as a link instead of the parent. Each job of a graph has a span of its
own, and a header lists the spans of the jobs that it waits for, to which it is linked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    SpanContext,
    SpanKind,
    StatusCode,
    format_span_id,
    get_current_span,
    set_span_in_context,
)

from eventmq import Retry
from eventmq.sdk import JobCancelled, parse_headers
from eventmq_contrib.opentelemetry.conventions import (
    BATCH_COUNT,
    CREATE,
    DESTINATION,
    ERROR_TYPE,
    JOB_ATTEMPT,
    JOB_DELIVERY,
    JOB_OUTCOME,
    JOB_TASK,
    JOB_WAIT,
    MESSAGE_ID,
    PROCESS,
    SCHEMA_URL,
    SEND,
    WAIT,
    operation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from eventmq.sdk import JobContext, Submission, SubmissionBatch

__all__ = ["Tracing", "flush"]

_log = logging.getLogger(__name__)

#: Header of a job whose ``traceparent`` is that of many jobs: it is a link, not the parent.
LINK_HEADER = "trace-link"

#: Header of a job of a graph: span ids of the jobs that it waits for, joined by dots, in the trace
#: of its ``traceparent``.
AFTER_HEADER = "trace-after"

#: Maximum number of jobs that a job of a graph is linked to: a chord may have thousands of members.
MAX_AFTER = 32

#: Hex digits of a span id.
_SPAN_ID = 16

#: Seconds that a process waits at its end until its last spans are sent.
FLUSH_TIMEOUT = 2.0

_NANO = 1_000_000_000

_SEND, _CREATE, _WAIT, _PROCESS = map(operation, (SEND, CREATE, WAIT, PROCESS))

#: Exception -> outcome of an attempt that is not an error.
_NO_ERRORS: tuple[tuple[type[BaseException], str], ...] = (
    (Retry, "retry"),
    (JobCancelled, "cancelled"),
    (asyncio.CancelledError, "cancelled"),
)


class _Batch:
    """The span of jobs that are sent together.

    Args:
        span: The span.
        headers: Context of the span, for the headers of the jobs.
    """

    __slots__ = ("context", "count", "headers", "queue", "span", "span_ids")

    def __init__(self, span: Span, headers: dict[str, str]) -> None:
        self.span = span
        self.headers = headers
        self.context = set_span_in_context(span)
        self.count = 0
        #: Queue of all jobs, None if they have several.
        self.queue: str | None = ""
        #: Job id of a graph -> span id, as text.
        self.span_ids: dict[str, str] = {}

    def add(self, queue: str) -> None:
        """Count a job."""
        self.queue = queue if not self.count or queue == self.queue else None
        self.count += 1

    def end(self, error: BaseException | None) -> None:
        """End the span when the receipts have arrived or the submission has failed."""
        span = self.span
        if span.is_recording():
            span.set_attribute(BATCH_COUNT, self.count)
            if self.queue:
                span.set_attribute(DESTINATION, self.queue)
                span.update_name(f"{SEND} {self.queue}")
            if error is not None:
                _set_error(span, error)
        span.end()


class Tracing:
    """Spans around the submission and the execution of jobs. Thread-safe.

    Args:
        now: Reads Unix time.
        wait_spans: Whether the waiting time of a job is a span.
    """

    def __init__(self, now: Callable[[], float], *, wait_spans: bool = True) -> None:
        self._now = now
        self._wait_spans = wait_spans
        self._tracer = trace.get_tracer("eventmq", schema_url=SCHEMA_URL)

    # Sending

    def submit(self, submission: Submission, proceed: Callable[[Submission], Any]) -> Any:
        """Send a job in a span of its own, or in the span of all jobs that are sent with it."""
        batch = submission.batch
        if batch is not None:
            return self._submit_with(batch, submission, proceed)
        queue = submission.queue
        span = self._tracer.start_span(
            f"{SEND} {queue}",
            kind=SpanKind.PRODUCER,
            attributes={
                **_SEND,
                DESTINATION: queue,
                MESSAGE_ID: submission.job_id,
                JOB_TASK: submission.task,
            },
        )
        inject(submission.headers, set_span_in_context(span))
        try:
            return proceed(submission)
        except BaseException as error:
            _set_error(span, error)
            raise
        finally:
            span.end()

    def _submit_with(
        self, batch: SubmissionBatch, submission: Submission, proceed: Callable[[Submission], Any]
    ) -> Any:
        together = batch.state.get(self)
        if together is None:
            # Jobs of a graph carry the context of their own spans.
            kind = SpanKind.CLIENT if batch.graph else SpanKind.PRODUCER
            span = self._tracer.start_span(SEND, kind=kind, attributes=_SEND)
            headers = {LINK_HEADER: "1"}
            inject(headers, set_span_in_context(span))
            together = batch.state[self] = _Batch(span, headers)
            batch.on_end(together.end)
        together.add(submission.queue)
        if batch.graph:
            self._create(together, submission)
        else:
            submission.headers.update(together.headers)
        return proceed(submission)

    def _create(self, together: _Batch, submission: Submission) -> None:
        """Make the span of a job of a graph, whose context the job carries."""
        queue = submission.queue
        span = self._tracer.start_span(
            f"{CREATE} {queue}",
            context=together.context,
            kind=SpanKind.PRODUCER,
            attributes={
                **_CREATE,
                DESTINATION: queue,
                MESSAGE_ID: submission.job_id,
                JOB_TASK: submission.task,
            },
        )
        inject(submission.headers, set_span_in_context(span))
        known = together.span_ids
        known[submission.job_id] = format_span_id(span.get_span_context().span_id)
        after = [known[job_id] for job_id in submission.waits_for[:MAX_AFTER] if job_id in known]
        if after:
            submission.headers[AFTER_HEADER] = ".".join(after)
        span.end()

    # Running

    def execute(self, job: JobContext, proceed: Callable[[], Any]) -> Any:
        """Run a job in a span."""
        span, token = self._begin(job)
        try:
            return proceed()
        except BaseException as error:
            _set_end(span, error)
            raise
        finally:
            detach(token)
            span.end()

    async def aexecute(self, job: JobContext, proceed: Callable[[], Any]) -> Any:
        """Run a job that is a coroutine in a span."""
        span, token = self._begin(job)
        try:
            return await proceed()
        except BaseException as error:
            _set_end(span, error)
            raise
        finally:
            detach(token)
            span.end()

    # hot loop: python -m benchmarks tracing
    def _begin(self, job: JobContext) -> tuple[Span, Any]:
        """Start the span of a run. Most of its cost is the SDK's: 13 us a span, 1 us a value."""
        headers = dict(parse_headers(job.headers).extra)
        context = extract(headers)
        sent = get_current_span(context).get_span_context()
        links = _links(sent, headers) if sent.is_valid else []
        follows = sent.is_valid and LINK_HEADER not in headers
        if sent.is_valid and not follows:
            context = set_span_in_context(INVALID_SPAN, context)
        queue, delivery = job.queue, job.delivery
        attributes: dict[str, Any] = {
            **_PROCESS,
            DESTINATION: queue,
            MESSAGE_ID: job.id,
            JOB_TASK: job.task,
            JOB_ATTEMPT: job.attempt,
        }
        waited: tuple[float, float] | None = None
        if delivery != 1:
            attributes[JOB_DELIVERY] = delivery
        elif 0 < (created := job.created) <= (now := self._now()):  # otherwise the clocks differ
            if not self._wait_spans:
                attributes[JOB_WAIT] = now - created
            elif follows:
                waited = created, now
            else:  # the span is the root of the trace
                root = self._wait(job, context, links, created, now)
                context = set_span_in_context(root, context)
        span = self._tracer.start_span(
            f"{PROCESS} {queue}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        if waited is not None and span.is_recording():  # an unsampled span costs nothing
            self._wait(job, context, (), *waited)
        return span, attach(set_span_in_context(span, context))

    def _wait(
        self, job: JobContext, context: Context, links: Sequence[Link], created: float, now: float
    ) -> Span:
        """Make the span of the time from the creation of a job until now."""
        span = self._tracer.start_span(
            f"{WAIT} {job.queue}",
            context=context,
            attributes={**_WAIT, MESSAGE_ID: job.id},
            links=links,
            start_time=int(created * _NANO),
        )
        span.end(int(now * _NANO))
        return span


def _links(sent: SpanContext, headers: Mapping[str, str]) -> list[Link]:
    """Return links to the span that sent a job, and to those of the jobs that it waited for."""
    links = [Link(sent)]
    after = headers.get(AFTER_HEADER)
    if after is None:
        return links
    for text in after.split(".")[:MAX_AFTER]:
        if len(text) == _SPAN_ID:
            try:
                span_id = int(text, 16)
            except ValueError:  # from another client
                continue
            context = SpanContext(
                sent.trace_id, span_id, is_remote=True, trace_flags=sent.trace_flags
            )
            links.append(Link(context))
    return links


def _set_end(span: Span, error: BaseException) -> None:
    """Record the outcome of a task that raised an exception."""
    if not span.is_recording():
        return
    for kind, outcome in _NO_ERRORS:
        if isinstance(error, kind):
            span.set_attribute(JOB_OUTCOME, outcome)
            return
    with suppress(Exception):  # the user's exception may have no text
        span.record_exception(error)
    _set_error(span, error)


def _set_error(span: Span, error: BaseException) -> None:
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    span.set_attribute(ERROR_TYPE, name)
    span.set_status(StatusCode.ERROR, f"{name}: {_text(error)}")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:4096]
    except Exception:  # noqa: BLE001 - an exception of the user's that cannot be shown
        return ""


# The end of a process


def flush(timeout: float = FLUSH_TIMEOUT) -> None:
    """Send the spans that are still in memory, but do not wait for an unavailable collector.

    Args:
        timeout: Seconds to wait.
    """
    force = getattr(trace.get_tracer_provider(), "force_flush", None)  # the API has none
    if force is None:
        return
    ended = threading.Event()

    def send() -> None:
        try:
            force(int(timeout * 1000))
        except Exception:  # noqa: BLE001 - any of an exporter's
            _log.exception("the last spans of this process could not be sent")
        finally:
            ended.set()

    # In a thread, since exporters that retry do not respect the timeout.
    threading.Thread(target=send, name="eventmq-spans", daemon=True).start()
    if not ended.wait(timeout):
        _log.warning("the last spans of this process could not be sent within %g s", timeout)
