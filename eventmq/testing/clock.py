"""A clock that stands still until it is told to go on."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A `eventmq.clock.Clock` for tests. Both times go on together, by `advance` only.

    Args:
        now: Unix time in seconds at the start.
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 1000.0

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._now += seconds
        self._monotonic += seconds

    def set_now(self, now: float) -> None:
        """Set Unix time as an operator would, forth or back; monotonic time does not jump."""
        self._now = now
