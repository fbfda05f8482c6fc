"""Reads the files of a journal as one DataFrame of events, each of them once.

What is to be read is decided from the names of the files and their footers, so that events are
compared with each other only where two files may have the same ones.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import StoreError
from eventmq.events import COLUMNS, SCHEMA_VERSION, FileName
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["JournalError", "JournalFile", "check_version", "journal_files", "read_journal"]

_HOUR = timedelta(hours=1)

#: Columns without which a row is no event. Others may be missing: then they are null.
_NEEDED = frozenset({"broker_id", "seq", "ts_us", "kind"})

#: Characters that mean something in a path that Spark reads.
_PATTERN = re.compile(r"[][{}*?\\]")

_VERSION_KEY = b"eventmq.schema_version"


class JournalError(StoreError):
    """A journal is missing or empty, or a file in it is torn or not of a journal."""


class JournalFile(NamedTuple):
    """A file of events: whose they are, the first and last number, and where it is."""

    broker: str
    first: int
    last: int
    path: Path


def read_journal(
    spark: SparkSession, folder: str | Path, *,
    since: float | None = None, until: float | None = None,
    queue: str | None = None, task: str | None = None,
) -> DataFrame:  # fmt: skip
    """Return the events of a journal, by no particular order, with all published columns.

    Compacted files are taken instead of those that they were made of, where there are some in the
    folder ``compacted`` beside the journal.

    Args:
        spark: Reads them.
        folder: Of the journal; or an address that Spark knows, as ``s3a://bucket/journal``, whose
            files Spark finds by itself.
        since: Unix time of the first events, in seconds.
        until: Unix time before which the last ones are, in seconds.
        queue: Only events of this queue.
        task: Only events of this task.

    Raises:
        JournalError: There is no journal, it has no events, or a file is torn or foreign.
    """
    events = _all_events(spark, str(folder), since, until)
    if since is not None:
        events = events.where(events.ts_us >= round(since * 1_000_000))
    if until is not None:
        events = events.where(events.ts_us < round(until * 1_000_000))
    for name, value in (("queue", queue), ("task", task)):
        if value is not None:
            events = events.where(events[name] == value)
    return events


def _all_events(
    spark: SparkSession, folder: str, since: float | None, until: float | None
) -> DataFrame:
    """Return the events of all files that may have some of that time."""
    from eventmq_contrib.spark.schema import events_type

    if "://" in folder and not folder.startswith("file://"):
        events = spark.read.schema(events_type()).parquet(folder)
        return events.dropDuplicates(["broker_id", "seq"])
    files = journal_files(Path(folder.removeprefix("file://")), since=since, until=until)
    single, shared = _apart(files)
    found = [_read(spark, paths) for paths in (single, shared) if paths]
    if shared:
        found[-1] = found[-1].dropDuplicates(["broker_id", "seq"])
    if not found:
        return spark.createDataFrame([], events_type())
    return found[0] if len(found) == 1 else found[0].unionByName(found[1])


def _read(spark: SparkSession, files: list[JournalFile]) -> DataFrame:
    from eventmq_contrib.spark.schema import events_type

    return spark.read.schema(events_type()).parquet(*(_address(file.path) for file in files))


def _address(path: Path) -> str:
    """Return a path as Spark reads it: not quoted as in other addresses, but a pattern."""
    return "file://" + _PATTERN.sub(r"\\\g<0>", str(path))


def _apart(files: Iterable[JournalFile]) -> tuple[list[JournalFile], list[JournalFile]]:
    """Return the files whose events no other has, and those that may have the same ones.

    Raises:
        JournalError: A file is torn or foreign.
    """
    single: list[JournalFile] = []
    shared: list[JournalFile] = []
    furthest: JournalFile | None = None
    for file in sorted(files):
        if furthest is None or file.broker != furthest.broker or file.first > furthest.last:
            whole = _rows_in(file.path) == file.last - file.first + 1
            (single if whole else shared).append(file)
            furthest = file
            continue
        _rows_in(file.path)
        shared.append(file)
        if furthest in single:
            single.remove(furthest)
            shared.append(furthest)
        furthest = max(furthest, file, key=lambda each: each.last)
    return single, shared


# Which files there are


def journal_files(
    folder: Path, *, since: float | None = None, until: float | None = None
) -> list[JournalFile]:
    """Return the files that have the events of some time: compacted ones first of all.

    Args:
        folder: Of the journal, or that of its compacted files.
        since: Unix time in seconds: files of hours before it are left out.
        until: Unix time in seconds: files of hours after it are left out.

    Raises:
        JournalError: There is no journal, it has no events, or there is a foreign file in it.
    """
    folder = folder.absolute()
    if not folder.is_dir():
        msg = (
            f"there is no journal in {folder}: name its folder with --journal, or begin one with "
            '"eventmq journal"'
        )
        raise JournalError(msg)
    own = [] if (folder / "manifest.json").is_file() else list(_sealed(folder))
    brokers = {file.broker for file in own}
    compacted, replaced = _compacted(folder if not own else folder.parent / "compacted")
    if own:
        compacted = [file for file in compacted if file.broker in brokers]
    files = [*compacted, *(file for file in own if file[:3] not in replaced)]
    if not files:
        msg = f'the journal {folder} has no events yet: "eventmq journal" seals them after a minute'
        raise JournalError(msg)
    return [file for file in files if _is_of_time(file.path, since, until)]


def _sealed(folder: Path) -> Iterator[JournalFile]:
    for path in sorted(folder.glob("date=*/hour=*/*.parquet")):
        if path.name[0] in "_.":
            continue
        name = FileName.parse(path.name)
        if name is None:
            msg = f"{path} is not a file of a journal, by its name: move it away"
            raise JournalError(msg)
        yield JournalFile(*name, path)


def _compacted(folder: Path) -> tuple[list[JournalFile], set[tuple[str, int, int]]]:
    """Return the files that the manifest names, and which files of the journal they replace."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return [], set()
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        files = [
            JournalFile(e["broker"], e["first"], e["last"], folder / e["path"]) for e in entries
        ]
        replaced = {(e["broker"], first, last) for e in entries for first, last in e["of"]}
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{manifest} is not the manifest of a compaction: move it away"
        raise JournalError(msg) from error
    return files, replaced


def _is_of_time(path: Path, since: float | None, until: float | None) -> bool:
    """Say whether the hour of a file, which is in its path, has anything of some time."""
    text = "/".join(path.parts[-3:-1])
    try:
        hour = datetime.strptime(text, "date=%Y-%m-%d/hour=%H").replace(tzinfo=timezone.utc)
    except ValueError as error:
        msg = f"{path} is in no folder of an hour: move it away"
        raise JournalError(msg) from error
    late = until is not None and hour.timestamp() >= until
    return not late and not (since is not None and (hour + _HOUR).timestamp() <= since)


# What is in them


def _rows_in(path: Path) -> int:
    """Return the number of rows of a file.

    Raises:
        JournalError: It is torn, has no events, or those of a newer EventMQ.
    """
    need("pyarrow.parquet", user="eventmq spark")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        msg = f"{path} is torn or cannot be read ({error}): move it away, the others are unharmed"
        raise JournalError(msg) from error
    _check(path, footer)
    rows: int = footer.num_rows
    return rows


def check_version(path: Path | str, said: Mapping[bytes, bytes] | None) -> None:
    """See that a file's columns mean what they mean here.

    Args:
        path: Of the file.
        said: Its metadata.

    Raises:
        StoreError: It is of a newer EventMQ.
    """
    version = int((said or {}).get(_VERSION_KEY, SCHEMA_VERSION))
    if version > SCHEMA_VERSION:
        msg = (
            f"{path} is of a newer EventMQ: its events have schema version {version}, this one "
            f"knows up to {SCHEMA_VERSION}; update this one"
        )
        raise JournalError(msg)


def _check(path: Path, footer: Any) -> None:
    """See that a file has columns of events, of a version that is known here."""
    schema = footer.schema.to_arrow_schema()
    missing = sorted(_NEEDED - set(schema.names))
    if missing:
        msg = f"{path} has no events, it lacks the column {missing[0]}: move it away"
        raise JournalError(msg)
    for column in COLUMNS:
        if column.name in schema.names and str(schema.field(column.name).type) != column.type:
            kind = schema.field(column.name).type
            msg = f"{path} has the column {column.name} as {kind}, not {column.type}: move it away"
            raise JournalError(msg)
    check_version(path, footer.metadata)
