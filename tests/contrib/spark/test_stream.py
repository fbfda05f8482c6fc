"""``eventmq spark stream``: tables that are exact to the event, despite any kill."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from eventmq.cli.program import Program
from eventmq.events import SCHEMA_VERSION
from eventmq_contrib.spark import eventmq_add_commands
from eventmq_contrib.spark.analyses.slo import oldest_waiting
from eventmq_contrib.spark.analyses.stats import stats
from eventmq_contrib.spark.livetables import burn_rate, slo_rows
from eventmq_contrib.spark.waiting import Oldest
from tests.contrib.spark import oracle
from tests.contrib.spark.histories import (
    START_US,
    History,
    frame,
    story,
    succeeds,
    waits,
    write_journal,
)
from tests.contrib.spark.test_journal_read import newer
from tests.contrib.spark.test_waiting import oldest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.contrib.spark.conftest import Followed

#: Column -> kind.
KINDS = {
    "succeeded": "succeeded", "failed": "failed", "retries": "retry", "expired": "expired",
    "cancelled": "cancelled", "lost": "lease_lost", "replayed": "replayed",
    "handed_back": "handed_back",
}  # fmt: skip


def stream(journal: Path | str, out: Path, *arguments: str) -> Result:
    """Run the command as the program does, until it has all that there is."""
    program = Program("eventmq")
    eventmq_add_commands(program)
    common = ["spark", "stream", "--journal", str(journal), "--out", str(out), "--once"]
    result = CliRunner().invoke(program, [*common, *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def expected(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], Counter[str]]:
    """Count events by minute, task and queue."""
    by_key: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        if row["kind"] == "gap":
            continue
        minute = datetime.fromtimestamp(row["ts_us"] // 60_000_000 * 60, timezone.utc)
        counts = by_key.setdefault((minute, row.get("queue"), row.get("task") or ""), Counter())
        counts["events"] += 1
        counts["arrived"] += row["kind"] in {"enqueued", "delayed"} and "bytes_in" in row
        for name, kind in KINDS.items():
            counts[name] += row["kind"] == kind
        waited = row.get("wait_us")
        counts["starts"] += waited is not None or oracle.expired_waiting(row)
        counts["good"] += waited is not None and waited <= 2_000_000
    return by_key


def table(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = pq.read_table(out / "stats").to_pylist()
    by_key = {(row["start"], row["queue"], row["task"]): row for row in rows}
    assert len(by_key) == len(rows)
    return by_key


def check(out: Path, rows: list[dict[str, Any]]) -> None:
    actual, expected_rows = table(out), expected(rows)
    assert set(actual) == set(expected_rows)
    for key, counts in expected_rows.items():
        for name in ("events", "arrived", "starts", "good", *KINDS):
            assert actual[key][name] == counts[name], (key, name)


def check_waiting(
    out: Path, rows: list[dict[str, Any]], beside: Iterable[dict[str, Any]] = ()
) -> dict[str, tuple[int, float]]:
    """Check the waiting jobs of each queue in the table; return them."""
    expected_waiting = {
        queue: (each.jobs, each.seconds) for queue, each in oldest(rows, beside).items()
    }
    by_queue = {row["queue"]: row for row in pq.read_table(out / "slo").to_pylist()}
    assert {
        q: (r["waiting"], r["oldest"]) for q, r in by_queue.items() if r["waiting"]
    } == expected_waiting
    newest = datetime.fromtimestamp(max(row["ts_us"] for row in rows) / 1e6, timezone.utc)
    for queue, (_, seconds) in expected_waiting.items():
        ready = by_queue[queue]["oldest_ready"]
        assert (newest - ready).total_seconds() == pytest.approx(seconds, abs=1e-5)
    return expected_waiting


def test_the_tables_count_every_event_once_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also where the driver was killed after it wrote a batch and before it noted that.

    A gap is between: what waited before it is unknown, for the stream as for the command.
    """
    journal, out = tmp_path / "journal", tmp_path / "live"
    history = story(Random(3), "b", damage=False)
    unknown, known = history.job(waits, at=1.0), history.job(waits, at=290.0)
    index = len(history.rows) * 3 // 4
    history.gap(index, index + 2)
    rows = history.rows
    half = sorted(rows, key=lambda row: row["seq"])[: len(rows) // 2]
    write_journal(journal, half, size=7)
    text = tmp_path / "live.prom"
    result = stream(journal, out, "--prometheus", str(text))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"ready journal={journal} out={out}\n"
    check(out, half)
    before = check_waiting(out, half)
    assert unknown.queue in before
    for queue, (jobs, seconds) in before.items():
        assert f'eventmq_waiting_jobs{{queue="{queue}"}} {jobs}\n' in text.read_text()
        line = f'eventmq_oldest_waiting_seconds{{queue="{queue}"}} {seconds:.6f}\n'
        assert line in text.read_text()
    commits = out / "_checkpoint" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    # The last events of before are in other files, too.
    write_journal(journal, sorted(rows, key=lambda row: row["seq"])[len(half) - 9 :], size=11)
    (journal / "notes-of-somebody.txt").write_text("not of the journal")
    check_told(stream(journal, out, "--at-once", "20", "--json"), out)
    check(out, rows)
    newest = max(row["ts_us"] for row in half) / 1_000_000
    assert f"eventmq_stream_newest_timestamp_seconds {newest:.6f}\n" in text.read_text()
    queues = {row["queue"] for row in rows if row["kind"] != "gap"}
    assert pq.read_table(out / "slo").num_rows == len(queues)
    now = max(row["ts_us"] for row in rows) / 1e6
    table_of_all = {row["queue"]: (row["waiting"], pytest.approx(row["oldest"], abs=1e-3))
                    for row in oldest_waiting(frame(spark, rows), now).collect()}  # fmt: skip
    assert check_waiting(out, rows) == table_of_all
    assert table_of_all[known.queue][0] == 1
    # The columns that they have in common are those of the command for history.
    assert set(stats(frame(spark, rows)).columns) < set(next(iter(table(out).values())))


def test_jobs_wait_whose_events_came_after_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They change no row of the counts, and yet that of their queue."""
    journal, out, text = tmp_path / "journal", tmp_path / "live", tmp_path / "live.prom"
    given = (journal, out, "--watermark", "60", "--prometheus", str(text))
    first, late = History("b", Random(1)), History("c", Random(2))
    for at in (0.0, 7200.0):
        first.job(succeeds, at=at)
    write_journal(journal, first.rows)
    assert stream(*given).exit_code == 0
    assert not check_waiting(out, first.rows)
    queue = late.job(waits, at=10.0).queue
    write_journal(journal, late.rows)
    assert stream(*given).exit_code == 0
    check(out, first.rows)
    assert set(check_waiting(out, [*first.rows, *late.rows])) == {queue}
    assert f'eventmq_waiting_jobs{{queue="{queue}"}} 1\n' in text.read_text()


def check_told(result: Result, out: Path) -> None:
    """Check that the reports of a stream about its batches, a line each, add up."""
    assert result.exit_code == 0, result.stderr
    ready, *batches, total = map(json.loads, result.stdout.splitlines())
    assert (ready["what"], ready["out"], total["what"]) == ("ready", str(out), "total")
    assert {each["what"] for each in batches} == {"batch"}
    numbers = [each["batch"] for each in batches]
    assert numbers == list(range(numbers[0], numbers[0] + len(batches)))
    assert total == {
        "what": "total", "batches": len(batches), "late": 0,
        **{name: sum(each[name] for each in batches) for name in ("rows", "cells")},
    }  # fmt: skip
    assert total["cells"] >= len([row for row in table(out).values() if row["batch"] in numbers])
    assert 0 < total["cells"] <= total["rows"]
    assert max(each["watermark"] for each in batches) > "2026-11-21T"


def test_a_stream_that_is_killed_goes_on_to_exact_counts(
    spark: SparkSession, followed: Followed
) -> None:
    """With -9, during a batch that it has not committed; its JVM is killed with it."""
    out = followed.folder / "out"
    followed.kill_at_work()
    total = sum(row["events"] for row in table(out).values())
    assert 0 < total < len(followed.rows), (followed.folder / "err").read_text()
    assert stream(followed.folder / "journal", out).exit_code == 0
    check(out, followed.rows)
    assert check_waiting(out, followed.rows)


def test_only_what_is_chosen_is_counted_and_bad_input_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No journal, a folder of another stream, a torn file."""
    result = stream(tmp_path / "none", tmp_path / "live")
    assert (result.exit_code, "there is no journal in" in result.stderr) == (1, True)
    assert not (tmp_path / "live").exists()
    rows = story(Random(1), "b", jobs=60, damage=False).rows
    write_journal(tmp_path / "journal", rows)
    since, until = START_US / 1e6 + 60.0, START_US / 1e6 + 200.5
    chosen = ("--queue", "email", "--task", "shop.a", "--since", since, "--until", until)
    given = (tmp_path / "journal", tmp_path / "live", *map(str, chosen))
    assert stream(*given).exit_code == 0
    timely = [row for row in rows if since <= row["ts_us"] / 1e6 < until]
    some = [row for row in timely if (row["queue"], row["task"]) == ("email", "shop.a")]
    check(tmp_path / "live", some)
    check_waiting(tmp_path / "live", some, beside=timely)
    for name, was, value in (("target", 2.0, 9.0), ("task", "shop.a", "shop.b")):
        result = stream(*given, f"--{name}", str(value))
        assert result.exit_code == 1
        message = f"is of a stream with {name} {was}, not {value}: name another folder"
        assert message in result.stderr
    [path] = list((tmp_path / "journal").glob("*/*/*"))[:1]
    path.write_bytes(b"PAR1")
    result = stream(tmp_path / "journal", tmp_path / "torn")
    assert result.exit_code == 1
    assert f"{path} is torn" in result.stderr
    write_journal(tmp_path / "newer", rows[:1])
    [path] = (tmp_path / "newer").glob("*/*/*")
    newer(path)
    result = stream(tmp_path / "newer", tmp_path / "refused")
    assert (result.exit_code, f"{path} is of a newer EventMQ" in result.stderr) == (1, True)


def test_an_address_is_read_in_any_order_and_what_is_there_twice_counts_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark finds its files; relative times stay those of the first start."""
    out, address = tmp_path / "live", f"file://{tmp_path}/journal"
    rows = sorted(story(Random(4), "b", damage=False).rows, key=lambda row: row["seq"])
    for some in (rows[40:], rows[:60]):
        write_journal(tmp_path / "journal", some)
    write_journal(tmp_path / "journal" / "copied", rows[50:])
    assert stream(address, out, "--at-once", "1", "--since", "520w").exit_code == 0
    check(out, rows)
    assert stream(address, out, "--since", "520w").exit_code == 0
    check(out, rows)
    result = stream(address, out, "--since", "521w")
    assert (result.exit_code, "with since 520w, not 521w: name" in result.stderr) == (1, True)
    newer_row = {**rows[-1], "seq": 999, "schema_version": SCHEMA_VERSION + 1}
    write_journal(tmp_path / "journal", [newer_row])
    result = stream(address, out, "--since", "520w")
    assert (result.exit_code, "b-999-999.parquet is of a newer" in result.stderr) == (1, True)


# The aims, without Spark


def minute(n: int, starts: int, good: int, queue: str = "q") -> dict[str, Any]:
    at = datetime(2026, 11, 21, 8, tzinfo=timezone.utc) + timedelta(minutes=n)
    return {"start": at, "queue": queue, "starts": starts, "good": good}


def test_burn_rates_are_of_the_last_minutes() -> None:
    rows = [minute(0, 100, 0), minute(55, 100, 95), minute(59, 100, 85), minute(59, 0, 0, "idle")]
    idle, levels = slo_rows(rows, rows[2]["start"], target=2.0, share=0.95)
    assert levels["burn_5m"] == pytest.approx(2.0)
    assert (levels["starts"], levels["good"]) == (300, 180)
    assert levels["attainment"] == pytest.approx(0.6)
    assert levels["burn_1h"] == pytest.approx(8.0)
    assert levels["budget_left"] == pytest.approx(-7.0)
    assert (idle["queue"], idle["attainment"], idle["burn_5m"]) == ("idle", None, None)
    assert {row["waiting"] for row in (idle, levels)} == {None}
    assert burn_rate(10, 10, 0.95) == 0.0
    assert burn_rate(0, 0, 0.95) is None


def test_a_queue_in_which_jobs_only_wait_has_a_row() -> None:
    """It had no other events for an hour: that is when its waiting jobs matter."""
    waiting = {"stuck": Oldest(3, 1_795_248_000_000_000, 7200.0)}
    rows = slo_rows([minute(0, 9, 9)], minute(0, 0, 0)["start"], target=2.0, share=0.95,
                    waiting=waiting)  # fmt: skip
    by_queue = {row["queue"]: (row["starts"], row["waiting"], row["oldest"]) for row in rows}
    assert by_queue == {"q": (9, 0, None), "stuck": (0, 3, 7200.0)}
    assert rows[1]["oldest_ready"] == datetime(2026, 11, 21, 8, tzinfo=timezone.utc)
