"""Page checksums: every page that was altered is found."""

from __future__ import annotations

import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import PluginError, StoreError
from eventmq.interfaces import PluginContext
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins import database
from eventmq.plugins.database import (
    bad_pages,
    checkpoint,
    connect,
    first_row,
    has_page_checksums,
    leave_log,
)
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore, make_store
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.plugins.queue_stores.sqlite.wal import empty_log
from eventmq.store.writes import Admit, LimitRow, SaveLimits, SubqueueKey
from eventmq.testing import FakeClock
from tests.faults.script import Script, run_script
from tests.support.pages import PAGE, leaves

if TYPE_CHECKING:
    from typing import Any


class Checked(Script):
    """Script on a store with page checksums."""

    def make_store(self) -> Any:
        assert self.path is not None
        return SqliteStore(self.path, self.clock, reserve=0, page_checksums=True)


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory in which jobs of all kinds wait, run, and have ended."""
    folder = tmp_path_factory.mktemp("worked") / "data"
    script = Checked(folder)
    run_script(script, 100)
    script.close()
    return folder


@pytest.fixture
def folder(worked: Path, tmp_path: Path) -> Path:
    return shutil.copytree(worked, tmp_path / "data")


def tools_of(folder: Path) -> SqliteTools:
    return SqliteTools(folder / FILE_NAME, durable=True)


def flip(path: Path, page: int, byte: int = PAGE - 20) -> None:
    data = bytearray(path.read_bytes())
    data[(page - 1) * PAGE + byte] ^= 4
    path.write_bytes(data)


def opened(folder: Path, *, page_checksums: bool = False) -> None:
    store = SqliteStore(folder, FakeClock(), reserve=0, page_checksums=page_checksums)
    try:
        store.open()
    finally:
        store.close()


def test_page_checksums_stay_right_while_a_store_is_used(folder: Path) -> None:
    """A store that has them keeps them, whatever the option."""
    assert tools_of(folder).check() == []
    opened(folder)
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        assert has_page_checksums(db)
        db.execute("UPDATE meta SET value = value")
        db.execute("CREATE TABLE more (a); DROP TABLE more")
    assert bad_pages(folder / FILE_NAME) == []


@pytest.mark.parametrize("table", ["nodes", "events", "jobs"])
def test_a_bit_that_flipped_anywhere_is_found(folder: Path, table: str) -> None:
    """Even in tables without checksums of their own."""
    page = leaves(folder / FILE_NAME, table)[0]
    flip(folder / FILE_NAME, page)
    findings = tools_of(folder).check()
    assert findings[0].check == "page-checksums"
    assert findings[0].found == f"1 pages have wrong checksums: {page}"
    assert tools_of(folder).repair()[:2] == ("", [])
    with pytest.raises(StoreError, match=rf"table {table}: .*its checksum is wrong.*--salvage"):
        opened(folder)


def test_a_salvaged_store_has_page_checksums_if_set(folder: Path) -> None:
    """Rows are checked by their own checksums, so a page with a flipped bit is not lost."""
    path = folder / FILE_NAME
    flip(path, leaves(path, "nodes")[0], 2)  # a free block that is not there
    for page_checksums in (False, True):
        to = folder.parent / f"new{page_checksums}"
        done = SqliteTools(path, durable=True, page_checksums=page_checksums).salvage(to)
        assert (done.lost, done.left) == ([], [])
        with closing(connect(to / FILE_NAME, busy=0.0)) as db:
            assert has_page_checksums(db) is page_checksums
        opened(to)
        assert tools_of(to).check() == []


def test_a_backup_has_page_checksums_too(folder: Path) -> None:
    tools_of(folder).backup(folder.parent / "copy", replace=False)
    path = folder.parent / "copy" / FILE_NAME
    assert bad_pages(path) == []
    with closing(connect(path, busy=0.0)) as db:
        assert has_page_checksums(db)
    flip(path, leaves(path, "jobs")[0])
    assert len(bad_pages(path)) == 1
    opened(folder)
    assert tools_of(folder).check() == []


def test_a_store_without_page_checksums_stays_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path)
    opened(tmp_path, page_checksums=True)
    assert "was made without page checksums" in caplog.text
    with closing(connect(tmp_path / FILE_NAME, busy=0.0)) as db:
        assert not has_page_checksums(db)


def test_without_the_extension_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages written without checksums would be taken for damage. The store can be read."""
    monkeypatch.setattr(database, "can_checksum_pages", lambda: False)
    with pytest.raises(StoreError, match="this apsw has no extension for them"):
        opened(folder)
    assert tools_of(folder).check() == []


def test_the_option_needs_the_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"directory": str(tmp_path), "page_checksums": "true"}
    context = PluginContext("sqlite", options, FakeClock())
    store = make_store(context)
    store.open()
    store.close()
    with closing(connect(tmp_path / FILE_NAME, busy=0.0)) as db:
        assert has_page_checksums(db)
    monkeypatch.setattr(
        "eventmq.plugins.queue_stores.sqlite.store.can_checksum_pages", lambda: False
    )
    with pytest.raises(PluginError, match="page_checksums needs an extension of SQLite"):
        make_store(context)


# Pages of which the log has a newer copy


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the data directory of a killed broker: the last 100 of 300 jobs are in the log."""
    folder, clock = tmp_path / "running", FakeClock()
    ids = IdFactory(clock).new_many(300)
    store: Any = SqliteStore(folder, clock, reserve=0, page_checksums=True)
    store.open()
    try:
        for numbers in (range(200), range(200, 250), range(250, 300)):
            jobs = [JobRecord(ids[n], "q", "task:t", b"x" * 300, n + 1) for n in numbers]
            store.submit([Admit(jobs)])
            assert store.finished() == [[{}]]
            if not numbers.start:
                empty_log(store._db)
        store.submit(
            [SaveLimits([LimitRow(SubqueueKey("t", ""), 1.0, 2.0, 3.0)])]
        )  # a page of its own
        assert store.finished() == [[None]]
        return shutil.copytree(folder, tmp_path / "killed")
    finally:
        store.close()


def log_of(folder: Path) -> Path:
    return folder / f"{FILE_NAME}-wal"


def frames_of(folder: Path) -> list[tuple[int, int]]:
    """Return the page of each frame of the log, and the size of the file if it ends a commit."""
    data = log_of(folder).read_bytes()
    return [struct.unpack(">II", data[n : n + 8]) for n in range(32, len(data), 24 + PAGE)]


def in_both(folder: Path) -> set[int]:
    """Return the pages that are in the log and, in an older version, in the file."""
    pages = (folder / FILE_NAME).stat().st_size // PAGE
    return {page for page, _ in frames_of(folder) if 1 < page <= pages}


def replace(path: Path, page: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(content)


@pytest.mark.parametrize("torn", [False, True], ids=["flipped", "half written"])
def test_a_page_whose_copy_in_the_log_is_good_is_no_damage(killed: Path, torn: bool) -> None:
    """The page in the file is never read. An interrupted checkpoint leaves such pages."""
    path, log = killed / FILE_NAME, log_of(killed).read_bytes()
    offsets = {page: 56 + n * (24 + PAGE) for n, (page, _) in enumerate(frames_of(killed))}
    for page in in_both(killed):
        if torn:
            replace(path, page, log[offsets[page] :][: PAGE // 2])
        else:
            flip(path, page)
    assert bad_pages(path) == []
    assert tools_of(killed).check() == []
    assert log_of(killed).read_bytes() == log, "fsck only reads"
    opened(killed)
    assert not log_of(killed).exists()
    assert bad_pages(path) == []
    assert tools_of(killed).check() == []


@pytest.mark.parametrize("page_checksums", [False, True], ids=["unsaid", "said"])
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_a_log_is_moved_with_checksums_whoever_opens_the_store(
    killed: Path, page_checksums: bool, torn: bool
) -> None:
    """Opening after a kill, with and without the option, and with the first page only in the log.

    The connection that detects page checksums has none itself, and must not move the log.
    """
    path = killed / FILE_NAME
    if torn:
        replace(path, 1, bytes(PAGE))
    with closing(connect(path, busy=0.0, page_checksums=page_checksums or None)) as db:
        assert has_page_checksums(db)
        assert first_row(db, "SELECT count(*) FROM jobs") == (300,)
    assert bad_pages(path) == []
    opened(killed, page_checksums=page_checksums)
    assert (bad_pages(path), tools_of(killed).check()) == ([], [])


def test_a_damaged_page_beside_the_log_is_found(killed: Path) -> None:
    path = killed / FILE_NAME
    page = max({*range(2, path.stat().st_size // PAGE)} - in_both(killed))
    flip(path, page)
    flip(path, min(in_both(killed)))
    assert bad_pages(path) == [page]


def test_a_page_of_a_commit_that_was_cut_off_is_read_in_the_file(killed: Path) -> None:
    """Its copy in the incomplete commit is ignored."""
    path, frames, both = killed / FILE_NAME, frames_of(killed), in_both(killed)
    *_, before, last = (n for n, (_, size) in enumerate(frames, 1) if size)
    assert last == len(frames)
    whole = {page for page, _ in frames[:before]}
    for page in both:
        flip(path, page)
    assert both - whole
    for length, bad in ((last - 1, both - whole), (0, both)):
        with log_of(killed).open("r+b") as log:
            log.truncate(32 + length * (24 + PAGE))
        assert bad_pages(path) == sorted(bad)


def test_a_page_that_was_moved_already_is_read_in_the_file(killed: Path) -> None:
    """While the log is open, SQLite knows how far it was moved; a new start does not."""
    path, pages = killed / FILE_NAME, in_both(killed)
    with closing(connect(path, busy=0.0)) as db:
        first_row(db, "SELECT 1 FROM sqlite_master")
        assert not checkpoint(db, "PASSIVE")
        assert bad_pages(path) == []
        flip_in_place = min(pages)
        replace(path, flip_in_place, bytes(PAGE // 2))
        assert bad_pages(path) == [flip_in_place]
        leave_log(db)
    assert bad_pages(path) == []


def test_the_first_page_may_be_in_the_log(killed: Path) -> None:
    """It says whether there are page checksums, and the copy in the file may be torn."""
    path = killed / FILE_NAME
    assert 1 in dict(frames_of(killed))
    page = max({*range(2, path.stat().st_size // PAGE)} - in_both(killed))
    flip(path, page)
    replace(path, 1, bytes(PAGE))
    assert bad_pages(path) == [page]


def test_a_page_within_which_the_file_was_cut_is_found(folder: Path) -> None:
    path = folder / FILE_NAME
    pages = path.stat().st_size // PAGE
    with path.open("r+b") as file:
        file.truncate(pages * PAGE - 100)
    assert bad_pages(path) == [pages]
