"""States and leases of jobs, from their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk.events import ENDS, STATES, EventKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "READY",
    "RUNNING",
    "WAITING",
    "double_leased",
    "ended",
    "kind_of",
    "lives",
    "number_of",
    "of_jobs",
]


#: The kinds after which a job has a worker.
RUNNING = (EventKind.LEASED, EventKind.PROGRESS)

#: The kinds after which a job waits for a worker, or for its time.
WAITING = tuple(kind for kind in STATES if kind not in ENDS and kind not in RUNNING)

#: The kinds after which a job waits for a worker only.
READY = (EventKind.ENQUEUED, EventKind.LEASE_LOST, EventKind.HANDED_BACK, EventKind.REPLAYED)

#: Kind -> its number during the aggregation, from 1.
_KINDS = [kind.value for kind in STATES]

#: A power of two above the number of kinds.
_ROOM, _BITS = 32, 5


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
        ``leases`` (numbers of events that end it, and that have a lease); ``ready_us`` and
        ``gone_us``, the last times at which it became ready and ended, null if it did not;
        ``runs``, the number of events of starts.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    rows = of_jobs(events)
    # Two facts in one number: Spark updates aggregates of numbers in place.
    code = F.col("seq") * _ROOM + F.array_position(F.array(*map(F.lit, _KINDS)), rows.kind)
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
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    return F.element_at(F.array(*map(F.lit, _KINDS)), F.pmod(last, F.lit(_ROOM)).cast("int"))


def number_of(last: Column) -> Column:
    """Return the number of the last event of a row of `lives`."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

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
    leases = _late(rows).unionByName(_overlapping(rows))
    return leases.distinct()


def _numbered(events: DataFrame) -> DataFrame:
    """Return the events with the number of their job's life, which grows when it is replayed."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    order = Window.partitionBy(*_JOB).orderBy("seq")
    rows = of_jobs(events).select(
        *_JOB, "seq", "ts_us", "kind", "leased_us", "delivery", "worker_id"
    )
    begins = rows.kind.isin(_BEGINNINGS)
    again = begins & ended(F.lag("kind").over(order))
    return (
        rows.withColumn("again", F.coalesce(again, F.expr("false")).cast("int"))
        .withColumn("life", F.sum("again").over(order))
        .withColumn("admitted", F.max(begins).over(Window.partitionBy(*_JOB)))
    )


def _late(rows: DataFrame) -> DataFrame:
    """Return the jobs with a lease or an end after their end.

    Jobs without an admission are left out, since their lives cannot be told apart.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    before = Window.partitionBy(*_JOB, "life").orderBy("seq")
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    over = rows.withColumn("over", F.max(ended(rows.kind)).over(before))
    dated = over.leased_us.isNotNull() | ended(over.kind)
    return over.where(over.over & dated & over.admitted).select(*_JOB)


def _overlapping(rows: DataFrame) -> DataFrame:
    """Return the jobs with a lease that begins before another one is over."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    leases = (
        rows.where("leased_us IS NOT NULL")
        .groupBy(*_JOB, "life", "delivery", "worker_id")
        .agg(F.min("leased_us").alias("begin"), F.max("ts_us").alias("end"))
    )
    order = Window.partitionBy(*_JOB, "life").orderBy("begin", "end")
    order = order.rowsBetween(Window.unboundedPreceding, -1)
    latest = leases.withColumn("latest", F.max("end").over(order))
    return latest.where(latest.begin < latest.latest).select(*_JOB)
