"""Rates, such as ``100/m``, in headers and options."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

__all__ = ["RATES", "Rate", "parse_rate", "show_limits"]

#: Description of the allowed values, for messages.
RATES = "a number per time, such as '5/s', '100/m', '1000/h', '5000/d' or '2/10s'"

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

_FORM = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,5})?([smhd])", re.ASCII)


class Rate(NamedTuple):
    """At most ``jobs`` starts in ``seconds``; up to as many may start at once."""

    jobs: int
    seconds: float


@lru_cache(maxsize=1024)
def parse_rate(text: str) -> Rate:
    """Read a rate.

    Args:
        text: ``jobs/unit`` or ``jobs/<n>unit``, the unit one of ``s m h d``.

    Raises:
        ValueError: It is malformed.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"a rate is {RATES}")
    count, times, unit = match.groups()
    return Rate(int(count), int(times or 1) * _UNITS[unit])


def show_limits(rate: str, max_running: int) -> str:
    """Return the limits of a queue in the syntax of the setting ``queue_limits``.

    Args:
        rate: As `parse_rate` reads it, "" for none.
        max_running: Jobs that may run at a time, 0 for any number.
    """
    named = {"rate": rate, "concurrency": max_running}
    return ",".join(f"{name}={value}" for name, value in named.items() if value)
