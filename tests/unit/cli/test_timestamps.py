from __future__ import annotations

import time
from datetime import datetime, timezone

import click
import pytest

from eventmq.cli.command import read_timestamp
from eventmq.cli.output import age, duration, local_time
from eventmq.cli.schedules import _words, describe_trigger
from eventmq.policies import at

OPTION = click.Option(["--since"])


def timestamp_of(text: str | None) -> float | None:
    return read_timestamp(click.Context(click.Command("x")), OPTION, text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("3d", 259_200), ("1w", 604_800), ("0.5h", 1800)],
)
def test_a_number_with_a_unit_is_so_long_ago(text: str, seconds: float) -> None:
    before = time.time()
    timestamp = timestamp_of(text)
    assert timestamp is not None
    assert before - seconds <= timestamp <= time.time() - seconds


def test_a_date_is_local_time_unless_it_says_otherwise() -> None:
    here = datetime.fromisoformat("2026-01-31T12:00").astimezone()
    assert here.timestamp() == timestamp_of("2026-01-31T12:00")
    assert 1_769_860_800.0 == timestamp_of("2026-01-31T12:00+00:00")


def test_seconds_are_unix_time_and_nothing_is_nothing() -> None:
    assert 1_700_000_000.5 == timestamp_of("1700000000.5")
    assert timestamp_of(None) is None


@pytest.mark.parametrize("text", ["yesterday", "", "2h ago", "2026-13-01"])
def test_anything_else_is_an_error_that_says_what_is_right(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 2h for two hours ago"):
        timestamp_of(text)


def test_a_schedule_that_fires_once_is_listed_with_its_time() -> None:
    when = datetime(2030, 1, 1, 9, tzinfo=timezone.utc)
    name, _, options = str(at(when)).partition(":")
    assert _words(name, options) == f"at {local_time(when.timestamp())}"
    assert describe_trigger(f"{name}:{options}") == f"at {local_time(when.timestamp())}"


def test_a_trigger_is_described_with_its_zone() -> None:
    """The form is that of the lines of a scheduler that starts."""
    nightly = 'cron:{"expression": "0 3 * * *", "tz": "Europe/Paris"}'
    assert describe_trigger(nightly) == "cron 0 3 * * *, zone Europe/Paris"
    assert describe_trigger('every:{"seconds": 90}') == "every 1.5 min"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(18_000, "5 h"), (86_400, "1 d"), (300.0, "5 min"), (0.5, "500 ms"), (3700, "3700 s"),
     (1_234_567, "1234567 s"), (1.25, "1.25 s"), (0.1234, "0.1234 s"),
     (100.25, "100.25 s"), (45, "45 s")],
)  # fmt: skip
def test_an_interval_is_in_the_unit_that_suits_it_and_exact(seconds: float, text: str) -> None:
    assert describe_trigger(f'every:{{"seconds": {seconds}}}') == f"every {text}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000037, "37 us"), (0.0000995, "99.5 us"), (0.00027, "0.27 ms"), (0.012, "12 ms"),
        (0.9997, "1000 ms"), (1.0, "1 s"), (59.96, "60 s"), (190.0, "3.2 min"), (7200.0, "2 h"),
        (200_000.0, "2.3 d"), (1e9, "11574 d"), (0.0, "0 us"),
    ],
)  # fmt: skip
def test_a_length_of_time_has_a_unit_for_people(seconds: float, text: str) -> None:
    assert text == duration(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "now"), (-0.2, "now"), (12.9, "12 s ago"), (150, "2 min ago"), (-7300, "in 2 h"),
     (200_000, "2 d ago")],
)  # fmt: skip
def test_a_time_has_an_age(monkeypatch: pytest.MonkeyPatch, seconds: float, text: str) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    assert text == age(1_800_000_000.0 - seconds)
