"""What a store has when it is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from eventmq.timekeeping import Timekeeper

if TYPE_CHECKING:
    from eventmq.store.writes import BulkOperation, Chunk, LimitRow, SubqueueKey, SuspectRow

__all__ = ["QueueCounts", "Recovered", "SubqueueHead"]


@dataclass(slots=True)
class QueueCounts:
    """What the store knows of a queue: how many jobs it has (``waiting`` includes leased ones)."""

    waiting: int = 0
    delayed: int = 0
    failed: int = 0
    paused: bool = False
    blocked: int = 0


class SubqueueHead(NamedTuple):
    """A subqueue, and where the first of its queued jobs stands."""

    queue: str
    subqueue: SubqueueKey
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
        next_ready_at: Store time of the first delayed job, or None.
        next_expiry: Guarded wall time of the first expiry of a job, or None.
        bulk_operations: The records that are kept, oldest first.
        subqueues: Those with queued jobs.
        limiters: The token buckets that may not be full yet.
        next_event: Number of the next event.
        graphs: Whether there are graphs that have not ended.
        next_deadline: Store time of the first deadline of a part of one, or None.
        suspects: Jobs that may have killed a process, with their queues and ids.
        keeper: The time of the store. The store advances it in its commits, its caller may
            do so at any time in the same thread.
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
