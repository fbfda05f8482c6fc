"""Engine: carries out the batches of a broker, each in one transaction of a `RowStore`.

The events of a commit are stored with it as one row, or as several if the commit is huge. A row
stays until a journal has its events or the space for events is used up. The newest row is never
deleted: the number of the next event is computed from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.engine import damaged
from eventmq.engine.additions import move_waits
from eventmq.engine.contract import Mismatch
from eventmq.engine.identity import identify, read_clock, save_clock
from eventmq.engine.listings import Listings, Reader
from eventmq.engine.operations import (
    FailedJobs,
    OperatorWrites,
    bulk_operations,
    next_expiry,
)
from eventmq.engine.reads import (
    GraphReads,
    LineageIndex,
    Reads,
    highest_id,
    ids_between,
    next_deadline,
    next_seq,
    open_graphs,
    recover_chunks,
)
from eventmq.engine.rows import Tables
from eventmq.engine.schedules import schedule_handlers
from eventmq.engine.writes import (
    SKEW,
    LimitRows,
    SuspectRows,
    Writes,
    id_horizon,
    next_ready_at,
)
from eventmq.events import gap, pack_blocks
from eventmq.store.events import events_of, portions
from eventmq.store.metrics import JobMetrics
from eventmq.store.reads import (
    CountJobs,
    EventLogHead,
    EventRow,
    FindJobs,
    FindLineage,
    GroupFailures,
    History,
    ListFailed,
    ListGraph,
    ListJobs,
    LoadSchedules,
    ReadEvents,
    ReadInputs,
    ReadLogs,
    ReadQueued,
)
from eventmq.store.recovery import Recovered
from eventmq.store.writes import (
    Admit,
    AdmitGraph,
    AdvanceGraphs,
    AdvanceSchedules,
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
    PartlyStored,
    Pause,
    Promote,
    PruneFailed,
    PutSchedule,
    RecordEnds,
    RecordEvents,
    RecordOperation,
    RemoveSchedule,
    Requeue,
    SaveLimits,
    SaveSchedules,
    SaveSuspects,
    SealEvents,
)
from eventmq.timekeeping import SAVE_EVERY, Passed, Reading, Timekeeper
from eventmq.wire.batches import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.clock import Clock
    from eventmq.engine.contract import RowStore
    from eventmq.events import Block
    from eventmq.store import Write

__all__ = ["EVENTS_CAP", "EVENTS_RING", "CannotUndo", "Engine", "EventLog"]

#: Number of periods in the dedupe window.
PERIODS = 12

#: Seconds between two searches for periods to drop.
PRUNE_EVERY = 60.0

#: Bytes of events that are kept until a journal seals some for the first time.
EVENTS_RING = 64 * 1024 * 1024

#: Bytes that are kept from then on.
EVENTS_CAP = 1024 * 1024 * 1024

#: Maximum number of rows, and of bytes, that one commit deletes.
SLICE = 5000

SLICE_BYTES = 8 * 1024 * 1024

#: Events after which a new row begins, since a row must fit into one frame.
ROW_EVENTS = 20_000

#: Rows that one scan reads to add up their sizes.
_PAGE = 1000

#: When the space for events is full, 1/64 of it is freed at once.
_SHARE = 64

_EVENT_ROW = ("first", "count", "offset", "body")

#: Writes and reads that a peer requests. The other writes of a batch do not depend on them, so one
#: that the store refuses can be left out.
_SEPARABLE = (
    Admit, AdmitGraph, AdvanceSchedules, ApplyToJobs, BeginBulkOperation, CountJobs, FindJobs,
    FindLineage, GroupFailures, History, ListFailed, ListGraph, ListJobs, LoadSchedules,
    PutSchedule, ReadEvents, ReadInputs, ReadLogs, RemoveSchedule, SaveSchedules, SealEvents,
)  # fmt: skip


class EventLog:
    """Table of events. Handles `ReadEvents` and `SealEvents`.

    Args:
        store: The rows.
        ring: Bytes of events that are kept until a journal seals some for the first time.
        cap: Bytes of events that are kept from then on.
        values: Maximum bytes of arguments and results in one row, 0 to store none.
    """

    def __init__(self, store: RowStore, ring: int, cap: int, values: int = 0) -> None:
        self.store = store
        self._ring, self._cap, self._values = ring, cap, values
        self._gaps: list[Block] = []
        self._lineage = LineageIndex(store)
        self.reload()

    def reload(self) -> None:
        """Read the state from the store: when it is opened, and after a rollback."""
        self._first, _, self._start, _ = self._end_row(descending=False)
        last, n, offset, size = self._end_row(descending=True)
        self._next, self._end = last + n, offset + size
        values = self.store.values()
        self._journal: str = values.get("journal", "")
        self._sealed: int = values.get("journal_sealed", 0)
        self._journal_seen_at: float = values.get("journal_told", 0.0)
        #: Whether sealed rows may still be in the table.
        self._unpruned = self._first <= self._sealed
        self._gaps.clear()
        self._lineage.clear()

    def _end_row(self, *, descending: bool) -> tuple[Any, ...]:
        columns = ("first", "count", "offset", "size")
        [row] = list(self.store.scan("events", columns, limit=1, descending=descending)) or [
            (1, 0, 0, 0)
        ]
        return row

    @property
    def head(self) -> EventLogHead:
        """Range of the stored events, and the journal and its last sealed event."""
        return EventLogHead(self._first, self._next, self._journal, self._sealed)

    # hot loop: python -m benchmarks drain
    def append(
        self,
        batch: Sequence[Any],
        write_results: Sequence[Any],
        now: float,
        ahead: float,
        spared: Callable[[float], float] | None = None,
    ) -> Sequence[Block]:
        """Write and return the events of a commit; delete rows that are sealed or do not fit."""
        blocks = events_of(batch, write_results, self._lineage.find, ahead, spared)
        written = blocks.copy()
        if self._unpruned:
            self._prune()
        if self._end - self._start > (self._cap if self._journal else self._ring):
            self._make_room(now + ahead)
        if self._gaps:
            blocks += self._gaps
            self._gaps.clear()
        if self._values:
            for portion in portions(blocks, batch, write_results, self._values):
                self._write(portion)
        else:
            self._write(blocks)
        return written

    def _write(self, blocks: list[Block]) -> None:
        while blocks:
            n, block_count = 0, 0
            for block in blocks:  # nearly always all blocks
                n, block_count = n + len(block.ids), block_count + 1
                if n >= ROW_EVENTS:
                    break
            remaining = blocks[block_count:]
            del blocks[block_count:]
            body = pack_blocks(blocks)
            self.store.insert("events", _EVENT_ROW, [(self._next, n, self._end, body)])
            self._end += len(body)
            self._next += n
            blocks = remaining

    # Pruning

    def _oldest(self, max_first: int, sufficient: int) -> tuple[int, int] | None:
        """Return number and offset of the row up to which this commit may delete, None for none.

        Args:
            max_first: No row that begins after this number is deleted or returned.
            sufficient: The offset up to which deleting suffices.
        """
        sufficient = min(sufficient, self._start + SLICE_BYTES)
        first = offset = 0
        rows = self.store.scan("events", ("first", "offset"), le=(max_first,), limit=SLICE + 1)
        for first, offset in rows:  # noqa: B007 - used after the loop
            if offset >= sufficient:
                break
        return (first, offset) if first > self._first else None

    def _prune(self) -> None:
        """Delete rows whose events are all sealed by a journal."""
        oldest = self._oldest(self._sealed + 1, self._end)
        if oldest is None:
            self._unpruned = False
        else:
            self._cut(*oldest)

    def _make_room(self, now: float) -> None:
        """Delete the oldest rows; report those that the journal lacks as a gap."""
        limit = self._cap if self._journal else self._ring
        oldest = self._oldest(self._next, self._end - limit + limit // _SHARE)
        if oldest is None:
            return
        self._cut(*oldest)
        missing = self._sealed + 1  # the event of an earlier gap may have been deleted as well
        if self._journal and missing < self._first:
            self._gaps.append(gap(missing, self._first - 1, now))

    def _cut(self, first: int, offset: int) -> None:
        """Delete all rows before this one."""
        self.store.delete_range("events", lt=(first,))
        self._first, self._start = first, offset

    # Handlers

    def read(self, write: ReadEvents) -> tuple[list[EventRow], EventLogHead]:
        """Read rows of events."""
        scan, after = self.store.scan, write.after
        columns = ("first", "count", "offset")
        start = list(scan("events", columns, le=(after + 1,), limit=1, descending=True))
        if not start or start[0][0] + start[0][1] <= after + 1:
            start = list(scan("events", columns, gt=(after + 1,), limit=1))
        if not start:
            return [], self.head
        first, _, offset = start[0]
        last = self._last_within(first, offset + write.max_bytes)
        rows = scan("events", ("first", "count", "body"), ge=(first,), le=(last,))
        return list(map(EventRow._make, rows)), self.head

    def _last_within(self, last: int, end: int) -> int:
        """Return the number of the last row, starting at ``last``, that begins before an offset."""
        columns = ("first", "offset")
        for first, offset in damaged.pages(
            self.store, "events", columns, lambda row: row[:1], portion=_PAGE, gt=(last,)
        ):
            if offset >= end:
                break
            last = first
        return last

    def announce(self, write: Announce) -> None:
        """Store the addresses of the broker."""
        self.store.set_values({"addresses": pack(dict(write.addresses))})

    def seal(self, write: SealEvents) -> tuple[EventLogHead, bool]:
        """Record what a journal has sealed; return True if another journal holds the log."""
        if (
            self._journal not in {"", write.journal}
            and write.at - self._journal_seen_at < write.timeout
        ):
            return self.head, True
        if write.sealed >= self._next:
            return self.head, False  # the journal has events that this store never had
        again = (write.journal, write.sealed) == (self._journal, self._sealed)
        if write.sealed + 1 < self._first and not again:
            self._gaps.append(gap(write.sealed + 1, self._first - 1, write.at))
        self._journal, self._sealed, self._journal_seen_at = write[:3]
        self._unpruned = True
        self.store.set_values({
            "journal": write.journal, "journal_sealed": write.sealed, "journal_told": write.at,
        })  # fmt: skip
        return self.head, False


class CannotUndo(Exception):
    """A commit failed, and the state in memory cannot be read again from the store.

    Memory may now contain what the store lacks, such as the number of a queue. Jobs stored under it
    would be lost at the next start, even those with receipts, so the engine must not be used again.

    Args:
        cause: The error that prevented the rollback or the reading.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Engine:
    """Carries out all kinds of writes on the rows of a store.

    Args:
        clock: Reads time.
        dedupe_window: Seconds for which the id of an ended job is refused.
        keep_results: Maximum seconds for which outcomes are kept.
        events_ring: Bytes of events that are kept until a journal seals some for the first time.
        events_cap: Bytes of events that are kept from then on.
        events_values: Maximum bytes of arguments and results in one row of events, 0 for none.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        dedupe_window: float = 86_400.0,
        keep_results: float = 86_400.0,
        events_ring: int = EVENTS_RING,
        events_cap: int = EVENTS_CAP,
        events_values: int = 0,
    ) -> None:
        self._clock = clock
        self._dedupe_window = dedupe_window
        self._keep = max(dedupe_window, keep_results)
        self._period = max(dedupe_window / PERIODS, 1.0)
        #: Wall time at which ids were scanned, and seconds until they are scanned again.
        self._scanned_at = 0.0
        self._scan_every = min(SKEW, dedupe_window) / 2
        self._events = (events_ring, events_cap, events_values)
        self.keeper = Timekeeper()
        #: Counts all commits of this process, also when the store is opened again.
        self.metrics = JobMetrics()
        self._pruned = float("-inf")

    def open(
        self, rows: RowStore, *, epoch: int | None = None, passed: Passed | None = None
    ) -> Recovered:
        """Read the stored state in a transaction of its own, and use these rows from now on.

        Args:
            rows: The store; its tables exist.
            epoch: Number of this opening; None for one more than the last.
            passed: Bounds, known from other sources than the clocks, for the seconds since the last
                commit; None if there are none.

        Raises:
            ProtocolError: A stored value was not written by an engine.
        """
        self._rows = rows
        rows.begin(careful=True)
        self.keeper = keeper = Timekeeper()
        clock, record = self._clock, read_clock(rows.values().get("clock"))
        keeper.start(Reading(clock.now(), clock.boottime(), clock.boot_id()), record, passed)
        self.tables = tables = Tables(rows, self._period)
        self.writes = writes = Writes(tables, self._dedupe_window, keeper)
        writes.unique.release_orphans()
        self.event_log = EventLog(rows, *self._events)
        recovered = self._recover(tables, epoch)
        save_clock(rows, keeper.record())
        rows.commit()
        keeper.saved()
        writes.epoch = recovered.epoch
        self._scan_ids()
        self._handlers = self._make_handlers() | schedule_handlers(rows)
        return recovered

    def _recover(self, tables: Tables, epoch: int | None) -> Recovered:
        rows = tables.store
        store_id, epoch = identify(rows, self._clock.now(), epoch)
        ready_at = next_ready_at(rows, self.keeper.ahead)
        chunks = recover_chunks(tables)
        self.limits, self._suspects = LimitRows(tables), SuspectRows(tables)
        self.limits.prune(self.keeper.now)
        return Recovered(
            store_id, epoch, next_seq(tables), tables.counts(), chunks, ready_at,
            next_expiry(tables, 0.0), bulk_operations(tables), tables.subqueues(),
            self.limits.rows(),
            self.event_log.head.next, open_graphs(rows), next_deadline(rows),
            self._suspects.rows(), self.keeper, rows.values().get("events_id", ""),
            self.metrics,
        )  # fmt: skip

    def reader(self, rows: RowStore) -> Reader:
        """Return a reader of listings, for one other thread with a connection of its own.

        Args:
            rows: The store, through that connection.
        """
        return Reader(rows, self._period, self.keeper, self._clock)

    def _scan_ids(self) -> None:
        """Find out which ids need no look-up at admission, and which always need one.

        An id contains the wall time of the client that made it. The result stays valid until wall
        time has moved by `_scan_every`, in either direction; then the ids are scanned again.
        """
        wall, writes, tables = self.keeper.wall, self.writes, self.tables
        horizon = id_horizon(wall)
        writes.highest_id = highest_id(tables, horizon)
        writes.future_ids = ids_between(tables, horizon, id_horizon(wall + self._dedupe_window))
        writes.wall = self._scanned_at = wall

    def _make_handlers(self) -> dict[type, Callable[[Any], Any]]:
        tables, writes, event_log = self.tables, self.writes, self.event_log
        reads = Reads(tables, self.keeper)
        operations = OperatorWrites(tables, writes, reads)
        self._graphs = graphs = GraphReads(writes.graphs, reads, operations.cancel)
        listings = Listings(tables, self.keeper, self._clock)
        failed_jobs = FailedJobs(tables, writes.attempts, writes.graphs.inputs)
        return {
            **listings.handlers,
            Admit: writes.admit,
            Finish: writes.finish,
            Requeue: writes.requeue,
            LeaseChunk: writes.lease_chunk,
            CloseChunk: writes.close_chunk,
            Promote: writes.promote,
            Expire: operations.expire,
            ReadQueued: reads.read_queued,
            FindJobs: reads.find,
            History: writes.attempts.history,
            ApplyToJobs: operations.apply,
            BeginBulkOperation: operations.begin_bulk,
            ContinueBulkOperation: operations.bulk_slice,
            Pause: operations.pause,
            ForgetQueues: lambda write: tables.forget_queues(write.queues, write.at),
            PruneFailed: failed_jobs.prune,
            AdmitGraph: writes.admit_graph,
            AdvanceGraphs: writes.graphs.advance,
            CancelGraph: graphs.cancel,
            EndDeadlines: graphs.end_deadlines,
            FindLineage: graphs.lineage,
            ListGraph: graphs.page,
            ReadInputs: writes.graphs.inputs.page,
            ReadLogs: writes.attempts.logs.read,
            RecordEvents: lambda _: None,  # only their events are stored
            RecordEnds: lambda _: None,
            RecordOperation: lambda _: None,
            Announce: event_log.announce,
            ReadEvents: event_log.read,
            SealEvents: event_log.seal,
            SaveLimits: self.limits.save,
            SaveSuspects: self._suspects.save,
            KeepTime: lambda _: self.keeper.save_soon(),
        }

    # Commits

    def refuse(self, *, new_jobs: bool) -> None:
        """Refuse new jobs while the disk has no room for them, or accept them again."""
        self.writes.refuse = new_jobs

    def commit(self, batch: Sequence[Write]) -> Sequence[Any]:
        """Carry out a batch in one transaction.

        Writes requested by peers whose values the store cannot keep are left out.

        Returns:
            A result for each write; a `PartlyStored` if writes were left out.

        Raises:
            CannotUndo: The commit failed, and so did its rollback.
            Exception: The error of the store. Nothing was stored, unless its type says otherwise.
        """
        writes = self.writes
        highest = writes.highest_id
        try:
            highest = self._read_clocks()
            try:
                return self._transaction(batch)
            except Mismatch:
                self._undo(highest)
                writes.check_missing = True
                return self._transaction(batch)
        except Exception as error:
            self._undo(highest)
            is_refusal = isinstance(error, self._rows.refusals)
            positions = [
                position for position, each in enumerate(batch) if isinstance(each, _SEPARABLE)
            ]
            refused = self._refused(batch, positions, highest) if is_refusal else {}
            if not refused:
                raise
            return self._leave_out(batch, refused, highest)
        finally:
            writes.check_missing = False

    def _refused(
        self, batch: Sequence[Write], positions: Sequence[int], highest: str
    ) -> dict[int, str]:
        """Return the position of each refused write, and why; found by halving the writes."""
        error = (
            self._try([batch[position] for position in positions], highest) if positions else None
        )
        if error is None:
            return {}
        if len(positions) == 1:
            return {positions[0]: str(error) or repr(error)}
        half = len(positions) // 2
        halves = positions[:half], positions[half:]
        first, second = (self._refused(batch, each, highest) for each in halves)
        return first | second

    def _try(self, writes: Sequence[Write], highest: str) -> Exception | None:
        """Try writes and roll them back; return why the store refuses them, None if it does not."""
        self.writes.check_missing = True
        try:
            self._rows.begin(careful=True)
            for write in writes:
                self._handlers[type(write)](write)
            self.tables.flush_counts()
            self._rows.values()  # sends the collected writes
        except self._rows.refusals as error:
            return error
        finally:
            self._undo(highest)
        return None

    def _leave_out(
        self, batch: Sequence[Write], refused: dict[int, str], highest: str
    ) -> PartlyStored:
        """Carry out a batch without its refused writes."""
        rest = [write for position, write in enumerate(batch) if position not in refused]
        self.writes.check_missing = True
        try:
            results = iter(self._transaction(rest) if rest else ())
        except Exception:
            self._undo(highest)
            raise
        everything = (
            None if position in refused else next(results) for position in range(len(batch))
        )
        return PartlyStored(everything, refused)

    def _undo(self, highest: str) -> None:
        """Roll a commit back, and read the state in memory again from the store."""
        try:
            self._rows.rollback()
            self.tables.reload()
            self.event_log.reload()
        except Exception as error:
            raise CannotUndo(error) from error
        self.writes.highest_id = highest

    def _read_clocks(self) -> str:
        """Read the clocks; return the highest admitted id."""
        keeper, clock, writes = self.keeper, self._clock, self.writes
        keeper.advance(clock.now(), clock.boottime())
        writes.wall = keeper.wall
        if abs(writes.wall - self._scanned_at) > self._scan_every:
            self._scan_ids()
        return writes.highest_id

    def _transaction(self, batch: Sequence[Write]) -> Sequence[Any]:
        rows, handlers, keeper = self._rows, self._handlers, self.keeper
        rows.begin(careful=self.writes.check_missing)
        graphs = self.writes.graphs
        if graphs.advanced or graphs.pending:
            graphs.reset()
        write_results = [handlers[type(write)](write) for write in batch]
        results, now, ahead, addition = write_results, keeper.now, keeper.ahead, keeper.addition()
        if graphs.pending:
            advance = AdvanceGraphs(now, ahead=ahead)
            batch = [*batch, advance]
            results = [*write_results, graphs.advance(advance)]
        self._prune()
        events = self.event_log.append(batch, results, now, ahead, keeper.spares(now))
        self.tables.flush_counts()
        saves = keeper.unsaved_for >= SAVE_EVERY
        if addition is not None:  # the broker decided the batch without it
            move_waits(rows, addition)
        if saves:
            save_clock(rows, keeper.record(addition))
        rows.commit()
        if events:
            self.metrics.count(events)
        if saves:
            keeper.saved()
        if addition is not None:
            keeper.confirm()
        return write_results

    def _prune(self) -> None:
        now = self.keeper.now
        if now - self._pruned >= PRUNE_EVERY:
            self._pruned = now
            before = self.tables.drop_periods_before(self.keeper.before(now - self._keep))
            self.tables.drop_queues_before(before - self._period)
            self.limits.prune(now)
            more = self.writes.attempts.prune(before - self._period)
            more = self.writes.attempts.logs.prune() or more
            if self._graphs.prune(before - self._period) or more:
                self._pruned = float("-inf")  # the next commits prune the rest
