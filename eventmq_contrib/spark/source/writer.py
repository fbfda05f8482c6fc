"""Writers of the data source: one job per row, or one replay of a failed job per row.

A Spark task that is retried, and a program that is started again, write the same ids, so the broker
has each job once. An aborted write undoes nothing: confirmed jobs stay, and the write can be
repeated.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from eventmq.errors import SettingsError, did_you_mean
from eventmq.sdk import MAX_IDS
from eventmq_contrib.atomic import write_file
from eventmq_contrib.spark.source.ids import derived_ids, unix_ms
from eventmq_contrib.spark.source.options import WriteOptions, connected, parse_timestamp

if TYPE_CHECKING:
    from eventmq import EventMQ

__all__ = ["JobWriter", "Shape", "StreamJobWriter", "paced", "replay", "submit", "total"]


#: The column with the ids of jobs.
JOB_ID = "job_id"

#: Columns of a replay.
REPLAY = (JOB_ID, "attempt")

_TWO_IDS = "idColumns and a column job_id both name the ids of jobs; allowed is one of them"

_NO_ID = (
    "no column has the ids of jobs, and a Spark task that is retried would make new jobs: "
    'name columns that are a key with option("idColumns", "a,b"), or add a column job_id'
)

#: Longest time of one part if the rate is limited, in seconds.
_STEP = 0.25


class Shape(NamedTuple):
    """Names of the columns with the arguments and the id.

    Attributes:
        arguments: The positional arguments.
        keywords: The keyword arguments.
        job_id: Whether there is a column with ids.
    """

    arguments: tuple[str, ...]
    keywords: tuple[str, ...]
    job_id: bool

    @classmethod
    def of(cls, options: WriteOptions, columns: Sequence[str]) -> Shape:
        """Return the shape of rows with these columns.

        Raises:
            SettingsError: The columns do not fit the options, or the id has no column.
        """
        if options.action == "replay":
            _named("a replay", REPLAY, columns)
            return cls((), (), job_id=True)
        if options.task is None:
            raise SettingsError('no task is named: option("task", "shop.send")')
        at = options.id_time
        time_column = () if at is None or parse_timestamp(at) is not None else (at,)
        for option, named in (
            ("argColumns", options.arguments), ("kwargColumns", options.keywords),
            ("idColumns", options.ids), ("idTime", time_column),
        ):  # fmt: skip
            _named(f"option {option!r}", named or (), columns)
        has_id = JOB_ID in columns
        if has_id == (options.ids is not None):
            raise SettingsError(_TWO_IDS if has_id else _NO_ID)
        keywords = options.keywords or ()
        if options.arguments is None and options.keywords is None:
            keywords = tuple(name for name in columns if name != JOB_ID)
        return cls(options.arguments or (), keywords, has_id)


def _named(subject: str, names: Iterable[str], columns: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            raise SettingsError(f"{subject} needs a column {name!r}; {did_you_mean(name, columns)}")


def paced(batches: Iterable[Any], rate: float, max_size: int) -> Iterator[Any]:
    """Yield batches cut into parts, each at the time when it may be sent.

    Args:
        batches: Batches of rows, each a `pyarrow.RecordBatch`.
        rate: Rows per second, 0.0 for no limit.
        max_size: Maximum rows of a part.
    """
    size = min(max_size, max(1, int(rate * _STEP))) if rate else max_size
    begin, sent = time.monotonic(), 0
    for batch in batches:
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            if rate:
                time.sleep(max(0.0, begin + sent / rate - time.monotonic()))
            sent += part.num_rows
            yield part


def submit(
    app: EventMQ, options: WriteOptions, shape: Shape, batches: Iterator[Any]
) -> dict[str, int]:
    """Submit a job per row; return the number of jobs."""
    call, name, n = options.call(), options.task or "", 0
    for part in paced(batches, options.rate, options.in_flight):
        columns = {field: part.column(field) for field in part.schema.names}
        arguments = [columns[field].to_pylist() for field in shape.arguments]
        named = [columns[field].to_pylist() for field in shape.keywords]
        calls = [
            (tuple(args), dict(zip(shape.keywords, values, strict=True)))
            for args, values in zip(_rows(arguments, part), _rows(named, part), strict=True)
        ]
        app.send_many(name, calls, job_ids=_ids(options, shape, columns), **call)
        n += part.num_rows
    return {"jobs": n}


def _rows(columns: list[list[Any]], part: Any) -> Iterable[tuple[Any, ...]]:
    return zip(*columns, strict=True) if columns else [()] * part.num_rows


def _ids(options: WriteOptions, shape: Shape, columns: Mapping[str, Any]) -> list[str]:
    if shape.job_id:
        ids: list[Any] = columns[JOB_ID].to_pylist()
        if not all(isinstance(job_id, str) and job_id for job_id in ids):
            raise SettingsError(
                "a row has no text in the column job_id; fill it in or leave it out"
            )
        return ids
    keys = [columns[field].to_pylist() for field in options.ids or ()]
    return list(derived_ids(options.id_space or options.task or "", keys, _times(options, columns)))


def _times(options: WriteOptions, columns: Mapping[str, Any]) -> list[int] | None:
    if options.id_time is None:
        return None
    at = parse_timestamp(options.id_time)
    if at is None:
        return [unix_ms(value) for value in columns[options.id_time].to_pylist()]
    return [int(at * 1000)] * len(next(iter(columns.values())))


def replay(app: EventMQ, options: WriteOptions, _: Shape, batches: Iterator[Any]) -> dict[str, int]:
    """Queue the failed jobs of the rows again, if their attempt is still that of the row.

    Returns:
        Counts: ``replayed`` jobs, jobs that had been replayed or changed ``before``, and
        ``unknown`` jobs, which the broker no longer has.
    """
    counts = Counter(replayed=0, before=0, unknown=0)
    for part in paced(batches, options.rate, min(options.in_flight, MAX_IDS)):
        rows = dict(zip(*(part.column(name).to_pylist() for name in REPLAY), strict=True))
        answers = app.ask("retry", {"ids": list(rows), "attempts": list(rows.values())})
        for _id, state, previous in answers:
            done = state == "queued" and previous == "failed"
            counts["replayed" if done else "before" if state else "unknown"] += 1
    return dict(counts)


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of the counts of several Spark tasks."""
    sums: Counter[str] = Counter()
    for part in counts:
        sums.update(part)
    return dict(sums)


class _Writer:
    """Sends rows to the broker.

    Raises:
        SettingsError: The columns do not fit the options; no job was sent.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.shape = Shape.of(options, schema.fieldNames())

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one Spark task; return when the broker has confirmed all.

        Returns:
            A message with ``counts``: the number of ``jobs``, or the counts that `replay` returns.

        Raises:
            BatchError: Some jobs were not confirmed.
            BrokerUnavailable: The broker does not answer.
            SettingsError: A row has no id.
        """
        written = WriterCommitMessage()
        send = replay if self.options.action == "replay" else submit
        with connected(self.options) as app:
            vars(written)["counts"] = send(app, self.options, self.shape, iterator)
        return written


class JobWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the report if one is configured; the broker has confirmed all rows."""
        if self.options.report is not None:
            counts = total(vars(message)["counts"] for message in messages if message is not None)
            write_file(Path(self.options.report), json.dumps(counts))


class StreamJobWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""
