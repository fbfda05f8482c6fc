"""Rows of a queue store: converts jobs to rows and back, interns names, and counts jobs.

Each row has a checksum, so that data altered on the disk is reported with the id of its job.
Without it, a damaged page that still parses could give a worker another job or other arguments.

The checksum of a job is the exclusive or of two CRC-32. One is over its queue, headers and body,
which many jobs have in common, so that it is computed once for all of them. The other is over its
id, and is computed once for a job and its outcome. A second checksum, of the *head*, leaves the
body out, for reads without the body. The checksum of an outcome covers its label, state, content
type and result in place of headers and body. All of them cover the name of the queue, not only its
number, so that an altered name is detected as well. They do not cover values that change while a
job waits, such as its attempt.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.engine import damaged
from eventmq.engine.damaged import shown
from eventmq.engine.tables import period_name
from eventmq.errors import EventMQError
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.job import STATE_CODES, JobRecord, JobState
from eventmq.store.reads import JobRow
from eventmq.store.recovery import QueueCounts, SubqueueHead
from eventmq.store.writes import SubqueueKey, subqueue_of, unique_rule
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from eventmq.engine.contract import RowStore
    from eventmq.timekeeping import Timekeeper

__all__ = [
    "BARE_FAILED_ROW",
    "BARE_OUTCOME_ROW",
    "BARE_ROW",
    "FAILED_ROW",
    "INSERT_ROW",
    "JOB_ROW",
    "NO_QUEUE",
    "OUTCOME_ROW",
    "WRONG_CHECKSUM",
    "DamagedRow",
    "Tables",
    "damage_of",
    "data_crc",
    "error_label",
    "is_intact",
    "job_prefix",
    "label_of",
    "outcome_crc",
    "outcome_prefix",
    "task_of",
]  # fmt: skip

logger = logging.getLogger("eventmq.store")

_HEAD = (
    "seq", "id", "queue", "rank", "state", "attempt", "delivery", "deaths", "ready_at", "expires",
    "created", "headers",
)  # fmt: skip

#: The columns that `Tables.job` reads, in order; with and without the body.
JOB_ROW = (*_HEAD, "body", "eta", "crc")
BARE_ROW = (*_HEAD, "no_body", "eta", "head_crc")

#: The columns that `Tables.row` writes.
INSERT_ROW = (*JOB_ROW, "head_crc")

_FAILURE = (
    "at", "content_type", "result", "started", "run_time", "worker", "result_crc", "head_crc",
)  # fmt: skip

#: The columns that `Tables.failed` reads; with and without the body.
FAILED_ROW = (*JOB_ROW, *_FAILURE)
BARE_FAILED_ROW = (*BARE_ROW, *_FAILURE)

#: The columns that `Tables.outcome` reads.
OUTCOME_ROW = (
    "id", "state", "at", "until", "content_type", "result", "queue", "task", "attempt", "delivery",
    "created", "started", "run_time", "worker", "crc",
)  # fmt: skip

#: The same without long results, followed by the length of a long result.
BARE_OUTCOME_ROW = (
    *("short_result" if name == "result" else name for name in OUTCOME_ROW[:-1]), "short_crc",
    "long",
)  # fmt: skip

#: The counts of a queue, in the order of the arguments of `Tables.count`.
_COUNTS = ("waiting", "delayed", "failed", "blocked")

#: Queue of a job whose own queue cannot be read.
NO_QUEUE = "damaged"

#: Maximum number of names, and of subqueues, whose numbers are cached.
_CACHED = 10_000

#: Maximum number of rows of removed queues that are kept, and that one commit deletes.
MAX_FORGOTTEN = 100_000
FORGOTTEN_SLICE = 20_000

#: Stored as the checksum of a row that is known to be damaged; a real one is never negative.
WRONG_CHECKSUM = -1

#: Maximum characters of the indexed type of an error.
_MAX_ERROR = 200

_STATES = {code: state for state, code in STATE_CODES.items()}


class DamagedRow(Exception):
    """A row that other rows depend on is damaged."""


class Tables:
    """Rows of a store, with caches of names, numbers and counts that all handlers share."""

    def __init__(self, store: RowStore, period_seconds: float) -> None:
        self.store = store
        self.period_seconds = period_seconds
        self.reload()

    def reload(self) -> None:
        """Fill the caches from the store: when it is opened, and after a rollback."""
        store = self.store
        self._queue_names: dict[int, str] = {}
        #: Queue -> its numbers of waiting, delayed, failed and blocked jobs.
        self._counts: dict[int, list[int]] = {}
        for key, name, *counts in store.scan("queues_live", ("id", "name", *_COUNTS)):
            self._queue_names[key], self._counts[key] = name, counts
        self._queues = {name: key for key, name in self._queue_names.items()}
        self._names: dict[str, int] = {}
        #: Table and number -> name, for names that were read.
        self._name_of: dict[tuple[str, int], str] = {}
        self._subqueues: dict[tuple[int, SubqueueKey], int] = {}
        #: Table -> its greatest number, for tables where that was read.
        self._greatest: dict[str, int] = {}
        #: Whether graphs may have pending work, or results to delete.
        self.graph_work = True
        #: Queues whose counts are not written yet.
        self._changed: set[int] = set()
        #: Number of each period -> the name of its table, ascending.
        self.periods = {n: period_name("outcomes", n) for n in store.periods("outcomes")}
        #: Period -> its least and greatest id, if they were read and did not change since.
        self._ends: dict[int, tuple[str, str]] = {}
        #: Headers and queue number of the last job, and the checksum prefix for these two.
        self._prefix = ("", 0, 0)
        #: Bytes of all failed jobs, and the number that is stored.
        self.failed_bytes = self._stored_bytes = store.values().get("failed_bytes", 0)

    # Names

    def _number(self, table: str) -> int:
        """Return the next number of a table."""
        number = self._greatest.get(table)
        if number is None:
            [(number,)] = list(self.store.scan(table, ("id",), limit=1, descending=True)) or [(0,)]
        self._greatest[table] = number = number + 1
        return number

    def queue_id(self, name: str) -> int:
        """Return the number of a queue, adding the queue if it is new.

        A queue that was removed gets its old number again, which outcomes of its jobs may have.
        """
        key = self._queues.get(name)
        if key is None:
            key = self.known_queue(name)
            if key < 0:
                key = self._number("queues")
                self.store.insert("queues", ("id", "name"), [(key, name)])
            else:
                self.store.update("queues", ("removed_at",), [(0.0, key)])
            self._queues[name], self._queue_names[key] = key, name
            self._counts[key] = [0, 0, 0, 0]
        return key

    def known_queue(self, name: str) -> int:
        """Return the number of a queue, or -1 if it has no row."""
        key = self._queues.get(name)
        if key is None:
            [(key,)] = self.store.get("queues", ("id",), [name], by="queues_name") or [(-1,)]
        return key

    def queue_name(self, key: int) -> str:
        """Return the name of the queue with a number, including removed queues.

        Raises:
            KeyError: No queue has this number.
        """
        name = self._queue_names.get(key) or self._name("queues", key)
        if name is None:
            raise KeyError(key)
        return name

    def forget_queues(self, names: Sequence[str], at: float) -> list[str]:
        """Remove those of the queues that are empty and not paused; return their names.

        The rows stay, marked as removed, for as long as outcomes may have their numbers; see
        `drop_queues_before`.
        """
        store, queues = self.store, self._queues
        free_rows = MAX_FORGOTTEN - store.measure("queues_removed")[0]
        known = dict.fromkeys(queues[name] for name in names if name in queues)
        empty = [key for key in known if not any(self._counts[key])]
        paused = dict(store.get("queues", ("id", "paused"), empty))
        removed = [key for key in empty if not paused[key]][: max(0, free_rows)]
        # The counts of this commit are not written yet.
        store.update("queues", ("removed_at", *_COUNTS), [(at, 0, 0, 0, 0, key) for key in removed])
        subqueue_keys = [
            key for (key,) in store.get("subqueues", ("id",), removed, by="subqueues_of")
        ]
        heads = store.heads("jobs_ready", ("seq",), [(key,) for key in subqueue_keys])
        store.delete(
            "subqueues", [k for k, head in zip(subqueue_keys, heads, strict=True) if not head]
        )
        for key in removed:
            del queues[self._queue_names.pop(key)], self._counts[key]
        self._changed.difference_update(removed)
        removed_names = [name for name in names if name not in queues]
        self._subqueues.clear()
        self._prefix = ("", 0, 0)
        return removed_names

    def drop_queues_before(self, at: float) -> None:
        """Delete the rows of queues that were removed before ``at``.

        The row with the highest number stays, so that a new queue never gets a used number.
        """
        store = self.store
        keys = [
            key for (key,) in store.scan("queues_removed", ("id",), lt=(at,), limit=FORGOTTEN_SLICE)
        ]
        if keys:
            [(greatest,)] = store.scan("queues", ("id",), limit=1, descending=True)
            store.delete("queues", [key for key in keys if key != greatest])

    def subqueue_id(self, queue: str, headers: str) -> int:
        """Return the number of the subqueue of a job, adding the subqueue if it is new."""
        number = self._subqueues.get((self.queue_id(queue), subqueue_of(headers)))
        return number or self.subqueue_ids(queue, (headers,))[headers]

    def subqueue_ids(self, queue: str, headers: Iterable[str]) -> dict[str, int]:
        """Return headers -> number of the subqueue of jobs with them, adding new subqueues.

        All are looked up in one read.
        """
        known, number_of = self._subqueues, self.queue_id(queue)
        keys = {text: (number_of, subqueue_of(text)) for text in headers}
        unknown = {key: (number_of, *_stored(key[1])) for key in keys.values() if key not in known}
        ids = {key: known[key] for key in keys.values() if key in known}
        if unknown:
            columns = ("id", "queue", "legacy", "task", "key")
            rows = self.store.get("subqueues", columns, list(unknown.values()), by="subqueues_of")
            numbers = {row[1:]: row[0] for row in rows}
            new = [stored for stored in unknown.values() if stored not in numbers]
            numbers |= {stored: self._number("subqueues") for stored in new}
            self.store.insert("subqueues", columns, [(numbers[stored], *stored) for stored in new])
            if len(known) + len(unknown) > _CACHED:
                known.clear()
            for key, stored in unknown.items():
                known[key] = ids[key] = numbers[stored]
        return {text: ids[key] for text, key in keys.items()}

    def known_subqueue(self, queue: str, subqueue: SubqueueKey) -> int:
        """Return the number of a subqueue, or -1 if it has no row."""
        key = (self.known_queue(queue), subqueue)
        number = self._subqueues.get(key, -1)
        if number < 0:
            if len(self._subqueues) > _CACHED:
                self._subqueues.clear()
            stored = (key[0], *_stored(subqueue))
            for (number,) in self.store.get("subqueues", ("id",), [stored], by="subqueues_of"):
                self._subqueues[key] = number
        return number

    def subqueues(self) -> list[SubqueueHead]:
        """Return the subqueues with queued jobs; delete unused ones if there are many."""
        store = self.store
        rows = list(store.scan("subqueues", ("id", "queue", "legacy", "task", "key")))
        firsts = store.heads("jobs_ready", ("rank", "seq"), [(row[0],) for row in rows])
        heads, idle = [], []
        for (number, queue, legacy, task, key), first in zip(rows, firsts, strict=True):
            if first is None:
                idle.append(number)
                continue
            subqueue = SubqueueKey(None if legacy else task, key)
            heads.append(SubqueueHead(self.queue_name(queue), subqueue, first))
        if idle and len(rows) > _CACHED:  # since the next line reads all jobs
            used = {number for number, _ in store.tally("jobs", ("subqueue",))}
            store.delete("subqueues", [number for number in idle if number not in used])
        return heads

    def name_id(self, name: str) -> int:
        """Return the number of a task's or worker's name, adding the name if it is new."""
        key = self._names.get(name)
        if key is None:
            [(key,)] = self.store.get("names", ("id",), [name], by="names_name") or [(0,)]
            if not key:
                key = self._number("names")
                self.store.insert("names", ("id", "name"), [(key, name)])
            if len(self._names) > _CACHED:
                self._names.clear()
            self._names[name] = key
        return key

    def name(self, key: int) -> str:
        """Return the name that has a number, "" if there is none."""
        return self._name("names", key) or ""

    def _name(self, table: str, key: int) -> str | None:
        name = self._name_of.get((table, key))
        if name is None:
            if len(self._name_of) > _CACHED:
                self._name_of.clear()
            for (name,) in self.store.get(table, ("name",), [_int_or_zero(key)]):
                self._name_of[table, key] = name
        return name

    # Counts

    def count(
        self, queue: int, waiting: int = 0, delayed: int = 0, failed: int = 0, blocked: int = 0
    ) -> None:
        """Add to the counts of a queue; `flush_counts` writes them."""
        counts = self._counts.get(queue)
        if counts is None:  # the number in the row is damaged
            counts = self._counts[queue] = [0, 0, 0, 0]
        counts[0] += waiting
        counts[1] += delayed
        counts[2] += failed
        counts[3] += blocked
        self._changed.add(queue)

    def flush_counts(self) -> None:
        """Write the counts that changed, one row per queue."""
        if self._changed:
            rows = [(*self._counts[queue], queue) for queue in self._changed]
            self.store.update("queues", _COUNTS, rows)
            self._changed.clear()
        if self.failed_bytes != self._stored_bytes:
            self.store.set_values({"failed_bytes": self.failed_bytes})
            self._stored_bytes = self.failed_bytes

    def counts(self) -> dict[str, QueueCounts]:
        """Return the counts of all queues."""
        rows = self.store.scan(
            "queues_live", ("name", "waiting", "delayed", "failed", "paused", "blocked")
        )
        return {name: QueueCounts(w, d, f, bool(p), b) for name, w, d, f, p, b in rows}

    # Rows

    def row(self, job: JobRecord) -> tuple[Any, ...]:
        """Return the row of a job for ``jobs``, with the columns of `INSERT_ROW`."""
        prefix, id_crc = job_prefix(job.queue, job.headers), crc32(job.id.encode())
        return (
            job.seq, job.id, self.queue_id(job.queue), job.rank, STATE_CODES[job.state],
            job.attempt, job.delivery, job.deaths, job.ready_at, job.expires, job.created,
            job.headers, job.body, job.eta,
            id_crc ^ crc32(job.body, prefix), id_crc ^ prefix,
        )  # fmt: skip

    def job(self, row: tuple[Any, ...]) -> JobRecord:
        """Return the job in a row of `JOB_ROW`; its ``damaged`` says whether the row is damaged."""
        headers, queue = row[11], row[2]
        try:
            name = self._queue_names[queue]
            if headers != self._prefix[0] or queue != self._prefix[1]:
                self._prefix = headers, queue, job_prefix(name, headers)
            prefix, body = self._prefix[2], row[12]
            prefix, body = (prefix, b"") if body is None else (crc32(body, prefix), body)
            if crc32(row[1].encode()) ^ prefix == row[14]:
                return JobRecord(
                    row[1], name, headers, body, row[0], row[3], _STATES[row[4]],
                    row[5], row[6], row[8], row[9], row[10], row[7], eta=row[13],
                )  # fmt: skip
        except (KeyError, TypeError, AttributeError):  # damaged values
            pass
        return self._damaged(row)

    def _damaged(self, row: tuple[Any, ...]) -> JobRecord:
        """Return a damaged job with what can be read of its row."""
        headers, body = shown(row[11]), row[12] if isinstance(row[12], bytes) else b""
        try:
            parse_headers(headers)
            unique_rule(headers)
        except (EventMQError, ValueError, AttributeError):
            headers = ""
        job = JobRecord(
            shown(row[1]), self._queue_names.get(_int_or_zero(row[2]), NO_QUEUE), headers, body,
            row[0], _int_or_zero(row[3]), _STATES.get(_int_or_zero(row[4]), JobState.QUEUED),
            _int_or_zero(row[5]), _int_or_zero(row[6]), damaged=True,
        )  # fmt: skip
        logger.error(
            "job %s, number %d, is damaged in the store: run eventmq fsck", job.id, job.seq
        )
        return job

    def get(
        self, table: str, columns: Sequence[str], keys: Sequence[Any], *, by: str = ""
    ) -> list[tuple[Any, ...]]:
        """Read rows by key, as `RowStore.get` does; damaged text is returned as bytes."""
        return damaged.get(self.store, table, columns, keys, by=by)

    def scan(
        self, index: str, columns: Sequence[str], prefix: Sequence[Any] = (), **bounds: Any
    ) -> Generator[tuple[Any, ...]]:
        """Scan an index, as `RowStore.scan` does; damaged text is returned as bytes."""
        return damaged.scan(self.store, index, columns, prefix, **bounds)

    def failed(self, row: tuple[Any, ...]) -> JobRow:
        """Return the failed job in a row of `FAILED_ROW`."""
        *job, at, content_type, result, started, run_time, worker, crc, head = row
        record = self.job(tuple(job))
        record.state = JobState.FAILED
        if not _is_intact_outcome(crc, head, content_type, result):
            content_type, result = ERROR_TYPE, _error(f"{damage_of(record.id)}, its error included")
        return JobRow(record, at, content_type, result, started, run_time, self.name(worker))

    def outcome(self, row: tuple[Any, ...], keeper: Timekeeper) -> JobRow:
        """Return the outcome in a row of `OUTCOME_ROW`; a result past its time to live is None.

        A row without a checksum, whose result was not read, is not checked. The outcome in a
        damaged row is a failure that says so, since no value of the row can be trusted.
        """
        (job_id, state, at, until, content_type, result, queue, task, attempt, delivery, created,
         started, run_time, worker, crc) = row  # fmt: skip
        label = self.name(task)
        try:
            name = self.queue_name(queue)
            prefix = outcome_prefix(job_prefix(name, label), state, content_type)
            if crc is None or crc == outcome_crc(prefix, job_id, result):
                job = JobRecord(
                    job_id, name, _headers(label), b"", 0, 0, _STATES[state],
                    attempt, delivery, 0.0, 0.0, created,
                )  # fmt: skip
                kept_result = result if until + keeper.spared(at) > keeper.now else None
                return JobRow(
                    job, at, content_type, kept_result, started, run_time, self.name(worker)
                )
        except (KeyError, TypeError, AttributeError):  # damaged values
            pass
        return self.damaged_outcome(shown(job_id), label, queue)

    def damaged_outcome(self, job_id: str, label: str = "", queue: Any = 0) -> JobRow:
        """Return a failure that replaces an outcome whose row is damaged."""
        text = damage_of(job_id)
        logger.error("%s: run eventmq fsck", text)
        name = self._queue_names.get(_int_or_zero(queue), NO_QUEUE)
        job = JobRecord(job_id, name, _headers(label), b"", state=JobState.FAILED, damaged=True)
        return JobRow(job, 0.0, ERROR_TYPE, _error(text))

    # Periods

    def period(self, at: float) -> str:
        """Return the table for outcomes of a time, creating it if it does not exist."""
        number = int(at // self.period_seconds)
        name = self.periods.get(number)
        if name is None:
            self.store.make_period("outcomes", number)
            name = period_name("outcomes", number)
            self.periods = dict(sorted([*self.periods.items(), (number, name)]))
        self._ends.pop(number, None)
        return name

    def periods_of(self, job_id: str) -> list[str]:
        """Return the tables of the periods that may have the outcome of a job, newest first.

        An id begins with the wall time of the client that made it, and periods are in store time,
        so the period cannot be computed from the id. It is compared with the ids of each period.
        """
        newest_first = list(reversed(self.periods))
        # The newest period still gets rows, so its least and greatest ids are not cached.
        names = [self.periods[number] for number in newest_first[:1]]
        for number in newest_first[1:]:
            lowest, highest = self._ends.get(number) or self._read_ends(number)
            if lowest <= job_id <= highest:
                names.append(self.periods[number])
        return names

    def _read_ends(self, number: int) -> tuple[str, str]:
        """Read the least and the greatest id of a period, ("~", "") if it is empty."""
        name, scan = self.periods[number], self.store.scan
        lowest = [job_id for (job_id,) in scan(name, ("id",), limit=1)]
        highest = [job_id for (job_id,) in scan(name, ("id",), limit=1, descending=True)]
        ends = self._ends[number] = (*lowest, *highest) if lowest else ("~", "")
        return ends

    def drop_periods_before(self, at: float) -> float:
        """Drop the tables of all periods that ended before ``at``.

        Returns:
            The time before which all outcomes are dropped: ``at``, or earlier if a period is in use
            by another session and stays. Rows that later outcomes refer to must stay as well. The
            next call tries again.
        """
        for number in list(self.periods):
            if (end := (number + 1) * self.period_seconds) < at:
                if not self.store.drop_period("outcomes", number):
                    return end
                del self.periods[number]
                self._ends.pop(number, None)
        return at


def _stored(key: SubqueueKey) -> tuple[int, str, str]:
    """Return the columns of a subqueue's key: whether it is for legacy jobs, task and key."""
    return int(key.task is None), key.task or "", key.key


def damage_of(job_id: str) -> str:
    """Return the message about the damaged record of a job."""
    return f"the record of job {job_id} is damaged in the store: its checksum is wrong"


def _error(text: str) -> bytes:
    return encode_error(RemoteError("eventmq.errors.StoreError", text))


def _is_intact_outcome(crc: Any, head: Any, content_type: Any, result: Any) -> bool:
    try:
        return bool(crc == data_crc(head, content_type, result))
    except (TypeError, AttributeError, OverflowError):
        return False


def _int_or_zero(value: Any) -> int:
    return value if type(value) is int else 0


def label_of(job: JobRecord) -> str:
    """Return the label of an ended job, kept instead of its headers: task, tab and owner."""
    headers = parse_headers(job.headers)
    if not headers.owner and "\t" not in headers.task:
        return headers.task
    return f"{headers.task}\t{headers.owner}"


@lru_cache(maxsize=4096)
def _headers(label: str) -> str:
    """Return headers with the task and owner in a label made by `label_of`."""
    task, tab, owner = label.rpartition("\t")
    return format_headers(Headers(task=task, owner=owner) if tab else Headers(task=label))


def task_of(job: JobRecord) -> str:
    """Return the name of the task in the headers of a job."""
    return parse_headers(job.headers).task


def error_label(kind: str) -> str:
    """Return the last part of the type of an error, by which failed jobs are indexed."""
    label = kind.rpartition(".")[2][:_MAX_ERROR].replace("\0", "?")
    return label.encode(errors="replace").decode()


# Checksums


def job_prefix(queue: str, text: str) -> int:
    """Return the CRC-32 of a queue and headers or label, with which checksums of rows begin."""
    return crc32(f"{queue}\0{text}\0".encode())


def outcome_prefix(prefix: int, state: int, kind: str) -> int:
    """Return the CRC-32 with which the checksums of outcomes begin.

    Args:
        prefix: The result of `job_prefix` for their queue and label.
        state: The code of their state.
        kind: Their content type.
    """
    return crc32(f"{state}\0{kind}\0".encode(), prefix)


def outcome_crc(prefix: int, job_id: str, result: bytes | None) -> int:
    """Return the checksum of an outcome.

    Args:
        prefix: The result of `outcome_prefix` for the outcome.
        job_id: The id of the job.
        result: The result; None, if it was not kept, has another checksum than an empty one.
    """
    return crc32(job_id.encode()) ^ (prefix ^ 1 if result is None else crc32(result, prefix))


def data_crc(head: int, kind: str, data: bytes) -> int:
    """Return the checksum of an error, or of a member result of a join."""
    return crc32(data, crc32(kind.encode(), head))


def is_intact(crc: int, job_id: str, kind: str, data: bytes) -> bool:
    """Return whether the checksum of an error or member result of a job is right."""
    try:
        return crc == data_crc(crc32(job_id.encode()), kind, data)
    except (TypeError, AttributeError):  # damaged values
        return False
