"""Which part of which file of a journal is to be read, so that each event comes once.

A file's name says whose events it has and the first and last number, so that nothing is opened to
find out. What two files both have is read of the first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import StoreError
from eventmq.events import FileName
from eventmq_contrib.spark.journal import check_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Slice", "bundles", "holes", "journal_files", "latest", "plan", "read_slice"]

#: Rows of one batch that goes to Spark, and of the small files that one of its tasks reads.
_BATCH_ROWS = 65_536


class Slice(NamedTuple):
    """Events of one file by their numbers, the first and the last one included."""

    path: str
    first: int
    last: int
    broker: str


def journal_files(folder: str) -> list[tuple[FileName, str]]:
    """Return the sealed files of a journal with their paths, by broker and number.

    Raises:
        StoreError: There is no such folder.
    """
    if not Path(folder).is_dir():
        raise StoreError(
            f"there is no journal in {folder}: name the folder that eventmq journal writes"
        )
    found = []
    for hour in _hours(folder):
        with os.scandir(hour) as entries:
            for entry in entries:
                name = FileName.parse(entry.name)
                if name is not None:
                    found.append((name, entry.path))
    # Of two that begin together the longer one comes first.
    return sorted(found, key=lambda each: (each[0].broker, each[0].first, -each[0].last))


def _hours(folder: str) -> Iterator[str]:
    for date in _folders(folder, "date="):
        yield from _folders(date, "hour=")


def _folders(folder: str, begin: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.name.startswith(begin)]


def holes(files: Iterable[tuple[FileName, str]], after: Mapping[str, int]) -> set[tuple[str, int]]:
    """Return broker and number where numbers are missing between files that are not read yet.

    Args:
        files: As from `journal_files`.
        after: Number per broker up to which they were read.
    """
    found, reach = set(), dict(after)
    for name, _ in files:
        there = reach.get(name.broker, name.first - 1)
        if name.first > there + 1:
            found.add((name.broker, there + 1))
        reach[name.broker] = max(there, name.last)
    return found


def latest(
    files: Sequence[tuple[FileName, str]], after: Mapping[str, int], most: int = 0
) -> dict[str, int]:
    """Return the last number per broker, after some more events at most.

    Hour by hour over all brokers, so that none of them is more than an hour behind the others.

    Args:
        files: As from `journal_files`.
        after: Number per broker up to which they were read.
        most: Events, or 0 for all.
    """
    end = dict(after)
    for name, _ in sorted(files, key=lambda each: os.path.dirname(each[1])):  # noqa: PTH120 - many
        begin = end.get(name.broker, 0)
        if name.last <= begin:
            continue
        if not most:
            end[name.broker] = name.last
            continue
        left = most - sum(number - after.get(broker, 0) for broker, number in end.items())
        if left > 0:
            end[name.broker] = min(name.last, max(begin, name.first - 1) + left)
    return end


def plan(
    files: Sequence[tuple[FileName, str]],
    after: Mapping[str, int],
    upto: Mapping[str, int] | None = None,
) -> list[Slice]:
    """Return what has the events after some numbers and up to others, each once.

    Args:
        files: As from `journal_files`.
        after: Number per broker; a broker that is not in it is read from its beginning.
        upto: Number per broker, and no other broker; None for all.
    """
    slices = []
    done = dict(after)
    for name, path in files:
        first = max(name.first, done.get(name.broker, 0) + 1)
        last = name.last if upto is None else min(name.last, upto.get(name.broker, 0))
        if first <= last:
            slices.append(Slice(path, first, last, name.broker))
            done[name.broker] = last
    return slices


def bundles(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return slices in groups, each for one task of Spark: many small files, or one large one."""
    groups: list[list[Slice]] = []
    room = 0
    for part in slices:
        n = part.last - part.first + 1
        if n > room:
            groups.append([])
            room = _BATCH_ROWS
        groups[-1].append(part)
        room -= n
    return groups


def read_slice(part: Slice, schema: Any, kinds: Sequence[str] = ()) -> Iterator[Any]:
    """Yield the events of a slice as `pyarrow.RecordBatch` of a schema.

    Args:
        part: What is read.
        schema: `pyarrow.Schema`, with columns of events; those that an older EventMQ did not write
            are null.
        kinds: Of the events, all if there are none.

    Raises:
        StoreError: The file is torn, no file of a journal, or of a newer EventMQ.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(part.path)
        names = [name for name in schema.names if name in file.schema_arrow.names]
        table = file.read(columns=list(dict.fromkeys([*names, "seq", "kind"])))
        seq = table.column("seq")
    except (pa.ArrowException, KeyError, OSError) as error:
        msg = f"{part.path} is torn, or no file of a journal: move it away; the others are unharmed"
        raise StoreError(msg) from error
    check_version(part.path, file.schema_arrow.metadata)
    table = table.filter(pc.and_(pc.greater_equal(seq, part.first), pc.less_equal(seq, part.last)))
    if kinds:
        table = table.filter(pc.is_in(table.column("kind"), pa.array(kinds)))
    for field in schema:
        if field.name not in names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    yield from table.select(schema.names).cast(schema).to_batches(_BATCH_ROWS)
