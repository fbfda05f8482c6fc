"""The row about long journals: the time of each table on Spark, and its growth."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.journals import FILE, write_part
from benchmarks.session import measured_on
from eventmq.events import HOUR_US, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS", "named"]

#: Default numbers of events of the two journals.
_SIZES = (1_000_000, 10_000_000)

#: Monday, 2026-01-05, 00:00 UTC; the days of the journal, and the hours of each day.
_START_US = 1_767_571_200_000_000
_DAYS, _HOURS = 35, 6

_QUEUES, _TASKS, _WORKERS = 8, 40, 16


def _write(folder: Path, events: int) -> str:
    """Write a journal of a number of events, two per job; return a job with two children."""
    import numpy as np

    chance = np.random.default_rng(7)
    jobs = events // 2
    day = chance.integers(0, _DAYS, jobs) * 24 * HOUR_US
    ready = _START_US + np.sort(day + chance.integers(0, _HOURS * HOUR_US, jobs))
    wait = chance.exponential(200_000, jobs).astype(np.int64)
    run = chance.lognormal(12, 1, jobs).astype(np.int64)
    at = np.concatenate([ready, ready + wait + run])
    order = np.argsort(at, kind="stable")
    job, ends, at = order % jobs, order >= jobs, at[order]
    for first in range(0, events, FILE):
        cut = slice(first, min(first + FILE, events))
        write_part(folder, _columns(first, job[cut], ends[cut], at[cut], (ready, wait, run)))
    return "0" * 20


def _columns(
    first: int, job: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], at: np.ndarray[Any, Any],
    times: tuple[np.ndarray[Any, Any], ...],
) -> dict[str, Any]:  # fmt: skip
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    n = len(job)
    ready, wait, run = (each[job] for each in times)
    failed = ends & (job % 50 == 0)
    ids = pc.utf8_lpad(pc.cast(pa.array(job), pa.string()), 20, "0")
    worker = _named("host{}:1", job % _WORKERS, _WORKERS)
    outcome = {
        "attempt": np.ones(n, int), "delivery": np.ones(n, int), "wait_us": wait, "run_us": run,
        "started_us": ready + wait, "leased_us": ready + wait,
    }  # fmt: skip
    return {
        "broker_id": _named("bench", np.zeros(n, int), 1),
        "ts_us": at,
        "job_id": ids,
        "seq": np.arange(first + 1, first + n + 1),
        "schema_version": np.full(n, SCHEMA_VERSION),
        "kind": pa.array(np.where(ends, np.where(failed, "failed", "succeeded"), "enqueued")),
        "root_id": pc.if_else(pa.array(job < 3), "0" * 20, None),
        "task": _named("shop.task{}", job % _TASKS, _TASKS),
        "queue": _named("queue{}", job % _QUEUES, _QUEUES),
        "worker_id": pc.if_else(pa.array(ends), worker, None),
        "bytes_in": pa.array(np.full(n, 40), mask=ends),
        "error_type": pc.if_else(pa.array(failed), "shop.Refused", None),
        "error_fingerprint": pc.if_else(pa.array(failed), "ab" * 8, None),
        **{name: pa.array(values, mask=~ends) for name, values in outcome.items()},
    }


def _named(form: str, numbers: np.ndarray[Any, Any], n: int) -> pa.Array:
    """Return names with numbers below ``n``."""
    import pyarrow as pa

    names = pa.array([form.format(number) for number in range(n)])
    return names.take(pa.array(numbers))


def named(events: int) -> str:
    """Return a number of events as in the names of figures: ``10m``, ``250k``."""
    millions, rest = divmod(events, 1_000_000)
    return f"{events // 1000}k" if rest else f"{millions}m"


def _parts(job: str) -> dict[str, Callable[[DataFrame], Any]]:
    from eventmq_contrib.spark.analyses import audit, capacity, failures, slo, stats, trace
    from eventmq_contrib.spark.analyses.anomaly import anomaly
    from eventmq_contrib.spark.analyses.report import report

    return {
        "audit": audit.audit,
        "stats": lambda events: stats.stats(events, "hour").collect(),
        "slo": lambda events: slo.slo(events, slo.Objective()).collect(),
        "failures": lambda events: failures.failures(events).collect(),
        "killers": lambda events: failures.killers(events).collect(),
        "trace": lambda events: trace.critical(trace.hops(trace.events_of(events, job))),
        "capacity": lambda events: capacity.capacity(events).collect(),
        "anomaly": lambda events: anomaly(events).collect(),
        "report": report,
    }


def look_back(figures: Figures) -> None:
    """All tables of a journal of 1 and of 10 million events, in seconds; two cores."""
    from eventmq_contrib.spark import read_journal

    folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    few, many = figures.sizes or _SIZES
    totals = dict.fromkeys((few, many), 0.0)
    try:
        with measured_on(figures) as spark:
            for events in totals:
                size = named(events)
                job = _write(folder / size, events)
                table = read_journal(spark, folder / size)
                for name, make in _parts(job).items():
                    begin = time.perf_counter()
                    make(table)
                    seconds = time.perf_counter() - begin
                    print(f"  {name} of {size}: {seconds:.1f} s", flush=True)
                    totals[events] += seconds
                    figures.add(**{f"{name}_{size}_s": seconds})
                figures.add(**{f"all_{size}_s": totals[events]})
        figures.add(growth=totals[many] / totals[few])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"look_back": look_back}

#: Name -> figure -> its goal on two cores.
GOALS = {"look_back": {"all_10m_s": "< 300", "growth": "<= 10"}}
