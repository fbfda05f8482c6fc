"""A slot of the asyncio pool: what it was given, what it runs, and what it has answered."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from eventmq.interfaces import Answered, Running
from eventmq.wire.bulk import encode_outcomes

if TYPE_CHECKING:
    import asyncio

    from eventmq.wire.bulk import ChunkEntry, ChunkIndex, OutcomeRow
    from eventmq.worker.execution import Executor
    from eventmq.worker.routes import Route
    from eventmq.worker.stopsign import StopSign

__all__ = ["LoopChunk", "LoopSlot", "Run"]


class LoopChunk:
    """A chunk as it came; its index is read in the thread of the loop."""

    __slots__ = ("body", "count", "number", "read", "routes")

    def __init__(self, number: int, body: bytes, count: int) -> None:
        self.number = number
        self.body = body
        self.count = count
        self.read: ChunkIndex | None = None
        self.routes: list[Route] = []

    @property
    def index(self) -> ChunkIndex:
        """What it says about its jobs."""
        assert self.read is not None  # noqa: S101 - read before its first job runs
        return self.read


class Run:
    """One job under way.

    Attributes:
        since: Monotonic time of its start, 0.0 while it waits for a thread.
        task: In which its coroutine runs.
        executor: Of the thread that runs it.
        stop: Of its coroutine.
        lost: Nobody wants its outcome any more.
        lost_at: Since when.
        over: It has ended.
        cancelled: It was cancelled.
    """

    __slots__ = (
        "cancelled", "chunk", "executor", "lost", "lost_at", "over", "position", "since", "slot",
        "stop", "task",
    )  # fmt: skip

    def __init__(self, slot: LoopSlot, chunk: LoopChunk, position: int) -> None:
        self.slot = slot
        self.chunk = chunk
        self.position = position
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self.executor: Executor | None = None
        self.stop: StopSign | None = None
        self.lost = self.over = self.cancelled = False
        self.lost_at = 0.0

    def begin(self, executor: Executor) -> bool:
        """Take note that a thread runs it now; say whether it is to run at all."""
        if self.lost:
            self.over = True
            return False
        self.executor = executor
        self.since = time.monotonic()
        executor.stop.requested = self.cancelled
        return True

    def is_job(self, chunk: int, position: int) -> bool:
        """Say whether it is that job."""
        return (self.chunk.number, self.position) == (chunk, position)

    @property
    def entry(self) -> ChunkEntry:
        """What the chunk says about the job."""
        return self.chunk.index.entries[self.position]

    @property
    def payload(self) -> bytes:
        """The job's arguments, encoded."""
        return self.chunk.index.payload(self.chunk.body, self.entry)


class LoopSlot:
    """A slot, until its job is given up; then another takes its number.

    Whoever takes a job out of the deque has it: the loop takes the first, `take_back` the last.
    """

    __slots__ = ("jobs", "number", "rows", "run")

    def __init__(self, number: int) -> None:
        self.number = number
        self.jobs: deque[tuple[LoopChunk, int]] = deque()
        self.run: Run | None = None
        self.rows: list[tuple[int, OutcomeRow]] = []

    def take_back(self) -> int:
        """Withdraw what has not started; return how many jobs."""
        taken = 0
        try:
            while True:
                self.jobs.pop()
                taken += 1
        except IndexError:
            return taken

    def running(self) -> Running | None:
        """Return what it runs."""
        run = self.run
        if run is None or not run.since:
            return None
        return Running(run.chunk.number, run.position, run.since)

    def answers(self) -> list[Answered]:
        """Return what has finished since the last call."""
        rows = self.rows[:]
        del self.rows[: len(rows)]
        by_chunk: dict[int, list[OutcomeRow]] = {}
        for chunk, row in rows:
            by_chunk.setdefault(chunk, []).append(row)
        return [
            Answered(
                self.number, chunk, len(group), sum(r.ran for r in group), encode_outcomes(group)
            )
            for chunk, group in by_chunk.items()
        ]
