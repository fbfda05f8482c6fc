"""Jobs that two workers had at once, or one that had ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.events import Kind
from eventmq_contrib.spark.analyses.states import ended, of_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["double_leased"]

_JOB = ("broker_id", "job_id")

#: Kinds with which a job begins anew once it has ended.
_BEGINNINGS = [Kind.ENQUEUED.value, Kind.DELAYED.value, Kind.REPLAYED.value]


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
    tells = over.leased_us.isNotNull() | ended(over.kind)
    return over.where(over.over & tells & over.admitted).select(*_JOB)


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
