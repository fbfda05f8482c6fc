"""Policies of tasks and schedules, as values: when a job is retried, and when a schedule fires."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError, PluginError, SettingsError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MACROS",
    "MAX_INTERVAL",
    "MIN_INTERVAL",
    "Backoff",
    "Timing",
    "at",
    "check_cron",
    "check_delay",
    "check_growth",
    "check_interval",
    "check_timestamp",
    "cron",
    "every",
    "exponential",
    "find_zone",
    "fixed",
]

#: Shorthands for cron expressions.
MACROS: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

#: Shortest interval in seconds.
MIN_INTERVAL = 0.001

#: Longest interval in seconds, some 31 years; a longer one is a mistake.
MAX_INTERVAL = 1e9

#: Largest Unix time that a `datetime` can hold: the end of the year 9999.
_MAX_TIMESTAMP = 253_402_300_799.0

_FIELDS = 5
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local times are naive here on purpose
_DAY = re.compile(r"[12]?\d|3[01]")
_ZONE = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")


def _parse(text: str, subject: str, error: type[EventMQError]) -> tuple[str, dict[str, Any]]:
    """Return name and options of ``name:json``; a name alone has no options."""
    name, _, rest = text.partition(":")
    try:
        options = json.loads(rest) if rest else {}
    except (ValueError, RecursionError) as wrong:
        raise error(f"{subject} is not name:json") from wrong
    if not isinstance(options, dict) or not name:
        raise error(f"{subject} is not name:json, where the options are a JSON object")
    return name, options


@dataclass(frozen=True, slots=True)
class Backoff:
    """A retry policy by name, with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}:{json.dumps(dict(self.options), separators=(',', ':'))}"

    @classmethod
    def parse(cls, text: str) -> Backoff:
        """Read the text that ``str()`` returns; a name alone has no options.

        Raises:
            PluginError: The text after the name is not a JSON object.
        """
        return cls(*_parse(text, f"retry policy {text[:80]!r}", PluginError))


def fixed(delay: float = 1.0) -> Backoff:
    """Wait the same time before every attempt.

    Args:
        delay: Seconds, from 0.

    Raises:
        PluginError: The argument is not allowed.
    """
    return Backoff("fixed", {"delay": check_delay(delay)})


def exponential(base: float = 1.0, cap: float = 600.0) -> Backoff:
    """Wait a random time below a limit that doubles with every attempt.

    Args:
        base: The first limit in seconds, more than 0.
        cap: The largest limit in seconds, at least ``base``.

    Raises:
        PluginError: An argument is not allowed.
    """
    check_growth(base, cap)
    return Backoff("exponential", {"base": base, "cap": cap})


@dataclass(frozen=True, slots=True)
class Timing:
    """A trigger by name, with its options, which must be JSON values."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.name}:{json.dumps(dict(self.options), separators=(',', ':'))}"

    @classmethod
    def parse(cls, text: str) -> Timing:
        """Read the text that ``str()`` returns.

        Raises:
            SettingsError: The text is not a name and a JSON object.
        """
        return cls(*_parse(text, f"trigger {text[:80]!r}", SettingsError))


def every(
    *,
    seconds: float | timedelta = 0.0,
    minutes: float = 0.0,
    hours: float = 0.0,
    days: float = 0.0,
) -> Timing:
    """Fire repeatedly at a fixed interval; the arguments add up.

    Args:
        seconds: Seconds, or a timedelta.
        minutes: Minutes.
        hours: Hours.
        days: Days of 24 hours; for the same time of every day see `cron`.

    Raises:
        SettingsError: The sum is not a valid interval.
    """
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    total = (
        _number("seconds", seconds)
        + 60 * _number("minutes", minutes)
        + 3600 * _number("hours", hours)
        + 86_400 * _number("days", days)
    )
    return Timing("every", {"seconds": check_interval(total)})


def _number(name: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        raise SettingsError(f"every({name}={value!r}): allowed is: a number from 0")
    return float(value)


def cron(expression: str, *, tz: str = "UTC", missing: str = "next") -> Timing:
    """Fire at the minutes that a cron expression matches.

    Args:
        expression: Five fields: minute, hour, day of the month, month, day of the week; or a
            name such as ``@daily``.
        tz: IANA name of the time zone of the expression.
        missing: When clocks skip the time in spring: ``next`` fires at the first instant after the
            gap, ``skip`` does not fire on that day.

    Raises:
        SettingsError: The expression is impossible, or the zone does not exist.
    """
    if not all(isinstance(value, str) for value in (expression, tz)):
        raise SettingsError(
            f"cron({expression!r}, tz={tz!r}): allowed is: text, as in cron('0 3 * * *', "
            "tz='Europe/Paris')"
        )
    check_cron(expression, tz, missing)
    options = {"expression": expression, "tz": tz}
    return Timing("cron", options if missing == "next" else {**options, "missing": missing})


def at(when: datetime) -> Timing:
    """Fire once.

    Args:
        when: An aware datetime, one with a time zone.

    Raises:
        SettingsError: It is not an aware datetime.
    """
    allowed = "an aware datetime, such as datetime(2030, 1, 1, 9, tzinfo=ZoneInfo('Europe/Paris'))"
    if not isinstance(when, datetime):
        raise SettingsError(f"at({when!r}): allowed is: {allowed}")
    if when.utcoffset() is None:
        raise SettingsError(
            f"at({when!r}): this datetime is naive, it has no time zone; allowed is: " + allowed
        )
    return Timing("at", {"moment": check_timestamp(when.timestamp())})


# Checks of values: where a value is written, and again where a plugin reads it.


def check_delay(seconds: object) -> float:
    """Check the delay of the retry policy ``fixed``, in seconds.

    Raises:
        PluginError: It is not a number, negative or infinite.
    """
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise PluginError(f"retry policy fixed: delay is seconds from 0, not {seconds!r}")
    return seconds


def check_growth(base: float, cap: float) -> None:
    """Check the limits of the retry policy ``exponential``, in seconds.

    Raises:
        PluginError: One is not a number, ``base`` is not more than 0, or ``cap`` is less than
            ``base`` or infinite.
    """
    limits: tuple[object, ...] = (base, cap)
    numeric = all(isinstance(value, int | float) for value in limits)
    if not numeric or not 0 < base <= cap < float("inf"):
        raise PluginError(
            "retry policy exponential: base and cap are seconds, 0 < base <= cap, not "
            f"base={base!r}, cap={cap!r}"
        )


def check_interval(seconds: float) -> float:
    """Round the interval of the trigger ``every`` to whole microseconds, whose sums are exact.

    Raises:
        SettingsError: It is not from `MIN_INTERVAL` to `MAX_INTERVAL`.
    """
    if not MIN_INTERVAL <= seconds <= MAX_INTERVAL:
        raise SettingsError(
            f"an interval of {seconds:g} s is not allowed; allowed is: {MIN_INTERVAL:g} s "
            f"to {MAX_INTERVAL:g} s, as in every(seconds=30)"
        )
    return round(seconds, 6)


def check_timestamp(timestamp: float) -> float:
    """Check the fire time of the trigger ``at``, in Unix time.

    Raises:
        SettingsError: It is before 1970 or after the year 9999.
    """
    if not 0 < timestamp <= _MAX_TIMESTAMP:
        raise SettingsError(
            f"the timestamp {timestamp:g} is not allowed; allowed is: a Unix time from 1970 "
            "to the year 9999"
        )
    return timestamp


def check_cron(expression: str, tz: str, missing: str) -> tuple[Any, tzinfo]:
    """Return the matcher of a cron expression (of ``cronsim``) and its time zone.

    Raises:
        SettingsError: One of them is not allowed.
    """
    if missing not in {"next", "skip"}:
        raise SettingsError(f"missing is {missing!r}; allowed is: 'next' or 'skip'")
    return _parse_cron(expression), find_zone(tz)


def find_zone(name: str) -> tzinfo:
    """Return an IANA time zone.

    Raises:
        SettingsError: No zone has this name; the message has the nearest name.
    """
    from zoneinfo import ZoneInfo, available_timezones

    if name == "UTC":
        return timezone.utc
    try:
        if _ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    zones = available_timezones()
    near = {zone.rpartition("/")[2]: zone for zone in sorted(zones)}
    hint = did_you_mean(name, zones)
    if "did you mean" not in hint:
        short = did_you_mean(name.rpartition("/")[2].title(), near)
        suggestion = short.split("'")[1] if "did you mean" in short else ""
        hint = "zones have names such as Europe/Paris"
        if suggestion:
            hint = f"did you mean {near[suggestion]!r}?"
    raise SettingsError(f"there is no time zone {name!r}; {hint}")


def _parse_cron(expression: str) -> Any:
    """Return the matcher of an expression.

    Raises:
        SettingsError: The expression is malformed, or never matches.
    """
    from cronsim import CronSim, CronSimError

    fields = MACROS.get(expression.strip().lower(), expression).split()
    if len(fields) != _FIELDS:
        names = "minute, hour, day of the month, month and day of the week"
        raise SettingsError(
            f"cron expression {expression!r} has {len(fields)} fields; right is five: {names}, "
            "as in '0 3 * * *'"
        )
    try:
        parsed = CronSim(" ".join(fields), _EPOCH)
        next(CronSim(" ".join(fields), _EPOCH))
    except CronSimError as error:
        reason = f"wrong is the {str(error).removeprefix('Bad ')}"
        if "day-of-month" in reason and _DAY.fullmatch(fields[2]):
            reason = f"month {fields[3]} never has a day {fields[2]}"
        raise SettingsError(f"cron expression {expression!r} is not possible: {reason}") from error
    except StopIteration:
        raise SettingsError(
            f"cron expression {expression!r} never fires: there is no such day"
        ) from None
    return parsed
