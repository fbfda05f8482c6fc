"""The only place that reads time.

State machines get ``now`` as an argument; what runs them owns a `Clock`. All figures are seconds
as float: ``now`` is Unix time (UTC), ``monotonic`` counts from an arbitrary point and never goes
back.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Reads time. Called from any thread, never blocks."""

    def now(self) -> float:
        """Return Unix time in seconds."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary fixed point."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
