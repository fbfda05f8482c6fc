"""What slots in this process were given, and what they have answered.

A chunk comes as bytes; the thread that runs its first job reads its index. Outcomes are gathered
until the job manager asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.interfaces import Answered
from eventmq.wire.bulk import decode_chunk, encode_outcomes

if TYPE_CHECKING:
    from eventmq.wire.bulk import ChunkIndex, OutcomeRow
    from eventmq.worker.execution import Executor
    from eventmq.worker.routes import Route

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


def answered(slot: int, chunk: int, rows: list[OutcomeRow], *, ordered: bool = True) -> Answered:
    """Return the event that tells of outcomes of one chunk.

    Args:
        slot: That ran them.
        chunk: Its number.
        rows: The outcomes.
        ordered: They are the next ones of the chunk, in their order.
    """
    positions = () if ordered else tuple([row.position for row in rows])
    ran = sum([row.ran for row in rows])
    return Answered(slot, chunk, len(rows), ran, encode_outcomes(rows), positions)
