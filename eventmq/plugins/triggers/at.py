"""Trigger ``at``: fires once, at a Unix time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.sdk import check_timestamp, factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, Trigger

__all__ = ["At", "eventmq_triggers"]


@dataclass(frozen=True, slots=True)
class At:
    """A `Trigger` that fires once, at the Unix time ``moment``.

    Raises:
        SettingsError: The moment is before 1970 or after the year 9999.
    """

    moment: float

    def __post_init__(self) -> None:
        check_timestamp(self.moment)

    def next_after(self, fire_time: float) -> float | None:
        """Return the moment, if it comes after ``fire_time``."""
        return self.moment if self.moment > fire_time else None

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the moment, if it comes after ``fire_time`` and not after ``now``."""
        return self.moment if fire_time < self.moment <= now else None


make_trigger = factory(At)


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide ``at``."""
    return {"at": make_trigger}
