"""Assigned chunks of a pool in the job manager's process, and the outcomes of their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.interfaces import JobsEnded
from eventmq.wire.batches import decode_chunk, encode_outcomes

if TYPE_CHECKING:
    from eventmq.execution.executor import Executor
    from eventmq.execution.routes import Route
    from eventmq.wire.batches import ChunkIndex, OutcomeRow

__all__ = ["AssignedChunk", "PendingOutcomes", "jobs_ended"]


class AssignedChunk:
    """A chunk that was assigned to a slot; its index is decoded when its first job starts.

    Attributes:
        index: Ids, deliveries and payloads of its jobs, once it was decoded.
        routes: Routes of its jobs, by template.
    """

    __slots__ = ("_read", "body", "count", "number", "routes")

    def __init__(self, number: int, body: bytes, count: int) -> None:
        self.number = number
        self.body = body
        self.count = count
        self._read: ChunkIndex | None = None
        self.routes: list[Route] = []

    def read(self, executor: Executor) -> ChunkIndex:
        """Return the index of the chunk; the first call decodes it and makes the routes."""
        if self._read is None:
            self._read = decode_chunk(self.body)
            self.routes = executor.routes(self._read.queue, self._read.templates)
        return self._read

    @property
    def index(self) -> ChunkIndex:
        """Index of the chunk."""
        assert self._read is not None  # noqa: S101 - read before its first job runs
        return self._read


class PendingOutcomes:
    """Outcomes by chunk, in their order, until the manager polls. Threads share it under a lock."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, list[OutcomeRow]] = {}

    def add(self, chunk: int, row: OutcomeRow) -> None:
        """Add an outcome."""
        rows = self._rows.get(chunk)
        if rows is None:
            self._rows[chunk] = [row]
        else:
            rows.append(row)

    def take(self) -> dict[int, list[OutcomeRow]]:
        """Return all outcomes, and forget them."""
        rows, self._rows = self._rows, {}
        return rows


def jobs_ended(slot: int, chunk: int, rows: list[OutcomeRow], *, ordered: bool = True) -> JobsEnded:
    """Return the pool event for outcomes of one chunk.

    Args:
        slot: The slot that ran the jobs.
        chunk: Number of the chunk.
        rows: The outcomes.
        ordered: Whether these are the next jobs of the chunk, in their order.
    """
    positions = () if ordered else tuple([row.position for row in rows])
    run_time = sum([row.run_time for row in rows])
    return JobsEnded(slot, chunk, len(rows), run_time, encode_outcomes(rows), positions)
