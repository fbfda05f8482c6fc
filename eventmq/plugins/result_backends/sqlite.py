"""Result backend ``sqlite``: keeps results in a file that workers and clients of one host share.

It is for results that are too large, or too many, for the broker. The broker's keys do not protect
the file: any user who can read it can read all results, so it is created with mode 0600. SQLite's
locks do not work across machines, so each host needs its own file, and results can be read on their
host only.

When a result is stored, expired results are deleted. If the file is full, the results that expire
next are deleted as well.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from eventmq.errors import ResultTooLarge, ResultUnavailable, StoreError
from eventmq.plugins.database import UNREADABLE, all_rows, change, connect, first_row, use_log
from eventmq.plugins.private_files import make_private_file, make_private_folder
from eventmq.sdk import hookimpl, option, read_options
from eventmq.timekeeping import GuardedWall, Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    import apsw

    from eventmq.clock import Clock
    from eventmq.sdk import Factory, PluginContext, ResultBackend

__all__ = ["SqliteResults", "eventmq_result_backends"]

logger = logging.getLogger(__name__)

#: Stored in ``PRAGMA user_version`` and ``PRAGMA application_id`` ("EVMR").
SCHEMA_VERSION = 1
APPLICATION_ID = 0x45564D52

#: Default of ``max_bytes``.
MAX_BYTES = 16 * 1024**3

#: Default and upper bound of ``max_result``; SQLite's limit is 1,000,000,000 bytes.
MAX_RESULT = 512 * 1024**2
LARGEST = 1_000_000_000 - 1024

#: Seconds to wait for the transaction of another process.
BUSY = 30.0

#: Seconds between two searches for expired results.
PRUNE_EVERY = 30.0

#: Bytes to which SQLite truncates the write-ahead log after a checkpoint.
WAL_BYTES = 64 * 1024**2

#: Maximum number of results that one transaction deletes.
SLICE = 500

_DDL = (
    """CREATE TABLE IF NOT EXISTS results (id TEXT PRIMARY KEY, until REAL NOT NULL,
       data BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS results_until ON results (until)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

#: Connections inherited by a fork. They are never closed, as that would free the parent's locks.
_inherited: list[object] = []


@dataclass(slots=True)
class _ProcessConnection:
    """The connection of one process; it must not be used after a fork."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    db: apsw.Connection | None = None


class SqliteResults:
    """A `ResultBackend` in an SQLite file. Opened at the first use, once per process.

    Args:
        path: Path of the file.
        clock: Reads time.
        durable: Whether a result is synced to disk before its job ends. If not, a power failure of
            the machine may lose the last results; the crash of a process never does.
        max_bytes: Maximum bytes of the file; above it the results that expire next are deleted.
        max_result: Maximum bytes of one result.
    """

    inline = False
    local = False

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        durable: bool = True,
        max_bytes: int = MAX_BYTES,
        max_result: int = MAX_RESULT,
    ) -> None:
        self._path = path
        self._clock = clock
        self._guarded = GuardedWall(Reading(clock.now(), clock.boottime()))
        self._durable = durable
        self._max_bytes = max_bytes
        self._max_result = min(max_result, LARGEST)
        #: When to prune next, and bytes that were stored since the last time.
        self._prune_at = 0.0
        self._written = 0
        self._connection = _ProcessConnection()

    def _now(self) -> float:
        """Return the guarded wall time: a step of the clock counts only after a while.

        Concurrent calls are harmless, since all readings are equally good.
        """
        self._guarded.advance(self._clock.now(), self._clock.boottime())
        return self._guarded.now

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Keep a result for ``ttl`` seconds; return its reference, made of the job's id.

        Raises:
            ResultTooLarge: The result is longer than ``max_result``.
            ResultUnavailable: The file cannot be written.
        """
        if len(data) > self._max_result:
            raise ResultTooLarge(
                f"the result has {len(data)} bytes; the result backend 'sqlite' keeps "
                f"{self._max_result} at most: its option max_result"
            )
        now = self._now()
        connection = self._process_connection()
        try:
            with connection.lock:
                db = self._open(connection)
                db.execute(
                    "INSERT OR REPLACE INTO results (id, until, data) VALUES (?, ?, ?)",
                    (job_id, now + ttl, data),
                )
                self._written += len(data)
                if now >= self._prune_at or self._written > self._max_bytes // 16:
                    self._prune_at = now + PRUNE_EVERY if self._prune(db, now) else now
                    self._written = 0
        except (OSError, StoreError, *UNREADABLE) as error:
            raise ResultUnavailable(f"{self._description} cannot be written: {error}") from error
        return job_id.encode()

    def get(self, reference: bytes) -> bytes:
        """Return a result that is still kept.

        Raises:
            ResultUnavailable: The result is not kept any more, or the file is not on this host or
                cannot be read.
        """
        if not self._path.exists():
            raise ResultUnavailable(
                f"{self._description} are not on this host: the result backend 'sqlite' is for "
                "workers and clients of one host that name the same file"
            )
        job_id = reference.decode(errors="replace")
        connection = self._process_connection()
        try:
            with connection.lock:
                row = first_row(
                    self._open(connection),
                    "SELECT data FROM results WHERE id = ? AND until > ?",
                    (job_id, self._now()),
                )
        except (OSError, StoreError, *UNREADABLE) as error:
            raise ResultUnavailable(f"{self._description} cannot be read: {error}") from error
        if row is None:
            raise ResultUnavailable(
                f"{self._description} have none of job {job_id[:80]!r}: it has expired or was "
                "never stored"
            )
        return bytes(row[0])

    def close(self) -> None:
        """Close the file. Idempotent; the next use opens it again."""
        connection = self._process_connection()
        with connection.lock:
            if connection.db is not None:
                connection.db.close()
                connection.db = None

    # The file

    @property
    def _description(self) -> str:
        return f"the results in {self._path}"

    def _process_connection(self) -> _ProcessConnection:
        """Return the connection of this process; a new one after a fork."""
        connection = self._connection
        if connection.pid != os.getpid():
            _inherited.append(connection)
            connection = self._connection = _ProcessConnection()
        return connection

    def _open(self, connection: _ProcessConnection) -> apsw.Connection:
        if connection.db is None:
            connection.db = self._connect()
        return connection.db

    def _connect(self) -> apsw.Connection:
        if not self._path.exists():  # creating it again would close it, and so free the locks on it
            make_private_folder(self._path.parent)
            make_private_file(self._path)
        db = connect(self._path.absolute(), busy=BUSY, create=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: apsw.Connection) -> None:
        # Read in this order, since another process may be creating the tables with the id.
        tables = first_row(db, "SELECT 1 FROM sqlite_master")
        application, version = db.pragma("application_id"), db.pragma("user_version")
        if application not in {0, APPLICATION_ID} or (not application and tables):
            raise ResultUnavailable(
                f"{self._path} is not a result file of EventMQ: name another file"
            )
        if version > SCHEMA_VERSION:
            raise ResultUnavailable(
                f"{self._path} has version {version}, this EventMQ knows up to {SCHEMA_VERSION}: "
                "use the newer EventMQ that wrote it, or another file"
            )
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        if version < SCHEMA_VERSION:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            use_log(db, BUSY)
            for statement in ("BEGIN IMMEDIATE", *_DDL, "COMMIT"):
                db.execute(statement)

    def _prune(self, db: apsw.Connection, now: float) -> bool:
        """Delete some expired or surplus results; return False if there may be more."""
        sql = "DELETE FROM results WHERE id IN (SELECT id FROM results WHERE until <= ? LIMIT ?)"
        expired = change(db, sql, (now, SLICE))
        excess = self._bytes(db) - self._max_bytes
        if excess > 0:
            dropped = self._make_room(db, excess + self._max_bytes // 16)
            message = "%d results in %s were deleted before they expired: its limit is %d bytes"
            logger.warning(message, dropped, self._path, self._max_bytes)
        if expired or excess > 0:
            all_rows(db, "PRAGMA incremental_vacuum(1000)")  # each row frees a page
        return expired < SLICE and excess <= 0

    @staticmethod
    def _make_room(db: apsw.Connection, size_to_free: int) -> int:
        """Delete the results that expire next; return how many."""
        ids = []
        sql = "SELECT id, length(data) FROM results ORDER BY until LIMIT ?"
        # Read all rows first: an open cursor would block the transaction.
        for job_id, size in all_rows(db, sql, (SLICE,)):
            ids.append((job_id,))
            size_to_free -= size
            if size_to_free <= 0:
                break
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM results WHERE id = ?", ids)
        db.execute("COMMIT")
        return len(ids)

    @staticmethod
    def _bytes(db: apsw.Connection) -> int:
        """Return the used bytes of the file."""
        pages = db.pragma("page_count") - db.pragma("freelist_count")
        return int(pages * db.pragma("page_size"))


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the backend; in a URL they follow a ``?``, as in ``?durable=no``.

    Attributes:
        path: Path of the file.
        url: ``sqlite:///path``, instead of a path.
        durable: See `SqliteResults`, also for the other options.
    """

    path: str = ".eventmq/results.sqlite"
    url: str = ""
    durable: bool = True
    max_bytes: int = option(MAX_BYTES, ge=1)
    max_result: int = option(MAX_RESULT, ge=1)


def make_backend(context: PluginContext) -> ResultBackend:
    """Return a backend; raises `PluginError` for a wrong option."""
    url = str(context.options.get("url", ""))
    path, _, query = url.partition("://")[2].removeprefix("/").partition("?")
    explicit = {**context.options, **dict(parse_qsl(query, keep_blank_values=True))}
    options = read_options(replace(context, options=explicit), Options)
    return SqliteResults(
        Path(path or options.path),
        context.clock,
        durable=options.durable,
        max_bytes=options.max_bytes,
        max_result=options.max_result,
    )


@hookimpl
def eventmq_result_backends() -> Mapping[str, Factory[ResultBackend]]:
    """Provide ``sqlite``."""
    return {"sqlite": make_backend}
