"""The entries of a commit that are about schedules: one table more in the broker's file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.plugins.schedule_stores.table import ScheduleTable
from eventmq.schedule import (
    AdvanceSchedules,
    LoadSchedules,
    PutSchedule,
    RemoveSchedule,
    SaveSchedules,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

__all__ = ["schedule_handlers"]


def schedule_handlers(db: apsw.Connection) -> dict[type, Callable[[Any], Any]]:
    """Return what carries out each kind of entry; outside of a transaction, it makes the table."""
    table = ScheduleTable(db)

    def save(entry: SaveSchedules) -> tuple[list[str], int]:
        codes = [table.save(row, expected) for row, expected in entry.rows]
        return codes, table.revision

    def put(entry: PutSchedule) -> tuple[str, int]:
        return table.put(entry.schedule, entry.now), table.revision

    def advance(entry: AdvanceSchedules) -> tuple[list[bool], int]:
        return table.advance(entry.rows), table.revision

    def remove(entry: RemoveSchedule) -> tuple[bool, int]:
        return table.remove(entry.name, entry.expected), table.revision

    return {
        LoadSchedules: table.load,
        SaveSchedules: save,
        PutSchedule: put,
        AdvanceSchedules: advance,
        RemoveSchedule: remove,
    }
