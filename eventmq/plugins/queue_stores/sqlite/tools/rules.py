"""Rules of a sound store: what breaks each of them, what that means, and what is done about it.

Is what stands in a row what was written, which rows can be read, are the counts those of the
rows, does a job wait for ever. Further rules are of what no checksum covers and the broker needs:
its id and epoch, unique keys, the ids of nodes, the numbers of events. What its writes mean is not
told here once more: whether a job is in one place only, and whether leases and inputs belong
together, is for the audit of stores in the tests.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from eventmq.engine import Operation, read_clock, subqueue_of, unique_rule
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
from eventmq.sdk import Finding, unpack
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
    "first_of",
    "leases_of",
    "reads",
    "run",
    "text_of",
]

#: Things that a finding names.
NAMED = 3

#: What helps where nothing else does.
RESTORE = "restore a backup, or copy what can be read into a new store: eventmq fsck --salvage DEST"


#: The end of what helps where jobs are to be left out.
SALVAGE = "; eventmq fsck --salvage leaves them out"


class Rule(NamedTuple):
    """A rule that a sound store keeps.

    ``find`` is a SELECT of one column, or a function: it gives the names of what breaks the rule.
    ``mend``, statements, makes that right and loses nothing that anybody could still need.
    """

    name: str
    where: str
    #: What is found, with ``{n}`` and ``{some}``.
    says: str
    find: str | Callable[[apsw.Connection], Iterable[str]]
    means: str
    help: str = RESTORE
    mend: str | None = None
    #: Things that the finding names.
    named: int = NAMED

    def rows(self, db: apsw.Connection) -> Iterator[str]:
        """Yield the names of what breaks the rule."""
        if callable(self.find):
            yield from self.find(db)
        else:
            sql = f"WITH found (name) AS ({self.find}) SELECT CAST(name AS BLOB) FROM found"
            yield from (text_of(name) for (name,) in db.execute(sql))

    def finding(self, db: apsw.Connection) -> Finding | None:
        """Return what is wrong, None for nothing; to meet a damaged page is a finding too."""
        try:
            sample, n = first_of(self.rows(db), self.named)
        except UNREADABLE as error:
            says = f"the check {self.name!r} could not be done: {error}"
            means = "the file is damaged where these rows are"
            return Finding(self.name, self.where, says, means, RESTORE, repairable=False)
        if not n:
            return None
        safe = self.mend is not None
        advice = "eventmq fsck --repair puts it right" if safe else self.help
        text = self.says.format(n=n, some=sample)
        return Finding(self.name, self.where, text, self.means, advice, repairable=safe)


def text_of(data: bytes | None) -> str:
    """Return a text that was read as ``CAST(... AS BLOB)``, where it is damaged, too."""
    return (data or b"").decode(errors="surrogateescape")


def first_of(names: Iterable[str], max_names: int = NAMED) -> tuple[str, int]:
    """Return the first names as text, and how many there are."""
    remaining = iter(names)
    shown = list(islice(remaining, max_names))
    more = sum(1 for _ in remaining)
    text = ", ".join(ascii(name)[1:-1] for name in shown)
    return text + (f" and {more} more" if more else ""), len(shown) + more


def run(rules: Iterable[Rule], db: apsw.Connection) -> Iterator[Finding]:
    """Yield what is wrong."""
    yield from filter(None, (rule.finding(db) for rule in rules))


# Checksums

#: Rows that a finding names.
_NAMED = 1000

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
        read_clock(first_value(db, "SELECT value FROM meta WHERE key = 'clock'"))
    except EventMQError as error:
        yield str(error)


#: What every store says of itself, besides its bytes: key, type, and what a repair gives it.
_ENTRIES = """(SELECT column1 AS key, column2 AS type, column3 AS made FROM (VALUES
  ('store_id', 'text', lower(hex(randomblob(8)))),
  ('epoch', 'integer', CAST(strftime('%s', 'now') AS INTEGER)))
  WHERE column2 NOT IN (SELECT typeof(value) FROM meta WHERE meta.key = column1))"""


#: Gives the store another id, and an epoch above all that peers have seen, as a copy gets.
_MAKE_ENTRIES = f"INSERT OR REPLACE INTO meta SELECT key, made FROM {_ENTRIES}"


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


_RECOUNT = ";".join(
    f"UPDATE queues SET {column} = {_there(code)}"
    for code, column in (*_COUNTED.items(), (5, "failed"))
)


# Subqueues

_SUBQUEUE = """(SELECT id FROM subqueues WHERE queue = jobs.queue
  AND legacy = (task_of(headers) IS NULL) AND task = coalesce(task_of(headers), '')
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


_REPAIR_SUBQUEUES = f"""INSERT INTO subqueues (queue, legacy, task, key)
  SELECT DISTINCT queue, task_of(headers) IS NULL, coalesce(task_of(headers), ''), key_of(headers)
  FROM jobs
  WHERE {_SUBQUEUE} IS NULL AND reads(headers);
  UPDATE jobs SET subqueue = {_SUBQUEUE} WHERE subqueue IS NOT {_SUBQUEUE} AND reads(headers)"""


# Unique keys: a job that came with a graph has none in its row until it ends

_WRONG_KEY = """(unique_key IS NOT NULL
  OR instr(headers, 'unique:') AND NOT instr(headers, 'graph:'))
  AND reads(headers) AND unique_key IS NOT unique_key_of(headers)"""


def _unique_key(headers: str) -> str | None:
    rule = unique_rule(headers) if reads(headers) else None
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


#: A graph without its row, of which jobs have not ended: what it is can be told from its nodes.
_LOST_GRAPHS = """graph NOT IN (SELECT key FROM graphs) AND graph IN
  (SELECT graph FROM nodes JOIN jobs ON jobs.seq = nodes.key)"""

_MAKE_GRAPHS = f"""INSERT INTO graphs (key, size, remaining, ended)
  SELECT graph, max(key) - graph + 1, 0, 0 FROM nodes WHERE {_LOST_GRAPHS} GROUP BY graph"""


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
    for key, says, stored in db.execute(sql):
        if says != stored:
            yield f"{key} says {says}, {stored} are there"


_RECOUNT_SCHEDULES = ";".join(
    f"UPDATE schedule_counts SET value = {_live(removed)} WHERE key = '{key}'"
    for key, removed in (("live", 0), ("removed", 1))
)


#: All rules, in the order in which what breaks them is told and mended.
RULES = (
    Rule(
        "checksums", "jobs", "{n} waiting jobs are not what was written: {some}", _jobs("jobs"),
        _FAILS, _AGAIN, named=_NAMED,
    ),
    Rule(
        "checksums", "failed", "{n} failed jobs are not what was written: {some}",
        _jobs("failed", f" OR result_crc IS NOT {_DATA.format('head_crc', 'result')}"),
        "they cannot be tried again", "submit them again, and drop these with eventmq failed drop",
        named=_NAMED,
    ),
    Rule(
        "checksums", "outcomes", "{n} outcomes are not what was written: {some}", _outcomes,
        "whoever asks for these results gets an error", "submit these jobs again", named=_NAMED,
    ),
    Rule(
        "checksums", "attempts", "{n} errors of earlier attempts are not what was written: {some}",
        f"SELECT {_ID} FROM attempts WHERE crc IS NOT {_DATA.format(_OF_ID, 'error')}",
        "they are shown as unknown; no job depends on them", "nothing need be done", named=_NAMED,
    ),
    Rule(
        "checksums", "job_logs", "{n} logs of jobs are not what was written: {some}",
        f"""SELECT {_ID} FROM job_logs
            WHERE crc IS NOT data_crc({_OF_ID}, CAST(attempt AS BLOB), CAST(body AS BLOB))""",
        "they are shown as damaged; no job depends on them", "nothing need be done", named=_NAMED,
    ),
    Rule(
        "checksums", "member_results",
        "{n} results that jobs wait for are not what was written: {some}",
        f"SELECT {_ID} FROM member_results WHERE crc IS NOT {_DATA.format(_OF_ID, 'result')}",
        "the jobs that take them fail", "submit these graphs again", named=_NAMED,
    ),
    Rule(
        "checksums", "join_arguments",
        "{n} joins do not know what they hand on in which order: {some}",
        """SELECT join_key FROM join_arguments
           WHERE crc IS NOT data_crc(join_key, x'', CAST(tree AS BLOB))""",
        "the jobs that wait there fail", "submit these graphs again", named=_NAMED,
    ),
    Rule(
        "checksums", "schedules", "{n} schedules are not what was written: {some}", _schedules,
        "they do not fire", "define them again, with app.schedule() or by starting their beat",
        named=_NAMED,
    ),
    Rule(
        "clock", "meta", "what is kept of the clocks is damaged: {some}", _unreadable_clock,
        "no broker can start on this store; a repaired one goes on with the wall clock, so set it",
        mend="DELETE FROM meta WHERE key = 'clock'",
    ),
    Rule(
        "meta", "meta", "{n} entries that every store has are missing or damaged: {some}",
        f"SELECT key FROM {_ENTRIES}",
        "no broker can start on this store, or its peers take it for another one",
        mend=_MAKE_ENTRIES,
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
        "no worker is given them, or one that does not know their task", mend=_REPAIR_SUBQUEUES,
    ),
    *(
        Rule(
            "keys", table,
            "{n} jobs are indexed under another unique key than theirs, by number: {some}",
            f"SELECT seq FROM {table} WHERE {_WRONG_KEY}",
            "a second job with their key is admitted, or one is refused without a reason",
            mend=f"UPDATE {table} SET unique_key = unique_key_of(headers) WHERE {_WRONG_KEY}",
        )
        for table in ("jobs", "failed")
    ),
    Rule(
        "counts", "queues", "{n} counts are wrong: queue {some}", _miscounted,
        "listings, the length limit of a queue and its end are wrong; no job is", mend=_RECOUNT,
    ),
    Rule(
        "bytes", "meta", "the bytes of failed jobs do not add up: {some}",
        f"""SELECT 'failed_bytes is ' || coalesce(max(value), 'missing') || ', the rows have '
            || {_BYTES} FROM meta WHERE key = 'failed_bytes' HAVING max(value) IS NOT {_BYTES}""",
        "failed jobs are forgotten too early, or too late",
        mend=f"INSERT OR REPLACE INTO meta VALUES ('failed_bytes', {_BYTES})",
    ),
    Rule(
        "graph-rows", "graphs", "{n} graphs are not known, and jobs of them wait: {some}",
        f"SELECT DISTINCT graph FROM nodes WHERE {_LOST_GRAPHS}",
        "the broker ends when one of them is listed or cancelled; they are never forgotten",
        mend=_MAKE_GRAPHS,
    ),
    Rule(
        "graph-counts", "graphs", "{n} graphs count their unfinished jobs wrong: {some}",
        f"""SELECT key || ' says ' || remaining || ', ' || {_OPEN} || ' are there' FROM graphs
            WHERE remaining <> {_OPEN} OR (remaining = 0) <> (ended > 0)""",
        "they are forgotten too early, or never", mend=_COUNT_GRAPHS,
    ),
    Rule(
        "join-counts", "joins", "{n} joins wait for a wrong number of jobs: {some}",
        f"""SELECT key || ' says ' || remaining || ', ' || {_AWAITED} || ' are there' FROM joins
            WHERE {_MISCOUNTED_JOINS}""",
        "the jobs behind them start too early, or never",
        mend=f"UPDATE joins SET remaining = {_AWAITED} WHERE {_MISCOUNTED_JOINS}",
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
        mend=_RECOUNT_SCHEDULES,
    ),
    *(
        Rule(
            "orphans", table, "{n} rows are kept that nothing refers to",
            f"SELECT '{table}' FROM {table} WHERE {where}",
            "they take space for ever", mend=f"DELETE FROM {table} WHERE {where}",
        )
        for table, where in _ORPHANS.items()
    ),
)  # fmt: skip
