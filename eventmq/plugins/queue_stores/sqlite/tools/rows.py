"""Rules of rows: which can be read, are the counts those of the rows, does a job wait for ever.

Further rules are of what no checksum covers and the broker needs: its id and epoch, unique keys,
the ids of nodes, the numbers of events. What its writes mean is not told here once more: whether
a job is in one place only, and whether leases and inputs belong together, is for the audit of
stores in the tests.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from eventmq.errors import EventMQError
from eventmq.events.packed import unpack_blocks
from eventmq.headers import parse_headers
from eventmq.plugins.database import add_function, first_row
from eventmq.plugins.queue_stores.sqlite.schema import add_checksums, load_clock
from eventmq.plugins.queue_stores.sqlite.tools.rule import Rule, text_of
from eventmq.store.writes import Operation, subqueue_of, unique_rule
from eventmq.wire.batches import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

__all__ = ["RULES", "add_functions", "leases_of", "reads"]


# Rows that can be read

_INTEGERS = ("seq", "queue", "rank", "state", "attempt", "delivery", "deaths")
_REALS = ("ready_at", "expires", "created", "eta")

_ENDS = "the broker ends when it meets one of them, or never runs it"
_NO_START = "no broker can start on this store"

#: What reading packed bytes raises where they are something else.
_BROKEN = (EventMQError, ValueError, TypeError, KeyError, IndexError)


def _impossible(table: str, states: str) -> str:
    tests = [f"typeof({name}) <> 'integer'" for name in _INTEGERS]
    tests += [f"typeof({name}) NOT IN ('real', 'integer')" for name in _REALS]
    tests += ["typeof(id) <> 'text'", "typeof(headers) <> 'text'", "typeof(body) <> 'blob'"]
    tests += [f"state NOT IN ({states})"]
    return f"SELECT seq FROM {table} WHERE {' OR '.join(tests)}"


def leases_of(packed: bytes) -> list[tuple[int, int]] | None:
    """Return number and delivery of each job of a chunk row, None if it cannot be read."""
    try:
        rows = [(seq, delivery) for seq, delivery, *_ in unpack(packed, "a chunk row")]
    except _BROKEN:
        return None
    return rows if all(type(value) is int for row in rows for value in row) else None


def _unreadable_chunks(db: apsw.Connection) -> Iterator[str]:
    sql = "SELECT CAST(session AS BLOB), number, leases FROM chunks"
    for session, number, packed in db.execute(sql):
        if leases_of(packed) is None:
            yield f"{text_of(session)} {number}"


def _unreadable_operations(db: apsw.Connection) -> Iterator[str]:
    for operation, packed in db.execute("SELECT CAST(id AS BLOB), operation FROM bulk_operations"):
        try:
            Operation(*unpack(packed, "the row of a bulk operation"))
        except _BROKEN:
            yield text_of(operation)


def _unreadable_events(db: apsw.Connection) -> Iterator[str]:
    for first, count, body in db.execute("SELECT first, count, body FROM events"):
        try:
            events = sum(len(block.ids) for block in unpack_blocks(body))
        except (EventMQError, TypeError):
            events = -1
        if events != count:
            yield str(first)


def _unreadable_clock(db: apsw.Connection) -> Iterator[str]:
    try:
        load_clock(db)
    except EventMQError as error:
        yield str(error)


def _forget_clock(db: apsw.Connection) -> None:
    db.execute("DELETE FROM meta WHERE key = 'clock'")


#: What every store says of itself, besides its bytes: key, type, and what a repair gives it.
_ENTRIES = """(SELECT column1 AS key, column2 AS type, column3 AS made FROM (VALUES
  ('store_id', 'text', lower(hex(randomblob(8)))),
  ('epoch', 'integer', CAST(strftime('%s', 'now') AS INTEGER)))
  WHERE column2 NOT IN (SELECT typeof(value) FROM meta WHERE meta.key = column1))"""


def _make_entries(db: apsw.Connection) -> None:
    """Give the store another id, and an epoch above all that peers have seen, as a copy gets."""
    db.execute(f"INSERT OR REPLACE INTO meta SELECT key, made FROM {_ENTRIES}")


# Counts of jobs

#: State code -> column of its count in ``queues``.
_COUNTED = {0: "blocked", 1: "delayed", 2: "waiting"}

_BYTES = "(SELECT coalesce(sum(size), 0) FROM failed)"


def _there(code: int) -> str:
    """Return the SELECT that counts the jobs of a queue in a state."""
    if code not in _COUNTED:
        return "(SELECT count(*) FROM failed WHERE failed.queue = queues.id)"
    # One pass over the jobs for all queues: none has an index that this could use.
    counted = f"SELECT queue, count(*) AS n FROM jobs WHERE state = {code} GROUP BY queue"
    return f"coalesce((SELECT n FROM ({counted}) WHERE queue = queues.id), 0)"


def _miscounted(db: apsw.Connection) -> Iterator[str]:
    counted = ", ".join(map(_there, (*_COUNTED, 5)))
    sql = f"SELECT CAST(name AS BLOB), blocked, delayed, waiting, failed, {counted} FROM queues"
    for name, *counts in db.execute(sql):
        words, half = (*_COUNTED.values(), "failed"), len(counts) // 2
        for word, says, rows in zip(words, counts[:half], counts[half:], strict=True):
            if says != rows:
                yield f"{text_of(name)} says {says} {word}, {rows} are there"


def _recount(db: apsw.Connection) -> None:
    for code, column in (*_COUNTED.items(), (5, "failed")):
        db.execute(f"UPDATE queues SET {column} = {_there(code)}")


def _add_up(db: apsw.Connection) -> None:
    db.execute(f"INSERT OR REPLACE INTO meta VALUES ('failed_bytes', {_BYTES})")


# Subqueues

_SUBQUEUE = """(SELECT id FROM subqueues WHERE queue = jobs.queue AND task IS task_of(headers)
  AND key = key_of(headers) ORDER BY id LIMIT 1)"""


def add_functions(db: apsw.Connection) -> None:
    """Give a connection what the checks of rows call."""
    add_checksums(db)
    add_function(db, "reads", reads)
    add_function(db, "task_of", lambda text: _subqueue(text)[0])
    add_function(db, "key_of", lambda text: _subqueue(text)[1])
    add_function(db, "unique_key_of", _unique_key)


@lru_cache(maxsize=4096)
def reads(headers: str) -> bool:
    """Return whether a header text is one."""
    try:
        headers.encode()
        parse_headers(headers)
        unique_rule(headers)
        subqueue_of(headers)
    except (EventMQError, ValueError, AttributeError):
        return False
    return True


@lru_cache(maxsize=4096)
def _subqueue(headers: str) -> tuple[str | None, str]:
    return subqueue_of(headers)[:2] if reads(headers) else (None, "")


def _repair_subqueues(db: apsw.Connection) -> None:
    db.execute(f"""INSERT INTO subqueues (queue, task, key) SELECT DISTINCT queue, task_of(headers),
                   key_of(headers) FROM jobs WHERE {_SUBQUEUE} IS NULL AND reads(headers)""")
    db.execute(f"""UPDATE jobs SET subqueue = {_SUBQUEUE}
                   WHERE subqueue IS NOT {_SUBQUEUE} AND reads(headers)""")


# Unique keys: a job that came with a graph has none in its row until it ends

_WRONG_KEY = """(unique_key IS NOT NULL
  OR instr(headers, 'unique:') AND NOT instr(headers, 'graph:'))
  AND reads(headers) AND unique_key IS NOT unique_key_of(headers)"""


def _unique_key(headers: str) -> str | None:
    rule = unique_rule(headers) if reads(headers) else None
    return rule.key if rule else None


def _repair_keys(table: str, db: apsw.Connection) -> None:
    db.execute(f"UPDATE {table} SET unique_key = unique_key_of(headers) WHERE {_WRONG_KEY}")


# Counts of graphs

#: The jobs of a graph that have not ended.
_OPEN = """(SELECT count(*) FROM jobs WHERE jobs.seq >= graphs.key
  AND jobs.seq < graphs.key + graphs.size)"""

#: The jobs that a join still waits for.
_AWAITED = """(SELECT count(*) FROM nodes JOIN jobs ON jobs.seq = nodes.key
  WHERE nodes.graph = joins.graph AND nodes.key BETWEEN joins.first AND joins.final
  AND nodes.output = joins.key)"""

_IDLE = "joins.key NOT IN (SELECT join_key FROM pending_work)"


def _count_graphs(db: apsw.Connection) -> None:
    db.execute(f"UPDATE graphs SET remaining = {_OPEN} WHERE remaining <> {_OPEN}")
    now = "(julianday('now') - 2440587.5) * 86400.0"
    db.execute(f"UPDATE graphs SET ended = {now} WHERE remaining = 0 AND ended = 0")
    db.execute("UPDATE graphs SET ended = 0 WHERE remaining > 0 AND ended > 0")


def _count_joins(db: apsw.Connection) -> None:
    db.execute(
        f"UPDATE joins SET remaining = {_AWAITED} WHERE {_IDLE} AND remaining <> {_AWAITED}"
        f" AND {_AWAITED} > 0"
    )


# Rows of nothing any more

_UNFINISHED = "(SELECT key FROM graphs WHERE ended = 0)"
_KNOWN = "(SELECT id FROM jobs UNION ALL SELECT id FROM failed)"

#: Table -> which of its rows nothing refers to.
_ORPHANS = {
    "nodes": "graph NOT IN (SELECT key FROM graphs) AND key NOT IN (SELECT seq FROM jobs)",
    "join_arguments": "join_key NOT IN (SELECT key FROM joins)",
    "pending_work": "join_key NOT IN (SELECT key FROM joins)",
    "handlers": f"graph NOT IN {_UNFINISHED}",
    "deadlines": f"graph NOT IN {_UNFINISHED}",
    "inputs": f"job NOT IN {_KNOWN}",
    "member_results": f"""join_key NOT IN (SELECT key FROM joins)
        AND join_key NOT IN (SELECT join_key FROM inputs)
        AND NOT EXISTS (SELECT 1 FROM releasable_results
                        WHERE member_results.key BETWEEN first AND final)
        AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.key = member_results.key
                        AND nodes.graph IN {_UNFINISHED})""",
    "attempts": f"ended = 0 AND id NOT IN {_KNOWN}",
}


def _drop_orphans(table: str, db: apsw.Connection) -> None:
    db.execute(f"DELETE FROM {table} WHERE {_ORPHANS[table]}")


# Counts of schedules: the table is made when a broker first opens the store


def _live(removed: int) -> str:
    return f"(SELECT count(*) FROM schedules WHERE removed = {removed})"


def _miscounted_schedules(db: apsw.Connection) -> Iterator[str]:
    if first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'schedule_counts'") is None:
        return
    sql = f"""SELECT key, value, CASE key WHEN 'live' THEN {_live(0)} ELSE {_live(1)} END
              FROM schedule_counts WHERE key IN ('live', 'removed')"""
    for key, says, stored in db.execute(sql):
        if says != stored:
            yield f"{key} says {says}, {stored} are there"


def _recount_schedules(db: apsw.Connection) -> None:
    for key, removed in (("live", 0), ("removed", 1)):
        sql = f"UPDATE schedule_counts SET value = {_live(removed)} WHERE key = ?"
        db.execute(sql, (key,))


RULES = (
    Rule(
        "clock", "meta", "what is kept of the clocks is damaged: {some}", _unreadable_clock,
        "no broker can start on this store; a repaired one goes on with the wall clock, so set it",
        mend=_forget_clock,
    ),
    Rule(
        "meta", "meta", "{n} entries that every store has are missing or damaged: {some}",
        f"SELECT key FROM {_ENTRIES}",
        "no broker can start on this store, or its peers take it for another one",
        mend=_make_entries,
    ),
    Rule(
        "values", "jobs", "{n} waiting jobs have values that they cannot have, by number: {some}",
        _impossible("jobs", "0, 1, 2"), _ENDS,
    ),
    Rule(
        "values", "failed", "{n} failed jobs have values that they cannot have, by number: {some}",
        _impossible("failed", "5"), _ENDS,
    ),
    Rule(
        "chunks", "chunks", "{n} leases cannot be read, by session and number: {some}",
        _unreadable_chunks, _NO_START,
    ),
    Rule(
        "bulk-operations", "bulk_operations", "{n} operations on many jobs cannot be read: {some}",
        _unreadable_operations, _NO_START,
    ),
    Rule(
        "event-bodies", "events", "{n} rows of events cannot be read, by first number: {some}",
        _unreadable_events, "a journal stops at the first of them; no job depends on them",
    ),
    Rule(
        "event-numbers", "events", "{n} rows of events do not follow the one before: {some}",
        """SELECT 'event ' || first || ' after ' || (due - 1) FROM
           (SELECT first, lag(first + count) OVER (ORDER BY first) AS due FROM events)
           WHERE due <> first""",
        "a journal reports the events between as missing; no job depends on them",
        "nothing can be done about events that are gone",
    ),
    Rule(
        "subqueues", "subqueues", "{n} jobs stand in a subqueue that is not theirs: {some}",
        f"SELECT id FROM jobs WHERE subqueue IS NOT {_SUBQUEUE} AND reads(headers)",
        "no worker is given them, or one that does not know their task", mend=_repair_subqueues,
    ),
    *(
        Rule(
            "keys", table,
            "{n} jobs are indexed under another unique key than theirs, by number: {some}",
            f"SELECT seq FROM {table} WHERE {_WRONG_KEY}",
            "a second job with their key is admitted, or one is refused without a reason",
            mend=partial(_repair_keys, table),
        )
        for table in ("jobs", "failed")
    ),
    Rule(
        "counts", "queues", "{n} counts are wrong: queue {some}", _miscounted,
        "listings, the length limit of a queue and its end are wrong; no job is", mend=_recount,
    ),
    Rule(
        "bytes", "meta", "the bytes of failed jobs do not add up: {some}",
        f"""SELECT 'failed_bytes is ' || coalesce(max(value), 'missing') || ', the rows have '
            || {_BYTES} FROM meta WHERE key = 'failed_bytes' HAVING max(value) IS NOT {_BYTES}""",
        "failed jobs are forgotten too early, or too late", mend=_add_up,
    ),
    Rule(
        "graph-counts", "graphs", "{n} graphs count their unfinished jobs wrong: {some}",
        f"""SELECT key || ' says ' || remaining || ', ' || {_OPEN} || ' are there' FROM graphs
            WHERE remaining <> {_OPEN} OR (remaining = 0) <> (ended > 0)""",
        "they are forgotten too early, or never", mend=_count_graphs,
    ),
    Rule(
        "join-counts", "joins", "{n} joins wait for a wrong number of jobs: {some}",
        f"""SELECT key || ' says ' || remaining || ', ' || {_AWAITED} || ' are there' FROM joins
            WHERE {_IDLE} AND remaining <> {_AWAITED} AND {_AWAITED} > 0""",
        "the jobs behind them start too early, or never", mend=_count_joins,
    ),
    Rule(
        "stuck", "joins", "{n} joins wait for nothing: {some}",
        f"SELECT key FROM joins WHERE {_IDLE} AND {_AWAITED} = 0",
        "the jobs behind them never start", 'cancel them with "eventmq cancel", by any id',
    ),
    Rule(
        "blocked", "jobs", "{n} blocked jobs wait for something that is not there: {some}",
        """SELECT id FROM jobs WHERE state = 0
           AND NOT EXISTS (SELECT 1 FROM handlers WHERE handlers.key = jobs.seq)
           AND NOT EXISTS (SELECT 1 FROM nodes JOIN joins ON joins.key = nodes.input
                           WHERE nodes.key = jobs.seq)""",
        "they never start", 'cancel them with "eventmq cancel"',
    ),
    Rule(
        "join-arguments", "join_arguments", "{n} joins do not know what they hand on: {some}",
        """SELECT joins.key FROM joins LEFT JOIN join_arguments ON join_key = joins.key
           WHERE join_key IS NULL""",
        "the broker ends when the jobs behind them become ready",
    ),
    Rule(
        "graph-jobs", "nodes", "{n} jobs of a graph have a node of another id: {some}",
        """SELECT jobs.id FROM jobs JOIN nodes ON nodes.key = jobs.seq
           WHERE nodes.id <> jobs.id""",
        "their graph is not found by their ids, nor they by their graph",
    ),
    Rule(
        "schedule-counts", "schedules", "{n} counts of schedules are wrong: {some}",
        _miscounted_schedules, "new schedules may be refused as too many",
        mend=_recount_schedules,
    ),
    *(
        Rule(
            "orphans", table, "{n} rows are kept that nothing refers to",
            f"SELECT '{table}' FROM {table} WHERE {where}",
            "they take space for ever", mend=partial(_drop_orphans, table),
        )
        for table, where in _ORPHANS.items()
    ),
)  # fmt: skip
