"""Operator calls: ``cancel retry drop pause resume clock.accept bulk``.

A cancelled job ends in the store at once, wherever it is, and the peers that wait for it are
notified. If it is running, its lease ends: the worker is asked to stop, and its later answers
change nothing. `BulkOperations` applies an operation to many jobs, a limited number in each commit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.acts import act_of, by
from eventmq.broker.state import SingleWrite, fields_of
from eventmq.errors import ProtocolError
from eventmq.job import JobState
from eventmq.store.writes import (
    ApplyToJobs,
    AuditFields,
    BeginBulkOperation,
    BulkOperation,
    ContinueBulkOperation,
    Finished,
    KeepTime,
    Operation,
    Pause,
    RecordOperation,
    subqueue_of,
)
from eventmq.text import log_about
from eventmq.wire.batches import pack
from eventmq.wire.commands import (
    Cancel,
    read_flag,
    read_numbers,
    read_text,
    read_texts,
    read_time,
)
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.broker.calls import Calls
    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Lease, Peer, Session
    from eventmq.broker.sessions import Sessions
    from eventmq.broker.state import State
    from eventmq.job import JobRecord
    from eventmq.store.writes import Act, AffectedJobs

__all__ = ["SLICE", "BulkOperations", "OperatorCalls", "failed_filter"]


logger = logging.getLogger("eventmq.broker")

#: Characters of the longest reason; a longer one is cut.
_MAX_REASON = 500

_DONE = {"retry": "queued again", "drop": "dropped"}

#: The reason of a call that gives none.
NO_REASON = "no reason was given"

#: Jobs that one tick scans for a bulk operation; it takes some 30 ms.
SLICE = 2000

#: Largest number of unfinished bulk operations; more are refused.
MAX_OPEN = 100

#: Number of finished bulk operations whose records are kept.
_DONE_KEPT = 100

_STATES = {state.value: state for state in (JobState.QUEUED, JobState.DELAYED, JobState.BLOCKED)}


def failed_filter(arguments: Mapping[str, Any], ahead: float) -> Operation:
    """Return the filters of a call about failed jobs.

    Args:
        arguments: The arguments of the call, with wall times.
        ahead: Seconds by which wall time is ahead of store time, which the filters use.
    """
    since, until = read_time(arguments, "since"), read_time(arguments, "until")
    return Operation(
        "",
        queue=read_text(arguments, "queue"),
        task=read_text(arguments, "task"),
        error=read_text(arguments, "error"),
        since=since - ahead if since else 0.0,
        until=until - ahead if until else 0.0,
    )


class OperatorCalls:
    """Cancels, retries and drops jobs, and pauses queues."""

    def __init__(self, state: State, outcomes: Outcomes, sessions: Sessions, calls: Calls) -> None:
        self.state = state
        self.outcomes = outcomes
        self.sessions = sessions
        self.calls = calls
        state.calls |= {
            "cancel": self._cancel,
            "retry": lambda peer, call, args: self._apply(peer, call, args, "retry"),
            "drop": lambda peer, call, args: self._apply(peer, call, args, "drop"),
            "pause": lambda peer, call, args: self._pause(peer, call, args, paused=True),
            "resume": lambda peer, call, args: self._pause(peer, call, args, paused=False),
            "clock.accept": self._accept_clock,
        }  # fmt: skip

    # Calls

    def _cancel(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        reason = read_text(arguments, "reason")[:_MAX_REASON] or NO_REASON
        ids = list(dict.fromkeys(read_texts(arguments, "ids")))
        act = act_of(self.state, peer, arguments, "cancel")
        write, done = self._cancelling(ids, reason, act)

        def settle(affected: AffectedJobs) -> None:
            old = done(affected)
            rows = [(i, "cancelled", old[i]) if i in old else _unaffected(i, affected) for i in ids]
            self.state.answer(peer, call, rows)

        self.state.write(write, settle, self.state.report_undone(peer, call))

    def cancel(self, job_id: str, reason: str) -> None:
        """Cancel a job on behalf of the broker itself."""
        write, done = self._cancelling([job_id], reason)

        def settle(affected: AffectedJobs) -> None:
            done(affected)

        self.state.write(write, settle)

    def _cancelling(
        self, ids: Sequence[str], reason: str, act: Act | None = None
    ) -> tuple[ApplyToJobs, Callable[[AffectedJobs], dict[str, str]]]:
        """Return the write that cancels jobs, and its callback; that returns their old states."""
        audit = self.audit(reason=reason, act=act)
        who = by(act) if act is not None else ""

        def settle(affected: AffectedJobs) -> dict[str, str]:
            known = self.state.transient.jobs
            jobs = [*affected.jobs, *(known[job_id] for job_id in ids if job_id in known)]
            old = {job.id: self._state_of(job) for job in jobs}
            self.cancelled(jobs, audit, reason)
            text = "job %s, %s, was cancelled%s: %r"
            for job in jobs:
                about = fields_of(job)
                log_about(logger, logging.INFO, about, text, job.id, old[job.id], who, reason)
            return old

        return ApplyToJobs("cancel", list(ids), audit), settle

    def _apply(self, peer: Peer, call: str, arguments: Mapping[str, Any], action: str) -> None:
        ids = list(dict.fromkeys(read_texts(arguments, "ids")))
        attempts = read_numbers(arguments, "attempts") if action == "retry" else []
        if attempts and len(attempts) != len(ids):
            raise ProtocolError(
                f"{len(attempts)} attempts for {len(ids)} ids: one for each, and no id twice",
                code="bad-arguments",
            )
        becomes = "queued" if action == "retry" else "dropped"
        act = act_of(self.state, peer, arguments, action)

        def settle(affected: AffectedJobs) -> None:
            self.failed_changed(action, affected.jobs)
            done = {job.id for job in affected.jobs}
            for job in affected.jobs:
                text = "failed job %s was %s%s"
                about = fields_of(job)
                log_about(logger, logging.INFO, about, text, job.id, _DONE[action], by(act))
            rows = [(i, becomes, "failed") if i in done else _unaffected(i, affected) for i in ids]
            self.state.answer(peer, call, rows)

        self.state.write(
            ApplyToJobs(action, ids, self.audit(seqs=len(ids), act=act), attempts),
            settle,
            self.state.report_undone(peer, call),
        )

    def _pause(self, peer: Peer, call: str, arguments: Mapping[str, Any], *, paused: bool) -> None:
        queue = self.known_queue(read_text(arguments, "queue"))
        act = act_of(self.state, peer, arguments, "pause" if paused else "resume")

        def settle(_: None) -> None:
            self.state.queue(queue).counts.paused = paused
            logger.info("queue %s is %s%s", queue, "paused" if paused else "resumed", by(act))
            self.state.answer(peer, call, None)

        self.state.record(RecordOperation(act, queue))
        self.state.write(Pause(queue, paused), settle, self.state.report_undone(peer, call))

    def _accept_clock(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        """Accept the wall clock as it is now; the commit of this call stores it."""
        act = act_of(self.state, peer, arguments, "clock.accept")
        logger.info("the wall clock is accepted%s", by(act))
        self.state.record(RecordOperation(act))
        accepted = self.state.keeper.accept()

        def undo() -> None:
            text = "the clock is accepted, but the disk is full and does not have it yet"
            self.state.error(peer, call, "store-full", text)

        self.state.write(KeepTime(), lambda _: self.state.reply(peer, pack(accepted), call), undo)

    def known_queue(self, name: str) -> str:
        """Return the name of a queue, or raise `ProtocolError` for an unknown one."""
        if name not in self.state.queues:
            raise ProtocolError(f"there is no queue {name[:80]!r}", code="queue-not-found")
        return name

    # Shared with bulk operations

    def audit(self, *, reason: str = "", seqs: int = 0, act: Act | None = None) -> AuditFields:
        """Return the audit fields of a write, and reserve ``seqs`` numbers of jobs."""
        state = self.state
        seq = state.next_seq
        state.next_seq += seqs
        error = encode_error(RemoteError("eventmq.errors.JobCancelled", reason))
        return AuditFields(
            state.now, state.limits.result_ttl, ERROR_TYPE, error, seq,
            state.limits.priority_seconds, state.keeper.ahead, act,
        )  # fmt: skip

    def _state_of(self, job: JobRecord) -> str:
        entry = self.state.running.get(job.id)
        leased = entry is not None and entry[1].jobs[entry[2]] is not None
        return JobState.RUNNING.value if leased else job.state.value

    def cancelled(self, jobs: Sequence[JobRecord], audit: AuditFields, reason: str) -> None:
        """Forget cancelled jobs, end their leases, notify their workers and waiting peers."""
        for job in self.state.withdraw(jobs, JobState.CANCELLED):
            self._end_lease(job.id, reason)
        end = JobState.CANCELLED
        rows = [
            Finished(job, end, audit.at, audit.ttl, audit.content_type, audit.result)
            for job in jobs
        ]
        self.outcomes.record_ends(rows, {})

    def _end_lease(self, job_id: str, reason: str) -> None:
        session, lease, position = self.state.running[job_id]
        if lease.jobs[position] is None:
            return  # it was answered meanwhile
        lease.jobs[position] = None
        if session.legacy and lease.sent:
            return  # it knows no CANCEL: slot and lease stay in use until it answers
        lease.remaining -= 1
        if session.legacy:
            session.free += 1
        else:
            self._send_cancel(session, lease, position, job_id, reason)
        if not lease.remaining:
            self.outcomes.close(session, lease)

    def _send_cancel(
        self, session: Session, lease: Lease, position: int, job_id: str, reason: str
    ) -> None:
        delivery = lease.deliveries[position]
        if session.peer is None:
            self.sessions.revoked.add_cancelled(session, lease.number, job_id, delivery)
            return
        message = Cancel(self.state.message_id(), job_id, str(delivery), reason)
        self.state.send(session.peer, message.frames())

    def failed_changed(self, action: str, jobs: Sequence[JobRecord]) -> None:
        """Update the counts for retried or dropped failed jobs; request reads of retried ones."""
        state = self.state
        state.counters["failed_retried" if action == "retry" else "failed_dropped"] += len(jobs)
        for job in jobs:
            queue = state.queue(job.queue)
            queue.counts.failed -= 1
            if action == "retry":
                queue.counts.queued += 1
                if job.expires:
                    state.record_expiry(job)
        if action == "retry":
            for name, subqueue in {(job.queue, subqueue_of(job.headers)) for job in jobs}:
                state.queues[name].rewind(subqueue)
                state.busy[name] = state.queues[name]


def _unaffected(job_id: str, affected: AffectedJobs) -> tuple[str, str, str]:
    """Return the row of a job that was not affected."""
    state = affected.unaffected.get(job_id, "")
    return job_id, state, state


class BulkOperations:
    """Starts bulk operations, and carries them out a limited number of jobs at a time."""

    def __init__(self, state: State, operations: OperatorCalls) -> None:
        self.state = state
        self.operations = operations
        self._bulk: dict[str, BulkOperation] = {}
        #: Act of each operation that this run of the broker has started.
        self._acts: dict[str, Act] = {}
        #: Ids of the operations that are not done.
        self.open: list[str] = []
        self._single = SingleWrite(state)
        state.calls["bulk"] = self._call

    def recover(self, operations: Iterable[BulkOperation]) -> None:
        """Continue the operations that an earlier run of the broker has started."""
        for bulk in operations:
            self._record(bulk)

    def _record(self, bulk: BulkOperation) -> None:
        if bulk.id not in self._bulk and not bulk.done:
            self.open.append(bulk.id)
        self._bulk[bulk.id] = bulk
        done = [each.id for each in self._bulk.values() if each.done]
        for bulk_id in done[:-_DONE_KEPT]:
            del self._bulk[bulk_id]
        if bulk.done:
            self._acts.pop(bulk.id, None)

    # Calls

    def _call(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        bulk_id = read_text(arguments, "id")
        if bulk_id in self._bulk:
            self._answer(peer, call, self._bulk[bulk_id])
            return
        operation = self.read_operation(arguments)
        if not 0 < len(bulk_id) <= self.state.limits.max_id:
            raise ProtocolError(
                f"a bulk operation has an id of 1 to {self.state.limits.max_id} characters",
                code="bad-arguments",
            )
        if len(self.open) >= MAX_OPEN:
            raise ProtocolError(f"{MAX_OPEN} bulk operations are running already", code="too-many")
        record = BulkOperation(bulk_id, operation, self.state.now, self.state.next_seq - 1)
        act = act_of(self.state, peer, arguments, operation.action)

        def settle(bulk: BulkOperation) -> None:
            self._acts[bulk_id] = act
            self._record(bulk)
            self._answer(peer, call, bulk)
            what = _describe(bulk.operation)
            logger.info("bulk operation %s begins: %s%s", bulk.id, what, by(act))

        self.state.record(RecordOperation(act, operation.queue, operation.task))
        self.state.write(BeginBulkOperation(record), settle, self.state.report_undone(peer, call))

    def read_operation(self, arguments: Mapping[str, Any]) -> Operation:
        """Return the action and the filters of a call; raises `ProtocolError` for wrong ones."""
        action = read_text(arguments, "action")
        filters = failed_filter(arguments, self.state.keeper.ahead)
        if action not in {"cancel", "retry", "drop"}:
            raise ProtocolError(
                f"action is cancel, retry or drop, not {action[:40]!r}", code="bad-arguments"
            )
        if filters.queue:
            self.operations.known_queue(filters.queue)
        if action != "cancel":
            return filters._replace(action=action)
        if filters.error or filters.since or filters.until:
            raise ProtocolError(
                "error, since and until filter failed jobs; cancel takes only unfinished ones",
                code="bad-arguments",
            )
        name = read_text(arguments, "state")
        if name and name not in _STATES:
            raise ProtocolError(
                f"state is one of {', '.join(_STATES)}, not {name[:40]!r}", code="bad-arguments"
            )
        if not (filters.queue or filters.task):
            raise ProtocolError(
                "name a queue or a task, whose jobs are to be cancelled", code="bad-arguments"
            )
        return filters._replace(
            action=action,
            state=_STATES.get(name),
            running=read_flag(arguments, "running"),
            reason=read_text(arguments, "reason")[:500] or "cancelled with others",
        )

    def _answer(self, peer: Peer, call: str, bulk: BulkOperation) -> None:
        answer = {
            "id": bulk.id, "action": bulk.operation.action, "done": bulk.done,
            "count": bulk.touched,
        }  # fmt: skip
        self.state.answer(peer, call, answer)

    # Carrying out

    def run(self) -> None:
        """Write the next jobs of the next bulk operation, unless a write is in flight."""
        if not self.open or self._single.busy or self.state.now < self.state.hold_until:
            return
        bulk_id = self.open.pop(0)
        self.open.append(bulk_id)
        operation = self._bulk[bulk_id].operation
        retry = operation.action == "retry"  # a retry takes twice as long
        limit = max(1, SLICE // 2) if retry else SLICE
        act = self._acts.get(bulk_id)
        act = act and act._replace(at=self.state.now)
        audit = self.operations.audit(reason=operation.reason, seqs=limit if retry else 0, act=act)
        keep = frozenset() if operation.running else self.state.leased_numbers()

        def settle(write_result: tuple[AffectedJobs, BulkOperation | None]) -> None:
            affected, bulk = write_result
            if operation.action == "cancel":
                self.operations.cancelled(affected.jobs, audit, operation.reason)
            else:
                self.operations.failed_changed(operation.action, affected.jobs)
            self._slice_done(bulk_id, bulk)

        self._single.write(ContinueBulkOperation(bulk_id, audit, keep, limit), settle)

    def _slice_done(self, bulk_id: str, bulk: BulkOperation | None) -> None:
        if bulk is None:  # its row was deleted
            bulk = self._bulk[bulk_id]._replace(done=True)
        self._record(bulk)
        if bulk.done:
            self.open.remove(bulk_id)
            logger.info("bulk operation %s is done: %d jobs", bulk_id, bulk.touched)


def _describe(operation: Operation) -> str:
    """Return an operation as text for the log: its action and its filters."""
    filters = zip(operation._fields[1:], operation[1:], strict=True)
    return ", ".join(
        [operation.action, *(f"{name} {str(value)!r}" for name, value in filters if value)]
    )
