"""What an audit needs of a journal: its events, and what was found about its files.

Other readers end with the first file that is damaged. This goes on with what can be read.
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
    """What is known of a journal.

    Attributes:
        events: All that can be read, each of them once.
        files: What was found about the files.
    """

    events: DataFrame
    files: Inspection

    def conflicts(self, limit: int) -> tuple[int, list[str]]:
        """Return how many events are not the same in all files that have them, and sentences.

        Args:
            limit: Sentences at most.
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
    """Look at all files of a journal, and return what can be read of it.

    Args:
        spark: Reads the events, and the files where they are at an address.
        journal: Its folder, or an address that Spark knows.
        sealed: Up to which number brokers say that their events are sealed, by broker.

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
