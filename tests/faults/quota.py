"""Disk quota without a mount: SQLite's files in a folder share a number of bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import apsw

from eventmq.plugins import database
from eventmq.plugins.queue_stores.sqlite import disk

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["Quota"]


class Quota(apsw.VFS):
    """File layer whose writes fail, as on a full disk, when the folder has reached its limit.

    The index of the log is written past this layer; its bytes count, and its writes do not fail.

    Args:
        folder: Folder whose files count, the ballast included.
        limit: Bytes that the files may have.
    """

    NAME = "eventmq-quota"

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(self.NAME, "")
        self.folder = folder
        self.limit = limit

    def used(self) -> int:
        """Return how many bytes the files have."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def free(self) -> int:
        """Return how many bytes are free."""
        return max(0, self.limit - self.used())

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802 - named by the library
        return _File(self, name, flags)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Use the quota for readers and for the free space of stores, which get its ``NAME``."""
        monkeypatch.setattr(database, "connect", partial(database.connect, vfs=self.NAME))
        monkeypatch.setattr(disk.DataDirectory, "free", lambda _: self.free())


class _File(apsw.VFSFile):
    def __init__(self, quota: Quota, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._quota = quota

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - named by the library
        grows = offset + len(data) - self.xFileSize()
        if grows > 0 and grows > self._quota.free():
            raise apsw.FullError("the quota is used up")
        super().xWrite(data, offset)

    def xLock(self, level: int) -> None:  # noqa: N802 - named by the library
        try:
            super().xLock(level)
        except apsw.IOError as error:  # the last reader needs a write lock, and cannot write
            raise apsw.BusyError("cannot be locked") from error
