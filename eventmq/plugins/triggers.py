"""Built-in triggers: when a schedule fires.

``at`` fires once. ``every`` fires at a fixed interval: the first fire time is one interval after
the schedule was created, and each next one is one interval after the previous fire time. The start
of a process does not matter, so fire times do not drift. ``cron`` fires at the minutes that match
an expression of five fields, in a time zone. The library ``cronsim`` computes them, by the rules of
Debian's cron:

- An expression with *fixed times* (neither minute nor hour begins with ``*``) fires once for each
  time that it names. If the clocks skip that local time, it fires at the first instant after the
  gap, or not at all if ``missing`` is ``skip``. If a local time occurs twice, it fires the first
  time only.
- Any other expression fires whenever the local clock shows a matching minute. For example, an
  expression for every hour fires in both of the two equal hours of an autumn night. If the clocks
  change by half an hour, or not at a full hour, it may miss times in the two hours around the
  change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from eventmq.sdk import check_cron, check_interval, check_timestamp, factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, Trigger

__all__ = ["At", "Cron", "Every", "eventmq_triggers"]


@dataclass(frozen=True, slots=True)
class At:
    """A `Trigger` that fires once, at the Unix time ``moment``.

    Raises:
        SettingsError: ``moment`` is before 1970 or after the year 9999.
    """

    moment: float

    def __post_init__(self) -> None:
        check_timestamp(self.moment)

    def next_after(self, fire_time: float) -> float | None:
        """Return ``moment`` if it is later than ``fire_time``, else None."""
        return self.moment if self.moment > fire_time else None

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return ``moment`` if it is later than ``fire_time`` and not later than ``now``."""
        return self.moment if fire_time < self.moment <= now else None


@dataclass(frozen=True, slots=True)
class Every:
    """A `Trigger` that fires every ``seconds``.

    Raises:
        SettingsError: `eventmq.policies.check_interval` does not allow ``seconds``.
    """

    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", check_interval(self.seconds))

    def next_after(self, fire_time: float) -> float | None:
        """Return the fire time one interval after ``fire_time``."""
        return round(fire_time + self.seconds, 6)

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the last fire time later than ``fire_time`` and not later than ``now``."""
        steps = int((now - fire_time + 1e-6) / self.seconds)
        return round(fire_time + steps * self.seconds, 6) if steps > 0 else None


@dataclass(frozen=True, slots=True)
class Cron:
    """A `Trigger` that fires by a cron expression in a time zone.

    Attributes:
        expression: Five fields, or one of `eventmq.policies.MACROS`.
        tz: Name of an IANA time zone.
        missing: What happens at a fixed time that the clocks skip: ``next`` or ``skip``.

    Raises:
        SettingsError: An argument is not allowed.
    """

    expression: str
    tz: str = "UTC"
    missing: str = "next"
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _parsed: Any = field(init=False, repr=False, compare=False)
    #: Whether a local time that the clocks skip fires after the gap.
    _moves: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parsed, zone = check_cron(self.expression, self.tz, self.missing)
        fixed = not any(each.startswith("*") for each in parsed.parts[1:3])
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_parsed", parsed)
        object.__setattr__(self, "_moves", fixed and self.missing == "next")

    def next_after(self, fire_time: float) -> float | None:
        """Return the first fire time later than ``fire_time``."""
        fields, start = " ".join(self._parsed.parts[1:]), fire_time
        try:
            while True:
                local = datetime.fromtimestamp(start, self._zone)
                next_time = float(next(type(self._parsed)(fields, local)).timestamp())
                if next_time > fire_time and (self._moves or self._is_named(next_time)):
                    return next_time
                # It is the first of two equal local times, or a time that the clocks skip.
                start = max(start + 60.0, next_time)
        except (StopIteration, OverflowError):
            return None  # cronsim gives up after 50 years, datetime after the year 9999

    def _is_named(self, instant: float) -> bool:
        """Return whether the clock shows a time that the expression names."""
        local, parsed = datetime.fromtimestamp(instant, self._zone), self._parsed
        return (
            local.minute in parsed.minutes
            and local.hour in parsed.hours
            and local.month in parsed.months
            and parsed.match_day(local.date())
        )

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the last fire time later than ``fire_time`` and not later than ``now``."""
        span = 3600.0
        start = now - span
        while start > fire_time:
            next_time = self.next_after(start)
            if next_time is not None and next_time <= now:
                break
            span *= 4
            start = now - span
        start, last = max(start, fire_time), None
        while (next_time := self.next_after(start)) is not None and next_time <= now:
            start = last = next_time
        return last


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide the triggers."""
    return {"at": factory(At), "every": factory(Every), "cron": factory(Cron)}
