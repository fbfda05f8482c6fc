"""Metrics of jobs: how many, with which outcome, and how long they waited and ran.

Counted from the events of a commit, once it is stored, so that they say what the event log says:
one step per block of events (`eventmq.events`), nearly nothing per job. Names of queues and tasks
come from outside; how many have figures of their own is bounded, and the rest is under `OTHER`.
What a queue has of these goes when the broker forgets the queue.
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

#: Label of all queues, and of all tasks, that have none of their own.
OTHER = "other"

#: Upper bounds in seconds of the buckets of waits and runs where no setting names others: from what
#: is felt by nobody to what somebody asks about.
WAIT_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
RUN_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip

#: From so many values on they are sorted: one search per bucket and not one per value.
_SORTED = 24

#: A time above this is none: 30,000 years in seconds.
_LONGEST = 1e12

_ENQUEUED, _DELAYED = KIND_CODES[EventKind.ENQUEUED], KIND_CODES[EventKind.DELAYED]

#: Outcome -> number of the kind of event that says so.
_OUTCOMES = {
    kind.value: KIND_CODES[kind]
    for kind in (EventKind.SUCCEEDED, EventKind.FAILED, EventKind.EXPIRED, EventKind.CANCELLED)
}

_RETRY = KIND_CODES[EventKind.RETRY]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLimits:
    """Bounds of the metrics, and their buckets.

    Attributes:
        max_queues: Queues with figures of their own.
        max_tasks: Pairs of queue and task with figures of their own.
        wait_buckets: Pattern of ``queue/task`` and upper bounds in seconds, for how long jobs
            waited; the first pattern that fits counts.
        run_buckets: The same for how long they ran.
    """

    max_queues: int = 100
    max_tasks: int = 1000
    wait_buckets: tuple[tuple[str, tuple[float, ...]], ...] = ()
    run_buckets: tuple[tuple[str, tuple[float, ...]], ...] = ()


class Histogram:
    """A histogram of seconds.

    Args:
        bounds: Upper bounds of the buckets, ascending; one more bucket has what is above.

    Attributes:
        counts: Values by bucket.
        total: Their sum.
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
        self, values: Sequence[float], least: float | None = None, most: float | None = None
    ) -> None:
        """Count values; those that are no length of time are left out.

        Args:
            values: In seconds.
            least: The least of them where it is known; to look for it is a fifth of all this.
            most: The same of the greatest.
        """
        total = sum(values)
        least = min(values) if least is None else least
        most = max(values) if most is None else most
        if not (0.0 <= total < _LONGEST and least >= 0.0):  # so says who ran them
            values = [value for value in values if 0.0 <= value < _LONGEST]
            for value in values:
                self.add(value)
            return
        self.total += total
        bounds, counts = self.bounds, self.counts
        first = bisect_left(bounds, least)
        if first == len(bounds) or most <= bounds[first]:  # short jobs: all in one bucket
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
    """Figures of one task in one queue."""

    __slots__ = ("counts", "queue", "runs", "task", "waits")

    def __init__(self, queue: str, task: str, limits: MetricsLimits) -> None:
        self.queue, self.task = queue, task
        #: Events by the number of their kind; of those that admit a job all are `_ENQUEUED`.
        self.counts = [0] * len(KIND_CODES)
        name = f"{queue}/{task}"
        self.waits = Histogram(_bounds(limits.wait_buckets, name, WAIT_BUCKETS))
        self.runs = Histogram(_bounds(limits.run_buckets, name, RUN_BUCKETS))


def _bounds(
    rules: Iterable[tuple[str, tuple[float, ...]]], name: str, otherwise: tuple[float, ...]
) -> tuple[float, ...]:
    fitting = (bounds for pattern, bounds in rules if fnmatchcase(name, pattern))
    return next(fitting, otherwise)


def _unheard(field: str, name: str) -> None:
    """Do nothing: no broker has said what to do at a bound."""


class JobMetrics:
    """Figures of all jobs since this object was made. One thread.

    Attributes:
        limits: Set by the broker before the first commit that counts.
        on_limit: Called with the name of a field of `limits` and that of a queue, or of a queue and
            task, that is the first to have no figures of its own by it; once for each field.
    """

    def __init__(self) -> None:
        self.limits = MetricsLimits()
        self.on_limit: Callable[[str, str], None] = _unheard
        self._reached: set[str] = set()
        #: Queue and task of jobs -> their figures, of pairs that have their own.
        self._own: dict[tuple[str, str], _TaskMetrics] = {}
        #: The same of all others, by labels.
        self._others: dict[tuple[str, str], _TaskMetrics] = {}
        self._queues: set[str] = set()

    def queue_label(self, queue: str) -> str:
        """Return the name of a queue, or `OTHER` where so many others came before it."""
        if queue in self._queues:
            return queue
        if len(self._queues) >= self.limits.max_queues:
            self._reach("max_queues", queue)
            return OTHER
        self._queues.add(queue)
        return queue

    def forget_queue(self, queue: str) -> None:
        """Drop the figures of a queue, so that its name counts no more to the bounds."""
        if queue not in self._queues:
            return
        self._queues.remove(queue)
        if queue == OTHER:
            return  # its figures are those of all others
        for rows in (self._own, self._others):
            for key in [key for key in rows if key[0] == queue]:
                del rows[key]

    def _reach(self, field: str, name: str) -> None:
        """Say once that a bound is reached."""
        if field not in self._reached:
            self._reached.add(field)
            self.on_limit(field, name)

    def _of(self, key: tuple[str, str]) -> _TaskMetrics:
        """Return the figures of a queue and task without any: new ones, or those of all others."""
        queue, task = key
        label = self.queue_label(queue)
        # What is named as all others are is counted with them: two rows would have one name.
        if label == queue and OTHER not in key:
            if len(self._own) < self.limits.max_tasks:
                self._own[key] = made = _TaskMetrics(queue, task, self.limits)
                return made
            self._reach("max_tasks", f"{queue}/{task}")
        other = (label, OTHER)
        if other not in self._others:
            self._others[other] = _TaskMetrics(*other, self.limits)
        return self._others[other]

    # hot loop: python -m benchmarks drain
    def count(self, blocks: Iterable[Block]) -> None:
        """Count the events of a commit that is stored."""
        own = self._own
        for block in blocks:
            common, ids, columns = block
            kind = common[Field.KIND]
            if kind <= _DELAYED:
                if Field.BYTES_IN not in common and Field.BYTES_IN not in columns:
                    continue  # it was admitted before, and is ready now
                kind = _ENQUEUED
            elif Field.QUEUE not in common or kind >= len(KIND_CODES):
                continue  # a gap
            key = (common[Field.QUEUE], common[Field.LABEL][0])
            figures = own.get(key)
            if figures is None:
                figures = self._of(key)
            figures.counts[kind] += len(ids)
            if Field.STARTED in columns:
                self._add_times(figures, block)
            elif start := common.get(Field.STARTED):
                if len(ids) > 1:
                    self._add_times(figures, block)
                    continue
                # One job: `waits_of` without lists.
                ready, ran, at = common.get(Field.READY), common[Field.RAN], common[Field.AT]
                if 0.0 <= ran < _LONGEST:
                    figures.runs.add(ran)
                    if ready:
                        began = max(
                            start if start <= at else at - ran, common.get(Field.LEASED, ready)
                        )
                        figures.waits.add(max(0.0, began - ready))

    def _add_times(self, figures: _TaskMetrics, block: Block) -> None:
        """Count how long the jobs of a block waited and ran."""
        common, _, columns = block
        starts, runs = columns.get(Field.STARTED), columns.get(Field.RAN)
        first = min(starts) if starts else 0.0
        if runs is None or not first:
            pairs = zip(block.column(Field.STARTED), block.column(Field.RAN), strict=True)
            runs = [run for start, run in pairs if start and run is not None]
        if runs:
            figures.runs.add_all(runs)
        # Where the clocks agree, what `waits_of` returns in a fifth of its time.
        if starts and common.get(Field.LEASED, 1.0) <= first:
            last, several = max(starts), columns.get(Field.READY)
            if last > common[Field.AT]:
                pass
            elif several is None:
                ready = common.get(Field.READY, 0.0)
                if 0.0 < ready <= first:  # most blocks: jobs that came together
                    waits = [start - ready for start in starts]
                    figures.waits.add_all(waits, first - ready, last - ready)
                    return
            elif min(several):
                waits = list(map(sub, starts, several))
                least = min(waits)
                if least >= 0.0:
                    figures.waits.add_all(waits, least)
                    return
        if waited := [wait for wait in waits_of(block) if wait is not None]:
            figures.waits.add_all(waited)

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures as a list of maps, for a message; times are in seconds."""
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
