"""Operations of operators in the SQLite store: cancel, retry, drop, list and prune jobs.

Operations by id run at once; those by filters are bulk operations, a slice in each commit.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

from eventmq.headers import parse_headers
from eventmq.job import STATE_CODES, TERMINAL, JobState, transition
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.sqlite.rows import (
    BARE_COLUMNS,
    FAILED_COLUMNS,
    INSERT_COLUMNS,
    JOB_COLUMNS,
    task_of,
)
from eventmq.store.writes import (
    AffectedJobs,
    Attempt,
    BulkOperation,
    Finish,
    Finished,
    Operation,
    Pruned,
)
from eventmq.wire.batches import pack, unpack
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.job import JobRecord
    from eventmq.plugins.queue_stores.sqlite.joins import StoredInputs
    from eventmq.plugins.queue_stores.sqlite.reads import Reads
    from eventmq.plugins.queue_stores.sqlite.rows import Tables
    from eventmq.plugins.queue_stores.sqlite.writes import Attempts, Writes
    from eventmq.store.reads import JobRow, ListFailed
    from eventmq.store.writes import (
        ApplyToJobs,
        AuditFields,
        BeginBulkOperation,
        ContinueBulkOperation,
        Expire,
        ForgetQueues,
        Pause,
        PruneFailed,
    )

__all__ = ["BARE_FAILED", "FailedJobs", "OperatorWrites", "bulk_operations", "fits", "next_expiry"]

#: Columns of a failed job, without its body.
BARE_FAILED = f"{BARE_COLUMNS}, {FAILED_COLUMNS}"

_WAITING = (STATE_CODES[JobState.DELAYED], STATE_CODES[JobState.QUEUED])

#: Most numbers of jobs that one commit goes through, whether there are such jobs or not.
_SPAN = 50_000

#: Most records of finished bulk operations.
_DONE_KEPT = 100

_BULK = "SELECT id, operation, at, bound, cursor, affected, done FROM bulk_operations"

#: Rows that one page of a listing looks at before it returns what it has.
_SCAN = 5000


class OperatorWrites:
    """Handlers of what operators do, and of `Expire` and `ForgetQueues`."""

    def __init__(self, tables: Tables, writes: Writes, reads: Reads) -> None:
        self.tables = tables
        self.writes = writes
        self.reads = reads
        self._actions: dict[str, Callable[[list[JobRecord], AuditFields], list[JobRecord]]] = {
            "cancel": self.cancel,
            "retry": self._retry,
            "drop": self._drop,
        }

    # By id

    def apply(self, write: ApplyToJobs) -> AffectedJobs:
        """Do something with jobs by id."""
        unaffected: dict[str, str] = {}
        jobs: dict[str, JobRecord] = {}
        for job_id, attempt in zip_longest(write.ids, write.attempts):
            row = self.reads.find_one(job_id)
            if row is None:
                continue
            state = row.job.state
            sound = write.action != "retry" or not row.job.damaged
            if sound and _suits(write.action, state) and attempt in {None, row.job.attempt}:
                jobs[job_id] = row.job
            else:
                unaffected[job_id] = state.value
        return AffectedJobs(
            self._actions[write.action](list(jobs.values()), write.audit), unaffected
        )

    def cancel(self, jobs: list[JobRecord], audit: AuditFields) -> list[JobRecord]:
        """End jobs as cancelled."""
        end = transition(JobState.QUEUED, JobState.CANCELLED)
        rows = [
            Finished(job, end, audit.at, audit.ttl, audit.content_type, audit.result)
            for job in jobs
        ]
        self.writes.finish(Finish(rows))
        return jobs

    def expire(self, write: Expire) -> tuple[list[JobRecord], float | None]:
        """End jobs that have waited for too long."""
        tables, now, wall = self.tables, write.now, write.now + write.ahead
        sql = f"""SELECT {BARE_COLUMNS} FROM jobs WHERE expires > 0 AND expires <= ?
                  AND state IN {_WAITING} ORDER BY expires"""
        with closing(tables.rows(sql, (wall,))) as rows:
            waiting = (tables.job(row) for row in rows if row[0] not in write.excluded)
            jobs = list(islice(waiting, write.limit))
        end = transition(JobState.QUEUED, JobState.EXPIRED)
        self.writes.finish(Finish([Finished(job, end, now, write.ttl, "", b"") for job in jobs]))
        if len(jobs) == write.limit:
            return jobs, wall
        return jobs, next_expiry(tables, wall)

    def _retry(self, jobs: list[JobRecord], audit: AuditFields) -> list[JobRecord]:
        """Queue failed jobs again; their bodies stay in the database."""
        sql = f"""INSERT INTO jobs ({INSERT_COLUMNS}, unique_key, subqueue)
                  SELECT ?, id, queue, ?, {_code(JobState.QUEUED)}, ?, delivery, 0, ?, ?,
                  created, headers, body, 0.0, crc, head_crc, unique_key, ? FROM failed
                  WHERE seq = ?"""
        retried = []
        for index, job in enumerate(self._sound(jobs)):
            self._remember(job)
            rank = int((audit.at - priority_of(job) * audit.step) * 1_000_000)
            expires = job.expires if job.expires > audit.at + audit.ahead else 0.0
            number, attempt = audit.seq + index, job.attempt + 1
            subqueue = self.tables.subqueue_id(job.queue, job.headers)
            self.tables.db.execute(
                sql, (number, rank, attempt, audit.at, expires, subqueue, job.seq)
            )
            self._forget_failed(job)
            self.tables.count(self.tables.queue_id(job.queue), waiting=1)
            job.seq, job.rank, job.attempt, job.expires = number, rank, attempt, expires
            job.state, job.deaths, job.ready_at, job.eta = JobState.QUEUED, 0, audit.at, 0.0
            retried.append(job)
        return retried

    def _sound(self, jobs: list[JobRecord]) -> list[JobRecord]:
        """Return the failed jobs whose records are what was written; the others must not run."""
        sql = f"SELECT {JOB_COLUMNS} FROM failed WHERE seq = ?"
        read = [self.tables.jobs(sql, (job.seq,)) for job in jobs]
        return [job for job, stored in zip(jobs, read, strict=True) if not stored[0].damaged]

    def _remember(self, job: JobRecord) -> None:
        """Make the error of a failed job a part of its history."""
        sql = f"SELECT {BARE_FAILED} FROM failed WHERE seq = ?"
        [row] = self.tables.rows(sql, (job.seq,))
        failed = self.tables.failed(row)
        attempt = Attempt(
            job.id, job.attempt, job.delivery, failed.at, failed.started, failed.run_time,
            failed.worker, failed.content_type, failed.result or b"",
        )  # fmt: skip
        self.writes.attempts.add(attempt)

    def _drop(self, jobs: list[JobRecord], _: AuditFields) -> list[JobRecord]:
        for job in jobs:
            self._forget_failed(job)
        ids = [job.id for job in jobs]
        self.writes.attempts.drop(ids)
        self.writes.graphs.inputs.release(ids)
        return jobs

    def _forget_failed(self, job: JobRecord) -> None:
        db = self.tables.db
        (size,) = first_row(db, "SELECT size FROM failed WHERE seq = ?", (job.seq,))
        db.execute("DELETE FROM failed WHERE seq = ?", (job.seq,))
        self.tables.failed_bytes -= size
        self.tables.count(self.tables.queue_id(job.queue), failed=-1)

    # Bulk operations

    def begin_bulk(self, write: BeginBulkOperation) -> BulkOperation:
        """Write the record of a bulk operation, once."""
        db, bulk = self.tables.db, write.bulk
        table = _table(bulk.operation)
        (first,) = first_row(db, f"SELECT min(seq) FROM {table}")
        values = (bulk.id, pack(bulk.operation), bulk.at, bulk.bound, (first or 1) - 1)
        sql = """INSERT OR IGNORE INTO bulk_operations
                 (id, operation, at, bound, cursor, affected, done)
                 VALUES (?, ?, ?, ?, ?, 0, 0)"""
        db.execute(sql, values)
        sql = """DELETE FROM bulk_operations WHERE done AND key <=
                 (SELECT max(key) FROM bulk_operations WHERE done) - ?"""
        db.execute(sql, (_DONE_KEPT,))
        return _bulk(first_row(db, f"{_BULK} WHERE id = ?", (bulk.id,)))

    def bulk_slice(self, write: ContinueBulkOperation) -> tuple[AffectedJobs, BulkOperation | None]:
        """Do the next part of a bulk operation and note how far it came."""
        db = self.tables.db
        row = first_row(db, f"{_BULK} WHERE id = ? AND NOT done", (write.id,))
        if row is None:
            return AffectedJobs([], {}), None
        bulk = _bulk(row)
        end = min(bulk.bound, bulk.cursor + _SPAN)
        scanned, fitting = self._select(bulk, end, write.limit)
        jobs = [job for job in fitting if job.seq not in write.excluded]
        cursor = scanned[-1] if len(scanned) == write.limit else end
        affected = AffectedJobs(self._actions[bulk.operation.action](jobs, write.audit), {})
        bulk = bulk._replace(
            cursor=cursor, touched=bulk.touched + len(jobs), done=cursor >= bulk.bound
        )
        sql = "UPDATE bulk_operations SET cursor = ?, affected = ?, done = ? WHERE id = ?"
        db.execute(sql, (bulk.cursor, bulk.touched, bulk.done, bulk.id))
        return affected, bulk

    def _select(
        self, bulk: BulkOperation, end: int, limit: int
    ) -> tuple[list[int], list[JobRecord]]:
        """Return the numbers of the rows that were looked at, and the jobs that fit."""
        operation, tables = bulk.operation, self.tables
        table = _table(operation)
        condition, values = "seq > ? AND seq <= ?", [bulk.cursor, end]
        if operation.queue:
            condition += " AND +queue = ?"
            values.append(tables.known_queue(operation.queue))
        columns = BARE_COLUMNS if table == "jobs" else BARE_FAILED
        sql = f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY seq LIMIT ?"
        scanned, jobs = [], []
        for row in tables.rows(sql, (*values, limit)):
            scanned.append(row[0])
            if table == "jobs":
                job = tables.job(row)
                if fits_job(job, operation):
                    jobs.append(job)
            elif fits(failed := tables.failed(row), operation):
                jobs.append(failed.job)
        return scanned, jobs

    # Queues

    def pause(self, write: Pause) -> None:
        """Write whether a queue is paused."""
        key = self.tables.queue_id(write.queue)
        sql = "UPDATE queues SET paused = ? WHERE id = ?"
        self.tables.db.execute(sql, (write.paused, key))

    def forget_queues(self, write: ForgetQueues) -> list[str]:
        """Forget queues that are empty and not paused."""
        return self.tables.forget_queues(write.queues, write.at)


class FailedJobs:
    """Handlers of `ListFailed` and `PruneFailed`."""

    def __init__(self, tables: Tables, attempts: Attempts, inputs: StoredInputs) -> None:
        self.tables = tables
        self.attempts = attempts
        self.inputs = inputs

    def list_failed(self, write: ListFailed) -> tuple[list[JobRow], str]:
        """List failed jobs page by page; the cursor is ``time:number`` of the last row read."""
        at, seq = _position(write.cursor)
        sql = f"""SELECT {BARE_FAILED} FROM failed WHERE (at, seq) < (?, ?)
                  ORDER BY at DESC, seq DESC LIMIT {_SCAN}"""
        rows: list[JobRow] = []
        for scanned, row in enumerate(self.tables.rows(sql, (at, seq)), 1):
            failed = self.tables.failed(row)
            if fits(failed, write.operation):
                rows.append(failed)
            if len(rows) >= write.limit or scanned >= _SCAN:
                return rows, f"{failed.at!r}:{failed.job.seq}"
        return rows, ""

    def prune(self, write: PruneFailed) -> Pruned:
        """Forget the oldest failed jobs, as far as they are too old or too many bytes."""
        tables = self.tables
        sql = "SELECT seq, id, queue, at, size FROM failed ORDER BY at, seq LIMIT ?"
        deleted: list[tuple[int, str, int]] = []
        more, oldest = False, None
        # Row by row: mostly the first one stays, and behind it are large ones.
        cursor = tables.db.execute(sql, (write.limit + 1,))
        for seq, job_id, queue, at, size in cursor:
            too_much = at < write.before or tables.failed_bytes > write.max_bytes
            if not too_much or len(deleted) == write.limit:
                more, oldest = too_much, at
                break
            tables.failed_bytes -= size
            deleted.append((seq, job_id, queue))
        cursor.close()
        return Pruned(self._delete_failed(deleted), more, oldest)

    def _delete_failed(self, deleted: list[tuple[int, str, int]]) -> dict[str, int]:
        """Delete failed jobs; return how many those were, by queue."""
        tables = self.tables
        tables.db.executemany("DELETE FROM failed WHERE seq = ?", [(seq,) for seq, _, _ in deleted])
        ids = [job_id for _, job_id, _ in deleted]
        self.attempts.drop(ids)
        self.inputs.release(ids)
        queues = Counter(queue for _, _, queue in deleted)
        for queue, n in queues.items():
            tables.count(queue, failed=-n)
        return {tables.queue_name(queue): n for queue, n in queues.items()}


def _suits(action: str, state: JobState) -> bool:
    return state not in TERMINAL if action == "cancel" else state is JobState.FAILED


def next_expiry(tables: Tables, after: float) -> float | None:
    """Return the first expiry of a job after a time, None where there is none."""
    sql = "SELECT min(expires) FROM jobs WHERE expires > max(0, ?)"
    expiry: float | None = first_row(tables.db, sql, (after,))[0]
    return expiry


def _code(state: JobState) -> int:
    return STATE_CODES[state]


def _table(operation: Operation) -> str:
    return "jobs" if operation.action == "cancel" else "failed"


def _bulk(row: Sequence[Any]) -> BulkOperation:
    job_id, packed, at, bound, cursor, touched, done = row
    values = unpack(packed, "the row of a bulk operation")
    operation = Operation(*values)
    if operation.state is not None:
        operation = operation._replace(state=JobState(operation.state))
    return BulkOperation(job_id, operation, at, bound, cursor, touched, bool(done))


def bulk_operations(tables: Tables) -> list[BulkOperation]:
    """Return the records that are kept."""
    return [_bulk(row) for row in all_rows(tables.db, f"{_BULK} ORDER BY key")]


def priority_of(job: JobRecord) -> int:
    """Return the priority in the headers of a job."""
    return parse_headers(job.headers).priority


def fits_job(job: JobRecord, operation: Operation) -> bool:
    """Return whether the filters match an unfinished job."""
    return (
        (not operation.queue or job.queue == operation.queue)
        and (not operation.task or task_of(job) == operation.task)
        and (operation.state is None or job.state is operation.state)
    )


def fits(failed: JobRow, operation: Operation) -> bool:
    """Return whether the filters match a failed job."""
    return (
        (not operation.queue or failed.job.queue == operation.queue)
        and (not operation.task or task_of(failed.job) == operation.task)
        and (not operation.since or failed.at >= operation.since)
        and (not operation.until or failed.at < operation.until)
        and (not operation.error or _is_of_type(failed, operation.error))
    )


def _is_of_type(failed: JobRow, name: str) -> bool:
    kind = decode_error(failed.result or b"").type
    return name in {kind, kind.rpartition(".")[2]}


def _position(cursor: str) -> tuple[float, int]:
    at, _, seq = cursor.partition(":")
    try:
        return float(at), int(seq)
    except ValueError:
        return float("inf"), 0
