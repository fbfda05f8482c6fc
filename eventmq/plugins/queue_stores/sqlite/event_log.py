"""The events of the SQLite store: a row per commit, until a journal has it or space is short.

A huge commit makes several rows. The newest one is never deleted: the number of the next event is
read from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import StoreError
from eventmq.events.packed import gap, pack_blocks
from eventmq.plugins.database import UNREADABLE, first_row, has_moved
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.graphs import LineageIndex
from eventmq.plugins.queue_stores.sqlite.reading import open_to_read
from eventmq.plugins.queue_stores.sqlite.schema import check_schema
from eventmq.store.events import events_of, portions
from eventmq.store.reads import EventLogHead, EventRow, ReadEvents
from eventmq.wire.batches import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import apsw

    from eventmq.events.packed import Block
    from eventmq.store.writes import Announce, SealEvents

__all__ = ["CAP", "RING", "SLICE", "EventLog", "SqliteEventLogReader"]


#: Bytes of events that are kept until a journal has taken some for the first time.
RING = 64 * 1024 * 1024

#: Bytes that are kept from then on.
CAP = 1024 * 1024 * 1024

#: Rows, and bytes, that one commit deletes at most.
SLICE = 5000

SLICE_BYTES = 8 * 1024 * 1024

#: A row has not many more events than these: it must fit into one frame.
ROW_EVENTS = 20_000

#: When it is full, this part of the space is freed at once.
_SHARE = 64

_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?)"


class EventLog:
    """The table of events. Handles `ReadEvents` and `SealEvents`.

    Args:
        db: Open.
        ring: Bytes that are kept until a journal comes.
        cap: Bytes that are kept from then on.
        values: Bytes of arguments and results in one row, 0 for none at all.
    """

    def __init__(self, db: apsw.Connection, ring: int, cap: int, values: int = 0) -> None:
        self.db = db
        self._ring, self._cap, self._values = ring, cap, values
        self._gaps: list[Block] = []
        self._lineage = LineageIndex(db)
        self.reload()

    def reload(self) -> None:
        """Read again what is stored: at open and after a rollback."""
        sql = "SELECT first, count, offset, length(body) FROM events ORDER BY first {} LIMIT 1"
        self._first, _, self._start, _ = self._row(sql.format("ASC"))
        last, n, offset, size = self._row(sql.format("DESC"))
        self._next, self._end = last + n, offset + size
        meta = dict(self.db.execute("SELECT key, value FROM meta WHERE key GLOB 'journal*'"))
        self._journal: str = meta.get("journal", "")
        self._sealed: int = meta.get("journal_sealed", 0)
        self._journal_seen_at: float = meta.get("journal_told", 0.0)
        #: Whether there may be rows that are sealed.
        self._unpruned = self._first <= self._sealed
        self._gaps.clear()
        self._lineage.clear()

    def _row(self, sql: str) -> tuple[int, int, int, int]:
        row: tuple[int, int, int, int] | None = first_row(self.db, sql)
        return row or (1, 0, 0, 0)

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
    ) -> None:
        """Write the events of a commit; prune what a journal has, or what does not fit."""
        blocks = events_of(batch, write_results, self._lineage.find, ahead, spared)
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
            self.db.execute(_INSERT, (self._next, n, self._end, body))
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
        sql = "SELECT first, offset FROM events WHERE first <= ? ORDER BY first LIMIT ?"
        enough = min(enough, self._start + SLICE_BYTES)
        oldest = None
        for row in self.db.execute(sql, (max_first, SLICE + 1)):
            oldest = row
            if row[1] >= enough:
                break
        return oldest if oldest and oldest[0] > self._first else None

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
        self.db.execute("DELETE FROM events WHERE first < ?", (first,))
        self._first, self._start = first, offset

    # Handlers

    def read(self, write: ReadEvents) -> tuple[list[EventRow], EventLogHead]:
        """Read rows of events."""
        sql = """SELECT first, count, body FROM events WHERE first >=
                 coalesce((SELECT max(first) FROM events WHERE first <= ?), 0) ORDER BY first"""
        rows: list[EventRow] = []
        size = 0
        for row in map(EventRow._make, self.db.execute(sql, (write.after + 1,))):
            if row.first + row.events - 1 > write.after:
                rows.append(row)
                size += len(row.body)
                if size >= write.max_bytes:
                    break
        return rows, self.head

    def announce(self, write: Announce) -> None:
        """Write where the broker is."""
        sql = "INSERT OR REPLACE INTO meta VALUES ('addresses', ?)"
        self.db.execute(sql, (pack(dict(write.addresses)),))

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
        values = {
            "journal": write.journal, "journal_sealed": write.sealed, "journal_told": write.at,
        }  # fmt: skip
        self.db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
        return self.head, False


class SqliteEventLogReader:
    """The events of the store in a data directory. One thread.

    Args:
        directory: The data directory of a broker.

    Raises:
        StoreError: There is no store, or one that cannot be read; it says what would help.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        if not self._path.is_file():
            msg = f"there is no store in {directory}: name the data directory of a broker"
            raise StoreError(msg)
        try:
            self._db = open_to_read(self._path)
        except UNREADABLE as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error
        try:
            check_schema(self._db, self._path)
            self._event_log = EventLog(self._db, 0, 0)
            self._has_moved = has_moved(self._db)
            sql = "SELECT value FROM meta WHERE key = 'store_id'"
            (self.store_id,) = first_row(self._db, sql)
        except BaseException as error:
            self._db.close()
            if isinstance(error, UNREADABLE):
                raise StoreError(f"cannot read the store {self._path}: {error}") from error
            raise

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """Return the rows of events after a number, as in `eventmq.store.ReadEvents`.

        Raises:
            StoreError: The store cannot be read any more, or is not where it was opened.
        """
        try:
            if self._has_moved():
                msg = (
                    f"the store {self._path} was deleted, moved or replaced: begin anew on what is"
                )
                raise StoreError(f"{msg} there now")
            self._db.execute("BEGIN")
            try:
                self._event_log.reload()
                return self._event_log.read(ReadEvents(after, max_bytes))
            finally:
                self._db.execute("COMMIT")
        except UNREADABLE as error:
            raise StoreError(f"cannot read the store {self._path}: {error}") from error

    def addresses(self) -> dict[str, str]:
        """Return where the broker is, or was, by port."""
        row = first_row(self._db, "SELECT value FROM meta WHERE key = 'addresses'")
        addresses: dict[str, str] = unpack(row[0], "the addresses of the broker") if row else {}
        return addresses

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()
