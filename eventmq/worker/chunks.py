"""Held chunks: which chunks a job manager holds, in which slot each is, and what was answered."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import SlotDied
    from eventmq.wire.batches import ChunkIndex

__all__ = ["HeldChunk", "HeldChunks", "SharedHeldChunks"]


class HeldChunk:
    """A chunk from its arrival until the broker has acknowledged its last answer.

    Attributes:
        number: Number of the chunk in the session.
        message: Id of the REQUEST that brought it.
        index: Ids, deliveries and limits of its jobs.
        slot: The slot that runs it.
        next: First position that was not answered.
        end: Position after the last one that its slot has: from here on jobs were handed back.
        unacked: Replies that the broker has not acknowledged.
        open: Positions without answer, of a chunk whose jobs end in any order.
        timed: Whether one of its jobs has a time limit.
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


class HeldChunks:
    """The chunks that one session holds. A slot runs its chunks in the order of `add`.

    Attributes:
        received: Highest chunk number that was received.
        chunks: The held chunks by number.
        jobs: Per slot, jobs that were assigned to it and are not answered.
    """

    __slots__ = ("_queues", "chunks", "jobs", "received")

    def __init__(self, slots: int) -> None:
        self.received = 0
        self.chunks: dict[int, HeldChunk] = {}
        self.jobs = [0] * slots
        self._queues: list[deque[HeldChunk]] = [deque() for _ in range(slots)]

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of the held chunks."""
        return tuple(sorted(self.chunks))

    def hold(self, chunk: HeldChunk) -> None:
        """Hold a chunk that no slot has got yet."""
        self.chunks[chunk.number] = chunk

    def give_up(self, chunk: HeldChunk) -> None:
        """Mark a held chunk that no slot will get: none of its jobs is open any more."""
        chunk.end = chunk.next

    def add(self, chunk: HeldChunk) -> None:
        """Assign a chunk to its slot."""
        self.chunks[chunk.number] = chunk
        self._queues[chunk.slot].append(chunk)
        self.jobs[chunk.slot] += chunk.end

    def answer(
        self, slot: int, number: int, count: int, positions: Sequence[int]
    ) -> HeldChunk | None:
        """Record ``count`` answers of a slot; return the chunk, None if the slot has no such one.

        Args:
            slot: The slot that answers.
            number: Number of the chunk.
            count: How many of its jobs were answered: the next ones.
            positions: Which jobs these are, where they end in any order.
        """
        chunk = self.chunks.get(number)
        if chunk is None or chunk.slot != slot or chunk.next + count > chunk.end:
            return None
        chunk.next += count
        self.jobs[slot] -= count
        self._close(slot)
        return chunk

    def withdraw(self, slot: int, count: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the last ``count`` jobs of a slot; return them by chunk, the last chunk first."""
        withdrawn: list[tuple[HeldChunk, Sequence[int]]] = []
        for chunk in reversed(self._queues[slot]):
            part = min(count, chunk.end - chunk.next)
            if part:
                withdrawn.append((chunk, range(chunk.end - part, chunk.end)))
                chunk.end -= part
                self.jobs[slot] -= part
                count -= part
        self._close(slot)
        return withdrawn

    def withdraw_all(self, slot: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove all jobs of a slot; return them by chunk, the last chunk first."""
        return self.withdraw(slot, self.jobs[slot])

    def started(
        self, withdrawn: Sequence[tuple[HeldChunk, Sequence[int]]]
    ) -> list[tuple[HeldChunk, int]]:
        """Return which job that `withdraw_all` removed had started: the next to be answered."""
        return [(chunk, positions[0]) for chunk, positions in withdrawn[-1:]]

    def remove_lost(self, event: SlotDied) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the jobs that were lost with a slot, and return them."""
        return self.withdraw_all(event.slot)

    def release(self, chunk: HeldChunk) -> None:
        """Forget a chunk if none of its jobs is open and all its replies are acknowledged."""
        if self._is_done(chunk) and not chunk.unacked:
            self.chunks.pop(chunk.number, None)

    def find(self, job: str, delivery: int) -> HeldChunk | None:
        """Return the chunk of an unanswered delivery that is with a slot, None if there is none."""
        for chunk in chain.from_iterable(self._queues):
            entries = chunk.index.entries
            for position in self.open_positions(chunk):
                if entries[position].id == job and entries[position].delivery == delivery:
                    return chunk
        return None

    def is_open(self, slot: int, number: int, position: int) -> bool:
        """Return whether a slot still has to answer a job."""
        chunk = self.chunks.get(number)
        return chunk is not None and chunk.slot == slot and position in self.open_positions(chunk)

    def open_positions(self, chunk: HeldChunk) -> Sequence[int]:
        """Return the positions of a chunk that are not answered and with its slot."""
        return range(chunk.next, chunk.end)

    def _is_done(self, chunk: HeldChunk) -> bool:
        return chunk.next == chunk.end

    def _close(self, slot: int) -> None:
        """Remove the chunks from a slot's queue that have nothing left to run."""
        queue = self._queues[slot]
        while queue and queue[0].next == queue[0].end:
            queue.popleft()
        while queue and queue[-1].next == queue[-1].end:
            queue.pop()


class SharedHeldChunks(HeldChunks):
    """Held chunks that slots share: jobs end in any order, slot 0 stands for all.

    Attributes:
        timed: How many of the chunks have jobs with a time limit.
    """

    __slots__ = ("timed",)

    def __init__(self) -> None:
        super().__init__(1)
        self.timed = 0

    def add(self, chunk: HeldChunk) -> None:
        """Assign a chunk to the slots."""
        chunk.open = set(range(chunk.end))
        chunk.timed = any(entry.timeout for entry in chunk.index.entries)
        self.timed += chunk.timed
        super().add(chunk)

    def answer(
        self, slot: int, number: int, count: int, positions: Sequence[int]
    ) -> HeldChunk | None:
        """Record answers; return the chunk, None if one of the jobs is not open."""
        chunk = self.chunks.get(number)
        if chunk is None or not chunk.open.issuperset(positions):
            return None
        chunk.open.difference_update(positions)
        self.jobs[0] -= count
        self._close(0)
        return chunk

    def withdraw(self, slot: int, count: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the last ``count`` jobs; return them by chunk, the last chunk first."""
        withdrawn: list[tuple[HeldChunk, Sequence[int]]] = []
        for chunk in reversed(self._queues[0]):
            part = min(count, chunk.end)
            if part:
                positions = range(chunk.end - part, chunk.end)
                chunk.open.difference_update(positions)
                withdrawn.append((chunk, positions))
                chunk.end -= part
                self.jobs[0] -= part
                count -= part
        self._close(0)
        return withdrawn

    def started(
        self, withdrawn: Sequence[tuple[HeldChunk, Sequence[int]]]
    ) -> list[tuple[HeldChunk, int]]:
        """Return all jobs that `withdraw_all` removed, the oldest first: each may have started."""
        return [
            (chunk, position) for chunk, positions in reversed(withdrawn) for position in positions
        ]

    def withdraw_all(self, slot: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove all jobs; return them by chunk, the last chunk first."""
        withdrawn: list[tuple[HeldChunk, Sequence[int]]] = [
            (chunk, sorted(chunk.open)) for chunk in reversed(self._queues[0]) if chunk.open
        ]
        for chunk, _ in withdrawn:
            chunk.open.clear()
        self.jobs[0] = 0
        self._close(0)
        return withdrawn

    def remove_lost(self, event: SlotDied) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the job that was lost with a slot, and return it."""
        chunk = self.answer(0, event.chunk, 1, (event.position,))
        return [] if chunk is None else [(chunk, (event.position,))]

    def is_open(self, slot: int, number: int, position: int) -> bool:
        """Return whether a job is still to be answered."""
        chunk = self.chunks.get(number)
        return chunk is not None and position in chunk.open

    def open_positions(self, chunk: HeldChunk) -> Sequence[int]:
        """Return the positions of a chunk that are still to be answered."""
        return sorted(chunk.open)

    def _is_done(self, chunk: HeldChunk) -> bool:
        return not chunk.open

    def _close(self, slot: int) -> None:
        queue = self._queues[0]
        for chunk in [chunk for chunk in queue if not chunk.open]:
            queue.remove(chunk)
            self.timed -= chunk.timed
