"""The commands ``trace``, ``capacity`` and ``anomaly`` of ``eventmq spark``."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from eventmq.cli.command import print_error
from eventmq.errors import EventMQError
from eventmq_contrib.spark.command import spark as group
from tests.contrib.spark.histories import story, write_journal
from tests.contrib.spark.test_trace import check

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("look-back") / "journal"
    write_journal(folder, story_rows())
    return folder


def story_rows() -> list[dict[str, Any]]:
    return story(Random(3), "b", jobs=30, damage=False).rows


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def test_a_trace_is_shown_and_written_for_chrome(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    chrome = tmp_path / "trace.json"
    [job, *_] = [row["job_id"] for row in story_rows() if row["kind"] == "succeeded"]
    shown = run("trace", job, "--journal", journal, "--chrome", chrome)
    assert 0 == shown.exit_code, shown.output
    assert shown.stdout.startswith(f"trace {job}: 1 succeeded, ")
    assert "The critical path" in shown.stdout
    check(json.loads(chrome.read_text()))
    assert [chrome] == list(tmp_path.iterdir())


def test_a_trace_that_is_not_there_is_not_found(spark: SparkSession, journal: Path) -> None:
    failed = run("trace", "nobody", "--journal", journal)
    assert isinstance(failed.exception, EventMQError)
    assert "the journal has no event of a job nobody" in str(failed.exception)
    assert 4 == print_error(failed.exception)
    assert 2 == run("trace", "a", "--journal", journal, "--queue", "email").exit_code


def test_capacity_and_anomaly_print_json(spark: SparkSession, journal: Path) -> None:
    queues = json.loads(run("capacity", "--journal", journal, "--slots", 9, "--json").stdout)
    assert {"recorded", "needed", "what-if"} == {row["what"] for row in queues}
    assert {"default", "email"} == {row["queue"] for row in queues if row["slots"] == 9}
    workers = json.loads(run("capacity", "--journal", journal, "--workers", "--json").stdout)
    assert all(row["worker"].startswith("host") for row in workers)
    odd = run("anomaly", "--journal", journal, "--since", "2026-11-01", "--json")
    assert (0, []) == (odd.exit_code, json.loads(odd.stdout))
