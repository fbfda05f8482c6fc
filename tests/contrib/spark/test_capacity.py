"""Capacity: the recorded arrivals through k slots, against a plain simulation; busy queues."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq_contrib.spark.analyses import capacity
from eventmq_contrib.spark.analyses import capacity as capacity_module
from eventmq_contrib.spark.analyses.capacity import (
    max_concurrent,
    min_slots,
    queue_table,
    waits,
    worker_table,
)
from eventmq_contrib.spark.analyses.states import executions
from tests.contrib.spark.histories import START_US, frame, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

jobs = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 900)), min_size=1, max_size=40).map(
    sorted
)


def plain(jobs: list[tuple[int, int]], slots: int) -> list[int]:
    """Play jobs through slots with nothing but a list of when each slot is free."""
    free = [0] * slots
    results = []
    for ready, run in jobs:
        slot = min(range(slots), key=free.__getitem__)
        start = max(ready, free[slot])
        free[slot] = start + run
        results.append(start - ready)
    return results


def columns(jobs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ready, run = zip(*jobs, strict=True)
    return np.array(ready, dtype=np.int64), np.array(run, dtype=np.int64)


@given(jobs, st.integers(1, 8))
def test_the_waits_are_those_of_a_plain_simulation(jobs: list[tuple[int, int]], slots: int) -> None:
    assert plain(jobs, slots) == waits(*columns(jobs), slots).tolist()


@given(jobs, st.integers(0, 1_500), st.integers(1, 50))
def test_the_least_number_of_slots_is_found_from_any_guess(
    jobs: list[tuple[int, int]], target: int, guess: int
) -> None:
    def meets(slots: int) -> bool:
        return bool(np.percentile(plain(jobs, slots), 95) <= target)

    expected = next(slots for slots in range(1, len(jobs) + 1) if meets(slots))
    result = min_slots(*columns(jobs), target, guess)
    assert result is not None
    assert (expected, plain(jobs, expected)) == (result[0], result[1].tolist())


def test_a_target_that_no_number_of_slots_meets_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity_module, "MAX_SLOTS", 4)
    ready, run = np.zeros(100, dtype=np.int64), np.full(100, 1_000_000, dtype=np.int64)
    assert min_slots(ready, run, 10.0, 1) is None
    frame = frame_of([(0, 0, 1_000_000)] * 100)
    table = queue_table(frame, target_p95=1e-5)
    assert "needed" not in set(table["what"])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=30))
def test_how_many_ran_at_once_is_counted(runs: list[tuple[int, int]]) -> None:
    """At each start, the runs that have started and not ended."""
    expected = max(sum(s <= at < s + run for s, run in runs) for at, _ in runs)
    started, run = columns(runs)
    assert expected == max_concurrent(started, started + run)


def frame_of(runs: list[tuple[int, int, int]]) -> pd.DataFrame:
    ready, started, run = zip(*runs, strict=True)
    return pd.DataFrame({"queue": "q", "ready_us": ready, "started_us": started, "run_us": run})


def test_the_figures_of_a_queue_follow_littles_law() -> None:
    """Nine jobs of one second each in ten seconds, of which the last four waited a second."""
    second = 1_000_000
    runs = [(n * second, n * second, second) for n in range(5)]
    runs += [(n * second, (n + 1) * second, second) for n in range(5, 9)]
    table = queue_table(frame_of(runs), target_p95=0.5, slots=[3])
    row = table.set_index("what").loc["recorded"]
    assert (1, 9, 1.0) == (row["slots"], row["jobs"], row["run_mean_s"])
    figures = [row[name] for name in ("rate", "working", "waiting", "utilisation")]
    assert pytest.approx([0.9, 0.9, 0.4, 0.9]) == figures
    assert row["working"] == pytest.approx(row["rate"] * row["run_mean_s"])
    assert (0.0, 1.0, False) == (row["wait_p50_s"], row["wait_max_s"], row["meets"])
    needed = table.set_index("what").loc["needed"]
    assert (1, 0.0, True) == (needed["slots"], needed["wait_max_s"], needed["meets"])
    assert {1, 2, 3} == set(table["slots"])


def test_runs_in_any_order_are_one_queue() -> None:
    runs = [(n * 7 % 50, n * 7 % 50 + 3, 5) for n in range(50)]
    one, other = (queue_table(frame_of(r), target_p95=1.0) for r in (runs, runs[::-1]))
    pd.testing.assert_frame_equal(one, other)


def test_a_worker_is_busy_as_long_as_its_slots_are() -> None:
    frame = pd.DataFrame(
        {
            "worker_id": "host-1:77",
            "started_us": [0, 0, 2_000_000],
            "run_us": [1_000_000, 2_000_000, 2_000_000],
        }
    )
    [row] = worker_table(frame).to_dict("records")
    assert ("host-1:77", "host-1", 3, 2) == tuple(
        row[n] for n in ("worker", "host", "jobs", "slots")
    )
    assert (5.0, 4.0, 0.625) == (row["busy_s"], row["span_s"], row["utilisation"])


# On Spark


def plain_runs(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return broker, job, attempt, queue, ready and start of each run, without Spark."""
    ready: dict[tuple[str, str], int] = {}
    runs = []
    for row in sorted(rows, key=lambda row: (row["broker_id"], row["seq"])):
        key = (row["broker_id"], row.get("job_id", ""))
        if row.get("started_us") is not None and row.get("run_us") is not None:
            since = ready.get(key, row["leased_us"])
            if row.get("wait_us") is not None:
                since = row["started_us"] - row["wait_us"]
            since = min(since, row["started_us"])
            runs.append((*key, row["attempt"], row["queue"], since, row["started_us"]))
        if row["kind"] in {"enqueued", "lease_lost", "handed_back", "replayed"}:
            ready[key] = row["ts_us"]
    return sorted(runs)


@pytest.fixture(scope="module")
def history_rows() -> list[dict[str, Any]]:
    """The rows of sixty brokers, without repeated ones: the reader drops those."""
    history_rows = [
        row for n in range(60) for row in clean(story(Random(n), f"broker{n}", jobs=40).rows)
    ]
    return history_rows + chain()


def chain() -> list[dict[str, Any]]:
    """Two links: the second one's event has its wait from the end of the first one."""
    rows: list[dict[str, Any]] = []
    for at, kind, job, started in (
        (0, "enqueued", "one", 0), (0, "delayed", "two", 0), (50, "succeeded", "one", 20),
        (50, "enqueued", "two", 0), (90, "succeeded", "two", 70),
    ):  # fmt: skip
        row = {"ts_us": START_US + at, "kind": kind, "job_id": job, "root_id": "one"}
        if started:
            wait = started - {"one": 0, "two": 50}[job]
            row |= {"started_us": START_US + started, "wait_us": wait, "run_us": at - started}
            row |= {"attempt": 1, "worker_id": "host0:0", "leased_us": START_US + started}
        common = {"broker_id": "chain", "seq": len(rows) + 1, "queue": "email"}
        rows.append({**row, **common, "schema_version": 1})
    return rows


@pytest.fixture(scope="module")
def events(spark: SparkSession, history_rows: list[dict[str, Any]]) -> Iterator[DataFrame]:
    table = frame(spark, history_rows).cache()
    yield table
    table.unpersist()


def clean(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({row["seq"]: row for row in rows}.values())


@pytest.mark.parametrize("few", [False, True])
def test_the_runs_are_those_of_the_events(
    events: DataFrame, history_rows: list[dict[str, Any]], few: bool
) -> None:
    """Also failed and retried runs, whose events have no waiting time."""
    columns = ("broker_id", "job_id", "attempt", "queue", "ready_us", "started_us")
    runs = executions(events, few=few).select(*columns).collect()
    assert plain_runs(history_rows) == sorted(tuple(row) for row in runs)
    assert 2_000 < len(runs)


def test_queues_and_workers_are_those_of_plain_runs(
    events: DataFrame, history_rows: list[dict[str, Any]]
) -> None:
    rows = {
        (row["queue"], row["slots"], row["what"]): row.asDict()
        for row in capacity.capacity(events, target_p95=2.0, slots=[7]).collect()
    }
    runs = plain_runs(history_rows)
    assert {"default", "email"} == {queue for queue, _, _ in rows}
    for queue in ("default", "email"):
        waited = [started - ready for *_, name, ready, started in runs if name == queue]
        [row] = [
            row for (name, _, what), row in rows.items() if (name, what) == (queue, "recorded")
        ]
        assert len(waited) == row["jobs"]
        assert np.percentile(waited, 99) / 1e6 == pytest.approx(row["wait_p99_s"])
        assert np.sum(waited) / 1e6 / row["jobs"] * row["rate"] == pytest.approx(row["waiting"])
        [needed] = [
            row for (name, _, what), row in rows.items() if (name, what) == (queue, "needed")
        ]
        assert (
            needed["wait_p95_s"] <= 2.0 < rows[queue, needed["slots"] - 1, "what-if"]["wait_p95_s"]
        )
    names = {row.get("worker_id") for row in history_rows if row.get("started_us") is not None}
    busy = {row["worker"]: row for row in capacity.workers(events).collect()}
    assert names == set(busy)
    assert len(runs) == sum(row["jobs"] for row in busy.values())
    assert all(0 < row["utilisation"] <= 1 for row in busy.values())
