"""The rows about the tables of a journal: their times as it grows, and their correctness.

Each figure has a function; `spark` runs those of `FIGURES` one by one, in one session.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.journals import FILE, write_part
from benchmarks.look_back import named
from benchmarks.session import measured_on
from eventmq.events import HOUR_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS", "write_clean_journal"]

_MILLION = 1_000_000

#: Default numbers of events of the two journals.
_SIZES = (_MILLION, 10 * _MILLION)

#: Events of a generated journal per second of its clock: ten million are an hour and a half.
_RATE = 2000

#: Number of planted faults of each kind.
_PLANTED = 1000

#: Prefix of the ids of jobs, before their number.
_PREFIX = "019a7b2c3d4e7f"

_BEGIN = 1_795_248_000_000_000


def _columns(first: int, jobs: int) -> dict[str, Any]:
    """Return the events of some jobs: all are admitted, then all end; one in fifty fails."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    chance = np.random.default_rng(first)
    number = np.arange(first, first + jobs)
    ids = pc.binary_join_element_wise(
        pa.array([_PREFIX] * jobs), pc.utf8_lpad(pa.array(number).cast("string"), 18, "0"),
        "",
    )  # fmt: skip
    started = _BEGIN + number * 2 * _MILLION // _RATE
    wait = np.minimum(chance.lognormal(11, 1.5, jobs), 60e6).astype("int64")
    run = np.minimum(chance.lognormal(9, 2, jobs), 60e6).astype("int64")
    at = np.maximum.accumulate(started + wait + run)
    failed = chance.random(jobs) < 0.02
    none = pa.nulls(jobs, pa.int64())
    some = {
        "kind": np.where(failed, "failed", "succeeded"),
        "error_type": pa.array(np.where(failed, "builtins.ValueError", ""), mask=~failed),
        "error_fingerprint": pa.array(np.where(failed, "a1b2c3d4e5f60718", ""), mask=~failed),
    }
    task = pa.array(np.char.add("shop.task", (number % 20).astype(str)))
    queue = pa.array(np.char.add("queue", (number % 5).astype(str)))
    worker = pa.array(np.char.add("host-", (number % 8).astype(str)))
    both: dict[str, Sequence[Any]] = {
        "seq": [np.arange(2 * first + 1, 2 * first + 1 + 2 * jobs)],
        "ts_us": [started, at], "kind": [np.full(jobs, "enqueued"), some["kind"]],
        "job_id": [ids, ids], "task": [task, task], "queue": [queue, queue],
        "attempt": [none, np.ones(jobs, "int64")], "delivery": [none, np.ones(jobs, "int64")],
        "worker_id": [none.cast("string"), worker], "host": [none.cast("string"), worker],
        "release": [pa.array(["1.4.2"] * jobs)] * 2,
        "error_type": [none.cast("string"), some["error_type"]],
        "error_fingerprint": [none.cast("string"), some["error_fingerprint"]],
        "wait_us": [none, wait], "run_us": [none, run],
        "bytes_in": [np.full(jobs, 40), none], "bytes_out": [none, np.full(jobs, 1)],
        "leased_us": [none, started + wait - 200], "started_us": [none, started + wait],
        "broker_id": [pa.array(["3f9ac2d41b6e7a05"] * (2 * jobs))],
        "schema_version": [np.ones(2 * jobs, "int64")],
    }  # fmt: skip
    return {
        name: pa.concat_arrays([pa.array(part) for part in parts]) for name, parts in both.items()
    }


def write_clean_journal(folder: Path, events: int) -> None:
    """Write a journal of one broker in which each job is admitted and ends, in full files."""
    for first in range(0, events // 2, FILE // 2):
        write_part(folder, _columns(first, min(FILE // 2, events // 2 - first)))


# Figures


def _all_tables(session: SparkSession, folder: Path) -> dict[str, float]:
    """Return the seconds of each table; the audit reads all bytes."""
    from eventmq_contrib.spark.analyses.audit import audit_journal
    from eventmq_contrib.spark.analyses.failures import failures, killers
    from eventmq_contrib.spark.analyses.slo import Objective, slo
    from eventmq_contrib.spark.analyses.stats import stats
    from eventmq_contrib.spark.journal import read_journal

    tables: dict[str, Callable[[DataFrame], DataFrame]] = {
        "stats": stats,
        "slo": lambda events: slo(events, Objective()),
        "failures": failures,
        "killers": killers,
    }
    begin = time.perf_counter()
    audit_journal(session, folder)
    seconds = {"audit": time.perf_counter() - begin}
    for name, make in tables.items():
        begin = time.perf_counter()
        make(read_journal(session, folder)).collect()
        seconds[name] = time.perf_counter() - begin
    return seconds


def growth(session: SparkSession, work: Path, figures: Figures) -> None:
    """All tables over one million events and over ten."""
    few, many = figures.sizes or _SIZES
    totals = {}
    for events in (few, many):
        folder = work / str(events)
        write_clean_journal(folder, events)
        seconds = _all_tables(session, folder)
        figures.add(**{f"{name}_{named(events)}_s": took for name, took in seconds.items()})
        totals[events] = sum(seconds.values())
        figures.add(**{f"tables_{named(events)}_s": totals[events]})
    figures.add(growth=totals[many] / totals[few])


def exactness(session: SparkSession, work: Path, figures: Figures) -> None:
    """Percentiles of a million events against numpy's: the largest relative error."""
    import numpy as np

    from eventmq_contrib.spark.analyses.stats import stats
    from eventmq_contrib.spark.journal import read_journal

    few, _ = figures.sizes or _SIZES
    events = read_journal(session, work / str(few))
    names = [f"{name}_p{percent}" for name in ("wait", "run") for percent in (50, 95, 99)]
    table = {
        (row["start"].timestamp(), row["queue"], row["task"]): [row[name] for name in names]
        for row in stats(events, "hour").collect()
    }
    ended = events.where("wait_us IS NOT NULL")
    frame = ended.selectExpr(
        "queue", "task", "ts_us", "wait_us / 1e6 AS wait", "run_us / 1e6 AS run"
    ).toPandas()
    frame["hour"] = frame["ts_us"] // HOUR_US * 3600.0
    worst = 0.0
    for key, rows in frame.groupby(["hour", "queue", "task"]):
        exact = [np.percentile(rows[name], q) for name in ("wait", "run") for q in (50, 95, 99)]
        errors = np.abs(np.array(table[key]) / np.array(exact) - 1)
        worst = max(worst, float(errors.max()))
    figures.add(percentile_error=worst)


def planted(session: SparkSession, work: Path, figures: Figures) -> None:
    """A thousand losses, second leases and stuck jobs among a million clean jobs."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    from eventmq_contrib.spark.analyses.audit import audit, audit_journal
    from eventmq_contrib.spark.journal import read_journal

    folder = work / "planted"
    write_clean_journal(folder, 2 * _MILLION)
    events = read_journal(session, folder)
    clean = audit_journal(session, folder)
    assert clean.proven, clean.unproven
    false_alarms = clean.lost + clean.stuck + clean.double_leased + clean.missing_events
    false_alarms += clean.orphans + clean.damaged
    ids = {name: _chosen(place, begin) for name, (place, begin) in _FAULTS.items()}
    number = F.substring("job_id", len(_PREFIX) + 1, 18).cast("long")
    ended = events.kind != "enqueued"
    planted = {
        name: ended & number.between(begin, begin + 399_999) & (number % 400 == place)
        for name, (place, begin) in _FAULTS.items()
    }
    kind = F.when(planted["stuck"], F.lit("leased")).otherwise(events.kind)
    again = events.where(planted["double"]).withColumns({
        "seq": F.lit(2 * _MILLION) + F.row_number().over(Window.orderBy("seq")),
        "worker_id": F.lit("other:1"),
    })  # fmt: skip
    bad = events.where(~planted["lost"]).withColumn("kind", kind)
    result = audit(bad.unionByName(again), listed=_MILLION)
    lists = {"lost": result.lost_ids, "stuck": result.stuck_ids, "double": result.double_leased_ids}
    for name, listed in lists.items():
        figures.add(**{f"planted_{name}_found": len(ids[name] & set(listed))})
        false_alarms += len(set(listed) - ids[name])
    assert result.missing_events == _PLANTED, result.missing_events
    figures.add(false_alarms=false_alarms)


#: Fault -> (the jobs that have it by their number modulo 400, the first of 400,000 jobs).
_FAULTS = {"lost": (1, 0), "double": (2, 0), "stuck": (3, 500_000)}


def _chosen(place: int, begin: int) -> set[str]:
    numbers = range(begin, begin + 400_000)
    return {f"{_PREFIX}{number:018d}" for number in numbers if number % 400 == place}


#: Figures in the order of their runs; a later one may use the files of an earlier one.
FIGURES: Sequence[Callable[[SparkSession, Path, Figures], None]] = (growth, exactness, planted)


def spark(figures: Figures) -> None:
    """The figures of the tables, in one session on two cores."""
    work = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
    try:
        with measured_on(figures) as session:
            for figure in FIGURES:
                figure(session, work, figures)
    finally:
        shutil.rmtree(work, ignore_errors=True)


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"spark": spark}

#: Name -> figure -> its goal on two cores.
GOALS = {
    "spark": {
        "tables_10m_s": "< 300",
        "growth": "<= 10",
        "percentile_error": "< 0.01",
        "planted_lost_found": "1,000",
        "planted_stuck_found": "1,000",
        "planted_double_found": "1,000",
        "false_alarms": "0",
    }
}
