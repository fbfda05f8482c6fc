"""The tasks that every peer runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.peers.board import FOLDER, note

__all__ = ["TASKS", "hold", "nothing", "same", "stamp", "starts"]


def nothing() -> None:
    """Do nothing but count."""
    note()


def same(number: int) -> int:
    """Return the number."""
    return number


def stamp(due: float) -> None:
    """Record how long after a Unix time the job starts."""
    note(time.time() - due)


def hold(seconds: float) -> None:
    """Occupy a slot; each start is recorded as a line in a file of the process."""
    with (Path(os.environ[FOLDER]) / "starts").open("a") as file:
        file.write(f"{os.getpid()} {time.time()}\n")
    time.sleep(seconds)


def starts(folder: Path) -> list[tuple[int, float]]:
    """Return process and Unix time of each start of `hold`."""
    path = folder / "starts"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), float(at)) for pid, at in (line.split() for line in lines)]


TASKS = (nothing, same, stamp, hold)
