"""Reads of a queue store, and their results.

A read is part of a commit, like a write (`eventmq.store.Write`): it sees the writes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.job import JobRecord, JobState
    from eventmq.store.writes import Operation, ScheduleRow, SubqueueKey

__all__ = [
    "CountJobs",
    "EventLogHead",
    "EventRow",
    "FailureGroup",
    "FindJobs",
    "FindLineage",
    "GraphPage",
    "GraphRow",
    "GroupFailures",
    "History",
    "InputsPage",
    "JobPage",
    "JobRow",
    "KeptLog",
    "Lineage",
    "ListFailed",
    "ListGraph",
    "ListJobs",
    "LoadSchedules",
    "ReadEvents",
    "ReadInputs",
    "ReadLogs",
    "ReadQueued",
    "ScheduleRows",
    "StoreReader",
]


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
    """A stored job, with its outcome.

    An unfinished or failed job has its body; the other fields are set when it has ended, as in
    `Finished`. ``result`` is None if it is no longer kept. Other ended jobs have their headers and
    body only if the header ``keep-arguments`` asked for it, and only as a result of `FindJobs`
    without ``max_bytes``.
    """

    job: JobRecord
    at: float = 0.0
    content_type: str = ""
    result: bytes | None = None
    started: float = 0.0
    run_time: float = 0.0
    worker: str = ""
    #: Whether there is a result that was not read; see `FindJobs`.
    unread: bool = False


class FindJobs(NamedTuple):
    """Look jobs up. Result: {id: JobRow} of the known ones.

    With ``max_bytes`` no bodies are read, and results of succeeded jobs are read, in the order of
    the ids, only up to that number of bytes. Results of at most 4,096 bytes do not count and are
    always read. `JobRow.unread` marks results that were not read.
    """

    ids: Sequence[str]
    max_bytes: int | None = None


class JobPage(NamedTuple):
    """Page of a listing that examines a limited number of rows for a limited time."""

    rows: list[JobRow]
    #: Where the next page begins, "" if there is none.
    cursor: str
    #: Creation, for failed jobs the failure, of the last examined job, in store time; 0.0 for none.
    searched_to: float
    #: Number of examined rows.
    examined: int


class ListJobs(NamedTuple):
    """Read up to ``limit`` jobs by filters, without their bodies, the newest (largest id) first.

    Result: JobPage. The jobs that run have the state ``queued`` here. ``key`` is a fairness key,
    which only unfinished and failed jobs have. ``since`` and ``until`` are store times of the
    creation, 0.0 for no limit.
    """

    state: JobState | None
    queue: str | None
    task: str | None
    cursor: str
    limit: int
    key: str | None = None
    since: float = 0.0
    until: float = 0.0


class History(NamedTuple):
    """Read the failed attempts of a job. Result: list of Attempt, the oldest first.

    The last attempt of a job that has failed for good is not included; `JobRow` has it.
    """

    id: str


class KeptLog(NamedTuple):
    """Kept log of an attempt: lines in UTF-8, empty if it made room for later attempts."""

    attempt: int
    #: Store time at which the broker received it.
    at: float
    text: bytes


class ReadLogs(NamedTuple):
    """Read the kept log of a job. Result: list of KeptLog, the first attempt first."""

    id: str


class ListFailed(NamedTuple):
    """Read up to ``limit`` failed jobs by filters, without bodies, the last failed first.

    Result: JobPage. ``operation`` has the filters. ``text`` is contained, in any case, in the type,
    message or traceback of the error.
    """

    operation: Operation
    cursor: str
    limit: int
    text: str = ""


class CountJobs(NamedTuple):
    """Count the jobs that an operation would apply to. Result: (count, whether it is complete).

    If it is not complete, there are at least so many.
    """

    operation: Operation
    #: Numbers of the jobs that are not counted.
    excluded: frozenset[int] = frozenset()


class FailureGroup(NamedTuple):
    """Failed jobs of one task with one type of error, among the examined rows."""

    task: str
    error: str
    size: int
    #: Queue -> number of its jobs.
    queues: dict[str, int]
    #: Store times of the first and last failure.
    first: float
    last: float
    #: Id and encoded error of the job that failed last; the error is b"" if it was not read.
    sample: str
    result: bytes


class GroupFailures(NamedTuple):
    """Group failed jobs by task and type of the error, the last failed first.

    Result: (list of FailureGroup, next cursor or "", store time of the last examined failure).
    """

    operation: Operation
    cursor: str


class Lineage(NamedTuple):
    """Root and parent of a job in a graph: ids of the graph and of the first job that it waits for.

    The parent of a failure handler is the first job whose failure it handles; "" for none.
    """

    root: str
    parent: str


class FindLineage(NamedTuple):
    """Look up the lineage of a job. Result: Lineage, or None for a job of no known graph."""

    id: str


class GraphRow(NamedTuple):
    """A job of a graph. ``input`` and ``output`` are numbers of joins, 0 for none."""

    node: int
    input: int
    output: int
    #: Whether it is a failure handler.
    handler: bool
    job_row: JobRow


class GraphPage(NamedTuple):
    """Some jobs of a graph by node index; ``size`` is the number of all its jobs."""

    root: str
    size: int
    rows: list[GraphRow]


class ListGraph(NamedTuple):
    """Read jobs of the graph of a job, from a node index on. Result: GraphPage, or None."""

    id: str
    first: int
    limit: int


class ReadInputs(NamedTuple):
    """Read the input of a job whose body has ids instead of results, in pages.

    Result: InputsPage, or None if no input is kept for the job.
    """

    id: str
    #: 0, then `InputsPage.next` of the page before.
    cursor: int
    #: Limit of the bytes of results in a page; its last result may exceed it.
    max_bytes: int


class InputsPage(NamedTuple):
    """Page of results (id, content type, bytes), in order; ``next`` is 0 after the last page."""

    rows: list[tuple[str, str, bytes]]
    next: int


class ScheduleRows(NamedTuple):
    """Page of schedules, sent with these names. The next page starts at ``revision``."""

    rows: Sequence[ScheduleRow]
    gone: Sequence[str]
    revision: int
    #: Revision of the whole table.
    head: int
    #: Whether it is a full read, as requested or because older removals are no longer known.
    whole: bool
    more: bool


class LoadSchedules(NamedTuple):
    """Read the changes after a revision, or one schedule. Result: ScheduleRows.

    ``scan``: this continues a full read, which needs no removals.
    """

    after: int = 0
    limit: int = 1000
    name: str | None = None
    source: str | None = None
    scan: bool = False
    max_bytes: int = 4 * 1024 * 1024


class EventRow(NamedTuple):
    """Events of one commit: number of the first, their count, and their bytes."""

    first: int
    events: int
    #: Encoded events, see `eventmq.events`.
    body: bytes


class EventLogHead(NamedTuple):
    """State of the event log, which has the events from number ``first`` up to ``next`` - 1.

    ``journal`` is the id of the journal that reads it, "" for none so far; ``sealed`` is the last
    number that the journal has stored.
    """

    first: int
    next: int
    journal: str = ""
    sealed: int = 0


class ReadEvents(NamedTuple):
    """Read the events after a number, as whole rows.

    At least one row if there is one, then rows up to ``max_bytes``. Result: (list of EventRow,
    EventLogHead).
    """

    after: int
    max_bytes: int


class StoreReader(Protocol):
    """Answers listings beside the commits. One thread."""

    def read(self, query: Any) -> Any:
        """Return the result of a `ListJobs`, `ListFailed`, `CountJobs` or `GroupFailures`.

        It sees every commit that ended before. Any exception refuses the query, and the reader is
        closed.
        """

    def close(self) -> None:
        """Release everything. Idempotent."""
