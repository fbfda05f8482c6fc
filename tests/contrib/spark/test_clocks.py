"""The clocks of workers: one that is wrong is found and named, and one that is right never."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from eventmq_contrib.spark.analyses.clocks import clocks, sentence
from eventmq_contrib.spark.command import spark as group
from eventmq_contrib.spark.journal import read_journal
from tests.contrib.spark.histories import examples, frame, story, write_journal
from tests.support.broker_harness import Broker
from tests.support.broker_harness import row as outcome
from tests.support.journal_harness import drained

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Row = dict[str, Any]

#: Host -> seconds that its clock is ahead. Answers are there at once in these histories.
SKEW = {"host0": 0.0, "host1": 3.0, "host2": -60.0}


def skewed(rows: list[Row]) -> list[Row]:
    """Return events as they are if the clocks of hosts are wrong."""
    result = []
    for row in rows:
        if row.get("started_us") is not None:
            off = round(SKEW[row["host"]] * 1_000_000)
            result.append({**row, "started_us": row["started_us"] + off})
        else:
            result.append(row)
    return result


def test_a_clock_that_is_ahead_or_behind_is_found_and_one_that_is_right_is_not(
    spark: SparkSession,
) -> None:
    """Of fifty brokers whose workers are right, and one whose are not."""
    clean = [row for history in examples(50, jobs=12) for row in history.rows]
    wrong = skewed(story(Random(5), "wrong", jobs=60, damage=False).rows)
    rows = {
        (row.broker_id, row.host): row for row in clocks(frame(spark, [*clean, *wrong])).collect()
    }
    assert {row.clock for (broker, _), row in rows.items() if broker != "wrong"} == {"right"}
    assert {host: rows["wrong", host].clock for host in SKEW} == {
        "host0": "right", "host1": "ahead", "host2": "behind",
    }  # fmt: skip
    for host in SKEW:
        runs = [row for row in wrong if row.get("started_us") and row["host"] == host]
        row = rows["wrong", host]
        early = max(run["leased_us"] - run["started_us"] for run in runs) / 1e6
        late_s = max(run["started_us"] + run["run_us"] - run["ts_us"] for run in runs) / 1e6
        assert row.runs == len(runs)
        assert row.early_s == pytest.approx(max(early, 0.0))
        assert row.late_s == pytest.approx(max(late_s, 0.0))
    assert rows["wrong", "host1"].late_s == pytest.approx(3.0)
    assert rows["wrong", "host2"].early_s == pytest.approx(60.0)


def test_no_clock_is_wrong_after_a_restart_or_a_pause_of_the_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its jobs continue meanwhile: they started before the broker that records their end."""
    broker = Broker(tmp_path / "data")
    broker.worker(session="host:1")
    for pause in (broker.crash, lambda: broker.core.shift(broker.clock.now(), 5.0)):
        broker.submit()
        started = broker.clock.now() + 0.1
        broker.clock.time += 5.0
        pause()
        chunk = len(broker.dispatched)
        broker.worker(session="host:1", received=chunk, held=(chunk,), window=0)
        broker.wait(1.0)
        broker.answer(b"worker", broker.dispatched[-1], [outcome(started=started, run_time=5.5)])
        broker.ready(b"worker", 1, chunk)
    drained(broker, tmp_path / "journal")
    broker.close()
    [row] = clocks(read_journal(spark, tmp_path / "journal")).collect()
    assert (row.host, row.runs, row.early_s, row.clock) == ("host", 2, 0.0, "right")


def test_the_audit_warns_of_clocks_and_the_command_shows_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A clock is no reason to fail."""
    rows = skewed(story(Random(5), "wrong", jobs=40, damage=False).rows)
    write_journal(tmp_path, rows, sealed=True)
    shown = CliRunner().invoke(group, ["clocks", "--journal", str(tmp_path), "--json"])
    assert [(row["host"], row["clock"]) for row in json.loads(shown.stdout)] == [
        ("host2", "behind"), ("host1", "ahead"), ("host0", "right"),
    ]  # fmt: skip
    done = CliRunner().invoke(
        group, ["audit", "--journal", str(tmp_path), "--json"], standalone_mode=False
    )
    assert done.return_value == 0
    assert sentence("host1", "wrong", 0.0, 3.0) in done.stderr
    assert "host2 is at least 60 s behind that of the broker wrong" in done.stderr
    assert "host0" not in done.stderr
