"""Anomalous hours, compared with the same hours of earlier weeks: `eventmq spark anomaly`.

For each task and hour of the week (UTC), the number of jobs that ended, their median waiting time
and their share of failures are each compared with the median and the MAD of the weeks before. This
is not a forecast: a task whose load grows week by week is anomalous each time until its history has
caught up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq.sdk.events import HOUR_US, EventKind
from eventmq_contrib.spark.analyses import MIN_HISTORY, THRESHOLD

__all__ = [
    "ANOMALIES",
    "anomalous_hours",
    "anomaly",
    "between",
    "hours",
]


Values: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

#: Columns of the table -> Spark type.
ANOMALIES = {
    "task": "string", "hour_us": "long", "measure": "string", "value": "double",
    "median": "double", "low": "double", "high": "double", "score": "double", "weeks": "int",
    "why": "string",
}  # fmt: skip

#: Factor from a median absolute deviation (MAD) to a standard deviation.
_NORMAL = 1.4826

#: Hours of a week, and hours from Monday 00:00 to 1970-01-01, a Thursday.
_WEEK, _THURSDAY = 168, 72

#: Most weeks of history that are compared.
_MAX_WEEKS = 26

#: Differences that are never anomalous: relative to the median; seconds of waiting; share of
#: failures.
_RELATIVE, _WAIT, _SHARE = 0.05, 0.02, 0.01


def anomalous_hours(frame: pd.DataFrame, *, threshold: float, min_history: int) -> pd.DataFrame:
    """Return the anomalous hours of one task.

    Args:
        frame: ``task hour_us ended failed wait_us last_us``: the hours in which its jobs ended, and
            the last hour of the journal.
        threshold: Score above which an hour is anomalous.
        min_history: Weeks of history that an hour needs, at least 1.

    Returns:
        ``ANOMALIES``.
    """
    task = frame["task"].iloc[0]
    rows = [
        {"task": task, **row}
        for row in _find_anomalies(
            _complete_hours(frame), threshold=threshold, min_history=max(1, min_history)
        )
    ]
    return pd.DataFrame(rows, columns=list(ANOMALIES))


def _complete_hours(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all complete hours of a task in order, including those without a job."""
    first, last = int(frame["hour_us"].min()) + HOUR_US, int(frame["last_us"].iloc[0])
    every: Any = np.arange(first, last, HOUR_US, dtype=np.int64)
    whole = frame.set_index("hour_us")[["ended", "failed", "wait_us"]].reindex(every)
    whole["ended"], whole["failed"] = whole["ended"].fillna(0), whole["failed"].fillna(0)
    return whole


def _find_anomalies(
    hours: pd.DataFrame, *, threshold: float, min_history: int
) -> Iterator[dict[str, Any]]:
    at = hours.index.to_numpy(np.int64)
    ended, failed = hours["ended"].to_numpy(np.float64), hours["failed"].to_numpy(np.float64)
    share = np.divide(failed, ended, out=np.full(len(at), np.nan), where=ended > 0)
    wait = hours["wait_us"].to_numpy(np.float64) / 1e6
    of_week = (at // HOUR_US + _THURSDAY) % _WEEK
    for hour in np.unique(of_week):
        indexes = np.flatnonzero(of_week == hour)
        for name, values in (("rate", ended), ("wait", wait), ("failures", share)):
            measured = indexes[~np.isnan(values[indexes])]
            for n in range(min_history, len(measured)):
                before = measured[max(0, n - _MAX_WEEKS) : n]
                row = _compare(
                    name, values[measured[n]], values[before], ended[measured[n]], threshold
                )
                if row is not None:
                    when = int(at[measured[n]])
                    yield {**row, "hour_us": when, "weeks": len(before), "why": _why(row, when)}


def _compare(
    name: str, value: float, before: Values, jobs: float, threshold: float
) -> dict[str, Any] | None:
    """Return the row of an anomalous value, None if the value is usual."""
    median = float(np.median(before))
    mad = float(np.median(np.abs(before - median)))
    spread = max(_NORMAL * mad, _floor(name, median, jobs))
    score = (value - median) / spread
    low, high = median - threshold * spread, median + threshold * spread
    if abs(score) <= threshold or (score < 0 and name != "rate"):
        return None
    return {
        "measure": name, "value": float(value), "median": median, "low": max(0.0, low),
        "high": min(high, 1.0) if name == "failures" else high, "score": float(score),
    }  # fmt: skip


def _floor(name: str, median: float, jobs: float) -> float:
    if name == "rate":  # standard deviation of a Poisson process of this rate
        return max(math.sqrt(median), 1.0, _RELATIVE * median)
    if name == "wait":
        return max(_WAIT, _RELATIVE * median)
    # A share varies by chance with so few jobs; one failure more is always usual.
    share = min(max(median, 1 / (jobs + 2)), 1 - 1 / (jobs + 2))
    return float(max(_SHARE, (share * (1 - share) / jobs) ** 0.5))


#: Measure -> text of a value, and the format of a bare number.
_VALUE_TEXTS = {
    "rate": ("{:,.0f} jobs ended", "{:,.0f}"),
    "wait": ("half of the jobs waited {:.3g} s or longer", "{:.3g} s"),
    "failures": ("{:.1%} of the jobs failed", "{:.1%}"),
}


def _why(row: dict[str, Any], when: int) -> str:
    text, number_format = _VALUE_TEXTS[row["measure"]]
    hour = datetime.fromtimestamp(when // 1_000_000, timezone.utc)
    usual, low, high = (number_format.format(row[name]) for name in ("median", "low", "high"))
    bound = f"{low} to {high}" if row["measure"] == "rate" else f"up to {high}"
    way = "more" if row["score"] > 0 else "fewer"
    comparison = "longer" if row["measure"] == "wait" else way
    return (
        f"{hour:%a %Y-%m-%d %H}:00 UTC: {text.format(row['value'])}, {comparison} than usual for "
        f"this hour of the week: {usual} in the median ({bound} would be usual)"
    )


#: Accuracy of `percentile_approx`: the error of a rank is 1/ACCURACY.
_ACCURACY = 10_000


def hours(events: DataFrame) -> DataFrame:
    """Return a row per task and hour in which jobs of the task ended.

    Returns:
        ``task hour_us ended failed wait_us``: the start of the hour, how many jobs ended and failed
        in it, and the median of their waiting times, null if none is known.
    """
    failed = F.col("kind") == str(EventKind.FAILED)
    ended = events.where(failed | (F.col("kind") == str(EventKind.SUCCEEDED)))
    hour = (F.col("ts_us") - F.pmod("ts_us", F.lit(HOUR_US))).alias("hour_us")
    return ended.groupBy(F.coalesce("task", F.lit("")).alias("task"), hour).agg(
        F.count("*").alias("ended"),
        F.count_if(failed).alias("failed"),
        F.percentile_approx("wait_us", 0.5, _ACCURACY).cast("double").alias("wait_us"),
    )


def anomaly(
    events: DataFrame, *, threshold: float = THRESHOLD, min_history: int = MIN_HISTORY
) -> DataFrame:
    """Return the anomalous hours, the highest score first.

    The hour of the journal's last event and the first hour of a task are left out, since they are
    not complete. An hour without jobs counts, as zero.

    Args:
        events: Rows of a journal, with its history.
        threshold: Robust z-score above which an hour is anomalous.
        min_history: Weeks of history that an hour needs.

    Returns:
        ``ANOMALIES``; ``measure`` is ``rate`` (jobs that ended in the hour), ``wait`` (median, in
        seconds) or ``failures`` (share); ``low`` and ``high`` bound the usual values.
    """
    last = events.agg(F.max("ts_us").alias("ts")).select(
        (F.col("ts") - F.pmod("ts", F.lit(HOUR_US))).alias("last_us")
    )

    def find_anomalies(frame: pd.DataFrame) -> pd.DataFrame:
        return anomalous_hours(frame, threshold=threshold, min_history=min_history)

    schema = ", ".join(f"{name} {kind}" for name, kind in ANOMALIES.items())
    grouped = hours(events).crossJoin(F.broadcast(last)).groupBy("task")
    return grouped.applyInPandas(find_anomalies, schema).orderBy(F.desc("score"), "task", "hour_us")


def between(anomalies: DataFrame, since: float | None, until: float | None) -> DataFrame:
    """Return the rows of the hours in a time range.

    Args:
        anomalies: Rows of `anomaly`.
        since: Unix time in seconds: hours that end before it are left out.
        until: Unix time in seconds: hours that begin after it are left out.
    """
    if since is not None:
        anomalies = anomalies.where(anomalies.hour_us > since * 1e6 - HOUR_US)
    return anomalies if until is None else anomalies.where(anomalies.hour_us < until * 1e6)
