"""Which jobs wait while a journal grows, against plain Python. Without Spark."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from eventmq_contrib.spark import waiting as module
from eventmq_contrib.spark.waiting import EventFilter, Oldest, WaitingJobs
from tests.contrib.spark.histories import (
    START_US,
    History,
    fails,
    story,
    succeeds,
    waits,
    write_journal,
)
from tests.contrib.spark.oracle import holes, jobs_of, of_brokers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Row = dict[str, Any]

READY = {"enqueued", "lease_lost", "handed_back", "replayed"}


def oldest(rows: Iterable[Row], beside: Iterable[Row] = ()) -> dict[str, Oldest]:
    """What waits after some events, by queue; those beside them only have numbers."""
    rows = list(rows)
    absent = {
        broker: max((number for hole in holes(some) for number in hole), default=0)
        for broker, some in of_brokers([*rows, *beside]).items()
    }
    by_queue: dict[str, list[int]] = {}
    for (broker, _), job in jobs_of(rows).items():
        if job[-1]["kind"] in READY and job[-1]["seq"] > absent[broker]:
            by_queue.setdefault(job[-1]["queue"], []).append(job[-1]["ts_us"])
    now = max(row["ts_us"] for row in rows)
    return {
        queue: Oldest(len(times), min(times), (now - min(times)) / 1e6)
        for queue, times in by_queue.items()
    }


class Query:
    """Stands for the query of Spark: it notes where each batch ends."""

    def __init__(self, folder: Path, rows: Iterable[Row], size: int = 7) -> None:
        self.folder = folder
        self.rows = list(rows)
        self.batch = -1
        self.upto: dict[str, int] = {}
        (folder / "offsets").mkdir()
        write_journal(folder / "journal", self.rows, size=size)

    def make(self, **chosen: Any) -> WaitingJobs:
        """Return what knows the jobs, as after a start."""
        events = EventFilter(journal=str(self.folder / "journal"), **chosen)
        return WaitingJobs(events, self.folder, self.folder / "_waiting.parquet")

    def go(self, upto: dict[str, int]) -> int:
        """Start a batch; return its number."""
        self.batch, self.upto = self.batch + 1, upto
        text = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(upto)}'
        (self.folder / "offsets" / str(self.batch)).write_text(text)
        return self.batch

    def seen(self) -> list[Row]:
        return [row for row in self.rows if row["seq"] <= self.upto.get(row["broker_id"], 0)]


@pytest.mark.parametrize("seed", range(12))
def test_it_is_right_after_each_batch_over_restarts(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago the state was written, where a batch is done a second time, after gaps."""
    monkeypatch.setattr(module, "_WRITE_EVERY", seed % 2 * 60.0)
    monkeypatch.setattr(module, "_PAUSE_FACTOR", 0)
    monkeypatch.setattr(module, "_BATCH_ROWS", 3)
    chance = Random(seed)
    rows = [row for n in range(2) for row in story(chance, f"b{n}", damage=seed > 3).rows]
    query = Query(tmp_path, rows)
    last = {broker: max(r["seq"] for r in rows if r["broker_id"] == broker) for broker in
            ("b0", "b1")}  # fmt: skip
    first = {broker: min(r["seq"] for r in rows if r["broker_id"] == broker) for broker in last}
    waiting = query.make()
    for n in range(1, 13):
        ends = {b: first[b] + (last[b] - first[b]) * n // 12 for b in last if n > 3 or b == "b0"}
        batch = query.go(ends)
        waiting.advance(batch)
        if chance.random() < 0.5:
            waiting = query.make()
            waiting.advance(batch)
        assert waiting.queues() == oldest(query.seen())
    assert query.upto == last
    assert any(waiting.queues().values()) or seed > 3


def line(n: int, kind: str, job: str = "", *, second: float, queue: str = "q") -> Row:
    """An event of the broker ``b``."""
    return {
        "broker_id": "b", "seq": n, "ts_us": START_US + round(second * 1_000_000), "kind": kind,
        "job_id": job, "queue": queue, "task": "t", "schema_version": 1,
    }  # fmt: skip


def gap(n: int, first: int, last: int, *, second: float) -> Row:
    row = {**line(n, "gap", second=second), "gap_first": first, "gap_last": last}
    return {name: row[name] for name in row if name not in {"job_id", "queue", "task"}}


@pytest.mark.parametrize("chosen", [{}, {"queue": "q", "task": "t"}])
@pytest.mark.parametrize("has_gap_event", [True, False])
def test_a_job_whose_end_may_be_missing_is_forgotten_for_good(
    tmp_path: Path, *, has_gap_event: bool, chosen: dict[str, Any]
) -> None:
    """Whether a gap tells of it or not, whatever is chosen, and over a restart."""
    rows = [
        line(1, "enqueued", "j1", second=0),
        line(5, "enqueued", "other", second=50, queue="another"),
        gap(6, 2, 4, second=50)
        if has_gap_event
        else line(6, "duplicate", "x", second=50, queue="another"),
        line(7, "enqueued", "j2", second=60), line(8, "enqueued", "j3", second=70),
        line(9, "succeeded", "j2", second=86_400),
    ]  # fmt: skip
    query = Query(tmp_path, rows, size=2)
    waiting = query.make(**chosen)
    assert waiting.advance(query.go({"b": 1}))
    assert waiting.queues() == {"q": Oldest(1, START_US, 0.0)}
    assert waiting.advance(query.go({"b": 6}))
    assert "q" not in waiting.queues()
    if chosen:
        assert not waiting.advance(query.go({"b": 6}))
    waiting = query.make(**chosen)
    assert waiting.advance(query.go({"b": 6}))
    assert "q" not in waiting.queues()
    assert waiting.advance(query.go({"b": 9}))
    assert waiting.queues()["q"] == Oldest(1, START_US + 70_000_000, 86_330.0)
    waiting = query.make(**chosen)
    waiting.advance(query.batch)
    assert waiting.queues()["q"] == Oldest(1, START_US + 70_000_000, 86_330.0)
    assert "j1" not in pq.read_table(tmp_path / "_waiting.parquet")["job_id"].to_pylist()


def test_numbers_that_come_after_all_are_not_read_and_a_later_event_makes_a_job_known(
    tmp_path: Path,
) -> None:
    """The stream has continued without them; another broker's jobs are known all the time."""
    there = [
        line(1, "enqueued", "j1", second=0), line(2, "enqueued", "j2", second=1),
        line(5, "lease_lost", "j2", second=9),
        {**line(1, "enqueued", "j1", second=5), "broker_id": "a"},
    ]  # fmt: skip
    query = Query(tmp_path, there)
    waiting = query.make()
    waiting.advance(query.go({"a": 1, "b": 5}))
    write_journal(tmp_path / "journal", [line(3, "enqueued", "j3", second=2),
                                         line(4, "enqueued", "j4", second=2)])  # fmt: skip
    assert not waiting.advance(query.go({"a": 1, "b": 5}))
    assert waiting.queues() == oldest(there) == {"q": Oldest(2, START_US + 5_000_000, 4.0)}


def test_what_is_missing_after_the_chosen_time_changes_nothing_of_it(tmp_path: Path) -> None:
    query = Query(
        tmp_path, [line(1, "enqueued", "j1", second=0), line(4, "enqueued", "j2", second=9)]
    )
    waiting = query.make(until=START_US / 1e6 + 5)
    waiting.advance(query.go({"b": 4}))
    assert waiting.queues() == {"q": Oldest(1, START_US, 0.0)}


def test_a_writing_that_takes_long_is_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up its batch: the next one waits for many times as long."""
    query = Query(tmp_path, [line(n, "enqueued", f"j{n}", second=n) for n in range(1, 4)])
    written = []
    for rest in (0.0, 1e9):
        monkeypatch.setattr(module, "_WRITE_EVERY", 0.0)
        monkeypatch.setattr(module, "_PAUSE_FACTOR", rest)
        waiting = query.make()
        for n in range(1, 4):
            waiting.advance(query.go({"b": n}))
        written.append(pq.read_table(tmp_path / "_waiting.parquet").num_rows)
        (tmp_path / "_waiting.parquet").unlink()
    assert written == [3, 1]


def test_only_jobs_that_wait_are_kept_and_only_what_came_is_read(tmp_path: Path) -> None:
    """The first files may be missing when it continues."""
    history = History("b", Random(1))
    for n in range(40):
        history.job(succeeds, at=n)
    later_job = history.job(waits, at=500.0)
    query = Query(tmp_path, history.rows)
    n = len(query.rows) - 1
    query.make().advance(query.go({"b": n}))
    written = pq.ParquetFile(tmp_path / "_waiting.parquet").read()
    assert written.num_rows == 0
    for path in (tmp_path / "journal").glob("*/*/*"):
        if path.name != f"b-{n - n % 7 + 1}-{n + 1}.parquet":
            path.unlink()
    waiting = query.make()
    waiting.advance(query.go({"b": n + 1}))
    assert waiting.queues() == {later_job.queue: Oldest(1, START_US + 500_000_000, 0.0)}


def test_the_oldest_is_found_where_the_clock_was_put_back(tmp_path: Path) -> None:
    """The numbers continue, the times do not."""
    at = [50, 60, 20, 70, 80]
    rows = [
        {
            "broker_id": "b", "seq": n, "ts_us": START_US + 1_000_000 * second, "kind": "enqueued",
            "job_id": f"job{n}", "queue": "q", "schema_version": 1,
        }
        for n, second in enumerate(at, 1)
    ]  # fmt: skip
    ended = {"kind": "succeeded", "ts_us": START_US + 90_000_000}
    rows += [{**rows[2], **ended, "seq": 6}, {**rows[0], **ended, "seq": 7}]
    query = Query(tmp_path, rows)
    waiting = query.make()
    for n in range(1, 8):
        waiting.advance(query.go({"b": n}))
        assert waiting.queues() == oldest(query.seen())
    assert waiting.queues()["q"] == Oldest(3, START_US + 60_000_000, 30.0)


def test_only_what_is_chosen_waits(tmp_path: Path) -> None:
    """By queue, task and time, as in the tables beside it; numbers of others are not missing."""
    history = History("b", Random(3))
    for n in range(60):
        history.job(waits if n % 2 else fails, at=2.0 * n)
    query = Query(tmp_path, history.rows)
    since, until = START_US + 20_000_000, START_US + 90_000_000
    waiting = query.make(queue="email", task="shop.a", since=since / 1e6, until=until / 1e6)
    waiting.advance(query.go({"b": len(query.rows)}))
    some = [row for row in query.rows if since <= row["ts_us"] < until]
    chosen = [row for row in some if (row["queue"], row["task"]) == ("email", "shop.a")]
    assert waiting.queues() == oldest(chosen, beside=some)
    assert waiting.queues()["email"].jobs > 1
