"""Fake clock: it stands still until a test moves it."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A `eventmq.clock.Clock` for tests. All its times change together, only by `advance`.

    Args:
        now: Unix time in seconds at the start.
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 1000.0
        self._boottime = 1000.0
        self._boots = 1

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point."""
        return self._monotonic

    def boottime(self) -> float:
        """Return seconds since the machine was started."""
        return self._boottime

    def boot_id(self) -> str:
        """Return the id of the current boot of the machine."""
        return f"boot-{self._boots}"

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._now += seconds
        self._monotonic += seconds
        self._boottime += seconds

    def set_now(self, now: float) -> None:
        """Set Unix time as an operator would, forwards or back; other times do not change."""
        self._now = now

    def sleep(self, seconds: float) -> None:
        """Let the machine sleep: monotonic time stands still."""
        self._now += seconds
        self._boottime += seconds

    def reboot(self, seconds: float) -> None:
        """Let the machine be off for ``seconds``, then boot it."""
        self._now += seconds
        self._boottime = 10.0
        self._boots += 1
