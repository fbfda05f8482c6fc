"""Auditor: records what clients submitted and workers executed, and checks every guarantee.

It trusts neither the broker nor its store: all that it knows comes from clients and workers.
`Violation` says which guarantee was broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, JobState, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eventmq.broker.core import BrokerCore
    from eventmq.client.requests import PendingSubmit
    from eventmq.headers import Headers
    from eventmq.store.reads import JobRow
    from eventmq.wire.batches import ChunkEntry
    from tests.simulation.scenario import JobPlan
    from tests.simulation.world import Process, World

__all__ = ["PARTS", "AuditedJob", "Auditor", "Execution", "Violation"]

#: Parts that a run of a streaming job yields.
PARTS = 4

#: Times that a client may send one request at most: each retry by an operator counts.
RESENT = 3

#: Deaths after which a job fails as a suspect.
DEATHS = 3

#: Most deliveries of a job, whatever the faults of a scenario.
DELIVERIES = 400


class Violation(AssertionError):
    """A guarantee was broken."""


@dataclass(slots=True, eq=False)
class Execution:
    """One run of a job; ``run`` counts them from 1."""

    delivery: int
    attempt: int
    worker: str
    start: float
    run: int
    end: float | None = None
    kind: OutcomeKind | None = None


@dataclass(slots=True, eq=False)
class AuditedJob:
    """What the auditor has recorded about one job."""

    plan: JobPlan
    headers: Headers
    #: When a client first submitted it.
    since: float
    executions: list[Execution] = field(default_factory=list)
    #: When a client got the receipt.
    confirmed: float | None = None
    refused: str = ""
    #: A client asked to cancel it.
    cancelled: bool = False
    #: A client was told that it is cancelled.
    reported_cancelled: bool = False
    retried: int = 0
    #: Ids of the jobs that it waits for, and whether it runs although some of them fail.
    needs: tuple[list[str], bool] | None = None
    #: State and result as a client was last told.
    reported: tuple[str, bytes | None] | None = None

    @property
    def legacy(self) -> bool:
        return not self.headers.content_type

    @property
    def transient(self) -> bool:
        return self.headers.guarantee is False

    def done(self, kind: OutcomeKind) -> list[Execution]:
        """Return the executions with an outcome of this kind."""
        return [execution for execution in self.executions if execution.kind is kind]


class Auditor:
    """Auditor of one simulation.

    Args:
        world: Event queue and clock.
        may_run_twice: Whether the faults are such that a job may run twice.
        clocks_set: Whether faults set clocks.
    """

    def __init__(self, world: World, *, may_run_twice: bool, clocks_set: bool) -> None:
        self.world = world
        self.may_run_twice = may_run_twice
        self.clocks_set = clocks_set
        self.jobs: dict[str, AuditedJob] = {}
        #: A crash of the machine undid commits that were not synced.
        self.rolled_back = False
        self.executions = 0
        #: Connections of workers that faults ended: the broker counts each as a death.
        self.losses = 0
        #: Runs of the broker: a transient job that a client sends again is new to each of them.
        self.broker_lives = 0
        #: Queues whose jobs a client asked to cancel; the request may arrive much later.
        self.purged: set[str] = set()

    def fail(self, text: str) -> None:
        """End the simulation with a violation."""
        self.world.trace("auditor", "VIOLATION", text)
        raise Violation(text)

    def job(self, job_id: str) -> AuditedJob:
        """Return the record of a job; one that no client submitted is a violation."""
        audited = self.jobs.get(job_id)
        if audited is None:
            self.fail(f"job {job_id} was never submitted: a phantom")
        assert audited is not None
        return audited

    # What clients say

    def intend(self, jobs: Iterable[JobPlan]) -> None:
        """Record jobs that a client is about to submit."""
        for plan in jobs:
            if plan.id not in self.jobs:
                headers = parse_headers(plan.headers)
                self.jobs[plan.id] = AuditedJob(plan, headers, self.world.now)

    def receipt(self, jobs: Sequence[JobPlan], pending: PendingSubmit) -> list[str]:
        """Record which jobs a client has a receipt for; return their ids."""
        if pending.error is not None:
            for plan in jobs:
                self.jobs[plan.id].refused = str(pending.error)
            return []
        confirmed = []
        for index, plan in enumerate(jobs):
            audited = self.jobs[plan.id]
            if index in pending.refused:
                audited.refused = pending.refused[index][0]
                continue
            audited.confirmed = self.world.now if audited.confirmed is None else audited.confirmed
            confirmed.append(plan.id)
        return confirmed

    def requested(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Record a call of a client that may cancel or retry jobs."""
        action = arguments.get("action", name)
        if name == "bulk":
            self.purged.add(arguments["queue"])
        for job_id in arguments.get("ids", ()):
            if (audited := self.jobs.get(job_id)) is not None:
                audited.cancelled |= action == "cancel"
                audited.retried += RESENT * (action == "retry")

    def answered(self, name: str, arguments: Mapping[str, Any], answer: Any) -> None:
        """Check the answer to a call of a client."""
        if name == "cancel":
            for job_id, state, _ in answer:
                if state == "cancelled":
                    self.job(job_id).reported_cancelled = True
        if name == "get":
            self._check_result(answer)

    def _check_result(self, answer: Any) -> None:
        job_id, state, _, result = answer
        audited = self.job(job_id)
        promised = audited.confirmed is not None and not audited.transient
        if not state and promised and not self.rolled_back:
            self.fail(f"job {job_id} has a receipt, and get() does not know it")
        if state == "succeeded" and result is not None:
            expected = {
                f"{job_id}/{e.attempt}".encode() for e in audited.done(OutcomeKind.SUCCEEDED)
            }
            if not any(text in result for text in expected):
                self.fail(f"get() gives {result!r} for job {job_id}, which no run returned")
        audited.reported = (state, result)

    def part(self, job_id: str, parts: Sequence[bytes]) -> None:
        """Check that a reader has the parts of one run, from the first on, in order."""
        if self.rolled_back:  # delivery numbers are used again after the last sync
            return
        audited, index = self.job(job_id), len(parts) - 1
        delivery = parts[-1].split(b"/")[1]
        if parts[-1] != f"{job_id}/{int(delivery)}/{index}".encode():
            self.fail(f"a reader of job {job_id} has {parts}")
        runs = {part.split(b"/")[1] for part in parts}
        if len(runs) > 1 and not audited.headers.replayable:
            self.fail(f"a reader of job {job_id} has parts of several runs: {parts}")

    def streamed(self, job_id: str, parts: Sequence[bytes], state: str) -> None:
        """Check that a reader has all parts when the job has succeeded."""
        if state == "succeeded" and len(parts) != PARTS and not self.rolled_back:
            self.fail(f"job {job_id} has succeeded, and a reader has {len(parts)} of its parts")

    # What workers say

    def started(self, entry: ChunkEntry, payload: bytes, owner: Process) -> Execution:
        """Record the start of a run, and check that the job may run now."""
        audited = self.job(entry.id)
        self.executions += 1
        execution = Execution(
            entry.delivery, entry.attempt, owner.name, self.world.now, len(audited.executions) + 1
        )
        self.world.trace(
            owner.name, "runs", entry.id[-6:], f"delivery {entry.delivery} attempt {entry.attempt}"
        )
        if entry.attempt > audited.headers.retry_count + 1 + audited.retried:
            self.fail(f"attempt {entry.attempt} of job {entry.id}: more than its retries allow")
        if not self.rolled_back:
            self._check_rerun(entry, audited)
        ready = audited.since + audited.headers.countdown - 0.01
        inherits = audited.headers.unique_mode == "keep_last"
        if self.world.now < ready and not self.clocks_set and not inherits:
            self.fail(f"job {entry.id} is started before its time")
        if audited.needs is not None:
            self._check_needs(entry.id, audited.needs, payload)
        audited.executions.append(execution)
        return execution

    def _check_rerun(self, entry: ChunkEntry, audited: AuditedJob) -> None:
        if audited.transient:  # a client may send it again after each death, no more
            if len(audited.executions) >= self.broker_lives:
                self.fail(f"transient job {entry.id} is started again")
            return
        for other in () if audited.legacy else audited.executions:
            if other.delivery == entry.delivery:
                self.fail(f"delivery {entry.delivery} of job {entry.id} was started twice")
            if other.end is None and not self.may_run_twice:
                self.fail(f"job {entry.id} is started while it runs, and no fault explains it")
            if other.kind is OutcomeKind.SUCCEEDED and not self.may_run_twice:
                self.fail(f"job {entry.id} is started after it succeeded, and no fault explains it")

    def _check_needs(self, job_id: str, needs: tuple[list[str], bool], payload: bytes) -> None:
        ids, collected = needs
        for other in ids:
            ends = {execution.kind for execution in self.jobs[other].executions}
            if self.rolled_back:
                continue
            if OutcomeKind.SUCCEEDED not in ends and not collected:
                self.fail(f"job {job_id} is started before {other} has succeeded")
            # A run may succeed although the store has its job as cancelled or expired.
            audited = self.jobs[other]
            other_end = (
                audited.cancelled
                or audited.plan.queue in self.purged
                or audited.headers.expires > 0
            )
            sure = (ends == {OutcomeKind.SUCCEEDED} and not other_end) or not collected
            if sure and f"{other}/".encode() not in payload:
                self.fail(f"job {job_id} is started without the result of {other}")

    def ended(self, execution: Execution, kind: OutcomeKind) -> None:
        """Record the end of a run."""
        execution.end = self.world.now
        execution.kind = kind

    def interrupted(self, execution: Execution) -> None:
        """Record that a run ended because its worker died."""
        execution.end = self.world.now

    # State of the broker after each commit

    def check_leases(self, core: BrokerCore) -> None:
        """Check that no job is leased twice, and that limits are kept."""
        state = core.state
        leased: dict[str, int] = {}
        limits: dict[tuple[str, str], list[int]] = {}
        for session in state.sessions.values():
            for lease in session.leases.values():
                if lease.transient:
                    continue
                for job in lease.jobs:
                    if job is None:
                        continue
                    leased[job.id] = leased.get(job.id, 0) + 1
                    if job.delivery > DELIVERIES:
                        self.fail(f"job {job.id} has delivery {job.delivery}")
                    headers = parse_headers(job.headers)
                    if headers.limit_running:
                        key = (headers.task, headers.limit_key)
                        limits.setdefault(key, [0, headers.limit_running])[0] += 1
        twice = [job_id for job_id, times in leased.items() if times > 1]
        if twice:
            self.fail(f"jobs are leased twice at once: {twice}")
        for (task, key), (count, limit) in limits.items():
            if count > limit:
                self.fail(f"{count} jobs of {task} {key!r} are leased, the limit is {limit}")

    # The end

    def check_end(self, stored: Mapping[str, JobRow]) -> None:
        """Compare the jobs in the store with the records."""
        for job_id, audited in self.jobs.items():
            if audited.transient:
                continue
            if job_id in stored:
                self._check_job(job_id, audited, stored[job_id], stored)
            elif audited.confirmed is not None and not self.rolled_back:
                self.fail(f"job {job_id} is lost: there was a receipt at {audited.confirmed:.3f}")
            elif audited.executions and not self.rolled_back:
                self.fail(f"job {job_id} was executed, and is not in the store")

    def _check_job(
        self, job_id: str, audited: AuditedJob, end: JobRow, stored: Mapping[str, JobRow]
    ) -> None:
        job, state = end.job, end.job.state
        if state not in TERMINAL:
            self.fail(f"job {job_id} is {state} at the end, attempt {job.attempt}")
        if state is JobState.EXPIRED:
            self._check_expiry(job_id, audited.headers.expires, end.at)
        if state is JobState.CANCELLED and not self._may_be_cancelled(audited, stored):
            self.fail(f"job {job_id} is cancelled without a request")
        if self.rolled_back:
            return
        if audited.reported_cancelled and state is not JobState.CANCELLED:
            self.fail(f"a client was told that job {job_id} is cancelled, and it is {state}")
        if audited.legacy:  # its REPLY has neither delivery nor failure, and the first one counts
            if state is JobState.SUCCEEDED and not audited.done(OutcomeKind.SUCCEEDED):
                self.fail(f"job {job_id} succeeded, and no run of it did")
            return
        if state is JobState.SUCCEEDED and not _has_ended(audited, job.delivery, "SUCCEEDED"):
            self.fail(f"job {job_id} succeeded with delivery {job.delivery}, which did not")
        if state is JobState.FAILED and not self._may_have_failed(audited, job.attempt):
            self.fail(f"job {job_id} failed at attempt {job.attempt} with retries left")
        if audited.reported is not None and not audited.retried and audited.reported[0] != state:
            self.fail(
                f"a client was told {audited.reported[0]!r} of job {job_id}, which is {state}"
            )

    def _check_expiry(self, job_id: str, expires: float, at: float) -> None:
        if not expires:
            self.fail(f"job {job_id} has no expiry and expired")
        if not self.clocks_set and at < expires - 0.01:
            self.fail(f"job {job_id} expired {expires - at:.3f} s too early")

    def _may_be_cancelled(self, audited: AuditedJob, stored: Mapping[str, JobRow]) -> bool:
        if audited.cancelled or audited.plan.queue in self.purged:
            return True
        if audited.headers.unique_mode in {"replace", "keep_last"}:
            return True
        if audited.needs is None:
            return False
        if any(self.jobs[job_id].retried for job_id in audited.needs[0]):
            return True  # one had failed before it was retried
        needs = [stored[job_id].job.state for job_id in audited.needs[0] if job_id in stored]
        return any(state is not JobState.SUCCEEDED for state in needs)

    def _may_have_failed(self, audited: AuditedJob, attempt: int) -> bool:
        died = len(audited.done(OutcomeKind.DIED))
        if died + self.losses >= DEATHS:  # it may have been the only job of a lost worker
            return True
        failed = audited.done(OutcomeKind.FAILED)
        return any(e.attempt == attempt for e in failed) and attempt > audited.headers.retry_count


def _has_ended(audited: AuditedJob, delivery: int, kind: str) -> bool:
    return any(e.delivery == delivery for e in audited.done(OutcomeKind[kind]))
