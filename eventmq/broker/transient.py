"""Admits, hands out and ends jobs without guarantee: at most once each, never written.

A chunk is transient or stored, never both. A transient one that certainly never started (it could
not be sent, or the worker never had it, or hands it back) may be handed out again. If the session
of any other is lost, its jobs may have run: they end as `WorkerLost`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.job import JobState, OutcomeKind
from eventmq.store.reads import JobRow
from eventmq.store.writes import Finished
from eventmq.wire.results import ERROR_TYPE, LEGACY_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.broker.peers import Lease, Session
    from eventmq.broker.state import State
    from eventmq.broker.transient_jobs import TransientQueue
    from eventmq.broker.waiters import ResultWaiters
    from eventmq.headers import Headers
    from eventmq.job import JobRecord
    from eventmq.wire.batches import OutcomeRow

__all__ = ["Transient"]


logger = logging.getLogger("eventmq.broker")

_ENDS = {
    int(OutcomeKind.SUCCEEDED): JobState.SUCCEEDED,
    int(OutcomeKind.FAILED): JobState.FAILED,
    int(OutcomeKind.RETRY): JobState.FAILED,  # there is no second attempt
    int(OutcomeKind.EXPIRED): JobState.EXPIRED,
    int(OutcomeKind.CANCELLED): JobState.CANCELLED,
}

#: Kinds of outcomes whose run time counts for the estimate of the task.
_RAN = {int(OutcomeKind.SUCCEEDED), int(OutcomeKind.FAILED), int(OutcomeKind.RETRY)}

#: Microseconds of rank by which a transient job may overtake a stored one of the same queue, so
#: that chunks have more than one job where both arrive together.
_OVERTAKE = 20_000

#: Seconds between two scans for jobs whose task no worker knows.
_SCAN_EVERY = 1.0

#: Seconds; gaps that are closer than this are kept as one.
_APART = 1.0


class Transient:
    """Admits, hands out and ends the jobs of `State.transient`."""

    def __init__(self, state: State, waiters: ResultWaiters) -> None:
        self.state = state
        self.waiters = waiters
        self.memory = state.transient
        self._scanned_at = 0.0
        #: Periods of store time, first to last, in which the broker served no job.
        self._gaps: list[tuple[float, float]] = []

    # Admission

    @staticmethod
    def refusal(headers: Headers) -> tuple[str, str] | None:
        """Return why headers that say ``guarantee:False`` are refused, or None."""
        if headers.retry_count:
            return "bad-header", "guarantee:False and retry-count exclude each other"
        if headers.unique:
            return "bad-header", "guarantee:False and unique exclude each other"
        if headers.limit_rate or headers.limit_running or headers.limit_key:
            return "bad-header", "guarantee:False and limits exclude each other"
        return None

    def admit(self, job: JobRecord) -> tuple[str, str] | None:
        """Keep a job in memory; return the refusal, or None if the broker has it."""
        memory = self.memory
        if job.id in memory.jobs or memory.results.get(job.id, self.state.now):
            self.state.counters["duplicates"] += 1
            known = memory.find([job.id], self.state.now)[job.id]
            if parse_headers(known.job.headers).owner != parse_headers(job.headers).owner:
                return "not-allowed", f"another key has submitted a job with the id {job.id!r}"
            self.waiters.check_ended(job.id)
            return None
        refusal = memory.full(job)
        if refusal is None:
            memory.add(job)
            self.state.counters["admitted_transient"] += 1
            self.state.queue(job.queue).version += 1
        else:
            self.waiters.cancel_reply(job.id)
        return refusal

    def sift(
        self, jobs: list[JobRecord], places: list[int], refused: dict[int, tuple[str, str]]
    ) -> tuple[list[JobRecord], list[int]]:
        """Admit the transient jobs of a batch; return the others with their places."""
        stored: list[JobRecord] = []
        at: list[int] = []
        for job, place in zip(jobs, places, strict=True):
            headers = parse_headers(job.headers)
            if headers.guarantee is not False:
                stored.append(job)
                at.append(place)
            elif (refusal := self.refusal(headers) or self.admit(job)) is not None:
                refused[place] = refusal
        return stored, at

    # Time

    def promote(self) -> None:
        """Queue the delayed jobs whose time has come."""
        for job in self.memory.due(self.state.now, self.state.keeper.ahead):
            self._back(job)

    def shift(self, seconds: float) -> None:
        """Let jobs wait longer: the broker was suspended, or store time jumped ahead."""
        now, gaps = self.state.now, self._gaps
        first = now - seconds
        if gaps and first - gaps[-1][1] < _APART:
            first = gaps.pop()[0]
        gaps.append((first, now))
        since = now - self.state.limits.unknown_task_grace
        self._gaps = [gap for gap in gaps if self._moved(gap[1]) > since]

    def _moved(self, since: float) -> float:
        """Return the start of a wait, moved by the gaps since then."""
        for first, last in self._gaps:
            since = since + last - first if since <= first else max(since, last)
        return since

    def tick(self, admits: Callable[[Session, str], bool]) -> None:
        """Forget old results, and fail jobs whose task no worker has known for the grace."""
        now = self.state.now
        if now - self._scanned_at < _SCAN_EVERY:
            return
        self._scanned_at = now
        self.memory.results.prune(now)
        for name, waiting in list(self.memory.queues.items()):
            self._scan(name, waiting, admits)
            self.memory.tidy(name)

    def _scan(
        self, name: str, waiting: TransientQueue, admits: Callable[[Session, str], bool]
    ) -> None:
        state = self.state
        sessions = [s for s in state.sessions.values() if any(n == name for _, n in s.queues)]
        since = state.now - state.limits.unknown_task_grace

        def hopeless(job: JobRecord) -> bool:
            refused = state.refusals.get(job.id, ())
            known = any(admits(s, job.headers) and s.id not in refused for s in sessions)
            return self._moved(max(job.created, job.ready_at)) <= since and not known

        expired = waiting.drop(lambda job: 0.0 < job.expires <= state.wall)
        self._end([self._row(job, JobState.EXPIRED) for job in expired])
        if sessions:
            self._fail_unknown(waiting.drop(hopeless))

    def _fail_unknown(self, jobs: Sequence[JobRecord]) -> None:
        for job in jobs:
            task = parse_headers(job.headers).task
            msg = f"no worker of the queue {job.queue!r} knows the task {task!r}"
            self._fail([job], "eventmq.errors.UnknownTask", msg, "")

    # Dispatch

    def pop(
        self,
        queue: str,
        cost_of: Callable[[str], float],
        refuses: Callable[[JobRecord], bool] | None,
        limit: int,
        stored: tuple[int, int] | None,
    ) -> list[JobRecord]:
        """Remove and return the jobs of the next chunk.

        Args:
            queue: Its name.
            cost_of: Header text -> seconds that such a job costs, below 0 if it does not suit.
            refuses: Asked for each job in addition, or None.
            limit: Most jobs.
            stored: The (rank, seq) of the first stored job of the queue, None for none.
        """
        waiting = self.memory.queues.get(queue)
        if waiting is None or not len(waiting) or (stored is not None and stored < waiting.head):
            return []
        limits = self.state.limits
        bound = float("inf") if stored is None else stored[0] + _OVERTAKE
        costs: dict[str, float] = {}

        def cost(job: JobRecord) -> float:
            seconds = costs.get(job.headers)
            if seconds is None:
                seconds = costs[job.headers] = cost_of(job.headers)
            return -1.0 if refuses is not None and refuses(job) else seconds

        wall = self.state.wall
        while True:
            jobs = waiting.pop(cost, limits.chunk_seconds, limit, limits.max_frame // 2, bound)
            fresh = [job for job in jobs if not 0.0 < job.expires <= wall]
            if len(fresh) < len(jobs):
                self._end([self._row(job, JobState.EXPIRED) for job in jobs if job not in fresh])
            if fresh or not jobs:
                self.memory.tidy(queue)
                return fresh

    def undo(self, session: Session, lease: Lease) -> None:
        """Let the jobs of an unsent chunk wait again: the commit before it failed."""
        if session.legacy:
            session.free += 1
        self.give_back(session, lease, unstarted=True)

    def give_back(self, session: Session, lease: Lease, *, unstarted: bool) -> None:
        """End a lease: jobs that certainly never started wait again, the others are lost."""
        jobs = [job for job in lease.jobs if job is not None]
        lease.jobs = [None] * len(lease.jobs)
        lease.remaining = 0
        session.leases.pop(lease.number, None)
        unstarted |= not lease.sent
        for job in jobs:
            self.memory.released(job, unstarted=unstarted)
        if unstarted:
            for job in jobs:
                self._back(job)
        else:
            self._lost(jobs, session.name, "was lost")

    def _back(self, job: JobRecord) -> None:
        self.memory.released(job, unstarted=True)
        self.memory.join(job)
        self.state.queue(job.queue).version += 1

    def _lost(self, jobs: Sequence[JobRecord], worker: str, what: str) -> None:
        if not jobs:
            return
        self.state.counters["transient_lost"] += len(jobs)
        logger.warning(
            "the worker %s %s: %d jobs without guarantee are lost, the first is %s",
            worker, what, len(jobs), jobs[0].id,
        )  # fmt: skip
        msg = f"the worker {worker} {what}, and a job without guarantee is not run again"
        self._fail(jobs, "eventmq.errors.WorkerLost", msg, worker)

    # Outcomes

    def answered(
        self, session: Session, lease: Lease, rows: Sequence[OutcomeRow]
    ) -> dict[str, list[float]]:
        """Take the outcomes of a chunk; return task -> seconds that its jobs ran."""
        run_times: dict[str, list[float]] = {}
        ends: list[Finished] = []
        for row in rows:
            job = lease.jobs[row[0]] if 0 <= row[0] < len(lease.jobs) else None
            if job is None:
                self.state.counters["stale_outcomes"] += 1
                continue
            lease.jobs[row[0]] = None
            lease.remaining -= 1
            if row[1] in _RAN:
                run_times.setdefault(parse_headers(job.headers).task, []).append(row[3])
            self._answer(session, job, row, ends)
        if not lease.remaining:
            session.leases.pop(lease.number, None)
        self._end(ends)
        return run_times

    def _answer(
        self, session: Session, job: JobRecord, row: OutcomeRow, ends: list[Finished]
    ) -> None:
        _, kind, started, seconds, content_type, result, _ = row
        if kind in _ENDS:
            state = _ENDS[kind]
            ends.append(
                self._row(job, state, content_type, result, session.name)._replace(
                    started=started, run_time=seconds
                )
            )
        elif kind in {OutcomeKind.DIED, OutcomeKind.LOST, OutcomeKind.UNANSWERED}:
            self._lost([job], session.name, "lost the process that ran it")
        elif kind == OutcomeKind.UNKNOWN_TASK:
            self.state.refusals.setdefault(job.id, set()).add(session.id)
            self._back(job)
        else:
            self.state.counters["handed_back"] += 1
            self._back(job)

    def legacy(self, session: Session, lease: Lease, job: JobRecord, result: bytes) -> None:
        """Take the REPLY of a legacy worker."""
        lease.jobs[0] = None
        lease.remaining = 0
        session.leases.pop(lease.number, None)
        self._end([self._row(job, JobState.SUCCEEDED, LEGACY_TYPE, result, session.name)])

    # Ends

    def cancel(
        self,
        ids: Sequence[str],
        error: bytes,
        send_cancel: Callable[[Session, Lease, int, str], None],
    ) -> dict[str, str]:
        """End unfinished jobs as cancelled; return the states that they had.

        Args:
            ids: Ids of any jobs.
            error: The encoded error.
            send_cancel: Asks the worker of a chunk to stop the job at a position. Not called for a
                legacy worker, whose lease goes on until its slot is free.
        """
        memory = self.memory
        was: dict[str, str] = {}
        rows: list[Finished] = []
        for job in [memory.jobs[i] for i in ids if i in memory.jobs]:
            entry = memory.running.get(job.id)
            was[job.id] = JobState.RUNNING.value if entry is not None else job.state.value
            if entry is not None:
                session, lease, place = entry
                lease.jobs[place] = None
                if not session.legacy:
                    send_cancel(session, lease, place, job.id)
                    lease.remaining -= 1
                    if not lease.remaining:
                        session.leases.pop(lease.number, None)
            rows.append(self._row(job, JobState.CANCELLED, ERROR_TYPE, error))
        for name in {row.job.queue for row in rows if was[row.job.id] == "queued"}:
            memory.queues[name].drop(lambda job: job.id in was)
            memory.tidy(name)
        self._end(rows)
        return was

    def _fail(self, jobs: Sequence[JobRecord], kind: str, message: str, worker: str) -> None:
        error = encode_error(RemoteError(kind, message))
        rows = [self._row(job, JobState.FAILED, ERROR_TYPE, error, worker) for job in jobs]
        self._end(rows)

    def _row(
        self,
        job: JobRecord,
        state: JobState,
        content_type: str = "",
        result: bytes = b"",
        worker: str = "",
    ) -> Finished:
        headers, limits = parse_headers(job.headers), self.state.limits
        ttl = limits.result_ttl if headers.result_ttl is None else headers.result_ttl
        if headers.ignore_result and state is JobState.SUCCEEDED:
            ttl = 0.0
        ttl = min(ttl, limits.transient_result_ttl)
        now = self.state.now
        return Finished(job, state, now, ttl, content_type, result, worker=worker)

    def _end(self, rows: Sequence[Finished]) -> None:
        """Forget ended jobs except for their results, and notify the peers that wait for them."""
        if not rows:
            return
        state, memory = self.state, self.memory
        for row in rows:
            job = row.job
            memory.remove(job)
            state.refusals.pop(job.id, None)
            if row.state is not JobState.SUCCEEDED:
                state.counters[row.state.value] += 1
            job.state, job.body = row.state, b""
            result = row.result if row.ttl > 0 else None
            found = JobRow(
                job, row.at, row.content_type, result, row.started, row.run_time, row.worker
            )  # fmt: skip
            memory.results.add(found, row.at + (row.ttl or state.limits.transient_result_ttl))
        state.counters["ended"] += len(rows)
        state.ends += rows
        self.waiters.ended(rows)
        self.waiters.flush()

    def close(self) -> None:
        """Log how many jobs are lost with the broker."""
        if self.memory.jobs:
            n = len(self.memory.jobs)
            logger.warning("%d unfinished jobs without guarantee are gone with the broker", n)
