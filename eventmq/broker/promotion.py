"""Moves delayed jobs into their queues when they are due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import Promote

if TYPE_CHECKING:
    from eventmq.broker.damage import Damage
    from eventmq.broker.state import State
    from eventmq.job import Job

__all__ = ["Promotion"]

#: Jobs that one turn may move from delayed to queued.
_MOST = 2000

#: Seconds by which the wall clock must have been set for another look at jobs that wait for it.
_SET = 0.1


class Promotion:
    """Asks the store for the delayed jobs that are due.

    Args:
        state: Of the broker.
        damage: Fails jobs whose records were altered.
    """

    def __init__(self, state: State, damage: Damage) -> None:
        self.state = state
        self.damage = damage
        #: A commit is on its way that queues delayed jobs.
        self._asked = False
        #: Seconds by which wall time was ahead when the store was asked the last time.
        self._ahead = 0.0

    def run(self) -> None:
        """Ask, if some are due and there is no commit on its way that asks."""
        state = self.state
        now, due, keeper = state.now, state.next_due, state.keeper
        if due is None or self._asked or now < state.hold_until:
            return
        # What waits for a wall time is due earlier or later than was thought if that was set.
        if due > now and abs(keeper.ahead - self._ahead) < _SET:
            return
        self._asked, self._ahead = True, keeper.ahead
        most = state.limits.window_bytes
        entry = Promote(now, _MOST, most, keeper.ahead, keeper.settled)
        state.write(entry, self._settle, self._undo)

    def _settle(self, verdict: tuple[list[Job], float | None]) -> None:
        self._asked = False
        state = self.state
        jobs, state.next_due = verdict
        for job in jobs:
            counts = state.queue(job.queue).counts
            counts.delayed -= 1
            counts.waiting += 1
        for job in self.damage.sort_out(jobs):
            state.joined(job)

    def _undo(self) -> None:
        self._asked = False
