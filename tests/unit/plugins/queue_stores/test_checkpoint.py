"""The write-ahead log is begun anew, whoever reads or moves it meanwhile, and nobody waits long."""

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

#: Seconds that a commit may take while somebody reads the store; SQLite's own time is 5.
PROMPT = 4.5

#: Seconds after which a thread that was never released fails.
BUSY_TIMEOUT = 20.0


class Filled:
    """A store that takes commits of a MiB each, and syncs none: a disk may take its time."""

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
    """As `eventmq fsck` and `backup` are. The log grows meanwhile, which is told, and not for ever.

    From 32 MiB on no commit passes the thread that moves, so at 64 MiB one is forced.
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


def test_a_log_that_begins_with_a_long_commit_is_begun_anew_as_well(filled: Filled) -> None:
    """Each of these alone is longer than what the thread waits for."""
    restarts_before = filled.restarts()
    for _ in range(40):
        filled.commit(5 * MIB)
        assert filled.log.stat().st_size < 64 * MIB
    assert filled.restarts() > restarts_before + 3
    assert filled.checkpointer.forced == 0


class Moving:
    """The lock of a thread that moves its part for as long as a test wants."""

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
        """Take the lock back."""

    def end(self) -> None:
        """Let the thread end."""
        self._ended.set()


@pytest.fixture
def moving(filled: Filled) -> Iterator[Moving]:
    moving = filled.checkpointer._checkpointing = Moving()
    yield moving
    moving.end()


def test_a_log_that_a_crash_left_is_emptied_by_the_next_start(
    filled: Filled, tmp_path: Path
) -> None:
    """Else what it had cut off may be taken for damage later, and nothing of it is moved."""
    filled.commit_many(3)
    crashed = shutil.copytree(filled.path.parent, tmp_path / "left")
    log = crashed / f"{FILE_NAME}-wal"
    assert log.stat().st_size > 3 * MIB
    with closing(connect(crashed / FILE_NAME, busy=BUSY_TIMEOUT)) as db:
        empty_log(db)
        assert 0 == log.stat().st_size
        assert (3,) == first_row(db, "SELECT count(*) FROM jobs")


def test_a_full_disk_lets_the_next_commit_begin_the_log_anew(filled: Filled) -> None:
    """Its blocks are there already: what runs can be finished without further ones."""
    filled.commit_many(2)
    size, restarts_before = filled.log.stat().st_size, filled.restarts()
    filled.store._make_room()
    filled.commit()
    assert (size, restarts_before + 1) == (filled.log.stat().st_size, filled.restarts())


def test_the_log_stays_short_where_little_space_is_free(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of what is free: the database must have room for what is moved into it."""
    monkeypatch.setattr(filled.store._directory, "free", lambda: 4 * MIB)
    for _ in range(40):
        filled.commit(MIB // 8)
    assert filled.log.stat().st_size < 1.5 * MIB
    monkeypatch.setattr(filled.store._directory, "free", lambda: 1 << 40)
    filled.clock.advance(2.0)
    for _ in range(40):
        filled.commit(MIB // 8)
    assert filled.log.stat().st_size > 4 * MIB


def test_the_log_is_begun_anew_as_soon_as_the_thread_has_moved_its_part(
    filled: Filled, moving: Moving
) -> None:
    """Not only when as much again was written: the thread might be at work again by then."""
    restarts_before = filled.restarts()
    filled.commit_many(12)
    assert filled.restarts() == restarts_before
    moving.busy = False
    filled.commit_many(2)  # moved after the first, begun with the second
    assert filled.restarts() == restarts_before + 1


def test_a_log_that_grows_faster_than_the_thread_moves_it_waits(
    filled: Filled, moving: Moving
) -> None:
    restarts_before = filled.restarts()
    filled.commit_many(27)
    assert not moving.waits
    filled.commit_many(8)
    assert (moving.waits, filled.restarts()) == (1, restarts_before + 1)


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Filled]:
    """Return a store whose log another program moves."""
    filled = Filled(tmp_path, checkpoints="litestream")
    yield filled
    filled.store.close()


def move_log(path: Path) -> None:
    """Move the log as another process does."""
    with closing(connect(path, busy=BUSY_TIMEOUT)) as other:
        first_row(other, "SELECT count(*) FROM jobs")
        assert not checkpoint(other, "RESTART")


def test_a_log_that_another_program_moves_is_left_to_it(
    copied: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is moved, however long it becomes; that is said at each 64 MiB."""
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
    move_log(copied.path)
    copied.commit_many(2)
    assert copied.restarts() == restarts_before + 1
    assert copied.path.stat().st_size > 70 * MIB


def test_a_store_is_closed_and_opened_with_its_log(copied: Filled) -> None:
    """What the other program has not copied yet stays in the log, also without that program."""
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


def test_a_relaxed_log_that_another_program_moves_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr("os.fsync", lambda _: synced.set())
    copied = Filled(tmp_path, checkpoints="litestream", durability="relaxed", fsync_interval=0.01)
    copied.commit()
    synced.clear()
    assert synced.wait(BUSY_TIMEOUT)
    copied.store.close()


def test_the_option_names_who_moves_the_log(tmp_path: Path) -> None:
    app = EventMQ("x", data_dir=str(tmp_path))
    with pytest.raises(PluginError, match="'checkpoints' of 'sqlite' must be broker or litestream"):
        app.make_broker(store_options={"checkpoints": "nobody"})


def test_tables_of_litestream_harm_nothing(copied: Filled) -> None:
    """It makes two in the database that it copies, and writes to one of them."""
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
