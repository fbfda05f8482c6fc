"""The lock of commands that replace or remove files of a journal: compact and forget.

The journal itself only adds files and goes on meanwhile. So do readers.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.sdk import SystemClock

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["hold_lock"]

#: Readers skip names that begin so; a journal that is in the same folder has another lock.
_LOCK = "_keeping"

#: Seconds that a command waits for another one: cron may start both in the same minute.
TIMEOUT = 60.0


@contextlib.contextmanager
def hold_lock(target: Path, command: str) -> Iterator[None]:
    """Hold the lock of a folder of large files; wait for another command that has it.

    The system frees it when a process ends, however that ends.

    Args:
        target: The folder, made where it is missing.
        command: The command that holds it, for the error of the other.

    Raises:
        StoreError: Another command holds it for longer than a minute.
        OSError: The folder cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    lock = os.open(target / _LOCK, flags, 0o644)
    try:
        end = SystemClock().monotonic() + TIMEOUT
        while not _acquired(lock):
            if SystemClock().monotonic() >= end:
                raise _in_use(target, lock)
            _pause()
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{command} (process {os.getpid()})\n".encode(), 0)
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


def _pause() -> None:
    time.sleep(0.1)


def _in_use(target: Path, lock: int) -> StoreError:
    owner = os.pread(lock, 200, 0).decode(errors="replace").strip() or "another command"
    msg = (
        f"the folder {target} is in use by {owner} for more than {TIMEOUT:.0f} seconds: begin "
        "this again when that has ended"
    )
    return StoreError(msg)
