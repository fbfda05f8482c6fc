"""Buckets of times, 1 % wide, from which percentiles are computed in batches and streams.

A bucket gives its times to within 0.5 %, and the buckets of two tables can be added. So the
percentiles of any group need a few hundred counts and no sorting, and are within 0.5 % of the
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

#: Suffix of a column -> its percentile.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def bucket(micros: Column) -> Column:
    """Return the bucket of a time in microseconds: -1 for none at all, null for null."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    power = F.floor(F.log(micros.cast("double")) / math.log(WIDTH)).cast("int")
    return F.when(micros > 0, power).when(micros.isNotNull(), F.lit(-1))


def seconds_of(number: Column) -> Column:
    """Return the representative time of a bucket, in seconds."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    # The point with the same ratio to both ends.
    middle = F.pow(F.lit(WIDTH), number) * (2 * WIDTH / (WIDTH + 1) / 1e6)
    return F.when(number < 0, F.lit(0.0)).otherwise(middle)


def ranked(counts: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return counts with ``upto``, the number of times up to a bucket, and ``all``.

    Args:
        counts: ``keys``, ``bucket`` and ``n``, the number of times in the bucket; one row per
            group and bucket.
        keys: Columns of the groups.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    group = Window.partitionBy(*keys)
    upto, everything = F.sum("n").over(group.orderBy("bucket")), F.sum("n").over(group)
    return counts.withColumn("upto", upto).withColumn("all", everything)


def percentiles(name: str, condition: Column) -> list[Column]:
    """Return the percentiles of a group as aggregates of `ranked`, in seconds, defined as numpy's.

    Args:
        name: Prefix of the columns: ``wait`` gives ``wait_p50``, ``wait_p95``, ``wait_p99``.
        condition: Rows that count.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    value, everything = seconds_of(F.col("bucket")), F.col("all")

    def at(rank: Column) -> Column:
        """Return the time with a rank, counted from 0."""
        in_bucket = condition & (rank < F.col("upto")) & (rank >= F.col("upto") - F.col("n"))
        return F.max(F.when(in_bucket, value))

    columns = []
    for end, q in QUANTILES.items():
        position = (everything - 1) * q
        low, high = at(F.floor(position)), at(F.ceil(position))
        part = F.max(F.when(condition, position - F.floor(position)))
        columns.append((low + (high - low) * part).alias(f"{name}_{end}"))
    return columns
