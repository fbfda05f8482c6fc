"""Child recycling: replaces a child after so many jobs, or with too much memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["Wear", "resident_of"]

#: Seconds between two looks at the memory: a look costs some microseconds.
LOOK = 0.05


def resident_of(pid: int | str) -> int:
    """Return how many bytes of memory a process has; 0 if it is not there, or there is no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Return how many bytes of memory this process has; its peak where there is no /proc."""
    if (found := resident_of("self")) == 0:
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = peak if sys.platform == "darwin" else peak * 1024
    return found


class Wear:
    """Counts jobs, and looks at the memory between them.

    Args:
        jobs: So many are enough; 0 for any number.
        memory: So many bytes are too much; 0 for any size.
    """

    __slots__ = ("_due", "_left", "_memory")

    def __init__(self, jobs: int, memory: int) -> None:
        self._left = jobs or -1
        self._memory = memory
        self._due = 0.0

    def out(self) -> bool:
        """Take note of a job that has ended; say whether the process should end."""
        self._left -= 1
        if not self._left:
            return True
        if not self._memory:
            return False
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + LOOK
        return resident() > self._memory
