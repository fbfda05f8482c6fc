"""Temporary folders of Spark, which are removed even after a kill.

Spark makes folders and unpacks libraries in the temporary folder of its JVM, and removes them when
that ends. One that is killed removes nothing. So each JVM gets a folder of its own, under one of
ours, and the start of the next one removes the folders of killed ones.

A folder is in use as long as the process that made it holds the lock in it; the system lets go of
that however the process ends.
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

#: Beginning of the names of ours in the temporary folder.
_PREFIX = "eventmq-spark-"

#: In the folder of all: held while one is made or looked at. In that of one: held by its owner.
_LOCK = "lock"

#: Locks of this process, which it holds until it ends: files that are never closed.
_HELD: list[int] = []


def scratch_root() -> Path:
    """Return the folder that has those of all processes of this user; it need not be there."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir(), f"{_PREFIX}{user}")


def make_scratch() -> Path:
    """Make a folder that is in use until this process ends, and remove those that no longer are.

    Returns:
        An empty folder, but for its lock.

    Raises:
        OSError: The temporary folder cannot be written.
    """
    root = scratch_root()
    if fcntl is None:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    if not _is_ours(root):
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    root_lock = _open(root / _LOCK)
    try:
        fcntl.flock(root_lock, fcntl.LOCK_EX)
        unused = [path for path in root.iterdir() if path.is_dir() and _is_unused(path)]
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        lock = _open(folder / _LOCK)
        fcntl.flock(lock, fcntl.LOCK_EX)
        _HELD.append(lock)
    finally:
        os.close(root_lock)
    for path in unused:
        logger.info("removing %s, which a process left that was killed", path)
        shutil.rmtree(path, ignore_errors=True)
    return folder


def _is_ours(root: Path) -> bool:
    """Make the folder of all; return whether it is one that only this user can write."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    status = root.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
        root.chmod(0o700)
        return True
    logger.warning(
        "%s is not a folder of this user: what Spark leaves when it is killed will not be removed",
        root,
    )
    return False


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_unused(path: Path) -> bool:
    """Return whether the process that made a folder has ended; to be asked one at a time."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # it was being made, or removed, by one that was killed
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
