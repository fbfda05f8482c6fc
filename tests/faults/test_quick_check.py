"""The quick check: a damaged store is refused before ``ready``, with a sentence."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import StoreError
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.database import connect, first_row
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.queue_stores.sqlite.tools import files
from eventmq.plugins.queue_stores.sqlite.tools.files import check_quickly
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.store.writes import Admit
from eventmq.testing import FakeClock
from tests.support.pages import PAGE, leaves, overwrite

if TYPE_CHECKING:
    from pathlib import Path


def opened(folder: Path) -> SqliteStore:
    store = SqliteStore(folder, FakeClock(), reserve=0)
    store.open()
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a data directory with 200 waiting jobs."""
    store = opened(tmp_path)
    clock = FakeClock()
    ids = IdFactory(clock).new_many(200)
    headers = "task:shop.add,content-type:msgpack"
    jobs = [JobRecord(job_id, "q", headers, b"x" * 300, n + 1) for n, job_id in enumerate(ids)]
    store.submit([Admit(jobs)])
    assert store.finished() == [[{}]]
    store.close()
    return tmp_path


@pytest.mark.parametrize("content", [bytes(PAGE), b"\xff" * PAGE], ids=["zeros", "garbage"])
def test_a_store_with_a_damaged_page_is_refused(folder: Path, content: bytes) -> None:
    """The error names the table and what helps."""
    path = folder / FILE_NAME
    overwrite(path, leaves(path, "jobs")[2], content)
    with pytest.raises(StoreError, match=r"is damaged in its table jobs: .*--salvage DEST"):
        opened(folder)
    [pages, *_] = SqliteTools(path, durable=True).check()
    assert (pages.check, "(table jobs)" in pages.found) == ("pages", True)
    sound = SqliteStore(folder / "other", FakeClock(), reserve=0)
    sound.open()
    sound.close()


@pytest.mark.parametrize("table", ["queues", "names", "meta", "subqueues", "failed", "events"])
def test_every_table_is_checked(folder: Path, table: str) -> None:
    path = folder / FILE_NAME
    overwrite(path, leaves(path, table)[0], b"\xff" * PAGE)
    with pytest.raises(StoreError, match=f"damaged in its table {table}: "):
        opened(folder)


def test_a_file_that_was_cut_off_is_refused(folder: Path) -> None:
    path = folder / FILE_NAME
    path.write_bytes(path.read_bytes()[: -3 * PAGE])
    with pytest.raises(StoreError, match="fsck --salvage DEST"):
        opened(folder)


def test_a_wrong_index_is_refused_and_can_be_rebuilt(folder: Path) -> None:
    """Otherwise the broker would end at the first job whose entry it deletes."""
    path = folder / FILE_NAME
    data = bytearray(path.read_bytes())
    [number] = leaves(path, "queues")
    offset = data.index(b"q", (number - 1) * PAGE + PAGE // 2)
    data[offset : offset + 1] = b"r"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"the index queues_name .*fsck --repair"):
        opened(folder)


def test_the_check_ends_at_its_time_limit_and_names_unchecked_tables(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Small tables are checked first."""
    caplog.set_level(logging.INFO, "eventmq.store")
    path = folder / FILE_NAME
    with closing(connect(path, busy=0.0)) as db:
        numbers = "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < 3000)"
        db.execute(f"{numbers} INSERT INTO events SELECT 1000 + v, 1, 0, x'00' FROM n")
        check_quickly(db, path, seconds=-1.0)
        assert "ended after -1 s, before " in caplog.text
        assert caplog.text.rstrip().endswith("events: run eventmq fsck")
        assert first_row(db, "SELECT count(*) FROM events") is not None, (
            "the clock is not asked now"
        )


class LimitedClock:
    """Clock by which the time limit is over at its n-th reading."""

    def __init__(self, delay: float) -> None:
        self._late = delay
        self.count = -1  # the first reading is that of the start

    def monotonic(self) -> float:
        """Return 0.0 until the limit is over."""
        self.count += 1
        return 0.0 if self.count < self._late else 60.0


def test_a_finding_counts_although_the_time_limit_ends_the_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A row without its index entry, and the limit ends the check at later rows of that table."""
    caplog.set_level(logging.INFO, "eventmq.store")
    path = folder / FILE_NAME
    offset = leaves(path, "jobs_id")[0] * PAGE - 6
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(files, "_STEPS", 50)
    whole = LimitedClock(float("inf"))
    with closing(connect(path, busy=0.0)) as db:
        for cut_off in (False, True):
            looks = LimitedClock(whole.count * 2 // 3) if cut_off else whole
            monkeypatch.setattr(files, "time", looks)
            with pytest.raises(StoreError, match="the index jobs_id does not agree"):
                check_quickly(db, path)
        monkeypatch.setattr(files, "time", LimitedClock(1))
        check_quickly(db, path)
    assert " ended after 1 s, before " in caplog.text


def test_a_sound_store_passes_without_a_message(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "eventmq.store")
    opened(folder).close()
    assert caplog.text == ""
