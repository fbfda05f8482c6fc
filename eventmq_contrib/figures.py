"""Figures of a broker for pages: rates and start delays of the last minute, and their texts.

Nothing here asks a broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from itertools import pairwise
from typing import Any, Final, NamedTuple

from eventmq.cli import duration, printable, to_json
from eventmq.sdk import decode_error

__all__ = [
    "COUNTED", "History", "Sample", "arguments_of", "clock", "error_text", "figures_of",
    "length_text", "number_text", "problems_of", "sample_of", "shown",
]  # fmt: skip

Row = Mapping[str, Any]

#: What is counted of jobs, beside ``ended`` for all ends.
COUNTED: Final = ("submitted", "succeeded", "failed", "cancelled", "expired", "retried")

#: Samples over which a rate is taken: that of the last two would jump.
RATE_SAMPLES: Final = 6

#: States of jobs of which a broker keeps the numbers.
_STATES: Final = ("waiting", "running", "delayed", "blocked", "failed")

#: Seconds for which samples are kept, and without one after which a history begins anew.
HISTORY: Final = 90.0
GAP: Final = 10.0

#: Queues whose figures are kept, those with the most jobs.
MAX_QUEUES: Final = 200


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
        return self.counts.get(queue, Counter())[name]


def sample_of(answer: Row, at: float, waiting: Mapping[str, int]) -> Sample:
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
    """Samples of a broker, the oldest first."""

    samples: tuple[Sample, ...] = ()

    def added(self, sample: Sample) -> History:
        """Return the history with another sample.

        It begins anew after `GAP` without one, and when the broker starts again or forgets a queue.
        """
        kept = self.samples
        if kept:
            last, now = kept[-1], sample.counts[""]
            lower = any(now[name] < last.counts[""][name] for name in ("ended", *COUNTED))
            if lower or last.epoch != sample.epoch or sample.at - last.at > GAP:
                kept = ()
        recent = (each for each in kept if each.at >= sample.at - HISTORY)
        return History((*recent, sample))

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
        return _per_second(self.samples[-RATE_SAMPLES:][0], self.samples[-1], name, queue)

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


def figures_of(metrics: Row, history: History) -> dict[str, str]:
    """Return the figures of a broker now as text, by name.

    Args:
        metrics: Its answer to ``metrics``.
        history: Its history.
    """
    queues, workers = metrics["queues"], metrics["workers"]
    oldest = max((row["oldest"] for row in queues), default=0.0)
    used, slots = (sum(row[place] for row in workers) for place in (1, 2))
    return {
        **{name: number_text(sum(row[name] for row in queues)) for name in _STATES},
        **{f"p{share}": history.start_delay(share / 100) for share in (50, 95, 99)},
        "oldest": length_text(oldest),
        "workers": number_text(len(workers)),
        "slots": f"{used:,} of {slots:,}",
    }


def problems_of(queue: Row) -> list[str]:
    """Return why the jobs of a queue may wait for long: ``paused``, ``no worker``."""
    unserved = not queue["workers"] and (queue["waiting"] or queue["running"])
    return ["paused"] * bool(queue["paused"]) + ["no worker"] * bool(unserved)


def number_text(number: float | None) -> str:
    """Return a number with separators, and a digit behind the point if it is small."""
    if number is None:
        return "-"
    return f"{number:,.1f}" if 0 < number < 10 and number != int(number) else f"{number:,.0f}"  # noqa: PLR2004


def length_text(seconds: float | None) -> str:
    """Return a length of time in a suitable unit, "-" for none."""
    return duration(seconds, 2) if seconds else "-"


def error_text(error: Any) -> str:
    """Return an error of a job, also as the broker sends it, as text: type and message."""
    if isinstance(error, bytes):
        error = decode_error(error) if error else None
    return f"{error.type.rpartition('.')[2]}: {error.message}".removeprefix(": ") if error else ""


def arguments_of(info: Row) -> list[str]:
    """Return the arguments of a job as text, one each, or why there are none."""
    if info.get("args_note"):
        return [info["args_note"]]
    named = (info.get("kwargs") or {}).items()
    texts = [f"{name}={to_json(value)}" for name, value in named]
    return [*map(to_json, info.get("args") or ()), *texts]


def shown(value: object) -> object:
    """Return a value for a page: of a text, characters without a shape are shown escaped."""
    if type(value) is str:
        return printable(value, keep="\n\t")
    return "" if value is None else value


def clock(
    timestamp: float | None, form: str = "%Y-%m-%d %H:%M:%S", zone: tzinfo | None = timezone.utc
) -> str:
    """Return a Unix time in UTC, another zone or local time (None); "" for none or too large."""
    try:
        return datetime.fromtimestamp(timestamp, zone).strftime(form) if timestamp else ""
    except (ValueError, OverflowError, OSError):
        return ""
