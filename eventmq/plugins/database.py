"""SQLite databases: the only module that imports the library, opens files and classifies errors.

The library is the SQLite in apsw, not the interpreter's. Two SQLite libraries in one process must
not open the same file, since closing the file in one ends the POSIX locks of the other. Therefore
queue stores, result backends, schedule stores, their tools, tests and benchmarks open databases
with this module, and nothing imports ``sqlite3``.

Differences to ``sqlite3`` that matter here: a connection does not wait for locks unless a busy
timeout is set; a cursor that was not read to its end keeps its read transaction, so that the log
cannot be reset; a cursor does not know how many rows it changed.

`SqliteRows` implements the store contract, `eventmq.engine.RowStore`, on a connection.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import threading
import time
from contextlib import closing, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote as quote_path

import apsw
from apsw import sqlite_extra

from eventmq.engine import Schema, Statements, Table, names, period_name, quote
from eventmq.engine.sql import create, declared
from eventmq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from eventmq.engine import Request

__all__ = [
    "DAMAGED",
    "DISK_FULL",
    "INTERRUPTED",
    "IN_USE",
    "UNREADABLE",
    "SqliteRows",
    "add_function",
    "all_rows",
    "as_text",
    "bad_pages",
    "can_checksum_pages",
    "change",
    "change_many",
    "check_library",
    "checkpoint",
    "connect",
    "copy_database",
    "definitions",
    "definitions_hash",
    "explain",
    "first_row",
    "first_value",
    "has_moved",
    "has_page_checksums",
    "is_damage",
    "lacks_index_space",
    "leave_log",
    "library_version",
    "log_frames",
    "open_to_read",
    "set_busy_timeout",
    "use_log",
    "watch_log",
]

#: Errors for a file that is damaged or cannot be used. Text that is not UTF-8 is noticed when it is
#: read.
UNREADABLE = (apsw.Error, UnicodeDecodeError)

#: Errors that SQLite raises for a damaged file.
DAMAGED = (apsw.CorruptError, apsw.NotADBError)

#: Error for a full disk.
DISK_FULL = apsw.FullError

#: Errors raised while another connection, or an open cursor of this one, holds a lock.
IN_USE = (apsw.BusyError, apsw.LockedError)

#: Error of a statement that a progress handler or another thread interrupted.
INTERRUPTED = apsw.InterruptError

#: I/O errors that mean that a page is damaged or cannot be read.
_LOST_PAGES = {apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_READ}

#: The first fixed release of each series that has one; all later series are fixed.
_FIXED = {(3, 44): 6, (3, 50): 7, (3, 51): 3}

_LAST_AFFECTED = max(_FIXED)

#: The version of apsw that never frees a closed cursor.
_LEAKS_CURSORS = "3.54.0.0"

#: Seconds between two attempts to enable the log.
_RETRY_EVERY = 0.005

#: The extension, the VFS that it registers, and the bytes that it reserves in each page.
_EXTENSION, _CHECKSUM_VFS, _CHECKSUM_BYTES = "cksumvfs", "cksmvfs", 8

#: Bytes of the header of a file, and the offset of the reserved bytes per page.
_HEADER, _RESERVED = 100, 20

#: Bytes of the header of a log, and of the header of each of its frames.
_LOG_HEADER, _FRAME_HEADER = 32, 24

#: Seconds to wait for a connection that has the log locked.
_LOG_WAIT = 5.0

#: Seconds to wait for a broker that has the file locked while it starts.
_READ_WAIT = 5.0

#: Held while the extension is loaded.
_LOADING = threading.Lock()

_MODES = {
    "PASSIVE": apsw.SQLITE_CHECKPOINT_PASSIVE,
    "RESTART": apsw.SQLITE_CHECKPOINT_RESTART,
    "TRUNCATE": apsw.SQLITE_CHECKPOINT_TRUNCATE,
}


_TYPES = {"text": "TEXT", "integer": "INTEGER", "real": "REAL", "bytes": "BLOB"}

#: Number of keys from which on one statement reads several, and how many it reads.
_MANY, _AT_ONCE = 8, 100


# The library


def library_version() -> str:
    """Return the version of the SQLite library that opens databases."""
    return apsw.sqlite_lib_version()


def check_library(version: str, binding: str = "") -> None:
    """Refuse versions of SQLite that can lose commits, and of apsw that keep read transactions.

    In SQLite 3.7.0 to 3.51.2 a commit that restarts the write-ahead log while a second checkpoint
    runs right after a complete one can drop committed transactions
    (sqlite.org/wal.html#walresetbug). apsw 3.54.0.0 never frees a cursor that was closed, or
    dropped while another one was open: its read transaction stays, and the log grows for ever.

    Args:
        version: Version of SQLite, such as ``"3.51.3"``.
        binding: Version of apsw, such as ``"3.54.1.0"``.

    Raises:
        StoreError: The version is affected.
    """
    if binding == _LEAKS_CURSORS:
        raise StoreError(
            f"apsw {binding} keeps cursors that are closed, so that the log of a store grows for "
            f"ever: install another one, with pip install 'apsw!={binding}'"
        )
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    major, minor, patch = map(int, match.groups()) if match else (0, 0, 0)
    series = (major, minor)
    if series > _LAST_AFFECTED or (series in _FIXED and patch >= _FIXED[series]):
        return
    raise StoreError(
        f"SQLite {version} can lose committed jobs (its WAL-reset bug): install apsw 3.53 or "
        "later, or one with SQLite 3.51.3 and later, 3.50.7 and later of 3.50, or 3.44.6 and "
        "later of 3.44"
    )


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

    One thread at a time may use the connection; a second one gets an error. A database with page
    checksums is always opened with them, since pages written without them would look damaged.

    Args:
        path: Path of the file, or ``":memory:"``.
        busy: Seconds for which each statement waits for locks of other connections.
        read_only: Open the file only to read it.
        immutable: Read a file that does not change, without locks, index and log.
        create: Create the file if it does not exist.
        statements: Number of cached prepared statements; a statement that was not used in so many
            executions is dropped from the cache.
        vfs: Name of the SQLite VFS to use, None to choose it by the page checksums.
        page_checksums: True creates an empty database with page checksums. False reads and writes
            any database without checking or writing them. None uses them if the database has them.

    Raises:
        StoreError: The library can lose commits, or the database has page checksums, which this
            apsw does not support.
        apsw.Error: The file cannot be opened; see `UNREADABLE`.
    """
    check_library(library_version(), apsw.apsw_version())
    name = str(path)
    if read_only or immutable:
        flags = apsw.SQLITE_OPEN_READONLY
    else:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    if immutable:
        flags |= apsw.SQLITE_OPEN_URI
        name = f"file:{quote_path(name)}?immutable=1"
    db = apsw.Connection(name, flags=flags, vfs=vfs, statementcachesize=statements)
    set_busy_timeout(db, busy)
    if vfs is None and page_checksums is not False:
        fresh = bool(page_checksums) and first_row(db, "PRAGMA page_count") == (0,)
        if fresh or has_page_checksums(db):
            writes = not (read_only or immutable)
            leave_log(db)  # closing it would checkpoint pages without checksums
            db.close()
            vfs = _checksum_vfs(name) if writes or can_checksum_pages() else None
            db = apsw.Connection(name, flags=flags, vfs=vfs, statementcachesize=statements)
            set_busy_timeout(db, busy)
            if fresh:
                _reserve(db, _CHECKSUM_BYTES)
    return db


def open_to_read(path: Path) -> apsw.Connection:
    """Return a read-only connection to a database that another process may write.

    If the index of the log cannot be created and there is no log, the file is opened as immutable.

    Raises:
        apsw.Error, UnicodeDecodeError: The file cannot be read; see `UNREADABLE`.
        StoreError: The SQLite library can lose commits.
    """
    file = path.absolute()
    try:
        db = connect(file, busy=_READ_WAIT, read_only=True)
        try:
            first_row(db, "SELECT 1 FROM sqlite_master")
        except BaseException:
            db.close()
            raise
    except UNREADABLE as error:
        if isinstance(error, DAMAGED) or path.with_name(f"{path.name}-wal").exists():
            raise
        db = connect(file, busy=_READ_WAIT, immutable=True)
    return db


# Page checksums: an extension of SQLite that apsw ships


def can_checksum_pages() -> bool:
    """Return whether this apsw has the extension; it cannot be loaded from an archive."""
    return sqlite_extra.has(_EXTENSION) == "extension"


def has_page_checksums(db: apsw.Connection) -> bool:
    """Return whether each page of a database ends with a checksum."""
    # The first page may be in the log alone; reading the schema loads it.
    with suppress(*UNREADABLE):
        first_row(db, "PRAGMA schema_version")
    return _reserve(db, -1) == _CHECKSUM_BYTES


def explain(error: Exception) -> str:
    """Return the text of an error; the text for a wrong page checksum is our own."""
    altered = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
    return "a page is not what was written: its checksum is wrong" if altered else str(error)


def is_damage(error: Exception) -> bool:
    """Return whether an error means that a part of the file is damaged or cannot be read."""
    lost = getattr(error, "extendedresult", 0) in _LOST_PAGES
    return lost or isinstance(error, (*DAMAGED, UnicodeDecodeError))


def bad_pages(path: Path) -> list[int]:
    """Return the numbers of the pages with wrong checksums; empty without page checksums.

    Pages in complete commits of the write-ahead log are skipped. Readers of the database read them
    from the log only, whose frames have other checksums, and their copies in the database file may
    be old or half written.

    This reads the files directly. No process may write them, and this process must not have a
    connection to them.

    Raises:
        OSError: A file cannot be read.
        StoreError: See `connect` and `log_frames`.
        apsw.Error: The database cannot be read at all; see `UNREADABLE`.
    """
    bad: list[int] = []
    log = _pages_in_log(path)
    with path.open("rb") as file, closing(apsw.Connection(":memory:")) as db:
        header = log.first[:_HEADER] or file.read(_HEADER)
        if len(header) < _HEADER or header[_RESERVED] != _CHECKSUM_BYTES:
            return bad
        if not can_checksum_pages():
            return bad
        _checksum_vfs(str(path))
        sqlite_extra.load(db, _EXTENSION)
        size = int.from_bytes(header[16:18], "big")
        size = 65536 if size == 1 else size
        file.seek(0)
        for number, page in enumerate(iter(lambda: file.read(size), b""), 1):
            if log.pages and number > log.size:
                break  # the database ends here; a checkpoint truncates the rest
            if number in log.pages:
                continue
            # A page of another length has no checksum: the file was truncated within it.
            if first_row(db, "SELECT verify_checksum(?)", (page,)) != (1,):
                bad.append(number)
    return bad


class _PagesInLog(NamedTuple):
    """Pages that readers find in the log and not in the database file.

    Attributes:
        pages: Numbers of the pages.
        size: Number of pages in the database, if any is in the log.
        first: The first page, b"" if it is not in the log.
    """

    pages: frozenset[int]
    size: int
    first: bytes


def _pages_in_log(path: Path) -> _PagesInLog:
    """Return the pages that SQLite reads from the log: those of complete commits, not yet moved.

    SQLite reports which frames these are, and the header of a frame has the number of its page; see
    "WAL File Format" in the documentation of SQLite's file format.
    """
    name, size, first = path.with_name(f"{path.name}-wal"), 0, b""
    pages: set[int] = set()
    if not name.exists() or name.stat().st_size <= _LOG_HEADER:
        return _PagesInLog(frozenset(), 0, b"")
    with closing(connect(path, busy=_LOG_WAIT, read_only=True, page_checksums=False)) as db:
        first_row(db, "SELECT 1 FROM sqlite_master")  # the first read opens the log
        frames, moved = _log_frames(db)
    with name.open("rb") as log:
        page_size = int.from_bytes(log.read(_LOG_HEADER)[8:12], "big")
        for frame in range(moved, frames):
            log.seek(_LOG_HEADER + frame * (_FRAME_HEADER + page_size))
            head = log.read(_FRAME_HEADER)
            number = int.from_bytes(head[:4], "big")
            size = int.from_bytes(head[4:8], "big") or size  # at the end that of the last commit
            pages.add(number)
            if number == 1:
                first = log.read(page_size)
    return _PagesInLog(frozenset(pages), size, first)


def _reserve(db: apsw.Connection, size: int) -> int:
    """Reserve bytes at the end of each page, -1 to change nothing; return their number."""
    reserved = ctypes.c_int(size)
    db.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
    return reserved.value


def _checksum_vfs(name: str) -> str:
    """Load the extension if needed; return the name of its VFS, which checks checksums."""
    if not can_checksum_pages():
        raise StoreError(
            f"the pages of {name} have checksums, and this apsw has no extension for them: install "
            "apsw from a wheel of PyPI, unpacked"
        )
    with _LOADING:
        if _CHECKSUM_VFS not in apsw.vfs_names():
            default = apsw.vfs_names()[0]
            with closing(apsw.Connection(":memory:")) as db:
                sqlite_extra.load(db, _EXTENSION)
            apsw.set_default_vfs(default)  # the extension makes its own the default
    return _CHECKSUM_VFS


def set_busy_timeout(db: apsw.Connection, seconds: float) -> None:
    """Set for how many seconds each statement waits for locks of other connections."""
    db.set_busy_timeout(int(seconds * 1000))


# Statements


def first_row(db: apsw.Connection, sql: str, arguments: Any = ()) -> Any:
    """Return the first row of a statement, None if it has none, and close its cursor.

    A cursor with more rows would keep its read transaction for as long as it exists.
    """
    cursor = db.execute(sql, arguments)
    row = cursor.fetchone()
    cursor.close()
    return row


def first_value(db: apsw.Connection, sql: str, arguments: Any = (), default: Any = None) -> Any:
    """Return the first value of the first row of a statement, ``default`` if it has no row."""
    row = first_row(db, sql, arguments)
    return row[0] if row else default


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
    """Add a deterministic SQL function with a number of arguments."""
    db.create_scalar_function(name, function, arguments, deterministic=True)


def definitions_hash(*statements: str) -> str:
    """Return a short hash of definitions of tables; white space does not matter."""
    text = "\n".join(" ".join(statement.split()) for statement in statements)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def copy_database(source: apsw.Connection, destination: apsw.Connection) -> None:
    """Copy the database that one connection sees into the database of another."""
    with closing(destination.backup("main", source, "main")) as copy:
        while not copy.done:
            copy.step(-1)


def has_moved(db: apsw.Connection) -> Callable[[], bool]:
    """Return a function that asks SQLite whether the path of the database is another file now.

    It compares inodes, not devices, and takes 1 us.
    """
    moved = ctypes.c_int()
    control, address = db.file_control, ctypes.addressof(moved)
    code = apsw.SQLITE_FCNTL_HAS_MOVED

    def ask_sqlite() -> bool:
        control("main", code, address)
        return bool(moved.value)

    return ask_sqlite


def lacks_index_space(error: Exception) -> bool:
    """Return whether an error means that the index of the log could not grow.

    A full disk causes this I/O error, but other failures may cause it as well.
    """
    code = getattr(error, "extendedresult", 0)
    return isinstance(error, apsw.IOError) and code == apsw.SQLITE_IOERR_SHMSIZE


# The write-ahead log


def leave_log(db: apsw.Connection) -> None:
    """Keep a connection from checkpointing and deleting the log when it is the last to close.

    Used for a database that was moved: the log at its path may belong to another database now.
    SQLite compares inodes only, and the files of two file systems can have equal ones.
    """
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def use_log(db: apsw.Connection, busy: float) -> None:
    """Switch a database to a write-ahead log if it has none.

    If several connections do so at once, SQLite refuses one of them without waiting, which then
    tries again.

    Args:
        db: A connection without a transaction.
        busy: Seconds after which it stops trying.

    Raises:
        apsw.Error: The file cannot be written, or others had it locked for too long.
    """
    until = time.monotonic() + busy
    while True:
        try:
            first_row(db, "PRAGMA journal_mode = WAL")
        except IN_USE:
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_EVERY)
        else:
            return


def checkpoint(db: apsw.Connection, mode: Literal["PASSIVE", "RESTART", "TRUNCATE"]) -> bool:
    """Move the log into the database; return whether locks of others prevented it.

    Raises:
        apsw.Error: The checkpoint failed for another reason.
    """
    try:
        db.wal_checkpoint(mode=_MODES[mode])
    except IN_USE:
        return True
    return False


def log_frames(db: apsw.Connection) -> int:
    """Return the number of valid frames (pages) in the log.

    The connection must have read something; it may be read-only.

    Raises:
        StoreError: The SQLite library is too old for that.
    """
    return _log_frames(db)[0]


def _log_frames(db: apsw.Connection) -> tuple[int, int]:
    """Return the numbers of valid frames in the log, and of those already checkpointed."""
    try:
        frames, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    except apsw.MisuseError as error:
        raise StoreError(
            f"SQLite {library_version()} cannot tell how long a log is: install apsw 3.53 or later"
        ) from error
    return max(frames, 0), max(moved, 0)


def watch_log(db: apsw.Connection, frames: list[int]) -> None:
    """Store the number of frames in the log in ``frames[0]`` after each commit of a connection.

    This ends SQLite's automatic checkpoints, which use the same hook. The hook only stores a
    number, since a hook that raises makes a COMMIT fail although it was carried out.
    """
    db.wal_autocheckpoint(0)

    def record(_: apsw.Connection, __: str, count: int) -> int:
        frames[0] = count
        return apsw.SQLITE_OK

    db.set_wal_hook(record)


# The store contract. The text of a statement is built once for each kind of call. Hot methods run
# one ``executemany``, or return the cursor itself.


def definitions(table: Table) -> list[str]:
    """Return the statements that create a table and its indexes."""
    return create(table, _TYPES, tail=" WITHOUT ROWID" if table.clustered else "")


def as_text(data: bytes | None) -> str | bytes | None:
    """Return bytes as text, unchanged if they are not valid UTF-8."""
    with suppress(UnicodeDecodeError, AttributeError):
        return data.decode()  # type: ignore[union-attr] # None stays
    return data


def _readable(table: Table, name: str) -> str:
    """Return the SQL that reads a column whose values may be damaged or of another type."""
    kinds = {column.name: column.type for column in table.columns}
    match kinds.get(name):
        case "text":
            return f"as_text(CAST({quote(name)} AS BLOB))"
        case "bytes":
            return f"CAST({quote(name)} AS BLOB)"
    text = declared(table, name)
    if name in table.derived:
        return f"CASE typeof({text}) WHEN 'text' THEN CAST({text} AS BLOB) ELSE {text} END"
    return text


class _StatementCache(dict[Any, str]):
    """Cache of statements; a key is the function that builds the text, and its arguments."""

    def __missing__(self, key: Any) -> str:
        make, *arguments = key
        text = self[key] = make(*arguments)
        return str(text)


class SqliteRows:
    """Rows of tables in an SQLite database.

    Args:
        db: An open connection; the tables exist. The table of single values is ``meta``.
        tables: The tables.
    """

    #: See `eventmq.engine.contract.RowStore`.
    refusals: tuple[type[Exception], ...] = (
        OverflowError, UnicodeEncodeError, apsw.ConstraintError, apsw.MismatchError,
        apsw.RangeError, apsw.TooBigError,
    )  # fmt: skip

    def __init__(self, db: apsw.Connection, tables: Iterable[Table]) -> None:
        self.db = db
        self.schema = Schema(tables)
        self._undamaged = Statements(self.schema)
        self._damaged = Statements(self.schema, _readable)
        self._texts = _StatementCache()
        add_function(db, "as_text", as_text)

    # Transactions

    def begin(self, *, careful: bool = False) -> None:
        """Begin a transaction."""
        self.db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit a transaction."""
        self.db.execute("COMMIT")

    def rollback(self) -> None:
        """Roll a transaction back."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    # Writing

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows that do not exist yet."""
        self.db.executemany(self._texts[_insertion, "INSERT", table, tuple(columns)], rows)

    def insert_new(
        self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> list[int]:
        """Insert rows that do not exist yet; return the positions of the others."""
        db, sql = self.db, self._texts[_insertion, "INSERT OR IGNORE", table, tuple(columns)]
        db.execute("SAVEPOINT inserted")
        existing: list[int] = []
        if change_many(db, sql, rows) < len(rows):
            db.execute("ROLLBACK TO inserted")
            for position, row in enumerate(rows):
                db.execute(sql, row)
                if not db.changes():
                    existing.append(position)
        db.execute("RELEASE inserted")
        return existing

    def put(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows; each replaces the row with the same key."""
        self.db.executemany(
            self._texts[_insertion, "INSERT OR REPLACE", table, tuple(columns)], rows
        )

    def update(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Update columns of rows."""
        self.db.executemany(self._texts[self._change, table, tuple(columns)], rows)

    def _change(self, table: str, columns: Sequence[str]) -> str:
        values = ", ".join(f"{quote(name)} = ?" for name in columns)
        return f"UPDATE {quote(table)} SET {values} WHERE {self._is_key(table)}"

    def _is_key(self, name: str, width: int | None = None) -> str:
        _, index = self.schema.index(name)
        return " AND ".join(f"{quote(column)} = ?" for column in index.columns[:width])

    def delete(self, table: str, keys: Sequence[Any]) -> None:
        """Delete rows by primary key."""
        self.db.executemany(self._texts[self._deletion, table], _rows(keys))

    def _deletion(self, table: str) -> str:
        return f"DELETE FROM {quote(table)} WHERE {self._is_key(table)}"

    def delete_runs(
        self,
        table: str,
        runs: Sequence[tuple[int, int]],
        expected: int,
    ) -> int:
        """Delete rows by runs of keys; return the number of deleted rows."""
        return change_many(self.db, self._texts[self._runs, table], runs)

    def _runs(self, table: str) -> str:
        [column] = self.schema.table(table).key
        return f"DELETE FROM {quote(table)} WHERE {quote(column)} BETWEEN ? AND ?"

    def delete_range(
        self,
        index: str,
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
    ) -> None:
        """Delete the rows of a scan."""
        bounds = len(gt), len(ge), len(lt), len(le)
        sql = self._texts[self._undamaged.delete_range, index, len(prefix), bounds]
        self.db.execute(sql, (*prefix, *gt, *ge, *lt, *le))

    # Reading

    def get(
        self,
        table: str,
        columns: Sequence[str],
        keys: Sequence[Any],
        *,
        by: str = "",
        damaged: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Return the rows that have one of the keys."""
        if not keys:
            return []
        width = len(keys[0]) if type(keys[0]) is tuple else 1
        many = len(keys) >= _MANY and width == 1
        texts = self._damaged if damaged else self._undamaged
        sql = self._texts[self._selection, texts, by or table, 0 if many else width, tuple(columns)]
        db = self.db
        if not many:
            return list(chain.from_iterable(all_rows(db, sql, row) for row in _rows(keys)))
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(keys), _AT_ONCE):
            batch = list(keys[start : start + _AT_ONCE])
            rows += all_rows(db, sql, batch + batch[-1:] * (_AT_ONCE - len(batch)))
        return rows

    def _selection(self, texts: Statements, name: str, width: int, columns: Sequence[str]) -> str:
        """Return the SELECT by the first columns of an index; width 0 means many keys at once."""
        table, index = self.schema.index(name)
        is_key = self._is_key(name, width)
        if not width:
            is_key = f"{quote(index.columns[0])} IN ({', '.join('?' * _AT_ONCE)})"
        if index.where:
            is_key += f" AND {index.where}"
        return f"SELECT {texts.columns(table, columns)} FROM {quote(table.name)} WHERE {is_key}"

    def get_all(self, requests: Sequence[Request]) -> list[list[tuple[Any, ...]]]:
        """Return what `get` returns for each request."""
        return [self.get(table, columns, keys, by=by) for table, columns, keys, by in requests]

    def scan(
        self,
        index: str,
        columns: Sequence[str],
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
        limit: int | None = None,
        descending: bool = False,
        damaged: bool = False,
    ) -> Iterator[tuple[Any, ...]]:
        """Return rows in the order of an index: a cursor."""
        bounds = len(gt), len(ge), len(lt), len(le)
        texts = self._damaged if damaged else self._undamaged
        flags = limit is not None, descending
        sql = self._texts[_scan, texts, (index, tuple(columns), len(prefix), bounds), flags]
        values = (*prefix, *gt, *ge, *lt, *le)
        return self.db.execute(sql, values if limit is None else (*values, limit))

    def heads(
        self,
        index: str,
        columns: Sequence[str],
        prefixes: Sequence[Sequence[Any]],
        *,
        descending: bool = False,
    ) -> list[tuple[Any, ...] | None]:
        """Return the first row for each prefix of an index, or the last."""
        first: list[tuple[Any, ...] | None] = [None] * (len(prefixes) + _AT_ONCE)
        widths = {*map(len, prefixes)}
        if len(prefixes) < _MANY or len(widths) > 1 or self.schema.table(index).clustered:
            for position, prefix in enumerate(prefixes):
                for row in self.scan(index, columns, prefix, limit=1, descending=descending):
                    first[position] = row
        else:  # one statement takes a sixth of the time
            sql = self._texts[self._heads, index, widths.pop(), tuple(columns), descending]
            for start in range(0, len(prefixes), _AT_ONCE):
                batch = list(prefixes[start : start + _AT_ONCE])
                batch += batch[-1:] * (_AT_ONCE - len(batch))
                for row in self.db.execute(sql, tuple(chain.from_iterable(batch))):
                    first[start + row[-1]] = row[:-1]
        return first[: len(prefixes)]

    def _heads(self, name: str, width: int, columns: Sequence[str], descending: bool) -> str:  # noqa: FBT001
        table, _ = self.schema.index(name)
        text = _scan(self._undamaged, (name, ("rowid",), width, (0, 0, 0, 0)), (True, descending))
        for position in range(2, width + 2):
            text = text.replace("?", f"column{position}", 1)
        marks = ", ".join(f"({position}{', ?' * width})" for position in range(_AT_ONCE))
        return (
            f"SELECT {self._undamaged.columns(table, columns)}, column1 FROM (VALUES {marks}) "
            f"CROSS JOIN {quote(table.name)} AS h ON h.rowid = ({text.replace('?', '1')})"
        )

    def measure(
        self,
        index: str,
        columns: Sequence[str] = (),
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
    ) -> tuple[int, int]:
        """Return the number of rows that a scan returns, and the total bytes of some columns."""
        table, declaration = self.schema.index(index)
        bounds = len(gt), len(ge), len(lt), len(le)
        kinds = {column.name: column.type for column in table.columns}
        size = " + ".join(
            f"length({quote(name)})"  # SQLite knows the length of bytes without reading them
            if kinds[name] == "bytes"
            else f"length(CAST({quote(name)} AS BLOB))"
            for name in columns
        )
        where = self._undamaged.where(declaration, len(prefix), bounds)
        sql = f"SELECT count(*), coalesce(sum({size or 0}), 0) FROM {quote(table.name)}{where}"
        count, total = first_row(self.db, sql, (*prefix, *gt, *ge, *lt, *le))
        return count, total

    def tally(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the combinations of values of columns, with the number of rows of each."""
        listed = names(columns)
        return all_rows(self.db, f"SELECT {listed}, count(*) FROM {quote(table)} GROUP BY {listed}")

    # Single values

    def values(self) -> dict[str, Any]:
        """Return all single values."""
        return dict(self.db.execute("SELECT key, value FROM meta"))

    def set_values(self, values: dict[str, Any]) -> None:
        """Write single values; None removes one."""
        rows = [item for item in values.items() if item[1] is not None]
        self.db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
        removed = [(name,) for name, value in values.items() if value is None]
        self.db.executemany("DELETE FROM meta WHERE key = ?", removed)

    # Tables of periods

    def periods(self, table: str) -> list[int]:
        """Return the numbers of the periods that have a table."""
        sql = "SELECT substr(name, ?) FROM sqlite_master WHERE type = 'table' AND name GLOB ?"
        rows = self.db.execute(sql, (len(table) + 2, f"{table}_[0-9]*"))
        return sorted(int(number) for (number,) in rows if number.isdigit())

    def make_period(self, table: str, number: int) -> None:
        """Create the table of a period."""
        for statement in definitions(self.schema.table(period_name(table, number))):
            self.db.execute(statement)

    def drop_period(self, table: str, number: int) -> bool:
        """Drop the table of a period; other readers have their own snapshots."""
        self.db.execute(f"DROP TABLE {quote(period_name(table, number))}")
        return True


def _insertion(verb: str, table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"{verb} INTO {quote(table)} ({names(columns)}) VALUES ({marks})"


def _scan(texts: Statements, arguments: Sequence[Any], flags: tuple[bool, bool]) -> str:
    limited, descending = flags
    return texts.scan(*arguments, limited=limited, descending=descending)


def _rows(keys: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """Return keys as rows of parameters."""
    return keys if keys and type(keys[0]) is tuple else [(key,) for key in keys]
