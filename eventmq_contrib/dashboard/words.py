"""Texts of the dashboard: numbers, times and lengths for people, and times that people write."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone, tzinfo

from eventmq.cli import printable
from eventmq_contrib.figures import duration

__all__ = ["age", "clock", "cut", "figure", "one_line", "read_time", "shown"]

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])(?: ago)?")

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def shown(value: object) -> object:
    """Return a value for a page: of a text, characters without a shape are shown escaped."""
    if type(value) is str:
        return printable(value, keep="\n\t")
    return "" if value is None else value


def one_line(text: str, limit: int = 200) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def cut(text: str, limit: int = 4000) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def figure(number: float) -> str:
    """Return a number with separators, and one digit behind the point if it is small."""
    return f"{number:,.1f}" if 0 < number < 10 and number != int(number) else f"{number:,.0f}"  # noqa: PLR2004


def age(timestamp: float | None) -> str:
    """Return the distance of a Unix time from now: ``2 min ago``, ``in 3 h``; "-" for none."""
    if not timestamp:
        return "-"
    seconds = time.time() - timestamp
    if abs(seconds) < 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def clock(
    timestamp: float | None, form: str = "%Y-%m-%d %H:%M:%S", zone: tzinfo = timezone.utc
) -> str:
    """Return a Unix time in UTC, or another zone; "" for none, or for one that no calendar has."""
    try:
        return datetime.fromtimestamp(timestamp, zone).strftime(form) if timestamp else ""
    except (ValueError, OverflowError, OSError):
        return ""


def read_time(text: str) -> float:
    """Return the Unix time that a person wrote; 0.0 for none.

    Args:
        text: ``2h`` for two hours ago, or a date and time such as ``2026-01-31 12:00``, in UTC
            unless it has an offset.

    Raises:
        ValueError: It is neither; the message is for the person.
    """
    text = text.strip()
    if not text:
        return 0.0
    match = _AGO.fullmatch(text)
    if match:
        return max(1.0, time.time() - float(match[1]) * _SECONDS[match[2]])
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC").replace("Z", "+00:00"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:40]!r} is no time; write 2h for two hours ago, or 2026-01-31 12:00 (UTC)"
        ) from None
