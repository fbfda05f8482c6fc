"""Embedded queue store: one SQLite file in the broker's data directory.

A batch is one transaction in WAL mode with ``synchronous=FULL``, so its results are returned after
the fsync. The broker that holds the lock of the directory owns the store.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eventmq.engine import (
    EVENTS_CAP,
    EVENTS_RING,
    SCHEDULE_TABLES,
    TABLES,
    CannotUndo,
    Engine,
    check_expected,
)
from eventmq.errors import PluginError, QueueFull, StoreError
from eventmq.plugins.database import (
    DAMAGED,
    DISK_FULL,
    UNREADABLE,
    SqliteRows,
    can_checksum_pages,
    connect,
    explain,
    has_moved,
    has_page_checksums,
    lacks_index_space,
    leave_log,
    use_log,
)
from eventmq.plugins.queue_stores.sqlite.disk import (
    ALTERED,
    ASK,
    FILE_NAME,
    DataDirectory,
    OpenedFiles,
    store_error,
)
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader, SqliteReader
from eventmq.plugins.queue_stores.sqlite.schema import (
    check_schema,
    is_empty,
    prepare,
)
from eventmq.plugins.queue_stores.sqlite.tools.files import check_quickly
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.plugins.queue_stores.sqlite.wal import (
    BUSY_TIMEOUT,
    LOG_BYTES,
    Checkpointer,
    LogEnd,
    check_log,
    empty_log,
)
from eventmq.sdk import hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import apsw

    from eventmq.clock import Clock
    from eventmq.sdk import Factory, PluginContext, QueueStore
    from eventmq.store import Write
    from eventmq.store.recovery import Recovered

__all__ = ["SqliteStore", "eventmq_queue_stores"]

logger = logging.getLogger("eventmq.store")

#: Number of cached prepared statements. A statement that was not used in so many executions is
#: dropped; those of every commit stay prepared.
STATEMENTS = 256

#: Kibibytes of page cache.
CACHE_KIB = 32 * 1024

_SYNCHRONOUS = {"durable": "FULL", "relaxed": "NORMAL", "memory": "OFF"}


class SqliteStore:
    """A `QueueStore` in an SQLite file, or in memory if ``directory`` is None.

    Args:
        directory: The data directory.
        clock: Reads time.
        durability: ``durable``, ``relaxed`` or ``memory``.
        fsync_interval: Seconds between two syncs with ``relaxed``.
        dedupe_window: Seconds for which the id of an ended job is refused.
        keep_results: Maximum seconds for which outcomes are kept.
        reserve: Free bytes of the disk below which new jobs are refused.
        events_ring: Bytes of events that are kept until a journal seals some for the first time.
        events_cap: Bytes of events that are kept from then on.
        events_values: Maximum bytes of arguments and results in one row of events, 0 for none.
        expect_store: Id that the store must have; "" accepts any and creates a missing store.
        page_checksums: Whether a new store gets a checksum on each page.
        checkpoints: Which program checkpoints the log: ``broker``, or ``litestream``, which copies
            the log and must be the only one to do so.
        vfs: Name of the SQLite VFS for all connections that write, None for the default; a test may
            let system calls fail there.
    """

    def __init__(
        self,
        directory: Path | None,
        clock: Clock,
        *,
        durability: str = "durable",
        fsync_interval: float = 0.05,
        dedupe_window: float = 86_400.0,
        keep_results: float = 86_400.0,
        reserve: int = 256 * 1024 * 1024,
        events_ring: int = EVENTS_RING,
        events_cap: int = EVENTS_CAP,
        events_values: int = 0,
        expect_store: str = "",
        page_checksums: bool = False,
        checkpoints: str = "broker",
        vfs: str | None = None,
    ) -> None:
        self._clock = clock
        self._page_checksums = page_checksums
        self._external = checkpoints == "litestream"
        self._vfs = vfs
        self._expected = expect_store
        self._opened: OpenedFiles | None = None
        self._directory = DataDirectory(directory, reserve) if directory is not None else None
        self._durability = durability
        self.engine = Engine(
            clock, dedupe_window=dedupe_window, keep_results=keep_results,
            events_ring=events_ring, events_cap=events_cap, events_values=events_values,
        )  # fmt: skip
        self._sync_every = fsync_interval if durability == "relaxed" else 0.0
        self._db: apsw.Connection | None = None
        self._checkpointer: Checkpointer | None = None
        self._write_results: list[Sequence[Any] | Exception] = []
        #: Why nothing is committed any more.
        self._broken: StoreError | None = None
        self._path = ":memory:" if directory is None else str(directory / FILE_NAME)

    @property
    def ownership(self) -> None:
        """None: only the process that has locked the file uses it."""

    @property
    def upkeep(self) -> None:
        """None: a broker creates the file, and `tools` maintain it."""

    @property
    def tools(self) -> SqliteTools | None:
        """Checks, repairs and copies the file; None if the store is in memory."""
        if self._directory is None:
            return None
        return SqliteTools(
            Path(self._path), durable=self._durability == "durable",
            page_checksums=self._page_checksums,
        )  # fmt: skip

    def event_log(self) -> SqliteEventLogReader | None:
        """Return a reader of the events in the file; None if the store is in memory."""
        return None if self._directory is None else SqliteEventLogReader(Path(self._path).parent)

    def reader(self) -> Callable[[], SqliteReader] | None:
        """Return what opens a reader of the file; None if the store is in memory."""
        if self._directory is None:
            return None
        return lambda: SqliteReader(Path(self._path), self.engine.reader)

    # Opening and closing

    def open(self) -> Recovered:
        """Open or create the file; see `QueueStore.open`."""
        if self._directory is not None:
            self._directory.serve(self._expected)
        try:
            return self._open()
        except (*UNREADABLE, *ALTERED) as error:
            self.close()
            if self._directory is not None and self._is_full(error):
                raise self._directory.full() from error
            raise StoreError(
                f"cannot open the store {self._path}: {explain(error)}; {ASK}"
            ) from error
        except OSError as error:
            self.close()
            raise StoreError(f"cannot open the store {self._path}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> Recovered:
        self._broken = None
        self._db = db = self._connect()
        if self._directory is not None:
            check_quickly(db, Path(self._path))
        if self._expected:
            check_expected(_values(db), self._path, self._expected)
        prepare(db, self._path)
        use_log(db, BUSY_TIMEOUT)
        db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        db.execute("PRAGMA temp_store = MEMORY")
        # SQLite's default. Some builds overwrite deleted rows with zeros, which writes more pages.
        db.execute("PRAGMA secure_delete = OFF")
        if self._directory is not None:
            db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            self._checkpointer = Checkpointer(
                self._path, self._sync_every, external=self._external, vfs=self._vfs
            )
        recovered = self.engine.open(SqliteRows(db, (*TABLES, *SCHEDULE_TABLES)))
        if self._directory is not None:
            self._record_files(self._directory, recovered)
        if self._checkpointer is not None:
            self._checkpointer.start(db)
        return recovered

    def _connect(self) -> apsw.Connection:
        durable = self._durability == "durable"
        log = LogEnd(0, 0)
        if self._directory is not None:
            log = check_log(Path(self._path), durable=durable)
        page_checksums = self._page_checksums or None
        db = connect(
            self._path,
            busy=BUSY_TIMEOUT,
            statements=STATEMENTS,
            vfs=self._vfs,
            page_checksums=page_checksums,
        )
        self._refuse_other(db, logged=log.used)
        if page_checksums and not has_page_checksums(db):
            logger.warning(
                "the store %s was made without page checksums and goes on without: eventmq fsck "
                "--salvage DEST makes a new one that has them", self._path,
            )  # fmt: skip
        if self._external:
            db.wal_autocheckpoint(0)
            leave_log(db)
        if log.beyond or (log.used and not self._external):
            empty_log(db)
        return db

    def _refuse_other(self, db: apsw.Connection, *, logged: bool) -> None:
        """Refuse a store of another version, leaving its file and its log unchanged."""
        try:
            with contextlib.suppress(*DAMAGED):  # a later check reports it with its location
                if not is_empty(db):
                    check_schema(db, self._path, migrates=True)
        except BaseException:
            if logged:
                leave_log(db)
            db.close()
            raise

    def _record_files(self, directory: DataDirectory, recovered: Recovered) -> None:
        """Record which files are open, and log that a new store was created."""
        assert self._db is not None  # noqa: S101 - called by open
        self._opened = OpenedFiles(directory.database, directory.descriptors, has_moved(self._db))
        if directory.new:
            message = "there was no store in %s: a new one was made, and its id is %s"
            logger.info(message, directory.path, recovered.store_id)

    def close(self) -> None:
        """Close the file and free the lock. Idempotent."""
        if self._checkpointer is not None:
            self._checkpointer.stop()
        if self._db is not None:
            if self._is_in_place():
                with contextlib.suppress(*UNREADABLE):
                    self._db.execute("PRAGMA optimize")
            else:
                leave_log(self._db)
            self._db.close()
            self._db = None
        self._checkpointer = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        if self._directory is not None:
            self._directory.close()

    def _is_in_place(self) -> bool:
        """Return whether the files are still at their paths; True if they were not recorded."""
        try:
            self.verify()
        except StoreError:
            return False
        return True

    # Commits

    def submit(self, batch: Sequence[Write]) -> None:
        """Commit a batch; SQLite ends it before this returns."""
        write_results = self._commit(batch)
        stored = not isinstance(write_results, Exception)
        if stored and self._opened is not None:
            try:
                self._opened.committed()
            except StoreError as error:  # the next start would not find what was stored
                write_results = error
        self._write_results.append(write_results)
        if stored and self._checkpointer is not None and self._db is not None:
            self._checkpointer.committed(self._db)

    def verify(self) -> None:
        """Check that the files are still at their paths; see `QueueStore.verify`."""
        if self._opened is not None:
            self._opened.verify()

    def finished(self) -> list[Sequence[Any] | Exception]:
        """Return the write results of the commits since the last call."""
        write_results, self._write_results = self._write_results, []
        return write_results

    def gauges(self) -> Mapping[str, float]:
        """Return the size of the file, the free bytes of its disk and the reserve."""
        return {} if self._directory is None else self._directory.gauges()

    def fileno(self) -> int | None:
        """Return None: a commit never ends between two calls."""
        return None

    def _commit(self, batch: Sequence[Write]) -> Sequence[Any] | Exception:
        assert self._db is not None, "the store is not open"  # noqa: S101
        if self._broken is not None:
            return self._broken
        try:
            if self._directory is not None:
                self._check_space(self._directory)
            return self.engine.commit(batch)
        except CannotUndo as error:
            self._broken = store_error(self._path, error.cause, "cannot undo a commit that failed")
            return self._broken
        except Exception as error:  # noqa: BLE001 - every failure is a result
            return self._failure(error)

    def _check_space(self, directory: DataDirectory) -> None:
        self.engine.refuse(new_jobs=directory.low(self._clock.monotonic()))
        if self._checkpointer is not None:
            self._checkpointer.bound(directory.space)

    def _make_room(self) -> None:
        """Free disk space, so that running jobs can be finished; called between commits."""
        if self._directory is not None:
            self._directory.release_ballast()
        if self._checkpointer is not None and self._db is not None:
            self._checkpointer.make_room(self._db)

    def _is_full(self, error: Exception) -> bool:
        if lacks_index_space(error):
            return self._directory is not None and self._directory.exhausted()
        return isinstance(error, DISK_FULL)

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, StoreError):
            return error
        if self._is_full(error):
            try:
                self._make_room()
            except OSError as failure:
                return store_error(self._path, failure)
            return QueueFull("the disk is full")
        return store_error(self._path, error)


def _values(db: apsw.Connection) -> Mapping[str, Any]:
    """Return the single values of a file, which may still be empty."""
    return {} if is_empty(db) else SqliteRows(db, ()).values()


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the store; see the settings page for their meaning."""

    page_checksums: bool = False
    checkpoints: Literal["broker", "litestream"] = "broker"
    directory: str = ".eventmq"
    durability: Literal["durable", "relaxed"] = "durable"
    fsync_interval: float = option(0.05, gt=0)
    dedupe_window: float = option(86_400.0, ge=0)
    keep_results: float = option(86_400.0, ge=0)
    reserve: int = option(256 * 1024 * 1024, ge=0)
    events_ring: int = option(EVENTS_RING, ge=0)
    events_cap: int = option(EVENTS_CAP, ge=0)
    events_values: int = option(0, ge=0)
    expect_store: str = ""


def make_store(context: PluginContext) -> QueueStore:
    """Return a store; raises `PluginError` for a wrong option."""
    options = asdict(read_options(context, Options))
    if options["page_checksums"] and not can_checksum_pages():
        raise PluginError(
            "page_checksums needs an extension of SQLite that this apsw does not have; install "
            "apsw from a wheel of PyPI, unpacked"
        )
    return SqliteStore(Path(options.pop("directory")), context.clock, **options)


@hookimpl
def eventmq_queue_stores() -> Mapping[str, Factory[QueueStore]]:
    """Provide ``sqlite``."""
    return {"sqlite": make_store}
