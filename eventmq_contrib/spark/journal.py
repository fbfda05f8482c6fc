"""Journal reader: returns the events of a journal as one DataFrame, each once.

The files to read are chosen by their names and footers, so that events are compared with each other
only if two files have the same ones. A journal at an address that Spark reads, such as
``s3a://bucket/journal``, is read by DataFrames only, so that clusters and Spark Connect work alike.

Readers fail at the first damaged file; `gather`, which returns the evidence for an audit, continues
with what is readable.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from eventmq.sdk.events import COLUMNS
from eventmq_contrib.journal.catalog import (
    Catalog,
    FolderLocation,
    JournalError,
    JournalFile,
    covered,
    split_overlapping,
)
from eventmq_contrib.journal.inspection import (
    Facts,
    Inspection,
    check_file,
    check_version,
    disagreements,
    evaluate,
    inspect,
)
from eventmq_contrib.journal.seals import SEALS
from eventmq_contrib.spark.choice import Choice

__all__ = [
    "CHECKED",
    "EVENTS",
    "AddressLocation",
    "Evidence",
    "JournalError",
    "JournalFile",
    "as_pattern",
    "check_version",
    "events_of",
    "folder_of",
    "gather",
    "journal_files",
    "read_journal",
    "rows_of",
]

_TYPES = {"string": StringType(), "int32": IntegerType(), "int64": LongType()}

#: Type of a row of events: all columns, in their order.
EVENTS = StructType([StructField(c.name, _TYPES[c.type], c.nullable) for c in COLUMNS])

#: Options of Spark's Parquet reader: a page with a wrong checksum is an error.
CHECKED = {"parquet.page.verify-checksum.enabled": "true"}

#: Pattern of the files of events below a journal.
_HOURS = "date=*/hour=*/*.parquet"

#: Characters with a meaning in paths that Spark reads.
_PATTERN = re.compile(r"[][{}*?\\]")


class AddressLocation:
    """Location of a journal at an address; see `eventmq_contrib.journal.catalog.JournalLocation`.

    Args:
        spark: Spark session that reads it.
        address: Address of the journal.
    """

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self.name = address.rstrip("/")

    def paths(self) -> list[str]:
        """See `JournalLocation`."""
        # Spark Connect reads no file before the names are requested.
        reader = self._spark.read.format("binaryFile")
        with _absent():
            return sorted(map(unquote, reader.load(self._pattern(_HOURS)).inputFiles()))
        with _absent():
            reader.option("recursiveFileLookup", "true").load(as_pattern(self.name)).inputFiles()
            return []
        raise JournalError(f"there is no journal at {self.name}: name its address with --journal")

    def text(self, name: str) -> str | None:
        """See `JournalLocation`."""
        rows = self._texts(name)
        return rows[0][1] if rows else None

    def logs(self) -> dict[str, bytes]:
        """See `JournalLocation`."""
        rows = self._texts(f"{SEALS}/*.jsonl")
        return {name.removesuffix(".jsonl"): text.encode() for name, text in rows}

    def beside(self, name: str) -> AddressLocation | None:
        """See `JournalLocation`."""
        parent, _, _ = self.name.rpartition("/")
        return None if parent.endswith("/") else AddressLocation(self._spark, f"{parent}/{name}")

    def _pattern(self, name: str) -> str:
        return f"{as_pattern(self.name)}/{name}"

    def _texts(self, pattern: str) -> list[tuple[str, str]]:
        """Return the names and texts of files, or nothing if there are no files."""
        with _absent():
            rows = self._spark.read.text(self._pattern(pattern), wholetext=True)
            rows_read = rows.selectExpr("_metadata.file_name", "value").collect()
            return [(unquote(name), text) for name, text in rows_read]
        return []

    # Contents of the files

    def check_stream(self) -> None:
        """Check that a stream over the sealed files, as Spark lists them, has all events.

        Raises:
            JournalError: A file is empty or foreign, or the beginning is missing, even if it is in
                compacted files, which such a stream does not read.
        """
        catalog = Catalog.read(self)
        catalog.check(catalog.own)
        for large, _ in catalog.large:
            if not covered(large, catalog.own):
                raise JournalError(
                    f"a stream by an address reads sealed files, and those of {large.path} are "
                    "missing: restore them, or read the journal as a folder"
                )
        if catalog.own:
            for path, size, _ in self._digests(catalog.own, whole=False).collect():
                if not size:
                    raise JournalError(f"{path} is empty: move it away")

    def check_files(self, files: Sequence[JournalFile]) -> None:
        """Check that the content of files agrees with their names.

        Raises:
            JournalError: One is torn, empty, foreign or of a newer EventMQ, or its name is wrong.
        """
        facts = self.facts(files)
        for file in files:
            for wrong in disagreements(file, facts[file.path]):
                raise JournalError(wrong)

    def facts(self, files: Sequence[JournalFile], *, whole: bool = False) -> dict[str, Facts]:
        """Return the facts of files, by their paths.

        Args:
            files: The files.
            whole: Read all of their bytes.
        """
        if not files:
            return {}
        by_path = {unquote(row.path): _facts(row) for row in self._bounds(files).collect()}
        none = Facts(wrong="it is empty or torn, or no file of a journal")
        facts = {file.path: by_path.get(file.path, none) for file in files}
        if whole:
            for path, size, digest in self._digests(files, whole=True).collect():
                facts[path] = facts[path]._replace(size=size, sha256=digest)
        return facts

    def _bounds(self, files: Sequence[JournalFile]) -> DataFrame:
        # Unreadable files then have too few rows, so that the error can name them.
        reader = (
            self._spark.read.schema(EVENTS).options(**CHECKED).option("ignoreCorruptFiles", "true")
        )
        rows = reader.parquet(*(as_pattern(file.path) for file in files))
        path = f.col("_metadata.file_path").alias("path")
        bounds: list[Column] = [
            function(name).alias(f"{word}_{name}")
            for name in ("seq", "broker_id", "ts_us", "schema_version")
            for word, function in (("min", f.min), ("max", f.max))
        ]
        return rows.groupBy(path).agg(f.count("*").alias("n"), f.count("kind").alias("k"), *bounds)

    def _digests(self, files: Sequence[JournalFile], *, whole: bool) -> DataFrame:
        reader = self._spark.read.format("binaryFile")
        rows = reader.load([as_pattern(file.path) for file in files])
        return rows.select("path", "length", f.sha2("content", 256) if whole else f.lit(""))


def _facts(row: Any) -> Facts:
    bounds = (row.min_seq, row.min_broker_id, row.min_ts_us, row.max_schema_version)
    if None in bounds or row.k < row.n:
        return Facts(rows=row.n, wrong="it has no events, columns of them are missing")
    return Facts(
        row.n, row.min_seq, row.max_seq, (row.min_broker_id, row.max_broker_id),
        (row.min_ts_us, row.max_ts_us), row.max_schema_version,
    )  # fmt: skip


@contextlib.contextmanager
def _absent() -> Iterator[None]:
    """Suppress errors about a missing file or folder."""
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise


def as_pattern(path: str) -> str:
    """Return a path or an address as a pattern for Spark, which is not URL-quoted."""
    quoted = _PATTERN.sub(r"\\\g<0>", path)
    return quoted if "://" in path else f"file://{quoted}"


# Reading


def read_journal(
    spark: SparkSession, folder: str | Path, *,
    since: float | None = None, until: float | None = None,
    queue: str | None = None, task: str | None = None,
) -> DataFrame:  # fmt: skip
    """Return the events of a journal, in no particular order, with all published columns.

    Compacted files, in the folder ``compacted`` beside the journal, replace the files that they
    were made from.

    Args:
        spark: Spark session, which reads the events.
        folder: Folder of the journal; or an address that Spark knows, such as
            ``s3a://bucket/journal``, whose files Spark reads.
        since: Only events from then on, Unix time in seconds.
        until: Only events before then, Unix time in seconds.
        queue: Only events of this queue.
        task: Only events of this task.

    Raises:
        JournalError: There is no journal, it has no events, its beginning is missing, or a file is
            torn, foreign or not what its name says.
    """
    local = folder_of(folder)
    if local is None:
        location = AddressLocation(spark, str(folder))
        files = Catalog.read(location).files(since=since, until=until)
        location.check_files(files)
    else:
        files = journal_files(local, since=since, until=until)
        for file in files:
            check_file(file)
    choice = Choice(since=since, until=until, queue=queue, task=task)
    return choice.of(events_of(spark, files))


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
    single, shared = split_overlapping(files)
    frames = [rows_of(spark, part, doubtful=doubtful) for part in (single, shared) if part]
    if shared:
        frames[-1] = frames[-1].dropDuplicates(["broker_id", "seq"])
    if not frames:
        return spark.createDataFrame([], EVENTS)
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
    whole = [as_pattern(file.path) for file in files if file.path not in doubtful]
    doubtful_paths = [as_pattern(file.path) for file in files if file.path in doubtful]
    reader = spark.read.schema(EVENTS).options(**CHECKED)
    frames = [reader.parquet(*whole).select("*", *more)] if whole else []
    if doubtful_paths:
        reader = reader.option("ignoreCorruptFiles", "true")
        frames.append(reader.parquet(*doubtful_paths).select("*", *more))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


# Evidence


@dataclass(frozen=True, slots=True)
class Evidence:
    """Events of a journal, and findings about its files.

    Attributes:
        events: All readable events, each once.
        files: Findings about the files.
    """

    events: DataFrame
    files: Inspection

    def conflicts(self, limit: int) -> tuple[int, list[str]]:
        """Return how many events differ between files that have them, and sentences about some.

        Args:
            limit: Most sentences.
        """
        _, shared = split_overlapping(self.files.sound)
        if not shared:
            return 0, []
        conflicting = self._conflicts(shared).persist()
        try:
            rows = conflicting.orderBy("broker_id", "seq").take(limit)
            return conflicting.count(), [
                f"the event {row.seq} of the broker {row.broker_id} is not the same in "
                f"{' and '.join(sorted(row.files))}"
                for row in rows
            ]
        finally:
            conflicting.unpersist()

    def _conflicts(self, files: Sequence[JournalFile]) -> DataFrame:
        rows = rows_of(
            self.events.sparkSession, files, doubtful=self.files.doubtful,
            more=("_metadata.file_name",),
        )  # fmt: skip
        content = f.xxhash64(f.to_json(f.struct(*(c for c in rows.columns if c != "file_name"))))
        keyed = rows.select("broker_id", "seq", content.alias("content"), "file_name")
        counted = keyed.groupBy("broker_id", "seq").agg(
            f.count_distinct("content").alias("n"), f.collect_set("file_name").alias("files")
        )
        return counted.where(counted.n > 1)


def gather(
    spark: SparkSession, journal: str | Path, *, sealed: Mapping[str, int] | None = None
) -> Evidence:
    """Inspect all files of a journal, and return its evidence.

    Args:
        spark: Spark session, which reads the events, and the files at an address.
        journal: Folder of the journal, or an address that Spark knows.
        sealed: Broker -> the last sealed number as the broker reports it.

    Raises:
        JournalError: There is no journal, or it never had an event.
    """
    folder = folder_of(journal)
    location = AddressLocation(spark, str(journal)) if folder is None else FolderLocation(folder)
    catalog = Catalog.read(location, sealed=True)
    files = [*(entry.file for entry in catalog.large), *catalog.own]
    ends = [*(record.end for record in catalog.logs.values()), *(sealed or {}).values()]
    if not files and not any(ends):
        if catalog.foreign or catalog.missing:
            catalog.check(files)
        raise JournalError(f"the journal {catalog.name} has no events yet")
    if isinstance(location, AddressLocation):
        inspection = evaluate(catalog, location.facts(files, whole=True), sealed)
    else:
        inspection = inspect(catalog, sealed)
    return Evidence(events_of(spark, inspection.sound, doubtful=inspection.doubtful), inspection)
