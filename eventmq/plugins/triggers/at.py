"""Trigger ``at``: one slot, at a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.errors import SettingsError
from eventmq.hookspecs import hookimpl
from eventmq.plugins.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, PluginContext, Trigger

__all__ = ["At", "eventmq_triggers"]

#: Unix time that a `datetime` can hold: the end of the year 9999.
_LAST = 253_402_300_799.0


@dataclass(frozen=True, slots=True)
class At:
    """A `Trigger` with one slot, at the Unix time ``moment``.

    Raises:
        SettingsError: The moment is before 1970 or after the year 9999.
    """

    moment: float

    def __post_init__(self) -> None:
        if not 0 < self.moment <= _LAST:
            msg = f"the moment {self.moment:g} is not allowed; allowed is: a Unix time from 1970 "
            raise SettingsError(msg + "to the year 9999")

    def next_after(self, slot: float) -> float | None:
        """Return the moment, if it comes after ``slot``."""
        return self.moment if self.moment > slot else None

    def latest(self, slot: float, now: float) -> float | None:
        """Return the moment, if it comes after ``slot`` and not after ``now``."""
        return self.moment if slot < self.moment <= now else None


def make_trigger(context: PluginContext) -> Trigger:
    """Return a trigger for the option ``moment``, in Unix time."""
    return At(**read_options(context, {"moment": 0.0}))


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide ``at``."""
    return {"at": make_trigger}
