"""Looks at the write-ahead log for commits that SQLite would pass over in silence.

SQLite reads the log up to the first frame whose checksum is wrong: that is how a commit that was
cut off is undone. A frame that was damaged later looks the same, and whatever was committed after
it, with its receipts given, would be gone without a word. Both can be told apart: each commit is
synced before the next one is written, so behind a frame that was cut off is the end of at most
that one commit. See "WAL File Format" in the documentation of SQLite's file format.
"""

from __future__ import annotations

import logging
import os
import struct
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import StoreError
from eventmq.plugins.database import checkpoint, first_row, log_frames, set_busy_timeout
from eventmq.plugins.queue_stores.sqlite.reading import open_to_read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import apsw

__all__ = ["BUSY_TIMEOUT", "LogEnd", "busy_timeout", "check_log", "empty_log", "inspect_log"]

logger = logging.getLogger("eventmq.store")

_HEADER, _FRAME = 32, 24

#: Seconds that a connection of a store waits for locks of others.
BUSY_TIMEOUT = 5.0

#: The two magic numbers: checksums of little-endian and of big-endian words.
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}


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


def check_log(path: Path, *, durable: bool) -> bool:
    """Check that nothing in the log of a store is passed over; return whether it has anything.

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
    return bool(end.frames or end.beyond)


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
