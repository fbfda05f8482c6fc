"""Unique keys in the SQLite store: an index over the records of jobs, so no key outlives its job.

The column ``unique_key`` stands in ``jobs``, in ``failed`` and in the outcome buckets, and is NULL
for most jobs. `Writes` calls this where a job with a key is admitted or ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.job import HELD, STATE_CODES, TERMINAL, JobState
from eventmq.plugins.database import first_row
from eventmq.plugins.queue_stores.sqlite.rows import INSERT_COLUMNS, JOB_COLUMNS
from eventmq.plugins.queue_stores.sqlite.schema import bucket_name
from eventmq.store.writes import Finished, UniqueRule, WriteResult, unique_rule
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from eventmq.job import JobRecord
    from eventmq.plugins.queue_stores.sqlite.rows import Tables
    from eventmq.timekeeping import Timekeeper

__all__ = ["UniqueKeys"]

#: Ends that a period goes on after; a job that was cancelled or expired never ran.
_RAN = (STATE_CODES[JobState.SUCCEEDED], STATE_CODES[JobState.FAILED])

_INSERT = f"""INSERT OR IGNORE INTO jobs ({INSERT_COLUMNS}, unique_key, subqueue)
  VALUES ({", ".join("?" * 18)})"""

#: Releases what waits for no other job. It is run at each start, so it must not read all jobs.
LONELY = """UPDATE jobs SET ready_at = ready_at - ?
  WHERE unique_key IS NOT NULL AND state = 1 AND ready_at >= ? AND NOT EXISTS
  (SELECT 1 FROM jobs AS other WHERE other.unique_key = jobs.unique_key
   AND other.unique_key IS NOT NULL AND other.seq <> jobs.seq)"""


class UniqueKeys:
    """Decides about jobs with a key, and writes them.

    Args:
        tables: Of the store.
        store: Writes outcomes and counts them.
        retention: Seconds that the outcome of a replaced job is kept.
        keeper: Knows how old a job is.
    """

    def __init__(
        self,
        tables: Tables,
        store: Callable[[Sequence[Finished]], None],
        retention: float,
        keeper: Timekeeper,
    ) -> None:
        self.tables = tables
        self._keeper = keeper
        self._store = store
        self._keep = retention

    # Admission

    def admit(self, job: JobRecord, running: Container[str]) -> WriteResult | None:
        """Insert a job with a key, unless its id or its key is taken.

        Args:
            job: Whose id has not ended within the dedupe window.
            running: Ids of leased jobs.
        """
        db = self.tables.db
        row = first_row(db, "SELECT state FROM jobs WHERE id = ?", (job.id,))
        if row is not None:
            return WriteResult("same_id", list(JobState)[row[0]].value)
        rule = unique_rule(job.headers)
        assert rule is not None  # noqa: S101 - checked by the caller
        ended = self._ended(rule, job.created)
        if ended is not None:
            return WriteResult("unique_conflict", ended)
        sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE unique_key = ? ORDER BY seq"
        holders = [
            holder
            for holder in self.tables.jobs(sql, (rule.key,))
            if _state(holder, running) in rule.states
        ]
        if not holders:
            self._insert(job, rule, job)
            return None
        return self._against(job, rule, holders, running)

    def _against(
        self,
        job: JobRecord,
        rule: UniqueRule,
        holders: Sequence[JobRecord],
        running: Container[str],
    ) -> WriteResult:
        leased = [holder for holder in holders if holder.id in running]
        waiting = [holder for holder in holders if holder.id not in running]
        if rule.mode == "keep_last":
            return self._keep_last(job, rule, leased, waiting)
        if rule.mode == "reject" or leased:
            return WriteResult("unique_conflict", (leased or holders)[0].id)
        ended = self._replace(waiting, job)
        self._insert(job, rule, job)
        return WriteResult("replaced", waiting[0].id, ended)

    def _keep_last(
        self,
        job: JobRecord,
        rule: UniqueRule,
        leased: Sequence[JobRecord],
        waiting: Sequence[JobRecord],
    ) -> WriteResult:
        held_jobs = [holder for holder in waiting if holder.ready_at >= HELD]
        if leased and not waiting:
            self._insert(job, rule, job, hold=True)
            return WriteResult("held", leased[0].id)
        replaced = (held_jobs or waiting)[0]
        ended = self._replace(held_jobs or waiting, job)
        self._insert(job, rule, replaced)
        return WriteResult("replaced", replaced.id, ended)

    def _insert(
        self, job: JobRecord, rule: UniqueRule, replaced: JobRecord, *, hold: bool = False
    ) -> None:
        """Insert a job with state, rank and due time of ``replaced``."""
        row = list(self.tables.row(job))
        state = JobState.DELAYED if hold else replaced.state
        row[3], row[4] = replaced.rank, STATE_CODES[state]
        row[8], row[13] = replaced.ready_at + HELD if hold else replaced.ready_at, replaced.eta
        subqueue = self.tables.subqueue_id(job.queue, job.headers)
        self.tables.db.execute(_INSERT, (*row, rule.key, subqueue))
        delayed = state is JobState.DELAYED
        self.tables.count(self.tables.queue_id(job.queue), not delayed, delayed)

    def _replace(self, holders: Sequence[JobRecord], job: JobRecord) -> tuple[Finished, ...]:
        text = f"replaced by job {job.id}, which has the same unique key"
        error = encode_error(RemoteError("eventmq.errors.JobCancelled", text))
        rows = tuple(
            Finished(h, JobState.CANCELLED, job.created, self._keep, ERROR_TYPE, error)
            for h in holders
        )
        self.tables.db.executemany("DELETE FROM jobs WHERE seq = ?", [(h.seq,) for h in holders])
        self._store(rows)
        return rows

    def _ended(self, rule: UniqueRule, now: float) -> str | None:
        """Return the id of an ended job that blocks the key, newest bucket first."""
        counted = [STATE_CODES[state] for state in rule.states & TERMINAL]
        if not counted and not rule.period:
            return None
        marks = ", ".join("?" * len(counted))
        condition = f"(state IN ({marks}) OR (created > ? AND state IN (?, ?)))"
        since = self._keeper.before(now - rule.period) if rule.period else now
        names = ["failed", *map(bucket_name, reversed(self.tables.buckets))]
        for name in names:
            sql = f"SELECT id FROM {name} WHERE unique_key = ? AND {condition} LIMIT 1"
            row = first_row(self.tables.db, sql, (rule.key, *counted, since, *_RAN))
            if row is not None:
                job_id: str = row[0]
                return job_id
        return None

    # Ends

    def ended(self, rows: Iterable[Finished]) -> None:
        """Index the outcomes of jobs with a key, and release what waited for them."""
        db = self.tables.db
        for row in rows:
            rule = unique_rule(row.job.headers)
            if rule is None:
                continue
            failed = row.state is JobState.FAILED
            table = "failed" if failed else self.tables.bucket(row.at)
            db.execute(f"UPDATE {table} SET unique_key = ? WHERE id = ?", (rule.key, row.job.id))
            self.release(rule.key, row.at)

    def release(self, key: str, at: float) -> None:
        """Let the job that waited for the end of a holder of a key become ready, then at once.

        Args:
            key: Of the holder.
            at: When that one ended; a job with a later time of its own waits for that.
        """
        sql = """UPDATE jobs SET ready_at = max(ready_at - ?, ?)
                 WHERE unique_key = ? AND state = 1 AND ready_at >= ?"""
        self.tables.db.execute(sql, (HELD, at, key, HELD))

    def release_lonely(self) -> None:
        """Release what waits for a job that is not there: its end did not release it."""
        self.tables.db.execute(LONELY, (HELD, HELD))


def _state(job: JobRecord, running: Container[str]) -> JobState:
    leased = job.state is JobState.QUEUED and job.id in running
    return JobState.RUNNING if leased else job.state
