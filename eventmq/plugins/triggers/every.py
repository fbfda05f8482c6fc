"""Trigger ``every``: a fixed time after the slot before, whatever clocks on walls do.

The first slot comes one interval after the schedule was made; each next one is counted from the
slot before and never from when a process started, so nothing drifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import SettingsError
from eventmq.hookspecs import hookimpl
from eventmq.plugins.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, PluginContext, Trigger

__all__ = ["LONGEST", "SHORTEST", "Every", "eventmq_triggers"]

#: Seconds of the shortest interval: faster than this is a loop, not a schedule.
SHORTEST = 0.001

#: Seconds of the longest interval, some 31 years: farther is a mistake.
LONGEST = 1e9


@dataclass(frozen=True, slots=True)
class Every:
    """A `Trigger` with slots ``seconds`` apart.

    Raises:
        SettingsError: ``seconds`` is not from `SHORTEST` to `LONGEST`.
    """

    seconds: float

    def __post_init__(self) -> None:
        if not SHORTEST <= self.seconds <= LONGEST:
            msg = f"an interval of {self.seconds:g} s is not allowed; allowed is: {SHORTEST:g} s "
            raise SettingsError(msg + f"to {LONGEST:g} s, as in every(seconds=30)")
        # Slots are whole microseconds, so that many steps are as long as one jump.
        object.__setattr__(self, "seconds", round(self.seconds, 6))

    def next_after(self, slot: float) -> float | None:
        """Return the slot that follows."""
        return round(slot + self.seconds, 6)

    def latest(self, slot: float, now: float) -> float | None:
        """Return the last slot up to ``now`` of those that follow ``slot``."""
        steps = int((now - slot + 1e-6) / self.seconds)
        return round(slot + steps * self.seconds, 6) if steps > 0 else None


def make_trigger(context: PluginContext) -> Trigger:
    """Return a trigger for the option ``seconds``."""
    return Every(**read_options(context, {"seconds": 0.0}))


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide ``every``."""
    return {"every": make_trigger}
