"""A data directory: its lock, its modes, its reserve of space, and clear words where it is no use.

The lock is tied to the database too: to delete the file ``lock`` lets no second broker in.
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

#: Where the kernel lists what is mounted; see proc(5). Systems without it tell nothing.
MOUNTS = Path("/proc/self/mountinfo")

#: Types whose files other machines may have open, as the kernel and FUSE name them.
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gpfs", "glusterfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "pvfs2", "smb3", "smbfs",
    "fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.curlftpfs",
    "fuse.davfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs",
    "fuse.mfs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs",
    "fuse.sshfs",
})  # fmt: skip

#: A character that the list writes as an octal number: space, tab, newline, backslash.
_ESCAPED = re.compile(r"\\([0-7]{3})")

#: Field of a line that has the mount point, counted from 0.
_MOUNT_POINT = 4

#: Name of the database in the data directory.
FILE_NAME = "queue.sqlite"

#: The ballast file is released to finish what runs when the disk is nearly full. It has this share
#: of the reserve: 32 MiB of the default one.
BALLAST_SHARE = 8

#: Seconds between two looks at the free space.
CHECK_EVERY = 1.0

#: Free bytes that a start needs beside those of the log: for its index, and for first commits.
START_BYTES = 1024 * 1024

_MIB = 1024 * 1024

#: Only Linux keeps flock(2) and the locks that SQLite takes on the same file apart; elsewhere a
#: lock of ours on the database would keep SQLite out.
_LOCKS_DATABASE = sys.platform == "linux"

#: What helps where a file is damaged.
ASK = "ask eventmq fsck what is wrong, and eventmq fsck --salvage DEST copies what can be read"

#: What a value that was altered in the file ends in, where nothing else notices it.
ALTERED = (ProtocolError, LookupError, TypeError, ValueError)


def file_system_of(path: str, mounts: str) -> str:
    """Return the type of the file system of a path, "" where the list does not tell.

    Args:
        path: Absolute, without links; it need not be there.
        mounts: Text in the format of ``/proc/self/mountinfo``.
    """
    longest, file_system = -1, ""
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        fields, kind = mount.split(" "), source.partition(" ")[0]
        if len(fields) <= _MOUNT_POINT or not kind:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[_MOUNT_POINT])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same place hides the earlier one.
        if inside and len(point) >= longest:
            longest, file_system = len(point), kind
    return file_system


def network_file_system(path: Path) -> str:
    """Return the type of the network file system that a path is on, "" for none or none known."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    kind = file_system_of(os.path.realpath(path), mounts)
    return kind if kind in NETWORK else ""


def store_removed(missing: str) -> StoreError:
    """Return the error of a broker whose store has been moved or removed.

    Args:
        missing: What is missing, for the message.
    """
    return StoreError(
        f"the store was taken from under the broker, which gives no further receipt: {missing}; "
        "put the data directory back as it was, or start a broker on what is there"
    )


class OpenedFiles:
    """The files that a store has open, and the names under which it opened them.

    Make it after the first commit: an overlay file system gives a file that it has to copy first
    another number when it is written.

    Args:
        database: The database; its log and the index of that have been made.
        descriptors: Name and descriptor of what else is open.
        has_moved: Returns whether SQLite finds another database under the name.

    Raises:
        StoreError: A name leads elsewhere already.
    """

    def __init__(
        self, database: Path, descriptors: Mapping[Path, int], has_moved: Callable[[], bool]
    ) -> None:
        self._database = database
        self._has_moved = has_moved
        # SQLite puts them beside the file itself, not beside a link to it.
        real = database.resolve() if database.is_symlink() else database
        log, index = (real.with_name(f"{real.name}-{end}") for end in ("wal", "shm"))
        identities = {path: _identity(os.fstat(fd)) for path, fd in descriptors.items()}
        # SQLite keeps these two open, so that no other file can get their numbers.
        identities |= {path: self._identity_now(path) for path in (log, index)}
        #: Name, device and inode.
        self._identities = tuple(identities.items())
        self._log: int | None = None
        self._link, self._led_to = _link_of(self._open(log)), ""
        if self._link:
            self._led_to = os.readlink(self._link)  # noqa: PTH115 - as below
        #: Those to look at with each commit; SQLite looks at the database itself.
        excluded = {database, index, log} if self._link else {database, index}
        self._checked = tuple(
            (os.fspath(path), key) for path, key in self._identities if path not in excluded
        )
        self.verify()

    def _open(self, log: Path) -> int:
        """Open the log by its name alone; -1 where a system cannot do that."""
        if hasattr(os, "O_PATH"):
            with suppress(OSError):  # `verify` says what is wrong with the name
                self._log = os.open(log, os.O_PATH | os.O_CLOEXEC)
        return -1 if self._log is None else self._log

    def close(self) -> None:
        """Close what was opened to look at. Idempotent."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    # hot path: python -m benchmarks drain
    def committed(self) -> None:
        """Check the names after a commit.

        Raises:
            StoreError: One of them leads elsewhere: no receipt may be given for this commit.
        """
        stat = os.stat
        for path, identity in self._checked:
            try:
                status = stat(path)
            except OSError as error:
                raise self._missing(path, error) from error
            if (status.st_dev, status.st_ino) != identity:
                raise self._replaced(path)
        # What `stat` said of the log the next write must change: the system then keeps exact times
        # of the file, and the next sync writes one block more. Of a link it keeps none.
        if self._link and os.readlink(self._link) != self._led_to:  # noqa: PTH115 - a path costs more
            raise self._replaced(self._led_to)
        if self._has_moved():
            raise self._replaced(self._database)

    def verify(self) -> None:
        """Check all names.

        Raises:
            StoreError: One of them leads elsewhere.
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
    """Return the link that says where an open file is now; "" where a system has none."""
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

    To close a descriptor ends all POSIX locks of this process on its file, also those of SQLite. So
    `open` comes before any connection to the database, and `close` after the last one is closed.

    Args:
        path: The directory.
        reserve: Free bytes below which submissions are refused; 0: no reserve and no ballast.
    """

    #: Device and inode of the databases that this process has locked: a second descriptor on one
    #: of them must not even be opened.
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
        """Locked files, by the names under which they were opened."""
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

    # Who may read it

    def _warn_of_modes(self) -> None:
        exposed = wider([self.path, *self._files()])
        if not exposed:
            return
        modes = ", ".join(f"{path} has mode {mode:04o}" for path, mode in exposed)
        files = " ".join(quote(str(path)) for path, _ in exposed if path != self.path)
        commands = [f"chmod 700 {quote(str(self.path))}"] * (exposed[0][0] == self.path)
        commands += [f"chmod 600 {files}"] * bool(files)
        logger.warning(
            "other users can use what the broker keeps: %s; to end that: %s",
            modes, " && ".join(commands),
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
            raise store_removed(f"{self.path}: {error.strerror}") from error
        return stat.f_bavail * stat.f_frsize

    def gauges(self) -> dict[str, float]:
        """Return sizes in bytes, nothing where they cannot be read; see `QueueStore.gauges`."""
        try:
            size = self.database.stat().st_size
            return {"bytes": size, "free_bytes": self.free(), "reserve_bytes": self._reserve}
        except (OSError, StoreError):
            return {}

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
        if monotonic - self._checked >= CHECK_EVERY:
            self._checked = monotonic
            self.space = self.free()
            self._low = self.space < self._reserve
            if self._low:
                self.release_ballast()
        return self._low

    def release_ballast(self) -> None:
        """Give the ballast's space back, so that running jobs can be finished."""
        (self.path / "ballast").unlink(missing_ok=True)


def store_error(
    path: Path | str, error: Exception, problem: str = "cannot be written"
) -> StoreError:
    """Return the error of a store that goes on no more.

    Args:
        path: Of its file.
        error: What went wrong. Where a page or a value in the file may be damaged, the sentence
            says what helps.
        problem: What the store cannot do, unless the file cannot be read.
    """
    why = explain(error)
    if is_damage(error):
        text = f"cannot be read: {why}; {ASK}"
    elif isinstance(error, ALTERED):
        text = f"{problem}: {type(error).__name__}: {why}; {ASK}"
    else:
        text = f"{problem}: {why or type(error).__name__}"  # a MemoryError has no words
    failure = StoreError(f"the store {path} {text}")
    failure.__cause__ = error
    return failure
