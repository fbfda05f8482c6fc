"""Chunks that were assigned to the slots of a pool, and the outcomes of their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.interfaces import JobsEnded
from eventmq.wire.batches import decode_chunk, encode_outcomes

if TYPE_CHECKING:
    from eventmq.execution.executor import Executor
    from eventmq.execution.routes import Route
    from eventmq.wire.batches import ChunkIndex, OutcomeRow

__all__ = ["GivenChunk", "Outcomes", "answered"]


class GivenChunk:
    """A chunk as it came.

    Attributes:
        index: What it says about its jobs, once it was read.
        routes: How its jobs are run, by template.
    """

    __slots__ = ("_read", "body", "count", "number", "routes")

    def __init__(self, number: int, body: bytes, count: int) -> None:
        self.number = number
        self.body = body
        self.count = count
        self._read: ChunkIndex | None = None
        self.routes: list[Route] = []

    def read(self, executor: Executor) -> ChunkIndex:
        """Return what it says about its jobs; find their routes at the first call."""
        if self._read is None:
            self._read = decode_chunk(self.body)
            self.routes = executor.routes(self._read.queue, self._read.templates)
        return self._read

    @property
    def index(self) -> ChunkIndex:
        """What it says about its jobs."""
        assert self._read is not None  # noqa: S101 - read before its first job runs
        return self._read


class Outcomes:
    """Outcomes by chunk, in the order in which they came. Whoever shares it with threads locks."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, list[OutcomeRow]] = {}

    def add(self, chunk: int, row: OutcomeRow) -> None:
        """Keep an outcome."""
        rows = self._rows.get(chunk)
        if rows is None:
            self._rows[chunk] = [row]
        else:
            rows.append(row)

    def take(self) -> dict[int, list[OutcomeRow]]:
        """Return what is there, and forget it."""
        rows, self._rows = self._rows, {}
        return rows


def answered(slot: int, chunk: int, rows: list[OutcomeRow], *, ordered: bool = True) -> JobsEnded:
    """Return the event that tells of outcomes of one chunk.

    Args:
        slot: That ran them.
        chunk: Its number.
        rows: The outcomes.
        ordered: They are the next ones of the chunk, in their order.
    """
    positions = () if ordered else tuple([row.position for row in rows])
    run_time = sum([row.run_time for row in rows])
    return JobsEnded(slot, chunk, len(rows), run_time, encode_outcomes(rows), positions)
