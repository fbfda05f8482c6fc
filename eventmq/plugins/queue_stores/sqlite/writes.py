"""The writes of a commit that change the SQLite store, one method each."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.graph import PAGED, flags_of
from eventmq.job import HELD, STATE_CODES, JobState, id_time
from eventmq.plugins.database import change, change_many, first_row
from eventmq.plugins.queue_stores.sqlite.checksums import (
    NEVER,
    data_crc,
    is_sound,
    job_prefix,
    outcome_prefix,
)
from eventmq.plugins.queue_stores.sqlite.graphs import GraphWrites
from eventmq.plugins.queue_stores.sqlite.rows import (
    FAILED_COLUMNS,
    INSERT_COLUMNS,
    JOB_COLUMNS,
    OUTCOME_COLUMNS,
    damage_of,
    label_of,
)
from eventmq.plugins.queue_stores.sqlite.unique import UniqueKeys
from eventmq.plugins.schedule_stores.table import ScheduleTable
from eventmq.store.reads import LoadSchedules
from eventmq.store.writes import (
    AdvanceSchedules,
    Attempt,
    LimitRow,
    PutSchedule,
    RemoveSchedule,
    SaveSchedules,
    SubqueueKey,
    WriteResult,
    unique_rule,
)
from eventmq.wire.batches import pack
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import apsw

    from eventmq.job import JobRecord
    from eventmq.plugins.queue_stores.sqlite.rows import Tables
    from eventmq.store.reads import History
    from eventmq.store.writes import (
        Admit,
        AdmitGraph,
        CloseChunk,
        Finish,
        Finished,
        LeaseChunk,
        Promote,
        Requeue,
        SaveLimits,
    )
    from eventmq.timekeeping import Timekeeper

__all__ = [
    "KEPT",
    "SKEW",
    "Attempts",
    "LimitRows",
    "Mismatch",
    "Writes",
    "id_horizon",
    "next_ready_at",
    "schedule_handlers",
]


#: Attempts of one job that are kept, the last ones.
KEPT = 10

#: Rows that are forgotten in one go.
_SLICE = 5000

#: Seconds that a client's clock may be ahead. Ids that claim to be later are always looked up.
SKEW = 86_400.0

_CODES = dict(STATE_CODES)

_QUEUED = STATE_CODES[JobState.QUEUED]

_DELAYED = STATE_CODES[JobState.DELAYED]

_MARKS = ", ".join("?" * 16)

_INSERT = f"INSERT OR IGNORE INTO jobs ({INSERT_COLUMNS}, subqueue) VALUES ({_MARKS}, ?)"

_FAIL = f"""INSERT OR REPLACE INTO failed ({JOB_COLUMNS}, {FAILED_COLUMNS}, size)
  VALUES ({_MARKS}, ?, ?, ?, ?, ?, ?, ?, ?)"""

_OUTCOME = f"INSERT OR REPLACE INTO {{}} ({OUTCOME_COLUMNS}) VALUES ({', '.join('?' * 15)})"


def _error(job_id: str, content_type: str, error: bytes, crc: int) -> tuple[str, bytes]:
    """Return content type and error of an attempt, or in its place that it was altered."""
    if is_sound(crc, job_id, content_type, error):
        return content_type, error
    text = f"{damage_of(job_id)}: why this attempt failed is not known any more"
    return ERROR_TYPE, encode_error(RemoteError("eventmq.errors.StoreError", text))


class Attempts:
    """The table ``attempts``."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def add(self, attempt: Attempt) -> None:
        """Keep one failed attempt, and forget the one that is too many."""
        worker = self.tables.name_id(attempt.worker)
        sql = """INSERT OR REPLACE INTO attempts
                 (id, attempt, delivery, at, started, run_time, worker, content_type, error, crc)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
        crc = data_crc(crc32(attempt.job_id.encode()), attempt.content_type, attempt.error)
        row = (
            attempt.job_id, attempt.attempt, attempt.delivery, attempt.at, attempt.started,
            attempt.run_time, worker, attempt.content_type, attempt.error, crc,
        )  # fmt: skip
        self.tables.db.execute(sql, row)
        sql = "DELETE FROM attempts WHERE id = ? AND attempt <= ?"
        self.tables.db.execute(sql, (attempt.job_id, attempt.attempt - KEPT))

    def history(self, write: History) -> list[Attempt]:
        """Return the kept attempts of a job."""
        sql = """SELECT id, attempt, delivery, at, started, run_time, worker, content_type, error,
                 crc
                 FROM attempts WHERE id = ? ORDER BY attempt"""
        rows = self.tables.rows(sql, (write.id,))
        return [
            Attempt._make((*row[:6], self.tables.name(row[6]), *_error(row[0], *row[7:])))
            for row in rows
        ]

    def size(self, job_id: str) -> int:
        """Return the bytes of the errors that are kept of a job."""
        sql = "SELECT coalesce(sum(length(error)), 0) FROM attempts WHERE id = ?"
        (size,) = first_row(self.tables.db, sql, (job_id,))
        return int(size)

    def ended(self, rows: Iterable[Finished]) -> None:
        """Write when jobs ended, so that their histories go with their outcomes.

        That of a failed job stays, until it ended in another way or was dropped.
        """
        sql = "UPDATE attempts SET ended = ? WHERE id = ?"
        ends = [(row.at, row.job.id) for row in rows if row.state.value != "failed"]
        self.tables.db.executemany(sql, ends)

    def drop(self, ids: Iterable[str]) -> None:
        """Forget the histories of jobs."""
        sql = "DELETE FROM attempts WHERE id = ?"
        self.tables.db.executemany(sql, [(job_id,) for job_id in ids])

    def prune(self, before: float) -> bool:
        """Forget some histories of jobs that ended before that time; return whether more did."""
        sql = """DELETE FROM attempts WHERE key IN
                 (SELECT key FROM attempts WHERE ended > 0 AND ended < ? LIMIT ?)"""
        return change(self.tables.db, sql, (before, _SLICE)) == _SLICE


def id_horizon(now: float) -> str:
    """Return the smallest text above every version 7 id made up to ``now`` plus `SKEW`."""
    return f"{int((now + SKEW) * 1000):012x}"


class Mismatch(Exception):
    """A bulk statement touched fewer rows than expected: run the batch again row by row."""


class Writes:
    """Handlers of `Admit`, `Finish`, `Requeue`, `LeaseChunk`, `CloseChunk` and `Promote`."""

    def __init__(self, tables: Tables, dedupe_window: float, keeper: Timekeeper) -> None:
        self.tables = tables
        self.attempts = Attempts(tables)
        self.dedupe_window = dedupe_window
        self.unique = UniqueKeys(tables, self._store_outcomes, dedupe_window, keeper)
        self.graphs = GraphWrites(tables, self.finish)
        #: Number of this opening; set by the store.
        self.epoch = 0
        #: Guarded wall time; set by the store.
        self.wall = 0.0
        #: Admitted ids that claim to be made later than `SKEW` from then: look them up for ever.
        self.future_ids: set[str] = set()
        #: No version 7 id above this one was ever admitted, so it needs no look-up.
        self.highest_id = ""
        #: Set by the store for the second run of a batch: report jobs that are gone as stale.
        self.check_missing = False
        #: Set by the store while the free space is under the reserve.
        self.refuse = False

    # Admission

    # hot loop: python -m benchmarks enqueue_bulk
    def admit(self, write: Admit) -> dict[int, WriteResult]:  # noqa: PLR0912 - a hot loop
        """Insert new jobs; refuse ids that are there or were there within the dedupe window.

        The largest id so far moves to the largest of these.
        """
        jobs = write.jobs
        if self.refuse:
            return {i: WriteResult("full", "the disk is nearly full") for i in range(len(jobs))}
        if not jobs:
            return {}
        highest, future = self.highest_id, self.future_ids
        keys_of: dict[tuple[str, str], tuple[int, int, int]] = {}
        wall = self.wall
        horizon, window = id_horizon(wall), self.dedupe_window
        refused: dict[int, WriteResult] = {}
        rows: list[tuple[Any, ...]] = []
        keyed: list[int] = []
        text = name = None
        data, unique = b"", False
        queue = subqueue = prefix = common = 0
        for i, j in enumerate(jobs):
            job_id = j.id
            if highest < job_id < horizon and id_time(job_id) is not None and job_id not in future:
                highest = job_id  # above all ids ever admitted: needs no look-up
            elif (state := self._finished_state(job_id)) is not None:
                refused[i] = WriteResult("same_id", state)
                continue
            elif horizon <= job_id < id_horizon(wall + window):
                future.add(job_id)
            if j.headers != text or j.queue != name:  # mostly all are as the one before
                text, name = j.headers, j.queue
                unique = "unique:" in text and unique_rule(text) is not None
                keys = None if unique else keys_of.get((name, text))
                if keys is None and not unique:
                    keys = keys_of[name, text] = self._queue_keys(j)
                queue, subqueue, prefix = keys or (0, 0, 0)
                data, common = b"", prefix
            if unique:
                keyed.append(i)
                continue
            body = j.body
            if body != data:
                data = body
                common = crc32(body, prefix)
            j.id_crc = id_crc = crc32(job_id.encode())
            rows.append((
                j.seq, job_id, queue, j.rank, _CODES[j.state], j.attempt, 0, j.deaths, j.ready_at,
                j.expires, j.created, text, body, j.eta, id_crc ^ common,
                id_crc ^ prefix, subqueue,
            ))  # fmt: skip
        self.highest_id = highest
        count = change_many(self.tables.db, _INSERT, rows) if rows else 0
        if count < len(rows):
            self._find_ignored(jobs, refused, keyed)
        self._count_admitted(jobs, refused, keyed)
        for i in keyed:
            write_result = self.unique.admit(jobs[i], write.running)
            if write_result is not None:
                refused[i] = write_result
        return refused

    def admit_graph(self, write: AdmitGraph) -> WriteResult | None:
        """Insert the jobs of a graph, all or none."""
        if self.refuse:
            return WriteResult("full", "the disk is nearly full")
        return self.graphs.admit(write, self._find_taken)

    def _find_taken(self, jobs: Sequence[JobRecord]) -> str:
        """Return the id of a job that is there or was, "" for none; note what is the highest."""
        highest, future = self.highest_id, self.future_ids
        horizon, far = id_horizon(self.wall), id_horizon(self.wall + self.dedupe_window)
        for job in jobs:
            job_id = job.id
            if highest < job_id < horizon and id_time(job_id) is not None and job_id not in future:
                highest = job_id
            elif self._finished_state(job_id) is not None or self._waits(job_id):
                return job_id
            elif horizon <= job_id < far:
                future.add(job_id)
        self.highest_id = highest
        return ""

    def _waits(self, job_id: str) -> bool:
        sql = "SELECT 1 FROM jobs WHERE id = ?"
        return first_row(self.tables.db, sql, (job_id,)) is not None

    def _queue_keys(self, job: JobRecord) -> tuple[int, int, int]:
        """Return the numbers of a job's queue and subqueue, and what its checksum has in common."""
        tables, prefix = self.tables, job_prefix(job.queue, job.headers)
        return tables.queue_id(job.queue), tables.subqueue_id(job.queue, job.headers), prefix

    def _count_admitted(
        self, jobs: Sequence[JobRecord], refused: dict[int, WriteResult], keyed: Sequence[int]
    ) -> None:
        admitted = jobs
        if refused or keyed:
            excluded = {*refused, *keyed}
            admitted = [job for i, job in enumerate(jobs) if i not in excluded]
        kinds = [(job.queue, job.state) for job in admitted]
        counts = Counter(kinds) if len(kinds) > 1 else dict.fromkeys(kinds, 1)
        for (queue, state), n in counts.items():
            delayed = n if state is JobState.DELAYED else 0
            self.tables.count(self.tables.queue_id(queue), n - delayed, delayed)

    def _finished_state(self, job_id: str) -> str | None:
        db = self.tables.db
        if first_row(db, "SELECT 1 FROM failed WHERE id = ?", (job_id,)):
            return JobState.FAILED.value
        for bucket in self.tables.buckets_of(job_id):
            sql = f"SELECT state FROM outcomes_{bucket} WHERE id = ?"
            row = first_row(db, sql, (job_id,))
            if row:
                state: JobState = list(JobState)[row[0]]
                return state.value
        return None

    def _find_ignored(
        self, jobs: Sequence[JobRecord], refused: dict[int, WriteResult], keyed: Sequence[int]
    ) -> None:
        sql = "SELECT seq, state FROM jobs WHERE id = ?"
        for i, job in enumerate(jobs):
            if i not in refused and i not in keyed:
                seq, state = first_row(self.tables.db, sql, (job.id,))
                if seq != job.seq:
                    refused[i] = WriteResult("same_id", list(JobState)[state].value)

    # Ends

    def finish(self, write: Finish) -> dict[int, WriteResult]:
        """Move jobs to their outcomes; those that are not there any more are ``stale_lease``."""
        rows = write.rows
        stale: dict[int, WriteResult] = {}
        if self.check_missing:
            stale = self._missing(rows)
        if self._delete([row.job.seq for row in rows]) + len(stale) != len(rows):
            raise Mismatch
        present = rows if not stale else [r for i, r in enumerate(rows) if i not in stale]
        self._store_outcomes(present)
        return stale

    def _delete(self, seqs: list[int]) -> int:
        """Delete jobs run by run: what was admitted together mostly ends together."""
        seqs.sort()
        runs = []
        first = last = seqs[0] if seqs else 0
        for seq in seqs[1:]:
            if seq != last + 1:
                runs.append((first, last))
                first = seq
            last = seq
        if seqs:
            runs.append((first, last))
        sql = "DELETE FROM jobs WHERE seq BETWEEN ? AND ?"
        return change_many(self.tables.db, sql, runs) if runs else 0

    def _missing(self, rows: Sequence[Finished]) -> dict[int, WriteResult]:
        db = self.tables.db
        seen: set[int] = set()
        missing = {}
        for i, row in enumerate(rows):
            exists = first_row(db, "SELECT 1 FROM jobs WHERE seq = ?", (row.job.seq,))
            if not exists or row.job.seq in seen:
                missing[i] = WriteResult("stale_lease")
            seen.add(row.job.seq)
        return missing

    # hot loop: python -m benchmarks drain
    def _store_outcomes(self, rows: Sequence[Finished]) -> None:  # noqa: PLR0912 - a hot loop
        tables = self.tables
        queue_id, name_id = tables.queue_id, tables.name_id
        keys: dict[tuple[str, str, str], tuple[int, int, int, int]] = {}
        counts: dict[tuple[int, JobState, JobState], int] = {}
        ended, failed, again = [], [], []
        last: tuple[Any, ...] = ()
        name = text = kind = by = previous = now = None
        queue = task = number = prefix = common = code = since = 0
        hashed: bytes | None = b""
        for index, row in enumerate(rows):
            job, state, at, ttl, content_type, result, started, run_time, worker = row
            if (
                job.headers != text or content_type != kind or state is not now
                or worker != by or job.queue != name or job.state is not previous
            ):  # fmt: skip
                # Of another sort than the one before; mostly all of them are the same.
                if last:
                    counts[last] = counts.get(last, 0) + index - since
                since, name, text, by = index, job.queue, job.headers, worker
                previous, now, kind = job.state, state, content_type
                if (name, text, by) not in keys:
                    label = label_of(job)
                    ids = queue_id(name), name_id(label), name_id(by), job_prefix(name, label)
                    keys[name, text, by] = ids
                queue, task, number, seed = keys[name, text, by]
                code = _CODES[now]
                last = queue, previous, now
                prefix = common = outcome_prefix(seed, code, kind)
                hashed = b""  # of which ``common`` is the checksum so far
            attempt = job.attempt
            if attempt > 1:
                again.append(row)
            if state is JobState.FAILED:
                failed.append(row)
                continue
            stored = result if ttl > 0 else None
            if stored != hashed:
                hashed = stored
                common = prefix ^ 1 if stored is None else crc32(stored, prefix)
            job_id = job.id
            id_crc = job.id_crc or crc32(job_id.encode())
            ended.append((
                job_id, code, at, at + ttl, content_type, stored, queue, task, attempt,
                job.delivery, job.created, started, run_time, number, id_crc ^ common,
            ))  # fmt: skip
        if last:
            counts[last] = counts.get(last, 0) + len(rows) - since
        if ended:
            tables.db.executemany(_OUTCOME.format(tables.bucket(rows[0].at)), ended)
        if failed:
            tables.db.executemany(_FAIL, map(self._failed_row, failed))
        if again:
            self.attempts.ended(again)
        if any("unique:" in headers for _, headers, _ in keys):
            self.unique.ended(rows)
        if any("graph:" in headers for _, headers, _ in keys):
            self.graphs.ended(rows)
        self._count_ended(counts)

    def _count_ended(self, counts: Mapping[tuple[int, JobState, JobState], int]) -> None:
        """Change the counts of queues by how many jobs went from which state to which."""
        for (queue, before, end), n in counts.items():
            delayed = n if before is JobState.DELAYED else 0
            blocked = n if before is JobState.BLOCKED else 0
            failed = n if end is JobState.FAILED else 0
            self.tables.count(queue, delayed + blocked - n, -delayed, failed, -blocked)

    def _failed_row(self, row: Finished) -> tuple[Any, ...]:
        job, state, at, _, content_type, result, started, run_time, worker = row
        columns = list(self.tables.row(job))
        columns[4] = STATE_CODES[state]
        if job.damaged:  # it must not look sound when it is looked at, or queued again
            columns[-2:] = NEVER, NEVER
        name = self.tables.name_id(worker)
        size = len(job.headers) + len(job.body) + len(result)
        if job.attempt > 1:
            size += self.attempts.size(job.id)
        if PAGED in flags_of(job.headers):
            size += self.graphs.inputs.bytes_of(job.id)
        self.tables.failed_bytes += size
        head = columns.pop()
        crc = data_crc(head, content_type, result)
        return (*columns, at, content_type, result, started, run_time, name, crc, head, size)

    # Life in between

    def requeue(self, write: Requeue) -> dict[int, WriteResult]:
        """Write what changed of unfinished jobs; the counts follow their old state on disk."""
        db = self.tables.db
        failures = {attempt.job_id: attempt for attempt in write.attempts}
        sql = """UPDATE jobs SET state = ?, rank = ?, ready_at = ?, attempt = ?, delivery = ?,
                 deaths = ?, eta = ? WHERE seq = ?"""
        stale: dict[int, WriteResult] = {}
        for index, job in enumerate(write.jobs):
            row = first_row(db, "SELECT state FROM jobs WHERE seq = ?", (job.seq,))
            if row is None:
                stale[index] = WriteResult("stale_lease")
                continue
            was, now = row[0] == _DELAYED, job.state is JobState.DELAYED
            self.tables.count(self.tables.queue_id(job.queue), was - now, now - was)
            code = _DELAYED if now else _QUEUED
            values = (code, job.rank, job.ready_at, job.attempt, job.delivery, job.deaths, job.eta)
            db.execute(sql, (*values, job.seq))
            if job.id in failures:
                self.attempts.add(failures[job.id])
        return stale

    def lease_chunk(self, write: LeaseChunk) -> dict[int, WriteResult]:
        """Write the one row that leases all jobs of a chunk."""
        chunk = write.chunk
        leases = pack(
            [
                (job.seq, delivery, job.id) if job else (0, delivery, "")
                for job, delivery in chunk.leases
            ]
        )
        sql = "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)"
        self.tables.db.execute(sql, (chunk.session, chunk.number, self.epoch, leases, chunk.leased))
        return {}

    def close_chunk(self, write: CloseChunk) -> dict[int, WriteResult]:
        """Delete the row of a chunk."""
        sql = "DELETE FROM chunks WHERE session = ? AND number = ?"
        self.tables.db.execute(sql, (write.session, write.number))
        return {}

    def promote(self, write: Promote) -> tuple[list[JobRecord], float | None]:
        """Queue delayed jobs whose time has come."""
        db = self.tables.db
        jobs: list[JobRecord] = []
        size = 0
        with closing(self._ready_rows(write)) as rows:
            for row in rows:
                job = self.tables.job(row)
                if job.eta:
                    ready = max(write.since, min(write.now, job.eta - write.ahead))
                    job.rank += int((ready - job.ready_at) * 1_000_000)
                    job.ready_at = ready
                jobs.append(job)
                size += len(job.body)
                if size > write.max_bytes or len(jobs) == write.limit:
                    break
        sql = "UPDATE jobs SET state = 2, rank = ?, ready_at = ? WHERE seq = ?"
        db.executemany(sql, [(job.rank, job.ready_at, job.seq) for job in jobs])
        for job in jobs:
            job.state = JobState.QUEUED
            self.tables.count(self.tables.queue_id(job.queue), 1, -1)
        return jobs, next_ready_at(db, write.ahead)

    def _ready_rows(self, write: Promote) -> Generator[tuple[Any, ...]]:
        """Yield the rows of delayed jobs that are due, those by store time first."""
        sql = f"""SELECT {JOB_COLUMNS} FROM jobs WHERE state = 1 AND eta = 0 AND ready_at <= ?
                  ORDER BY ready_at LIMIT ?"""
        with closing(self.tables.rows(sql, (write.now, write.limit))) as rows:
            yield from rows
        sql = f"""SELECT {JOB_COLUMNS} FROM jobs WHERE state = 1 AND eta > 0 AND eta <= ?
                  AND ready_at < ? ORDER BY eta LIMIT ?"""
        wall = write.now + write.ahead
        with closing(self.tables.rows(sql, (wall, HELD, write.limit))) as rows:
            yield from rows


def next_ready_at(db: apsw.Connection, ahead: float) -> float | None:
    """Return the store time at which the first delayed job is due, None for none.

    Args:
        db: Of the store.
        ahead: Seconds by which wall time is ahead of store time.
    """
    sql = "SELECT min(ready_at) FROM jobs WHERE state = 1 AND eta = 0"
    (ready_at,) = first_row(db, sql)
    sql = "SELECT min(eta) FROM jobs WHERE state = 1 AND eta > 0 AND ready_at < ?"
    (eta,) = first_row(db, sql, (HELD,))
    return min(
        (at for at in (ready_at, None if eta is None else eta - ahead) if at is not None),
        default=None,
    )


def schedule_handlers(db: apsw.Connection) -> dict[type, Callable[[Any], Any]]:
    """Return what carries out each kind of write; outside of a transaction, it makes the table."""
    table = ScheduleTable(db)

    def save(write: SaveSchedules) -> tuple[list[str], int]:
        codes = [table.save(row, expected) for row, expected in write.rows]
        return codes, table.revision

    def put(write: PutSchedule) -> tuple[str, int]:
        return table.put(write.schedule, write.now), table.revision

    def advance(write: AdvanceSchedules) -> tuple[list[bool], int]:
        return table.advance(write.rows), table.revision

    def remove(write: RemoveSchedule) -> tuple[bool, int]:
        return table.remove(write.name, write.expected), table.revision

    return {
        LoadSchedules: table.load,
        SaveSchedules: save,
        PutSchedule: put,
        AdvanceSchedules: advance,
        RemoveSchedule: remove,
    }


class LimitRows:
    """Handler of `SaveLimits`."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def save(self, write: SaveLimits) -> None:
        """Write token buckets."""
        sql = "INSERT OR REPLACE INTO limiters VALUES (?, ?, ?, ?, ?)"
        rows = [
            (subqueue.task or "", subqueue.key, tokens, updated, period)
            for subqueue, tokens, updated, period in write.rows
        ]
        self.tables.db.executemany(sql, rows)

    def rows(self) -> list[LimitRow]:
        """Return all token buckets."""
        sql = "SELECT task, key, tokens, updated, period FROM limiters"
        cursor = self.tables.db.execute(sql)
        return [LimitRow(SubqueueKey(task, key), *values) for task, key, *values in cursor]

    def prune(self, now: float) -> None:
        """Forget the buckets that are full."""
        sql = "DELETE FROM limiters WHERE updated + period <= ?"
        self.tables.db.execute(sql, (now,))
