"""Trigger ``every``: fires at a fixed interval, in absolute time.

The first fire time comes one interval after the schedule was made; each next one is counted from
the fire time before and never from the start of a process, so nothing drifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.sdk import check_interval, factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, Trigger

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


make_trigger = factory(Every)


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide ``every``."""
    return {"every": make_trigger}
