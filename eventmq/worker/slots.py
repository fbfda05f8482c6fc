"""How the slots of a pool are used: which gets a chunk, how much is wanted, what goes back.

A slot works off its chunks one after the other, so nothing may wait in it behind a long job. For
pools whose slots share their chunks there is `eventmq.worker.shared`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventmq.worker.lookahead import LONG_JOB, LookAhead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.interfaces import Answered, WorkerPool
    from eventmq.worker.ledger import HeldChunk, Ledger
    from eventmq.worker.overseer import Overseer

__all__ = ["LOOK", "Slots", "Wanted"]

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
        overseer: Is told what runs, and knows what is killed.
        active: How many slots are used: the first so many.
    """

    def __init__(self, pool: WorkerPool, ledger: Ledger, overseer: Overseer, active: int) -> None:
        self.active = active
        self._pool = pool
        self._ledger = ledger
        self._overseer = overseer
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
        """Return the slot that has begun a job, None if none has."""
        return chunk.slot

    def answered(self, event: Answered, now: float) -> None:
        """Take note of what jobs took."""
        self._look_ahead.note(event.count, event.ran)
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
                self._overseer.watch(slot, running)
            if slot in self._overseer.killed:  # no new job for it until it is there again
                self._long.add(slot)
            elif running is None or now - running.since <= LONG_JOB:
                self._long.discard(slot)
            else:
                self._long.add(slot)
                if jobs > 1:
                    yield slot
