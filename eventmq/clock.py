"""The only place that reads time.

State machines get ``now`` as an argument; the code that runs them owns a `Clock`. All figures are
seconds as float: ``now`` is Unix time (UTC), ``monotonic`` counts from an arbitrary point and never
goes back, ``boottime`` is like ``monotonic`` but also counts the time that the machine slept.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Protocol

__all__ = ["Clock", "SystemClock"]

#: The file in which Linux keeps the id of the current boot.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Reads time. Called from any thread, never blocks."""

    def now(self) -> float:
        """Return Unix time in seconds."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary fixed point."""

    def boottime(self) -> float:
        """Return seconds since the machine was started, its sleep included."""

    def boot_id(self) -> str:
        """Return the id of the current boot of the machine, "" if the system has none."""


class SystemClock:
    """The machine's clocks. Without a boot clock, ``boottime`` is monotonic time."""

    __slots__ = ()

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic
    )

    @staticmethod
    def boot_id() -> str:
        """Return the id of the current boot of the machine."""
        try:
            return BOOT_ID.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""
