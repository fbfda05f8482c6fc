"""Files of older versions become current ones, with all that is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.entries import Find, History
from eventmq.errors import StoreError
from eventmq.operations import Pause, PruneFailed
from eventmq.plugins.database import all_rows, connect, first_row
from eventmq.plugins.queue_stores import schema
from eventmq.plugins.queue_stores.sqlite import FILE_NAME, SqliteStore
from eventmq.plugins.queue_stores.unique import LONELY
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


def first_version(path: Path) -> None:
    """Write a file as version 1 did: a waiting job and a failed one."""
    path.mkdir()
    db = connect(path / FILE_NAME, busy=0.0)
    for statement in schema._TABLES.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO queues VALUES (1, 'q', 1, 0, 1)")
    db.execute("INSERT INTO names VALUES (1, 'w')")
    job = "'{}', 1, 5, {}, 1, 1, 0, 0.0, 0.0, 9.0, 'task:t', x'0102'"
    db.execute(f"INSERT INTO jobs VALUES (1, {job.format('waiting', 2)})")
    db.execute(
        f"INSERT INTO failed VALUES (2, {job.format('bad', 5)}, 9.0, 'e', x'03', 8.0, 1.0, 1)"
    )
    db.close()


def test_a_file_of_version_1_is_taken_over(tmp_path: Path) -> None:
    """Its jobs are there, its failed ones count in bytes, and it is closed as the current one."""
    first_version(tmp_path / "data")
    store = SqliteStore(tmp_path / "data", FakeClock(), reserve=0)
    recovered = store.open()
    assert recovered.counts["q"].waiting == recovered.counts["q"].failed == 1
    assert recovered.sweeps == []
    assert recovered.next_event == 1
    store.submit([
        Find(["waiting", "bad"]), History("bad"), Pause("q", paused=True),
        PruneFailed(0.0, 9, 10), PruneFailed(0.0, 8, 10),
    ])  # fmt: skip
    [verdicts] = store.finished()
    found, history, _, kept, pruned = verdicts  # type: ignore[misc]
    assert {key: known.job.body for key, known in found.items()} == dict.fromkeys(
        ["waiting", "bad"], b"\x01\x02"
    )
    assert (history, kept.queues, pruned.queues) == ([], {}, {"q": 1})
    store.close()
    db = connect(tmp_path / "data" / FILE_NAME, busy=0.0)
    assert first_row(db, "PRAGMA user_version") == (schema.SCHEMA_VERSION,)
    db.close()


def test_there_is_a_step_from_every_older_version() -> None:
    assert len(schema._STEPS) == schema.SCHEMA_VERSION - 1


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    """It is not touched."""
    first_version(tmp_path / "data")
    db = connect(tmp_path / "data" / FILE_NAME, busy=0.0)
    db.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(StoreError, match="use the newer EventMQ"):
        SqliteStore(tmp_path / "data", FakeClock(), reserve=0).open()


def test_what_waits_for_nobody_is_found_without_reading_all_jobs(tmp_path):
    """It is looked for at each start, however many jobs wait."""
    store = SqliteStore(tmp_path, FakeClock(), reserve=0)
    store.open()
    plan = all_rows(store._db, f"EXPLAIN QUERY PLAN {LONELY}", (1.0, 1.0))
    store.close()
    assert [row[3] for row in plan if "SCAN" in row[3]] in (
        [], ["SCAN jobs USING INDEX jobs_unique"]
    )  # fmt: skip
