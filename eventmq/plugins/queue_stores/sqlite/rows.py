"""Rows of the SQLite store: jobs to rows and back, interned names, counts kept in the commit."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.errors import EventMQError
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.job import STATE_CODES, JobRecord, JobState
from eventmq.plugins.database import first_row
from eventmq.plugins.queue_stores.sqlite.checksums import (
    data_crc,
    job_prefix,
    outcome_crc,
    outcome_prefix,
)
from eventmq.plugins.queue_stores.sqlite.schema import (
    bucket_ddl,
    bucket_index,
    bucket_name,
    buckets,
)
from eventmq.store.reads import JobRow
from eventmq.store.recovery import QueueCounts, SubqueueHead
from eventmq.store.writes import SubqueueKey, subqueue_of, unique_rule
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import apsw

    from eventmq.timekeeping import Timekeeper

__all__ = [
    "BARE_COLUMNS", "FAILED_COLUMNS", "INSERT_COLUMNS", "JOB_COLUMNS", "OUTCOME_COLUMNS",
    "Tables", "damage_of", "label_of", "readable", "task_of",
]  # fmt: skip

logger = logging.getLogger("eventmq.store")

_HEAD_COLUMNS = (
    "seq, id, queue, rank, state, attempt, delivery, deaths, ready_at, expires, created, headers"
)

#: The columns that `Tables.job` reads, in order; and without the body.
JOB_COLUMNS = f"{_HEAD_COLUMNS}, body, eta, crc"
BARE_COLUMNS = f"{_HEAD_COLUMNS}, NULL, eta, head_crc"

#: The columns that `Tables.row` writes.
INSERT_COLUMNS = f"{JOB_COLUMNS}, head_crc"

#: What `Tables.failed` reads behind these.
FAILED_COLUMNS = "at, content_type, result, started, run_time, worker, result_crc, head_crc"

#: What `Tables.outcome` reads.
OUTCOME_COLUMNS = """id, state, at, until, content_type, result, queue, task, attempt, delivery,
  created, started, run_time, worker, crc"""

#: The columns of text, and of bytes, that a user has written, wherever they stand.
_TEXTS = re.compile(r"(?<![\w.])(id|headers|content_type)(?=,)")
_BYTES = re.compile(r"(?<![\w.])(body|result|error)(?=,| END)")

#: Queue of a job whose own is not known any more.
_NO_QUEUE = "damaged"

#: Names and subqueues whose numbers are remembered.
_CACHED = 10_000

#: Rows of forgotten queues that are kept, and that one commit drops.
MAX_FORGOTTEN = 100_000
FORGOTTEN_SLICE = 20_000

_STATES = {code: state for state, code in STATE_CODES.items()}


class Tables:
    """Connection of the store, with the caches that its statements share."""

    def __init__(self, db: apsw.Connection, bucket_seconds: float) -> None:
        self.db = db
        self.bucket_seconds = bucket_seconds
        self.buckets = buckets(db)
        #: Bucket -> its least and greatest id, where that was looked up and is still so.
        self._ends: dict[int, tuple[str, str]] = {}
        #: The bucket that outcomes went to last, and the name of its table.
        self._bucket = (-1, "")
        self._queues: dict[str, int] = {}
        self._queue_names: dict[int, str] = {}
        self._names: dict[str, int] = {}
        self._subqueues: dict[tuple[int, SubqueueKey], int] = {}
        self._deltas: dict[int, list[int]] = {}
        #: Headers and number of a queue, and what their checksums begin with: of the last job.
        self._prefix = ("", 0, 0)
        #: Bytes that failed jobs take.
        self.failed_bytes = 0
        self._stored_bytes = 0
        self.reload()

    def reload(self) -> None:
        """Read the caches again: at open and after a rollback."""
        live = self.db.execute("SELECT id, name FROM queues WHERE removed_at = 0")
        self._queue_names = dict(live)
        self._queues = {name: key for key, name in self._queue_names.items()}
        self._names.clear()
        self._subqueues.clear()
        self._deltas.clear()
        self._ends.clear()
        self._prefix = ("", 0, 0)
        self.buckets = buckets(self.db)
        sql = "SELECT value FROM meta WHERE key = 'failed_bytes'"
        (self.failed_bytes,) = (self._stored_bytes,) = first_row(self.db, sql)

    # Names

    def queue_id(self, name: str) -> int:
        """Return the number of a queue, making it if it is new.

        One that was forgotten has its old number again: outcomes of its jobs may have it.
        """
        key = self._queues.get(name)
        if key is None:
            key = self.known_queue(name)
            if key < 0:
                self.db.execute("INSERT INTO queues (name) VALUES (?)", (name,))
                key = self.db.last_insert_rowid()
            else:
                self.db.execute("UPDATE queues SET removed_at = 0 WHERE id = ?", (key,))
            self._queues[name] = key
            self._queue_names[key] = name
        return key

    def known_queue(self, name: str) -> int:
        """Return the number of a queue, or -1 if it was never used, or long ago."""
        key = self._queues.get(name)
        if key is None:
            row = first_row(self.db, "SELECT id FROM queues WHERE name = ?", (name,))
            key = row[0] if row else -1
        return key

    def queue_name(self, key: int) -> str:
        """Return the name of a queue's number, also of one that was forgotten.

        Raises:
            KeyError: There is none.
        """
        name = self._queue_names.get(key)
        if name is None:
            row = first_row(self.db, "SELECT name FROM queues WHERE id = ?", (_whole(key),))
            if row is None:
                raise KeyError(key)
            name = str(row[0])
        return name

    def forget_queues(self, names: Sequence[str], at: float) -> list[str]:
        """Forget those queues that are empty and not paused; return their names.

        Their rows stay as long as outcomes may have their numbers; see `drop_queues_before`.
        """
        (removed_queues,) = first_row(self.db, "SELECT count(*) FROM queues WHERE removed_at > 0")
        forgotten = []
        for name in names:
            key = self._queues.get(name)
            if key is not None and (
                removed_queues >= MAX_FORGOTTEN or not self._forget_queue(name, key, at)
            ):
                continue
            removed_queues += key is not None
            forgotten.append(name)
        self._subqueues.clear()
        self._prefix = ("", 0, 0)
        return forgotten

    def _forget_queue(self, name: str, key: int, at: float) -> bool:
        if any(self._deltas.get(key, ())):  # of this commit, and not written yet
            return False
        sql = """UPDATE queues SET removed_at = ? WHERE id = ? AND waiting = 0 AND delayed = 0
                 AND failed = 0 AND blocked = 0 AND paused = 0"""
        before = self.db.total_changes()
        self.db.execute(sql, (at, key))
        if self.db.total_changes() == before:
            return False
        sql = """DELETE FROM subqueues WHERE queue = ?
                 AND NOT EXISTS (SELECT 1 FROM jobs WHERE subqueue = subqueues.id AND state = 2)"""
        self.db.execute(sql, (key,))
        del self._queues[name], self._queue_names[key]
        return True

    def drop_queues_before(self, at: float) -> None:
        """Drop the rows of queues that were forgotten before ``at``.

        The highest number stays: what is made next has one that no outcome has.
        """
        sql = """DELETE FROM queues WHERE id IN
                 (SELECT id FROM queues WHERE removed_at > 0 AND removed_at < ?
                 AND id < (SELECT max(id) FROM queues) ORDER BY removed_at LIMIT ?)"""
        self.db.execute(sql, (at, FORGOTTEN_SLICE))

    def subqueue_id(self, queue: str, headers: str) -> int:
        """Return the number of the subqueue of a job, making it if it is new."""
        key = (self.queue_id(queue), subqueue_of(headers))
        number = self._subqueues.get(key)
        if number is None:
            number = self.known_subqueue(queue, key[1])
            if number < 0:
                sql = "INSERT INTO subqueues (queue, task, key) VALUES (?, ?, ?)"
                self.db.execute(sql, (key[0], key[1].task, key[1].key))
                number = self.db.last_insert_rowid()
            if len(self._subqueues) > _CACHED:
                self._subqueues.clear()
            self._subqueues[key] = number
        return number

    def known_subqueue(self, queue: str, subqueue: SubqueueKey) -> int:
        """Return the number of a subqueue, or -1 if it was never used."""
        sql = "SELECT id FROM subqueues WHERE queue = ? AND task IS ? AND key = ?"
        row = first_row(self.db, sql, (self.known_queue(queue), subqueue.task, subqueue.key))
        return row[0] if row else -1

    def subqueues(self) -> list[SubqueueHead]:
        """Return the subqueues with queued jobs."""
        (count,) = first_row(self.db, "SELECT count(*) FROM subqueues")
        if count > _CACHED:  # it reads all jobs
            self.db.execute("DELETE FROM subqueues WHERE id NOT IN (SELECT subqueue FROM jobs)")
        sql = """SELECT rank, seq FROM jobs WHERE subqueue = ? AND state = 2
                 ORDER BY rank, seq LIMIT 1"""
        heads = []
        subqueues = self.db.execute("SELECT id, queue, task, key FROM subqueues")
        for number, queue, task, key in subqueues:
            first = first_row(self.db, sql, (number,))
            if first is not None:
                subqueue = SubqueueKey(task, key)
                heads.append(SubqueueHead(self.queue_name(queue), subqueue, first))
        return heads

    def name_id(self, name: str) -> int:
        """Return the number of a task's or worker's name, making it if it is new."""
        key = self._names.get(name)
        if key is None:
            self.db.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
            (key,) = first_row(self.db, "SELECT id FROM names WHERE name = ?", (name,))
            if len(self._names) > _CACHED:
                self._names.clear()
            self._names[name] = key
        return key

    def name(self, key: int) -> str:
        """Return the name of a number."""
        row = first_row(self.db, "SELECT name FROM names WHERE id = ?", (key,))
        return row[0] if row else ""

    # Counts

    def count(
        self, queue: int, waiting: int = 0, delayed: int = 0, failed: int = 0, blocked: int = 0
    ) -> None:
        """Add to a queue's counts; `flush_counts` writes it."""
        delta = self._deltas.get(queue)
        if delta is None:
            self._deltas[queue] = [waiting, delayed, failed, blocked]
        else:
            delta[0] += waiting
            delta[1] += delayed
            delta[2] += failed
            delta[3] += blocked

    def flush_counts(self) -> None:
        """Write the noted changes, one row per queue."""
        sql = """UPDATE queues SET waiting = waiting + ?, delayed = delayed + ?,
                 failed = failed + ?, blocked = blocked + ? WHERE id = ?"""
        for queue, delta in self._deltas.items():
            if any(delta):
                self.db.execute(sql, (*delta, queue))
        self._deltas.clear()
        if self.failed_bytes != self._stored_bytes:
            sql = "UPDATE meta SET value = ? WHERE key = 'failed_bytes'"
            self.db.execute(sql, (self.failed_bytes,))
            self._stored_bytes = self.failed_bytes

    def counts(self) -> dict[str, QueueCounts]:
        """Return the counts of all queues."""
        sql = """SELECT name, waiting, delayed, failed, paused, blocked FROM queues
                 WHERE removed_at = 0"""
        rows = self.db.execute(sql)
        return {name: QueueCounts(w, d, f, bool(p), b) for name, w, d, f, p, b in rows}

    # Rows

    def row(self, job: JobRecord) -> tuple[Any, ...]:
        """Return the row of a job in ``jobs``, as of `INSERT_COLUMNS`."""
        prefix, id_crc = job_prefix(job.queue, job.headers), crc32(job.id.encode())
        return (
            job.seq, job.id, self.queue_id(job.queue), job.rank, STATE_CODES[job.state],
            job.attempt, job.delivery, job.deaths, job.ready_at, job.expires, job.created,
            job.headers, job.body, job.eta,
            id_crc ^ crc32(job.body, prefix), id_crc ^ prefix,
        )  # fmt: skip

    def job(self, row: tuple[Any, ...]) -> JobRecord:
        """Return the job of a row of `JOB_COLUMNS`; it says of itself whether it is damaged."""
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
        except (KeyError, TypeError, AttributeError):  # values of another kind
            pass
        return self._damaged(row)

    def _damaged(self, row: tuple[Any, ...]) -> JobRecord:
        """Return what can be read of a row that is not what was written."""
        headers, body = _as_text(row[11]), row[12] if isinstance(row[12], bytes) else b""
        try:
            parse_headers(headers)
            unique_rule(headers)
        except (EventMQError, ValueError, AttributeError):
            headers = ""
        job = JobRecord(
            _as_text(row[1]), self._queue_names.get(_whole(row[2]), _NO_QUEUE), headers, body,
            row[0], _whole(row[3]), _STATES.get(_whole(row[4]), JobState.QUEUED), _whole(row[5]),
            _whole(row[6]), damaged=True,
        )  # fmt: skip
        logger.error(
            "job %s, number %d, is damaged in the store: ask eventmq fsck", job.id, job.seq
        )
        return job

    def jobs(self, sql: str, arguments: Iterable[Any] = ()) -> list[JobRecord]:
        """Return the jobs that a SELECT of `JOB_COLUMNS` finds."""
        return [self.job(row) for row in self.rows(sql, arguments)]

    def rows(self, sql: str, arguments: Iterable[Any] = ()) -> Generator[tuple[Any, ...]]:
        """Yield the rows of a SELECT, where text is damaged with bytes in its place."""
        values, done = tuple(arguments), 0
        try:
            for row in self.db.execute(sql, values):
                done += 1
                yield row
        except UnicodeDecodeError:
            yield from islice(self.db.execute(readable(sql), values), done, None)

    def failed(self, row: tuple[Any, ...]) -> JobRow:
        """Return a failed job of a row of `JOB_COLUMNS` and `FAILED_COLUMNS`."""
        *job, at, content_type, result, started, run_time, worker, crc, head = row
        record = self.job(tuple(job))
        record.state = JobState.FAILED
        if not _is_sound(crc, head, content_type, result):
            text = f"{damage_of(record.id)}, its error included"
            content_type, result = ERROR_TYPE, _error(text)
        return JobRow(record, at, content_type, result, started, run_time, self.name(worker))

    def outcome(self, row: tuple[Any, ...], keeper: Timekeeper) -> JobRow:
        """Return the outcome of a row of `OUTCOME_COLUMNS`; a result past its time is None.

        Without a checksum nothing is checked: the result was not read.

        One whose row was altered is a failure that says so, since nothing of it can be trusted.
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
        except (KeyError, TypeError, AttributeError):  # values of another kind
            pass
        return self.damaged_outcome(_as_text(job_id), label, queue)

    def damaged_outcome(self, job_id: str, label: str = "", queue: Any = 0) -> JobRow:
        """Return what is answered for an outcome whose row was altered."""
        text = damage_of(job_id)
        logger.error("%s: ask eventmq fsck", text)
        name = self._queue_names.get(_whole(queue), _NO_QUEUE)
        job = JobRecord(job_id, name, _headers(label), b"", state=JobState.FAILED, damaged=True)
        return JobRow(job, 0.0, ERROR_TYPE, _error(text))

    # Buckets

    def bucket(self, at: float) -> str:
        """Return the name of the table for outcomes of that time, making it if it is new."""
        number = int(at // self.bucket_seconds)
        if not self.buckets or number != self.buckets[-1]:
            self._add_bucket(number)
            self._ends.pop(number, None)
        if number != self._bucket[0]:
            self._bucket = (number, bucket_name(number))
        return self._bucket[1]

    def _add_bucket(self, number: int) -> None:
        if number not in self.buckets:
            self.db.execute(bucket_ddl(number))
            self.db.execute(bucket_index(number))
            self.buckets = sorted([*self.buckets, number])

    def buckets_of(self, job_id: str) -> list[int]:
        """Return the buckets that may have the outcome of an id, newest first.

        Ids begin with the wall time of who made them, buckets are of store time: which bucket has
        an id is not to be computed from either. But the ends of a bucket's ids are known.
        """
        buckets = self.buckets[-1:]  # more is written to it, so that its ends would not stay so
        for bucket in reversed(self.buckets[:-1]):
            lowest, highest = self._ends.get(bucket) or self._read_ends(bucket)
            if lowest <= job_id <= highest:
                buckets.append(bucket)
        return buckets

    def _read_ends(self, bucket: int) -> tuple[str, str]:
        """Return the least and the greatest id of a bucket, ("~", "") of an empty one."""
        name = bucket_name(bucket)
        sql = f"SELECT (SELECT min(id) FROM {name}), (SELECT max(id) FROM {name})"
        lowest, highest = first_row(self.db, sql)
        ends = self._ends[bucket] = ("~", "") if lowest is None else (lowest, highest)
        return ends

    def drop_buckets_before(self, at: float) -> None:
        """Forget the outcomes of all buckets that ended before ``at``."""
        for number in list(self.buckets):
            if (number + 1) * self.bucket_seconds < at:
                self.db.execute(f"DROP TABLE {bucket_name(number)}")
                self.buckets.remove(number)
                self._ends.pop(number, None)


def readable(sql: str) -> str:
    """Return a SELECT of the columns above that gives text as bytes where it is no text any more.

    SQLite keeps what it was given, and what was altered, or was bytes before, need not be UTF-8.
    """
    head, select, tail = sql.partition("SELECT ")
    columns, of, table = tail.partition(" FROM ")
    columns = _TEXTS.sub(r"as_text(CAST(\1 AS BLOB))", columns)
    return head + select + _BYTES.sub(r"CAST(\1 AS BLOB)", columns) + of + table


def damage_of(job_id: str) -> str:
    """Return the sentence about a row that was altered."""
    return f"the record of job {job_id} is damaged in the store: its checksum is wrong"


def _error(text: str) -> bytes:
    return encode_error(RemoteError("eventmq.errors.StoreError", text))


def _is_sound(crc: Any, head: Any, content_type: Any, result: Any) -> bool:
    try:
        return bool(crc == data_crc(head, content_type, result))
    except (TypeError, AttributeError, OverflowError):
        return False


def _as_text(value: Any) -> str:
    """Return a text that may be damaged as one that can be shown."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def label_of(job: JobRecord) -> str:
    """Return what is kept of the headers of an ended job: its task and, after a tab, its owner."""
    headers = parse_headers(job.headers)
    if not headers.owner and "\t" not in headers.task:
        return headers.task
    return f"{headers.task}\t{headers.owner}"


@lru_cache(maxsize=4096)
def _headers(label: str) -> str:
    """Return the headers of which `label_of` has made a label."""
    task, tab, owner = label.rpartition("\t")
    return format_headers(Headers(task=task, owner=owner) if tab else Headers(task=label))


def task_of(job: JobRecord) -> str:
    """Return the task's name in the headers of a job."""
    return parse_headers(job.headers).task
