"""What limits need in each turn: who may go on is told, and what was taken of rates is written.

`Dispatch` runs it. What a limit allows is in `eventmq.broker.limiters`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import SaveLimits

if TYPE_CHECKING:
    from eventmq.broker.state import State

__all__ = ["Throttle"]


class Throttle:
    """Begins and ends the turns of the limiters of a broker."""

    def __init__(self, state: State) -> None:
        self.state = state

    def begin(self) -> None:
        """Let sessions look again where a limit may let more jobs start."""
        state = self.state
        if state.limiters.blocking:
            for lane, queue in state.limiters.unblock(state.now):
                queue.unblock(lane)

    def end(self) -> None:
        """Write what the leases of this turn took of rates."""
        state, limiters = self.state, self.state.limiters
        if limiters.changed:
            again = set(limiters.changed)
            entry = SaveLimits(limiters.take_rows())
            state.write(entry, lambda _: None, lambda: limiters.changed.update(again))

    @property
    def due(self) -> float | None:
        """When the next token comes that jobs wait for, None where none do."""
        state = self.state
        if not state.limiters.of_queues:
            return state.limiters.due
        dues = [
            limiter.wake_at(state.now)
            for name, limiter in state.limiters.of_queues.items()
            if name in state.busy or name in state.volatile.windows
        ]
        return min((due for due in (*dues, state.limiters.due) if due is not None), default=None)
