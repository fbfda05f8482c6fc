"""Events of jobs: kinds, columns of a row, stored form, and the names of the journal's files.

Pure: this module opens no file. The broker's store writes events in the same commit as the change
that they record; a journal copies them into files.

All writers and readers of events use the same row: the journal's Parquet files, the analyses of
them, observers. `FileName` and `partition` define the names of the files of a journal, as in
``date=YYYY-MM-DD/hour=HH/<broker>-<first seq>-<last seq>.parquet``, with times in UTC. A file whose
name begins with ``_`` or ``.`` is still being written, and readers ignore it.

The stored events of a commit are MessagePack, a list of blocks ``[common, ids, columns]``: the
fields that all events of the block share, the ids of their jobs, and the fields that differ, both
by the numbers of `Field`. A field in neither is unknown or does not apply. So an event costs one
item in a few lists, and a value that a thousand jobs share is written once. `EventColumns` and
`rows_of` convert blocks to rows.
"""

from __future__ import annotations

import enum
import hashlib
import re
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from eventmq.errors import EventMQError
from eventmq.job import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Redact = Callable[[str, "Block"], Sequence[str | None]]

__all__ = [
    "COLUMNS", "ENDS", "HOUR_US", "KIND_CODES", "SCHEMA_VERSION", "STATES", "Block", "EventColumn",
    "EventColumns", "EventKind", "Field", "FileName", "fingerprint", "gap", "pack_blocks",
    "partition", "rows_of", "unpack_blocks", "waits_of",
]  # fmt: skip

#: In the column ``schema_version`` of each row. It grows when a column changes its meaning, or when
#: a kind without a job is added; adding a column does not change it.
SCHEMA_VERSION = 2


class EventKind(str, enum.Enum):
    """Kind of an event. The position is the number in stored events: only add at the end."""

    #: A job was admitted, or became ready after a delay; it waits for a worker.
    ENQUEUED = "enqueued"
    #: A job was admitted that waits for its time, or for other jobs.
    DELAYED = "delayed"
    #: A worker has held the job for a while. A job that ends soon has no event of this kind.
    LEASED = "leased"
    #: The worker still holds the job.
    PROGRESS = "progress"
    SUCCEEDED = "succeeded"
    #: The job failed for good.
    FAILED = "failed"
    #: An attempt failed, and the next one waits for its time.
    RETRY = "retry"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    #: The worker, or the process that ran the job, died; the job waits again.
    LEASE_LOST = "lease_lost"
    #: A worker returned the job before starting it; the job waits again.
    HANDED_BACK = "handed_back"
    #: A failed job was queued again, as its next attempt.
    REPLAYED = "replayed"
    #: A job was submitted whose id or unique key is in use; nothing was stored.
    DUPLICATE = "duplicate"
    #: Events ``gap_first`` to ``gap_last`` were dropped before a journal read them.
    GAP = "gap"
    #: A user acted on a job, a queue, a schedule or the broker. Changes no state by itself.
    OPERATION = "operation"

    __str__ = str.__str__
    __hash__ = str.__hash__


#: Kinds that end a job.
ENDS = frozenset({EventKind.SUCCEEDED, EventKind.FAILED, EventKind.EXPIRED, EventKind.CANCELLED})

#: Kind -> state of the job after it; other kinds do not change the state.
STATES: Mapping[EventKind, JobState] = {
    EventKind.ENQUEUED: JobState.QUEUED,
    EventKind.DELAYED: JobState.DELAYED,
    EventKind.LEASED: JobState.RUNNING,
    EventKind.PROGRESS: JobState.RUNNING,
    EventKind.SUCCEEDED: JobState.SUCCEEDED,
    EventKind.FAILED: JobState.FAILED,
    EventKind.RETRY: JobState.DELAYED,
    EventKind.EXPIRED: JobState.EXPIRED,
    EventKind.CANCELLED: JobState.CANCELLED,
    EventKind.LEASE_LOST: JobState.QUEUED,
    EventKind.HANDED_BACK: JobState.QUEUED,
    EventKind.REPLAYED: JobState.QUEUED,
}


class EventColumn(NamedTuple):
    """A column: ``type`` is ``string``, ``int32`` or ``int64``."""

    name: str
    type: str
    nullable: bool
    meaning: str


def _column(name: str, type_: str, meaning: str, *, nullable: bool = True) -> EventColumn:
    return EventColumn(name, type_, nullable, meaning)


#: The columns in order. Times are microseconds since 1970 by the clock of the broker, or of the
#: worker where the column says so.
COLUMNS = (
    _column("broker_id", "string", "The broker's store", nullable=False),
    _column("seq", "int64", "Number of the event: 1, 2, 3 ... per broker", nullable=False),
    _column("ts_us", "int64", "Time of the event", nullable=False),
    _column("kind", "string", "Kind of the event", nullable=False),
    _column("job_id", "string", "Id of the job; null for ``gap`` and some ``operation``"),
    _column("root_id", "string", "First job of the tree that the job belongs to"),
    _column("parent_id", "string", "The job that it waited for, or that submitted it"),
    _column("trace_id", "string", "Id of the trace that the job belongs to"),
    _column("task", "string", "Name of the task, null for a legacy job"),
    _column("queue", "string", "Name of the queue"),
    _column("attempt", "int32", "Number of the attempt, from 1; grows at each retry"),
    _column(
        "delivery", "int32", "Number of the delivery; grows at each dispatch; 0 before the first"
    ),
    _column("worker_id", "string", "Name of the worker session that had the job"),
    _column("host", "string", "Host of that worker"),
    _column("release", "string", "Release of the code that submitted it, if the job has one"),
    _column("error_type", "string", "Dotted name of the exception"),
    _column("error_fingerprint", "string", "The same for errors of the same type and location"),
    _column("wait_us", "int64", "Waiting time of an ended attempt: from ready to its start"),
    _column("run_us", "int64", "Run time, by the worker's clock"),
    _column("bytes_in", "int64", "Length of the arguments"),
    _column("bytes_out", "int64", "Length of the result or error"),
    _column("schedule_id", "string", "The schedule that fired it"),
    _column("schema_version", "int32", "Version of this table", nullable=False),
    _column("leased_us", "int64", "Time when the job was handed to the worker"),
    _column("started_us", "int64", "Time when the worker started it, by the worker's clock"),
    _column(
        "due_us", "int64", "Time when a delayed job becomes ready, or would have if not expired"
    ),
    _column("gap_first", "int64", "For a ``gap``: the first missing number"),
    _column("gap_last", "int64", "For a ``gap``: the last missing number"),
    _column("arguments", "string", "JSON: the arguments as far as the redactor allows"),
    _column("result", "string", "JSON: the result as far as the redactor allows"),
    _column("actor", "string", "User who requested the ``operation``, also for its effects"),
    _column("operation", "string", "Name of the operation, such as ``cancel`` or ``pause``"),
)


# Files of a journal

#: Microseconds of an hour: what one folder holds.
HOUR_US = 3_600_000_000

_NAME = re.compile(r"([0-9A-Za-z][0-9A-Za-z_.]*)-([0-9]{1,19})-([0-9]{1,19})\.parquet")


class FileName(NamedTuple):
    """The name of a sealed file: id of the broker, and numbers of the first and last event."""

    broker: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.first}-{self.last}.parquet"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Parse the name of a file; None if it is not a file of a journal."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[2]) > int(match[3]):
            return None
        return cls(match[1], int(match[2]), int(match[3]))


def partition(ts_us: int) -> str:
    """Return the folder of the hour that contains a time in microseconds."""
    # Not with floats, which are inexact at the end of an hour.
    when = datetime.fromtimestamp(ts_us // 1_000_000, timezone.utc)
    return f"date={when:%Y-%m-%d}/hour={when:%H}"


# Stored events

#: Kind -> its number in stored events.
KIND_CODES = {kind: code for code, kind in enumerate(EventKind)}


class Field:
    """Numbers of the fields of events in a block; they never change. Times are Unix seconds."""

    KIND = 0
    AT = 1
    QUEUE = 2
    #: List of task, root, parent, trace, schedule and release; "" for none.
    LABEL = 3
    ATTEMPT = 4
    DELIVERY = 5
    WORKER = 6
    LEASED = 7
    #: When the job became ready.
    READY = 8
    STARTED = 9
    RAN = 10
    BYTES_IN = 11
    BYTES_OUT = 12
    DUE = 13
    ERROR_TYPE = 14
    FINGERPRINT = 15
    GAP_FIRST = 16
    GAP_LAST = 17
    #: Root and parent where they differ from the headers of the job; they override the label.
    ROOT = 18
    PARENT = 19
    #: Only with the setting ``redactor``: the body of an admitted job, or the result of a job that
    #: succeeded, and its content type (`eventmq.store.events`).
    CONTENT_TYPE = 20
    VALUE = 21
    #: The user who acted, and the operation.
    ACTOR = 22
    OPERATION = 23


class Block(NamedTuple):
    """Events of one commit that share fields, in order."""

    common: dict[int, Any]
    ids: Sequence[str]
    columns: dict[int, Sequence[Any]]

    def put(self, field: int, values: Sequence[Any]) -> None:
        """Add the values of a field, one per event; equal values are stored once."""
        first = values[0]
        if values.count(first) == len(values):
            self.common[field] = first
        else:
            self.columns[field] = values

    def has(self, field: int) -> bool:
        """Return whether the events have a field."""
        return field in self.common or field in self.columns

    def column(self, field: int) -> Sequence[Any]:
        """Return the value of a field for each event, None where it is not known."""
        values = self.columns.get(field)
        return values if values is not None else [self.common.get(field)] * len(self.ids)


#: Encodes the events of one commit.
pack_blocks: Callable[[Sequence[Block]], bytes] = msgpack.packb


def unpack_blocks(body: bytes) -> list[Block]:
    """Decode the events of one commit.

    Raises:
        EventMQError: The bytes are not packed events.
    """
    try:
        blocks = [Block(*block) for block in msgpack.unpackb(body, strict_map_key=False)]
    except Exception as error:
        raise EventMQError(f"{len(body)} bytes are not packed events") from error
    return blocks


def gap(first: int, last: int, at: float) -> Block:
    """Return the gap event for the first and the last missing number."""
    code = KIND_CODES[EventKind.GAP]
    common = {Field.KIND: code, Field.AT: at, Field.GAP_FIRST: first, Field.GAP_LAST: last}
    return Block(common, [""], {})


# Rows of stored events

_NAMES = tuple(column.name for column in COLUMNS)

_KINDS = tuple(kind.value for kind in EventKind)

_MICRO = 1_000_000

#: Columns that are copied from a field; "" and a missing value are null.
_COPIED = {
    "queue": Field.QUEUE,
    "attempt": Field.ATTEMPT,
    "delivery": Field.DELIVERY,
    "worker_id": Field.WORKER,
    "error_type": Field.ERROR_TYPE,
    "error_fingerprint": Field.FINGERPRINT,
    "bytes_in": Field.BYTES_IN,
    "bytes_out": Field.BYTES_OUT,
    "gap_first": Field.GAP_FIRST,
    "gap_last": Field.GAP_LAST,
    "actor": Field.ACTOR,
    "operation": Field.OPERATION,
}

#: Columns of a label, in its order; the fields ``ROOT`` and ``PARENT`` override it.
_LABEL = ("task", "root_id", "parent_id", "trace_id", "schedule_id", "release")

_LINEAGE = {"root_id": Field.ROOT, "parent_id": Field.PARENT}

#: Columns of times, which fields have in seconds.
_TIMES = {"leased_us": Field.LEASED, "started_us": Field.STARTED, "due_us": Field.DUE}

#: Columns of values -> the kinds of events that have them.
_VALUES = {
    "arguments": frozenset({KIND_CODES[EventKind.ENQUEUED], KIND_CODES[EventKind.DELAYED]}),
    "result": frozenset({KIND_CODES[EventKind.SUCCEEDED]}),
}


class EventColumns:
    """A table to which events are added: column name -> values, in the order of their numbers.

    Args:
        redact: Returns the parts of arguments and results to store; without it none are stored.
    """

    def __init__(self, redact: Redact | None = None) -> None:
        self._redact = redact
        self.values: dict[str, list[Any]] = {name: [] for name in _NAMES}

    def __len__(self) -> int:
        return len(self.values["seq"])

    def add(self, broker_id: str, first: int, body: bytes) -> int:
        """Add the events of one stored row; return their number.

        Args:
            broker_id: Id of the store.
            first: Number of the first of them.
            body: Their bytes.

        Raises:
            EventMQError: The bytes are not packed events.
        """
        n = 0
        for block in unpack_blocks(body):
            n += self._add(broker_id, first + n, block)
        return n

    def _add(self, broker_id: str, first: int, block: Block) -> int:
        n = len(block.ids)
        common, columns = block.common, block.columns
        values = self.values
        values["broker_id"] += [broker_id] * n
        values["seq"] += range(first, first + n)
        values["ts_us"] += [int(common[Field.AT] * _MICRO)] * n
        values["kind"] += [_kind(common[Field.KIND])] * n
        values["job_id"] += block.ids if "" not in block.ids else [i or None for i in block.ids]
        values["schema_version"] += [SCHEMA_VERSION] * n
        self._add_label(block, n)
        values["host"] += [_host(common.get(Field.WORKER))] * n
        for name, field in _COPIED.items():
            column = columns.get(field)
            if column is None:
                value = common.get(field)
                values[name] += [None if value == "" else value] * n
            else:
                values[name] += [None if value == "" else value for value in column]
        for name, field in _TIMES.items():
            values[name] += _micros(block.column(field))
        started, run_time = block.column(Field.STARTED), block.column(Field.RAN)
        values["run_us"] += _micros(run_time, started)
        values["wait_us"] += [
            None if wait is None else int(wait * _MICRO) for wait in waits_of(block)
        ]
        self._add_values(block, n)
        return n

    def _add_values(self, block: Block, n: int) -> None:
        redact = self._redact if block.has(Field.VALUE) else None
        kind = block.common[Field.KIND]
        for name, kinds in _VALUES.items():
            if redact is not None and kind in kinds:
                self.values[name] += redact(name, block)
            else:
                self.values[name] += [None] * n

    def _add_label(self, block: Block, n: int) -> None:
        common, values = block.common, self.values
        for name, text in zip(_LABEL, common.get(Field.LABEL, ("",) * len(_LABEL)), strict=True):
            lineage = _LINEAGE.get(name)
            if lineage is None or not block.has(lineage):
                values[name] += [text or None] * n
            else:
                values[name] += [value or None for value in block.column(lineage)]

    def extend(self, table: EventColumns) -> None:
        """Add the events of another table."""
        for name, values in table.values.items():
            self.values[name] += values

    def cut(self, n: int) -> EventColumns:
        """Remove the first ``n`` events and return them."""
        first = EventColumns()
        for name, values in self.values.items():
            first.values[name] = values[:n]
            del values[:n]
        return first


def rows_of(broker_id: str, first: int, body: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the events of one stored row, each as a map of the columns that are not null.

    Raises:
        EventMQError: The bytes are not packed events.
    """
    table = EventColumns()
    table.add(broker_id, first, body)
    for row in zip(*table.values.values(), strict=True):
        yield {name: value for name, value in zip(_NAMES, row, strict=True) if value is not None}


def _kind(code: int) -> str:
    """Return the name of a kind; a kind of a newer EventMQ gets a name with its number."""
    return _KINDS[code] if 0 <= code < len(_KINDS) else f"kind-{code}"


def _host(worker: str | None) -> str | None:
    """Return the host part of the name of a worker session, ``host:pid``."""
    return (worker or "").rpartition(":")[0] or None


def waits_of(block: Block) -> list[float | None]:
    """Return for each event how many seconds its job was ready before it started, None if unknown.

    Times are those of the broker's clock: a start that is before the lease by the worker's clock
    counts as the time of the lease, and one after the answer as the answer minus the run time.
    """
    leased, at = block.column(Field.LEASED), block.common[Field.AT]
    waits: list[float | None] = []
    for start, ready, lease, ran_for in zip(
        block.column(Field.STARTED), block.column(Field.READY), leased, block.column(Field.RAN),
        strict=True,
    ):  # fmt: skip
        if not start or not ready:
            waits.append(None)
            continue
        began = start if start <= at else at - (ran_for or 0.0)
        began = max(began, lease or ready)
        waits.append(max(0.0, began - ready))
    return waits


def _micros(seconds: Sequence[Any], present: Sequence[Any] | None = None) -> list[int | None]:
    """Return times in microseconds, null where there is none or where ``present`` has null."""
    if present is not None:
        return [
            int(value * _MICRO) if value is not None and owner else None
            for value, owner in zip(seconds, present, strict=True)
        ]
    return [int(value * _MICRO) if value else None for value in seconds]


_FRAME = re.compile(r'File "(?:[^"]*[/\\])?([^"/\\]*)", line \d+, in (\S+)')

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")

#: Maximum length of an error whose fingerprint is cached.
_REMEMBERED = 16 * 1024


def fingerprint(error: bytes) -> tuple[str, str]:
    """Return the dotted type of an encoded error, "" if it has none, and its fingerprint."""
    return _remembered(error) if len(error) <= _REMEMBERED else _fingerprint(error)


def _fingerprint(error: bytes) -> tuple[str, str]:
    try:
        kind, message, traceback, *_ = msgpack.unpackb(error)
        frames = _FRAME.findall(traceback)
        location = repr(frames) if frames else _VARYING.sub("_", message[:400])
    except Exception:  # noqa: BLE001 - an error of any shape is an error
        return "", ""
    return kind, hashlib.sha256(f"{kind}\0{location}".encode("utf-8", "replace")).hexdigest()[:16]


_remembered = lru_cache(maxsize=256)(_fingerprint)
