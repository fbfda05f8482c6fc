"""Result backend ``sqlite``: results in a file that the workers and clients of one host share.

For results that are too large for the broker, or too many. The file is not the broker's: whoever
can read it can read every result in it, whatever keys the broker asks for, so it is made for its
owner only (mode 0600). SQLite's locks do not hold across machines: each host needs its own file,
and its results are read on that host only.

Results go when their time is up, and the ones with the least time left when the file is full; both
happen while others are put.
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

#: Stored in ``PRAGMA user_version``, and what marks the file as ours: "EVMR".
SCHEMA_VERSION = 1
APPLICATION_ID = 0x45564D52

#: Bytes of results in the file, unless told.
MAX_BYTES = 16 * 1024**3

#: Bytes of one result, unless told, and at most: SQLite's own limit is a thousand million.
MAX_RESULT = 512 * 1024**2
LARGEST = 1_000_000_000 - 1024

#: Seconds to wait for the transaction of another process.
BUSY = 30.0

#: Seconds between two looks for results whose time is up.
EVERY = 30.0

#: Bytes of the write-ahead log that stay on disk when its content is in the file.
WAL_BYTES = 64 * 1024**2

#: Results that one transaction forgets at most.
SLICE = 500

_DDL = (
    """CREATE TABLE IF NOT EXISTS results (id TEXT PRIMARY KEY, until REAL NOT NULL,
       data BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS results_until ON results (until)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

#: Connections that a forked child inherited: never closed, for that would free the parent's locks.
_inherited: list[object] = []


@dataclass(slots=True)
class _Home:
    """The connection of one process: it must not be carried over a fork."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    db: apsw.Connection | None = None


class SqliteResults:
    """A `ResultBackend` in an SQLite file. Opened at the first use, once per process.

    Args:
        path: Of the file.
        clock: Reads time.
        durable: A result is on disk before its job has ended; else the last ones may be lost with
            the machine's power, and never with a process.
        max_bytes: Of the file; beyond it results with the least time left are forgotten.
        max_result: Bytes of one result.
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
        #: When to look for what may go, and bytes that were put since the last time.
        self._look_at = 0.0
        self._written = 0
        self._home = _Home()

    def _now(self) -> float:
        """Return the wall time, of which a step counts only after it has stood for a while.

        Threads that do so at once do no harm: a reading is as good as another.
        """
        self._guarded.advance(self._clock.now(), self._clock.boottime())
        return self._guarded.now

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Keep a result for ``ttl`` seconds; return its reference, made of the job's id.

        Raises:
            ResultTooLarge: It is longer than ``max_result``.
            ResultUnavailable: The file cannot be written.
        """
        if len(data) > self._max_result:
            raise ResultTooLarge(
                f"the result has {len(data)} bytes; the result backend 'sqlite' keeps "
                f"{self._max_result} at most: its option max_result"
            )
        now = self._now()
        home = self._here()
        try:
            with home.lock:
                db = self._open(home)
                db.execute(
                    "INSERT OR REPLACE INTO results (id, until, data) VALUES (?, ?, ?)",
                    (job_id, now + ttl, data),
                )
                self._written += len(data)
                if now >= self._look_at or self._written > self._max_bytes // 16:
                    self._look_at = now + EVERY if self._prune(db, now) else now
                    self._written = 0
        except (OSError, StoreError, *UNREADABLE) as error:
            raise ResultUnavailable(f"{self._where} cannot be written: {error}") from error
        return job_id.encode()

    def get(self, reference: bytes) -> bytes:
        """Return a result that is still kept.

        Raises:
            ResultUnavailable: It is not, or the file is not on this host or cannot be read.
        """
        if not self._path.exists():
            raise ResultUnavailable(
                f"{self._where} are not on this host: the result backend 'sqlite' is for workers "
                "and clients of one host that name the same file"
            )
        job_id = reference.decode(errors="replace")
        home = self._here()
        try:
            with home.lock:
                row = first_row(
                    self._open(home),
                    "SELECT data FROM results WHERE id = ? AND until > ?",
                    (job_id, self._now()),
                )
        except (OSError, StoreError, *UNREADABLE) as error:
            raise ResultUnavailable(f"{self._where} cannot be read: {error}") from error
        if row is None:
            raise ResultUnavailable(
                f"the result of job {job_id[:80]!r} is not among {self._where}, or no more"
            )
        return bytes(row[0])

    def close(self) -> None:
        """Close the file. Idempotent; the next use opens it again."""
        home = self._here()
        with home.lock:
            if home.db is not None:
                home.db.close()
                home.db = None

    # The file

    @property
    def _where(self) -> str:
        return f"the results in {self._path}"

    def _here(self) -> _Home:
        """Return the connection of this process."""
        home = self._home
        if home.pid != os.getpid():
            _inherited.append(home)
            home = self._home = _Home()
        return home

    def _open(self, home: _Home) -> apsw.Connection:
        if home.db is None:
            home.db = self._connect()
        return home.db

    def _connect(self) -> apsw.Connection:
        if not self._path.exists():  # closing a file that is open already would free its locks
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
        # In this order: another process may be making the tables, and marks the file with them.
        tables = first_row(db, "SELECT 1 FROM sqlite_master")
        application, version = db.pragma("application_id"), db.pragma("user_version")
        if application not in {0, APPLICATION_ID} or (not application and tables):
            raise ResultUnavailable(f"{self._path} has no results of EventMQ: name another file")
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
        """Forget some results that are over, or too many; return False if there may be more."""
        sql = "DELETE FROM results WHERE id IN (SELECT id FROM results WHERE until <= ? LIMIT ?)"
        over = change(db, sql, (now, SLICE))
        excess = self._bytes(db) - self._max_bytes
        if excess > 0:
            early = self._make_room(db, excess + self._max_bytes // 16)
            what = "%d results in %s were forgotten before their time: it has its %d bytes"
            logger.warning(what, early, self._path, self._max_bytes)
        if over or excess > 0:
            all_rows(db, "PRAGMA incremental_vacuum(1000)")  # each row frees a page
        return over < SLICE and excess <= 0

    @staticmethod
    def _make_room(db: apsw.Connection, wanted: int) -> int:
        """Forget the results with the least time left; return how many."""
        ids = []
        sql = "SELECT id, length(data) FROM results ORDER BY until LIMIT ?"
        # All of them: a cursor that is left open is in the way of the transaction.
        for job_id, size in all_rows(db, sql, (SLICE,)):
            ids.append((job_id,))
            wanted -= size
            if wanted <= 0:
                break
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM results WHERE id = ?", ids)
        db.execute("COMMIT")
        return len(ids)

    @staticmethod
    def _bytes(db: apsw.Connection) -> int:
        """Return how many bytes of the file are in use."""
        pages = db.pragma("page_count") - db.pragma("freelist_count")
        return int(pages * db.pragma("page_size"))


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the backend; of a URL they are behind a ``?``, as in ``?durable=no``.

    Attributes:
        path: The file.
        url: ``sqlite:///path``, instead of a path.
        durable: As of `SqliteResults`, like the others.
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
