"""The page for authors of queue stores names all verbs, and its store keeps jobs."""

from __future__ import annotations

import re

from eventmq.engine import SCHEDULE_TABLES, TABLES, RowStore
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.database import SqliteRows, connect
from eventmq.plugins.queue_stores.sqlite.checksums import add_checksums
from eventmq.plugins.queue_stores.sqlite.schema import prepare
from eventmq.store.writes import Admit, WriteResult
from eventmq.testing import FakeClock
from tests.support.page_files import ROOT, write_files

NAME = "reference/kits.rst"
PAGE = (ROOT / "docs" / NAME).read_text(encoding="utf-8")


def test_the_table_has_all_verbs() -> None:
    rows = re.findall(r"^   \* - (``\w+``(?: ``\w+``)*)$", PAGE, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"\w+", row)]
    assert [name for name in vars(RowStore) if not name.startswith("_")] == named


def test_the_store_of_the_page_keeps_jobs(tmp_path) -> None:
    [name] = write_files(NAME, tmp_path)
    module: dict = {}
    exec((tmp_path / name).read_text("utf-8"), module)
    clock = FakeClock()
    db = connect(":memory:", busy=1.0)
    prepare(db, ":memory:")
    add_checksums(db)
    store = module["MyStore"](lambda: SqliteRows(db, (*TABLES, *SCHEDULE_TABLES)), clock)
    recovered = store.open()
    job = JobRecord(
        IdFactory(clock).new(), "q", "task:t", b"", 1, recovered.next_seq, created=clock.now()
    )
    store.submit([Admit([job])])
    store.submit([Admit([job])])
    [first], [second] = store.finished()
    assert {} == first
    assert {0: WriteResult("same_id", "queued")} == second
    store.submit(["no write"])
    [error] = store.finished()
    assert isinstance(error, module["StoreError"])
    db.close()
