"""Handles of jobs, and what their ends become: values, exceptions, causes."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from types import ModuleType
from typing import Any

import msgpack
import pytest

from eventmq import errors
from eventmq.client.handle import Job, JobOrigin, ResultClient
from eventmq.client.requests import NO_BROKER
from eventmq.client.waiting import Completed, wait
from eventmq.errors import (
    BrokerUnavailable,
    ContentNotAllowed,
    EventMQError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    NotAllowed,
    ProtocolError,
    ResultTimeout,
    ResultUnavailable,
    TimeLimitExceeded,
    UnknownTask,
    WorkerLost,
)
from eventmq.interfaces import Envelope
from eventmq.wire.commands import Call, Request
from eventmq.wire.outcomes import EndRow, OutcomeReader, original
from eventmq.wire.results import ERROR_TYPE, LEGACY_TYPE, RemoteError, ResultLocation, encode_error
from tests.support.client_harness import FakeBroker, Net, NetRunner, awaited


class Plain:
    """MessagePack, and a note of the last envelope."""

    envelope: Envelope | None = None

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        return msgpack.packb(value), ""

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        self.envelope = envelope
        return msgpack.unpackb(data)


SERIALIZER = Plain()


class Backend:
    """A result backend elsewhere."""

    inline = local = False

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        return b"ref"

    def close(self) -> None:
        pass

    def get(self, reference: bytes) -> bytes:
        assert reference == b"ref"
        return msgpack.packb("from elsewhere")


def reader(**options: Any) -> OutcomeReader:
    return OutcomeReader(lambda _: SERIALIZER, {"msgpack", "signed"}, **options)


class Bench:
    """A net with brokers, and handles of jobs that the first one has."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = brokers or (FakeBroker(),)
        self.net = Net(*self.brokers)
        self.results = ResultClient(
            NetRunner(self.net), reader(), answer_timeout=5.0, result_timeout=60.0
        )

    def job(self, job_id: str = "j1", broker: int = 0) -> Job[Any]:
        fake = self.brokers[broker]
        fake.jobs[job_id] = Request(job_id, "default", "", b"")
        return Job(job_id, self.results, JobOrigin("t", broker, fake.store))

    def end(self, job_id: str, state: str, kind: str = "msgpack", data: bytes | None = b"") -> None:
        self.brokers[0].finish(job_id, state, kind, data)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Results


def test_get_returns_the_result(bench: Bench) -> None:
    job = bench.job()
    bench.end("j1", "succeeded", data=msgpack.packb([1, "x"]))
    assert job.get() == [1, "x"]


def test_get_waits_for_the_end(bench: Bench) -> None:
    job = bench.job()
    bench.net.on_step = lambda: bench.end("j1", "succeeded", data=msgpack.packb(5))
    assert job.get(timeout=None) == 5


def test_get_is_asked_once_and_remembered(bench: Bench) -> None:
    job = bench.job()
    bench.end("j1", "succeeded", data=msgpack.packb([1]))
    first = job.get()
    first.append(2)
    assert job.get() == [1]
    assert job.state == "succeeded"
    assert job.ready()
    assert job.successful()
    calls = [m for m in bench.brokers[0].received if isinstance(m, Call)]
    assert [call.name for call in calls] == ["get"]


def test_get_waits_as_long_as_the_setting_says_by_default(bench: Bench) -> None:
    job, begin = bench.job(), bench.net.now
    with pytest.raises(ResultTimeout) as caught:
        job.get()
    assert 60.0 <= bench.net.now - begin <= 61.0
    assert caught.value.job_id == "j1"
    assert isinstance(caught.value, TimeoutError)


def test_a_timeout_says_where_the_job_is(bench: Bench) -> None:
    """The broker is asked once the time is up."""
    bench.brokers[0].calls |= {"queues": [], "workers": []}
    with pytest.raises(ResultTimeout, match=r"after 2\.0 s: no worker serves") as caught:
        bench.job().get(timeout=2)
    assert caught.value.state == "queued"
    with pytest.raises(ResultTimeout, match=r"after 2\.0 s: no worker serves"):
        asyncio.run(bench.job().aget(timeout=2))


def test_a_timeout_asks_for_queues_and_workers_only_about_a_queued_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many that wait for a running job would else make the broker list its workers."""
    job, broker = bench.job(), bench.brokers[0]
    monkeypatch.setattr(broker, "_state", lambda job_id: "running")
    with pytest.raises(ResultTimeout, match=r"still running after 2\.0 s") as caught:
        job.get(timeout=2)
    assert caught.value.state == "running"
    calls = [message.name for message in broker.received if isinstance(message, Call)]
    assert [name for name in calls if name != "forget"] == ["get", "info"]


UNREACHABLE = r"no broker could be reached .*; start one with \"eventmq broker\""


def test_a_timeout_without_a_broker_says_so_a_second_later_at_most(bench: Bench) -> None:
    job, begin = bench.job(), bench.net.now
    bench.net.lose(0)
    with pytest.raises(ResultTimeout, match=UNREACHABLE) as caught:
        job.get(timeout=2)
    assert bench.net.now - begin <= 3.0
    assert (caught.value.job_id, caught.value.state) == ("j1", "")
    begin = bench.net.now
    with pytest.raises(ResultTimeout, match=UNREACHABLE):
        asyncio.run(job.aget(timeout=2))
    assert bench.net.now - begin <= 3.0


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "5"])
def test_a_timeout_that_is_none_is_refused(bench: Bench, timeout: Any) -> None:
    with pytest.raises(ValueError, match="allowed are seconds"):
        bench.job().get(timeout=timeout)


def test_a_timeout_of_zero_still_asks(bench: Bench) -> None:
    job = bench.job()
    bench.end("j1", "succeeded", data=msgpack.packb(1))
    assert job.get(timeout=0) == 1


def test_an_unknown_id_is_job_not_found_and_never_pending(bench: Bench) -> None:
    job: Job[Any] = Job("nobody", bench.results, JobOrigin("t", 0, "s1"))
    for ask in (job.get, lambda: job.state, job.ready, job.info):
        with pytest.raises(JobNotFound) as caught:
            ask()
        assert caught.value.job_id == "nobody"


def test_a_coroutine_gets_the_same(bench: Bench) -> None:
    job = bench.job()
    bench.end("j1", "succeeded", data=msgpack.packb(7))

    async def ask() -> tuple[Any, ...]:
        return await job.astate(), await job.aget(), (await job.ainfo())["state"]

    assert asyncio.run(ask()) == ("succeeded", 7, "succeeded")


# Questions


def test_the_state_is_asked_for(bench: Bench) -> None:
    job = bench.job()
    assert job.state == "queued"
    assert not job.ready()
    assert not job.successful()
    bench.end("j1", "failed")
    assert job.ready()
    assert not job.successful()


def test_info_is_what_the_broker_knows(bench: Bench) -> None:
    known = {"id": "j1", "state": "queued"}
    assert bench.job().info() == {**known, "error": None, "attempts": []}


def test_a_broker_that_does_not_answer_is_unavailable(bench: Bench) -> None:
    job = bench.job()
    bench.net.lose(0)
    with pytest.raises(BrokerUnavailable):
        _ = job.state


# Cancelling


def test_a_cancelled_job_raises_with_its_reason(bench: Bench) -> None:
    job = bench.job()
    assert job.cancel("out of stock") is True
    with pytest.raises(JobCancelled, match="job j1 was cancelled: out of stock") as caught:
        job.get()
    assert (caught.value.job_id, caught.value.reason) == ("j1", "out of stock")


def test_cancelling_says_whether_it_is_cancelled_now(bench: Bench) -> None:
    """Twice is as once; a job that ended in another way keeps its end."""
    job = bench.job()
    assert [job.cancel(), job.cancel()] == [True, True]
    bench.job("j2")
    bench.end("j2", "succeeded")
    assert bench.job("j2").cancel() is False


def test_an_unknown_job_cannot_be_cancelled(bench: Bench) -> None:
    job: Job[Any] = Job("nobody", bench.results, JobOrigin())
    with pytest.raises(JobNotFound):
        job.cancel()
    with pytest.raises(JobNotFound):
        asyncio.run(job.acancel())


def test_a_coroutine_cancels_as_well(bench: Bench) -> None:
    job = bench.job()
    assert asyncio.run(job.acancel("no")) is True
    assert job.state == "cancelled"


def test_a_handle_is_its_id(bench: Bench) -> None:
    job = bench.job()
    assert job == bench.job()
    assert job != bench.job("j2")
    assert job != "j1"
    assert len({job, bench.job()}) == 1
    assert repr(job) == "<Job j1 t>"


def test_a_handle_cannot_be_pickled(bench: Bench) -> None:
    with pytest.raises(TypeError, match=r"app\.job\(id\)"):
        pickle.dumps(bench.job())


def test_a_job_of_an_unsent_batch_cannot_be_asked_for(bench: Bench) -> None:
    job: Job[Any] = Job("j1", bench.results, JobOrigin("t", sent=False))
    for ask in (job.get, lambda: job.state, job.info):
        with pytest.raises(NotAllowed, match="batch"):
            ask()


# Handles from ids


def test_a_handle_is_made_of_an_id_that_a_broker_knows() -> None:
    bench = Bench(FakeBroker(store="s1"), FakeBroker(store="s2"))
    bench.job("j2", broker=1)
    job = bench.results.find("j2").wait()
    assert job.origin.broker == 1
    assert asyncio.run(awaited(bench.results.find("j2"))) == job


def test_an_id_that_no_broker_knows_is_not_found() -> None:
    bench = Bench(FakeBroker(store="s1"), FakeBroker(store="s2"))
    with pytest.raises(JobNotFound):
        bench.results.find("nobody").wait()
    with pytest.raises(JobNotFound):
        bench.results.find("").wait()


def test_an_id_is_not_called_unknown_while_a_broker_is_away() -> None:
    bench = Bench(FakeBroker(store="s1"), FakeBroker(store="s2"))
    bench.net.lose(1)
    with pytest.raises(BrokerUnavailable):
        bench.results.find("nobody").wait()
    with pytest.raises(BrokerUnavailable):
        asyncio.run(awaited(bench.results.find("nobody")))


def test_with_one_broker_a_handle_has_no_address_of_its_own(bench: Bench) -> None:
    bench.job()
    assert bench.results.find("j1").wait().origin.broker == NO_BROKER


# Ends


def row(state: str, kind: str = "msgpack", data: bytes | None = b"") -> EndRow:
    return EndRow("j1", state, kind, data)


def failed(remote_type: str, *arguments: object) -> EndRow:
    remote = RemoteError(remote_type, "it broke", "Traceback ...", arguments)
    return row("failed", ERROR_TYPE, encode_error(remote))


def end(how: EndRow, **options: Any) -> EventMQError:
    with pytest.raises(EventMQError) as caught:
        reader(**options).value(how)
    return caught.value


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        (row("cancelled", data=None), JobCancelled),
        (row("expired", data=None), JobExpired),
        (row(""), JobNotFound),
        (row("running"), ProtocolError),
        (row("succeeded", data=None), ResultUnavailable),
        (row("succeeded", ""), ResultUnavailable),
        (row("succeeded", "pickle"), ContentNotAllowed),
        (row("failed", data=None), JobFailed),
        (failed("eventmq.errors.TimeLimitExceeded"), TimeLimitExceeded),
        (failed("eventmq.errors.WorkerLost"), WorkerLost),
        (failed("eventmq.errors.UnknownTask"), UnknownTask),
        (failed("eventmq.errors.ResultTooLarge", "x"), errors.ResultTooLarge),
        (failed("elsewhere.TimeLimitExceeded"), JobFailed),
    ],
)
def test_every_end_but_success_is_an_exception_with_the_id(how: EndRow, kind: type) -> None:
    error = end(how)
    assert type(error) is kind
    assert "j1" in str(error) or kind is ProtocolError


def test_a_job_that_expired_may_have_been_tried_before() -> None:
    """The number of attempts is not known here."""
    assert str(end(row("expired", data=None))).endswith(
        "expired before a worker started it, or its next attempt"
    )


def test_a_failure_carries_type_message_and_traceback() -> None:
    error = end(failed("shop.errors.OutOfStock"))
    assert isinstance(error, JobFailed)
    assert error.job_id == "j1"
    assert error.remote_type == "shop.errors.OutOfStock"
    assert error.remote_message == "it broke"
    assert error.remote_traceback == "Traceback ..."
    assert str(error) == "job j1 failed: shop.errors.OutOfStock: it broke"
    assert error.__cause__ is None


def test_the_message_of_a_failure_is_safe_to_print() -> None:
    """A text of a job could clear the screen of the client that does not catch its failure."""
    remote = RemoteError("shop.Bad", "\x1b[2J\x07\n\tis it", "", ())
    error = end(row("failed", ERROR_TYPE, encode_error(remote)))
    assert isinstance(error, JobFailed)
    assert str(error) == "job j1 failed: shop.Bad: \\x1b[2J\\x07\n\tis it"
    assert error.remote_message == "\x1b[2J\x07\n\tis it"


def test_the_reason_of_a_cancelled_job_is_safe_to_print(bench: Bench) -> None:
    job = bench.job()
    job.cancel("no \x1b[2J")
    with pytest.raises(JobCancelled, match=r"cancelled: no \\x1b\[2J$") as caught:
        job.get()
    assert caught.value.reason == "no \x1b[2J"


def test_a_failure_of_a_legacy_worker_is_its_text() -> None:
    error = end(row("failed", LEGACY_TYPE, b"TimeoutError"))
    assert isinstance(error, JobFailed)
    assert error.remote_message == "TimeoutError"


def test_bytes_that_are_no_error_become_its_message() -> None:
    error = end(row("failed", ERROR_TYPE, b"\xc1"))
    assert isinstance(error, JobFailed)
    assert error.remote_type == ""


@pytest.mark.parametrize(
    ("data", "value"),
    [(b'{"value": 3}', 3), (b'{"value": null}', None), (b"[1]", [1]), (b"text", "text")],
)
def test_the_result_of_a_legacy_worker_is_its_value(data: bytes, value: object) -> None:
    assert reader().value(row("succeeded", LEGACY_TYPE, data)) == value


def test_a_signed_result_is_decoded_with_its_signature() -> None:
    assert reader().value(row("succeeded", "signed;abc;12.5", msgpack.packb(1))) == 1
    assert Envelope("j1", "signed", created=12.5, signature="abc") == SERIALIZER.envelope


def test_a_result_elsewhere_is_fetched_from_there() -> None:
    how = row("succeeded", "reference:elsewhere;msgpack", b"ref")
    assert reader(location=ResultLocation(Backend(), "elsewhere")).value(how) == "from elsewhere"
    assert (
        reader(location=ResultLocation(Backend(), "elsewhere")).value(
            row("succeeded", data=b"\x05")
        )
        == 5
    )


@pytest.mark.parametrize("location", [ResultLocation(), ResultLocation(Backend(), "other")])
def test_a_result_of_a_backend_that_this_client_has_not_is_unavailable(
    location: ResultLocation,
) -> None:
    """It would decode the reference instead."""
    error = end(row("succeeded", "reference:elsewhere;msgpack", b"ref"), location=location)
    assert isinstance(error, ResultUnavailable)
    assert "job j1 is kept by the result backend 'elsewhere', and this program has" in str(error)


def test_the_content_type_of_a_result_elsewhere_must_be_accepted_too() -> None:
    location = ResultLocation(Backend(), "elsewhere")
    error = end(row("succeeded", "reference:elsewhere;pickle", b"ref"), location=location)
    assert isinstance(error, ContentNotAllowed)


def test_a_backend_that_breaks_makes_the_result_unavailable() -> None:
    class Broken(Backend):
        def get(self, reference: bytes) -> bytes:
            raise OSError("gone")

    location = ResultLocation(Broken(), "elsewhere")
    error = end(row("succeeded", "reference:elsewhere;msgpack", b"ref"), location=location)
    assert isinstance(error, ResultUnavailable)
    assert str(error).endswith("the result backend 'elsewhere' failed: OSError: gone")


def test_a_signed_result_elsewhere_is_verified_like_any_other() -> None:
    location = ResultLocation(Backend(), "elsewhere")
    how = row("succeeded", "reference:elsewhere;signed;abc;12.5", b"ref")
    assert reader(location=location).value(how) == "from elsewhere"
    assert Envelope("j1", "signed", created=12.5, signature="abc") == SERIALIZER.envelope


def test_a_coroutine_reads_a_result_elsewhere_without_blocking_its_loop(bench: Bench) -> None:
    """Backends may block; the loop goes on meanwhile."""
    went_on = threading.Event()

    class Slow(Backend):
        def get(self, reference: bytes) -> bytes:
            assert went_on.wait(20.0)
            return super().get(reference)

    bench.results.reader = reader(location=ResultLocation(Slow(), "elsewhere"))
    job = bench.job()
    bench.end("j1", "succeeded", "reference:elsewhere;msgpack", b"ref")

    async def main() -> Any:
        asyncio.get_running_loop().call_soon(went_on.set)
        return await job.aget()

    assert asyncio.run(main()) == "from elsewhere"


# Causes


class OutOfStock(Exception):
    """An exception that this process has."""


class Picky(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def remote(name: str, *arguments: object) -> RemoteError:
    return RemoteError(name, "text", "", arguments)


def test_an_exception_that_is_imported_here_is_the_cause() -> None:
    error = end(failed("builtins.KeyError", "a", 2))
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("a", 2)


def test_a_class_of_an_imported_module_is_found() -> None:
    made = original(remote(f"{__name__}.OutOfStock", "pens"))
    assert type(made) is OutOfStock
    assert made.args == ("pens",)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ValueError",
        "no.such.module.Error",
        "builtins.print",
        "builtins.SystemExit",
        "builtins.KeyboardInterrupt",
        "os.path.join",
        "sys.modules",
        f"{__name__}.Picky.missing",
        "builtins.ValueError.__class__",
        "..",
    ],
)
def test_what_is_no_exception_class_of_an_imported_module_is_no_cause(name: str) -> None:
    assert original(remote(name, "x")) is None


def test_a_message_makes_nothing_be_imported() -> None:
    assert "this" not in sys.modules
    assert original(remote("this.Error")) is None
    assert "this" not in sys.modules


def test_a_cause_whose_arguments_are_not_plain_has_the_message_instead() -> None:
    made = original(RemoteError("builtins.ValueError", "x", "", None))
    assert type(made) is ValueError
    assert made.args == ("x",)


def test_a_class_whose_constructor_takes_something_else_is_a_cause_like_any_other() -> None:
    """It is not called."""
    error = end(failed(f"{__name__}.Picky", "why"))
    assert type(error.__cause__) is Picky
    assert error.__cause__.args == ("why",)


def test_a_class_of_the_script_that_runs_is_found_by_the_name_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker has imported as ``shop`` what runs here as ``__main__``."""
    main = ModuleType("__main__")
    main.__file__ = "/srv/shop.py"
    main.__spec__ = None
    main.OutOfStock = OutOfStock  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert isinstance(original(remote("shop.OutOfStock")), OutOfStock)


def test_our_own_errors_are_causes_too() -> None:
    error = end(failed("eventmq.errors.ResultTooLarge", "the result has 9 bytes"))
    assert isinstance(error.__cause__, errors.ResultTooLarge)


# Many


def test_jobs_are_yielded_as_they_end(bench: Bench) -> None:
    jobs = [bench.job(f"j{n}") for n in range(4)]
    order = iter(["j2", "j0", "j3", "j1"])
    bench.net.on_step = lambda: bench.end(next(order, "j1"), "succeeded")
    done = [job.id for job in Completed(jobs, bench.results, 60.0)]
    assert done == ["j2", "j0", "j3", "j1"]
    assert all(job.row is not None for job in jobs)
    assert bench.brokers[0].waits == {}


def test_an_unknown_job_counts_as_ended(bench: Bench) -> None:
    nobody: Job[Any] = Job("nobody", bench.results, JobOrigin("t", 0, "s1"))
    assert list(Completed([nobody], bench.results, 5.0)) == [nobody]
    with pytest.raises(JobNotFound):
        nobody.get()


def test_more_jobs_than_fit_into_the_calls_of_a_peer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker bounds what one peer may wait for; the rest is asked later."""
    monkeypatch.setattr("eventmq.client.waiting.MAX_OPEN_CALLS", 2)
    jobs = [bench.job(f"j{n}") for n in range(5001)]
    for job in jobs:
        bench.end(job.id, "succeeded")
    assert len(list(Completed(jobs, bench.results, 60.0))) == 5001


def test_ten_thousand_jobs_are_ten_calls_over_a_restart_too(bench: Bench) -> None:
    """There is not one call per job; a new epoch is asked only for unfinished jobs."""
    jobs = [bench.job(f"j{n}") for n in range(10_000)]
    [broker] = bench.brokers

    def asked() -> list[int]:
        calls = [m for m in broker.received if isinstance(m, Call) and m.name == "get"]
        return [len(msgpack.unpackb(call.arguments)["ids"]) for call in calls]

    steps = iter(range(20))

    def step() -> None:
        match next(steps, None):
            case 0:
                assert asked() == [1000] * 10
                for job in jobs[:9500]:
                    bench.end(job.id, "succeeded")
            case 2:
                broker.received.clear()
                broker.restart()
            case 10:
                assert asked() == [500]
                for job in jobs[9500:]:
                    bench.end(job.id, "succeeded")

    bench.net.on_step = step
    assert wait(jobs, bench.results, 60.0).wait().pending == []
    assert broker.waits == {}


def test_a_wait_of_no_time_takes_what_has_ended(bench: Bench) -> None:
    jobs = [bench.job("j1"), bench.job("j2")]
    bench.end("j1", "succeeded")
    began = bench.net.now
    assert wait(jobs, bench.results, 0).wait() == ([jobs[0]], [jobs[1]])
    assert bench.net.now - began <= 1.0
    assert bench.brokers[0].waits == {}


def test_one_job_with_two_handles_is_asked_for_once_and_yielded_twice(bench: Bench) -> None:
    jobs = [bench.job("j1"), bench.job("j1")]
    bench.end("j1", "succeeded")
    assert list(Completed(jobs, bench.results, 5.0)) == jobs


def test_wait_returns_what_has_ended_when_the_time_is_up(bench: Bench) -> None:
    jobs = [bench.job("j1"), bench.job("j2")]
    bench.end("j2", "failed")
    assert wait(jobs, bench.results, 2.0).wait() == ([jobs[1]], [jobs[0]])
    assert asyncio.run(awaited(wait(jobs, bench.results, 2.0))) == ([jobs[1]], [jobs[0]])
    assert bench.brokers[0].waits == {}


def test_as_completed_raises_when_the_time_is_up(bench: Bench) -> None:
    jobs = [bench.job("j1"), bench.job("j2")]
    bench.end("j2", "succeeded")
    completed = []
    with pytest.raises(ResultTimeout, match=r"1 of 2 jobs .* the first: job j1 is still queued"):
        completed += [completed.append(job) for job in Completed(jobs, bench.results, 2.0)]
    assert completed == [jobs[1]]


def test_leaving_the_iteration_early_forgets_the_calls(bench: Bench) -> None:
    jobs = [bench.job("j1"), bench.job("j2")]
    bench.end("j2", "succeeded")
    iterator = iter(Completed(jobs, bench.results, None))
    assert next(iterator) == jobs[1]
    iterator.close()  # type: ignore[attr-defined]
    assert bench.brokers[0].waits == {}


def test_jobs_of_several_brokers_are_waited_for_together() -> None:
    bench = Bench(FakeBroker(store="s1"), FakeBroker(store="s2"))
    jobs = [bench.job("a", 0), bench.job("b", 1)]
    for broker, job in zip(bench.brokers, jobs, strict=True):
        broker.finish(job.id, "succeeded")
    assert wait(jobs, bench.results, 5.0).wait().pending == []


def test_async_iteration_yields_the_same(bench: Bench) -> None:
    jobs = [bench.job("j1"), bench.job("j2")]
    for job in jobs:
        bench.end(job.id, "succeeded")

    async def main() -> set[str]:
        return {job.id async for job in Completed(jobs, bench.results, 5.0)}

    assert asyncio.run(main()) == {"j1", "j2"}


def test_no_jobs_are_done_at_once(bench: Bench) -> None:
    assert wait([], bench.results, 5.0).wait() == ([], [])
