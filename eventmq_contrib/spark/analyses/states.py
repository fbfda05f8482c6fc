"""States, leases and runs of jobs, from their events.

`executions` has one row for each run of a job whose run time is known; `capacity` and `report`
count them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq.sdk.events import ENDS, STATES, EventKind

__all__ = [
    "COLUMNS",
    "FEW",
    "READY",
    "RUNNING",
    "double_leased",
    "ended",
    "executions",
    "is_silent",
    "kind_of",
    "lives",
    "number_of",
    "of_jobs",
]


#: The kinds after which a job has a worker.
RUNNING = (EventKind.LEASED, EventKind.PROGRESS)

#: The kinds after which a job waits for a worker only.
READY = (EventKind.ENQUEUED, EventKind.LEASE_LOST, EventKind.HANDED_BACK, EventKind.REPLAYED)

#: Kind -> its number during the aggregation, from 1.
_KINDS = [kind.value for kind in STATES]

#: A power of two above the number of kinds.
_CODE_BASE, _BITS = 32, 5


def of_jobs(events: DataFrame) -> DataFrame:
    """Return the events that change the state of a job."""
    return events.where(events.job_id.isNotNull() & events.kind.isin(_KINDS))


def ended(kind: Column) -> Column:
    """Return whether a kind ends a job."""
    return kind.isin([end.value for end in ENDS])


def lives(events: DataFrame, *more: str) -> DataFrame:
    """Return a row per job, in one pass; all columns but the keys are numbers.

    Args:
        events: Each of them once.
        *more: Further columns that are equal in all events of a job.

    Returns:
        ``broker_id, job_id``, the further columns, ``first_seq``, ``first_us`` and ``last_us``
        (times of the first and last event), ``first`` and ``last`` (see `kind_of`), ``ends`` and
        ``leases`` (how many events end it, and how many have a lease); ``ready_us`` and
        ``gone_us``, the last times at which it became ready and ended, null if it never did;
        ``runs``, the number of events with a start.
    """
    rows = of_jobs(events)
    # One number holds two facts, since Spark updates aggregates of numbers in place.
    code = F.col("seq") * _CODE_BASE + F.array_position(F.array(*map(F.lit, _KINDS)), rows.kind)
    return rows.groupBy("broker_id", "job_id", *more).agg(
        F.min("seq").alias("first_seq"), F.min("ts_us").alias("first_us"),
        F.max("ts_us").alias("last_us"), F.min(code).alias("first"), F.max(code).alias("last"),
        F.sum(ended(rows.kind).cast("int")).alias("ends"),
        F.count("leased_us").alias("leases"),
        F.max(F.when(rows.kind.isin([kind.value for kind in READY]), rows.ts_us)).alias("ready_us"),
        F.max(F.when(ended(rows.kind), rows.ts_us)).alias("gone_us"),
        F.count_if(
            rows.started_us.isNotNull() | (rows.kind == EventKind.LEASED.value)
        ).alias("runs"),
    )  # fmt: skip


def kind_of(last: Column) -> Column:
    """Return the kind of the last event of a row of `lives`."""
    return F.element_at(F.array(*map(F.lit, _KINDS)), F.pmod(last, F.lit(_CODE_BASE)).cast("int"))


def number_of(last: Column) -> Column:
    """Return the number of the last event of a row of `lives`."""
    return F.shiftright(last, _BITS)


_JOB = ("broker_id", "job_id")

#: Kinds that begin another life of an ended job.
_BEGINNINGS = [EventKind.ENQUEUED.value, EventKind.DELAYED.value, EventKind.REPLAYED.value]


def double_leased(events: DataFrame) -> DataFrame:
    """Return the jobs that had two leases at once: ``broker_id, job_id``.

    A lease belongs to one delivery to one worker; it lasts from ``leased_us`` to its last event, by
    the broker's clock. A lease or an end after the end of a job counts too, unless the job was
    replayed or admitted again.

    Args:
        events: Events of the jobs in question, each once.
    """
    rows = _numbered(events)
    leases = _after_end(rows).unionByName(_overlapping(rows))
    return leases.distinct()


def _numbered(events: DataFrame) -> DataFrame:
    """Return the events with the number of their job's life, which grows when it is replayed."""
    order = Window.partitionBy(*_JOB).orderBy("seq")
    rows = of_jobs(events).select(
        *_JOB, "seq", "ts_us", "kind", "leased_us", "delivery", "worker_id"
    )
    begins = rows.kind.isin(_BEGINNINGS)
    restarts = begins & ended(F.lag("kind").over(order))
    return (
        rows.withColumn("restarts", F.coalesce(restarts, F.expr("false")).cast("int"))
        .withColumn("life", F.sum("restarts").over(order))
        .withColumn("admitted", F.max(begins).over(Window.partitionBy(*_JOB)))
    )


def _after_end(rows: DataFrame) -> DataFrame:
    """Return the jobs with a lease or an end after their end.

    Jobs without an admission are left out, since their lives cannot be distinguished.
    """
    before = (
        Window.partitionBy(*_JOB, "life").orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    )
    over = rows.withColumn("over", F.max(ended(rows.kind)).over(before))
    dated = over.leased_us.isNotNull() | ended(over.kind)
    return over.where(over.over & dated & over.admitted).select(*_JOB)


def _overlapping(rows: DataFrame) -> DataFrame:
    """Return the jobs with a lease that begins before another one is over."""
    leases = (
        rows.where("leased_us IS NOT NULL")
        .groupBy(*_JOB, "life", "delivery", "worker_id")
        .agg(F.min("leased_us").alias("begin"), F.max("ts_us").alias("end"))
    )
    order = (
        Window.partitionBy(*_JOB, "life")
        .orderBy("begin", "end")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    latest = leases.withColumn("latest", F.max("end").over(order))
    return latest.where(latest.begin < latest.latest).select(*_JOB)


# Runs

#: Maximum number of events whose jobs' ids are broadcast: some ten MiB.
FEW = 100_000

#: Columns of `executions`.
COLUMNS = (
    "broker_id", "job_id", "task", "queue", "worker_id", "attempt", "kind",
    "ready_us", "started_us", "run_us", "wait_us",
)  # fmt: skip


def is_silent() -> Column:
    """Return whether an event describes a run without its waiting time."""
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
    runs = events.where(F.col("started_us").isNotNull() & F.col("run_us").isNotNull())
    measured, other = runs.where("wait_us IS NOT NULL"), events.where(is_silent())
    wait = F.greatest(F.lit(0), F.col("wait_us"))
    columns_of_run: list[Column | str] = [
        "broker_id", "job_id", "attempt", "kind", "started_us",
        *(F.coalesce(name, F.lit("")).alias(name) for name in ("task", "queue", "worker_id")),
        (F.col("started_us") - wait).alias("ready_us"),
        F.greatest(F.lit(0), F.col("run_us")).alias("run_us"), wait.alias("wait_us"),
    ]  # fmt: skip
    all_runs = measured.select(*columns_of_run).unionByName(
        _with_wait(events, other, few=few).select(*columns_of_run)
    )
    return all_runs.select(*COLUMNS)


def _with_wait(events: DataFrame, runs: DataFrame, *, few: bool) -> DataFrame:
    """Return runs with their waiting times, computed from the events that made the jobs ready."""
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
