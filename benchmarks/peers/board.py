"""Records of jobs, the same for every peer: the number and the delays of starts, per process.

Each process that runs jobs has a file of its own, mapped into memory: a record takes less than a
microsecond, and the measuring process reads the files. All threads of a worker write records.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

__all__ = ["FOLDER", "Board", "note"]

#: Environment variable with the folder of the files.
FOLDER = "PEERS_BOARD"

#: Maximum number of delays in a file; further ones are only counted.
_ROOM = 2_000_000

_COUNT = struct.Struct("<Q")
_DELAY = struct.Struct("<d")

_mine: tuple[int, mmap.mmap] | None = None

#: Held while a thread writes: a file recreated by another one would be empty under its map.
_noting = threading.Lock()
os.register_at_fork(before=_noting.acquire, after_in_parent=_noting.release,
                    after_in_child=_noting.release)  # fmt: skip


def _map() -> mmap.mmap:
    """Return the file of this process, not that of the process it was forked from."""
    global _mine  # noqa: PLW0603 - one per process
    if _mine is None or _mine[0] != os.getpid():
        path = Path(os.environ[FOLDER]) / f"{os.getpid()}.board"
        with path.open("w+b") as file:
            file.truncate(_COUNT.size + _ROOM * _DELAY.size)
            _mine = os.getpid(), mmap.mmap(file.fileno(), 0)
    return _mine[1]


def note(delay: float = 0.0) -> None:
    """Count a job that has started, with its delay in seconds."""
    with _noting:
        board = _map()
        [count] = _COUNT.unpack_from(board)
        if count < _ROOM:
            _DELAY.pack_into(board, _COUNT.size + count * _DELAY.size, delay)
        _COUNT.pack_into(board, 0, count + 1)


class Board:
    """All records of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = 0

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.board"))

    def processes(self) -> int:
        """Return how many processes have run a job with a record."""
        return len(self._files())

    def _counts(self) -> int:
        total = 0
        for path in self._files():
            with path.open("rb") as file:
                head = file.read(_COUNT.size)
            total += _COUNT.unpack(head)[0] if len(head) == _COUNT.size else 0
        return total

    def count(self) -> int:
        """Return how many jobs have started since `clear`."""
        return self._counts() - self._before

    def clear(self) -> None:
        """Restart the count; the processes continue."""
        self._before = self._counts()

    def delays(self) -> list[float]:
        """Return all delays in seconds, unordered, including those from before `clear`."""
        delays: list[float] = []
        for path in self._files():
            with path.open("rb") as file:
                [count] = _COUNT.unpack(file.read(_COUNT.size))
                raw = file.read(min(count, _ROOM) * _DELAY.size)
            delays += [delay for (delay,) in _DELAY.iter_unpack(raw)]
        return delays
