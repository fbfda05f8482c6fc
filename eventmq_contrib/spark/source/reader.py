"""Readers of the data source for ``spark.read``: a journal's files, or the tables of a broker.

Filters are not pushed down: in pyspark 4.1 to 4.3 a pushed filter stays with the loaded DataFrame,
and a later query silently has too few rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from eventmq.errors import SettingsError
from eventmq.sdk import decode_error
from eventmq.sdk.events import EventColumns
from eventmq_contrib.journal.inspection import check_file
from eventmq_contrib.journal.sources import BrokerSource
from eventmq_contrib.spark.journal import EVENTS, journal_files
from eventmq_contrib.spark.source.files import Slice, bundles, folder_here, plan, read_slice
from eventmq_contrib.spark.source.options import ReadOptions, connected

if TYPE_CHECKING:
    from eventmq import EventMQ

__all__ = [
    "ENDED",
    "EVENTS",
    "JOBS",
    "OF_BROKER",
    "QUEUES",
    "BrokerReader",
    "JournalReader",
    "arrow_type",
    "job_rows",
    "pieces",
]


#: Table of a journal -> kinds of its events; an event shows the state of its job at that time.
_KINDS = {
    "events": (),
    "failed": ("failed",),
    "outcomes": ("succeeded", "failed", "cancelled", "expired"),
}

#: Bytes of events of one request.
_PAGE_BYTES = 4 * 1024 * 1024


def pieces(parts: Iterable[list[Slice] | str | None]) -> list[InputPartition]:
    """Return one partition per Spark task: slices of files, or one request to the broker."""
    return [InputPartition(part) for part in parts]


def arrow_type(schema: StructType) -> Any:
    """Return the `pyarrow.Schema` with which Spark takes batches of rows."""
    return to_arrow_schema(schema, timezone="UTC")


class JournalReader(DataSourceReader):
    """Reads the events of a journal file by file, each event once.

    Raises:
        SettingsError: A journal has no such table.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table not in _KINDS:
            raise SettingsError(
                f"a journal has no table {options.table!r}, which is of the present: name a broker"
                f"; a journal has {', '.join(_KINDS)}"
            )
        if options.queue or options.task:
            raise SettingsError(
                "queue and task choose among the jobs of a broker; filter rows of a journal"
            )
        self.folder = options.journal or ""
        self.kinds = _KINDS[options.table]
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one piece per large file, or some small ones.

        Raises:
            StoreError: There is no journal, it has no events, it lacks its beginning, or a file is
                not what its name says.
        """
        files = journal_files(folder_here(self.folder))
        for file in files:
            check_file(file)
        return pieces(bundles(plan(files, {})))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the events of one piece."""
        for part in partition.value:
            yield from read_slice(part, arrow_type(self.schema), self.kinds)


class BrokerReader(DataSourceReader):
    """Reads a table of a broker.

    A change during the read may or may not be in the table: the pages of a listing are read at
    different times.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table in {"events", "queues"} and (options.queue or options.task):
            raise SettingsError(f"queue and task choose among jobs, not in table {options.table}")
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one piece per request: the table of outcomes needs several."""
        states = ENDED if self.options.table == "outcomes" else (None,)
        return pieces(states)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows that the broker answers with.

        Raises:
            BrokerUnavailable: The broker does not answer.
            NotAllowed: The role of the key does not allow this.
        """
        with connected(self.options) as app:
            table = self.options.table
            if table == "events":
                yield from self._events(app)
            elif table == "queues":
                yield from ([row[name] for name in _QUEUE] for row in app.ask("queues"))
            else:
                filters = {"queue": self.options.queue, "task": self.options.task}
                listing = "failed" if table == "failed" else "jobs"
                yield from job_rows(app, listing, {**filters, "state": partition.value})

    def _events(self, app: Any) -> Iterator[Any]:
        """Yield the events that the broker still keeps because no journal has sealed them."""
        schema, source, after = arrow_type(self.schema), BrokerSource(app), 0
        while rows := source.read(after, _PAGE_BYTES)[0]:
            columns = EventColumns()
            for row in rows:
                columns.add(source.broker_id, row.first, row.body)
            after = rows[-1].first + rows[-1].events - 1
            arrays = [pa.array(columns.values[field.name], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


#: States of jobs that have an outcome.
ENDED = ("succeeded", "failed", "cancelled", "expired")

#: Columns of jobs, as a schema of Spark. ``ran`` is in seconds.
JOBS = (
    "id string, task string, queue string, state string, attempt int, delivery int, priority int, "
    "created timestamp, due timestamp, expires timestamp, started timestamp, ran double, "
    "finished timestamp, worker string, error_type string, error string, headers string"
)

#: Columns of queues, as a schema of Spark.
QUEUES = (
    "name string, waiting bigint, delayed bigint, running bigint, failed bigint, paused boolean, "
    "workers int, limits string"
)

#: Table -> its columns, for tables that only a broker has.
OF_BROKER = {"jobs": JOBS, "failed": JOBS, "outcomes": JOBS, "queues": QUEUES}

_QUEUE = ("name", "waiting", "delayed", "running", "failed", "paused", "workers", "limits")


def job_rows(app: EventMQ, listing: str, filters: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a listing of jobs, page by page.

    Args:
        app: App of the broker.
        listing: ``jobs`` or ``failed``.
        filters: Filters of the listing by name; None for no filter.
    """
    arguments = {name: value for name, value in filters.items() if value is not None}
    cursor = ""
    while True:
        page = app.ask(listing, {**arguments, "cursor": cursor})
        for row in page[listing]:
            yield _job(row)
        cursor = page["cursor"]
        if not cursor:
            return


def _job(row: Mapping[str, Any]) -> tuple[Any, ...]:
    error = decode_error(row["error"]) if row["error"] else None
    return (
        row["id"], row["task"] or None, row["queue"], row["state"], row["attempt"],
        row["delivery"], row["priority"], _time(row["created"]), _time(row["due"]),
        _time(row["expires"]), _time(row["started"]), row["ran"] if row["started"] else None,
        _time(row["finished"]), row["worker"] or None, error.type if error else None,
        error.message if error else None, row["headers"],
    )  # fmt: skip


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, timezone.utc) if seconds else None
