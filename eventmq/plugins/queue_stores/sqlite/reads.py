"""The writes of a commit that only read the SQLite store, and recovery at its opening."""

from __future__ import annotations

from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.job import STATE_CODES, JobRecord, JobState
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.sqlite.checksums import job_prefix
from eventmq.plugins.queue_stores.sqlite.rows import (
    BARE_COLUMNS,
    FAILED_COLUMNS,
    JOB_COLUMNS,
    OUTCOME_COLUMNS,
    readable,
    task_of,
)
from eventmq.plugins.queue_stores.sqlite.schema import bucket_name
from eventmq.store.reads import JobRow
from eventmq.store.writes import Chunk
from eventmq.wire.batches import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.plugins.queue_stores.sqlite.rows import Tables
    from eventmq.store.reads import FindJobs, ListJobs, ReadQueued
    from eventmq.timekeeping import Timekeeper

__all__ = ["Reads", "highest_id", "ids_between", "next_seq", "recover_chunks"]

_FAILED = f"{JOB_COLUMNS}, {FAILED_COLUMNS}"
_BARE_FAILED = f"{BARE_COLUMNS}, {FAILED_COLUMNS}"

_QUEUED_WHOLE = f"""SELECT {JOB_COLUMNS} FROM jobs WHERE subqueue = ? AND state = 2
  AND (rank, seq) > (?, ?) ORDER BY rank, seq LIMIT ?"""
_QUEUED = _QUEUED_WHOLE.replace("queue, ", "", 1).replace("state, ", "", 1).replace("eta, ", "", 1)

#: Bytes of a result that is read with its row in any case.
_SHORT = 4096

#: Of a bucket, with the length of a result that is left out.
_LONG = f"state = {STATE_CODES[JobState.SUCCEEDED]} AND length(result) > {_SHORT}"
_SHORT_ONLY = f"CASE WHEN {_LONG} THEN NULL ELSE {{}} END"
_OUTCOME = f"""id, state, at, until, content_type, {_SHORT_ONLY.format("result")},
  queue, task, attempt, delivery, created, started, run_time, worker, {_SHORT_ONLY.format("crc")},
  CASE WHEN {_LONG} THEN length(result) ELSE 0 END"""

#: From so many ids on, `Reads.find` asks each table for several at once, and for how many.
_MANY, _AT_ONCE = 8, 100

#: Rows that one page of a listing looks at before it returns what it has.
_SCAN = 20_000


class Reads:
    """Handlers of `ReadQueued`, `FindJobs` and `ListJobs`."""

    def __init__(self, tables: Tables, keeper: Timekeeper) -> None:
        self.tables = tables
        self.keeper = keeper

    def read_queued(self, write: ReadQueued) -> tuple[list[JobRecord], bool]:
        """Read the next queued jobs of a subqueue in rank order."""
        key = self.tables.known_subqueue(write.queue, write.subqueue)
        values = (key, *write.after, write.limit + 1)
        try:
            return self._read_queued(values, write)
        except (UnicodeDecodeError, AttributeError, TypeError):  # values of another kind
            return self._read_damaged(values, write)

    # hot loop: python -m benchmarks rows, drain
    def _read_queued(
        self, values: tuple[int, ...], write: ReadQueued
    ) -> tuple[list[JobRecord], bool]:
        """Read jobs as they should be: what the subqueue says of them is not read again."""
        jobs: list[JobRecord] = []
        size, limit, max_bytes, queue = 0, write.limit, write.max_bytes, write.queue
        text, data, state = "", b"", JobState.QUEUED
        prefix = common = job_prefix(queue, "")
        for row in self.tables.db.execute(_QUEUED, values):
            if len(jobs) == limit or size > max_bytes:
                return jobs, True
            (
                seq,
                job_id,
                rank,
                attempt,
                delivery,
                deaths,
                ready_at,
                expires,
                created,
                headers,
                body,
                crc,
            ) = row
            if headers != text:  # most have the same: it is once in memory
                text = headers
                prefix = job_prefix(queue, text)
                common = crc32(data, prefix)
            if body != data:  # as those who pass no arguments have
                data = body
                common = crc32(body, prefix)
            id_crc = crc32(job_id.encode())
            if id_crc ^ common == crc:
                job = JobRecord(
                    job_id, queue, text, body, seq, rank, state, attempt, delivery, ready_at,
                    expires, created, deaths, id_crc,
                )  # fmt: skip
            else:
                [job] = self.tables.jobs(f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq = ?", (seq,))
                job.queue, job.damaged = queue, True
            size += len(body)
            jobs.append(job)
        return jobs, False

    def _read_damaged(
        self, values: tuple[int, ...], write: ReadQueued
    ) -> tuple[list[JobRecord], bool]:
        """Do the same where something is damaged; such a job counts where its subqueue is."""
        jobs: list[JobRecord] = []
        size = 0
        for row in self.tables.db.execute(readable(_QUEUED_WHOLE), values):
            if len(jobs) == write.limit or size > write.max_bytes:
                return jobs, True
            job = self.tables.job(row)
            if job.queue != write.queue:
                job.queue, job.damaged = write.queue, True
            size += len(job.body)
            jobs.append(job)
        return jobs, False

    def find(self, write: FindJobs) -> dict[str, JobRow]:
        """Look jobs up by id: one by one, or where they are many table by table."""
        ids = list(dict.fromkeys(write.ids))
        if write.max_bytes is not None:
            return self._find_bare(ids, write.max_bytes)
        if len(ids) >= _MANY:
            return self._find_many(ids)
        rows = {job_id: self.find_one(job_id) for job_id in ids}
        return {job_id: row for job_id, row in rows.items() if row is not None}

    def _find_many(self, ids: list[str]) -> dict[str, JobRow]:
        rows = self._unfinished(ids, JOB_COLUMNS, _FAILED)
        remaining = [job_id for job_id in ids if job_id not in rows]
        for _, row in self._ended(OUTCOME_COLUMNS, remaining):
            rows[row[0]] = self.tables.outcome(row, self.keeper)
        return {job_id: rows[job_id] for job_id in ids if job_id in rows}

    def _find_bare(self, ids: list[str], max_bytes: int) -> dict[str, JobRow]:
        """Look jobs up without their bodies, and read long results while there is room."""
        rows = self._unfinished(ids, BARE_COLUMNS, _BARE_FAILED)
        keeper, tables = self.keeper, self.tables
        remaining = [job_id for job_id in ids if job_id not in rows]
        long: dict[str, str] = {}
        for table, (*row, length) in self._ended(_OUTCOME, remaining):
            outcome = rows[row[0]] = tables.outcome(tuple(row), keeper)
            if length and not outcome.job.damaged and row[3] + keeper.spared(row[2]) > keeper.now:
                long[row[0]] = table
                rows[row[0]] = outcome._replace(unread=True)
        for job_id in filter(long.__contains__, ids):
            if max_bytes <= 0:
                break
            sql = f"SELECT {OUTCOME_COLUMNS} FROM {long[job_id]} WHERE id = ?"
            [whole] = tables.rows(sql, (job_id,))
            rows[job_id] = tables.outcome(whole, keeper)
            max_bytes -= len(rows[job_id].result or b"")
        return {job_id: rows[job_id] for job_id in ids if job_id in rows}

    def _unfinished(self, ids: list[str], columns: str, failed: str) -> dict[str, JobRow]:
        """Return the jobs that have not ended, or failed, with these columns."""
        tables = self.tables
        rows: dict[str, JobRow] = {}
        for row in self._rows_of(columns, "jobs", ids):
            rows[row[1]] = JobRow(tables.job(row))
        remaining = [job_id for job_id in ids if job_id not in rows]
        for row in self._rows_of(failed, "failed", remaining):
            rows[row[1]] = tables.failed(row)
        return rows

    def _ended(self, columns: str, ids: list[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield (table, row) of those that have ended, one for each id."""
        tables, seen = self.tables, set[str]()
        places = {i: tables.buckets_of(i) for i in ids}
        for bucket in reversed(tables.buckets):
            batch = [i for i in ids if i not in seen and bucket in places[i]]
            for row in self._rows_of(columns, bucket_name(bucket), batch):
                seen.add(row[0])
                yield bucket_name(bucket), row

    def _rows_of(self, columns: str, table: str, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table with these ids; the statement is the same for many."""
        if len(ids) < _MANY:
            sql = f"SELECT {columns} FROM {table} WHERE id = ?"
            for job_id in ids:
                yield from self.tables.rows(sql, (job_id,))
            return
        sql = f"SELECT {columns} FROM {table} WHERE id IN ({', '.join('?' * _AT_ONCE)})"
        for start in range(0, len(ids), _AT_ONCE):
            batch = ids[start : start + _AT_ONCE]
            padding = batch[-1:] * (_AT_ONCE - len(batch))
            yield from self.tables.rows(sql, batch + padding)

    def find_one(self, job_id: str) -> JobRow | None:
        """Look one job up."""
        jobs = self.tables.jobs(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job_id,))
        if jobs:
            return JobRow(jobs[0])
        for row in self._rows_of(_FAILED, "failed", [job_id]):
            return self.tables.failed(row)
        for bucket in self.tables.buckets_of(job_id):
            table = bucket_name(bucket)
            for row in self._rows_of(OUTCOME_COLUMNS, table, [job_id]):
                return self.tables.outcome(row, self.keeper)
        return None

    def list_jobs(self, write: ListJobs) -> tuple[list[JobRow], str]:
        """List jobs page by page, the newest first: by id, which begins with the time.

        The cursor is the id of the last row that was looked at, so a job that goes from one table
        to another between two pages is neither missed nor listed twice.
        """
        names = ["jobs", "failed", *map(bucket_name, self.tables.buckets)]
        tables = [
            self._rows(name, write.cursor) for name in names if self._may_hold(name, write.state)
        ]
        rows: list[JobRow] = []
        newest_first = merge(*tables, key=itemgetter(0), reverse=True)
        for scanned, (job_id, row) in enumerate(newest_first, 1):
            if self._matches(row, write):
                rows.append(row)
            if len(rows) >= write.limit or scanned >= _SCAN:
                return rows, job_id
        return rows, ""

    @staticmethod
    def _may_hold(table: str, state: JobState | None) -> bool:
        if state is None:
            return True
        if state is JobState.FAILED:
            return table == "failed"
        ended = state in {JobState.SUCCEEDED, JobState.CANCELLED, JobState.EXPIRED}
        return table.startswith("outcomes_") if ended else table == "jobs"

    def _rows(self, table: str, before: str) -> Iterator[tuple[str, JobRow]]:
        """Yield (id, job) of a table, from the one before an id downwards."""
        tables = self.tables
        columns = BARE_COLUMNS if table == "jobs" else _BARE_FAILED
        outcomes = table.startswith("outcomes_")
        if outcomes:
            columns = _OUTCOME
        condition = "WHERE id < ?" if before else ""
        sql = f"SELECT {columns} FROM {table} {condition} ORDER BY id DESC LIMIT {_SCAN}"
        for row in tables.rows(sql, (before,) if before else ()):
            if outcomes:
                job_row = tables.outcome(row[:-1], self.keeper)
            else:
                job_row = JobRow(tables.job(row)) if table == "jobs" else tables.failed(row)
            yield job_row.job.id, job_row

    @staticmethod
    def _matches(row: JobRow, write: ListJobs) -> bool:
        job = row.job
        return (
            (write.queue is None or job.queue == write.queue)
            and (write.task is None or task_of(job) == write.task)
            and (
                write.state is None
                or job.state is write.state
                or (write.state is JobState.RUNNING and job.state is JobState.QUEUED)
            )
        )


def recover_chunks(tables: Tables) -> list[Chunk]:
    """Read the open chunks of earlier epochs with their jobs.

    A job that has ended, or was handed back since (its row says this delivery or a later one), is
    None.
    """
    chunks = []
    sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq = ? AND state = {STATE_CODES[JobState.QUEUED]}"
    chunk_rows = "SELECT session, number, leases, leased FROM chunks ORDER BY session, number"
    for session, number, packed, leased in all_rows(tables.db, chunk_rows):
        leases: list[tuple[JobRecord | None, int]] = []
        ids: list[str] = []
        for seq, delivery, job_id in unpack(packed, "a chunk row"):
            jobs = tables.jobs(sql, (seq,))
            holds = bool(jobs) and jobs[0].delivery < delivery and not jobs[0].damaged
            holds = holds and job_id == jobs[0].id
            leases.append((jobs[0] if holds else None, delivery))
            ids.append(job_id)
        chunks.append(Chunk(session, number, leases, ids, leased))
    return chunks


def highest_id(tables: Tables, below: str) -> str:
    """Return the largest id below ``below`` of all jobs, ended ones included, or ""."""
    names = ["jobs", "failed", *map(bucket_name, tables.buckets)]
    sql = "SELECT max(id) FROM {} WHERE id < ?"
    rows = [first_row(tables.db, sql.format(name), (below,)) for name in names]
    return max((row[0] for row in rows if row[0]), default="")


def ids_between(tables: Tables, lowest: str, below: str) -> set[str]:
    """Return the ids in a range of all jobs, ended ones included."""
    ids: set[str] = set()
    for name in ["jobs", "failed", *map(bucket_name, tables.buckets)]:
        sql = f"SELECT id FROM {name} WHERE id >= ? AND id < ?"
        ids.update(row[0] for row in tables.db.execute(sql, (lowest, below)))
    return ids


def next_seq(tables: Tables) -> int:
    """Return a number larger than that of any job that a row still names, chunks included."""
    db = tables.db
    rows = [first_row(db, f"SELECT max(seq) FROM {t}") for t in ("jobs", "failed")]
    known_nodes = first_row(db, "SELECT max(key) FROM nodes")
    numbers = [row[0] or 0 for row in (*rows, known_nodes)]
    for (packed,) in db.execute("SELECT leases FROM chunks"):
        numbers += [row[0] for row in unpack(packed, "a chunk row")]
    return 1 + max(numbers)
