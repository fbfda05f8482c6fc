"""Timeline: values over time in even spans, which `report` plots.

Spark aggregates by span; the few thousand rows that remain are merged here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.sdk.events import EventKind
from eventmq_contrib.spark.analyses.executions import executions
from eventmq_contrib.spark.analyses.numbers import numbers
from eventmq_contrib.spark.analyses.slo import still_known
from eventmq_contrib.spark.analyses.states import lives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import Column, DataFrame

    from eventmq_contrib.spark.analyses.numbers import Numbers

    Values = dict[str, list[float | None]]

__all__ = ["OTHERS", "QUEUES", "SPANS", "timeline"]

#: Most spans of a timeline.
SPANS = 80

#: Number of queues with values of their own; the others are merged under this name.
QUEUES = 6
OTHERS = "(others)"

_SECOND = 1_000_000

#: Allowed seconds of a span; longer ones are whole weeks.
_WIDTHS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
)  # fmt: skip
_WEEK = 604_800

_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_ACCURACY = 10_000

#: Kind -> its name in the plot.
_SHOWN = {
    str(EventKind.SUCCEEDED): "succeeded", str(EventKind.RETRY): "tried again",
    str(EventKind.FAILED): "failed",
    str(EventKind.CANCELLED): "cancelled", str(EventKind.EXPIRED): "expired",
}  # fmt: skip


class Spans(NamedTuple):
    """Even spans of time: start of the first, length of each (microseconds), and their number."""

    begin: int
    width: int
    n: int

    def of(self, column: Column) -> Column:
        """Return the span of a time; times outside belong to the first or the last span."""
        from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

        index = F.floor((column - F.lit(self.begin)) / F.lit(self.width)).cast("int")
        return F.greatest(F.lit(0), F.least(F.lit(self.n - 1), index))


def _spans(first: int, last: int) -> Spans:
    whole = (last - first) / _SECOND
    width = next((w for w in _WIDTHS if whole / w < SPANS), None)
    if width is None:
        width = _WEEK * -(-int(whole) // (_WEEK * (SPANS - 1)))
    begin = first // (width * _SECOND) * width * _SECOND
    return Spans(begin, width * _SECOND, (last - begin) // (width * _SECOND) + 1)


def timeline(
    events: DataFrame, first: int, last: int, *, runs: DataFrame | None = None,
    jobs: DataFrame | None = None, brokers: Iterable[Numbers] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the values of each span of time.

    Args:
        events: Rows of a journal.
        first: Time of the first event, in microseconds.
        last: Time of the last event, in microseconds.
        runs: Rows of `executions`, if they were computed before.
        jobs: Rows of `states.lives` with queues, if they were computed before.
        brokers: Numbers of all brokers, if ``events`` are a part of them.

    Returns:
        ``times`` (Unix time, when each span begins), ``width`` (seconds), and by name a value for
        each span: ``ended`` (jobs), ``came`` (jobs by queue), ``waited`` and ``ran`` (percentiles,
        seconds), ``ages`` (seconds that the oldest job waits at the end of the span, by queue),
        ``working`` (jobs that ran at once on average, by queue).
    """
    spans = _spans(first, last)
    runs = executions(events) if runs is None else runs
    jobs = lives(events, "queue") if jobs is None else jobs
    counts = _counts(events, spans)
    arrivals: dict[str, list[float]] = defaultdict(lambda: [0.0] * spans.n)
    ended = {name: [0.0] * spans.n for name in _SHOWN.values()}
    for row in counts:
        arrivals[row["queue"]][row["span"]] += row["came"]
        if row["kind"] in _SHOWN:
            ended[_SHOWN[row["kind"]]][row["span"]] += row["n"]
    busiest = sorted(arrivals, key=lambda name: (-sum(arrivals[name]), name))[:QUEUES]
    started = runs.withColumn("span", spans.of(runs.started_us))
    # Not by queue in the same pass: Spark would sort so many groups of percentiles, not hash them.
    times = started.groupBy("span").agg(*_percentiles("wait_us"), *_percentiles("run_us")).collect()
    waiting = [tuple(row) for row in started.groupBy("queue", "span").agg(_ready()).collect()]
    waiting += _unstarted(jobs, spans, numbers(events) if brokers is None else brokers)
    return {
        "times": [(spans.begin + k * spans.width) / _SECOND for k in range(spans.n)],
        "width": spans.width / _SECOND,
        "ended": {name: values for name, values in ended.items() if any(values)},
        "came": _merged(arrivals, busiest, sum),
        "waited": _lines(times, "wait_us", spans.n),
        "ran": _lines(times, "run_us", spans.n),
        "ages": _merged(_ages(waiting, spans, last), busiest, max),
        "working": _merged(_working(runs, spans), busiest, sum),
    }


def _counts(events: DataFrame, spans: Spans) -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    admitted = F.col("kind").isin([str(EventKind.ENQUEUED), str(EventKind.DELAYED)])
    return (
        events.groupBy(
            spans.of(F.col("ts_us")).alias("span"), "kind",
            F.coalesce("queue", F.lit("")).alias("queue"),
        )
        .agg(
            F.count("*").alias("n"),
            # Only the event of an admission has the size of the arguments.
            F.count_if(admitted & F.col("bytes_in").isNotNull()).alias("came"),
        )
        .collect()
    )  # fmt: skip


def _ready() -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    return F.min("ready_us").alias("ready_us")


def _percentiles(column: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    shares = list(_PERCENTILES.values())
    return [F.percentile_approx(column, shares, _ACCURACY).alias(column)]


def _lines(measured: Iterable[Any], column: str, n: int) -> Values:
    """Return the percentiles of each span, None if nothing started."""
    values: Values = {name: [None] * n for name in _PERCENTILES}
    for row in measured:
        for name, value in zip(_PERCENTILES, row[column], strict=True):
            values[name][row["span"]] = value / _SECOND
    return values


# Waiting jobs


def _unstarted(
    jobs: DataFrame, spans: Spans, brokers: Iterable[Numbers]
) -> list[tuple[str, int, int]]:
    """Return (queue, span of the end, ready since) of jobs that never ran.

    Of each queue and span only the oldest. Jobs that still wait have an end after all spans; they
    are left out if their end may be among missing numbers.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    over = spans.of(F.col("gone_us"))
    span = F.when(F.col("gone_us").isNull(), F.lit(spans.n)).otherwise(over).alias("span")
    never = jobs.where((F.col("runs") == 0) & F.col("ready_us").isNotNull())
    columns = ("queue", "gone_us", "ready_us")
    withdrawn = never.where(F.col("gone_us").isNotNull()).select(*columns)
    waiting = still_known(never.where(F.col("gone_us").isNull()), brokers).select(*columns)
    rows = (
        withdrawn.unionByName(waiting)
        .groupBy(F.coalesce("queue", F.lit("")).alias("queue"), span)
        .agg(_ready())
    )
    return [(row["queue"], row["span"], row["ready_us"]) for row in rows.collect()]


def _ages(
    waiting: Iterable[tuple[str, int, int]], spans: Spans, last: int
) -> dict[str, list[float]]:
    """Return how old the oldest waiting job is at the end of each span.

    A job that starts in a later span and was ready before the end of this one is waiting then, so
    only the earliest ready time among later starts is needed.
    """
    oldest: dict[str, list[float]] = defaultdict(lambda: [float("inf")] * (spans.n + 1))
    for queue, span, ready in waiting:
        if span is not None:
            oldest[queue][span] = min(oldest[queue][span], ready)
    ages = {}
    for queue, earliest in oldest.items():
        for k in range(spans.n - 1, -1, -1):
            earliest[k] = min(earliest[k], earliest[k + 1])
        ends = [min(spans.begin + (k + 1) * spans.width, last) for k in range(spans.n)]
        ages[queue] = [
            max(0.0, (end - ready) / _SECOND) for end, ready in zip(ends, earliest[1:], strict=True)
        ]
    return ages


# Busy slots


def _working(runs: DataFrame, spans: Spans) -> dict[str, list[float]]:
    """Return how many jobs ran at once on average: run time in a span, divided by its length."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    ended = F.col("started_us") + F.col("run_us")
    span = F.explode(F.sequence(spans.of(F.col("started_us")), spans.of(ended))).alias("span")
    begin = F.lit(spans.begin) + F.col("span").cast("long") * spans.width
    inside = F.least("ended_us", begin + spans.width) - F.greatest("started_us", begin)
    rows = (
        runs.select("queue", "started_us", ended.alias("ended_us"), span)
        .groupBy("queue", "span")
        .agg(F.sum(F.greatest(F.lit(0), inside)).alias("busy_us"))
    )
    working: dict[str, list[float]] = defaultdict(lambda: [0.0] * spans.n)
    for row in rows.collect():
        working[row["queue"]][row["span"]] = row["busy_us"] / spans.width
    return working


def _merged(
    by_queue: dict[str, list[float]], names: Sequence[str], together: Callable[[Any], float]
) -> dict[str, list[float]]:
    """Return the values of some queues, and those of all others merged."""
    merged = {name: by_queue[name] for name in names if name in by_queue}
    others = [values for name, values in by_queue.items() if name not in merged]
    if others:
        merged[OTHERS] = [together(values) for values in zip(*others, strict=True)]
    return merged
