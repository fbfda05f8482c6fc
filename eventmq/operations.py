"""The entries of a commit by which operators do something with many jobs, or with a queue.

They belong to those of `eventmq.entries`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from eventmq.job import Job, JobState

__all__ = [
    "Act",
    "Acted",
    "BeginSweep",
    "ForgetQueues",
    "ListFailed",
    "Operation",
    "Pause",
    "PruneFailed",
    "Pruned",
    "Stamp",
    "Sweep",
    "SweepSlice",
]


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


class Stamp(NamedTuple):
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


class Acted(NamedTuple):
    """Jobs that an action touched: as they were, those retried as they are; perhaps without bodies.

    ``others`` has the states of jobs that it could not be done to; unknown ids are in neither.
    """

    jobs: list[Job]
    others: dict[str, str]


class Act(NamedTuple):
    """Do ``cancel``, ``retry`` or ``drop`` with jobs by id. Verdict: Acted.

    With ``attempts`` it is done only to those whose attempt is the number at the same place: who
    asks twice, or was killed before the answer, does it once.
    """

    action: str
    ids: Sequence[str]
    stamp: Stamp
    attempts: Sequence[int] = ()


class Sweep(NamedTuple):
    """The durable mark of an operation that goes slice by slice over jobs up to a number."""

    id: str
    operation: Operation
    #: Unix time of its begin.
    at: float
    #: Largest number of a job that it touches, and that of the last one that it looked at.
    bound: int
    cursor: int = 0
    #: Jobs that it touched so far.
    touched: int = 0
    done: bool = False


class BeginSweep(NamedTuple):
    """Write the mark of a sweep. Verdict: Sweep, the existing one if the id is there already.

    The marks of the last hundred sweeps that are done are kept.
    """

    sweep: Sweep


class SweepSlice(NamedTuple):
    """Do the next part of a sweep: up to ``limit`` jobs that are not in ``keep``, by number.

    Verdict: (Acted, Sweep as it is now), or (Acted of nothing, None) for an unknown id.
    """

    id: str
    stamp: Stamp
    keep: Collection[int]
    limit: int


class Pause(NamedTuple):
    """Write whether a queue is paused. Verdict: None."""

    queue: str
    paused: bool


class ForgetQueues(NamedTuple):
    """Forget queues that are empty and not paused. Verdict: names of those that are forgotten.

    A queue that is not stored at all counts as forgotten. Its name stays as long as outcomes of its
    jobs are kept; with 100,000 names that stay no other queue is forgotten.
    """

    queues: Sequence[str]
    #: Store time.
    at: float


class ListFailed(NamedTuple):
    """Read up to ``limit`` failed jobs by filters, without bodies, the last failed first.

    Verdict: (list of `eventmq.entries.Found`, next cursor or ""). ``operation`` has the filters.
    """

    operation: Operation
    cursor: str
    limit: int


class Pruned(NamedTuple):
    """How many failed jobs were forgotten, by queue, and what is left of them."""

    queues: dict[str, int]
    #: Whether more must go, and the Unix time at which the oldest one failed that is kept.
    more: bool
    oldest: float | None


class PruneFailed(NamedTuple):
    """Forget up to ``limit`` failed jobs, the oldest first. Verdict: Pruned.

    Those that failed before ``before`` go, and as many more as it takes to have no more than
    ``max_bytes`` of bodies, headers, errors and histories.
    """

    before: float
    max_bytes: int
    limit: int
