"""How the slots of a `SharedPool` are used: what is held by all of them together.

The broker counts jobs here, not chunks: it sends what fills the free slots in one message. What is
held beyond the slots is as much as ends within 20 ms, so it waits about so long; where nothing ends
for longer, it goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.worker.ledger import Ledger
from eventmq.worker.lookahead import LONG_JOB, WEIGHT
from eventmq.worker.slots import LOOK, Slots, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventmq.interfaces import Answered, Died, SharedPool
    from eventmq.worker.ledger import HeldChunk

__all__ = ["SharedLedger", "SharedSlots"]

#: Seconds between looks at what runs, while something has a limit.
LOOK_AT_LIMITS = 0.05

#: Jobs at most that are held beyond the slots.
MOST = 2000

#: The number of jobs held is changed when what is right is less or more than so much of it.
TOO_FEW, TOO_MANY = 1.5, 0.5


class SharedLedger(Ledger):
    """Chunks whose jobs end in any order. Slot 0 stands for all.

    Attributes:
        timed: Chunks held with jobs that have a limit.
    """

    __slots__ = ("timed",)

    def __init__(self) -> None:
        super().__init__(1)
        self.timed = 0

    def add(self, chunk: HeldChunk) -> None:
        """Note that the slots were given a chunk."""
        chunk.open = set(range(chunk.end))
        chunk.timed = any(entry.timeout for entry in chunk.index.entries)
        self.timed += chunk.timed
        super().add(chunk)

    def answer(
        self, slot: int, number: int, count: int, positions: Sequence[int]
    ) -> HeldChunk | None:
        """Note answers; return the chunk, None if one of them is not open."""
        chunk = self.chunks.get(number)
        if chunk is None or not chunk.open.issuperset(positions):
            return None
        chunk.open.difference_update(positions)
        self.jobs[0] -= count
        self._close(0)
        return chunk

    def take(self, slot: int, count: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Note that the last ``count`` jobs given were withdrawn; return which those are."""
        taken: list[tuple[HeldChunk, Sequence[int]]] = []
        for chunk in reversed(self._queues[0]):
            part = min(count, chunk.end)
            if part:
                positions = range(chunk.end - part, chunk.end)
                chunk.open.difference_update(positions)
                taken.append((chunk, positions))
                chunk.end -= part
                self.jobs[0] -= part
                count -= part
        self._close(0)
        return taken

    def begun(
        self, taken: Sequence[tuple[HeldChunk, Sequence[int]]]
    ) -> list[tuple[HeldChunk, int]]:
        """Return all of what `take_all` gave, the oldest first: each may have a slot of its own."""
        return [(chunk, place) for chunk, positions in reversed(taken) for place in positions]

    def take_all(self, slot: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Note that everything is lost; return what that is."""
        taken: list[tuple[HeldChunk, Sequence[int]]] = [
            (chunk, sorted(chunk.open)) for chunk in reversed(self._queues[0]) if chunk.open
        ]
        for chunk, _ in taken:
            chunk.open.clear()
        self.jobs[0] = 0
        self._close(0)
        return taken

    def lose(self, event: Died) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Note that a slot has lost its job; return which it is."""
        chunk = self.answer(0, event.chunk, 1, (event.position,))
        return [] if chunk is None else [(chunk, (event.position,))]

    def is_open(self, slot: int, number: int, position: int) -> bool:
        """Say whether a job is still to be answered."""
        chunk = self.chunks.get(number)
        return chunk is not None and position in chunk.open

    def open(self, chunk: HeldChunk) -> Sequence[int]:
        """Return the positions of a chunk that are still to be answered."""
        return sorted(chunk.open)

    def _is_done(self, chunk: HeldChunk) -> bool:
        return not chunk.open

    def _close(self, slot: int) -> None:
        queue = self._queues[0]
        for chunk in [chunk for chunk in queue if not chunk.open]:
            queue.remove(chunk)
            self.timed -= chunk.timed


class SharedSlots(Slots):
    """Of one session."""

    _pool: SharedPool
    _ledger: SharedLedger

    _average: float | None = None
    #: Jobs held beyond the slots.
    _ahead = 0
    #: When something ended last, or began to wait.
    _moved = 0.0
    _looked = 0.0

    @property
    def wanted(self) -> Wanted:
        """What there is room for, in jobs; each may be in a chunk of its own."""
        jobs = self.active + self._ahead
        return Wanted(jobs, jobs)

    @property
    def busy(self) -> int:
        """How many slots have work."""
        return min(self._ledger.jobs[0], self._pool.slots)

    def best(self, now: float) -> int:
        """Return 0: whichever slot is free takes the next job."""
        if not self._waiting:
            self._moved = now
        return 0

    def slot_of(self, chunk: HeldChunk, position: int) -> int | None:
        """Return the slot that has begun a job, None if none has."""
        return self._pool.slot_of(chunk.number, position)

    def answered(self, event: Answered, now: float) -> None:
        """Take note of what jobs took."""
        self._moved = now
        each = max(event.ran / event.count, 1e-6)
        average = self._average
        self._average = each if average is None else average + WEIGHT * (each - average)
        ahead = min(MOST, int(self.active * LONG_JOB / self._average))
        if not TOO_MANY * self._ahead <= ahead <= TOO_FEW * self._ahead:
            self._ahead = ahead

    def died(self, slot: int) -> None:
        """Do nothing: the other jobs go on."""

    def doomed(self, slot: int) -> bool:
        """Say that only the one job is lost."""
        return False

    def may_retire(self) -> bool:
        """Say that one slot less may be used: what runs goes on."""
        return True

    @property
    def _waiting(self) -> bool:
        return self._ledger.jobs[0] > self.active

    def look_due(self) -> float:
        """Return when `look` has something to do."""
        if self._waiting:
            return self._looked + LOOK
        return self._looked + LOOK_AT_LIMITS if self._ledger.timed else float("inf")

    def look(self, now: float) -> Iterator[int]:
        """Yield 0 if what waits has waited too long for something to end."""
        if now < self.look_due():
            return
        self._looked = now
        if self._ledger.timed:
            for slot in range(self._pool.slots):
                if (running := self._pool.running(slot)) is not None:
                    self._overseer.watch(slot, running)
        if self._waiting and now - self._moved > LONG_JOB + (self._average or 0.0):
            self._ahead = 0
            yield 0
