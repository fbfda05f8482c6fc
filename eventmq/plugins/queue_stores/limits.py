"""The token buckets of rate limits in the SQLite store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import LaneKey, LimitRow

if TYPE_CHECKING:
    from eventmq.entries import SaveLimits
    from eventmq.plugins.queue_stores.tables import Tables

__all__ = ["LimitRows"]


class LimitRows:
    """Handler of `SaveLimits`."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def save(self, entry: SaveLimits) -> None:
        """Write token buckets."""
        sql = "INSERT OR REPLACE INTO limiters VALUES (?, ?, ?, ?, ?)"
        rows = [
            (lane.task or "", lane.key, tokens, updated, period)
            for lane, tokens, updated, period in entry.rows
        ]
        self.tables.db.executemany(sql, rows)

    def rows(self) -> list[LimitRow]:
        """Return all token buckets."""
        sql = "SELECT task, key, tokens, updated, period FROM limiters"
        found = self.tables.db.execute(sql)
        return [LimitRow(LaneKey(task, key), *rest) for task, key, *rest in found]

    def prune(self, now: float) -> None:
        """Forget the buckets that are full."""
        sql = "DELETE FROM limiters WHERE updated + period <= ?"
        self.tables.db.execute(sql, (now,))
