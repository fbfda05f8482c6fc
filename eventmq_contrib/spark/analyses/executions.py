"""The runs of jobs: one row for each time that a worker began a job and said how long it took.

What `capacity` and `report` count with. Pure: events in, a DataFrame out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq_contrib.spark.analyses.states import READY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COLUMNS", "FEW", "executions", "is_silent"]

#: Events whose jobs' ids are sent to all: some ten MiB.
FEW = 100_000

#: Of the result.
COLUMNS = (
    "broker_id", "job_id", "task", "queue", "worker_id", "attempt", "kind",
    "ready_us", "started_us", "run_us", "wait_us",
)  # fmt: skip


def is_silent() -> Column:
    """Return whether an event is of a run and does not say how long its job waited."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    has_run = F.col("started_us").isNotNull() & F.col("run_us").isNotNull()
    return has_run & F.col("wait_us").isNull()


def executions(events: DataFrame, *, few: bool = False) -> DataFrame:
    """Return the runs of jobs.

    In journals of earlier versions a run that was not the job's last has no waiting time in its
    event (`retry`); it is found by the event that made the job ready. A run that a lost worker
    never told of has no row: how long it was is not known.

    Args:
        events: Rows of a journal.
        few: Events that `is_silent` are at most ``FEW``: then only what may be of their jobs is
            sent around, and not all that made a job ready.

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
    """Return runs with the time since the job was ready, which their events do not say."""
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
