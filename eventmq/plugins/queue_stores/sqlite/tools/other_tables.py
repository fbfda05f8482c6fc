"""Rules of the other tables: chunks, bulk operations, schedules, clocks and the store's id."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError, ProtocolError
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.sqlite.schema import load_clock
from eventmq.plugins.queue_stores.sqlite.tools.rule import Rule, text_of
from eventmq.plugins.schedule_stores.table import read_row
from eventmq.store.writes import Operation
from eventmq.wire.batches import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

__all__ = ["RULES"]

#: What reading packed bytes raises where they are something else.
_BROKEN = (EventMQError, ValueError, TypeError, KeyError, IndexError)


def _leases(packed: bytes) -> list[tuple[int, int]] | None:
    """Return number and delivery of each job of a chunk row, None if it cannot be read."""
    try:
        rows = [(seq, delivery) for seq, delivery, *_ in unpack(packed, "a chunk row")]
    except _BROKEN:
        return None
    return rows if all(type(value) is int for row in rows for value in row) else None


def _unreadable_chunks(db: apsw.Connection) -> Iterator[str]:
    sql = "SELECT CAST(session AS BLOB), number, leases FROM chunks"
    for session, number, packed in db.execute(sql):
        if _leases(packed) is None:
            yield f"{text_of(session)} {number}"


def _leased_twice(db: apsw.Connection) -> Iterator[str]:
    """Yield the jobs that two chunks hold: their rows say an earlier delivery than either."""
    held: Counter[str] = Counter()
    sql = "SELECT CAST(id AS BLOB) FROM jobs WHERE seq = ? AND state = 2 AND delivery < ?"
    for (packed,) in all_rows(db, "SELECT leases FROM chunks"):
        for lease in _leases(packed) or ():
            held.update(text_of(job_id) for (job_id,) in db.execute(sql, lease))
    yield from (job_id for job_id, n in held.items() if n > 1)


def _unreadable_operations(db: apsw.Connection) -> Iterator[str]:
    for operation, packed in db.execute("SELECT CAST(id AS BLOB), operation FROM bulk_operations"):
        try:
            Operation(*unpack(packed, "the row of a bulk operation"))
        except _BROKEN:
            yield text_of(operation)


# Schedules: the table is made when a broker first opens the store


def _has_schedules(db: apsw.Connection) -> bool:
    sql = "SELECT 1 FROM sqlite_master WHERE name = 'schedule_counts'"
    return first_row(db, sql) is not None


def _unreadable_schedules(db: apsw.Connection) -> Iterator[str]:
    if not _has_schedules(db):
        return
    sql = """SELECT CAST(name AS BLOB), version, last_fire_time, remaining, CAST(last_job AS BLOB),
             definition FROM schedules WHERE removed = 0"""
    for packed, *row in db.execute(sql):
        name = text_of(packed)
        row[3] = text_of(row[3])
        try:
            read_row((name, *row))
        except _BROKEN:
            yield name


def _live(removed: int) -> str:
    return f"(SELECT count(*) FROM schedules WHERE removed = {removed})"


def _miscounted_schedules(db: apsw.Connection) -> Iterator[str]:
    if not _has_schedules(db):
        return
    sql = f"""SELECT key, value, CASE key WHEN 'live' THEN {_live(0)} ELSE {_live(1)} END
              FROM schedule_counts WHERE key IN ('live', 'removed')"""
    for key, says, there in db.execute(sql):
        if says != there:
            yield f"{key} says {says}, {there} are there"


def _recount_schedules(db: apsw.Connection) -> None:
    for key, removed in (("live", 0), ("removed", 1)):
        sql = f"UPDATE schedule_counts SET value = {_live(removed)} WHERE key = ?"
        db.execute(sql, (key,))


# What the store says of itself


def _missing_entries(db: apsw.Connection) -> Iterator[str]:
    meta: dict[str, Any] = dict(db.execute("SELECT key, value FROM meta"))
    for key, kind in (("store_id", str), ("epoch", int), ("failed_bytes", int)):
        if not isinstance(meta.get(key), kind):
            yield key


def _unreadable_clock(db: apsw.Connection) -> Iterator[str]:
    try:
        load_clock(db)
    except ProtocolError as error:
        yield str(error)


def _forget_clock(db: apsw.Connection) -> None:
    db.execute("DELETE FROM meta WHERE key = 'clock'")


RULES = (
    Rule(
        "clock", "meta", "what is kept of the clocks is damaged: {some}", _unreadable_clock,
        "no broker can start on this store; a repaired one goes on with the wall clock, so set it",
        mend=_forget_clock,
    ),
    Rule(
        "meta", "meta", "{n} entries that every store has are missing: {some}", _missing_entries,
        "peers take it for another store: clients send nothing again, a journal begins anew",
    ),
    Rule(
        "chunks", "chunks", "{n} leases cannot be read, by session and number: {some}",
        _unreadable_chunks, "no broker can start on this store",
    ),
    Rule(
        "epochs", "chunks", "{n} leases are of a later run than the last, by session: {some}",
        """SELECT session FROM chunks WHERE epoch >
           (SELECT max(value) FROM meta WHERE key = 'epoch')""",
        "the store was put back to an earlier time while its broker ran",
        "jobs in them run again when their workers are not heard of; nothing need be done",
    ),
    Rule(
        "leases", "chunks", "{n} jobs are leased twice at once: {some}", _leased_twice,
        "they may run twice; the answer that comes first counts",
        "nothing need be done, except where these tasks must not run twice",
    ),
    Rule(
        "bulk-operations", "bulk_operations", "{n} operations on many jobs cannot be read: {some}",
        _unreadable_operations, "no broker can start on this store",
    ),
    Rule(
        "schedules", "schedules", "{n} schedules cannot be read: {some}", _unreadable_schedules,
        "they do not fire", "define them again, with app.schedule() or by starting their beat",
    ),
    Rule(
        "schedule-counts", "schedules", "{n} counts of schedules are wrong: {some}",
        _miscounted_schedules, "new schedules may be refused as too many",
        mend=_recount_schedules,
    ),
)  # fmt: skip
