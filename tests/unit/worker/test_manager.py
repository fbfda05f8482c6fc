"""The job manager's state machine, with a pool that only records and a clock that tests set."""

from __future__ import annotations

import logging

import pytest

from eventmq.interfaces import JobsEnded, SlotDied
from eventmq.job import OutcomeKind
from eventmq.wire import commands
from eventmq.wire.batches import (
    LoggedRow,
    OutcomeRow,
    decode_chunk,
    encode_chunk,
    encode_outcomes,
    read_outcomes,
)
from eventmq.wire.features import EXTENSIONS, Features, Status
from eventmq.wire.results import decode_error
from tests.support.manager_harness import (
    BACK,
    CANCELLED,
    DIED,
    LOST,
    SUCCEEDED,
    UNANSWERED,
    World,
    kinds,
    replies,
    rows_of,
)


@pytest.fixture
def world():
    world = World()
    world.connect()
    return world


# Clocks


def expires(world, number, sent, at, wall):
    """Let a chunk arrive that the broker sent at a time; return when its job expires."""
    world.clock.wall = wall
    rows = [("a", 1, 1, "task:t", 0.0, at, b"x"), ("b", 2, 3, "task:u", 4.0, 0.0, b"yz")]
    headers = f"chunk:{number},now:{sent:.3f}"
    world.receive(commands.Request(f"m{number}", "q", headers, encode_chunk("q", rows)))
    body = world.pool.bodies[-1]
    index = decode_chunk(body)
    assert [index.payload(body, entry) for entry in index.entries] == [b"x", b"yz"]
    assert [entry[:5] for entry in index.entries] == [("a", 1, 1, 0, 0.0), ("b", 2, 3, 1, 4.0)]
    assert index.entries[1].expires == 0.0
    return index.entries[0].expires


@pytest.mark.parametrize("wrong", [86_400.0, 7200.0, -7200.0])
def test_jobs_expire_by_the_brokers_clock_whatever_that_of_the_worker_shows(world, wrong, caplog):
    assert expires(world, 1, 5000.0, 5300.0, 5000.0 + wrong) == 5300.0 + wrong
    world.now += 100.0
    assert expires(world, 2, 5100.0, 5200.0, 5100.0 + wrong) == 5200.0 + wrong
    assert [record.getMessage()[:35] for record in caplog.records] == [
        "the clock of this worker differs by"
    ]


@pytest.mark.parametrize("wrong", [0.0, 59.0, -59.0])
def test_a_clock_that_differs_by_what_a_time_service_corrects_is_taken_for_the_same(
    world, wrong, caplog
):
    assert expires(world, 1, 5000.0, 5300.0, 5000.0 + wrong) == 5300.0
    assert not caplog.records


def test_a_chunk_that_travelled_for_long_does_not_expire_later(world):
    expires(world, 1, 5000.0, 5300.0, 5000.5)
    world.now += 300.0
    assert expires(world, 2, 5100.0, 5200.0, 5300.5) == 5200.0


def test_a_clock_of_the_broker_that_was_put_back_is_followed(world):
    expires(world, 1, 5000.0, 5300.0, 5000.0)
    for number in (2, 3):
        world.now += 601.0
        expiry = expires(world, number, 1400.0 + world.now, 9000.0, 4900.0 + world.now)
    assert expiry == 9000.0 + 3500.0


@pytest.mark.parametrize("text", ["", "x", "-5", "1.2.3", "nan", "inf", "\u00b2"])
def test_a_time_of_the_broker_that_is_none_changes_nothing(world, text):
    body = encode_chunk("q", [("a", 1, 1, "task:t", 0.0, 9.0, b"x")])
    world.receive(commands.Request("m", "q", f"chunk:1,now:{text}", body))
    assert world.pool.bodies == [body]


# The session


def test_a_worker_informs_first_and_says_what_it_is():
    world = World(name="host:1", callables=("jobs.*",))
    world.manager.connected(world.now)
    (inform,) = world.out()
    assert (inform.role, inform.queues) == ("worker", '[[10, "default"]]')
    features = Features.parse(inform.features)
    assert (features.session, features.name) == ("s" * 32, "host:1")
    assert (features.tasks, features.callables) == (("t",), ("jobs.*",))


def test_after_the_ack_it_says_what_there_is_room_for():
    world = World(slots=3)
    (ready,) = world.connect()
    assert Status.parse(ready.status) == Status(received=0, window=3, held=())
    assert world.manager.online


def test_inform_is_repeated_every_second_until_it_is_acknowledged():
    world = World()
    world.manager.connected(world.now)
    first = world.out()
    assert world.tick(0.9) == []
    second = world.tick(0.2)
    assert [type(m) for m in first + second] == [commands.Inform] * 2
    assert first[0].id == second[0].id
    world.receive(commands.Ack("a", first[0].id, b"session"))
    assert world.manager.online, "an ACK that took long is for the INFORM it names"


def test_a_legacy_broker_is_named_as_the_reason(caplog):
    world = World()
    world.manager.connected(world.now)
    (inform,) = world.out()
    with caplog.at_level(logging.ERROR):
        assert world.receive(commands.Ack("a", inform.id)) == []
    assert "legacy protocol" in caplog.text
    assert world.tick(2.0) == [], "and it is not asked every second"


def test_a_heartbeat_with_status_goes_out_at_the_interval(world):
    world.chunk(1, 2)
    assert world.tick(2.9) == []
    (beat,) = world.tick(0.2)
    assert beat.timestamp == "1000.00"
    assert Status.parse(beat.status) == Status(received=1, window=2, held=(1,))


def test_a_silent_broker_is_connected_anew(world):
    world.chunk(1, 2)
    world.tick(14.0)
    assert not world.manager.lost
    world.tick(1.5)
    assert (world.manager.lost, world.manager.online) == (True, False)
    world.manager.connected(world.now)
    assert not world.manager.lost
    features = Features.parse(world.out()[-1].features)
    assert (features.received, features.held) == (1, (1,))
    assert features.session == "s" * 32


def test_whatever_comes_from_the_broker_shows_that_it_lives(world):
    for _ in range(10):
        world.tick(4.0)
        world.receive(commands.Heartbeat("h", "1"))
    assert world.manager.online


def test_inform_again_is_obeyed_at_once_and_once(world):
    error = commands.Error("e", "x", "inform-again", "who are you?")
    assert [type(m) for m in world.receive(error)] == [commands.Inform]
    assert world.receive(error) == []


@pytest.mark.parametrize("word", ["KBAI", "KBYE"])
def test_a_broker_that_goes_away_is_asked_until_it_is_back(world, word):
    assert [type(m) for m in world.receive(commands.Kbai("k", word))] == [commands.Inform]
    assert [type(m) for m in world.tick(1.0)] == [commands.Inform]
    assert [type(m) for m in world.welcome(epoch=2)] == [commands.Ready]


def test_messages_that_cannot_be_read_change_nothing(world, caplog):
    for frames in ([b"x"], [b"", b"eMQP/1.0", b"REQUEST", b"m", b"q", b"chunk:1", b"junk"]):
        world.manager.receive(frames, world.now)
    world.receive(commands.Request("m", "q", "", b"{}"))
    world.receive(commands.Publish("p", "topic", None, b""))
    assert (world.pool.assigned, replies(world.out())) == ([], [])
    assert len(caplog.records) == 4


# Chunks and answers


def test_chunks_go_to_the_slot_with_the_least_to_do(world):
    for number, count in enumerate([5, 3, 1, 1], 1):
        world.chunk(number, count)
    assert world.pool.assigned == [(0, 1, 5), (1, 2, 3), (1, 3, 1), (1, 4, 1)]


def test_a_number_that_was_seen_is_ignored(world):
    world.chunk(3, 1)
    world.chunk(3, 1)
    world.chunk(2, 1)
    assert world.pool.assigned == [(0, 3, 1)]


def test_answers_are_passed_on_as_they_came(world):
    world.chunk(1, 3, message="msg")
    sent = world.answer(0, 1, 0, 2) + world.answer(0, 1, 2, 1)
    assert [(r.request, r.outcome) for r in replies(sent)] == [("msg", "chunk:1")] * 2
    assert [kinds(r) for r in replies(sent)] == [
        [(0, SUCCEEDED), (1, SUCCEEDED)],
        [(2, SUCCEEDED)],
    ]
    assert len({r.id for r in replies(sent)}) == 2


def test_a_chunk_is_held_until_its_last_answer_is_acknowledged(world):
    world.chunk(1, 2)
    first, second = replies(world.answer(0, 1, 0, 1) + world.answer(0, 1, 1, 1))
    world.receive(commands.Ack("a", second.id))
    assert not world.manager.idle
    world.receive(commands.Ack("a", first.id))
    assert world.manager.idle
    world.tick(3.0)
    assert world.status().held == ()
    assert world.status().received == 1


def test_an_answer_without_ack_is_sent_again_after_five_seconds(world):
    world.chunk(1, 1)
    (reply,) = replies(world.answer(0, 1, 0, 1))
    assert replies(world.tick(4.9)) == []
    assert replies(world.tick(0.2)) == [reply]
    assert replies(world.tick(1.0)) == []
    world.receive(commands.Ack("a", reply.id))
    assert replies(world.tick(6.0)) == []


def test_a_restarted_broker_gets_all_answers_that_it_did_not_acknowledge(world):
    world.chunk(1, 2)
    sent = replies(world.answer(0, 1, 0, 1))
    world.receive(commands.Error("e", "x", "inform-again", ""))
    assert world.answer(0, 1, 1, 1) == [], "nothing goes out before the broker knows us"
    ready, *again = world.welcome(epoch=2)
    assert Status.parse(ready.status).held == (1,)
    assert again[0] == sent[0]
    assert [kinds(r) for r in again] == [[(0, SUCCEEDED)], [(1, SUCCEEDED)]]


def test_an_answer_that_the_broker_refuses_is_given_up(world):
    world.chunk(1, 1)
    (reply,) = replies(world.answer(0, 1, 0, 1))
    world.receive(commands.Error("e", reply.id, "bad-body", "no"))
    assert world.manager.idle
    assert replies(world.tick(6.0)) == []


def test_answers_keep_within_the_frame_limit_of_the_broker():
    world = World()
    world.connect(max_frame=2000)
    world.chunk(1, 8)
    sent = replies(world.answer(0, 1, 0, 6, size=600))
    assert all(len(r.result) <= 2000 for r in sent)
    assert [row[0] for r in sent for row in kinds(r)] == [0, 1, 2, 3, 4, 5]
    (reply,) = replies(world.answer(0, 1, 6, 1, size=5000))
    (row,) = rows_of(reply)
    assert row.kind == OutcomeKind.FAILED
    assert decode_error(row.result).type == "eventmq.errors.ResultTooLarge"


def test_a_log_that_does_not_fit_in_beside_its_result_is_left_out():
    """The result is sent without it; other outcomes keep their logs, in several replies."""
    world = World()
    world.connect(max_frame=2000)
    world.chunk(1, 4)
    sizes = [(600, 600), (1000, 1500), (3000, 10), (10, 1500)]
    rows = [
        LoggedRow.of(OutcomeRow(n, 0, 1.0, 0.1, "msgpack", b"x" * size), b"y" * log)
        for n, (size, log) in enumerate(sizes)
    ]
    event = JobsEnded(0, 1, 4, 0.4, encode_outcomes(rows))
    world.manager.pool_events([event], world.now)
    sent = replies(world.out())
    assert all(len(reply.result) <= 2000 for reply in sent)
    outcomes = [read_outcomes(reply.result) for reply in sent]
    assert [0, 1, 2, 3] == [row[0] for rows, _ in outcomes for row in rows]
    lengths = {n: len(log) for _, logs in outcomes for n, log in logs.items()}
    assert {0: 600, 2: 10, 3: 1500} == lengths


def test_a_broker_that_keeps_no_logs_gets_none():
    world = World()
    world.connect(extensions=tuple(name for name in EXTENSIONS if name != "logs"))
    world.chunk(1, 2)
    rows = [OutcomeRow(n, 0, 1.0, 0.1, "msgpack", b"x") for n in range(2)]
    body = encode_outcomes([LoggedRow.of(rows[0], b"said"), rows[1]])
    world.manager.pool_events([JobsEnded(0, 1, 2, 0.2, body)], world.now)
    (reply,) = replies(world.out())
    assert encode_outcomes(rows) == reply.result


# Look-ahead


@pytest.mark.parametrize(("run_time", "window"), [(0.00001, 6), (0.01, 4), (0.5, 2)])
def test_the_window_follows_the_measured_run_time(world, run_time, window):
    world.chunk(1, 1)
    world.answer(0, 1, 0, 1, run_time=run_time)
    world.tick()
    assert world.status().window == window


def test_nothing_waits_behind_a_long_job(world):
    world.chunk(1, 4, message="m")
    world.start(0)
    assert replies(world.tick(0.015)) == []
    sent = world.tick(0.010)
    assert [(r.request, kinds(r)) for r in replies(sent)] == [
        ("m", [(1, BACK), (2, BACK), (3, BACK)])
    ]
    assert replies(world.answer(0, 1, 0, 1)), "the long job itself goes on"


def test_later_chunks_of_the_slot_go_back_too():
    world = World(slots=1)
    world.connect()
    world.chunk(1, 2)
    world.chunk(2, 2)
    world.start(0)
    sent = replies(world.tick(0.03))
    assert {r.outcome: kinds(r) for r in sent} == {
        "chunk:1": [(1, BACK)],
        "chunk:2": [(0, BACK), (1, BACK)],
    }


def run_on(world, chunk, position, seconds):
    """Let slot 0 run its jobs up to a position, each for some time; return the handed-back jobs."""
    back = []
    while world.pool.current[0][1] < position:
        back += replies(world.tick(seconds))
        world.pool.current[0] = (chunk, world.pool.current[0][1] + 1)
        world.pool.waiting[0] -= 1
        world.pool.since[0] = world.now
    return back


def test_a_chunk_of_jobs_that_take_longer_than_estimated_goes_back():
    """Five milliseconds each, while the broker had estimated twenty microseconds."""
    world = World(slots=1)
    world.connect()
    world.chunk(1, 1000)
    world.chunk(2, 1000)
    world.start(0)
    world.pool.current[0] = (1, 0)
    assert run_on(world, 1, 6, 0.005) == []
    sent = replies(world.tick(0.005))
    assert {r.outcome: (rows_of(r)[0].position, len(rows_of(r))) for r in sent} == {
        "chunk:1": (7, 993),
        "chunk:2": (0, 1000),
    }
    assert replies(world.tick(0.005)) == []


@pytest.mark.parametrize(
    ("jobs", "seconds"),
    [
        pytest.param(1000, 0.00004, id="a busy machine"),
        pytest.param(4, 0.019, id="few that take four times as long"),
    ],
)
def test_a_chunk_that_is_not_much_too_large_stays(jobs, seconds):
    world = World(slots=1)
    world.connect()
    world.chunk(1, jobs)
    world.start(0)
    world.pool.current[0] = (1, 0)
    assert run_on(world, 1, jobs - 1, seconds) == []


def test_a_chunk_that_waited_for_the_processor_at_its_beginning_stays():
    """Its first job took 15 ms; its pace is measured only after 30 ms."""
    world = World(slots=1)
    world.connect()
    world.chunk(1, 1000)
    world.start(0)
    world.pool.current[0] = (1, 0)
    assert run_on(world, 1, 1, 0.015) == []
    assert run_on(world, 1, 999, 0.00002) == []


def test_what_comes_behind_the_rest_of_a_long_chunk_stays():
    """A chunk whose jobs were handed back is not measured again."""
    world = World(slots=1)
    world.connect()
    world.chunk(1, 100)
    world.start(0)
    world.pool.current[0] = (1, 0)
    assert len(run_on(world, 1, 20, 0.005)) == 1
    world.chunk(2, 4)
    assert replies(world.tick(0.010)) == []


def test_a_slot_with_a_long_job_has_room_for_that_one_chunk(world):
    world.chunk(1, 1)
    world.answer(0, 1, 0, 1, run_time=0.0001)
    world.chunk(2, 1)
    world.start(0)
    world.tick(0.03)
    assert world.status().window == 1 + 3
    world.chunk(3, 1)
    world.chunk(4, 1)
    assert [slot for slot, _, _ in world.pool.assigned[2:]] == [1, 1]
    world.pool.since[0] = None
    world.answer(0, 2, 0, 1, run_time=0.0001)
    world.tick()
    assert world.status().window == 6


def test_it_asks_for_a_tick_only_while_something_may_have_to_be_taken_back(world):
    world.tick()
    assert world.manager.seconds_to_tick(world.now) > 1.0
    world.chunk(1, 2)
    assert world.manager.seconds_to_tick(world.now) <= 0.005
    world.start(0)
    world.tick(0.03)
    assert world.manager.seconds_to_tick(world.now) > 1.0, "one long job, nothing behind it"


# Deaths and cancellation


def test_a_death_is_charged_to_the_job_that_ran(world):
    world.chunk(1, 4)
    world.chunk(2, 1)
    world.chunk(3, 2)
    world.answer(0, 1, 0, 1)
    world.manager.pool_events([SlotDied(0, 1, 2, "the process was killed by SIGKILL")], world.now)
    (one,) = replies(world.out())
    assert kinds(one) == [(1, BACK), (2, DIED), (3, BACK)]
    error = decode_error(rows_of(one)[1].result)
    assert error.type == "eventmq.errors.WorkerLost"
    assert "SIGKILL" in error.message
    assert kinds(replies(world.answer(1, 2, 0, 1))[0]) == [(0, SUCCEEDED)]


def test_an_idle_process_that_dies_costs_nobody_anything():
    world = World(slots=1)
    world.connect()
    world.chunk(1, 1)
    world.chunk(2, 1)
    world.manager.pool_events([SlotDied(0, 0, -1, "it ended")], world.now)
    assert [kinds(r) for r in replies(world.out())] == [[(0, BACK)], [(0, BACK)]]


def test_what_had_begun_and_was_not_answered_is_lost_and_the_rest_goes_back():
    world = World(slots=1)
    world.connect()
    world.chunk(1, 4)
    world.chunk(2, 2)
    world.manager.pool_events([SlotDied(0, 0, -1, "it ended", started=3)], world.now)
    assert [kinds(r) for r in replies(world.out())] == [
        [(0, BACK), (1, BACK)],
        [(0, LOST), (1, LOST), (2, LOST), (3, BACK)],
    ]


def test_beside_the_job_that_ran_the_others_that_had_begun_are_not_suspected(world):
    """They had ended before it started: only their answers are missing."""
    world.chunk(1, 4)
    world.answer(0, 1, 0, 1)
    world.manager.pool_events([SlotDied(0, 1, 2, "killed", started=2)], world.now)
    (one,) = replies(world.out())
    assert kinds(one) == [(1, UNANSWERED), (2, DIED), (3, BACK)]
    assert decode_error(rows_of(one)[0].result).type == "eventmq.errors.WorkerLost"


def test_the_only_one_that_had_begun_is_charged_although_nothing_ran_any_more(world):
    world.chunk(1, 3)
    world.answer(0, 1, 0, 1)
    world.manager.pool_events([SlotDied(0, 0, -1, "it ended", started=1)], world.now)
    assert [kinds(r) for r in replies(world.out())] == [[(1, DIED), (2, BACK)]]


def test_where_slots_die_together_no_job_is_charged(world):
    world.chunk(1, 2)
    died = SlotDied(0, 1, 0, "the fork server had ended", started=1, shared_cause=True)
    world.manager.pool_events([died], world.now)
    assert [kinds(r) for r in replies(world.out())] == [[(0, LOST), (1, BACK)]]


def test_a_job_that_has_not_started_is_cancelled_and_its_neighbours_go_back(world):
    world.chunk(1, 4)
    world.start(0)
    sent = world.receive(commands.Cancel("c", "j1.2", "1", "user"))
    assert [kinds(r) for r in replies(sent)] == [[(1, BACK), (2, CANCELLED), (3, BACK)]]


@pytest.mark.parametrize(("job", "delivery"), [("j1.0", "1"), ("j1.2", "2"), ("j9", "1"), ("", "")])
def test_a_cancel_for_what_runs_or_is_not_here_changes_no_outcome(world, job, delivery):
    world.chunk(1, 1)
    world.start(0)
    assert replies(world.receive(commands.Cancel("c", job, delivery, ""))) == []


# The end


def test_terminate_hands_back_what_has_not_started_and_waits_for_the_rest(world):
    world.chunk(1, 3)
    world.start(0)
    world.manager.terminate(world.now)
    assert [kinds(r) for r in replies(world.out())] == [[(1, BACK), (2, BACK)]]
    assert Status.parse(world.tick()[-1].status).window == 0
    assert [kinds(r) for r in replies(world.chunk(2, 1))] == [[(0, BACK)]], "it crossed our READY"
    world.answer(0, 1, 0, 1)
    world.tick()
    assert not world.manager.done, "the broker has to acknowledge first"
    world.ack_all()
    assert isinstance(world.tick()[-1], commands.Kbai)
    assert world.manager.done


def test_disconnect_lets_what_runs_complete_and_is_answered_by_kbai(world):
    """Emqp-1.0, "DISCONNECT and KBAI", at a worker: it accepts no more jobs."""
    world.chunk(1, 2)
    world.start(0)
    assert [kinds(r) for r in replies(world.receive(commands.Disconnect("d")))] == [[(1, BACK)]]
    assert [kinds(r) for r in replies(world.chunk(2, 1))] == [[(0, BACK)]]
    world.answer(0, 1, 0, 1)
    world.ack_all()
    assert isinstance(world.tick()[-1], commands.Kbai)
    assert world.manager.done


def test_a_worker_without_work_ends_at_once(world):
    world.manager.terminate(world.now)
    assert [type(m) for m in world.out()] == [commands.Kbai]
    assert world.manager.done
    world.manager.terminate(world.now)
    world.manager.finish()
    assert world.tick(5.0) == []


def test_after_the_grace_what_was_killed_goes_back():
    world = World(shutdown_grace=10.0)
    world.connect()
    world.chunk(1, 1)
    world.start(0)
    world.manager.terminate(world.now)
    world.tick(9.0)
    assert not world.manager.overdue
    world.tick(1.1)
    assert world.manager.overdue
    world.manager.interrupted(world.now)
    assert not world.manager.overdue
    assert [kinds(r) for r in replies(world.out())] == [[(0, BACK)]]
    world.ack_all()
    world.tick()
    assert world.manager.done


def test_the_wait_for_the_last_acks_is_bounded(world):
    world.chunk(1, 1)
    world.answer(0, 1, 0, 1)
    world.manager.terminate(world.now)
    world.tick(4.9)
    assert not world.manager.done
    world.tick(0.2)
    assert world.manager.done


# Log lines


def logged(caplog):
    return [(r.levelname, r.getMessage()) for r in caplog.records]


def test_a_process_that_died_is_logged_with_its_job_and_what_happens_to_the_others(world, caplog):
    world.chunk(1, 4)
    world.answer(0, 1, 0, 1)
    world.manager.pool_events([SlotDied(0, 1, 2, "the process was killed by SIGKILL")], world.now)
    ((level, text),) = logged(caplog)
    assert level == "ERROR"
    assert (
        "job j1.2 of task t was interrupted at attempt 1, delivery 1: the process was killed by "
        "SIGKILL;" in text
    )
    assert text.endswith("2 other jobs of the process run again, which does not count against them")


def test_a_process_that_died_in_hiding_is_logged_with_what_it_had_begun(world, caplog):
    world.chunk(1, 4)
    world.manager.pool_events([SlotDied(0, 0, -1, "it ended", started=3)], world.now)
    ((level, text),) = logged(caplog)
    assert level == "ERROR"
    assert text.startswith(
        "a process of the worker ended with 3 jobs that it had started: it ended;"
    )
    assert text.endswith(": j1.0 (t), j1.1 (t), j1.2 (t); 1 other jobs of the process run again")


def test_an_idle_process_that_died_is_not_logged_as_a_job(world, caplog):
    world.chunk(1, 1)
    world.manager.pool_events([SlotDied(0, 0, -1, "it ended")], world.now)
    assert logged(caplog) == []


def test_a_result_that_the_broker_does_not_take_is_logged_as_the_failure_that_it_is(caplog):
    world = World()
    world.connect(max_frame=2000)
    world.chunk(1, 2)
    world.answer(0, 1, 0, 2, size=3000)
    text = (
        "job j1.{} of task t failed for good at attempt 1: eventmq.errors.ResultTooLarge: "
        "the result has 3000 bytes; the limit is 2000, from the setting max_frame; a result "
        "backend such as 'sqlite' (setting result_backend) takes larger ones"
    )
    assert logged(caplog) == [("ERROR", text.format(0)), ("ERROR", text.format(1))]


def test_interrupted_says_which_job_of_each_slot_was_broken_off():
    world = World(slots=3)
    world.connect()
    world.chunk(1, 3)
    world.chunk(2, 1)
    world.answer(0, 1, 0, 1)
    assert world.manager.interrupted(world.now) == [("j1.1", "t"), ("j2.0", "t")]
