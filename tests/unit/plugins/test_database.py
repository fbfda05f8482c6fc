"""How `apsw` opens databases, and how it differs from the interpreter's ``sqlite3``."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from eventmq.errors import ResultUnavailable, StoreError
from eventmq.plugins.database import (
    DISK_FULL,
    IN_USE,
    UNREADABLE,
    all_rows,
    change,
    change_many,
    check_library,
    checkpoint,
    connect,
    copy_database,
    first_row,
    first_value,
    library_version,
    log_frames,
    use_log,
    watch_log,
)
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.plugins.result_backends.sqlite import SqliteResults
from eventmq.plugins.schedule_stores import SqliteSchedules
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eventmq.store.reports import BackedUp

#: Seconds after which what another thread should have done has failed.
DEADLINE = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a database with a log, a table and three rows."""
    path = tmp_path / "some.sqlite"
    with closing(connect(path, busy=0.0)) as db:
        use_log(db, 0.0)
        db.execute("CREATE TABLE t (x)")
        db.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
    return path


@pytest.fixture
def db(path: Path) -> Iterator[apsw.Connection]:
    with closing(connect(path, busy=0.0)) as db:
        yield db


# The library


@pytest.mark.parametrize(
    "version", ["3.44.6", "3.44.9", "3.50.7", "3.51.3", "3.52.0", "3.54.1", "4.0.0"]
)
def test_a_library_that_loses_no_commits_is_accepted(version: str) -> None:
    check_library(version)


@pytest.mark.parametrize(
    "version",
    ["3.7.0", "3.40.1", "3.44.5", "3.45.9", "3.49.2", "3.50.6", "3.51.0", "3.51.2", "nonsense"],
)
def test_a_library_that_can_lose_commits_is_refused(version: str) -> None:
    with pytest.raises(StoreError, match=rf"^SQLite {version} can lose committed jobs.*apsw 3\.53"):
        check_library(version)


def test_an_apsw_that_keeps_closed_cursors_is_refused() -> None:
    with pytest.raises(StoreError, match=r"^apsw 3\.54\.0\.0 keeps cursors .*'apsw!=3\.54\.0\.0'"):
        check_library("3.54.0", "3.54.0.0")
    check_library("3.54.0", "3.54.1.0")


def test_the_installed_library_is_accepted() -> None:
    assert library_version() == apsw.sqlite_lib_version()
    check_library(library_version(), apsw.apsw_version())


def test_abandoned_cursors_hold_no_transaction(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE two (a); INSERT INTO two VALUES (1), (2)")

    def abandon() -> Any:
        for _ in db.execute("SELECT a FROM two"):
            return first_value(db, "SELECT a FROM two")
        return 0

    assert 1 == abandon()
    assert apsw.SQLITE_TXN_NONE == db.txn_state()


def _broker(folder: Path) -> None:
    SqliteStore(folder, FakeClock(), reserve=0).open()


def _fsck(folder: Path) -> None:
    SqliteTools(folder / FILE_NAME, durable=True).check()


def _repair(folder: Path) -> None:
    SqliteTools(folder / FILE_NAME, durable=True).repair()


def _backup(folder: Path) -> BackedUp:
    tools = SqliteTools(folder / FILE_NAME, durable=True)
    return tools.backup(folder / "copy", replace=False)


def _schedules(folder: Path) -> None:
    SqliteSchedules(folder / "schedules.sqlite", FakeClock())


def _results(folder: Path) -> None:
    SqliteResults(folder / "results.sqlite", FakeClock()).put("job", b"", 60.0)


@pytest.mark.parametrize(
    "opening", [_broker, _fsck, _repair, _backup, SqliteEventLogReader, _schedules, _results]
)
def test_every_opening_refuses_such_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: Callable[[Path], Any]
) -> None:
    """This covers brokers, fsck, backups, the journal, and stores of results and schedules."""
    store = SqliteStore(tmp_path, FakeClock(), reserve=0)
    store.open()
    store.close()
    monkeypatch.setattr("apsw.sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(
        (StoreError, ResultUnavailable), match=r"SQLite 3\.51\.2 can lose committed"
    ):
        opening(tmp_path)


# What differs


def test_a_connection_waits_for_locks_until_its_timeout(path: Path) -> None:
    """SQLite's own default is no wait at all."""
    with closing(connect(path, busy=0.0)) as other, closing(connect(path, busy=DEADLINE)) as db:
        other.execute("BEGIN IMMEDIATE")
        with closing(connect(path, busy=0.0)) as hasty, pytest.raises(IN_USE):
            hasty.execute("BEGIN IMMEDIATE")
        ended = threading.Thread(target=_begin, args=(db,))
        ended.start()
        other.execute("COMMIT")
        ended.join(DEADLINE)
        assert db.in_transaction


def _begin(db: apsw.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")


def test_every_store_waits_for_locks(tmp_path: Path) -> None:
    """Without a timeout, a connection fails at the first lock that it meets."""
    store = SqliteStore(tmp_path, FakeClock(), reserve=0)
    store.open()
    results = SqliteResults(tmp_path / "results.sqlite", FakeClock())
    results.put("job", b"", 60.0)
    schedules = SqliteSchedules(tmp_path / "schedules.sqlite", FakeClock())
    events: Any = SqliteEventLogReader(tmp_path)
    checkpointer: Any = store._checkpointer
    waits = {
        "store": store._db, "checkpoints": checkpointer._db, "events": events._db,
        "results": results._connection.db, "schedules": schedules._db,
    }  # fmt: skip
    try:
        timeouts = {name: db and db.pragma("busy_timeout") for name, db in waits.items()}
        assert timeouts == {
            "store": 5000, "checkpoints": 5000, "events": 5000, "results": 30_000,
            "schedules": 5000,
        }  # fmt: skip
    finally:
        for each in (events, schedules, results, store):
            each.close()


def test_changed_rows_are_counted_without_cursors(db: apsw.Connection) -> None:
    assert change(db, "UPDATE t SET x = 9 WHERE x > ?", (1,)) == 2
    assert change(db, "DELETE FROM t WHERE x = 8") == 0
    db.execute("CREATE UNIQUE INDEX t_x ON t (x) WHERE x < 5")
    rows = [(1,), (2,), (2,), (7,)]
    assert change_many(db, "INSERT OR IGNORE INTO t VALUES (?)", rows) == 2
    assert change_many(db, "DELETE FROM t WHERE x = ?", [(9,), (2,)]) == 3


def test_a_held_cursor_keeps_the_log(db: apsw.Connection) -> None:
    """Therefore first_row() closes its cursor."""
    cursor = db.execute("SELECT x FROM t")
    assert cursor.fetchone() == (1,)
    assert db.txn_state() == apsw.SQLITE_TXN_READ
    with pytest.raises(apsw.LockedError):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    assert checkpoint(db, "RESTART")
    cursor.close()
    rows = [first_row(db, "SELECT x FROM t ORDER BY x DESC"), first_row(db, "SELECT 1 WHERE 0")]
    assert rows == [(3,), None]
    assert db.txn_state() == apsw.SQLITE_TXN_NONE
    assert not checkpoint(db, "RESTART")


def test_a_checkpoint_reports_that_others_are_in_the_way(path: Path, db: apsw.Connection) -> None:
    """The method of apsw raises an error, where the pragma returns a row."""
    with closing(connect(path, busy=0.0, read_only=True)) as reader:
        reader.execute("BEGIN")
        assert first_row(reader, "SELECT count(*) FROM t") == (3,)
        db.execute("INSERT INTO t VALUES (4)")
        with pytest.raises(apsw.BusyError):
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        assert [checkpoint(db, mode) for mode in ("RESTART", "TRUNCATE")] == [True, True]  # type: ignore[arg-type]
        assert not checkpoint(db, "PASSIVE")
        reader.execute("COMMIT")
        assert not checkpoint(db, "TRUNCATE")


def test_damaged_text_is_an_error_of_its_own(db: apsw.Connection) -> None:
    db.execute("UPDATE t SET x = CAST(x'61ff' AS TEXT) WHERE x = 1")
    with pytest.raises(UNREADABLE):
        all_rows(db, "SELECT x FROM t")
    assert first_row(db, "SELECT CAST(x AS BLOB) FROM t WHERE typeof(x) = 'text'") == (b"a\xff",)


def test_a_full_disk_is_an_error_of_its_own(db: apsw.Connection) -> None:
    db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(DISK_FULL):
        db.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert not issubclass(apsw.IOError, DISK_FULL)


def test_a_database_is_copied_by_its_destination(db: apsw.Connection) -> None:
    with closing(connect(":memory:", busy=0.0)) as copy:
        copy_database(db, copy)
        assert all_rows(copy, "SELECT x FROM t") == [(1,), (2,), (3,)]


def test_read_only_connections_refuse_writes(path: Path) -> None:
    for options in ({"read_only": True}, {"immutable": True}):
        with closing(connect(path, busy=0.0, **options)) as db:  # type: ignore[arg-type]
            assert first_row(db, "SELECT count(*) FROM t") == (3,)
            with pytest.raises(apsw.ReadOnlyError):
                db.execute("DELETE FROM t")
    with pytest.raises(UNREADABLE):
        connect(path.with_name("none"), busy=0.0, create=False)


def test_a_log_is_created_though_another_connection_is_in_the_way(tmp_path: Path) -> None:
    """SQLite fails at once here, whatever the timeout."""
    with (
        closing(connect(tmp_path / "new", busy=0.0)) as other,
        closing(connect(tmp_path / "new", busy=0.0)) as db,
    ):
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(IN_USE):
            use_log(db, 0.0)
        ended = threading.Timer(0.02, other.execute, ("COMMIT",))
        ended.start()
        use_log(db, DEADLINE)
        ended.join()
        assert db.pragma("journal_mode") == "wal"


# The log


def test_readers_get_the_length_of_the_log(path: Path, db: apsw.Connection) -> None:
    """They do not read the index file, whose format is private to SQLite."""
    db.wal_autocheckpoint(0)
    with closing(connect(path, busy=0.0, read_only=True)) as reader:
        first_row(reader, "SELECT count(*) FROM t")
        assert log_frames(reader) == 0
        db.execute("INSERT INTO t VALUES (4)")
        db.execute("INSERT INTO t VALUES (5)")
        first_row(reader, "SELECT count(*) FROM t")
        assert log_frames(reader) == 2


def test_the_error_without_noop_checkpoints_says_what_to_install(path: Path) -> None:
    """Libraries before 3.53 lose no commits, but have no NOOP checkpoint."""

    class Older:
        def wal_checkpoint(self, *, mode: int) -> tuple[int, int]:
            raise apsw.MisuseError("not an error")

    older: Any = Older()
    with pytest.raises(StoreError, match=r"cannot tell how long a log is: install apsw 3\.53"):
        log_frames(older)


def test_frames_of_a_watched_log_are_counted_and_not_checkpointed(db: apsw.Connection) -> None:
    """Turning automatic checkpoints off removes a hook, so that has to come first."""
    frames = [0]
    watch_log(db, frames)
    for count in range(1, 4):
        db.execute("INSERT INTO t VALUES (4)")
        assert frames == [count]
    for value in range(2000):  # by itself SQLite would checkpoint after 1000
        db.execute("UPDATE t SET x = ? WHERE rowid = 1", (-value,))
    assert frames == [2003]
    db.wal_autocheckpoint(0)
    db.execute("INSERT INTO t VALUES (4)")
    assert frames == [2003], "wal_autocheckpoint() has removed the hook"


def test_a_hook_that_raises_fails_a_commit_that_was_carried_out(db: apsw.Connection) -> None:
    """Therefore the hook of watch_log() only stores a number."""

    def hook(_: apsw.Connection, __: str, ___: int) -> int:
        raise KeyError

    db.set_wal_hook(hook)
    with pytest.raises(KeyError):
        db.execute("INSERT INTO t VALUES (4)")
    assert first_row(db, "SELECT count(*) FROM t") == (4,)


def test_two_threads_at_once_are_an_error_and_no_damage(path: Path) -> None:
    """Connections that threads share are protected by locks."""
    slow, go = threading.Event(), threading.Event()

    def wait(_: object) -> int:
        slow.set()
        return int(go.wait(DEADLINE))

    with closing(connect(path, busy=0.0)) as db:
        db.create_scalar_function("wait", wait, 1)
        rows: list[Any] = []
        thread = threading.Thread(target=lambda: rows.extend(all_rows(db, "SELECT wait(1)")))
        thread.start()
        try:
            assert slow.wait(DEADLINE)
            start = time.monotonic()
            with pytest.raises(apsw.ThreadingViolationError):
                db.execute("SELECT 1")
            assert time.monotonic() - start < DEADLINE / 2
        finally:
            go.set()
            thread.join(DEADLINE)
        assert rows == [(1,)]
