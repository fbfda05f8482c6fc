"""Service levels: the share of jobs that start in time, such as "95 % within 2 s", by queue.

The table is computed in two steps, as in `stats`: `slo_cells` counts starts, and `slo_of` makes the
table from counts. Counts of several batches can be added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq.sdk.events import EventKind
from eventmq_contrib.spark.analyses.audit import Numbers, numbers
from eventmq_contrib.spark.analyses.states import READY, kind_of, lives, number_of

__all__ = [
    "Objective",
    "expired_waiting",
    "oldest_waiting",
    "slo",
    "slo_cells",
    "slo_of",
    "still_known",
]

#: Seconds of a cell; burn rates are computed from whole cells.
STEP = 10

#: Windows of the burn rate: suffix of the column -> seconds.
BURNS = {"5m": 300, "1h": 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Service level objective of a queue.

    Attributes:
        share: Share of jobs that must start in time, between 0 and 1.
        within: Seconds from ready to start.
    """

    share: float = 0.95
    within: float = 2.0


def expired_waiting() -> Column:
    """Return whether an event expires a job that was ready, so that no worker started it in time.

    A job that expired before it was due has the time at which it would have become ready
    (``due_us``); no worker was late for it.
    """
    return (F.col("kind") == EventKind.EXPIRED.value) & F.col("due_us").isNull()


def slo_cells(events: DataFrame, objective: Objective) -> DataFrame:
    """Return the number of starts, and of those in time: ``start, queue, starts, good``.

    A start is counted at the time of its event, the end of the attempt, in steps of ten seconds. A
    job that expired while it waited for a worker counts as a start that was not in time.

    Args:
        events: Each of them once; a stream as well, with a watermark on its column ``at``, the time
            of the event as a timestamp.
        objective: Service level objective.
    """
    at = F.col("at") if "at" in events.columns else F.timestamp_micros("ts_us")
    good = events.wait_us <= round(objective.within * 1_000_000)
    counts = (
        events.where(events.wait_us.isNotNull() | expired_waiting())
        .groupBy(F.window(at, f"{STEP} seconds").alias("period"), "queue")
        .agg(F.count("*").alias("starts"), F.count_if(good).alias("good"))
    )
    return counts.select(F.col("period.start").alias("start"), "queue", "starts", "good")


def slo_of(counts: DataFrame, objective: Objective, now: float) -> DataFrame:
    """Return the table made from counts, a row per queue.

    Columns: ``queue``; ``starts``, including jobs that expired while they waited; ``attainment``,
    the share of starts in time; ``budget_left``, the unused share of the error budget, below 0 if
    it is overspent; ``burn_5m`` and ``burn_1h``, how many times faster than allowed the budget is
    spent, null if nothing started.

    Args:
        counts: As from `slo_cells`; those of the same step are added.
        objective: Service level objective, as for the counts.
        now: Unix time in seconds at which the last five minutes and the last hour end.
    """
    step = int(now // STEP) * STEP
    allowed = 1.0 - objective.share

    def late(since: float | None) -> Column:
        in_window = F.expr("true") if since is None else F.unix_timestamp("start") > since
        starts = F.sum(F.when(in_window, F.col("starts")))
        good = F.sum(F.when(in_window, F.col("good")))
        return F.try_divide(starts - good, starts)

    burns = {f"burn_{name}": late(step - length) / allowed for name, length in BURNS.items()}
    return counts.groupBy("queue").agg(
        F.sum("starts").alias("starts"), (1 - late(None)).alias("attainment"),
        (1 - late(None) / allowed).alias("budget_left"),
        *(column.alias(name) for name, column in burns.items()),
    )  # fmt: skip


def oldest_waiting(
    events: DataFrame, now: float, *, jobs: DataFrame | None = None,
    brokers: Iterable[Numbers] | None = None,
) -> DataFrame:  # fmt: skip
    """Return how many jobs wait for a worker, and for how many seconds: ``queue, waiting, oldest``.

    Delayed and blocked jobs do not count. Neither do jobs after whose last event a number is
    missing or dropped, since the missing event may have ended them.

    Args:
        events: All events of a journal, each once.
        now: Unix time in seconds.
        jobs: Rows of `states.lives` with queues, if they were computed before.
        brokers: Numbers of all brokers, if ``events`` are a part of them.
    """
    jobs = lives(events, "queue") if jobs is None else jobs
    waiting = jobs.where(kind_of(jobs.last).isin([kind.value for kind in READY]))
    waiting = still_known(waiting, numbers(events) if brokers is None else brokers)
    return waiting.groupBy("queue").agg(
        F.count("*").alias("waiting"), (F.lit(now) - F.min("last_us") / 1e6).alias("oldest")
    )


def still_known(jobs: DataFrame, known_brokers: Iterable[Numbers]) -> DataFrame:
    """Return the jobs after whose last event no number of their broker is missing."""
    holes = [
        (broker.broker_id, broker.last_absent) for broker in known_brokers if broker.last_absent
    ]
    if not holes:
        return jobs
    brokers = jobs.sparkSession.createDataFrame(holes, "broker_id string, last_absent long")
    joined = jobs.join(F.broadcast(brokers), "broker_id", "left")
    return joined.where(number_of(jobs.last) > F.coalesce("last_absent", F.lit(0)))


def slo(
    events: DataFrame, objective: Objective, *, now: float | None = None,
    jobs: DataFrame | None = None, brokers: Iterable[Numbers] | None = None,
) -> DataFrame:  # fmt: skip
    """Return a row per queue: the columns of `slo_of`, ``waiting`` and ``oldest``.

    Args:
        events: All events of a journal, each once.
        objective: Service level objective of each queue.
        now: Unix time in seconds; by default that of the last event.
        jobs: As for `oldest_waiting`.
        brokers: As for `oldest_waiting`.
    """
    if now is None:
        [[last]] = events.agg(F.max("ts_us")).collect()
        now = (last or 0) / 1e6
    table = slo_of(slo_cells(events, objective), objective, now)
    joined = table.join(oldest_waiting(events, now, jobs=jobs, brokers=brokers), "queue", "full")
    return joined.fillna(0, ["starts", "waiting"]).orderBy("queue")
