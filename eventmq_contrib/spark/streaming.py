"""Streaming tables, kept up to date while a journal grows: ``eventmq spark stream``.

One streaming query counts events by minute, task and queue, with its state in a checkpoint. A batch
has complete rows of the minutes that changed, which replace those in the table, so repeating a
batch after a kill changes nothing. Each event counts exactly once, despite any kill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from eventmq.errors import StoreError
from eventmq.sdk.events import SCHEMA_VERSION, EventKind
from eventmq_contrib.atomic import write_file
from eventmq_contrib.spark.analyses.slo import expired_waiting
from eventmq_contrib.spark.choice import RelativeTimestamp
from eventmq_contrib.spark.journal import CHECKED, EVENTS, AddressLocation
from eventmq_contrib.spark.livetables import LiveTables
from eventmq_contrib.spark.source import EventMQDataSource
from eventmq_contrib.spark.waiting import EventFilter, WaitingJobs

__all__ = [
    "COLUMNS", "QUANTILES", "BatchReports", "Stream", "minutes", "naming_files", "start_stream",
]  # fmt: skip


#: Columns of events that are read.
COLUMNS = (
    "broker_id", "seq", "ts_us", "kind", "task", "queue", "bytes_in", "wait_us", "run_us",
    "due_us", "schema_version",
)  # fmt: skip

_SCHEMA = StructType([field for field in EVENTS if field.name in COLUMNS])

#: Quantiles of waiting and run times.
QUANTILES = (0.5, 0.95, 0.99)

#: Columns with numbers of events of a kind, as in the table of the command ``stats``.
_COUNTED = {
    "succeeded": EventKind.SUCCEEDED, "failed": EventKind.FAILED, "cancelled": EventKind.CANCELLED,
    "expired": EventKind.EXPIRED, "retries": EventKind.RETRY, "lost": EventKind.LEASE_LOST,
    "handed_back": EventKind.HANDED_BACK, "replayed": EventKind.REPLAYED,
}  # fmt: skip

#: Names of sealed files.
_SEALED = "*-*-*.parquet"

#: Events of a full file, as a journal seals them.
_FILE = 65_536

#: Accuracy of the percentiles: the error of a rank is one in so many.
_ACCURACY = 1000

#: Window of an event: the minute of its time.
_MINUTE = "1 minute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(EventFilter):
    """Options of a stream, in addition to the journal and the filter.

    Attributes:
        out: Folder of the tables and of the checkpoint.
        trigger: Seconds between two batches.
        watermark: Seconds by which the events of one broker may be behind those of another.
        once: Process the present events and end.
        target: Seconds within which jobs must start.
        share: Share of the jobs that must start within ``target``.
        at_once: Maximum number of events of a batch.
        prometheus: Path of a text file for Prometheus, or None.
    """

    out: Path
    trigger: float = 1.0
    watermark: float = 3600.0
    once: bool = False
    target: float = 2.0
    share: float = 0.95
    at_once: int = 1_000_000
    prometheus: Path | None = None


def _readable(events: DataFrame) -> DataFrame:
    """Return the events; an event of a newer EventMQ is an error: its columns may differ."""
    options = " is of a newer EventMQ: update this one"
    newer = f.raise_error(f.concat(f.input_file_name(), f.lit(options))).cast("boolean")
    readable = f.col("schema_version") <= SCHEMA_VERSION
    return events.where(f.when(readable, f.lit(True)).otherwise(newer))  # noqa: FBT003 - a literal


def minutes(events: DataFrame, *, target: float) -> DataFrame:
    """Return statistics by minute, queue and task.

    Args:
        events: Events with `COLUMNS` and ``at``, their time; a stream needs a watermark on ``at``.
        target: Seconds within which jobs must start.

    Returns:
        The columns of `eventmq_contrib.spark.analyses.stats.stats_of`, and ``handed_back``,
        ``replayed``, ``events``, ``starts`` (jobs that expired waiting included), those in time as
        ``good``, and ``newest_us``, the time of the newest event.
    """
    # Not `stats.cells`: an update has only changed rows, so each row must be complete to replace
    # the one before, and the state would have a cell for each bucket of each time.
    kind = f.col("kind")
    arrived = (
        kind.isin(EventKind.ENQUEUED.value, EventKind.DELAYED.value) & f.col("bytes_in").isNotNull()
    )
    counts = [
        f.count_if(kind == kind_counted.value).alias(name)
        for name, kind_counted in _COUNTED.items()
    ]
    marks = f.array(*(f.lit(mark) for mark in QUANTILES))
    task = f.coalesce("task", f.lit("")).alias("task")
    rows = (
        events.where(~events.kind.isin(EventKind.GAP.value, EventKind.OPERATION.value))
        .groupBy(f.window("at", _MINUTE).alias("window"), "queue", task)
        .agg(
            f.count_if(arrived).alias("arrived"),
            *counts,
            f.count("*").alias("events"),
            f.count_if(f.col("wait_us").isNotNull() | expired_waiting()).alias("starts"),
            f.count_if(f.col("wait_us") <= round(target * 1_000_000)).alias("good"),
            f.percentile_approx("wait_us", marks, _ACCURACY).alias("wait"),
            f.percentile_approx("run_us", marks, _ACCURACY).alias("run"),
            f.max("ts_us").alias("newest_us"),
        )
    )
    return rows.select(f.col("window.start").alias("start"), *_columns(rows))


def _columns(rows: DataFrame) -> list[Column]:
    """Return the columns of the table, computed from counts."""
    ended = f.col("succeeded") + f.col("failed") + f.col("cancelled") + f.col("expired")
    times = [
        (f.col(measure)[index] / 1_000_000).alias(f"{measure}_p{round(100 * mark)}")
        for measure in ("wait", "run")
        for index, mark in enumerate(QUANTILES)
    ]
    others = [f.col(name) for name in rows.columns if name not in {"window", "wait", "run"}]
    return [
        *others, *times, ended.alias("ended"), (ended / 60).alias("rate"),
        f.try_divide("failed", f.col("succeeded") + f.col("failed")).alias("failure_share"),
        f.try_divide("retries", "succeeded").alias("retries_per_success"),
    ]  # fmt: skip


def start_stream(
    spark: SparkSession, stream: Stream, *, tables: type[LiveTables] = LiveTables
) -> StreamingQuery:
    """Start the query that keeps the tables of a folder up to date.

    Args:
        spark: Spark session.
        stream: Options.
        tables: Class that applies the changes.

    Raises:
        StoreError: There is no journal, or the folder is of another stream.
    """
    stream = _claim(stream)
    _fit_parts(spark)
    rows = minutes(_events(spark, stream), target=stream.target)
    checkpoint = (stream.out / "_checkpoint").absolute()
    waiting = None  # the files of an address have no order
    if "://" not in stream.journal:
        waiting = WaitingJobs(stream, checkpoint, stream.out / "_waiting.parquet")
    consumer = tables(
        stream.out, target=stream.target, share=stream.share, text=stream.prometheus,
        waiting=waiting,
    )  # fmt: skip
    writer = (
        rows.writeStream.outputMode("update")
        .foreachBatch(consumer.update)
        .option("checkpointLocation", f"file:{checkpoint}")
    )
    if stream.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{stream.trigger} seconds").start()


def _fit_parts(spark: SparkSession) -> None:
    """Use one partition of the state per core on one machine; more would only add files."""
    context, parts = getattr(spark, "_sc", None), "spark.sql.shuffle.partitions"
    if context is not None and context.master.startswith("local"):  # Spark Connect has no context
        configured = int(str(spark.conf.get(parts)))
        spark.conf.set(parts, str(min(context.defaultParallelism, configured)))


def _events(spark: SparkSession, stream: Stream) -> DataFrame:
    """Return the stream of a journal's events, each once, with a watermark on ``at``."""
    far = "://" in stream.journal
    events = _far_files(spark, stream) if far else _files(spark, stream)
    events = (
        stream.of(events)
        .withColumn("at", f.timestamp_micros("ts_us"))
        .withWatermark("at", f"{stream.watermark} seconds")
    )
    return events.dropDuplicatesWithinWatermark(["broker_id", "seq"]) if far else events


def _files(spark: SparkSession, stream: Stream) -> DataFrame:
    """Return the events of a folder in the order of their numbers; offsets are per broker."""
    spark.dataSource.register(EventMQDataSource)
    source = (
        spark.readStream.format("eventmq")
        .schema(_SCHEMA)
        .option("maxEventsPerTrigger", stream.at_once)
    )
    return source.load(str(Path(stream.journal).absolute()))


def _far_files(spark: SparkSession, stream: Stream) -> DataFrame:
    """Return the events of an address, whose files Spark lists itself, in any order.

    Numbers do not show which events were read, so the state keeps each event until the watermark
    has passed it.
    """
    AddressLocation(spark, stream.journal).check_stream()
    files = max(1, stream.at_once // _FILE)
    source = (
        spark.readStream.schema(_SCHEMA)
        .option("maxFilesPerTrigger", files)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", _SEALED)
    )
    return _readable(source.options(**CHECKED).parquet(stream.journal))


def _claim(stream: Stream) -> Stream:
    """Check that a folder belongs to this stream, or claim it; options of the counts are fixed.

    Returns:
        The stream, with the timestamps of its first start for texts such as "2h".
    """
    far = "://" in stream.journal
    journal = stream.journal if far else f"file:{Path(stream.journal).absolute()}"
    if not far and not Path(stream.journal).is_dir():
        raise StoreError(f"there is no journal in {stream.journal}: name its folder with --journal")
    description = stream.out / "stream.json"
    options: dict[str, Any] = {
        "journal": journal, "watermark": stream.watermark, "target": stream.target,
        "queue": stream.queue, "task": stream.task, "since": stream.since, "until": stream.until,
        "words": {
            name: at.text for name, at in (("since", stream.since), ("until", stream.until))
            if isinstance(at, RelativeTimestamp)
        },
    }  # fmt: skip
    if not description.is_file():
        stream.out.mkdir(parents=True, exist_ok=True)
        write_file(description, json.dumps(options, indent=1))
        return stream
    stored = json.loads(description.read_text(encoding="utf-8"))
    filter_texts, before = options.pop("words"), stored.get("words", {})
    same = {name: stored[name] for name in filter_texts if before.get(name) == filter_texts[name]}
    for name, value in {**options, **same}.items():
        if stored.get(name) != value:
            previous, now = before.get(name, stored.get(name)), filter_texts.get(name, value)
            raise StoreError(
                f"{stream.out} is of a stream with {name} {previous}, not {now}"
                ": name another folder with --out"
            )
    return dataclasses.replace(stream, **same)


# Errors

#: The address of a file in an error of Spark about it.
_FILE_ADDRESS = re.compile(r"reading file (\w+:/+\S+?\.parquet)")

#: The error about a file that is too new for this EventMQ; see `_readable`.
_NEWER = re.compile(r"(\w+:/+\S+?\.parquet is of a newer EventMQ: update this one)")


@contextlib.contextmanager
def naming_files() -> Iterator[None]:
    """Turn an error of Spark about a file into one that names the file.

    Raises:
        StoreError: A file of the journal is torn, foreign, or of a newer EventMQ.
    """
    try:
        yield
    except PySparkException as error:
        newer, file = _NEWER.search(str(error)), _FILE_ADDRESS.search(str(error))
        if newer is not None:
            raise StoreError(unquote(newer[1])) from error
        if file is None:
            raise
        raise StoreError(
            f"{unquote(file[1])} is torn, or no file of a journal: move it away, the others are "
            "unharmed"
        ) from error


# Reports

#: Spark's operator that has the state.
_CELLS = "stateStoreSave"

#: Columns of the total.
_SUMMED = ("rows", "cells", "late")


class BatchReports:
    """Reports of a Spark query's progress as flat objects, each batch once."""

    def __init__(self) -> None:
        self._last = -1
        self._batches = 0
        self._sums = dict.fromkeys(_SUMMED, 0)

    def new(self, progress: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the batches that were not reported yet.

        Each has ``batch`` (its number), ``rows`` (events that were read), ``cells`` (rows of the
        table ``stats`` that changed), ``late`` (cells of events that came after the watermark
        and were left out), ``watermark`` (ISO time; events before it are late) and ``seconds``.

        Args:
            progress: The last ones, as ``StreamingQuery.recentProgress`` has them; a query that
                finds nothing repeats the last number.
        """
        for batch in progress:
            if batch["batchId"] > self._last and "addBatch" in batch["durationMs"]:
                self._last = batch["batchId"]
                report = _report(batch)
                self._batches += 1
                for name in _SUMMED:
                    self._sums[name] += report[name]
                yield report

    def total(self) -> dict[str, Any]:
        """Return the sums of all reports, and the number of ``batches``."""
        return {"what": "total", "batches": self._batches, **self._sums}


def _report(progress: Mapping[str, Any]) -> dict[str, Any]:
    states = progress["stateOperators"]
    cells = [operator for operator in states if operator["operatorName"] == _CELLS]
    return {
        "what": "batch",
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "cells": sum(state["numRowsUpdated"] for state in cells),
        "late": sum(state["numRowsDroppedByWatermark"] for state in states),
        "watermark": progress["eventTime"].get("watermark"),
        "seconds": progress["durationMs"]["triggerExecution"] / 1000,
    }
