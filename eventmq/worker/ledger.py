"""Which chunks a job manager holds, where they run, and how far they are."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.wire.bulk import ChunkIndex

__all__ = ["HeldChunk", "Ledger"]


class HeldChunk:
    """A chunk from its arrival until the broker has acknowledged its last answer.

    Attributes:
        number: Its number in the session.
        message: Id of the message that brought it.
        index: What it says about its jobs.
        slot: Where it runs.
        next: First position that was not answered.
        end: First position of those handed back; what lies between is with the slot.
        unacked: Answers that the broker has not acknowledged.
    """

    __slots__ = ("end", "index", "message", "next", "number", "slot", "unacked")

    def __init__(self, number: int, message: str, index: ChunkIndex, slot: int) -> None:
        self.number = number
        self.message = message
        self.index = index
        self.slot = slot
        self.next = 0
        self.end = len(index.entries)
        self.unacked = 0


class Ledger:
    """The chunks of one session. A slot works off its chunks in the order of `add`.

    Attributes:
        received: Highest chunk number that was received.
        chunks: Number -> chunk, of those held.
        jobs: Per slot, jobs that were given to it and are not answered.
    """

    __slots__ = ("_queues", "chunks", "jobs", "received")

    def __init__(self, slots: int) -> None:
        self.received = 0
        self.chunks: dict[int, HeldChunk] = {}
        self.jobs = [0] * slots
        self._queues: list[deque[HeldChunk]] = [deque() for _ in range(slots)]

    def held(self) -> tuple[int, ...]:
        """Return the numbers of the chunks that are held."""
        return tuple(sorted(self.chunks))

    def add(self, chunk: HeldChunk) -> None:
        """Note that a slot was given a chunk."""
        self.chunks[chunk.number] = chunk
        self._queues[chunk.slot].append(chunk)
        self.jobs[chunk.slot] += chunk.end

    def answer(self, slot: int, number: int, count: int) -> HeldChunk | None:
        """Note ``count`` answers of a slot; return the chunk, None if it has no such open one."""
        chunk = self.chunks.get(number)
        if chunk is None or chunk.slot != slot or chunk.next + count > chunk.end:
            return None
        chunk.next += count
        self.jobs[slot] -= count
        self._close(slot)
        return chunk

    def take(self, slot: int, count: int) -> list[tuple[HeldChunk, range]]:
        """Note that the last ``count`` jobs of a slot were withdrawn; return which those are."""
        taken = []
        for chunk in reversed(self._queues[slot]):
            part = min(count, chunk.end - chunk.next)
            if part:
                taken.append((chunk, range(chunk.end - part, chunk.end)))
                chunk.end -= part
                self.jobs[slot] -= part
                count -= part
        self._close(slot)
        return taken

    def take_all(self, slot: int) -> list[tuple[HeldChunk, range]]:
        """Note that a slot has lost everything; return what that is."""
        return self.take(slot, self.jobs[slot])

    def settle(self, chunk: HeldChunk) -> None:
        """Forget a chunk if nothing of it is open."""
        if chunk.next == chunk.end and not chunk.unacked:
            self.chunks.pop(chunk.number, None)

    def find(self, job: str, delivery: int) -> HeldChunk | None:
        """Return the chunk in which a slot has a delivery of a job that is not answered."""
        for chunk in self._open():
            for entry in chunk.index.entries[chunk.next : chunk.end]:
                if entry.id == job and entry.delivery == delivery:
                    return chunk
        return None

    def _open(self) -> Iterator[HeldChunk]:
        for queue in self._queues:
            yield from queue

    def _close(self, slot: int) -> None:
        """Remove from the slot's queue what has nothing left to run."""
        queue = self._queues[slot]
        while queue and queue[0].next == queue[0].end:
            queue.popleft()
        while queue and queue[-1].next == queue[-1].end:
            queue.pop()
