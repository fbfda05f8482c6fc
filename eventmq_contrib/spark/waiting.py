"""Which jobs wait for a worker while a journal grows: what ``oldest`` of a stream is made of.

A job waits from an event that makes it ready up to its next one. To know the oldest that waits,
each of them must be known by its id. Spark would keep these in a state that each event goes
through; here the driver itself reads the few columns that are needed, of what a batch has brought
and no more, in the order of the numbers. A job is forgotten with the event that ends its waiting.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.events import STATES
from eventmq_contrib.spark.drafts import put_table
from eventmq_contrib.spark.products.states import READY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from eventmq_contrib.spark.source.files import Slice

__all__ = ["Events", "Oldest", "Waiting"]

#: Seconds between two writings of the state: what came since then is read again after a restart.
_EVERY = 60.0

#: Keys of what is said of a written state.
_UPTO, _NEWEST = b"eventmq.upto", b"eventmq.newest_us"


class Oldest(NamedTuple):
    """How many jobs of a queue wait, and about the oldest: since when, for how many seconds."""

    jobs: int
    ready_us: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Which events of a journal are looked at.

    Attributes:
        journal: Folder of the journal.
        queue: Of jobs of this queue, or None.
        task: Of jobs of this task, or None.
        since_us: Of then and later, in microseconds, or None.
        until_us: Before then, in microseconds, or None.
    """

    journal: str
    queue: str | None = None
    task: str | None = None
    since_us: int | None = None
    until_us: int | None = None

    def between(self, after: Mapping[str, int], upto: Mapping[str, int]) -> Iterable[Slice]:
        """Return what has the events after some numbers and up to others, by broker and number."""
        from eventmq_contrib.spark.source.files import journal_files, plan

        return plan(journal_files(self.journal), after, upto)

    def of(self, part: Slice) -> Any:
        """Return the events of a part, as a `pyarrow.Table`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from eventmq_contrib.spark.source.files import read_slice

        texts = [pa.field(name, pa.string()) for name in ("kind", "queue", "task", "job_id")]
        schema = pa.schema([*texts, pa.field("ts_us", pa.int64())])
        at = pc.field("ts_us")
        wanted = [pc.field(name) == getattr(self, name) for name in ("queue", "task")
                  if getattr(self, name) is not None]  # fmt: skip
        wanted += [at >= self.since_us] if self.since_us is not None else []
        wanted += [at < self.until_us] if self.until_us is not None else []
        table = pa.Table.from_batches(read_slice(part, schema), schema)
        for each in wanted:
            table = table.filter(each)
        return table


class _Line:
    """The jobs of a queue of one broker that wait, in the order in which they became ready."""

    __slots__ = ("latest", "ready", "tangled")

    def __init__(self) -> None:
        #: Id -> since when it is ready, in microseconds.
        self.ready: dict[str, int] = {}
        self.latest = 0
        #: The broker's clock was put back: the first is not the oldest.
        self.tangled = False

    def add(self, job: str, at: int) -> None:
        """Let a job wait from now on."""
        self.tangled = bool(self.ready) and (self.tangled or at < self.latest)
        self.latest = at
        self.ready[job] = at

    def oldest(self) -> int:
        """Return since when the oldest is ready; there must be one."""
        return min(self.ready.values()) if self.tangled else next(iter(self.ready.values()))


class Waiting:
    """Knows which jobs wait after some events, and writes down what it knows now and then.

    Args:
        events: Which there are.
        checkpoint: Folder of the query, in which Spark notes up to where each batch goes.
        path: Of the file for what it knows.
    """

    def __init__(self, events: Events, checkpoint: Path, path: Path) -> None:
        self._events, self._checkpoint, self._path = events, checkpoint, path
        self._lines: dict[tuple[str, str | None], _Line] = {}
        self._upto: dict[str, int] | None = None
        self._written = 0.0
        #: Time of the newest event so far, in microseconds.
        self._newest_us = 0

    def advance(self, batch: int) -> None:
        """Take the events up to the end of a batch; of one that is done again there are none."""
        if self._upto is None:
            self._upto = self._read()
        upto = _end_of(self._checkpoint, batch)
        for part in self._events.between(self._upto, upto):
            self._take(part.broker, self._events.of(part))
        self._upto |= {broker: max(seq, self._upto.get(broker, 0)) for broker, seq in upto.items()}
        if not self._written or time.monotonic() - self._written >= _EVERY:
            self._write()

    def queues(self) -> dict[str, Oldest]:
        """Return what waits at the time of the newest event, by queue."""
        found: dict[str, Oldest] = {}
        for (_, queue), line in self._lines.items():
            if queue is not None and line.ready:
                jobs, ready_us = len(line.ready), line.oldest()
                if queue in found:
                    jobs, ready_us = jobs + found[queue].jobs, min(ready_us, found[queue].ready_us)
                seconds = (self._newest_us - ready_us) / 1_000_000
                found[queue] = Oldest(jobs, ready_us, seconds)
        return found

    def _take(self, broker: str, table: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if table.num_rows:
            self._newest_us = max(self._newest_us, pc.max(table.column("ts_us")).as_py())
        table = table.filter(pc.is_in(table.column("kind"), pa.array(map(str, STATES))))
        ready = pc.is_in(table.column("kind"), pa.array(map(str, READY)))
        columns = [table.column(name).to_pylist() for name in ("queue", "job_id", "ts_us")]
        lines = self._lines
        for queue, job, at, waits in zip(*columns, ready.to_pylist(), strict=True):
            line = lines.get((broker, queue))
            if line is None:
                line = lines[broker, queue] = _Line()
            line.ready.pop(job, None)
            if waits:
                line.add(job, at)

    # What it knows, as a file

    def _write(self) -> None:
        """Write it down, and forget queues in which nothing waits."""
        import pyarrow as pa

        self._lines = {key: line for key, line in self._lines.items() if line.ready}
        parts = []
        for key, line in self._lines.items():
            names = [pa.array([name]).cast(pa.string()).take(pa.array([0] * len(line.ready)))
                     for name in key]  # fmt: skip
            ids, times = pa.array(line.ready.keys()), pa.array(line.ready.values(), pa.int64())
            parts.append(pa.table([*names, ids, times], schema=_schema()))
        table = pa.concat_tables([_schema().empty_table(), *parts])
        said = {_UPTO: json.dumps(self._upto), _NEWEST: str(self._newest_us)}
        put_table(self._path, table.replace_schema_metadata(said))
        self._written = time.monotonic()

    def _read(self) -> dict[str, int]:
        """Return up to which numbers what was written down goes: nothing, if there is none."""
        import pyarrow.parquet as pq

        if not self._path.is_file():
            return {}
        table = pq.ParquetFile(self._path).read()
        for broker, queue, job, at in zip(*(c.to_pylist() for c in table.columns), strict=True):
            self._lines.setdefault((broker, queue), _Line()).add(job, at)
        said = table.schema.metadata
        self._newest_us = int(said[_NEWEST])
        upto: dict[str, int] = json.loads(said[_UPTO])
        return upto


def _end_of(checkpoint: Path, batch: int) -> dict[str, int]:
    """Return up to which number per broker a batch goes, which Spark notes before it begins it.

    The file has a version, a line about the query, and then a line per source with its offset.
    """
    text = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8")
    _, _, offset = text.splitlines()
    upto: dict[str, int] = json.loads(offset)
    return upto


def _schema() -> Any:
    import pyarrow as pa

    texts = [pa.field(name, pa.string()) for name in ("broker_id", "queue", "job_id")]
    return pa.schema([*texts, pa.field("ready_us", pa.int64())])
