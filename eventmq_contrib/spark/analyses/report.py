"""Report: the numbers and texts of the page of `eventmq spark report`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eventmq.errors import StoreError
from eventmq.sdk.events import EventKind
from eventmq_contrib.spark.analyses import capacity
from eventmq_contrib.spark.analyses.anomaly import MIN_HISTORY, anomaly, between
from eventmq_contrib.spark.analyses.audit import audit
from eventmq_contrib.spark.analyses.clocks import sentence, wrong_clocks
from eventmq_contrib.spark.analyses.executions import FEW, executions, is_silent
from eventmq_contrib.spark.analyses.failures import failures
from eventmq_contrib.spark.analyses.numbers import Numbers, numbers
from eventmq_contrib.spark.analyses.slo import Objective, slo
from eventmq_contrib.spark.analyses.states import lives
from eventmq_contrib.spark.analyses.timeline import timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from eventmq_contrib.spark.evidence import Evidence

__all__ = ["MAX_ROWS", "Choice", "report"]

#: Most rows of a table of the page; further ones are counted.
MAX_ROWS = 20

#: Columns of runs that the parts of the report use.
_OF_RUNS = (
    "task", "queue", "worker_id", "kind", "ready_us", "started_us", "run_us", "wait_us",
)  # fmt: skip

_SECOND = 1e6
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_ACCURACY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Part of a journal that is reported.

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
        if self.since is not None:
            events = events.where(events.ts_us >= round(self.since * _SECOND))
        if self.until is not None:
            events = events.where(events.ts_us < round(self.until * _SECOND))
        return self.jobs(events)

    def jobs(self, events: DataFrame) -> DataFrame:
        """Return the events of the choice's jobs, of any time."""
        for name, value in (("queue", self.queue), ("task", self.task)):
            if value is not None:
                events = events.where(events[name] == value)
        return events


def report(
    events: DataFrame, *, choice: Choice | None = None, target_p95: float = 1.0,
    objective: Objective | None = None, progress: Callable[[str], None] = lambda _: None,
    evidence: Evidence | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the report of a journal.

    Args:
        events: All events of the journal, from which missing numbers and earlier weeks are found.
        choice: Part of the journal that is reported; all of it by default.
        target_p95: Seconds that 95 % of the jobs of a queue may wait at most.
        objective: Service level objective of each queue; by default 95 % start within 2 s.
        progress: Called with the name of each part before it is made; a run takes minutes.
        evidence: Findings about the files of the journal, for the audit.

    Raises:
        StoreError: The journal has no event.
    """
    choice = choice or Choice()
    selected = choice.of(events)
    progress("the whole")
    result = {**_whole(selected), "target_p95": target_p95, "min_history": MIN_HISTORY}
    first, last = (round(result[name] * _SECOND) for name in ("first", "last"))
    target = objective or Objective()
    brokers = numbers(replace(choice, queue=None, task=None).of(events))
    executed = executions(selected, few=result.pop("silent") <= FEW).select(*_OF_RUNS)
    with _kept(executed) as runs, _kept(lives(selected, "queue")) as jobs:
        parts: Mapping[str, Callable[[], dict[str, Any]]] = {
            "the audit": lambda: {"audit": _audited(events, choice, jobs, evidence)},
            "clocks": lambda: {"clocks": _clocks(events)},
            "what happened when": lambda: {
                "timeline": timeline(selected, first, last, runs=runs, jobs=jobs, brokers=brokers)
            },
            "tasks": lambda: _tasks(runs),
            "service levels": lambda: {"slo": _levels(selected, target, last, jobs, brokers)},
            "failures": lambda: _failed(selected),
            "capacity": lambda: _capacity(selected, target_p95, runs),
            "odd hours": lambda: _odd(choice.jobs(events), choice),
        }
        for part, analyse in parts.items():
            progress(part)
            result |= analyse()
    return {**result, "total": _total(result)}


@contextlib.contextmanager
def _kept(table: DataFrame) -> Iterator[DataFrame]:
    """Persist a table that several parts use, on disk, not in memory."""
    from pyspark import StorageLevel

    table.persist(StorageLevel.DISK_ONLY)
    try:
        yield table
    finally:
        table.unpersist()


def _whole(events: DataFrame) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    [about] = events.agg(
        F.count("*").alias("events"), F.count_distinct("broker_id").alias("brokers"),
        F.min("ts_us").alias("first"), F.max("ts_us").alias("last"),
        F.count_if(is_silent()).alias("silent"),
    ).collect()  # fmt: skip
    if not about["events"]:
        raise StoreError("there is no event of this time, queue and task: nothing to report")
    first, last = about["first"] / _SECOND, about["last"] / _SECOND
    times = {"first": first, "last": last, "seconds": last - first}
    return {**{name: about[name] for name in ("events", "brokers", "silent")}, **times}


def _odd(events: DataFrame, choice: Choice) -> dict[str, Any]:
    rows = between(anomaly(events), choice.since, choice.until).collect()
    return _cut("anomalies", [row.asDict() for row in rows])


def _cut(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: list(rows[:MAX_ROWS]), f"more_{name}": max(0, len(rows) - MAX_ROWS)}


def _audited(
    events: DataFrame, choice: Choice, jobs: DataFrame, evidence: Evidence | None
) -> dict[str, Any]:
    # Jobs of a time range have events at any time.
    timeless = choice.since is None and choice.until is None
    result = audit(
        events, listed=MAX_ROWS, queue=choice.queue, task=choice.task, since=choice.since,
        until=choice.until, jobs=jobs if timeless else None, evidence=evidence,
    )  # fmt: skip
    return {**result.as_dict(), "sound": result.sound}


def _clocks(events: DataFrame) -> list[str]:
    """Return a sentence for each host whose clock is wrong."""
    return [
        sentence(row.host, row.broker_id, row.early_s, row.late_s)
        for row in wrong_clocks(events).limit(MAX_ROWS).collect()
    ]


def _tasks(runs: DataFrame) -> dict[str, Any]:
    """Return a row per task and queue, and one for all under ``whole``."""
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    shares = list(_SHARES.values())
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
                for share, value in zip(_SHARES, row[measure] or (), strict=False)
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
    rows = [row.asDict() for row in table.collect()]
    return [
        {**row, **target, "met": (row["attainment"] or 0.0) >= objective.share}
        for row in sorted(rows, key=lambda row: -row["starts"])
        if row["starts"] or row["waiting"]
    ]


def _failed(events: DataFrame) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    table = failures(events)
    for name in ("first_seen", "last_seen"):
        table = table.withColumn(name, F.unix_micros(name) / _SECOND)
    rows = [row.asDict() for row in table.limit(MAX_ROWS + 1).collect()]
    max_attempts = max((row["attempts"] for row in rows), default=1)
    result = _cut("failures", [{**row, "length": row["attempts"] / max_attempts} for row in rows])
    if len(rows) > MAX_ROWS:
        result["more_failures"] = table.count() - MAX_ROWS
    return result


def _capacity(events: DataFrame, target_p95: float, runs: DataFrame) -> dict[str, Any]:
    table = capacity.capacity(events, target_p95=target_p95, runs=runs)
    rows = [row.asDict() for row in table.collect()]
    needed = {row["queue"]: row["slots"] for row in rows if row["what"] == "needed"}
    queues = [
        {**row, "needed": needed.get(row["queue"])} for row in rows if row["what"] == "recorded"
    ]
    workers = [row.asDict() for row in capacity.workers(events, runs=runs).collect()]
    workers.sort(key=lambda row: -row["jobs"])
    slots = sum(row["slots"] * row["span_s"] for row in workers)
    busy = sum(row["busy_s"] for row in workers)
    queues.sort(key=lambda row: -row["jobs"])
    return {
        **_cut("capacity", queues), **_cut("workers", workers),
        "utilisation": busy / slots if slots else None,
    }  # fmt: skip


def _total(result: dict[str, Any]) -> dict[str, Any]:
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
