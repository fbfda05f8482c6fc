"""Rates and start delays of a broker, lengths of time, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from eventmq_contrib.figures import History, Sample, error_text, length_text, sample_of


def sample(
    succeeded: int, at: float, counts: tuple[int, ...] = (0, 0, 0), epoch: int = 1, waiting: int = 0
) -> Sample:
    """Return the sample of an answer to ``metrics`` with what counts."""
    answer: dict[str, Any] = {"epoch": epoch, "jobs": [{
        "queue": "mail", "submitted": succeeded, "retried": 0, "outcomes": {"succeeded": succeeded},
        "wait": [[0.1, 1.0], list(counts), 0.0],
    }]}  # fmt: skip
    return sample_of(answer, at, {"mail": waiting})


def history_of(*samples: Sample) -> History:
    history = History()
    for each in samples:
        history = history.added(each)
    return history


def test_a_rate_is_that_of_the_last_seconds() -> None:
    """After a pause of the polls it is the mean of the pause and of the seconds before."""
    history = history_of(sample(1000, 0.0))
    assert None is History().rate("succeeded")
    assert None is history.rate("succeeded")
    for second in range(1, 21):
        history = history.added(sample(1000 + 10 * second, float(second)))
    assert 10.0 == history.rate("succeeded")
    history = history.added(sample(1200 + 200, 28.0))
    assert 20.0 == history.rate("succeeded")
    assert [10.0, 25.0] == history.rates("ended")[-2:]


def test_a_queue_has_figures_of_its_own() -> None:
    history = history_of(
        sample(0, 0.0, waiting=5), sample(100, 1.0, waiting=4), sample(500, 3.0, waiting=3)
    )
    assert [100.0, 200.0] == history.rates("ended", "mail")
    assert [5.0, 4.0, 3.0] == history.values("waiting", "mail") == history.values("waiting")
    assert [0.0, 0.0] == history.rates("ended", "other")
    assert 500 / 3 == history.rate("ended", "mail")


@pytest.mark.parametrize("second", [sample(5, 1.0, epoch=2), sample(5, 1.0), sample(10, 99.0)])
def test_a_broker_that_starts_anew_begins_anew(second: Sample) -> None:
    """So does one whose counters are lower, since it has forgotten a queue; and after a gap."""
    history = history_of(sample(10, 0.0)).added(second)
    assert None is history.rate("succeeded")


def test_samples_are_kept_for_a_while() -> None:
    history = history_of(*(sample(number, float(number)) for number in range(100)))
    assert (9.0, 99.0) == (history.samples[0].at, history.samples[-1].at)


def test_start_delays_are_those_of_the_jobs_that_started_meanwhile() -> None:
    assert "-" == History().start_delay(0.5)
    history = history_of(sample(0, 0.0, (900, 0, 0)))
    assert "-" == history.start_delay(0.5)
    history = history.added(sample(0, 8.0, (905, 4, 1)))
    assert ["≤ 100 ms", "≤ 1 s", "> 1 s"] == [
        history.start_delay(share) for share in (0.5, 0.9, 0.99)
    ]
    for at in range(16, 105, 8):
        history = history.added(sample(0, at, (905, 4 + (at > 16), 1)))
    assert "≤ 1 s" == history.start_delay(0.5)


@pytest.mark.parametrize(("seconds", "text"), [
    (None, "-"), (0.0, "-"), (3.7e-5, "37 us"), (2.7e-4, "0.27 ms"), (0.0254, "25 ms"),
    (0.25, "250 ms"), (1.0, "1 s"), (2.5, "2.5 s"), (59.4, "59 s"), (90.0, "1.5 min"),
    (180.0, "3 min"), (7200.0, "2 h"), (86_400.0, "1 d"), (86_400.0 * 40, "40 d"),
])  # fmt: skip
def test_a_length_of_time_has_a_suitable_unit(seconds: float | None, text: str) -> None:
    assert text == length_text(seconds)


def test_an_error_is_its_type_and_its_message() -> None:
    assert ["", ""] == [error_text(None), error_text(b"")]
