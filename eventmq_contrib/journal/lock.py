"""Locks of folders: of a journal, and of the commands that replace or remove its files.

While `compact` or `forget` hold theirs, the journal and its readers continue, since the journal
only adds files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from eventmq.errors import StoreError
from eventmq.sdk import SystemClock

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]


__all__ = ["hold_lock", "lock_file"]

#: Readers skip names that begin with ``_``. A journal in the same folder has another lock.
_LOCK = "_keeping"

#: Seconds that a command waits for another one, as cron may start both in the same minute.
TIMEOUT = 60.0


def hold_lock(target: Path, command: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a folder of large files; wait for another command that holds it.

    Args:
        target: The folder, made if it is missing.
        command: The command that takes the lock, for the error of another command.

    Raises:
        StoreError: Another command holds it for longer than a minute.
        OSError: The folder cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    hint = f" for more than {TIMEOUT:.0f} seconds: try again when it has ended"
    return lock_file(target / _LOCK, command, hint, timeout=TIMEOUT)


@contextlib.contextmanager
def lock_file(path: Path, owner: str, hint: str, *, timeout: float = 0.0) -> Iterator[None]:
    """Hold a lock; the system releases it when the process ends in any way.

    Args:
        path: File of the lock, made if it is missing.
        owner: Name of this owner, for the error of another process.
        hint: End of the error about another owner.
        timeout: Seconds to wait for another owner.

    Raises:
        StoreError: Another owner holds it.
        OSError: The folder cannot be written.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    lock = os.open(path, flags, 0o644)
    try:
        end = SystemClock().monotonic() + timeout
        while not _acquired(lock):
            if SystemClock().monotonic() >= end:
                other = os.pread(lock, 200, 0).decode(errors="replace").strip()
                raise StoreError(
                    f"the folder {path.parent} is in use by {other or 'another process'}{hint}"
                )
            time.sleep(0.1)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{owner} (process {os.getpid()})\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _acquired(lock: int) -> bool:
    """Try to acquire the lock; return whether it is held now."""
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
