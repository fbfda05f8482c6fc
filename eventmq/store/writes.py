"""What a broker writes to its queue store: jobs, chunks, limits, graphs and schedules.

Each docstring names the result that the store answers with.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping, Sequence

    from eventmq.events import EventKind
    from eventmq.graph import Plan
    from eventmq.job import JobRecord
    from eventmq.schedule import Progress, Schedule

__all__ = [
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
    "KeepTime",
    "LeaseChunk",
    "LimitRow",
    "Operation",
    "Pause",
    "Promote",
    "PruneFailed",
    "Pruned",
    "PutSchedule",
    "RecordEnds",
    "RecordEvents",
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

#: The states that count unless the headers say others.
_UNFINISHED = frozenset(JobState) - TERMINAL


class WriteResult(NamedTuple):
    """The result of a write for one job, where it was not simply done."""

    #: ``same_id``, ``unique_conflict``, ``full`` or ``stale_lease``; of jobs that were admitted
    #: ``replaced`` or ``held``.
    code: str
    #: For ``same_id`` the state, for ``unique_conflict``, ``replaced`` and ``held`` the id of the
    #: other job.
    detail: str = ""
    #: For ``replaced`` the jobs that ended in favour of this one.
    ended: tuple[Finished, ...] = ()


class Admit(NamedTuple):
    """Store new jobs, as never delivered. Result: {index: WriteResult} of those refused or changed.

    A job may be leased by a `LeaseChunk` of the same commit; its delivery is written by that.

    A job with a `unique_rule` whose key another one has in a state that counts, or that ran and
    was admitted within the period, is judged by the mode. ``reject``: ``unique_conflict``.
    ``replace``: those that wait end as cancelled in the same commit, result ``replaced``; if one
    is leased or has ended, ``unique_conflict``. ``keep_last``: the same, but the new job gets
    state, rank and due time of the one that waited; if one is leased and none waits, it is stored
    as delayed with `eventmq.job.HELD` added to its due time, result ``held``, and a `Finish` of a
    job with the key takes that off again. The same id is never a conflict with itself.
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
    #: Seconds that the result is kept.
    ttl: float
    content_type: str
    result: bytes
    #: Unix time of the start by the worker's clock, 0.0 for never, and the seconds that it ran.
    started: float = 0.0
    run_time: float = 0.0
    #: Name of the worker session, "" for none.
    worker: str = ""


class Finish(NamedTuple):
    """End jobs. Result: {index: WriteResult} of those that were not there any more."""

    rows: Sequence[Finished]
    #: Store time at which they were leased to their worker, 0.0 if they were not; for their events.
    leased: float = 0.0
    #: Seconds by which wall time is ahead of store time, where jobs expired that were not leased.
    ahead: float = 0.0


class Attempt(NamedTuple):
    """One failed attempt of a job, for its history."""

    job_id: str
    #: The number of the attempt that failed, from 1, and of its delivery.
    attempt: int
    delivery: int
    #: Store time at which the broker was told.
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
    """Why a job goes back: the kind of the event that says so, and the encoded error if any."""

    kind: EventKind
    error: bytes = b""


class Requeue(NamedTuple):
    """Write state, rank, ``ready_at``, attempt, delivery and deaths of unfinished jobs.

    ``attempts`` are why jobs among them are tried again; of a job the last ten are kept, until its
    outcome is forgotten. Jobs that are not there any more are left out. Result: {index:
    WriteResult} of these, ``stale_lease``.
    """

    jobs: Sequence[JobRecord]
    attempts: Sequence[Attempt] = ()
    #: One per job, for their events; then when, and what is known of the lease that has ended.
    reasons: Sequence[RequeueReason] = ()
    at: float = 0.0
    worker: str = ""
    leased: float = 0.0
    #: One per attempt: when its job had become ready, for the event.
    ready: Sequence[float] = ()


class RecordEvents(NamedTuple):
    """Write an event of each job, that changes nothing else. Result: None."""

    kind: EventKind
    jobs: Sequence[JobRecord]
    at: float
    worker: str = ""
    leased: float = 0.0


class RecordEnds(NamedTuple):
    """Write the events of jobs that ended and were never stored. Result: None."""

    rows: Sequence[Finished]


class Chunk(NamedTuple):
    """Which jobs a session holds: (job, delivery) by position; None where a job has ended."""

    session: str
    number: int
    leases: Sequence[tuple[JobRecord | None, int]]
    #: Of a chunk that was read again: the ids of all its jobs, "" where they are not known.
    ids: Sequence[str] = ()
    #: When they were leased, 0.0 if that is not known.
    leased: float = 0.0


class LeaseChunk(NamedTuple):
    """Lease jobs by one row. Result: {}.

    When the store is opened again, a job belongs to the chunk as long as its own record says an
    earlier delivery: a `Requeue` with this delivery or a later one has ended the lease.
    """

    chunk: Chunk


class CloseChunk(NamedTuple):
    """Delete the row of a chunk. Result: {}."""

    session: str
    number: int


class Expire(NamedTuple):
    """End up to ``limit`` waiting jobs that have expired. Result: (jobs, next expiry).

    That is up to the wall time ``now + ahead``. The jobs, without bodies, are as they were; they
    keep their outcome for ``ttl`` seconds. The next expiry, a wall time, is that one where the
    limit was reached, or None where no other job has one.
    """

    now: float
    ttl: float
    #: Numbers of the jobs that are left alone: they are leased.
    excluded: Container[int]
    limit: int
    #: Seconds by which wall time is ahead of store time.
    ahead: float = 0.0


class LimitRow(NamedTuple):
    """The token bucket of a rate limit."""

    subqueue: SubqueueKey
    tokens: float
    #: Store time at which there were so many.
    updated: float
    #: Seconds after which the bucket is full in any case, and the row can be forgotten.
    period: float


class SaveLimits(NamedTuple):
    """Write token buckets, over what was written before. Result: None."""

    rows: Sequence[LimitRow]


class SuspectEnd(NamedTuple):
    """How a delivery of a job ended that was lost with its worker.

    Attributes:
        delivery: Which.
        death: What is known of it: a number of `eventmq.broker.suspects.Death`.
        session: Id of the worker's session.
        chunk: Number of the chunk that it was in.
    """

    delivery: int
    death: int
    session: str
    chunk: int


class SuspectRow(NamedTuple):
    """What is kept of a job that may have killed a process.

    Attributes:
        seq: Its number.
        losses: Deaths of which it may have been the cause.
        unproven: The same, workers that fell silent while they had it, and deaths beside it.
        unreached: Workers that were lost before they had begun it.
        owed: Deaths that are counted in its row, and were taken back.
        ends: How the last deliveries that were lost have ended.
        queue: Its queue, where the store says so.
        id: Its id, where the store says so.
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
    """Write what is known of suspects, over what was written before. Result: None.

    Of jobs that are not there any more nothing is written, and what was is forgotten when the store
    is opened.
    """

    rows: Sequence[SuspectRow]
    #: Numbers of jobs of which nothing is to be kept.
    removed: Sequence[int] = ()
    #: Jobs whose deaths changed without a `Requeue`: number and deaths.
    deaths: Sequence[tuple[int, int]] = ()


class Promote(NamedTuple):
    """Make up to ``limit`` delayed jobs queued that are due. Result: (jobs, next ready time).

    No more than one job after their bodies exceed ``max_bytes``. A job with an ``eta`` is due when
    wall time, ``now + ahead``, has come that far, any other one at its ``ready_at``. Of those with
    an eta ``ready_at`` and rank are moved to the store time at which they became ready: that of
    their eta, but not before ``since`` and not after ``now``. The next ready time is a
    store time.
    """

    now: float
    limit: int
    max_bytes: int = 32 * 1024 * 1024
    #: Seconds by which wall time is ahead of store time, and the store time since which it is.
    ahead: float = 0.0
    since: float = 0.0


class KeepTime(NamedTuple):
    """Write the clocks of the store with this commit. Result: None.

    A store does it by itself with every commit that comes `eventmq.timekeeping.SAVE_EVERY` after
    the last time.
    """


class SubqueueKey(NamedTuple):
    """What tells the jobs of a queue apart: those with the same key are a *subqueue*.

    What a worker takes, or does not know, it takes or does not know as a whole; what is limited
    is limited as a whole.
    """

    #: None for legacy jobs.
    task: str | None
    #: The header ``limit-key``, "" without one.
    key: str = ""
    #: Whether it is of jobs without guarantee, which no store has.
    transient: bool = False


@lru_cache(maxsize=16_384)
def subqueue_of(headers: str) -> SubqueueKey:
    """Return the subqueue of a job in its queue."""
    parsed = parse_headers(headers)
    task = parsed.task if parsed.content_type else None
    limit_key = parsed.limit_key if task is not None else ""
    return SubqueueKey(task, limit_key, parsed.guarantee is False)


class UniqueRule(NamedTuple):
    """What the headers of a job say about its unique key."""

    key: str
    #: ``reject``, ``replace`` or ``keep_last``.
    mode: str
    #: Seconds after its admission in which a job that ran blocks the key; 0.0 for none.
    period: float
    #: The states in which another job with the key counts.
    states: frozenset[JobState]


def unique_rule(headers: str) -> UniqueRule | None:
    """Return what a header text says about a unique key, None for most.

    Raises:
        ProtocolError: The mode or a state is none.
    """
    return _rule(headers) if "unique:" in headers else None


@lru_cache(maxsize=1024)
def _rule(text: str) -> UniqueRule | None:
    headers = parse_headers(text)
    if not headers.unique:
        return None
    mode = headers.unique_mode or "reject"
    if mode not in _MODES:
        msg = f"unique-mode is {mode[:80]!r}; allowed are {', '.join(_MODES)}"
        raise ProtocolError(msg, code="bad-header")
    names = [name for name in headers.unique_states.split("+") if name]
    try:
        states = frozenset(map(JobState, names)) or _UNFINISHED
    except ValueError:
        allowed = ", ".join(JobState)
        msg = f"unique-states is {headers.unique_states[:80]!r}; allowed are {allowed}, joined by +"
        raise ProtocolError(msg, code="bad-header") from None
    return UniqueRule(headers.unique, mode, headers.unique_period, states)


class AdmitGraph(NamedTuple):
    """Store the jobs of a graph, all or none. Result: None, or the WriteResult for all of them.

    Their numbers are consecutive, by place; those that wait are blocked. The first job's id is
    that of the graph. ``same_id``: it was admitted before; ``full``; ``taken``: a job has an id
    of it already, which is the detail.
    """

    jobs: Sequence[JobRecord]
    plan: Plan


class AdvanceGraphs(NamedTuple):
    """Do what the ends in this commit cause in graphs. Result: GraphChanges.

    A join that has counted down makes the jobs that wait at it ready: its body becomes MessagePack
    ``[body, input]``, where the job takes one; the input is MessagePack, ``[id, content type,
    result]`` for a result and a list for a list. A job that did not succeed cancels what waits
    for it, and so on, unless its header ``graph`` has the letter of `eventmq.graph.COLLECTED`. It
    also makes ready the handlers of what it is a part of, with ``[id, state, content type,
    result]``. Handlers that nothing called for are cancelled when all else has ended.

    Where the results are too long for a body, the input has the id of its job for each of them,
    and the header ``graph`` gets the letter of `eventmq.graph.PAGED`. They are kept for
    `ReadInputs` until the job has ended, and where it failed as long as it is kept, since it may
    be retried.

    A store does the same at the end of a commit without this write, as of ``at`` 0.
    """

    #: Store time; ready jobs rank by it. A step of priority is worth ``step`` seconds of waiting.
    at: float
    step: float = 0.0
    #: Seconds that the outcomes of cancelled jobs are kept.
    ttl: float = 0.0
    #: Longest body. A job that would get a longer one gets ids.
    max_body: int = 16 * 1024 * 1024
    #: Bytes that all jobs of one join may get together in their bodies; if it is more all of
    #: them get ids.
    max_copies: int = 64 * 1024 * 1024
    #: Bytes of results that one job may take; it fails if it is more.
    max_input_bytes: int = 256 * 1024 * 1024
    #: Bytes of bodies that the write result may have.
    max_bytes: int = 4 * 1024 * 1024
    #: Jobs that become ready or are cancelled in one commit, since others ended. What is more goes
    #: on with the next commit that has this write.
    limit: int = 1000
    #: Seconds by which wall time is ahead of store time.
    ahead: float = 0.0


class GraphChanges(NamedTuple):
    """What became of jobs that waited for others."""

    #: Queued or delayed now.
    ready: list[JobRecord]
    #: The same, without their bodies.
    more: list[JobRecord]
    #: Ended now.
    ended: list[Finished]
    #: More is to be done.
    unfinished: bool = False


class CancelGraph(NamedTuple):
    """Cancel what has not ended of the graph of a job, the last jobs first.

    Result: (id of the graph or "", AffectedJobs). Where it has ``limit`` jobs there may be more.
    """

    id: str
    audit: AuditFields
    limit: int = 1000


class EndDeadlines(NamedTuple):
    """Cancel what is left of parts past their deadline, so many jobs at most.

    Result: (AffectedJobs, next deadline or None); that has passed where there is more to cancel.
    """

    now: float
    audit: AuditFields
    limit: int = 1000


class Operation(NamedTuple):
    """What is to be done with many jobs, and with which; an empty filter fits every job.

    ``cancel`` is about unfinished jobs, ``retry`` and ``drop`` are about failed ones.
    """

    action: str
    queue: str = ""
    task: str = ""
    #: Of unfinished jobs; ``queued`` are leased ones too.
    state: JobState | None = None
    #: Type of the error: a whole dotted name, or its last part.
    error: str = ""
    #: Store times: failed from ``since`` on and before ``until``; 0.0 for no limit.
    since: float = 0.0
    until: float = 0.0
    #: Whether to cancel leased jobs as well.
    running: bool = False
    #: For those who wait for a cancelled job.
    reason: str = ""


class AuditFields(NamedTuple):
    """What is written about jobs that an operation touches.

    A cancelled job gets an outcome with ``at``, ``ttl`` and ``result``, the encoded error. A
    retried one is queued as new: the next free number from ``seq`` on, its next attempt, ready at
    ``at``; a step of priority is worth ``step`` seconds of waiting.
    """

    at: float
    ttl: float = 0.0
    content_type: str = ""
    result: bytes = b""
    seq: int = 0
    step: float = 0.0
    #: Seconds by which wall time is ahead of store time: jobs expire by wall time.
    ahead: float = 0.0


class AffectedJobs(NamedTuple):
    """Jobs that an action touched: as they were, those retried as they are; perhaps without bodies.

    ``unaffected`` has the states of the jobs to which it did not apply; unknown ids are in neither.
    """

    jobs: list[JobRecord]
    unaffected: dict[str, str]


class ApplyToJobs(NamedTuple):
    """Do ``cancel``, ``retry`` or ``drop`` with jobs by id. Result: AffectedJobs.

    With ``attempts`` it is done only to those whose attempt is the number at the same place: who
    asks twice, or was killed before the answer, does it once.
    """

    action: str
    ids: Sequence[str]
    audit: AuditFields
    attempts: Sequence[int] = ()


class BulkOperation(NamedTuple):
    """The durable record of a bulk operation on jobs up to a number, some of them per commit."""

    id: str
    operation: Operation
    #: Store time of its begin.
    at: float
    #: Largest number of a job that it touches, and that of the last one that it read.
    bound: int
    cursor: int = 0
    #: Jobs that it touched so far.
    touched: int = 0
    done: bool = False


class BeginBulkOperation(NamedTuple):
    """Write the record of a bulk operation. Result: it, or the one that has its id already.

    The records of the last hundred finished bulk operations are kept.
    """

    bulk: BulkOperation


class ContinueBulkOperation(NamedTuple):
    """Do the next part of a bulk operation: up to ``limit`` jobs by number, except ``excluded``.

    Result: (AffectedJobs, BulkOperation as it is now); for an unknown id AffectedJobs is empty and
    the other None.
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
    """Forget queues that are empty and not paused. Result: names of those that are forgotten.

    A queue that is not stored at all counts as forgotten. Its name stays as long as outcomes of its
    jobs are kept; with 100,000 names that stay no other queue is forgotten.
    """

    queues: Sequence[str]
    #: Store time.
    at: float


class Pruned(NamedTuple):
    """How many failed jobs were forgotten, by queue, and what is left of them."""

    queues: dict[str, int]
    #: Whether more must go, and the store time at which the oldest one failed that is kept.
    more: bool
    oldest: float | None


class PruneFailed(NamedTuple):
    """Forget up to ``limit`` failed jobs, the oldest first. Result: Pruned.

    Those that failed before ``before`` go, and as many more as it takes to have no more than
    ``max_bytes`` of bodies, headers, errors and histories.
    """

    before: float
    max_bytes: int
    limit: int


class ScheduleRow(NamedTuple):
    """A schedule as it is kept: what moves, and the definition in MessagePack."""

    name: str
    version: int
    last_fire_time: float | None
    remaining: int | None
    last_job: str
    definition: bytes


class SaveSchedules(NamedTuple):
    """Store schedules, each if it has the version beside it; None: if it is new.

    Result: (list of ``done``, ``stale`` or ``full``, revision).
    """

    rows: Sequence[tuple[ScheduleRow, int | None]]


class PutSchedule(NamedTuple):
    """Store a schedule, unless one that does the same is there.

    Result: (``done``, ``same`` or ``full``, revision).
    """

    schedule: Schedule
    now: float


class AdvanceSchedules(NamedTuple):
    """Move schedules on, each if it has the expected version. Result: (bools, revision)."""

    rows: Sequence[Progress]


class RemoveSchedule(NamedTuple):
    """Remove a schedule if it has the expected version; None: any. Result: (bool, revision)."""

    name: str
    expected: int | None


class Announce(NamedTuple):
    """Write at which addresses the broker can be reached, by port. Result: None.

    For a journal that reads the store and has something to tell the broker.
    """

    addresses: Mapping[str, str]


class SealEvents(NamedTuple):
    """Write that a journal has all events up to a number, safely. Result: (EventLogHead, refused).

    These are pruned, in slices with this and the next commits. Where events after ``sealed`` have
    been dropped already, an event of kind ``gap`` says which. A journal of another id replaces
    the one before if that was silent for ``timeout`` seconds; else ``refused`` is true and nothing
    is changed.
    """

    journal: str
    sealed: int
    #: Store time.
    at: float
    timeout: float
