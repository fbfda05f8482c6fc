"""Slots of a pool: choose the slot of a chunk, compute the credit, and find jobs to hand back.

A slot runs its chunks one after the other, so no job may wait behind a long one (`Slots`). If the
slots of a pool share their chunks, any free slot takes the next job (`SharedSlots`). `Autoscaler`
decides how many slots are used.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from eventmq.worker.session import WorkerCredit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.interfaces import JobsEnded, Running, SharedPool, WorkerPool
    from eventmq.worker.session import HeldChunk, HeldChunks, SharedHeldChunks
    from eventmq.worker.watchdog import Watchdog

__all__ = ["CHECK_EVERY", "LONG_JOB", "Autoscaler", "SharedSlots", "Slots"]

#: Seconds: no job waits behind one that runs longer. The broker fills chunks up to this run time.
LONG_JOB = 0.020

#: Seconds: a chunk with more work was filled by an outdated estimate of the run time.
LONG_CHUNK = 5 * LONG_JOB

#: Seconds for which a chunk must have run before its pace is measured, since its jobs may wait for
#: a busy machine at first.
PACE_AFTER = 1.5 * LONG_JOB

#: Seconds: for shorter jobs the round trip to the broker is long compared with the work of a chunk.
SHORT_JOB = 0.002

#: Weight of the newest chunk in the average run time.
WEIGHT = 0.2

#: Seconds between two checks of the running jobs while others wait behind them.
CHECK_EVERY = 0.005

#: Seconds between two checks in a pool whose slots share their chunks, while a job has a time
#: limit.
CHECK_LIMITS_EVERY = 0.05

#: Largest number of jobs held beyond the slots, in a pool whose slots share their chunks.
MAX_LOOK_AHEAD = 2000

#: The number of held jobs changes when the best number is outside of these multiples of it.
TOO_FEW, TOO_MANY = 1.5, 0.5

#: Seconds over which busy time is averaged, between two decisions of the autoscaler.
AVERAGE_SECONDS = 1.0

#: Part of the time that the slots must be busy on average before more are used.
FULL_SHARE = 0.9

#: The same while jobs are known to wait; it is lower since a slot waits between two jobs.
BUSY_SHARE = 0.5

#: Seconds for which slots must have been unnecessary before fewer are used.
SHRINK_AFTER = 30.0


class Slots:
    """Slots of a pool, each with chunks of its own.

    Args:
        pool: Where jobs run; returns the running job of a slot.
        held_chunks: The chunks that the session holds.
        watchdog: Notified of running jobs; knows which slots are being killed.
        active: Number of slots that are used: the first ones of the pool.
    """

    def __init__(
        self, pool: WorkerPool, held_chunks: HeldChunks, watchdog: Watchdog, active: int
    ) -> None:
        self.active = active
        self._pool = pool
        self._held_chunks = held_chunks
        self._watchdog = watchdog
        #: Average run time of a job in seconds.
        self._average: float | None = None
        #: Slots whose job has run longer than `LONG_JOB`.
        self._long_running: set[int] = set()
        self._check_due = 0.0

    @property
    def credit(self) -> WorkerCredit:
        """Total credit of the worker; a slot with a long job counts for one chunk."""
        long = len(self._long_running)
        return WorkerCredit(long + max(0, self.active - long) * self._depth)

    @property
    def _depth(self) -> int:
        """Chunks per slot: 1 for long jobs and before the first measurement, 3 for short ones."""
        if self._average is None or self._average >= LONG_JOB:
            return 1
        return 2 if self._average >= SHORT_JOB else 3

    def _record(self, event: JobsEnded) -> None:
        if event.count:
            per_job, average = event.run_time / event.count, self._average
            self._average = per_job if average is None else average + WEIGHT * (per_job - average)

    @property
    def busy(self) -> int:
        """How many slots have jobs."""
        jobs = self._held_chunks.jobs
        return len(jobs) - jobs.count(0)

    def choose(self, now: float) -> int:
        """Return the slot with the fewest jobs; one with a long job only if all have one."""
        jobs = self._held_chunks.jobs
        long = self._long_running
        if self.active < len(jobs):
            jobs = jobs[: self.active]
        if 0 in jobs and (idle := jobs.index(0)) not in long:
            return idle
        return min(range(len(jobs)), key=lambda slot: (slot in long, jobs[slot]))

    def slot_of(self, chunk: HeldChunk, position: int) -> int | None:
        """Return the slot that has started a job, None if none has."""
        return chunk.slot

    def jobs_ended(self, event: JobsEnded, now: float) -> None:
        """Record run times."""
        self._record(event)
        if event.slot in self._long_running:
            self._check_due = now

    def slot_died(self, slot: int) -> None:
        """Forget the running job of a slot that died."""
        self._long_running.discard(slot)

    def mark_killed(self, slot: int) -> bool:
        """Record that a slot will be killed; return whether all of its jobs are lost with it."""
        self._long_running.add(slot)
        return True

    def can_shrink(self) -> bool:
        """Return whether the last active slot is idle, so that it can be given up."""
        return not self._held_chunks.jobs[self.active - 1]

    def check_due(self) -> float:
        """Return the time of the next `check`, infinity if no job can wait."""
        long = self._long_running
        for slot, jobs in enumerate(self._held_chunks.jobs):
            if jobs > 1 or (jobs and slot not in long):
                return self._check_due
        return float("inf")

    def check(self, now: float) -> Iterator[int]:
        """Set the deadlines of running jobs; yield the slots whose jobs wait for too long.

        They wait behind a long job, or in a chunk whose jobs take longer than estimated.
        """
        if now < self._check_due:
            return
        self._check_due = now + CHECK_EVERY
        for slot, jobs in enumerate(self._held_chunks.jobs):
            running = self._pool.running(slot) if jobs else None
            if running is not None:
                self._watchdog.watch(slot, running)
            if slot in self._watchdog.killed:  # it gets no new job until it has restarted
                self._long_running.add(slot)
            elif running is None or now - running.since <= LONG_JOB:
                self._long_running.discard(slot)
                if running is not None and jobs > 1 and self._is_long(running, now):
                    yield slot
            else:
                self._long_running.add(slot)
                if jobs > 1:
                    yield slot

    def _is_long(self, running: Running, now: float) -> bool:
        """Return whether the running chunk will take long, extrapolated from its jobs so far."""
        chunk = self._held_chunks.chunks.get(running.chunk)
        if chunk is None:
            return False
        chunk.since = chunk.since or running.since
        seconds, started = now - chunk.since, running.position + 1
        pace_known = seconds > PACE_AFTER and started < chunk.end
        return pace_known and seconds * chunk.end > LONG_CHUNK * started


class SharedSlots(Slots):
    """Slots of a pool that share their chunks; each takes the next job when it is free."""

    _pool: SharedPool
    _held_chunks: SharedHeldChunks

    #: Jobs held beyond the slots.
    _ahead = 0
    #: Monotonic time at which a job last ended, or jobs began to wait.
    _progress_at = 0.0
    _checked_at = 0.0
    #: Last monotonic time at which at most `LONG_CHUNK` of work waited, by the average run time.
    _fitted_at = 0.0

    @property
    def credit(self) -> WorkerCredit:
        """Total credit of the worker, in jobs, since each may be in a chunk of its own."""
        jobs = self.active + self._ahead
        return WorkerCredit(jobs, jobs)

    @property
    def busy(self) -> int:
        """How many slots have jobs."""
        return min(self._held_chunks.jobs[0], self._pool.slots)

    def choose(self, now: float) -> int:
        """Return 0, since any free slot takes the next job."""
        if self._waiting <= 0:
            self._progress_at = self._fitted_at = now
        return 0

    def slot_of(self, chunk: HeldChunk, position: int) -> int | None:
        """Return the slot that has started a job, None if none has."""
        return self._pool.slot_of(chunk.number, position)

    def jobs_ended(self, event: JobsEnded, now: float) -> None:
        """Record run times, and adapt how many jobs are held beyond the slots."""
        self._progress_at = now
        self._record(event)
        ahead = min(MAX_LOOK_AHEAD, int(self.active * LONG_JOB / max(self._average or 0.0, 1e-6)))
        if not TOO_MANY * self._ahead <= ahead <= TOO_FEW * self._ahead:
            self._ahead = ahead

    def slot_died(self, slot: int) -> None:
        """Do nothing, since the other jobs continue."""

    def mark_killed(self, slot: int) -> bool:
        """Return False, since only the running job is lost."""
        return False

    def can_shrink(self) -> bool:
        """Return True, since running jobs continue with one slot less."""
        return True

    @property
    def _waiting(self) -> int:
        """Number of jobs held beyond the slots; 0 or less if there are none."""
        return self._held_chunks.jobs[0] - self.active

    def check_due(self) -> float:
        """Return the time of the next `check`."""
        if self._waiting > 0:
            return self._checked_at + CHECK_EVERY
        return self._checked_at + CHECK_LIMITS_EVERY if self._held_chunks.timed else float("inf")

    def check(self, now: float) -> Iterator[int]:
        """Set the deadlines of running jobs; yield 0 if the waiting jobs waited for too long."""
        if now < self.check_due():
            return
        self._checked_at = now
        if self._held_chunks.timed:
            for slot in range(self._pool.slots):
                if (running := self._pool.running(slot)) is not None:
                    self._watchdog.watch(slot, running)
        average, waiting = self._average or 0.0, self._waiting
        if waiting * average <= LONG_CHUNK * self.active:
            self._fitted_at = now
        if waiting <= 0:
            return
        if now - self._progress_at > LONG_JOB + average:
            self._ahead = 0
            yield 0
        elif now - self._fitted_at > LONG_CHUNK:
            yield 0


class Autoscaler:
    """Decides how many slots are used.

    Args:
        min_slots: Slots that are always used.
        max_slots: Slots of the pool.

    Attributes:
        size: Number of slots to use now.
        waiting: Number of jobs that wait at the broker, None if the broker does not send it.
    """

    __slots__ = (
        "_busy", "_busy_seconds", "_last", "_max_slots", "_min_slots", "_needed_at", "_since",
        "size", "waiting",
    )  # fmt: skip

    def __init__(self, min_slots: int, max_slots: int) -> None:
        self.size = min_slots
        self.waiting: int | None = None
        self._min_slots = min_slots
        self._max_slots = max_slots
        self._busy = 0
        self._busy_seconds = 0.0
        self._last = self._since = self._needed_at = -1.0

    def record(self, now: float, busy: int) -> None:
        """Record how many slots are busy from now on; decide once per `AVERAGE_SECONDS`."""
        if self._last < 0.0:
            self._since = self._needed_at = now
        else:
            self._busy_seconds += (now - self._last) * self._busy
        self._last, self._busy = now, busy
        if now - self._since >= AVERAGE_SECONDS:
            mean = self._busy_seconds / (now - self._since)
            self._since, self._busy_seconds = now, 0.0
            self._decide(now, mean)

    def _decide(self, now: float, mean: float) -> None:
        full = FULL_SHARE if self.waiting is None else BUSY_SHARE
        if mean > full * self.size and self.size < self._max_slots:
            self.size = min(self._max_slots, self.size + self._slots_to_add())
        needed = math.ceil(mean - (1.0 - FULL_SHARE)) + 1
        if needed >= self.size or self.size <= self._min_slots:
            self._needed_at = now
        elif now - self._needed_at >= SHRINK_AFTER:
            self.size -= 1

    def _slots_to_add(self) -> int:
        """Return how many slots to add: one per waiting job, or half if that is not known."""
        if self.waiting is None:
            return max(1, self.size // 2)
        return min(self.waiting, self.size)
