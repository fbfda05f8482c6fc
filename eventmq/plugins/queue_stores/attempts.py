"""The history of jobs in the SQLite store: why attempts failed that were tried again.

A row is written in the commit that queues the job again. It stays as long as the job's own record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from eventmq.entries import Attempt
from eventmq.plugins.database import change, first_row
from eventmq.plugins.queue_stores.checksums import data_crc, is_sound
from eventmq.plugins.queue_stores.tables import damage_of
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventmq.entries import Finished, History
    from eventmq.plugins.queue_stores.tables import Tables

__all__ = ["KEPT", "Attempts"]

#: Attempts of one job that are kept, the last ones.
KEPT = 10

#: Rows that are forgotten in one go.
_SLICE = 5000


def _error(job_id: str, content_type: str, error: bytes, crc: int) -> tuple[str, bytes]:
    """Return content type and error of an attempt, or in its place that it was altered."""
    if is_sound(crc, job_id, content_type, error):
        return content_type, error
    text = f"{damage_of(job_id)}: why this attempt failed is not known any more"
    return ERROR_TYPE, encode_error(RemoteError("eventmq.errors.StoreError", text))


class Attempts:
    """The table ``attempts``."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def add(self, attempt: Attempt) -> None:
        """Keep one failed attempt, and forget the one that is too many."""
        worker = self.tables.name_id(attempt.worker)
        sql = """INSERT OR REPLACE INTO attempts
                 (id, attempt, delivery, at, started, run_time, worker, content_type, error, crc)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
        crc = data_crc(crc32(attempt.job_id.encode()), attempt.content_type, attempt.error)
        row = (
            attempt.job_id, attempt.attempt, attempt.delivery, attempt.at, attempt.started,
            attempt.ran, worker, attempt.content_type, attempt.error, crc,
        )  # fmt: skip
        self.tables.db.execute(sql, row)
        sql = "DELETE FROM attempts WHERE id = ? AND attempt <= ?"
        self.tables.db.execute(sql, (attempt.job_id, attempt.attempt - KEPT))

    def history(self, entry: History) -> list[Attempt]:
        """Return the kept attempts of a job."""
        sql = """SELECT id, attempt, delivery, at, started, run_time, worker, content_type, error,
                 crc
                 FROM attempts WHERE id = ? ORDER BY attempt"""
        rows = self.tables.rows(sql, (entry.id,))
        return [
            Attempt._make((*row[:6], self.tables.name(row[6]), *_error(row[0], *row[7:])))
            for row in rows
        ]

    def size(self, job_id: str) -> int:
        """Return the bytes of the errors that are kept of a job."""
        sql = "SELECT coalesce(sum(length(error)), 0) FROM attempts WHERE id = ?"
        (size,) = first_row(self.tables.db, sql, (job_id,))
        return int(size)

    def ended(self, rows: Iterable[Finished]) -> None:
        """Note when jobs ended, so that their histories go with their outcomes.

        That of a failed job stays, until it ended in another way or was dropped.
        """
        sql = "UPDATE attempts SET ended = ? WHERE id = ?"
        ends = [(row.at, row.job.id) for row in rows if row.state.value != "failed"]
        self.tables.db.executemany(sql, ends)

    def drop(self, ids: Iterable[str]) -> None:
        """Forget the histories of jobs."""
        sql = "DELETE FROM attempts WHERE id = ?"
        self.tables.db.executemany(sql, [(job_id,) for job_id in ids])

    def prune(self, before: float) -> bool:
        """Forget some histories of jobs that ended before that time; say whether there are more."""
        sql = """DELETE FROM attempts WHERE key IN
                 (SELECT key FROM attempts WHERE ended > 0 AND ended < ? LIMIT ?)"""
        return change(self.tables.db, sql, (before, _SLICE)) == _SLICE
