"""Hard limits and cancellation of running jobs in the job manager."""

from __future__ import annotations

import pytest

from eventmq.errors import JobCancelled, SoftTimeLimitExceeded
from eventmq.execution.streaming import Cancellation
from eventmq.interfaces import JobContext, JobsEnded, SlotDied
from eventmq.job import OutcomeKind
from eventmq.wire import commands
from eventmq.wire.batches import OutcomeRow, encode_chunk, encode_outcomes
from eventmq.wire.results import decode_error
from tests.support.manager_harness import World, kinds, replies, rows_of

BACK, CANCELLED, FAILED, SUCCEEDED = (
    OutcomeKind.HANDED_BACK,
    OutcomeKind.CANCELLED,
    OutcomeKind.FAILED,
    OutcomeKind.SUCCEEDED,
)


class Limited(World):
    """A world whose jobs have limits and whose slots report their running jobs."""

    def chunk(self, number, count, message=None, timeout=0.0):
        rows = [(f"j{number}.{n}", 1, 1, "task:t", timeout, 0.0, b"x") for n in range(count)]
        body = encode_chunk("default", rows)
        request = commands.Request(message or f"m{number}", "default", f"chunk:{number}", body)
        return self.receive(request)

    def run(self, slot, chunk, position):
        """Let a slot run a job from now on."""
        self.start(slot)
        self.pool.current[slot] = (chunk, position)
        self.tick(0.006)

    def die(self, slot, chunk, position):
        """Let a slot lose all its jobs; return the kinds of outcome of each answer."""
        self.pool.since[slot] = None
        self.manager.pool_events([SlotDied(slot, chunk, position, "it was killed")], self.now)
        return [kinds(reply) for reply in replies(self.out())]

    def cancel(self, job):
        return [kinds(r) for r in replies(self.receive(commands.Cancel("c", job, "1", "user")))]


@pytest.fixture
def world():
    world = Limited(slots=1)
    world.connect()
    return world


# The hard limit


def test_a_job_past_its_timeout_is_killed_and_fails(world):
    world.chunk(1, 1, timeout=2.0)
    world.run(0, 1, 0)
    world.tick(1.9)
    assert world.pool.killed == []
    world.tick(0.2)
    assert world.pool.killed == [0]
    world.manager.pool_events([SlotDied(0, 1, 0, "killed")], world.now)
    (reply,) = replies(world.out())
    (row,) = rows_of(reply)
    error = decode_error(row.result)
    assert row.kind == FAILED
    assert error.type == "eventmq.errors.TimeLimitExceeded"
    assert "its timeout of 2 s" in error.message


def test_what_had_ended_beside_a_job_that_is_killed_is_not_said_to_be_unstarted(world):
    """Its answers were not sent yet: without guarantee it must not run again."""
    world.chunk(1, 4, timeout=2.0)
    world.start(0)
    world.start(0)
    world.run(0, 1, 2)
    sent = [kinds(r) for r in replies(world.tick(2.5))]
    assert sent == [[(3, BACK)]], "what had not started is taken back before"
    world.manager.pool_events([SlotDied(0, 1, 2, "killed", started=3)], world.now)
    unanswered = OutcomeKind.UNANSWERED
    assert [kinds(r) for r in replies(world.out())] == [
        [(0, unanswered), (1, unanswered), (2, FAILED)]
    ]


def test_the_manager_wakes_for_a_deadline_and_for_nothing_else(world):
    world.chunk(1, 1, timeout=2.0)
    world.run(0, 1, 0)
    world.tick(0.1)
    assert world.manager.seconds_to_tick(world.now) == pytest.approx(2.0 - 0.106)


def test_the_jobs_beside_it_go_back_before_the_kill(world):
    world.chunk(1, 3, timeout=0.010)
    world.chunk(2, 2, timeout=0.010)
    world.run(0, 1, 0)
    sent = replies(world.tick(0.006))
    assert {r.outcome: kinds(r) for r in sent} == {
        "chunk:1": [(1, BACK), (2, BACK)],
        "chunk:2": [(0, BACK), (1, BACK)],
    }
    assert world.pool.killed == [0]
    assert world.die(0, 1, 0) == [[(0, FAILED)]]


def test_the_next_attempt_is_decided_by_whoever_judges():
    again = OutcomeRow(0, int(OutcomeKind.RETRY), 5.0, 1.0, "error", b"e", 7.0)
    timeouts = []

    def timeout_policy(queue, text, position, entry, run_time):
        timeouts.append((queue, text, position, entry.id, round(run_time, 3)))
        return again

    world = Limited(slots=1, timeout_policy=timeout_policy)
    world.connect()
    world.chunk(1, 1, timeout=1.0)
    world.run(0, 1, 0)
    world.tick(1.1)
    world.manager.pool_events([SlotDied(0, 1, 0, "killed")], world.now)
    assert rows_of(replies(world.out())[0]) == [again]
    assert timeouts == [("default", "task:t", 0, "j1.0", 1.106)]


def test_a_job_that_ends_before_the_kill_arrives_keeps_its_outcome(world):
    world.chunk(1, 2, timeout=1.0)
    world.run(0, 1, 0)
    world.tick(1.1)
    rows = [OutcomeRow(0, int(SUCCEEDED), 1.0, 1.1, "msgpack", b"x")]
    world.manager.pool_events([JobsEnded(0, 1, 1, 1.1, encode_outcomes(rows))], world.now)
    assert [kinds(r) for r in replies(world.out())] == [[(0, SUCCEEDED)]]
    assert world.die(0, 0, -1) == []


def test_a_job_that_the_kill_hits_instead_goes_back_uncounted(world):
    """The overdue job was answered; the next one had started, and is not at fault."""
    world.chunk(1, 1, timeout=1.0)
    world.run(0, 1, 0)
    world.chunk(2, 1, timeout=1.0)
    world.tick(0.015)
    world.tick(1.1)
    rows = [OutcomeRow(0, int(SUCCEEDED), 1.0, 1.1, "msgpack", b"x")]
    world.manager.pool_events([JobsEnded(0, 1, 1, 1.1, encode_outcomes(rows))], world.now)
    world.chunk(3, 1)
    world.out()
    assert world.die(0, 3, 0) == [[(0, OutcomeKind.UNANSWERED)]]


def test_a_job_that_has_ended_in_time_is_not_killed_for_another(world):
    world.chunk(1, 1, timeout=1.0)
    world.chunk(2, 1)
    world.run(0, 1, 0)
    world.answer(0, 1, 0, 1)
    world.run(0, 2, 0)
    world.tick(5.0)
    assert world.pool.killed == []


def test_a_death_before_the_limit_is_a_death(world):
    world.chunk(1, 1, timeout=9.0)
    world.run(0, 1, 0)
    world.tick(1.0)
    assert world.die(0, 1, 0) == [[(0, OutcomeKind.DIED)]]


def test_a_death_is_a_death_also_where_it_is_seen_after_the_limit(world):
    """The manager was suspended for a while, and has killed no slot."""
    world.chunk(1, 1, timeout=2.0)
    world.run(0, 1, 0)
    world.now += 5.0
    assert world.die(0, 1, 0) == [[(0, OutcomeKind.DIED)]]


def test_a_slot_that_is_being_killed_is_killed_once_and_gets_the_next_job_later():
    world = Limited(slots=2)
    world.connect()
    world.chunk(1, 1, timeout=1.0)
    world.run(0, 1, 0)
    world.tick(1.1)
    world.tick(1.0)
    assert world.pool.killed == [0]
    world.chunk(2, 1)
    world.chunk(3, 1)
    assert [slot for slot, *_ in world.pool.assigned[1:]] == [1, 1]
    world.die(0, 1, 0)
    world.tick(0.01)
    world.chunk(4, 1)
    assert world.pool.assigned[-1][0] == 0


@pytest.mark.parametrize(
    ("rss", "peak", "memory"),
    [
        (64, 80, "; it last had 64 MiB of memory, 80 MiB at most"),
        (64, 64, "; it last had 64 MiB of memory"),
        (0, 80, "; it had at most 80 MiB of memory"),
        (0, 0, ""),
    ],
)
def test_the_memory_and_the_signal_of_a_dead_process_are_told(world, rss, peak, memory):
    world.chunk(1, 1)
    world.run(0, 1, 0)
    death = SlotDied(0, 1, 0, "the process was killed by SIGSEGV", 11, rss * 2**20, peak * 2**20)
    world.manager.pool_events([death], world.now)
    error = decode_error(rows_of(replies(world.out())[0])[0].result)
    assert error.message == f"the process was killed by SIGSEGV{memory}"


# Cancellation


def test_a_running_job_is_asked_to_end_first(world):
    world.chunk(1, 3)
    world.run(0, 1, 0)
    assert world.cancel("j1.0") == [[(1, BACK), (2, BACK)]]
    assert world.pool.interrupted == [(0, 1, 0)]
    world.cancel("j1.0")
    assert world.pool.interrupted == [(0, 1, 0)], "once is enough"
    world.tick(4.9)
    assert world.pool.killed == []


def test_one_that_does_not_obey_is_killed_after_the_grace_and_is_cancelled():
    world = Limited(slots=1, cancel_grace=2.0)
    world.connect()
    world.chunk(1, 1)
    world.run(0, 1, 0)
    world.cancel("j1.0")
    world.tick(2.1)
    assert world.pool.killed == [0]
    assert world.die(0, 1, 0) == [[(0, CANCELLED)]]


def test_a_process_that_dies_of_being_cancelled_counts_no_death(world):
    world.chunk(1, 1)
    world.run(0, 1, 0)
    world.cancel("j1.0")
    assert world.die(0, 1, 0) == [[(0, CANCELLED)]]


def test_a_cancelled_job_still_has_its_hard_limit(world):
    world.chunk(1, 1, timeout=1.0)
    world.run(0, 1, 0)
    world.cancel("j1.0")
    world.tick(1.1)
    assert world.pool.killed == [0]
    assert world.die(0, 1, 0) == [[(0, CANCELLED)]], "and is cancelled, not failed"


def test_one_that_obeys_leaves_the_slot_alone(world):
    world.chunk(1, 1)
    world.run(0, 1, 0)
    world.cancel("j1.0")
    world.pool.since[0] = None
    rows = [OutcomeRow(0, int(CANCELLED), 1.0, 1.1, "", b"")]
    world.manager.pool_events([JobsEnded(0, 1, 1, 1.1, encode_outcomes(rows))], world.now)
    assert [kinds(r) for r in replies(world.out())] == [[(0, CANCELLED)]]
    world.tick(9.0)
    assert world.pool.killed == []


def test_a_cancel_that_came_before_the_job_had_begun_is_said_again(world):
    """It has left the queue of its slot and is not seen running yet."""
    world.chunk(1, 1)
    world.pool.waiting[0] = 0
    world.cancel("j1.0")
    world.pool.waiting[0] = 1
    world.run(0, 1, 0)
    world.pool.since[0] = None
    world.tick(5.1)
    assert world.pool.interrupted == [(0, 1, 0)] * 2
    world.pool.waiting[0] = 1
    world.run(0, 1, 0)
    world.tick(5.1)
    assert world.pool.killed == [0]
    assert world.die(0, 1, 0) == [[(0, CANCELLED)]]


# Inside of the task


def test_a_task_that_asks_hears_of_a_cancel_every_time_and_of_the_limit_once():
    now = [10.0]
    stop = Cancellation(lambda: now[0])
    job = JobContext("j", "t", "q", 1, 1, "", stop)
    job.check()
    stop.set_soft_limit(2.0)
    now[0] += 1.9
    job.check()
    now[0] += 0.2
    with pytest.raises(SoftTimeLimitExceeded, match="soft_timeout of 2 s"):
        job.check()
    job.check()
    stop.requested = True
    for _ in range(2):
        with pytest.raises(JobCancelled):
            job.check()


def test_a_job_that_nothing_can_stop_may_ask_too():
    JobContext("j", "t", "q", 1, 1, "").check()
