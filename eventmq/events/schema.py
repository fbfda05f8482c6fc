"""The row of an event: its columns, its kinds, and what each of them means.

One table for all who write or read events: the journal's Parquet files, the products over them,
observers. The bytes in which a store keeps events until a journal has taken them are no part of it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from eventmq.job import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COLUMNS", "ENDS", "SCHEMA_VERSION", "STATES", "Column", "EventKind"]

#: In the column ``schema_version`` of each row. It grows when a column changes its meaning; columns
#: that are only added do not change it.
SCHEMA_VERSION = 1


class EventKind(str, enum.Enum):
    """What happened. The order is that of the numbers in stored events: only add at the end."""

    #: A job was admitted, or became ready after a delay: it waits for a worker.
    ENQUEUED = "enqueued"
    #: A job was admitted that waits for its time, or for others.
    DELAYED = "delayed"
    #: A worker has had the job for a while: jobs that end soon have no event of this kind.
    LEASED = "leased"
    #: The worker still has it.
    PROGRESS = "progress"
    SUCCEEDED = "succeeded"
    #: Failed for good.
    FAILED = "failed"
    #: An attempt failed, and the next one waits for its time.
    RETRY = "retry"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    #: The worker was lost, or the process that ran it died: the job waits again.
    LEASE_LOST = "lease_lost"
    #: A worker gave the job back, not started: the job waits again.
    HANDED_BACK = "handed_back"
    #: A failed job was queued again, as its next attempt.
    REPLAYED = "replayed"
    #: A job was submitted whose id or unique key was taken: nothing was stored.
    DUPLICATE = "duplicate"
    #: Events were dropped before a journal had them: ``gap_first`` to ``gap_last``.
    GAP = "gap"

    __str__ = str.__str__
    __hash__ = str.__hash__


#: The kinds that end a job.
ENDS = frozenset({EventKind.SUCCEEDED, EventKind.FAILED, EventKind.EXPIRED, EventKind.CANCELLED})

#: Kind -> state of the job after it; the others change none.
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


class Column(NamedTuple):
    """A column: ``type`` is ``string``, ``int32`` or ``int64``."""

    name: str
    type: str
    nullable: bool
    meaning: str


def _column(name: str, type_: str, meaning: str, *, nullable: bool = True) -> Column:
    return Column(name, type_, nullable, meaning)


#: The columns in order. Times are microseconds since 1970 by the clock of the broker, those of
#: workers by theirs.
COLUMNS = (
    _column("broker_id", "string", "The broker's store", nullable=False),
    _column("seq", "int64", "Number of the event: 1, 2, 3 ... per broker", nullable=False),
    _column("ts_us", "int64", "When it happened", nullable=False),
    _column("kind", "string", "What happened", nullable=False),
    _column("job_id", "string", "Of all kinds but ``gap``"),
    _column("root_id", "string", "First job of the tree that the job belongs to"),
    _column("parent_id", "string", "The job that it waited for, or that submitted it"),
    _column("trace_id", "string", "Of the trace that the job belongs to"),
    _column("task", "string", "Name of the task, null for a legacy job"),
    _column("queue", "string", "Name of the queue"),
    _column("attempt", "int32", "From 1; grows when the job failed and is tried again"),
    _column("delivery", "int32", "From 1; grows at each dispatch; 0 before the first"),
    _column("worker_id", "string", "Name of the worker session that had the job"),
    _column("host", "string", "Of that worker"),
    _column("release", "string", "Of the code that submitted it, where the job says it"),
    _column("error_type", "string", "Dotted name of the exception"),
    _column("error_fingerprint", "string", "Same for errors of the same type and place"),
    _column("wait_us", "int64", "Of an attempt that ended: from being ready to the start"),
    _column("run_us", "int64", "From the start to the end, by the worker's clock"),
    _column("bytes_in", "int64", "Length of the arguments"),
    _column("bytes_out", "int64", "Length of the result or error"),
    _column("schedule_id", "string", "The schedule that fired it"),
    _column("schema_version", "int32", "Version of this table", nullable=False),
    _column("leased_us", "int64", "When the job was handed to the worker"),
    _column("started_us", "int64", "When the worker started it, by the worker's clock"),
    _column("due_us", "int64", "When a delayed job becomes ready, or would if it had not expired"),
    _column("gap_first", "int64", "Of a ``gap``: the first missing number"),
    _column("gap_last", "int64", "Of a ``gap``: the last missing number"),
    _column("arguments", "string", "JSON: what the redactor lets through of the arguments"),
    _column("result", "string", "JSON: what the redactor lets through of the result"),
)
