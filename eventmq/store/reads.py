"""The writes that read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.job import JobRecord, JobState
    from eventmq.store.writes import SubqueueKey

__all__ = ["FindJobs", "History", "JobRow", "ListJobs", "ReadQueued"]


class ReadQueued(NamedTuple):
    """Read the queued jobs of a subqueue that rank after (rank, seq).

    Result: (jobs in order, whether more). At most ``limit`` jobs, and no more after their bodies
    exceed ``max_bytes``.
    """

    queue: str
    subqueue: SubqueueKey
    after: tuple[int, int]
    limit: int
    max_bytes: int


class JobRow(NamedTuple):
    """What is known of a job.

    The body is there while it is unfinished or failed, the other fields as in `Finished` once it
    has ended. ``result`` is None when it is not kept any more.
    """

    job: JobRecord
    at: float = 0.0
    content_type: str = ""
    result: bytes | None = None
    started: float = 0.0
    run_time: float = 0.0
    worker: str = ""
    #: There is a result that was not read: see `FindJobs`.
    unread: bool = False


class FindJobs(NamedTuple):
    """Look jobs up. Result: {id: JobRow} of those known.

    With ``room`` bodies are not read, nor are all results of jobs that have succeeded: in the order
    of the ids as long as what was read is less than ``room`` bytes. Those of at most 4,096 bytes do
    not count and are read in any case. Of the others `JobRow.unread` is true.
    """

    ids: Sequence[str]
    room: int | None = None


class ListJobs(NamedTuple):
    """Read up to ``limit`` jobs by filters, without their bodies, the newest (largest id) first.

    Result: (list of JobRow, next cursor or "").
    """

    state: JobState | None
    queue: str | None
    task: str | None
    cursor: str
    limit: int


class History(NamedTuple):
    """Read the failed attempts of a job. Result: list of Attempt, the oldest first.

    The last one of a job that has failed for good is not among them: `JobRow` has it.
    """

    id: str
