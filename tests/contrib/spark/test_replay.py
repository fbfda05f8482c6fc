"""``eventmq spark replay``: failed jobs go back into their queues, each once per replay."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from eventmq.cli.program import Program
from eventmq.clock import SystemClock
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.writes import Admit, Finish, Finished, SealEvents
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq_contrib.spark import eventmq_add_commands, replaying
from eventmq_contrib.spark.analyses.failures import failed_jobs, summary
from eventmq_contrib.spark.journal import read_journal
from tests.contrib.spark.histories import frame
from tests.support.system import System

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from eventmq import EventMQ

#: The failed jobs of the broker: (queue, task, error) and how many.
FAILED = {
    ("mail", "shop.mail", "builtins.ValueError"): 130,
    ("mail", "shop.mail", "shop.OutOfStock"): 20,
    ("default", "shop.send", "builtins.ValueError"): 50,
}


def fill(data: Path) -> dict[tuple[str, str, str], list[str]]:
    """Make the store of a broker in which jobs have failed; return their ids."""
    clock = SystemClock()
    store = SqliteStore(data, clock, durability="memory", reserve=0)
    store.open()
    store.submit([SealEvents("j", 0, 1.0, 0.0)])  # so that all of them are kept
    factory, by_kind = IdFactory(clock), {}
    for (queue, task, error), n in FAILED.items():
        now = clock.now()
        first = 1 + sum(map(len, by_kind.values()))
        ids = by_kind[queue, task, error] = factory.new_many(n)
        headers = f"task:{task},content-type:msgpack"
        jobs = [
            JobRecord(
                i, queue, headers, b"\x92\x90\x80", first + k, first + k, created=now, delivery=1
            )
            for k, i in enumerate(ids)
        ]
        result = encode_error(RemoteError(error, "it broke"))
        ends = [
            Finished(job, JobState.FAILED, now, 0.0, ERROR_TYPE, result, now, 0.1, "host:1")
            for job in jobs
        ]
        store.submit([Admit(jobs), Finish(ends, now)])
    store.finished()
    store.close()
    return by_kind


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], list[str]]:
    return {}


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory, ids: dict[tuple[str, str, str], list[str]]
) -> Iterator[System]:
    """A broker with failed jobs, whose journal has them."""
    system = System(tmp_path_factory.mktemp("system"))
    ids.update(fill(system.folder / "data"))
    system.broker()
    seal(system)
    yield system
    system.stop()


@pytest.fixture(scope="module")
def app(system: System) -> EventMQ:
    return system.app()


def seal(system: System) -> None:
    data, out = str(system.folder / "data"), str(system.folder / "journal")
    process, _ = system.start("journal", "--data-dir", data, "--out", out, "--once")
    assert process.wait(30) == 0


def replay(system: System, *arguments: str) -> Result:
    """Run the command as the program does, in the session of the tests."""
    program = Program("eventmq")
    eventmq_add_commands(program)
    common = ["spark", "replay", "--journal", str(system.folder / "journal")]
    if "--broker" not in arguments:
        common += ["--broker", system.address]
    result = CliRunner().invoke(program, [*common, *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def counts(result: Result) -> dict[str, int]:
    assert result.exit_code == 0, result.stderr
    counts: dict[str, int] = json.loads(result.stdout)
    return counts


def test_a_dry_run_shows_the_jobs_and_does_nothing(
    spark: SparkSession, system: System, app: EventMQ
) -> None:
    result = replay(system, "--dry-run", "--json")
    rows = [(row["queue"], row["task"], row["error"], row["jobs"]) for row in counts(result)]  # type: ignore[call-overload,index]
    assert rows == [(*key, n) for key, n in sorted(FAILED.items(), key=lambda item: -item[1])]
    assert sum(row["failed"] for row in app.ask("queues")) == sum(FAILED.values())


def test_failed_jobs_are_replayed_once_whoever_is_killed_when(
    spark: SparkSession, system: System, app: EventMQ, monkeypatch: pytest.MonkeyPatch,
    ids: dict[tuple[str, str, str], list[str]], tmp_path: Path,
) -> None:  # fmt: skip
    """Jobs that were replayed without a report, or that wait by now, are left alone."""
    monkeypatch.setattr(replaying, "SLICE", 40)
    checkpoint = tmp_path / "replay"
    chosen = ("--queue", "mail", "--error", "ValueError", "--checkpoint", str(checkpoint), "--json")
    first = counts(replay(system, *chosen))
    assert first == {"jobs": 130, "replayed": 130, "before": 0, "unknown": 0}
    notes = sorted((checkpoint / "done").glob("*.json"))
    assert [path.name for path in notes] == [f"{n:06}.json" for n in range(4)]
    # As if killed between the broker's answer and the note.
    notes[1].unlink()
    notes[3].unlink()
    assert counts(replay(system, *chosen)) == {
        "jobs": 130,
        "replayed": 80,
        "before": 50,
        "unknown": 0,
    }
    seal(system)
    events = read_journal(spark, system.folder / "journal").where("kind = 'replayed'")
    replayed = Counter(row.job_id for row in events.collect())
    assert replayed == Counter(ids["mail", "shop.mail", "builtins.ValueError"])
    waiting = {
        row["id"]: row for row in app.ask("jobs", {"queue": "mail", "state": "queued"})["jobs"]
    }
    assert set(waiting) == set(replayed)
    assert {row["attempt"] for row in waiting.values()} == {2}


def test_a_checkpoint_is_of_one_replay(system: System, spark: SparkSession, tmp_path: Path) -> None:
    """One with other filters is refused, and one of another broker's journal."""
    checkpoint = ("--checkpoint", str(tmp_path / "replay"))
    done = counts(replay(system, "--task", "shop.send", *checkpoint, "--rate", "5000", "--json"))
    assert done == {"jobs": 50, "replayed": 50, "before": 0, "unknown": 0}
    result = replay(system, "--task", "shop.mail", *checkpoint)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is of a replay with another task: name another --checkpoint" in result.stderr
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "replay.json").write_text("{")
    result = replay(system, "--checkpoint", str(tmp_path / "torn"))
    assert (result.exit_code, "is not of a replay" in result.stderr) == (1, True)


def test_without_a_broker_nothing_is_written(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked before Spark starts."""
    monkeypatch.setenv("EVENTMQ_SUBMIT_TIMEOUT", "0.3")
    checkpoint = tmp_path / "replay"
    result = replay(system, "--checkpoint", str(checkpoint), "--broker", "tcp://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (3, "")
    assert not checkpoint.exists()


def test_the_broker_must_be_that_of_the_journal(
    spark: SparkSession, system: System, tmp_path: Path
) -> None:
    other = System(tmp_path)
    other.broker()
    try:
        checkpoint = tmp_path / "replay"
        result = replay(system, "--checkpoint", str(checkpoint), "--broker", other.address)
    finally:
        other.stop()
    assert result.exit_code == 1
    assert "the journal is of other brokers" in result.stderr
    assert not checkpoint.exists()


def test_a_folder_must_be_named(system: System) -> None:
    result = replay(system)
    assert result.exit_code == 2
    assert "name a folder for this replay with --checkpoint" in result.stderr


# The function


def row(seq: int, kind: str, job: str, at: float = 0.0, **columns: Any) -> dict[str, Any]:
    known = {"queue": "q", "task": "t", "attempt": 1, "schema_version": 1}
    ts_us = int(at * 1_000_000)
    return (
        {"broker_id": "b", "seq": seq, "ts_us": ts_us, "kind": kind, "job_id": job}
        | known
        | columns
    )


def test_the_jobs_are_those_whose_last_event_is_a_failure(spark: SparkSession) -> None:
    """A duplicate changes nothing; one that was retried is not failed, or has failed again."""
    value = {"error_type": "builtins.ValueError"}
    rows = [
        row(1, "failed", "plain", 10.0, **value),
        row(2, "duplicate", "plain", 11.0),
        row(3, "failed", "back", 12.0, **value),
        row(4, "replayed", "back", 13.0, attempt=2),
        row(5, "failed", "twice", 14.0, **value),
        row(6, "replayed", "twice", 15.0, attempt=2),
        row(7, "failed", "twice", 16.0, attempt=2, error_type="shop.OutOfStock"),
        row(8, "succeeded", "fine", 17.0),
        row(9, "failed", "other", 18.0, queue="r", **value),
        {**row(10, "gap", "", 19.0), "job_id": None},
    ]
    events = frame(spark, rows)

    def counts_of(**filters: Any) -> dict[str, int]:
        return {each.job_id: each.attempt for each in failed_jobs(events, **filters).collect()}

    assert counts_of() == {"plain": 1, "twice": 2, "other": 1}
    assert counts_of(error="OutOfStock") == counts_of(error="shop.OutOfStock") == {"twice": 2}
    assert counts_of(queue="q", since=10.0, until=16.0) == {"plain": 1}
    [first, *_] = summary(failed_jobs(events, task="t")).collect()
    assert (first.queue, first.error, first.jobs) == ("q", "builtins.ValueError", 1)
