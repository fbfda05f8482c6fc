"""Report: the numbers and texts of the page of `eventmq spark report`.

Values over time are in even spans. Spark aggregates by span; the few thousand rows that remain are
merged here.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq.errors import StoreError
from eventmq.sdk.events import EventKind
from eventmq_contrib.spark.analyses import MIN_HISTORY, capacity
from eventmq_contrib.spark.analyses.anomaly import anomaly, between
from eventmq_contrib.spark.analyses.audit import Numbers, audit, numbers
from eventmq_contrib.spark.analyses.clocks import sentence, wrong_clocks
from eventmq_contrib.spark.analyses.failures import failures
from eventmq_contrib.spark.analyses.slo import Objective, slo, still_known
from eventmq_contrib.spark.analyses.states import FEW, executions, is_silent, lives
from eventmq_contrib.spark.analyses.stats import QUANTILES
from eventmq_contrib.spark.choice import Choice

if TYPE_CHECKING:
    from eventmq_contrib.spark.journal import Evidence

__all__ = ["MAX_ROWS", "OTHERS", "QUEUES", "SPANS", "report", "timeline"]

Values: TypeAlias = dict[str, list[float | None]]

#: Maximum rows of a table of the page; further ones are counted.
MAX_ROWS = 20

#: Columns of runs that the parts of the report use.
_OF_RUNS = (
    "task", "queue", "worker_id", "kind", "ready_us", "started_us", "run_us", "wait_us",
)  # fmt: skip

_SECOND = 1_000_000
_ACCURACY = 10_000


def report(
    events: DataFrame, *, choice: Choice | None = None, target_p95: float = 1.0,
    objective: Objective | None = None, progress: Callable[[str], None] = lambda _: None,
    evidence: Evidence | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the report of a journal.

    Args:
        events: All events of the journal, from which missing numbers and earlier weeks are found.
        choice: Part of the journal to report; by default all of it.
        target_p95: Seconds that 95 % of the jobs of a queue may wait at most.
        objective: Service level objective of each queue; by default 95 % start within 2 s.
        progress: Called with the name of each part before it is made; a run takes minutes.
        evidence: Findings about the files of the journal, for the audit.

    Raises:
        StoreError: The journal has no event.
    """
    choice = choice or Choice()
    selected = choice.of(events)
    progress("the overview")
    result = {**_overview(selected), "target_p95": target_p95, "min_history": MIN_HISTORY}
    first, last = (round(result[name] * _SECOND) for name in ("first", "last"))
    target = objective or Objective()
    brokers = numbers(choice.times(events))
    executed = executions(selected, few=result.pop("silent") <= FEW).select(*_OF_RUNS)
    with _persisted(executed) as runs, _persisted(lives(selected, "queue")) as jobs:
        parts: Mapping[str, Callable[[], dict[str, Any]]] = {
            "the audit": lambda: {"audit": _audit(events, choice, jobs, evidence)},
            "clocks": lambda: {"clocks": [
                sentence(row.host, row.broker_id, row.early_s, row.late_s)
                for row in wrong_clocks(events).limit(MAX_ROWS).collect()
            ]},
            "what happened when": lambda: {
                "timeline": timeline(selected, first, last, runs=runs, jobs=jobs, brokers=brokers)
            },
            "tasks": lambda: _tasks(runs),
            "service levels": lambda: {"slo": _levels(selected, target, last, jobs, brokers)},
            "failures": lambda: _failures(selected),
            "capacity": lambda: _capacity(selected, target_p95, runs),
            "odd hours": lambda: _cut("anomalies", _rows(
                between(anomaly(choice.jobs(events)), choice.since, choice.until)
            )),
        }  # fmt: skip
        for part, analyse in parts.items():
            progress(part)
            result |= analyse()
    return {**result, "total": _totals(result)}


@contextlib.contextmanager
def _persisted(table: DataFrame) -> Iterator[DataFrame]:
    """Persist a table that several parts use, on disk, not in memory."""
    table.persist(StorageLevel.DISK_ONLY)
    try:
        yield table
    finally:
        table.unpersist()


def _overview(events: DataFrame) -> dict[str, Any]:
    [about] = events.agg(
        F.count("*").alias("events"), F.count_distinct("broker_id").alias("brokers"),
        F.min("ts_us").alias("first"), F.max("ts_us").alias("last"),
        F.count_if(is_silent()).alias("silent"),
    ).collect()  # fmt: skip
    if not about["events"]:
        raise StoreError("there is no event of this time, queue and task: nothing to report")
    first, last = about["first"] / _SECOND, about["last"] / _SECOND
    return {**about.asDict(), "first": first, "last": last, "seconds": last - first}


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.collect()]


def _cut(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: list(rows[:MAX_ROWS]), f"more_{name}": max(0, len(rows) - MAX_ROWS)}


def _audit(
    events: DataFrame, choice: Choice, jobs: DataFrame, evidence: Evidence | None
) -> dict[str, Any]:
    # Jobs of a time range have events at any time.
    timeless = choice.since is None and choice.until is None
    result = audit(
        events, listed=MAX_ROWS, queue=choice.queue, task=choice.task, since=choice.since,
        until=choice.until, jobs=jobs if timeless else None, evidence=evidence,
    )  # fmt: skip
    return {**result.as_dict(), "sound": result.sound}


def _tasks(runs: DataFrame) -> dict[str, Any]:
    """Return a row per task and queue, and one for all of them as ``whole``."""
    shares = list(QUANTILES.values())
    rolled = runs.groupingSets([["task", "queue"], []], "task", "queue")
    rows = rolled.agg(
        F.count("*").alias("runs"),
        F.count_if(F.col("kind") == str(EventKind.FAILED)).alias("failed"),
        F.count_if(F.col("kind") == str(EventKind.RETRY)).alias("retries"),
        F.percentile_approx("wait_us", shares, _ACCURACY).alias("wait"),
        F.percentile_approx("run_us", shares, _ACCURACY).alias("run"),
    ).collect()  # fmt: skip
    flat = [
        {
            **{name: row[name] for name in ("task", "queue", "runs", "failed", "retries")},
            **{
                f"{measure}_{share}_s": value / _SECOND
                for measure in ("wait", "run")
                for share, value in zip(QUANTILES, row[measure] or (), strict=False)
            },
        }
        for row in rows
    ]
    flat.sort(key=lambda row: (-row["runs"], row["task"] or "", row["queue"] or ""))
    whole = next((row for row in flat if row["task"] is None), {})
    return {**_cut("tasks", [row for row in flat if row["task"] is not None]), "whole": whole}


def _levels(
    events: DataFrame, objective: Objective, last: int, jobs: DataFrame, brokers: list[Numbers]
) -> list[dict[str, Any]]:
    target = {"share": objective.share, "within": objective.within}
    table = slo(events, objective, now=last / _SECOND, jobs=jobs, brokers=brokers)
    return [
        {**row, **target, "met": (row["attainment"] or 0.0) >= objective.share}
        for row in sorted(_rows(table), key=lambda row: -row["starts"])
        if row["starts"] or row["waiting"]
    ]


def _failures(events: DataFrame) -> dict[str, Any]:
    table = failures(events)
    for name in ("first_seen", "last_seen"):
        table = table.withColumn(name, F.unix_micros(name) / _SECOND)
    rows = _rows(table.limit(MAX_ROWS + 1))
    max_attempts = max((row["attempts"] for row in rows), default=1)
    result = _cut("failures", [{**row, "length": row["attempts"] / max_attempts} for row in rows])
    if len(rows) > MAX_ROWS:
        result["more_failures"] = table.count() - MAX_ROWS
    return result


def _capacity(events: DataFrame, target_p95: float, runs: DataFrame) -> dict[str, Any]:
    rows = _rows(capacity.capacity(events, target_p95=target_p95, runs=runs))
    needed = {row["queue"]: row["slots"] for row in rows if row["what"] == "needed"}
    queues = [
        {**row, "needed": needed.get(row["queue"])}
        for row in sorted(rows, key=lambda row: -row["jobs"]) if row["what"] == "recorded"
    ]  # fmt: skip
    workers = sorted(_rows(capacity.workers(events, runs=runs)), key=lambda row: -row["jobs"])
    slots = sum(row["slots"] * row["span_s"] for row in workers)
    busy = sum(row["busy_s"] for row in workers)
    return {
        **_cut("capacity", queues), **_cut("workers", workers),
        "utilisation": busy / slots if slots else None,
    }  # fmt: skip


def _totals(result: dict[str, Any]) -> dict[str, Any]:
    """Return the figures at the top of the page."""
    audited, whole = result["audit"], result["whole"]
    ended = sum(audited[name] for name in ("succeeded", "failed", "cancelled", "expired"))
    done = audited["succeeded"] + audited["failed"]
    return {
        "ended": ended, "rate": ended / result["seconds"] if result["seconds"] else None,
        "failed_share": audited["failed"] / done if done else None,
        "wait_p95_s": whole.get("wait_p95_s"), "run_p95_s": whole.get("run_p95_s"),
        "utilisation": result["utilisation"],
    }  # fmt: skip


# Values over time

#: Most spans of a timeline.
SPANS = 80

#: Number of queues with values of their own; the others are merged under this name.
QUEUES = 6
OTHERS = "(others)"

#: Allowed seconds of a span; longer ones are whole weeks.
_WIDTHS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
)  # fmt: skip
_WEEK = 604_800

#: Kind -> its name in the plot.
_LABELS = {
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
    arrivals: dict[str, list[float]] = defaultdict(lambda: [0.0] * spans.n)
    ended = {name: [0.0] * spans.n for name in _LABELS.values()}
    for row in _counts(events, spans):
        arrivals[row["queue"]][row["span"]] += row["came"]
        if row["kind"] in _LABELS:
            ended[_LABELS[row["kind"]]][row["span"]] += row["n"]
    busiest = sorted(arrivals, key=lambda name: (-sum(arrivals[name]), name))[:QUEUES]
    started = runs.withColumn("span", spans.of(runs.started_us))
    # Queues need another pass: with that many groups of percentiles Spark would sort, not hash.
    times = started.groupBy("span").agg(*(
        F.percentile_approx(name, list(QUANTILES.values()), _ACCURACY).alias(name)
        for name in ("wait_us", "run_us")
    )).collect()  # fmt: skip
    waiting = [tuple(row) for row in started.groupBy("queue", "span").agg(_ready()).collect()]
    waiting += _unstarted(jobs, spans, numbers(events) if brokers is None else brokers)
    return {
        "times": [(spans.begin + k * spans.width) / _SECOND for k in range(spans.n)],
        "width": spans.width / _SECOND,
        "ended": {name: values for name, values in ended.items() if any(values)},
        "came": _merge_others(arrivals, busiest, sum),
        "waited": _lines(times, "wait_us", spans.n),
        "ran": _lines(times, "run_us", spans.n),
        "ages": _merge_others(_ages(waiting, spans, last), busiest, max),
        "working": _merge_others(_working(runs, spans), busiest, sum),
    }


def _counts(events: DataFrame, spans: Spans) -> list[Any]:
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
    return F.min("ready_us").alias("ready_us")


def _lines(measured: Iterable[Any], column: str, n: int) -> Values:
    """Return the percentiles of each span, None if nothing started."""
    values: Values = {name: [None] * n for name in QUANTILES}
    for row in measured:
        for name, value in zip(QUANTILES, row[column], strict=True):
            values[name][row["span"]] = value / _SECOND
    return values


# Waiting jobs


def _unstarted(
    jobs: DataFrame, spans: Spans, brokers: Iterable[Numbers]
) -> list[tuple[str, int, int]]:
    """Return (queue, span of the end, ready since) of jobs that never ran.

    Only the oldest job of each queue and span is returned. Jobs that still wait get an end after
    all spans; they are left out if their end may be among missing numbers.
    """
    over = spans.of(F.col("gone_us"))
    span = F.when(F.col("gone_us").isNull(), F.lit(spans.n)).otherwise(over).alias("span")
    not_started = jobs.where((F.col("runs") == 0) & F.col("ready_us").isNotNull())
    columns = ("queue", "gone_us", "ready_us")
    withdrawn = not_started.where(F.col("gone_us").isNotNull()).select(*columns)
    waiting = still_known(not_started.where(F.col("gone_us").isNull()), brokers).select(*columns)
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


def _merge_others(
    by_queue: dict[str, list[float]], names: Sequence[str], merge: Callable[[Any], float]
) -> dict[str, list[float]]:
    """Return the values of some queues, and those of all others merged."""
    merged = {name: by_queue[name] for name in names if name in by_queue}
    others = [values for name, values in by_queue.items() if name not in merged]
    if others:
        merged[OTHERS] = [merge(values) for values in zip(*others, strict=True)]
    return merged
