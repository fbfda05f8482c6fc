"""Odd hours: what stands out is found and explained, what does not gives no alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from eventmq.events import HOUR_US
from eventmq_contrib.spark.analyses.anomaly import anomalous_hours, anomaly, between, hours
from tests.contrib.spark.histories import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A Monday, 00:00 UTC.
MONDAY = 1_767_571_200_000_000
WEEK = 168


def frame_of(ended, failed=None, wait=None, *, keep=None) -> pd.DataFrame:
    """Return the hours of one task from a Monday on, and an hour after them that is the last."""
    ended = np.asarray(ended, dtype=float)
    hours = np.arange(len(ended))
    frame = pd.DataFrame(
        {
            "task": "shop.send",
            "hour_us": MONDAY + hours * HOUR_US,
            "ended": ended.astype(int),
            "failed": np.zeros(len(ended), int) if failed is None else failed,
            "wait_us": np.full(len(ended), 5_000.0) if wait is None else wait,
            "last_us": MONDAY + len(ended) * HOUR_US,
        }
    )
    return frame if keep is None else frame[keep]


def odd(frame: pd.DataFrame, threshold: float = 5.0, min_history: int = 4) -> pd.DataFrame:
    return anomalous_hours(frame, threshold=threshold, min_history=min_history)


def weeks(n: int, seed: int = 1) -> np.ndarray:
    """Return jobs per hour over some weeks: few at night, many on a working day."""
    hour = np.arange(n * WEEK)
    usual = 40 + 400 * ((hour % 24 >= 8) & (hour % 24 < 18) & (hour // 24 % 7 < 5))
    return np.random.default_rng(seed).poisson(usual)


def test_an_hour_with_far_more_jobs_is_found_with_the_reason() -> None:
    ended = weeks(8)
    hour = 7 * WEEK + 9
    ended[hour] = 3_000
    [row] = odd(frame_of(ended)).to_dict("records")
    assert ("rate", MONDAY + hour * HOUR_US, 3000.0, 7) == (
        row["measure"], row["hour_us"], row["value"], row["weeks"],
    )  # fmt: skip
    before = ended[9:hour:WEEK]
    assert np.median(before) == row["median"]
    mad = np.median(np.abs(before - np.median(before)))
    spread = max(1.4826 * mad, np.sqrt(row["median"]), 0.05 * row["median"])
    assert row["score"] == pytest.approx((3000 - row["median"]) / spread)
    assert row["why"].startswith("Mon 2026-02-23 09:00 UTC: 3,000 jobs ended, more than usual")
    assert "in the median" in row["why"]


def test_an_hour_without_any_job_is_found() -> None:
    """No event tells of it: it is the row that is not there."""
    ended = weeks(6)
    hour = 5 * WEEK + 10
    keep = np.arange(len(ended)) != hour
    [row] = odd(frame_of(ended, keep=keep)).to_dict("records")
    assert (MONDAY + hour * HOUR_US, 0.0) == (row["hour_us"], row["value"])
    assert "0 jobs ended, fewer than usual" in row["why"]


def test_long_waits_and_many_failures_are_found_and_good_news_is_not() -> None:
    n = 6 * WEEK
    ended = np.full(n, 200)
    wait, failed = np.full(n, 300_000.0), np.full(n, 4)
    wait[5 * WEEK + 3], wait[5 * WEEK + 4] = 9_000_000.0, 0.0
    failed[5 * WEEK + 20], failed[5 * WEEK + 21] = 90, 0
    rows = odd(frame_of(ended, failed, wait)).set_index("measure")
    assert ["failures", "wait"] == sorted(rows.index)
    assert (9.0, 0.45) == (rows["value"]["wait"], rows["value"]["failures"])
    assert "half of the jobs waited 9 s or longer, longer than usual" in rows["why"]["wait"]
    assert "45.0% of the jobs failed, more than usual" in rows["why"]["failures"]


@pytest.mark.parametrize("level", [0, 1, 3, 50, 1_000, 1_000_000])
def test_a_constant_series_gives_no_alarm_for_a_trifle(level: int) -> None:
    """Its MAD is 0, so any difference would be infinitely odd."""
    ended = np.full(9 * WEEK, level)
    ended[8 * WEEK + 5] = level + max(1, level // 50)
    wait = np.full(len(ended), 2_000.0)
    wait[8 * WEEK + 6] = 9_000.0
    failed = np.zeros(len(ended), int)
    failed[8 * WEEK + 7] = min(1, level)
    assert [] == odd(frame_of(ended, failed, wait)).to_dict("records")


@pytest.mark.parametrize("seed", range(3))
def test_chance_alone_gives_next_to_no_alarm(seed: int) -> None:
    """Poisson arrivals, binomial failures, waits that vary by a third: 20 weeks, 3,360 hours."""
    rng = np.random.default_rng(seed)
    ended = weeks(20, seed)
    failed = rng.binomial(ended, 0.02)
    wait = rng.lognormal(np.log(200_000), 0.3, len(ended))
    rows = odd(frame_of(ended, failed, wait))
    assert len(rows) <= 0.005 * 3 * len(ended)


def test_no_hour_is_reported_without_history() -> None:
    ended = np.full(5 * WEEK, 100)
    ended[4 * WEEK - 1] = ended[5 * WEEK - 1] = 5_000
    rows = odd(frame_of(ended))
    assert [MONDAY + (5 * WEEK - 1) * HOUR_US] == rows["hour_us"].tolist()
    assert [] == odd(frame_of(ended), min_history=5).to_dict("records")


def test_incomplete_hours_are_not_compared() -> None:
    """The first of a task and the one that the journal ends in."""
    ended = np.full(6 * WEEK, 1_000)
    ended[0] = 1
    frame = frame_of(ended)
    frame["last_us"] = frame["hour_us"].max()
    frame.loc[frame.index[-1], "ended"] = 2
    assert [] == odd(frame).to_dict("records")


def test_the_threshold_decides() -> None:
    ended = np.full(6 * WEEK, 100)
    ended[5 * WEEK] = 160
    assert [] == odd(frame_of(ended), threshold=6.5).to_dict("records")
    assert 1 == len(odd(frame_of(ended), threshold=5.5))


# On Spark


def test_hours_are_those_of_the_events(spark: SparkSession) -> None:
    """By task and hour; of two odd ones that is shown which was asked for."""
    rows = []
    for week in range(6):
        for hour in (9, 10):
            n = 60 if week == 5 else 12
            for index in range(n):
                at = MONDAY + (week * WEEK + hour) * HOUR_US + index * 1_000_000
                failed = index == 0
                rows.append({
                    "broker_id": "b", "seq": len(rows) + 1, "ts_us": at, "schema_version": 1,
                    "kind": "failed" if failed else "succeeded", "task": "shop.send",
                    "wait_us": index * 1_000,
                })  # fmt: skip
    later = {**rows[-1], "seq": len(rows) + 1, "ts_us": rows[-1]["ts_us"] + HOUR_US}
    events = frame(spark, [*rows, {**later, "kind": "enqueued"}])
    by_hour = {row["hour_us"]: row for row in hours(events).collect()}
    assert 12 == len(by_hour)
    odd_one = MONDAY + (5 * WEEK + 10) * HOUR_US
    assert (60, 1) == (by_hour[odd_one]["ended"], by_hour[odd_one]["failed"])
    assert 5_000.0 == by_hour[MONDAY + 9 * HOUR_US]["wait_us"]
    chosen = between(anomaly(events), odd_one / 1e6, odd_one / 1e6 + 1).collect()
    assert [("shop.send", odd_one, "rate", 60.0)] == [
        (row["task"], row["hour_us"], row["measure"], row["value"]) for row in chosen
    ]
