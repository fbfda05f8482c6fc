from __future__ import annotations

import time
from datetime import datetime, timezone

import click
import pytest

from eventmq.cli.command import read_timestamp
from eventmq.cli.schedules import _local, _words
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
    found = timestamp_of(text)
    assert found is not None
    assert before - seconds <= found <= time.time() - seconds


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
    assert _words(name, options) == f"at {_local(when.timestamp())}"
