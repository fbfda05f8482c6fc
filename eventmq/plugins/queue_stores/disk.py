"""A data directory: its lock, its reserve of space, and clear words when it cannot be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eventmq.errors import StoreError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DataDirectory"]

#: The ballast file is released to finish what runs when the disk is nearly full. It has this share
#: of the reserve: 32 MiB of the default one.
BALLAST_SHARE = 8

#: Seconds between two looks at the free space.
LOOK_EVERY = 1.0


class DataDirectory:
    """A locked directory. The kernel frees the lock when the process ends, however it ends."""

    def __init__(self, path: Path, reserve: int) -> None:
        self.path = path
        self._reserve = reserve
        self._ballast = reserve // BALLAST_SHARE
        self._lock: int | None = None
        self._looked = float("-inf")
        self._low = False

    def open(self) -> None:
        """Create and lock the directory.

        Raises:
            StoreError: It cannot be created or written, or another broker has it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._lock = os.open(self.path / "lock", flags, 0o600)
        except OSError as error:
            msg = (
                f"cannot write to the data directory {self.path}: {error.strerror}; "
                "make it writable or name another with --data-dir"
            )
            raise StoreError(msg) from error
        self._take_lock()
        self._lay_ballast()

    @property
    def locked(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock is not None

    def _take_lock(self) -> None:
        assert self._lock is not None  # noqa: S101 - set by open
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            self.close()
            msg = (
                f"the data directory {self.path} is in use by another broker (process {owner}): "
                "stop that one, or name another with --data-dir"
            )
            raise StoreError(msg) from error
        os.pwrite(self._lock, f"{os.getpid():<31}\n".encode(), 0)

    def _lay_ballast(self) -> None:
        ballast = self.path / "ballast"
        if not self._ballast or self.free() < self._reserve + self._ballast:
            return
        try:
            with ballast.open("ab") as file:
                missing = self._ballast - file.tell()
                if missing > 0 and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), file.tell(), missing)
        except OSError:
            ballast.unlink(missing_ok=True)

    def free(self) -> int:
        """Return the free bytes of the file system."""
        if not hasattr(os, "statvfs"):  # pragma: no cover - Windows
            return 1 << 62
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def low(self, monotonic: float) -> bool:
        """Say whether the free space is under the reserve; looks at most once a second."""
        if monotonic - self._looked >= LOOK_EVERY:
            self._looked = monotonic
            self._low = self.free() < self._reserve
            if self._low:
                self.release_ballast()
        return self._low

    def release_ballast(self) -> None:
        """Give the ballast's space back, so that running jobs can be finished."""
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Free the lock. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
