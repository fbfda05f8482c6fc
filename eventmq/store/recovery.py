"""Recovered state, which a queue store returns when it is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from eventmq.store.metrics import JobMetrics
from eventmq.timekeeping import Timekeeper

if TYPE_CHECKING:
    from eventmq.store.writes import BulkOperation, Chunk, LimitRow, SubqueueKey, SuspectRow

__all__ = ["QueueCounts", "Recovered", "SubqueueHead"]


@dataclass(slots=True)
class QueueCounts:
    """Counts of a queue's jobs by state, and whether it is paused; leased jobs are ``queued``."""

    queued: int = 0
    delayed: int = 0
    failed: int = 0
    paused: bool = False
    blocked: int = 0


class SubqueueHead(NamedTuple):
    """A subqueue, with the position of its first queued job."""

    queue: str
    subqueue: SubqueueKey
    #: Rank and number of that job.
    first: tuple[int, int]


@dataclass(slots=True)
class Recovered:
    """State that a store returns when it is opened.

    Attributes:
        store_id: Id of the store, made when it was created.
        epoch: Number of this opening, larger than any before.
        next_seq: Larger than the number of any job.
        counts: Queue -> its counts.
        chunks: Open chunks of earlier epochs, with their jobs.
        next_ready_at: Store time at which the first delayed job becomes ready, or None.
        next_expiry: Guarded wall time of the first expiry of a job, or None.
        bulk_operations: Stored records, the oldest first.
        subqueues: Subqueues with queued jobs.
        limiters: Token buckets that may not be full yet.
        next_event: Number of the next event.
        graphs: Whether there are graphs that have not ended.
        next_deadline: Store time of the first deadline of a part of a graph, or None.
        suspects: Suspects, with their queues and ids.
        keeper: Keeper of store time. The store advances it in commits; the caller may advance it at
            any time, in the same thread.
        events_id: Id of the store in its events, "" for ``store_id``. The store gets a new one when
            numbers of events may have been used twice.
        metrics: Metrics of the jobs; the store counts the events of its commits in them.
    """

    store_id: str
    epoch: int
    next_seq: int = 1
    counts: dict[str, QueueCounts] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    next_ready_at: float | None = None
    next_expiry: float | None = None
    bulk_operations: list[BulkOperation] = field(default_factory=list)
    subqueues: list[SubqueueHead] = field(default_factory=list)
    limiters: list[LimitRow] = field(default_factory=list)
    next_event: int = 1
    graphs: bool = False
    next_deadline: float | None = None
    suspects: list[SuspectRow] = field(default_factory=list)
    keeper: Timekeeper = field(default_factory=Timekeeper)
    events_id: str = ""
    metrics: JobMetrics = field(default_factory=JobMetrics)
