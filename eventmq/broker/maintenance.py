"""Maintenance: delayed jobs become ready, expired ones end, and old failed ones are forgotten.

`Promotion` runs in every tick, `Expiry` and `Retention` with the checks for silent peers. Each has
at most one write in flight, for a limited number of jobs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.job import JobState
from eventmq.store.writes import Expire, Promote, PruneFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.damage import DamagedJobs
    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.state import State
    from eventmq.job import JobRecord
    from eventmq.store.writes import Pruned

__all__ = ["EXPIRED_AT_ONCE", "Expiry", "Promotion", "Retention"]

logger = logging.getLogger("eventmq.broker")

#: Delayed jobs that one commit makes queued.
_PROMOTED_AT_ONCE = 2000

#: Step of the wall clock, in seconds, after which jobs with an eta are checked again.
_CLOCK_SET = 0.1


#: Jobs that one commit ends.
EXPIRED_AT_ONCE = 1000

#: Failed jobs that one commit forgets.
PRUNED_AT_ONCE = 1000

#: Least seconds between two checks while jobs fail.
EVERY = 1.0


class Promotion:
    """Makes delayed jobs queued when they are due.

    Args:
        state: The memory of the broker.
        damage: Fails jobs whose records were altered.
    """

    def __init__(self, state: State, damage: DamagedJobs) -> None:
        self.state = state
        self.damage = damage
        #: Whether a write that queues delayed jobs is in flight.
        self._requested = False
        #: Seconds by which wall time was ahead at the last promotion.
        self._ahead = 0.0

    def run(self) -> None:
        """Write the promotion of the jobs that are due, unless one is in flight."""
        state = self.state
        now, due, keeper = state.now, state.next_ready_at, state.keeper
        if due is None or self._requested or now < state.hold_until:
            return
        # Jobs with an eta are due earlier or later if the wall clock was set.
        if due > now and abs(keeper.ahead - self._ahead) < _CLOCK_SET:
            return
        self._requested, self._ahead = True, keeper.ahead
        max_bytes = state.limits.window_bytes
        write = Promote(now, _PROMOTED_AT_ONCE, max_bytes, keeper.ahead, keeper.settled)
        state.write(write, self._settle, self._undo)

    def _settle(self, write_result: tuple[list[JobRecord], float | None]) -> None:
        self._requested = False
        state = self.state
        jobs, state.next_ready_at = write_result
        for job in jobs:
            counts = state.queue(job.queue).counts
            counts.delayed -= 1
            counts.queued += 1
        for job in self.damage.sort_out(jobs):
            state.enqueue(job)

    def _undo(self) -> None:
        self._requested = False

    def run_transient(self) -> None:
        """Make the jobs without guarantee queued that are due, which needs no write."""
        state = self.state
        for job in state.transient.due(state.now, state.keeper.ahead):
            job.state = JobState.QUEUED
            counts = state.queue(job.queue).counts
            counts.delayed -= 1
            counts.queued += 1
            state.enqueue(job)


class Expiry:
    """Ends jobs that have expired."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        self._busy = False

    def tick(self) -> None:
        """End expired jobs, a limited number per commit."""
        state, now = self.state, self.state.now
        transient = state.transient
        if transient.results.kept:
            transient.results.prune(now)
        if transient.next_expiry <= state.wall:
            self._ended(transient.expired(state.wall), now, state.limits.result_ttl)
            self.outcomes.waiters.flush()
        due = state.next_expiry is not None and state.next_expiry <= state.wall
        if not due or self._busy or now < state.hold_until:
            return
        self._busy = True
        before, state.next_expiry = state.next_expiry, None
        ttl = state.limits.result_ttl

        def settle(write_result: tuple[Sequence[JobRecord], float | None]) -> None:
            self._busy = False
            jobs, following = write_result
            self._expect(following)
            self._ended(jobs, now, ttl)

        def undo() -> None:
            self._busy = False
            self._expect(before)

        leased = state.leased_numbers()
        state.write(Expire(now, ttl, leased, EXPIRED_AT_ONCE, state.keeper.ahead), settle, undo)

    def _expect(self, expiry: float | None) -> None:
        """Lower ``next_expiry`` to an expiry, if that is earlier."""
        state = self.state
        if expiry is not None and (state.next_expiry is None or expiry < state.next_expiry):
            state.next_expiry = expiry

    def _ended(self, jobs: Sequence[JobRecord], at: float, ttl: float) -> None:
        self.state.withdraw(jobs, JobState.EXPIRED)
        rows = [self.outcomes.row(job, JobState.EXPIRED)._replace(at=at, ttl=ttl) for job in jobs]
        self.outcomes.record_ends(rows, {})


class Retention:
    """Keeps failed jobs within their limits of age and size."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._busy = False
        self._scanned_at = float("-inf")
        self._seen = -1
        #: Store time at which the oldest failed job is too old.
        self._due = 0.0

    def tick(self) -> None:
        """Forget failed jobs that are too old, or too large together, if it is time to check."""
        state = self.state
        failed = state.counters["failed"]
        new = failed != self._seen and state.now - self._scanned_at >= EVERY
        if self._busy or state.now < state.hold_until or not (new or state.now >= self._due):
            return
        self._scanned_at, self._seen = state.now, failed
        if not any(queue.counts.failed for queue in state.queues.values()):
            self._due = float("inf")
            return
        self._busy = True
        limits = state.limits
        before = state.keeper.before(state.now - limits.failed_ttl)
        write = PruneFailed(before, limits.max_failed_bytes, PRUNED_AT_ONCE)
        state.write(write, self._pruned, lambda: setattr(self, "_busy", False))

    def _pruned(self, write_result: Pruned) -> None:
        state = self.state
        self._busy = False
        for name, n in write_result.queues.items():
            state.queue(name).counts.failed -= n
            state.counters["failed_forgotten"] += n
            logger.warning(
                "%d failed jobs of queue %s were forgotten: too old, or too large together", n, name
            )
        oldest = float("inf") if write_result.oldest is None else write_result.oldest
        oldest += state.keeper.spared(oldest)
        self._due = 0.0 if write_result.more else oldest + state.limits.failed_ttl + EVERY
