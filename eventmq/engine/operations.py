"""Operations on stored jobs: cancel, retry, drop, list, expire and prune.

Operations by id run in one commit. Operations by filters are bulk operations, which run in slices,
one slice per commit.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from eventmq.engine import damaged
from eventmq.engine.rows import (
    BARE_FAILED_ROW,
    BARE_ROW,
    FAILED_ROW,
    INSERT_ROW,
    error_label,
    task_of,
)
from eventmq.headers import parse_headers
from eventmq.job import STATE_CODES, TERMINAL, JobState, transition
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
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.engine.graphs import StoredInputs
    from eventmq.engine.reads import Reads
    from eventmq.engine.rows import Tables
    from eventmq.engine.writes import Attempts, Writes
    from eventmq.job import JobRecord
    from eventmq.store.reads import JobRow
    from eventmq.store.writes import (
        ApplyToJobs,
        AuditFields,
        BeginBulkOperation,
        ContinueBulkOperation,
        Expire,
        Pause,
        PruneFailed,
    )

__all__ = ["FailedJobs", "OperatorWrites", "bulk_operations", "fits", "fits_job", "next_expiry"]

_WAITING = (STATE_CODES[JobState.DELAYED], STATE_CODES[JobState.QUEUED])

#: Maximum range of job numbers that one slice covers, whether jobs have them or not.
_SPAN = 50_000

#: Maximum number of records of finished bulk operations that are kept.
_MAX_DONE = 100

_BULK = ("id", "operation", "at", "bound", "cursor", "affected", "done")

#: Maximum bytes of failed jobs that are queued again at once, unless one job has more.
_RETRIED_BYTES = 8 * 1024 * 1024

_RETRIED = (*FAILED_ROW, "unique_key")

#: Maximum number of rows that one scan reads.
_PORTION = 1000


class OperatorWrites:
    """Handlers of the writes of operators, and of `Expire`."""

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
        """Cancel, retry or drop jobs by id."""
        unaffected: dict[str, str] = {}
        jobs: dict[str, JobRecord] = {}
        rows = self.reads.look_up(list(dict.fromkeys(write.ids)), results=False)
        for job_id, attempt in zip_longest(write.ids, write.attempts):
            row = rows.get(job_id)
            if row is None:
                continue
            state = row.job.state
            is_usable = write.action != "retry" or not row.job.damaged
            cancel = write.action == "cancel"
            has_state = state not in TERMINAL if cancel else state is JobState.FAILED
            if is_usable and has_state and attempt in {None, row.job.attempt}:
                jobs[job_id] = row.job
            else:
                unaffected[job_id] = state.value
        return AffectedJobs(
            self._actions[write.action](list(jobs.values()), write.audit), unaffected
        )

    def cancel(self, jobs: list[JobRecord], audit: AuditFields) -> list[JobRecord]:
        """End jobs as cancelled."""
        self.writes.arguments.add_stored(jobs, audit.at)
        end = transition(JobState.QUEUED, JobState.CANCELLED)
        rows = [
            Finished(job, end, audit.at, audit.ttl, audit.content_type, audit.result)
            for job in jobs
        ]
        self.writes.finish(Finish(rows))
        return jobs

    def expire(self, write: Expire) -> tuple[list[JobRecord], float | None]:
        """End waiting jobs that have expired."""
        tables, now, wall = self.tables, write.now, write.now + write.ahead
        scan = damaged.pages(
            tables.store, "jobs_expires", BARE_ROW, itemgetter(9, 0), portion=_PORTION,
            gt=(0.0,), le=(wall,),
        )  # fmt: skip
        with closing(scan) as candidates:
            waiting = (
                tables.job(row) for row in candidates
                if row[4] in _WAITING and row[0] not in write.excluded
            )  # fmt: skip
            jobs = list(islice(waiting, write.limit))
        self.writes.arguments.add_stored(jobs, now)
        end = transition(JobState.QUEUED, JobState.EXPIRED)
        self.writes.finish(Finish([Finished(job, end, now, write.ttl, "", b"") for job in jobs]))
        return (jobs, wall) if len(jobs) == write.limit else (jobs, next_expiry(tables, wall))

    def _retry(self, jobs: list[JobRecord], audit: AuditFields) -> list[JobRecord]:
        """Queue failed jobs again, except those with damaged records."""
        sizes = self._sizes(jobs)
        return self._retry_rows([(job.seq, sizes[job.seq]) for job in jobs], audit)

    def _retry_rows(
        self, rows: Sequence[tuple[int, int]], audit: AuditFields, error: str = ""
    ) -> list[JobRecord]:
        """Queue failed jobs again, except those with damaged records or another error.

        Args:
            rows: Number and size of each job.
            audit: The audit fields.
            error: Type of the error, "" for any.
        """
        retried: list[JobRecord] = []
        portion: dict[int, int] = {}
        total = 0
        for seq, size in rows:
            total += size
            if portion and total > _RETRIED_BYTES:
                retried += self._queue_again(portion, audit, audit.seq + len(retried), error)
                portion, total = {}, size
            portion[seq] = size
        return retried + self._queue_again(portion, audit, audit.seq + len(retried), error)

    def _queue_again(
        self, sizes: Mapping[int, int], audit: AuditFields, number: int, error: str
    ) -> list[JobRecord]:
        """Queue failed jobs again under numbers from ``number`` on; return the undamaged ones."""
        if not sizes:
            return []
        tables, seqs = self.tables, list(sizes)
        stored = {row[0]: row for row in tables.get("failed", _RETRIED, seqs)}
        retried, rows, attempts = [], [], []
        for seq in seqs:
            *row, unique_key = stored[seq]
            failed = tables.failed(tuple(row))
            job = failed.job
            if job.damaged or (error and not _is_of_type(failed, error)):
                continue
            attempts.append(Attempt(
                job.id, job.attempt, job.delivery, failed.at, failed.started, failed.run_time,
                failed.worker, failed.content_type, failed.result or b"",
            ))  # fmt: skip
            priority = parse_headers(job.headers).priority
            rank = int((audit.at - priority * audit.step) * 1_000_000)
            expires = job.expires if job.expires > audit.at + audit.ahead else 0.0
            rows.append((
                number, row[1], row[2], rank, STATE_CODES[JobState.QUEUED], job.attempt + 1, row[6],
                0, audit.at, expires, *row[10:13], 0.0, row[14], row[-1], unique_key,
                tables.subqueue_id(job.queue, job.headers),
            ))  # fmt: skip
            retried.append(job)
            number += 1
        self.writes.attempts.add(attempts)
        self._forget_failed(retried, sizes)
        tables.store.insert("jobs", (*INSERT_ROW, "unique_key", "subqueue"), rows)
        for job, values in zip(retried, rows, strict=True):
            tables.count(tables.queue_id(job.queue), waiting=1)
            job.seq, job.rank, job.attempt, job.expires = (values[n] for n in (0, 3, 5, 9))
            job.state, job.deaths, job.ready_at, job.eta = JobState.QUEUED, 0, audit.at, 0.0
        return retried

    def _drop(self, jobs: list[JobRecord], _: AuditFields) -> list[JobRecord]:
        self._forget_failed(jobs, self._sizes(jobs))
        ids = [job.id for job in jobs]
        self.writes.attempts.drop(ids)
        self.writes.graphs.inputs.release(ids)
        return jobs

    def _sizes(self, jobs: list[JobRecord]) -> dict[int, int]:
        """Return the sizes of failed jobs, by number."""
        seqs = [job.seq for job in jobs]
        return dict(self.tables.store.get("failed", ("seq", "size"), seqs)) if jobs else {}

    def _forget_failed(self, jobs: list[JobRecord], sizes: Mapping[int, int]) -> None:
        tables, seqs = self.tables, [job.seq for job in jobs]
        tables.store.delete("failed", seqs)
        tables.failed_bytes -= sum(sizes[seq] for seq in seqs)
        for job in jobs:
            tables.count(tables.queue_id(job.queue), failed=-1)

    # Bulk operations

    def begin_bulk(self, write: BeginBulkOperation) -> BulkOperation:
        """Store the record of a bulk operation unless it exists; return the stored one."""
        store, bulk = self.tables.store, write.bulk
        stored = {row[1]: row for row in store.scan("bulk_operations", ("key", *_BULK))}
        if bulk.id not in stored:
            table = store.scan(_table(bulk.operation), ("seq",), limit=1)
            first = next((seq for (seq,) in list(table)), 1)
            row = (bulk.id, pack(bulk.operation), bulk.at, bulk.bound, first - 1, 0, 0)
            store.insert("bulk_operations", _BULK, [row])
            stored[bulk.id] = (0, *row)
        done = [row[0] for row in stored.values() if row[-1]]
        store.delete("bulk_operations", [key for key in done if key <= max(done) - _MAX_DONE])
        return _bulk(stored[bulk.id][1:])

    def bulk_slice(self, write: ContinueBulkOperation) -> tuple[AffectedJobs, BulkOperation | None]:
        """Run the next slice of a bulk operation and store its cursor."""
        store = self.tables.store
        rows = store.get("bulk_operations", ("key", *_BULK), (write.id,), by="bulk_operations_id")
        if not rows or rows[0][-1]:
            return AffectedJobs([], {}), None
        [(key, *row)] = rows
        bulk = _bulk(row)
        end = min(bulk.bound, bulk.cursor + _SPAN)
        operation = bulk.operation
        if operation.action == "retry":
            scanned, rows = self._select_failed(bulk, end, write.limit)
            error = operation.error if "." in operation.error else ""
            jobs = self._retry_rows(rows, write.audit, error)
        else:
            scanned, matches = self._select(bulk, end, write.limit)
            jobs = [job for job in matches if job.seq not in write.excluded]
            jobs = self._actions[operation.action](jobs, write.audit)
        cursor = scanned[-1] if len(scanned) == write.limit else end
        affected = AffectedJobs(jobs, {})
        bulk = bulk._replace(
            cursor=cursor, touched=bulk.touched + len(jobs), done=cursor >= bulk.bound
        )
        values = (bulk.cursor, bulk.touched, int(bulk.done), key)
        store.update("bulk_operations", ("cursor", "affected", "done"), [values])
        return affected, bulk

    def _select_failed(
        self, bulk: BulkOperation, end: int, limit: int
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the numbers of the scanned failed jobs, and number and size of those that match.

        Of the type of the error only the last part is compared.
        """
        operation, tables = bulk.operation, self.tables
        queue = tables.known_queue(operation.queue) if operation.queue else 0
        error = error_label(operation.error)
        scanned: list[int] = []
        rows = []
        columns = ("seq", "size", "queue", "at", "task", "error")
        for seq, size, key, at, *labels in tables.scan(
            "failed", columns, gt=(bulk.cursor,), le=(end,), limit=limit
        ):
            scanned.append(seq)
            if (
                (not operation.queue or key == queue)
                and (not operation.since or at >= operation.since)
                and (not operation.until or at < operation.until)
                and operation.task in {"", labels[0]}
                and error in {"", labels[1]}
            ):
                rows.append((seq, size))
        return scanned, rows

    def _select(
        self, bulk: BulkOperation, end: int, limit: int
    ) -> tuple[list[int], list[JobRecord]]:
        """Return the numbers of the scanned rows, and the jobs among them that match."""
        operation, tables = bulk.operation, self.tables
        table, after, last = _table(operation), (bulk.cursor,), (end,)
        columns = BARE_ROW if table == "jobs" else BARE_FAILED_ROW
        scanned: list[int] = []
        jobs = []
        rows: Iterable[tuple[Any, ...]]
        if operation.queue:
            key = tables.known_queue(operation.queue)
            queues = tables.store.scan(table, ("seq", "queue"), gt=after, le=last)
            seqs = list(islice((seq for seq, queue in queues if queue == key), limit))
            rows = sorted(tables.get(table, columns, seqs), key=itemgetter(0)) if seqs else ()
        else:
            rows = tables.scan(table, columns, gt=after, le=last, limit=limit)
        for row in rows:
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
        """Store whether a queue is paused."""
        key = self.tables.queue_id(write.queue)
        self.tables.store.update("queues", ("paused",), [(int(write.paused), key)])


class FailedJobs:
    """Handler of `PruneFailed`."""

    def __init__(self, tables: Tables, attempts: Attempts, inputs: StoredInputs) -> None:
        self.tables = tables
        self.attempts = attempts
        self.inputs = inputs

    def prune(self, write: PruneFailed) -> Pruned:
        """Delete the oldest failed jobs while they are too old or have too many bytes."""
        tables = self.tables
        deleted: list[tuple[int, str, int]] = []
        more, oldest = False, None
        # Row by row, since mostly the first one stays and the next ones may be large.
        columns = ("seq", "id", "queue", "at", "size")
        with closing(tables.scan("failed_at", columns, limit=write.limit + 1)) as rows:
            for seq, job_id, queue, at, size in rows:
                surplus = at < write.before or tables.failed_bytes > write.max_bytes
                if not surplus or len(deleted) == write.limit:
                    more, oldest = surplus, at
                    break
                tables.failed_bytes -= size
                deleted.append((seq, job_id, queue))
        return Pruned(self._delete_failed(deleted), more, oldest)

    def _delete_failed(self, deleted: list[tuple[int, str, int]]) -> dict[str, int]:
        """Delete failed jobs; return their number by queue."""
        tables = self.tables
        tables.store.delete("failed", [seq for seq, _, _ in deleted])
        ids = [job_id for _, job_id, _ in deleted]
        self.attempts.drop(ids)
        self.inputs.release(ids)
        queues = Counter(queue for _, _, queue in deleted)
        for queue, n in queues.items():
            tables.count(queue, failed=-n)
        return {tables.queue_name(queue): n for queue, n in queues.items()}


def next_expiry(tables: Tables, after: float) -> float | None:
    """Return the earliest expiry of a job after a time, None if there is none."""
    rows = tables.store.scan("jobs_expires", ("expires",), gt=(max(0.0, after),), limit=1)
    return next((expires for (expires,) in list(rows)), None)


def _table(operation: Operation) -> str:
    return "jobs" if operation.action == "cancel" else "failed"


def _bulk(row: Sequence[Any]) -> BulkOperation:
    job_id, packed, at, bound, cursor, touched, done = row
    operation = Operation(*unpack(packed, "the row of a bulk operation"))
    if operation.state is not None:
        operation = operation._replace(state=JobState(operation.state))
    return BulkOperation(job_id, operation, at, bound, cursor, touched, bool(done))


def bulk_operations(tables: Tables) -> list[BulkOperation]:
    """Return the stored records of bulk operations."""
    return [_bulk(row) for row in tables.store.scan("bulk_operations", _BULK)]


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
