"""Audits a store file: checks the invariants of the broker's writes.

``eventmq fsck`` finds damaged and miscounted rows, and jobs that never end. The rules here state
the invariants of the engine in SQL: a job is in one place, and each leased, blocked or kept job has
a reason. The simulator and the tests of faults check stores with them, and with those of fsck,
after the end of a broker; `audit` accepts the file of any other store as well.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from eventmq.engine.schedules import read_row
from eventmq.errors import EventMQError
from eventmq.plugins.database import all_rows, open_to_read
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.schema import bucket_name, buckets
from eventmq.plugins.queue_stores.sqlite.tools import fsck
from eventmq.plugins.queue_stores.sqlite.tools.rules import (
    Rule,
    add_functions,
    check,
    is_readable,
    leases_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import apsw

    from eventmq.store.reports import Finding

__all__ = ["RULES", "audit", "audit_rows"]


def audit(folder: Path) -> list[Finding]:
    """Return all findings about the store in a data directory; no broker may have it open."""
    problems = fsck.SqliteTools(folder / FILE_NAME, durable=True).check()
    with closing(open_to_read(folder / FILE_NAME)) as db:
        add_functions(db)
        return [*problems, *check(RULES, db)]


def audit_rows(db: apsw.Connection) -> Iterator[Finding]:
    """Yield the findings about the rows of a database."""
    yield from fsck.check_rows(db)
    yield from check(RULES, db)


# Jobs


def _unreadable(db: apsw.Connection) -> Iterator[str]:
    for table in ("jobs", "failed"):
        sql = f"SELECT CAST(id AS BLOB), CAST(headers AS BLOB) FROM {table}"
        for row in db.execute(sql):
            job_id, headers = map(text_of, row)
            if not is_readable(headers) or not is_readable(
                job_id.replace(":", "").replace(",", "")
            ):
                yield job_id


def _bad_ends(db: apsw.Connection) -> Iterator[str]:
    for bucket in buckets(db):
        sql = f"SELECT CAST(id AS BLOB) FROM {bucket_name(bucket)} WHERE state NOT IN (4, 6, 7)"
        yield from (text_of(job_id) for (job_id,) in db.execute(sql))


def _nameless(db: apsw.Connection) -> Iterator[str]:
    known = "(SELECT id FROM names)"
    sqls = [
        f"SELECT CAST(id AS BLOB) FROM {table} WHERE worker NOT IN {known}"
        for table in ("failed", "attempts")
    ]
    for bucket in buckets(db):
        where = f"task NOT IN {known} OR worker NOT IN {known}"
        sqls.append(f"SELECT CAST(id AS BLOB) FROM {bucket_name(bucket)} WHERE {where}")
    for sql in sqls:
        yield from (text_of(job_id) for (job_id,) in db.execute(sql))


def _twice(db: apsw.Connection) -> Iterator[str]:
    """Yield ids that are in more than one place."""
    tables = ["jobs", "failed", *map(bucket_name, buckets(db))]
    for index, table in enumerate(tables):
        for other in tables[index + 1 :]:
            sql = f"SELECT CAST(a.id AS BLOB) FROM {other} AS a JOIN {table} AS b ON b.id = a.id"
            yield from (f"{text_of(job_id)} ({table}, {other})" for (job_id,) in db.execute(sql))


# Other tables


def _leased_twice(db: apsw.Connection) -> Iterator[str]:
    """Yield the jobs that two chunks hold: the delivery in their rows is lower than in either."""
    held: Counter[str] = Counter()
    sql = "SELECT CAST(id AS BLOB) FROM jobs WHERE seq = ? AND state = 2 AND delivery < ?"
    for (packed,) in all_rows(db, "SELECT leases FROM chunks"):
        for lease in leases_of(packed) or ():
            held.update(text_of(job_id) for (job_id,) in db.execute(sql, lease))
    yield from (job_id for job_id, n in held.items() if n > 1)


def _unreadable_schedules(db: apsw.Connection) -> Iterator[str]:
    sql = """SELECT CAST(name AS BLOB), version, last_fire_time, remaining, CAST(last_job AS BLOB),
             definition FROM schedules WHERE removed = 0"""
    for packed, *row in db.execute(sql):
        name = text_of(packed)
        row[3] = text_of(row[3])
        try:
            read_row((name, *row))
        except (EventMQError, ValueError, TypeError, KeyError, IndexError):
            yield name


#: Rows of events that do not follow the one before: its end is where they should begin.
_BEFORE = """SELECT first, offset, lag(first + count) OVER numbered AS due,
  lag(offset + length(body)) OVER numbered AS place FROM events
  WINDOW numbered AS (ORDER BY first)"""

RULES = (
    Rule(
        "queues", "jobs", "{n} jobs belong to unknown queues: {some}",
        """SELECT id FROM jobs WHERE queue NOT IN (SELECT id FROM queues) UNION ALL
           SELECT id FROM failed WHERE queue NOT IN (SELECT id FROM queues)""",
        "the broker stops when it reads one of them",
    ),
    Rule(
        "ends", "outcomes", "{n} outcomes have no final state: {some}", _bad_ends,
        "requests for these results get a wrong state",
    ),
    Rule(
        "headers", "jobs", "{n} jobs have headers that cannot be read: {some}", _unreadable,
        "the broker stops when it reads one of them",
    ),
    Rule(
        "names", "names", "{n} records name a task or a worker that is not listed: {some}",
        _nameless, "listings leave the name out; nothing else depends on it",
    ),
    Rule(
        "twice", "jobs", "{n} ids are in two places: {some}", _twice,
        "a job may run again after its end",
        'see it with "eventmq job ID", and cancel the waiting job unless it should run',
    ),
    Rule(
        "numbers", "jobs", "{n} waiting jobs have the number of a failed one: {some}",
        "SELECT jobs.id FROM jobs JOIN failed ON failed.seq = jobs.seq",
        "the failed one is overwritten if the other one fails",
        'run the failed ones again or drop them with "eventmq failed" before these run',
    ),
    Rule(
        "epochs", "chunks", "{n} leases are of a later run than the last, by session: {some}",
        """SELECT session FROM chunks WHERE epoch >
           (SELECT max(value) FROM meta WHERE key = 'epoch')""",
        "the store was put back to an earlier time while its broker ran",
        "their jobs run again if their workers do not reconnect; no action is needed",
    ),
    Rule(
        "leases", "chunks", "{n} jobs are leased twice at once: {some}", _leased_twice,
        "they may run twice; the first outcome counts",
        "no action is needed, unless these tasks must not run twice",
    ),
    Rule(
        "schedules", "schedules", "{n} schedules cannot be read: {some}", _unreadable_schedules,
        "they do not fire", "define them again, with app.schedule() or by starting their beat",
    ),
    Rule(
        "graph-nodes", "nodes", "{n} graphs have a wrong number of nodes: {some}",
        """SELECT key FROM graphs WHERE size <> (SELECT count(*) FROM nodes
           WHERE nodes.key >= graphs.key AND nodes.key < graphs.key + size)""",
        "jobs of these graphs may wait forever", 'cancel them with "eventmq cancel", by any id',
    ),
    Rule(
        "inputs", "inputs", "{n} jobs need results that are missing: {some}",
        """SELECT job FROM inputs WHERE NOT EXISTS (SELECT 1 FROM member_results WHERE
           member_results.join_key = inputs.join_key
           AND member_results.key BETWEEN inputs.first AND inputs.final)""",
        "they fail when they run", "submit these graphs again",
    ),
    Rule(
        "event-sizes", "events", "{n} rows of events have a wrong offset in bytes: {some}",
        f"SELECT first FROM ({_BEFORE}) WHERE due = first AND place <> offset",
        "events are dropped too early or too late if space is short",
        "no action is needed",
    ),
    Rule(
        "journal", "events", "a journal has more events than the store: {some}",
        """SELECT 'up to ' || value FROM meta WHERE key = 'journal_sealed' AND value >=
           (SELECT max(first + count) FROM events)""",
        "the store is older than the journal",
        "use another folder for the journal",
    ),
)  # fmt: skip
