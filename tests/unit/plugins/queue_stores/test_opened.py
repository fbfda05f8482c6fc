"""A store notices that its files are not where it opened them, before it gives a result."""

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
    """Put another file with the same content in the place of one."""
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.replace(path)


def swap(data: Path) -> None:
    """Put a copy in the place of a directory."""
    shutil.copytree(data, data.with_name("copy"))
    data.rename(data.with_name("old"))
    data.with_name("copy").rename(data)


#: What is done to a data directory, and to whose name the error leads.
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
    """Commit something; return the result."""
    store.submit([Announce({"main": "tcp://127.0.0.1:1"})])
    (write_result,) = store.finished()
    return write_result


@pytest.mark.parametrize("harm", HARMS)
def test_a_commit_into_files_without_a_name_has_no_receipt(
    store: SqliteStore, tmp_path: Path, harm: str
) -> None:
    """It is stored, and nobody would find it."""
    assert not isinstance(commit(store), Exception)
    hurt, message = HARMS[harm]
    hurt(tmp_path / "data")
    write_result = commit(store)
    assert isinstance(write_result, StoreError)
    assert message in str(write_result)
    assert "gives no further receipt" in str(write_result)


@pytest.mark.parametrize("harm", [*HARMS, "index deleted"])
def test_a_store_that_does_nothing_notices_it_too(
    store: SqliteStore, tmp_path: Path, harm: str
) -> None:
    """The index is looked at here only: readers that make another one are not waited for."""
    store.verify()
    hurt, message = HARMS.get(
        harm, (lambda data: (data / f"{FILE_NAME}-shm").unlink(), f"{FILE_NAME}-shm is gone")
    )
    hurt(tmp_path / "data")
    with pytest.raises(StoreError, match="was moved or removed under the running broker") as raised:
        store.verify()
    assert message in str(raised.value)


@pytest.mark.parametrize("harm", ["database deleted", "directory moved", "directory swapped"])
def test_who_reads_events_notices_it_too(store: SqliteStore, tmp_path: Path, harm: str) -> None:
    """A journal would wait for events of a broker that writes elsewhere."""
    commit(store)
    with closing(SqliteEventLogReader(tmp_path / "data")) as reader:
        reader.read(0, 1 << 20)
        HARMS[harm][0](tmp_path / "data")
        with pytest.raises(StoreError, match="was deleted, moved or replaced: start again"):
            reader.read(0, 1 << 20)


def test_what_it_does_itself_is_no_loss(store: SqliteStore) -> None:
    """Checkpoints, readers and links leave the names where they are."""
    for _ in range(50):
        assert not isinstance(commit(store), Exception)
    assert store.tools is not None
    assert [] == store.tools.check()
    store.verify()


def test_a_linked_directory_that_leads_elsewhere_is_noticed(
    tmp_path: Path, clock: FakeClock
) -> None:
    """SQLite follows links when it opens a file, and never looks at them again."""
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
    """Whoever has it now may have a log there: the one who closes the old store deletes nothing."""
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    swap(tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    store.close()
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}


def test_the_log_of_a_store_that_was_taken_away_is_left_alone(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its name may be the log of another store whose file has the same number elsewhere."""
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


def test_a_store_that_is_there_is_closed_without_a_log(tmp_path: Path, clock: FakeClock) -> None:
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
    """No check of the file sees it."""
    store = SqliteStore(tmp_path / "data", clock, reserve=0)
    store.open()
    headers = "task:t,limit-running:1,limit-key:a"
    store.submit([Admit([JobRecord(IdFactory(clock).new(), "q", headers, b"x", 1)])])
    store.close()
    with closing(connect(tmp_path / "data" / "queue.sqlite", busy=1.0)) as db:
        assert change(db, alter)
    with pytest.raises(StoreError, match="eventmq fsck"):
        SqliteStore(tmp_path / "data", clock, reserve=0).open()


def test_a_look_after_a_commit_asks_for_no_times_of_the_log(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for them makes the next sync of the log write one block more."""
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
