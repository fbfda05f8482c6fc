"""Clock check: compares the clocks of workers with the broker's, by the times in events.

A job starts after its lease and ends before its answer arrives. ``leased_us`` and ``ts_us`` are
times of the broker's clock, ``started_us`` and ``run_us`` of the worker's. Where they contradict
this order, the clocks differ at least by the contradiction; a smaller difference looks like waiting
time. One exchange of NTP has the same bounds (RFC 5905, section 8).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq_contrib.spark.analyses import TOLERANCE

__all__ = ["clocks", "sentence", "wrong_clocks"]


def clocks(events: DataFrame, tolerance: float = TOLERANCE) -> DataFrame:
    """Return a row per broker and host of workers, the largest difference first.

    Columns: ``broker_id``, ``host``, ``runs`` (number of runs), ``early_s`` (the most seconds by
    which a job started before its lease), ``late_s`` (the most seconds by which a job ended after
    its answer had arrived), both 0 if there is no such job, and ``clock``, the state of the host's
    clock: ``behind`` (early), ``ahead`` (late), ``moved`` (both: it was set meanwhile) or
    ``right``.

    Args:
        events: Each of them once.
        tolerance: Seconds up to which a clock is right.
    """
    runs = events.where("started_us IS NOT NULL AND host IS NOT NULL")
    ended = runs.started_us + F.coalesce("run_us", F.lit(0))
    zero = F.lit(0)
    rows = runs.groupBy("broker_id", "host").agg(
        F.count("*").alias("runs"),
        (F.greatest(F.max(runs.leased_us - runs.started_us), zero) / 1e6).alias("early_s"),
        (F.greatest(F.max(ended - runs.ts_us), zero) / 1e6).alias("late_s"),
    )
    early, late = rows.early_s > tolerance, rows.late_s > tolerance
    clock = (
        F.when(early & late, "moved").when(early, "behind").when(late, "ahead").otherwise("right")
    )
    order = (F.greatest("early_s", "late_s").desc(), "broker_id", "host")
    return rows.withColumn("clock", clock).orderBy(*order)


def wrong_clocks(events: DataFrame, tolerance: float = TOLERANCE) -> DataFrame:
    """Return the rows of `clocks` whose clock is not right."""
    return clocks(events, tolerance).where("clock <> 'right'")


def sentence(host: str, broker_id: str, early: float, late: float) -> str:
    """Return a sentence about a wrong clock.

    Args:
        host: Host with the clock.
        broker_id: Broker with which it was compared.
        early: ``early_s`` of `clocks`.
        late: ``late_s`` of `clocks`.
    """
    way = f"{late:.3g} s ahead of" if late > early else f"{early:.3g} s behind"
    finding = f"the clock of {host} is at least {way} that of the broker {broker_id}"
    return f"{finding}: waiting times of its jobs are wrong by that"
