"""Child recycling: replaces a child after a number of jobs, or when it uses too much memory."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["ChildRecycling", "resident_family", "resident_of"]

#: Seconds between two measurements of the memory; each takes some microseconds.
MEMORY_CHECK_EVERY = 0.05


def resident_of(pid: int | str) -> int:
    """Return the memory of a process in bytes; 0 if it has ended, or without /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def resident_family(pid: int | str = "self") -> int:
    """Return the memory of a process and its descendants in bytes; 0 without /proc.

    Pages that they share count for each of them.
    """
    size = resident_of(pid)
    with contextlib.suppress(OSError):  # it has ended
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            size += sum(map(resident_family, path.read_text().split()))
    return size


def resident() -> int:
    """Return the memory of this process in bytes; its peak without /proc."""
    if (size := resident_of("self")) == 0:
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = peak if sys.platform == "darwin" else peak * 1024
    return size


class ChildRecycling:
    """Decides when a child is replaced: counts its jobs and measures its memory between them.

    Args:
        jobs: Number of jobs after which it is replaced; 0 for never.
        memory: Bytes of memory above which it is replaced; 0 for never.
    """

    __slots__ = ("_due", "_memory", "_remaining")

    def __init__(self, jobs: int, memory: int) -> None:
        self._remaining = jobs or -1
        self._memory = memory
        self._due = 0.0

    def count_job(self) -> bool:
        """Count a job that has ended; return whether the child should exit."""
        self._remaining -= 1
        if not self._remaining:
            return True
        if not self._memory:
            return False
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + MEMORY_CHECK_EVERY
        return resident() > self._memory
