"""Write-ahead log: checks it before a store is opened, and checkpoints and syncs it.

SQLite writes the log again from its beginning as soon as all of it has been moved into the database
file (a checkpoint). A commit into existing blocks of the log took 59 us, one that makes the file
grow 109 us. So a thread moves the log once it has some size. The committing thread, which alone can
do so, then moves the small rest and restarts the log. They never do so at the same time, since
SQLite would refuse one of them.

`check_log` looks for commits that SQLite would ignore. SQLite reads the log up to the first frame
with a wrong checksum, which is how it undoes a commit that was cut off. A frame that was damaged
later looks the same, and SQLite would drop all commits after it, even those with receipts. The two
cases can be distinguished: each commit is synced before the next one is written, so after a frame
that was cut off, the log has the end of at most one commit. See "WAL File Format" in the
documentation of SQLite's file format.
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

#: Seconds for which a connection of a store waits for locks of others.
BUSY_TIMEOUT = 5.0

#: Magic number -> byte order of the words in checksums.
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}

#: Number of frames (pages of 4 KiB) at which the thread begins to move the log.
NOTIFY_FRAMES = 1024

#: Number of frames at which the committing thread tries to restart the log.
RESTART_FRAMES = 2 * NOTIFY_FRAMES

#: On a nearly full disk the log is restarted when it has 1/4 of the free space, or 64 frames if
#: that is more. The rest is for the database, which grows when the log is moved into it.
FREE_SHARE, MIN_FRAMES = 4, 64

#: Number of frames (32 MiB) at which the committing thread waits for the other one to finish.
WAIT_FRAMES = 4 * RESTART_FRAMES

#: Number of frames (64 MiB) that the log has only if readers prevented its restart.
FORCED_FRAMES = 16 * 1024

#: Bytes to which SQLite truncates a longer log when it restarts.
LOG_BYTES = FORCED_FRAMES * 4096

#: Seconds for which the committing thread waits for readers. The longer wait is for each further
#: 64 MiB of log, since EventMQ's own readers read for up to 100 ms.
READERS_WAIT, FORCED_WAIT = 0.02, 0.15

#: Approximate bytes of a frame, and frames per MiB.
_FRAME_BYTES, _FRAMES_PER_MIB = 4096, 256


class LogEnd(NamedTuple):
    """How a log ends.

    Attributes:
        frames: Number of frames that SQLite reads.
        beyond: Number of commits that end in the frames after these.
        header: Whether the header of the log is valid.
    """

    frames: int
    beyond: int
    header: bool = True

    @property
    def damaged(self) -> bool:
        """Whether SQLite would ignore commits that were synced."""
        return self.beyond > 1 or not self.header

    @property
    def used(self) -> bool:
        """Whether the log has commits."""
        return bool(self.frames or self.beyond)


def inspect_log(path: Path) -> LogEnd:
    """Return how the log of a database ends; writes nothing.

    No other process may write the database meanwhile.

    Args:
        path: Path of the database.

    Raises:
        apsw.Error: The file cannot be read.
    """
    log = path.with_name(f"{path.name}-wal")
    if not log.exists():
        return LogEnd(0, 0)
    with closing(open_to_read(path)) as db:
        first_row(db, "SELECT 1 FROM sqlite_master")  # opens the log and creates its index
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
    if not _is_valid_header(header):
        return LogEnd(0, 0, header=size < _HEADER + _FRAME)
    return LogEnd(frames, _commits(log, header, frames, size))


def check_log(path: Path, *, durable: bool) -> LogEnd:
    """Check that SQLite would not ignore commits in the log of a store; return how it ends.

    Call this before the store is opened to write: closing the last such connection moves the
    readable part of the log into the database and deletes the rest.

    Args:
        path: Path of the database.
        durable: Whether each commit was synced before the next one was written. If not, the last
            commits may be cut off; then a damaged log is only logged.

    Raises:
        apsw.Error: The file cannot be read.
        StoreError: Commits would be lost.
    """
    end = inspect_log(path)
    if end.damaged:
        commits = f"{end.beyond} commits" if end.header else "any commits"
        msg = (
            f"the log of the store {path} is damaged after {end.frames} pages, and {commits} after "
            "the damage would be lost: restore a backup, or go on without them with "
            "eventmq fsck --repair"
        )
        if durable:
            raise StoreError(msg)
        logger.warning("%s", msg.partition(": restore")[0])
    return end


def empty_log(db: apsw.Connection) -> None:
    """Empty the log unless it has a reader: later, a cut-off commit would look like damage."""
    # A connection opens the log at its first read; before that, it checkpoints nothing.
    first_row(db, "SELECT 1 FROM sqlite_master")
    with busy_timeout(db, 0.0):
        checkpoint(db, "TRUNCATE")


@contextmanager
def busy_timeout(db: apsw.Connection, seconds: float) -> Iterator[None]:
    """Set the busy timeout of a connection for the time of the context."""
    set_busy_timeout(db, seconds)
    try:
        yield
    finally:
        set_busy_timeout(db, BUSY_TIMEOUT)


def _is_valid_header(header: bytes) -> bool:
    """Return whether the checksum in the header of a log is right ("Checksum Algorithm")."""
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
    """Return the number of commits of this log that end after the first ``frames`` frames."""
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

    Its thread starts when there is work for it. If ``sync_every`` is above 0, the thread also syncs
    the log at that interval, in seconds: the durability ``relaxed``. For that it has a descriptor
    of its own for the log, since SQLite syncs the log only in commits and checkpoints. SQLite has
    no locks on that file that closing the descriptor could end. All files are opened at the start,
    since later peers may have used up all descriptors.

    With ``external`` another program checkpoints the log: this object then only syncs it, and warns
    when it is long.
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
        #: Number of frames in the log, set after each commit by the hook of the committing thread.
        self._frames = [0]
        #: Number of frames after the previous commit, and those at which to act next.
        self._last = self._next_notify = self._next_try = self._next_forced = 0
        #: Number of frames at which the committing thread tries to restart the log, on this disk.
        self._restart = RESTART_FRAMES
        self._reset_thresholds()
        self._wakeup = threading.Event()
        #: Held during a checkpoint.
        self._checkpointing = threading.Lock()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="eventmq-checkpoint", daemon=True)
        self._failure: Exception | None = None
        #: How often the log has grown by `FORCED_FRAMES`.
        self.forced = 0

    def start(self, db: apsw.Connection) -> None:
        """Begin to watch the log of a connection that is in WAL mode and has read the database.

        Raises:
            StoreError: The log cannot be opened for ``sync_every``, or the thread cannot start.
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
        return store_error(self._path, error, "cannot checkpoint or sync its log")

    def _connect(self) -> apsw.Connection:
        """Return a connection for the thread, with all files open."""
        db = connect(self._path, busy=BUSY_TIMEOUT, vfs=self._vfs)
        db.execute("PRAGMA synchronous = NORMAL")
        first_row(db, "SELECT count(*) FROM sqlite_schema")
        return db

    def committed(self, db: apsw.Connection) -> None:
        """Handle a commit of ``db``; called by the committing thread.

        Raises:
            StoreError: The log could not be checkpointed or synced, or the thread has ended. A full
                disk does not raise it: the next commits report that themselves.
        """
        if self._failure is not None:
            raise self._error(self._failure)
        frames = self._frames[0]
        if frames < self._last:
            self._reset_thresholds()
        self._last = frames
        if self._external:
            if frames >= self._next_forced:
                self._report_length(
                    frames, "checkpoints are left to Litestream, so see whether that runs"
                )
        elif frames >= self._next_try:
            if self._checkpointing.acquire(blocking=frames >= WAIT_FRAMES):
                try:
                    self._restart_log(db, frames)
                finally:
                    self._checkpointing.release()
        elif frames >= self._next_notify:
            self._next_notify = frames + NOTIFY_FRAMES // 2
            self._wakeup.set()
            if not self._thread.is_alive():
                with suppress(
                    RuntimeError
                ):  # no more threads: the committing thread does all of it
                    self._thread.start()

    def bound(self, free: int) -> None:
        """Keep the log short if little space is free; called by the committing thread.

        Args:
            free: Free bytes of the file system.
        """
        if self._external:
            return
        self._restart = min(RESTART_FRAMES, max(MIN_FRAMES, free // FREE_SHARE // _FRAME_BYTES))
        self._next_try = min(self._next_try, self._last + self._restart)

    def make_room(self, db: apsw.Connection) -> None:
        """Checkpoint all of the log, as the disk is full; the next commit of ``db`` restarts it.

        Commits then reuse the blocks of the log, and most pages of the database exist already.
        """
        if self._external:
            return
        with self._checkpointing, busy_timeout(db, READERS_WAIT):
            self._checkpoint(db, "RESTART")

    def _reset_thresholds(self) -> None:
        """Reset the thresholds, as the log was restarted."""
        self._next_notify, self._next_try = NOTIFY_FRAMES, self._restart
        self._next_forced = FORCED_FRAMES

    def _restart_log(self, db: apsw.Connection, frames: int) -> None:
        """Move the rest of the log; the next commit restarts it, unless it has a reader."""
        self._next_notify, self._next_try = frames + NOTIFY_FRAMES, frames + self._restart
        forced = frames >= self._next_forced
        with busy_timeout(db, FORCED_WAIT if forced else READERS_WAIT):
            busy = self._checkpoint(db, "RESTART")
        if self._failure is not None:
            raise self._error(self._failure)
        if forced:
            self._report_length(frames, "it grows while it is read by others" if busy else "")

    def _report_length(self, frames: int, reason: str) -> None:
        """Count that the log is long, and log the reason unless it is empty."""
        self._next_forced = frames + FORCED_FRAMES
        self.forced += 1
        if reason:
            logger.warning(
                "the log of the store %s has %d MiB: %s",
                self._path, frames // _FRAMES_PER_MIB, reason,
            )  # fmt: skip

    def _run(self) -> None:
        try:
            self._checkpoint_and_sync()
        except Exception as error:
            # Without this thread nothing is synced; the next commit raises the error.
            self._failure = error
            logger.exception(
                "the thread that checkpoints and syncs the log of %s has ended", self._path
            )

    def _checkpoint_and_sync(self) -> None:
        db = self._db
        while not self._stop:
            notified = self._wakeup.wait(self._sync_every or None)
            self._wakeup.clear()
            if db is not None and notified and not self._stop:
                with self._checkpointing:
                    self._checkpoint(db, "PASSIVE")
            if self._sync_every:
                self._sync()

    def _checkpoint(self, db: apsw.Connection, mode: Literal["PASSIVE", "RESTART"]) -> bool:
        """Checkpoint the log; return whether locks of others prevented it."""
        try:
            return checkpoint(db, mode)
        except DISK_FULL:  # a later commit tries again
            return False
        except Exception as error:  # noqa: BLE001 - the next commit raises it
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
