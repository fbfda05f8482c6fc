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

#: The kinds after which it waits for one, or for its time.
WAITING = tuple(kind for kind in STATES if kind not in ENDS and kind not in RUNNING)

#: The kinds after which it waits for a worker and for nothing else.
READY = (EventKind.ENQUEUED, EventKind.LEASE_LOST, EventKind.HANDED_BACK, EventKind.REPLAYED)

#: Kinds by the number that stands for them while events are put together: from 1.
_KINDS = [kind.value for kind in STATES]

#: More than there are kinds, and that as a power of two.
_ROOM, _BITS = 32, 5


def of_jobs(events: DataFrame) -> DataFrame:
    """Return the events that change the state of a job."""
    return events.where(events.job_id.isNotNull() & events.kind.isin(_KINDS))


def ended(kind: Column) -> Column:
    """Return whether a kind ends a job."""
    return kind.isin([end.value for end in ENDS])


def lives(events: DataFrame, *more: str) -> DataFrame:
    """Return a row per job: in one pass, and in nothing but numbers beside the keys.

    Args:
        events: Each of them once.
        *more: Columns that are the same in all events of a job, to have them too.

    Returns:
        ``broker_id, job_id``, those columns, ``first_seq``, ``first_us`` and ``last_us`` (times of
        the first and last event), ``first`` and ``last`` (see `kind_of`), ``ends`` and ``leases``:
        how many events end it, and how many tell of a lease; ``ready_us`` and ``gone_us``, the last
        times at which it became ready and ended, null where it did not; ``runs``, how many events
        tell that it was begun.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    rows = of_jobs(events)
    # One number for two facts: only aggregates of numbers are kept in place.
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

#: Kinds with which a job begins anew once it has ended.
_BEGINNINGS = [EventKind.ENQUEUED.value, EventKind.DELAYED.value, EventKind.REPLAYED.value]


def double_leased(events: DataFrame) -> DataFrame:
    """Return the jobs whose leases are more than one at a time: ``broker_id, job_id``.

    A lease is of one delivery to one worker; it lasts from ``leased_us`` to the last event that
    tells of it. Times are of the broker's clock. A lease or an end of a job that has ended, and
    was not replayed nor admitted again, counts too.

    Args:
        events: Of the jobs in question, each of them once.
    """
    rows = _numbered(events)
    leases = _late(rows).unionByName(_overlapping(rows))
    return leases.distinct()


def _numbered(events: DataFrame) -> DataFrame:
    """Return the events with the number of the life of their job: it may be replayed."""
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
    """Return the jobs of which something is told after their end.

    Those without any beginning have none: nothing tells their lives apart.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    before = Window.partitionBy(*_JOB, "life").orderBy("seq")
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    over = rows.withColumn("over", F.max(ended(rows.kind)).over(before))
    dated = over.leased_us.isNotNull() | ended(over.kind)
    return over.where(over.over & dated & over.admitted).select(*_JOB)


def _overlapping(rows: DataFrame) -> DataFrame:
    """Return the jobs of which one lease begins before another is over."""
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
