"""What limits need in each turn: who may go on is told, and what was taken of rates is written.

`Dispatch` runs it. What a limit allows is in `eventmq.broker.limiters`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.sharing import wake_at
from eventmq.entries import SaveLimits

if TYPE_CHECKING:
    from eventmq.broker.state import State

__all__ = ["Throttle"]


class Throttle:
    """Begins and ends the turns of the limiters of a broker."""

    def __init__(self, state: State) -> None:
        self.state = state

    def look_again(self) -> None:
        """Let sessions look again where a limit may let more jobs start."""
        limiters, now = self.state.limiters, self.state.now
        if limiters.freed or (limiters.wake is not None and limiters.wake <= now):
            limiters.freed = False
            for queue in self.state.busy.values():
                queue.version += queue.limited

    def end(self) -> None:
        """Write what the leases of this turn took of rates; find when to look again."""
        state = self.state
        limiters = state.limiters
        if not (limiters.of or limiters.of_queues):
            limiters.wake = None
            return
        if limiters.changed:
            again = set(limiters.changed)
            entry = SaveLimits(limiters.take_rows())
            state.write(entry, lambda _: None, lambda: limiters.changed.update(again))
        wakes = [
            wake_at(queue.lanes.values(), state.now)
            for queue in state.busy.values()
            if queue.limited
        ]
        wakes += [
            limiter.wake_at(state.now)
            for name, limiter in limiters.of_queues.items()
            if name in state.busy or name in state.volatile.windows
        ]
        limiters.wake = min((wake for wake in wakes if wake is not None), default=None)
