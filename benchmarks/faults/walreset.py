"""``python -m benchmarks.faults.walreset SQLITE3_C...``: does a build of SQLite lose commits?

Each argument is the amalgamation of some version, ``sqlite3.c``. It is compiled with one pause: in
a passive checkpoint, after it has read how long the log is. What the checkpointer of the queue
store can meet is then done step by step, without any race:

1. The committing connection moves all of the log, so that the next commit begins it anew (RESTART).
2. The thread, woken earlier, begins a passive checkpoint and reads the length of the log.
3. The next commit begins the log anew.
4. The thread goes on with the length that it has read. It notes that so many frames are moved.
5. Commits follow until the log is as long again. They count as moved and were not.

SQLite 3.7.0 to 3.51.2 loses what was committed in step 5 (sqlite.org/wal.html#walresetbug).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["Library", "run_steps"]

_READ = "rc = walIndexReadHdr(pWal, &isChanged);"

_PAUSE = f"""{_READ}
  if( eMode==SQLITE_CHECKPOINT_PASSIVE && paused_checkpoint ) paused_checkpoint();"""

_DECLARED = """#define _GNU_SOURCE 1
void (*paused_checkpoint)(void) = 0;
"""

_PASSIVE, _RESTART = 0, 2

#: Rows in the log before it is begun anew; a row changes one page or two.
_ROWS = 50

_CALLED = ctypes.CFUNCTYPE(None)
_ROW = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
    ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_char_p),
)  # fmt: skip


class Library:
    """One build of SQLite with the pause.

    Args:
        source: An amalgamation.
        folder: For what is compiled.

    Raises:
        ValueError: The place of the pause is not in it.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        text = source.read_text(encoding="utf-8")
        if text.count(_READ) != 1:
            raise ValueError(f"{source} has no checkpoint that could be paused")
        made = folder / "paused.c"
        made.write_text(_DECLARED + text.replace(_READ, _PAUSE), encoding="utf-8")
        built = folder / "paused.so"
        command = ["cc", "-O1", "-w", "-fPIC", "-shared", "-o", str(built), str(made), "-lm"]
        subprocess.run(command, check=True)
        self.calls = ctypes.CDLL(str(built))
        self.calls.sqlite3_libversion.restype = ctypes.c_char_p
        self.calls.sqlite3_errmsg.restype = ctypes.c_char_p
        self.version = self.calls.sqlite3_libversion().decode()

    def open(self, path: Path) -> ctypes.c_void_p:
        """Return a connection whose log nobody else moves."""
        db = ctypes.c_void_p()
        self._check(self.calls.sqlite3_open(str(path).encode(), ctypes.byref(db)), db)
        for pragma in ("journal_mode = WAL", "wal_autocheckpoint = 0", "busy_timeout = 1000"):
            self.run(db, f"PRAGMA {pragma}")
        return db

    def run(self, db: ctypes.c_void_p, sql: str) -> list[str]:
        """Run statements; return the first column."""
        column: list[str] = []

        def row(_: object, __: int, values: ctypes.Array[ctypes.c_char_p], ___: object) -> int:
            column.append((values[0] or b"").decode())  # type: ignore[attr-defined]
            return 0

        self._check(self.calls.sqlite3_exec(db, sql.encode(), _ROW(row), None, None), db)
        return column

    def checkpoint(self, db: ctypes.c_void_p, mode: int) -> int:
        """Move the log; return its frames."""
        frames, moved = ctypes.c_int(), ctypes.c_int()
        places = ctypes.byref(frames), ctypes.byref(moved)
        self._check(self.calls.sqlite3_wal_checkpoint_v2(db, None, mode, *places), db)
        return frames.value

    def pause(self, call: object) -> None:
        """Have something called in each passive checkpoint; None for nothing."""
        self._called = _CALLED(call) if call is not None else _CALLED()
        ctypes.memmove(
            ctypes.addressof(_CALLED.in_dll(self.calls, "paused_checkpoint")),
            ctypes.addressof(self._called), ctypes.sizeof(_CALLED),
        )  # fmt: skip

    def _check(self, code: int, db: ctypes.c_void_p) -> None:
        if code:
            raise RuntimeError(self.calls.sqlite3_errmsg(db).decode())


def run_steps(library: Library, path: Path) -> tuple[int, int, str]:
    """Go through the steps.

    Args:
        library: A build.
        path: Of a new database.

    Returns:
        Rows that were committed, those of them that can be read, and what SQLite says of the file.
    """
    committing, thread = library.open(path), library.open(path)
    library.run(committing, "CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)")
    library.run(thread, "SELECT count(*) FROM t")
    rows = 0

    def commit() -> None:
        nonlocal rows
        rows += 1
        library.run(committing, f"INSERT INTO t VALUES ({rows}, randomblob(3000))")  # noqa: S608

    for _ in range(_ROWS):
        commit()
    length = library.checkpoint(committing, _RESTART)
    library.pause(commit)
    library.checkpoint(thread, _PASSIVE)
    library.pause(None)
    # Each adds at least a frame: so many make the log longer than it was, and it is moved.
    for _ in range(length):
        commit()
    library.checkpoint(thread, _PASSIVE)
    for _ in range(length):
        commit()
    for db in (thread, committing):
        library.calls.sqlite3_close(db)
    reader = library.open(path)
    try:
        readable = int(library.run(reader, "SELECT count(*) FROM t")[0])
        integrity = library.run(reader, "PRAGMA integrity_check(1)")[0]
    except RuntimeError as error:
        readable, integrity = 0, str(error)
    library.calls.sqlite3_close(reader)
    return rows, readable, re.sub(r"\s+", " ", integrity)


def main() -> int:
    """Try each source; 1 if any build loses rows."""
    if not sys.argv[1:]:
        print(__doc__)
        return 2
    worst = 0
    for source in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            library = Library(source, Path(folder))
            rows, readable, integrity = run_steps(library, Path(folder) / "some.sqlite")
        print(f"SQLite {library.version}: {rows} rows committed, {readable} readable; {integrity}")
        worst = max(worst, int(readable != rows or integrity != "ok"))
    return worst


if __name__ == "__main__":
    sys.exit(main())
