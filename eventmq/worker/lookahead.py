"""How many chunks a worker wants to hold: enough that no slot waits for the broker, no more."""

from __future__ import annotations

__all__ = ["LONG_JOB", "LookAhead"]

#: Seconds: nothing waits behind a job that runs longer. The broker sizes chunks to as much work.
LONG_JOB = 0.020

#: Seconds: below this the way to the broker and back is long beside a chunk's work.
SHORT_JOB = 0.002

#: Weight of the newest chunk in the average.
WEIGHT = 0.2


class LookAhead:
    """Measures run times and says how many chunks a slot should have."""

    __slots__ = ("_average",)

    def __init__(self) -> None:
        self._average: float | None = None

    def note(self, count: int, ran: float) -> None:
        """Note that ``count`` jobs ran ``ran`` seconds together."""
        if not count:
            return
        each = ran / count
        average = self._average
        self._average = each if average is None else average + WEIGHT * (each - average)

    @property
    def depth(self) -> int:
        """Chunks per slot: 1 while nothing is known and for long jobs, up to 3 for short ones."""
        if self._average is None or self._average >= LONG_JOB:
            return 1
        return 2 if self._average >= SHORT_JOB else 3
