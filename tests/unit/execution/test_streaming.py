"""Parts on their way out of a task: batches, the window, and how a generator is run and closed."""

from __future__ import annotations

import asyncio

import pytest

from eventmq.errors import JobCancelled, ProtocolError, SoftTimeLimitExceeded
from eventmq.execution.streaming import (
    BATCH_AFTER,
    BATCH_BYTES,
    BATCH_PARTS,
    Cancellation,
    FlowControl,
    run_async_generator,
    run_generator,
)
from eventmq.wire.streams import (
    NO_READER,
    WINDOW,
    WINDOW_BYTES,
    PartHead,
    decode_parts,
    decode_progress,
    encode_parts,
    encode_progress,
    format_end,
    parse_end,
    parse_progress,
)


def sizes(batches):
    return [(batch.first, batch.parts) for batch in batches]


# On the wire


def test_a_head_is_its_text_and_back():
    assert PartHead(2, 100, 50).format() == "part:2:100:50"
    assert PartHead.parse("part:2:100:50") == PartHead(2, 100, 50)
    assert PartHead(2, 100, 50).end == 150
    assert parse_end(format_end(3, 7)) == PartHead(3, 7, 0)
    assert parse_progress("progress:4") == 4


@pytest.mark.parametrize(
    "text", ["part:1:2", "part:1:2:3:4", "part:a:2:3", "parts:1:2:3", "part:1:2:-3"]
)
def test_another_head_is_refused(text):
    with pytest.raises(ProtocolError):
        PartHead.parse(text)


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\xc0", encode_progress(1, 2, "x"), b"\x92\xa1x\x91\x01"]
)
def test_other_bodies_are_no_parts(body):
    with pytest.raises(ProtocolError):
        decode_parts(body)


def test_progress_is_numbers_and_a_note():
    assert decode_progress(encode_progress(1, None, "a" * 2000)) == (1, None, "a" * 1000)
    with pytest.raises(ProtocolError):
        decode_progress(encode_parts("x", []))


# Batches


def test_the_first_part_goes_at_once_and_others_together():
    flow = FlowControl()
    assert sizes(flow.add("x", b"0", 1.0)) == [(0, 1)]
    assert flow.add("x", b"1", 1.001) == []
    assert flow.add("x", b"2", 1.002) == []
    assert flow.waiting
    (batch,) = flow.add("x", b"3", 1.001 + BATCH_AFTER)
    assert (batch.first, decode_parts(batch.body)) == (1, ("x", [b"1", b"2", b"3"]))


def test_a_batch_is_bounded_in_number_and_bytes():
    flow = FlowControl()
    flow.add("x", b"0", 1.0)
    sent = [batch for n in range(BATCH_PARTS) for batch in flow.add("x", b"1", 1.0)]
    assert sizes(sent) == [(1, BATCH_PARTS)]
    assert sizes(flow.add("x", b"x" * BATCH_BYTES, 1.0)) == [(BATCH_PARTS + 1, 1)]


def test_parts_of_two_content_types_are_two_batches():
    """Signed parts, for example, have content types of their own."""
    flow = FlowControl()
    flow.add("a", b"0", 1.0)
    flow.add("a;s1", b"1", 1.0)
    assert sizes(flow.add("a;s2", b"2", 1.0)) == [(1, 1)]
    assert sizes(flow.flush(1.0)) == [(2, 1)]


def test_a_stream_without_parts_says_so_at_its_end():
    assert sizes(FlowControl().end(1.0)) == [(0, 0)]
    flow = FlowControl()
    flow.add("x", b"0", 1.0)
    assert flow.end(1.0) == []


# The window


def test_the_window_closes_by_number_and_what_waits_is_sent():
    flow = FlowControl()
    sent = [batch for n in range(WINDOW) for batch in flow.add("x", b"0", 1.0)]
    assert sum(batch.parts for batch in sent) == WINDOW
    assert not flow.has_credit
    flow.credit(1)
    assert flow.has_credit


def test_the_window_closes_by_bytes_and_opens_with_whole_batches():
    flow = FlowControl()
    for _ in range(2):
        flow.add("x", b"x" * (WINDOW_BYTES // 2), 1.0)
    assert not flow.has_credit
    flow.credit(1)
    assert flow.has_credit


def test_one_part_larger_than_the_window_goes_alone():
    flow = FlowControl()
    assert flow.has_credit
    assert sizes(flow.add("x", b"x" * (2 * WINDOW_BYTES), 1.0)) == [(0, 1)]
    assert not flow.has_credit


def test_credit_for_what_was_not_sent_opens_nothing_more():
    flow = FlowControl()
    flow.add("x", b"0", 1.0)
    flow.credit(WINDOW)
    for _ in range(WINDOW):
        flow.add("x", b"0", 1.0)
    assert not flow.has_credit


def test_what_nobody_reads_is_not_sent_and_waits_for_nobody():
    flow = FlowControl()
    flow.add("x", b"0", 1.0)
    flow.add("x", b"1", 1.0)
    flow.credit(NO_READER)
    assert [flow.add("x", b"2", 2.0) for _ in range(2 * WINDOW)] == [[]] * (2 * WINDOW)
    assert flow.has_credit
    assert flow.end(3.0) == []


# Generators


class Sink:
    """Takes parts; closed while ``open`` is false."""

    def __init__(self):
        self.got = []
        self.ends = 0
        self.open = True
        self.on_wait = lambda: None

    def begin(self):
        self.got.append("begin")

    def put(self, content_type, payload):
        self.got.append(payload)
        return True

    @property
    def has_credit(self):
        return self.open

    def wait(self, seconds):
        if not self.open:
            self.on_wait()
        return self.open

    def on_credit(self, call):
        self.on_wait = call

    def end(self):
        self.ends += 1


def encode(part):
    return "x", part


async def turns(sink, got):
    """Let the loop turn until the sink has got so much."""
    for _ in range(100):
        if len(sink.got) >= got:
            return
        await asyncio.sleep(0)
    raise AssertionError(sink.got)


def cancellation(now=lambda: 0.0):
    return Cancellation(now)


def told(log, parts=3):
    """Yield, and say by which exception it ended."""
    try:
        yield from range(parts)
        log.append("end")
    except BaseException as error:
        log.append(type(error))
        raise
    return "value"


def test_a_generator_is_run_to_its_return_value():
    log, sink = [], Sink()
    assert run_generator(told(log), sink, encode, cancellation()) == "value"
    assert (sink.got, sink.ends, log) == (["begin", 0, 1, 2], 1, ["end"])


def test_a_cancelled_generator_is_closed_where_it_yields():
    log, sink, stop = [], Sink(), cancellation()
    sink.open = False
    sink.on_wait = lambda: setattr(stop, "requested", True)
    with pytest.raises(JobCancelled):
        run_generator(told(log), sink, encode, stop)
    assert (sink.got, sink.ends, log) == (["begin", 0], 1, [GeneratorExit])


def test_the_soft_limit_is_raised_where_the_generator_yields_and_once():
    now = [0.0]
    stop, sink = cancellation(lambda: now[0]), Sink()

    def task():
        try:
            now[0] = 5.0
            yield "early"
        except SoftTimeLimitExceeded:
            yield "late"
            yield "later"

    stop.set_soft_limit(2.0)
    run_generator(task(), sink, encode, stop)
    assert sink.got == ["begin", "early", "late", "later"]


def test_signals_may_raise_in_the_tasks_own_code_only():
    stop, sink = cancellation(), Sink()
    seen = []
    sink.put = lambda *_: seen.append(stop.in_task)

    def task():
        seen.append(stop.in_task)
        yield 1

    run_generator(task(), sink, encode, stop)
    assert seen == [True, False]
    assert not stop.in_task


def test_a_part_that_cannot_be_encoded_closes_the_generator():
    log, sink = [], Sink()

    def fail(part):
        raise ValueError(part)

    with pytest.raises(ValueError, match="0"):
        run_generator(told(log), sink, fail, cancellation())
    assert (log, sink.ends) == ([GeneratorExit], 1)


def test_an_async_generator_waits_for_room_without_blocking_its_loop():
    sink = Sink()

    async def parts():
        for part in range(3):
            yield part

    async def main():
        sink.open = False
        task = asyncio.ensure_future(run_async_generator(parts(), sink, encode))
        await turns(sink, 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert sink.got == ["begin", 0]
        sink.open = True
        sink.on_wait()
        await task

    asyncio.run(main())
    assert (sink.got, sink.ends) == (["begin", 0, 1, 2], 1)


def test_a_cancelled_async_generator_is_closed():
    log, sink = [], Sink()

    async def parts():
        try:
            while True:
                yield 1
        finally:
            log.append("closed")

    async def main():
        task = asyncio.ensure_future(run_async_generator(parts(), sink, encode))
        await turns(sink, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (log, sink.ends) == (["closed"], 1)
