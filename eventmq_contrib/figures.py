"""Figures of a broker for pages: rates and start delays of the last minute, lengths, and errors.

Nothing here asks a broker, or knows how a page shows a figure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventmq.sdk import decode_error

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COUNTED", "History", "Sample", "duration", "error_text", "sample_of"]

#: What is counted of jobs, beside ``ended`` for all ends.
COUNTED: Final = ("submitted", "succeeded", "failed", "cancelled", "expired", "retried")

#: Seconds over which a rate is taken: a rate of one second would jump.
RATE_WINDOW: Final = 5.0

#: Queues whose figures are kept, those with the most jobs.
MAX_QUEUES: Final = 200

#: Lowest number of seconds, the unit, and its seconds.
_UNITS: Final = (
    (86_400.0, "d", 86_400.0), (3600.0, "h", 3600.0), (60.0, "min", 60.0), (1.0, "s", 1.0),
    (1e-4, "ms", 1e-3), (0.0, "us", 1e-6),
)  # fmt: skip


class Sample(NamedTuple):
    """Figures of a broker at one moment.

    Attributes:
        at: Seconds of a monotonic clock.
        epoch: Epoch of the broker, which counts from 0 in each.
        counts: Queue, or "" for all -> numbers of jobs: ``ended`` and ``waiting``, and of all
            queues together also `COUNTED`.
        waits: Upper bound of a bucket in seconds -> number of jobs that waited no longer, and
            longer than the next lower bound.
    """

    at: float
    epoch: int
    counts: Mapping[str, Counter[str]]
    waits: Counter[float]

    def number(self, name: str, queue: str) -> int:
        """Return a number of ``counts``, 0 of an unknown queue."""
        return self.counts[queue][name] if queue in self.counts else 0


def sample_of(answer: Mapping[str, Any], at: float, waiting: Mapping[str, int]) -> Sample:
    """Return the sample in an answer to ``metrics``.

    Args:
        answer: The answer.
        at: Seconds of a monotonic clock.
        waiting: Queue -> number of waiting jobs.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    waits: Counter[float] = Counter()
    total = counts[""]
    for row in answer["jobs"]:
        ended = sum(row["outcomes"].values())
        counts[row["queue"]]["ended"] += ended
        total.update(
            ended=ended, submitted=row["submitted"], retried=row["retried"], **row["outcomes"]
        )
        bounds, numbers, _ = row["wait"]
        waits.update(dict(zip((*bounds, float("inf")), numbers, strict=True)))
    for name, number in waiting.items():
        counts[name]["waiting"] = number
    busiest = sorted(counts, key=lambda name: counts[name]["ended"], reverse=True)
    total["waiting"] = sum(waiting.values())
    return Sample(at, answer["epoch"], {name: counts[name] for name in busiest[:MAX_QUEUES]}, waits)


@dataclass(frozen=True, slots=True)
class History:
    """Samples of a broker, the oldest first.

    Attributes:
        seconds: For how long samples are kept.
        samples: The samples.
    """

    seconds: float = 60.0
    samples: tuple[Sample, ...] = ()

    def added(self, sample: Sample, gap: float = float("inf")) -> History:
        """Return the history with another sample.

        Args:
            sample: The sample.
            gap: Seconds without a sample after which a history begins anew, as it does when the
                broker starts again or forgets a queue.
        """
        kept = self.samples
        if kept:
            last, now = kept[-1], sample.counts[""]
            lower = any(now[name] < last.counts[""][name] for name in ("ended", *COUNTED))
            if lower or last.epoch != sample.epoch or sample.at - last.at > gap:
                kept = ()
        recent = [n for n, each in enumerate(kept) if each.at > sample.at - self.seconds]
        first = max(0, recent[0] - 1) if recent else max(0, len(kept) - 1)
        return History(self.seconds, (*kept[first:], sample))

    def values(self, name: str, queue: str = "") -> list[float]:
        """Return a number by sample; of one queue, or of all."""
        return [float(each.number(name, queue)) for each in self.samples]

    def rates(self, name: str, queue: str = "") -> list[float]:
        """Return how many jobs a second were counted between samples; of one queue, or of all."""
        return [_per_second(*pair, name, queue) for pair in pairwise(self.samples)]

    def rate(self, name: str, queue: str = "") -> float | None:
        """Return how many jobs a second were counted in the last seconds, None if unknown."""
        if len(self.samples) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        *others, last = self.samples
        recent = (each for each in others if each.at >= last.at - RATE_WINDOW)
        return _per_second(next(recent, others[-1]), last, name, queue)

    def start_delay(self, share: float) -> str:
        """Return what the start delay of a share of the jobs did not exceed, as text.

        Args:
            share: Share of the jobs that started while the samples were taken, below 1.

        Returns:
            The upper bound of a bucket, such as ``≤ 25 ms``; "-" if no job started.
        """
        if not self.samples:
            return "-"
        first, last = self.samples[0].waits, self.samples[-1].waits
        delays, below = last - first, 0
        for bound in sorted(delays):
            below += delays[bound]
            if below >= share * delays.total():
                longest = max(each for each in last if each != float("inf"))
                return f"≤ {duration(bound)}" if bound <= longest else f"> {duration(longest)}"
        return "-"


def _per_second(first: Sample, last: Sample, name: str, queue: str) -> float:
    number = last.number(name, queue) - first.number(name, queue)
    return max(0, number) / max(last.at - first.at, 1e-3)


def duration(seconds: float | None) -> str:
    """Return a length in a suitable unit: ``37 us``, ``0.27 ms``, ``3 min``; "-" for None."""
    if seconds is None:
        return "-"
    _, unit, unit_seconds = next(each for each in _UNITS if seconds >= each[0] or not each[0])
    number = seconds / unit_seconds
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"  # noqa: PLR2004


def error_text(error: Any) -> str:
    """Return an error of a job, also as the broker sends it, as text: type and message."""
    if isinstance(error, bytes):
        error = decode_error(error) if error else None
    return f"{error.type.rpartition('.')[2]}: {error.message}".removeprefix(": ") if error else ""
