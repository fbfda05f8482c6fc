"""Maintenance: promotes delayed jobs, ends expired ones, forgets old failed jobs and idle queues.

`Promotion` runs in every tick; `Expiry`, `Retention` and `IdleQueues` run with the checks for
silent peers. Each has at most one write in flight, for a limited number of jobs or queues.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.broker.state import SingleWrite
from eventmq.job import JobState
from eventmq.store.writes import Expire, ForgetQueues, Promote, PruneFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.job import JobRecord
    from eventmq.store.writes import Pruned

__all__ = ["EXPIRED_AT_ONCE", "Expiry", "IdleQueues", "Promotion", "Retention"]

logger = logging.getLogger("eventmq.broker")

#: Largest number of delayed jobs that one commit promotes.
_PROMOTED_AT_ONCE = 2000

#: Step of the wall clock, in seconds, after which jobs with an eta are checked again.
_CLOCK_SET = 0.1

#: Largest number of expired jobs that one commit ends.
EXPIRED_AT_ONCE = 1000

#: Largest number of failed jobs that one commit forgets.
PRUNED_AT_ONCE = 1000

#: Shortest time in seconds between two checks while jobs fail, and between two scans for idle
#: queues.
EVERY = 1.0

#: Largest number of queues that one tick scans, and that one commit forgets.
QUEUES_AT_ONCE = 1000


class Promotion:
    """Promotes delayed jobs when they are ready: they become queued.

    Args:
        state: The memory of the broker.
        outcomes: Fails jobs whose stored records are damaged.
    """

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        self._single = SingleWrite(state)
        #: Seconds by which wall time was ahead at the last promotion.
        self._ahead = 0.0

    def run(self) -> None:
        """Write the promotion of ready jobs, unless one is in flight."""
        state = self.state
        now, ready_at, keeper = state.now, state.next_ready_at, state.keeper
        if ready_at is None or self._single.busy or now < state.hold_until:
            return
        # Jobs with an eta become ready earlier or later if the wall clock was set.
        if ready_at > now and abs(keeper.ahead - self._ahead) < _CLOCK_SET:
            return
        self._ahead = keeper.ahead
        max_bytes = state.limits.window_bytes
        write = Promote(now, _PROMOTED_AT_ONCE, max_bytes, keeper.ahead, keeper.settled)
        self._single.write(write, self._settle)

    def _settle(self, write_result: tuple[list[JobRecord], float | None]) -> None:
        state = self.state
        jobs, state.next_ready_at = write_result
        for job in jobs:
            counts = state.queue(job.queue).counts
            counts.delayed -= 1
            counts.queued += 1
        for job in self.outcomes.sort_out_damaged(jobs):
            state.enqueue(job)

    def run_transient(self) -> None:
        """Promote ready jobs without guarantee, which needs no write."""
        state = self.state
        for job in state.transient.pop_ready(state.now, state.keeper.ahead):
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
        self._single = SingleWrite(state)

    def tick(self) -> None:
        """End expired jobs, a limited number per commit."""
        state, now = self.state, self.state.now
        transient = state.transient
        if transient.results.kept:
            transient.results.prune(now)
        if transient.next_expiry <= state.wall:
            self._ended(transient.expired(state.wall), now, state.limits.result_ttl)
            self.outcomes.waiters.flush()
        expired = state.next_expiry is not None and state.next_expiry <= state.wall
        if not expired or self._single.busy or now < state.hold_until:
            return
        before, state.next_expiry = state.next_expiry, None
        ttl = state.limits.result_ttl

        def settle(write_result: tuple[Sequence[JobRecord], float | None]) -> None:
            jobs, following = write_result
            self._expect(following)
            self._ended(jobs, now, ttl)

        leased = state.leased_numbers()
        write = Expire(now, ttl, leased, EXPIRED_AT_ONCE, state.keeper.ahead)
        self._single.write(write, settle, lambda: self._expect(before))

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
        self._single = SingleWrite(state)
        self._scanned_at = float("-inf")
        self._failed_count = -1
        #: Store time at which the oldest failed job is too old.
        self._prune_at = 0.0

    def tick(self) -> None:
        """Forget failed jobs over the limits of age or total size, if it is time to check."""
        state = self.state
        failed = state.counters["failed"]
        new = failed != self._failed_count and state.now - self._scanned_at >= EVERY
        ripe = new or state.now >= self._prune_at
        if self._single.busy or state.now < state.hold_until or not ripe:
            return
        self._scanned_at, self._failed_count = state.now, failed
        if not any(queue.counts.failed for queue in state.queues.values()):
            self._prune_at = float("inf")
            return
        limits = state.limits
        before = state.keeper.before(state.now - limits.failed_ttl)
        write = PruneFailed(before, limits.max_failed_bytes, PRUNED_AT_ONCE)
        self._single.write(write, self._pruned)

    def _pruned(self, write_result: Pruned) -> None:
        state = self.state
        for name, n in write_result.queues.items():
            state.queue(name).counts.failed -= n
            state.counters["failed_forgotten"] += n
            logger.warning(
                "%d failed jobs of queue %s were forgotten, because of failed_ttl or "
                "max_failed_bytes", n, name,
            )  # fmt: skip
        oldest = float("inf") if write_result.oldest is None else write_result.oldest
        oldest += state.keeper.spared(oldest)
        self._prune_at = 0.0 if write_result.more else oldest + state.limits.failed_ttl + EVERY


class IdleQueues:
    """Forgets queues that have been empty and not served by a worker for ``empty_queue_ttl``.

    A forgotten queue is created again by its next job, by its next worker, or when it is paused.

    Args:
        state: The memory of the broker.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._names: list[str] = []
        self._scanned_at = float("-inf")
        self._single = SingleWrite(state)

    def tick(self) -> None:
        """Scan some queues, at most once in `EVERY` seconds."""
        state, now = self.state, self.state.now
        if self._single.busy or abs(now - self._scanned_at) < EVERY or now < state.hold_until:
            return
        if state.limits.legacy_queue_fallback == "refuse":
            return  # then jobs for a forgotten queue would be refused
        self._scanned_at = now
        if not self._names:
            self._names = list(state.queues)
        names, self._names = self._names[:QUEUES_AT_ONCE], self._names[QUEUES_AT_ONCE:]
        idle = [name for name in names if self._is_due(name)]
        if idle:
            self._single.write(ForgetQueues(idle, now), self._forgotten)

    def _is_due(self, name: str) -> bool:
        """Return whether a queue has been unused for long enough; record since when."""
        queue, now = self.state.queues.get(name), self.state.now
        if queue is None:
            return False
        if self._is_used(queue):
            queue.idle_since = 0.0
            return False
        if not queue.idle_since or queue.idle_since > now:
            queue.idle_since = now
        return now - queue.idle_since >= self.state.limits.empty_queue_ttl

    def _is_used(self, queue: Queue) -> bool:
        state, counts = self.state, queue.counts
        return bool(
            counts.queued
            or counts.delayed
            or counts.blocked
            or counts.failed
            or counts.paused
            or queue.running
            or queue.coming
            or queue.unroutable
            or queue.subqueues
            or queue.limiter is not None
            or queue.name in state.busy
            or queue.name == state.limits.default_queue
            or abs(state.now - queue.served_at) <= state.limits.heartbeat_timeout
        )

    def _forgotten(self, names: Sequence[str]) -> None:
        state = self.state
        count = 0
        for name in names:
            queue = state.queues.get(name)
            if queue is not None and not self._is_used(queue):
                state.forget_queue(queue)
                count += 1
        state.counters["queues_forgotten"] += count
        if count:
            logger.debug("%d queues were empty and not served, and are forgotten", count)
