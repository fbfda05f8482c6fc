"""Failed jobs of a journal, to be queued again. Pure: events in, jobs out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk.events import EventKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["failed_jobs", "summary"]

#: Kinds that do not change the state of a job.
_NOTHING = (EventKind.GAP.value, EventKind.DUPLICATE.value)


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
    from pyspark.sql import functions as f

    names = ("kind", "attempt", "queue", "task", "error_type", "ts_us")
    last = (
        events.where(events.job_id.isNotNull() & ~events.kind.isin(*_NOTHING))
        .groupBy("broker_id", "job_id")
        .agg(f.max_by(f.struct(*names), "seq").alias("last"))
        .select("broker_id", "job_id", *(f"last.{name}" for name in names))
        .where(f.col("kind") == EventKind.FAILED.value)
    )
    for condition in _conditions(queue, task, error, since, until):
        last = last.where(condition)
    return last.drop("kind")


def _conditions(
    queue: str | None, task: str | None, error: str | None, since: float | None, until: float | None
) -> list[Column]:
    from pyspark.sql import functions as f

    conditions = []
    if queue is not None:
        conditions.append(f.col("queue") == queue)
    if task is not None:
        conditions.append(f.col("task") == task)
    if error is not None:
        kind = f.col("error_type")
        conditions.append((kind == error) | (f.substring_index(kind, ".", -1) == error))
    if since is not None:
        conditions.append(f.col("ts_us") >= round(since * 1_000_000))
    if until is not None:
        conditions.append(f.col("ts_us") < round(until * 1_000_000))
    return conditions


def summary(jobs: DataFrame) -> DataFrame:
    """Return the number of failed jobs by queue, task and error, the highest first.

    Args:
        jobs: As from `failed_jobs`.
    """
    from pyspark.sql import functions as f

    counts = jobs.groupBy("queue", "task", f.col("error_type").alias("error")).agg(
        f.count("*").alias("jobs"),
        f.timestamp_micros(f.min("ts_us")).alias("first"),
        f.timestamp_micros(f.max("ts_us")).alias("last"),
    )
    return counts.orderBy(f.desc("jobs"), "queue", "task", "error")
