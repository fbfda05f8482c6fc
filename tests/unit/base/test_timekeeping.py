"""Store time and guarded wall time: every sentence of the page "Two clocks"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq.timekeeping import (
    AT_ONCE,
    MAX_ADDITIONS,
    SETTLED,
    STEADY,
    STEP,
    ClockRecord,
    GuardedWall,
    Passed,
    Reading,
    StoreTime,
    Timekeeper,
    format_time,
)

WALL, BOOT = 1_800_000_000.0, 5_000.0
YEAR, DAY, WEEK = 365 * 86_400.0, 86_400.0, 7 * 86_400.0

#: How far a wall clock may be set, forth and back.
STEPS = st.one_of(
    st.floats(STEP + 1, 500 * DAY), st.floats(-500 * DAY, -STEP - 1), st.floats(-STEP, STEP)
)


def record(**changes) -> ClockRecord:
    """Return what a store kept when all its clocks agreed."""
    return ClockRecord(WALL, 0.0, WALL, WALL, BOOT, "a")._replace(**changes)


# Store time


def test_the_time_of_a_new_store_begins_with_the_wall_clock_and_goes_on_with_boot_time() -> None:
    time = StoreTime(Reading(WALL, BOOT, "a"))
    time.advance(WALL + 5, BOOT + 5)
    assert time.now == WALL + 5


@given(st.lists(st.tuples(st.floats(0, DAY), STEPS), max_size=20))
def test_store_time_is_boot_time_whatever_the_wall_clock_does(steps) -> None:
    time, boot = StoreTime(Reading(WALL, BOOT, "a")), BOOT
    for seconds, step in steps:
        boot += seconds
        time.advance(WALL + step, boot)
        assert time.now == pytest.approx(WALL + boot - BOOT, abs=1e-5)


@given(STEPS, st.floats(0, 10 * YEAR))
def test_with_the_same_boot_id_it_grows_by_the_boot_time_that_passed(step, away) -> None:
    reading = Reading(WALL + step, BOOT + away, "a")
    time = StoreTime(reading, record())
    assert time.now == pytest.approx(WALL + away, abs=1e-5)
    assert time.unconfirmed == 0.0


@pytest.mark.parametrize("boot_id", ["b", ""])
@given(passed=st.floats(-YEAR, YEAR))
def test_with_another_boot_id_it_grows_by_wall_time_by_an_hour_at_most(boot_id, passed) -> None:
    """Any further time is unconfirmed; a clock that was set back adds nothing."""
    time = StoreTime(Reading(WALL + passed, 3.0, boot_id), record())
    assert time.now == pytest.approx(WALL + min(max(0.0, passed), AT_ONCE))
    assert time.unconfirmed == pytest.approx(max(0.0, passed - AT_ONCE), abs=1e-5)


def test_where_the_system_has_no_boot_id_every_start_counts_as_another_boot() -> None:
    last = record(boot_id="")
    time = StoreTime(Reading(WALL + DAY, BOOT + DAY, ""), last)
    assert (time.now, time.unconfirmed) == (WALL + AT_ONCE, DAY - AT_ONCE)


def test_further_starts_add_to_what_is_unconfirmed() -> None:
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    keeper.advance(WALL + WEEK + 300, 310.0)
    stored = keeper.record()
    assert stored.unconfirmed == WEEK - AT_ONCE
    again = StoreTime(Reading(WALL + WEEK + 300 + DAY, 10.0, "c"), stored)
    assert again.unconfirmed == pytest.approx(WEEK + DAY - 2 * AT_ONCE)


def test_the_time_of_a_step_that_did_not_count_yet_is_not_added_twice() -> None:
    """The step after a week off is pending when the broker is killed with its machine."""
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    keeper.advance(WALL + WEEK + 60, 70.0)
    assert keeper.wall == WALL + 60
    again = StoreTime(Reading(WALL + WEEK + 90, 10.0, "c"), keeper.record())
    assert again.now == pytest.approx(keeper.now + 30)
    assert again.unconfirmed == WEEK - AT_ONCE


def test_time_off_is_not_lost_where_the_machine_died_with_a_step_that_did_not_count() -> None:
    """The step was wrong: after the power failure the clock is right again."""
    last = record(wall=WALL + DAY)
    time = StoreTime(Reading(WALL + 2 * AT_ONCE, 3.0, "b"), last)
    assert (time.now, time.unconfirmed) == (WALL + AT_ONCE, AT_ONCE)


@given(STEPS, st.floats(0, 30 * DAY), st.booleans(), st.booleans())
def test_time_off_is_never_counted_twice_and_no_more_than_a_pending_step_is_lost(
    step, off, step_kept, right_before
) -> None:
    """The clock steps, and the machine dies within ten minutes and keeps the step or not."""
    keeper = started(record(), Reading(WALL, BOOT, "a"))
    keeper.advance(WALL + 60 + step, BOOT + 60)
    if right_before:
        keeper.advance(WALL + 70, BOOT + 70)
        step_kept = False
    last = keeper.record()
    wall = WALL + keeper.boot - BOOT + off + (step if step_kept else 0.0)
    time = StoreTime(Reading(wall, 3.0, "b"), ClockRecord.of(list(last)))
    counted = time.now + time.unconfirmed - last.store
    assert counted <= off + STEP + 1e-3
    both = min(wall - last.wall, wall - last.guarded) >= -STEP
    assert counted >= off - (abs(step) if both else 0.0) - STEP - 1e-3


def test_what_a_wrong_clock_said_at_a_start_is_taken_back_where_the_machine_dies_with_it() -> None:
    """It was a week ahead and did not count yet; the next start has the right time."""
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    keeper.advance(WALL + WEEK + 60, 70.0)
    again = started(ClockRecord.of(list(keeper.record())), Reading(WALL + 90, 10.0, "c"))
    assert again.now == pytest.approx(keeper.now + 30)
    assert again.status()["unconfirmed"] == 0.0


def test_what_counted_before_a_step_is_not_taken_back_with_it() -> None:
    """The week off was real, and its wall clock counts; a step after that was wrong."""
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    keeper.advance(WALL + WEEK + SETTLED, 10.0 + SETTLED)
    keeper.advance(WALL + WEEK + SETTLED + DAY, 11.0 + SETTLED)
    last = ClockRecord.of(list(keeper.record()))
    again = started(last, Reading(WALL + WEEK + SETTLED + 300, 10.0, "c"))
    assert again.status()["unconfirmed"] == WEEK - AT_ONCE
    assert again.now == pytest.approx(keeper.now + 299)


def test_a_clock_that_was_back_when_the_machine_died_does_not_make_time_pass() -> None:
    last = record(wall=WALL - YEAR)  # briefly; guarded time was right
    time = StoreTime(Reading(WALL + 20, 3.0, "b"), last)
    assert (time.now, time.unconfirmed) == (WALL + 20, 0.0)


def test_the_rest_is_added_at_once_after_an_hour_of_one_run_with_a_steady_clock() -> None:
    time = StoreTime(Reading(WALL + WEEK, 10.0, "b"), record())
    assert time.advance(WALL + WEEK + STEADY - 1, 10.0 + STEADY - 1) == 0.0
    assert time.steady_in() == 1.0
    assert time.advance(WALL + WEEK + STEADY, 10.0 + STEADY) == WEEK - AT_ONCE
    assert time.confirm() == WEEK - AT_ONCE
    assert time.now == WALL + WEEK + STEADY
    assert (time.unconfirmed, time.steady_in()) == (0.0, 0.0)


@given(st.floats(1, STEADY - 1), st.floats(61, YEAR))
def test_a_step_begins_the_hour_anew(at, step) -> None:
    time = StoreTime(Reading(WALL + WEEK, 10.0, "b"), record())
    time.advance(WALL + WEEK + at + step, 10.0 + at)
    assert time.advance(WALL + WEEK + STEADY + step, 10.0 + STEADY) == 0.0
    end = STEADY + at + 0.001
    assert time.advance(WALL + WEEK + end + step, 10.0 + end) == WEEK - AT_ONCE


@given(st.floats(0, 1000), st.floats(WEEK, YEAR))
def test_a_clock_that_is_put_back_takes_back_what_is_unconfirmed(at, step) -> None:
    """It was wrong when the machine was started; that time is not added an hour later."""
    time = StoreTime(Reading(WALL + 60 + step, 10.0, "b"), record())
    assert time.unconfirmed == pytest.approx(60 + step - AT_ONCE)
    time.advance(WALL + 60 + at, 10.0 + at)
    assert time.unconfirmed == 0.0
    end = at + STEADY + 0.001
    assert time.advance(WALL + 60 + end, 10.0 + end) == 0.0
    assert time.now == pytest.approx(WALL + AT_ONCE + end)


def test_a_clock_that_was_put_back_for_a_moment_takes_nothing_back() -> None:
    time = StoreTime(Reading(WALL + WEEK, 10.0, "b"), record())
    time.advance(WALL - YEAR, 20.0)
    assert time.unconfirmed == 0.0
    time.advance(WALL + WEEK + 20, 30.0)
    assert time.unconfirmed == WEEK - AT_ONCE
    assert time.advance(WALL + WEEK + 20 + STEADY, 30.0 + STEADY) == WEEK - AT_ONCE


def test_a_clock_that_is_put_forth_adds_nothing_to_what_is_unconfirmed() -> None:
    time = StoreTime(Reading(WALL + WEEK, 10.0, "b"), record())
    time.advance(WALL + YEAR, 20.0)
    assert time.advance(WALL + YEAR + STEADY, 20.0 + STEADY) == WEEK - AT_ONCE


def test_the_hour_is_of_one_run() -> None:
    """A restart of the broker starts it again, also on the same boot."""
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    keeper.advance(WALL + WEEK + STEADY - 1, 10.0 + STEADY - 1)
    stored = keeper.record()
    time = StoreTime(Reading(WALL + WEEK + STEADY, 10.0 + STEADY, "b"), stored)
    assert time.advance(WALL + WEEK + STEADY + 1, 11.0 + STEADY) == 0.0
    assert time.unconfirmed == WEEK - AT_ONCE


#: What a standby knows that saw its owner end two minutes ago.
KNOWN = Passed(100.0, 150.0)


@pytest.mark.parametrize(("ahead", "passed"), [(120, 120), (DAY, 100), (3000, 100), (-DAY, 100)])
def test_after_a_takeover_the_clock_is_believed_where_it_says_what_was_seen(ahead, passed) -> None:
    """Else no more has passed than surely has, and nothing is unconfirmed."""
    time = StoreTime(Reading(WALL + ahead, 7.0, "b"), record(), KNOWN)
    assert time.now == WALL + passed
    assert time.unconfirmed == 0.0


def test_what_was_seen_does_not_count_on_the_same_machine() -> None:
    time = StoreTime(Reading(WALL, BOOT + 3, "a"), record(), KNOWN)
    assert time.now == WALL + 3


#: By how much the clock of a machine may be wrong, and for how long each owner runs: before its
#: clock is set, after that, and from its end until another takes over.
WRONG = st.sampled_from([0.0, 0.0, -3600.0, -300.0, 300.0, 3500.0, 3600.0, 2 * DAY])
OWNERS = st.lists(
    st.tuples(WRONG, st.floats(0, 700), WRONG, st.floats(0, 700), st.floats(0.5, 5)),
    min_size=2, max_size=8,
)  # fmt: skip


@given(OWNERS)
def test_no_takeover_counts_more_than_has_passed_since_any_other(owners) -> None:
    """Neither where a right clock shows what was not counted while clocks were wrong.

    A wait that began in between would end too early.
    """
    keeper, stored, bounds = Timekeeper(), None, None
    at, first, behind = WALL, owners[0][0], 0.0
    for number, (wrong, before, later, after, away) in enumerate(owners):
        boot = 1000.0 * number - at
        keeper.start(Reading(at + wrong, at + boot, str(number)), stored, bounds)
        for ahead, seconds in ((wrong, before), (later, after)):
            at += seconds
            keeper.advance(at + ahead, at + boot)
        assert at + first - keeper.now >= behind - 1e-3
        behind = at + first - keeper.now
        stored, at = ClockRecord.of(list(keeper.record())), at + away
        bounds = Passed(max(0.0, away - 3.5), away + 32.0)


def test_guarded_time_is_right_again_once_a_right_clock_counts() -> None:
    """Then the wall clocks of later owners are believed as before."""
    stored = record()._replace(wall=WALL + DAY, guarded=WALL - 3, behind=True)
    keeper = Timekeeper()
    keeper.start(Reading(WALL + 5, 3.0, "b"), stored, Passed(1.0, 35.0))
    assert (keeper.now, keeper.wall) == (WALL + 1, WALL + 5)
    assert not keeper.record().behind
    keeper.start(Reading(WALL + 9, 7.0, "c"), keeper.record(), Passed(1.0, 35.0))
    assert keeper.now == WALL + 5


# Guarded wall time


@given(st.floats(-STEP, STEP))
def test_what_a_time_service_corrects_is_followed_at_once(step) -> None:
    guarded = GuardedWall(Reading(WALL, BOOT))
    guarded.advance(WALL + 10 + step, BOOT + 10)
    assert (guarded.now, guarded.step) == (WALL + 10 + step, 0.0)


@given(st.one_of(st.floats(61, YEAR), st.floats(-YEAR, -61)), st.floats(1, SETTLED - 1))
def test_a_step_counts_once_it_has_stood_for_ten_minutes(step, at) -> None:
    guarded = GuardedWall(Reading(WALL, BOOT))
    assert guarded.advance(WALL + 10 + step, BOOT + 10) == 0.0
    assert guarded.advance(WALL + 10 + at + step, BOOT + 10 + at) == 0.0
    assert guarded.now == pytest.approx(WALL + 10 + at, abs=1e-5)
    assert guarded.counts_in(BOOT + 10 + at) == pytest.approx(SETTLED - at, abs=1e-5)
    counted = guarded.advance(WALL + 10 + SETTLED + step, BOOT + 10.001 + SETTLED)
    assert counted == pytest.approx(step, abs=0.01)
    assert guarded.now == pytest.approx(WALL + 10 + SETTLED + step, abs=1e-5)


@given(st.one_of(st.floats(61, YEAR), st.floats(-YEAR, -61)))
def test_a_step_that_is_taken_back_never_counts(step) -> None:
    guarded = GuardedWall(Reading(WALL, BOOT))
    guarded.advance(WALL + 10 + step, BOOT + 10)
    guarded.advance(WALL + 500, BOOT + 500)
    assert guarded.advance(WALL + 5000 + step, BOOT + 5000) == 0.0
    assert guarded.now == pytest.approx(WALL + 5000, abs=1e-5)


def test_another_step_begins_the_ten_minutes_anew() -> None:
    guarded = GuardedWall(Reading(WALL, BOOT))
    guarded.advance(WALL + DAY, BOOT)
    guarded.advance(WALL + SETTLED + YEAR, BOOT + SETTLED)
    assert guarded.now == WALL + SETTLED
    assert guarded.advance(WALL + 2 * SETTLED + YEAR, BOOT + 2 * SETTLED) == YEAR


@pytest.mark.parametrize("later", [0.0, 1800.0, AT_ONCE])
def test_after_another_boot_a_clock_that_went_on_for_an_hour_at_most_is_believed(later) -> None:
    guarded = GuardedWall(Reading(WALL + later, 3.0, "b"), record())
    assert (guarded.now, guarded.step) == (WALL + later, 0.0)


@pytest.mark.parametrize("later", [AT_ONCE + 1, WEEK, -61.0, -YEAR])
def test_after_another_boot_any_other_clock_counts_after_ten_minutes(later) -> None:
    guarded = GuardedWall(Reading(WALL + later, 3.0, "b"), record())
    assert (guarded.now, guarded.step) == (WALL, later)
    assert guarded.advance(WALL + later + SETTLED, 3.0 + SETTLED) == later
    assert guarded.now == WALL + later + SETTLED


@given(STEPS, st.floats(0, YEAR))
def test_after_a_restart_on_the_same_boot_a_step_is_a_step(step, away) -> None:
    guarded = GuardedWall(Reading(WALL + away + step, BOOT + away, "a"), record())
    expected = WALL + away + (step if abs(step) <= STEP else 0.0)
    assert guarded.now == pytest.approx(expected, abs=1e-4)


def test_a_beat_takes_the_difference_to_its_broker_for_a_step() -> None:
    guarded = GuardedWall(Reading(WALL + DAY, BOOT))
    guarded.expect(WALL, WALL + DAY, BOOT)
    assert (guarded.now, guarded.step) == (WALL, DAY)
    assert guarded.advance(WALL + DAY + SETTLED, BOOT + SETTLED) == DAY
    guarded.expect(WALL + DAY + SETTLED + 30, WALL + DAY + SETTLED, BOOT + SETTLED)
    assert (guarded.now, guarded.step) == (WALL + DAY + SETTLED, 0.0)


@pytest.mark.parametrize(
    ("ahead", "passed"), [(120, 120), (3000, 100), (DAY, 100), (-DAY, 100), (-120, 100)]
)
def test_after_a_takeover_a_clock_counts_at_once_where_it_says_what_was_seen(ahead, passed) -> None:
    """Else as a step does, ten minutes later."""
    wall = GuardedWall(Reading(WALL + ahead, 7.0, "b"), record(), KNOWN)
    assert wall.now == WALL + passed
    assert bool(wall.step) is (ahead != passed)
    wall.advance(WALL + ahead + SETTLED, 7.0 + SETTLED)
    assert wall.now == WALL + ahead + SETTLED


# Both


def started(last: ClockRecord | None, reading: Reading) -> Timekeeper:
    keeper = Timekeeper()
    keeper.start(reading, last)
    return keeper


def test_an_operator_lets_everything_count_with_the_next_reading() -> None:
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    assert keeper.accept() == {"unconfirmed": WEEK - AT_ONCE, "step": WEEK}
    keeper.advance(WALL + WEEK + 1, 11.0)
    keeper.confirm()
    assert (keeper.now, keeper.wall, keeper.ahead) == (WALL + WEEK + 1, WALL + WEEK + 1, 0.0)
    assert keeper.jumped == WEEK - AT_ONCE
    assert not any(keeper.status().values())


def test_to_accept_a_steady_clock_changes_nothing() -> None:
    keeper = started(None, Reading(WALL, BOOT, "a"))
    assert not any(keeper.accept().values())
    keeper.advance(WALL + 1, BOOT + 1)
    assert (keeper.now, keeper.wall, keeper.jumped) == (WALL + 1, WALL + 1, 0.0)


def test_the_status_says_what_waits_and_for_how_long() -> None:
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    keeper.advance(WALL + WEEK + 100, 110.0)
    assert keeper.status() == {
        "unconfirmed": WEEK - AT_ONCE, "steady_in": STEADY - 100, "step": WEEK,
        "counts_in": SETTLED - 100,
    }  # fmt: skip
    assert not any(Timekeeper().status().values())


def test_each_step_is_told_once_when_it_comes_and_once_when_it_counts_or_goes() -> None:
    keeper = started(None, Reading(WALL, BOOT, "a"))
    for second in range(5):
        keeper.advance(WALL + 400 * DAY + second * 1.0001, BOOT + second)
    keeper.advance(WALL + 5, BOOT + 5)
    for second in (6, 6 + SETTLED, 7 + SETTLED):
        keeper.advance(WALL - YEAR + second, BOOT + second)
    begin = ["the wall clock steps by +400.0 days", "the wall clock is back after a step of +400"]
    begin += ["the wall clock steps by -365.0 days", "the wall clock has stepped by -365.0 days"]
    assert [text[: len(start)] for text, start in zip(keeper.notices, begin, strict=True)] == begin


def test_time_that_was_confirmed_is_told_and_wanted_on_disk_at_once() -> None:
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    keeper.saved()
    assert keeper.unsaved_for == 0.0
    keeper.notices.clear()
    keeper.accept()
    keeper.advance(WALL + WEEK, 10.0)
    assert keeper.unsaved_for == float("inf")
    keeper.confirm()
    assert keeper.unsaved_for == float("inf")
    assert keeper.notices[-1] == "7.0 days that the machine was off now count as passed"


@given(st.lists(st.tuples(st.floats(0, 1000), STEPS, st.booleans(), st.booleans()), max_size=15))
def test_store_time_never_goes_back_over_steps_restarts_and_boots(steps) -> None:
    wall, boot, boots = WALL, BOOT, 1
    keeper = started(None, Reading(wall, boot, "boot1"))
    for seconds, step, restart, reboot in steps:
        before, elapsed = keeper.now, keeper.now - WALL
        wall, boot = wall + seconds + step, boot + seconds
        if not restart:
            keeper.advance(wall, boot)
            assert keeper.now - before >= seconds - 1e-4
            continue
        stored = keeper.record()
        if reboot:
            boot, boots = 3.0, boots + 1
        keeper = started(ClockRecord.of(list(stored)), Reading(wall, boot, f"boot{boots}"))
        assert before <= keeper.now <= before + AT_ONCE + 1e-4
        assert keeper.now - WALL >= elapsed


# What must not age by the time before it


def test_nothing_is_added_before_the_store_says_that_it_has_it() -> None:
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    begin = keeper.now
    assert keeper.addition() is None
    keeper.advance(WALL + WEEK + STEADY, 10.0 + STEADY)
    assert keeper.ripe
    addition = keeper.addition()
    assert addition == (begin, begin + STEADY, WEEK - AT_ONCE)
    assert keeper.record(addition)[:2] == (WALL + WEEK + STEADY, 0.0)
    assert (keeper.now, keeper.status()["unconfirmed"]) == (begin + STEADY, WEEK - AT_ONCE)
    keeper.confirm()
    assert (keeper.ripe, keeper.addition()) == (False, None)
    assert keeper.record() == keeper.record(None)
    assert keeper.record().additions == (addition,)


def test_what_came_after_a_start_is_spared_the_time_that_is_added_later() -> None:
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    begin, rest = keeper.now, WEEK - AT_ONCE
    keeper.accept()
    keeper.advance(WALL + WEEK + 500, 510.0)
    keeper.confirm()
    assert keeper.anchor == begin
    times = [begin - 1, begin, begin + 500, begin + 501]
    assert [keeper.spared(at) for at in times] == [0.0, rest, rest, 0.0]
    assert keeper.before(begin - 1) == begin - 1
    assert keeper.before(begin + 100) == begin
    assert keeper.before(keeper.now - 1) == begin + 499
    assert keeper.before(keeper.now) == keeper.now
    assert keeper.before(keeper.now + 1) == keeper.now + 1


def test_what_came_after_the_first_of_several_starts_is_spared_all_of_it() -> None:
    """That is more than necessary, so nothing is forgotten too early."""
    keeper = started(record(), Reading(WALL + WEEK, 10.0, "b"))
    begin = keeper.now
    again = started(keeper.record(), Reading(WALL + 2 * WEEK, 10.0, "c"))
    again.accept()
    again.advance(WALL + 2 * WEEK, 10.0)
    again.confirm()
    assert again.spared(begin) == 2 * WEEK - 2 * AT_ONCE


_BOOTS = st.lists(st.tuples(st.floats(0, 2 * STEADY), st.floats(0, WEEK), st.booleans()))


@given(_BOOTS, st.floats(0, 2 * WEEK))
def test_nothing_is_taken_for_older_than_it_is(boots, keep) -> None:
    """Its age: what passed since, and what was off since; the first hour of it at least."""
    wall, boot = WALL, BOOT
    keeper = started(None, Reading(wall, boot, "boot"))
    rows: list[list[float]] = []  # store time, age, and what is unconfirmed since
    for number, (seconds, off, accepts) in enumerate(boots):
        for part in range(3):
            rows.append([keeper.now, 0.0, 0.0])
            wall, boot = wall + seconds / 2, boot + seconds / 2
            for row in rows:
                row[1] += seconds / 2
            if accepts and part == 1:
                keeper.accept()
            keeper.advance(wall, boot)
            if keeper.ripe:
                keeper.confirm()
                for row in rows:
                    row[1:] = [row[1] + row[2], 0.0]
        wall, boot = wall + off, 3.0
        keeper = started(
            ClockRecord.of(list(keeper.record())), Reading(wall, boot, f"boot{number}")
        )
        for row in rows:
            row[1] += min(off, AT_ONCE)
            row[2] += max(0.0, off - AT_ONCE)
        cut = keeper.before(keeper.now - keep)
        for at, age, _ in rows:
            assert keeper.now - at - keeper.spared(at) <= age + 1e-3
            assert at >= cut or age >= keep - 1e-3


def test_many_additions_become_one_by_which_nothing_ages_sooner() -> None:
    keeper, wall = started(None, Reading(WALL, BOOT, "boot")), WALL
    begins = []
    for number in range(3 * MAX_ADDITIONS):
        wall += DAY
        keeper = started(keeper.record(), Reading(wall, 10.0, f"boot{number}"))
        begins.append(keeper.now)
        keeper.accept()
        keeper.advance(wall, 10.0)
        keeper.confirm()
    assert len(keeper.record().additions) == MAX_ADDITIONS
    assert all(keeper.spared(begin) >= DAY - AT_ONCE for begin in begins)
    assert keeper.before(begins[0] + 1) <= begins[0]


@pytest.mark.parametrize(
    "values", [None, [], ["x"] * 6, [1.0] * 3, [1.0] * 9, [*[1.0] * 7, [[1]], 1.0]]
)
def test_a_record_that_cannot_be_read_is_refused(values) -> None:
    with pytest.raises(ValueError, match="record of the store's clocks"):
        ClockRecord.of(values)


@pytest.mark.parametrize("timestamp", [float("inf"), float("nan"), 1e18])
def test_a_time_that_no_calendar_has_is_said_as_it_is(timestamp: float) -> None:
    """A faulty trigger may return it; formatting must not fail."""
    assert f"Unix time {timestamp:g}" == format_time(timestamp)
