"""What a broker reads from its queue store, and what the store answers.

A read is an `eventmq.store.Write` of a commit like others: it sees what those before it wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.job import JobRecord, JobState
    from eventmq.store.writes import Operation, ScheduleRow, SubqueueKey

__all__ = [
    "EventLogHead",
    "EventRow",
    "FindJobs",
    "FindLineage",
    "GraphPage",
    "GraphRow",
    "History",
    "InputsPage",
    "JobRow",
    "Lineage",
    "ListFailed",
    "ListGraph",
    "ListJobs",
    "LoadSchedules",
    "ReadEvents",
    "ReadInputs",
    "ReadQueued",
    "ScheduleRows",
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
    """A job as the store has it, with its end.

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

    With ``max_bytes`` no bodies are read, and results of succeeded jobs, in the order of the ids,
    only until they have so many bytes. Results of at most 4,096 bytes do not count and are always
    read; `JobRow.unread` marks those that were not.
    """

    ids: Sequence[str]
    max_bytes: int | None = None


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


class ListFailed(NamedTuple):
    """Read up to ``limit`` failed jobs by filters, without bodies, the last failed first.

    Result: (list of `eventmq.store.JobRow`, next cursor or ""). ``operation`` has the filters.
    """

    operation: Operation
    cursor: str
    limit: int


class Lineage(NamedTuple):
    """Where a job stands in its graph: ids of the graph and of the first job that it waits for.

    Of what is there for failures the second is the first job whose failure it is for; "" for none.
    """

    root: str
    parent: str


class FindLineage(NamedTuple):
    """Look up where a job stands. Result: Lineage, or None for a job of no known graph."""

    id: str


class GraphRow(NamedTuple):
    """A job of a graph. ``input`` and ``output`` are numbers of joins, 0 for none."""

    node: int
    input: int
    output: int
    #: Whether it is there for failures.
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
    """Read results that a job takes and whose ids its body has, in pages.

    Result: InputsPage, or None where nothing is kept for such a job.
    """

    id: str
    #: 0, then `InputsPage.next` of the page before.
    cursor: int
    #: Of the results of a page, beside its last one.
    max_bytes: int


class InputsPage(NamedTuple):
    """Some results: (id, content type, bytes), by place; ``next`` is 0 after the last."""

    rows: list[tuple[str, str, bytes]]
    next: int


class ScheduleRows(NamedTuple):
    """A page of schedules, sent with these names. ``revision`` is where the next page goes on."""

    rows: Sequence[ScheduleRow]
    gone: Sequence[str]
    revision: int
    #: Of the whole table.
    head: int
    #: It begins at nothing, as the caller asked or because older removals are forgotten.
    whole: bool
    more: bool


class LoadSchedules(NamedTuple):
    """Read what changed after a revision, or one schedule. Result: ScheduleRows.

    ``scan`` says that the caller began at nothing and goes on: it misses no removals.
    """

    after: int = 0
    limit: int = 1000
    name: str | None = None
    source: str | None = None
    scan: bool = False
    max_bytes: int = 4 * 1024 * 1024


class EventRow(NamedTuple):
    """The events of one commit: the number of the first, how many, and their bytes."""

    first: int
    events: int
    #: See `eventmq.events.packed`.
    body: bytes


class EventLogHead(NamedTuple):
    """What a store has of events: numbers from ``first`` and before ``next``.

    ``journal`` is the id of the one that reads them, "" for none so far; ``sealed`` is the last
    number that it has safely.
    """

    first: int
    next: int
    journal: str = ""
    sealed: int = 0


class ReadEvents(NamedTuple):
    """Read events that come after a number, as whole rows.

    At least one row if there is one, and no more after ``max_bytes``. Result: (list of EventRow,
    EventLogHead).
    """

    after: int
    max_bytes: int
