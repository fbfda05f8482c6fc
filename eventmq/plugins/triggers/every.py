"""Trigger ``every``: fires at a fixed interval, in absolute time.

The first fire time comes one interval after the schedule was made; each next one is counted from
the fire time before and never from the start of a process, so nothing drifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.hookspecs import hookimpl
from eventmq.plugins.options import read_options
from eventmq.policies import check_interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, PluginContext, Trigger

__all__ = ["Every", "eventmq_triggers"]


@dataclass(frozen=True, slots=True)
class Every:
    """A `Trigger` that fires every ``seconds``.

    Raises:
        SettingsError: ``seconds`` is not allowed by `eventmq.policies.check_interval`.
    """

    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", check_interval(self.seconds))

    def next_after(self, fire_time: float) -> float | None:
        """Return the fire time that follows."""
        return round(fire_time + self.seconds, 6)

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the last fire time up to ``now`` of those that follow ``fire_time``."""
        steps = int((now - fire_time + 1e-6) / self.seconds)
        return round(fire_time + steps * self.seconds, 6) if steps > 0 else None


def make_trigger(context: PluginContext) -> Trigger:
    """Return a trigger for the option ``seconds``."""
    return Every(**read_options(context, {"seconds": 0.0}))


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide ``every``."""
    return {"every": make_trigger}
