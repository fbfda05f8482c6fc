"""Hours that are not like the same hours of earlier weeks: `eventmq spark anomaly`.

By task and hour of the week (UTC): jobs that ended, median waiting time and share of failures, each
against median and MAD of the weeks before (`oddity`). Not a forecast: a task that grows week by
week is odd each time until its history has grown along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.events import HOUR_US, Kind
from eventmq_contrib.spark.products.oddity import ANOMALIES

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["MIN_HISTORY", "THRESHOLD", "anomaly", "between", "hours"]

#: Robust z-scores above this are odd.
THRESHOLD = 5.0

#: Weeks that an hour must have been seen in before it can be odd.
MIN_HISTORY = 4

#: Of `percentile_approx`: the error of a rank is 1/ACCURACY.
_ACCURACY = 10_000


def hours(events: DataFrame) -> DataFrame:
    """Return what each task did in each hour, of those in which jobs of it ended.

    Returns:
        ``task hour_us ended failed wait_us``: when the hour began, how many jobs succeeded or
        failed in it, and the median of their waiting times, null where none is known.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    failed = F.col("kind") == str(Kind.FAILED)
    ended = events.where(failed | (F.col("kind") == str(Kind.SUCCEEDED)))
    hour = (F.col("ts_us") - F.pmod("ts_us", F.lit(HOUR_US))).alias("hour_us")
    return ended.groupBy(F.coalesce("task", F.lit("")).alias("task"), hour).agg(
        F.count("*").alias("ended"),
        F.count_if(failed).alias("failed"),
        F.percentile_approx("wait_us", 0.5, _ACCURACY).cast("double").alias("wait_us"),
    )


def anomaly(
    events: DataFrame, *, threshold: float = THRESHOLD, min_history: int = MIN_HISTORY
) -> DataFrame:
    """Return the odd hours, the oddest first.

    The hour of the journal's last event is not judged, nor the first one of a task: they are not
    whole. An hour without a job of a task counts as one with none.

    Args:
        events: Rows of a journal, with its history.
        threshold: Robust z-score above which an hour is odd.
        min_history: Weeks that must have gone before.

    Returns:
        ``ANOMALIES``; ``measure`` is ``rate`` (jobs that ended in the hour), ``wait`` (median, in
        seconds) or ``failures`` (share); ``low`` and ``high`` bound what would not be odd.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    last = events.agg(F.max("ts_us").alias("ts")).select(
        (F.col("ts") - F.pmod("ts", F.lit(HOUR_US))).alias("last_us")
    )

    def judged(frame: pd.DataFrame) -> pd.DataFrame:
        from eventmq_contrib.spark.products.oddity import odd_hours

        return odd_hours(frame, threshold=threshold, min_history=min_history)

    schema = ", ".join(f"{name} {kind}" for name, kind in ANOMALIES.items())
    found = hours(events).crossJoin(F.broadcast(last)).groupBy("task")
    return found.applyInPandas(judged, schema).orderBy(F.desc("score"), "task", "hour_us")


def between(found: DataFrame, since: float | None, until: float | None) -> DataFrame:
    """Return the rows of some hours.

    Args:
        found: Of `anomaly`.
        since: Unix time in seconds: hours that end before it are left out.
        until: Unix time in seconds: hours that begin after it are left out.
    """
    if since is not None:
        found = found.where(found.hour_us > since * 1e6 - HOUR_US)
    return found if until is None else found.where(found.hour_us < until * 1e6)
