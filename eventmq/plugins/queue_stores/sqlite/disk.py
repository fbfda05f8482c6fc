"""Data directory: its lock, file modes and disk space, and errors that say what to do.

The database is locked as well, so deleting the file ``lock`` does not let a second broker in.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from eventmq.errors import ProtocolError, StoreError
from eventmq.plugins.database import explain, is_damage
from eventmq.plugins.private_files import make_private_folder, open_private, wider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "ALTERED",
    "ASK",
    "FILE_NAME",
    "DataDirectory",
    "OpenedFiles",
    "file_system_of",
    "network_file_system",
    "store_error",
    "store_removed",
]

logger = logging.getLogger("eventmq.store")

#: The kernel's list of mounts, see proc(5); only some systems have it.
MOUNTS = Path("/proc/self/mountinfo")

#: Types of network file systems, as the kernel and FUSE name them.
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gpfs", "glusterfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "pvfs2", "smb3", "smbfs",
    "fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.curlftpfs",
    "fuse.davfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs",
    "fuse.mfs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs",
    "fuse.sshfs",
})  # fmt: skip

#: An octal escape in the list of mounts: space, tab, newline or backslash.
_ESCAPED = re.compile(r"\\([0-7]{3})")

#: Index of the mount point among the fields of a line.
_MOUNT_POINT = 4

#: Name of the database in the data directory.
FILE_NAME = "queue.sqlite"

#: The ballast file is deleted when the disk is nearly full, so that running jobs can be finished.
#: Its size is the reserve divided by this: 32 MiB by default.
BALLAST_SHARE = 8

#: Seconds between two checks of the free space.
CHECK_EVERY = 1.0

#: Free bytes that a start needs in addition to those of the log: for its index and first commits.
START_BYTES = 1024 * 1024

_MIB = 1024 * 1024

#: Only on Linux are flock(2) and SQLite's locks on the same file independent; elsewhere our lock on
#: the database would keep SQLite out.
_LOCKS_DATABASE = sys.platform == "linux"

#: Advice for a damaged file.
ASK = "eventmq fsck lists the damage, and eventmq fsck --salvage DEST copies what can be read"

#: Errors that an altered value in the file may cause where no checksum covers it.
ALTERED = (ProtocolError, LookupError, TypeError, ValueError)


def file_system_of(path: str, mounts: str) -> str:
    """Return the type of the file system of a path, "" if the list does not have it.

    Args:
        path: An absolute path without links; it need not exist.
        mounts: Text in the format of ``/proc/self/mountinfo``.
    """
    max_length, file_system = -1, ""
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        fields, kind = mount.split(" "), source.partition(" ")[0]
        if len(fields) <= _MOUNT_POINT or not kind:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[_MOUNT_POINT])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same mount point hides the earlier one.
        if inside and len(point) >= max_length:
            max_length, file_system = len(point), kind
    return file_system


def network_file_system(path: Path) -> str:
    """Return the type of the network file system of a path, "" for any other or unknown one."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    kind = file_system_of(os.path.realpath(path), mounts)
    return kind if kind in NETWORK else ""


def store_removed(missing: str) -> StoreError:
    """Return the error for a store that was moved or removed while a broker had it open.

    Args:
        missing: The missing file and why it is missing, for the message.
    """
    return StoreError(
        f"the store was moved or removed under the running broker, which now stops: {missing}; "
        "put the data directory back as it was, or start a broker on the one that is there"
    )


class OpenedFiles:
    """The open files of a store and their paths; checks that each path still is the same file.

    Create this after the first commit: an overlay file system copies a file at its first write,
    which changes its inode.

    Args:
        database: Path of the database, whose log and index of the log exist.
        descriptors: Path -> descriptor of the other open files.
        has_moved: Returns whether SQLite finds another database at the path.

    Raises:
        StoreError: A path is another file already.
    """

    def __init__(
        self, database: Path, descriptors: Mapping[Path, int], has_moved: Callable[[], bool]
    ) -> None:
        self._database = database
        self._has_moved = has_moved
        # SQLite creates them next to the file itself, not next to a link to it.
        real = database.resolve() if database.is_symlink() else database
        log, index = (real.with_name(f"{real.name}-{end}") for end in ("wal", "shm"))
        identities = {path: _identity(os.fstat(fd)) for path, fd in descriptors.items()}
        # SQLite keeps these two open, so that no other file can get their inodes.
        identities |= {path: self._identity_now(path) for path in (log, index)}
        #: Path, and device and inode, of each file.
        self._identities = tuple(identities.items())
        self._log: int | None = None
        self._link, self._link_target = _link_of(self._open(log)), ""
        if self._link:
            self._link_target = os.readlink(self._link)  # noqa: PTH115 - as below
        #: Files to check at each commit; SQLite checks the database.
        excluded = {database, index, log} if self._link else {database, index}
        self._checked = tuple(
            (os.fspath(path), key) for path, key in self._identities if path not in excluded
        )
        self.verify()

    def _open(self, log: Path) -> int:
        """Open only the path of the log (``O_PATH``); return -1 if the system cannot do that."""
        if hasattr(os, "O_PATH"):
            with suppress(OSError):  # `verify` reports what is wrong with the path
                self._log = os.open(log, os.O_PATH | os.O_CLOEXEC)
        return -1 if self._log is None else self._log

    def close(self) -> None:
        """Close the descriptor of the log. Idempotent."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    # hot path: python -m benchmarks drain
    def committed(self) -> None:
        """Check the paths after a commit.

        Raises:
            StoreError: A path is another file: no receipt may be given for this commit.
        """
        stat = os.stat
        for path, identity in self._checked:
            try:
                status = stat(path)
            except OSError as error:
                raise self._missing(path, error) from error
            if (status.st_dev, status.st_ino) != identity:
                raise self._replaced(path)
        # After a `stat` of the log the system would keep exact times of the file, so that the next
        # sync writes one more block. Reading the link of its descriptor has no such effect.
        if self._link and os.readlink(self._link) != self._link_target:  # noqa: PTH115 - a path costs more
            raise self._replaced(self._link_target)
        if self._has_moved():
            raise self._replaced(self._database)

    def verify(self) -> None:
        """Check all paths.

        Raises:
            StoreError: A path is another file.
        """
        for path, identity in self._identities:
            if self._identity_now(path) != identity:
                raise self._replaced(path)
        self.committed()

    def _identity_now(self, path: Path) -> tuple[int, int]:
        try:
            return _identity(path.stat())
        except OSError as error:
            raise self._missing(path, error) from error

    @staticmethod
    def _missing(path: str | Path, error: OSError) -> StoreError:
        why = "is gone" if isinstance(error, FileNotFoundError) else f"fails: {error.strerror}"
        return store_removed(f"{path} {why}")

    @staticmethod
    def _replaced(path: str | Path) -> StoreError:
        exists = Path(path).exists()
        return store_removed(f"{path} is another file now" if exists else f"{path} is gone")


def _link_of(descriptor: int) -> str:
    """Return the link in /proc to the path of an open file, "" if the system has none."""
    link = f"/proc/self/fd/{descriptor}"
    return link if descriptor >= 0 and os.path.lexists(link) else ""


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]


class DataDirectory:
    """A locked directory. The kernel frees the lock when the process ends, however it ends.

    Closing a descriptor ends all POSIX locks of this process on its file, including SQLite's. So
    call `open` before any connection to the database is opened, and `close` after all are closed.

    Args:
        path: The directory.
        reserve: Free bytes below which submissions are refused; 0 for no reserve and no ballast.
    """

    #: Device and inode of the databases that this process has locked. A second descriptor for one
    #: must not be opened, since closing it would end the lock.
    _locked: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, path: Path, reserve: int) -> None:
        self.path = path
        self.database = path / FILE_NAME
        self._reserve = reserve
        self._ballast = reserve // BALLAST_SHARE
        self._lock: int | None = None
        self._database: int | None = None
        self._checked = float("-inf")
        self._low = False
        #: Free bytes at the last check in `low`.
        self.space = 1 << 62
        #: Whether there was no store when `serve` was called.
        self.new = False

    # Opening and closing

    def serve(self, expected: str = "") -> None:
        """Open the directory for a broker: lock the database and create or free the ballast.

        Args:
            expected: The id of the store that must exist; "" creates a missing database.

        Raises:
            StoreError: As `open`; or the expected store does not exist, or the directory is on a
                network file system.
        """
        kind = network_file_system(self.path)
        if kind:
            raise StoreError(
                f"the data directory {self.path} is on a network file system ({kind}), where the "
                "locks of SQLite do not hold: name a directory on a disk of this machine with "
                "--data-dir"
            )
        if expected and self._is_missing():
            raise StoreError(
                f"there is no store in {self.path}, and the store {expected} is expected: see that "
                "its disk is mounted and --data-dir is right; without expect_store a new one would "
                "be made"
            )
        self.open()
        try:
            self._prepare_space()
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
        """Create and lock the directory, and lock the database in it if there is one.

        Raises:
            StoreError: The directory cannot be created or written, or another broker uses it.
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
        """Whether this object has locked the directory."""
        return self._lock is not None

    @property
    def descriptors(self) -> dict[Path, int]:
        """Path -> descriptor of the locked files."""
        opened = {self.path / "lock": self._lock, self.database: self._database}
        return {path: descriptor for path, descriptor in opened.items() if descriptor is not None}

    def close(self) -> None:
        """Free the lock. Idempotent."""
        if self._database is not None:
            self._locked.discard(_identity(os.fstat(self._database)))
            os.close(self._database)
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_missing(self) -> bool:
        """Return whether there is no store; for SQLite an empty file is a new database."""
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
            if error.errno != errno.ENOSPC:  # the lock holds even if it does not name its owner
                raise

    def _lock_database(self, *, make: bool) -> None:
        """Lock the database, unless it is locked already or does not exist."""
        if self._database is not None or not (make or self.database.exists()):
            return
        try:
            locked = _identity(self.database.stat()) in self._locked
        except FileNotFoundError:
            locked = False
        if locked:
            raise self._in_use()
        self._database = open_private(self.database)
        if _LOCKS_DATABASE:
            try:
                self._take_lock(self._database)
            except StoreError:
                os.close(self._database)
                self._database = None
                raise
        self._locked.add(_identity(os.fstat(self._database)))

    def _unusable(self, error: OSError) -> StoreError:
        if error.errno == errno.ENOSPC:
            return self.full()
        msg = (
            f"cannot write to the data directory {self.path}: {error.strerror}; "
            "make it writable or name another with --data-dir"
        )
        return StoreError(msg)

    # File modes

    def _warn_of_modes(self) -> None:
        exposed = wider([self.path, *self._files()])
        if not exposed:
            return
        modes = ", ".join(f"{path} has mode {mode:04o}" for path, mode in exposed)
        files = " ".join(quote(str(path)) for path, _ in exposed if path != self.path)
        commands = [f"chmod 700 {quote(str(self.path))}"] * (exposed[0][0] == self.path)
        commands += [f"chmod 600 {files}"] * bool(files)
        logger.warning(
            "other users can access the data of the broker: %s; to prevent that: %s",
            modes, " && ".join(commands),
        )  # fmt: skip

    def _files(self) -> Iterator[Path]:
        for path in sorted(self.path.iterdir()):
            if ".sqlite" in path.name or path.name in {"lock", "ballast"}:
                yield path

    # Space

    def _prepare_space(self) -> None:
        """Delete the ballast if free space is under the reserve; create it if there is enough."""
        free = self.free()
        if free < self._reserve:
            self.release_ballast()
        elif self._ballast and free >= self._reserve + self._ballast:
            self._create_ballast()

    def _create_ballast(self) -> None:
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
            StoreError: The directory does not exist any more.
        """
        if not hasattr(os, "statvfs"):  # pragma: no cover - Windows
            return 1 << 62
        try:
            stat = os.statvfs(self.path)
        except OSError as error:
            raise store_removed(f"{self.path}: {error.strerror}") from error
        return stat.f_bavail * stat.f_frsize

    def gauges(self) -> dict[str, float]:
        """Return sizes in bytes, empty if they cannot be read; see `QueueStore.gauges`."""
        try:
            size = self.database.stat().st_size
            return {"bytes": size, "free_bytes": self.free(), "reserve_bytes": self._reserve}
        except (OSError, StoreError):
            return {}

    def exhausted(self) -> bool:
        """Return whether less space is free than the index of a log needs."""
        return self.free() < START_BYTES

    def full(self) -> StoreError:
        """Return the error for a start without enough space; it says how much space to free."""
        log = self.database.with_name(f"{FILE_NAME}-wal")
        try:
            # The log is checkpointed first, so the database may grow by its size.
            needed = (log.stat().st_size if log.exists() else 0) + START_BYTES - self.free()
        except (OSError, StoreError):
            needed = START_BYTES
        msg = (
            f"the disk of the data directory {self.path} is full: "
            f"free {max(1, -(-needed // _MIB))} MiB there and start the broker again"
        )
        return StoreError(msg)

    def low(self, monotonic: float) -> bool:
        """Return whether the free space is under the reserve; checks at most once a second.

        Raises:
            StoreError: The directory does not exist any more.
        """
        if monotonic - self._checked >= CHECK_EVERY:
            self._checked = monotonic
            self.space = self.free()
            self._low = self.space < self._reserve
            if self._low:
                self.release_ballast()
        return self._low

    def release_ballast(self) -> None:
        """Delete the ballast, so that there is space to finish running jobs."""
        (self.path / "ballast").unlink(missing_ok=True)


def store_error(
    path: Path | str, error: Exception, problem: str = "cannot be written"
) -> StoreError:
    """Return the error for a store that cannot be used any more.

    Args:
        path: Path of its file.
        error: The cause. If a page or a value in the file may be damaged, the message has advice.
        problem: What the store cannot do; ignored if the file cannot be read.
    """
    why = explain(error)
    if is_damage(error):
        text = f"cannot be read: {why}; {ASK}"
    elif isinstance(error, ALTERED):
        text = f"{problem}: {type(error).__name__}: {why}; {ASK}"
    else:
        text = f"{problem}: {why or type(error).__name__}"  # a MemoryError has no text
    failure = StoreError(f"the store {path} {text}")
    failure.__cause__ = error
    return failure
