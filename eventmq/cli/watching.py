"""Tells when code changes: looks at the files of a folder again and again.

It looks at every Python file below the folder and at the settings files in it, so that modules
which are imported later, and those that could not be imported, are seen as well.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Watcher", "snapshot"]

#: Seconds between two looks: a thousand files take about 5 ms.
INTERVAL = 0.25

#: Files that are looked at; in a larger folder those found first.
MOST = 20_000

#: Folders that hold other people's code, or none.
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages"})

_SETTINGS = frozenset({"eventmq.toml", "pyproject.toml"})

Snapshot = dict[str, tuple[int, int]]


def snapshot(folder: Path) -> Snapshot:
    """Return path from the folder on -> time of change and size, of each file that is watched."""
    found: Snapshot = {}
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        top = place == str(folder)
        folders[:] = sorted(f for f in folders if f not in _PASSED_OVER and f[0] != ".")
        for name in names:
            if name.endswith(".py") or (top and name in _SETTINGS):
                path = os.path.join(place, name)  # noqa: PTH118 - a Path costs ten times as much
                try:
                    status = os.stat(path)  # noqa: PTH116 - as above
                except OSError:  # gone since, or a link to nothing
                    continue
                found[os.path.relpath(path, folder)] = (status.st_mtime_ns, status.st_size)
        if len(found) >= MOST:
            break
    return found


def _differences(before: Snapshot, after: Snapshot) -> list[str]:
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


class Watcher:
    """Watches from its making on, in a daemon thread, until `stop`.

    Args:
        folder: What is watched.
        on_change: Called in the thread with the paths that changed, came or went, once nothing
            has changed for a look: saving many files is one change.
    """

    def __init__(self, folder: Path, on_change: Callable[[list[str]], object]) -> None:
        self._folder = folder
        self._on_change = on_change
        self._stopped = threading.Event()
        self._seen = snapshot(folder)
        self._thread = threading.Thread(target=self._watch, name="eventmq-watch", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        told = last = self._seen
        while not self._stopped.wait(INTERVAL):
            now = snapshot(self._folder)
            if now == last and now != told:
                self._on_change(_differences(told, now))
                told = now
            last = now

    def stop(self) -> None:
        """Watch no more. Idempotent."""
        self._stopped.set()
        self._thread.join()
