"""Missing numbers of events per broker, and those that a gap explains.

Numbers are counted in blocks: the count of a block shows whether it is complete, and only rows of
incomplete blocks are sorted. So a complete journal costs one small aggregation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from eventmq.sdk.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

__all__ = ["Numbers", "gaps", "numbers"]

#: Numbers in a block, as a power of two: those of a full file.
_BITS = 16


class Numbers(NamedTuple):
    """Missing numbers of one broker.

    Attributes:
        broker_id: Id of the broker.
        last_us: Time of its last event, in microseconds.
        missing: Count of numbers between the first and the last that are neither there nor in a
            gap.
        last_missing: Highest of them, 0 for none.
        last_dropped: Highest number that is in a gap and not there, 0 for none.
    """

    broker_id: str
    last_us: int
    missing: int
    last_missing: int
    last_dropped: int

    @property
    def last_absent(self) -> int:
        """Highest number that is not there, 0 for none."""
        return max(self.last_missing, self.last_dropped)


def numbers(
    events: DataFrame, bounds: Mapping[str, tuple[int, int]] | None = None
) -> list[Numbers]:
    """Return the missing numbers of each broker, sorted by broker.

    Args:
        events: All events of a time range, each once.
        bounds: Broker -> first and last number that must be there, as far as they are known.
    """
    blocks = sorted(_blocks(events).collect())
    last: dict[str, int] = {}
    for block in blocks:
        last[block.broker_id] = max(last.get(block.broker_id, 0), block.last_us)
    absent_rows: dict[str, Row] = {}
    holes = [*_between(blocks), *_at_ends(blocks, bounds or {})]
    for broker_id, _, _ in holes:
        last.setdefault(broker_id, 0)
    if holes or _torn(blocks):
        absent = _absent(events, blocks, holes, gaps(events))
        absent_rows = {row.broker_id: row for row in absent.collect()}
    return [
        Numbers(
            broker_id,
            last_us,
            *(absent_rows[broker_id][1:] if broker_id in absent_rows else (0, 0, 0)),
        )
        for broker_id, last_us in last.items()
    ]


def _between(blocks: Sequence[Row]) -> list[tuple[str, int, int]]:
    """Return the ranges of numbers that are missing between one block and the next."""
    return [
        (one.broker_id, one.last + 1, other.first - 1)
        for one, other in pairwise(blocks)
        if one.broker_id == other.broker_id and other.first > one.last + 1
    ]


def _at_ends(
    blocks: Sequence[Row], bounds: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[str, int, int]]:
    """Yield the ranges of numbers that are missing before the first block and after the last."""
    for broker_id, (first, last) in bounds.items():
        own = [row for row in blocks if row.broker_id == broker_id]
        begin = min((row.first for row in own), default=last + 1)
        end = max((row.last for row in own), default=last)
        if first < begin:
            yield broker_id, first, begin - 1
        if end < last:
            yield broker_id, end + 1, last


def _torn(blocks: Sequence[Row]) -> list[tuple[str, int]]:
    """Return the blocks inside of which numbers are missing."""
    return [(row.broker_id, row.block) for row in blocks if row.n < row.last - row.first + 1]


def _block() -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    return F.shiftright("seq", _BITS).alias("block")


def _blocks(events: DataFrame) -> DataFrame:
    """Return a row per block: (broker, block, first, last, how many, time of the last)."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    return events.groupBy("broker_id", _block()).agg(
        F.min("seq").alias("first"), F.max("seq").alias("last"), F.count("*").alias("n"),
        F.max("ts_us").alias("last_us"),
    )  # fmt: skip


def gaps(events: DataFrame) -> list[tuple[str, int, int]]:
    """Return the gaps that gap events report; adjacent ones are joined.

    Returns:
        Broker, first and last number, in their order.
    """
    rows = events.where(events.kind == EventKind.GAP.value)
    ranges = rows.select("broker_id", "gap_first", "gap_last").dropna().distinct().collect()
    merged: list[tuple[str, int, int]] = []
    for broker_id, first, last in sorted(map(tuple, ranges)):
        if merged and merged[-1][0] == broker_id and first <= merged[-1][2] + 1:
            merged[-1] = (broker_id, merged[-1][1], max(last, merged[-1][2]))
        else:
            merged.append((broker_id, first, last))
    return merged


def _absent(
    events: DataFrame, blocks: Sequence[Row], between: Sequence[tuple[str, int, int]],
    ranges: Sequence[tuple[str, int, int]],
) -> DataFrame:  # fmt: skip
    """Return a row per broker that lacks numbers: (broker, missing, last missing, last dropped)."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    session = events.sparkSession
    kind = "broker_id string, gap_first long, gap_last long"
    gap_rows = F.broadcast(session.createDataFrame(list(ranges), kind))
    holes = _holes(events, blocks, between).alias("hole")
    meets = (
        (F.col("hole.broker_id") == gap_rows.broker_id)
        & (gap_rows.gap_first <= F.col("hole.last")) & (gap_rows.gap_last >= F.col("hole.first"))
    )  # fmt: skip
    # Without a gap these are null; least and greatest alone would leave nulls out.
    matched = F.col("gap_first").isNotNull()
    top = F.when(matched, F.least("last", "gap_last"))
    bottom = F.when(matched, F.greatest("first", "gap_first"))
    whole = (F.col("gap_first") <= F.col("last")) & (F.col("last") <= F.col("gap_last"))
    judged = holes.join(gap_rows, meets, "left").groupBy("hole.broker_id", "first", "last").agg(
        F.coalesce(F.sum(top - bottom + 1), F.lit(0)).alias("told"),
        F.max(top).alias("dropped"),
        # Gaps do not touch: if one covers the end of a hole, what is before it is in no gap.
        F.coalesce(F.min(F.when(whole, F.col("gap_first") - 1)), F.col("last")).alias("end"),
    )  # fmt: skip
    missing = F.col("last") - F.col("first") + 1 - F.col("told")
    return judged.groupBy("broker_id").agg(
        F.sum(missing).alias("missing"),
        F.coalesce(F.max(F.when(missing > 0, F.col("end"))), F.lit(0)).alias("last_missing"),
        F.coalesce(F.max("dropped"), F.lit(0)).alias("last_dropped"),
    )  # fmt: skip


def _holes(
    events: DataFrame, blocks: Sequence[Row], between: Sequence[tuple[str, int, int]]
) -> DataFrame:
    """Return the ranges of numbers that are not there: (broker, first, last)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    session = events.sparkSession
    holes = session.createDataFrame(list(between), "broker_id string, first long, last long")
    torn = _torn(blocks)
    if not torn:
        return holes
    torn_blocks = session.createDataFrame(torn, "broker_id string, block long")
    rows = events.select("broker_id", "seq", _block())
    rows = rows.join(F.broadcast(torn_blocks), ["broker_id", "block"], "left_semi")
    order = Window.partitionBy("broker_id", "block").orderBy("seq")
    inside = rows.select(
        "broker_id", (F.lag("seq").over(order) + 1).alias("first"), (F.col("seq") - 1).alias("last")
    )
    return holes.unionByName(inside.where("first <= last"))
