"""Table of schedules: shared by the broker's store and all other schedule stores.

Every change gets the next *revision* of the table, so a reader can ask for the changes after a
revision that it knows. A removed schedule leaves its row as a tombstone; some thousands of them are
kept. Nothing is cached between two calls, since several processes may write the same table.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.engine import damaged
from eventmq.errors import EventMQError, StoreError
from eventmq.schedule import Schedule
from eventmq.store.reads import LoadSchedules, ScheduleRows
from eventmq.store.writes import (
    AdvanceSchedules,
    PutSchedule,
    RemoveSchedule,
    SaveSchedules,
    ScheduleRow,
)
from eventmq.wire.batches import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eventmq.engine.contract import RowStore
    from eventmq.schedule import Progress

__all__ = [
    "MAX_SCHEDULES",
    "ScheduleTable",
    "pack_row",
    "read_row",
    "read_rows",
    "schedule_handlers",
]

logger = logging.getLogger("eventmq.store")

#: Maximum number of schedules in one store; more are refused.
MAX_SCHEDULES = 1_000_000

#: Maximum number of tombstones; a reader that missed older ones reads all schedules again.
MAX_TOMBSTONES = 10_000

#: Maximum number of rows that one scan reads.
_PORTION = 2000

#: The columns of a `ScheduleRow`, and the checksum, which is not returned.
_CHECKED = (*ScheduleRow._fields, "crc")

_WRITTEN = (*_CHECKED, "revision", "removed", "source")

_ADVANCED = ("version", "revision", "last_fire_time", "remaining", "last_job")


def pack_row(schedule: Schedule) -> ScheduleRow:
    """Return a schedule as a row, the form in which it is stored and sent."""
    return ScheduleRow(
        schedule.name, schedule.version, schedule.last_fire_time, schedule.remaining,
        schedule.last_job, pack(schedule.definition()),
    )  # fmt: skip


def read_row(row: Sequence[Any]) -> Schedule:
    """Return the schedule in a row.

    Raises:
        ProtocolError: The definition is not MessagePack.
        SettingsError: The definition is not that of a schedule.
    """
    name, version, last_fire_time, remaining, last_job, definition = row
    schedule = Schedule.read(name, unpack(definition, f"the schedule {name!r}"))
    schedule.version, schedule.last_fire_time = version, last_fire_time
    schedule.remaining, schedule.last_job = remaining, last_job
    return schedule


def read_rows(rows: Sequence[Sequence[Any]]) -> list[Schedule]:
    """Return the schedules in rows; those that cannot be read are logged and left out."""
    schedules = []
    for row in rows:
        try:
            schedules.append(read_row(row))
        except (EventMQError, TypeError, ValueError) as error:
            logger.error("schedule %r cannot be read: %s", row[0], error)  # noqa: TRY400
    return schedules


def _crc(name: str, definition: bytes) -> int:
    """Return the checksum of a schedule, over its name and definition."""
    return crc32(definition, crc32(name.encode()))


def _checked_row(row: Sequence[Any]) -> ScheduleRow:
    """Return the `ScheduleRow` in a row of `_CHECKED`.

    Raises:
        StoreError: The row is damaged.
    """
    name, version, last_fire_time, remaining, last_job, definition, crc, *_ = row
    name = damaged.shown(name)
    if not isinstance(definition, bytes) or crc != _crc(name, definition):
        raise StoreError(f"the schedule {name!r} is damaged in the store: define it again")
    return ScheduleRow(
        name, version, last_fire_time, remaining, damaged.shown(last_job), definition
    )


class ScheduleTable:
    """Reads and changes the schedules of one store. The caller begins and commits transactions.

    Args:
        store: The rows, with the tables `eventmq.engine.tables.SCHEDULE_TABLES`.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store

    # Reading

    @property
    def revision(self) -> int:
        """Number of the last change, 0 before the first."""
        last = self._store.scan("schedules_revision", ("revision",), limit=1, descending=True)
        return sum(revision for (revision,) in last)

    def _counts(self) -> Counter[str]:
        keys = ("live", "removed", "forgotten")
        return Counter(dict(self._store.get("schedule_counts", ("key", "value"), keys)))

    def _save_counts(self, counts: Counter[str]) -> None:
        self._store.put("schedule_counts", ("key", "value"), list(counts.items()))

    def load(self, read: LoadSchedules) -> ScheduleRows:
        """Return the schedules that changed after a revision; see `LoadSchedules`."""
        after = read.after
        if after and not read.scan and after < self._counts()["forgotten"]:
            after = 0
        whole = after == 0
        rows: list[ScheduleRow] = []
        removed_names: list[str] = []
        size, head = 0, self.revision
        for row in self._find(read.name) if read.name is not None else self._changed(read, after):
            *_, revision, removed, _ = row
            if len(rows) + len(removed_names) >= read.limit or (rows and size > read.max_bytes):
                return ScheduleRows(rows, removed_names, after, head, whole, more=True)
            after = revision
            if removed:
                removed_names.append(damaged.shown(row[0]))
                continue
            try:
                rows.append(_checked_row(row))
                size += len(rows[-1].definition)
            except StoreError as error:
                logger.error("%s", error)  # noqa: TRY400
        return ScheduleRows(rows, removed_names, head, head, whole, more=False)

    def _changed(self, read: LoadSchedules, after: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that changed after a revision."""
        live = after == 0 or read.source is not None
        for row in damaged.pages(
            self._store, "schedules_revision", _WRITTEN, lambda row: row[-3:-2],
            portion=_PORTION, limit=read.limit + 1, gt=(after,),
        ):  # fmt: skip
            *_, removed, source = row
            if not (live and removed) and read.source in {None, source}:
                yield row

    def _find(self, name: str) -> list[tuple[Any, ...]]:
        """Return a list with the row of a schedule, empty if it does not exist or was removed."""
        return [row for row in damaged.get(self._store, "schedules", _WRITTEN, (name,))
                if not row[-2]]  # fmt: skip

    def find(self, name: str) -> Schedule | None:
        """Return the schedule with a name, None if there is none.

        Raises:
            StoreError: Its row is damaged.
        """
        for row in self._find(name):
            return read_row(_checked_row(row))
        return None

    def _versions(self, names: Iterator[str]) -> dict[str, tuple[int, bool]]:
        """Return name -> version and whether it was removed, for the schedules that have a row."""
        keys = list(dict.fromkeys(names))
        rows = self._store.get("schedules", ("name", "version", "removed"), keys)
        return {name: (version, bool(removed)) for name, version, removed in rows}

    # Changes

    def save(self, rows: Sequence[tuple[ScheduleRow, int | None]]) -> tuple[list[str], int]:
        """Store each row if the stored version is the expected one; None expects no schedule.

        Returns:
            A code for each row: ``done``, ``stale``, or ``full`` if the table has `MAX_SCHEDULES`;
            and the revision.
        """
        versions = self._versions(row.name for row, _ in rows)
        counts, revision = self._counts(), self.revision
        before, codes, written = counts.copy(), [], {}
        for row, expected in rows:
            version, removed = versions.get(row.name, (0, True))
            if (None if removed else version) != expected:
                codes.append("stale")
                continue
            if removed:
                if counts["live"] >= MAX_SCHEDULES:
                    codes.append("full")
                    continue
                counts["live"] += 1
                counts["removed"] -= bool(version)
            revision += 1
            versions[row.name] = version + 1, False
            source = unpack(row.definition, "a schedule")["source"]
            crc = _crc(row.name, row.definition)
            written[row.name] = (row.name, version + 1, *row[2:], crc, revision, 0, source)
            codes.append("done")
        self._store.put("schedules", _WRITTEN, list(written.values()))
        if counts != before:
            self._save_counts(counts)
        return codes, revision

    def put(self, schedule: Schedule, now: float) -> tuple[str, int]:
        """Store a schedule, whatever its stored version; leave one that does the same unchanged.

        Returns:
            ``done``, ``same``, or ``full`` if the table has `MAX_SCHEDULES`; and the revision.
        """
        version = None
        for row in self._find(schedule.name):
            version = row[1]
            with contextlib.suppress(EventMQError, TypeError):  # an unreadable row is replaced
                stored = read_row(_checked_row(row))
                if stored.remaining != 0 and schedule.does_the_same(stored):
                    return "same", self.revision
        [code], revision = self.save([(pack_row(schedule.started(now)), version)])
        return code, revision

    # hot loop: python -m benchmarks schedules
    def advance(self, rows: Sequence[Progress]) -> tuple[list[bool], int]:
        """Store the progress of schedules whose version is the expected one.

        Returns:
            For each schedule whether it was stored, and the revision.
        """
        names = list(dict.fromkeys([row[0] for row in rows]))
        stored = self._store.get("schedules", ("name", "version", "removed"), names)
        versions = {name: version for name, version, removed in stored if not removed}
        revision, done, moved = self.revision, [], {}
        for name, expected, last_fire_time, remaining, last_job in rows:
            fits = name in versions and versions[name] == expected
            if fits:
                revision += 1
                version = versions[name] = expected + 1
                moved[name] = (version, revision, last_fire_time, remaining, last_job, name)
            done.append(fits)
        self._store.update("schedules", _ADVANCED, list(moved.values()))
        return done, revision

    def remove(self, name: str, expected: int | None) -> tuple[bool, int]:
        """Remove a schedule if its version is the expected one; None expects any version.

        Returns:
            Whether the schedule was removed, and the revision.
        """
        version, removed = self._versions(iter((name,))).get(name, (0, True))
        revision = self.revision
        if removed or expected not in {None, version}:
            return False, revision
        columns = ("removed", "version", "revision", "definition")
        revision += 1
        self._store.update("schedules", columns, [(1, version + 1, revision, b"", name)])
        counts = self._counts()
        counts["live"] -= 1
        counts["removed"] += 1
        if counts["removed"] > MAX_TOMBSTONES:
            self._forget(counts)
        self._save_counts(counts)
        return True, revision

    def _forget(self, counts: Counter[str]) -> None:
        """Delete the older half of the tombstones."""
        limit = MAX_TOMBSTONES // 2 + 1
        oldest = list(self._store.scan("schedules_removed", ("revision",), limit=limit))
        counts["removed"] -= len(oldest)
        [counts["forgotten"]] = oldest[-1]
        self._store.delete_range("schedules_removed", le=oldest[-1])


def schedule_handlers(store: RowStore) -> dict[type, Callable[[Any], Any]]:
    """Return the handlers of writes of schedules, by type of the write."""
    table = ScheduleTable(store)
    return {
        LoadSchedules: table.load,
        SaveSchedules: lambda write: table.save(write.rows),
        PutSchedule: lambda write: table.put(write.schedule, write.now),
        AdvanceSchedules: lambda write: table.advance(write.rows),
        RemoveSchedule: lambda write: table.remove(write.name, write.expected),
    }
