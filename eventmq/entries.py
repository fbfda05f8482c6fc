"""What a broker asks its queue store to do, and what the store says.

A commit is a list of entries (`Write`); the store answers with one verdict per entry, of the
kind that the entry's docstring names. The contract is `eventmq.interfaces.QueueStore`. The entries
for what operators do are in `eventmq.operations`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, JobState
from eventmq.operations import Act, BeginSweep, ListFailed, Pause, PruneFailed, SweepSlice
from eventmq.schedule import (
    AdvanceSchedules,
    LoadSchedules,
    PutSchedule,
    RemoveSchedule,
    SaveSchedules,
)

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from eventmq.job import Job
    from eventmq.operations import Sweep

__all__ = [
    "Admit",
    "Attempt",
    "Chunk",
    "Claim",
    "CloseChunk",
    "Find",
    "Finish",
    "Finished",
    "Found",
    "History",
    "LaneHead",
    "LaneKey",
    "LimitRow",
    "ListJobs",
    "OpenChunk",
    "Promote",
    "QueueCounts",
    "Recovered",
    "Requeue",
    "SaveLimits",
    "UniqueRule",
    "Verdict",
    "Write",
    "lane_of",
    "unique_rule",
]


class LaneKey(NamedTuple):
    """What tells the jobs of a queue apart: those with the same key are a *lane*.

    What a worker takes, or does not know, it takes or does not know as a whole; what is limited
    is limited as a whole.
    """

    #: None for plain jobs.
    task: str | None
    #: The header ``limit-key``, "" without one.
    key: str = ""


@lru_cache(maxsize=16_384)
def lane_of(headers: str) -> LaneKey:
    """Return the lane of a job in its queue."""
    known = parse_headers(headers)
    return LaneKey(known.task, known.limit_key) if known.content_type else LaneKey(None)


class UniqueRule(NamedTuple):
    """What the headers of a job say about its unique key."""

    key: str
    #: ``reject``, ``replace`` or ``keep_last``.
    mode: str
    #: Seconds after its admission in which a job that ran blocks the key; 0.0 for none.
    period: float
    #: The states in which another job with the key counts.
    states: frozenset[JobState]


_MODES = ("reject", "replace", "keep_last")

#: The states that count unless the headers say others.
_UNFINISHED = frozenset(JobState) - TERMINAL


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
        known = ", ".join(JobState)
        msg = f"unique-states is {headers.unique_states[:80]!r}; allowed are {known}, joined by +"
        raise ProtocolError(msg, code="bad-header") from None
    return UniqueRule(headers.unique, mode, headers.unique_period, states)


class Verdict(NamedTuple):
    """What the store says about one job of an entry that was not simply done."""

    #: ``same_id``, ``unique_conflict``, ``full`` or ``stale_lease``; of jobs that were admitted
    #: ``replaced`` or ``held``.
    code: str
    #: For ``same_id`` the state, for ``unique_conflict``, ``replaced`` and ``held`` the id of the
    #: other job.
    detail: str = ""
    #: For ``replaced`` the jobs that ended in favour of this one.
    ended: tuple[Finished, ...] = ()


class Admit(NamedTuple):
    """Store new jobs, as never delivered. Verdict: {index: Verdict} of those refused or changed.

    A job may be leased by an `OpenChunk` of the same commit; its delivery is written by that.

    A job with a `unique_rule` whose key another one has in a state that counts, or that ran and
    was admitted within the period, is judged by the mode. ``reject``: ``unique_conflict``.
    ``replace``: those that wait end as cancelled in the same commit, verdict ``replaced``; if one
    is leased or has ended, ``unique_conflict``. ``keep_last``: the same, but the new job gets
    state, rank and due time of the one that waited; if one is leased and none waits, it is stored
    as delayed with `eventmq.job.HELD` added to its due time, verdict ``held``, and a `Finish` of a
    job with the key takes that off again. The same id is never a conflict with itself.
    """

    jobs: Sequence[Job]
    #: Ids of the jobs that this broker has leased.
    running: Container[str] = ()


class Finished(NamedTuple):
    """One ended job.

    A failed job is kept whole, and its result is the encoded error (`eventmq.wire.results`).
    """

    job: Job
    #: A terminal state.
    state: JobState
    #: Unix time of the end.
    at: float
    #: Seconds that the result is kept.
    ttl: float
    content_type: str
    result: bytes
    #: Unix time of the start, 0.0 if it never started, and the seconds that it ran.
    started: float = 0.0
    ran: float = 0.0
    #: Name of the worker session, "" for none.
    worker: str = ""


class Finish(NamedTuple):
    """End jobs. Verdict: {index: Verdict} of those that were not there any more."""

    rows: Sequence[Finished]


class Attempt(NamedTuple):
    """One failed attempt of a job, for its history."""

    job_id: str
    #: The number of the attempt that failed, from 1, and of its delivery.
    attempt: int
    delivery: int
    #: Unix time at which the broker was told.
    at: float
    #: Unix time of the start, 0.0 if it never started, and the seconds that it ran.
    started: float
    ran: float
    #: Name of the worker session.
    worker: str
    content_type: str
    #: The encoded error (`eventmq.wire.results`).
    error: bytes


class Requeue(NamedTuple):
    """Write state, rank, due, attempt, delivery and deaths of unfinished jobs. Verdict: {}.

    ``attempts`` are why jobs among them are tried again; of a job the last ten are kept, until its
    outcome is forgotten. Jobs that are not there any more are left out.
    """

    jobs: Sequence[Job]
    attempts: Sequence[Attempt] = ()


class Chunk(NamedTuple):
    """Which jobs a session holds: (job, delivery) by position; None where a job has ended."""

    session: str
    number: int
    leases: Sequence[tuple[Job | None, int]]


class OpenChunk(NamedTuple):
    """Lease jobs by one row. Verdict: {}.

    When the store is opened again, a job belongs to the chunk as long as its own record says an
    earlier delivery: a `Requeue` with this delivery or a later one has ended the lease.
    """

    chunk: Chunk


class CloseChunk(NamedTuple):
    """Delete the row of a chunk. Verdict: {}."""

    session: str
    number: int


class Claim(NamedTuple):
    """Read the queued jobs of a lane that rank after (rank, seq).

    Verdict: (jobs in order, whether more). At most ``limit`` jobs, and no more after their bodies
    exceed ``max_bytes``.
    """

    queue: str
    lane: LaneKey
    after: tuple[int, int]
    limit: int
    max_bytes: int


class LimitRow(NamedTuple):
    """The token bucket of a rate limit."""

    lane: LaneKey
    tokens: float
    #: Unix time at which there were so many.
    updated: float
    #: Seconds after which the bucket is full in any case, and the row can be forgotten.
    period: float


class SaveLimits(NamedTuple):
    """Write token buckets, over what was written before. Verdict: None."""

    rows: Sequence[LimitRow]


class Promote(NamedTuple):
    """Make up to ``limit`` delayed jobs with due <= ``now`` queued. Verdict: (jobs, next due).

    No more than one job after their bodies exceed ``max_bytes``.
    """

    now: float
    limit: int
    max_bytes: int = 32 * 1024 * 1024


class Found(NamedTuple):
    """What is known of a job.

    The body is there while it is unfinished or failed, the other fields as in `Finished` once it
    has ended. ``result`` is None when it is not kept any more.
    """

    job: Job
    at: float = 0.0
    content_type: str = ""
    result: bytes | None = None
    started: float = 0.0
    ran: float = 0.0
    worker: str = ""


class Find(NamedTuple):
    """Look jobs up. Verdict: {id: Found} of those known."""

    ids: Sequence[str]


class ListJobs(NamedTuple):
    """Read up to ``limit`` jobs by filters, without their bodies, the newest (largest id) first.

    Verdict: (list of Found, next cursor or "").
    """

    state: JobState | None
    queue: str | None
    task: str | None
    cursor: str
    limit: int


class History(NamedTuple):
    """Read the failed attempts of a job. Verdict: list of Attempt, the oldest first.

    The last one of a job that has failed for good is not among them: `Found` has it.
    """

    id: str


Write = (
    Admit
    | Finish
    | Requeue
    | OpenChunk
    | CloseChunk
    | Claim
    | Promote
    | SaveLimits
    | Find
    | ListJobs
    | History
    | Act
    | BeginSweep
    | SweepSlice
    | Pause
    | ListFailed
    | PruneFailed
    | LoadSchedules
    | SaveSchedules
    | PutSchedule
    | AdvanceSchedules
    | RemoveSchedule
)


@dataclass(slots=True)
class QueueCounts:
    """What the store knows of a queue: how many jobs it has (``waiting`` includes leased ones)."""

    waiting: int = 0
    delayed: int = 0
    failed: int = 0
    paused: bool = False


class LaneHead(NamedTuple):
    """A lane, and where the first of its queued jobs stands."""

    queue: str
    lane: LaneKey
    #: Its rank and number.
    first: tuple[int, int]


@dataclass(slots=True)
class Recovered:
    """What a store has when it is opened.

    Attributes:
        store_id: Made once when the store was created.
        epoch: Number of this opening, larger than any before.
        next_seq: Larger than the number of any job.
        counts: Per queue.
        chunks: Open chunks of earlier epochs, with their jobs.
        next_due: Unix time of the first delayed job, or None.
        sweeps: The marks that are kept, oldest first.
        lanes: Those with queued jobs.
        limiters: The token buckets that may not be full yet.
    """

    store_id: str
    epoch: int
    next_seq: int = 1
    counts: dict[str, QueueCounts] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    next_due: float | None = None
    sweeps: list[Sweep] = field(default_factory=list)
    lanes: list[LaneHead] = field(default_factory=list)
    limiters: list[LimitRow] = field(default_factory=list)
