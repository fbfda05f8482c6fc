"""Shim: file layer below SQLite that numbers system calls, fails them, and tracks unsynced writes.

It stands between SQLite and its own layer for Unix, so the store above is the real one, on real
files. Accesses to shared memory do not pass through it.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAULTS", "Call", "Shim", "can_fail"]

_numbers = itertools.count()

#: The thread of the store that moves the log.
_MOVER = "eventmq-checkpoint"


class Call(NamedTuple):
    """One system call: read, write, sync, truncate, size or delete."""

    kind: str
    #: ``log``, ``database`` or the end of another name.
    file: str
    #: Whether the thread that moves the log made it.
    moves: bool


def _io_error(code: int) -> apsw.Error:
    error = apsw.IOError("disk I/O error")
    error.result, error.extendedresult = apsw.SQLITE_IOERR, code
    return error


_CODES = {
    "read": apsw.SQLITE_IOERR_READ, "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC, "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "size": apsw.SQLITE_IOERR_FSTAT, "delete": apsw.SQLITE_IOERR_DELETE,
}  # fmt: skip

#: Fault -> the calls that it can happen to. SQLite's layer for Unix gives "full" for a write that
#: has ENOSPC, or that was cut short and can write no more.
FAULTS: dict[str, frozenset[str]] = {
    "EIO": frozenset(_CODES),
    "short": frozenset({"write"}),
    "ENOSPC": frozenset({"write"}),
    "short, then ENOSPC": frozenset({"write"}),
}


#: Calls whose errors SQLite is free to ignore, and does: they only limit the size of the log.
IGNORED = {("size", "log"), ("truncate", "log")}


def can_fail(call: Call, fault: str) -> bool:
    """Return whether a fault can happen to a call, and has an effect."""
    return call.kind in FAULTS[fault] and (call.kind, call.file) not in IGNORED


class Shim(apsw.VFS):
    """File layer; a store gets its ``name``. Close it with `unregister`."""

    def __init__(self) -> None:
        self.name = f"shim-{next(_numbers)}"
        super().__init__(self.name, "")
        self._lock = threading.Lock()
        #: The calls so far.
        self.calls: list[Call] = []
        #: Returns the fault of a call, by its number: a name in `FAULTS`, or "" for none.
        self.fault: Callable[[int, Call], str] = lambda _, __: ""
        #: The calls that failed.
        self.failed: list[Call] = []
        #: How often the log was restarted, and how often before the database was synced.
        self.restarts = self.early_restarts = 0
        self._writes: dict[str, int] = {}
        self._synced: dict[str, int] = {}

    @property
    def unsynced(self) -> bool:
        """Whether the log has writes after the start of the last sync."""
        return self._writes.get("log", 0) > self._synced.get("log", 0)

    def xOpen(  # noqa: N802 - the name of the library
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.enter("delete", filename.rpartition("-")[2])
        super().xDelete(filename, syncdir)

    def enter(self, kind: str, file: str) -> str:
        """Number a call, and fail it if it has a fault; return the fault of a short write.

        Raises:
            apsw.Error: The call fails without an effect.
        """
        call = Call(kind, file, threading.current_thread().name == _MOVER)
        with self._lock:
            number = len(self.calls)
            self.calls.append(call)
            fault = self.fault(number, call)
            if not fault:
                return ""
            assert can_fail(call, fault), f"{fault} does not happen to {call}"
            self.failed.append(call)
        if fault.startswith("short"):
            return fault
        if fault == "ENOSPC":
            raise apsw.FullError("database or disk is full")
        raise _io_error(_CODES[kind])

    def forget_writes(self) -> None:
        """Take all writes to the log as synced: their transaction was undone."""
        self._synced["log"] = self._writes.get("log", 0)

    def wrote(self, file: str, offset: int) -> None:
        """Record a write that is not synced."""
        if (file, offset) == ("log", 0):
            self.restarts += 1
            moved = self._writes.get("database", 0) > self._synced.get("database", 0)
            self.early_restarts += moved
        self._writes[file] = self._writes.get(file, 0) + 1

    def write_count(self, file: str) -> int:
        """Return how many writes a sync that starts now covers."""
        return self._writes.get(file, 0)

    def synced(self, file: str, writes: int) -> None:
        """Record the end of a sync that began after so many writes."""
        self._synced[file] = max(writes, self._synced.get(file, 0))


class _File(apsw.VFSFile):
    """Open file of a shim."""

    def __init__(self, shim: Shim, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        _, dash, end = os.path.basename(path).rpartition("-")  # noqa: PTH119 - it may be empty
        self._shim = shim
        self._file = {"wal": "log"}.get(end, end) if dash else "database"
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._shim.enter("read", self._file)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        fault = self._shim.enter("write", self._file)
        self._shim.wrote(self._file, offset)
        if not fault:
            super().xWrite(data, offset)
            return
        super().xWrite(bytes(data[: len(data) // 2]), offset)
        if fault == "short":
            raise _io_error(apsw.SQLITE_IOERR_WRITE)
        raise apsw.FullError("database or disk is full")

    def xSync(self, flags: int) -> None:  # noqa: N802
        writes = self._shim.write_count(self._file)
        self._shim.enter("sync", self._file)
        super().xSync(flags)
        self._shim.synced(self._file, writes)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._shim.enter("truncate", self._file)
        super().xTruncate(newsize)

    def xFileSize(self) -> int:  # noqa: N802
        self._shim.enter("size", self._file)
        return super().xFileSize()
