"""The embedded queue store: one SQLite file in the broker's data directory.

A batch is one transaction in WAL mode with ``synchronous=FULL``, so its results come after the
fsync. The store has one owner, which holds the lock of the directory.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eventmq.errors import PluginError, QueueFull, StoreError
from eventmq.plugins.database import (
    DAMAGED,
    DISK_FULL,
    UNREADABLE,
    can_checksum_pages,
    connect,
    explain,
    has_moved,
    has_page_checksums,
    lacks_index_space,
    leave_log,
    use_log,
)
from eventmq.plugins.queue_stores.sqlite.additions import move_waits, prepare_additions
from eventmq.plugins.queue_stores.sqlite.checkpoint import LOG_BYTES, Checkpointer
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME, DataDirectory, OpenedFiles
from eventmq.plugins.queue_stores.sqlite.errors import ALTERED, ASK, store_error
from eventmq.plugins.queue_stores.sqlite.event_log import CAP, RING, EventLog, SqliteEventLogReader
from eventmq.plugins.queue_stores.sqlite.graphs import GraphReads, next_deadline, open_graphs
from eventmq.plugins.queue_stores.sqlite.operations import (
    FailedJobs,
    OperatorWrites,
    bulk_operations,
    next_expiry,
)
from eventmq.plugins.queue_stores.sqlite.quick_check import check_quickly
from eventmq.plugins.queue_stores.sqlite.reads import (
    Reads,
    highest_id,
    ids_between,
    next_seq,
    recover_chunks,
)
from eventmq.plugins.queue_stores.sqlite.rows import Tables
from eventmq.plugins.queue_stores.sqlite.schema import (
    check_expected,
    check_schema,
    identify,
    is_empty,
    load_clock,
    prepare,
    save_clock,
)
from eventmq.plugins.queue_stores.sqlite.suspects import SuspectRows
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.plugins.queue_stores.sqlite.wal import BUSY_TIMEOUT, check_log, empty_log
from eventmq.plugins.queue_stores.sqlite.writes import (
    SKEW,
    LimitRows,
    Mismatch,
    Writes,
    id_horizon,
    next_ready_at,
    schedule_handlers,
)
from eventmq.sdk import hookimpl, read_options
from eventmq.store.reads import (
    FindJobs,
    FindLineage,
    History,
    ListFailed,
    ListGraph,
    ListJobs,
    ReadEvents,
    ReadInputs,
    ReadQueued,
)
from eventmq.store.recovery import Recovered
from eventmq.store.writes import (
    Admit,
    AdmitGraph,
    AdvanceGraphs,
    Announce,
    ApplyToJobs,
    BeginBulkOperation,
    CancelGraph,
    CloseChunk,
    ContinueBulkOperation,
    EndDeadlines,
    Expire,
    Finish,
    ForgetQueues,
    KeepTime,
    LeaseChunk,
    Pause,
    Promote,
    PruneFailed,
    RecordEnds,
    RecordEvents,
    Requeue,
    SaveLimits,
    SaveSuspects,
    SealEvents,
)
from eventmq.timekeeping import SAVE_EVERY, Reading, Timekeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import apsw

    from eventmq.clock import Clock
    from eventmq.sdk import Factory, PluginContext, QueueStore
    from eventmq.store import Write

__all__ = ["SqliteStore", "eventmq_queue_stores"]

logger = logging.getLogger("eventmq.store")

#: The dedupe window is cut into this many buckets.
BUCKETS = 12

#: Seconds between two looks for buckets that can go.
PRUNE_EVERY = 60.0

#: Prepared statements that are kept. One that was not used in so many executions goes, too: what
#: each commit does stays prepared.
STATEMENTS = 256

#: Kibibytes of page cache.
CACHE_KIB = 32 * 1024

_SYNCHRONOUS = {"durable": "FULL", "relaxed": "NORMAL", "memory": "OFF"}


class SqliteStore:
    """A `QueueStore` in an SQLite file, or in memory where ``directory`` is None.

    Args:
        directory: The data directory.
        clock: Reads time.
        durability: ``durable``, ``relaxed`` or ``memory``.
        fsync_interval: Seconds between two syncs of ``relaxed``.
        dedupe_window: Seconds that the id of an ended job is refused.
        keep_results: Seconds that outcomes are kept at most.
        reserve: Bytes of the disk that new jobs leave free.
        events_ring: Bytes of events that are kept until a journal comes.
        events_cap: Bytes of events that are kept from then on.
        events_values: Bytes of arguments and results in one row of events, 0 for none.
        expect_store: Id that the store must have; empty: any, and a missing store is made.
        page_checksums: A new store gets a checksum on each page.
        vfs: Name of the file layer of SQLite under all connections that write, None for the
            default one: a test may fail system calls there.
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
        events_ring: int = RING,
        events_cap: int = CAP,
        events_values: int = 0,
        expect_store: str = "",
        page_checksums: bool = False,
        vfs: str | None = None,
    ) -> None:
        self._clock = clock
        self._page_checksums = page_checksums
        self._vfs = vfs
        self._expected = expect_store
        self._opened: OpenedFiles | None = None
        self._directory = DataDirectory(directory, reserve) if directory is not None else None
        self._durability = durability
        self._dedupe_window = dedupe_window
        self._keep = max(dedupe_window, keep_results)
        self._bucket_seconds = max(dedupe_window / BUCKETS, 1.0)
        self._keeper = Timekeeper()
        #: Wall time at which ids were looked at, and after how many seconds they are again.
        self._scanned_at = 0.0
        self._scan_every = min(SKEW, dedupe_window) / 2
        self._sync_every = fsync_interval if durability == "relaxed" else 0.0
        self._events = (events_ring, events_cap, events_values)
        self._db: apsw.Connection | None = None
        self._checkpointer: Checkpointer | None = None
        self._write_results: list[Sequence[Any] | Exception] = []
        #: Why nothing is committed any more.
        self._broken: StoreError | None = None
        self._pruned = float("-inf")
        self._path = ":memory:" if directory is None else str(directory / FILE_NAME)

    @property
    def tools(self) -> SqliteTools | None:
        """Checks, repairs and copies the file; None where there is none."""
        if self._directory is None:
            return None
        return SqliteTools(
            Path(self._path), durable=self._durability == "durable",
            page_checksums=self._page_checksums,
        )  # fmt: skip

    def event_log(self) -> SqliteEventLogReader | None:
        """Return a reader of the events in the file; None where there is none."""
        return None if self._directory is None else SqliteEventLogReader(Path(self._path).parent)

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
            msg = f"cannot open the store {self._path}: {explain(error)}; {ASK}"
            raise StoreError(msg) from error
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
        check_expected(db, self._path, self._expected)
        prepare(db, self._path)
        use_log(db, BUSY_TIMEOUT)
        db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        db.execute("PRAGMA temp_store = MEMORY")
        # SQLite's own default; some builds write zeros, and so whole pages, for all that ends.
        db.execute("PRAGMA secure_delete = OFF")
        if self._directory is not None:
            db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            self._checkpointer = Checkpointer(self._path, self._sync_every, vfs=self._vfs)
        db.execute("BEGIN IMMEDIATE")
        self._keeper = keeper = Timekeeper()
        clock = self._clock
        keeper.start(Reading(clock.now(), clock.boottime(), clock.boot_id()), load_clock(db))
        self._tables = tables = Tables(db, self._bucket_seconds)
        prepare_additions(db)
        self._writes = writes = Writes(tables, self._dedupe_window, keeper)
        writes.unique.release_lonely()
        self._event_log = EventLog(db, *self._events)
        recovered = self._recover(tables)
        save_clock(db, keeper.record())
        db.execute("COMMIT")
        keeper.saved()
        if self._directory is not None:
            self._record_files(self._directory, recovered)
        if self._checkpointer is not None:
            self._checkpointer.start(db)
        writes.epoch = recovered.epoch
        self._scan_ids()
        handlers = self._make_handlers(writes) | schedule_handlers(db)
        self._handlers = handlers | _event_handlers(self._event_log)
        return recovered

    def _connect(self) -> apsw.Connection:
        durable = self._durability == "durable"
        logged = self._directory is not None and check_log(Path(self._path), durable=durable)
        page_checksums = self._page_checksums or None
        db = connect(
            self._path,
            busy=BUSY_TIMEOUT,
            statements=STATEMENTS,
            vfs=self._vfs,
            page_checksums=page_checksums,
        )
        self._refuse_other(db, logged=logged)
        if page_checksums and not has_page_checksums(db):
            logger.warning(
                "the store %s was made without page checksums and goes on without: eventmq fsck "
                "--salvage DEST makes a new one that has them", self._path,
            )  # fmt: skip
        if logged:
            empty_log(db)
        return db

    def _refuse_other(self, db: apsw.Connection, *, logged: bool) -> None:
        """Refuse a store of another version, and leave its file and its log as they are."""
        try:
            with contextlib.suppress(*DAMAGED):  # it is told later, with its place
                if not is_empty(db):
                    check_schema(db, self._path, migrates=True)
        except BaseException:
            if logged:
                leave_log(db)
            db.close()
            raise

    def _record_files(self, home: DataDirectory, recovered: Recovered) -> None:
        """Remember which files are open, and tell of a store that was not there before."""
        assert self._db is not None  # noqa: S101 - called by open
        self._opened = OpenedFiles(home.database, home.descriptors, has_moved(self._db))
        if home.new:
            message = "there was no store in %s: a new one was made, and its id is %s"
            logger.info(message, home.path, recovered.store_id)

    def _make_handlers(self, writes: Writes) -> dict[type, Callable[[Any], Any]]:
        reads = Reads(writes.tables, self._keeper)
        operations = OperatorWrites(writes.tables, writes, reads)
        self._graphs = GraphReads(writes.graphs, reads, operations.cancel)
        handlers = _handlers(writes, reads, self._limits, operations)
        handlers[SaveSuspects] = self._suspects.save
        handlers[KeepTime] = lambda _: self._keeper.save_soon()
        return handlers | _graph_handlers(writes, self._graphs)

    def _scan_ids(self) -> None:
        """Tell which ids need no look-up, and which always do.

        Ids have the wall time of who made them. What is known of them is worth something for as
        long as wall time does not go half as far as is looked ahead, or back: then it is anew.
        """
        wall, writes, tables = self._keeper.wall, self._writes, self._tables
        horizon = id_horizon(wall)
        writes.highest_id = highest_id(tables, horizon)
        writes.future_ids = ids_between(tables, horizon, id_horizon(wall + self._dedupe_window))
        writes.wall = self._scanned_at = wall

    def _recover(self, tables: Tables) -> Recovered:
        store_id, epoch = identify(tables.db, self._clock.now())
        ready_at = next_ready_at(tables.db, self._keeper.ahead)
        chunks = recover_chunks(tables)
        self._limits, self._suspects = LimitRows(tables), SuspectRows(tables)
        self._limits.prune(self._keeper.now)
        return Recovered(
            store_id, epoch, next_seq(tables), tables.counts(), chunks, ready_at,
            next_expiry(tables, 0.0), bulk_operations(tables), tables.subqueues(),
            self._limits.rows(),
            self._event_log.head.next, open_graphs(tables.db), next_deadline(tables.db),
            self._suspects.rows(), self._keeper,
        )  # fmt: skip

    def close(self) -> None:
        """Close the file and free the lock. Idempotent."""
        if self._checkpointer is not None:
            self._checkpointer.stop()
        if self._db is not None:
            if self._is_there():
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

    def _is_there(self) -> bool:
        """Return whether the files are still where they were opened, as far as it was noted."""
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
            except StoreError as error:  # what was stored cannot be found
                write_results = error
        self._write_results.append(write_results)
        if stored and self._checkpointer is not None and self._db is not None:
            self._checkpointer.committed(self._db)

    def verify(self) -> None:
        """Check that the files are still where they were opened; see `QueueStore.verify`."""
        if self._opened is not None:
            self._opened.verify()

    def finished(self) -> list[Sequence[Any] | Exception]:
        """Return the write results of the commits since the last call."""
        write_results, self._write_results = self._write_results, []
        return write_results

    def fileno(self) -> int | None:
        """Return None: nothing ever ends between two calls."""
        return None

    def _commit(self, batch: Sequence[Write]) -> Sequence[Any] | Exception:
        assert self._db is not None, "the store is not open"  # noqa: S101
        if self._broken is not None:
            return self._broken
        highest = self._writes.highest_id
        try:
            if self._directory is not None:
                self._check_space(self._directory)
            highest = self._read_clocks()
            try:
                return self._transaction(batch)
            except Mismatch:
                self._roll_back(highest)
                self._writes.check_missing = True
                return self._transaction(batch)
        except Exception as error:  # noqa: BLE001 - every failure is a result
            try:
                self._roll_back(highest)
                return self._failure(error)
            except StoreError as failure:
                return failure
        finally:
            self._writes.check_missing = False

    def _read_clocks(self) -> str:
        """Read the clocks; return the id above which none needs a look-up."""
        keeper, clock, writes = self._keeper, self._clock, self._writes
        keeper.advance(clock.now(), clock.boottime())
        writes.wall = keeper.wall
        if abs(writes.wall - self._scanned_at) > self._scan_every:
            self._scan_ids()
        return writes.highest_id

    def _transaction(self, batch: Sequence[Write]) -> Sequence[Any]:
        db = self._db
        assert db is not None  # noqa: S101 - checked by the caller
        handlers = self._handlers
        db.execute("BEGIN IMMEDIATE")
        graphs = self._writes.graphs
        if graphs.advanced or graphs.pending:
            graphs.reset()
        write_results = [handlers[type(write)](write) for write in batch]
        keeper = self._keeper
        results, now, ahead, addition = write_results, keeper.now, keeper.ahead, keeper.addition()
        if graphs.pending:
            advance = AdvanceGraphs(now, ahead=ahead)
            batch = [*batch, advance]
            results = [*write_results, graphs.advance(advance)]
        self._prune()
        self._event_log.append(batch, results, now, ahead, keeper.spares(now))
        self._tables.flush_counts()
        saves = keeper.unsaved_for >= SAVE_EVERY
        if addition is not None:  # the batch was decided before it
            move_waits(db, addition)
        if saves:
            save_clock(db, keeper.record(addition))
        db.execute("COMMIT")
        if saves:
            keeper.saved()
        if addition is not None:
            keeper.confirm()
        return write_results

    def _prune(self) -> None:
        now = self._keeper.now
        if now - self._pruned >= PRUNE_EVERY:
            self._pruned = now
            before = self._keeper.before(now - self._keep)
            self._tables.drop_buckets_before(before)
            self._tables.drop_queues_before(before - self._bucket_seconds)
            self._limits.prune(now)
            more = self._writes.attempts.prune(before - self._bucket_seconds)
            if self._graphs.prune(before - self._bucket_seconds) or more:
                self._pruned = float("-inf")  # the rest with the next commits

    def _check_space(self, home: DataDirectory) -> None:
        self._writes.refuse = home.low(self._clock.monotonic())
        if self._checkpointer is not None:
            self._checkpointer.bound(home.space)

    def _make_room(self) -> None:
        """Give back what can be, so that what runs is finished; nothing is committed meanwhile."""
        if self._directory is not None:
            self._directory.release_ballast()
        if self._checkpointer is not None and self._db is not None:
            self._checkpointer.make_room(self._db)

    def _is_full(self, error: Exception) -> bool:
        if lacks_index_space(error):
            return self._directory is not None and self._directory.exhausted()
        return isinstance(error, DISK_FULL)

    def _roll_back(self, highest: str) -> None:
        """Undo what a commit did, in the database and in what is kept of it in memory.

        Raises:
            StoreError: Memory may now have what the database has not, such as the number of a
                queue. Jobs stored with that would be lost at the next start, receipts and all: so
                nothing is committed any more.
        """
        assert self._db is not None  # noqa: S101 - checked by the caller
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._tables.reload()
            self._event_log.reload()
        except Exception as error:
            self._broken = store_error(self._path, error, "cannot undo a commit that failed")
            raise self._broken from error
        self._writes.highest_id = highest

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, StoreError):
            return error
        if self._is_full(error):
            try:
                self._make_room()
            except OSError as trouble:
                return store_error(self._path, trouble)
            return QueueFull("the disk is full")
        return store_error(self._path, error)


def _graph_handlers(writes: Writes, graphs: GraphReads) -> dict[type, Callable[[Any], Any]]:
    return {
        AdmitGraph: writes.admit_graph,
        AdvanceGraphs: writes.graphs.advance,
        CancelGraph: graphs.cancel,
        EndDeadlines: graphs.end_deadlines,
        FindLineage: graphs.lineage,
        ListGraph: graphs.page,
        ReadInputs: writes.graphs.inputs.page,
    }


def _handlers(
    writes: Writes, reads: Reads, limits: LimitRows, operations: OperatorWrites
) -> dict[type, Callable[[Any], Any]]:
    failed_jobs = FailedJobs(writes.tables, writes.attempts, writes.graphs.inputs)
    return {
        Admit: writes.admit,
        Finish: writes.finish,
        Requeue: writes.requeue,
        LeaseChunk: writes.lease_chunk,
        CloseChunk: writes.close_chunk,
        Promote: writes.promote,
        Expire: operations.expire,
        SaveLimits: limits.save,
        ReadQueued: reads.read_queued,
        FindJobs: reads.find,
        ListJobs: reads.list_jobs,
        History: writes.attempts.history,
        ApplyToJobs: operations.apply,
        BeginBulkOperation: operations.begin_bulk,
        ContinueBulkOperation: operations.bulk_slice,
        Pause: operations.pause,
        ForgetQueues: operations.forget_queues,
        ListFailed: failed_jobs.list_failed,
        PruneFailed: failed_jobs.prune,
    }


def _event_handlers(event_log: EventLog) -> dict[type, Callable[[Any], Any]]:
    return {
        RecordEvents: lambda _: None,  # the event is all there is
        RecordEnds: lambda _: None,
        Announce: event_log.announce,
        ReadEvents: event_log.read,
        SealEvents: event_log.seal,
    }


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the store; see the settings page for their meaning."""

    page_checksums: bool = False
    directory: str = ".eventmq"
    durability: Literal["durable", "relaxed"] = "durable"
    fsync_interval: float = 0.05
    dedupe_window: float = 86_400.0
    keep_results: float = 86_400.0
    reserve: int = 256 * 1024 * 1024
    events_ring: int = RING
    events_cap: int = CAP
    events_values: int = 0
    expect_store: str = ""


def make_store(context: PluginContext) -> QueueStore:
    """Return a store; raises `PluginError` for a wrong option."""
    options = asdict(read_options(context, Options))
    if options["page_checksums"] and not can_checksum_pages():
        msg = (
            "page_checksums needs an extension of SQLite that this apsw does not have; install "
            "apsw from a wheel of PyPI, unpacked"
        )
        raise PluginError(msg)
    return SqliteStore(Path(options.pop("directory")), context.clock, **options)


@hookimpl
def eventmq_queue_stores() -> Mapping[str, Factory[QueueStore]]:
    """Provide ``sqlite``."""
    return {"sqlite": make_store}
