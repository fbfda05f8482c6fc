"""Trigger ``cron``: minutes that match an expression of five fields, in a time zone.

The library ``cronsim`` says which local times match, by the rules of Debian's cron; this module
says at which instants those local times are, whatever the zone does to its clocks:

- An expression of *fixed times* (neither minute nor hour begins with ``*``) fires once for each
  time that it names. A local time that the clocks skip fires at the first instant after the gap,
  or not at all where ``missing`` is ``skip``; one that comes twice fires the first time only.
- Any other expression fires whenever the local clock shows a matching minute. So one for every
  hour also fires in both hours of an autumn night that have the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any

from eventmq.sdk import check_cron, factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq.sdk import Factory, Trigger

__all__ = ["Cron", "eventmq_triggers"]

#: No zone changes its clocks twice within this time.
_STEP = timedelta(hours=12)

_SECOND = timedelta(seconds=1)


def _copy(parsed: Any) -> Any:
    """Copy a matcher as `copy.copy` does, in a third of the time."""
    matcher = object.__new__(type(parsed))
    vars(matcher).update(vars(parsed))
    return matcher


def _is_fixed(fields: list[str]) -> bool:
    """Return whether parsed fields (with seconds in front) name times of the day."""
    return not fields[1].startswith("*") and not fields[2].startswith("*")


@dataclass(frozen=True, slots=True)
class Cron:
    """A `Trigger` that fires by a cron expression in a time zone.

    Attributes:
        expression: Five fields, or one of `eventmq.policies.MACROS`.
        tz: Name of an IANA time zone.
        missing: What a fixed time does that the clocks skip: ``next`` or ``skip``.

    Raises:
        SettingsError: An argument is not allowed.
    """

    expression: str
    tz: str = "UTC"
    missing: str = "next"
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _parsed: Any = field(init=False, repr=False, compare=False)
    _fixed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parsed, zone = check_cron(self.expression, self.tz, self.missing)
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_parsed", parsed)
        object.__setattr__(self, "_fixed", _is_fixed(parsed.parts))

    def next_after(self, fire_time: float) -> float | None:
        """Return the first fire time later than ``fire_time``."""
        try:
            next_time = (
                self._next_fixed(fire_time) if self._fixed else self._next_matching(fire_time)
            )
        except (StopIteration, OverflowError):
            return None  # cronsim gives up after 50 years, datetime after the year 9999
        return next_time.timestamp()

    def latest(self, fire_time: float, now: float) -> float | None:
        """Return the last fire time later than ``fire_time`` and not later than ``now``."""
        back = 3600.0
        start = now - back
        while start > fire_time:
            next_time = self.next_after(start)
            if next_time is not None and next_time <= now:
                break
            back *= 4
            start = now - back
        start, last = max(start, fire_time), None
        while (next_time := self.next_after(start)) is not None and next_time <= now:
            start = last = next_time
        return last

    # Local times

    def _matches(self, after: datetime) -> Iterator[datetime]:
        """Yield the local times that match, from the first later than ``after``: whole minutes."""
        matcher = _copy(self._parsed)
        matcher.dt = after.replace(second=59, microsecond=0)
        times: Iterator[datetime] = matcher
        return times

    def _local(self, instant: datetime) -> datetime:
        return instant.astimezone(self._zone).replace(tzinfo=None)

    # Fixed times

    def _next_fixed(self, fire_time: float) -> datetime:
        start = datetime.fromtimestamp(fire_time, timezone.utc)
        for local in self._matches(self._local(start)):
            instant = self._instant(local)
            if instant is not None and instant > start:
                return instant
        raise StopIteration

    def _instant(self, local: datetime) -> datetime | None:
        """Return the instant of a local time, the first one of two."""
        instant = local.replace(tzinfo=self._zone).astimezone(timezone.utc)
        if self._local(instant) == local:
            return instant
        if self.missing == "skip":
            return None
        # PEP 495: read with the offset before the gap it is after the change, with the other
        # one before it.
        before = local.replace(tzinfo=self._zone, fold=1).astimezone(timezone.utc)
        return self._change(before, instant)

    # The local clock

    def _next_matching(self, fire_time: float) -> datetime:
        start = datetime.fromtimestamp(fire_time, timezone.utc)
        while True:
            local = self._local(start)
            instant = start + (next(self._matches(local)) - local)
            change = self._first_change(start, instant)
            if change is None:
                return instant
            if self._shows(change):
                return change
            start = change

    def _shows(self, instant: datetime) -> bool:
        """Return whether the local clock shows a matching minute at an instant."""
        local = self._local(instant)
        return next(self._matches(local - _SECOND)) == local

    def _first_change(self, start: datetime, end: datetime) -> datetime | None:
        """Return the first change of the offset after ``start`` and not after ``end``."""
        here, offset = start, start.astimezone(self._zone).utcoffset()
        while here < end:
            there = min(here + _STEP, end)
            if there.astimezone(self._zone).utcoffset() != offset:
                return self._change(here, there)
            here = there
        return None

    def _change(self, before: datetime, after: datetime) -> datetime:
        """Return the instant, to the second, of the one change of offset between two instants."""
        offset = before.astimezone(self._zone).utcoffset()
        before, after = before.replace(microsecond=0), after.replace(microsecond=0)
        while after - before > _SECOND:
            middle = before + timedelta(seconds=(after - before) // _SECOND // 2)
            if middle.astimezone(self._zone).utcoffset() == offset:
                before = middle
            else:
                after = middle
        return after


make_trigger = factory(Cron)


@hookimpl
def eventmq_triggers() -> Mapping[str, Factory[Trigger]]:
    """Provide ``cron``."""
    return {"cron": make_trigger}
