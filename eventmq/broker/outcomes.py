"""Outcomes: ends or requeues the jobs of a REPLY, or of a lost worker, and sends the ACK."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from eventmq.broker.admission import UniqueAdmission
from eventmq.broker.state import fields_of
from eventmq.broker.suspects import Death
from eventmq.events import EventKind
from eventmq.headers import parse_headers
from eventmq.job import JobState, OutcomeKind, transition
from eventmq.store.writes import (
    BARRIER,
    Attempt,
    CloseChunk,
    Finish,
    Finished,
    JobLog,
    Requeue,
    RequeueReason,
)
from eventmq.text import last_lines, log_about
from eventmq.wire.batches import OutcomeRow, parse_chunk_number, read_outcomes
from eventmq.wire.results import ERROR_TYPE, LEGACY_TYPE, RemoteError, decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.peers import Lease, Peer, Session
    from eventmq.broker.state import State
    from eventmq.broker.suspects import Suspect
    from eventmq.broker.waiters import ResultWaiters
    from eventmq.job import JobRecord
    from eventmq.store.writes import WriteResult
    from eventmq.wire.commands import Reply

__all__ = ["MAX_ERROR", "ChunkOutcomes", "Outcomes", "ReportedFailure"]

logger = logging.getLogger("eventmq.broker")

#: Bytes of the longest error of an attempt that is kept; a longer one is replaced by a note.
MAX_ERROR = 128 * 1024

_MICRO = 1_000_000

#: Outcomes that end a job -> the state of the ended job. In the table of transitions a leased job
#: is RUNNING, although its record stays QUEUED.
_ENDS: Mapping[int, JobState] = {
    kind: transition(JobState.RUNNING, state)
    for kind, state in (
        (OutcomeKind.SUCCEEDED, JobState.SUCCEEDED),
        (OutcomeKind.FAILED, JobState.FAILED),
        (OutcomeKind.EXPIRED, JobState.EXPIRED),
        (OutcomeKind.CANCELLED, JobState.CANCELLED),
    )
}

_SUCCEEDED = int(OutcomeKind.SUCCEEDED)

_RETRY = int(OutcomeKind.RETRY)

_DONE = JobState.SUCCEEDED

#: Reasons why jobs are requeued.
_RETRIED, _HANDED_BACK, _LEASE_LOST = (
    RequeueReason(EventKind.RETRY),
    RequeueReason(EventKind.HANDED_BACK),
    RequeueReason(EventKind.LEASE_LOST),
)

#: Outcomes of jobs that had started when their process died.
_DEATHS: Mapping[int, Death] = {
    int(OutcomeKind.DIED): Death.ALONE,
    int(OutcomeKind.LOST): Death.SHARED,
    int(OutcomeKind.UNANSWERED): Death.BESIDE,
}

#: Number of tasks whose run time is kept.
MAX_TASKS = 10_000

#: Weight of a new measurement of a task's run time.
_NEW_WEIGHT = 0.3


class ChunkOutcomes:
    """Collects the effects of a REPLY, or of a lost session, on the jobs of one chunk."""

    __slots__ = (
        "attempts", "before", "blamed", "ends", "given_up", "lease", "logs", "lost", "ready",
        "reasons", "removed", "requeued", "session", "suspects", "unstarted",
    )  # fmt: skip

    def __init__(self, session: Session, lease: Lease) -> None:
        self.session = session
        self.lease = lease
        self.ends: list[Finished] = []
        #: Requeued jobs, and the reason of each.
        self.requeued: list[JobRecord] = []
        self.reasons: list[RequeueReason] = []
        #: Failed attempts, and the time at which the job of each had become ready.
        self.attempts: list[Attempt] = []
        self.ready: list[float] = []
        #: Jobs removed from the lease, with their positions.
        self.removed: list[tuple[int, JobRecord]] = []
        #: Kept logs of the jobs.
        self.logs: list[JobLog] = []
        #: Ids of requeued jobs that were not started.
        self.unstarted: set[str] = set()
        #: Ids of requeued jobs that may have killed their process.
        self.lost: dict[str, Death] = {}
        #: Whether the chunk was not answered: its session was given up.
        self.given_up = False
        #: Ids of requeued jobs in which the loss of their worker is counted as a death.
        self.blamed: set[str] = set()
        #: The suspects as they were before.
        self.suspects: list[tuple[JobRecord, Suspect | None]] = []
        #: Fields of requeued jobs as they were before.
        self.before: list[tuple[JobRecord, tuple[int, int, float, int, JobState, float]]] = []


class ReportedFailure(NamedTuple):
    """A failed attempt, as the worker reported it."""

    worker: str
    started: float
    run_time: float
    content_type: str
    error: bytes

    def attempt(self, job: JobRecord, now: float) -> Attempt:
        """Return the row for the history of the job; call this before its attempt grows."""
        content_type, error = self.content_type, self.error
        if len(error) > MAX_ERROR:
            msg = f"an error of {len(error)} bytes, which is too long to be kept"
            content_type, error = ERROR_TYPE, encode_error(RemoteError("", msg))
        return Attempt(
            job.id, job.attempt, job.delivery, now, self.started, self.run_time, self.worker,
            content_type, error,
        )  # fmt: skip


def _of_ended(logs: Sequence[JobLog], ends: Sequence[Finished]) -> list[JobLog]:
    """Return the logs of ended jobs, with the times until which they are kept."""
    expires = {row.job.id: row.state is not JobState.FAILED for row in ends}
    return [
        log._replace(until=log.at + log.ttl if expires[log.job_id] else 0.0)
        for log in logs
        if log.job_id in expires
    ]


def _worker_lost(session: Session) -> RequeueReason:
    """Return the reason to requeue a job in which the loss of its worker is counted."""
    msg = f"the worker {session.name} was lost while it had this job"
    error = RemoteError("eventmq.errors.WorkerLost", msg)
    return RequeueReason(EventKind.LEASE_LOST, encode_error(error))


class Outcomes:
    """Applies outcomes: ends jobs or requeues them, and closes their chunks."""

    def __init__(self, state: State, waiters: ResultWaiters) -> None:
        self.state = state
        self.waiters = waiters
        self.unique = UniqueAdmission(state, waiters)
        #: Damaged jobs whose end could not be stored.
        self.unsaved: list[JobRecord] = []

    def reply(self, peer: Peer, message: Reply) -> None:
        """Apply the outcomes of a REPLY; a stale one is acknowledged and changes nothing."""
        session = peer.session
        if session is not None and not session.legacy:
            self._chunk(peer, session, parse_chunk_number(message.outcome or ""), message)
        else:
            self._legacy(peer, session, message)

    # Workers with FEATURES

    def _chunk(self, peer: Peer, session: Session, number: int, message: Reply) -> None:
        rows, logs = read_outcomes(message.result)
        lease = session.leases.get(number)
        if lease is None:
            if session.orphaned_chunks.pop(number, 0.0) and session.running_orphans:
                session.running_orphans -= 1  # if its jobs still run, the next STATUS corrects this
            self.state.counters["stale_outcomes"] += len(rows)
            self.state.write(BARRIER, lambda _: self.state.ack(peer, message.id))
            return
        chunk = ChunkOutcomes(session, lease)
        if logs:
            self._keep_logs(chunk, logs)
        self._apply_rows(chunk, rows)
        self._write_and_close(chunk, lambda: self.state.ack_answer(peer, message.id))

    def _keep_logs(self, chunk: ChunkOutcomes, logs: Mapping[int, bytes]) -> None:
        """Record the logs of jobs; call this before their attempts grow."""
        lease, state = chunk.lease, self.state
        max_bytes = state.limits.max_job_log_bytes
        for position, log in logs.items():
            job = lease.jobs[position] if 0 <= position < len(lease.jobs) else None
            if job is not None and log and not lease.transient:
                ttl = self._task_and_ttls(job.headers)[2]
                text = last_lines(log, max_bytes)
                chunk.logs.append(JobLog(job.id, job.attempt, state.now, ttl, 0.0, max_bytes, text))

    # hot loop: python -m benchmarks drain
    def _apply_rows(self, chunk: ChunkOutcomes, rows: Sequence[OutcomeRow]) -> None:
        """Apply each outcome of a REPLY; collect the effects in ``chunk``."""
        lease, worker = chunk.lease, chunk.session.name
        jobs = lease.jobs
        size = len(jobs)
        now = self.state.now
        ends, removed = chunk.ends, chunk.removed
        new = tuple.__new__  # without the checks of Finished(...), which took 0.4 us
        kinds: dict[str, tuple[str, float, float]] = {}
        spent: dict[str, list[float]] = {}
        for position, kind, started, run_time, content_type, result, countdown in rows:
            if not 0 <= position < size or (job := jobs[position]) is None:
                self.state.counters["stale_outcomes"] += 1  # answered before, or withdrawn
                continue
            jobs[position] = None
            removed.append((position, job))
            known = kinds.get(job.headers)
            if known is None:
                known = kinds[job.headers] = self._task_and_ttls(job.headers)
                spent.setdefault(known[0], [])
            if kind <= _RETRY:
                spent[known[0]].append(run_time)
            if (state := _ENDS.get(kind)) is not None:
                ttl = known[1] if kind == _SUCCEEDED else known[2]
                fields = (job, state, now, ttl, content_type, result, started, run_time, worker)
                ends.append(new(Finished, fields))
            else:
                failure = ReportedFailure(worker, started, run_time, content_type, result)
                self._requeue_or_end(chunk, job, kind, countdown, failure)
        lease.remaining -= len(removed)
        for task, times in spent.items():
            if times:
                self._record_run_time(task, sum(times) / len(times))

    def _task_and_ttls(self, text: str) -> tuple[str, float, float]:
        """Return task, seconds that a result is kept, and seconds that an error is kept."""
        headers = parse_headers(text)
        ttl = self.state.limits.result_ttl if headers.result_ttl is None else headers.result_ttl
        return headers.task, 0.0 if headers.ignore_result else ttl, ttl

    def _record_run_time(self, task: str, seconds: float) -> None:
        if len(self.state.run_times) > MAX_TASKS:
            self.state.run_times.clear()  # the next chunk of each task measures it again
        old = self.state.run_times.get(task)
        new = seconds if old is None else old + _NEW_WEIGHT * (seconds - old)
        self.state.run_times[task] = max(new, 1e-6)

    def _requeue_or_end(
        self,
        chunk: ChunkOutcomes,
        job: JobRecord,
        kind: int,
        countdown: float,
        failure: ReportedFailure,
    ) -> None:
        """Apply an outcome that does not end a job by itself: requeue the job, or end it anyway."""
        state, session = self.state, chunk.session
        reason = _HANDED_BACK
        if chunk.lease.transient and kind == OutcomeKind.RETRY:  # it has only one attempt
            end = self.row(job, JobState.FAILED, failure.content_type, failure.error, session.name)
            chunk.ends.append(end._replace(started=failure.started, run_time=failure.run_time))
            return
        if chunk.lease.transient and kind in _DEATHS:
            self._lose(chunk, [job], "lost the process that ran it")
            return
        chunk.before.append((job, (
            job.attempt, job.deaths, job.ready_at, job.rank, job.state, job.eta,
        )))  # fmt: skip
        if kind == OutcomeKind.RETRY:
            chunk.attempts.append(failure.attempt(job, state.now))
            chunk.ready.append(job.waiting_since)
            reason = _RETRIED
            chunk.suspects.append((job, state.suspects.copy_of(job)))
            self._delay(job, countdown)
        elif (death := _DEATHS.get(kind)) is not None:
            if self._count_death(chunk, job, failure.error, death):
                return
            reason = RequeueReason(
                EventKind.LEASE_LOST, failure.error if death is Death.ALONE else b""
            )
        elif kind == OutcomeKind.UNKNOWN_TASK:
            state.refusals.setdefault(job.id, set()).add(session.id)
            chunk.unstarted.add(job.id)
            if not parse_headers(job.headers).content_type and not self._may_be_allowed(job):
                content_type, error = failure.content_type, failure.error
                chunk.ends.append(self.row(job, JobState.FAILED, content_type, error, session.name))
                return
        else:
            state.counters["handed_back"] += 1
            chunk.unstarted.add(job.id)
        chunk.requeued.append(job)
        chunk.reasons.append(reason)

    def _lose(self, chunk: ChunkOutcomes, jobs: Sequence[JobRecord], what: str) -> None:
        """End jobs without guarantee that may have run, since they are not run again.

        Args:
            chunk: Collects the effects.
            jobs: Jobs of the chunk.
            what: What happened to the worker, as a phrase that follows its name.
        """
        if not jobs:
            return
        worker = chunk.session.name
        self.state.counters["transient_lost"] += len(jobs)
        logger.warning(
            "the worker %s %s: %d jobs without guarantee are lost, the first is %s",
            worker, what, len(jobs), jobs[0].id,
        )  # fmt: skip
        msg = f"the worker {worker} {what}, and a job without guarantee is not run again"
        error = encode_error(RemoteError("eventmq.errors.WorkerLost", msg))
        chunk.ends += [self.row(job, JobState.FAILED, ERROR_TYPE, error, worker) for job in jobs]

    def _count_death(
        self, chunk: ChunkOutcomes, job: JobRecord, error: bytes, death: Death
    ) -> bool:
        """Count a death in a job or record it as a loss; return whether the job ends with it.

        Args:
            chunk: Collects the effects.
            job: A job that had started.
            error: Encoded error that describes the end of its process.
            death: Kind of the death.
        """
        suspects = self.state.suspects
        if not suspects.proves(job, death):
            chunk.lost[job.id] = death
            return False
        job.deaths += 1
        if job.deaths + suspects.losses(job) < self.state.limits.max_deaths:
            return False
        chunk.ends.append(self._killer(job, error, chunk.session.name))
        return True

    def _delay(self, job: JobRecord, countdown: float) -> None:
        """Delay a failed job until its next attempt."""
        state = self.state
        state.suspects.forget(job)
        job.attempt += 1
        job.ready_at, job.eta = state.now + countdown, 0.0
        job.state = JobState.DELAYED
        priority = parse_headers(job.headers).priority
        job.rank = int((job.ready_at - priority * state.limits.priority_seconds) * _MICRO)
        state.counters["retries"] += 1

    def _may_be_allowed(self, job: JobRecord) -> bool:
        """Return whether another session of the queue may allow the callable of a legacy job."""
        refused = self.state.refusals.get(job.id, ())
        return any(
            session.id not in refused and (session.callables or session.legacy)
            for session in self.state.sessions.values()
            if any(name == job.queue for _, name in session.queues)
        )

    def _killer(self, job: JobRecord, result: bytes, worker: str) -> Finished:
        task = parse_headers(job.headers).task or "(legacy)"
        deaths = job.deaths + self.state.suspects.losses(job)
        what = "job %s of task %s failed for good: suspected killer of %d processes, the last of %s"
        log_about(logger, logging.ERROR, fields_of(job), what, job.id, task, deaths, worker)
        msg = f"suspected killer: {deaths} processes died, or were lost, with this job"
        if result:
            msg += f", the last like this: {decode_error(result).message}"
        error = RemoteError("eventmq.errors.WorkerLost", msg)
        return self.row(job, JobState.FAILED, ERROR_TYPE, encode_error(error), worker)

    def row(
        self,
        job: JobRecord,
        state: JobState,
        content_type: str = "",
        result: bytes = b"",
        worker: str = "",
    ) -> Finished:
        """Return the row that ends a job, with the broker's default time to live."""
        ttl = self.state.limits.result_ttl
        return Finished(job, state, self.state.now, ttl, content_type, result, worker=worker)

    # Legacy workers

    def _legacy(self, peer: Peer, session: Session | None, message: Reply) -> None:
        leased = self._leased_for(session, message)
        if leased is None:
            self.state.counters["stale_outcomes"] += 1
            if session is None:
                self.state.error(peer, message.id, "inform-again", "send INFORM first")
            return
        owner, lease, job = leased
        lease.jobs[0] = None
        lease.remaining = 0
        chunk = ChunkOutcomes(owner, lease)
        chunk.removed.append((0, job))
        ttl = self.state.limits.result_ttl
        done, now = JobState.SUCCEEDED, self.state.now
        chunk.ends.append(
            Finished(job, done, now, ttl, LEGACY_TYPE, message.result, worker=owner.name)
        )
        self._write_and_close(chunk, lambda: None)

    def _leased_for(
        self, session: Session | None, message: Reply
    ) -> tuple[Session, Lease, JobRecord] | None:
        """Return the lease that a REPLY of a legacy worker answers, None if there is none.

        It is that of the job with the id in the REPLY. For a REPLY of five frames, which has no id
        of a request, it may be the oldest lease of the session.
        """
        job_id = message.request or message.id
        entry = self.state.running.get(job_id)
        if entry is not None and entry[0].legacy:
            job = entry[1].jobs[entry[2]]
            return (entry[0], entry[1], job) if job is not None else None
        if (
            session is None
            or self._was_cancelled(session, message)
            or (message.request is not None or not session.leases)
        ):
            return None
        lease = session.leases[min(session.leases)]
        job = lease.jobs[0]
        if job is None:  # the REPLY answers a cancelled job
            self.close(session, lease)
            return None
        return session, lease, job

    def _was_cancelled(self, session: Session, message: Reply) -> bool:
        """Close the lease if the REPLY answers a cancelled job; return whether it does."""
        message_id = message.request or message.id
        for lease in session.leases.values():
            if lease.message_id == message_id and lease.jobs[0] is None:
                self.close(session, lease)
                return True
        return False

    # Writing

    def _write_and_close(self, chunk: ChunkOutcomes, acknowledge: Callable[[], None]) -> None:
        """Write the collected effects, and close the chunk if all its jobs are answered."""
        state, session, lease = self.state, chunk.session, chunk.lease
        ends, requeued = chunk.ends, chunk.requeued
        if chunk.unstarted:  # before the session gets its next chunk
            session.charge(lease.queue, len(lease.jobs), handed_back=len(chunk.unstarted))
        if not lease.remaining:
            self.close(session, lease)
        if lease.transient:
            self._requeued(chunk)
            self.record_ends(ends, {})
            self.waiters.flush()
            acknowledge()
            return
        if requeued:
            self._suspect(chunk)
            requeue = Requeue(
                requeued, chunk.attempts, chunk.reasons, state.now, session.name, lease.leased,
                chunk.ready, chunk.logs,
            )  # fmt: skip
            state.write(requeue, lambda _: self._requeued(chunk))

        def settle(write_result: Mapping[int, WriteResult]) -> None:
            self.record_ends(ends, write_result)
            acknowledge()

        logs = _of_ended(chunk.logs, ends) if chunk.logs else ()
        finish = Finish(ends, lease.leased, logs=logs)
        state.write(finish, settle, lambda: self._undo(chunk), linger=self._may_linger(ends))

    def _may_linger(self, ends: Sequence[Finished]) -> bool:
        """Return whether no client, and no other job, waits for these outcomes.

        A worker takes further jobs when the ends are stored, so none may be waiting in a queue.
        """
        state = self.state
        if state.busy or state.graphs or state.limiters.counted:
            return False
        waited = [w for w in (state.waiters, state.reply_to, self.waiters.streams.of) if w]
        return not waited or not any(row.job.id in each for row in ends for each in waited)

    def finish(
        self,
        rows: Sequence[Finished],
        undo: Callable[[], None] | None = None,
        *,
        ahead: float = 0.0,
    ) -> None:
        """End jobs with the next commit; those without guarantee at once.

        Args:
            rows: The ends of the jobs.
            undo: Called if the commit fails; by default the jobs are queued again.
            ahead: Seconds by which wall time is ahead of store time, for expired jobs.
        """
        transient = self.state.transient.jobs
        stored = [row for row in rows if transient.get(row.job.id) is not row.job]
        if len(stored) < len(rows):
            self.record_ends([row for row in rows if transient.get(row.job.id) is row.job], {})
            self.waiters.flush()
        if stored:
            self.state.write(
                Finish(stored, ahead=ahead),
                lambda write_result: self.record_ends(stored, write_result),
                undo or (lambda: self._enqueue(stored)),
            )

    def _enqueue(self, rows: Sequence[Finished]) -> None:
        for row in rows:
            self.state.enqueue(row.job)

    def _suspect(self, chunk: ChunkOutcomes) -> None:
        """Record which requeued jobs may have killed their process, in the same commit."""
        if not chunk.lost and not chunk.blamed:
            return
        suspects, chunk_id = self.state.suspects, (chunk.session.id, chunk.lease.number)
        for job in chunk.requeued:
            death = chunk.lost.get(job.id)
            if death is None and job.id not in chunk.blamed:
                continue
            chunk.suspects.append((job, suspects.copy_of(job)))
            if death is None:
                suspects.blame(job, chunk_id)
            else:
                suspects.lost(job, death, chunk_id if chunk.given_up else None)

    def _undo(self, chunk: ChunkOutcomes) -> None:
        """Undo all effects: the commit has failed, and the worker will send its REPLY again."""
        session, lease = chunk.session, chunk.lease
        for job, old in chunk.before:
            job.attempt, job.deaths, job.ready_at, job.rank, job.state, job.eta = old
            self.state.refusals.get(job.id, set()).discard(session.id)
        for job, suspect in reversed(chunk.suspects):
            self.state.suspects.restore(job, suspect)
        for position, job in chunk.removed:
            lease.jobs[position] = job
        lease.remaining += len(chunk.removed)
        # A session that was given up meanwhile is restored, to be given up once more.
        owner = self.state.sessions.setdefault(session.id, session)
        owner.leases[lease.number] = lease
        if owner.peer is None and not owner.disconnected_at:
            owner.disconnected_at = self.state.now

    # hot loop: python -m benchmarks drain
    def record_ends(
        self, rows: Sequence[Finished], write_result: Mapping[int, WriteResult]
    ) -> None:
        """Forget ended jobs, and answer the peers that wait for them."""
        state = self.state
        running, queues, jobs = state.running, state.queues, state.jobs
        counted = state.limiters.counted
        refusals, counters, suspects = state.refusals, state.counters, state.suspects
        watched, transient = bool(suspects.by_id), state.transient.jobs
        expired: list[JobRecord] = []
        if write_result:
            self.state.counters["stale_outcomes"] += len(write_result)
            rows = self._still_stored(rows, write_result)
        for row in rows:
            job = row.job
            job_id = job.id
            queue = queues[job.queue]
            other = transient.get(job_id) if transient else None
            queue.counts.queued -= 1
            if row.state is not _DONE:
                counters[row.state.value] += 1
                if row.state is JobState.EXPIRED:
                    expired.append(job)
                queue.counts.failed += row.state is JobState.FAILED and other is not job
            if other is not None and other is not job:  # a transient job has the same id
                state.keep_out(job)
                continue
            if running.pop(job_id, None) is not None:  # as `State.released`
                queue.running -= 1
                if counted:
                    state.limiters.released(job_id, unstarted=False)
            jobs.pop(job_id, None)
            if refusals:
                refusals.pop(job_id, None)
            if watched:
                suspects.forget(job)
            if other is job:
                state.end_transient(row)
        counters["ended"] += len(rows)
        if expired:
            self._log_expired(expired)
        self.unique.ended(rows)
        self.waiters.ended(rows)

    @staticmethod
    def _log_expired(jobs: Sequence[JobRecord]) -> None:
        """Log that jobs have expired, in one line for all jobs of a commit."""
        first = fields_of(jobs[0])
        others = f" and {len(jobs) - 1} others" if len(jobs) > 1 else ""
        text = "job %s of task %s%s expired before it was started"
        log_about(logger, logging.INFO, first, text, first[0], first[1] or "(legacy)", others)

    def _still_stored(
        self, rows: Sequence[Finished], write_result: Mapping[int, WriteResult]
    ) -> Sequence[Finished]:
        """Return the rows of jobs that the store still had; release the other jobs."""
        for index in write_result:
            job = rows[index].job
            self.state.released(job)
            self.state.jobs.pop(job.id, None)
        return [row for index, row in enumerate(rows) if index not in write_result]

    def _requeued(self, chunk: ChunkOutcomes) -> None:
        state = self.state
        for job in chunk.requeued:
            if job.state is JobState.CANCELLED:
                continue  # in the same commit
            state.released(job, unstarted=job.id in chunk.unstarted)
            if job.state is JobState.DELAYED:
                state.queues[job.queue].counts.queued -= 1
                state.count_waiting(job)
                state.forget_job(job)
            else:
                state.enqueue(job)

    def give_back(
        self,
        session: Session,
        lease: Lease,
        *,
        unstarted: bool = False,
        death: Death | None = None,
    ) -> None:
        """Requeue the unanswered jobs of a chunk whose session is lost or does not have it.

        Args:
            session: The session that had the chunk.
            lease: The lease of the chunk.
            unstarted: Whether certainly none of the jobs was started. A job without guarantee that
                may have been started ends instead.
            death: How the session ended, None if that says nothing about the jobs.
        """
        chunk = ChunkOutcomes(session, lease)
        chunk.given_up = True
        if lease.transient:
            self._give_back_transient(chunk, unstarted=unstarted or not lease.sent)
            return
        for position, job in enumerate(lease.jobs):
            if job is not None:
                lease.jobs[position] = None
                chunk.removed.append((position, job))
                if death is not None and self._count_worker_death(chunk, job, death):
                    continue
                chunk.requeued.append(job)
                chunk.reasons.append(_HANDED_BACK if unstarted else _LEASE_LOST)
                if job.id in chunk.blamed:
                    chunk.reasons[-1] = _worker_lost(session)
                if unstarted:
                    chunk.unstarted.add(job.id)
        lease.remaining = 0
        self.state.counters["lease_lost"] += len(chunk.removed)
        self._write_and_close(chunk, lambda: None)

    def _give_back_transient(self, chunk: ChunkOutcomes, *, unstarted: bool) -> None:
        """Requeue jobs without guarantee that certainly did not start; end all others."""
        lease = chunk.lease
        jobs = [job for job in lease.jobs if job is not None]
        lease.jobs, lease.remaining = [None] * len(lease.jobs), 0
        if unstarted:
            chunk.requeued, chunk.unstarted = jobs, {job.id for job in jobs}
        else:
            self._lose(chunk, jobs, "was lost")
        self._write_and_close(chunk, lambda: None)

    def _count_worker_death(self, chunk: ChunkOutcomes, job: JobRecord, death: Death) -> bool:
        """Count the loss of the worker of a job; return whether the job ends with it."""
        deaths = job.deaths
        fields = (job.attempt, deaths, job.ready_at, job.rank, job.state, job.eta)
        chunk.before.append((job, fields))
        ends = self._count_death(chunk, job, _worker_lost(chunk.session).error, death)
        if job.deaths > deaths:
            chunk.blamed.add(job.id)
        return ends

    def close(self, session: Session, lease: Lease) -> None:
        """Close a chunk without open jobs: delete its row."""
        if session.leases.pop(lease.number, None) is not None:
            if session.dedicated_to and not session.leases:
                session.blocked.clear()  # it may have been refused the suspect before
            if lease.transient:
                return
            write = CloseChunk(session.id, lease.number)
            undo = partial(session.leases.__setitem__, lease.number, lease)
            self.state.write(write, lambda _: None, undo, linger=not self.state.busy)

    # Damaged jobs

    def sort_out_damaged(self, jobs: list[JobRecord]) -> list[JobRecord]:
        """Fail the queued jobs that the store reports as damaged; return the others.

        The store keeps the damaged records unchanged.
        """
        damaged = [job for job in jobs if job.damaged]
        if not damaged:
            return jobs
        known = self.state.jobs  # the copy in memory is sound
        self._fail_damaged([job for job in damaged if job.id not in known])
        return [job for job in jobs if not job.damaged]

    def fail_unsaved(self) -> None:
        """Fail damaged jobs whose end could not be stored before."""
        if self.unsaved and self.state.now >= self.state.hold_until:
            jobs, self.unsaved = self.unsaved, []
            self._fail_damaged(jobs)

    def _fail_damaged(self, jobs: list[JobRecord]) -> None:
        if not jobs:
            return
        rows: list[Finished] = []
        for job in jobs:
            what = f"job {job.id} of the queue {job.queue!r} is damaged in the store"
            line = "%s: it was not run, and is kept among the failed jobs"
            log_about(logger, logging.ERROR, fields_of(job), line, what)
            text = f"{what}: its checksum is wrong, so it was not run; submit it again"
            error = encode_error(RemoteError("eventmq.errors.StoreError", text))
            rows.append(self.row(job, JobState.FAILED, ERROR_TYPE, error))
        self.finish(rows, lambda: self.unsaved.extend(jobs))
