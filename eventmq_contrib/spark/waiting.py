"""Waiting jobs of a growing journal, for the column ``oldest`` of a stream.

A job waits from the event that makes it ready to its next event. The oldest is known only if all
waiting jobs are known by id. Spark would keep them in a state through which each event passes. Here
the driver reads the few necessary columns of the new events, in the order of their numbers, and
removes a job at the event that ends its wait.

That event may be among missing or dropped numbers. So jobs that waited before such numbers are
*unknown* from then on, as in `analyses.audit`, and are removed too. A later event makes a job known
again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventmq.sdk.events import STATES
from eventmq_contrib.spark.analyses.states import READY
from eventmq_contrib.spark.atomic import write_parquet
from eventmq_contrib.spark.choice import Choice
from eventmq_contrib.spark.source.files import Slice, plan, read_slice, sealed_files

__all__ = ["EventFilter", "Oldest", "WaitingJobs"]

#: Seconds between two writes of the state; later events are read again after a restart.
_WRITE_EVERY = 60.0

#: Least pause between writes, as a multiple of the time of a write, which delays its batch.
_PAUSE_FACTOR = 50

#: Jobs that are written or read at a time, so that memory never holds all of them twice.
_BATCH_ROWS = 65_536

#: Columns of a written state.
_STATE = pa.schema({
    "broker_id": pa.string(), "queue": pa.string(), "job_id": pa.string(), "ready_us": pa.int64(),
}.items())  # fmt: skip

#: Columns of events that are read.
_EVENT_SCHEMA = pa.schema({
    "kind": pa.string(), "queue": pa.string(), "task": pa.string(), "job_id": pa.string(),
    "seq": pa.int64(), "ts_us": pa.int64(),
}.items())  # fmt: skip

#: Keys of the metadata of a written state.
_UPTO, _NEWEST = b"eventmq.upto", b"eventmq.newest_us"


class Oldest(NamedTuple):
    """Waiting jobs of a queue: their number, ready time and age (seconds) of the oldest."""

    jobs: int
    ready_us: int
    seconds: float


class SliceEvents(NamedTuple):
    """Events of a slice of a journal.

    Attributes:
        rows: Events that pass the filter, as a `pyarrow.Table`.
        last: Last number of all its events, None if it has none.
        whole_from: First number after the last missing one, 0 if none is missing.
    """

    rows: Any
    last: int | None
    whole_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter(Choice):
    """Filter of the events of a journal.

    Attributes:
        journal: Folder of the journal, or an address that Spark knows.
    """

    journal: str

    def between(self, after: Mapping[str, int], upto: Mapping[str, int]) -> Iterable[Slice]:
        """Return the slices with the events between two offsets, by broker and number."""
        return plan(sealed_files(self.journal), after, upto)

    def read(self, part: Slice, after: int | None) -> SliceEvents:
        """Return the events of a slice.

        Missing numbers are searched among all events, whatever the filter.

        Args:
            part: Slice to read.
            after: Number before it, None at the beginning of the journal.
        """
        table = pa.Table.from_batches(read_slice(part, _EVENT_SCHEMA), _EVENT_SCHEMA)
        seq = table.column("seq")
        at = pc.field("ts_us")
        rows = table
        if self.until is not None:
            rows = rows.filter(at < round(self.until * 1_000_000))
            # Events that are missing after that time have no effect.
            seq = seq.filter(pc.less_equal(seq, pc.max(rows.column("seq"))))
        if self.since is not None:
            rows = rows.filter(at >= round(self.since * 1_000_000))
        for name, value in (("queue", self.queue), ("task", self.task)):
            if value is not None:
                rows = rows.filter(pc.field(name) == value)
        return SliceEvents(rows, pc.max(table.column("seq")).as_py(), _whole_from(seq, after))


def _whole_from(seq: Any, after: int | None) -> int:
    """Return the number after the last missing one among sorted numbers, 0 if none is missing."""
    numbers = seq.to_numpy()
    if not len(numbers):
        return 0
    before = np.concatenate([[numbers[0] - 1 if after is None else after], numbers[:-1]])
    breaks = numbers[numbers > before + 1]
    return int(breaks[-1]) if len(breaks) else 0


@dataclass(slots=True)
class _ReadyJobs:
    """Waiting jobs of a queue of one broker, in the order in which they became ready."""

    #: Id -> ready time in microseconds.
    ready: dict[str, int] = field(default_factory=dict)
    latest: int = 0
    #: Whether the broker's clock was set back, so that the first job may not be the oldest.
    unordered: bool = False

    def add(self, job: str, at: int) -> None:
        """Add a waiting job."""
        self.unordered = bool(self.ready) and (self.unordered or at < self.latest)
        self.latest = at
        self.ready[job] = at

    def oldest(self) -> int:
        """Return the ready time of the oldest job; there must be a job."""
        return min(self.ready.values()) if self.unordered else next(iter(self.ready.values()))


class WaitingJobs:
    """Waiting jobs after the events read so far, regularly saved to a file.

    Args:
        events: Filter of the events.
        checkpoint: Folder of the query, in which Spark writes the offsets of each batch.
        path: Path of the file.
    """

    def __init__(self, events: EventFilter, checkpoint: Path, path: Path) -> None:
        self._events, self._checkpoint, self._path = events, checkpoint, path
        self._lines: dict[tuple[str, str | None], _ReadyJobs] = {}
        self._upto: dict[str, int] | None = None
        #: Time of the next write, by `time.monotonic`.
        self._write_at = 0.0
        #: Time of the newest event so far, in microseconds.
        self._newest_us = 0

    def advance(self, batch: int) -> bool:
        """Apply the events up to the end of a batch; a repeated batch has no new ones.

        Returns:
            Whether the result of `queues` may have changed; always true after a start.
        """
        changed = self._upto is None
        if self._upto is None:
            self._upto = self._read()
        upto = _end_of(self._checkpoint, batch)
        for part in self._events.between(self._upto, upto):
            part_events = self._events.read(part, self._upto.get(part.broker))
            changed |= self._apply(part.broker, part_events)
            if part_events.last is not None:
                # Not the end of the batch: the next slice shows numbers that are missing before it.
                self._upto[part.broker] = part_events.last
        if time.monotonic() >= self._write_at:
            self._write()
        return changed

    def queues(self) -> dict[str, Oldest]:
        """Return the waiting jobs of each queue at the time of the newest event."""
        oldest: dict[str, Oldest] = {}
        for (_, queue), line in self._lines.items():
            if queue is not None and line.ready:
                jobs, ready_us = len(line.ready), line.oldest()
                if queue in oldest:
                    jobs, ready_us = (
                        jobs + oldest[queue].jobs,
                        min(ready_us, oldest[queue].ready_us),
                    )
                seconds = (self._newest_us - ready_us) / 1_000_000
                oldest[queue] = Oldest(jobs, ready_us, seconds)
        return oldest

    def _apply(self, broker: str, part_events: SliceEvents) -> bool:
        """Apply the events of a slice; return whether that changed anything."""
        table = part_events.rows
        if table.num_rows:
            self._newest_us = max(self._newest_us, pc.max(table.column("ts_us")).as_py())
        changed = bool(table.num_rows)
        if part_events.whole_from:
            removed = [self._lines.pop(key) for key in list(self._lines) if key[0] == broker]
            changed |= any(line.ready for line in removed)
            table = table.filter(pc.field("seq") >= part_events.whole_from)
        table = table.filter(pc.is_in(table.column("kind"), pa.array(map(str, STATES))))
        ready = pc.is_in(table.column("kind"), pa.array(map(str, READY)))
        columns = [table.column(name).to_pylist() for name in ("queue", "job_id", "ts_us")]
        lines = self._lines
        for queue, job, at, waits in zip(*columns, ready.to_pylist(), strict=True):
            line = lines.get((broker, queue))
            if line is None:
                line = lines[broker, queue] = _ReadyJobs()
            line.ready.pop(job, None)
            if waits:
                line.add(job, at)
        return changed

    # The state as a file

    def _write(self) -> None:
        """Write the state, and remove empty queues."""
        started = time.monotonic()
        self._lines = {key: line for key, line in self._lines.items() if line.ready}
        metadata = {_UPTO: json.dumps(self._upto), _NEWEST: str(self._newest_us)}
        write_parquet(self._path, _STATE.with_metadata(metadata), self._tables())
        ended = time.monotonic()
        self._write_at = ended + max(_WRITE_EVERY, _PAUSE_FACTOR * (ended - started))

    def _tables(self) -> Iterator[Any]:
        """Yield the waiting jobs as tables of bounded size."""
        for key, line in self._lines.items():
            ids, times = iter(line.ready), iter(line.ready.values())
            while batch := list(islice(ids, _BATCH_ROWS)):
                names = [pa.array([name], pa.string()).take(pa.array([0] * len(batch)))
                         for name in key]  # fmt: skip
                ready = pa.array(list(islice(times, len(batch))), pa.int64())
                columns = [*names, pa.array(batch, pa.string()), ready]
                yield pa.table(columns, schema=_STATE)

    def _read(self) -> dict[str, int]:
        """Read the state; return its numbers by broker, none if there is no file."""
        if not self._path.is_file():
            return {}
        file = pq.ParquetFile(self._path)
        for batch in file.iter_batches(_BATCH_ROWS):
            for broker, queue, job, at in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                self._lines.setdefault((broker, queue), _ReadyJobs()).add(job, at)
        metadata = file.schema_arrow.metadata
        self._newest_us = int(metadata[_NEWEST])
        upto: dict[str, int] = json.loads(metadata[_UPTO])
        return upto


def _end_of(checkpoint: Path, batch: int) -> dict[str, int]:
    """Return the last number per broker of a batch, which Spark writes before the batch begins.

    The file has a version, a line about the query, and then a line per source with its offset.
    """
    text = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8")
    _, _, offset = text.splitlines()
    upto: dict[str, int] = json.loads(offset)
    return upto
