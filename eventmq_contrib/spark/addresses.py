"""Journals at addresses that Spark reads, such as ``s3a://bucket/journal``.

Only DataFrames are used, so that clusters and Spark Connect work alike.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from eventmq_contrib.journal.catalog import Catalog, JournalError, covered
from eventmq_contrib.journal.inspection import Facts, disagreements
from eventmq_contrib.journal.seals import SEALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from eventmq_contrib.journal.catalog import JournalFile

__all__ = ["CHECKED", "AddressLocation", "as_pattern"]

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
        # Spark Connect reads nothing before the names are requested.
        reader = self._spark.read.format("binaryFile")
        with _absent():
            return sorted(map(unquote, reader.load(self._pattern(_HOURS)).inputFiles()))
        with _absent():
            reader.option("recursiveFileLookup", "true").load(as_pattern(self.name)).inputFiles()
            return []
        msg = f"there is no journal at {self.name}: name its address with --journal"
        raise JournalError(msg)

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

    # What is in the files

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
                msg = (
                    f"a stream by an address reads what the journal sealed, and of {large.path} "
                    "those files are gone: put them back, or read the journal as a folder"
                )
                raise JournalError(msg)
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
        from pyspark.sql import functions as f

        from eventmq_contrib.spark.schema import events_type

        # Unreadable files have too few rows then, so that the error can name them.
        reader = self._spark.read.schema(events_type()).options(**CHECKED)
        reader = reader.option("ignoreCorruptFiles", "true")
        rows = reader.parquet(*(as_pattern(file.path) for file in files))
        path = f.col("_metadata.file_path").alias("path")
        bounds: list[Column] = [
            function(name).alias(f"{word}_{name}")
            for name in ("seq", "broker_id", "ts_us", "schema_version")
            for word, function in (("min", f.min), ("max", f.max))
        ]
        return rows.groupBy(path).agg(f.count("*").alias("n"), f.count("kind").alias("k"), *bounds)

    def _digests(self, files: Sequence[JournalFile], *, whole: bool) -> DataFrame:
        from pyspark.sql import functions as f

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
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise


def as_pattern(path: str) -> str:
    """Return a path or an address as a pattern for Spark, which is not URL-quoted."""
    quoted = _PATTERN.sub(r"\\\g<0>", path)
    return quoted if "://" in path else f"file://{quoted}"
