"""What jobs of graphs take that is too much for their bodies: read in pages of ``member_results``.

``inputs`` has a row for each such job, by its id, which it keeps when it failed and is queued
again. It names the join at which the job waited, the first and last number of the jobs whose
results those are, and how many bytes they have. Jobs of one join share them; the last one that
goes takes them with it, part by part: ``releasable_results`` has the ranges of jobs whose results
may go.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from eventmq.entries import InputsPage
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.checksums import DamagedRow, is_sound

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from eventmq.entries import ReadInputs

__all__ = ["Inputs", "Span"]

logger = logging.getLogger("eventmq.store")

#: Bytes that MessagePack may have around id, content type and bytes of a result.
_AROUND = 16

#: Bytes of results that are forgotten in one commit.
SWEEP = 8 * 1024 * 1024

_OF_JOIN = "FROM member_results WHERE key BETWEEN ? AND ? AND join_key = ?"

#: What nobody needs: it is kept for no job, and none waits for it.
_RELEASABLE = """SELECT key, length(result) FROM member_results WHERE key BETWEEN ? AND ?
  AND NOT EXISTS (SELECT 1 FROM inputs WHERE inputs.join_key = member_results.join_key)
  AND NOT EXISTS (SELECT 1 FROM joins WHERE joins.key = member_results.join_key) ORDER BY key"""


class Span(NamedTuple):
    """Where the results of a join are: the numbers of the first and last job, and its own."""

    first: int
    final: int
    join_key: int


class Inputs:
    """Handler of `ReadInputs`."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    # What is held

    def size(self, span: Span) -> int:
        """Return how many bytes the results of a join have in an input, reading none."""
        sql = f"""SELECT coalesce(sum(length(result) + length(CAST(id AS BLOB))
                  + length(CAST(content_type AS BLOB)) + {_AROUND}), 0) {_OF_JOIN}"""
        (size,) = first_row(self._db, sql, span)
        return int(size)

    def ids(self, span: Span) -> dict[int, str]:
        """Return the ids of the jobs whose results are held, by number."""
        return dict(all_rows(self._db, f"SELECT key, id {_OF_JOIN}", span))

    def rows(self, span: Span) -> dict[int, tuple[str, str, bytes]]:
        """Return id, content type and bytes of results by number.

        Raises:
            DamagedRow: One was altered.
        """
        sql = f"SELECT key, id, content_type, result, crc {_OF_JOIN}"
        found: dict[int, tuple[str, str, bytes]] = {}
        try:
            for key, job, kind, data, crc in self._db.execute(sql, span):
                if not is_sound(crc, job, kind, data):
                    raise DamagedRow(f"the result of job {job}, which it takes, is damaged")
                found[key] = job, kind, data
        except UnicodeDecodeError as error:
            raise DamagedRow("a result that it takes is damaged") from error
        return found

    def forget(self, span: Span) -> None:
        """Forget the results of a join."""
        self._db.execute(f"DELETE {_OF_JOIN}", span)

    def discard(self, first: int, final: int) -> None:
        """Forget what is held of a range of jobs and needed no more, some of it in this commit."""
        sql = "INSERT INTO releasable_results (first, final) VALUES (?, ?)"
        self._db.execute(sql, (first, final))
        self.sweep()

    def discard_graph(self, graph: int, size: int) -> None:
        """Do the same for a graph that has ended, if anything is held of it.

        Args:
            graph: Its number, from which its jobs count.
            size: How many jobs it has.
        """
        sql = "SELECT 1 FROM member_results WHERE key >= ? AND key < ? LIMIT 1"
        if first_row(self._db, sql, (graph, graph + size)) is not None:
            self.discard(graph, graph + size - 1)

    def sweep(self) -> None:
        """Forget the next part of what is needed no more: to free its pages takes time."""
        db = self._db
        row = first_row(db, "SELECT key, first, final FROM releasable_results ORDER BY key LIMIT 1")
        if row is None:
            return
        number, first, final = row
        gone, size = [], 0
        with closing(db.execute(_RELEASABLE, (first, final))) as rows:
            for key, length in rows:
                gone.append((key,))
                size += length + _AROUND
                if size > SWEEP:
                    break
        db.executemany("DELETE FROM member_results WHERE key = ?", gone)
        if size <= SWEEP:
            db.execute("DELETE FROM releasable_results WHERE key = ?", (number,))
        else:
            sql = "UPDATE releasable_results SET first = ? WHERE key = ?"
            db.execute(sql, (gone[-1][0] + 1, number))

    # Who needs it

    def keep(self, jobs: Iterable[str], span: Span, size: int) -> None:
        """Keep the results of a join for jobs, by their ids, until each was released."""
        first, final, join_key = span
        rows = [(job, join_key, first, final, size) for job in jobs]
        self._db.executemany("INSERT OR REPLACE INTO inputs VALUES (?, ?, ?, ?, ?)", rows)

    def bytes_of(self, job: str) -> int:
        """Return how many bytes are kept for a job."""
        row = first_row(self._db, "SELECT size FROM inputs WHERE job = ?", (job,))
        return row[0] if row else 0

    def in_use(self, join_key: int) -> bool:
        """Say whether results of a join are kept for a job, or others still wait there."""
        sql = """SELECT 1 FROM inputs WHERE join_key = ?
                 UNION ALL SELECT 1 FROM joins WHERE key = ? LIMIT 1"""
        return first_row(self._db, sql, (join_key, join_key)) is not None

    def release(self, jobs: Iterable[str]) -> None:
        """Take note that jobs need what was kept for them no more."""
        db = self._db
        find = "SELECT first, final, join_key FROM inputs WHERE job = ?"
        for job in jobs:
            row = first_row(db, find, (job,))
            if row is None:
                continue
            span = Span(*row)
            db.execute("DELETE FROM inputs WHERE job = ?", (job,))
            if not self.in_use(span.join_key):
                self.discard(span.first, span.final)

    # Reading

    def page(self, entry: ReadInputs) -> InputsPage | None:
        """Return the results from the cursor on, up to a number of bytes."""
        sql = "SELECT first, final, join_key FROM inputs WHERE job = ?"
        row = first_row(self._db, sql, (entry.id,))
        if row is None:
            return None
        first, final, join_key = row
        sql = f"SELECT key, id, content_type, result, crc {_OF_JOIN} ORDER BY key"
        span = (max(first, entry.cursor), final, join_key)
        rows: list[tuple[str, str, bytes]] = []
        size = 0
        with closing(self._db.execute(sql, span)) as found:
            for key, job, kind, data, crc in found:
                size += len(data)
                if not is_sound(crc, job, kind, data):
                    logger.error(
                        "the result of job %s, which job %s takes, is damaged", job, entry.id
                    )
                    return None
                if rows and size > entry.max_bytes:
                    return InputsPage(rows, key)
                rows.append((job, kind, data))
        return InputsPage(rows, 0)
