"""Suspects in the SQLite store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.errors import ProtocolError
from eventmq.plugins.database import all_rows
from eventmq.store.writes import SuspectEnd, SuspectRow
from eventmq.wire.batches import pack, unpack

if TYPE_CHECKING:
    from eventmq.plugins.queue_stores.sqlite.rows import Tables
    from eventmq.store.writes import SaveSuspects

__all__ = ["SuspectRows"]

logger = logging.getLogger("eventmq.store")


class SuspectRows:
    """Handler of `SaveSuspects`."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def save(self, write: SaveSuspects) -> None:
        """Write what is known of suspects."""
        db = self.tables.db
        sql = """INSERT OR REPLACE INTO suspects SELECT ?1, ?2
                 WHERE EXISTS (SELECT 1 FROM jobs WHERE seq = ?1)"""
        db.executemany(sql, [(row.seq, pack(_packed(row))) for row in write.rows])
        db.executemany("DELETE FROM suspects WHERE seq = ?", [(seq,) for seq in write.removed])
        sql = "UPDATE jobs SET deaths = ? WHERE seq = ?"
        db.executemany(sql, [(deaths, seq) for seq, deaths in write.deaths])

    def rows(self) -> list[SuspectRow]:
        """Return what is known of all suspects; forget those that are not there any more."""
        db = self.tables.db
        db.execute("DELETE FROM suspects WHERE seq NOT IN (SELECT seq FROM jobs)")
        sql = """SELECT suspects.seq, record, queues.name, jobs.id FROM suspects
                 JOIN jobs ON jobs.seq = suspects.seq JOIN queues ON queues.id = jobs.queue
                 ORDER BY suspects.seq"""
        rows = []
        for seq, record, queue, job_id in all_rows(db, sql):
            try:
                rows.append(_unpacked(seq, record, queue, job_id))
            except (ProtocolError, TypeError, ValueError) as error:
                message = "what is known of the deaths of job %s is damaged, and is forgotten: %s"
                logger.warning(message, job_id, error)
        return rows


def _packed(row: SuspectRow) -> list[object]:
    ends = [list(end) for end in row.ends]
    return [row.losses, row.unproven, row.unreached, row.owed, ends]


def _unpacked(seq: int, record: bytes, queue: str, job_id: str) -> SuspectRow:
    losses, unproven, unreached, owed, ends = unpack(record, "a row of suspects")
    return SuspectRow(
        seq, int(losses), int(unproven), int(unreached), int(owed),
        [SuspectEnd(*end) for end in ends], queue, job_id,
    )  # fmt: skip
