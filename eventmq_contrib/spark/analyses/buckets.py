"""Times in buckets that are 1 % wide: what percentiles are made of, in batches and in streams.

A bucket says its times to 0.5 %, however long they are, and buckets of two tables add up. So
percentiles of any group need a few hundred counts, no sorting, and are within 0.5 % of the
exact ones. (Masson, Rim, Lee: DDSketch, VLDB 2019.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["QUANTILES", "bucket", "percentiles", "ranked", "seconds_of"]

#: Ratio of the ends of a bucket.
WIDTH = 1.01

#: What tables show, by the ends of their columns.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def bucket(micros: Column) -> Column:
    """Return the bucket of a time in microseconds: -1 for none at all, null for null."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    power = F.floor(F.log(micros.cast("double")) / math.log(WIDTH)).cast("int")
    return F.when(micros > 0, power).when(micros.isNotNull(), F.lit(-1))


def seconds_of(number: Column) -> Column:
    """Return what stands for the times in a bucket, in seconds."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    # The point with the same ratio to both ends.
    middle = F.pow(F.lit(WIDTH), number) * (2 * WIDTH / (WIDTH + 1) / 1e6)
    return F.when(number < 0, F.lit(0.0)).otherwise(middle)


def ranked(counts: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return counts with ``upto``, how many times are in a bucket or one below, and ``all``.

    Args:
        counts: ``keys``, ``bucket`` and ``n``: how many times are in the bucket; no two rows of
            the same group and bucket.
        keys: Columns that make a group.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    group = Window.partitionBy(*keys)
    upto, everything = F.sum("n").over(group.orderBy("bucket")), F.sum("n").over(group)
    return counts.withColumn("upto", upto).withColumn("all", everything)


def percentiles(name: str, condition: Column) -> list[Column]:
    """Return aggregates of a group of rows of `ranked`: its percentiles, as numpy's, in seconds.

    Args:
        name: What the columns begin with: ``wait`` gives ``wait_p50``, ``wait_p95``, ``wait_p99``.
        condition: Which of the rows are meant.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    value, everything = seconds_of(F.col("bucket")), F.col("all")

    def at(rank: Column) -> Column:
        """The time of that rank, from 0."""
        in_bucket = condition & (rank < F.col("upto")) & (rank >= F.col("upto") - F.col("n"))
        return F.max(F.when(in_bucket, value))

    columns = []
    for end, q in QUANTILES.items():
        position = (everything - 1) * q
        low, high = at(F.floor(position)), at(F.ceil(position))
        part = F.max(F.when(condition, position - F.floor(position)))
        columns.append((low + (high - low) * part).alias(f"{name}_{end}"))
    return columns
