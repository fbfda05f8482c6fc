"""Trigger ``workdays``: fires from Monday to Friday at a time of the day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING

from eventmq.sdk import Timing, check_options, factory, find_zone, hookimpl, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from eventmq.sdk import Factory, Trigger

#: `datetime.weekday` of Saturday.
SATURDAY = 5


@dataclass(frozen=True)
class Workdays:
    """The trigger; its fields are its options."""

    at: str = option(doc="Local time, such as 09:00.")
    tz: str = option("UTC", "IANA name of the time zone.")
    skip: tuple[str, ...] = option((), "Days without work, such as 2026-12-25.")

    def __post_init__(self) -> None:
        """Check the values; ValueError is reported as an error of the options."""
        time.fromisoformat(self.at)
        find_zone(self.tz)
        for day in self.skip:
            date.fromisoformat(day)

    def next_after(self, fire_time: float) -> float | None:
        """Return the first fire time later than ``fire_time``."""
        return next(found for found in self._days(fire_time, 1) if found > fire_time)

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the last fire time after ``fire_time`` and up to ``now``."""
        last = next(found for found in self._days(now, -1) if found <= now)
        return last if last > fire_time else None

    def _days(self, start: float, step: int) -> Iterator[float]:
        """Yield fire times from the day of a time on, forwards or backwards."""
        zone, at = find_zone(self.tz), time.fromisoformat(self.at)
        day = datetime.fromtimestamp(start, zone).date()
        while True:
            if day.weekday() < SATURDAY and day.isoformat() not in self.skip:
                yield datetime.combine(day, at, zone).timestamp()
            day += timedelta(days=step)


def workdays(at: str, *, tz: str = "UTC", skip: Iterable[str] = ()) -> Timing:
    """Fire from Monday to Friday at a local time, except on the days of ``skip``.

    Raises:
        PluginError: An argument is not allowed.
        SettingsError: There is no such zone.
    """
    options = check_options("workdays", Workdays, at=at, tz=tz, skip=list(skip))
    return Timing("workdays", options)


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide ``workdays``."""
    return {"workdays": factory(Workdays)}
