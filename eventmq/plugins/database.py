"""SQLite databases: the one module that imports the library, opens files with it and names errors.

The library is apsw's own SQLite, not the interpreter's. Two SQLite libraries in one process must
not open the same file: closing it in one ends the POSIX locks of the other. So queue stores, result
backends and schedule stores, the tools that look after them, tests and benchmarks open databases
here, and nothing imports ``sqlite3``.

What differs from ``sqlite3``, and bites: a connection waits for no lock unless told; a cursor that
was not read to its end keeps its read transaction, and with it the log; no cursor knows how many
rows it changed.

`SqliteRows` is the store contract on a connection: see `eventmq.engine.RowStore`.
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

#: The version of apsw in which a cursor that was closed is never freed.
_LEAKS_CURSORS = "3.54.0.0"

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

#: Seconds that a reader waits where a broker that starts has the file for itself.
_READ_WAIT = 5.0

#: Held by who loads the extension.
_LOADING = threading.Lock()

_MODES = {
    "PASSIVE": apsw.SQLITE_CHECKPOINT_PASSIVE,
    "RESTART": apsw.SQLITE_CHECKPOINT_RESTART,
    "TRUNCATE": apsw.SQLITE_CHECKPOINT_TRUNCATE,
}


_TYPES = {"text": "TEXT", "integer": "INTEGER", "real": "REAL", "bytes": "BLOB"}

#: From so many keys on, one statement asks for several, and for how many.
_MANY, _AT_ONCE = 8, 100


# The library


def library_version() -> str:
    """Return the version of the SQLite library that opens databases."""
    return apsw.sqlite_lib_version()


def check_library(version: str, binding: str = "") -> None:
    """Refuse a library that can lose commits, or keeps read transactions.

    In SQLite 3.7.0 to 3.51.2 a commit that begins the write-ahead log anew while a second
    checkpoint runs right after a complete one can drop transactions that were committed
    (sqlite.org/wal.html#walresetbug). apsw 3.54.0.0 never frees a cursor that was closed, or left
    while another one was open: its read transaction stays, and the log grows for ever.

    Args:
        version: Of the library, as in ``"3.51.3"``.
        binding: Version of apsw, as in ``"3.54.1.0"``.

    Raises:
        StoreError: It is one of those.
    """
    if binding == _LEAKS_CURSORS:
        raise StoreError(
            f"apsw {binding} keeps cursors that are closed, so that the log of a store grows for "
            f"ever: install another one, with pip install 'apsw!={binding}'"
        )
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    major, minor, patch = map(int, match.groups()) if match else (0, 0, 0)
    series = (major, minor)
    if series > _LAST_UNSOUND or (series in _SOUND and patch >= _SOUND[series]):
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
            leave_log(db)  # it would move the log without checksums as it is closed
            db.close()
            vfs = _checksum_layer(name) if writes or can_checksum_pages() else None
            db = apsw.Connection(name, flags=flags, vfs=vfs, statementcachesize=statements)
            set_busy_timeout(db, busy)
            if fresh:
                _reserve(db, _CHECKSUM_BYTES)
    return db


def open_to_read(path: Path) -> apsw.Connection:
    """Return a connection that cannot write, to a database that another process may write.

    Where the index of the log cannot be made, and there is no log, the file does not change.

    Raises:
        apsw.Error, UnicodeDecodeError: The file cannot be read; see `UNREADABLE`.
        StoreError: The SQLite library is one that can lose commits.
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
    altered = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
    return "a page is not what was written: its checksum is wrong" if altered else str(error)


def is_damage(error: Exception) -> bool:
    """Return whether an error says that something in a file is damaged or cannot be read."""
    lost = getattr(error, "extendedresult", 0) in _LOST_PAGES
    return lost or isinstance(error, (*DAMAGED, UnicodeDecodeError))


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
        raise StoreError(
            f"the pages of {name} have checksums, and this apsw has no extension for them: install "
            "apsw from a wheel of PyPI, unpacked"
        )
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
        raise StoreError(
            f"SQLite {library_version()} cannot tell how long a log is: install apsw 3.53 or later"
        ) from error
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


# The store contract: the text of a statement is made once for each sort of call; what is hot is one
# ``executemany``, or one cursor that is handed on.


def definitions(table: Table) -> list[str]:
    """Return the statements that make a table."""
    return create(table, _TYPES, tail=" WITHOUT ROWID" if table.clustered else "")


def as_text(data: bytes | None) -> str | bytes | None:
    """Return a text, or its bytes if it is none any more."""
    with suppress(UnicodeDecodeError, AttributeError):
        return data.decode()  # type: ignore[union-attr] # None stays
    return data


def _readable(table: Table, name: str) -> str:
    """Return a column to read where its text may be damaged, and bytes may be stored as text."""
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


class _Texts(dict[Any, str]):
    """Texts of statements by what makes them and its arguments, each made once."""

    def __missing__(self, key: Any) -> str:
        make, *arguments = key
        text = self[key] = make(*arguments)
        return str(text)


class SqliteRows:
    """Rows of tables in an SQLite database.

    Args:
        db: Open; the tables are there. A table of single values is called ``meta``.
        tables: The tables.
    """

    #: As of `eventmq.engine.contract.RowStore`.
    refusals: tuple[type[Exception], ...] = (
        OverflowError, UnicodeEncodeError, apsw.ConstraintError, apsw.MismatchError,
        apsw.RangeError, apsw.TooBigError,
    )  # fmt: skip

    def __init__(self, db: apsw.Connection, tables: Iterable[Table]) -> None:
        self.db = db
        self.schema = Schema(tables)
        self._sound = Statements(self.schema)
        self._damaged = Statements(self.schema, _readable)
        self._texts = _Texts()
        add_function(db, "as_text", as_text)

    # Transactions

    def begin(self, *, careful: bool = False) -> None:
        """Begin a transaction."""
        self.db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """End a transaction."""
        self.db.execute("COMMIT")

    def rollback(self) -> None:
        """Undo a transaction."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    # Writing

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows that are not there."""
        self.db.executemany(self._texts[_insertion, "INSERT", table, tuple(columns)], rows)

    def insert_new(
        self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> list[int]:
        """Insert rows that are not there; return the places of the others."""
        db, sql = self.db, self._texts[_insertion, "INSERT OR IGNORE", table, tuple(columns)]
        db.execute("SAVEPOINT inserted")
        taken: list[int] = []
        if change_many(db, sql, rows) < len(rows):
            db.execute("ROLLBACK TO inserted")
            for place, row in enumerate(rows):
                db.execute(sql, row)
                if not db.changes():
                    taken.append(place)
        db.execute("RELEASE inserted")
        return taken

    def put(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, each in the place of the one that has its key."""
        self.db.executemany(
            self._texts[_insertion, "INSERT OR REPLACE", table, tuple(columns)], rows
        )

    def update(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Change columns of rows."""
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
        """Delete rows by runs of their keys; return how many there were."""
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
        sql = self._texts[self._sound.delete_range, index, len(prefix), bounds]
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
        texts = self._damaged if damaged else self._sound
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
        """Return the SELECT by the first columns of an index; of width 0, by many of the first."""
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
        texts = self._damaged if damaged else self._sound
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
            for place, prefix in enumerate(prefixes):
                for row in self.scan(index, columns, prefix, limit=1, descending=descending):
                    first[place] = row
        else:  # which takes a sixth of the time
            sql = self._texts[self._heads, index, widths.pop(), tuple(columns), descending]
            for start in range(0, len(prefixes), _AT_ONCE):
                batch = list(prefixes[start : start + _AT_ONCE])
                batch += batch[-1:] * (_AT_ONCE - len(batch))
                for row in self.db.execute(sql, tuple(chain.from_iterable(batch))):
                    first[start + row[-1]] = row[:-1]
        return first[: len(prefixes)]

    def _heads(self, name: str, width: int, columns: Sequence[str], descending: bool) -> str:  # noqa: FBT001
        table, _ = self.schema.index(name)
        text = _scan(self._sound, (name, ("rowid",), width, (0, 0, 0, 0)), (True, descending))
        for place in range(2, width + 2):
            text = text.replace("?", f"column{place}", 1)
        marks = ", ".join(f"({place}{', ?' * width})" for place in range(_AT_ONCE))
        return (
            f"SELECT {self._sound.columns(table, columns)}, column1 FROM (VALUES {marks}) "
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
        """Return how many rows a scan gives, and how many bytes some of their columns have."""
        table, declaration = self.schema.index(index)
        bounds = len(gt), len(ge), len(lt), len(le)
        kinds = {column.name: column.type for column in table.columns}
        size = " + ".join(
            f"length({quote(name)})"  # that of bytes is known without reading them
            if kinds[name] == "bytes"
            else f"length(CAST({quote(name)} AS BLOB))"
            for name in columns
        )
        where = self._sound.where(declaration, len(prefix), bounds)
        sql = f"SELECT count(*), coalesce(sum({size or 0}), 0) FROM {quote(table.name)}{where}"
        count, total = first_row(self.db, sql, (*prefix, *gt, *ge, *lt, *le))
        return count, total

    def tally(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the combinations of values of columns, with how many rows have each."""
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
        """Make the table of a period."""
        for statement in definitions(self.schema.table(period_name(table, number))):
            self.db.execute(statement)

    def drop_period(self, table: str, number: int) -> bool:
        """Drop the table of a period: those who read it have a snapshot of their own."""
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
