"""How the files of a journal are named: the folder says the hour, the name what is inside.

``date=YYYY-MM-DD/hour=HH/<broker>-<first seq>-<last seq>.parquet``, times in UTC. A name that
begins with ``_`` or ``.`` is of a file that is being written, and no reader looks at it.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import NamedTuple

__all__ = ["HOUR_US", "FileName", "partition"]

#: Microseconds of an hour: what one folder holds.
HOUR_US = 3_600_000_000

_NAME = re.compile(r"([0-9A-Za-z][0-9A-Za-z_.]*)-([0-9]{1,19})-([0-9]{1,19})\.parquet")


class FileName(NamedTuple):
    """The name of a sealed file: whose events it has, and the first and last number."""

    broker: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.first}-{self.last}.parquet"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Return what a file's name says, None for one that is not of a journal."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[2]) > int(match[3]):
            return None
        return cls(match[1], int(match[2]), int(match[3]))


def partition(ts_us: int) -> str:
    """Return the folder of an hour, by a time in it in microseconds."""
    # Not by floats, which are wrong at the end of an hour.
    when = datetime.fromtimestamp(ts_us // 1_000_000, timezone.utc)
    return f"date={when:%Y-%m-%d}/hour={when:%H}"
