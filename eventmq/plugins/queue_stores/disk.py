"""A data directory: its lock, its modes, its reserve of space, and clear words where it is no use.

The lock is tied to the database too: whoever deletes the file ``lock`` lets nobody in.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from eventmq.errors import StoreError
from eventmq.plugins.private_files import make_private_folder, open_private, wider
from eventmq.plugins.queue_stores.mounts import network_file_system
from eventmq.plugins.queue_stores.opened import taken_away

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FILE_NAME", "DataDirectory"]

logger = logging.getLogger("eventmq.store")

#: Name of the database in the data directory.
FILE_NAME = "queue.sqlite"

#: The ballast file is released to finish what runs when the disk is nearly full. It has this share
#: of the reserve: 32 MiB of the default one.
BALLAST_SHARE = 8

#: Seconds between two looks at the free space.
LOOK_EVERY = 1.0

#: Free bytes that a start needs beside those of the log: for its index, and for first commits.
START_BYTES = 1024 * 1024

_MIB = 1024 * 1024

#: Only Linux keeps flock(2) and the locks that SQLite takes on the same file apart; elsewhere a
#: lock of ours on the database would keep SQLite out.
_LOCKS_DATABASE = sys.platform == "linux"


class DataDirectory:
    """A locked directory. The kernel frees the lock when the process ends, however it ends.

    To close a descriptor ends all POSIX locks of this process on its file, also those of SQLite. So
    `open` comes before any connection to the database, and `close` after the last one is closed.

    Args:
        path: The directory.
        reserve: Free bytes below which submissions are refused; 0: no reserve and no ballast.
    """

    #: Device and inode of the databases that this process has locked: a second descriptor on one
    #: of them must not even be opened.
    _held: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, path: Path, reserve: int) -> None:
        self.path = path
        self.database = path / FILE_NAME
        self._reserve = reserve
        self._ballast = reserve // BALLAST_SHARE
        self._lock: int | None = None
        self._database: int | None = None
        self._looked = float("-inf")
        self._low = False
        #: Bytes that were free when `low` looked last.
        self.space = 1 << 62
        #: Whether `serve` found no store.
        self.new = False

    # Opening and closing

    def serve(self, expected: str = "") -> None:
        """Open the directory for a broker: with a database, a ballast, and space for the start.

        Args:
            expected: The id of a store that must be there; "": what is missing is made.

        Raises:
            StoreError: As `open`; or there is no store where one is expected, or the directory is
                on a network file system.
        """
        kind = network_file_system(self.path)
        if kind:
            msg = (
                f"the data directory {self.path} is on a network file system ({kind}), where the "
                "locks of SQLite do not hold: name a directory on a disk of this machine with "
                "--data-dir"
            )
            raise StoreError(msg)
        if expected and self._is_missing():
            msg = (
                f"there is no store in {self.path}, and the store {expected} is expected: see that "
                "its disk is mounted and --data-dir is right; without expect_store a new one would "
                "be made"
            )
            raise StoreError(msg)
        self.open()
        try:
            self._see_to_space()
            self.new = self._is_missing()
            self._lock_database(make=True)
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise
        self._warn_of_modes()

    def open(self) -> None:
        """Make and lock the directory, and the database in it if there is one.

        Raises:
            StoreError: It cannot be made or written, or another broker has it.
        """
        try:
            make_private_folder(self.path)
            self._lock = open_private(self.path / "lock")
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._take_lock(self._lock)
            self._lock_database(make=False)
            self._name_owner(self._lock)
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    @property
    def locked(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock is not None

    @property
    def descriptors(self) -> dict[Path, int]:
        """What is locked, by the names under which it was opened."""
        opened = {self.path / "lock": self._lock, self.database: self._database}
        return {path: descriptor for path, descriptor in opened.items() if descriptor is not None}

    def close(self) -> None:
        """Free the lock. Idempotent."""
        if self._database is not None:
            self._held.discard(_identity(os.fstat(self._database)))
            os.close(self._database)
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_missing(self) -> bool:
        """Return whether there is no store: SQLite takes an empty file for a new one."""
        try:
            return not self.database.stat().st_size
        except OSError:
            return True

    def _take_lock(self, descriptor: int) -> None:
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise self._in_use() from error

    def _in_use(self) -> StoreError:
        owner = ""
        if self._lock is not None:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
        msg = (
            f"the data directory {self.path} is in use by another broker "
            f"(process {owner or 'unknown'}): stop that one, or name another with --data-dir"
        )
        return StoreError(msg)

    @staticmethod
    def _name_owner(descriptor: int) -> None:
        try:
            os.pwrite(descriptor, f"{os.getpid():<31}\n".encode(), 0)
        except OSError as error:
            if error.errno != errno.ENOSPC:  # it holds without the name of its owner
                raise

    def _lock_database(self, *, make: bool) -> None:
        """Lock the database itself, unless that is done or there is none to lock."""
        if self._database is not None or not (make or self.database.exists()):
            return
        try:
            held = _identity(self.database.stat()) in self._held
        except FileNotFoundError:
            held = False
        if held:
            raise self._in_use()
        self._database = open_private(self.database)
        if _LOCKS_DATABASE:
            try:
                self._take_lock(self._database)
            except StoreError:
                os.close(self._database)
                self._database = None
                raise
        self._held.add(_identity(os.fstat(self._database)))

    def _unusable(self, error: OSError) -> StoreError:
        if error.errno == errno.ENOSPC:
            return self.full()
        msg = (
            f"cannot write to the data directory {self.path}: {error.strerror}; "
            "make it writable or name another with --data-dir"
        )
        return StoreError(msg)

    # Who may read it

    def _warn_of_modes(self) -> None:
        found = wider([self.path, *self._files()])
        if not found:
            return
        told = ", ".join(f"{path} has mode {mode:04o}" for path, mode in found)
        files = " ".join(quote(str(path)) for path, _ in found if path != self.path)
        what = [f"chmod 700 {quote(str(self.path))}"] * (found[0][0] == self.path)
        what += [f"chmod 600 {files}"] * bool(files)
        logger.warning(
            "other users can use what the broker keeps: %s; to end that: %s",
            told, " && ".join(what),
        )  # fmt: skip

    def _files(self) -> Iterator[Path]:
        for path in sorted(self.path.iterdir()):
            if ".sqlite" in path.name or path.name in {"lock", "ballast"}:
                yield path

    # Space

    def _see_to_space(self) -> None:
        """Give the ballast back before the start needs space, or lay it where there is enough."""
        free = self.free()
        if free < self._reserve:
            self.release_ballast()
        elif self._ballast and free >= self._reserve + self._ballast:
            self._lay_ballast()

    def _lay_ballast(self) -> None:
        ballast = self.path / "ballast"
        try:
            descriptor = open_private(ballast)
            try:
                size = os.fstat(descriptor).st_size
                if size < self._ballast and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, size, self._ballast - size)
            finally:
                os.close(descriptor)
        except OSError:
            ballast.unlink(missing_ok=True)

    def free(self) -> int:
        """Return the free bytes of the file system.

        Raises:
            StoreError: The directory is gone.
        """
        if not hasattr(os, "statvfs"):  # pragma: no cover - Windows
            return 1 << 62
        try:
            stat = os.statvfs(self.path)
        except OSError as error:
            raise taken_away(f"{self.path}: {error.strerror}") from error
        return stat.f_bavail * stat.f_frsize

    def exhausted(self) -> bool:
        """Return whether there is less space than the index of a log needs."""
        return self.free() < START_BYTES

    def full(self) -> StoreError:
        """Return what to say where a start found no space: how much would do, and where."""
        log = self.database.with_name(f"{FILE_NAME}-wal")
        try:
            # All of the log is moved into the database: it may grow by that much.
            needed = (log.stat().st_size if log.exists() else 0) + START_BYTES - self.free()
        except (OSError, StoreError):
            needed = START_BYTES
        msg = (
            f"the disk of the data directory {self.path} is full: "
            f"free {max(1, -(-needed // _MIB))} MiB there and start the broker again"
        )
        return StoreError(msg)

    def low(self, monotonic: float) -> bool:
        """Return whether the free space is under the reserve; looks at most once a second.

        Raises:
            StoreError: The directory is gone.
        """
        if monotonic - self._looked >= LOOK_EVERY:
            self._looked = monotonic
            self.space = self.free()
            self._low = self.space < self._reserve
            if self._low:
                self.release_ballast()
        return self._low

    def release_ballast(self) -> None:
        """Give the ballast's space back, so that running jobs can be finished."""
        (self.path / "ballast").unlink(missing_ok=True)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
