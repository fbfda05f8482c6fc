"""SQLite databases: the one module that imports the library, opens files with it and names errors.

The library is apsw's own SQLite, not the interpreter's. Two SQLite libraries in one process must
not open the same file: closing it in one ends the POSIX locks of the other. So queue stores, result
backends and schedule stores, the tools that look after them, tests and benchmarks open databases
here, and nothing imports ``sqlite3``.

What differs from ``sqlite3``, and bites: a connection waits for no lock unless told; a cursor that
was not read to its end keeps its read transaction, and with it the log; no cursor knows how many
rows it changed.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

import apsw
from apsw import sqlite_extra

from eventmq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = [
    "DAMAGED",
    "DISK_FULL",
    "INTERRUPTED",
    "IN_USE",
    "UNREADABLE",
    "add_function",
    "all_rows",
    "bad_pages",
    "can_checksum_pages",
    "change",
    "change_many",
    "check_library",
    "checkpoint",
    "connect",
    "copy_database",
    "definitions_hash",
    "explain",
    "first_row",
    "has_moved",
    "has_page_checksums",
    "is_damage",
    "lacks_index_space",
    "leave_log",
    "library_version",
    "log_frames",
    "set_busy_timeout",
    "use_log",
    "watch_log",
]

#: What may be raised over a file that is damaged, or cannot be used: text that is not UTF-8 is
#: found as it is read.
UNREADABLE = (apsw.Error, UnicodeDecodeError)

#: What SQLite itself calls damage.
DAMAGED = (apsw.CorruptError, apsw.NotADBError)

#: No space is left. An I/O error of another kind is never this one.
DISK_FULL = apsw.FullError

#: Another connection, or a cursor of this one that was not closed, is in the way.
IN_USE = (apsw.BusyError, apsw.LockedError)

#: A progress handler, or another thread, ended a statement.
INTERRUPTED = apsw.InterruptError

#: I/O errors that say that a page is not what was written, or cannot be read at all.
_LOST_PAGES = {apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_READ}

#: The first sound release of each series that has one; of later series all are sound.
_SOUND = {(3, 44): 6, (3, 50): 7, (3, 51): 3}

_LAST_UNSOUND = max(_SOUND)

#: Seconds between two tries for a log.
_AGAIN = 0.005

#: The extension, the file layer that it makes, and the bytes that it takes of each page.
_EXTENSION, _LAYER, _CHECKSUM_BYTES = "cksumvfs", "cksmvfs", 8

#: Bytes of the header of a file, and which of them says what is taken of each page.
_HEADER, _RESERVED = 100, 20

#: Bytes of the header of a log, and of that of each of its frames.
_LOG_HEADER, _FRAME_HEADER = 32, 24

#: Seconds to wait for who has the log for itself.
_LOG_WAIT = 5.0

#: Held by who loads the extension.
_LOADING = threading.Lock()

_MODES = {
    "PASSIVE": apsw.SQLITE_CHECKPOINT_PASSIVE,
    "RESTART": apsw.SQLITE_CHECKPOINT_RESTART,
    "TRUNCATE": apsw.SQLITE_CHECKPOINT_TRUNCATE,
}


# The library


def library_version() -> str:
    """Return the version of the SQLite library that opens databases."""
    return apsw.sqlite_lib_version()


def check_library(version: str) -> None:
    """Refuse a library that can lose commits.

    In SQLite 3.7.0 to 3.51.2 a commit that begins the write-ahead log anew while a second
    checkpoint runs right after a complete one can drop transactions that were committed
    (sqlite.org/wal.html#walresetbug).

    Args:
        version: Of the library, as in ``"3.51.3"``.

    Raises:
        StoreError: It is one of those.
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    major, minor, patch = map(int, match.groups()) if match else (0, 0, 0)
    series = (major, minor)
    if series > _LAST_UNSOUND or (series in _SOUND and patch >= _SOUND[series]):
        return
    msg = (
        f"SQLite {version} can lose committed jobs (its WAL-reset bug): install apsw 3.53 or "
        "later, or one with SQLite 3.51.3 and later, 3.50.7 and later of 3.50, or 3.44.6 and "
        "later of 3.44"
    )
    raise StoreError(msg)


# Opening


def connect(
    path: Path | str,
    *,
    busy: float,
    read_only: bool = False,
    immutable: bool = False,
    create: bool = True,
    statements: int = 100,
    vfs: str | None = None,
    page_checksums: bool | None = None,
) -> apsw.Connection:
    """Open a database. Each statement is a transaction of its own unless one was begun.

    One thread at a time may use the connection; a second one gets an error. A database that was
    made with page checksums is opened with them by every process: what is written without them
    would be taken for damage later.

    Args:
        path: Of the file, or ``":memory:"``.
        busy: Seconds to wait for locks of others, at each statement.
        read_only: Nothing is written.
        immutable: Read a file that cannot change, without locks, index and log.
        create: Make the file if it is not there.
        statements: Prepared statements that are kept; one that was not used in so many
            executions is forgotten.
        vfs: Name of the file layer of SQLite to use, None for the right one.
        page_checksums: Whether a database that has nothing yet gets them. False reads and writes
            any other one without them as well.

    Raises:
        StoreError: The library is one that can lose commits, or it has no page checksums and the
            database has.
        apsw.Error: The file cannot be opened; see `UNREADABLE`.
    """
    check_library(library_version())
    name = str(path)
    if read_only or immutable:
        flags = apsw.SQLITE_OPEN_READONLY
    else:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    if immutable:
        flags |= apsw.SQLITE_OPEN_URI
        name = f"file:{quote(name)}?immutable=1"
    db = apsw.Connection(name, flags=flags, vfs=vfs, statementcachesize=statements)
    set_busy_timeout(db, busy)
    if vfs is None and page_checksums is not False:
        fresh = bool(page_checksums) and first_row(db, "PRAGMA page_count") == (0,)
        if fresh or has_page_checksums(db):
            writes = not (read_only or immutable)
            leave_log(db)  # it would move the log without checksums as it is closed
            db.close()
            vfs = _checksum_layer(name) if writes or can_checksum_pages() else None
            db = apsw.Connection(name, flags=flags, vfs=vfs, statementcachesize=statements)
            set_busy_timeout(db, busy)
            if fresh:
                _reserve(db, _CHECKSUM_BYTES)
    return db


# Page checksums: an extension of SQLite's own that apsw ships


def can_checksum_pages() -> bool:
    """Return whether this apsw has the extension; it cannot be loaded out of an archive."""
    return sqlite_extra.has(_EXTENSION) == "extension"


def has_page_checksums(db: apsw.Connection) -> bool:
    """Return whether each page of a database ends with a checksum."""
    # The first page may be in the log alone: only who has read it knows what it says.
    with suppress(*UNREADABLE):
        first_row(db, "PRAGMA schema_version")
    return _reserve(db, -1) == _CHECKSUM_BYTES


def explain(error: Exception) -> str:
    """Return what an error says, and of a page with another checksum that it is one."""
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
        return "a page is not what was written: its checksum is wrong"
    return str(error)


def is_damage(error: Exception) -> bool:
    """Return whether an error says that something in a file is damaged or cannot be read."""
    if isinstance(error, (*DAMAGED, UnicodeDecodeError)):
        return True
    return getattr(error, "extendedresult", 0) in _LOST_PAGES


def bad_pages(path: Path) -> list[int]:
    """Return the numbers of the pages whose checksums are wrong, none where there are none.

    A page that the write-ahead log has is read there, and only there, by every reader of the
    database: what the file has in its place may be old, or half of it written. The log keeps
    other checksums, and SQLite passes over a frame whose own is wrong. So these pages are left
    out, as far as their commits are whole.

    The files themselves are read: no process may write them, and this one may have no connection
    to them.

    Raises:
        OSError: A file cannot be read.
        StoreError: See `connect` and `log_frames`.
        apsw.Error: The database cannot be read at all; see `UNREADABLE`.
    """
    found: list[int] = []
    log = _pages_in_log(path)
    with path.open("rb") as file, closing(apsw.Connection(":memory:")) as db:
        header = log.first[:_HEADER] or file.read(_HEADER)
        if len(header) < _HEADER or header[_RESERVED] != _CHECKSUM_BYTES:
            return found
        if not can_checksum_pages():
            return found
        _checksum_layer(str(path))
        sqlite_extra.load(db, _EXTENSION)
        size = int.from_bytes(header[16:18], "big")
        size = 65536 if size == 1 else size
        file.seek(0)
        for number, page in enumerate(iter(lambda: file.read(size), b""), 1):
            if log.pages and number > log.size:
                break  # the database ends here: the rest is cut off once the log is moved
            if number in log.pages:
                continue
            # What has another length has no checksum: the file was cut within this page.
            if first_row(db, "SELECT verify_checksum(?)", (page,)) != (1,):
                found.append(number)
    return found


class _PagesInLog(NamedTuple):
    """What is read in the log and not in the file.

    Attributes:
        pages: Their numbers.
        size: Pages that the database has, where the log has some of them.
        first: The first page, b"" where it is read in the file.
    """

    pages: frozenset[int]
    size: int
    first: bytes


def _pages_in_log(path: Path) -> _PagesInLog:
    """Return which pages SQLite reads in the log: those of whole commits that were not moved yet.

    SQLite itself says which frames these are, and what they have stands in their heads; see "WAL
    File Format" in the documentation of SQLite's file format.
    """
    name, size, first = path.with_name(f"{path.name}-wal"), 0, b""
    pages: set[int] = set()
    if not name.exists() or name.stat().st_size <= _LOG_HEADER:
        return _PagesInLog(frozenset(), 0, b"")
    with closing(connect(path, busy=_LOG_WAIT, read_only=True, page_checksums=False)) as db:
        first_row(db, "SELECT 1 FROM sqlite_master")  # who has read nothing knows of no log
        frames, moved = _log_frames(db)
    with name.open("rb") as log:
        page_size = int.from_bytes(log.read(_LOG_HEADER)[8:12], "big")
        for frame in range(moved, frames):
            log.seek(_LOG_HEADER + frame * (_FRAME_HEADER + page_size))
            head = log.read(_FRAME_HEADER)
            number = int.from_bytes(head[:4], "big")
            size = int.from_bytes(head[4:8], "big") or size  # of the last commit in the end
            pages.add(number)
            if number == 1:
                first = log.read(page_size)
    return _PagesInLog(frozenset(pages), size, first)


def _reserve(db: apsw.Connection, size: int) -> int:
    """Ask for bytes at the end of each page, -1 for nothing; return how many there are."""
    reserved = ctypes.c_int(size)
    db.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
    return reserved.value


def _checksum_layer(name: str) -> str:
    """Return the name of the file layer with checksums, which this loads into the library."""
    if not can_checksum_pages():
        msg = (
            f"the pages of {name} have checksums, and this apsw has no extension for them: install "
            "apsw from a wheel of PyPI, unpacked"
        )
        raise StoreError(msg)
    with _LOADING:
        if _LAYER not in apsw.vfs_names():
            usual = apsw.vfs_names()[0]
            with closing(apsw.Connection(":memory:")) as db:
                sqlite_extra.load(db, _EXTENSION)
            apsw.set_default_vfs(usual)  # it makes itself the default one
    return _LAYER


def set_busy_timeout(db: apsw.Connection, seconds: float) -> None:
    """Let a connection wait so long for locks of others, at each statement."""
    db.set_busy_timeout(int(seconds * 1000))


# Statements


def first_row(db: apsw.Connection, sql: str, arguments: Any = ()) -> Any:
    """Return the first row of a statement, None if it has none, and end the statement.

    A cursor that has more rows would keep its read transaction while it is referred to.
    """
    cursor = db.execute(sql, arguments)
    row = cursor.fetchone()
    cursor.close()
    return row


def all_rows(db: apsw.Connection, sql: str, arguments: Any = ()) -> list[Any]:
    """Return all rows of a statement."""
    return db.execute(sql, arguments).fetchall()


def change(db: apsw.Connection, sql: str, arguments: Any = ()) -> int:
    """Run an INSERT, UPDATE or DELETE; return how many rows it changed."""
    db.execute(sql, arguments)
    return db.changes()


def change_many(db: apsw.Connection, sql: str, rows: Iterable[Any]) -> int:
    """Run an INSERT, UPDATE or DELETE for each row of values; return how many rows it changed."""
    before = db.total_changes()
    db.executemany(sql, rows)
    return db.total_changes() - before


def add_function(
    db: apsw.Connection, name: str, function: Callable[..., Any], arguments: int = 1
) -> None:
    """Give statements a function of so many arguments, whose result depends on nothing else."""
    db.create_scalar_function(name, function, arguments, deterministic=True)


def definitions_hash(*statements: str) -> str:
    """Return a short hash of definitions of tables: of their words, not of how they are spaced."""
    text = "\n".join(" ".join(statement.split()) for statement in statements)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def copy_database(source: apsw.Connection, destination: apsw.Connection) -> None:
    """Copy all that a connection sees into the database of another one."""
    with closing(destination.backup("main", source, "main")) as copy:
        while not copy.done:
            copy.step(-1)


def has_moved(db: apsw.Connection) -> Callable[[], bool]:
    """Return a function that asks SQLite whether the name of the main database leads elsewhere.

    It compares inodes only, not devices, and takes 1 us.
    """
    moved = ctypes.c_int()
    ask, place = db.file_control, ctypes.addressof(moved)
    code = apsw.SQLITE_FCNTL_HAS_MOVED

    def ask_sqlite() -> bool:
        ask("main", code, place)
        return bool(moved.value)

    return ask_sqlite


def lacks_index_space(error: Exception) -> bool:
    """Return whether the index of the log could not grow, as on a full disk.

    SQLite says so by an I/O error of its own, which another trouble may cause as well.
    """
    code = getattr(error, "extendedresult", 0)
    return isinstance(error, apsw.IOError) and code == apsw.SQLITE_IOERR_SHMSIZE


# The write-ahead log


def leave_log(db: apsw.Connection) -> None:
    """Let a connection neither move nor delete the log when it is closed as the last one.

    For a database that was taken away: at its name may be another one by now, whose log that is.
    SQLite looks at the number of the file alone, which two file systems can both have.
    """
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def use_log(db: apsw.Connection, busy: float) -> None:
    """Give a database a write-ahead log, if it has none.

    Where several connections do so at once SQLite refuses one of them without waiting.

    Args:
        db: In no transaction.
        busy: Seconds after which the refusal stands.

    Raises:
        apsw.Error: The file cannot be written, or others had it for too long.
    """
    until = time.monotonic() + busy
    while True:
        try:
            first_row(db, "PRAGMA journal_mode = WAL")
        except IN_USE:
            if time.monotonic() >= until:
                raise
            time.sleep(_AGAIN)
        else:
            return


def checkpoint(db: apsw.Connection, mode: Literal["PASSIVE", "RESTART", "TRUNCATE"]) -> bool:
    """Move the log into the database; return whether others kept it from being done.

    Raises:
        apsw.Error: It failed for another reason.
    """
    try:
        db.wal_checkpoint(mode=_MODES[mode])
    except IN_USE:
        return True
    return False


def log_frames(db: apsw.Connection) -> int:
    """Return how many frames (pages) of the log count, for a connection that has read something.

    It works for connections that cannot write as well.

    Raises:
        StoreError: The library is sound, but too old for that.
    """
    return _log_frames(db)[0]


def _log_frames(db: apsw.Connection) -> tuple[int, int]:
    """Return how many frames of the log count, and how many of them the database has already."""
    try:
        frames, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    except apsw.MisuseError as error:
        msg = (
            f"SQLite {library_version()} cannot tell how long a log is: install apsw 3.53 or later"
        )
        raise StoreError(msg) from error
    return max(frames, 0), max(moved, 0)


def watch_log(db: apsw.Connection, frames: list[int]) -> None:
    """Keep the number of frames in the log after each commit of a connection in ``frames[0]``.

    SQLite itself moves the log no more: that would take the place of the hook. The hook only
    stores a number, for one that raises makes a COMMIT fail that was carried out.
    """
    db.wal_autocheckpoint(0)

    def note(_: apsw.Connection, __: str, count: int) -> int:
        frames[0] = count
        return apsw.SQLITE_OK

    db.set_wal_hook(note)
