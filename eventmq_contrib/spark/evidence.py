"""Evidence for an audit: the events of a journal, and the findings about its files.

Other readers fail at the first damaged file; this one continues with what is readable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq_contrib.extras import need
from eventmq_contrib.journal.catalog import Catalog, FolderLocation, JournalError, split_overlapping
from eventmq_contrib.journal.inspection import Inspection, inspect, judge
from eventmq_contrib.spark.addresses import AddressLocation
from eventmq_contrib.spark.journal import events_of, folder_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from eventmq_contrib.journal.catalog import JournalFile

__all__ = ["Evidence", "gather"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Events and findings of a journal.

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
        from pyspark.sql import functions as f

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
    need("pyarrow.parquet", user="eventmq spark")
    location = AddressLocation(spark, str(journal)) if folder is None else FolderLocation(folder)
    catalog = Catalog.read(location, sealed=True)
    files = [*(entry.file for entry in catalog.large), *catalog.own]
    ends = [*(record.end for record in catalog.logs.values()), *(sealed or {}).values()]
    if not files and not any(ends):
        if catalog.foreign or catalog.missing:
            catalog.check(files)
        raise JournalError(f"the journal {catalog.name} has no events yet: there is nothing to see")
    if isinstance(location, AddressLocation):
        inspection = judge(catalog, location.facts(files, whole=True), sealed)
    else:
        inspection = inspect(catalog, sealed)
    return Evidence(events_of(spark, inspection.sound, doubtful=inspection.doubtful), inspection)
