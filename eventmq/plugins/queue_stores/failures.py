"""Failed jobs in the SQLite store: listed the last first, forgotten the oldest first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from eventmq.operations import Pruned
from eventmq.plugins.queue_stores.operations import BARE_FAILED, fits

if TYPE_CHECKING:
    from eventmq.entries import Found
    from eventmq.operations import ListFailed, PruneFailed
    from eventmq.plugins.queue_stores.attempts import Attempts
    from eventmq.plugins.queue_stores.inputs import Inputs
    from eventmq.plugins.queue_stores.tables import Tables

__all__ = ["Failures"]

#: Rows that one page of a listing looks at before it returns what it has.
_SCAN = 5000


class Failures:
    """Handlers of `ListFailed` and `PruneFailed`."""

    def __init__(self, tables: Tables, attempts: Attempts, inputs: Inputs) -> None:
        self.tables = tables
        self.attempts = attempts
        self.inputs = inputs

    def list_failed(self, entry: ListFailed) -> tuple[list[Found], str]:
        """List failed jobs page by page; the cursor is ``time:number`` of the last row read."""
        at, seq = _position(entry.cursor)
        sql = f"""SELECT {BARE_FAILED} FROM failed WHERE (at, seq) < (?, ?)
                  ORDER BY at DESC, seq DESC LIMIT {_SCAN}"""
        rows: list[Found] = []
        for looked, row in enumerate(self.tables.rows(sql, (at, seq)), 1):
            found = self.tables.failed(row)
            if fits(found, entry.operation):
                rows.append(found)
            if len(rows) >= entry.limit or looked >= _SCAN:
                return rows, f"{found.at!r}:{found.job.seq}"
        return rows, ""

    def prune(self, entry: PruneFailed) -> Pruned:
        """Forget the oldest failed jobs, as far as they are too old or too many bytes."""
        tables = self.tables
        sql = "SELECT seq, id, queue, at, size FROM failed ORDER BY at, seq LIMIT ?"
        gone: list[tuple[int, str, int]] = []
        more, oldest = False, None
        # Row by row: mostly the first one stays, and behind it are large ones.
        cursor = tables.db.execute(sql, (entry.limit + 1,))
        for seq, job_id, queue, at, size in cursor:
            too_much = at < entry.before or tables.failed_bytes > entry.max_bytes
            if not too_much or len(gone) == entry.limit:
                more, oldest = too_much, at
                break
            tables.failed_bytes -= size
            gone.append((seq, job_id, queue))
        cursor.close()
        return Pruned(self._forget(gone), more, oldest)

    def _forget(self, gone: list[tuple[int, str, int]]) -> dict[str, int]:
        """Delete failed jobs; return how many those were, by queue."""
        tables = self.tables
        tables.db.executemany("DELETE FROM failed WHERE seq = ?", [(seq,) for seq, _, _ in gone])
        ids = [job_id for _, job_id, _ in gone]
        self.attempts.drop(ids)
        self.inputs.release(ids)
        queues = Counter(queue for _, _, queue in gone)
        for queue, n in queues.items():
            tables.count(queue, failed=-n)
        return {tables.queue_name(queue): n for queue, n in queues.items()}


def _position(cursor: str) -> tuple[float, int]:
    at, _, seq = cursor.partition(":")
    try:
        return float(at), int(seq)
    except ValueError:
        return float("inf"), 0
