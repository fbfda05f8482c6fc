"""How people and messages name a trigger: ``every(seconds=30)``, ``every:{"seconds":30.0}``.

A `Timing` is a name and options, checked when it is made by `every`, `cron` or `at`. For a kind
of one's own, brought by a plugin, make one directly: ``Timing("sunrise", {"latitude": 48.9})``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from eventmq.errors import SettingsError
from eventmq.plugins.triggers.at import At
from eventmq.plugins.triggers.cron import Cron
from eventmq.plugins.triggers.every import Every

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Timing", "at", "cron", "every"]


@dataclass(frozen=True, slots=True)
class Timing:
    """A trigger by name, and its options, which JSON must be able to say."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.name}:{json.dumps(dict(self.options), separators=(',', ':'))}"

    @classmethod
    def parse(cls, text: str) -> Timing:
        """Read what ``str()`` writes.

        Raises:
            SettingsError: It is not that.
        """
        name, _, rest = text.partition(":")
        try:
            options = json.loads(rest) if rest else {}
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"trigger {text[:80]!r} is not name:json") from error
        if not isinstance(options, dict) or not name:
            raise SettingsError(f"trigger {text[:80]!r} is not name:json, with a JSON object")
        return cls(name, options)


def every(
    *,
    seconds: float | timedelta = 0.0,
    minutes: float = 0.0,
    hours: float = 0.0,
    days: float = 0.0,
) -> Timing:
    """Fire again and again after the same time; the arguments add up.

    Args:
        seconds: Seconds, or a timedelta.
        minutes: Minutes.
        hours: Hours.
        days: Days of 24 hours: for the same time of every day see `cron`.

    Raises:
        SettingsError: It is not a length of time, or none at all.
    """
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    total = (
        _number("seconds", seconds)
        + 60 * _number("minutes", minutes)
        + 3600 * _number("hours", hours)
        + 86_400 * _number("days", days)
    )
    return Timing("every", {"seconds": Every(total).seconds})


def _number(name: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        raise SettingsError(f"every({name}={value!r}): allowed is: a number from 0")
    return float(value)


def cron(expression: str, *, tz: str = "UTC", missing: str = "next") -> Timing:
    """Fire at the minutes that a cron expression matches.

    Args:
        expression: Five fields: minute, hour, day of the month, month, day of the week; or a
            name such as ``@daily``.
        tz: IANA name of the time zone whose clocks count.
        missing: A fixed time that the clocks skip in spring fires at the ``next`` instant that
            there is, or, by ``skip``, not on that day.

    Raises:
        SettingsError: The expression is impossible, or there is no such zone.
    """
    if not all(isinstance(value, str) for value in (expression, tz)):
        msg = f"cron({expression!r}, tz={tz!r}): allowed is: text, as in cron('0 3 * * *', "
        raise SettingsError(msg + "tz='Europe/Paris')")
    made = Cron(expression, tz, missing)
    options = {"expression": made.expression, "tz": made.tz}
    return Timing("cron", options if missing == "next" else {**options, "missing": missing})


def at(moment: datetime) -> Timing:
    """Fire once.

    Args:
        moment: An aware datetime: it says in which zone.

    Raises:
        SettingsError: It is not one.
    """
    allowed = "an aware datetime, such as datetime(2030, 1, 1, 9, tzinfo=ZoneInfo('Europe/Paris'))"
    if not isinstance(moment, datetime):
        raise SettingsError(f"at({moment!r}): allowed is: {allowed}")
    if moment.utcoffset() is None:
        msg = f"at({moment!r}): this datetime is naive, it does not say in which zone; allowed is: "
        raise SettingsError(msg + allowed)
    return Timing("at", {"moment": At(moment.timestamp()).moment})
