"""Ends jobs that have waited beyond their ``expires``, whether or not a worker ever asks for them.

Those that a worker would get now are `eventmq.broker.dispatch`'s; jobs that run are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import Expire
from eventmq.job import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.state import State
    from eventmq.job import Job

__all__ = ["SLICE", "Expiry"]

#: Jobs that one commit ends.
SLICE = 1000


class Expiry:
    """Looks for jobs that have expired, when the first one must have."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        self._busy = False

    def tick(self) -> None:
        """Begin to end what has expired, a slice at a time."""
        state, now = self.state, self.state.now
        due = state.next_expiry is not None and state.next_expiry <= state.wall
        if not due or self._busy or now < state.hold_until:
            return
        self._busy = True
        before, state.next_expiry = state.next_expiry, None
        ttl = state.limits.result_ttl

        def settle(verdict: tuple[Sequence[Job], float | None]) -> None:
            self._busy = False
            jobs, following = verdict
            self._expect(following)
            self._ended(jobs, now, ttl)

        def undo() -> None:
            self._busy = False
            self._expect(before)

        leased = state.leased_numbers()
        state.write(Expire(now, ttl, leased, SLICE, state.keeper.ahead), settle, undo)

    def _expect(self, expiry: float | None) -> None:
        """Keep the earlier of an expiry and of what was noted meanwhile."""
        state = self.state
        if expiry is not None and (state.next_expiry is None or expiry < state.next_expiry):
            state.next_expiry = expiry

    def _ended(self, jobs: Sequence[Job], at: float, ttl: float) -> None:
        self.state.withdraw(jobs, JobState.EXPIRED)
        rows = [self.outcomes.row(job, JobState.EXPIRED)._replace(at=at, ttl=ttl) for job in jobs]
        self.outcomes.finished(rows, {})
