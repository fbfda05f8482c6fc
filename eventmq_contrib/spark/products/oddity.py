"""What is odd about an hour of a task, given the same hour of earlier weeks, and why, in words.

The score is (value - median) / spread with the spread 1.4826 x MAD (median of the absolute
deviations; the factor makes it a standard deviation where values are normal). A spread has a floor:
what chance alone brings, or what nobody would call different. So a constant series, whose MAD is 0,
gives no alarm for a trifle. Runs in Spark's Python workers, on the hours of one task.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from eventmq.events import HOUR_US

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pandas as pd

    Values = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["ANOMALIES", "odd_hours"]

#: The table: column -> Spark type.
ANOMALIES = {
    "task": "string", "hour_us": "long", "measure": "string", "value": "double",
    "median": "double", "low": "double", "high": "double", "score": "double", "weeks": "int",
    "why": "string",
}  # fmt: skip

#: Makes a MAD a standard deviation.
_NORMAL = 1.4826

#: Hours of a week, and those from a Monday, 00:00, to 1970-01-01, a Thursday.
_WEEK, _THURSDAY = 168, 72

#: Weeks that history goes back at most.
_BACK = 26

#: What nobody would call different: of the median; seconds of waiting; share of failures.
_RELATIVE, _WAIT, _SHARE = 0.05, 0.02, 0.01


def odd_hours(frame: pd.DataFrame, *, threshold: float, min_history: int) -> pd.DataFrame:
    """Return the odd hours of one task.

    Args:
        frame: ``task hour_us ended failed wait_us last_us``: the hours in which jobs of it ended,
            and the last hour of the journal.
        threshold: Score above which an hour is odd.
        min_history: Weeks that must have gone before, at least 1.

    Returns:
        ``ANOMALIES``.
    """
    import pandas as pd

    task = frame["task"].iloc[0]
    rows = [
        {"task": task, **row}
        for row in _judged(_whole(frame), threshold=threshold, min_history=max(1, min_history))
    ]
    return pd.DataFrame(rows, columns=list(ANOMALIES))


def _whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all whole hours of a task, also those without a job, by the hour."""
    import numpy as np

    first, last = int(frame["hour_us"].min()) + HOUR_US, int(frame["last_us"].iloc[0])
    every: Any = np.arange(first, last, HOUR_US, dtype=np.int64)
    found = frame.set_index("hour_us")[["ended", "failed", "wait_us"]].reindex(every)
    found["ended"], found["failed"] = found["ended"].fillna(0), found["failed"].fillna(0)
    return found


def _judged(hours: pd.DataFrame, *, threshold: float, min_history: int) -> Iterator[dict[str, Any]]:
    import numpy as np

    at = hours.index.to_numpy(np.int64)
    ended, failed = hours["ended"].to_numpy(np.float64), hours["failed"].to_numpy(np.float64)
    share = np.divide(failed, ended, out=np.full(len(at), np.nan), where=ended > 0)
    wait = hours["wait_us"].to_numpy(np.float64) / 1e6
    of_week = (at // HOUR_US + _THURSDAY) % _WEEK
    for hour in np.unique(of_week):
        places = np.flatnonzero(of_week == hour)
        for name, values in (("rate", ended), ("wait", wait), ("failures", share)):
            there = places[~np.isnan(values[places])]
            for n in range(min_history, len(there)):
                before = there[max(0, n - _BACK) : n]
                row = _compared(name, values[there[n]], values[before], ended[there[n]], threshold)
                if row is not None:
                    when = int(at[there[n]])
                    yield {**row, "hour_us": when, "weeks": len(before), "why": _why(row, when)}


def _compared(
    name: str, value: float, before: Values, jobs: float, threshold: float
) -> dict[str, Any] | None:
    """Return the row of an odd value, None for one that is not."""
    import numpy as np

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
    if name == "rate":  # what a Poisson process of this rate varies by
        return max(math.sqrt(median), 1.0, _RELATIVE * median)
    if name == "wait":
        return max(_WAIT, _RELATIVE * median)
    # Of a share, what chance makes of so many jobs; one failure more is always possible.
    share = min(max(median, 1 / (jobs + 2)), 1 - 1 / (jobs + 2))
    return float(max(_SHARE, (share * (1 - share) / jobs) ** 0.5))


#: Measure -> how its numbers are said.
_SAID = {
    "rate": ("{:,.0f} jobs ended", "{:,.0f}"),
    "wait": ("half of the jobs waited {:.3g} s or longer", "{:.3g} s"),
    "failures": ("{:.1%} of the jobs failed", "{:.1%}"),
}


def _why(row: dict[str, Any], when: int) -> str:
    said, plain = _SAID[row["measure"]]
    hour = datetime.fromtimestamp(when // 1_000_000, timezone.utc)
    usual, low, high = (plain.format(row[name]) for name in ("median", "low", "high"))
    bound = f"{low} to {high}" if row["measure"] == "rate" else f"up to {high}"
    way = "more" if row["score"] > 0 else "fewer"
    what = "longer" if row["measure"] == "wait" else way
    return (
        f"{hour:%a %Y-%m-%d %H}:00 UTC: {said.format(row['value'])}, {what} than usual for this "
        f"hour of the week: {usual} in the median ({bound} would not be odd)"
    )
