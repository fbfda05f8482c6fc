"""The write-ahead log: what a start finds in it, and how it is moved into the database file.

The log is used again from its beginning as soon as all of it has been moved: a commit into blocks
that the file has already measured 59 us, one that makes the file grow 109 us. So a thread moves
what is there once the log has some size, and the committing thread, which alone can, moves the
small rest and begins anew. Both never move at the same time: SQLite would refuse one of them.

A start looks for commits that SQLite would pass over in silence. SQLite reads the log up to the
first frame whose checksum is wrong: that is how a commit that was cut off is undone. A frame that
was damaged later looks the same, and whatever was committed after it, with its receipts given,
would be gone without a word. Both can be told apart: each commit is synced before the next one is
written, so behind a frame that was cut off is the end of at most that one commit. See "WAL File
Format" in the documentation of SQLite's file format.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from eventmq.errors import StoreError
from eventmq.plugins.database import (
    DISK_FULL,
    checkpoint,
    connect,
    first_row,
    log_frames,
    open_to_read,
    set_busy_timeout,
    watch_log,
)
from eventmq.plugins.queue_stores.sqlite.disk import store_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import apsw

__all__ = [
    "BUSY_TIMEOUT",
    "Checkpointer",
    "LogEnd",
    "busy_timeout",
    "check_log",
    "empty_log",
    "inspect_log",
]

logger = logging.getLogger("eventmq.store")

_HEADER, _FRAME = 32, 24

#: Seconds that a connection of a store waits for locks of others.
BUSY_TIMEOUT = 5.0

#: The two magic numbers: checksums of little-endian and of big-endian words.
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}

#: Frames (pages of 4 KiB) in the log at which the thread begins to move them.
NOTIFY_FRAMES = 1024

#: Frames at which the committing thread tries to begin the log anew.
RESTART_FRAMES = 2 * NOTIFY_FRAMES

#: On a nearly full disk the log may have this share of the free space, and so many frames at least:
#: the rest is for the database, which must have room for what is moved into it.
FREE_SHARE, LEAST_FRAMES = 4, 64

#: Frames (32 MiB) at which the committing thread waits until the other one has moved its part.
WAIT_FRAMES = 4 * RESTART_FRAMES

#: Frames (64 MiB) that the log has only if readers kept it from beginning anew; counted.
FORCED_FRAMES = 16 * 1024

#: What is left of a log that was longer, in bytes.
LOG_BYTES = FORCED_FRAMES * 4096

#: Seconds that the committing thread waits for readers. Each of ours may read for 100 ms, so at
#: 64 MiB, and again after so much more, it waits until those have ended; else it tries later.
READERS_WAIT, FORCED_WAIT = 0.02, 0.15

#: Bytes of a frame, about, and frames in a MiB.
_FRAME_BYTES, _FRAMES_PER_MIB = 4096, 256


class LogEnd(NamedTuple):
    """How a log ends.

    Attributes:
        frames: That SQLite reads.
        beyond: Commits whose ends are in the frames after these.
        header: Whether its first bytes are in order.
    """

    frames: int
    beyond: int
    header: bool = True

    @property
    def damaged(self) -> bool:
        """Whether commits are missing that were synced before another one was written."""
        return self.beyond > 1 or not self.header

    @property
    def used(self) -> bool:
        """Whether anything is in the log."""
        return bool(self.frames or self.beyond)


def inspect_log(path: Path) -> LogEnd:
    """Return how the log of a database ends, before anything is written to it.

    No other process may write it.

    Args:
        path: Of the database.

    Raises:
        apsw.Error: The file cannot be read.
    """
    log = path.with_name(f"{path.name}-wal")
    if not log.exists():
        return LogEnd(0, 0)
    with closing(open_to_read(path)) as db:
        first_row(db, "SELECT 1 FROM sqlite_master")  # reads the log, and makes its index
        frames = log_frames(db)
        descriptor = os.open(log, os.O_RDONLY)
        try:
            return _log_end(descriptor, frames)
        finally:
            os.close(descriptor)


def _log_end(log: int, frames: int) -> LogEnd:
    header, size = os.pread(log, _HEADER, 0), os.fstat(log).st_size
    if len(header) < _HEADER:
        return LogEnd(0, 0)
    if not _is_sound(header):
        return LogEnd(0, 0, header=size < _HEADER + _FRAME)
    return LogEnd(frames, _commits(log, header, frames, size))


def check_log(path: Path, *, durable: bool) -> LogEnd:
    """Check that nothing in the log of a store is passed over; return how it ends.

    This is done before the store is opened to write: the last one that closes such a connection
    would move what is readable into the database and delete the rest.

    Args:
        path: Of the database.
        durable: Each commit was synced before the next one; else some of the last ones may be
            cut off, and that is only said.

    Raises:
        apsw.Error: The file cannot be read.
        StoreError: Commits would be lost.
    """
    end = inspect_log(path)
    if end.damaged:
        commits = f"{end.beyond} commits that" if end.header else "commits that may"
        msg = (
            f"the log of the store {path} is damaged after {end.frames} pages, and {commits} stand "
            "behind that would be lost: restore a backup, or go on without them with "
            "eventmq fsck --repair"
        )
        if durable:
            raise StoreError(msg)
        logger.warning("%s", msg.partition(": restore")[0])
    return end


def empty_log(db: apsw.Connection) -> None:
    """Empty the log, if it has no reader: what is cut off is not taken for damage later."""
    # A connection that has read nothing does not know of a log, and moves none.
    first_row(db, "SELECT 1 FROM sqlite_master")
    with busy_timeout(db, 0.0):
        checkpoint(db, "TRUNCATE")


@contextmanager
def busy_timeout(db: apsw.Connection, seconds: float) -> Iterator[None]:
    """Let a connection wait so long for others meanwhile."""
    set_busy_timeout(db, seconds)
    try:
        yield
    finally:
        set_busy_timeout(db, BUSY_TIMEOUT)


def _is_sound(header: bytes) -> bool:
    """Return whether the checksum in the header is right ("Checksum Algorithm")."""
    magic, *_ = struct.unpack(">I", header[:4])
    order = _MAGIC.get(magic)
    if order is None:
        return False
    first = second = 0
    for even, odd in struct.iter_unpack(f"{order}II", header[:24]):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == struct.unpack(">II", header[24:])


def _commits(log: int, header: bytes, frames: int, size: int) -> int:
    """Return how many frames after the first ones end a commit of this log."""
    (page,) = struct.unpack(">I", header[8:12])
    salts = header[16:24]
    count = 0
    for offset in range(_HEADER + frames * (_FRAME + page), size - _FRAME, _FRAME + page):
        head = os.pread(log, _FRAME, offset)
        (pages,) = struct.unpack(">I", head[4:8])
        count += head[8:16] == salts and pages > 0
    return count


class Checkpointer:
    """Checkpoints a database file that another connection writes.

    The thread begins once there is something to do: a store that does little has none. With
    ``sync_every`` above 0 it also syncs the log that often: the ``relaxed`` durability. For that
    alone it keeps a descriptor of its own, on the log: SQLite syncs the log in commits and
    checkpoints only. SQLite has no locks on that file that closing it could end. All that it needs
    is open from the start: later, peers may have taken every descriptor.

    With ``external`` another program moves the log, and nothing here does: this syncs it, and says
    when it has become long.
    """

    def __init__(
        self, path: str, sync_every: float = 0.0, *, external: bool = False, vfs: str | None = None
    ) -> None:
        self._path = path
        self._external = external
        self._vfs = vfs
        self._sync_every = sync_every
        self._db: apsw.Connection | None = None
        self._log: int | None = None
        #: Frames in the log after the last commit, written by the hook of the committing thread.
        self._frames = [0]
        #: Frames after the commit before that one, and at which something is done.
        self._last = self._next_notify = self._next_try = self._next_forced = 0
        #: Frames at which the committing thread tries to begin the log anew, on this disk.
        self._restart = RESTART_FRAMES
        self._short()
        self._wakeup = threading.Event()
        #: Held by the thread that moves.
        self._moves = threading.Lock()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="eventmq-checkpoint", daemon=True)
        self._failure: Exception | None = None
        #: How often the log reached `FORCED_FRAMES`.
        self.forced = 0

    def start(self, db: apsw.Connection) -> None:
        """Begin to watch the log of a connection, once the database is in WAL mode and was read.

        Raises:
            StoreError: What ``sync_every`` needs cannot be had: the log, or a thread.
        """
        watch_log(db, self._frames)
        if not self._external:
            self._db = self._connect()
        if self._sync_every:
            try:
                self._log = os.open(f"{self._path}-wal", os.O_RDONLY)
                self._thread.start()
            except (OSError, RuntimeError) as error:
                raise self._error(error) from error

    def _error(self, error: Exception) -> StoreError:
        return store_error(self._path, error, "cannot move or sync its log")

    def _connect(self) -> apsw.Connection:
        """Return a connection of the thread's own that has opened its files."""
        db = connect(self._path, busy=BUSY_TIMEOUT, vfs=self._vfs)
        db.execute("PRAGMA synchronous = NORMAL")
        first_row(db, "SELECT count(*) FROM sqlite_schema")
        return db

    def committed(self, db: apsw.Connection) -> None:
        """Count a commit of ``db``; called by the committing thread.

        Raises:
            StoreError: The log could not be moved or synced, or the thread that does it has
                ended. A lack of space is no reason: the next commits meet it themselves.
        """
        if self._failure is not None:
            raise self._error(self._failure)
        frames = self._frames[0]
        if frames < self._last:
            self._short()
        self._last = frames
        if self._external:
            if frames >= self._next_forced:
                self._report_length(
                    frames, "checkpoints are left to Litestream, so see whether that runs"
                )
        elif frames >= self._next_try:
            if self._moves.acquire(blocking=frames >= WAIT_FRAMES):
                try:
                    self._begin_anew(db, frames)
                finally:
                    self._moves.release()
        elif frames >= self._next_notify:
            self._next_notify = frames + NOTIFY_FRAMES // 2
            self._wakeup.set()
            if not self._thread.is_alive():
                with suppress(RuntimeError):  # no further thread: the committing one moves it all
                    self._thread.start()

    def bound(self, free: int) -> None:
        """Keep the log short where little space is free; called by the committing thread.

        Args:
            free: Bytes of the file system.
        """
        if self._external:
            return
        self._restart = min(RESTART_FRAMES, max(LEAST_FRAMES, free // FREE_SHARE // _FRAME_BYTES))
        self._next_try = min(self._next_try, self._last + self._restart)

    def make_room(self, db: apsw.Connection) -> None:
        """Let the next commit of ``db`` begin the log anew, as the disk is full.

        Its blocks are used again then, and most pages of the database are there already.
        """
        if self._external:
            return
        with self._moves, busy_timeout(db, READERS_WAIT):
            self._checkpoint(db, "RESTART")

    def _short(self) -> None:
        """Record that the log is short: it has begun anew."""
        self._next_notify, self._next_try = NOTIFY_FRAMES, self._restart
        self._next_forced = FORCED_FRAMES

    def _begin_anew(self, db: apsw.Connection, frames: int) -> None:
        """Move what is left, and let the next commit begin the log anew, if it has no reader."""
        self._next_notify, self._next_try = frames + NOTIFY_FRAMES, frames + self._restart
        forced = frames >= self._next_forced
        with busy_timeout(db, FORCED_WAIT if forced else READERS_WAIT):
            busy = self._checkpoint(db, "RESTART")
        if self._failure is not None:
            raise self._error(self._failure)
        if forced:
            self._report_length(frames, "it grows while it is read by others" if busy else "")

    def _report_length(self, frames: int, reason: str) -> None:
        """Count that the log has become long, and say why unless it is short again already."""
        self._next_forced = frames + FORCED_FRAMES
        self.forced += 1
        if reason:
            logger.warning(
                "the log of the store %s has %d MiB: %s",
                self._path, frames // _FRAMES_PER_MIB, reason,
            )  # fmt: skip

    def _run(self) -> None:
        try:
            self._move_and_sync()
        except Exception as error:
            # Without this thread nothing is synced, and the next commit says so.
            self._failure = error
            logger.exception("the thread that moves and syncs the log of %s has ended", self._path)

    def _move_and_sync(self) -> None:
        db = self._db
        while not self._stop:
            notified = self._wakeup.wait(self._sync_every or None)
            self._wakeup.clear()
            if db is not None and notified and not self._stop:
                with self._moves:
                    self._checkpoint(db, "PASSIVE")
            if self._sync_every:
                self._sync()

    def _checkpoint(self, db: apsw.Connection, mode: Literal["PASSIVE", "RESTART"]) -> bool:
        """Move the log; return whether others kept it from being done."""
        try:
            return checkpoint(db, mode)
        except DISK_FULL:  # it is simply tried again
            return False
        except Exception as error:  # noqa: BLE001 - the next commit says it
            self._failure = error
            return False

    def _sync(self) -> None:
        assert self._log is not None, "not started"  # noqa: S101
        try:
            os.fsync(self._log)
        except OSError as error:
            self._failure = error

    def stop(self) -> None:
        """End the thread. Idempotent."""
        self._stop = True
        self._wakeup.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._log is not None:
            os.close(self._log)
            self._log = None
