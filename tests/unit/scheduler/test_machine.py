"""What a beat fires and stores: fire times, misfires, overlaps, jitter, clocks, takeovers."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from itertools import pairwise

import pytest

from eventmq.errors import QueueFull
from eventmq.policies import Timing, at, cron, every
from eventmq.schedule import Schedule
from eventmq.scheduler.machine import TOLERANCE
from tests.support.beat_harness import KINDS, Beats, Killed

NOW = 1_800_000_000.0


@pytest.fixture(params=[("direct", 1000), ("eager", 1), ("late", 1), ("late", 1000)])
def beats(request):
    """A batch of one lets the next ones leave while it is on its way."""
    kind, batch = request.param
    beats = Beats(NOW, kind=kind, batch=batch)
    yield beats
    beats.close()


def test_each_fire_time_fires_once_and_in_time(beats):
    beats.add("a", every(seconds=10))
    beat = beats.start()
    beats.run(beat, 35)
    assert [NOW + 10, NOW + 20, NOW + 30] == beats.fire_times("a")
    late = [
        when - fire_time
        for when, fire_time in zip(beats.fired("a"), beats.fire_times("a"), strict=True)
    ]
    assert max(late) < 0.01
    assert NOW + 30 == beats.store.find("a").last_fire_time


def test_the_next_fire_time_comes_from_the_last_one_not_from_a_start(beats):
    beats.add("a", every(seconds=60))
    for _ in range(7):  # none lives for a minute
        beats.run(beats.start(), 10)
    beats.run(beats.start(), 60)
    assert [NOW + 60, NOW + 120] == beats.fire_times("a")


def test_a_schedule_without_nohaste_fires_at_once_too(beats):
    beats.add("a", every(seconds=60), nohaste=False)
    beats.run(beats.start(), 61)
    assert [NOW, NOW + 60] == beats.fire_times("a")


def test_run_count_counts_the_hasty_run_too_and_the_schedule_ends(beats):
    beats.add("a", every(seconds=10), nohaste=False, run_count=3)
    beats.run(beats.start(), 100)
    assert [NOW, NOW + 10, NOW + 20] == beats.fire_times("a")
    assert beats.store.find("a") is None


@pytest.mark.parametrize("nohaste", [True, False])
def test_what_has_ended_goes_though_its_beat_died_before_it_removed_that(beats, nohaste):
    beats.add("a", every(seconds=5), run_count=1, nohaste=nohaste)
    beats.add("kept", every(seconds=5), run_count=1, nohaste=nohaste, source="code")

    def crash(where):
        if where == "before remove":
            raise Killed

    with pytest.raises(Killed):
        beats.run(beats.start(crash), 10)
    assert beats.store.find("a").remaining == 0
    beats.run(beats.start(), 2)
    assert beats.store.find("a") is None
    assert beats.store.find("kept") is not None
    assert 1 == len(beats.fire_times("a")) == len(beats.fire_times("kept"))


def test_one_that_was_enabled_too_late_is_kept(beats):
    """It has never fired, so a user may look for it."""
    beats.add("late", at(datetime.fromtimestamp(NOW + 5, timezone.utc)), enabled=False)
    beats.run(beats.start(), 10)
    stored = beats.store.find("late")
    stored.enabled, stored.last_fire_time = True, beats.clock.now()
    assert beats.store.save([(stored, stored.version)]).done[0]
    for _ in range(2):
        beats.run(beats.start(), 3)
        assert beats.store.find("late") is not None
    assert [] == beats.fire_times("late")


def test_only_the_beat_that_fires_removes_what_has_ended(beats):
    beats.add("a", every(seconds=60))
    first, second = beats.start(), beats.start()
    for beat in (first, second):
        beats.tick(beat)
    assert (True, False) == (first._leads, second._leads)
    beats.add("over", at(datetime.fromtimestamp(NOW - 5, timezone.utc)))
    stored = beats.store.find("over")
    stored.last_job = "1" * 32
    beats.store.save([(stored, stored.version)])
    beats.clock.advance(0.5)
    beats.tick(second)
    assert beats.store.find("over") is not None
    first.stop()
    first.run()
    beats.clock.advance(0.5)
    beats.tick(second)
    assert second._leads
    assert beats.store.find("over") is None


@pytest.mark.parametrize("still_stored", [{}, {"queue": "other"}])
def test_one_that_is_sent_again_after_its_end_begins_anew(beats, still_stored):
    """Its beat died before it removed it."""
    beats.add("a", every(seconds=5), run_count=1)

    def crash(where):
        if where == "before remove":
            raise Killed

    with pytest.raises(Killed):
        beats.run(beats.start(crash), 10)
    again = Schedule(
        name="a", trigger=str(every(seconds=5)), body=b"a", run_count=1, **still_stored
    )
    beat = beats.start()
    received = [(again, False)]
    beat._client.received_schedules = lambda: [received.pop()] if received else ()
    beats.run(beat, 20)
    assert 2 == len(beats.fire_times("a"))
    assert beats.store.find("a") is None


def test_at_fires_once_and_is_gone(beats):
    when = datetime.fromtimestamp(NOW + 5, timezone.utc)
    beats.add("a", at(when))
    beats.add("kept", at(when), source="code")
    beats.run(beats.start(), 20)
    assert [NOW + 5] == beats.fire_times("a") == beats.fire_times("kept")
    assert beats.store.find("a") is None
    assert beats.store.find("kept") is not None


def test_a_disabled_schedule_does_not_fire(beats):
    beats.add("a", every(seconds=10), enabled=False)
    beats.run(beats.start(), 100)
    assert [] == beats.fire_times("a")


def test_a_new_schedule_is_seen_while_a_beat_runs(beats):
    beat = beats.start()
    beats.run(beat, 5)
    beats.add("a", every(seconds=2))
    beats.run(beat, 5)
    assert [NOW + 7, NOW + 9] == [round(fire_time, 2) for fire_time in beats.fire_times("a")]
    beats.store.remove("a", None)
    beats.run(beat, 20)
    assert 2 == len(beats.fire_times("a"))


def test_an_edit_counts_at_once(beats):
    beats.add("a", every(seconds=100))
    beat = beats.start()
    beats.run(beat, 5)
    old = beats.store.find("a")
    new = Schedule(name="a", trigger=str(every(seconds=3)), body=b"a")
    beats.store.save([(new.succeeding(old, beats.clock.now()), old.version)])
    beats.run(beat, 7)
    assert [3.0, 6.0] == [round(fire_time - NOW - 5, 2) for fire_time in beats.fire_times("a")]


def test_a_change_that_comes_beside_a_firing_is_not_overlooked(beats):
    """It has a revision between those that the beat saw and made."""
    beats.add("a", every(seconds=5))

    def edit(where):
        if where == "before advance" and beats.store.find("b") is None:
            beats.add("b", every(seconds=3))

    beats.run(beats.start(edit), 9)
    assert [NOW + 8] == [round(fire_time, 1) for fire_time in beats.fire_times("b")]


# Missed fire times


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [("one", [3600]), ("skip", []), ("all", [1800, 2400, 3000, 3600])],
)
def test_what_was_missed_follows_the_policy(beats, misfire, expected, caplog):
    """Nobody fires for an hour and 100 s; fire times are ten minutes apart."""
    caplog.set_level(logging.INFO)
    beats.add("a", every(seconds=600), misfire=misfire, window=2000.0)
    beats.clock.advance(3700)
    beat = beats.start()
    beats.run(beat, 10)
    assert [NOW + after for after in expected] == beats.fire_times("a")
    until = datetime.fromtimestamp(NOW + 3600).astimezone().isoformat(" ", "milliseconds")
    assert f"fire times up to {until} were missed; by misfire={misfire!r} " in caplog.text
    beats.run(beat, 600)
    assert [NOW + after for after in [*expected, 4200]] == beats.fire_times("a")


def test_a_fire_time_that_is_a_little_late_is_not_missed(beats):
    """Another beat took over, or the broker was started again: every fire time fires."""
    for policy in ("one", "skip", "all"):
        beats.add(policy, every(seconds=5), misfire=policy)
    beats.clock.advance(TOLERANCE)
    beats.run(beats.start(), 0.5)
    for policy in ("one", "skip", "all"):
        assert [NOW + 5 * n for n in range(1, 7)] == beats.fire_times(policy)


def test_many_missed_fire_times_fire_one_after_the_other(beats):
    beats.add("a", every(seconds=1), misfire="all", window=1e6)
    beats.clock.advance(1000)
    beats.run(beats.start(), 0.5)
    assert [NOW + n for n in range(1, 1001)] == beats.fire_times("a")


def test_fire_times_beyond_the_run_count_do_not_fire(beats):
    beats.add("a", every(seconds=1), run_count=3)
    beats.clock.advance(10)
    beats.run(beats.start(), 5)
    assert [NOW + 1, NOW + 2, NOW + 3] == beats.fire_times("a")
    assert beats.store.find("a") is None


def test_a_year_of_missed_minutes_takes_no_time(beats):
    beats.add("a", cron("* * * * *", tz="Europe/Paris"))
    beats.clock.advance(365 * 86_400)
    beats.run(beats.start(), 0.5)
    assert [NOW + 365 * 86_400] == beats.fire_times("a")


def test_a_missed_hasty_run_is_one_of_the_fire_times(beats):
    beats.add("a", every(seconds=100), nohaste=False)
    beats.add("b", every(seconds=1e6), nohaste=False)
    beats.clock.advance(250)
    beats.run(beats.start(), 1)
    assert [NOW + 200] == beats.fire_times("a")
    assert [NOW] == beats.fire_times("b")


# Overlap


def test_overlap_skip_leaves_out_fire_times_while_the_job_runs(beats, caplog):
    caplog.set_level(logging.INFO)
    beats.add("a", every(seconds=10), overlap="skip")
    beat = beats.start()
    beats.run(beat, 35)
    assert [NOW + 10] == beats.fire_times("a")
    assert "still runs, so fire times are skipped" in caplog.text
    beats.broker.states[beats.broker.order[0][0]] = "succeeded"
    beats.run(beat, 10)
    assert [NOW + 10, NOW + 40] == beats.fire_times("a")


@pytest.mark.parametrize("misfire", ["one", "all", "skip"])
def test_overlap_queue_lets_one_wait(beats, misfire):
    """A waiting fire time does not count as missed."""
    beats.add("a", every(seconds=10), overlap="queue", misfire=misfire)
    beat = beats.start()
    beats.run(beat, 45)
    assert [NOW + 10] == beats.fire_times("a")
    beats.broker.states[beats.broker.order[0][0]] = "failed"
    beats.run(beat, 2)
    assert [NOW + 10, NOW + 40] == beats.fire_times("a")
    beats.broker.states[beats.broker.order[1][0]] = "succeeded"
    beats.run(beat, 10)
    assert [NOW + 10, NOW + 40, NOW + 50] == beats.fire_times("a")


def test_overlap_counts_for_fire_times_that_are_late_too(beats):
    """They do not fire beside each other."""
    beats.add("skip", every(seconds=5), overlap="skip")
    beats.add("queue", every(seconds=5), overlap="queue")
    beats.clock.advance(20)
    beats.run(beats.start(), 3)
    assert [NOW + 5] == beats.fire_times("skip") == beats.fire_times("queue")


def test_overlap_allow_asks_nobody(beats):
    beats.add("a", every(seconds=1))
    beat = beats.start()
    beats.run(beat, 5)
    assert [] == beat._client.asked


# Jitter


def test_jitter_moves_the_job_and_not_the_fire_time(beats):
    beats.add("a", every(seconds=100), jitter=50.0)
    beats.run(beats.start(), 1000)
    fire_times, fired = beats.fire_times("a"), beats.fired("a")
    assert [NOW + 100 * n for n in range(1, len(fire_times) + 1)] == fire_times
    late = [when - fire_time for when, fire_time in zip(fired, fire_times, strict=True)]
    assert all(0 <= after <= 50.1 for after in late)
    assert max(late) - min(late) > 5


def test_jitter_is_the_same_whoever_computes_it(beats):
    beats.add("a", every(seconds=100), jitter=90.0)
    first, second = beats.start(), beats.start()
    for beat in (first, second):
        beats.tick(beat)
    assert first._machine.next_tick() == second._machine.next_tick()


# Clocks


def test_a_clock_that_steps_for_some_seconds_fires_nothing_and_stops_nothing(beats, caplog):
    beats.add("a", every(seconds=60))
    beats.add("b", cron("0 3 * * *"))
    beat = beats.start()
    beats.run(beat, 301)
    for step in (400 * 86_400, -365 * 86_400, 2 * 86_400):
        beats.clock.set_now(beats.clock.now() + step)
        beats.run(beat, 8)
        beats.clock.set_now(beats.clock.now() - step)
        beats.run(beat, 52)
    assert [60 * n for n in range(1, 9)] == [fire_time - NOW for fire_time in beats.fire_times("a")]
    assert beats.fire_times("b") == []
    assert "the clock steps by +400.0 days" in caplog.text
    assert "the clock is back after a step of -365.0 days, which never counted" in caplog.text


def test_a_clock_put_back_an_hour_fires_no_fire_time_twice_and_stops_nothing(beats, caplog):
    """It counts after ten minutes; fire times that come again have the ids of before."""
    beats.add("a", every(seconds=60))
    beats.add("b", cron("*/10 * * * *"))
    beat = beats.start()
    beats.run(beat, 1800)
    beats.clock.set_now(beats.clock.now() - 3600)
    beats.run(beat, 7200)
    first = [60 * n for n in range(1, 40)]
    fire_times = [fire_time - NOW for fire_time in beats.fire_times("a")]
    assert first == fire_times[:39]
    again = fire_times[39:]
    assert -1200 <= again[0] <= -1080
    assert {60.0} == {round(b - a, 3) for a, b in pairwise(again)}
    assert max(b - a for a, b in pairwise(beats.broker.boots)) <= 121.0
    before, after = [600, 1200, 1800], [2400, 3000, 3600, 4200, 4800, 5400]
    assert [*before, -600, 0, *after] == [fire_time - NOW for fire_time in beats.fire_times("b")]
    assert 3 == beats.broker.refused
    assert "the clock has stepped by -60.0 minutes, and that counts now" in caplog.text


def test_a_clock_put_forward_an_hour_for_good_counts_as_missed(beats, caplog):
    beats.add("a", every(seconds=60))
    beats.add("all", every(seconds=60), misfire="all", window=7200)
    beat = beats.start()
    beats.run(beat, 301)
    beats.clock.set_now(beats.clock.now() + 3600)
    beats.run(beat, 630)
    steady = [60 * n for n in range(1, 16)]
    assert [*steady, 4500] == [fire_time - NOW for fire_time in beats.fire_times("a")]
    assert [60 * n for n in range(1, 76)] == [
        fire_time - NOW for fire_time in beats.fire_times("all")
    ]
    assert "the clock has stepped by +60.0 minutes, and that counts now" in caplog.text


@pytest.mark.parametrize("away", ["sleep", "reboot", "step"])
def test_a_month_that_was_missed_is_one_job(beats, away):
    """Whether the machine slept, or was off with the beat, or the clock was put forth for good."""
    beats.add("a", every(seconds=60))
    beat = beats.start()
    beats.run(beat, 61)
    month = 30 * 86_400
    if away == "step":
        beats.clock.set_now(beats.clock.now() + month)
        beats.run(beat, 605)
    elif away == "sleep":
        beats.clock.sleep(month)
    else:
        beats.clock.reboot(month)
        beat = beats.start()
    fired = len(beats.fire_times("a"))
    beats.run(beat, 121)
    assert len(beats.fire_times("a")) - fired <= 3
    assert beats.fire_times("a")[-1] >= beats.clock.now() - 61


def test_a_last_fire_time_in_the_future_is_told_and_set_to_now(beats, caplog):
    """The clock was wrong when it fired."""
    beats.add("a", every(seconds=60))
    beats.clock.advance(3601)
    first = beats.start()
    beats.run(first, 1)
    first.close()
    beats.clock.set_now(NOW + 10)
    beats.run(beats.start(), 62)
    assert "1 schedules have fired for times ahead of the clock, 'a' for one in 3590 s" in (
        caplog.text
    )
    assert NOW + 70 <= beats.fire_times("a")[-1] <= NOW + 71


def test_a_beat_whose_clock_is_a_day_ahead_goes_by_the_brokers_for_ten_minutes(beats, caplog):
    beats.add("a", every(seconds=60))
    beats.broker.time = NOW
    beats.clock.set_now(NOW + 86_400)
    beat = beats.start()
    beats.run(beat, 595)
    assert [60 * n for n in range(1, 10)] == [
        fire_time - NOW for fire_time in beats.fire_times("a")
    ]
    assert "the clock steps by +24.0 hours, or differs from the broker's" in caplog.text
    beats.run(beat, 30)
    assert 86_400 + 600 == beats.fire_times("a")[-1] - NOW


def test_a_beat_whose_clock_is_a_year_back_fires_by_the_brokers(beats):
    """It would be silent for a year, or take what it has fired for what is to come."""
    beats.add("a", every(seconds=60))
    beats.run(beats.start(), 121)
    beats.broker.time = beats.clock.now()
    beats.clock.set_now(NOW - 365 * 86_400)
    beats.clock.reboot(0.0)
    beats.run(beats.start(), 120)
    assert [60, 120, 180, 240] == [fire_time - NOW for fire_time in beats.fire_times("a")]


def test_a_beat_fires_nothing_before_it_knows_the_brokers_time(beats):
    beats.add("a", every(seconds=60))
    beat = beats.start()
    beats.clock.advance(61)
    beats.broker.down = True
    beats.tick(beat)
    assert beats.broker.order == []
    beats.broker.down = False
    beats.run(beat, 1)
    assert 1 == len(beats.fire_times("a"))


# Several


def test_one_of_two_fires_and_the_other_takes_over_within_2_seconds(beats):
    beats.add("a", every(seconds=0.1))
    first, second = beats.start(), beats.start()
    for _ in range(100):
        beats.tick(first)
        beats.tick(second)
        beats.clock.advance(0.1)
    assert (True, False) == (first._leads, second._leads)
    assert 0 == beats.broker.refused
    died = beats.clock.now()  # the first sends nothing any more
    while not second._leads:
        beats.clock.advance(max(0.001, beats.tick(second)))
    assert beats.clock.now() - died < 2.0
    beats.run(second, 5)
    fire_times = beats.fire_times("a")
    assert [round(NOW + 0.1 * n, 3) for n in range(1, len(fire_times) + 1)] == fire_times


def test_a_beat_that_is_stopped_gives_the_lease_back(beats):
    first, second = beats.start(), beats.start()
    beats.tick(first)
    beats.tick(second)
    first.stop()
    first.run()
    beats.clock.advance(0.5)
    beats.tick(second)
    assert second._leads


def test_both_may_fire_and_the_broker_refuses_the_second(beats):
    """A lease only spares work: here both believe that they have it."""
    beats.add("a", every(seconds=10))
    first, second = beats.start(), beats.start()
    for beat in (first, second):
        beats.tick(beat)
        beat._leads = True
        beat._poll = lambda now: None
    beats.clock.advance(10)
    beats.tick(first)
    beats.tick(second)
    assert [NOW + 10] == beats.fire_times("a")
    assert 1 == beats.broker.refused


@pytest.mark.parametrize(
    "place",
    [
        "before submit", "within submit", "before receipts", "before advance", "after advance",
        "after lease",
    ],
)  # fmt: skip
def test_a_beat_may_die_anywhere(beats, place):
    beats.add("a", every(seconds=1))
    beats.add("b", every(seconds=1), run_count=20)

    def crash(where):
        if where == place and beats.clock.now() > NOW + 4:
            raise Killed

    with pytest.raises(Killed):
        beats.run(beats.start(crash), 10)
    beats.clock.advance(3)
    beats.run(beats.start(), 20)
    assert [NOW + n for n in range(1, len(beats.fire_times("a")) + 1)] == beats.fire_times("a")
    assert [NOW + n for n in range(1, 21)] == beats.fire_times("b")


# Trouble


def test_a_broker_that_is_away_is_waited_for(beats, caplog):
    caplog.set_level(logging.INFO)
    beats.add("a", every(seconds=5))
    beat = beats.start()
    beats.run(beat, 7)
    beats.broker.down = True
    beats.run(beat, 20)
    beats.broker.down = False
    beats.run(beat, 5)
    assert [NOW + 5 * n for n in range(1, 7)] == beats.fire_times("a")
    assert 1 == caplog.text.count("the scheduler waits: no broker")
    assert "the scheduler continues" in caplog.text


def test_a_job_that_is_refused_for_good_does_not_stop_the_others(beats):
    beats.add("bad", every(seconds=5))
    beats.add("good", every(seconds=5))
    beat = beats.start()
    beat._client.accepted[b"bad"] = None
    beats.run(beat, 21)
    assert [] == beats.fire_times("bad")
    assert 4 == len(beats.fire_times("good"))
    assert NOW + 20 == beats.store.find("bad").last_fire_time
    assert "" == beats.store.find("bad").last_job


def test_a_full_queue_is_tried_again(beats):
    beats.add("full", every(seconds=5))
    beats.add("good", every(seconds=5))
    beat = beats.start()
    beat._client.accepted[b"full"] = False
    beats.run(beat, 21)
    assert [] == beats.fire_times("full")
    beat._client.accepted.clear()
    beats.run(beat, 2)
    assert (
        [NOW + 5 * n for n in range(1, 5)] == beats.fire_times("full") == beats.fire_times("good")
    )


def test_a_trigger_that_nobody_knows_does_not_stop_the_others(beats, caplog):
    beats.add("bad", cron("* * * * *"))
    stored = beats.store.find("bad")
    stored.trigger = 'cron:{"expression":"0 0 30 2 *"}'
    beats.store.save([(stored, stored.version)])
    beats.add("good", every(seconds=5))
    beats.run(beats.start(), 11)
    assert 2 == len(beats.fire_times("good"))
    assert "schedule 'bad' cannot fire: cron expression '0 0 30 2 *' is not possible" in caplog.text


def test_a_full_disk_is_waited_for(beats, caplog):
    beats.add("a", every(seconds=5))
    full = [True]

    def crash(where):
        if where == "before advance" and full[0]:
            raise QueueFull("the disk is full")

    beat = beats.start(crash)
    beats.run(beat, 12)
    assert [NOW + 5, NOW + 10] == beats.fire_times("a")
    assert NOW == beats.store.find("a").last_fire_time
    full.clear()
    full.append(False)
    beats.run(beat, 5)
    assert [NOW + 5, NOW + 10, NOW + 15] == beats.fire_times("a")
    assert 1 == caplog.text.count("the scheduler waits: the disk is full")


@pytest.mark.parametrize("broken", ["raises", "stands"])
def test_one_whose_trigger_fails_after_it_has_fired_is_kept(beats, monkeypatch, broken):
    """A newer version of the plugin may go on."""

    class Broken:
        def next_after(self, fire_time):
            if fire_time == NOW:
                return NOW + 5
            return fire_time if broken == "stands" else 1 / 0

        def latest(self, fire_time, now):
            return None

    monkeypatch.setitem(KINDS, "broken", Broken)
    beats.add("bad", Timing("broken"), overlap="skip")
    for _ in range(2):
        beats.run(beats.start(), 10)
        assert [NOW + 5] == beats.fire_times("bad")
        assert NOW + 5 == beats.store.find("bad").last_fire_time


@pytest.mark.parametrize("broken", ["next_after", "latest", "stands"])
def test_a_trigger_that_fails_does_not_stop_the_others(beats, caplog, monkeypatch, broken):
    """It may be a plugin's."""

    class Broken:
        def next_after(self, fire_time):
            if broken == "stands":
                return fire_time
            return fire_time + 5 if broken == "latest" else 1 / 0

        def latest(self, fire_time, now):
            return 1 / 0

    monkeypatch.setitem(KINDS, "broken", Broken)
    beats.add("bad", Timing("broken"))
    beats.add("good", every(seconds=5))
    beats.clock.advance(60)
    beats.run(beats.start(), 20)
    assert 5 == len(beats.fire_times("good"))
    assert "trigger of schedule 'bad'" in caplog.text


def test_what_a_legacy_scheduler_fires_is_left_to_it(beats, monkeypatch):
    """Legacy schedules of SCHEDULE messages; when it is gone, they go on from now."""
    beats.add("wire", every(seconds=5), source="wire")
    beats.add("ours", every(seconds=5), source="wire", headers="task:a,content-type:msgpack")
    lease, foreign = beats.store.lease, [True]
    monkeypatch.setattr(
        beats.store, "lease", lambda *arguments: lease(*arguments)._replace(foreign=foreign[0])
    )
    beat = beats.start()
    beats.run(beat, 12)
    foreign[0] = False
    beats.run(beat, 10)
    assert [NOW + 15, NOW + 20] == beats.fire_times("wire")
    assert [NOW + 5, NOW + 10, NOW + 15, NOW + 20] == beats.fire_times("ours")


def test_expiry_counts_from_the_fire_time(beats):
    beats.add("a", every(seconds=10), headers="task:x,content-type:msgpack", expires_in=5.0)
    beat = beats.start()
    jobs = []
    submit = beat._client.submit
    beat._client.submit = lambda batch: (jobs.extend(batch), submit(batch))[1]
    beats.run(beat, 11)
    expected = f"task:x,content-type:msgpack,schedule-id:a,expires:{NOW + 15:.3f}"
    assert [expected] == [o.headers for o in jobs]


# Code


def declared(name, seconds, **more):
    fields = {"source": "code", "app": "app", "trigger": str(every(seconds=seconds))}
    return Schedule(name=name, body=name.encode(), **{**fields, **more})


def test_schedules_of_the_code_are_added_changed_and_removed_and_others_left_alone(beats):
    beats.add("theirs", every(seconds=50), source="code", app="other")
    beats.add("clients", every(seconds=50))
    old = {name: declared(name, 10) for name in ("kept", "changed", "dropped", "moved")}
    beats.run(beats.start(declared=old), 5)
    before = {name: beats.store.find(name) for name in old}
    assert {NOW} == {made.last_fire_time for made in before.values()}
    new = {
        "kept": declared("kept", 10),
        "changed": declared("changed", 10, queue="fast"),
        "moved": declared("moved", 7),
        "new": declared("new", 10),
    }
    beats.run(beats.start(declared=new), 0.1)
    there = {made.name: made for made in beats.store.load().schedules}
    assert {"kept", "changed", "moved", "new", "theirs", "clients"} == set(there)
    assert there["kept"] == before["kept"]
    assert ("fast", NOW) == (there["changed"].queue, there["changed"].last_fire_time)
    assert there["moved"].last_fire_time > NOW


def test_what_an_operator_disabled_stays_so(beats):
    code = {"a": declared("a", 10)}
    beats.run(beats.start(declared=code), 1)
    stored = beats.store.find("a")
    stored.enabled = False
    beats.store.save([(stored, stored.version)])
    beats.run(beats.start(declared={"a": declared("a", 10, queue="q")}), 1)
    assert (False, "q") == (beats.store.find("a").enabled, beats.store.find("a").queue)


def test_thousands_of_schedules_wait_in_a_heap(beats):
    """Turns cost nothing while nothing is due."""
    rows = [
        (Schedule(name=f"s{n}", trigger=str(every(days=1))).started(NOW - n), None)
        for n in range(20_000)
    ]
    beats.store.save(rows)
    beat = beats.start()
    beats.tick(beat)
    assert NOW - 19_999 + 86_400 == beat._machine.next_tick()
    beats.clock.advance(86_400 - 19_999)
    beats.tick(beat)
    assert 1 == len(beats.broker.order)
    assert len(beat._machine._heap) < 21_000
