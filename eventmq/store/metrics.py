"""Metrics of jobs: their numbers and outcomes, and how long they waited and ran.

The store counts the events of each commit after it is stored, so the metrics agree with the event
log. Counting costs one step per block of events (`eventmq.events`), and nearly nothing per job.
Since clients choose the names of queues and tasks, only a limited number of them have metrics of
their own; all others are counted under `OTHER`. The metrics of a queue are dropped when the broker
forgets it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import sub
from typing import TYPE_CHECKING, Any

from eventmq.events import KIND_CODES, EventKind, Field, waits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from eventmq.events import Block

__all__ = ["OTHER", "Histogram", "JobMetrics", "MetricsLimits"]

#: Label of all queues, and of all tasks, that have no label of their own.
OTHER = "other"

#: Default upper bounds of the buckets of waits and runs, in seconds.
WAIT_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
RUN_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip

#: Number of values from which they are sorted, for one search per bucket instead of per value.
_SORTED = 24

#: Times above this are invalid: 30,000 years in seconds.
_LONGEST = 1e12

_ENQUEUED, _DELAYED = KIND_CODES[EventKind.ENQUEUED], KIND_CODES[EventKind.DELAYED]

#: Outcome -> code of the kind of its event.
_OUTCOMES = {
    kind.value: KIND_CODES[kind]
    for kind in (EventKind.SUCCEEDED, EventKind.FAILED, EventKind.EXPIRED, EventKind.CANCELLED)
}

_RETRY = KIND_CODES[EventKind.RETRY]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLimits:
    """Limits of the metrics, and their buckets.

    Attributes:
        max_queues: Number of queues with metrics of their own.
        max_tasks: Number of pairs of queue and task with metrics of their own.
        wait_buckets: Patterns of ``queue/task`` with upper bounds in seconds for waiting times. The
            first matching pattern applies.
        run_buckets: The same for run times.
    """

    max_queues: int = 100
    max_tasks: int = 1000
    wait_buckets: tuple[tuple[str, tuple[float, ...]], ...] = ()
    run_buckets: tuple[tuple[str, tuple[float, ...]], ...] = ()


class Histogram:
    """A histogram of seconds.

    Args:
        bounds: Upper bounds of the buckets, ascending. One more bucket has all larger values.

    Attributes:
        counts: Number of values by bucket.
        total: Sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    # hot loop: python -m benchmarks drain
    def add_all(
        self, values: Sequence[float], smallest: float | None = None, largest: float | None = None
    ) -> None:
        """Count values; leave out invalid ones.

        Args:
            values: In seconds.
            smallest: The smallest value, if the caller knows it: to find it takes a fifth of the
                time of this function.
            largest: The same for the largest value.
        """
        total = sum(values)
        smallest = min(values) if smallest is None else smallest
        largest = max(values) if largest is None else largest
        if not (0.0 <= total < _LONGEST and smallest >= 0.0):  # workers report the times
            values = [value for value in values if 0.0 <= value < _LONGEST]
            for value in values:
                self.add(value)
            return
        self.total += total
        bounds, counts = self.bounds, self.counts
        first = bisect_left(bounds, smallest)
        if first == len(bounds) or largest <= bounds[first]:  # short jobs: all in one bucket
            counts[first] += len(values)
            return
        if len(values) < _SORTED:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            return
        ordered, before = sorted(values), 0
        for index in range(first, len(bounds)):
            until = bisect_right(ordered, bounds[index], before)
            counts[index] += until - before
            if until == len(ordered):
                return
            before = until
        counts[-1] += len(ordered) - before

    def plain(self) -> list[Any]:
        """Return bounds, counts and sum, for a message."""
        return [list(self.bounds), list(self.counts), self.total]


class _TaskMetrics:
    """Metrics of one task in one queue."""

    __slots__ = ("counts", "queue", "runs", "task", "waits")

    def __init__(self, queue: str, task: str, limits: MetricsLimits) -> None:
        self.queue, self.task = queue, task
        #: Number of events by the code of their kind; all that admit a job count as `_ENQUEUED`.
        self.counts = [0] * len(KIND_CODES)
        name = f"{queue}/{task}"
        self.waits = Histogram(_bounds(limits.wait_buckets, name, WAIT_BUCKETS))
        self.runs = Histogram(_bounds(limits.run_buckets, name, RUN_BUCKETS))


def _bounds(
    rules: Iterable[tuple[str, tuple[float, ...]]], name: str, default: tuple[float, ...]
) -> tuple[float, ...]:
    matches = (bounds for pattern, bounds in rules if fnmatchcase(name, pattern))
    return next(matches, default)


def _ignore_limit(field: str, name: str) -> None:
    """Do nothing: the default of `JobMetrics.on_limit`."""


class JobMetrics:
    """Metrics of all jobs since this object was made. For one thread.

    Attributes:
        limits: The broker sets them before the first commit that counts.
        on_limit: Called once for each field of `limits` that is reached, with its name and that of
            the queue, or of queue and task, that gets no metrics of its own.
    """

    def __init__(self) -> None:
        self.limits = MetricsLimits()
        self.on_limit: Callable[[str, str], None] = _ignore_limit
        self._reached: set[str] = set()
        #: Queue and task -> their own metrics.
        self._own: dict[tuple[str, str], _TaskMetrics] = {}
        #: Labels of queue and task -> metrics of all others.
        self._others: dict[tuple[str, str], _TaskMetrics] = {}
        self._queues: set[str] = set()

    def queue_label(self, queue: str) -> str:
        """Return the name of a queue, or `OTHER` if too many other queues have labels."""
        if queue in self._queues:
            return queue
        if len(self._queues) >= self.limits.max_queues:
            self._reach("max_queues", queue)
            return OTHER
        self._queues.add(queue)
        return queue

    def forget_queue(self, queue: str) -> None:
        """Drop the metrics of a queue, whose name then no longer counts towards the limits."""
        if queue not in self._queues:
            return
        self._queues.remove(queue)
        if queue == OTHER:
            return  # its metrics are those of all other queues
        for rows in (self._own, self._others):
            for key in [key for key in rows if key[0] == queue]:
                del rows[key]

    def _reach(self, field: str, name: str) -> None:
        """Report a reached limit, once."""
        if field not in self._reached:
            self._reached.add(field)
            self.on_limit(field, name)

    def _of(self, key: tuple[str, str]) -> _TaskMetrics:
        """Return metrics for a new pair of queue and task: new ones, or those of all others."""
        queue, task = key
        label = self.queue_label(queue)
        # A queue or task with the name `OTHER` is counted there, since two rows would share a name.
        if label == queue and OTHER not in key:
            if len(self._own) < self.limits.max_tasks:
                self._own[key] = metrics = _TaskMetrics(queue, task, self.limits)
                return metrics
            self._reach("max_tasks", f"{queue}/{task}")
        other = (label, OTHER)
        if other not in self._others:
            self._others[other] = _TaskMetrics(*other, self.limits)
        return self._others[other]

    # hot loop: python -m benchmarks drain
    def count(self, blocks: Iterable[Block]) -> None:
        """Count the events of a stored commit."""
        own = self._own
        for block in blocks:
            common, ids, columns = block
            kind = common[Field.KIND]
            if kind <= _DELAYED:
                if Field.BYTES_IN not in common and Field.BYTES_IN not in columns:
                    continue  # a job that was admitted before and is ready now
                kind = _ENQUEUED
            elif Field.QUEUE not in common or kind >= len(KIND_CODES):
                continue  # a gap
            key = (common[Field.QUEUE], common[Field.LABEL][0])
            metrics = own.get(key)
            if metrics is None:
                metrics = self._of(key)
            metrics.counts[kind] += len(ids)
            if Field.STARTED in columns:
                self._add_times(metrics, block)
            elif start := common.get(Field.STARTED):
                if len(ids) > 1:
                    self._add_times(metrics, block)
                    continue
                # One job: `waits_of` without lists.
                ready, run_time, at = common.get(Field.READY), common[Field.RAN], common[Field.AT]
                if 0.0 <= run_time < _LONGEST:
                    metrics.runs.add(run_time)
                    if ready:
                        began = max(
                            start if start <= at else at - run_time, common.get(Field.LEASED, ready)
                        )
                        metrics.waits.add(max(0.0, began - ready))

    def _add_times(self, metrics: _TaskMetrics, block: Block) -> None:
        """Count how long the jobs of a block waited and ran."""
        common, _, columns = block
        starts, runs = columns.get(Field.STARTED), columns.get(Field.RAN)
        first = min(starts) if starts else 0.0
        if runs is None or not first:
            pairs = zip(block.column(Field.STARTED), block.column(Field.RAN), strict=True)
            runs = [run for start, run in pairs if start and run is not None]
        if runs:
            metrics.runs.add_all(runs)
        # If the clocks agree: the result of `waits_of` in a fifth of its time.
        if starts and common.get(Field.LEASED, 1.0) <= first:
            last, several = max(starts), columns.get(Field.READY)
            if last > common[Field.AT]:
                pass
            elif several is None:
                ready = common.get(Field.READY, 0.0)
                if 0.0 < ready <= first:  # most blocks: jobs that arrived together
                    waits = [start - ready for start in starts]
                    metrics.waits.add_all(waits, first - ready, last - ready)
                    return
            elif min(several):
                waits = list(map(sub, starts, several))
                smallest = min(waits)
                if smallest >= 0.0:
                    metrics.waits.add_all(waits, smallest)
                    return
        if waited := [wait for wait in waits_of(block) if wait is not None]:
            metrics.waits.add_all(waited)

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics as a list of maps, for a message; times are in seconds."""
        return [
            {
                "queue": each.queue,
                "task": each.task,
                "submitted": each.counts[_ENQUEUED],
                "retried": each.counts[_RETRY],
                "outcomes": {name: each.counts[code] for name, code in _OUTCOMES.items()},
                "wait": each.waits.plain(),
                "run": each.runs.plain(),
            }
            for each in (*self._own.values(), *self._others.values())
        ]
