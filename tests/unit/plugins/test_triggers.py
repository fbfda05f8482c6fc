"""The fire times of each built-in trigger, and how code and messages name one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

import eventmq
from eventmq.errors import PluginError, SettingsError
from eventmq.interfaces import PluginContext
from eventmq.plugins.triggers import Cron, eventmq_triggers
from eventmq.policies import Timing, at, cron, every
from eventmq.registry.names import TRIGGER
from eventmq.testing import FakeClock
from tests.support.plugin_harness import managing  # noqa: F401 - a fixture

PARIS = ZoneInfo("Europe/Paris")


def unix(*parts, zone=timezone.utc, fold=0):
    return datetime(*parts, tzinfo=zone, fold=fold).timestamp()


def context(**options):
    return PluginContext("p", options, FakeClock())


def fired(trigger, start, n):
    """Return the ``n`` fire times after ``start``."""
    fire_times = []
    for _ in range(n):
        start = trigger.next_after(start)
        fire_times.append(start)
    return fire_times


def test_every_counts_from_the_fire_time_before():
    trigger = eventmq_triggers()["every"](context(seconds=90))
    assert [100.0, 190.0, 280.0] == fired(trigger, 10.0, 3)
    assert trigger.latest(10.0, 99.0) is None
    assert 280.0 == trigger.latest(10.0, 369.9)
    assert 370.0 == trigger.latest(10.0, 370.0)


def test_every_does_not_drift_by_fractions():
    """Many steps of a tenth of a second add up to the same time as one jump."""
    trigger = eventmq_triggers()["every"](context(seconds=0.1))
    fire_time = 1_800_000_000.0
    for _ in range(1000):
        fire_time = trigger.next_after(fire_time)
    assert fire_time == 1_800_000_100.0
    assert 1_800_100_000.0 == trigger.latest(1_800_000_000.0, 1_800_100_000.0)


def test_the_arguments_of_every_add_up():
    assert 'every:{"seconds":97384.5}' == str(every(seconds=4.5, minutes=3, hours=3, days=1))
    assert every(seconds=timedelta(minutes=1)) == every(minutes=1)


@pytest.mark.parametrize("seconds", [0, -1, 1e10, float("nan"), float("inf")])
def test_an_interval_out_of_range_is_refused(seconds):
    with pytest.raises(SettingsError, match=r"allowed is"):
        every(seconds=seconds)


@pytest.mark.parametrize("value", ["5", None, True])
def test_an_interval_is_a_number(value):
    with pytest.raises(SettingsError, match=r"every\(minutes="):
        every(minutes=value)


def test_at_has_one_fire_time():
    trigger = eventmq_triggers()["at"](context(moment=50.0))
    assert 50.0 == trigger.next_after(49.9)
    assert trigger.next_after(50.0) is None
    assert 50.0 == trigger.latest(0.0, 50.0)
    assert trigger.latest(0.0, 49.0) is None
    assert 'at:{"moment":1893488400.0}' == str(at(datetime(2030, 1, 1, 10, tzinfo=PARIS)))


def test_at_needs_a_time_zone():
    with pytest.raises(SettingsError, match="naive, it has no time zone"):
        at(datetime(2030, 1, 1))  # noqa: DTZ001 - the point
    with pytest.raises(SettingsError, match="an aware datetime"):
        at(5)


def test_cron_reads_the_clock_of_its_zone():
    trigger = eventmq_triggers()["cron"](context(expression="0 3 * * *", tz="Europe/Paris"))
    summer, winter = fired(trigger, unix(2026, 10, 24), 2)
    assert unix(2026, 10, 24, 1) == summer
    assert unix(2026, 10, 25, 2) == winter


def test_a_fixed_time_that_does_not_exist_fires_at_the_next_instant_that_does():
    trigger = Cron("30 2 * * *", "Europe/Paris")
    assert unix(2026, 3, 29, 3, zone=PARIS) == trigger.next_after(unix(2026, 3, 28, 12))
    assert unix(2026, 3, 30, 2, 30, zone=PARIS) == trigger.next_after(unix(2026, 3, 29, 1))


def test_a_fixed_time_that_does_not_exist_is_skipped_where_the_policy_says_so():
    trigger = Cron("30 2 * * *", "Europe/Paris", "skip")
    assert unix(2026, 3, 30, 2, 30, zone=PARIS) == trigger.next_after(unix(2026, 3, 28, 12))


def test_fixed_times_that_do_not_exist_fire_once_together():
    """Both become 03:00, together with the regular fire time at 03:00."""
    trigger = Cron("0,30 2,3 * * *", "Europe/Paris")
    fire_times = fired(trigger, unix(2026, 3, 29, 0), 3)
    three = unix(2026, 3, 29, 3, zone=PARIS)
    assert [three, three + 1800, unix(2026, 3, 30, 2, zone=PARIS)] == fire_times


def test_a_fixed_time_that_exists_twice_fires_the_first_time_only():
    trigger = Cron("30 2 * * *", "Europe/Paris")
    first = unix(2026, 10, 25, 2, 30, zone=PARIS)
    assert first == trigger.next_after(unix(2026, 10, 24, 12))
    assert unix(2026, 10, 26, 2, 30, zone=PARIS) == trigger.next_after(first)
    assert unix(2026, 10, 26, 2, 30, zone=PARIS) == trigger.next_after(
        unix(2026, 10, 25, 2, 10, zone=PARIS, fold=1)
    )


def test_every_quarter_of_an_hour_fires_in_every_existing_quarter():
    trigger = Cron("*/15 * * * *", "Europe/Paris")
    for day in (unix(2026, 3, 28, 22), unix(2026, 10, 24, 22)):
        assert [day + 900 * n for n in range(1, 41)] == fired(trigger, day, 40)


def test_next_after_takes_times_within_a_minute():
    trigger = Cron("* * * * *")
    assert 60.0 == trigger.next_after(0.0)
    assert 60.0 == trigger.next_after(59.999)
    assert 120.0 == trigger.next_after(60.5)


def test_a_leap_day_may_be_eight_years_away():
    assert unix(2104, 2, 29) == Cron("0 0 29 2 *").next_after(unix(2096, 2, 29))


@pytest.mark.parametrize(
    ("expression", "start"),
    [("* * * * *", 0), ("0 * * * *", 3), ("0 3 * * *", 40), ("0 0 1 1 *", 4000)],
)
def test_latest_equals_many_single_steps(expression, start):
    trigger = Cron(expression, "Europe/Paris")
    now = unix(2026, 11, 21, 5, 3)
    fire_time = now - start * 86_400 - 7200
    last = None
    while (fire_time := trigger.next_after(fire_time)) <= now:
        last = fire_time
    assert last == trigger.latest(now - start * 86_400 - 7200, now)
    assert trigger.latest(now, now) is None


def test_macros_are_expressions():
    assert unix(2026, 11, 22) == Cron("@daily").next_after(unix(2026, 11, 21, 5))
    assert unix(2026, 11, 21, 6) == Cron("@hourly").next_after(unix(2026, 11, 21, 5))


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("0 0 30 2 *", "month 2 never has a day 30"),
        ("0 0 31 4,6 *", "never has a day 31"),
        ("0 0 40 2 *", "wrong is the day-of-month"),
        ("61 * * * *", "wrong is the minute"),
        ("a b c d e", "wrong is the minute"),
        ("* * * * MOON", "wrong is the day-of-week"),
        ("", "has 0 fields; right is five"),
        ("0 0 3 * * *", "has 6 fields; right is five"),
        ("@never", "has 1 fields; right is five"),
    ],
)
def test_an_impossible_expression_is_refused(expression, problem):
    with pytest.raises(SettingsError, match=problem):
        cron(expression)


@pytest.mark.parametrize("zone", ["Europe/Pari", "paris", "Europe/paris "])
def test_an_unknown_zone_is_refused_with_the_nearest(zone):
    with pytest.raises(SettingsError, match=r"no time zone .*did you mean 'Europe/Paris'"):
        cron("* * * * *", tz=zone)


@pytest.mark.parametrize("zone", ["../etc/passwd", "", "/etc/localtime", "x" * 5000, "a\0b"])
def test_a_zone_is_no_path(zone):
    with pytest.raises(SettingsError, match="no time zone"):
        cron("* * * * *", tz=zone)


def test_the_policy_about_missing_times_is_next_or_skip():
    with pytest.raises(SettingsError, match="allowed is: 'next' or 'skip'"):
        cron("* * * * *", missing="twice")
    with pytest.raises(SettingsError, match="allowed is: text"):
        cron(5)


@pytest.mark.parametrize(
    "timing",
    [
        every(hours=2),
        cron("0 3 * * *", tz="Europe/Paris", missing="skip"),
        at(datetime(2030, 1, 1, tzinfo=PARIS)),
        Timing("own"),
    ],
)
def test_a_timing_survives_its_text(timing):
    assert timing == Timing.parse(str(timing))
    assert {timing: 1}[Timing.parse(str(timing))] == 1


@pytest.mark.parametrize("text", ["", ":{}", "every:[]", "every:{", "every:" + "[" * 10_000])
def test_a_text_that_is_no_timing_is_refused(text):
    with pytest.raises(SettingsError, match="not name:json"):
        Timing.parse(text)


@pytest.mark.parametrize("timing", [every(hours=2), cron("0 3 * * *"), at(datetime.now(PARIS))])
def test_plugins_make_the_trigger_of_a_timing(timing, manage):
    trigger = manage().make(TRIGGER, timing.name, options=timing.options)
    assert trigger.next_after(1.0) > 1.0


def test_an_unknown_option_is_named():
    with pytest.raises(PluginError, match="'p' has no option 'minutes'"):
        eventmq_triggers()["every"](context(minutes=1))


def test_every_cron_and_at_are_exported():
    assert (eventmq.every, eventmq.cron, eventmq.at) == (every, cron, at)
