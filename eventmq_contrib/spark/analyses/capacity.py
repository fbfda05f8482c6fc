"""How busy queues and workers are, and how many slots a queue needs: `eventmq spark capacity`.

Little's law gives the means: jobs that wait = rate x mean waiting time, slots that work = rate x
mean run time (J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research
9(3), 1961). What a percentile needs, no formula gives for arrivals as they are: so the recorded
arrivals and run times are played through k slots, first come first served (`slots`). Run times stay
as recorded: that more slots may slow each other down is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq_contrib.spark.analyses.executions import executions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["QUEUES", "WORKERS", "capacity", "workers"]

#: The table of `capacity`: column -> Spark type.
QUEUES = {
    "queue": "string", "slots": "int", "what": "string", "meets": "boolean", "jobs": "long",
    "rate": "double", "run_mean_s": "double", "working": "double", "waiting": "double",
    "utilisation": "double", "wait_p50_s": "double", "wait_p95_s": "double",
    "wait_p99_s": "double", "wait_max_s": "double",
}  # fmt: skip

#: The table of `workers`.
WORKERS = {
    "worker": "string", "host": "string", "jobs": "long", "slots": "int", "busy_s": "double",
    "span_s": "double", "utilisation": "double",
}  # fmt: skip

_SECOND = 1e6


def capacity(
    events: DataFrame, *, target_p95: float = 1.0, slots: Sequence[int] = (),
    runs: DataFrame | None = None,
) -> DataFrame:  # fmt: skip
    """Return how busy each queue was, and what other numbers of slots would have done.

    The runs of a queue are looked at together, in one process: about 250 bytes each.

    Args:
        events: Rows of a journal.
        target_p95: Seconds that 95 % of the jobs may wait at most.
        slots: Numbers to try, beside those that are tried anyway.
        runs: What `executions` gives, where that is there.

    Returns:
        ``QUEUES``, one row per queue and number. ``what`` is ``recorded`` (the slots that were at
        work at once at most, the waiting times as they were), ``needed`` (the least number that
        meets the target) or ``what-if``. ``rate`` in jobs/s over the time from the first arrival
        to the last end, ``working`` and ``waiting`` the mean numbers of jobs that ran and waited.
    """

    def judged(frame: pd.DataFrame) -> pd.DataFrame:
        from eventmq_contrib.spark.analyses.slots import queue_table

        return queue_table(frame, target_p95=target_p95, slots=tuple(slots))

    runs = executions(events) if runs is None else runs
    runs = runs.select("queue", "ready_us", "started_us", "run_us")
    return runs.groupBy("queue").applyInPandas(judged, _schema(QUEUES)).orderBy("queue", "slots")


def workers(events: DataFrame, *, runs: DataFrame | None = None) -> DataFrame:
    """Return how busy each worker was while it had jobs.

    Args:
        events: Rows of a journal.
        runs: What `executions` gives, where that is there.

    Returns:
        ``WORKERS``; ``slots`` is how many jobs it ran at once at most, ``span_s`` the time from its
        first start to its last end.
    """

    def judged(frame: pd.DataFrame) -> pd.DataFrame:
        from eventmq_contrib.spark.analyses.slots import worker_table

        return worker_table(frame)

    runs = executions(events) if runs is None else runs
    runs = runs.select("worker_id", "started_us", "run_us")
    return runs.groupBy("worker_id").applyInPandas(judged, _schema(WORKERS)).orderBy("worker")


def _schema(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
