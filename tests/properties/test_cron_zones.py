"""Cron at every change of the clocks of many zones from 2000 to 2040.

The expected fire times are computed minute by minute from what the clocks of the zone show, with
neither cronsim nor the trigger's own arithmetic. One difference is known: where the clocks change
by half an hour, or not at a full hour, an expression of other than fixed times may miss times.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from eventmq.plugins.triggers import Cron
from tests.support.examples import some

ZONES = [
    "Africa/Cairo", "Africa/Casablanca", "America/Argentina/Buenos_Aires", "America/Caracas",
    "America/Chicago", "America/Havana", "America/Los_Angeles", "America/New_York",
    "America/Santiago", "America/Sao_Paulo", "America/St_Johns", "America/Scoresbysund",
    "America/Asuncion", "Antarctica/Troll", "Asia/Amman", "Asia/Beirut", "Asia/Gaza",
    "Asia/Kathmandu", "Asia/Pyongyang", "Asia/Tehran", "Asia/Kolkata", "Asia/Dhaka",
    "Atlantic/Azores", "Australia/Lord_Howe", "Australia/Sydney", "Europe/Berlin",
    "Europe/Dublin", "Europe/Istanbul", "Europe/London", "Europe/Moscow", "Europe/Paris",
    "Europe/Volgograd", "Pacific/Apia", "Pacific/Auckland", "Pacific/Chatham", "Pacific/Fiji",
]  # fmt: skip

EVERY = frozenset(range(60))
DAY = frozenset(range(24))

#: Expression, its minutes and hours, whether it names fixed times.
EXPRESSIONS = [
    ("*/6 * * * *", frozenset(range(0, 60, 6)), DAY, False),
    ("*/15 * * * *", frozenset({0, 15, 30, 45}), DAY, False),
    ("7 * * * *", frozenset({7}), DAY, False),
    ("40 * * * *", frozenset({40}), DAY, False),
    ("*/20 0-3 * * *", frozenset({0, 20, 40}), frozenset({0, 1, 2, 3}), False),
    ("* 0 * * *", EVERY, frozenset({0}), False),
    ("30 2 * * *", frozenset({30}), frozenset({2}), True),
    ("0,45 0,1,2,3,23 * * *", frozenset({0, 45}), frozenset({0, 1, 2, 3, 23}), True),
    ("15 0-12/2 * * *", frozenset({15}), frozenset({0, 2, 4, 6, 8, 10, 12}), True),
]

#: Minutes around a change that are checked.
AROUND = 14 * 60
MINUTE = timedelta(minutes=1)


@cache
def changes(name: str) -> list[datetime]:
    """Return the instants, to the minute, at which the offset of a zone changes."""
    zone, minutes = ZoneInfo(name), []
    time = datetime(2000, 1, 1, tzinfo=timezone.utc)
    offset = time.astimezone(zone).utcoffset()
    while time.year < 2040:
        following = time + timedelta(hours=6)
        before, offset = offset, following.astimezone(zone).utcoffset()
        if before != offset:
            while time.astimezone(zone).utcoffset() == before:
                time += MINUTE
            minutes.append(time)
        time = following
    return minutes


def shown(name: str, change: datetime) -> list[tuple[float, datetime]]:
    """Return (Unix time, time shown by the clocks) for each minute around a change."""
    zone, start = ZoneInfo(name), change.timestamp() - AROUND * 60
    times = [start + n * 60 for n in range(2 * AROUND)]
    return [(at, datetime.fromtimestamp(at, zone).replace(tzinfo=None)) for at in times]


def named(rows, missing):
    """Return (Unix time, local time) at which each time of the day is due that may be named."""
    first = {}
    for at, local in rows:
        first.setdefault(local, at)
    for (_, before), (at, local) in pairwise(rows):
        skipped = before + MINUTE
        while missing == "next" and skipped < local:
            first.setdefault(skipped, at)
            skipped += MINUTE
    return [(at, local) for local, at in first.items()]


def is_odd(name, change):
    """Return whether the clocks change by half an hour, or not at a full hour."""
    zone = ZoneInfo(name)
    before, after = (at.astimezone(zone) for at in (change - MINUTE, change))
    hours = (after.utcoffset() - before.utcoffset()) % timedelta(hours=1)
    return bool(hours) or after.minute != 0


def expected(rows, minutes, hours):
    """Return the Unix times that should fire."""
    return sorted({
        at for at, local in rows if local.minute in minutes and local.hour in hours
    })  # fmt: skip


@pytest.mark.parametrize("name", ZONES)
def test_cron_fires_as_the_clocks_of_the_zone_show(name):
    """At every change; where the zone has none left, on one day without."""
    for change in some(changes(name) or [datetime(2026, 3, 29, tzinfo=timezone.utc)]):
        rows = shown(name, change)
        # An hour before the first minute may be the second of two: leave out the edges.
        begin, end = rows[0][0] + 3 * 3600, rows[-1][0] - 3 * 3600
        times = {missing: named(rows, missing) for missing in ("next", "skip")}
        for expression, minutes, hours, fixed in EXPRESSIONS:
            for missing in ("next", "skip") if fixed else ("next",):
                times_expected = expected(times[missing] if fixed else rows, minutes, hours)
                trigger, fire_time, fired = Cron(expression, name, missing), begin, []
                while (fire_time := trigger.next_after(fire_time)) <= end:
                    fired.append(fire_time)
                inside = [at for at in times_expected if begin < at <= end]
                if is_odd(name, change) and not fixed:
                    assert set(fired) <= set(inside), (name, change, expression)
                    missed, around = set(inside) - set(fired), change.timestamp()
                    assert all(abs(at - around) < 7200 for at in missed), (name, change, expression)
                else:
                    assert inside == fired, (name, change, expression, missing)


@pytest.mark.parametrize("name", ZONES)
def test_a_start_in_the_middle_changes_nothing(name):
    """From any minute the next fire time is the first of all that come after it."""
    for change in some(changes(name)[::8]):
        for expression, _, _, fixed in EXPRESSIONS[1:]:
            if is_odd(name, change) and not fixed:
                continue
            trigger = Cron(expression, name)
            fire_time = (change - timedelta(hours=5)).timestamp()
            end = fire_time + 10 * 3600
            while fire_time < end:
                following = trigger.next_after(fire_time)
                for start in (fire_time + 1.5, (fire_time + following) / 2, following - 0.5):
                    if fire_time <= start < following:
                        assert following == trigger.next_after(start), (name, change, expression)
                fire_time = following


def test_the_zones_are_at_least_thirty_and_change_their_clocks():
    assert len(set(ZONES)) >= 30
    assert sum(len(changes(name)) for name in ZONES) > 1000


def test_only_two_zones_have_changes_at_which_times_may_be_missed():
    """Of those to come."""
    odd = {
        name
        for name in ZONES
        if any(change.year >= 2026 and is_odd(name, change) for change in changes(name))
    }
    assert {"Australia/Lord_Howe", "Pacific/Chatham"} == odd


def test_what_is_missed_at_lord_howe_is_as_documented():
    """At 02:00 the clocks go back to 01:30: the second 01:40 is not seen, the fixed time is."""
    zone = ZoneInfo("Australia/Lord_Howe")
    first = datetime(2026, 4, 5, 1, 40, tzinfo=zone).timestamp()
    after = datetime(2026, 4, 5, 2, 40, tzinfo=zone).timestamp()
    assert after - first == 5400
    assert Cron("40 * * * *", zone.key).next_after(first) == after
    assert Cron("40 1 * * *", zone.key).next_after(first - 1) == first
    assert Cron("*/10 * * * *", zone.key).next_after(first + 1200) == first + 1800
