"""Requested part of a journal: by time, queue and task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.cli import read_timestamp

if TYPE_CHECKING:
    import click
    from pyspark.sql import DataFrame

__all__ = ["FILTERS", "Choice", "RelativeTimestamp"]

#: Names of the filters of a choice.
FILTERS = ("since", "until", "queue", "task")


class RelativeTimestamp(float):
    """Unix time in seconds, with its original text: "2h" is a different time at each start."""

    __slots__ = ("text",)

    text: str

    @classmethod
    def read(cls, ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        """Return the timestamp of an option, None if it was not used.

        Raises:
            BadParameter: It is not a timestamp.
        """
        seconds = read_timestamp(ctx, param, value)
        if seconds is None or value is None:
            return None
        timestamp = cls(seconds)
        timestamp.text = value
        return timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Part of a journal.

    Attributes:
        since: Only events from then on, Unix time in seconds, or None.
        until: Only events before then, Unix time in seconds, or None.
        queue: Only jobs of this queue, or None.
        task: Only jobs of this task, or None.
    """

    since: float | None = None
    until: float | None = None
    queue: str | None = None
    task: str | None = None

    def of(self, events: DataFrame) -> DataFrame:
        """Return the events of the choice."""
        return self.jobs(self.times(events))

    def times(self, rows: DataFrame, column: str = "ts_us") -> DataFrame:
        """Return the rows in the time range of the choice, of any job.

        Args:
            rows: Rows with times.
            column: Column of the times, in microseconds.
        """
        if self.since is not None:
            rows = rows.where(rows[column] >= round(self.since * 1_000_000))
        if self.until is not None:
            rows = rows.where(rows[column] < round(self.until * 1_000_000))
        return rows

    def jobs(self, events: DataFrame) -> DataFrame:
        """Return the events of the chosen jobs, of any time."""
        for name, value in (("queue", self.queue), ("task", self.task)):
            if value is not None:
                events = events.where(events[name] == value)
        return events
