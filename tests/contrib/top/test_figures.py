"""Rates, start delays, and how they are written."""

from __future__ import annotations

from typing import Any

import pytest

from eventmq_contrib.top.figures import History, bars, rate, span
from eventmq_contrib.top.views import fitting


def answer(succeeded: int, counts: tuple[int, ...] = (0, 0, 0), epoch: int = 1) -> dict[str, Any]:
    """Return the parts of an answer to ``metrics`` that count."""
    return {"epoch": epoch, "jobs": [{
        "submitted": succeeded, "retried": 0, "outcomes": {"succeeded": succeeded},
        "wait": [[0.1, 1.0], list(counts), 0.0],
    }]}  # fmt: skip


def test_a_rate_is_that_of_the_last_seconds() -> None:
    """After a pause of the polls it is the mean of the pause."""
    history = History()
    assert None is history.rate("succeeded")
    history.add(answer(1000), 0.0)
    assert None is history.rate("succeeded")
    for second in range(1, 21):
        history.add(answer(1000 + 10 * second), float(second))
    assert 10.0 == history.rate("succeeded")
    history.add(answer(1200 + 600), 50.0)
    assert 20.0 == history.rate("succeeded")
    assert [10.0, 20.0] == history.rates("succeeded")[-2:]


def test_a_broker_that_starts_anew_begins_anew() -> None:
    """So does one whose counters are lower, since it has forgotten a queue."""
    for second in (answer(5, epoch=2), answer(5)):
        history = History()
        history.add(answer(10), 0.0)
        history.add(second, 1.0)
        assert None is history.rate("succeeded")


def test_start_delays_are_those_of_the_last_minute() -> None:
    history = History()
    assert "-" == history.start_delay(0.5)
    history.add(answer(0, (900, 0, 0)), 0.0)
    assert "-" == history.start_delay(0.5)
    history.add(answer(0, (905, 4, 1)), 30.0)
    assert ["<= 100 ms", "<= 1 s", "> 1 s"] == [
        history.start_delay(share) for share in (0.5, 0.9, 0.99)
    ]
    history.add(answer(0, (905, 5, 1)), 90.0)
    assert "<= 1 s" == history.start_delay(0.5)


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0 ms"), (0.0254, "25 ms"), (1.0, "1 s"), (2.5, "2.5 s"), (59.4, "59 s"),
    (90.0, "1.5 min"), (7200.0, "2 h"), (86_400.0 * 40, "40 d"),
])  # fmt: skip
def test_a_length_of_time_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert text == span(seconds)


def test_rates_and_bars() -> None:
    assert ["-", "0/s", "0.5/s", "12,346/s"] == [rate(n) for n in (None, 0.0, 0.5, 12345.6)]
    assert "▁▄█" == bars([9.0, 0.0, 2.0, 5.0], 3)
    assert "▁▁" == bars([0.0, 0.0], 30)


def test_columns_give_way_before_they_are_cut_and_ids_are_never_cut() -> None:
    rows = [{"id": "12345678", "task": "t" * 30, "worker": "w" * 20, "error": "e" * 50}]
    assert {"id": 8, "task": 30, "worker": 20, "error": 50} == fitting([*rows[0]], rows, 116, ())
    assert {"id": 8, "task": 20, "worker": 20, "error": 20} == fitting([*rows[0]], rows, 76, ())
    assert {"id": 8, "task": 12, "error": 12} == fitting([*rows[0]], rows, 38, ("worker",))
