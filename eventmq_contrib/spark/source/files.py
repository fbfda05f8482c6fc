"""Chooses the part of each file of a journal that is read, so that each event is read once.

The name of a file has the broker and the numbers of the first and the last event, so no file is
opened for this. Events that are in two files are read from the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eventmq.errors import SettingsError, StoreError
from eventmq_contrib.journal.catalog import Catalog, FolderLocation
from eventmq_contrib.spark.journal import JournalFile, check_version, folder_of

__all__ = [
    "Slice",
    "bundles",
    "folder_here",
    "holes",
    "latest",
    "plan",
    "read_slice",
    "sealed_files",
]

#: Rows of a batch that is passed to Spark, and of the small files that one Spark task reads.
_BATCH_ROWS = 65_536


class Slice(NamedTuple):
    """Events of one file by their numbers, the first and the last one included."""

    path: str
    first: int
    last: int
    broker: str


def sealed_files(journal: str, after: Mapping[str, int] | None = None) -> list[JournalFile]:
    """Return the files of a journal, by broker and number; none if no file is sealed yet.

    Args:
        journal: Folder of the journal.
        after: Number per broker up to which a stream has read the events.

    Raises:
        StoreError: There is no such folder, its beginning is missing, a file is foreign, or the
            events that the stream reads next were removed from the journal.
        SettingsError: The journal is an address.
    """
    catalog = Catalog.read(FolderLocation(folder_here(journal)))
    files = catalog.current()
    catalog.check(files)
    for broker, number in (after or {}).items():
        begin = catalog.begins.get(broker, 0)
        if begin > number + 1:
            raise StoreError(
                f"the events {number + 1} to {begin - 1} of the broker {broker} were forgotten "
                "before this stream had read them: start a new one, with a new checkpoint"
            )
    return files


def folder_here(journal: str) -> Path:
    """Return the folder of a journal.

    Raises:
        SettingsError: The journal is an address, whose files only Spark itself reads.
    """
    folder = folder_of(journal)
    if folder is None:
        raise SettingsError(
            f"the format reads folders, not {journal}: use eventmq_contrib.spark.read_journal"
        )
    return folder


def holes(files: Iterable[JournalFile], after: Mapping[str, int]) -> set[tuple[str, int]]:
    """Return the broker and number of each gap between files that are not read yet.

    Args:
        files: As from `sealed_files`.
        after: Number per broker up to which they were read.
    """
    gaps, reach = set(), dict(after)
    for file in files:
        reached = reach.get(file.broker, file.first - 1)
        if file.first > reached + 1:
            gaps.add((file.broker, reached + 1))
        reach[file.broker] = max(reached, file.last)
    return gaps


def latest(
    files: Sequence[JournalFile], after: Mapping[str, int], limit: int = 0
) -> dict[str, int]:
    """Return the number per broker up to which the next events are read: at most ``limit`` events.

    Events are counted hour by hour over all brokers, so that none of them is more than an hour
    behind the others.

    Args:
        files: As from `sealed_files`.
        after: Number per broker up to which they were read.
        limit: Events, or 0 for all.
    """
    end = dict(after)
    for file in sorted(files, key=lambda other: other.hour):
        begin = end.get(file.broker, 0)
        if file.last <= begin:
            continue
        done = sum(number - after.get(broker, 0) for broker, number in end.items())
        remaining = limit - done if limit else file.last
        if remaining > 0:
            end[file.broker] = min(file.last, max(begin, file.first - 1) + remaining)
    return end


def plan(
    files: Sequence[JournalFile],
    after: Mapping[str, int],
    upto: Mapping[str, int] | None = None,
) -> list[Slice]:
    """Return the slices with the events between two numbers per broker, each once.

    Args:
        files: As from `sealed_files`.
        after: Number per broker; a broker that is not in it is read from its beginning.
        upto: Last number per broker, without other brokers; None for all events.
    """
    slices = []
    done = dict(after)
    for file in files:
        first = max(file.first, done.get(file.broker, 0) + 1)
        last = file.last if upto is None else min(file.last, upto.get(file.broker, 0))
        if first <= last:
            slices.append(Slice(file.path, first, last, file.broker))
            done[file.broker] = last
    return slices


def bundles(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return groups of slices, each for one Spark task: many small files, or one large one."""
    groups: list[list[Slice]] = []
    remaining = 0
    for part in slices:
        n = part.last - part.first + 1
        if n > remaining:
            groups.append([])
            remaining = _BATCH_ROWS
        groups[-1].append(part)
        remaining -= n
    return groups


def read_slice(part: Slice, schema: Any, kinds: Sequence[str] = ()) -> Iterator[Any]:
    """Yield the events of a slice as `pyarrow.RecordBatch` of a schema.

    Args:
        part: The slice.
        schema: `pyarrow.Schema`, with columns of events; those that an older EventMQ did not write
            are null.
        kinds: Kinds of the events; empty for all.

    Raises:
        StoreError: The file is torn, foreign, or of a newer EventMQ.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(part.path, page_checksum_verification=True)
        names = [name for name in schema.names if name in file.schema_arrow.names]
        table = file.read(columns=list(dict.fromkeys([*names, "seq", "kind"])))
        seq = table.column("seq")
    except (pa.ArrowException, KeyError, OSError) as error:
        raise StoreError(
            f"{part.path} is torn, or no file of a journal: move it away; the others are unharmed"
        ) from error
    check_version(part.path, file.schema_arrow.metadata)
    table = table.filter(pc.and_(pc.greater_equal(seq, part.first), pc.less_equal(seq, part.last)))
    if kinds:
        table = table.filter(pc.is_in(table.column("kind"), pa.array(kinds)))
    for field in schema:
        if field.name not in names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    yield from table.select(schema.names).cast(schema).to_batches(_BATCH_ROWS)
