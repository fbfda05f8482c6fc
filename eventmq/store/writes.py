"""Writes of a queue store: jobs, chunks, limits, graphs and schedules.

The docstring of each write describes its write result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from eventmq.events import EventKind
    from eventmq.graph import Plan
    from eventmq.job import JobRecord
    from eventmq.schedule import Progress, Schedule

__all__ = [
    "BARRIER",
    "Act",
    "Admit",
    "AdmitGraph",
    "AdvanceGraphs",
    "AdvanceSchedules",
    "AffectedJobs",
    "Announce",
    "ApplyToJobs",
    "Attempt",
    "AuditFields",
    "BeginBulkOperation",
    "BulkOperation",
    "CancelGraph",
    "Chunk",
    "CloseChunk",
    "ContinueBulkOperation",
    "EndDeadlines",
    "Expire",
    "Finish",
    "Finished",
    "ForgetQueues",
    "GraphChanges",
    "JobLog",
    "KeepTime",
    "LeaseChunk",
    "LimitRow",
    "Operation",
    "PartlyStored",
    "Pause",
    "Promote",
    "PruneFailed",
    "Pruned",
    "PutSchedule",
    "RecordEnds",
    "RecordEvents",
    "RecordOperation",
    "RemoveSchedule",
    "Requeue",
    "RequeueReason",
    "SaveLimits",
    "SaveSchedules",
    "SaveSuspects",
    "ScheduleRow",
    "SealEvents",
    "SubqueueKey",
    "SuspectEnd",
    "SuspectRow",
    "UniqueRule",
    "WriteResult",
    "subqueue_of",
    "unique_rule",
]

_MODES = ("reject", "replace", "keep_last")

#: States in which a job holds its unique key, unless its headers name others.
_UNFINISHED = frozenset(JobState) - TERMINAL


class PartlyStored(list[Any]):
    """Results of a batch from which a store left out writes with values that it cannot keep.

    Args:
        results: One for each write, None for those that were left out.
        refused: Reasons, by the indexes of these writes in the batch.
    """

    def __init__(self, results: Iterable[Any], refused: dict[int, str]) -> None:
        super().__init__(results)
        self.refused = refused


class WriteResult(NamedTuple):
    """Result of a write for a job that was refused or changed."""

    #: ``same_id``, ``unique_conflict``, ``full`` or ``stale_lease``; for admitted jobs ``replaced``
    #: or ``held``.
    code: str
    #: For ``same_id`` the state of the other job; for ``unique_conflict``, ``replaced`` and
    #: ``held`` its id.
    detail: str = ""
    #: For ``replaced`` the jobs that ended because of this one.
    ended: tuple[Finished, ...] = ()


class Admit(NamedTuple):
    """Store new jobs with delivery 0. Result: {index: WriteResult} of those refused or changed.

    A `LeaseChunk` of the same commit may lease a job; it writes the delivery.

    The mode of a `unique_rule` applies if another job with the key is in a counting state, or ran
    and was admitted within the period. ``reject``: the result is ``unique_conflict``. ``replace``:
    waiting jobs with the key are cancelled in the same commit, and the result is ``replaced``; if
    one is leased or has ended, it is ``unique_conflict``. ``keep_last``: the same, but the new job
    gets state, rank and ready time of the waiting one. If one is leased and none waits, the new job
    is stored as delayed with `eventmq.job.HELD` added to its ready time, and the result is
    ``held``; a `Finish` of a job with the key subtracts that again. A job does not conflict with
    itself, by its id.
    """

    jobs: Sequence[JobRecord]
    #: Ids of the jobs that this broker has leased.
    running: Container[str] = ()


class Finished(NamedTuple):
    """One ended job.

    A failed job is kept whole, and its result is the encoded error (`eventmq.wire.results`).
    """

    job: JobRecord
    #: A terminal state.
    state: JobState
    #: Store time of the end.
    at: float
    #: Seconds for which the result is kept.
    ttl: float
    content_type: str
    result: bytes
    #: Unix time of the start by the worker's clock, 0.0 for never, and the seconds that it ran.
    started: float = 0.0
    run_time: float = 0.0
    #: Name of the worker session, "" for none.
    worker: str = ""


class JobLog(NamedTuple):
    """Kept log of an attempt of a job."""

    job_id: str
    attempt: int
    #: Store time at which the broker received it.
    at: float
    #: Seconds for which it is kept after the end of the job.
    ttl: float
    #: Store time until which it is kept; 0.0 for an unfinished or failed job.
    until: float
    #: Limit of the bytes that are kept of all attempts of the job.
    max_bytes: int
    #: The log in UTF-8.
    text: bytes


class Finish(NamedTuple):
    """End jobs. Result: {index: WriteResult} of those that had ended before."""

    rows: Sequence[Finished]
    #: Store time at which they were leased to their worker, 0.0 if they were not; for their events.
    leased: float = 0.0
    #: Seconds by which wall time is ahead of store time, for jobs that expired before their lease.
    ahead: float = 0.0
    #: Kept logs of some of the jobs.
    logs: Sequence[JobLog] = ()


#: Writes nothing. Its callback is called after the commit of all writes before it.
BARRIER = Finish(())


class Attempt(NamedTuple):
    """One failed attempt of a job, for its history."""

    job_id: str
    #: Number of the failed attempt, from 1, and of its delivery.
    attempt: int
    delivery: int
    #: Store time at which the broker received it.
    at: float
    #: Unix time of the start by the worker's clock, 0.0 for never, and the seconds that it ran.
    started: float
    run_time: float
    #: Name of the worker session.
    worker: str
    content_type: str
    #: The encoded error (`eventmq.wire.results`).
    error: bytes


class RequeueReason(NamedTuple):
    """Reason of a requeue: the kind of its event, and the encoded error if any."""

    kind: EventKind
    error: bytes = b""


class Requeue(NamedTuple):
    """Write state, rank, ``ready_at``, attempt, delivery and deaths of unfinished jobs.

    ``attempts`` are the failed attempts of retried jobs; the last ten of a job are kept until its
    outcome is deleted. Jobs that have ended are left out. Result: {index: WriteResult} of these,
    ``stale_lease``.
    """

    jobs: Sequence[JobRecord]
    attempts: Sequence[Attempt] = ()
    #: One per job, for their events; then the store time, and worker and time of the ended lease.
    reasons: Sequence[RequeueReason] = ()
    at: float = 0.0
    worker: str = ""
    leased: float = 0.0
    #: One per attempt: store time at which its job had become ready, for the event.
    ready: Sequence[float] = ()
    #: Kept logs of some of the attempts.
    logs: Sequence[JobLog] = ()


class RecordEvents(NamedTuple):
    """Write an event for each job, and nothing else. Result: None."""

    kind: EventKind
    jobs: Sequence[JobRecord]
    at: float
    worker: str = ""
    leased: float = 0.0


class RecordOperation(NamedTuple):
    """Write the event of an act that affects no single job, and nothing else. Result: None."""

    act: Act
    queue: str = ""
    task: str = ""
    schedule: str = ""
    #: Id of the job that the act is about, "" for none.
    job_id: str = ""


class RecordEnds(NamedTuple):
    """Write the events of ended jobs that were never stored. Result: None."""

    rows: Sequence[Finished]


class Chunk(NamedTuple):
    """Jobs of a chunk: (job, delivery) by position, None for a job that has ended."""

    session: str
    number: int
    leases: Sequence[tuple[JobRecord | None, int]]
    #: In a recovered chunk: the ids of all its jobs, "" for ids that are not known.
    ids: Sequence[str] = ()
    #: Store time of the lease, 0.0 if it is not known.
    leased: float = 0.0


class LeaseChunk(NamedTuple):
    """Lease jobs by one row. Result: {}.

    After a restart a job belongs to the chunk only if its own record has an earlier delivery: a
    `Requeue` with this delivery or a later one has ended the lease.
    """

    chunk: Chunk


class CloseChunk(NamedTuple):
    """Delete the row of a chunk. Result: {}."""

    session: str
    number: int


class Expire(NamedTuple):
    """End up to ``limit`` waiting jobs that have expired. Result: (jobs, next expiry).

    Ends jobs whose expiry is at or before the wall time ``now + ahead``. The result has them in
    their former states, without bodies. Their outcomes are kept for ``ttl`` seconds. The next
    expiry is a wall time, None if no other job has one.
    """

    now: float
    ttl: float
    #: Numbers of jobs that must not expire, since they are leased.
    excluded: Container[int]
    limit: int
    #: Seconds by which wall time is ahead of store time.
    ahead: float = 0.0


class LimitRow(NamedTuple):
    """The token bucket of a rate limit."""

    subqueue: SubqueueKey
    tokens: float
    #: Store time at which the bucket had these tokens.
    updated: float
    #: Seconds after which the bucket is certainly full, and the row can be deleted.
    period: float


class SaveLimits(NamedTuple):
    """Write token buckets; existing rows are replaced. Result: None."""

    rows: Sequence[LimitRow]


class SuspectEnd(NamedTuple):
    """End of a delivery that was lost with its worker.

    Attributes:
        delivery: Number of the delivery.
        death: Number of `eventmq.broker.suspects.Death`.
        session: Id of the worker's session.
        chunk: Number of the chunk that it was in.
    """

    delivery: int
    death: int
    session: str
    chunk: int


class SuspectRow(NamedTuple):
    """Stored suspect; see `eventmq.broker.suspects.Suspect`.

    Attributes:
        seq: Number of the job.
        losses: Number of deaths that it may have caused.
        unproven: Number of losses, silent workers that had it, and deaths beside it.
        unreached: Number of workers that were lost before they had started it.
        owed: Number of deaths to subtract from its row, since they were taken back.
        ends: Ends of the last lost deliveries.
        queue: Queue of the job, set by the store.
        id: Id of the job, set by the store.
    """

    seq: int
    losses: int = 0
    unproven: int = 0
    unreached: int = 0
    owed: int = 0
    ends: Sequence[SuspectEnd] = ()
    queue: str = ""
    id: str = ""


class SaveSuspects(NamedTuple):
    """Write suspects; existing rows are replaced. Result: None.

    Nothing is written for jobs that have ended; their rows are deleted when the store is opened.
    """

    rows: Sequence[SuspectRow]
    #: Numbers of jobs whose rows are deleted.
    removed: Sequence[int] = ()
    #: Jobs whose deaths changed without a `Requeue`: number and deaths.
    deaths: Sequence[tuple[int, int]] = ()


class Promote(NamedTuple):
    """Queue up to ``limit`` ready delayed jobs. Result: (jobs, next ready time).

    Stops after ``max_bytes`` of bodies, but queues at least one job. A job with an ``eta`` is ready
    when wall time, ``now + ahead``, has reached it; any other job at its ``ready_at``. ``ready_at``
    and rank of jobs with an eta become the store time at which they were ready: that of their eta,
    but not before ``since`` and not after ``now``. The next ready time is a store time.
    """

    now: float
    limit: int
    max_bytes: int = 32 * 1024 * 1024
    #: Seconds by which wall time is ahead of store time, and the store time since which that holds.
    ahead: float = 0.0
    since: float = 0.0


class KeepTime(NamedTuple):
    """Write the clocks of the store in this commit. Result: None.

    A store writes them by itself in each commit that comes `eventmq.timekeeping.SAVE_EVERY` after
    they were last written.
    """


class SubqueueKey(NamedTuple):
    """Key of a subqueue: all jobs of a queue with the same key.

    Workers are eligible for whole subqueues, and limits apply to whole subqueues.
    """

    #: None for legacy jobs.
    task: str | None
    #: The header ``limit-key``, "" without one.
    key: str = ""
    #: Whether its jobs are transient; no store has them.
    transient: bool = False


@lru_cache(maxsize=16_384)
def subqueue_of(headers: str) -> SubqueueKey:
    """Return the subqueue of a job in its queue."""
    parsed = parse_headers(headers)
    task = parsed.task if parsed.content_type else None
    limit_key = parsed.limit_key if task is not None else ""
    return SubqueueKey(task, limit_key, parsed.guarantee is False)


class UniqueRule(NamedTuple):
    """Unique key of a job, as its headers define it."""

    key: str
    #: ``reject``, ``replace`` or ``keep_last``.
    mode: str
    #: Seconds after its admission in which a job that ran blocks the key; 0.0 for none.
    period: float
    #: States in which another job with the key counts.
    states: frozenset[JobState]


def unique_rule(headers: str) -> UniqueRule | None:
    """Return the unique rule of a header text, None if it has none.

    Raises:
        ProtocolError: The mode or a state is unknown.
    """
    return _rule(headers) if "unique:" in headers else None


@lru_cache(maxsize=1024)
def _rule(text: str) -> UniqueRule | None:
    headers = parse_headers(text)
    if not headers.unique:
        return None
    mode = headers.unique_mode or "reject"
    if mode not in _MODES:
        raise ProtocolError(
            f"unique-mode is {mode[:80]!r}; allowed are {', '.join(_MODES)}", code="bad-header"
        )
    names = [name for name in headers.unique_states.split("+") if name]
    try:
        states = frozenset(map(JobState, names)) or _UNFINISHED
    except ValueError:
        allowed = ", ".join(JobState)
        raise ProtocolError(
            f"unique-states is {headers.unique_states[:80]!r}; allowed are {allowed}, joined by +",
            code="bad-header",
        ) from None
    return UniqueRule(headers.unique, mode, headers.unique_period, states)


class AdmitGraph(NamedTuple):
    """Store the jobs of a graph, all or none. Result: None, or the WriteResult for all of them.

    Their numbers are consecutive, by node index; jobs that wait for others are blocked. The id of
    the first job is that of the graph. Codes of the result: ``same_id`` if the graph was admitted
    before, ``full``, and ``taken`` if another job has one of the ids, which is the detail.
    """

    jobs: Sequence[JobRecord]
    plan: Plan


class AdvanceGraphs(NamedTuple):
    """Advance graphs by the outcomes in this commit. Result: GraphChanges.

    A join whose count is 0 makes its waiting jobs ready. The body of a job that takes an input
    becomes MessagePack ``[body, input]``; the input is MessagePack, ``[id, content type, result]``
    for one result and a list of these for several. A job that did not succeed cancels the jobs that
    wait for it, directly or indirectly, unless its header ``graph`` has the letter of
    `eventmq.graph.COLLECTED`. It also makes the failure handlers of its parts ready, with the input
    ``[id, state, content type, result]``. Handlers that were not needed are cancelled when all
    other jobs have ended.

    If the results are too large for a body, the input has the ids of their jobs instead, and the
    header ``graph`` gets the letter of `eventmq.graph.PAGED`. The results are kept for `ReadInputs`
    until the job has ended; those of a failed job as long as the job, since it may be retried.

    A commit without this write advances graphs at its end as well, with ``at`` 0.
    """

    #: Store time, by which ready jobs rank. A step of priority counts as ``step`` seconds of
    #: waiting.
    at: float
    step: float = 0.0
    #: Seconds for which the outcomes of cancelled jobs are kept.
    ttl: float = 0.0
    #: Limit of the bytes of a body; a job with a larger input gets ids.
    max_body: int = 16 * 1024 * 1024
    #: Limit of the bytes of inputs in the bodies of all jobs of one join; beyond it all of them get
    #: ids.
    max_copies: int = 64 * 1024 * 1024
    #: Limit of the bytes of the input of one job; beyond it the job fails.
    max_input_bytes: int = 256 * 1024 * 1024
    #: Limit of the bytes of bodies in the write result.
    max_bytes: int = 4 * 1024 * 1024
    #: Limit of the jobs that become ready or are cancelled in one commit; others follow in the next
    #: commit with this write.
    limit: int = 1000
    #: Seconds by which wall time is ahead of store time.
    ahead: float = 0.0


class GraphChanges(NamedTuple):
    """Changes of jobs in graphs."""

    #: Jobs that became queued or delayed.
    ready: list[JobRecord]
    #: Further such jobs, without bodies.
    more: list[JobRecord]
    #: Outcomes of cancelled and failed jobs.
    ended: list[Finished]
    #: Whether more changes follow in the next commit.
    unfinished: bool = False


class CancelGraph(NamedTuple):
    """Cancel the unfinished jobs of the graph of a job, the last jobs first.

    Result: (id of the graph or "", AffectedJobs). If these are ``limit`` jobs, more may remain.
    """

    id: str
    audit: AuditFields
    limit: int = 1000


class EndDeadlines(NamedTuple):
    """Cancel unfinished jobs of parts past their deadline, up to a limit.

    Result: (AffectedJobs, next deadline or None). If that deadline has passed, more jobs remain.
    """

    now: float
    audit: AuditFields
    limit: int = 1000


class Operation(NamedTuple):
    """Action on many jobs, with filters; an empty filter matches every job.

    ``cancel`` applies to unfinished jobs, ``retry`` and ``drop`` to failed ones.
    """

    action: str
    queue: str = ""
    task: str = ""
    #: State of unfinished jobs; ``queued`` includes leased ones.
    state: JobState | None = None
    #: Type of the error: a whole dotted name, or its last part.
    error: str = ""
    #: Store times: failed from ``since`` on and before ``until``; 0.0 for no limit.
    since: float = 0.0
    until: float = 0.0
    #: Whether to cancel leased jobs as well.
    running: bool = False
    #: Reason, for clients that wait for a cancelled job.
    reason: str = ""


class Act(NamedTuple):
    """An operation and its actor, for the events of kind ``operation``."""

    #: ``cancel``, ``retry``, ``pause`` and so on.
    operation: str
    #: Name of the actor, "" if it is not known.
    actor: str
    #: Store time.
    at: float


class AuditFields(NamedTuple):
    """Values that are written to jobs which an operation affects.

    A cancelled job gets an outcome with ``at``, ``ttl`` and ``result``, the encoded error. A
    retried one is queued as new: with the next free number from ``seq`` on, its next attempt, and
    ready at ``at``; a step of priority counts as ``step`` seconds of waiting.
    """

    at: float
    ttl: float = 0.0
    content_type: str = ""
    result: bytes = b""
    seq: int = 0
    step: float = 0.0
    #: Seconds by which wall time is ahead of store time: jobs expire by wall time.
    ahead: float = 0.0
    #: For the events; None if the broker acts by itself.
    act: Act | None = None


class AffectedJobs(NamedTuple):
    """Jobs that an action affected, perhaps without bodies.

    They are as before the action, except retried jobs, which are as after it. ``unaffected`` has
    the states of the jobs to which the action did not apply. Unknown ids are in neither.
    """

    jobs: list[JobRecord]
    unaffected: dict[str, str]


class ApplyToJobs(NamedTuple):
    """Apply ``cancel``, ``retry`` or ``drop`` to jobs by id. Result: AffectedJobs.

    ``attempts`` has an attempt for each id; jobs with another attempt are not affected, so that a
    repeated request has no effect.
    """

    action: str
    ids: Sequence[str]
    audit: AuditFields
    attempts: Sequence[int] = ()


class BulkOperation(NamedTuple):
    """Stored record of a bulk operation on jobs up to a number, run in slices, one per commit."""

    id: str
    operation: Operation
    #: Store time of its start.
    at: float
    #: Largest number of a job that it may affect, and the last number that it has read.
    bound: int
    cursor: int = 0
    #: Number of jobs affected so far.
    touched: int = 0
    done: bool = False


class BeginBulkOperation(NamedTuple):
    """Write the record of a bulk operation. Result: the record, or the existing one with its id.

    The records of the last hundred finished bulk operations are kept.
    """

    bulk: BulkOperation


class ContinueBulkOperation(NamedTuple):
    """Run the next slice of a bulk operation: up to ``limit`` jobs by number, except ``excluded``.

    Result: (AffectedJobs, the updated BulkOperation); for an unknown id (no jobs, None).
    """

    id: str
    audit: AuditFields
    excluded: Collection[int]
    limit: int


class Pause(NamedTuple):
    """Write whether a queue is paused. Result: None."""

    queue: str
    paused: bool


class ForgetQueues(NamedTuple):
    """Remove queues that are empty and not paused. Result: names of the removed queues.

    A queue that is not stored counts as removed. A name is kept as long as outcomes of its jobs;
    once 100,000 such names are kept, no other queue is removed.
    """

    queues: Sequence[str]
    #: Store time.
    at: float


class Pruned(NamedTuple):
    """Numbers of pruned failed jobs by queue, and what remains to be pruned."""

    queues: dict[str, int]
    #: Whether more jobs must be pruned, and the store time of the oldest kept failure.
    more: bool
    oldest: float | None


class PruneFailed(NamedTuple):
    """Delete up to ``limit`` failed jobs, the oldest first. Result: Pruned.

    Deletes jobs that failed before ``before``, and more jobs until bodies, headers, errors and
    histories have at most ``max_bytes``.
    """

    before: float
    max_bytes: int
    limit: int


class ScheduleRow(NamedTuple):
    """Stored schedule: its progress, and its definition in MessagePack."""

    name: str
    version: int
    last_fire_time: float | None
    remaining: int | None
    last_job: str
    definition: bytes


class SaveSchedules(NamedTuple):
    """Store schedules, each if its stored version is the expected one; None for a new schedule.

    Result: (list of ``done``, ``stale`` or ``full``, revision).
    """

    rows: Sequence[tuple[ScheduleRow, int | None]]
    act: Act | None = None


class PutSchedule(NamedTuple):
    """Store a schedule, unless an equal one is stored already.

    Result: (``done``, ``same`` or ``full``, revision).
    """

    schedule: Schedule
    now: float


class AdvanceSchedules(NamedTuple):
    """Advance schedules, each if it has the expected version. Result: (bools, revision)."""

    rows: Sequence[Progress]


class RemoveSchedule(NamedTuple):
    """Remove a schedule if it has the expected version, None for any. Result: (bool, revision)."""

    name: str
    expected: int | None
    act: Act | None = None


class Announce(NamedTuple):
    """Write the addresses of the broker, by port. Result: None.

    A journal that reads the store uses them to reach the broker.
    """

    addresses: Mapping[str, str]


class SealEvents(NamedTuple):
    """Record that a journal has stored all events up to a number. Result: (EventLogHead, refused).

    These events are pruned, in slices in this and the next commits. If events after ``sealed`` have
    been dropped already, an event of kind ``gap`` has their numbers. A journal with another id
    replaces the former one if that was silent for ``timeout`` seconds; else ``refused`` is true and
    nothing changes.
    """

    journal: str
    sealed: int
    #: Store time.
    at: float
    timeout: float
