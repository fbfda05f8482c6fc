"""What is on its way at the same time while schedules fire, and what trouble leaves of it."""

from __future__ import annotations

from functools import partial

import pytest

from eventmq.errors import BrokerUnavailable, QueueFull, StoreError
from eventmq.policies import every
from eventmq.schedule import Saved
from tests.support.beat_harness import Beats

NOW = 1_800_000_000.0


class Journal:
    """A beat that fires one schedule at a time, and what it asks and waits for, in order.

    Attributes:
        trouble: Line -> what is raised there, once.
        meanwhile: Line -> what happens there.
    """

    def __init__(self, names: str, kind: str = "late", **more: object) -> None:
        self.beats = Beats(NOW, kind=kind, batch=1)
        for name in names:
            self.beats.add(name, every(seconds=10), **more)
        self.beat = self.beats.start()
        self.beats.tick(self.beat)
        self.lines: list[str] = []
        self.failures: dict[str, Exception] = {}
        self.meanwhile: dict[str, object] = {}
        batches, client = self.beat._batches, self.beat._client
        self.begin_advance, self.submit = batches._begin_advance, client.submit
        batches._begin_advance, client.submit = self.begin_step, self.submit_jobs
        self.beats.clock.advance(10)

    def write(self, line: str) -> None:
        self.lines.append(line)
        self.meanwhile.get(line, str)()
        if line in self.failures:
            raise self.failures.pop(line)

    def submit_jobs(self, jobs):
        name = jobs[0].body.decode()
        self.write(f"submit {name}")
        return partial(self.wait, f"receipt {name}", self.submit(jobs))

    def begin_step(self, rows):
        (row,) = rows
        self.write(f"store {row.name}")
        return partial(self.wait, f"stored {row.name}", self.begin_advance(rows))

    def wait(self, line, finish):
        self.write(line)
        return finish()


@pytest.fixture
def journal():
    made = []

    def make(names, **more):
        made.append(Journal(names, **more))
        return made[-1]

    yield make
    for each in made:
        each.beats.close()


def test_while_one_waits_for_the_broker_or_the_store_the_next_ones_leave(journal):
    four = journal("abcd")
    four.beats.tick(four.beat)
    assert [
        "submit a", "submit b",
        "receipt a", "store a", "submit c",
        "receipt b", "store b", "stored a", "submit d",
        "receipt c", "store c", "stored b",
        "receipt d", "store d", "stored c", "stored d",
    ] == four.lines  # fmt: skip
    assert all([NOW + 10] == four.beats.fire_times(name) for name in "abcd")
    assert all(NOW + 10 == four.beats.store.find(name).last_fire_time for name in "abcd")


def test_what_comes_due_while_receipts_are_waited_for_does_not_wait_for_the_store(journal):
    two = journal("a")
    two.beats.clock.set_now(NOW + 5)
    two.beats.add("b", every(seconds=5.25))
    two.beats.clock.set_now(NOW + 9.5)
    two.beats.tick(two.beat)
    two.beats.clock.set_now(NOW + 10)
    two.meanwhile["receipt a"] = lambda: two.beats.clock.set_now(NOW + 10.3)
    two.beats.tick(two.beat)
    assert ["submit a", "receipt a", "store a", "submit b"] == two.lines[:4]
    assert ["receipt b", "store b", "stored a", "stored b"] == two.lines[4:]


def test_one_alone_is_stored_before_the_turn_ends(journal):
    one = journal("a")
    one.beats.tick(one.beat)
    assert ["submit a", "receipt a", "store a", "stored a"] == one.lines
    assert NOW + 10 == one.beats.store.find("a").last_fire_time


def test_the_next_step_of_a_schedule_waits_for_the_last_one(journal):
    """Fire times of 2,500 s were missed, and at most 100 fire at a time."""
    one = journal("a", misfire="all", window=1e6)
    one.beats.clock.advance(2490)
    for _ in range(3):
        one.beats.tick(one.beat)
    assert ["submit a", "receipt a", "store a", "stored a"] * 3 == one.lines
    assert [NOW + 10 * n for n in range(1, 251)] == one.beats.fire_times("a")


@pytest.mark.parametrize(
    ("where", "again"),
    [
        ("submit b", "ab"), ("receipt a", "ab"), ("store a", "ab"), ("receipt b", "abc"),
        ("store b", "abc"), ("stored a", "abc"), ("stored c", "cd"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), StoreError("x"), QueueFull("full")])
def test_trouble_loses_no_fire_time_and_fires_none_twice(journal, where, again, error):
    """All that was on its way is done again, under the same ids."""
    four = journal("abcd")
    four.failures[where] = error
    four.beats.tick(four.beat)
    assert not four.failures
    first = [line[-1] for line in four.lines if line.startswith("submit")]
    four.beats.clock.advance(1.5)
    four.beats.run(four.beat, 3)
    later = [line[-1] for line in four.lines if line.startswith("submit")][len(first) :]
    assert set(again) | (set("abcd") - set(first)) == set(later)
    assert four.beats.broker.refused == len(set(again) & set(later)) - (where == "submit b")
    for name in "abcd":
        assert [NOW + 10] == four.beats.fire_times(name)
        assert NOW + 10 == four.beats.store.find(name).last_fire_time


def test_steps_that_were_stored_although_nobody_waited_for_them_are_read(journal):
    four = journal("abcd", kind="eager")
    four.failures["stored a"] = BrokerUnavailable("gone")
    four.beats.tick(four.beat)
    del four.lines[:]
    four.beats.run(four.beat, 3)
    assert ["submit c", "submit d"] == sorted(line for line in four.lines if "submit" in line)
    assert all([NOW + 10] == four.beats.fire_times(name) for name in "abcd")
    assert all(NOW + 10 == four.beats.store.find(name).last_fire_time for name in "abcd")


def test_what_somebody_else_has_moved_on_meanwhile_is_read_again_at_once(journal):
    two = journal("ab")
    begin = two.begin_advance

    def refused(rows):
        begin(rows)()  # by another beat
        return lambda: Saved([False], 0)

    two.begin_advance = refused
    two.beats.tick(two.beat)
    two.beats.tick(two.beat)
    assert [NOW + 10, NOW + 10] == [
        two.beat._machine.entries[name].schedule.last_fire_time for name in "ab"
    ]
    two.begin_advance = begin
    two.beats.run(two.beat, 11)
    assert all([NOW + 10, NOW + 20] == two.beats.fire_times(name) for name in "ab")


def test_each_schedule_of_a_batch_gets_its_own_verdicts():
    """Two jobs of each; of one the second is to be tried again, of one both, one is refused."""
    beats = Beats(NOW)
    for name in "abcd":
        beats.add(name, every(seconds=5))
    beat = beats.start()
    beats.tick(beat)
    submit, rounds = beat._client.submit, []

    def submit_some(jobs):
        rounds.append([order.body.decode() for order in jobs])
        if len(rounds) > 1:
            return submit(jobs)
        results = [True, True, True, False, None, None, False, False]
        accepted = [order for order, result in zip(jobs, results, strict=True) if result]
        submit(accepted)
        return lambda: results

    beat._client.submit = submit_some
    beats.clock.advance(10)
    for _ in range(2):
        beats.tick(beat)
    assert ["a", "a", "b", "b", "c", "c", "d", "d"] == rounds[0]
    assert ["b"] == rounds[1]
    assert {"a": 10, "b": 10, "c": 10, "d": 0} == {
        name: beats.store.find(name).last_fire_time - NOW for name in "abcd"
    }
    beats.run(beat, 2)
    assert ["d", "d"] == rounds[2]
    fire_times = [NOW + 5, NOW + 10]
    assert [fire_times, fire_times, [], fire_times] == [beats.fire_times(name) for name in "abcd"]
    assert 0 == beats.broker.refused
    beats.close()


def test_a_stop_submits_no_more_but_stores_what_was_submitted(journal):
    four = journal("abcd")
    four.meanwhile["receipt a"] = four.beat.stop
    four.beats.tick(four.beat)
    assert ["submit a", "submit b"] == [line for line in four.lines if "submit" in line]
    stored = [four.beats.store.find(name).last_fire_time for name in "abcd"]
    assert [NOW + 10, NOW + 10, NOW, NOW] == stored


def test_before_the_next_look_at_the_store_all_is_settled(journal):
    """It renews the lease, and reads what others have changed."""
    four = journal("abcd")
    four.meanwhile["receipt a"] = lambda: four.beats.clock.advance(0.5)
    four.beats.tick(four.beat)
    assert ["submit a", "submit b"] == [line for line in four.lines if "submit" in line]
    stored = [four.beats.store.find(name).last_fire_time for name in "abcd"]
    assert [NOW + 10, NOW + 10, NOW, NOW] == stored
    four.beats.tick(four.beat)
    assert all([NOW + 10] == four.beats.fire_times(name) for name in "abcd")
