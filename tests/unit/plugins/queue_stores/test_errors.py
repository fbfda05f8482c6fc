"""The errors of a failing store say what helps, and the store confirms nothing afterwards."""

from __future__ import annotations

import logging
import os
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from eventmq.engine.contract import Mismatch
from eventmq.engine.engine import EventLog
from eventmq.engine.rows import Tables
from eventmq.errors import PluginError, QueueFull, StoreError
from eventmq.interfaces import PluginContext
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.database import connect
from eventmq.plugins.queue_stores import memory
from eventmq.plugins.queue_stores.sqlite import store, wal
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME, store_error
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.plugins.queue_stores.sqlite.wal import Checkpointer
from eventmq.store.reads import FindJobs, History
from eventmq.store.writes import Admit
from eventmq.testing import FakeClock
from tests.support.pages import PAGE, leaves, overwrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

#: Seconds that another thread has to do its work.
DEADLINE = 20.0

SALVAGE = "eventmq fsck lists the damage, and eventmq fsck --salvage DEST copies what can be read"


class Store:
    """A store, with the ids of the jobs whose submission it confirmed."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._clock = FakeClock()
        self._path, self._options = path, options
        self._new_id = IdFactory(self._clock).new
        self.confirmed: list[str] = []
        self._seq = 0
        self.open()

    def open(self) -> None:
        self.store = SqliteStore(self._path, self._clock, reserve=0, **self._options)
        self.store.open()

    def submit(self, write: Any) -> Any:
        """Return the result of a write."""
        self.store.submit([write])
        [write_results] = self.store.finished()
        return write_results if isinstance(write_results, Exception) else write_results[0]

    def admit(self, queue: str = "q") -> Any:
        """Submit a job, and record its id if the store confirms it."""
        self._seq += 1
        job = JobRecord(self._new_id(), queue, "task:t", b"x", self._seq, self._seq, created=1.0)
        write_result = self.submit(Admit([job]))
        if not isinstance(write_result, Exception):
            self.confirmed.append(job.id)
        return write_result

    def find_confirmed(self) -> Sequence[Any]:
        """Return the rows of the confirmed jobs."""
        return list(self.submit(FindJobs(self.confirmed)).values())


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    stores: list[Store] = []

    def make(**options: Any) -> Store:
        stores.append(Store(tmp_path / "data", **options))
        return stores[-1]

    yield make
    for each in stores:
        each.store.close()


def fail(*_: object) -> None:
    raise apsw.IOError("disk I/O error")


# A commit that cannot be undone


def full_after_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full at the end of each commit."""

    def flush_counts(self: Tables) -> None:
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(Tables, "flush_counts", flush_counts)


@pytest.mark.parametrize("component", [Tables, EventLog])
def test_a_commit_that_cannot_be_undone_is_the_last_one(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, component: type
) -> None:
    """Otherwise jobs would be stored with the number of a queue that is not in the database."""
    store = opened()
    store.admit()
    with monkeypatch.context() as patched:
        full_after_rows(patched)
        patched.setattr(component, "reload", fail)
        write_result = store.admit("new")
    assert isinstance(write_result, StoreError)
    assert str(write_result).endswith("cannot undo a commit that failed: disk I/O error")
    assert [store.admit("new"), store.admit()] == [write_result, write_result]
    store.store.close()
    store.open()
    assert [each.job.damaged for each in store.find_confirmed()] == [False]
    assert store.admit("new") == {}


def test_a_commit_is_retried_only_if_the_first_was_undone(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()

    def mismatch(*_: object) -> None:
        raise Mismatch

    with monkeypatch.context() as patched:
        patched.setattr(Tables, "flush_counts", mismatch)
        patched.setattr(EventLog, "reload", fail)
        write_result = store.admit()
    assert isinstance(write_result, StoreError)
    assert store.admit() is write_result


def test_a_commit_that_was_undone_is_not_the_last_one(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    with monkeypatch.context() as patched:
        full_after_rows(patched)
        assert isinstance(store.admit("new"), QueueFull)
    assert store.admit("new") == {}
    store.store.close()
    store.open()
    assert [each.job.queue for each in store.find_confirmed()] == ["new"]


def test_ballast_that_cannot_be_deleted_is_an_error_of_the_store(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    full_after_rows(monkeypatch)
    monkeypatch.setattr(store.store._directory, "release_ballast", read_only)
    write_result = store.admit()
    assert isinstance(write_result, StoreError)
    assert str(write_result).endswith("cannot be written: [Errno 30] Read-only file system")


# What helps


@pytest.mark.parametrize("page_checksums", [False, True], ids=["garbage", "checksum"])
def test_the_error_of_a_damaged_page_says_what_helps(
    opened: Callable[..., Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page_checksums: bool,
) -> None:
    """A start reads the small tables, and the others for a second, with the same error."""
    opened(page_checksums=page_checksums).store.close()
    path = tmp_path / "data" / FILE_NAME
    overwrite(path, leaves(path, "sqlite_autoindex_attempts_1")[0], b"\xff" * PAGE)
    monkeypatch.setattr(store, "check_quickly", lambda *_: None)
    write_result = opened().submit(History("some"))
    assert isinstance(write_result, StoreError)
    why = "its checksum is wrong" if page_checksums else "database disk image is malformed"
    assert str(write_result).endswith(f"{why}; {SALVAGE}")


def _error(code: int) -> apsw.Error:
    error = apsw.IOError("disk I/O error")
    error.result, error.extendedresult = apsw.SQLITE_IOERR, code
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            apsw.NotADBError("file is not a database"),
            f"cannot be read: file is not a database; {SALVAGE}",
        ),
        (_error(apsw.SQLITE_IOERR_READ), f"cannot be read: disk I/O error; {SALVAGE}"),
        (_error(apsw.SQLITE_IOERR_WRITE), "cannot be written: disk I/O error"),
        (KeyError(7), f"cannot be written: KeyError: 7; {SALVAGE}"),
        (MemoryError(), "cannot be written: MemoryError"),
    ],
)
def test_only_errors_that_may_be_damage_name_salvage(error: Exception, sentence: str) -> None:
    failure = store_error("some.sqlite", error)
    assert (str(failure), failure.__cause__) == (f"the store some.sqlite {sentence}", error)


# The thread that checkpoints and syncs the log


def _no_descriptor(*_: object, **__: object) -> int:
    raise OSError(24, "Too many open files")


def test_a_log_that_cannot_be_opened_to_sync_is_an_error_of_the_store(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(open=_no_descriptor, O_RDONLY=os.O_RDONLY)
    monkeypatch.setattr(wal, "os", fake)
    with pytest.raises(
        StoreError, match=r"cannot checkpoint or sync its log: .*Too many open files"
    ):
        opened(durability="relaxed")
    opened(durability="durable")


def test_a_thread_that_cannot_be_started_is_an_error_of_the_store(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relaxed store needs it to sync; a durable one checkpoints in the committing thread."""

    class Thread:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

        def is_alive(self) -> bool:
            return False

    fake = SimpleNamespace(Thread=Thread, Event=wal.threading.Event, Lock=wal.threading.Lock)
    monkeypatch.setattr(wal, "threading", fake)
    with pytest.raises(
        StoreError, match="cannot checkpoint or sync its log: can't start new thread"
    ):
        opened(durability="relaxed")
    opened(durability="durable")


def test_any_other_error_of_files_at_the_start_is_an_error_of_the_store(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "check_log", _no_descriptor)
    with pytest.raises(StoreError, match=r"cannot open the store .*: .*Too many open files"):
        opened()


@pytest.mark.parametrize(("durability", "step"), [("durable", "_checkpoint"), ("relaxed", "_sync")])
def test_a_thread_that_ended_ends_the_store_with_the_next_commit(
    opened: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    durability: str,
    step: str,
) -> None:
    """Otherwise writes would be confirmed without being synced."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(Checkpointer, step, broken)
    monkeypatch.setattr(wal, "NOTIFY_FRAMES", 1)
    store = opened(durability=durability, fsync_interval=0.001)
    with suppress(StoreError):  # the thread may have ended by now
        store.admit()
    checkpointer: Any = store.store._checkpointer
    checkpointer._thread.join(DEADLINE)
    assert not checkpointer._thread.is_alive()
    with pytest.raises(StoreError, match="cannot checkpoint or sync its log: division by zero"):
        store.admit()
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage().startswith("the thread that checkpoints and syncs the log of ")


def test_a_log_that_cannot_be_checkpointed_ends_the_store(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds where the committing thread checkpoints the log."""

    def broken(*_: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(wal, "checkpoint", broken)
    monkeypatch.setattr(wal, "NOTIFY_FRAMES", 1 << 30)
    monkeypatch.setattr(wal, "RESTART_FRAMES", 1)
    store = opened()
    with pytest.raises(StoreError, match="cannot checkpoint or sync its log: MemoryError"):
        store.admit()
    with pytest.raises(StoreError, match="cannot checkpoint or sync its log: MemoryError"):
        store.admit()


@pytest.mark.parametrize(
    ("key", "value", "description"),
    [
        ("store_id", "7", "7, of the type int and not str"),
        ("store_id", "x'c1'", "b'\\xc1', of the type bytes and not str"),
        ("epoch", "'x'", "'x', of the type str and not int"),
        ("epoch", "NULL", "None, of the type NoneType and not int"),
    ],
)
def test_a_store_whose_id_or_epoch_was_altered_is_refused_in_one_sentence(
    opened: Callable[..., Store], tmp_path: Path, key: str, value: str, description: str
) -> None:
    """The error names the store, the entry and the repair, which writes a new one."""
    opened().store.close()
    path = tmp_path / "data" / FILE_NAME
    with closing(connect(path, busy=0.0)) as db:
        db.execute(f"UPDATE meta SET value = {value} WHERE key = '{key}'")
    with pytest.raises(StoreError) as refused:
        opened()
    assert str(refused.value) == (
        f"cannot open the store {path}: its {key} in the table meta is {description}; "
        f"eventmq fsck --repair gives it another one; {SALVAGE}"
    )
    SqliteTools(path, durable=True).repair()
    assert opened().admit() == {}


# Options


@pytest.mark.parametrize("make", [store.make_store, memory.make_store])
@pytest.mark.parametrize(
    "name", ["dedupe_window", "keep_results", "events_ring", "events_cap", "events_values"]
)
def test_a_store_takes_no_negative_option(
    make: Callable[[PluginContext], object], name: str
) -> None:
    with pytest.raises(PluginError, match=f"'{name}' of 'store' must be .* from 0, not -1"):
        make(PluginContext("store", {name: -1}, FakeClock()))


@pytest.mark.parametrize(("name", "value"), [("reserve", -1), ("fsync_interval", 0)])
def test_a_store_with_a_file_refuses_invalid_sizes_and_intervals(name: str, value: int) -> None:
    with pytest.raises(PluginError, match=f"'{name}' of 'sqlite' must be .*, not {value}"):
        store.make_store(PluginContext("sqlite", {name: value}, FakeClock()))
