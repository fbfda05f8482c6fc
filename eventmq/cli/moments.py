"""Moments as people type them: how long ago, a date, or Unix time."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

__all__ = ["read_moment"]

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def read_moment(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the Unix time of what an option says, None if it was not given.

    It reads ``90s 15m 2h 3d 1w`` ago, ``2026-01-31T12:00`` in local time, or seconds since 1970.
    """
    if value is None:
        return None
    ago = _AGO.fullmatch(value)
    if ago:
        return time.time() - float(ago[1]) * _SECONDS[ago[2]]
    try:
        return _absolute(value)
    except (ValueError, OverflowError, OSError):
        msg = f"{value!r} is no moment; write 2h for two hours ago, or 2026-01-31T12:00"
        raise click.BadParameter(msg, param=param) from None


def _absolute(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return datetime.fromisoformat(value).timestamp()
