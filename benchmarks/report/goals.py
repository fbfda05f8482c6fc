"""Goals of EventMQ compared with its best peer, per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.report.record import Figure

__all__ = ["AGAINST", "Goal"]


class Goal(NamedTuple):
    """The relevant figure of a row, and its goal as a multiple of the best peer's.

    Attributes:
        figure: Name of the figure.
        title: Description for people.
        factor: Minimum multiple of the best peer's figure, or maximum if less is better.
        less: Whether less is better.
        alone: Whether ``factor`` is compared with EventMQ's own figure, not with a ratio.
    """

    figure: str
    title: str
    factor: float
    less: bool = False
    alone: bool = False

    def best(self, figures: Mapping[str, Figure]) -> str:
        """Return the system with the best median."""
        sign = 1 if self.less else -1
        return min(figures, key=lambda system: sign * figures[system].median)

    def met(self, ours: float, ratio: float) -> bool:
        """Return whether EventMQ's figure, or its ratio to the best other one, is good enough."""
        value = ours if self.alone else ratio
        return value <= self.factor if self.less else value >= self.factor

    @property
    def text(self) -> str:
        """Text of the goal."""
        of = "EventMQ" if self.alone else "ratio"
        return f"{of} at {'most' if self.less else 'least'} {self.factor:g}"


#: Row -> its goal.
AGAINST = {
    "enqueue_one": Goal("per_second", "jobs/s, one by one", 1.0),
    "enqueue_bulk": Goal("per_second", "jobs/s, many at once", 12.0),
    "drain": Goal("per_second", "waiting jobs/s, two processes", 10.0),
    "flow": Goal("per_second", "jobs/s, produced and run together", 8.0),
    "call": Goal("p50_ms", "ms from call to result, p50", 1.0, less=True),
    # For figures from before EventMQ had `Task.call`: the same row, with delay().get().
    "round_trip": Goal("p50_ms", "ms from call to result, p50", 0.25, less=True),
    "latency_under_load": Goal(
        "p99_ms", "ms until a start at half of the own peak, p99", 0.5, less=True
    ),
    "mixed": Goal("p99_ms", "ms until a start beside jobs of 1 s, p99", 0.5, less=True),
    "memory": Goal("after_mib", "MiB of server and workers after jobs", 1.0, less=True),
    "recovery": Goal(
        "seconds", "s until the job of a killed worker runs", 1.0, less=True, alone=True
    ),
}
