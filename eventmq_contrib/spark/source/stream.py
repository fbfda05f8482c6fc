"""The reader of the data source for ``spark.readStream``: a journal, file by file as it is sealed.

An offset has the number of the last event that was read per broker, ``{broker: seq}``. Sealed files
never change, so the events between two offsets are the same at every read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from eventmq.errors import SettingsError
from eventmq_contrib.spark.source.files import (
    bundles,
    holes,
    latest,
    plan,
    read_slice,
    sealed_files,
)
from eventmq_contrib.spark.source.reader import arrow_type, pieces

if TYPE_CHECKING:
    from eventmq_contrib.journal.catalog import JournalFile
    from eventmq_contrib.spark.source.options import StreamOptions

__all__ = ["GAP_TIMEOUT", "JournalStream"]

#: Seconds that the stream waits for missing numbers: files may be copied out of order.
GAP_TIMEOUT = 60.0


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the sealed files of a journal.

    Raises:
        SettingsError: No journal is named.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        if not options.journal:
            raise SettingsError(
                'a stream reads a journal: name its folder with option("journal", "DIR")'
            )
        self.folder = options.journal
        self.start = options.start
        self.at_once = options.at_once
        self.schema = schema
        self._target: dict[str, int] | None = None
        #: (broker, number) of missing events -> monotonic time when they were first noticed.
        self._holes: dict[tuple[str, int], float] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset at which a new query begins."""
        return {} if self.start == "earliest" else latest(sealed_files(self.folder), {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of one batch."""
        return ReadMaxRows(self.at_once) if self.at_once else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the offset at which the next batch ends."""
        files, target = self._in_order(start), self._target
        max_rows = getattr(limit, "max_rows", 0)
        if target is None:
            return latest(files, start, max_rows)
        files = [file for file in files if file.first <= target.get(file.broker, 0)]
        end = latest(files, start, max_rows)
        return {broker: min(seq, target.get(broker, seq)) for broker, seq in end.items()}

    def _in_order(self, start: dict[str, int]) -> list[JournalFile]:
        """Return the files of each broker before the first gap that may still be filled.

        Gaps in the first scan are not waited for.
        """
        files, now = sealed_files(self.folder, start), time.monotonic()
        gaps, noticed = holes(files, start), self._holes
        self._holes = {
            hole: now - GAP_TIMEOUT if noticed is None else noticed.get(hole, now) for hole in gaps
        }
        # Only the first gap of a broker counts.
        open_ = {
            broker: number
            for (broker, number), since in sorted(self._holes.items(), reverse=True)
            if now - since < GAP_TIMEOUT
        }
        return [
            file for file in files if file.broker not in open_ or file.first < open_[file.broker]
        ]

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Keep the present end of the journal as the end of the query."""
        self._target = latest(sealed_files(self.folder), {})

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset of the end of the journal, for the status of the query."""
        return latest(sealed_files(self.folder), {})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one piece per large file, or some small ones."""
        return pieces(bundles(plan(sealed_files(self.folder, start), start, end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the events of one piece."""
        schema = arrow_type(self.schema)
        return (batch for part in partition.value for batch in read_slice(part, schema))
