"""A job under way in the asyncio pool: in the event loop, or in a thread beside it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from eventmq.interfaces import Progressed, Running, Streamed

if TYPE_CHECKING:
    import asyncio

    from eventmq.plugins.pools.given import GivenChunk
    from eventmq.plugins.pools.partsink import PartSink
    from eventmq.worker.execution import Executor
    from eventmq.worker.partflow import Batch
    from eventmq.worker.stopsign import StopSign

__all__ = ["Run"]


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
        sink: Takes its parts and its progress, if it has any.
    """

    __slots__ = (
        "cancelled", "chunk", "executor", "lost", "lost_at", "over", "position", "since", "sink",
        "slot", "stop", "task",
    )  # fmt: skip

    def __init__(self, slot: int, chunk: GivenChunk, position: int) -> None:
        self.slot = slot
        self.chunk = chunk
        self.position = position
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self.executor: Executor | None = None
        self.stop: StopSign | None = None
        self.sink: PartSink | None = None
        self.lost = self.over = self.cancelled = False
        self.lost_at = 0.0

    def begin(self, executor: Executor) -> bool:
        """Take note that a thread runs it now; say whether it is to run at all."""
        if self.lost:
            self.over = True
            return False
        self.executor = executor
        self.sink = cast("PartSink", executor.sink)
        self.since = time.monotonic()
        executor.stop.requested = self.cancelled
        return True

    @property
    def place(self) -> tuple[int, int]:
        """Chunk and position."""
        return self.chunk.number, self.position

    def parts(self, batch: Batch) -> Streamed:
        """Return the event of a batch of its parts."""
        return Streamed(self.slot, *self.place, batch.first, batch.parts, batch.body)

    def progress(self, body: bytes) -> Progressed:
        """Return the event of its progress."""
        return Progressed(self.slot, *self.place, body)

    def is_job(self, chunk: int, position: int) -> bool:
        """Say whether it is that job."""
        return self.position == position and self.chunk.number == chunk

    def running(self) -> Running | None:
        """Return what runs, None while it waits for a thread."""
        return Running(self.chunk.number, self.position, self.since) if self.since else None
