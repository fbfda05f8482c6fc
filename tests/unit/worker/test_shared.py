"""The job manager with a pool whose slots share their chunks, such as ``asyncio``."""

from __future__ import annotations

import random

import pytest

from eventmq.interfaces import JobsEnded, Running, SlotDied
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow, encode_outcomes
from tests.support.manager_harness import NotingPool, kinds, replies, rows_of
from tests.unit.worker.test_watchdog import Limited

BACK, CANCELLED, FAILED, SUCCEEDED = (
    OutcomeKind.HANDED_BACK,
    OutcomeKind.CANCELLED,
    OutcomeKind.FAILED,
    OutcomeKind.SUCCEEDED,
)


class SharedNotingPool(NotingPool):
    """A pool whose jobs wait in one line and run in the slot that `SharedWorld.begin` names."""

    shared = True

    def __init__(self, slots):
        super().__init__(slots)
        self.line = []
        self.runs = {}

    def assign(self, slot, chunk, body, count):
        super().assign(slot, chunk, body, count)
        self.line += [(chunk, position) for position in range(count)]

    def take_back(self, slot):
        count = len(self.line)
        self.line.clear()
        return count

    def running(self, slot):
        return self.runs.get(slot)

    def slot_of(self, chunk, position):
        for slot, run in self.runs.items():
            if run[:2] == (chunk, position):
                return slot
        return None


class SharedWorld(Limited):
    """A world whose pool shares its slots."""

    def make_pool(self, slots):
        return SharedNotingPool(slots)

    def begin(self, count):
        """Let free slots take the next jobs."""
        free = [slot for slot in range(self.pool.slots) if slot not in self.pool.runs]
        for slot in free[: min(count, len(self.pool.line))]:
            self.pool.runs[slot] = Running(*self.pool.line.pop(0), self.now)

    def end(self, *slots, run_time=0.1):
        """Let slots answer; return the replies."""
        by_chunk = {}
        for slot in slots:
            chunk, position, _ = self.pool.runs.pop(slot)
            row = OutcomeRow(position, int(SUCCEEDED), 1.0, run_time, "", b"")
            by_chunk.setdefault(chunk, []).append(row)
        events = []
        for chunk, rows in by_chunk.items():
            count, positions = len(rows), tuple(row.position for row in rows)
            events.append(
                JobsEnded(
                    0, chunk, count, run_time * count, encode_outcomes(rows), positions=positions
                )
            )
        self.manager.pool_events(events, self.now)
        return replies(self.out())

    def give_up(self, slot):
        """Let the pool report that it has abandoned the running job of a slot."""
        chunk, position, _ = self.pool.runs.pop(slot)
        self.manager.pool_events([SlotDied(slot, chunk, position, "given up")], self.now)
        return replies(self.out())


@pytest.fixture
def world():
    world = SharedWorld(slots=4)
    world.connect()
    return world


def test_it_counts_jobs_and_lets_each_be_in_a_chunk_of_its_own(world):
    assert (world.status().jobs, world.status().window) == (4, 4)


def test_a_chunk_is_answered_in_the_order_in_which_its_jobs_end(world):
    world.chunk(1, 3)
    world.begin(3)
    (reply,) = world.end(2)
    assert [row.position for row in rows_of(reply)] == [2]
    (reply,) = world.end(0, 1)
    assert [row.position for row in rows_of(reply)] == [0, 1]
    assert not world.manager.idle, "the broker has acknowledged nothing"
    world.ack_all()
    assert world.manager.idle


def test_what_is_held_beyond_the_slots_is_what_ends_within_20_ms():
    world = SharedWorld(slots=1000)
    world.connect()
    assert world.status().jobs == 1000, "nothing is known yet"
    world.chunk(1, 500)
    world.begin(500)
    world.end(*range(500), run_time=0.1)
    world.tick()
    assert world.status().jobs == 1200


def test_jobs_that_run_long_leave_no_room_beyond_the_slots(world):
    world.chunk(1, 1)
    world.begin(1)
    world.end(0, run_time=60.0)
    world.tick()
    assert world.status().jobs == 4


def test_what_waits_while_nothing_ends_goes_back(world):
    world.chunk(1, 4)
    world.chunk(2, 2)
    world.begin(4)
    world.tick(0.006)
    assert not replies(world.out())
    (reply,) = replies(world.tick(0.030))
    assert kinds(reply) == [(0, BACK), (1, BACK)]
    assert [len(world.end(slot)) for slot in range(4)] == [1] * 4


def test_what_waits_stays_while_others_end(world):
    world.chunk(1, 6)
    world.begin(4)
    world.tick(0.015)
    world.end(0, run_time=0.015)
    world.begin(1)
    assert not replies(world.tick(0.015))


def test_what_waits_for_much_longer_than_estimated_goes_back():
    """Once ended jobs have shown that for a tenth of a second."""
    world = SharedWorld(slots=2)
    world.connect()
    world.chunk(1, 1)
    world.begin(1)
    world.end(0, run_time=0.00001)
    world.chunk(2, 1000)
    back = []
    for _ in range(25):
        world.begin(2)
        back += replies(world.tick(0.005))
        world.end(*world.pool.runs, run_time=0.005)
    (reply,) = back
    first = rows_of(reply)[0].position
    assert 20 * 2 < first < 25 * 2
    assert [row.position for row in rows_of(reply)] == list(range(first, 1000))
    world.tick()
    assert world.status().jobs < 2 + 20


def test_a_few_long_jobs_among_short_ones_hand_nothing_back():
    """The average run time is high only now and then."""
    world = SharedWorld(slots=2)
    world.connect()
    world.chunk(1, 1)
    world.begin(1)
    world.end(0, run_time=0.0001)
    world.chunk(2, 400)
    back = []
    for number in range(100):
        world.begin(2)
        back += replies(world.tick(0.005))
        world.end(*world.pool.runs, run_time=0.015 if number % 15 == 0 else 0.0001)
    assert back == []


def test_it_asks_for_a_tick_only_while_something_waits(world):
    world.chunk(1, 4)
    world.begin(4)
    world.tick()
    assert world.manager.seconds_to_tick(world.now) > 1.0
    world.chunk(2, 1)
    world.tick()
    assert world.manager.seconds_to_tick(world.now) <= 0.005


def test_a_job_past_its_timeout_is_killed_alone(world):
    world.chunk(1, 3, timeout=2.0)
    world.begin(2)
    world.tick(0.1)
    world.tick(1.95)
    assert world.pool.killed == [0, 1]
    assert not replies(world.out())
    (reply,) = world.give_up(1)
    assert kinds(reply) == [(1, FAILED)]
    world.begin(1)
    (reply,) = world.end(1)
    assert kinds(reply) == [(2, SUCCEEDED)]


def test_a_job_that_is_lost_goes_back_alone(world):
    world.chunk(1, 3)
    world.begin(3)
    (reply,) = world.give_up(1)
    assert [row.position for row in rows_of(reply)] == [1]
    assert [kinds(reply) for reply in world.end(0, 2)] == [[(0, SUCCEEDED), (2, SUCCEEDED)]]


def test_a_cancel_finds_the_slot_of_the_job(world):
    world.chunk(1, 3)
    world.begin(3)
    assert world.cancel("j1.2") == []
    assert world.pool.interrupted == [(2, 1, 2)]
    world.tick(6.0)
    assert world.pool.killed == [2]
    (reply,) = world.give_up(2)
    assert kinds(reply) == [(2, CANCELLED)]


def test_a_job_that_waits_is_cancelled_and_those_beside_it_go_back(world):
    world.chunk(1, 6)
    world.begin(4)
    assert world.cancel("j1.5") == [[(4, BACK), (5, CANCELLED)]]
    assert world.pool.interrupted == []


def test_what_was_killed_at_the_end_goes_back_and_nothing_else(world):
    world.chunk(1, 4)
    world.chunk(2, 2)
    world.begin(4)
    world.end(0, 2)
    world.manager.terminate(world.now)
    (reply,) = replies(world.out())
    assert kinds(reply) == [(0, BACK), (1, BACK)]
    assert [job for job, _ in world.manager.interrupted(world.now)] == ["j1.1", "j1.3"]
    (reply,) = replies(world.out())
    assert kinds(reply) == [(1, BACK), (3, BACK)]


def test_an_answer_for_a_job_that_is_not_open_is_refused(world, caplog):
    world.chunk(1, 2)
    world.begin(2)
    world.end(0)
    world.pool.runs[0] = Running(1, 0, world.now)
    assert world.end(0) == []
    assert "answered chunk 1, which it does not have" in caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_each_job_is_answered_once_whatever_happens(seed):
    """Ends in any order, handed-back jobs, cancels, and lost jobs."""
    dice = random.Random(seed)
    world = SharedWorld(slots=4)
    world.connect()
    counts = {}
    for number in range(1, 30):
        count = dice.randint(1, 5)
        world.chunk(number, count)
        counts[number] = count
        for _ in range(3):
            step(world, dice, number)
    while world.pool.line or world.pool.runs:
        world.begin(4)
        world.end(*world.pool.runs)
    world.out()
    answers = [
        (int(reply.outcome.partition(":")[2]), row.position)
        for reply in {reply.id: reply for reply in replies(world.sent)}.values()
        for row in rows_of(reply)
    ]
    expected = [(number, position) for number, count in counts.items() for position in range(count)]
    assert sorted(answers) == expected
    world.ack_all()
    assert world.manager.idle


def step(world, dice, number):
    world.begin(dice.randint(0, 4))
    runs = list(world.pool.runs)
    match dice.randint(0, 4):
        case 0:
            world.tick(0.5)
        case 1 if runs:
            world.give_up(dice.choice(runs))
        case 2:
            world.cancel(f"j{dice.randint(1, number)}.{dice.randint(0, 4)}")
        case _ if runs:
            world.end(*dice.sample(runs, dice.randint(1, len(runs))))
        case _:
            world.tick(0.001)
