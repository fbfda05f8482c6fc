"""The write-ahead log is restarted while others read or checkpoint it, and no commit waits long."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ
from eventmq.errors import PluginError
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.database import checkpoint, connect, first_row
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.queue_stores.sqlite.wal import LOG_BYTES, empty_log
from eventmq.store.writes import Admit
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024

#: Seconds that a commit may take while another connection reads the store; SQLite waits for 5.
PROMPT = 4.5

#: Seconds after which a thread that was never released fails.
BUSY_TIMEOUT = 20.0


class Filled:
    """A store that takes commits of a MiB each. It syncs none, as a disk may take its time."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path / FILE_NAME
        self.clock = FakeClock()
        self._new_id = IdFactory(self.clock).new
        options = {"reserve": 0, "durability": "memory", **options}
        self.store = SqliteStore(path, self.clock, **options)
        self.store.open()
        self.checkpointer: Any = self.store._checkpointer
        self._written = 0

    def commit(self, size: int = MIB) -> None:
        self._written += 1
        number, now = self._written, self.clock.now()
        job = JobRecord(self._new_id(), "q", "task:t", bytes(size), number, number, created=now)
        self.store.submit([Admit([job])])
        assert self.store.finished() == [[{}]]

    def commit_many(self, count: int) -> None:
        for _ in range(count):
            self.commit()

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{FILE_NAME}-wal")

    def restarts(self) -> int:
        """Return the checkpoint sequence number in the header of the log."""
        with self.log.open("rb") as log:
            return int.from_bytes(log.read(16)[12:], "big")


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    filled = Filled(tmp_path)
    yield filled
    filled.store.close()


def test_no_commit_waits_for_a_long_reader(
    filled: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    """`eventmq fsck` and `backup` are such readers.

    Meanwhile the log grows, and a warning is logged. From 32 MiB on, commits do not pass the
    checkpointing thread; at 64 MiB a checkpoint is forced.
    """
    with closing(connect(filled.path, busy=5.0)) as reader:
        filled.commit()
        reader.execute("BEGIN")
        assert first_row(reader, "SELECT count(*) FROM jobs") == (1,)
        restarts_before = filled.restarts()
        with caplog.at_level(logging.WARNING):
            for _ in range(80):
                start = time.monotonic()
                filled.commit()
                assert time.monotonic() - start < PROMPT
        assert first_row(reader, "SELECT count(*) FROM jobs") == (1,)
        reader.execute("COMMIT")
    assert filled.restarts() == restarts_before
    (record,) = caplog.records
    assert record.getMessage().endswith(" MiB: it grows while it is read by others")
    assert filled.checkpointer.forced == 1
    assert filled.log.stat().st_size > LOG_BYTES
    filled.commit_many(10)
    assert filled.restarts() > restarts_before
    assert filled.log.stat().st_size <= LOG_BYTES


def test_a_log_that_begins_with_a_long_commit_is_restarted_as_well(filled: Filled) -> None:
    """Each of these commits is longer than the part of the log that wakes the thread."""
    restarts_before = filled.restarts()
    for _ in range(40):
        filled.commit(5 * MIB)
        assert filled.log.stat().st_size < 64 * MIB
    assert filled.restarts() > restarts_before + 3
    assert filled.checkpointer.forced == 0


class BusyCheckpoint:
    """The lock of a thread that checkpoints for as long as a test wants."""

    def __init__(self) -> None:
        self.busy = True
        self.waits = 0
        self._ended = threading.Event()

    def __enter__(self) -> None:
        assert self._ended.wait(BUSY_TIMEOUT)

    def __exit__(self, *_: object) -> None:
        pass

    def acquire(self, *, blocking: bool) -> bool:
        """Return whether the committing thread acquired the lock; it may wait for it."""
        self.waits += blocking
        return blocking or not self.busy

    def release(self) -> None:
        """Release nothing: the test ends the thread."""

    def end(self) -> None:
        """Let the thread finish."""
        self._ended.set()


@pytest.fixture
def busy_checkpoint(filled: Filled) -> Iterator[BusyCheckpoint]:
    busy_checkpoint = filled.checkpointer._checkpointing = BusyCheckpoint()
    yield busy_checkpoint
    busy_checkpoint.end()


def test_a_log_that_a_crash_left_is_emptied_by_the_next_start(
    filled: Filled, tmp_path: Path
) -> None:
    """Otherwise a torn end of the log may be taken for damage later."""
    filled.commit_many(3)
    crashed = shutil.copytree(filled.path.parent, tmp_path / "crashed")
    log = crashed / f"{FILE_NAME}-wal"
    assert log.stat().st_size > 3 * MIB
    with closing(connect(crashed / FILE_NAME, busy=BUSY_TIMEOUT)) as db:
        empty_log(db)
        assert 0 == log.stat().st_size
        assert (3,) == first_row(db, "SELECT count(*) FROM jobs")


def test_a_full_disk_lets_the_next_commit_restart_the_log(filled: Filled) -> None:
    """Commits reuse the blocks of the log, so running jobs can end without further space."""
    filled.commit_many(2)
    size, restarts_before = filled.log.stat().st_size, filled.restarts()
    filled.store._make_room()
    filled.commit()
    assert (size, restarts_before + 1) == (filled.log.stat().st_size, filled.restarts())


def test_the_log_stays_short_where_little_space_is_free(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a quarter of the free space: a checkpoint needs room in the database."""
    monkeypatch.setattr(filled.store._directory, "free", lambda: 4 * MIB)
    for _ in range(40):
        filled.commit(MIB // 8)
    assert filled.log.stat().st_size < 1.5 * MIB
    monkeypatch.setattr(filled.store._directory, "free", lambda: 1 << 40)
    filled.clock.advance(2.0)
    for _ in range(40):
        filled.commit(MIB // 8)
    assert filled.log.stat().st_size > 4 * MIB


def test_the_log_is_restarted_as_soon_as_the_thread_has_checkpointed_it(
    filled: Filled, busy_checkpoint: BusyCheckpoint
) -> None:
    """A commit tries again at once, not only after writing as much again."""
    restarts_before = filled.restarts()
    filled.commit_many(12)
    assert filled.restarts() == restarts_before
    busy_checkpoint.busy = False
    filled.commit_many(2)  # checkpointed after the first, restarted by the second
    assert filled.restarts() == restarts_before + 1


def test_commits_wait_for_a_thread_that_checkpoints_too_slowly(
    filled: Filled, busy_checkpoint: BusyCheckpoint
) -> None:
    restarts_before = filled.restarts()
    filled.commit_many(27)
    assert not busy_checkpoint.waits
    filled.commit_many(8)
    assert (busy_checkpoint.waits, filled.restarts()) == (1, restarts_before + 1)


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Filled]:
    """Return a store whose log another program checkpoints."""
    filled = Filled(tmp_path, checkpoints="litestream")
    yield filled
    filled.store.close()


def checkpoint_elsewhere(path: Path) -> None:
    """Checkpoint the log as another process does."""
    with closing(connect(path, busy=BUSY_TIMEOUT)) as other:
        first_row(other, "SELECT count(*) FROM jobs")
        assert not checkpoint(other, "RESTART")


def test_a_log_that_another_program_checkpoints_is_left_to_it(
    copied: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    """The store never checkpoints, however long the log grows; it warns at each 64 MiB."""
    copied.commit()
    restarts_before = copied.restarts()
    with caplog.at_level(logging.WARNING):
        copied.commit_many(70)
        copied.store._make_room()
        copied.commit()
    assert copied.restarts() == restarts_before
    assert copied.log.stat().st_size > 70 * MIB
    assert copied.path.stat().st_size < MIB
    [record] = caplog.records
    assert "checkpoints are left to Litestream, so see whether that runs" in record.getMessage()
    checkpoint_elsewhere(copied.path)
    copied.commit_many(2)
    assert copied.restarts() == restarts_before + 1
    assert copied.path.stat().st_size > 70 * MIB


def test_a_store_is_closed_and_opened_with_its_log(copied: Filled) -> None:
    """The log stays if the other program has not copied it yet, even if it does not run."""
    copied.commit_many(3)
    restarts_before, size = copied.restarts(), copied.log.stat().st_size
    copied.store.close()
    assert restarts_before == copied.restarts()
    assert size <= copied.log.stat().st_size
    again = SqliteStore(copied.path.parent, copied.clock, reserve=0, checkpoints="litestream")
    assert 3 == again.open().counts["q"].queued
    again.close()
    assert restarts_before == copied.restarts()
    usual = SqliteStore(copied.path.parent, copied.clock, reserve=0)
    usual.open()
    usual.close()
    assert not copied.log.exists()


def test_a_relaxed_log_that_another_program_checkpoints_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr("os.fsync", lambda _: synced.set())
    copied = Filled(tmp_path, checkpoints="litestream", durability="relaxed", fsync_interval=0.01)
    copied.commit()
    synced.clear()
    assert synced.wait(BUSY_TIMEOUT)
    copied.store.close()


def test_the_option_names_the_program_that_checkpoints_the_log(tmp_path: Path) -> None:
    app = EventMQ("x", data_dir=str(tmp_path))
    with pytest.raises(PluginError, match="'checkpoints' of 'sqlite' must be broker or litestream"):
        app.make_broker(store_options={"checkpoints": "nobody"})


def test_tables_of_litestream_harm_nothing(copied: Filled) -> None:
    """Litestream makes two tables in the database that it copies, and writes to one."""
    with closing(connect(copied.path, busy=BUSY_TIMEOUT)) as other:
        other.execute("CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
        other.execute("CREATE TABLE _litestream_lock (id INTEGER)")
        other.execute("INSERT INTO _litestream_seq VALUES (1, 1)")
    copied.commit()
    copied.store.close()
    tools = copied.store.tools
    assert tools is not None
    assert [] == tools.check()
    again = SqliteStore(copied.path.parent, copied.clock, reserve=0, checkpoints="litestream")
    assert 1 == again.open().counts["q"].queued
    again.close()
