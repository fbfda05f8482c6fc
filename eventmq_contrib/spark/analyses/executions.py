"""Executions: one row for each run of a job whose run time is known.

`capacity` and `report` count them. Pure: events in, a DataFrame out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq_contrib.spark.analyses.states import READY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COLUMNS", "FEW", "executions", "is_silent"]

#: Most events whose jobs' ids are broadcast, some ten MiB.
FEW = 100_000

#: Columns of the result.
COLUMNS = (
    "broker_id", "job_id", "task", "queue", "worker_id", "attempt", "kind",
    "ready_us", "started_us", "run_us", "wait_us",
)  # fmt: skip


def is_silent() -> Column:
    """Return whether an event describes a run without its waiting time."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    has_run = F.col("started_us").isNotNull() & F.col("run_us").isNotNull()
    return has_run & F.col("wait_us").isNull()


def executions(events: DataFrame, *, few: bool = False) -> DataFrame:
    """Return the runs of jobs.

    In journals of earlier versions the event of a run that was not the last (`retry`) has no
    waiting time; it is computed from the event that made the job ready. A run that was lost with
    its worker has no row, since its run time is not known.

    Args:
        events: Rows of a journal.
        few: Whether at most ``FEW`` events are `is_silent`: then only events of their jobs are
            shuffled.

    Returns:
        ``COLUMNS``; times in microseconds since 1970 by the worker's clock, spans in microseconds,
        none of them null.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    runs = events.where(F.col("started_us").isNotNull() & F.col("run_us").isNotNull())
    measured, other = runs.where("wait_us IS NOT NULL"), events.where(is_silent())
    wait = F.greatest(F.lit(0), F.col("wait_us"))
    picked: list[Column | str] = [
        "broker_id", "job_id", "attempt", "kind", "started_us",
        *(F.coalesce(name, F.lit("")).alias(name) for name in ("task", "queue", "worker_id")),
        (F.col("started_us") - wait).alias("ready_us"),
        F.greatest(F.lit(0), F.col("run_us")).alias("run_us"), wait.alias("wait_us"),
    ]  # fmt: skip
    all_runs = measured.select(*picked).unionByName(
        _with_wait(events, other, few=few).select(*picked)
    )
    return all_runs.select(*COLUMNS)


def _with_wait(events: DataFrame, runs: DataFrame, *, few: bool) -> DataFrame:
    """Return runs with their waiting times, computed from the events that made the jobs ready."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    silent = runs.alias("run")
    kinds = [str(kind) for kind in READY]
    made_ready = events.where(F.col("kind").isin(kinds)).select(
        "broker_id", "job_id", F.col("seq").alias("ready_seq"), F.col("ts_us").alias("ready_ts")
    )
    if few:
        jobs = F.broadcast(runs.select("broker_id", "job_id").distinct())
        made_ready = made_ready.join(jobs, ["broker_id", "job_id"], "left_semi")
    before = F.col("ready_seq") < F.col("run.seq")
    ready_ts = F.max_by(F.when(before, F.col("ready_ts")), F.when(before, F.col("ready_seq")))
    columns = [name for name in silent.columns if name not in {"broker_id", "job_id", "seq"}]
    since = (
        silent.join(made_ready, ["broker_id", "job_id"], "left")
        .groupBy("broker_id", "job_id", "run.seq")
        .agg(ready_ts.alias("ready_ts"), *(F.first(name).alias(name) for name in columns))
    )
    waited = F.col("started_us") - F.col("ready_ts")
    leased = F.col("started_us") - F.col("leased_us")
    return since.withColumn("wait_us", F.coalesce(waited, leased, F.lit(0)))
