"""How long jobs waited, in the journal of a broker: every attempt once, from when it was ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from eventmq.job import OutcomeKind
from eventmq_contrib.spark.analyses.capacity import capacity
from eventmq_contrib.spark.analyses.slo import Objective, slo
from eventmq_contrib.spark.analyses.states import executions
from eventmq_contrib.spark.analyses.stats import stats
from eventmq_contrib.spark.journal import read_journal
from tests.contrib.spark.test_stream import stream
from tests.support.broker_harness import Broker, row
from tests.support.graph_jobs import A, B
from tests.support.graph_jobs import submit as submit_graph
from tests.support.journal_harness import drained

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


#: Task -> seconds that its attempts waited for a worker.
WAITED = {"shop.add": [7.0, 0.5], "a": [0.25], "b": [3.0]}

#: Seconds within which jobs are to start.
TARGET = 2.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    """Events of a job with two attempts, a chain of two, and two jobs that expire."""
    broker = Broker(tmp_path / "data")

    def answer(started: float, after: float, kind: OutcomeKind = OutcomeKind.SUCCEEDED) -> None:
        """Let the worker report, some seconds from now, when it started its jobs."""
        outcome = row(kind=kind, started=broker.clock.now() + started, run_time=0.1, countdown=2.0)
        broker.wait(after)
        broker.answer(b"worker", broker.dispatched[-1], [outcome])

    broker.submit()
    broker.wait(7.0)
    broker.worker()
    answer(0.0, 1.0, OutcomeKind.RETRY)
    broker.wait(2.0)
    answer(0.5, 1.0)
    submit_graph(broker, A | B)
    answer(0.25, 5.0)  # the second one is ready now
    answer(3.0, 4.0)
    broker.ready(b"worker", 0, len(broker.dispatched))
    expires = broker.clock.now() + 1.0
    broker.submit(headers=f"expires:{expires}")
    broker.submit(headers=f"expires:{expires},eta:{expires + 1.0}")
    broker.wait(2.0)
    drained(broker, tmp_path / "journal")
    yield tmp_path / "journal"
    broker.close()


def test_stats_count_the_wait_of_every_attempt(spark: SparkSession, journal: Path) -> None:
    """Of an attempt that failed, too; a job of a chain waits from its release."""
    by_task = {row.task: row for row in stats(read_journal(spark, journal), "hour").collect()}
    assert set(by_task) == set(WAITED)
    for task, waited in WAITED.items():
        assert by_task[task].wait_p99 == pytest.approx(max(waited), rel=0.02), task
    middle = sum(WAITED["shop.add"]) / 2
    assert by_task["shop.add"].wait_p50 == pytest.approx(middle, rel=0.02)
    assert by_task["shop.add"].expired == 2


def test_slo_counts_attempts_and_jobs_that_expired_waiting(
    spark: SparkSession, journal: Path
) -> None:
    """One that was to be ready after it expired was late for none."""
    [row] = slo(read_journal(spark, journal), Objective(share=0.9, within=TARGET)).collect()
    too_late = [seconds > TARGET for waited in WAITED.values() for seconds in waited]
    assert row.starts == len(too_late) + 1
    assert row.attainment == pytest.approx(1 - (sum(too_late) + 1) / row.starts)


def test_a_stream_counts_the_same(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    stream(journal, tmp_path / "out", "--target", str(TARGET))
    rows = pq.read_table(tmp_path / "out" / "stats").to_pylist()
    assert (sum(row["starts"] for row in rows), sum(row["good"] for row in rows)) == (5, 2)


def test_runs_and_their_events_have_the_same_waits(spark: SparkSession, journal: Path) -> None:
    """So the tables made of runs, `capacity` and the report, agree with `stats`."""
    events = read_journal(spark, journal)
    assert events.where("run_us IS NOT NULL AND wait_us IS NULL").count() == 0
    latencies: dict[str, list[float]] = {}
    for run in executions(events).orderBy("started_us").collect():
        assert run.ready_us == run.started_us - run.wait_us
        latencies.setdefault(run.task, []).append(round(run.wait_us / 1e6, 3))
    assert latencies == WAITED
    recorded = next(row for row in capacity(events).collect() if row.what == "recorded")
    assert recorded.wait_max_s == pytest.approx(7.0)
