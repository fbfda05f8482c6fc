"""Capacity: how busy queues and workers were, and how many slots a queue needs.

The recorded runs of a queue are simulated with other numbers of slots, first come first served.
`queue_table` and `worker_table` run in Spark's Python workers, on the rows of one queue or worker,
and use no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame

from eventmq_contrib.spark.analyses.states import executions

__all__ = [
    "MAX_SLOTS",
    "QUEUES",
    "WORKERS",
    "capacity",
    "max_concurrent",
    "min_slots",
    "queue_table",
    "waits",
    "worker_table",
    "workers",
]


Times: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

#: Columns of `capacity` -> Spark type.
QUEUES = {
    "queue": "string", "slots": "int", "what": "string", "meets": "boolean", "jobs": "long",
    "rate": "double", "run_mean_s": "double", "working": "double", "waiting": "double",
    "utilisation": "double", "wait_p50_s": "double", "wait_p95_s": "double",
    "wait_p99_s": "double", "wait_max_s": "double",
}  # fmt: skip

#: Columns of `workers` -> Spark type.
WORKERS = {
    "worker": "string", "host": "string", "jobs": "long", "slots": "int", "busy_s": "double",
    "span_s": "double", "utilisation": "double",
}  # fmt: skip

#: Highest number of slots that is tried.
MAX_SLOTS = 100_000

_SECOND = 1e6

_PERCENT = 95


def waits(ready: Times, run: Times, slots: int) -> Times:
    """Return how long each job waits if ``slots`` slots run them in order.

    Args:
        ready: Times at which the jobs are ready, ascending, in microseconds.
        run: Run times of the jobs, in microseconds.
        slots: At least 1.
    """
    times = _simulated(ready, run, slots, None)
    assert times is not None  # noqa: S101 - only a limit ends it early
    return times


def _simulated(ready: Times, run: Times, slots: int, limit: tuple[int, int] | None) -> Times | None:
    """Return the waits, or None if more than ``limit[1]`` jobs waited longer than ``limit[0]``."""
    if slots == 1:  # Lindley's recursion, unrolled
        end = np.cumsum(run)
        idle = np.maximum.accumulate(ready - (end - run))
        waited: Times = idle + (end - run) - ready
        return waited
    if slots >= len(ready):
        return np.zeros(len(ready), dtype=np.int64)
    times = _simulate(ready.tolist(), run.tolist(), slots, *(limit or (1 << 62, 0)))
    return None if times is None else np.array(times, dtype=np.int64)


# hot loop: python -m benchmarks spark
def _simulate(
    ready: list[int], run: list[int], slots: int, long: int, allowed: int
) -> list[int] | None:
    free = [ready[0]] * slots  # heap of the times at which slots are free
    times: list[int] = []
    add, replace, over = times.append, heapreplace, 0
    for at, run_time in zip(ready, run, strict=True):
        start = free[0]
        if start <= at:
            add(0)
            replace(free, at + run_time)
            continue
        wait = start - at
        add(wait)
        replace(free, start + run_time)
        if wait > long:
            over += 1
            if over > allowed:
                return None
    return times


def min_slots(ready: Times, run: Times, target: float, guess: int) -> tuple[int, Times] | None:
    """Return the lowest number of slots with which 95 % of the jobs meet a target, and the waits.

    More slots never make a job wait longer, so a binary search finds the number.

    Args:
        ready: As in `waits`.
        run: As in `waits`.
        target: Longest wait, in microseconds.
        guess: Number of slots to try first.

    Returns:
        None if more than ``MAX_SLOTS`` are needed.
    """
    limit = (int(target), len(ready) - int((len(ready) - 1) * _PERCENT / 100) - 1)
    tried: dict[int, Times | None] = {}

    def meets(slots: int) -> bool:
        times = _simulated(ready, run, slots, limit)
        met = times is not None and bool(np.percentile(times, _PERCENT) <= target)
        tried[slots] = times if met else None
        return met

    low, high = 0, max(1, min(guess, MAX_SLOTS))
    while not meets(high):
        if high == MAX_SLOTS:
            return None
        low, high = high, min(high * 2, MAX_SLOTS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    times = tried[high]
    assert times is not None  # noqa: S101 - `high` always meets
    return high, times


def max_concurrent(started: Times, ended: Times) -> int:
    """Return how many runs overlapped at most; a run that ends as another starts does not."""
    starts = np.sort(started)
    over = np.searchsorted(np.sort(ended), starts, side="right")
    return max(1, int((np.arange(1, len(starts) + 1) - over).max()))


def queue_table(
    frame: pd.DataFrame, *, target_p95: float, slots: Sequence[int] = ()
) -> pd.DataFrame:
    """Return the rows of `capacity` for one queue.

    Args:
        frame: ``queue ready_us started_us run_us`` of its runs, one or more.
        target_p95: Target in seconds.
        slots: Numbers of slots to try.
    """
    ready, started, run = _columns(frame, "ready_us", "started_us", "run_us")
    order = np.lexsort((started, ready))
    ready, started, run = ready[order], started[order], run[order]
    recorded = max_concurrent(started, started + run)
    alternatives = _try_slots(ready, run, target_p95 * _SECOND, {*slots, recorded})
    outcomes = [(recorded, "recorded", started - ready), *alternatives]
    rows = [
        {
            "queue": frame["queue"].iloc[0], "slots": number, "what": scenario,
            "meets": bool(np.percentile(waited, _PERCENT) <= target_p95 * _SECOND),
            **_measures(number, ready, waited, run),
        }
        for number, scenario, waited in outcomes
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _columns(frame: pd.DataFrame, *names: str) -> list[Times]:
    return [frame[name].to_numpy("int64") for name in names]


def _try_slots(
    ready: Times, run: Times, target: float, slots: set[int]
) -> list[tuple[int, str, Times]]:
    """Return (number of slots, ``needed`` or ``what-if``, waits) for each number that is tried."""
    load = run.sum() / max(1, (ready + run).max() - ready.min())
    result = min_slots(ready, run, target, int(load) + 1)
    if result is None:
        return [(number, "what-if", waits(ready, run, number)) for number in sorted(slots)]
    needed = result[0]
    alternatives = sorted({*slots, max(1, needed - 1), needed + 1} - {needed})
    return [
        (needed, "needed", result[1]),
        *((number, "what-if", waits(ready, run, number)) for number in alternatives),
    ]


def _measures(slots: int, ready: Times, waited: Times, run: Times) -> dict[str, Any]:
    span = max(1, int((ready + waited + run).max() - ready.min()))
    p50, p95, p99, longest = (np.percentile(waited, p) / _SECOND for p in (50, 95, 99, 100))
    return {
        "jobs": len(run), "rate": len(run) / span * _SECOND, "run_mean_s": run.mean() / _SECOND,
        "working": run.sum() / span, "waiting": waited.sum() / span,
        "utilisation": run.sum() / span / slots,
        "wait_p50_s": p50, "wait_p95_s": p95, "wait_p99_s": p99, "wait_max_s": longest,
    }  # fmt: skip


def worker_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the row of `workers` for one worker.

    Args:
        frame: ``worker_id started_us run_us`` of its runs, one or more.
    """
    worker = frame["worker_id"].iloc[0]
    started, run = _columns(frame, "started_us", "run_us")
    slots = max_concurrent(started, started + run)
    span = max(1, int((started + run).max() - started.min()))
    return pd.DataFrame([{
        "worker": worker, "host": worker.rpartition(":")[0], "jobs": len(run), "slots": slots,
        "busy_s": run.sum() / _SECOND, "span_s": span / _SECOND,
        "utilisation": run.sum() / span / slots,
    }])  # fmt: skip


def capacity(
    events: DataFrame, *, target_p95: float = 1.0, slots: Sequence[int] = (),
    runs: DataFrame | None = None,
) -> DataFrame:  # fmt: skip
    """Return how busy each queue was, and its waits with other numbers of slots.

    All runs of a queue are processed together, in one process, with about 250 bytes each.

    Args:
        events: Rows of a journal.
        target_p95: Seconds that 95 % of the jobs may wait at most.
        slots: Further numbers of slots to try.
        runs: Rows of `executions`, if they were computed before.

    Returns:
        ``QUEUES``, one row per queue and number. ``what`` is ``recorded`` (the most slots that were
        busy at once, with the recorded waiting times), ``needed`` (the smallest number that meets
        the target) or ``what-if``. ``rate`` in jobs/s over the time from the first arrival
        to the last end, ``working`` and ``waiting`` the mean numbers of jobs that ran and waited.
    """

    def simulate_queue(frame: pd.DataFrame) -> pd.DataFrame:
        return queue_table(frame, target_p95=target_p95, slots=tuple(slots))

    runs = executions(events) if runs is None else runs
    runs = runs.select("queue", "ready_us", "started_us", "run_us")
    return (
        runs.groupBy("queue")
        .applyInPandas(simulate_queue, _schema(QUEUES))
        .orderBy("queue", "slots")
    )


def workers(events: DataFrame, *, runs: DataFrame | None = None) -> DataFrame:
    """Return how busy each worker was while it had jobs.

    Args:
        events: Rows of a journal.
        runs: Rows of `executions`, if they were computed before.

    Returns:
        ``WORKERS``; ``slots`` is the highest number of jobs that it ran at once, ``span_s`` the
        time from its first start to its last end.
    """
    runs = executions(events) if runs is None else runs
    runs = runs.select("worker_id", "started_us", "run_us")
    return runs.groupBy("worker_id").applyInPandas(worker_table, _schema(WORKERS)).orderBy("worker")


def _schema(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
