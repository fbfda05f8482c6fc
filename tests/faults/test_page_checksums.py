"""A store with page checksums says every page that is not what was written."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import PluginError, StoreError
from eventmq.interfaces import PluginContext
from eventmq.plugins import database
from eventmq.plugins.database import bad_pages, connect, has_page_checksums
from eventmq.plugins.queue_stores.care.care import SqliteCare
from eventmq.plugins.queue_stores.sqlite import FILE_NAME, SqliteStore, make_store
from eventmq.testing import FakeClock
from tests.faults.pages import PAGE, leaves
from tests.faults.script import Script, run_script

if TYPE_CHECKING:
    from typing import Any


class Checked(Script):
    """The script, on a store with page checksums."""

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


def care_of(folder: Path) -> SqliteCare:
    return SqliteCare(folder / FILE_NAME, durable=True)


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


def test_a_store_that_was_worked_on_is_sound_and_stays_so(folder: Path) -> None:
    """Whoever opens it goes on with them, without saying so."""
    assert care_of(folder).check() == []
    opened(folder)
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        assert has_page_checksums(db)
        db.execute("UPDATE meta SET value = value")
        db.execute("CREATE TABLE more (a); DROP TABLE more")
    assert bad_pages(folder / FILE_NAME) == []


@pytest.mark.parametrize("table", ["nodes", "events", "jobs"])
def test_a_bit_that_flipped_anywhere_is_found(folder: Path, table: str) -> None:
    """Also in tables without checksums of their own."""
    page = leaves(folder / FILE_NAME, table)[0]
    flip(folder / FILE_NAME, page)
    found = care_of(folder).check()
    assert found[0].check == "page-checksums"
    assert found[0].found == f"1 pages are not what was written: {page}"
    assert care_of(folder).repair()[:2] == ("", [])
    with pytest.raises(StoreError, match=rf"table {table}: .*its checksum is wrong.*--salvage"):
        opened(folder)


def test_what_is_salvaged_has_them_where_the_option_says_so(folder: Path) -> None:
    """Its rows are judged by their own checksums, so a page with a flipped bit is not lost."""
    path = folder / FILE_NAME
    flip(path, leaves(path, "nodes")[0], 2)  # a free block that is not there
    for wanted in (False, True):
        to = folder.parent / f"new{wanted}"
        done = SqliteCare(path, durable=True, page_checksums=wanted).salvage(to)
        assert (done.lost, done.left) == ([], [])
        with closing(connect(to / FILE_NAME, busy=0.0)) as db:
            assert has_page_checksums(db) is wanted
        opened(to)
        assert care_of(to).check() == []


def test_a_backup_has_them_too(folder: Path) -> None:
    care_of(folder).backup(folder.parent / "copy", replace=False)
    path = folder.parent / "copy" / FILE_NAME
    assert bad_pages(path) == []
    with closing(connect(path, busy=0.0)) as db:
        assert has_page_checksums(db)
    flip(path, leaves(path, "jobs")[0])
    assert len(bad_pages(path)) == 1
    opened(folder)
    assert care_of(folder).check() == []


def test_a_store_without_them_goes_on_without(
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
    """What is written without them would be taken for damage; it can be read."""
    monkeypatch.setattr(database, "can_checksum_pages", lambda: False)
    with pytest.raises(StoreError, match="this apsw has no extension for them"):
        opened(folder)
    assert care_of(folder).check() == []


def test_the_option_needs_the_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"directory": str(tmp_path), "page_checksums": "true"}
    context = PluginContext("sqlite", options, FakeClock())
    store = make_store(context)
    store.open()
    store.close()
    with closing(connect(tmp_path / FILE_NAME, busy=0.0)) as db:
        assert has_page_checksums(db)
    monkeypatch.setattr("eventmq.plugins.queue_stores.sqlite.can_checksum_pages", lambda: False)
    with pytest.raises(PluginError, match="page_checksums needs an extension of SQLite"):
        make_store(context)
