"""Which jobs wait while a journal grows, against plain Python. Without Spark."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from eventmq_contrib.spark import waiting as module
from eventmq_contrib.spark.waiting import Events, Oldest, Waiting
from tests.spark.histories import START_US, History, fails, story, succeeds, waits, write_journal
from tests.spark.oracle import jobs_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Row = dict[str, Any]

READY = {"enqueued", "lease_lost", "handed_back", "replayed"}


def oldest(rows: Iterable[Row]) -> dict[str, Oldest]:
    """What waits after some events, by queue."""
    rows = list(rows)
    found: dict[str, list[int]] = {}
    for job in jobs_of(rows).values():
        if job[-1]["kind"] in READY:
            found.setdefault(job[-1]["queue"], []).append(job[-1]["ts_us"])
    now = max(row["ts_us"] for row in rows)
    return {
        queue: Oldest(len(times), min(times), (now - min(times)) / 1e6)
        for queue, times in found.items()
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

    def make(self, **chosen: Any) -> Waiting:
        """Return what knows the jobs, as after a start."""
        events = Events(journal=str(self.folder / "journal"), **chosen)
        return Waiting(events, self.folder, self.folder / "_waiting.parquet")

    def go(self, upto: dict[str, int]) -> int:
        """Begin a batch; return its number."""
        self.batch, self.upto = self.batch + 1, upto
        text = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(upto)}'
        (self.folder / "offsets" / str(self.batch)).write_text(text)
        return self.batch

    def seen(self) -> list[Row]:
        return [row for row in self.rows if row["seq"] <= self.upto.get(row["broker_id"], 0)]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_right_after_each_batch_over_restarts(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago the state was written, and where a batch is done a second time."""
    monkeypatch.setattr(module, "_EVERY", seed % 2 * 60.0)
    chance = Random(seed)
    rows = [row for n in range(2) for row in story(chance, f"b{n}", damage=False).rows]
    query = Query(tmp_path, rows)
    last = {broker: max(r["seq"] for r in rows if r["broker_id"] == broker) for broker in
            ("b0", "b1")}  # fmt: skip
    first = {broker: min(r["seq"] for r in rows if r["broker_id"] == broker) for broker in last}
    found = query.make()
    for n in range(1, 13):
        ends = {b: first[b] + (last[b] - first[b]) * n // 12 for b in last if n > 3 or b == "b0"}
        batch = query.go(ends)
        found.advance(batch)
        if chance.random() < 0.5:
            found = query.make()
            found.advance(batch)
        assert found.queues() == oldest(query.seen())
    assert query.upto == last
    assert any(found.queues().values())


def test_only_jobs_that_wait_are_kept_and_only_what_came_is_read(tmp_path: Path) -> None:
    """The first files may be gone when it goes on."""
    history = History("b", Random(1))
    for n in range(40):
        history.job(succeeds, at=n)
    late = history.job(waits, at=500.0)
    query = Query(tmp_path, history.rows)
    n = len(query.rows) - 1
    query.make().advance(query.go({"b": n}))
    written = pq.ParquetFile(tmp_path / "_waiting.parquet").read()
    assert written.num_rows == 0
    for path in (tmp_path / "journal").glob("*/*/*"):
        if path.name != f"b-{n - n % 7 + 1}-{n + 1}.parquet":
            path.unlink()
    found = query.make()
    found.advance(query.go({"b": n + 1}))
    assert found.queues() == {late.queue: Oldest(1, START_US + 500_000_000, 0.0)}


def test_the_oldest_is_found_where_the_clock_was_put_back(tmp_path: Path) -> None:
    """The numbers go on, the times do not."""
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
    found = query.make()
    for n in range(1, 8):
        found.advance(query.go({"b": n}))
        assert found.queues() == oldest(query.seen())
    assert found.queues()["q"] == Oldest(3, START_US + 60_000_000, 30.0)


def test_only_what_is_chosen_waits(tmp_path: Path) -> None:
    """By queue, task and time, as in the tables beside it."""
    history = History("b", Random(3))
    for n in range(60):
        history.job(waits if n % 2 else fails, at=2.0 * n)
    query = Query(tmp_path, history.rows)
    since, until = START_US + 20_000_000, START_US + 90_000_000
    found = query.make(queue="email", task="shop.a", since_us=since, until_us=until)
    found.advance(query.go({"b": len(query.rows)}))
    chosen = [
        row for row in query.rows
        if (row["queue"], row["task"]) == ("email", "shop.a") and since <= row["ts_us"] < until
    ]  # fmt: skip
    assert found.queues() == oldest(chosen)
    assert found.queues()["email"].jobs > 1
