"""Repeated log lines of the SDK and its exporters: each is logged once in a while, with a count.

While its collector is away, an exporter logs a line about once a second, in each process and for
ever. What it says is worth reading once.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["LOG_INTERVAL", "RepeatFilter", "limit_repeats"]

#: Seconds in which a line is logged once: a collector that is away is noticed, and no log fills.
LOG_INTERVAL: Final = 600.0

#: Loggers of the exporters and of what calls them. A filter works on the logger itself and not on
#: those below it, and an app may import its exporter later, so they are named.
_LOGGERS = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.zipkin.json",
    "opentelemetry.exporter.zipkin.proto.http",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace",
    "opentelemetry.sdk.trace.export",
)

_PREFIXES = ("opentelemetry.exporter.", "opentelemetry.sdk.")


class RepeatFilter(logging.Filter):
    """Lets a line of a logger pass once in an interval, and says then how many did not.

    Lines are the same if their format is. There is no lock, since a process may fork while a
    thread holds it: two threads may both log the first line.

    Args:
        interval: Seconds.
    """

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.interval = interval
        #: Logger and format -> when the line was logged last, and how many were left out since.
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged."""
        key = (record.name, str(record.msg))
        logged, left_out = self._last.get(key, (0.0, 0))
        if 0.0 <= record.created - logged < self.interval:
            self._last[key] = (logged, left_out + 1)
            return False
        self._last[key] = (record.created, 0)
        more = f"{left_out} more of these were left out before; " if left_out else ""
        record.msg = f"{record.getMessage()} ({more}logged once in {self.interval:g} s)"
        record.args = ()
        return True


def limit_repeats(interval: float) -> None:
    """Log each line of the exporters and the SDK once in an interval; a later call changes it.

    Args:
        interval: Seconds.
    """
    found = [name for name in logging.root.manager.loggerDict if name.startswith(_PREFIXES)]
    repeats = RepeatFilter(interval)
    for name in {*_LOGGERS, *found}:
        logger = logging.getLogger(name)
        for old in [each for each in logger.filters if isinstance(each, RepeatFilter)]:
            logger.removeFilter(old)
        logger.addFilter(repeats)
