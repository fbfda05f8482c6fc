"""Schedules in a table of SQLite: what the broker's store and the stores of files have in common.

Every change gets the next *revision* of the table, so that a reader that knows one can ask what
came after it. A removed schedule leaves its row as a tombstone, some thousands of them. No
method commits; the caller has a transaction.
"""

from __future__ import annotations

import contextlib
import logging
from itertools import islice
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.errors import EventMQError, StoreError
from eventmq.plugins.database import change, first_row
from eventmq.schedule import Schedule
from eventmq.sdk import ScheduleRow, ScheduleRows, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import apsw

    from eventmq.schedule import Progress
    from eventmq.sdk import LoadSchedules

__all__ = ["MAX_SCHEDULES", "TABLES", "ScheduleTable", "pack_row", "read_row"]

logger = logging.getLogger("eventmq.store")

#: Schedules of one store; more are refused.
MAX_SCHEDULES = 1_000_000

#: Tombstones that are kept; a reader that missed older ones reads everything again.
KEPT_TOMBSTONES = 10_000

#: What makes the tables.
TABLES = (
    """CREATE TABLE IF NOT EXISTS schedules (name TEXT PRIMARY KEY, version INTEGER NOT NULL,
  revision INTEGER NOT NULL, removed INTEGER NOT NULL, source TEXT NOT NULL, last_fire_time REAL,
  remaining INTEGER, last_job TEXT NOT NULL, definition BLOB NOT NULL, crc INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX IF NOT EXISTS schedules_revision ON schedules (revision)",
    "CREATE INDEX IF NOT EXISTS schedules_removed ON schedules (revision) WHERE removed = 1",
    """CREATE TABLE IF NOT EXISTS schedule_counts (key TEXT PRIMARY KEY, value INTEGER NOT NULL)
  WITHOUT ROWID""",
    "INSERT OR IGNORE INTO schedule_counts VALUES ('live', 0), ('removed', 0), ('forgotten', 0)",
)

_COLUMNS = "name, version, last_fire_time, remaining, last_job, definition"

#: With its checksum, which is not for those who ask.
_CHECKED = f"{_COLUMNS}, crc"

_ADVANCE = """UPDATE schedules SET version = version + 1, revision = ?, last_fire_time = ?,
  remaining = ?, last_job = ? WHERE name = ? AND version = ? AND removed = 0"""

_WRITE = """INSERT OR REPLACE INTO schedules (name, version, revision, removed, source,
  last_fire_time, remaining, last_job, definition, crc) VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?, ?)"""


def pack_row(schedule: Schedule) -> ScheduleRow:
    """Return a schedule as a row, which is how it travels too."""
    return ScheduleRow(
        schedule.name, schedule.version, schedule.last_fire_time, schedule.remaining,
        schedule.last_job, pack(schedule.definition()),
    )  # fmt: skip


def read_row(row: Sequence[Any]) -> Schedule:
    """Return the schedule of a row.

    Raises:
        ProtocolError: The definition is no MessagePack.
        SettingsError: It is not the definition of a schedule.
    """
    name, version, last_fire_time, remaining, last_job, definition = row
    made = Schedule.read(name, unpack(definition, f"the schedule {name!r}"))
    made.version, made.last_fire_time = version, last_fire_time
    made.remaining, made.last_job = remaining, last_job
    return made


def _crc(name: str, definition: bytes) -> int:
    """Return the checksum of a schedule: of what it submits, and by its name."""
    return crc32(definition, crc32(name.encode()))


def _is_sound(row: Sequence[Any]) -> bool:
    """Return whether a row of `_CHECKED` is what was written."""
    return isinstance(row[-2], bytes) and row[-1] == _crc(row[0], row[-2])


class ScheduleTable:
    """The table of one database; made if it is not there."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        for statement in TABLES:
            db.execute(statement)

    # Reading

    @property
    def revision(self) -> int:
        """The number of the last change, 0 before the first."""
        return self._value("SELECT max(revision) FROM schedules")

    def _value(self, sql: str, *arguments: Any) -> int:
        row = first_row(self._db, sql, arguments)
        return int(row[0] or 0) if row else 0

    def _count(self, key: str) -> int:
        return self._value("SELECT value FROM schedule_counts WHERE key = ?", key)

    def _add(self, key: str, change: int) -> None:
        sql = "UPDATE schedule_counts SET value = value + ? WHERE key = ?"
        self._db.execute(sql, (change, key))

    def load(self, read: LoadSchedules) -> ScheduleRows:
        """Return what changed after a revision; see `LoadSchedules`."""
        after = read.after
        if not read.scan and after < self._count("forgotten"):
            after = 0
        whole = after == 0
        arguments: list[Any] = [after]
        where = "revision > ?" + (" AND removed = 0" if whole else "")
        if read.name is not None:
            where, arguments = "removed = 0 AND name = ?", [read.name]
        elif read.source is not None:
            where, arguments = f"{where} AND removed = 0 AND source = ?", [after, read.source]
        sql = f"SELECT {_CHECKED}, revision, removed FROM schedules WHERE {where} ORDER BY revision"
        rows: list[ScheduleRow] = []
        removed_names: list[str] = []
        size, head = 0, self.revision
        for *row, revision, removed in self._rows(sql, arguments):
            if len(rows) + len(removed_names) >= read.limit or (rows and size > read.max_bytes):
                return ScheduleRows(rows, removed_names, after, head, whole, more=True)
            after = revision
            if removed:
                removed_names.append(row[0])
            elif _is_sound(row):
                rows.append(ScheduleRow(*row[:-1]))
                size += len(row[-2])
            else:
                logger.error("the schedule %r is damaged in the store: define it again", row[0])
        return ScheduleRows(rows, removed_names, head, head, whole, more=False)

    def _rows(self, sql: str, arguments: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield rows of a SELECT of `_CHECKED`, also where text is no text any more."""
        done = 0
        try:
            for row in self._db.execute(sql, arguments):
                done += 1
                yield row
        except UnicodeDecodeError:
            for text in ("name", "last_job", "definition"):
                sql = sql.replace(f"{text},", f"CAST({text} AS BLOB),", 1)
            rest = islice(self._db.execute(sql, arguments), done, None)
            for name, version, fire_time, remaining, last_job, *more in rest:
                texts = name.decode(errors="replace"), last_job.decode(errors="replace")
                yield texts[0], version, fire_time, remaining, texts[1], *more

    def find(self, name: str) -> Schedule | None:
        """Return a schedule by its name.

        Raises:
            StoreError: It is not what was written.
        """
        sql = f"SELECT {_CHECKED} FROM schedules WHERE name = ? AND removed = 0"
        for row in self._rows(sql, (name,)):
            if not _is_sound(row):
                raise StoreError(f"the schedule {name!r} is damaged in the store: define it again")
            return read_row(row[:-1])
        return None

    # Changes

    def save(self, row: ScheduleRow, expected: int | None) -> str:
        """Store a row if its version is the expected one, None: if it is new.

        Returns:
            ``done``, ``stale``, or ``full`` where the table has its schedules.
        """
        sql = "SELECT version, removed FROM schedules WHERE name = ?"
        version, removed = first_row(self._db, sql, (row.name,)) or (0, 1)
        if (None if removed else version) != expected:
            return "stale"
        if removed:
            if self._count("live") >= MAX_SCHEDULES:
                return "full"
            self._add("live", 1)
            self._add("removed", -1 if version else 0)
        self._write(row, version + 1)
        return "done"

    def put(self, schedule: Schedule, now: float) -> str:
        """Store a schedule, whatever is there of its name; one that does the same stays as it is.

        Returns:
            ``done``, ``same``, or ``full`` where the table has its schedules.
        """
        sql = "SELECT version FROM schedules WHERE name = ? AND removed = 0"
        there = first_row(self._db, sql, (schedule.name,))
        with contextlib.suppress(EventMQError, TypeError):  # what cannot be read is replaced
            other = self.find(schedule.name)
            ended = other is None or other.remaining == 0
            if other is not None and not ended and schedule.does_the_same(other):
                return "same"
        return self.save(pack_row(schedule.started(now)), there[0] if there else None)

    def _write(self, row: ScheduleRow, version: int) -> None:
        source = unpack(row.definition, "a schedule")["source"]
        self._db.execute(_WRITE, (
            row.name, version, self.revision + 1, source, row.last_fire_time, row.remaining,
            row.last_job, row.definition, _crc(row.name, row.definition),
        ))  # fmt: skip

    # hot loop: python -m benchmarks schedules
    def advance(self, rows: Iterable[Progress]) -> list[bool]:
        """Move schedules on, each if its version is the expected one."""
        execute, changes, revision = self._db.execute, self._db.changes, self.revision
        done = []
        for name, expected, last_fire_time, remaining, last_job in rows:
            values = (revision + 1, last_fire_time, remaining, last_job, name, expected)
            execute(_ADVANCE, values)
            moved = changes() == 1
            revision += moved
            done.append(moved)
        return done

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove a schedule if its version is the expected one, None: any."""
        sql = """UPDATE schedules SET removed = 1, version = version + 1, revision = ?,
                 definition = x'' WHERE name = ? AND removed = 0 AND (? IS NULL OR version = ?)"""
        values = (self.revision + 1, name, expected, expected)
        if change(self._db, sql, values) != 1:
            return False
        self._add("live", -1)
        self._add("removed", 1)
        if self._count("removed") > KEPT_TOMBSTONES:
            self._forget()
        return True

    def _forget(self) -> None:
        """Drop the older half of the tombstones."""
        half = KEPT_TOMBSTONES // 2
        sql = "SELECT revision FROM schedules WHERE removed = 1 ORDER BY revision LIMIT 1 OFFSET ?"
        last = self._value(sql, half)
        sql = "DELETE FROM schedules WHERE removed = 1 AND revision <= ?"
        self._add("removed", -change(self._db, sql, (last,)))
        self._db.execute("UPDATE schedule_counts SET value = ? WHERE key = 'forgotten'", (last,))
