"""The job manager between a job that streams and the broker."""

from __future__ import annotations

from eventmq.interfaces import PartsYielded, ProgressReported
from eventmq.wire import commands
from eventmq.wire.streams import NO_READER, encode_parts, encode_progress
from tests.support.manager_harness import NotingPool, World


class StreamPool(NotingPool):
    def __init__(self, slots):
        super().__init__(slots)
        self.credits = []

    def credit(self, slot, chunk, position, taken):
        self.credits.append((slot, chunk, position, taken))


class Streaming(World):
    def __init__(self, **info):
        super().__init__(**info)
        self.pool = StreamPool(2)
        self.manager._pool = self.manager._streams._pool = self.pool

    def begin(self):
        self.connect()
        self.chunk(1, 2)
        self.start(0)
        return self

    def yields(self, first, parts=1, chunk=1, position=0):
        body = encode_parts("x", [b"y"] * parts)
        event = PartsYielded(0, chunk, position, first, parts, body)
        self.manager.pool_events([event], self.now)
        return self.out()

    def credit(self, taken, job="j1.0", delivery=1):
        return self.receive(commands.Credit("c", job, str(delivery), str(taken)))

    def heads(self, messages):
        return [(m.request, m.outcome) for m in messages if isinstance(m, commands.Reply)]


def test_parts_are_sent_as_they_come():
    world = Streaming().begin()
    assert world.heads(world.yields(0, 3)) == [("j1.0", "part:1:0:3")]
    assert world.heads(world.yields(3)) == [("j1.0", "part:1:3:1")]


def test_what_was_taken_is_told_to_the_job():
    world = Streaming().begin()
    world.yields(0, 3)
    world.credit(2)
    world.credit(2, job="j1.1")
    world.credit(2, delivery=2)
    assert world.pool.credits == [(0, 1, 0, 2)]


def test_what_was_not_taken_is_sent_again_to_a_broker_that_may_have_missed_it():
    """In order, before the answers, and only after the broker has acknowledged INFORM."""
    world = Streaming().begin()
    for first in range(3):
        world.yields(first)
    world.credit(1)
    world.manager.connected(world.now)
    assert world.heads(world.yields(3)) == []
    again = world.heads(world.welcome(epoch=2))
    assert again == [("j1.0", f"part:1:{first}:1") for first in (1, 2, 3)]


def test_parts_of_a_job_that_was_given_up_are_dropped():
    world = Streaming().begin()
    assert world.yields(0, chunk=7) == []
    world.answer(0, 1, 0, 1)
    assert world.yields(0) == []


def test_parts_of_an_ended_job_are_kept_until_they_were_taken():
    world = Streaming().begin()
    world.yields(0)
    world.answer(0, 1, 0, 1)
    world.manager.connected(world.now)
    assert ("j1.0", "part:1:0:1") in world.heads(world.welcome(epoch=2))
    world.credit(1)
    assert world.pool.credits == []
    assert not world.manager._streams.streams


def test_parts_of_an_ended_job_that_nobody_takes_are_not_kept_for_ever():
    world = Streaming().begin()
    world.yields(0)
    world.answer(0, 1, 0, 1)
    for _ in range(14):
        world.receive(commands.Heartbeat("h", "1"))
        world.tick(5.0)
    assert not world.manager._streams.streams


def test_a_broker_that_knows_no_streams_gets_no_parts():
    """The task continues, and its result is kept."""
    world = Streaming()
    world.connect(extensions=("session", "chunk", "outcome", "error"))
    world.chunk(1, 1)
    assert world.yields(0) == []
    assert world.pool.credits == [(0, 1, 0, NO_READER)]
    event = ProgressReported(0, 1, 0, encode_progress(1, 2, ""))
    world.manager.pool_events([event], world.now)
    assert world.out() == []


def test_progress_is_told_to_a_broker_that_is_there():
    world = Streaming().begin()
    event = ProgressReported(0, 1, 0, encode_progress(1, 2, ""))
    world.manager.pool_events([event], world.now)
    assert world.heads(world.out()) == [("j1.0", "progress:1")]
    world.manager.connected(world.now)
    world.out()
    world.manager.pool_events([event], world.now)
    assert world.out() == []


def test_parts_that_the_broker_cannot_take_are_lost_with_an_error(caplog):
    world = Streaming()
    world.connect(max_frame=100)
    world.chunk(1, 1)
    event = PartsYielded(0, 1, 0, 0, 1, encode_parts("x", [b"y" * 200]))
    world.manager.pool_events([event], world.now)
    assert world.out() == []
    assert "parts of job j1.0 are lost" in caplog.text


def test_a_bad_credit_changes_nothing(caplog):
    world = Streaming().begin()
    world.yields(0)
    world.receive(commands.Credit("c", "j1.0", "1", "many"))
    assert world.pool.credits == []
    assert "allowed are a delivery and a number of parts" in caplog.text
