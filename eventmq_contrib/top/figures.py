"""Figures of the page: rates and start delays of a broker's last minute, and how they are written.

Nothing here knows Textual, or asks a broker.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["COUNTED", "WINDOW", "History", "bars", "clock", "rate", "span"]

#: Seconds of the history.
WINDOW = 60.0

#: Seconds over which a rate is taken: a rate of one second would jump.
RATE_WINDOW = 5.0

#: What is counted of jobs.
COUNTED = ("submitted", "succeeded", "failed", "cancelled", "expired", "retried")

#: Bounds of the units in seconds, the units, and their seconds.
_UNITS = (
    (86_400.0, "d", 86_400.0), (3600.0, "h", 3600.0), (60.0, "min", 60.0), (1.0, "s", 1.0),
    (0.0, "ms", 1e-3),
)  # fmt: skip

#: Numbers below this have a digit after the point.
_SMALL = 10.0

_BARS = "▁▂▃▄▅▆▇█"


class _Sample(NamedTuple):
    """The counters of one answer.

    Attributes:
        at: When it came, in seconds of a monotonic clock.
        epoch: Epoch of the broker, which counts from 0 in each.
        jobs: Kind of `COUNTED` -> number of jobs.
        waits: Upper bound of a bucket in seconds -> number of jobs that waited no longer, and
            longer than the next lower bound.
    """

    at: float
    epoch: int
    jobs: Counter[str]
    waits: Counter[float]


class History:
    """Counters of a broker during the last minute, from its answers to ``metrics``."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def add(self, answer: Mapping[str, Any], now: float) -> None:
        """Add an answer.

        Args:
            answer: Answer to the call ``metrics``.
            now: Seconds of a monotonic clock.
        """
        jobs: Counter[str] = Counter()
        waits: Counter[float] = Counter()
        for row in answer["jobs"]:
            jobs.update(submitted=row["submitted"], retried=row["retried"], **row["outcomes"])
            bounds, counts, _ = row["wait"]
            waits.update(dict(zip((*bounds, float("inf")), counts, strict=True)))
        sample = _Sample(now, answer["epoch"], jobs, waits)
        before = self._samples[-1] if self._samples else sample
        if before.epoch != sample.epoch or any(jobs[name] < n for name, n in before.jobs.items()):
            self._samples.clear()  # the broker started anew, or forgot a queue
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at <= now - WINDOW:  # noqa: PLR2004
            self._samples.popleft()

    def rate(self, *names: str) -> float | None:
        """Return how many jobs a second were counted during the last seconds, None if unknown.

        Args:
            *names: Kinds of `COUNTED`.
        """
        if len(self._samples) < 2:  # noqa: PLR2004
            return None
        *others, last = self._samples
        recent = (each for each in others if each.at >= last.at - RATE_WINDOW)
        return _per_second(next(recent, others[-1]), last, names)

    def rates(self, *names: str) -> list[float]:
        """Return the rates between the answers, the oldest first."""
        return [_per_second(*pair, names) for pair in pairwise(self._samples)]

    def start_delay(self, share: float) -> str:
        """Return what the start delay of a share of the jobs of the last minute did not exceed.

        Args:
            share: The share, below 1.

        Returns:
            The upper bound of a bucket as text, such as ``<= 25 ms``; ``-`` if no job started.
        """
        if not self._samples:
            return "-"
        first, last = self._samples[0].waits, self._samples[-1].waits
        delays, below = last - first, 0
        total = sum(delays.values())
        for bound in sorted(delays):
            below += delays[bound]
            if below >= share * total:
                longest = max(each for each in last if each != float("inf"))
                return f"<= {span(bound)}" if bound <= longest else f"> {span(longest)}"
        return "-"


def _per_second(first: _Sample, last: _Sample, names: Sequence[str]) -> float:
    jobs = sum(last.jobs[name] - first.jobs[name] for name in names)
    return jobs / max(last.at - first.at, 1e-3)


def rate(value: float | None) -> str:
    """Return a rate as text."""
    if value is None:
        return "-"
    return f"{value:,.0f}/s" if value >= _SMALL or not value else f"{value:.1f}/s"


def span(seconds: float) -> str:
    """Return a length of time in a suitable unit: ``350 ms``, ``12 min``, ``3.2 h``."""
    _, unit, size = next(each for each in _UNITS if seconds >= each[0] or not each[0])
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= _SMALL else f"{number:.2g} {unit}"


def clock(timestamp: float) -> str:
    """Return the local time of day of a Unix time."""
    return time.strftime("%H:%M:%S", time.localtime(timestamp))


def bars(values: Sequence[float], width: int) -> str:
    """Return the last values as a row of bars, the largest of them at full height."""
    shown = values[-width:]
    highest = max(shown, default=0.0) or 1.0
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in shown)
