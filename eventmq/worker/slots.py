"""How the slots of a pool are used: which gets a chunk, how much is wanted, what goes back.

A slot works off its chunks one after the other, so nothing may wait in it behind a long job. For
pools whose slots share their chunks there is `eventmq.worker.slots`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from eventmq.worker.chunks import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventmq.interfaces import JobsEnded, SharedPool, SlotDied, WorkerPool
    from eventmq.worker.chunks import HeldChunk
    from eventmq.worker.watchdog import Watchdog

__all__ = [
    "LONG_JOB",
    "LOOK",
    "Autoscaler",
    "LookAhead",
    "SharedLedger",
    "SharedSlots",
    "Slots",
    "Wanted",
]


#: Seconds: nothing waits behind a job that runs longer. The broker sizes chunks to as much work.
LONG_JOB = 0.020

#: Seconds: below this the way to the broker and back is long beside a chunk's work.
SHORT_JOB = 0.002

#: Weight of the newest chunk in the average.
WEIGHT = 0.2


class LookAhead:
    """Measures run times and says how many chunks a slot should have."""

    __slots__ = ("_average",)

    def __init__(self) -> None:
        self._average: float | None = None

    def note(self, count: int, run_time: float) -> None:
        """Note that ``count`` jobs ran ``run_time`` seconds together."""
        if not count:
            return
        each = run_time / count
        average = self._average
        self._average = each if average is None else average + WEIGHT * (each - average)

    @property
    def depth(self) -> int:
        """Chunks per slot: 1 while nothing is known and for long jobs, up to 3 for short ones."""
        if self._average is None or self._average >= LONG_JOB:
            return 1
        return 2 if self._average >= SHORT_JOB else 3


#: Seconds between looks at what runs, while something waits behind it.
LOOK = 0.005


class Wanted(NamedTuple):
    """What a worker wants to hold in total: chunks, and jobs where it counts those (else 0)."""

    chunks: int
    jobs: int = 0


class Slots:
    """Of one session.

    Args:
        pool: Says what runs.
        ledger: What is held.
        watchdog: Is told what runs, and knows what is killed.
        active: How many slots are used: the first so many.
    """

    def __init__(self, pool: WorkerPool, ledger: Ledger, watchdog: Watchdog, active: int) -> None:
        self.active = active
        self._pool = pool
        self._ledger = ledger
        self._watchdog = watchdog
        self._look_ahead = LookAhead()
        #: Slots whose job has run longer than `LONG_JOB`.
        self._long: set[int] = set()
        self._look_due = 0.0

    @property
    def wanted(self) -> Wanted:
        """What there is room for: one chunk in a slot with a long job."""
        long = len(self._long)
        return Wanted(long + max(0, self.active - long) * self._look_ahead.depth)

    @property
    def busy(self) -> int:
        """How many slots have work."""
        jobs = self._ledger.jobs
        return len(jobs) - jobs.count(0)

    def best(self, now: float) -> int:
        """Return the slot with the least to do; one with a long job only if all have one."""
        jobs = self._ledger.jobs
        long = self._long
        if self.active < len(jobs):
            jobs = jobs[: self.active]
        if 0 in jobs and (idle := jobs.index(0)) not in long:
            return idle
        return min(range(len(jobs)), key=lambda slot: (slot in long, jobs[slot]))

    def slot_of(self, chunk: HeldChunk, position: int) -> int | None:
        """Return the slot that has started a job, None if none has."""
        return chunk.slot

    def answered(self, event: JobsEnded, now: float) -> None:
        """Take note of what jobs took."""
        self._look_ahead.note(event.count, event.run_time)
        if event.slot in self._long:
            self._look_due = now

    def died(self, slot: int) -> None:
        """Take note that a slot goes on anew."""
        self._long.discard(slot)

    def doomed(self, slot: int) -> bool:
        """Take note that a slot is to be killed; say whether all that it has is lost with it."""
        self._long.add(slot)
        return True

    def may_retire(self) -> bool:
        """Say whether the last of the slots that are used can be given up."""
        return not self._ledger.jobs[self.active - 1]

    # Looking

    def look_due(self) -> float:
        """Return when `look` has something to do, never where nothing can wait."""
        long = self._long
        for slot, jobs in enumerate(self._ledger.jobs):
            if jobs > 1 or (jobs and slot not in long):
                return self._look_due
        return float("inf")

    def look(self, now: float) -> Iterator[int]:
        """Yield the slots in which something waits behind a job that runs long."""
        if now < self._look_due:
            return
        self._look_due = now + LOOK
        for slot, jobs in enumerate(self._ledger.jobs):
            running = self._pool.running(slot) if jobs else None
            if running is not None:
                self._watchdog.watch(slot, running)
            if slot in self._watchdog.killed:  # no new job for it until it is there again
                self._long.add(slot)
            elif running is None or now - running.since <= LONG_JOB:
                self._long.discard(slot)
            else:
                self._long.add(slot)
                if jobs > 1:
                    yield slot


#: Seconds over which busy time is averaged, between two decisions.
WINDOW = 1.0

#: Part of the time that all slots together must be busy before there are more.
FULL = 0.9

#: The same where it is known that jobs wait: between two jobs a slot waits for the next.
BUSY = 0.5

#: Seconds for which slots were not needed before there are fewer.
QUIET = 30.0


class Autoscaler:
    """Decides; pure.

    Args:
        least: Slots that are always there.
        most: Slots at most.

    Attributes:
        size: Slots to use now.
        waiting: Jobs that wait at the broker, None where it does not say.
    """

    __slots__ = (
        "_busy", "_last", "_least", "_most", "_quiet", "_since", "_spent", "size", "waiting",
    )  # fmt: skip

    def __init__(self, least: int, most: int) -> None:
        self.size = least
        self.waiting: int | None = None
        self._least = least
        self._most = most
        self._busy = 0
        self._spent = 0.0
        self._last = self._since = self._quiet = -1.0

    def note(self, now: float, busy: int) -> None:
        """Take note of how many slots are busy from now on, and decide where it is time."""
        if self._last < 0.0:
            self._since = self._quiet = now
        else:
            self._spent += (now - self._last) * self._busy
        self._last, self._busy = now, busy
        if now - self._since >= WINDOW:
            mean = self._spent / (now - self._since)
            self._since, self._spent = now, 0.0
            self._decide(now, mean)

    def _decide(self, now: float, mean: float) -> None:
        full = FULL if self.waiting is None else BUSY
        if mean > full * self.size and self.size < self._most:
            self.size = min(self._most, self.size + self._more())
        needed = math.ceil(mean - (1.0 - FULL)) + 1
        if needed >= self.size or self.size <= self._least:
            self._quiet = now
        elif now - self._quiet >= QUIET:
            self.size -= 1

    def _more(self) -> int:
        """Return how many slots to add where all are busy: one per job that waits, or half."""
        if self.waiting is None:
            return max(1, self.size // 2)
        return min(self.waiting, self.size)


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

    def started(
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

    def lose(self, event: SlotDied) -> list[tuple[HeldChunk, Sequence[int]]]:
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
        """Return the slot that has started a job, None if none has."""
        return self._pool.slot_of(chunk.number, position)

    def answered(self, event: JobsEnded, now: float) -> None:
        """Take note of what jobs took."""
        self._moved = now
        each = max(event.run_time / event.count, 1e-6)
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
                    self._watchdog.watch(slot, running)
        if self._waiting and now - self._moved > LONG_JOB + (self._average or 0.0):
            self._ahead = 0
            yield 0
