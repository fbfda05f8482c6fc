"""Carries out the batches of a broker, each in one transaction of a `RowStore`, with its events.

The events of a commit are a row, of a huge one several, until a journal has it or space is short.
The newest row is never deleted: the number of the next event is read from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.engine import damaged
from eventmq.engine.additions import move_waits
from eventmq.engine.contract import Mismatch
from eventmq.engine.identity import identify, read_clock, save_clock
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
    EventLogHead,
    EventRow,
    FindJobs,
    FindLineage,
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

#: The dedupe window is cut into this many periods.
PERIODS = 12

#: Seconds between two looks for periods that can go.
PRUNE_EVERY = 60.0


#: Bytes of events that are kept until a journal has taken some for the first time.
EVENTS_RING = 64 * 1024 * 1024

#: Bytes that are kept from then on.
EVENTS_CAP = 1024 * 1024 * 1024

#: Rows, and bytes, that one commit deletes at most.
SLICE = 5000

SLICE_BYTES = 8 * 1024 * 1024

#: A row has not many more events than these: it must fit into one frame.
ROW_EVENTS = 20_000

#: Rows whose sizes are looked at together.
_PAGE = 1000

#: When it is full, this part of the space is freed at once.
_SHARE = 64

_EVENT_ROW = ("first", "count", "offset", "body")

#: Writes, and reads, that a message of a peer asks for: what becomes of the others of a batch does
#: not hang on whether such a one was carried out.
_APART = (
    Admit, AdmitGraph, AdvanceSchedules, ApplyToJobs, BeginBulkOperation, FindJobs, FindLineage,
    History, ListFailed, ListGraph, ListJobs, LoadSchedules, PutSchedule, ReadEvents, ReadInputs,
    ReadLogs, RemoveSchedule, SaveSchedules, SealEvents,
)  # fmt: skip


class EventLog:
    """The table of events. Handles `ReadEvents` and `SealEvents`.

    Args:
        store: Has the rows.
        ring: Bytes that are kept until a journal comes.
        cap: Bytes that are kept from then on.
        values: Bytes of arguments and results in one row, 0 for none at all.
    """

    def __init__(self, store: RowStore, ring: int, cap: int, values: int = 0) -> None:
        self.store = store
        self._ring, self._cap, self._values = ring, cap, values
        self._gaps: list[Block] = []
        self._lineage = LineageIndex(store)
        self.reload()

    def reload(self) -> None:
        """Read again what is stored: at open and after a rollback."""
        self._first, _, self._start, _ = self._end_row(descending=False)
        last, n, offset, size = self._end_row(descending=True)
        self._next, self._end = last + n, offset + size
        values = self.store.values()
        self._journal: str = values.get("journal", "")
        self._sealed: int = values.get("journal_sealed", 0)
        self._journal_seen_at: float = values.get("journal_told", 0.0)
        #: Whether there may be rows that are sealed.
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
        """Which events are stored, and which a journal has."""
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
        """Write the events of a commit, and return them; prune what does not fit or is sealed."""
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
            n, whole = 0, 0
            for block in blocks:  # nearly always all of them
                n, whole = n + len(block.ids), whole + 1
                if n >= ROW_EVENTS:
                    break
            remaining = blocks[whole:]
            del blocks[whole:]
            body = pack_blocks(blocks)
            self.store.insert("events", _EVENT_ROW, [(self._next, n, self._end, body)])
            self._end += len(body)
            self._next += n
            blocks = remaining

    # Pruning

    def _oldest(self, max_first: int, enough: int) -> tuple[int, int] | None:
        """Return number and offset of the row before which a commit may delete.

        Args:
            max_first: No row that begins after this number is deleted or returned.
            enough: The offset that suffices.
        """
        enough = min(enough, self._start + SLICE_BYTES)
        first = offset = 0
        rows = self.store.scan("events", ("first", "offset"), le=(max_first,), limit=SLICE + 1)
        for first, offset in rows:  # noqa: B007 - used behind the loop
            if offset >= enough:
                break
        return (first, offset) if first > self._first else None

    def _prune(self) -> None:
        """Delete rows of which a journal has all events."""
        oldest = self._oldest(self._sealed + 1, self._end)
        if oldest is None:
            self._unpruned = False
        else:
            self._cut(*oldest)

    def _make_room(self, now: float) -> None:
        """Delete the oldest rows; say which, if a journal had wanted them."""
        limit = self._cap if self._journal else self._ring
        oldest = self._oldest(self._next, self._end - limit + limit // _SHARE)
        if oldest is None:
            return
        self._cut(*oldest)
        missing = self._sealed + 1  # an earlier gap may have gone the same way
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
        found = list(scan("events", columns, le=(after + 1,), limit=1, descending=True))
        if not found or found[0][0] + found[0][1] <= after + 1:
            found = list(scan("events", columns, gt=(after + 1,), limit=1))
        if not found:
            return [], self.head
        first, _, offset = found[0]
        last = self._last_within(first, offset + write.max_bytes)
        rows = scan("events", ("first", "count", "body"), ge=(first,), le=(last,))
        return list(map(EventRow._make, rows)), self.head

    def _last_within(self, last: int, end: int) -> int:
        """Return the last row, from that one on, that begins before an offset."""
        columns = ("first", "offset")
        for first, offset in damaged.pages(
            self.store, "events", columns, lambda row: row[:1], portion=_PAGE, gt=(last,)
        ):
            if offset >= end:
                break
            last = first
        return last

    def announce(self, write: Announce) -> None:
        """Write where the broker is."""
        self.store.set_values({"addresses": pack(dict(write.addresses))})

    def seal(self, write: SealEvents) -> tuple[EventLogHead, bool]:
        """Write what a journal has."""
        if (
            self._journal not in {"", write.journal}
            and write.at - self._journal_seen_at < write.timeout
        ):
            return self.head, True
        if write.sealed >= self._next:
            return self.head, False  # it has more than there is: it is of another time
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
    """A commit failed, and what it had changed in memory cannot be read anew.

    Memory may now have what the store has not, such as the number of a queue. Jobs stored with that
    would be lost at the next start, receipts and all: the engine must not be used any more.

    Args:
        cause: Why it cannot.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Engine:
    """The meaning of all writes, on the rows of a store.

    Args:
        clock: Reads time.
        dedupe_window: Seconds that the id of an ended job is refused.
        keep_results: Seconds that outcomes are kept at most.
        events_ring: Bytes of events that are kept until a journal comes.
        events_cap: Bytes of events that are kept from then on.
        events_values: Bytes of arguments and results in one row of events, 0 for none.
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
        #: Wall time at which ids were looked at, and after how many seconds they are again.
        self._scanned_at = 0.0
        self._scan_every = min(SKEW, dedupe_window) / 2
        self._events = (events_ring, events_cap, events_values)
        self.keeper = Timekeeper()
        #: Of all commits of this process, whatever is opened anew meanwhile.
        self.metrics = JobMetrics()
        self._pruned = float("-inf")

    def open(
        self, rows: RowStore, *, epoch: int | None = None, passed: Passed | None = None
    ) -> Recovered:
        """Read what is stored, in a transaction of its own.

        Args:
            rows: The store, whose tables are there. It is used from now on.
            epoch: Number of this opening; None: one more than the last one.
            passed: What is known of the time since the last commit beside the clocks.

        Raises:
            ProtocolError: What is stored is not what an engine wrote.
        """
        self._rows = rows
        rows.begin(careful=True)
        self.keeper = keeper = Timekeeper()
        clock, record = self._clock, read_clock(rows.values().get("clock"))
        keeper.start(Reading(clock.now(), clock.boottime(), clock.boot_id()), record, passed)
        self.tables = tables = Tables(rows, self._period)
        self.writes = writes = Writes(tables, self._dedupe_window, keeper)
        writes.unique.release_lonely()
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

    def _scan_ids(self) -> None:
        """Tell which ids need no look-up, and which always do.

        Ids have the wall time of who made them. What is known of them is worth something for as
        long as wall time does not go half as far as is looked ahead, or back: then it is anew.
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
        failed_jobs = FailedJobs(tables, writes.attempts, writes.graphs.inputs)
        return {
            Admit: writes.admit,
            Finish: writes.finish,
            Requeue: writes.requeue,
            LeaseChunk: writes.lease_chunk,
            CloseChunk: writes.close_chunk,
            Promote: writes.promote,
            Expire: operations.expire,
            ReadQueued: reads.read_queued,
            FindJobs: reads.find,
            ListJobs: reads.list_jobs,
            History: writes.attempts.history,
            ApplyToJobs: operations.apply,
            BeginBulkOperation: operations.begin_bulk,
            ContinueBulkOperation: operations.bulk_slice,
            Pause: operations.pause,
            ForgetQueues: lambda write: tables.forget_queues(write.queues, write.at),
            ListFailed: failed_jobs.list_failed,
            PruneFailed: failed_jobs.prune,
            AdmitGraph: writes.admit_graph,
            AdvanceGraphs: writes.graphs.advance,
            CancelGraph: graphs.cancel,
            EndDeadlines: graphs.end_deadlines,
            FindLineage: graphs.lineage,
            ListGraph: graphs.page,
            ReadInputs: writes.graphs.inputs.page,
            ReadLogs: writes.attempts.logs.read,
            RecordEvents: lambda _: None,  # the event is all there is
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
        """Refuse new jobs, or take them again: the store has no room for more."""
        self.writes.refuse = new_jobs

    def commit(self, batch: Sequence[Write]) -> Sequence[Any]:
        """Carry a batch out, all of it or nothing.

        Writes of peers with values that the store cannot keep are left out.

        Returns:
            A result for each write; `PartlyStored` where writes were left out.

        Raises:
            CannotUndo: It failed, and so did undoing it.
            Exception: What the store raised. Nothing was stored, unless that says otherwise.
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
            refused = isinstance(error, self._rows.refusals)
            places = [place for place, each in enumerate(batch) if isinstance(each, _APART)]
            found = self._refused(batch, places, highest) if refused else {}
            if not found:
                raise
            return self._leave_out(batch, found, highest)
        finally:
            writes.check_missing = False

    def _refused(
        self, batch: Sequence[Write], places: Sequence[int], highest: str
    ) -> dict[int, str]:
        """Return which writes the store refuses, and why: it is asked about each half of them."""
        error = self._try([batch[place] for place in places], highest) if places else None
        if error is None:
            return {}
        if len(places) == 1:
            return {places[0]: str(error) or repr(error)}
        half = len(places) // 2
        halves = places[:half], places[half:]
        first, second = (self._refused(batch, each, highest) for each in halves)
        return first | second

    def _try(self, writes: Sequence[Write], highest: str) -> Exception | None:
        """Return why the store refuses some writes, None if it does not; nothing is stored."""
        self.writes.check_missing = True
        try:
            self._rows.begin(careful=True)
            for write in writes:
                self._handlers[type(write)](write)
            self.tables.flush_counts()
            self._rows.values()  # what was collected is sent before
        except self._rows.refusals as error:
            return error
        finally:
            self._undo(highest)
        return None

    def _leave_out(
        self, batch: Sequence[Write], refused: dict[int, str], highest: str
    ) -> PartlyStored:
        """Carry the rest of a batch out."""
        rest = [write for place, write in enumerate(batch) if place not in refused]
        self.writes.check_missing = True
        try:
            results = iter(self._transaction(rest) if rest else ())
        except Exception:
            self._undo(highest)
            raise
        everything = (None if place in refused else next(results) for place in range(len(batch)))
        return PartlyStored(everything, refused)

    def _undo(self, highest: str) -> None:
        """Undo what a commit did, in the store and in what is kept of it in memory."""
        try:
            self._rows.rollback()
            self.tables.reload()
            self.event_log.reload()
        except Exception as error:
            raise CannotUndo(error) from error
        self.writes.highest_id = highest

    def _read_clocks(self) -> str:
        """Read the clocks; return the id above which none needs a look-up."""
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
        if addition is not None:  # the batch was decided before it
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
                self._pruned = float("-inf")  # the rest with the next commits
