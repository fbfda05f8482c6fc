"""What was promised, written down while a simulation runs, and compared at its end.

The auditor believes nobody: it has what clients intended and got receipts for, and what workers
executed. `Violation` says which promise was broken.
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

__all__ = ["PARTS", "Auditor", "Execution", "Known", "Violation"]

#: Parts that a run of a job yields, if it does.
PARTS = 4

#: Times that a client may say one thing, at worst: an operator's retry counts each time.
RESENT = 3

#: Deaths after which a job fails as a suspected killer.
DEATHS = 3

#: Times that a job may be handed out, with all that goes wrong in a scenario.
DELIVERIES = 400


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True, eq=False)
class Execution:
    """One run of a job. ``run`` counts the runs of the job from 1."""

    delivery: int
    attempt: int
    worker: str
    start: float
    run: int
    end: float | None = None
    kind: OutcomeKind | None = None


@dataclass(slots=True, eq=False)
class Known:
    """What the auditor knows of one job that a client intended."""

    plan: JobPlan
    headers: Headers
    #: When a client first wanted it.
    since: float
    executions: list[Execution] = field(default_factory=list)
    #: When a client got the receipt.
    confirmed: float | None = None
    refused: str = ""
    #: Somebody asked for its end, or for another try.
    cancelled: bool = False
    #: Somebody was told that it is cancelled.
    sentenced: bool = False
    retried: int = 0
    #: What it waits for, and whether it goes on without those that fail.
    needs: tuple[list[str], bool] | None = None
    #: What clients were told: state and result.
    told: tuple[str, bytes | None] | None = None

    @property
    def legacy(self) -> bool:
        return not self.headers.content_type

    @property
    def transient(self) -> bool:
        return self.headers.guarantee is False

    def done(self, kind: OutcomeKind) -> list[Execution]:
        """Return the executions that ended so."""
        return [execution for execution in self.executions if execution.kind is kind]


class Auditor:
    """Of one simulation.

    Args:
        world: Time.
        twice: Whether something goes wrong for which jobs may run twice.
        clocks: Whether clocks are set.
    """

    def __init__(self, world: World, *, twice: bool, clocks: bool) -> None:
        self.world = world
        self.twice = twice
        self.clocks = clocks
        self.jobs: dict[str, Known] = {}
        #: A crash of the machine took commits back that were not synced.
        self.rolled_back = False
        self.executions = 0
        #: Connections of workers that faults ended: a broker takes each for a death.
        self.losses = 0
        #: Lives of the broker: a job without guarantee that a client sends again is new to each.
        self.lives = 0
        #: Queues of which somebody wanted all jobs cancelled; it may be heard much later.
        self.purged: set[str] = set()

    def fail(self, text: str) -> None:
        """End the simulation: a promise was broken."""
        self.world.tell("auditor", "VIOLATION", text)
        raise Violation(text)

    def job(self, job_id: str) -> Known:
        """Return a job that was intended."""
        known = self.jobs.get(job_id)
        if known is None:
            self.fail(f"nobody ever submitted job {job_id}: a phantom")
        assert known is not None
        return known

    # What clients say

    def intend(self, jobs: Iterable[JobPlan]) -> None:
        """Note what a client is about to submit."""
        for plan in jobs:
            if plan.id not in self.jobs:
                headers = parse_headers(plan.headers)
                self.jobs[plan.id] = Known(plan, headers, self.world.now)

    def receipt(self, jobs: Sequence[JobPlan], pending: PendingSubmit) -> list[str]:
        """Note which jobs a client holds a receipt for; return their ids."""
        if pending.error is not None:
            for plan in jobs:
                self.jobs[plan.id].refused = str(pending.error)
            return []
        got = []
        for place, plan in enumerate(jobs):
            known = self.jobs[plan.id]
            if place in pending.refused:
                known.refused = pending.refused[place][0]
                continue
            known.confirmed = self.world.now if known.confirmed is None else known.confirmed
            got.append(plan.id)
        return got

    def asked(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Note what a client or an operator asked for."""
        action = arguments.get("action", name)
        if name == "bulk":
            self.purged.add(arguments["queue"])
        for job_id in arguments.get("ids", ()):
            if (known := self.jobs.get(job_id)) is not None:
                known.cancelled |= action == "cancel"
                known.retried += RESENT * (action == "retry")

    def answered(self, name: str, arguments: Mapping[str, Any], answer: Any) -> None:
        """Check what a client is told."""
        if name == "cancel":
            for job_id, state, _ in answer:
                if state == "cancelled":
                    self.job(job_id).sentenced = True
        if name == "get":
            self._got(answer)

    def _got(self, answer: Any) -> None:
        job_id, state, _, result = answer
        known = self.job(job_id)
        promised = known.confirmed is not None and not known.transient
        if not state and promised and not self.rolled_back:
            self.fail(f"job {job_id} has a receipt, and get() does not know it")
        if state == "succeeded" and result is not None:
            want = {f"{job_id}/{e.attempt}".encode() for e in known.done(OutcomeKind.SUCCEEDED)}
            if not any(text in result for text in want):
                self.fail(f"get() gives {result!r} for job {job_id}, which nobody returned")
        known.told = (state, result)

    def part(self, job_id: str, parts: Sequence[bytes]) -> None:
        """Check the parts that a reader has of a run: from the first on, in order."""
        if self.rolled_back:  # deliveries count from the last sync again
            return
        known, index = self.job(job_id), len(parts) - 1
        delivery = parts[-1].split(b"/")[1]
        if parts[-1] != f"{job_id}/{int(delivery)}/{index}".encode():
            self.fail(f"a reader of job {job_id} has {parts}")
        runs = {part.split(b"/")[1] for part in parts}
        if len(runs) > 1 and not known.headers.replayable:
            self.fail(f"a reader of job {job_id} has parts of several runs: {parts}")

    def streamed(self, job_id: str, parts: Sequence[bytes], state: str) -> None:
        """Check what a reader has at the end of a stream."""
        if state == "succeeded" and len(parts) != PARTS and not self.rolled_back:
            self.fail(f"job {job_id} has succeeded, and a reader has {len(parts)} of its parts")

    # What workers say

    def started(self, entry: ChunkEntry, payload: bytes, owner: Process) -> Execution:
        """Note that a job begins to run, and check that it may."""
        known = self.job(entry.id)
        self.executions += 1
        execution = Execution(
            entry.delivery, entry.attempt, owner.name, self.world.now, len(known.executions) + 1
        )
        self.world.tell(
            owner.name, "runs", entry.id[-6:], f"delivery {entry.delivery} attempt {entry.attempt}"
        )
        if entry.attempt > known.headers.retry_count + 1 + known.retried:
            self.fail(f"attempt {entry.attempt} of job {entry.id}: more than were asked for")
        if not self.rolled_back:
            self._check_again(entry, known)
        ready = known.since + known.headers.countdown - 0.01
        inherits = known.headers.unique_mode == "keep_last"
        if self.world.now < ready and not self.clocks and not inherits:
            self.fail(f"job {entry.id} is started before its time")
        if known.needs is not None:
            self._check_needs(entry.id, known.needs, payload)
        known.executions.append(execution)
        return execution

    def _check_again(self, entry: ChunkEntry, known: Known) -> None:
        if known.transient:  # that a client may send it again after each death is all that there is
            if len(known.executions) >= self.lives:
                self.fail(f"job {entry.id} has no guarantee and is started once more")
            return
        for other in () if known.legacy else known.executions:
            if other.delivery == entry.delivery:
                self.fail(f"delivery {entry.delivery} of job {entry.id} was started twice")
            if other.end is None and not self.twice:
                self.fail(f"job {entry.id} is started while it runs, without a reason")
            if other.kind is OutcomeKind.SUCCEEDED and not self.twice:
                self.fail(f"job {entry.id} is started after it succeeded, without a reason")

    def _check_needs(self, job_id: str, needs: tuple[list[str], bool], payload: bytes) -> None:
        ids, collected = needs
        for other in ids:
            ends = {execution.kind for execution in self.jobs[other].executions}
            if self.rolled_back:
                continue
            if OutcomeKind.SUCCEEDED not in ends and not collected:
                self.fail(f"job {job_id} is started before {other} has succeeded")
            # A run may succeed of which the store knows only that it was cancelled, or had expired.
            known = self.jobs[other]
            other_end = (
                known.cancelled or known.plan.queue in self.purged or known.headers.expires > 0
            )
            sure = (ends == {OutcomeKind.SUCCEEDED} and not other_end) or not collected
            if sure and f"{other}/".encode() not in payload:
                self.fail(f"job {job_id} is started without the result of {other}")

    def ended(self, execution: Execution, kind: OutcomeKind) -> None:
        """Note how a run ended."""
        execution.end = self.world.now
        execution.kind = kind

    def broke_off(self, execution: Execution) -> None:
        """Note that a run ended with its worker."""
        execution.end = self.world.now

    # What the broker has, after each commit

    def look(self, core: BrokerCore) -> None:
        """Check the leases of a broker."""
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
                        self.fail(f"job {job.id} is handed out for the {job.delivery}th time")
                    headers = parse_headers(job.headers)
                    if headers.limit_running:
                        key = (headers.task, headers.limit_key)
                        limits.setdefault(key, [0, headers.limit_running])[0] += 1
        twice = [job_id for job_id, times in leased.items() if times > 1]
        if twice:
            self.fail(f"jobs are leased twice at once: {twice}")
        for (task, key), (count, most) in limits.items():
            if count > most:
                self.fail(f"{count} jobs of {task} {key!r} are leased, the limit is {most}")

    # The end

    def close(self, found: Mapping[str, JobRow]) -> None:
        """Compare what the store has with what was promised."""
        for job_id, known in self.jobs.items():
            if known.transient:
                continue
            if job_id in found:
                self._close_one(job_id, known, found[job_id], found)
            elif known.confirmed is not None and not self.rolled_back:
                self.fail(f"job {job_id} is lost: there was a receipt at {known.confirmed:.3f}")
            elif known.executions and not self.rolled_back:
                self.fail(f"job {job_id} was executed, and is not there")

    def _close_one(
        self, job_id: str, known: Known, end: JobRow, found: Mapping[str, JobRow]
    ) -> None:
        job, state = end.job, end.job.state
        if state not in TERMINAL:
            self.fail(f"job {job_id} is {state} at the end, attempt {job.attempt}")
        if state is JobState.EXPIRED:
            self._check_expiry(job_id, known.headers.expires, end.at)
        if state is JobState.CANCELLED and not self._may_be_cancelled(known, found):
            self.fail(f"job {job_id} is cancelled, and nobody asked for it")
        if self.rolled_back:
            return
        if known.sentenced and state is not JobState.CANCELLED:
            self.fail(f"somebody was told that job {job_id} is cancelled, and it is {state}")
        if known.legacy:  # its REPLY says neither delivery nor failure, and the first one counts
            if state is JobState.SUCCEEDED and not known.done(OutcomeKind.SUCCEEDED):
                self.fail(f"job {job_id} succeeded, and nobody has run it to its end")
            return
        if state is JobState.SUCCEEDED and not _ended_so(known, job.delivery, "SUCCEEDED"):
            self.fail(f"job {job_id} succeeded with delivery {job.delivery}, which did not")
        if state is JobState.FAILED and not self._may_have_failed(known, job.attempt):
            self.fail(f"job {job_id} failed at attempt {job.attempt}: it has more")
        if known.told is not None and not known.retried and known.told[0] != state:
            self.fail(f"a client was told {known.told[0]!r} of job {job_id}, which is {state}")

    def _check_expiry(self, job_id: str, expires: float, at: float) -> None:
        if not expires:
            self.fail(f"job {job_id} has no expiry and expired")
        if not self.clocks and at < expires - 0.01:
            self.fail(f"job {job_id} expired {expires - at:.3f} s too early")

    def _may_be_cancelled(self, known: Known, found: Mapping[str, JobRow]) -> bool:
        if known.cancelled or known.plan.queue in self.purged:
            return True
        if known.headers.unique_mode in {"replace", "keep_last"}:
            return True
        if known.needs is None:
            return False
        if any(self.jobs[job_id].retried for job_id in known.needs[0]):
            return True  # one had failed before somebody had it tried again
        needs = [found[job_id].job.state for job_id in known.needs[0] if job_id in found]
        return any(state is not JobState.SUCCEEDED for state in needs)

    def _may_have_failed(self, known: Known, attempt: int) -> bool:
        died = len(known.done(OutcomeKind.DIED))
        if died + self.losses >= DEATHS:  # of a lost worker it may have been the only job
            return True
        failed = known.done(OutcomeKind.FAILED)
        return any(e.attempt == attempt for e in failed) and attempt > known.headers.retry_count


def _ended_so(known: Known, delivery: int, kind: str) -> bool:
    return any(e.delivery == delivery for e in known.done(OutcomeKind[kind]))
