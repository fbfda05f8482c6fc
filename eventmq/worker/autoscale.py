"""How many slots a worker should use: more while jobs wait, fewer after quiet times.

The broker says how many wait; where it does not, all slots being busy says so. Busy time is
measured, not sampled: a slot between two jobs counts as idle for just so long. One slot more than
is needed stays: that it is idle shows that nothing waits.
"""

from __future__ import annotations

import math

__all__ = ["Autoscaler"]

#: Seconds over which busy time is averaged, between two decisions.
WINDOW = 1.0

#: Part of the time that all slots together must be busy before there are more.
FULL = 0.9

#: The same where it is known that jobs wait: between two jobs a slot waits for the next.
BUSY = 0.5

#: Seconds for which slots were not needed before there are fewer.
QUIET = 30.0


class Autoscaler:
    """Decides; pure.

    Args:
        least: Slots that are always there.
        most: Slots at most.

    Attributes:
        size: Slots to use now.
        waiting: Jobs that wait at the broker, None where it does not say.
    """

    __slots__ = (
        "_busy", "_last", "_least", "_most", "_quiet", "_since", "_spent", "size", "waiting",
    )  # fmt: skip

    def __init__(self, least: int, most: int) -> None:
        self.size = least
        self.waiting: int | None = None
        self._least = least
        self._most = most
        self._busy = 0
        self._spent = 0.0
        self._last = self._since = self._quiet = -1.0

    def note(self, now: float, busy: int) -> None:
        """Take note of how many slots are busy from now on, and decide where it is time."""
        if self._last < 0.0:
            self._since = self._quiet = now
        else:
            self._spent += (now - self._last) * self._busy
        self._last, self._busy = now, busy
        if now - self._since >= WINDOW:
            mean = self._spent / (now - self._since)
            self._since, self._spent = now, 0.0
            self._decide(now, mean)

    def _decide(self, now: float, mean: float) -> None:
        full = FULL if self.waiting is None else BUSY
        if mean > full * self.size and self.size < self._most:
            self.size = min(self._most, self.size + self._more())
        needed = math.ceil(mean - (1.0 - FULL)) + 1
        if needed >= self.size or self.size <= self._least:
            self._quiet = now
        elif now - self._quiet >= QUIET:
            self.size -= 1

    def _more(self) -> int:
        """Return how many slots to add where all are busy: one per job that waits, or half."""
        if self.waiting is None:
            return max(1, self.size // 2)
        return min(self.waiting, self.size)
