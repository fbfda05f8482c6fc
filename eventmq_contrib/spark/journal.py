"""Journal reader: returns the events of a journal as one DataFrame, each once.

The files to read are chosen by their names and footers, so that events are compared with each other
only if two files have the same ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eventmq_contrib.extras import need
from eventmq_contrib.journal.catalog import (
    Catalog,
    FolderLocation,
    JournalError,
    JournalFile,
    split_overlapping,
)
from eventmq_contrib.journal.inspection import check_file, check_version
from eventmq_contrib.spark.addresses import CHECKED, AddressLocation, as_pattern

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "JournalError",
    "JournalFile",
    "check_version",
    "events_of",
    "folder_of",
    "journal_files",
    "read_journal",
    "rows_of",
]


def read_journal(
    spark: SparkSession, folder: str | Path, *,
    since: float | None = None, until: float | None = None,
    queue: str | None = None, task: str | None = None,
) -> DataFrame:  # fmt: skip
    """Return the events of a journal, in no particular order, with all published columns.

    Compacted files, in the folder ``compacted`` beside the journal, replace those that they were
    made from.

    Args:
        spark: Reads them.
        folder: Of the journal; or an address that Spark knows, as ``s3a://bucket/journal``, whose
            files are looked at by Spark.
        since: Unix time of the first events, in seconds.
        until: Unix time before which the last ones are, in seconds.
        queue: Only events of this queue.
        task: Only events of this task.

    Raises:
        JournalError: There is no journal, it has no events, its beginning is missing, or a file is
            torn, foreign or not what its name says.
    """
    events = _all_events(spark, folder, since, until)
    if since is not None:
        events = events.where(events.ts_us >= round(since * 1_000_000))
    if until is not None:
        events = events.where(events.ts_us < round(until * 1_000_000))
    for name, value in (("queue", queue), ("task", task)):
        if value is not None:
            events = events.where(events[name] == value)
    return events


def _all_events(
    spark: SparkSession, folder: str | Path, since: float | None, until: float | None
) -> DataFrame:
    """Return the events of all files that may have events of a time range."""
    local = folder_of(folder)
    if local is not None:
        files = journal_files(local, since=since, until=until)
        need("pyarrow.parquet", user="eventmq spark")
        for file in files:
            check_file(file)
        return events_of(spark, files)
    location = AddressLocation(spark, str(folder))
    files = Catalog.read(location).files(since=since, until=until)
    location.check_files(files)
    return events_of(spark, files)


def folder_of(journal: str | Path) -> Path | None:
    """Return the local folder of a journal, None for an address."""
    text = str(journal)
    if text.startswith("file:///"):
        text = text.removeprefix("file://")
    return None if "://" in text else Path(text)


def journal_files(
    folder: Path, *, since: float | None = None, until: float | None = None
) -> list[JournalFile]:
    """Return the files with the events of a time range; see `Catalog.files`.

    Args:
        folder: Folder of the journal, or of its compacted files.
        since: Leave out files of hours before it, Unix time in seconds.
        until: Leave out files of hours after it, Unix time in seconds.

    Raises:
        JournalError: There is no journal, it has no events, it lacks its beginning, or there is a
            foreign file in it.
    """
    return Catalog.read(FolderLocation(folder)).files(since=since, until=until)


def events_of(
    spark: SparkSession, files: Sequence[JournalFile], *, doubtful: Collection[str] = ()
) -> DataFrame:
    """Return the events of some files, each once.

    Args:
        spark: Spark session.
        files: Files whose content agrees with their names.
        doubtful: Paths of files that may be damaged; unreadable rows of these are left out.
    """
    from eventmq_contrib.spark.schema import events_type

    single, shared = split_overlapping(files)
    frames = [rows_of(spark, part, doubtful=doubtful) for part in (single, shared) if part]
    if shared:
        frames[-1] = frames[-1].dropDuplicates(["broker_id", "seq"])
    if not frames:
        return spark.createDataFrame([], events_type())
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def rows_of(
    spark: SparkSession, files: Sequence[JournalFile], *, doubtful: Collection[str] = (),
    more: Sequence[str] = (),
) -> DataFrame:  # fmt: skip
    """Return the rows of one or more files, duplicates included.

    Args:
        spark: Spark session.
        files: Files to read.
        doubtful: See `events_of`.
        more: Further columns of the files, such as ``_metadata.file_name``.
    """
    from eventmq_contrib.spark.schema import events_type

    whole = [as_pattern(file.path) for file in files if file.path not in doubtful]
    doubtful_paths = [as_pattern(file.path) for file in files if file.path in doubtful]
    reader = spark.read.schema(events_type()).options(**CHECKED)
    frames = [reader.parquet(*whole).select("*", *more)] if whole else []
    if doubtful_paths:
        reader = reader.option("ignoreCorruptFiles", "true")
        frames.append(reader.parquet(*doubtful_paths).select("*", *more))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
