"""A disk of a few MiB that needs no mount: SQLite's files in a folder share a number of bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import apsw

from eventmq.plugins import database
from eventmq.plugins.queue_stores.sqlite import disk, reading

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["Quota"]


class Quota(apsw.VFS):
    """A file layer whose writes fail as on a full disk once the folder has its bytes.

    The index of a log is no file to it, and counts as it is.

    Args:
        folder: Whose files count, the ballast among them.
        limit: Bytes that they may have.
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
        """Return how many bytes they may grow by."""
        return max(0, self.limit - self.used())

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802 - named by the library
        return _File(self, name, flags)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let readers use it, and stores believe that this is their disk: name it to these."""
        monkeypatch.setattr(reading, "connect", partial(database.connect, vfs=self.NAME))
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
        except apsw.IOError as error:  # the last reader tries to write-lock what it cannot write
            raise apsw.BusyError("cannot be locked") from error
