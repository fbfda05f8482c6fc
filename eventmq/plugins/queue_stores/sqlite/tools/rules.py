"""Rules of a sound store: how to check each rule, what a violation means, and how to repair it.

The rules check whether checksums are right, whether rows can be read, whether counts match the
rows, and whether jobs wait for ever. They also check what no checksum covers but a broker needs:
id and epoch of the store, unique keys, ids of nodes, numbers of events. They do not check again
what the engine's writes guarantee, for example that a job is in one table only, or that leases
match jobs; the audit of stores in the tests does that.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from eventmq.engine import Operation, error_label, read_clock, subqueue_of, unique_rule
from eventmq.errors import EventMQError
from eventmq.headers import parse_headers
from eventmq.plugins.database import UNREADABLE, add_function, first_value
from eventmq.plugins.queue_stores.sqlite.checksums import (
    JOB_CRC,
    JOB_HEAD,
    add_checksums,
    outcome_sum,
)
from eventmq.plugins.queue_stores.sqlite.schema import (
    bucket_name,
    buckets,
)
from eventmq.sdk import Finding, decode_error, unpack
from eventmq.sdk.events import unpack_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import apsw

__all__ = [
    "RESTORE",
    "RULES",
    "SALVAGE",
    "Rule",
    "add_functions",
    "check",
    "first_of",
    "is_readable",
    "leases_of",
    "text_of",
]

#: Maximum number of violations that a finding names.
MAX_NAMES = 3

#: Advice for damage that cannot be repaired.
RESTORE = "restore a backup, or copy what can be read into a new store: eventmq fsck --salvage DEST"

#: Addition to the advice if a salvage leaves the damaged jobs out.
SALVAGE = "; eventmq fsck --salvage leaves them out"


class Rule(NamedTuple):
    """A rule that every sound store meets."""

    name: str
    where: str
    #: Text of the finding, with ``{n}`` and ``{some}``: number and names of the violations.
    message: str
    #: A SELECT of one column, or a function; returns the names of the violations.
    find: str | Callable[[apsw.Connection], Iterable[str]]
    means: str
    help: str = RESTORE
    #: Statements that repair all violations and lose no data that is still needed; None if there
    #: are none.
    repair: str | None = None
    #: Maximum number of violations that the finding names.
    max_names: int = MAX_NAMES

    def violations(self, db: apsw.Connection) -> Iterator[str]:
        """Yield the names of the violations."""
        if callable(self.find):
            yield from self.find(db)
        else:
            sql = f"WITH v (name) AS ({self.find}) SELECT CAST(name AS BLOB) FROM v"
            yield from (text_of(name) for (name,) in db.execute(sql))

    def check(self, db: apsw.Connection) -> Finding | None:
        """Return the finding about violations or unreadable rows, None if there are none."""
        try:
            sample, n = first_of(self.violations(db), self.max_names)
        except UNREADABLE as error:
            text = f"the check {self.name!r} could not be done: {error}"
            means = "the file is damaged where these rows are"
            return Finding(self.name, self.where, text, means, RESTORE, repairable=False)
        if not n:
            return None
        repairable = self.repair is not None
        advice = "eventmq fsck --repair puts it right" if repairable else self.help
        text = self.message.format(n=n, some=sample)
        return Finding(self.name, self.where, text, self.means, advice, repairable=repairable)


def text_of(data: bytes | None) -> str:
    """Decode a text that was read as ``CAST(... AS BLOB)`` and may be damaged."""
    return (data or b"").decode(errors="surrogateescape")


def first_of(names: Iterable[str], max_names: int = MAX_NAMES) -> tuple[str, int]:
    """Return the first names as text, and the number of all names."""
    remaining = iter(names)
    shown = list(islice(remaining, max_names))
    more = sum(1 for _ in remaining)
    text = ", ".join(ascii(name)[1:-1] for name in shown)
    return text + (f" and {more} more" if more else ""), len(shown) + more


def check(rules: Iterable[Rule], db: apsw.Connection) -> Iterator[Finding]:
    """Check a store against rules; yield the findings."""
    yield from filter(None, (rule.check(db) for rule in rules))


# Checksums

#: Maximum number of rows with wrong checksums that a finding names.
_MAX_NAMES = 1000

_ID = "as_text(CAST(id AS BLOB))"
_QUEUE = "(SELECT CAST(name AS BLOB) FROM queues WHERE queues.id = queue)"
_WRONG = f"head_crc IS NOT {JOB_HEAD} OR crc IS NOT {JOB_CRC}"
_DATA = "data_crc({}, CAST(content_type AS BLOB), CAST({} AS BLOB))"
_OF_ID = "id_crc(CAST(id AS BLOB))"


def _jobs(table: str, more: str = "") -> str:
    condition = f"{_WRONG.format(table)}{more}"
    shown = f"coalesce(as_text({_QUEUE}), 'that is not known')"
    return f"SELECT {_ID} || ' of the queue ' || {shown} FROM {table} WHERE {condition}"


def _outcomes(db: apsw.Connection) -> Iterator[str]:
    for bucket in buckets(db):
        name = bucket_name(bucket)
        sql = f"SELECT {_ID} FROM {name} WHERE crc IS NOT {outcome_sum(name)}"
        yield from (str(shown) for (shown,) in db.execute(sql))


def _schedules(db: apsw.Connection) -> Iterator[str]:
    sql = """SELECT as_text(CAST(name AS BLOB)) FROM schedules WHERE removed = 0
             AND crc IS NOT data_crc(id_crc(CAST(name AS BLOB)), x'', CAST(definition AS BLOB))"""
    yield from (str(name) for (name,) in db.execute(sql))


_FAILS = "the broker does not run them: it fails them, with an error, when it meets them"
_AGAIN = f"submit them again{SALVAGE}"


# Unreadable rows

_INTEGERS = ("seq", "queue", "rank", "state", "attempt", "delivery", "deaths")
_REALS = ("ready_at", "expires", "created", "eta")

_ENDS = "the broker ends when it meets one of them, or never runs it"
_NO_START = "no broker can start on this store"

#: Errors that unpacking damaged bytes raises.
_UNPACK_ERRORS = (EventMQError, ValueError, TypeError, KeyError, IndexError)


def _impossible(table: str, states: str) -> str:
    tests = [f"typeof({name}) <> 'integer'" for name in _INTEGERS]
    tests += [f"typeof({name}) NOT IN ('real', 'integer')" for name in _REALS]
    tests += ["typeof(id) <> 'text'", "typeof(headers) <> 'text'", "typeof(body) <> 'blob'"]
    tests += [f"state NOT IN ({states})"]
    return f"SELECT seq FROM {table} WHERE {' OR '.join(tests)}"


def leases_of(packed: bytes) -> list[tuple[int, int]] | None:
    """Return number and delivery of each job in a chunk row, None if it cannot be read."""
    try:
        rows = [(seq, delivery) for seq, delivery, *_ in unpack(packed, "a chunk row")]
    except _UNPACK_ERRORS:
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
        except _UNPACK_ERRORS:
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
        read_clock(first_value(db, "SELECT value FROM meta WHERE key = 'clock'"))
    except EventMQError as error:
        yield str(error)


#: Values that every store has, besides its bytes: key, type, and the value that a repair sets.
_ENTRIES = """(SELECT column1 AS key, column2 AS type, column3 AS made FROM (VALUES
  ('store_id', 'text', lower(hex(randomblob(8)))),
  ('epoch', 'integer', CAST(strftime('%s', 'now') AS INTEGER)))
  WHERE column2 NOT IN (SELECT typeof(value) FROM meta WHERE meta.key = column1))"""

#: Gives the store, like a copy, a new id and an epoch above all that peers have seen.
_MAKE_ENTRIES = f"INSERT OR REPLACE INTO meta SELECT key, made FROM {_ENTRIES}"


# Counts of jobs

#: State code -> column of its count in ``queues``.
_COUNTED = {0: "blocked", 1: "delayed", 2: "waiting"}

_BYTES = "(SELECT coalesce(sum(size), 0) FROM failed)"


def _count_of(code: int) -> str:
    """Return the expression for the number of jobs of a queue in a state."""
    if code not in _COUNTED:
        return "(SELECT count(*) FROM failed WHERE failed.queue = queues.id)"
    # Counts the jobs of all queues in one pass, as no index has queue and state.
    counted = f"SELECT queue, count(*) AS n FROM jobs WHERE state = {code} GROUP BY queue"
    return f"coalesce((SELECT n FROM ({counted}) WHERE queue = queues.id), 0)"


def _miscounted(db: apsw.Connection) -> Iterator[str]:
    counted = ", ".join(map(_count_of, (*_COUNTED, 5)))
    sql = f"SELECT CAST(name AS BLOB), blocked, delayed, waiting, failed, {counted} FROM queues"
    for name, *counts in db.execute(sql):
        words, half = (*_COUNTED.values(), "failed"), len(counts) // 2
        for word, count, rows in zip(words, counts[:half], counts[half:], strict=True):
            if count != rows:
                yield f"{text_of(name)} counts {count} {word}, but has {rows}"


_RECOUNT = ";".join(
    f"UPDATE queues SET {column} = {_count_of(code)}"
    for code, column in (*_COUNTED.items(), (5, "failed"))
)


# Subqueues

_SUBQUEUE = """(SELECT id FROM subqueues WHERE queue = jobs.queue
  AND legacy = (task_of(headers) IS NULL) AND task = coalesce(task_of(headers), '')
  AND key = key_of(headers) ORDER BY id LIMIT 1)"""


def add_functions(db: apsw.Connection) -> None:
    """Add the SQL functions that the checks call to a connection."""
    add_checksums(db)
    add_function(db, "is_readable", is_readable)
    add_function(db, "task_of", lambda text: _subqueue(text)[0])
    add_function(db, "key_of", lambda text: _subqueue(text)[1])
    add_function(db, "unique_key_of", _unique_key)
    add_function(db, "name_of_task", _name_of_task)
    add_function(db, "error_of", _error_of)


@lru_cache(maxsize=4096)
def is_readable(headers: str) -> bool:
    """Return whether the headers of a job can be parsed."""
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
    return subqueue_of(headers)[:2] if is_readable(headers) else (None, "")


def _name_of_task(headers: str) -> str:
    return parse_headers(headers).task if is_readable(headers) else ""


def _error_of(result: bytes) -> str:
    return error_label(decode_error(result).type)


#: Condition: a failed job is listed under another task or error than its own.
_MISLABELLED = f"""is_readable(headers) AND result_crc IS {_DATA.format("head_crc", "result")}
  AND (task IS NOT name_of_task(headers) OR error IS NOT error_of(result))"""

_REPAIR_SUBQUEUES = f"""INSERT INTO subqueues (queue, legacy, task, key)
  SELECT DISTINCT queue, task_of(headers) IS NULL, coalesce(task_of(headers), ''), key_of(headers)
  FROM jobs
  WHERE {_SUBQUEUE} IS NULL AND is_readable(headers);
  UPDATE jobs SET subqueue = {_SUBQUEUE}
  WHERE subqueue IS NOT {_SUBQUEUE} AND is_readable(headers)"""


# Unique keys: a job that came with a graph has none in its row until it ends

_WRONG_KEY = """(unique_key IS NOT NULL
  OR instr(headers, 'unique:') AND NOT instr(headers, 'graph:'))
  AND is_readable(headers) AND unique_key IS NOT unique_key_of(headers)"""


def _unique_key(headers: str) -> str | None:
    rule = unique_rule(headers) if is_readable(headers) else None
    return rule.key if rule else None


# Counts of graphs

#: The jobs of a graph that have not ended.
_OPEN = """(SELECT count(*) FROM jobs WHERE jobs.seq >= graphs.key
  AND jobs.seq < graphs.key + graphs.size)"""

#: The jobs that a join still waits for.
_AWAITED = """(SELECT count(*) FROM nodes JOIN jobs ON jobs.seq = nodes.key
  WHERE nodes.graph = joins.graph AND nodes.key BETWEEN joins.first AND joins.final
  AND nodes.output = joins.key)"""

_IDLE = "joins.key NOT IN (SELECT join_key FROM pending_work)"


_COUNT_GRAPHS = f"""UPDATE graphs SET remaining = {_OPEN} WHERE remaining <> {_OPEN};
  UPDATE graphs SET ended = (julianday('now') - 2440587.5) * 86400.0
  WHERE remaining = 0 AND ended = 0;
  UPDATE graphs SET ended = 0 WHERE remaining > 0 AND ended > 0"""

_MISCOUNTED_JOINS = f"{_IDLE} AND remaining <> {_AWAITED} AND {_AWAITED} > 0"


#: Graphs without a row that have unfinished jobs; their nodes have all that the row needs.
_LOST_GRAPHS = """graph NOT IN (SELECT key FROM graphs) AND graph IN
  (SELECT graph FROM nodes JOIN jobs ON jobs.seq = nodes.key)"""

_MAKE_GRAPHS = f"""INSERT INTO graphs (key, size, remaining, ended)
  SELECT graph, max(key) - graph + 1, 0, 0 FROM nodes WHERE {_LOST_GRAPHS} GROUP BY graph"""


# Orphaned rows

_UNFINISHED = "(SELECT key FROM graphs WHERE ended = 0)"
_KNOWN = "(SELECT id FROM jobs UNION ALL SELECT id FROM failed)"

#: Table -> condition for rows that nothing refers to.
_ORPHANS = {
    "nodes": "graph NOT IN (SELECT key FROM graphs) AND key NOT IN (SELECT seq FROM jobs)",
    "join_arguments": "join_key NOT IN (SELECT key FROM joins)",
    "pending_work": "join_key NOT IN (SELECT key FROM joins)",
    "handlers": f"graph NOT IN {_UNFINISHED}",
    "deadlines": f"graph NOT IN {_UNFINISHED}",
    "inputs": f"job NOT IN {_KNOWN}",
    "member_results": """join_key NOT IN (SELECT key FROM joins)
        AND join_key NOT IN (SELECT join_key FROM inputs)
        AND NOT EXISTS (SELECT 1 FROM releasable_results
                        WHERE member_results.join_key BETWEEN first AND final)""",
    "attempts": f"ended = 0 AND id NOT IN {_KNOWN}",
    "job_logs": f"until = 0 AND id NOT IN {_KNOWN}",
}


# Counts of schedules


def _live(removed: int) -> str:
    return f"(SELECT count(*) FROM schedules WHERE removed = {removed})"


def _miscounted_schedules(db: apsw.Connection) -> Iterator[str]:
    sql = f"""SELECT key, value, CASE key WHEN 'live' THEN {_live(0)} ELSE {_live(1)} END
              FROM schedule_counts WHERE key IN ('live', 'removed')"""
    for key, count, rows in db.execute(sql):
        if count != rows:
            yield f"{key} counts {count}, but there are {rows}"


_RECOUNT_SCHEDULES = ";".join(
    f"UPDATE schedule_counts SET value = {_live(removed)} WHERE key = '{key}'"
    for key, removed in (("live", 0), ("removed", 1))
)


#: All rules, in the order in which they are checked and repaired.
RULES = (
    Rule(
        "checksums", "jobs", "{n} waiting jobs have wrong checksums: {some}", _jobs("jobs"),
        _FAILS, _AGAIN, max_names=_MAX_NAMES,
    ),
    Rule(
        "checksums", "failed", "{n} failed jobs have wrong checksums: {some}",
        _jobs("failed", f" OR result_crc IS NOT {_DATA.format('head_crc', 'result')}"),
        "they cannot be tried again", "submit them again, and drop these with eventmq failed drop",
        max_names=_MAX_NAMES,
    ),
    Rule(
        "checksums", "outcomes", "{n} outcomes have wrong checksums: {some}", _outcomes,
        "clients that ask for these results get an error", "submit these jobs again",
        max_names=_MAX_NAMES,
    ),
    Rule(
        "checksums", "attempts",
        "{n} errors of earlier attempts, or arguments of ended jobs, have wrong checksums: {some}",
        f"SELECT {_ID} FROM attempts WHERE crc IS NOT {_DATA.format(_OF_ID, 'error')}",
        "they are shown as unknown; no job depends on them", "nothing need be done",
        max_names=_MAX_NAMES,
    ),
    Rule(
        "checksums", "job_logs", "{n} logs of jobs have wrong checksums: {some}",
        f"""SELECT {_ID} FROM job_logs
            WHERE crc IS NOT data_crc({_OF_ID}, CAST(attempt AS BLOB), CAST(body AS BLOB))""",
        "they are shown as damaged; no job depends on them", "nothing need be done",
        max_names=_MAX_NAMES,
    ),
    Rule(
        "checksums", "member_results",
        "{n} results that jobs wait for have wrong checksums: {some}",
        f"SELECT {_ID} FROM member_results WHERE crc IS NOT {_DATA.format(_OF_ID, 'result')}",
        "the jobs that take them fail", "submit these graphs again", max_names=_MAX_NAMES,
    ),
    Rule(
        "checksums", "join_arguments",
        "{n} joins have a damaged order of results: {some}",
        """SELECT join_key FROM join_arguments
           WHERE crc IS NOT data_crc(join_key, x'', CAST(tree AS BLOB))""",
        "the jobs that wait there fail", "submit these graphs again", max_names=_MAX_NAMES,
    ),
    Rule(
        "checksums", "schedules", "{n} schedules have wrong checksums: {some}", _schedules,
        "they do not fire", "define them again, with app.schedule() or by starting their beat",
        max_names=_MAX_NAMES,
    ),
    Rule(
        "clock", "meta", "the record of the clocks is damaged: {some}", _unreadable_clock,
        "no broker can start on this store; a repaired one goes on with the wall clock, so set it",
        repair="DELETE FROM meta WHERE key = 'clock'",
    ),
    Rule(
        "meta", "meta", "{n} entries that every store has are missing or damaged: {some}",
        f"SELECT key FROM {_ENTRIES}",
        "no broker can start on this store, or peers take it for another one",
        repair=_MAKE_ENTRIES,
    ),
    Rule(
        "values", "jobs", "{n} waiting jobs have impossible values, by number: {some}",
        _impossible("jobs", "0, 1, 2"), _ENDS,
    ),
    Rule(
        "values", "failed", "{n} failed jobs have impossible values, by number: {some}",
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
        "event-numbers", "events", "{n} rows of events do not continue the one before: {some}",
        """SELECT 'event ' || first || ' after ' || (due - 1) FROM
           (SELECT first, lag(first + count) OVER (ORDER BY first) AS due FROM events)
           WHERE due <> first""",
        "a journal reports the events between as missing; no job depends on them",
        "lost events cannot be restored",
    ),
    Rule(
        "subqueues", "subqueues", "{n} jobs are in a wrong subqueue: {some}",
        f"SELECT id FROM jobs WHERE subqueue IS NOT {_SUBQUEUE} AND is_readable(headers)",
        "they go to no worker, or to one that does not know their task", repair=_REPAIR_SUBQUEUES,
    ),
    Rule(
        "labels", "failed", "{n} failed jobs are listed under a wrong task or error: {some}",
        f"SELECT {_ID} FROM failed WHERE {_MISLABELLED}",
        "searches and operations by task or error miss them; no job depends on it",
        repair="UPDATE failed SET task = name_of_task(headers), error = error_of(result) "
        f"WHERE {_MISLABELLED}",
    ),
    *(
        Rule(
            "keys", table,
            "{n} jobs are indexed under a wrong unique key, by number: {some}",
            f"SELECT seq FROM {table} WHERE {_WRONG_KEY}",
            "a second job with their key is admitted, or one is refused without a reason",
            repair=f"UPDATE {table} SET unique_key = unique_key_of(headers) WHERE {_WRONG_KEY}",
        )
        for table in ("jobs", "failed")
    ),
    Rule(
        "counts", "queues", "{n} counts are wrong: queue {some}", _miscounted,
        "listings and the length limits of queues are wrong; no job is lost", repair=_RECOUNT,
    ),
    Rule(
        "bytes", "meta", "the bytes of failed jobs do not add up: {some}",
        f"""SELECT 'failed_bytes is ' || coalesce(max(value), 'missing') || ', but the rows have '
            || {_BYTES} FROM meta WHERE key = 'failed_bytes' HAVING max(value) IS NOT {_BYTES}""",
        "failed jobs are forgotten too early, or too late",
        repair=f"INSERT OR REPLACE INTO meta VALUES ('failed_bytes', {_BYTES})",
    ),
    Rule(
        "graph-rows", "graphs", "{n} graphs have no row, but unfinished jobs: {some}",
        f"SELECT DISTINCT graph FROM nodes WHERE {_LOST_GRAPHS}",
        "the broker ends when one of them is listed or cancelled; they are never forgotten",
        repair=_MAKE_GRAPHS,
    ),
    Rule(
        "graph-counts", "graphs", "{n} graphs have a wrong count of unfinished jobs: {some}",
        f"""SELECT key || ' counts ' || remaining || ', but has ' || {_OPEN} FROM graphs
            WHERE remaining <> {_OPEN} OR (remaining = 0) <> (ended > 0)""",
        "they are forgotten too early, or never", repair=_COUNT_GRAPHS,
    ),
    Rule(
        "join-counts", "joins", "{n} joins wait for a wrong number of jobs: {some}",
        f"""SELECT key || ' waits for ' || remaining || ', but has ' || {_AWAITED} FROM joins
            WHERE {_MISCOUNTED_JOINS}""",
        "the jobs behind them start too early, or never",
        repair=f"UPDATE joins SET remaining = {_AWAITED} WHERE {_MISCOUNTED_JOINS}",
    ),
    Rule(
        "stuck", "joins", "{n} joins wait for nothing: {some}",
        f"SELECT key FROM joins WHERE {_IDLE} AND {_AWAITED} = 0",
        "the jobs behind them never start", 'cancel them with "eventmq cancel", by any id',
    ),
    Rule(
        "blocked", "jobs", "{n} blocked jobs wait for a join that does not exist: {some}",
        """SELECT id FROM jobs WHERE state = 0
           AND NOT EXISTS (SELECT 1 FROM handlers WHERE handlers.key = jobs.seq)
           AND NOT EXISTS (SELECT 1 FROM nodes JOIN joins ON joins.key = nodes.input
                           WHERE nodes.key = jobs.seq)""",
        "they never start", 'cancel them with "eventmq cancel"',
    ),
    Rule(
        "join-arguments", "join_arguments", "{n} joins have no order of results: {some}",
        """SELECT joins.key FROM joins LEFT JOIN join_arguments ON join_key = joins.key
           WHERE join_key IS NULL""",
        "the broker ends when the jobs behind them become ready",
    ),
    Rule(
        "graph-jobs", "nodes", "{n} jobs of a graph have a node with another id: {some}",
        """SELECT jobs.id FROM jobs JOIN nodes ON nodes.key = jobs.seq
           WHERE nodes.id <> jobs.id""",
        "neither can their graph be found by their ids, nor they by their graph",
    ),
    Rule(
        "schedule-counts", "schedules", "{n} counts of schedules are wrong: {some}",
        _miscounted_schedules, "new schedules may be refused as too many",
        repair=_RECOUNT_SCHEDULES,
    ),
    *(
        Rule(
            "orphans", table, "nothing refers to {n} rows",
            f"SELECT '{table}' FROM {table} WHERE {where}",
            "they take space for ever", repair=f"DELETE FROM {table} WHERE {where}",
        )
        for table, where in _ORPHANS.items()
    ),
)  # fmt: skip
