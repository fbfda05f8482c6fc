"""Streams in the broker: parts pass through, with flow control by credit and fixed limits."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.limits import Limits
from eventmq.job import OutcomeKind
from eventmq.wire.batches import pack, unpack
from eventmq.wire.commands import Call, Command, Credit, Error, Heartbeat, Inform, Reply
from eventmq.wire.features import Features
from eventmq.wire.streams import (
    NO_READER,
    WINDOW,
    PartHead,
    encode_parts,
    encode_progress,
    parse_end,
)
from tests.support.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Routing id of a reader with FEATURES.
READER = b"eventmq1:client.reader"


class Streaming(Broker):
    """A broker with one job that streams, on one worker."""

    job = ""

    def begin(self, headers: str = "", identity: bytes = b"worker") -> str:
        """Submit a job and lease it."""
        self.job, _ = self.submit(headers=",".join(filter(None, ["stream", headers])))
        self.lease(identity)
        return self.job

    def lease(self, identity: bytes = b"worker", session: str = "w") -> int:
        """Connect a worker that gets the job; return the delivery."""
        got = self.worker(identity, session)
        (self.chunk, index), *_ = chunks(got)
        return index.entries[0].delivery

    def parts(
        self, first: int, parts: int = 1, delivery: int = 1, identity: bytes = b"worker",
        size: int = 1,
    ) -> list[Command]:  # fmt: skip
        """Send parts, which are their indexes and some bytes; return the credit of the worker."""
        payloads = [pack(first + n) + b"\xc0" * (size - 1) for n in range(parts)]
        head = PartHead(delivery, first, parts)
        body = encode_parts("msgpack", payloads)
        return self.tell(identity, Reply(self.new_id(), body, self.job, head.format()))

    def read(self, call: str = "r1", client: bytes = READER, **more: Any) -> list[Command]:
        """Call ``stream``."""
        return self.tell(client, Call(call, "stream", pack({"id": self.job, **more})))

    def take(self, taken: int, call: str = "r1", client: bytes = READER, delivery: int = 1):
        """Acknowledge parts; return the credit that the worker got."""
        self.sent.pop(b"worker", None)
        self.tell(client, Credit("c", call, str(delivery), str(taken)))
        return credited(self.took(b"worker"))

    def finish(self, kind: int = OutcomeKind.SUCCEEDED) -> None:
        """End the job."""
        self.answer(b"worker", self.chunk, [row(kind=int(kind))])


def credited(messages: list[Command]) -> list[int]:
    """Return the numbers of acknowledged parts in the CREDITs of a worker."""
    return [int(m.taken) for m in messages if isinstance(m, Credit)]


def batches(messages: list[Command]) -> list[tuple[int, int, int]]:
    """Return delivery, first index and number of the parts that a reader got."""
    outcomes = [m.outcome or "" for m in messages if isinstance(m, Reply)]
    return [tuple(PartHead.parse(o)) for o in outcomes if o.startswith("part:")]  # type: ignore[misc]


def ends(messages: list[Command]) -> list[tuple[int, int, str]]:
    """Return delivery, number of parts and state of the ends that a reader got."""
    return [
        (*parse_end(m.outcome)[:2], unpack(m.result, "row")[1])
        for m in messages
        if isinstance(m, Reply) and (m.outcome or "").startswith("end:")
    ]


def codes(messages: list[Command]) -> list[str]:
    return [m.code for m in messages if isinstance(m, Error)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Streaming]:
    broker = Streaming(tmp_path)
    yield broker
    broker.close()


# Parts


def test_parts_reach_the_reader_as_they_came_and_the_end_follows(broker: Streaming) -> None:
    broker.begin()
    first, *_ = broker.read()
    assert isinstance(first, Reply)
    assert unpack(first.result, "x") == {"delivery": 0, "base": 0, "replayable": False}
    assert broker.parts(0, 2) == []
    assert batches(broker.took(READER)) == [(1, 0, 2)]
    broker.parts(2, 3)
    broker.finish()
    got = broker.took(READER)
    assert batches(got) == [(1, 2, 3)]
    assert ends(got) == [(1, 5, "succeeded")]


def test_parts_need_no_commit(broker: Streaming) -> None:
    """They are deferred sends of their tick, without a write."""
    broker.begin()
    broker.read()
    body = encode_parts("msgpack", [b"\x01"])
    broker.put(b"worker", Reply("p", body, broker.job, "part:1:0:1"))
    assert not broker.core.has_writes
    assert [message.key.identity for message in broker.core.take_deferred_sends()] == [READER]


def test_what_came_before_the_reader_waits_for_it(broker: Streaming) -> None:
    broker.begin()
    broker.parts(0, 2)
    broker.parts(2, 1)
    assert batches(broker.read()) == [(1, 0, 2), (1, 2, 1)]


def test_a_reader_may_come_after_the_end(broker: Streaming) -> None:
    broker.begin()
    broker.parts(0, 2)
    broker.finish()
    got = broker.read()
    assert (batches(got), ends(got)) == ([(1, 0, 2)], [(1, 2, "succeeded")])


def test_a_job_that_yields_nothing_has_an_empty_stream(broker: Streaming) -> None:
    broker.begin()
    broker.parts(0, 0)
    broker.finish()
    got = broker.read()
    assert ends(got) == [(1, 0, "succeeded")]


@pytest.mark.parametrize(
    ("kind", "state"),
    [(OutcomeKind.FAILED, "failed"), (OutcomeKind.CANCELLED, "cancelled"),
     (OutcomeKind.EXPIRED, "expired")],
)  # fmt: skip
def test_the_end_says_how_the_job_ended(broker: Streaming, kind: int, state: str) -> None:
    """Also for a reader that comes when no parts are left."""
    broker.begin()
    broker.read()
    broker.finish(kind)
    assert ends(broker.took(READER)) == [(0, 0, state)]
    assert ends(broker.read("r2")) == [(0, 0, state)]


def test_a_cancelled_job_ends_its_stream(broker: Streaming) -> None:
    broker.begin()
    broker.parts(0, 1)
    broker.read()
    broker.call("cancel", ids=[broker.job])
    assert ends(broker.took(READER)) == [(1, 1, "cancelled")]


def test_parts_of_a_job_without_guarantee_stream_as_well(broker: Streaming) -> None:
    broker.begin("guarantee:False")
    broker.read()
    broker.parts(0, 1)
    broker.finish()
    got = broker.took(READER)
    assert (batches(got), ends(got)) == ([(1, 0, 1)], [(1, 1, "succeeded")])


# Credit


def test_what_was_taken_is_told_to_the_worker_and_forgotten(broker: Streaming) -> None:
    broker.begin()
    broker.read()
    broker.parts(0, 4)
    broker.parts(4, 4)
    assert broker.take(6) == [6]
    assert broker.take(6) == []
    assert broker.take(5) == []
    assert batches(broker.read("r2", b"other")) == [(1, 4, 4)]


def test_a_reader_that_has_missed_a_part_gets_no_later_one(broker: Streaming) -> None:
    """Seed 1,795,348,208,351: it did not read, was forgotten, and has not informed since."""
    broker.begin()
    broker.read()
    broker.put(b"worker", Reply("p", encode_parts("msgpack", [pack(0)]), broker.job, "part:1:0:1"))
    broker.core.decide(broker.clock.now())
    [part] = [m for m in broker.core.take_deferred_sends() if m.key.identity == READER]
    broker.core.not_sent(part, broker.clock.now(), reachable=True)
    broker.took(READER)
    broker.parts(1)
    assert broker.took(READER) == []
    assert codes(broker.tell(READER, Heartbeat("h", "1.0"))) == ["inform-again"]
    features = Features(session="reader").format()
    broker.tell(READER, Inform("i", "", "client", features))
    assert batches(broker.read()) == [(1, 0, 1), (1, 1, 1)]


def test_a_reader_cannot_take_what_was_not_sent(broker: Streaming) -> None:
    broker.begin()
    broker.read()
    broker.parts(0, 2)
    assert broker.take(1000) == [2]


def test_a_stranger_takes_nothing(broker: Streaming) -> None:
    broker.begin()
    broker.parts(0, 2)
    assert broker.take(2, client=b"stranger") == []
    broker.read()
    assert broker.take(2, client=b"stranger") == []
    assert broker.take(2, delivery=7) == []
    got = broker.tell(READER, Credit("c", "r1", "x", "2"))
    assert codes(got) == ["bad-arguments"]


def test_the_slowest_reader_sets_the_pace(broker: Streaming) -> None:
    broker.begin()
    broker.read()
    broker.read("r2", b"slow")
    broker.parts(0, 8)
    assert broker.take(8) == []
    assert broker.take(3, "r2", b"slow") == [3]
    broker.sent.clear()
    broker.tell(b"slow", Call("f", "forget", pack({"call": "r2"})))
    assert credited(broker.took(b"worker")) == [8]


def test_a_new_reader_goes_on_where_the_last_one_stopped(broker: Streaming) -> None:
    """Each part is read once."""
    broker.begin()
    broker.read()
    broker.parts(0, 2)
    broker.parts(2, 2)
    broker.take(3)
    broker.tell(READER, Call("f", "forget", pack({"call": "r1"})))
    first, *rest = broker.read("r2")
    assert unpack(first.result, "x")["base"] == 3  # type: ignore[union-attr]
    assert batches(rest) == [(1, 2, 2)]


def test_a_reader_that_comes_back_is_sent_what_it_has_not_taken(broker: Streaming) -> None:
    broker.begin()
    broker.read()
    broker.parts(0, 2)
    broker.parts(2, 2)
    broker.take(2)
    broker.unreachable.add(READER)
    broker.parts(4, 1)
    assert batches(broker.read("r2", b"again", delivery=1, taken=3)) == [(1, 2, 2), (1, 4, 1)]


def test_a_stream_that_was_read_is_over(
    broker: Streaming, caplog: pytest.LogCaptureFixture
) -> None:
    """No part of it is kept, and a later call gets an error, which is no fault to be logged."""
    broker.begin()
    broker.read()
    broker.parts(0, 2)
    broker.finish()
    broker.take(2)
    broker.tell(READER, Call("f", "forget", pack({"call": "r1"})))
    assert broker.core.streams.of == {}
    assert broker.core.streams._bytes == 0
    with caplog.at_level(logging.WARNING, "eventmq.broker"):
        assert codes(broker.read("r2")) == ["parts-gone"]
    assert caplog.messages == []


# Refusals


def test_a_job_that_does_not_stream_says_so(broker: Streaming) -> None:
    """At its end, since its task is not known before."""
    broker.job, _ = broker.submit()
    broker.lease()
    assert codes(broker.read()) == []
    broker.finish()
    assert codes(broker.took(READER)) == ["not-a-stream"]
    assert codes(broker.read("r2")) == ["not-a-stream"]
    assert broker.core.streams.of == {}


def test_a_job_that_was_submitted_by_name_may_stream(broker: Streaming) -> None:
    broker.job, _ = broker.submit()
    broker.lease()
    broker.read()
    broker.parts(0, 1)
    broker.finish()
    assert ends(broker.took(READER)) == [(1, 1, "succeeded")]


def test_an_unknown_job_has_no_stream(broker: Streaming) -> None:
    broker.job = "nobody"
    assert codes(broker.read()) == ["job-not-found"]


@pytest.mark.parametrize("arguments", [{"delivery": -1}, {"taken": "x"}, {"id": 5}])
def test_bad_arguments_are_refused(broker: Streaming, arguments: dict[str, Any]) -> None:
    broker.begin()
    assert codes(broker.read(**arguments)) == ["bad-arguments"]


@pytest.mark.parametrize("outcome", ["part:1:0", "part:1:x:1", "part:1:-1:1", "progress:", "part:"])
def test_a_bad_outcome_is_refused(broker: Streaming, outcome: str) -> None:
    broker.begin()
    got = broker.tell(b"worker", Reply("p", b"", broker.job, outcome))
    assert codes(got) == ["bad-outcome"]


def test_parts_of_another_delivery_or_worker_change_nothing(broker: Streaming) -> None:
    """The credit lets the worker stop sending."""
    broker.begin()
    broker.read()
    assert credited(broker.parts(0, 1, delivery=2)) == [NO_READER]
    broker.tell(b"thief", Inform("i", "[]", "worker", Features(session="t").format()))
    assert credited(broker.parts(0, 1, identity=b"thief")) == [NO_READER]
    assert codes(broker.parts(0, 1, identity=b"stranger")) == ["inform-again"]
    assert broker.took(READER) == []
    assert broker.core.state.counters["stale_parts"] == 2


# Restarts


def test_another_run_begins_again_and_readers_see_it_by_the_delivery(broker: Streaming) -> None:
    broker.begin()
    broker.read()
    broker.parts(0, 5)
    broker.take(3)
    broker.finish(OutcomeKind.HANDED_BACK)
    assert broker.lease() == 2
    broker.took(READER)
    broker.parts(0, 2, delivery=2)
    assert batches(broker.took(READER)) == [(2, 0, 2)]
    assert broker.take(2, delivery=1) == []
    assert broker.take(2, delivery=2) == [2]


def test_parts_that_are_sent_again_are_passed_over(broker: Streaming) -> None:
    """The worker may have missed the CREDIT."""
    broker.begin()
    broker.read()
    broker.parts(0, 2)
    broker.take(2)
    assert credited(broker.parts(0, 2)) == [2]
    broker.took(READER)
    broker.parts(2, 1)
    assert batches(broker.took(READER)) == [(1, 2, 1)]


def test_a_worker_whose_parts_are_missing_is_asked_for_them(broker: Streaming) -> None:
    broker.begin()
    broker.read()
    broker.parts(0, 2)
    assert codes(broker.parts(3, 1)) == ["inform-again"]
    assert batches(broker.took(READER)) == [(1, 0, 2)]


def test_a_restart_of_the_broker_loses_no_part_that_the_worker_keeps(tmp_path: Path) -> None:
    """The worker repeats unacknowledged parts, and the reader calls again with its position."""
    broker = Streaming(tmp_path)
    broker.begin()
    broker.read()
    for first in (0, 2, 4):
        broker.parts(first, 2)
    broker.take(4)
    broker.crash()
    assert batches(broker.read("r1", delivery=1, taken=5)) == []
    broker.worker(b"worker", "w", received=1, held=(1,))
    broker.parts(4, 2)
    assert batches(broker.took(READER)) == [(1, 4, 2)]
    broker.parts(6, 1)
    broker.finish()
    got = broker.took(READER)
    assert (batches(got), ends(got)) == ([(1, 6, 1)], [(1, 7, "succeeded")])
    broker.close()


def test_a_reader_that_needs_parts_which_are_lost_is_told(tmp_path: Path) -> None:
    broker = Streaming(tmp_path)
    broker.begin()
    broker.crash()
    broker.read("r1", delivery=1, taken=3)
    broker.worker(b"worker", "w", received=1, held=(1,))
    broker.parts(4, 2)
    assert codes(broker.took(READER)) == ["parts-gone"]
    broker.close()


# Streams without a reader


def test_parts_that_no_client_reads_are_discarded_and_the_result_is_kept(broker: Streaming) -> None:
    broker.begin()
    broker.parts(0, 3)
    for _ in range(6):
        broker.wait(9.7)
        broker.ready(b"worker", 1, 1, (1,))
    assert broker.core.streams.of
    broker.took(b"worker")
    broker.wait(4.0)
    assert credited(broker.took(b"worker")) == [NO_READER]
    assert broker.core.streams.of == {}
    assert codes(broker.read()) == ["parts-gone"]
    assert credited(broker.parts(3, 1)) == [NO_READER]
    broker.finish()
    (row_,) = broker.call("get", ids=[broker.job])
    assert row_[1] == "succeeded"


def test_who_waits_for_the_result_alone_does_not_hold_the_job_back(broker: Streaming) -> None:
    """The parts are kept until the window is full, and then for a second only."""
    broker.begin()
    broker.tell(b"waits", Call("g", "get", pack({"ids": [broker.job]})))
    broker.parts(0, WINDOW - 1)
    broker.wait(3.0)
    assert broker.core.streams.of
    assert credited(broker.parts(WINDOW - 1, 1)) == []
    broker.took(b"worker")
    broker.wait(1.0)
    assert credited(broker.took(b"worker")) == [NO_READER]
    assert codes(broker.read()) == ["parts-gone"]
    broker.finish()
    [reply] = [m for m in broker.took(b"waits") if isinstance(m, Reply)]
    assert unpack(reply.result, "rows")[0][:2] == [broker.job, "succeeded"]


@pytest.mark.parametrize("headers", ["stream-idle:60", "stream-unread:cancel"])
def test_a_task_that_says_how_long_parts_wait_is_held_back_so_long(
    broker: Streaming, headers: str
) -> None:
    broker.begin(headers)
    broker.tell(b"waits", Call("g", "get", pack({"ids": [broker.job]})))
    broker.parts(0, WINDOW)
    broker.wait(5.0)
    assert batches(broker.read()) == [(1, 0, WINDOW)]


def test_no_reader_loses_parts_to_one_who_waits_for_the_result(broker: Streaming) -> None:
    """Even if the reader is slow."""
    broker.begin()
    broker.read()
    broker.tell(b"waits", Call("g", "get", pack({"ids": [broker.job]})))
    broker.parts(0, WINDOW)
    broker.wait(5.0)
    assert broker.take(WINDOW) == [WINDOW]


def test_the_task_says_how_long_parts_wait(broker: Streaming) -> None:
    broker.begin("stream-idle:2")
    broker.parts(0, 1)
    broker.wait(1.5)
    assert broker.core.streams.of
    broker.wait(1.5)
    assert broker.core.streams.of == {}


def test_the_time_counts_from_when_the_last_reader_left(broker: Streaming) -> None:
    broker.begin("stream-idle:2")
    broker.read()
    broker.parts(0, 1)
    broker.wait(3.0)
    broker.tell(READER, Call("f", "forget", pack({"call": "r1"})))
    broker.wait(1.5)
    assert batches(broker.read("r2")) == [(1, 0, 1)]


def test_a_job_that_no_client_reads_is_cancelled_where_the_task_says_so(broker: Streaming) -> None:
    broker.begin("stream-idle:2,stream-unread:cancel")
    broker.parts(0, 1)
    broker.wait(3.0)
    info = broker.call("info", id=broker.job)
    assert info["state"] == "cancelled"
    assert b"its stream had no reader for 2 s" in info["error"]


def test_the_parts_of_an_ended_job_wait_as_long(broker: Streaming) -> None:
    broker.begin("stream-idle:2")
    broker.parts(0, 1)
    broker.finish()
    broker.wait(1.5)
    assert broker.core.streams.of
    broker.wait(1.5)
    assert broker.core.streams.of == {}
    assert codes(broker.read()) == ["parts-gone"]


def test_a_failed_job_that_is_queued_again_streams_again(broker: Streaming) -> None:
    """The discarded parts of the run before do not matter."""
    broker.begin()
    broker.read()
    broker.parts(0, 1)
    broker.finish(OutcomeKind.FAILED)
    broker.take(1)
    broker.tell(READER, Call("f", "forget", pack({"call": "r1"})))
    broker.call("retry", ids=[broker.job])
    assert codes(broker.read("r2")) == []
    delivery = broker.lease()
    broker.took(READER)
    broker.parts(0, 2, delivery=delivery)
    assert batches(broker.took(READER)) == [(delivery, 0, 2)]


# Limits


def test_a_worker_that_ignores_the_window_loses_its_stream(tmp_path: Path) -> None:
    broker = Streaming(tmp_path, limits=replace(Limits(), stream_parts=10))
    broker.begin()
    broker.read()
    results = [credited(broker.parts(first, 4)) for first in range(0, 16, 4)]
    assert results == [[], [], [], [NO_READER]]
    assert codes(broker.took(READER)) == ["parts-gone"]
    assert broker.core.streams._bytes == 0
    broker.close()


def test_all_streams_together_are_bounded_and_the_idle_ones_make_room(tmp_path: Path) -> None:
    broker = Streaming(tmp_path, limits=replace(Limits(), max_stream_bytes=3000))
    idle = broker.begin()
    broker.parts(0, 1, size=2000)
    broker.job, _ = broker.submit(headers="stream")
    broker.worker(b"second", "w2")
    broker.read()
    broker.parts(0, 1, identity=b"second", size=2000)
    assert list(broker.core.streams.of) == [broker.job]
    assert batches(broker.took(READER)) == [(1, 0, 1)]
    assert credited(broker.parts(1, 1, identity=b"second", size=2000)) == [NO_READER]
    assert codes(broker.took(READER)) == ["parts-gone"]
    broker.job = idle
    assert codes(broker.read("r3")) == ["parts-gone"]
    broker.close()


def test_the_number_of_streams_is_bounded(tmp_path: Path) -> None:
    broker = Streaming(tmp_path, limits=replace(Limits(), max_streams=1, max_subscriptions=1))
    broker.begin()
    broker.read()
    assert codes(broker.read("r2")) == ["too-many"]
    broker.job, _ = broker.submit(headers="stream")
    assert codes(broker.read("r3", b"other")) == ["too-many"]
    broker.close()


# Progress


def test_the_last_progress_is_in_the_info_until_the_job_ends(broker: Streaming) -> None:
    broker.begin()
    assert broker.call("info", id=broker.job)["progress"] is None
    for done in (1, 2):
        body = encode_progress(done, 10, "rows")
        assert broker.tell(b"worker", Reply("p", body, broker.job, "progress:1")) == []
    results = broker.call("info", id=broker.job)["progress"]
    assert results == {"done": 2, "total": 10, "note": "rows", "at": broker.clock.now()}
    broker.finish()
    assert broker.call("info", id=broker.job)["progress"] is None
    assert broker.core.streams.progress == {}


def test_the_progress_of_another_delivery_is_passed_over(broker: Streaming) -> None:
    broker.begin()
    body = encode_progress(1, None, "")
    broker.tell(b"worker", Reply("p", body, broker.job, "progress:2"))
    broker.tell(b"worker", Reply("p", body, "nobody", "progress:1"))
    assert broker.core.streams.progress == {}
    got = broker.tell(b"worker", Reply("p", b"\xc0", broker.job, "progress:1"))
    assert codes(got) == ["bad-body"]
