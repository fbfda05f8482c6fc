"""Submission: what is written, how many jobs travel, batches, middlewares, what was confirmed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from eventmq.client import bulk
from eventmq.client.handle import ResultClient
from eventmq.client.submit import SubmitBatch, Submitter
from eventmq.client.templates import EncodedJob, Template
from eventmq.errors import (
    BatchError,
    BrokerUnavailable,
    MessageTooLarge,
    NotAllowed,
    ProtocolError,
    QueueFull,
    ResultTimeout,
    SerializationError,
)
from eventmq.headers import Headers, parse_headers
from eventmq.interfaces import Envelope, Submission, SubmissionBatch
from eventmq.job import IdFactory
from eventmq.wire.batches import pack
from eventmq.wire.commands import Call, Reply, Request
from eventmq.wire.outcomes import OutcomeReader
from tests.support.client_harness import FakeBroker, Net, NetRunner, awaited

if TYPE_CHECKING:
    from eventmq.client.requests import PendingRequest


class Plain:
    """MessagePack; with a signature if told."""

    def __init__(self, signature: str = "") -> None:
        self.signature = signature
        self.envelopes: list[Envelope] = []

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        self.envelopes.append(envelope)
        try:
            return msgpack.packb(value), self.signature
        except TypeError as error:
            raise SerializationError(str(error)) from error

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        return msgpack.unpackb(data)


class Bench:
    """A submitter on a net."""

    def __init__(
        self, broker: FakeBroker | None = None, *, timeout: float = 5.0, **options: Any
    ) -> None:
        self.broker = broker or FakeBroker()
        self.net = Net(self.broker)
        self.serializer = Plain()
        self.runner = NetRunner(self.net)
        reader = OutcomeReader(lambda _: self.serializer, {"msgpack"})
        results = ResultClient(self.runner, reader, answer_timeout=5.0, result_timeout=60.0)
        ids = IdFactory(self.runner.clock)
        self.submitter = Submitter(self.runner, results, ids=ids, timeout=timeout, **options)

    def template(self, serializer: Plain | None = None, **more: Any) -> Template:
        headers = Headers(task="t", content_type="msgpack")
        chosen = serializer or self.serializer
        return Template.make("q", headers, chosen, self.runner.clock.now, **more)

    def requests(self) -> list[Request]:
        return [m for m in self.broker.received if isinstance(m, Request)]

    def arguments(self) -> list[Any]:
        return [msgpack.unpackb(job.body)[0] for job in self.broker.jobs.values()]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# One


def test_a_job_says_queue_headers_and_arguments(bench: Bench) -> None:
    job = bench.submitter.submit(bench.template(), (1,), {"b": 2})
    (request,) = bench.requests()
    assert request.id == job.id
    assert request.queue == "q"
    assert request.headers == "ack-requested,task:t,content-type:msgpack"
    assert msgpack.unpackb(request.body) == [[1], {"b": 2}]
    assert (job.origin.broker, job.origin.store) == (0, "s1")


def test_a_submission_asks_for_its_receipt_at_once_whatever_came_before(bench: Bench) -> None:
    """Nothing is guessed from callers who waited for their results."""
    for number in range(6):
        bench.broker.finish(f"j{number}", "succeeded", data=msgpack.packb(number))
        assert bench.submitter.submit(bench.template(), (), {}, f"j{number}").get() == number
    assert {"ack-requested,task:t,content-type:msgpack"} == {r.headers for r in bench.requests()}


@pytest.mark.parametrize(
    ("timeout", "requested"),
    [(60.0, "late-ack"), (None, "late-ack"), (1.0, "ack-requested,reply-requested")],
)
def test_a_call_asks_for_the_result_and_for_a_receipt_that_may_be_late(
    bench: Bench, timeout: float | None, requested: str
) -> None:
    """Where the timeout is shorter the receipt comes at once, to say that the broker is there."""
    bench.broker.finish("j1", "succeeded", data=msgpack.packb(5))
    job = bench.submitter.call(bench.template(), (1,), {}, "j1", timeout=timeout).wait()
    assert (job.id, job.get(), job.origin.broker, job.origin.sent) == ("j1", 5, 0, True)
    (request,) = bench.requests()
    assert request.headers == f"{requested},task:t,content-type:msgpack"
    assert bench.broker.kinds() == ["Inform", "Request"]


@pytest.mark.parametrize("timeout", [0.5, 2.0])
def test_where_a_receipt_has_to_come_soon_it_comes_at_once(timeout: float) -> None:
    """A late one would come after ``submit_timeout``, though the job is stored and goes on."""
    bench = Bench(timeout=timeout)
    bench.net.on_step = lambda: ended() if bench.net.now >= 1004.0 else None

    def ended() -> None:
        for job_id in ("j1", "j2"):
            bench.broker.finish(job_id, "succeeded", data=msgpack.packb(5))

    ends: list[Exception | None] = []
    tracked = EncodedJob("j2", "q", "task:t,content-type:msgpack", b"")
    bench.submitter.track(tracked, lambda _, error: ends.append(error))
    assert bench.submitter.call(bench.template(), (), {}, "j1", timeout=10.0).wait().get() == 5
    assert ends == [None]
    assert [request.headers.split(",task")[0] for request in bench.requests()] == [
        "ack-requested,reply-requested"
    ] * 2


def test_an_empty_answer_is_an_error_of_the_job_that_is_tracked() -> None:
    bench = Bench(FakeBroker(replies=False))
    ends: list[Exception | None] = []
    tracked = EncodedJob("j1", "q", "task:t,content-type:msgpack", b"")
    bench.submitter.track(tracked, lambda _, error: ends.append(error))
    (call,) = (m for m in bench.broker.received if isinstance(m, Call))
    assert ends == []
    bench.net.machine.received(0, Reply("b", pack([]), call.id).frames(), bench.net.now)
    bench.net.run()
    assert [type(error) for error in ends] == [ProtocolError]
    assert "answered get with nothing" in str(ends[0])


def test_the_caller_may_choose_the_id(bench: Bench) -> None:
    assert bench.submitter.submit(bench.template(), (), {}, "mine").id == "mine"
    assert list(bench.broker.jobs) == ["mine"]


def test_arguments_that_cannot_be_encoded_are_an_error_before_anything_is_sent(
    bench: Bench,
) -> None:
    with pytest.raises(SerializationError):
        bench.submitter.submit(bench.template(), (object(),), {})
    assert bench.requests() == []


def test_a_relative_expiry_becomes_a_moment(bench: Bench) -> None:
    bench.submitter.submit(bench.template(expires_in=30.0), (), {})
    (request,) = bench.requests()
    assert parse_headers(request.headers).expires == bench.net.now + 30.0


def test_a_signature_travels_with_the_time_that_it_covers(bench: Bench) -> None:
    signing = Plain("abc")
    bench.submitter.submit(bench.template(signing), (), {}, "j1")
    headers = parse_headers(bench.requests()[0].headers)
    envelope = signing.envelopes[0]
    assert headers.signature == "abc"
    assert headers.created == envelope.created == bench.net.now
    assert envelope == Envelope("j1", "msgpack", "t", "q", bench.net.now)


def test_jobs_without_a_signature_share_their_header_text(bench: Bench) -> None:
    """A text that differs from job to job cannot be remembered by broker and worker."""
    for _ in range(2):
        bench.submitter.submit(bench.template(), (), {})
        bench.net.advance(1.0)
    first, second = bench.requests()
    assert first.headers == second.headers


def test_a_coroutine_submits_too(bench: Bench) -> None:
    job = asyncio.run(awaited(bench.submitter.asubmit(bench.template(), (1,), {})))
    assert list(bench.broker.jobs) == [job.id]
    assert job.origin.sent


def test_a_raw_job_is_sent_as_it_is(bench: Bench) -> None:
    bench.submitter.submit_raw(EncodedJob("j1", "q", "guarantee:True", b"raw")).wait()
    job = asyncio.run(awaited(bench.submitter.submit_raw(EncodedJob("j2", "q", "", b"raw"))))
    first, second = bench.requests()
    assert (first.headers, first.body) == ("ack-requested,guarantee:True", b"raw")
    assert (second.headers, job.id) == ("ack-requested", "j2")


# Many


def test_many_jobs_travel_in_one_message_in_order(bench: Bench) -> None:
    jobs = bench.submitter.submit_many(bench.template(), [(n,) for n in range(5)], {"k": 1}).wait()
    (request,) = bench.requests()
    assert parse_headers(request.headers).batch == 5
    assert [job.id for job in jobs] == list(bench.broker.jobs)
    assert bench.arguments() == [[n] for n in range(5)]
    assert all(job.origin.store == "s1" for job in jobs)


def test_a_part_has_at_most_a_thousand_jobs(bench: Bench) -> None:
    jobs = bench.submitter.submit_many(bench.template(), [(n,) for n in range(2500)], {}).wait()
    assert [parse_headers(r.headers).batch for r in bench.requests()] == [1000, 1000, 500]
    assert [job.id for job in jobs] == list(bench.broker.jobs)
    assert len({job.id for job in jobs}) == 2500


def test_a_part_has_at_most_so_many_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PART_BYTES", 250)
    calls = [("x" * 90,), ("x" * 90,), ("x" * 90,), ("x" * 400,), ("x",)]
    bench.submitter.submit_many(bench.template(), calls, {}).wait()
    assert [parse_headers(r.headers).batch for r in bench.requests()] == [2, 1, 1, 1]
    assert bench.arguments() == [list(call) for call in calls]


def test_a_part_that_is_too_long_for_the_broker_is_halved() -> None:
    """The broker's longest frame is not known when the first part is made."""
    bench = Bench(FakeBroker(max_frame=400))
    jobs = bench.submitter.submit_many(bench.template(), [(n,) for n in range(20)], {}).wait()
    assert len(bench.requests()) > 1
    assert {job.id for job in jobs} == set(bench.broker.jobs)
    assert all(job.origin.sent for job in jobs)


def test_no_calls_are_no_jobs(bench: Bench) -> None:
    assert bench.submitter.submit_many(bench.template(), [], {}).wait() == []
    assert bench.requests() == []


def test_a_coroutine_submits_many(bench: Bench) -> None:
    calls = [(n,) for n in range(1500)]
    jobs = asyncio.run(awaited(bench.submitter.submit_many(bench.template(), calls, {})))
    assert [job.id for job in jobs] == list(bench.broker.jobs)


def test_jobs_of_a_batch_with_own_headers_keep_them(bench: Bench) -> None:
    signing = Plain("abc")
    bench.submitter.submit_many(bench.template(signing), [(1,), (2,)], {}).wait()
    stored = list(bench.broker.jobs.values())
    assert all(parse_headers(job.headers).signature == "abc" for job in stored)


# What was confirmed


def statuses(error: BatchError) -> list[str]:
    return [status for _, status, _ in error.jobs]


def test_a_refused_job_is_named_with_its_error(bench: Bench) -> None:
    template = bench.template()
    with pytest.raises(BatchError) as caught, SubmitBatch(bench.submitter):  # noqa: PT012 - at the exit
        good = bench.submitter.submit(template, (1,), {}, "good")
        bad = bench.submitter.submit(template, (2,), {}, "bad")
        bench.broker.refuse["bad"] = ("queue-full", "no room")
    assert caught.value.jobs[0] == (good, "confirmed", None)
    job, status, error = caught.value.jobs[1]
    assert (job, status) == (bad, "refused")
    assert isinstance(error, QueueFull)
    assert isinstance(caught.value.__cause__, QueueFull)
    assert "1 of 2 jobs" in str(caught.value)


def test_without_a_broker_all_jobs_are_refused_and_none_is_unknown(bench: Bench) -> None:
    bench.net.lose(0)
    with pytest.raises(BatchError) as caught:
        bench.submitter.submit_many(bench.template(), [(n,) for n in range(6000)], {}).wait()
    assert statuses(caught.value) == ["refused"] * 6000
    assert isinstance(caught.value.__cause__, BrokerUnavailable)


def test_a_part_without_receipt_is_unknown_and_nothing_more_is_sent() -> None:
    broker = FakeBroker()
    bench = Bench(broker)
    broker.silent = True
    with pytest.raises(BatchError) as caught:
        bench.submitter.submit_many(bench.template(), [(n,) for n in range(6000)], {}).wait()
    assert statuses(caught.value) == ["unknown"] * 4000 + ["refused"] * 2000
    assert len(bench.requests()) == 4


def test_a_job_that_is_too_long_alone_is_refused() -> None:
    bench = Bench(FakeBroker(max_frame=300))
    with pytest.raises(BatchError) as caught:
        bench.submitter.submit_many(bench.template(), [("x",), ("x" * 500,), ("y",)], {}).wait()
    assert statuses(caught.value) == ["confirmed", "refused", "confirmed"]
    assert isinstance(caught.value.__cause__, MessageTooLarge)


def test_jobs_of_other_queues_are_confirmed_beside_one_that_is_too_long() -> None:
    """A part is sent again as two halves, each with the templates of its own jobs only."""
    bench = Bench(FakeBroker(max_frame=300))
    with pytest.raises(BatchError) as caught, SubmitBatch(bench.submitter):  # noqa: PT012 - as above
        for queue, argument in (("a", "x"), ("b", "x" * 500), ("c", "y")):
            bench.submitter.submit(replace(bench.template(), queue=queue), (argument,), {})
    assert statuses(caught.value) == ["confirmed", "refused", "confirmed"]


def test_arguments_of_the_first_part_that_cannot_be_encoded_send_nothing(bench: Bench) -> None:
    with pytest.raises(SerializationError):
        bench.submitter.submit_many(bench.template(), [(1,), (object(),)], {}).wait()
    assert bench.requests() == []


def test_arguments_of_a_later_part_that_cannot_be_encoded_end_the_submission(bench: Bench) -> None:
    calls: list[tuple[Any, ...]] = [(n,) for n in range(1500)]
    calls[1200] = (object(),)
    with pytest.raises(BatchError) as caught:
        bench.submitter.submit_many(bench.template(), calls, {}).wait()
    assert statuses(caught.value) == ["confirmed"] * 1000 + ["refused"] * 500
    assert isinstance(caught.value.__cause__, SerializationError)


def test_a_coroutine_learns_the_same(bench: Bench) -> None:
    bench.net.lose(0)
    with pytest.raises(BatchError) as caught:
        asyncio.run(awaited(bench.submitter.submit_many(bench.template(), [(1,)], {})))
    assert statuses(caught.value) == ["refused"]


@pytest.mark.parametrize("sent_parts", [2, 5])
def test_what_was_confirmed_before_the_client_was_closed_is_known(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, sent_parts: int
) -> None:
    parts: list[PendingRequest] = []
    begin = bench.runner.begin

    def counting(request: PendingRequest) -> None:
        if len(parts) == sent_parts:
            bench.runner.close()
        begin(request)
        parts.append(request)

    monkeypatch.setattr(bench.runner, "begin", counting)
    with pytest.raises(BatchError) as caught:
        bench.submitter.submit_many(bench.template(), [(n,) for n in range(6000)], {}).wait()
    assert statuses(caught.value) == ["confirmed"] * 1000 * sent_parts + ["refused"] * 1000 * (
        6 - sent_parts
    )
    assert isinstance(caught.value.__cause__, BrokerUnavailable)


def test_a_client_that_is_closed_sends_nothing_of_many(bench: Bench) -> None:
    bench.runner.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        bench.submitter.submit_many(bench.template(), [(1,), (2,)], {})


# Batches


def test_a_batch_is_sent_together_at_its_exit(bench: Bench) -> None:
    with SubmitBatch(bench.submitter) as batch:
        job = bench.submitter.submit(bench.template(), (1,), {})
        bench.submitter.submit_raw(EncodedJob("raw", "other", "", b"x")).wait()
        more = bench.submitter.submit_many(bench.template(), [(2,), (3,)], {}).wait()
        assert len(batch) == 4
        assert bench.requests() == []
        assert [each.confirmed for each in more] == [False, False]
        with pytest.raises(NotAllowed):
            job.get()
    (request,) = bench.requests()
    assert parse_headers(request.headers).batch == 4
    assert [each.confirmed for each in more] == [True, True]
    assert job.origin.store == "s1"
    assert bench.broker.jobs["raw"].queue == "other"


def test_an_exception_inside_a_batch_sends_nothing(bench: Bench) -> None:
    with pytest.raises(KeyError), SubmitBatch(bench.submitter):  # noqa: PT012 - as users write it
        job = bench.submitter.submit(bench.template(), (1,), {})
        raise KeyError
    assert bench.requests() == []
    with pytest.raises(NotAllowed):
        job.get()


def test_a_batch_within_a_batch_is_sent_with_it(bench: Bench) -> None:
    with SubmitBatch(bench.submitter):
        with SubmitBatch(bench.submitter):
            bench.submitter.submit(bench.template(), (1,), {})
        with pytest.raises(KeyError), SubmitBatch(bench.submitter):  # noqa: PT012 - as users write it
            bench.submitter.submit(bench.template(), (2,), {})
            raise KeyError
        assert bench.requests() == []
        bench.submitter.submit(bench.template(), (3,), {})
    assert len(bench.requests()) == 1
    assert bench.arguments() == [[1], [3]]


def test_batches_of_two_apps_do_not_mix(bench: Bench) -> None:
    other = Bench()
    with SubmitBatch(bench.submitter), SubmitBatch(other.submitter):
        bench.submitter.submit(bench.template(), (1,), {})
        other.submitter.submit(other.template(), (2,), {})
    assert bench.arguments() == [[1]]
    assert other.arguments() == [[2]]


def test_an_empty_batch_sends_nothing(bench: Bench) -> None:
    with SubmitBatch(bench.submitter):
        pass
    assert bench.requests() == []


def test_after_a_batch_jobs_travel_alone_again(bench: Bench) -> None:
    with SubmitBatch(bench.submitter):
        bench.submitter.submit(bench.template(), (1,), {})
    bench.submitter.submit(bench.template(), (2,), {})
    assert len(bench.requests()) == 2


def test_a_batch_is_entered_once(bench: Bench) -> None:
    batch = SubmitBatch(bench.submitter)
    with batch:
        pass
    with pytest.raises(RuntimeError, match="once"), batch:
        pass


def test_an_async_batch_waits_without_blocking(bench: Bench) -> None:
    async def main() -> None:
        async with SubmitBatch(bench.submitter):
            await bench.submitter.asubmit(bench.template(), (1,), {})
            await bench.submitter.submit_raw(EncodedJob("raw", "q", "", b""))
            await bench.submitter.submit_many(bench.template(), [(2,)], {})
            assert bench.requests() == []

    asyncio.run(main())
    assert parse_headers(bench.requests()[0].headers).batch == 3


def test_a_task_that_outlives_the_batch_of_its_context_sends_by_itself(bench: Bench) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def later() -> None:
            await go.wait()
            await bench.submitter.asubmit(bench.template(), (1,), {})

        async with SubmitBatch(bench.submitter):
            task = asyncio.create_task(later())
        go.set()
        await task

    asyncio.run(main())
    assert bench.arguments() == [[1]]


# Middleware


class Tracing:
    """Adds a header and notes what it sees."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def submit(self, submission: Submission, proceed: Any) -> Any:
        self.seen.append(f"{self.name} before {submission.task}{submission.args}")
        submission.headers[self.name] = submission.job_id
        job = proceed(submission)
        self.seen.append(f"{self.name} after {job.origin.sent}")
        return job


def test_middlewares_wrap_a_submission_outermost_first() -> None:
    seen: list[str] = []
    bench = Bench(middleware=[Tracing("a", seen), Tracing("b", seen)])
    job = bench.submitter.submit(bench.template(), (1,), {})
    assert seen == ["a before t(1,)", "b before t(1,)", "b after True", "a after True"]
    (request,) = bench.requests()
    assert request.headers.endswith(f"a:{job.id},b:{job.id}")


def test_middlewares_wrap_a_call_before_it_is_sent() -> None:
    """One may submit another job, and one may answer with a job that is there already."""
    sent: list[int] = []
    first: list[Any] = []

    class Asking:
        def submit(self, submission: Submission, proceed: Any) -> Any:
            if submission.job_id == "again":
                return first[0]
            job = proceed(submission)
            sent.append(len(bench.requests()))
            return job

    bench = Bench(middleware=[Asking()])
    for job_id in ("j1", "j2"):
        bench.broker.finish(job_id, "succeeded", data=msgpack.packb(job_id))
    first.append(bench.submitter.call(bench.template(), (), {}, "j1").wait())
    again = bench.submitter.call(bench.template(), (), {}, "again").wait()
    assert again is first[0]
    assert again.get() == "j1"
    assert sent == [0]
    assert [request.id for request in bench.requests()] == ["j1"]


class Answering:
    """Answers with a handle that it has."""

    def __init__(self, *handles: Any) -> None:
        self.handles = list(handles)

    def submit(self, submission: Submission, proceed: Any) -> Any:
        return self.handles.pop() if self.handles else proceed(submission)


def test_a_call_that_a_middleware_answers_ends_at_its_own_timeout() -> None:
    """The job of the other handle goes on; a later call has its result."""
    answering = Answering()
    bench = Bench(middleware=[answering])
    job = bench.submitter.submit(bench.template(), (), {}, "j1")
    answering.handles = [job, job]
    began = bench.net.now
    with pytest.raises(ResultTimeout):
        bench.submitter.call(bench.template(), (), {}, timeout=2.0).wait()
    assert 2.0 <= bench.net.now - began < 4.0
    bench.broker.finish("j1", "succeeded", data=msgpack.packb(7))
    again = bench.submitter.call(bench.template(), (), {}, timeout=3.0)
    assert asyncio.run(awaited(again)).row is not None
    assert job.get() == 7
    assert len(bench.requests()) == 1


def test_a_call_waits_for_a_handle_of_another_app_through_that_app() -> None:
    other = Bench()
    job = other.submitter.submit(other.template(), (), {}, "j1")
    other.broker.finish("j1", "succeeded", data=msgpack.packb(7))
    bench = Bench(middleware=[Answering(job)])
    called = bench.submitter.call(bench.template(), (), {}, timeout=3.0).wait()
    assert called.row is not None
    assert called.get() == 7
    assert bench.broker.kinds() == ["Inform"]


def test_a_call_that_a_middleware_answers_with_nothing_is_refused() -> None:
    bench = Bench(middleware=[Answering(None)])
    with pytest.raises(NotAllowed, match=r"None instead of a handle of task 't'.*return what"):
        bench.submitter.call(bench.template(), (), {})
    assert bench.requests() == []


def test_middlewares_wrap_every_job_of_many() -> None:
    seen: list[str] = []
    bench = Bench(middleware=[Tracing("a", seen)])
    jobs = bench.submitter.submit_many(bench.template(), [(1,), (2,)], {}).wait()
    assert len(seen) == 4
    assert [job.id for job in jobs] == list(bench.broker.jobs)
    asyncio.run(awaited(bench.submitter.asubmit(bench.template(), (3,), {})))
    assert bench.arguments() == [[1], [2], [3]]


def test_a_middleware_without_submit_costs_nothing() -> None:
    class OnlyExecutes:
        def execute(self, job: Any, proceed: Any) -> Any:
            return proceed()

    bench = Bench(middleware=[OnlyExecutes()])
    bench.submitter.submit(bench.template(), (1,), {})
    assert bench.submitter._around == []


class Together:
    """A middleware that records what its jobs are sent with, and how that ends."""

    def __init__(self) -> None:
        self.batches: list[SubmissionBatch | None] = []
        self.waits_for: dict[str, list[str]] = {}
        self.ends: list[BaseException | None] = []

    def submit(self, submission: Submission, proceed: Any) -> Any:
        batch = submission.batch
        if batch is not None and batch not in self.batches:
            batch.on_end(self.ends.append)
        self.batches.append(batch)
        self.waits_for[submission.job_id] = list(submission.waits_for)
        return proceed(submission)


def test_a_job_that_is_sent_alone_has_no_batch() -> None:
    middleware = Together()
    bench = Bench(middleware=[middleware])
    bench.submitter.submit(bench.template(), (1,), {})
    assert middleware.batches == [None]


def test_middlewares_know_which_jobs_are_sent_together_and_when_they_are() -> None:
    middleware = Together()
    bench = Bench(middleware=[middleware])
    template = bench.template()
    pending = bench.submitter.submit_many(template, [(1,), (2,)], {})
    assert middleware.ends == []
    pending.wait()
    assert middleware.ends == [None]
    with SubmitBatch(bench.submitter):
        bench.submitter.submit_many(template, [(3,)], {}).wait()
        bench.submitter.asubmit(template, (4,), {}).wait()
        with SubmitBatch(bench.submitter):
            bench.submitter.submit(template, (5,), {})
        assert middleware.ends == [None]
    first, second, third, fourth, fifth = middleware.batches
    assert first is second
    assert third is fourth
    assert len({first, third, fifth}) == 3
    assert middleware.ends == [None, None, None]


def test_middlewares_know_when_jobs_that_are_sent_together_are_not() -> None:
    middleware = Together()
    bench = Bench(middleware=[middleware])
    template = bench.template()
    with pytest.raises(ValueError, match="no"), SubmitBatch(bench.submitter):
        raise ValueError(f"no {bench.submitter.submit(template, (1,), {})}")
    assert [type(error) for error in middleware.ends] == [ValueError]
    with pytest.raises(SerializationError):
        bench.submitter.submit_many(template, [(1,), (object(),)], {})
    assert [type(error) for error in middleware.ends[1:]] == [SerializationError]
    bench.broker.silent = True
    with pytest.raises(BatchError):
        bench.submitter.submit_many(template, [(1,)], {}).wait()
    assert [type(error) for error in middleware.ends[2:]] == [BatchError]
