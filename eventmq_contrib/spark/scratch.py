"""Temporary folders of Spark, which are removed even after a kill.

A JVM of Spark makes folders and unpacks libraries in its temporary folder, and removes them when it
ends, but not when it is killed. So each JVM gets a folder of its own in a common folder, and the
next start removes the folders of killed JVMs.

A folder is in use while the process that made it holds its lock; the operating system releases the
lock however the process ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["make_scratch", "scratch_root"]

logger = logging.getLogger("eventmq.spark")

#: Prefix of the common folder in the temporary folder.
_PREFIX = "eventmq-spark-"

#: Name of the lock files: that of the common folder is locked while a folder is made or checked,
#: that of a folder by its process.
_LOCK = "lock"

#: Descriptors of lock files of this process, which stay open until it ends.
_LOCKS: list[int] = []


def scratch_root() -> Path:
    """Return the common folder of this user, which may not exist."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir(), f"{_PREFIX}{user}")


def make_scratch() -> Path:
    """Make a folder that stays in use until this process ends, and remove unused folders.

    Returns:
        A folder with nothing but its lock.

    Raises:
        OSError: The temporary folder cannot be written.
    """
    root = scratch_root()
    if fcntl is None:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    if not _is_private(root):
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    root_lock = _open(root / _LOCK)
    try:
        fcntl.flock(root_lock, fcntl.LOCK_EX)
        unused = [path for path in root.iterdir() if path.is_dir() and _is_unused(path)]
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        lock = _open(folder / _LOCK)
        fcntl.flock(lock, fcntl.LOCK_EX)
        _LOCKS.append(lock)
    finally:
        os.close(root_lock)
    for path in unused:
        logger.info("removing %s, left by a killed process", path)
        shutil.rmtree(path, ignore_errors=True)
    return folder


def _is_private(root: Path) -> bool:
    """Make the common folder; return whether only this user can write it."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    status = root.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
        root.chmod(0o700)
        return True
    logger.warning(
        "%s is not a folder of this user: files of killed Spark processes will not be removed",
        root,
    )
    return False


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_unused(path: Path) -> bool:
    """Return whether the process that made a folder has ended; call it under the common lock."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # a process was killed while it made or removed the folder
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
