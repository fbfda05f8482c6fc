"""``job.stream()`` against a broker that answers frames."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from eventmq.client.client import ClientRunner
from eventmq.client.handle import Job, JobOrigin, ResultClient
from eventmq.client.requests import News, PendingCall
from eventmq.errors import (
    ContentNotAllowed,
    JobFailed,
    JobNotFound,
    NotAllowed,
    ResultTimeout,
    ResultUnavailable,
    StreamRestarted,
)
from eventmq.wire.batches import pack, unpack
from eventmq.wire.commands import Call, Credit, Error, Reply
from eventmq.wire.outcomes import OutcomeReader
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq.wire.streams import PartHead, encode_parts, format_end
from tests.support.client_harness import FakeBroker, Net, NetRunner
from tests.unit.client.test_handle import SERIALIZER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.client.handle import JobStream


class StreamBroker(FakeBroker):
    """Has one stream, which the test writes; ``script`` is sent when a reader arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[tuple[str | None, bytes]] = []
        self.refusal: tuple[str, str] | None = None
        self.about: dict[str, Any] = {"delivery": 0, "base": 0, "replayable": False}
        self.readers: list[tuple[bytes, str]] = []
        self.stream_requests: list[dict[str, Any]] = []

    def _call(self, peer: bytes, message: Call) -> Any:
        if message.name != "stream":
            return super()._call(peer, message)
        self.stream_requests.append(unpack(message.arguments, "arguments"))
        if self.refusal:
            return [(peer, Error("b", message.id, *self.refusal).frames())]
        self.readers.append((peer, message.id))
        answers = [("part", pack(self.about)), *self.script]
        return [(peer, Reply("b", body, message.id, how).frames()) for how, body in answers]

    def parts(self, first: int, *values: Any, delivery: int = 1) -> tuple[str, bytes]:
        head = PartHead(delivery, first, len(values))
        return head.format(), encode_parts("msgpack", [msgpack.packb(v) for v in values])

    def end(
        self, parts: int, delivery: int = 1, state: str = "succeeded", value: Any = "value"
    ) -> tuple[str, bytes]:
        row = ("j", state, "msgpack", msgpack.packb(value))
        if state == "failed":
            row = ("j", state, ERROR_TYPE, encode_error(RemoteError("builtins.KeyError", "no")))
        return format_end(delivery, parts), pack(row)

    def credits(self) -> list[tuple[int, int]]:
        return [m.numbers() for m in self.received if isinstance(m, Credit)]

    def calls_named(self, name: str) -> list[Call]:
        return [m for m in self.received if isinstance(m, Call) and m.name == name]


class Reading:
    """A job's handle, and a broker that streams."""

    def __init__(self) -> None:
        self.broker = StreamBroker()
        self.net = Net(self.broker)
        self.runner = NetRunner(self.net)
        reader = OutcomeReader(lambda _: SERIALIZER, {"msgpack"})
        self.results = ResultClient(self.runner, reader, answer_timeout=5.0, result_timeout=60.0)

    def stream(self, timeout: float | None = 5.0, **options: Any) -> JobStream[Any]:
        self.job: Job[Any] = Job("j", self.results, JobOrigin(broker=0, store="s1"))
        return self.job.stream(timeout, **options)

    def say(self, *answers: tuple[str, bytes]) -> None:
        """Let the broker say something to its last reader."""
        peer, call = self.broker.readers[-1]
        sent = [(peer, Reply("b", body, call, how).frames()) for how, body in answers]
        self.net.deliver(0, sent)
        self.net.run()


@pytest.fixture
def reading() -> Reading:
    return Reading()


def take(stream: JobStream[Any], n: int) -> list[Any]:
    return [next(stream) for _ in range(n)]


def test_parts_come_in_order_and_the_result_is_there(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, "a"), broker.parts(1, "b", "c"), broker.end(3)]
    assert list(reading.stream()) == ["a", "b", "c"]
    assert reading.job.get() == "value"
    assert "get" not in {m.name for m in broker.received if isinstance(m, Call)}


def test_nothing_is_asked_before_the_first_part_is_wanted(reading: Reading) -> None:
    reading.stream()
    assert reading.broker.stream_requests == []


def test_a_coroutine_reads_the_same(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, "a", "b"), broker.end(2)]

    async def read() -> list[Any]:
        return [part async for part in reading.stream()]

    assert asyncio.run(read()) == ["a", "b"]


def test_a_coroutine_that_reads_a_fast_stream_lets_others_run(reading: Reading) -> None:
    """Once per batch, though all of them have arrived."""
    batches = 20
    reading.broker.script = [reading.broker.parts(n, n) for n in range(batches)]
    reading.broker.script.append(reading.broker.end(batches))

    async def read() -> tuple[list[Any], int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(count())
        try:
            return [part async for part in reading.stream()], turns
        finally:
            other.cancel()

    parts, turns = asyncio.run(read())
    assert parts == list(range(batches))
    assert turns >= batches


def test_a_stream_without_parts_is_empty(reading: Reading) -> None:
    reading.broker.script = [reading.broker.parts(0), reading.broker.end(0)]
    assert list(reading.stream()) == []


def test_a_job_that_failed_raises_behind_its_parts_and_once(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, "a"), broker.end(1, state="failed")]
    stream = reading.stream()
    assert next(stream) == "a"
    with pytest.raises(JobFailed, match="KeyError: no"):
        next(stream)
    assert list(stream) == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [("not-a-stream", NotAllowed), ("parts-gone", ResultUnavailable),
     ("job-not-found", JobNotFound)],
)  # fmt: skip
def test_what_the_broker_refuses_is_raised(reading: Reading, code: str, kind: type) -> None:
    reading.broker.refusal = (code, "why")
    with pytest.raises(kind):
        next(reading.stream())


def test_a_part_that_does_not_come_in_time_can_be_waited_for_again(reading: Reading) -> None:
    """The time is for each part."""
    broker = reading.broker
    broker.jobs["j"] = None  # type: ignore[assignment]
    broker.script = [broker.parts(0, "a")]
    stream = reading.stream(2.0)
    assert next(stream) == "a"
    before = reading.net.now
    with pytest.raises(ResultTimeout, match="job j is still queued"):
        next(stream)
    assert 2.0 <= reading.net.now - before < 5.0
    reading.say(broker.parts(1, "b"), broker.end(2))
    assert list(stream) == ["b"]


def test_an_idle_stream_yields_none_and_goes_on(reading: Reading) -> None:
    """However long no part comes, and whatever the timeout is."""
    broker = reading.broker
    broker.jobs["j"] = None  # type: ignore[assignment]
    broker.script = [broker.parts(0, "a")]
    stream = reading.stream(1.0, idle=2.0)
    before = reading.net.now
    assert [next(stream) for _ in range(3)] == ["a", None, None]
    assert 4.0 <= reading.net.now - before < 7.0
    reading.say(broker.parts(1, "b"), broker.end(2))
    assert list(stream) == ["b"]
    with pytest.raises(ValueError, match=r"idle is -1; allowed are seconds from 0, or None"):
        reading.stream(idle=-1)


def test_a_part_of_another_content_type_is_refused(reading: Reading) -> None:
    reading.broker.script = [("part:1:0:1", encode_parts("dill", [b"x"]))]
    with pytest.raises(ContentNotAllowed):
        next(reading.stream())


def test_credit_says_which_parts_were_read(reading: Reading) -> None:
    """After each quarter of the window, and when there is nothing left to take."""
    broker = reading.broker
    broker.script = [broker.parts(0, *range(300)), broker.parts(300, *range(100))]
    stream = reading.stream()
    take(stream, 255)
    assert broker.credits() == []
    take(stream, 1)
    reading.net.run()
    assert broker.credits() == [(1, 256)]
    take(stream, 144)
    with pytest.raises(ResultTimeout):
        next(stream)
    assert broker.credits() == [(1, 256), (1, 400)]


def test_large_parts_are_credited_earlier(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, *(["x" * 100_000] * 4))]
    stream = reading.stream()
    take(stream, 2)
    assert broker.credits() == []
    take(stream, 1)
    assert broker.credits() == [(1, 3)]


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_who_leaves_says_what_was_taken_and_is_forgotten(reading: Reading, leave: str) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, "a", "b", "c")]
    stream = reading.stream()
    if leave == "with":
        with stream:
            take(stream, 2)
    else:
        take(stream, 2)
    if leave == "close":
        stream.close()
        stream.close()
        assert list(stream) == []
    del stream
    gc.collect()
    reading.net.run()
    assert broker.credits() == [(1, 2)]
    assert len(broker.calls_named("forget")) == 1


def test_a_new_reader_begins_where_the_broker_says(reading: Reading) -> None:
    """It may be in the middle of a batch."""
    broker = reading.broker
    broker.about = {"delivery": 1, "base": 2, "replayable": False}
    broker.script = [broker.parts(1, "b", "c", "d"), broker.end(4)]
    assert list(reading.stream()) == ["c", "d"]


# Restarts


def restarted(reading: Reading, count: int = 2) -> JobStream[Any]:
    broker = reading.broker
    broker.script = [broker.parts(0, "a", "b", "c")]
    stream = reading.stream()
    take(stream, count)
    reading.say(broker.parts(0, "A", "B", delivery=2), broker.end(2, delivery=2))
    return stream


def test_another_run_is_an_error_and_then_its_parts_follow(reading: Reading) -> None:
    stream = restarted(reading, count=3)
    with pytest.raises(StreamRestarted, match="start again from the first"):
        next(stream)
    assert list(stream) == ["A", "B"]


def test_another_run_of_a_replayable_task_goes_on_where_it_was(reading: Reading) -> None:
    reading.broker.about["replayable"] = True
    broker = reading.broker
    broker.script = [broker.parts(0, "a", "b", "c")]
    stream = reading.stream()
    assert take(stream, 3) == ["a", "b", "c"]
    reading.say(broker.parts(0, "a", "b", delivery=2), broker.parts(2, "c", "d", delivery=2))
    reading.say(broker.end(4, delivery=2))
    assert list(stream) == ["d"]


def test_another_run_before_the_first_part_was_taken_is_no_error(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0), broker.parts(0, "A", delivery=2), broker.end(1, delivery=2)]
    assert list(reading.stream()) == ["A"]


def test_a_run_that_ends_without_a_part_is_another_run_too(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, "a"), broker.end(0, delivery=2)]
    stream = reading.stream()
    assert next(stream) == "a"
    with pytest.raises(StreamRestarted):
        next(stream)
    assert list(stream) == []


def test_a_reader_of_a_restarted_broker_says_where_it_is(reading: Reading) -> None:
    """And passes over what it has, so that no part comes twice and none is missed."""
    broker = reading.broker
    broker.script = [broker.parts(0, "a", "b", "c")]
    stream = reading.stream()
    assert take(stream, 2) == ["a", "b"]
    reading.net.lose(0)
    broker.restart()
    broker.script = [broker.parts(0, "a", "b", "c", "d"), broker.end(4)]
    reading.net.restore(0)
    reading.net.advance(1.0)
    assert broker.stream_requests[-1]["delivery"] == 1
    assert list(stream) == ["c", "d"]


def test_parts_that_were_lost_on_the_way_are_asked_for_once(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, "a"), broker.parts(2, "c")]
    stream = reading.stream()
    assert next(stream) == "a"
    with pytest.raises(ResultUnavailable, match="parts 1 to 1 of job j were lost"):
        next(stream)
    assert [request["taken"] for request in broker.stream_requests] == [0, 1]
    broker.script = [broker.parts(0, "a"), broker.parts(2, "c")]
    stream = reading.stream()
    assert next(stream) == "a"
    broker.script = [broker.parts(1, "b", "c"), broker.end(3)]
    assert list(stream) == ["b", "c"]


def test_an_end_that_knows_of_more_parts_is_a_loss(reading: Reading) -> None:
    broker = reading.broker
    broker.script = [broker.parts(0, "a"), broker.end(3)]
    stream = reading.stream()
    assert next(stream) == "a"
    with pytest.raises(ResultUnavailable, match="parts 1 to 2"):
        next(stream)


@pytest.mark.parametrize(
    "answer", [("part", b"\xc0"), ("part:x", b""), ("end:1:2", b"\xc0"), (None, b"\x90")]
)
def test_a_malformed_answer_ends_the_stream(reading: Reading, answer: Sequence[Any]) -> None:
    reading.broker.script = [answer]  # type: ignore[list-item]
    with pytest.raises(Exception, match=r"malformed|OUTCOME is"):
        next(reading.stream())


class _Runner(ClientRunner):
    """Waits as a client does; nothing is sent."""

    def __init__(self) -> None:
        pass


def test_a_coroutine_that_is_woken_before_there_is_news_has_not_timed_out():
    call = PendingCall([], name="stream")

    async def woken_early() -> bool:
        waiting = asyncio.ensure_future(_Runner().await_for(News((call,), None)))
        await asyncio.sleep(0)  # it watches the call now
        call.notify()
        return await waiting

    assert not call.answers
    assert asyncio.run(woken_early())
