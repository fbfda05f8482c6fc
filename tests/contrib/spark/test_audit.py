"""The audit: the state of each job, against plain Python; planted faults are found."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from eventmq.events import ENDS
from eventmq_contrib.spark.analyses.audit import audit, job_states, numbers
from eventmq_contrib.spark.analyses.states import double_leased
from eventmq_contrib.spark.command import spark as group
from tests.contrib.spark import oracle
from tests.contrib.spark.histories import (
    START_US,
    History,
    examples,
    frame,
    runs,
    story,
    succeeds,
    waits,
    write_journal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
KEYS = ["broker_id", "seq"]


STATES = (
    *sorted(end.value for end in ENDS), "waiting", "running", "stuck", "lost", "unknown",
)  # fmt: skip


@pytest.fixture(scope="module")
def history_rows() -> list[Row]:
    """The events of three hundred brokers, and of sixty that Hypothesis draws.

    With losses, gaps, rows that are there twice, and jobs of every fate.
    """
    fixed = [row for n in range(300) for row in story(Random(n), f"b{n}").rows]
    return fixed + [row for history in examples(60) for row in history.rows]


@pytest.fixture(scope="module")
def events(spark: SparkSession, history_rows: list[Row]) -> Iterator[DataFrame]:
    table = frame(spark, history_rows).dropDuplicates(KEYS).persist()
    yield table
    table.unpersist()


def test_the_state_of_each_job_of_any_history_is_as_by_hand(
    events: DataFrame, history_rows: list[Row]
) -> None:
    expected = oracle.states(history_rows)
    assert set(expected.values()) == set(STATES), "a fate that is not there shows nothing"
    known = numbers(events)
    rows = job_states(events, known).select("broker_id", "job_id", "state").collect()
    assert {(broker, job): state for broker, job, state in rows} == expected
    holes = {broker: oracle.holes(some) for broker, some in oracle.of_brokers(history_rows).items()}
    assert {each.broker_id: each[2:] for each in known} == {
        broker: (len(missing), max(missing, default=0), max(dropped, default=0))
        for broker, (missing, dropped) in holes.items()
    }


def test_the_audit_counts_and_lists_them(events: DataFrame, history_rows: list[Row]) -> None:
    expected, double = oracle.states(history_rows), oracle.double_leased(history_rows)
    whole = audit(events)
    counts = Counter(expected.values())
    missing = [oracle.holes(some)[0] for some in oracle.of_brokers(history_rows).values()]
    assert whole.as_dict() == {
        "conclusion": "not sound", "jobs": len(expected), **{name: counts[name] for name in STATES},
        "double_leased": len(double), "missing_events": sum(map(len, missing)),
        "orphans": 0, "unknown_kinds": 0, "conflicts": 0, "damaged": 0, "proven": False,
        "anchored": False, "orphan_ids": (), "damage": (), "unproven": whole.unproven,
        "unanchored": (),
        "stuck_ids": whole.stuck_ids, "lost_ids": whole.lost_ids,
        "double_leased_ids": whole.double_leased_ids,
    }  # fmt: skip
    for state, ids in (("stuck", whole.stuck_ids), ("lost", whole.lost_ids)):
        assert sorted(ids) == sorted(job for (_, job), is_ in expected.items() if is_ == state)
    assert sorted(whole.double_leased_ids) == sorted(job for _, job in double)


def test_what_is_planted_is_found_and_nothing_else(spark: SparkSession) -> None:
    """A hundred each of lost ends, stuck jobs and second leases among eight thousand jobs."""
    history = History("b", Random(7))
    jobs = [history.job(succeeds) for _ in range(8000)]
    silent = [history.job(runs, at=0.0) for _ in range(100)]
    chosen = Random(8).sample(jobs, 200)
    double, lost = chosen[:100], chosen[100:]
    for job in double:
        history.lease_twice(job)
    ends = {row["job_id"]: row["seq"] for row in history.rows if row["kind"] == "succeeded"}
    for job in lost:
        history.lose(ends[job.id], ends[job.id])
    result = audit(frame(spark, history.rows), stuck_after=20.0)
    last = max(history.missing)
    first_numbers = {row["job_id"]: row["seq"] for row in reversed(history.rows)}
    # Silent jobs may have ended in one of the missing events, if they started before it.
    stuck = {job.id for job in silent if first_numbers[job.id] > last}
    assert set(result.lost_ids) == {job.id for job in lost} | {job.id for job in silent} - stuck
    assert set(result.stuck_ids) == stuck
    assert set(result.double_leased_ids) == {job.id for job in double}
    assert (result.missing_events, result.double_leased, result.clean) == (100, 100, False)


def at(kind: str, second: float, **columns: Any) -> Row:
    return {"kind": kind, "ts_us": START_US + round(second * 1e6), **columns}


def held(delivery: int, since: float, worker: str = "w:1") -> Row:
    return {"delivery": delivery, "leased_us": START_US + round(since * 1e6), "worker_id": worker}


#: Job -> (its events, whether it had two leases at once).
LEASES: dict[str, tuple[list[Row], bool]] = {
    "one after the other": (
        [at("enqueued", 0), at("lease_lost", 9, **held(1, 1)), at("succeeded", 12, **held(2, 9))],
        False,
    ),
    "the second before the first was lost": (
        [at("enqueued", 0), at("lease_lost", 9, **held(1, 1)), at("succeeded", 12, **held(2, 8))],
        True,
    ),
    "the first is heard of after the second": (
        [at("enqueued", 0), at("leased", 7, **held(2, 2)), at("succeeded", 9, **held(1, 1))],
        True,
    ),
    "noted, and then ended": (
        [at("enqueued", 0), at("leased", 7, **held(1, 1)), at("progress", 27, **held(1, 1)),
         at("succeeded", 30, **held(1, 1))],
        False,
    ),
    "the same delivery to two workers": (
        [at("enqueued", 0), at("leased", 7, **held(1, 1)), at("failed", 9, **held(1, 2, "w:2"))],
        True,
    ),
    "revoked, and back before it went elsewhere": (
        [at("enqueued", 0), at("lease_lost", 5, **held(1, 1)), at("succeeded", 7, **held(1, 1))],
        False,
    ),
    "ended twice": (
        [at("enqueued", 0), at("succeeded", 5, **held(1, 1)), at("succeeded", 8, **held(2, 6))],
        True,
    ),
    "cancelled when it had ended": (
        [at("enqueued", 0), at("succeeded", 5, **held(1, 1)), at("cancelled", 8)], True,
    ),
    "leased when it had ended": (
        [at("enqueued", 0), at("failed", 5, **held(1, 1)), at("leased", 12, **held(2, 7))], True,
    ),
    "replayed": (
        [at("enqueued", 0), at("failed", 5, **held(1, 1)), at("replayed", 6),
         at("succeeded", 9, **held(2, 7))],
        False,
    ),
    "admitted again under its id": (
        [at("enqueued", 0), at("succeeded", 5, **held(1, 1)), at("delayed", 90),
         at("enqueued", 95), at("succeeded", 99, **held(1, 96))],
        False,
    ),
    "never stored, and sent twice": (
        [at("succeeded", 5, **held(1, 1)), at("succeeded", 9, **held(1, 8))], False,
    ),
}  # fmt: skip


def test_two_leases_at_once_are_found(spark: SparkSession) -> None:
    rows = []
    for job_id, (events_of, _) in LEASES.items():
        for row in events_of:
            rows.append({
                "broker_id": "b", "seq": len(rows) + 1, "schema_version": 1, "job_id": job_id,
                **row,
            })  # fmt: skip
    expected = {job_id for job_id, (_, double) in LEASES.items() if double}
    assert {job_id for _, job_id in oracle.double_leased(rows)} == expected
    events = frame(spark, rows)
    assert {row.job_id for row in double_leased(events).collect()} == expected
    result = audit(events, listed=3)
    assert set(result.double_leased_ids) <= expected
    assert (result.double_leased, len(result.double_leased_ids)) == (len(expected), 3)


# The command


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two brokers: one with a job that a worker held long ago, one with a missing file."""
    one, other = History("one", Random(1), first=500), History("other", Random(2))
    for n in range(30):
        one.job(succeeds, at=n)
        other.job(succeeds, at=n)
    one.job(runs, at=1.0)
    one.job(waits, at=2.0)
    one.job(succeeds, at=300.0)
    victim = other.job(waits, at=4.0)
    first = next(row["seq"] for row in other.rows if row["job_id"] == victim.id)
    other.lose(first + 3, first + 4)
    write_journal(tmp_path / "journal", [*one.rows, *other.rows], sealed=True)
    return tmp_path / "journal"


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(group, ["audit", *map(str, arguments)], standalone_mode=False)


def test_the_command_prints_one_object_and_fails_where_something_is_wrong(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    done = run("--journal", journal, "--json")
    result = json.loads(done.stdout)
    assert list(result) == [
        "conclusion", "jobs", "succeeded", "failed", "cancelled", "expired", "waiting", "running",
        "stuck", "lost", "unknown", "double_leased", "orphans", "missing_events", "unknown_kinds",
        "conflicts", "damaged", "proven", "anchored", "stuck_ids", "lost_ids",
        "double_leased_ids", "orphan_ids", "damage", "unproven", "unanchored",
    ]  # fmt: skip
    assert (result["missing_events"], result["stuck"], result["waiting"]) == (2, 1, 1)
    assert result["stuck_ids"] == ["one-00000030"]
    assert "other-00000030" in result["lost_ids"]
    assert done.return_value == 1
    for path in [*journal.rglob("other-*.parquet"), *journal.rglob("other.jsonl")]:
        path.unlink()
    done = run("--journal", journal, "--out", tmp_path / "table")
    assert (done.return_value, done.stdout) == (0, "")
    [row] = spark.read.parquet(str(tmp_path / "table")).collect()
    assert (row.jobs, row.stuck, row.stuck_ids) == (33, 1, ["one-00000030"])


def test_queue_task_and_time_choose_jobs_but_all_numbers_count(
    spark: SparkSession, journal: Path
) -> None:
    since, until = START_US / 1e6 + 15.5, START_US / 1e6 + 25.5
    result = json.loads(
        run("--journal", journal, "--json", "--since", since, "--until", until).stdout
    )
    assert (result["jobs"], result["missing_events"]) == (20, 2)
    result = json.loads(run("--journal", journal, "--json", "--queue", "none").stdout)
    assert (result["jobs"], result["missing_events"]) == (0, 2)
