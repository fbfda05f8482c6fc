"""The broker's core when commits fail, clocks jump and peers are lost: every job counts once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.admission import Admission
from eventmq.broker.limits import Limits
from eventmq.errors import QueueFull
from eventmq.job import OutcomeKind
from eventmq.schedule import Schedule
from eventmq.wire.batches import encode_outcomes, pack
from eventmq.wire.commands import (
    Ack,
    Call,
    Error,
    Heartbeat,
    Inform,
    Kbai,
    Ready,
    Reply,
    Request,
)
from eventmq.wire.features import Features, Status
from tests.support.broker_harness import TASK, Broker, chunks, row

if TYPE_CHECKING:
    from pathlib import Path


def turn_without_space(broker: Broker) -> None:
    """End a tick with a commit that does not fit on the disk."""
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    assert entries
    settle(QueueFull("no space"))
    broker.core.take_deferred_sends()


def test_a_session_lost_in_a_failed_commit_is_given_up_again(broker: Broker) -> None:
    """Its jobs run elsewhere once there is space."""
    broker.worker(b"w1", "one")
    broker.submit()
    broker.put(b"w1", Kbai("bye"))
    turn_without_space(broker)
    broker.wait(5.0)
    assert len(chunks(broker.worker(b"w2", "two"))) == 1


def test_a_failed_commit_charges_no_attempt_and_no_death(broker: Broker) -> None:
    """The worker repeats its REPLY, which then counts once."""
    broker.worker()
    job_id, _ = broker.submit()
    [chunk] = broker.dispatched
    job = broker.core.state.jobs[job_id]
    for kind in (OutcomeKind.DIED, OutcomeKind.RETRY):
        body = encode_outcomes([row(0, kind, countdown=5.0)])
        broker.put(b"worker", Reply(broker.new_id(), body, chunk.id, chunk.headers))
        turn_without_space(broker)
        assert (job.attempt, job.deaths, job.ready_at) == (1, 0, 0.0)


def test_a_question_is_answered_although_its_commit_had_no_space(broker: Broker) -> None:
    """Reads need no space."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    broker.put(b"c", Call("7", "get", pack({"ids": [job_id]})))
    turn_without_space(broker)
    broker.tick()
    assert [m.request for m in broker.took(b"c") if isinstance(m, Reply)] == ["7"]


@pytest.mark.parametrize("name", ["info", "failed"])
def test_every_question_is_asked_again_after_a_commit_without_space(
    broker: Broker, name: str
) -> None:
    job_id, _ = broker.submit()
    broker.put(b"c", Call("7", name, pack({"id": job_id} if name == "info" else {})))
    turn_without_space(broker)
    broker.tick()
    assert [m.request for m in broker.took(b"c") if isinstance(m, Reply)] == ["7"]


def test_the_broker_pauses_dispatch_when_there_is_no_space(broker: Broker) -> None:
    """It does not spin, and continues by itself."""
    broker.submit()
    broker.put(b"w", Inform("1", "", "worker", "session:s,chunk"))
    broker.put(b"w", Heartbeat("2", "1", "received:0,window:1,held:"))
    turn_without_space(broker)
    broker.core.decide(broker.clock.now())
    assert not broker.core.has_writes
    broker.wait(1.0)
    assert len(chunks(broker.took(b"w"))) == 1


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_wall_clock_that_is_set_loses_no_peer_and_spares_none(
    broker: Broker, jump: float
) -> None:
    """A live worker keeps its job, a dead one loses it in time."""
    broker.worker()
    broker.submit()
    broker.clock.wrong = jump
    broker.tell(b"worker", Heartbeat(broker.new_id(), "1"))
    broker.wait(10.0)
    assert broker.core.state.counters["lease_lost"] == 0
    broker.wait(10.0)
    assert broker.core.state.counters["lease_lost"] == 1


def test_a_broker_that_was_stopped_loses_no_peer_and_spares_none(broker: Broker) -> None:
    """Deadlines move by that time: a live worker keeps its job, a dead one loses it in time."""
    broker.worker()
    broker.submit()
    broker.clock.time += 3600.0
    broker.core.shift(broker.now(), 3600.0)
    broker.tell(b"worker", Heartbeat(broker.new_id(), "1"))
    broker.wait(10.0)
    assert broker.core.state.counters["lease_lost"] == 0
    broker.wait(10.0)
    assert broker.core.state.counters["lease_lost"] == 1


def test_an_id_that_only_looks_time_ordered_is_known_after_its_end(broker: Broker) -> None:
    """One of sixteen md5 digests does; the time in it is not believed."""
    digests = (hashlib.md5(str(n).encode()).hexdigest() for n in range(1000))
    job_id = next(digest for digest in digests if digest[12] == "7" and digest > "1")
    broker.submit(job_id)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]
    broker.submit(job_id)
    assert broker.call("queues")[0]["waiting"] == 0


def test_an_id_of_a_clock_far_ahead_is_refused_later_too(broker: Broker) -> None:
    """Also when its time has come, and after a restart."""
    early = f"{int((broker.clock.now() + 90_000) * 1000):012x}7000" + "8" * 16
    broker.submit(early)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    broker.crash()
    broker.clock.time += 20_000
    broker.submit(early)
    assert broker.call("queues")[0]["waiting"] == 0


def test_heartbeats_go_out_however_much_comes_in(broker: Broker) -> None:
    """Only the check for silent peers waits until all messages were read."""
    broker.worker()
    for _ in range(20):
        broker.clock.time += 0.5
        broker.core.decide(broker.clock.now(), caught_up=False)
    beats = [m for m in broker.core.take_deferred_sends() if b"HEARTBEAT" in m.frames]
    assert len(beats) >= 3


def test_a_dead_client_that_is_owed_a_reply_makes_room_for_a_worker(tmp_path: Path) -> None:
    """Otherwise its job would never end."""
    broker = Broker(tmp_path, Limits(max_peers=1))
    broker.tell(b"c", Request(broker.new_id(), "default", "reply-requested", b"[]"))
    broker.wait(60.0)
    first, *_ = broker.tell(b"w", Inform("1", "", "worker"))
    assert isinstance(first, Ack)
    broker.close()


def test_results_travel_in_messages_within_the_frame_limit(tmp_path: Path) -> None:
    """A get() of many large results is answered in parts."""
    broker = Broker(tmp_path, Limits(max_frame=1000, window_bytes=10**6))
    ids = [broker.submit()[0] for _ in range(5)]
    messages = broker.worker()
    while pairs := chunks(messages):
        [(chunk, index)] = pairs
        rows = [row(i, result=b"r" * 600) for i in range(len(index.entries))]
        messages = broker.answer(b"worker", chunk, rows)
    got = broker.tell(b"c", Call("1", "get", pack({"ids": ids})))
    assert [m.outcome for m in got if isinstance(m, Reply)] == ["part"] * 4 + [None]
    broker.close()


def test_a_full_pipe_is_not_tried_again_before_the_worker_speaks(broker: Broker) -> None:
    """Otherwise each tick would lease the job and undo the lease in a commit of its own."""
    broker.worker()
    broker.put(b"c", Request(broker.new_id(), "default", TASK, b"x"))
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    [write_results] = broker.store.finished()
    settle(write_results)
    [chunk] = [
        message for message in broker.core.take_deferred_sends() if message.lease is not None
    ]
    broker.core.not_sent(chunk, broker.clock.now(), reachable=True)
    broker.tick()
    assert broker.took(b"worker") == []
    assert len(chunks(broker.ready(b"worker", 1))) == 1


def test_a_chunk_for_the_lost_connection_of_a_returned_session_is_not_requeued(
    broker: Broker,
) -> None:
    """The session informed several times before the tick ended: each connection has a copy."""
    job_id, _ = broker.submit()
    features = Features(session="w", name="w")
    inform = Inform(broker.new_id(), '[[10, "default"]]', "worker", features.format())
    broker.tell(b"old", inform)
    broker.put(b"old", Ready(broker.new_id(), Status(0, 1, ()).format()))
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    [write_results] = broker.store.finished()
    settle(write_results)
    broker.unreachable.add(b"old")
    [(chunk, _)] = chunks(broker.tell(b"new", inform))
    broker.ready(b"new", 2)
    assert [chunk] == broker.dispatched
    broker.answer(b"new", chunk, [row()])
    assert [[job_id, "succeeded"]] == broker.call("state", ids=[job_id])


def test_a_full_disk_makes_no_turn_without_end(broker: Broker) -> None:
    """Due writes wait as long as the broker does not write."""
    broker.submit(headers="countdown:1")
    broker.clock.time += 2.0
    turn_without_space(broker)
    now = broker.clock.now()
    assert broker.core.state.next_ready_at < now < broker.core.next_tick(now)


def test_a_client_whose_pipe_was_full_asks_again(broker: Broker) -> None:
    """It has missed an answer, so it is asked to inform again."""
    features = Features(session="c").format()
    broker.tell(b"c", Inform("1", "", "client", features))
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.put(b"c", Call("7", "get", pack({"ids": [job_id]})))
    broker.tick()
    broker.put(b"worker", Reply("r", encode_outcomes([row()]), chunk.id, chunk.headers))
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    [write_results] = broker.store.finished()
    settle(write_results)
    [answer] = [m for m in broker.core.take_deferred_sends() if m.key.identity == b"c"]
    broker.core.not_sent(answer, broker.clock.now(), reachable=True)
    for error in broker.tell(b"c", Heartbeat("8", "1.0")):  # at once, and to what it says next
        assert (type(error), error.code) == (Error, "inform-again")


def test_what_a_session_of_an_earlier_broker_gives_up_is_missed(broker: Broker) -> None:
    """It had answered, but the machine lost power and with it the unsynced answer."""
    job_id, _ = broker.submit()
    broker.worker()
    broker.crash()
    broker.worker(received=1, held=(1,))
    assert broker.call("state", ids=[job_id]) == [[job_id, "running"]]
    got = broker.ready(b"worker", 1, received=1)
    assert [[e.id for e in index.entries] for _, index in chunks(got)] == [[job_id]]


def test_what_it_gives_up_while_the_disk_is_full_is_missed_at_its_next_word(broker: Broker) -> None:
    """Seed 1,795,344,131: the first commit failed, and the job stayed leased for ever."""
    job_id, _ = broker.submit()
    broker.worker()
    broker.crash()
    features = Features(session="w", name="w", received=1)
    broker.put(b"worker", Inform("1", '[[10, "default"]]', "worker", features.format()))
    turn_without_space(broker)
    broker.wait(1.0)
    got = broker.ready(b"worker", 1, received=1)
    assert [[e.id for e in index.entries] for _, index in chunks(got)] == [[job_id]]


def test_a_chunk_that_a_session_should_not_have_takes_room(broker: Broker) -> None:
    """It occupies a slot: a chunk for that slot would be handed back and sent again without end."""
    broker.worker(received=5, held=(5,))
    broker.wait(1.0)
    broker.submit()
    assert chunks(broker.took(b"worker")) == []
    assert len(chunks(broker.ready(b"worker", 1, received=5))) == 1


def test_a_stray_chunk_that_is_answered_takes_no_room_any_more(broker: Broker) -> None:
    broker.worker(received=5, held=(5,))
    broker.wait(1.0)
    broker.submit()
    got = broker.tell(b"worker", Reply("r", encode_outcomes([row()]), "w.5", "chunk:5"))
    assert len(chunks(got)) == 1


def test_a_legacy_worker_whose_pipe_was_full_keeps_its_slot(broker: Broker) -> None:
    """It has sent READY once, and will not send it again."""
    broker.tell(b"old", Inform("1", '[[10, "default"]]', "worker"))
    broker.tell(b"old", Ready("2"))
    broker.put(b"c", Request(broker.new_id(), "default", "ack-requested", b"[]"))
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    [write_results] = broker.store.finished()
    settle(write_results)
    [job] = [message for message in broker.core.take_deferred_sends() if message.lease is not None]
    broker.core.not_sent(job, broker.clock.now(), reachable=True)
    broker.tick()
    assert not any(isinstance(message, Request) for message in broker.took(b"old"))
    broker.wait(1.0)
    assert [type(m) for m in broker.took(b"old") if isinstance(m, Request)] == [Request]


def test_a_legacy_worker_keeps_its_slot_where_the_job_for_it_is_refused(broker: Broker) -> None:
    """The disk was nearly full in the commit that should admit and lease the job."""
    broker.tell(b"old", Inform("1", '[[10, "default"]]', "worker"))
    broker.tell(b"old", Ready("2"))
    broker.store.engine.refuse(new_jobs=True)
    broker.tell(b"c", Request(broker.new_id(), "default", "ack-requested", b"[]"))
    broker.store.engine.refuse(new_jobs=False)
    broker.tell(b"c", Request(broker.new_id(), "default", "ack-requested", b"[]"))
    assert [type(m) for m in broker.took(b"old") if isinstance(m, Request)] == [Request]


def test_what_the_store_cannot_keep_is_refused_and_nothing_else(broker: Broker) -> None:
    """Too large numbers, in one tick with other jobs, some of them leased at once."""
    broker.worker(window=3)
    row = ["s", 0, None, 1 << 63, "", pack(Schedule(name="s", trigger="every:{}").definition())]
    broker.core.schedules.check = lambda trigger: None
    text = f"{TASK},ack-requested"
    calls = [
        (b"a", Request("first", "", text, b"x")),
        (b"b", Call("save", "schedules.save", pack({"rows": [[row, None]]}))),
        (b"c", Call("read", "events.read", pack({"after": (1 << 63) - 1}))),
        (b"d", Request("second", "", text, b"x")),
    ]
    for peer, _ in calls:
        broker.tell(peer, Inform("i", "", "client", Features().format()))
    for peer, message in calls:
        broker.put(peer, message)
    broker.tick()
    for peer, request in ((b"b", "save"), (b"c", "read")):
        [error] = broker.took(peer)
        assert isinstance(error, Error)
        assert (error.request, error.code) == (request, "bad-value")
    for peer in (b"a", b"d"):
        assert [type(each) for each in broker.took(peer)] == [Ack]
    [first, second] = broker.dispatched
    ids = [entry.id for _, index in chunks([first, second]) for entry in index.entries]
    assert ids == ["first", "second"]
    broker.crash()
    assert broker.call("state", ids=ids) == [["first", "running"], ["second", "running"]]


def test_a_job_that_the_store_cannot_keep_is_not_started(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is undone, and the error gives the reason; another job of the same tick runs."""
    broker.worker(window=2)
    made = Admission._job_factory

    def make(self: Admission, *args: Any) -> Any:
        factory = made(self, *args)

        def job(job_id: str, body: bytes, seq: int) -> Any:
            made = factory(job_id, body, seq)
            made.attempt = 1 << 63 if job_id == "bad" else 1
            return made

        return job

    monkeypatch.setattr(Admission, "_job_factory", make)
    for job_id in ("bad", "good"):
        broker.put(b"client", Request(job_id, "", f"{TASK},ack-requested", b"x"))
    broker.tick()
    answers = {type(each): each for each in broker.took(b"client")}
    assert answers[Error].code == "bad-value"
    assert answers[Error].request == "bad"
    assert answers[Ack].acked == "good"
    assert broker.call("state", ids=["bad", "good"]) == [["bad", ""], ["good", "running"]]
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["running"]) == (0, 1)
    [(chunk, index)] = chunks(broker.dispatched)
    assert [entry.id for entry in index.entries] == ["good"]
    broker.answer(b"worker", chunk, [row()])
    assert broker.call("state", ids=["good"]) == [["good", "succeeded"]]
