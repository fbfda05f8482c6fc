"""Spans of jobs, with the exporter in memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from eventmq import EventMQ, Reject, Retry, chain, chord, current_job, fixed, group
from eventmq.clock import SystemClock
from eventmq.errors import BatchError, JobCancelled, JobFailed, MessageTooLarge, PluginError
from eventmq.interfaces import JobContext
from eventmq.testing import MiddlewareSuite
from eventmq_contrib.opentelemetry import conventions, tracing
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from eventmq.sdk import Middleware

DEADLINE = 30.0

SCOPE = {"messaging.system": "eventmq"}


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait for so many spans of that name: a result may come before the span has ended."""
        until(lambda: len(self._named(name)) >= count, f"{count} spans {name!r}")
        spans = self._named(name)
        assert len(spans) == count
        return sorted(spans, key=lambda span: span.start_time or 0)

    def _named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        return self.named(name)[0]

    def of(self, name: str, job_id: str) -> ReadableSpan:
        """Wait for the span of a job."""

        def exported_spans() -> list[ReadableSpan]:
            spans = self._named(name)
            return [span for span in spans if attributes(span)["messaging.message.id"] == job_id]

        until(lambda: bool(exported_spans()), f"the span {name!r} of {job_id}")
        (span,) = exported_spans()
        return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return (span.parent.trace_id, span.parent.span_id) if span.parent else None


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    spans = Spans()
    monkeypatch.setattr(trace, "get_tracer", spans.provider.get_tracer)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    return spans


def make_app(**settings: Any) -> EventMQ:
    app = EventMQ(
        "shop", broker="memory://", middleware=["log-context", "opentelemetry"], **settings
    )

    @app.task(name="add")
    def add(a: int, b: int = 0) -> int:
        return a + b

    @app.task(name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    return app


@pytest.fixture
def app(spans: Spans) -> Iterator[EventMQ]:
    with make_app() as app:
        yield app


def test_a_job_is_one_trace(spans: Spans, app: EventMQ) -> None:
    """It was sent, it waited, it ran: with the names and attributes of the conventions."""
    job = app.send("add", (2, 3))
    assert job.get(timeout=DEADLINE) == 5
    process, send, wait = (spans.one(f"{name} default") for name in ("process", "send", "wait"))
    about = {
        "messaging.system": "eventmq",
        "messaging.destination.name": "default",
        "messaging.message.id": job.id,
        "eventmq.job.task": "add",
    }
    names = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert attributes(send) == {**about, **names}
    names = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
    assert attributes(process) == {**about, **names, "eventmq.job.attempt": 1}
    assert attributes(wait)["messaging.operation.name"] == "wait"
    assert attributes(wait)["messaging.message.id"] == job.id
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert parent(send) is None
    assert parent(process) == parent(wait) == ids(send)
    assert links(process) == [ids(send)]
    assert wait.start_time is not None
    assert process.start_time is not None
    assert wait.start_time < (wait.end_time or 0) <= process.start_time
    assert process.instrumentation_scope is not None
    assert process.instrumentation_scope.name == "eventmq"
    assert process.instrumentation_scope.schema_url == conventions.SCHEMA_URL


def test_the_task_runs_inside_its_span_and_what_it_sends_too(spans: Spans, app: EventMQ) -> None:
    @app.task(name="outer")
    def outer() -> str:
        app.send("add", (1, 1))
        return trace.format_span_id(trace.get_current_span().get_span_context().span_id)

    with spans.provider.get_tracer("web").start_as_current_span("request") as request:
        seen = app.send("outer").get(timeout=DEADLINE)
    first, second = spans.named("process default", 2)
    assert int(seen, 16) == ids(first)[1]
    sends = {ids(span): span for span in spans.named("send default", 2)}
    assert parent(sends[parent(first)]) == (  # type: ignore[index]
        request.get_span_context().trace_id, request.get_span_context().span_id,
    )  # fmt: skip
    assert parent(sends[parent(second)]) == ids(first)  # type: ignore[index]


def test_baggage_reaches_the_task(spans: Spans, app: EventMQ) -> None:
    @app.task(name="tenant")
    def tenant() -> object:
        return baggage.get_baggage("tenant")

    token = attach(baggage.set_baggage("tenant", "a, b%"))
    try:
        alone = app.send("tenant")
        (together,) = app.tasks["tenant"].map([()])
    finally:
        detach(token)
    assert alone.get(timeout=DEADLINE) == together.get(timeout=DEADLINE) == "a, b%"


@pytest.mark.parametrize("how", ["map", "batch"])
def test_jobs_that_are_sent_together_link_to_one_span(spans: Spans, app: EventMQ, how: str) -> None:
    """Each is a trace of its own, as in the conventions for batches."""
    if how == "map":
        jobs = app.tasks["add"].map([(1,), (2,)])
    else:
        with app.batch():
            jobs = [app.send("add", (n,)) for n in (1, 2)]
    assert [job.get(timeout=DEADLINE) for job in jobs] == [1, 2]
    send = spans.one("send default")
    assert send.kind is SpanKind.PRODUCER
    assert attributes(send)["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in attributes(send)
    for job in jobs:
        process, wait = (spans.of(f"{name} default", job.id) for name in ("process", "wait"))
        assert links(process) == links(wait) == [ids(send)]
        assert parent(wait) is None
        assert parent(process) == ids(wait)
        assert ids(process)[0] != ids(send)[0]


def test_a_batch_for_several_queues_names_none(spans: Spans, app: EventMQ) -> None:
    with app.batch():
        jobs = [app.send("add", (1,)), app.send("add", (1,), queue="other")]
    app.wait(jobs, timeout=DEADLINE)
    assert "messaging.destination.name" not in attributes(spans.one("send"))


def test_the_headers_of_jobs_that_are_sent_together_are_the_same(
    spans: Spans, app: EventMQ
) -> None:
    """Which keeps them cheap for the broker and the worker."""
    jobs = app.tasks["add"].map([(1,), (2,)])
    app.wait(jobs, timeout=DEADLINE)
    assert jobs[0].info()["headers"] == jobs[1].info()["headers"]


def test_a_batch_that_fails_is_an_error(spans: Spans, app: EventMQ) -> None:
    with pytest.raises(ZeroDivisionError), app.batch():
        app.send("add", (1 // 0 if app.send("add", (1,)) else 0,))
    send = spans.one("send default")
    assert send.status.status_code is StatusCode.ERROR
    assert attributes(send)["error.type"] == "ZeroDivisionError"


def test_receipts_that_do_not_come_are_an_error_of_the_batch(spans: Spans, app: EventMQ) -> None:
    app.components.client.submitter._timeout = 0.0
    with pytest.raises(BatchError):
        app.tasks["add"].map([(1,)])
    assert attributes(spans.one("send default"))["error.type"] == "eventmq.errors.BatchError"


def test_a_job_that_cannot_be_sent_is_an_error(spans: Spans, app: EventMQ) -> None:
    with pytest.raises(MessageTooLarge):
        app.send("add", (b"x" * (app.settings.max_frame + 1),))
    send = spans.one("send default")
    assert send.status.status_code is StatusCode.ERROR
    assert attributes(send)["error.type"] == "eventmq.errors.MessageTooLarge"


def test_a_batch_within_a_batch_ends_with_the_outer_one(spans: Spans, app: EventMQ) -> None:
    with app.batch():
        with app.batch():
            job = app.send("add", (1,))
        assert spans.all() == []
    job.get(timeout=DEADLINE)
    assert attributes(spans.one("send default"))["messaging.batch.message_count"] == 1


def test_a_callback_links_to_the_jobs_that_it_waited_for(spans: Spans, app: EventMQ) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    job = chord([add.s(1, 1), add.s(2, 2)], total.s()).delay()
    assert job.get(timeout=DEADLINE) == 6
    send = spans.one("send default")
    assert send.kind is SpanKind.CLIENT
    assert attributes(send)["messaging.batch.message_count"] == 3
    made = spans.named("create default", 3)
    assert {parent(span) for span in made} == {ids(send)}
    members = [ids(span) for span in made if attributes(span)["eventmq.job.task"] == "add"]
    callback = spans.of("process default", job.id)
    assert links(callback) == [ids(spans.of("create default", job.id)), *members]
    assert parent(callback) == ids(spans.of("create default", job.id))


def test_a_link_of_a_chain_links_to_the_one_before(spans: Spans, app: EventMQ) -> None:
    add = app.tasks["add"]
    job = chain(add.s(1, 1), add.s(2), add.s(3)).delay()
    assert job.get(timeout=DEADLINE) == 7
    made = spans.named("create default", 3)
    for before, after in pairwise(made):
        job_id = attributes(after)["messaging.message.id"]
        assert links(spans.of("process default", job_id)) == [ids(after), ids(before)]


def test_members_of_a_group_link_to_nothing_but_their_own(spans: Spans, app: EventMQ) -> None:
    jobs = group(app.tasks["add"].s(n) for n in range(3)).delay()
    assert jobs.get(timeout=DEADLINE) == [0, 1, 2]
    for job in jobs:
        made = spans.of("create default", job.id)
        assert links(spans.of("process default", job.id)) == [ids(made)]


def test_links_of_a_large_chord_are_bounded(spans: Spans, app: EventMQ) -> None:
    count = tracing.MAX_AFTER + 8
    job = chord([app.tasks["add"].s(1) for _ in range(count)], app.tasks["total"].s()).delay()
    assert job.get(timeout=DEADLINE) == count
    assert len(links(spans.of("process default", job.id))) == tracing.MAX_AFTER + 1


@pytest.mark.parametrize("after", ["", "zz", "x" * 16, "0" * 16, "." * 99, "1" * 17])
def test_links_that_are_none_are_passed_over(spans: Spans, after: str) -> None:
    """From a client of another make."""
    middleware = tracing.Tracing(lambda: 1.0, wait_spans=False)
    sent = "traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = JobContext("j", "t", "q", 1, 1, f"task:t,{sent},trace-after:{after}")
    assert middleware.execute(job, lambda: 7) == 7
    assert len(spans.one("process q").links) in {1, 2}


def test_attempts_are_spans_that_link_to_what_sent_them(spans: Spans, app: EventMQ) -> None:
    @app.task(name="flaky", retries=1, retry_policy=fixed(0.01))
    def flaky() -> None:
        if current_job().attempt == 1:
            raise ValueError("not yet")

    app.tasks["flaky"].delay().get(timeout=DEADLINE)
    first, second = spans.named("process default", 2)
    send = spans.one("send default")
    assert parent(first) == parent(second) == ids(send)
    assert links(first) == links(second) == [ids(send)]
    assert [attributes(span)["eventmq.job.attempt"] for span in (first, second)] == [1, 2]
    assert attributes(second)["eventmq.job.delivery"] == 2
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "ValueError: not yet"
    assert attributes(first)["error.type"] == "ValueError"
    assert [event.name for event in first.events] == ["exception"]
    assert second.status.status_code is StatusCode.UNSET
    assert len(spans.named("wait default")) == 1


def test_a_retry_that_was_asked_for_is_no_error(spans: Spans, app: EventMQ) -> None:
    @app.task(name="later", retries=1)
    def later() -> None:
        if current_job().attempt == 1:
            raise Retry(countdown=0.0)

    app.tasks["later"].delay().get(timeout=DEADLINE)
    first, _ = spans.named("process default", 2)
    assert first.status.status_code is StatusCode.UNSET
    assert attributes(first)["eventmq.job.outcome"] == "retry"


def test_a_rejected_job_is_an_error(spans: Spans, app: EventMQ) -> None:
    @app.task(name="bad")
    def bad() -> None:
        raise Reject("never")

    with pytest.raises(JobFailed):
        app.send("bad").get(timeout=DEADLINE)
    assert spans.one("process default").status.status_code is StatusCode.ERROR


def test_a_cancelled_job_is_no_error(spans: Spans, app: EventMQ) -> None:
    started = threading.Event()

    @app.task(name="long")
    def long() -> None:
        started.set()
        until(lambda: current_job().check() or False, "the job is cancelled")

    job = app.send("long")
    assert started.wait(DEADLINE)
    job.cancel()
    with pytest.raises(JobCancelled):
        job.get(timeout=DEADLINE)
    span = spans.one("process default")
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span)["eventmq.job.outcome"] == "cancelled"


def test_a_text_that_cannot_be_shown_is_left_out(spans: Spans) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise Broken

    middleware = tracing.Tracing(lambda: 1.0)
    with pytest.raises(Broken):
        middleware.execute(JobContext("j", "t", "q", 1, 1, ""), fail)
    assert (spans.one("process q").status.description or "").endswith(".Broken: ")


def test_without_a_context_a_job_begins_a_trace(spans: Spans) -> None:
    """One of a schedule, or of a client that is not traced; nor is its time of waiting known."""
    middleware = tracing.Tracing(lambda: 1.0)
    middleware.execute(JobContext("j", "t", "q", 1, 1, "task:t"), lambda: None)
    (span,) = spans.all()
    assert (span.name, parent(span), links(span)) == ("process q", None, [])


def test_a_clock_that_is_behind_makes_no_span_of_waiting(spans: Spans) -> None:
    middleware = tracing.Tracing(lambda: 1.0)
    middleware.execute(JobContext("j", "t", "q", 1, 1, "created:2"), lambda: None)
    assert [span.name for span in spans.all()] == ["process q"]


def test_spans_of_waiting_are_switched_off(spans: Spans) -> None:
    options = {"opentelemetry": {"wait_spans": False}}
    with make_app(plugin_options=options) as app:
        app.send("add", (1,)).get(timeout=DEADLINE)
        spans.one("process default")
    assert "wait default" not in {span.name for span in spans.all()}
    assert 0.0 <= attributes(spans.one("process default"))["eventmq.job.wait"] < DEADLINE


def test_a_job_that_is_not_sampled_makes_no_spans_and_hands_its_context_on(spans: Spans) -> None:
    middleware = tracing.Tracing(lambda: 2.0)
    sent = "traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    job = JobContext("j", "t", "q", 1, 1, f"task:t,created:1,{sent}")
    context = middleware.execute(job, lambda: trace.get_current_span().get_span_context())
    assert context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert not context.trace_flags.sampled
    assert spans.all() == []


def test_a_wrong_option_is_an_error() -> None:
    with pytest.raises(PluginError, match="wait_span"):
        make_app(plugin_options={"opentelemetry": {"wait_span": False}}).send("add", (1,))


def test_the_end_of_a_process_waits_for_no_collector(
    monkeypatch: pytest.MonkeyPatch, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(spans.provider, "force_flush", lambda _: release.wait(DEADLINE))
    tracing.flush(0.01)
    release.set()
    assert "could not be sent within 0.01 s" in caplog.text


def test_an_exporter_that_raises_at_the_end_is_logged(
    monkeypatch: pytest.MonkeyPatch, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spans.provider, "force_flush", lambda _: 1 / 0)
    tracing.flush(DEADLINE)
    assert "the last spans of this process could not be sent" in caplog.text


def test_without_an_sdk_there_is_nothing_to_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", object)
    tracing.flush(0.0)


def test_nothing_is_imported_unless_it_is_chosen() -> None:
    program = (
        "import sys; from eventmq import EventMQ\n"
        "with EventMQ('x', broker='memory://') as app:\n"
        "    assert app.task(name='t')(lambda: 1).delay().get() == 1\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'opentelemetry'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    monkeypatch.delitem(sys.modules, "eventmq_contrib.opentelemetry.tracing")
    with pytest.raises(PluginError, match=r"pip install '\.\[opentelemetry\]'"):
        make_app().send("add", (1,))


class TestTracing(MiddlewareSuite):
    def make(self) -> Middleware:
        return tracing.Tracing(SystemClock().now)
