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

    def run(self) -> None:
        """Ask, if some are due and there is no commit on its way that asks."""
        state = self.state
        now, due = state.now, state.next_due
        if due is None or due > now or self._asked or now < state.hold_until:
            return
        self._asked = True
        state.write(Promote(now, _MOST, state.limits.window_bytes), self._settle, self._undo)

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
