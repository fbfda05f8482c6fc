"""Writes: handlers that change jobs and leases, and the tables of attempts, limits and suspects."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.engine import damaged
from eventmq.engine.arguments import ATTEMPT, HEADER, KeptArguments
from eventmq.engine.contract import Mismatch
from eventmq.engine.graphs import GraphWrites
from eventmq.engine.joblogs import JobLogs
from eventmq.engine.rows import (
    FAILED_ROW,
    INSERT_ROW,
    JOB_ROW,
    OUTCOME_ROW,
    WRONG_CHECKSUM,
    damage_of,
    data_crc,
    error_label,
    is_intact,
    job_prefix,
    label_of,
    outcome_prefix,
    task_of,
)
from eventmq.engine.unique import UniqueKeys, key_of
from eventmq.errors import ProtocolError
from eventmq.graph import PAGED, flags_of
from eventmq.job import STATE_CODES, JobState, id_time
from eventmq.store.writes import (
    Attempt,
    LimitRow,
    SubqueueKey,
    SuspectEnd,
    SuspectRow,
    WriteResult,
    unique_rule,
)
from eventmq.wire.batches import pack, unpack
from eventmq.wire.results import ERROR_TYPE, RemoteError, decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from eventmq.engine.contract import Request, RowStore
    from eventmq.engine.rows import Tables
    from eventmq.job import JobRecord
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
        SaveSuspects,
    )
    from eventmq.timekeeping import Timekeeper

__all__ = [
    "MAX_ATTEMPTS",
    "SKEW",
    "Attempts",
    "LimitRows",
    "SuspectRows",
    "Writes",
    "id_horizon",
    "next_ready_at",
]

logger = logging.getLogger("eventmq.store")

#: Maximum number of attempts that are kept of one job, the last ones.
MAX_ATTEMPTS = 10

#: Seconds that a client's clock may be ahead. Ids with a later time are always looked up.
SKEW = 86_400.0

#: Maximum number of rows that one commit deletes.
SLICE = 5000

_CODES = dict(STATE_CODES)

_QUEUED = STATE_CODES[JobState.QUEUED]

_DELAYED = STATE_CODES[JobState.DELAYED]

_STATES = [state.value for state in JobState]

#: Columns of a new job, a failed job, an outcome, a requeued job, a chunk and a limiter.
_NEW_JOB = (*INSERT_ROW, "subqueue")

_FAILED = (*FAILED_ROW, "size", "unique_key", "task", "error")

_OUTCOME = (*OUTCOME_ROW, "unique_key")

_REQUEUED = ("state", "rank", "ready_at", "attempt", "delivery", "deaths", "eta")

_CHUNK = ("session", "number", "epoch", "leases", "leased")

_LIMITER = ("task", "key", "tokens", "updated", "period")


def _error(job_id: str, content_type: str, error: bytes, crc: int) -> tuple[str, bytes]:
    """Return content type and error of an attempt; an error that says so if that is damaged."""
    if is_intact(crc, job_id, content_type, error):
        return content_type, error
    text = f"{damage_of(job_id)}: the error of this attempt is lost"
    return ERROR_TYPE, encode_error(RemoteError("eventmq.errors.StoreError", text))


_ATTEMPT = (
    "id", "attempt", "delivery", "at", "started", "run_time", "worker", "content_type", "error",
    "crc",
)  # fmt: skip


class Attempts:
    """Table ``attempts``: failed attempts of jobs. Keeps the logs of attempts as well."""

    def __init__(self, tables: Tables, keeper: Timekeeper) -> None:
        self.tables = tables
        self.store = tables.store
        self.logs = JobLogs(tables, keeper)

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Store failed attempts; delete the earliest attempt of a job that has too many."""
        name_id = self.tables.name_id
        self.store.put("attempts", _ATTEMPT, [
            (
                *attempt[:6], name_id(attempt.worker), attempt.content_type, attempt.error,
                data_crc(crc32(attempt.job_id.encode()), attempt.content_type, attempt.error),
            )
            for attempt in attempts
        ])  # fmt: skip
        for attempt in attempts:
            if attempt.attempt > MAX_ATTEMPTS:
                self.store.delete_range(
                    "attempts", (attempt.job_id,), le=(attempt.attempt - MAX_ATTEMPTS,)
                )

    def history(self, write: History) -> list[Attempt]:
        """Return the stored attempts of a job."""
        rows = self.tables.scan("attempts", _ATTEMPT, (write.id,), gt=(ATTEMPT,))
        return [
            Attempt._make((*row[:6], self.tables.name(row[6]), *_error(row[0], *row[7:])))
            for row in rows
        ]

    def sizes(self, ids: Sequence[str]) -> Counter[str]:
        """Return the bytes of the stored errors and logs of each job."""
        sizes = self.logs.sizes(ids)
        for job_id, size in self.store.get("attempts", ("id", "size"), ids, by="attempts"):
            sizes[job_id] += size
        return sizes

    def ended(self, rows: Sequence[Finished]) -> None:
        """Store when jobs ended, so that their attempts are pruned together with their outcomes.

        Those of a failed job stay until the job has ended in another way or was dropped.
        """
        self.store.update("attempts", ("ended",), [
            (row.at, row.job.id, attempt)
            for row in rows if row.state is not JobState.FAILED
            for attempt in range(max(0, row.job.attempt - MAX_ATTEMPTS), row.job.attempt + 1)
        ])  # fmt: skip
        self.logs.ended(rows)

    def drop(self, ids: Sequence[str]) -> None:
        """Delete the attempts and logs of jobs."""
        self.logs.drop(ids)
        for job_id in ids:
            self.store.delete_range("attempts", (job_id,))

    def prune(self, before: float) -> bool:
        """Delete attempts of some jobs that ended before a time; return whether more may remain."""
        ended = list(self.store.scan("attempts_ended", ("ended",), lt=(before,), limit=SLICE))
        if ended:
            self.store.delete_range("attempts_ended", le=ended[-1])
        return len(ended) == SLICE


def id_horizon(now: float) -> str:
    """Return the smallest text above every version 7 id made up to ``now`` plus `SKEW`."""
    return f"{int((now + SKEW) * 1000):012x}"


class Writes:
    """Handlers of `Admit`, `Finish`, `Requeue`, `LeaseChunk`, `CloseChunk` and `Promote`."""

    def __init__(self, tables: Tables, dedupe_window: float, keeper: Timekeeper) -> None:
        self.tables = tables
        self.store = tables.store
        self.attempts = Attempts(tables, keeper)
        self.arguments = KeptArguments(tables)
        self.dedupe_window = dedupe_window
        self.unique = UniqueKeys(tables, self._store_outcomes, dedupe_window, keeper)
        self.graphs = GraphWrites(tables, self.finish)
        #: Number of this opening; set by the engine.
        self.epoch = 0
        #: Guarded wall time; set by the engine.
        self.wall = 0.0
        #: Admitted ids whose time was more than `SKEW` ahead of wall time: always looked up.
        self.future_ids: set[str] = set()
        #: No version 7 id above this one was ever admitted, so it needs no look-up.
        self.highest_id = ""
        #: Set by the engine for the second run of a batch: report missing jobs as stale.
        self.check_missing = False
        #: Set by the engine while the free disk space is under the reserve.
        self.refuse = False

    # Admission

    # hot loop: python -m benchmarks enqueue_bulk
    def admit(self, write: Admit) -> dict[int, WriteResult]:  # noqa: PLR0912 - a hot loop
        """Insert new jobs; refuse ids that exist or existed within the dedupe window.

        Updates `highest_id`.
        """
        jobs = write.jobs
        if self.refuse:
            return {i: WriteResult("full", "the disk is nearly full") for i in range(len(jobs))}
        if not jobs:
            return {}
        highest, future = self.highest_id, self.future_ids
        #: Queue and headers -> numbers of queue and subqueue, and the prefix of checksums.
        keys_of: dict[tuple[str, str], tuple[int, int, int]] = {}
        wall = self.wall
        horizon, window = id_horizon(wall), self.dedupe_window
        ended: dict[str, int] | None = None
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
            else:
                if ended is None:
                    ended = self._ended_states(self._unproven(jobs[i:], highest, horizon)[0])
                if job_id in ended:
                    refused[i] = WriteResult("same_id", _STATES[ended[job_id]])
                    continue
                if horizon <= job_id < id_horizon(wall + window):
                    future.add(job_id)
            if j.headers != text or j.queue != name:  # mostly all jobs are alike
                text, name = j.headers, j.queue
                unique = "unique:" in text and unique_rule(text) is not None
                keys = None if unique else keys_of.get((name, text))
                if keys is None and not unique:
                    keys = self._keys(keys_of, jobs, i)
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
        duplicates = self.store.insert_new("jobs", _NEW_JOB, rows) if rows else ()
        if duplicates:
            self._refuse_duplicates([rows[position] for position in duplicates], jobs, refused)
        self._count_admitted(jobs, refused, keyed)
        if keyed:
            refused |= self.unique.admit({i: jobs[i] for i in keyed}, write.running)
        return refused

    def _keys(
        self,
        keys_of: dict[tuple[str, str], tuple[int, int, int]],
        jobs: Sequence[JobRecord],
        i: int,
    ) -> tuple[int, int, int]:
        """Return queue, subqueue and checksum prefix of a job, and cache them in ``keys_of``.

        From the second call on, those of all remaining jobs of the queue are read together.

        Args:
            keys_of: The cache, by queue and headers.
            jobs: All jobs that are admitted.
            i: Index of the job.
        """
        name, headers = jobs[i].queue, {jobs[i].headers}
        if keys_of:
            rest = {job.headers for job in jobs[i:] if job.queue == name}
            headers |= {text for text in rest if "unique:" not in text}
        queue = self.tables.queue_id(name)
        for text, subqueue in self.tables.subqueue_ids(name, headers).items():
            keys_of[name, text] = queue, subqueue, job_prefix(name, text)
        return keys_of[name, jobs[i].headers]

    def admit_graph(self, write: AdmitGraph) -> WriteResult | None:
        """Insert the jobs of a graph, all or none."""
        if self.refuse:
            return WriteResult("full", "the disk is nearly full")
        return self.graphs.admit(write, self._find_duplicate)

    def _find_duplicate(self, jobs: Sequence[JobRecord]) -> str:
        """Return the id of a job that exists or existed, "" if all are new; update `highest_id`."""
        horizon, window_end = id_horizon(self.wall), id_horizon(self.wall + self.dedupe_window)
        ids, highest = self._unproven(jobs, self.highest_id, horizon)
        duplicates = self._ended_states(ids).keys() | {
            job_id for (job_id,) in self.store.get("jobs", ("id",), ids, by="jobs_id")
        }
        if not duplicates:
            self.future_ids.update(job_id for job_id in ids if horizon <= job_id < window_end)
            self.highest_id = highest
        return next((job_id for job_id in ids if job_id in duplicates), "")

    def _unproven(
        self, jobs: Sequence[JobRecord], highest: str, horizon: str
    ) -> tuple[list[str], str]:
        """Return the ids that have to be looked up, and the highest of all others."""
        ids = []
        for job in jobs:
            job_id = job.id
            known = job_id in self.future_ids or id_time(job_id) is None
            if highest < job_id < horizon and not known:
                highest = job_id  # above all ids ever admitted: needs no look-up
            else:
                ids.append(job_id)
        return list(dict.fromkeys(ids)), highest

    def _ended_states(self, ids: Sequence[str]) -> dict[str, int]:
        """Return id -> code of the state, for those of the jobs that have ended."""
        periods = {job_id: self.tables.periods_of(job_id) for job_id in ids}
        requests: list[Request] = [
            (table, ("id", "state"), [job_id for job_id in ids if table in periods[job_id]], "")
            for table in self.tables.periods.values()
        ]
        requests.append(("failed", ("id", "state"), ids, "failed_id"))
        return dict(chain.from_iterable(self.store.get_all(requests)))

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

    def _refuse_duplicates(
        self,
        rows: Sequence[tuple[Any, ...]],
        jobs: Sequence[JobRecord],
        refused: dict[int, WriteResult],
    ) -> None:
        """Refuse the jobs of these rows, since unfinished jobs have their ids."""
        ids = list(dict.fromkeys(row[1] for row in rows))
        states = dict(self.store.get("jobs", ("id", "state"), ids, by="jobs_id"))
        positions = {job.seq: position for position, job in enumerate(jobs)}
        for row in rows:
            refused[positions[row[0]]] = WriteResult("same_id", _STATES[states[row[1]]])

    # Ends

    def finish(self, write: Finish) -> dict[int, WriteResult]:
        """Move jobs to their outcomes; jobs that do not exist any more are ``stale_lease``."""
        rows = write.rows
        stale: dict[int, WriteResult] = {}
        if self.check_missing:
            stale = self._missing(rows)
        if rows and self._delete([row.job.seq for row in rows]) + len(stale) != len(rows):
            raise Mismatch
        present = rows if not stale else [r for i, r in enumerate(rows) if i not in stale]
        if write.logs:
            ids = {row.job.id for row in present}
            self.attempts.logs.add([log for log in write.logs if log.job_id in ids])
        self._store_outcomes(present)
        return stale

    def _delete(self, seqs: list[int]) -> int:
        """Delete jobs by runs of numbers: jobs admitted together mostly end together."""
        seqs.sort()
        runs = []
        first = last = seqs[0]
        for seq in seqs[1:]:
            if seq != last + 1:
                runs.append((first, last))
                first = seq
            last = seq
        runs.append((first, last))
        return self.store.delete_runs("jobs", runs, len(seqs))

    def _missing(self, rows: Sequence[Finished]) -> dict[int, WriteResult]:
        seqs = list({row.job.seq for row in rows})
        stored = {seq for (seq,) in self.store.get("jobs", ("seq",), seqs)}
        missing = {}
        for i, row in enumerate(rows):
            if row.job.seq not in stored:
                missing[i] = WriteResult("stale_lease")
            stored.discard(row.job.seq)
        return missing

    # hot loop: python -m benchmarks drain
    def _store_outcomes(self, rows: Sequence[Finished]) -> None:  # noqa: PLR0912, PLR0915 - hot
        tables = self.tables
        queue_id, name_id = tables.queue_id, tables.name_id
        keys: dict[tuple[str, str, str], tuple[int, int, int, int, str | None]] = {}
        counts: dict[tuple[int, JobState, JobState], int] = {}
        ended, failed, again = [], [], []
        last: tuple[Any, ...] = ()
        name = text = kind = by = previous = now = unique_key = None
        queue = task = number = prefix = common = code = since = 0
        hashed: bytes | None = b""
        for index, row in enumerate(rows):
            job, state, at, ttl, content_type, result, started, run_time, worker = row
            if (
                job.headers != text or content_type != kind or state is not now
                or worker != by or job.queue != name or job.state is not previous
            ):  # fmt: skip
                # Unlike the row before; mostly all rows are alike.
                if last:
                    counts[last] = counts.get(last, 0) + index - since
                since, name, text, by = index, job.queue, job.headers, worker
                previous, now, kind = job.state, state, content_type
                if (name, text, by) not in keys:
                    label = label_of(job)
                    ids = queue_id(name), name_id(label), name_id(by), job_prefix(name, label)
                    keys[name, text, by] = (*ids, key_of(text) if "unique:" in text else None)
                queue, task, number, seed, unique_key = keys[name, text, by]
                code = _CODES[now]
                last = queue, previous, now
                prefix = common = outcome_prefix(seed, code, kind)
                hashed = b""  # the data that ``common`` covers
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
                unique_key,
            ))  # fmt: skip
        if last:
            counts[last] = counts.get(last, 0) + len(rows) - since
        if ended:
            self.store.put(tables.period(rows[0].at), _OUTCOME, ended)
        if failed:
            self._store_failed(failed)
        if again:
            self.attempts.ended(again)
        if any(key is not None for *_, key in keys.values()):
            self.unique.ended(rows)
        if any("graph:" in headers for _, headers, _ in keys):
            self.graphs.ended(rows)
        if any(HEADER in headers for _, headers, _ in keys):
            self.arguments.add(rows)
        self._count_ended(counts)

    def _count_ended(self, counts: Mapping[tuple[int, JobState, JobState], int]) -> None:
        """Update the counts of queues by the number of jobs for each change of state."""
        for (queue, before, end), n in counts.items():
            delayed = n if before is JobState.DELAYED else 0
            blocked = n if before is JobState.BLOCKED else 0
            failed = n if end is JobState.FAILED else 0
            self.tables.count(queue, delayed + blocked - n, -delayed, failed, -blocked)

    def _store_failed(self, rows: Sequence[Finished]) -> None:
        known = [row.job.id for row in rows if row.job.attempt > 1 or self.attempts.logs.used]
        sizes = self.attempts.sizes(known)
        self.store.put(
            "failed", _FAILED, [self._failed_row(row, sizes[row.job.id]) for row in rows]
        )

    def _failed_row(self, row: Finished, size: int) -> tuple[Any, ...]:
        job, state, at, _, content_type, result, started, run_time, worker = row
        columns = list(self.tables.row(job))
        columns[4] = STATE_CODES[state]
        if job.damaged:  # it must not look sound when it is read or queued again
            columns[-2:] = WRONG_CHECKSUM, WRONG_CHECKSUM
        name = self.tables.name_id(worker)
        size += len(job.headers) + len(job.body) + len(result)
        if PAGED in flags_of(job.headers):
            size += self.graphs.inputs.bytes_of(job.id)
        self.tables.failed_bytes += size
        head = columns.pop()
        crc = data_crc(head, content_type, result)
        return (
            *columns, at, content_type, result, started, run_time, name, crc, head, size,
            key_of(job.headers), task_of(job), error_label(decode_error(result).type),
        )  # fmt: skip

    # Unfinished jobs

    def requeue(self, write: Requeue) -> dict[int, WriteResult]:
        """Store changes of unfinished jobs, and count them by their old state in the store."""
        tables, jobs = self.tables, write.jobs
        states = dict(self.store.get("jobs", ("seq", "state"), [job.seq for job in jobs]))
        rows, stale = [], {}
        for index, job in enumerate(jobs):
            if job.seq not in states:
                stale[index] = WriteResult("stale_lease")
                continue
            was, now = states[job.seq] == _DELAYED, job.state is JobState.DELAYED
            tables.count(tables.queue_id(job.queue), was - now, now - was)
            states[job.seq] = code = _DELAYED if now else _QUEUED
            rows.append((
                code, job.rank, job.ready_at, job.attempt, job.delivery, job.deaths, job.eta,
                job.seq,
            ))  # fmt: skip
        self.store.update("jobs", _REQUEUED, rows)
        if write.attempts or write.logs:
            ids = {job.id for index, job in enumerate(jobs) if index not in stale}
            self.attempts.add([a for a in write.attempts if a.job_id in ids])
            self.attempts.logs.add([log for log in write.logs if log.job_id in ids])
        return stale

    def lease_chunk(self, write: LeaseChunk) -> dict[int, WriteResult]:
        """Store a chunk: one row leases all its jobs."""
        chunk = write.chunk
        leases = pack(
            [
                (job.seq, delivery, job.id) if job else (0, delivery, "")
                for job, delivery in chunk.leases
            ]
        )
        row = (chunk.session, chunk.number, self.epoch, leases, chunk.leased)
        self.store.put("chunks", _CHUNK, [row])
        return {}

    def close_chunk(self, write: CloseChunk) -> dict[int, WriteResult]:
        """Delete the row of a chunk, which ends its leases."""
        self.store.delete("chunks", [(write.session, write.number)])
        return {}

    def promote(self, write: Promote) -> tuple[list[JobRecord], float | None]:
        """Queue delayed jobs that are due; return them and when the next one is due."""
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
        self.store.update(
            "jobs", ("state", "rank", "ready_at"),
            [(_QUEUED, job.rank, job.ready_at, job.seq) for job in jobs],
        )  # fmt: skip
        for job in jobs:
            job.state = JobState.QUEUED
            self.tables.count(self.tables.queue_id(job.queue), 1, -1)
        return jobs, next_ready_at(self.store, write.ahead)

    def _ready_rows(self, write: Promote) -> Generator[tuple[Any, ...]]:
        """Yield the rows of delayed jobs that are due, those delayed in store time first."""
        scan, limit, wall = self.tables.scan, write.limit, write.now + write.ahead
        with closing(scan("jobs_delayed", JOB_ROW, le=(write.now,), limit=limit)) as rows:
            yield from rows
        with closing(scan("jobs_eta", JOB_ROW, le=(wall,), limit=limit)) as rows:
            yield from rows


def next_ready_at(store: RowStore, ahead: float) -> float | None:
    """Return the store time at which the first delayed job is due, None if there is none.

    Args:
        store: The rows.
        ahead: Seconds by which wall time is ahead of store time.
    """
    times = [at for (at,) in store.scan("jobs_delayed", ("ready_at",), limit=1)]
    times += [eta - ahead for (eta,) in store.scan("jobs_eta", ("eta",), limit=1)]
    return min(times, default=None)


class LimitRows:
    """Table ``limiters``: token buckets. Handles `SaveLimits`."""

    def __init__(self, tables: Tables) -> None:
        self.store = tables.store

    def save(self, write: SaveLimits) -> None:
        """Store token buckets."""
        self.store.put("limiters", _LIMITER, [
            (subqueue.task or "", subqueue.key, tokens, updated, period)
            for subqueue, tokens, updated, period in write.rows
        ])  # fmt: skip

    def rows(self) -> list[LimitRow]:
        """Return all token buckets."""
        rows = self.store.scan("limiters", _LIMITER)
        return [LimitRow(SubqueueKey(task, key), *values) for task, key, *values in rows]

    def prune(self, now: float) -> None:
        """Delete full buckets, which are the default."""
        full = [
            (task, key)
            for task, key, _, updated, period in damaged.scan(self.store, "limiters", _LIMITER)
            if updated + period <= now
        ]
        self.store.delete("limiters", full)


class SuspectRows:
    """Table ``suspects``: jobs that may have killed a process. Handles `SaveSuspects`."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.store = tables.store

    def save(self, write: SaveSuspects) -> None:
        """Store the records of suspects."""
        store = self.store
        seqs = [row.seq for row in write.rows]
        unfinished = {seq for (seq,) in store.get("jobs", ("seq",), seqs)}
        store.put("suspects", ("seq", "record"), [
            (row.seq, pack(row[1:6])) for row in write.rows if row.seq in unfinished
        ])  # fmt: skip
        store.delete("suspects", write.removed)
        store.update("jobs", ("deaths",), [(deaths, seq) for seq, deaths in write.deaths])

    def rows(self) -> list[SuspectRow]:
        """Return the records of all suspects; delete those of jobs that have ended."""
        store, rows = self.store, []
        records = list(store.scan("suspects", ("seq", "record")))
        job_rows = store.get("jobs", ("seq", "queue", "id"), [seq for seq, _ in records])
        jobs = {seq: (queue, job_id) for seq, queue, job_id in job_rows}
        store.delete("suspects", [seq for seq, _ in records if seq not in jobs])
        for seq, record in records:
            if seq not in jobs:
                continue
            queue, job_id = jobs[seq]
            try:
                rows.append(_unpacked(seq, record, self.tables.queue_name(queue), job_id))
            except (ProtocolError, TypeError, ValueError, KeyError) as error:
                message = "the record of the deaths of job %s is damaged and is ignored: %s"
                logger.warning(message, job_id, error)
        return rows


def _unpacked(seq: int, record: bytes, queue: str, job_id: str) -> SuspectRow:
    losses, unproven, unreached, owed, ends = unpack(record, "a row of suspects")
    return SuspectRow(
        seq, int(losses), int(unproven), int(unreached), int(owed),
        [SuspectEnd(*end) for end in ends], queue, job_id,
    )  # fmt: skip
