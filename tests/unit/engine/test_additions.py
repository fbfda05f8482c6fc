"""Which times `move_waits` moves when seconds are added to store time, and which stay."""

from __future__ import annotations

from contextlib import closing

import pytest

from eventmq.engine import additions
from eventmq.engine.additions import move_waits
from eventmq.engine.tables import TABLES
from eventmq.headers import Headers, format_headers
from eventmq.job import HELD
from eventmq.plugins.database import SqliteRows, connect, definitions
from eventmq.timekeeping import Addition

ANCHOR = 1000.0


@pytest.fixture
def store():
    with closing(connect(":memory:", busy=0.0)) as db:
        for statement in [text for table in TABLES for text in definitions(table)]:
            db.execute(statement)
        yield SqliteRows(db, TABLES)


def insert(store, table, **values):
    store.insert(table, tuple(values), [tuple(values.values())])


def add_job(store, seq, *, ready_at=1050.0, created=10.0, attempt=2, state=1, eta=0.0, headers=""):
    insert(
        store, "jobs", seq=seq, id=f"j{seq}", queue=1, rank=7, state=state, attempt=attempt,
        delivery=0, deaths=0, ready_at=ready_at, expires=0.0, created=created, eta=eta,
        head_crc=0, crc=0, headers=headers, body=b"",
    )  # fmt: skip


def add_attempt(store, seq, number, at):
    insert(
        store, "attempts", id=f"j{seq}", attempt=number, delivery=1, at=at, started=0.0,
        run_time=0.0, worker=1, content_type="", error=b"",
    )  # fmt: skip


def moved(store):
    move_waits(store, Addition(ANCHOR, 1100.0, 60.5))
    rows = store.scan("jobs", ("seq", "ready_at", "rank"))
    return {seq: ready_at for seq, ready_at, rank in rows if rank == 7 + 60_500_000}


@pytest.mark.parametrize("portion", [1, 2, 3, 100])
def test_jobs_that_wait_since_the_anchor_wait_as_long_as_before(store, monkeypatch, portion):
    monkeypatch.setattr(additions, "_PORTION", portion)
    counted = format_headers(Headers(task="t", countdown=30.0))
    add_job(store, 1, created=ANCHOR)
    add_job(store, 2)  # from before the anchor
    add_job(store, 3)
    add_attempt(store, 3, 1, ANCHOR - 1)
    add_attempt(store, 3, 2, ANCHOR)  # its last attempt came after the anchor
    add_job(store, 4, attempt=1, headers=counted)
    insert(store, "nodes", key=4, id="j4", graph=4, input=0, output=0)  # released after the anchor
    add_job(store, 5, attempt=1, headers=counted)  # of no graph
    add_job(store, 6, attempt=1, headers=counted, ready_at=ANCHOR + 29.0)
    insert(store, "nodes", key=6, id="j6", graph=4, input=0, output=0)  # released before the anchor
    add_job(store, 7, created=ANCHOR, ready_at=ANCHOR - 1)
    add_job(store, 8, created=ANCHOR, ready_at=HELD + ANCHOR)  # held since before the anchor
    add_job(store, 9, created=ANCHOR, ready_at=HELD + 1050.0)
    add_job(store, 10, created=ANCHOR, state=2)
    add_job(store, 11, created=ANCHOR, eta=1.0)
    for seq in range(12, 16):
        add_job(store, seq, created=ANCHOR + seq % 2 * 5 - 1)  # several with the same time
    assert moved(store) == {
        1: 1110.5, 3: 1110.5, 4: 1110.5, 9: HELD + 1110.5, 13: 1110.5, 15: 1110.5,
    }  # fmt: skip


def test_deadlines_and_token_buckets_move_with_them(store):
    add_job(store, 5, created=ANCHOR)
    add_job(store, 15, created=ANCHOR - 1)
    for first, at in ((1, 1200.0), (11, 1300.0), (21, 1400.0)):
        insert(store, "deadlines", graph=first, first=first, end=first + 9, at=at)
    for key, updated in (("a", ANCHOR), ("b", ANCHOR - 1)):
        insert(store, "limiters", task="t", key=key, tokens=1.0, updated=updated, period=9.0)
    moved(store)
    assert list(store.scan("deadlines", ("at",))) == [(1260.5,), (1300.0,), (1400.0,)]
    assert list(store.scan("limiters", ("updated",))) == [(ANCHOR + 60.5,), (ANCHOR - 1,)]


@pytest.mark.parametrize("count", [1, 7, 8, 250])
def test_rows_are_read_by_the_first_columns_of_an_index(store, count):
    for seq in range(count):
        add_attempt(store, seq, 1, 1.0)
        add_attempt(store, seq, 2, 1.0)
    ids = [f"j{seq}" for seq in range(0, count, 2)]
    rows = store.get("attempts", ("id", "attempt"), ids, by="attempts")
    assert sorted(rows) == sorted((job_id, n) for job_id in ids for n in (1, 2))
