"""Failures: errors by task and release, jobs whose workers died, and failed jobs to be replayed."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq.sdk.events import EventKind
from eventmq_contrib.spark.choice import Choice

__all__ = ["failed_jobs", "failures", "killers", "summary"]

#: The error of a job whose process died.
WORKER_LOST = "eventmq.errors.WorkerLost"

_ERROR = ("fingerprint", "error", "task", "release")


def failures(events: DataFrame) -> DataFrame:
    """Return a row per error (by its fingerprint), task and release, the most frequent first.

    Columns: ``fingerprint``, ``error`` (type of the exception), ``task``, ``release`` (empty if
    the job has none); ``attempts`` that failed with it, ``jobs`` of these attempts, ``failed`` for
    good; ``first_seen`` and ``last_seen``; ``new``: the task has earlier releases, and none of them
    failed with this error; ``retries``, and ``retry_helped``: the share of retries whose
    next attempt succeeded.

    Args:
        events: Each of them once.
    """
    failed = events.kind == EventKind.FAILED.value
    rows = _labelled(events.where(failed | (events.kind == EventKind.RETRY.value))).where(
        "fingerprint IS NOT NULL"
    )
    helped = rows.join(_successes(events), ["broker_id", "job_id", "attempt"], "left")
    retried = (F.col("kind") == EventKind.RETRY.value).cast("long")
    table = helped.groupBy(*_ERROR).agg(
        F.count("*").alias("attempts"), F.count_distinct("broker_id", "job_id").alias("jobs"),
        F.sum(1 - retried).alias("failed"), F.sum(retried).alias("retries"),
        F.timestamp_micros(F.min("ts_us")).alias("first_seen"),
        F.timestamp_micros(F.max("ts_us")).alias("last_seen"),
        F.sum(retried * F.col("helped")).alias("helped"),
    )  # fmt: skip
    return _marked_new(table, events).select(
        *_ERROR, "attempts", "jobs", "failed", "first_seen", "last_seen", "new", "retries",
        F.try_divide(F.coalesce("helped", F.lit(0)), "retries").alias("retry_helped"),
    ).orderBy(F.desc("attempts"), *_ERROR)  # fmt: skip


def _labelled(events: DataFrame) -> DataFrame:
    return events.select(
        "broker_id", "job_id", "attempt", "kind", "ts_us", "worker_id",
        F.col("error_fingerprint").alias("fingerprint"),
        F.coalesce("error_type", F.lit("")).alias("error"),
        *(_or_empty(name) for name in ("task", "release")),
    )  # fmt: skip


def _or_empty(name: str) -> Column:
    return F.coalesce(name, F.lit("")).alias(name)


def _successes(events: DataFrame) -> DataFrame:
    """Return the attempts that were followed by a successful one."""
    successes = events.where((events.kind == EventKind.SUCCEEDED.value) & (events.attempt > 1))
    before = (successes.attempt - 1).alias("attempt")
    return successes.select("broker_id", "job_id", before, F.lit(1).alias("helped")).distinct()


def _marked_new(table: DataFrame, events: DataFrame) -> DataFrame:
    """Add whether an error is new in its release.

    Releases of a task follow each other by the times of their first events.
    """
    begins = events.where("job_id IS NOT NULL").groupBy(_or_empty("task"), _or_empty("release"))
    releases = begins.agg(F.min("ts_us").alias("first_us"))
    of_task = Window.partitionBy("task")
    releases = releases.withColumn("is_first", F.min("first_us").over(of_task) == F.col("first_us"))
    rows = table.join(F.broadcast(releases), ["task", "release"])
    earliest = F.min("first_us").over(Window.partitionBy("task", "fingerprint"))
    return rows.withColumn("new", (F.col("first_us") == earliest) & ~F.col("is_first"))


def killers(events: DataFrame) -> DataFrame:
    """Return a row per task and release whose jobs lost their worker or process, the worst first.

    Columns: ``task``, ``release``; ``deaths`` of processes that ran such a job; the ``jobs`` and
    ``workers`` concerned; ``given_up``: jobs that failed because of it; ``lost``: leases that were
    lost with the whole worker, for an unknown reason; ``first_seen`` and ``last_seen``.

    Args:
        events: Each of them once.
    """
    rows = _labelled(events.where(
        (events.kind == EventKind.LEASE_LOST.value)
        | ((events.kind == EventKind.FAILED.value) & (events.error_type == WORKER_LOST))
    ))  # fmt: skip
    died = rows.error == WORKER_LOST
    lost = (rows.kind == EventKind.LEASE_LOST.value) & ~died
    given_up = rows.kind == EventKind.FAILED.value
    table = rows.groupBy("task", "release").agg(
        F.count_if(died).alias("deaths"),
        F.count_distinct("broker_id", "job_id").alias("jobs"),
        F.count_distinct("worker_id").alias("workers"),
        F.count_if(given_up).alias("given_up"), F.count_if(lost).alias("lost"),
        F.timestamp_micros(F.min("ts_us")).alias("first_seen"),
        F.timestamp_micros(F.max("ts_us")).alias("last_seen"),
    )  # fmt: skip
    return table.orderBy(F.desc("deaths"), F.desc("lost"), "task", "release")


# Failed jobs, to be queued again

#: Kinds that do not change the state of a job, except for the operation that drops it.
_STATELESS = (EventKind.GAP.value, EventKind.DUPLICATE.value, EventKind.OPERATION.value)


def failed_jobs(
    events: DataFrame,
    *,
    queue: str | None = None,
    task: str | None = None,
    error: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> DataFrame:
    """Return the jobs whose last event is a final failure.

    Args:
        events: All events of a journal, or of the jobs in question.
        queue: Only jobs of this queue.
        task: Only jobs of this task.
        error: Only jobs with an error of this type: a dotted name, or its last part.
        since: Only jobs that failed then or later, Unix time in seconds.
        until: Only jobs that failed before then, Unix time in seconds.

    Returns:
        Rows of ``broker_id job_id attempt queue task error_type ts_us``, where the attempt is the
        one that failed and ``ts_us`` is when it did.
    """
    names = ("kind", "attempt", "queue", "task", "error_type", "ts_us")
    dropped = F.coalesce(events.operation == "drop", F.lit(False))  # noqa: FBT003 - a literal
    last = (
        events.where(events.job_id.isNotNull() & (~events.kind.isin(*_STATELESS) | dropped))
        .groupBy("broker_id", "job_id")
        .agg(F.max_by(F.struct(*names), "seq").alias("last"))
        .select("broker_id", "job_id", *(f"last.{name}" for name in names))
        .where(F.col("kind") == EventKind.FAILED.value)
    )
    last = Choice(queue=queue, task=task, since=since, until=until).of(last)
    if error is not None:
        short = F.substring_index("error_type", ".", -1)
        last = last.where((F.col("error_type") == error) | (short == error))
    return last.drop("kind")


def summary(jobs: DataFrame) -> DataFrame:
    """Return the number of failed jobs by queue, task and error, the highest first.

    Args:
        jobs: As from `failed_jobs`.
    """
    counts = jobs.groupBy("queue", "task", F.col("error_type").alias("error")).agg(
        F.count("*").alias("jobs"),
        F.timestamp_micros(F.min("ts_us")).alias("first"),
        F.timestamp_micros(F.max("ts_us")).alias("last"),
    )
    return counts.orderBy(F.desc("jobs"), "queue", "task", "error")
