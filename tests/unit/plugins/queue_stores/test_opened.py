"""A store notices that its files were moved or replaced, before it confirms a write."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import StoreError
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.database import change, connect
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.writes import Admit, Announce
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def renew(path: Path) -> None:
    """Replace a file with another one of the same content."""
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.replace(path)


def swap(data: Path) -> None:
    """Replace a directory with a copy."""
    shutil.copytree(data, data.with_name("copy"))
    data.rename(data.with_name("old"))
    data.with_name("copy").rename(data)


#: Name of a damage -> the function that does it to a data directory, and the error afterwards.
HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "database deleted": (lambda data: (data / FILE_NAME).unlink(), f"{FILE_NAME} is gone"),
    "database replaced": (lambda data: renew(data / FILE_NAME), f"{FILE_NAME} is another file"),
    "log deleted": (lambda data: (data / f"{FILE_NAME}-wal").unlink(), f"{FILE_NAME}-wal is gone"),
    "log replaced": (lambda data: renew(data / f"{FILE_NAME}-wal"), "-wal is another file"),
    "lock deleted": (lambda data: (data / "lock").unlink(), "lock is gone"),
    "lock replaced": (lambda data: renew(data / "lock"), "lock is another file"),
    "directory deleted": (shutil.rmtree, "is gone"),
    "directory moved": (lambda data: data.rename(data.with_name("old")), "is gone"),
    "directory swapped": (swap, "is another file"),
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["durable", "relaxed"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "data", clock, durability=request.param, reserve=0)
    store.open()
    yield store
    store.close()


def commit(store: SqliteStore) -> object:
    """Commit a write, and return the result."""
    store.submit([Announce({"main": "tcp://127.0.0.1:1"})])
    (write_result,) = store.finished()
    return write_result


@pytest.mark.parametrize("harm", HARMS)
def test_a_commit_into_files_without_a_name_has_no_receipt(
    store: SqliteStore, tmp_path: Path, harm: str
) -> None:
    """The job is stored in a file that no later start opens."""
    assert not isinstance(commit(store), Exception)
    hurt, message = HARMS[harm]
    hurt(tmp_path / "data")
    write_result = commit(store)
    assert isinstance(write_result, StoreError)
    assert message in str(write_result)
    assert "the running broker, which now stops" in str(write_result)


@pytest.mark.parametrize("harm", [*HARMS, "index deleted"])
def test_an_idle_store_notices_it_too(store: SqliteStore, tmp_path: Path, harm: str) -> None:
    """Only this check includes the index: readers that recreate it are not waited for."""
    store.verify()
    hurt, message = HARMS.get(
        harm, (lambda data: (data / f"{FILE_NAME}-shm").unlink(), f"{FILE_NAME}-shm is gone")
    )
    hurt(tmp_path / "data")
    with pytest.raises(StoreError, match="was moved or removed under the running broker") as raised:
        store.verify()
    assert message in str(raised.value)


@pytest.mark.parametrize("harm", ["database deleted", "directory moved", "directory swapped"])
def test_a_reader_of_events_notices_it_too(store: SqliteStore, tmp_path: Path, harm: str) -> None:
    """Otherwise a journal would wait for events of a broker that writes elsewhere."""
    commit(store)
    with closing(SqliteEventLogReader(tmp_path / "data")) as reader:
        reader.read(0, 1 << 20)
        HARMS[harm][0](tmp_path / "data")
        with pytest.raises(StoreError, match="was deleted, moved or replaced: start again"):
            reader.read(0, 1 << 20)


def test_work_of_the_store_itself_raises_nothing(store: SqliteStore) -> None:
    """Checkpoints, readers and links keep the names of the files."""
    for _ in range(50):
        assert not isinstance(commit(store), Exception)
    assert store.tools is not None
    assert [] == store.tools.check()
    store.verify()


def test_a_linked_directory_that_leads_elsewhere_is_noticed(
    tmp_path: Path, clock: FakeClock
) -> None:
    """SQLite resolves links only when it opens a file."""
    (tmp_path / "one").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "one")
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    store.verify()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to(tmp_path / "two")
    with pytest.raises(StoreError, match="is another file now"):
        store.verify()
    store.close()


def test_a_swapped_directory_is_left_alone(tmp_path: Path, clock: FakeClock) -> None:
    """Another broker may use it by now, so closing the old store deletes no log there."""
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    swap(tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    store.close()
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}


def test_the_log_of_a_moved_store_is_left_alone(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may belong to the log of another store, whose file has the same inode number."""
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    store.submit([Admit([JobRecord(IdFactory(clock).new(), "q", "task:t", b"x", 1)])])
    log = tmp_path / "data" / "queue.sqlite-wal"
    before = log.read_bytes()
    assert before

    def raise_removed(_: object) -> None:
        raise StoreError("it is another file now")

    monkeypatch.setattr(type(store._opened), "verify", raise_removed)
    store.close()
    assert before == log.read_bytes()


def test_a_store_in_its_place_is_closed_without_a_log(tmp_path: Path, clock: FakeClock) -> None:
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    store.submit([Admit([JobRecord(IdFactory(clock).new(), "q", "task:t", b"x", 1)])])
    store.close()
    assert not (tmp_path / "data" / "queue.sqlite-wal").exists()


@pytest.mark.parametrize(
    "alter", ["UPDATE subqueues SET queue = 99", "UPDATE meta SET value = 'x' WHERE key = 'epoch'"]
)
def test_an_altered_value_ends_a_start_with_a_sentence(
    tmp_path: Path, clock: FakeClock, alter: str
) -> None:
    """SQLite's own checks do not detect such a value."""
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    headers = "task:t,limit-running:1,limit-key:a"
    store.submit([Admit([JobRecord(IdFactory(clock).new(), "q", headers, b"x", 1)])])
    store.close()
    with closing(connect(tmp_path / "data" / "queue.sqlite", busy=1.0)) as db:
        assert change(db, alter)
    with pytest.raises(StoreError, match="eventmq fsck"):
        SqliteStore(tmp_path / "data", clock, reserve=0).open()


def test_a_check_after_a_commit_does_not_stat_the_log(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the times of the log makes its next sync write one block more."""
    if not (hasattr(os, "O_PATH") and os.path.lexists("/proc/self/fd/0")):
        pytest.skip("this system cannot say where an open file is")
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    paths: list[str] = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path: [paths.append(os.fspath(path)), stat(path)][1])
    store._opened.committed()
    monkeypatch.undo()
    store.close()
    assert paths
    assert not [path for path in paths if path.endswith("-wal")]
