"""Notices that the names of a store's files lead elsewhere: deleted, moved, replaced, unmounted.

A process that has a file open goes on to write it when its name is gone. What is committed then is
in a file that no later broker finds, so no receipt may be given for it. Device and inode are
compared within one run only: another mount or another kernel may number them differently.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from eventmq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OpenedFiles", "taken_away"]


def taken_away(what: str) -> StoreError:
    """Return the error of a broker whose store is not where it was; ``what`` is missing."""
    return StoreError(
        f"the store was taken from under the broker, which gives no further receipt: {what}; "
        "put the data directory back as it was, or start a broker on what is there"
    )


class OpenedFiles:
    """The files that a store has open, and the names under which it opened them.

    Make it after the first commit: an overlay file system gives a file that it has to copy first
    another number when it is written.

    Args:
        database: The database; its log and the index of that have been made.
        descriptors: Name and descriptor of what else is open.
        has_moved: Returns whether SQLite finds another database under the name.

    Raises:
        StoreError: A name leads elsewhere already.
    """

    def __init__(
        self, database: Path, descriptors: Mapping[Path, int], has_moved: Callable[[], bool]
    ) -> None:
        self._database = database
        self._has_moved = has_moved
        # SQLite puts them beside the file itself, not beside a link to it.
        real = database.resolve() if database.is_symlink() else database
        log, index = (real.with_name(f"{real.name}-{end}") for end in ("wal", "shm"))
        known = {path: _identity(os.fstat(fd)) for path, fd in descriptors.items()}
        # SQLite keeps these two open, so that no other file can get their numbers.
        known |= {path: self._found(path) for path in (log, index)}
        #: Name, device and inode.
        self._all = tuple(known.items())
        self._log: int | None = None
        self._link, self._led_to = _link_of(self._open(log)), ""
        if self._link:
            self._led_to = os.readlink(self._link)  # noqa: PTH115 - as below
        #: Those to look at with each commit; SQLite looks at the database itself.
        others = {database, index, log} if self._link else {database, index}
        self._each = tuple((os.fspath(path), key) for path, key in self._all if path not in others)
        self.verify()

    def _open(self, log: Path) -> int:
        """Open the log by its name alone; -1 where a system cannot do that."""
        if hasattr(os, "O_PATH"):
            with suppress(OSError):  # `verify` says what is wrong with the name
                self._log = os.open(log, os.O_PATH | os.O_CLOEXEC)
        return -1 if self._log is None else self._log

    def close(self) -> None:
        """Close what was opened to look at. Idempotent."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    # hot path: benchmarks/life.py
    def committed(self) -> None:
        """Look at the names after a commit.

        Raises:
            StoreError: One of them leads elsewhere: no receipt may be given for this commit.
        """
        stat = os.stat
        for path, known in self._each:
            try:
                found = stat(path)
            except OSError as error:
                raise self._gone(path, error) from error
            if (found.st_dev, found.st_ino) != known:
                raise self._replaced(path)
        # What `stat` said of the log the next write must change: the system then keeps exact times
        # of the file, and the next sync writes one block more. Of a link it keeps none.
        if self._link and os.readlink(self._link) != self._led_to:  # noqa: PTH115 - a path costs more
            raise self._replaced(self._led_to)
        if self._has_moved():
            raise self._replaced(self._database)

    def verify(self) -> None:
        """Look at all names.

        Raises:
            StoreError: One of them leads elsewhere.
        """
        for path, known in self._all:
            if self._found(path) != known:
                raise self._replaced(path)
        self.committed()

    def _found(self, path: Path) -> tuple[int, int]:
        try:
            return _identity(path.stat())
        except OSError as error:
            raise self._gone(path, error) from error

    @staticmethod
    def _gone(path: str | Path, error: OSError) -> StoreError:
        why = "is gone" if isinstance(error, FileNotFoundError) else f"fails: {error.strerror}"
        return taken_away(f"{path} {why}")

    @staticmethod
    def _replaced(path: str | Path) -> StoreError:
        there = Path(path).exists()
        return taken_away(f"{path} is another file now" if there else f"{path} is gone")


def _link_of(descriptor: int) -> str:
    """Return the link that says where an open file is now; "" where a system has none."""
    link = f"/proc/self/fd/{descriptor}"
    return link if descriptor >= 0 and os.path.lexists(link) else ""


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
