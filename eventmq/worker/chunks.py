"""Which chunks a job manager holds, where they run, and how far they are."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import SlotDied
    from eventmq.wire.batches import ChunkIndex

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
        open: Positions without answer, of a chunk whose jobs end in any order.
        timed: One of these has a limit.
    """

    __slots__ = (
        "end", "index", "message", "next", "number", "open", "slot", "timed", "unacked",
    )  # fmt: skip

    def __init__(self, number: int, message: str, index: ChunkIndex, slot: int) -> None:
        self.number = number
        self.message = message
        self.index = index
        self.slot = slot
        self.next = 0
        self.end = len(index.entries)
        self.unacked = 0
        self.open: set[int] = set()
        self.timed = False


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

    def hold(self, chunk: HeldChunk) -> None:
        """Note that a chunk is here which no slot was given yet."""
        self.chunks[chunk.number] = chunk

    def give_up(self, chunk: HeldChunk) -> None:
        """Note that no slot will be given a chunk that is here."""
        chunk.end = chunk.next

    def add(self, chunk: HeldChunk) -> None:
        """Note that a slot was given a chunk."""
        self.chunks[chunk.number] = chunk
        self._queues[chunk.slot].append(chunk)
        self.jobs[chunk.slot] += chunk.end

    def answer(
        self, slot: int, number: int, count: int, positions: Sequence[int]
    ) -> HeldChunk | None:
        """Note ``count`` answers of a slot; return the chunk, None if it has no such open one.

        Args:
            slot: That answers.
            number: Of the chunk.
            count: How many jobs of it, the next ones.
            positions: Which, where they end in any order.
        """
        chunk = self.chunks.get(number)
        if chunk is None or chunk.slot != slot or chunk.next + count > chunk.end:
            return None
        chunk.next += count
        self.jobs[slot] -= count
        self._close(slot)
        return chunk

    def take(self, slot: int, count: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Note that the last ``count`` jobs of a slot were withdrawn; return which those are."""
        taken: list[tuple[HeldChunk, Sequence[int]]] = []
        for chunk in reversed(self._queues[slot]):
            part = min(count, chunk.end - chunk.next)
            if part:
                taken.append((chunk, range(chunk.end - part, chunk.end)))
                chunk.end -= part
                self.jobs[slot] -= part
                count -= part
        self._close(slot)
        return taken

    def take_all(self, slot: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Note that a slot has lost everything; return what that is."""
        return self.take(slot, self.jobs[slot])

    def started(
        self, taken: Sequence[tuple[HeldChunk, Sequence[int]]]
    ) -> list[tuple[HeldChunk, int]]:
        """Return which of what `take_all` gave of a slot was next to be answered."""
        return [(chunk, positions[0]) for chunk, positions in taken[-1:]]

    def lose(self, event: SlotDied) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Note what a slot has lost, and return it."""
        return self.take_all(event.slot)

    def settle(self, chunk: HeldChunk) -> None:
        """Forget a chunk if nothing of it is open."""
        if self._is_done(chunk) and not chunk.unacked:
            self.chunks.pop(chunk.number, None)

    def find(self, job: str, delivery: int) -> HeldChunk | None:
        """Return the chunk in which a slot has a delivery of a job that is not answered."""
        for chunk in chain.from_iterable(self._queues):
            entries = chunk.index.entries
            for position in self.open(chunk):
                if entries[position].id == job and entries[position].delivery == delivery:
                    return chunk
        return None

    def is_open(self, slot: int, number: int, position: int) -> bool:
        """Say whether a slot still has to answer for a job."""
        chunk = self.chunks.get(number)
        return chunk is not None and chunk.slot == slot and position in self.open(chunk)

    def open(self, chunk: HeldChunk) -> Sequence[int]:
        """Return the positions of a chunk that are with its slot."""
        return range(chunk.next, chunk.end)

    def _is_done(self, chunk: HeldChunk) -> bool:
        return chunk.next == chunk.end

    def _close(self, slot: int) -> None:
        """Remove from the slot's queue what has nothing left to run."""
        queue = self._queues[slot]
        while queue and queue[0].next == queue[0].end:
            queue.popleft()
        while queue and queue[-1].next == queue[-1].end:
            queue.pop()
