"""The events of the SQLite store: one row per commit, until a journal has them or space is short.

The newest row is never deleted: the number of the next event is read from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.entries import EventRow, OutboxHead, events_of
from eventmq.events.packed import count, gap, pack_blocks
from eventmq.wire.bulk import pack

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from eventmq.entries import Announce, ReadEvents, SealEvents
    from eventmq.events.packed import Block

__all__ = ["CAP", "RING", "SLICE", "Outbox"]

#: Bytes of events that are kept until a journal has taken some for the first time.
RING = 64 * 1024 * 1024

#: Bytes that are kept from then on.
CAP = 1024 * 1024 * 1024

#: Rows, and bytes, that one commit deletes at most.
SLICE = 5000
SLICE_BYTES = 8 * 1024 * 1024

#: When it is full, this part of the space is freed at once.
_SHARE = 64


class Outbox:
    """The table of events. Handles `ReadEvents` and `SealEvents`."""

    def __init__(self, db: sqlite3.Connection, ring: int, cap: int) -> None:
        self.db = db
        self._ring, self._cap = ring, cap
        self._gaps: list[Block] = []
        self.reload()

    def reload(self) -> None:
        """Read again what is stored: at open and after a rollback."""
        sql = "SELECT first, count, offset, length(body) FROM events ORDER BY first {} LIMIT 1"
        oldest = self.db.execute(sql.format("ASC")).fetchone() or (1, 0, 0, 0)
        last = self.db.execute(sql.format("DESC")).fetchone() or (1, 0, 0, 0)
        self._start: int = oldest[2]
        self._end: int = last[2] + last[3]
        meta = dict(self.db.execute("SELECT key, value FROM meta WHERE key GLOB 'journal*'"))
        self.head = OutboxHead(
            oldest[0], last[0] + last[1], meta.get("journal", ""), meta.get("journal_sealed", 0)
        )
        self._told: float = meta.get("journal_told", 0.0)
        self._gaps.clear()

    # hot loop: benchmarks/drain.py
    def append(self, batch: Sequence[Any], verdicts: Sequence[Any], now: float) -> None:
        """Write the events of a commit; prune what a journal has, or what there is no room for."""
        blocks = events_of(batch, verdicts)
        head = self.head
        if head.first <= head.sealed:
            self._prune()
        if self._end - self._start > (self._cap if head.journal else self._ring):
            self._make_room(now)
        blocks += self._gaps
        if not blocks:
            return
        self._gaps.clear()
        body, n = pack_blocks(blocks), count(blocks)
        first = self.head.next
        self.db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (first, n, self._end, body))
        self._end += len(body)
        self.head = self.head._replace(next=first + n)

    # Pruning

    def _oldest(self) -> list[tuple[int, int]]:
        """Return first number and offset of as many rows as a commit may delete, and one more."""
        sql = "SELECT first, offset FROM events ORDER BY first LIMIT ?"
        rows = self.db.execute(sql, (SLICE + 1,)).fetchall()
        most = self._start + SLICE_BYTES
        return [row for row in rows if row[1] <= most] if len(rows) > 1 else []

    def _prune(self) -> None:
        """Delete rows of which a journal has all events."""
        sealed = self.head.sealed
        gone = [row for row in self._oldest() if row[0] <= sealed + 1]
        if len(gone) > 1:
            self._cut(*gone[-1])

    def _make_room(self, now: float) -> None:
        """Delete the oldest rows; say which, if a journal had wanted them."""
        limit = self._cap if self.head.journal else self._ring
        bound = self._end - limit + limit // _SHARE
        rows = self._oldest()
        if len(rows) < 2:  # noqa: PLR2004 - the newest stays
            return
        first, offset = next((row for row in rows[1:] if row[1] >= bound), rows[-1])
        self._cut(first, offset)
        missing = self.head.sealed + 1  # an earlier gap may have gone the same way
        if self.head.journal and missing < first:
            self._gaps.append(gap(missing, first - 1, now))

    def _cut(self, first: int, offset: int) -> None:
        """Delete all rows before this one."""
        self.db.execute("DELETE FROM events WHERE first < ?", (first,))
        self._start = offset
        self.head = self.head._replace(first=first)

    # Entries

    def read(self, entry: ReadEvents) -> tuple[list[EventRow], OutboxHead]:
        """Read rows of events."""
        sql = """SELECT first, count, body FROM events WHERE first >=
                 coalesce((SELECT max(first) FROM events WHERE first <= ?), 0) ORDER BY first"""
        rows: list[EventRow] = []
        size = 0
        for row in map(EventRow._make, self.db.execute(sql, (entry.after + 1,))):
            if row.first + row.events - 1 > entry.after:
                rows.append(row)
                size += len(row.body)
                if size >= entry.max_bytes:
                    break
        return rows, self.head

    def announce(self, entry: Announce) -> None:
        """Note where the broker is."""
        sql = "INSERT OR REPLACE INTO meta VALUES ('addresses', ?)"
        self.db.execute(sql, (pack(dict(entry.addresses)),))

    def seal(self, entry: SealEvents) -> tuple[OutboxHead, bool]:
        """Note what a journal has."""
        head = self.head
        if head.journal not in {"", entry.journal} and entry.at - self._told < entry.patience:
            return head, True
        if entry.sealed >= head.next:
            return head, False  # it has more than there is: it is of another time
        if entry.sealed + 1 < head.first and (entry.journal, entry.sealed) != head[2:]:
            self._gaps.append(gap(entry.sealed + 1, head.first - 1, entry.at))
        self._told = entry.at
        self.head = head._replace(journal=entry.journal, sealed=entry.sealed)
        values = {
            "journal": entry.journal, "journal_sealed": entry.sealed, "journal_told": entry.at,
        }  # fmt: skip
        self.db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
        return self.head, False
