"""Repeated log lines of the SDK and its exporters: each is logged once per interval, with a count.

While its collector is unavailable, an exporter logs a line about once a second, in each process.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["LOG_INTERVAL", "RepeatFilter", "limit_repeats"]

#: Seconds within which a line is logged once: an unavailable collector is noticed, and no log
#: fills.
LOG_INTERVAL: Final = 600.0

#: Loggers of the exporters and their callers. A filter applies to a logger but not to its children,
#: and an app may import its exporter later, so each logger is named.
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
    """Lets each line of a logger pass once per interval, with the number of suppressed lines.

    Lines are equal if their format is. There is no lock, since a process may fork while a thread
    holds it: two threads may both log the first line.

    Args:
        interval: Seconds.
    """

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.interval = interval
        #: (logger, format) -> time of the last logged line, and number of suppressed lines since.
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged."""
        key = (record.name, str(record.msg))
        logged, suppressed = self._last.get(key, (0.0, 0))
        if 0.0 <= record.created - logged < self.interval:
            self._last[key] = (logged, suppressed + 1)
            return False
        self._last[key] = (record.created, 0)
        note = f"{suppressed} more of these were suppressed; " if suppressed else ""
        record.msg = f"{record.getMessage()} ({note}logged once per {self.interval:g} s)"
        record.args = ()
        return True


def limit_repeats(interval: float) -> None:
    """Log each line of the exporters and the SDK once per interval; a later call changes it.

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
