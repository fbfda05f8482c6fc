"""Statistics: number of jobs, waiting and run times, and failures by task, queue and time.

Computed in two steps. `cells` counts, and its counts can be added, from batches and streams.
`stats_of` makes the table from counts, which is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk.events import ENDS, EventKind
from eventmq_contrib.spark.analyses.buckets import QUANTILES, bucket, percentiles, ranked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["CELL", "PERIODS", "cells", "stats", "stats_of"]

#: Names of periods -> their length in seconds.
PERIODS = {"minute": 60, "hour": 3600}

#: Columns that identify a cell; counts of the same cell can be added.
CELL = ("start", "queue", "task", "what", "bucket")

#: Counted kinds; waiting and run times have ``wait`` and ``run``.
_COUNTED = (*(kind.value for kind in ENDS), EventKind.RETRY.value, EventKind.LEASE_LOST.value)

_KEYS = ("start", "queue", "task")


def cells(events: DataFrame, period: str = "minute") -> DataFrame:
    """Return counts: ``start, queue, task, what, bucket`` and ``n``.

    ``what`` is ``arrived`` (admitted jobs), a kind (``succeeded failed cancelled expired retry
    lease_lost``), or ``wait`` and ``run``, whose times are in `buckets`; ``bucket`` is null for
    the others.

    Args:
        events: Each of them once; a stream as well, with a watermark on ``at``, if it has that
            column: the time of the event as a timestamp.
        period: One of `PERIODS`; ``start`` is the beginning of the period of an event.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

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
        F.explode(F.array(*structs)).alias("told"),
    ).where("told.what IS NOT NULL")  # fmt: skip
    counts = rows.groupBy("period", "queue", "task", "told.what", "told.bucket").agg(
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
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

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
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

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
