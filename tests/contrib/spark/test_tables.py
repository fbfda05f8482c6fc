"""The tables stats, slo and failures against plain Python and numpy, on made-up histories."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.journals import write_part
from eventmq_contrib.spark.analyses.failures import failures, killers
from eventmq_contrib.spark.analyses.slo import Objective, slo
from eventmq_contrib.spark.analyses.stats import cells, stats, stats_of
from eventmq_contrib.spark.command import spark as group
from eventmq_contrib.spark.journal import read_journal
from tests.contrib.spark import oracle
from tests.contrib.spark.histories import (
    START_US,
    History,
    examples,
    fails,
    frame,
    retries,
    waits,
    write_journal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]

#: Microseconds, for what never started.
DAY = 86_400_000_000

#: How far a percentile may be from numpy's.
CLOSE = 0.01


def dicts(table: DataFrame) -> list[Row]:
    return [row.asDict() for row in table.collect()]


def by_hand(rows: list[Row], seconds: int) -> dict[Any, Row]:
    """The table stats without Spark."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if "job_id" in row:
            start = row["ts_us"] // (seconds * 1_000_000) * seconds
            groups[start, row["queue"], row["task"]].append(row)
    tables = {key: one_group(some, seconds) for key, some in groups.items()}
    # A group of which nothing is counted, as a lease that was noted, has no row.
    counted = ("arrived", "ended", "retries", "lost")
    return {key: row for key, row in tables.items() if any(row[name] for name in counted)}


def one_group(rows: list[Row], seconds: int) -> Row:
    kinds = Counter(row["kind"] for row in rows)
    arrived = sum(row["kind"] in {"enqueued", "delayed"} and "bytes_in" in row for row in rows)
    ended = sum(kinds[kind] for kind in oracle.ENDS)
    done = kinds["succeeded"] + kinds["failed"]
    table: Row = {
        "arrived": arrived, "ended": ended, "rate": ended / seconds,
        **{kind: kinds[kind] for kind in oracle.ENDS},
        "retries": kinds["retry"], "lost": kinds["lease_lost"],
        "failure_share": kinds["failed"] / done if done else None,
        "retries_per_success": kinds["retry"] / kinds["succeeded"] if kinds["succeeded"] else None,
    }  # fmt: skip
    for name in ("wait", "run"):
        times = [row[f"{name}_us"] / 1e6 for row in rows if f"{name}_us" in row]
        for percent in (50, 95, 99):
            exact = float(np.percentile(times, percent)) if times else None
            table[f"{name}_p{percent}"] = None if exact is None else pytest.approx(exact, rel=CLOSE)
    return table


def keyed(table: DataFrame) -> dict[Any, Row]:
    rows_by_key = {}
    for row in dicts(table):
        start = int(row.pop("start").replace(tzinfo=timezone.utc).timestamp())
        rows_by_key[start, row.pop("queue"), row.pop("task")] = row
    return rows_by_key


def check_slo(events: DataFrame, rows: list[Row]) -> None:
    objective = Objective(share=0.9, within=2.5)
    now = max(row["ts_us"] for row in rows) / 1e6
    absent = {
        broker: max((number for hole in oracle.holes(some) for number in hole), default=0)
        for broker, some in oracle.of_brokers(rows).items()
    }
    for row in dicts(slo(events, objective)):
        of_queue = [each for each in rows if each.get("queue") == row["queue"]]
        starts = [each for each in of_queue if "wait_us" in each or oracle.expired_waiting(each)]
        too_late = [each.get("wait_us", DAY) > 2_500_000 for each in starts]
        assert row["starts"] == len(starts)
        if starts:
            assert row["attainment"] == pytest.approx(1 - sum(too_late) / len(too_late))
            assert row["budget_left"] == pytest.approx(1 - sum(too_late) / len(too_late) / 0.1)
        for name, length in (("burn_5m", 300), ("burn_1h", 3600)):
            since = (now // 10 * 10 - length + 10) * 1e6
            some = [is_late for each, is_late in zip(starts, too_late) if each["ts_us"] >= since]  # noqa: B905 - equal
            assert row[name] == (pytest.approx(sum(some) / len(some) / 0.1) if some else None)
        ready = [
            job[-1]["ts_us"]
            for (broker, _), job in oracle.jobs_of(of_queue).items()
            if job[-1]["kind"] in {"enqueued", "lease_lost", "handed_back", "replayed"}
            and job[-1]["seq"] > absent[broker]
        ]
        assert row["waiting"] == len(ready)
        oldest = pytest.approx(now - min(ready) / 1e6, abs=1e-5) if ready else None
        assert row["oldest"] == oldest


def check_failures(events: DataFrame, rows: list[Row]) -> None:
    groups: dict[Any, list[Row]] = defaultdict(list)
    first_times: dict[Any, int] = {}
    for row in sorted(rows, key=lambda row: row["ts_us"]):
        if "job_id" in row:
            first_times.setdefault((row["task"], row["release"]), row["ts_us"])
        if row["kind"] in {"failed", "retry"}:
            names = ("error_fingerprint", "error_type", "task", "release")
            groups[tuple(row[name] for name in names)].append(row)
    won = {
        (row["broker_id"], row["job_id"], row["attempt"])
        for row in rows
        if row["kind"] == "succeeded"
    }
    table = dicts(failures(events))
    assert [row["attempts"] for row in table] == sorted(map(len, groups.values()), reverse=True)
    for row in table:
        of_error = groups.pop((row["fingerprint"], row["error"], row["task"], row["release"]))
        tried = [each for each in of_error if each["kind"] == "retry"]
        helped = [(e["broker_id"], e["job_id"], e["attempt"] + 1) in won for e in tried]
        others = [
            release for fingerprint, _, task, release in {*groups, *map(key_of, table)}
            if (fingerprint, task) == (row["fingerprint"], row["task"])
        ]  # fmt: skip
        first_time = first_times[row["task"], row["release"]]
        first_of_task = min(us for (task, _), us in first_times.items() if task == row["task"])
        assert row["jobs"] == len({(each["broker_id"], each["job_id"]) for each in of_error})
        assert (row["failed"], row["retries"]) == (len(of_error) - len(tried), len(tried))
        assert row["retry_helped"] == (sum(helped) / len(tried) if tried else None)
        assert micros(row["first_seen"]) == min(each["ts_us"] for each in of_error)
        assert micros(row["last_seen"]) == max(each["ts_us"] for each in of_error)
        assert row["new"] == (
            first_time > first_of_task
            and all(first_times[row["task"], other] >= first_time for other in others)
        )
    assert not groups


def key_of(row: Row) -> tuple[str, str, str, str]:
    return (row["fingerprint"], row["error"], row["task"], row["release"])


def micros(when: datetime) -> int:
    return round(when.replace(tzinfo=timezone.utc).timestamp() * 1e6)


def check_killers(events: DataFrame, rows: list[Row]) -> None:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "lease_lost":
            groups[row["task"], row["release"]].append(row)
    for row in dicts(killers(events)):
        of_release = groups.pop((row["task"], row["release"]))
        died = sum("error_type" in each for each in of_release)
        assert (row["deaths"], row["lost"], row["given_up"]) == (died, len(of_release) - died, 0)
        assert row["workers"] == len({each["worker_id"] for each in of_release})
        assert row["jobs"] == len({(each["broker_id"], each["job_id"]) for each in of_release})
    assert not groups


def test_any_history_gives_the_tables_of_plain_python(spark: SparkSession) -> None:
    """Each broker is an example; one query per table checks all of them."""
    rows = oracle.once(row for history in examples(50) for row in history.rows)
    events = frame(spark, rows).persist()
    assert keyed(stats(events)) == by_hand(rows, 60)
    check_slo(events, rows)
    check_failures(events, rows)
    check_killers(events, rows)
    events.unpersist()


def test_percentiles_are_within_one_percent_of_numpys(spark: SparkSession, tmp_path: Path) -> None:
    """Of times from none to days, few and many, in one group per distribution."""
    chance = np.random.default_rng(5)
    groups = {
        "log-normal": chance.lognormal(10, 3, 20_000), "uniform": chance.uniform(0, 1e6, 5_000),
        "two": np.array([1.0, 2e9]), "one": np.array([12_345.0]), "none": np.zeros(7),
        "steps": np.repeat([0.0, 1.0, 86_400e6], [50, 44, 6]),
    }  # fmt: skip
    waits = np.concatenate(list(groups.values())).astype("int64")
    n = len(waits)
    columns = {
        "broker_id": ["b"] * n, "seq": range(1, n + 1), "ts_us": [START_US] * n,
        "kind": ["succeeded"] * n, "job_id": list(map(str, range(n))), "queue": ["q"] * n,
        "task": np.repeat(list(groups), list(map(len, groups.values()))), "wait_us": waits,
        "schema_version": [1] * n,
    }  # fmt: skip
    write_part(tmp_path, columns)
    events = read_journal(spark, tmp_path)
    for row in dicts(stats(events, "hour")):
        values = np.floor(groups[row["task"]]) / 1e6
        exact = np.percentile(values, [50, 95, 99])
        assert [row["wait_p50"], row["wait_p95"], row["wait_p99"]] == pytest.approx(
            list(exact), rel=CLOSE
        )
        assert row["run_p50"] is None


def test_counts_of_two_parts_add_up(spark: SparkSession) -> None:
    """As a stream's counts are added to those before."""
    history = History("b", Random(3))
    for _ in range(200):
        history.job()
    events = frame(spark, history.rows).persist()
    parts = [cells(events.where(f"seq % 2 = {n}"), "hour") for n in range(2)]
    whole = stats(events, "hour").collect()
    assert stats_of(parts[0].unionByName(parts[1]), "hour").collect() == whole
    events.unpersist()


def test_an_error_is_new_in_a_release_that_is_not_the_first(spark: SparkSession) -> None:
    """In the first one nothing is, and what an earlier one had is not."""
    rows = []
    releases = [("1.0", "old", 0), ("1.1", "old", 50), ("1.1", "fresh", 60), ("1.2", "fresh", 90)]
    for n, (release, fingerprint, second) in enumerate(releases, 1):
        rows.append({
            "broker_id": "b", "seq": n, "ts_us": START_US + second * 1_000_000, "kind": "failed",
            "job_id": str(n), "task": "t", "queue": "q", "release": release, "attempt": 1,
            "error_type": "E", "error_fingerprint": fingerprint, "schema_version": 1,
        })  # fmt: skip
    by_error = {(row["release"], row["fingerprint"]): row["new"] for row in dicts(
        failures(frame(spark, rows))
    )}  # fmt: skip
    assert by_error == {
        ("1.0", "old"): False, ("1.1", "old"): False, ("1.1", "fresh"): True,
        ("1.2", "fresh"): False,
    }  # fmt: skip


def test_the_commands_print_their_tables(spark: SparkSession, tmp_path: Path) -> None:
    history = History("b", Random(4))
    for fate in (retries, fails) * 5:
        history.job(fate)
    queue = history.job(waits, at=1.0).queue
    write_journal(tmp_path / "journal", history.rows)

    def rows(*arguments: str) -> Any:
        given = [*arguments, "--journal", str(tmp_path / "journal"), "--json"]
        done = CliRunner().invoke(group, given, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert sum(row["arrived"] for row in rows("stats", "--by", "hour")) == 11
    assert {row["queue"] for row in rows("slo", "--target", "99", "--within", "0.5")} <= {
        "default", "email",
    }  # fmt: skip
    # Numbers of other queues are not missing.
    assert [row["waiting"] for row in rows("slo", "--queue", queue)] == [1]
    assert sum(row["failed"] for row in rows("failures", "--queue", "email")) <= 10
    assert rows("failures", "--killers") == []
