"""Statistics: number of jobs, waiting and run times, and failures by task, queue and time.

The table is computed in two steps. `cells` counts; counts of several batches can be added.
`stats_of` makes the table from counts, which is cheap.

Times are counted in buckets that are 1 % wide, so that percentiles can be computed from batches and
streams. A bucket represents its times to within 0.5 %, and the buckets of two tables can be added.
The percentiles of any group therefore need a few hundred counts and no sorting, and are within
0.5 % of the exact ones. (Masson, Rim, Lee: DDSketch, VLDB 2019.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq.sdk.events import ENDS, EventKind
from eventmq_contrib.spark.analyses import PERIODS

__all__ = [
    "CELL",
    "QUANTILES",
    "bucket",
    "cells",
    "percentiles",
    "ranked",
    "seconds_of",
    "stats",
    "stats_of",
]

#: Columns that identify a cell; counts of the same cell can be added.
CELL = ("start", "queue", "task", "what", "bucket")

#: Counted kinds; waiting and run times have ``wait`` and ``run``.
_COUNTED = (*(kind.value for kind in ENDS), EventKind.RETRY.value, EventKind.LEASE_LOST.value)

_KEYS = ("start", "queue", "task")


def cells(events: DataFrame, period: str = "minute") -> DataFrame:
    """Return counts: ``start, queue, task, what, bucket`` and ``n``.

    ``what`` is ``arrived`` (admitted jobs), a kind (``succeeded failed cancelled expired retry
    lease_lost``), or ``wait`` and ``run``, whose times are in buckets; ``bucket`` is null for
    the others.

    Args:
        events: Each of them once; a stream as well, with a watermark on ``at``, if it has that
            column: the time of the event as a timestamp.
        period: One of `PERIODS`; ``start`` is the beginning of the period of an event.
    """
    at = F.col("at") if "at" in events.columns else F.timestamp_micros("ts_us")
    start = F.window(at, f"{PERIODS[period]} seconds")
    kind = events.kind
    arrived = (
        kind.isin(EventKind.ENQUEUED.value, EventKind.DELAYED.value) & events.bytes_in.isNotNull()
    )
    counted = F.when(arrived, F.lit("arrived")).when(kind.isin(*_COUNTED), kind)
    counted_columns = [(counted, F.lit(None).cast("int"))]
    for name in ("wait", "run"):
        time = events[f"{name}_us"]
        counted_columns.append((F.when(time.isNotNull(), F.lit(name)), bucket(time)))
    structs = [
        F.struct(what.alias("what"), number.alias("bucket")) for what, number in counted_columns
    ]
    rows = events.where("job_id IS NOT NULL").select(
        start.alias("period"), "queue", F.coalesce("task", F.lit("")).alias("task"),
        F.explode(F.array(*structs)).alias("count"),
    ).where("count.what IS NOT NULL")  # fmt: skip
    counts = rows.groupBy("period", "queue", "task", "count.what", "count.bucket").agg(
        F.count("*").alias("n")
    )
    return counts.select(F.col("period.start").alias("start"), *CELL[1:], "n")


def stats_of(counts: DataFrame, period: str = "minute") -> DataFrame:
    """Return the table made from counts, a row per period, queue and task, sorted by these.

    Columns: ``start``, ``queue``, ``task`` (empty for legacy jobs); ``arrived`` and ``ended`` jobs,
    ``rate`` (ended per second); ``succeeded failed cancelled expired retries lost`` (leases that
    were lost); ``wait_p50 wait_p95 wait_p99 run_p50 run_p95 run_p99`` in seconds, of attempts
    that ended in the period; ``failure_share`` (of jobs that succeeded or failed) and
    ``retries_per_success``.

    Args:
        counts: As from `cells`; those of the same cell are added.
        period: Period of the counts.
    """
    added = ranked(counts.groupBy(*CELL).agg(F.sum("n").alias("n")), [*_KEYS, "what"])

    def count(what: str) -> Column:
        return F.coalesce(F.sum(F.when(added.what == what, added.n)), F.lit(0))

    names = {"arrived": "arrived", "retries": "retry", "lost": "lease_lost"}
    names |= {end.value: end.value for end in sorted(ENDS)}
    columns = [count(what).alias(name) for name, what in names.items()]
    for name in ("wait", "run"):
        columns += percentiles(name, added.what == name)
    return added.groupBy(*_KEYS).agg(*columns).select(*_columns(period)).orderBy(*_KEYS)


def _columns(period: str) -> Sequence[Column | str]:
    ended = F.col("succeeded") + F.col("failed") + F.col("cancelled") + F.col("expired")
    done = F.col("succeeded") + F.col("failed")
    times = [f"{name}_{end}" for name in ("wait", "run") for end in QUANTILES]
    return (
        *_KEYS, "arrived", ended.alias("ended"), (ended / PERIODS[period]).alias("rate"),
        "succeeded", "failed", "cancelled", "expired", "retries", "lost", *times,
        F.try_divide("failed", done).alias("failure_share"),
        F.try_divide("retries", "succeeded").alias("retries_per_success"),
    )  # fmt: skip


def stats(events: DataFrame, period: str = "minute") -> DataFrame:
    """Return the table made from events: see `cells` and `stats_of`."""
    return stats_of(cells(events, period), period)


# Buckets

#: Ratio of the ends of a bucket.
WIDTH = 1.01

#: Suffix of a column -> its percentile.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def bucket(micros: Column) -> Column:
    """Return the bucket of a time in microseconds: -1 for 0 or less, null for null."""
    power = F.floor(F.log(micros.cast("double")) / math.log(WIDTH)).cast("int")
    return F.when(micros > 0, power).when(micros.isNotNull(), F.lit(-1))


def seconds_of(number: Column) -> Column:
    """Return the representative time of a bucket, in seconds."""
    # The point with the same ratio to both ends.
    middle = F.pow(F.lit(WIDTH), number) * (2 * WIDTH / (WIDTH + 1) / 1e6)
    return F.when(number < 0, F.lit(0.0)).otherwise(middle)


def ranked(counts: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return counts with ``upto``, the number of times up to a bucket, and ``all``.

    Args:
        counts: ``keys``, ``bucket`` and ``n``, the number of times in the bucket; one row per
            group and bucket.
        keys: Columns of the groups.
    """
    group = Window.partitionBy(*keys)
    upto, everything = F.sum("n").over(group.orderBy("bucket")), F.sum("n").over(group)
    return counts.withColumn("upto", upto).withColumn("all", everything)


def percentiles(name: str, condition: Column) -> list[Column]:
    """Return the percentiles of a group as aggregates of `ranked`, in seconds, defined as numpy's.

    Args:
        name: Prefix of the columns: ``wait`` gives ``wait_p50``, ``wait_p95``, ``wait_p99``.
        condition: Rows that count.
    """
    value, everything = seconds_of(F.col("bucket")), F.col("all")

    def at(rank: Column) -> Column:
        """Return the time with a rank, counted from 0."""
        in_bucket = condition & (rank < F.col("upto")) & (rank >= F.col("upto") - F.col("n"))
        return F.max(F.when(in_bucket, value))

    columns = []
    for end, q in QUANTILES.items():
        position = (everything - 1) * q
        low, high = at(F.floor(position)), at(F.ceil(position))
        part = F.max(F.when(condition, position - F.floor(position)))
        columns.append((low + (high - low) * part).alias(f"{name}_{end}"))
    return columns
