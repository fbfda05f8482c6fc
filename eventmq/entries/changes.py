"""The entries that change what a store has of jobs, chunks and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from eventmq.entries.keys import LaneKey
    from eventmq.events import Kind
    from eventmq.job import Job, JobState

__all__ = [
    "Admit",
    "Attempt",
    "Cause",
    "Chunk",
    "CloseChunk",
    "Expire",
    "Finish",
    "Finished",
    "KeepTime",
    "LimitRow",
    "Note",
    "NoteEnds",
    "OpenChunk",
    "Promote",
    "Requeue",
    "SaveLimits",
    "SaveSuspects",
    "SuspectEnd",
    "SuspectRow",
    "Verdict",
]


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
    #: Unix time at which they were handed to their worker, 0.0 if they were not; for their events.
    leased: float = 0.0
    #: Seconds by which wall time is ahead of store time, where jobs expired that were not leased.
    ahead: float = 0.0


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


class Cause(NamedTuple):
    """Why a job goes back: the kind of the event that says so, and the encoded error if any."""

    kind: Kind
    error: bytes = b""


class Requeue(NamedTuple):
    """Write state, rank, due, attempt, delivery and deaths of unfinished jobs.

    ``attempts`` are why jobs among them are tried again; of a job the last ten are kept, until its
    outcome is forgotten. Jobs that are not there any more are left out. Verdict: {index: Verdict}
    of these, ``stale_lease``.
    """

    jobs: Sequence[Job]
    attempts: Sequence[Attempt] = ()
    #: One per job, for their events; then when, and what is known of the lease that has ended.
    causes: Sequence[Cause] = ()
    at: float = 0.0
    worker: str = ""
    leased: float = 0.0
    #: One per attempt: when its job had become ready, for the event.
    ready: Sequence[float] = ()


class Note(NamedTuple):
    """Write an event of each job, that changes nothing else. Verdict: None."""

    kind: Kind
    jobs: Sequence[Job]
    at: float
    worker: str = ""
    leased: float = 0.0


class NoteEnds(NamedTuple):
    """Write the events of jobs that ended and were never stored. Verdict: None."""

    rows: Sequence[Finished]


class Chunk(NamedTuple):
    """Which jobs a session holds: (job, delivery) by position; None where a job has ended."""

    session: str
    number: int
    leases: Sequence[tuple[Job | None, int]]
    #: Of a chunk that was read again: the ids of all its jobs, "" where they are not known.
    ids: Sequence[str] = ()
    #: When they were leased, 0.0 if that is not known.
    leased: float = 0.0


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


class Expire(NamedTuple):
    """End up to ``limit`` waiting jobs that have expired. Verdict: (jobs, next expiry).

    That is up to the wall time ``now + ahead``. The jobs, without bodies, are as they were; they
    keep their outcome for ``ttl`` seconds. The next expiry, a wall time, is that one where the
    limit was reached, or None where no other job has one.
    """

    now: float
    ttl: float
    #: Numbers of the jobs that are left alone: they are leased.
    keep: Container[int]
    limit: int
    #: Seconds by which wall time is ahead of store time.
    ahead: float = 0.0


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
    """Write what is known of suspects, over what was written before. Verdict: None.

    Of jobs that are not there any more nothing is written, and what was is forgotten when the store
    is opened.
    """

    rows: Sequence[SuspectRow]
    #: Numbers of jobs of which nothing is to be kept.
    gone: Sequence[int] = ()
    #: Jobs whose deaths changed without a `Requeue`: number and deaths.
    deaths: Sequence[tuple[int, int]] = ()


class Promote(NamedTuple):
    """Make up to ``limit`` delayed jobs queued that are due. Verdict: (jobs, next due).

    No more than one job after their bodies exceed ``max_bytes``. A job with an ``eta`` is due when
    wall time, ``now + ahead``, has come that far, any other one at its ``due``. Of those with an
    eta ``due`` and rank are moved to the store time at which they became ready: that of their eta,
    but not before ``since`` and not after ``now``. The next due is a store time.
    """

    now: float
    limit: int
    max_bytes: int = 32 * 1024 * 1024
    #: Seconds by which wall time is ahead of store time, and the store time since which it is.
    ahead: float = 0.0
    since: float = 0.0


class KeepTime(NamedTuple):
    """Write the clocks of the store with this commit. Verdict: None.

    A store does it by itself with every commit that comes `eventmq.timekeeping.SAVE_EVERY` after
    the last time.
    """
