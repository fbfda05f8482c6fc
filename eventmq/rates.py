"""How often something may happen: ``100/m`` as a header and an option say it, read here."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

__all__ = ["RATES", "Rate", "parse_rate", "show_limits"]

#: What `parse_rate` reads, for messages.
RATES = "a number per time, such as '5/s', '100/m', '1000/h', '5000/d' or '2/10s'"

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

_FORM = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,5})?([smhd])", re.ASCII)


class Rate(NamedTuple):
    """So many in so many seconds; as many at once at most."""

    jobs: int
    seconds: float


@lru_cache(maxsize=1024)
def parse_rate(text: str) -> Rate:
    """Read a rate.

    Args:
        text: ``jobs/unit`` or ``jobs/<n>unit``, the unit one of ``s m h d``.

    Raises:
        ValueError: It is none.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        msg = f"a rate is {RATES}"
        raise ValueError(msg)
    count, times, unit = found.groups()
    return Rate(int(count), int(times or 1) * _UNITS[unit])


def show_limits(rate: str, most: int) -> str:
    """Write the limits of a queue as the setting ``queue_limits`` says them.

    Args:
        rate: As `parse_rate` reads it, "" for none.
        most: Jobs that may run at a time, 0 for any number.
    """
    named = {"rate": rate, "concurrency": most}
    return ",".join(f"{name}={value}" for name, value in named.items() if value)
