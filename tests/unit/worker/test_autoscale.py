"""Number of slots that a worker uses, by its measured busy time."""

from __future__ import annotations

import pytest

from eventmq.wire import commands
from eventmq.worker.slots import Autoscaler
from tests.unit.worker.test_watchdog import Limited


class Load:
    """A scaler and its clock; ``work`` keeps some slots busy for some seconds."""

    def __init__(self, min_slots=1, max_slots=8):
        self.scaler = Autoscaler(min_slots, max_slots)
        self.now = 100.0

    def work(self, busy, seconds, step=0.1):
        """Return the size after that time; a list of numbers is used in turns."""
        turns = busy if isinstance(busy, list) else [busy]
        for n in range(round(seconds / step)):
            self.scaler.record(self.now, min(turns[n % len(turns)], self.scaler.size))
            self.now += step
        self.scaler.record(self.now, min(turns[0], self.scaler.size))
        return self.scaler.size


def test_it_begins_with_the_least():
    assert Load(min_slots=3).work(0, 5.0) == 3


def test_it_grows_while_all_are_busy_and_never_beyond_the_most():
    load = Load()
    sizes = [load.work(99, 1.1) for _ in range(8)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 2
    assert sizes[-1] == 8


def test_a_slot_that_idles_between_two_jobs_for_a_moment_counts_as_busy():
    """Sampled at the ends of jobs, all slots would seem idle."""
    load = Load(min_slots=2, max_slots=8)
    for _ in range(150):
        load.scaler.record(load.now, 1)
        load.now += 0.001
        load.scaler.record(load.now, 2)
        load.now += 0.019
    assert load.scaler.size > 2


def test_one_spare_slot_is_enough_and_stays():
    """Two long jobs need no fourth slot, and the third one is not removed and added again."""
    load = Load()
    load.work(2, 10.0)
    assert load.scaler.size == 3
    assert load.work(2, 200.0) == 3


def test_it_shrinks_after_quiet_time_and_never_below_the_least():
    load = Load(min_slots=2, max_slots=8)
    load.work(99, 10.0)
    assert load.work(0, 25.0) == 8, "a pause is no end"
    assert load.work(0, 10.0) < 8
    assert load.work(0, 60.0) == 2


def test_work_in_between_ends_the_quiet():
    load = Load(min_slots=1, max_slots=4)
    load.work(99, 10.0)
    for _ in range(5):
        load.work(0, 25.0)
        assert load.work(4, 3.0) == 4


def test_nothing_is_added_where_nothing_waits():
    load = Load()
    load.scaler.waiting = 0
    assert load.work(load.scaler.size, 10.0) == load.scaler.size


def test_slots_that_wait_for_the_next_job_half_of_the_time_are_busy_if_jobs_wait():
    load = Load()
    assert load.work([1, 1, 1, 0], 5.0) == 1, "unless it is known that jobs wait"
    load.scaler.waiting = 1
    assert load.work([1, 1, 1, 0], 1.5) == 2


def test_as_many_are_added_as_jobs_wait_and_at_most_as_many_again():
    load = Load(2, 16)
    load.scaler.waiting = 1
    assert load.work(2, 1.2) == 3
    load.scaler.waiting = 100
    sizes = [load.work(16, 0.1) for _ in range(60)]
    assert list(dict.fromkeys(sizes)) == [3, 6, 12, 16]


# In the job manager


@pytest.fixture
def world():
    world = Limited(slots=4, min_slots=1)
    world.connect()
    return world


def fill(world):
    """Give every used slot a long job."""
    number = world.manager._held_chunks.received
    while world.status().window > len(world.pool.busy()):
        number += 1
        world.chunk(number, 1)
        slot = world.pool.assigned[-1][0]
        world.run(slot, number, 0)
        world.tick(0.03)


def test_the_window_and_the_slots_follow_the_load(world):
    assert world.status().window == 1
    for _ in range(20):
        fill(world)
        world.tick(0.5)
    assert world.status().window == 4
    assert world.pool.scaled == [2, 3, 4]
    assert {slot for slot, *_ in world.pool.assigned} == {0, 1, 2, 3}


def test_only_an_idle_slot_is_given_up(world):
    for _ in range(20):
        fill(world)
        world.tick(0.5)
    for slot, number, _ in world.pool.assigned[:3]:
        world.pool.since[slot] = None
        world.answer(slot, number, 0, 1, run_time=1.0)
    for _ in range(90):
        world.tick(1.0)
    assert world.pool.scaled == [2, 3, 4], "the last one is busy"
    slot, number, _ = world.pool.assigned[3]
    world.pool.since[slot] = None
    world.answer(slot, number, 0, 1, run_time=1.0)
    for _ in range(90):
        world.tick(1.0)
    assert world.pool.scaled[-1] == 1
    assert world.manager.credit.chunks == 1


def test_the_manager_heeds_what_the_broker_says_of_the_jobs_that_wait(world):
    world.receive(commands.Heartbeat("h", "1.0", "waiting:0"))
    for _ in range(5):
        fill(world)
        world.tick(0.5)
    assert world.pool.scaled == []
    world.receive(commands.Heartbeat("h", "1.0", "waiting:3"))
    for _ in range(5):
        fill(world)
        world.tick(0.5)
    assert world.pool.scaled[:2] == [2, 4]
