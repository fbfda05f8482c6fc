"""Rules of jobs: waiting, failed and ended ones, their subqueues, histories and counts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from eventmq.errors import EventMQError
from eventmq.headers import parse_headers
from eventmq.plugins.database import add_function, all_rows
from eventmq.plugins.queue_stores.sqlite.schema import add_checksums, bucket_name, buckets
from eventmq.plugins.queue_stores.sqlite.tools.rule import Rule, text_of
from eventmq.store.writes import subqueue_of, unique_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

__all__ = ["RULES", "add_functions"]

_INTEGERS = ("seq", "queue", "rank", "state", "attempt", "delivery", "deaths")
_REALS = ("ready_at", "expires", "created", "eta")

#: State code -> column of its count in ``queues``.
_COUNTED = {0: "blocked", 1: "delayed", 2: "waiting"}

_SUBQUEUE = """(SELECT id FROM subqueues WHERE queue = jobs.queue AND task IS task_of(headers)
  AND key = key_of(headers) ORDER BY id LIMIT 1)"""


def add_functions(db: apsw.Connection) -> None:
    """Give a connection what the checks of subqueues call."""
    add_checksums(db)
    add_function(db, "reads", _reads)
    add_function(db, "task_of", lambda text: _subqueue(text)[0])
    add_function(db, "key_of", lambda text: _subqueue(text)[1])


@lru_cache(maxsize=4096)
def _subqueue(headers: str) -> tuple[str | None, str]:
    return (*subqueue_of(headers),) if _reads(headers) else (None, "")


@lru_cache(maxsize=4096)
def _reads(headers: str) -> bool:
    """Return whether a header text is one."""
    try:
        headers.encode()
        parse_headers(headers)
        unique_rule(headers)
        subqueue_of(headers)
    except (EventMQError, ValueError, AttributeError):
        return False
    return True


# What a row says


def _typed(table: str) -> str:
    tests = [f"typeof({name}) <> 'integer'" for name in _INTEGERS]
    tests += [f"typeof({name}) NOT IN ('real', 'integer')" for name in _REALS]
    tests += ["typeof(id) <> 'text'", "typeof(headers) <> 'text'", "typeof(body) <> 'blob'"]
    return f"SELECT seq FROM {table} WHERE {' OR '.join(tests)}"


def _unreadable(db: apsw.Connection) -> Iterator[str]:
    for table in ("jobs", "failed"):
        sql = f"SELECT CAST(id AS BLOB), CAST(headers AS BLOB) FROM {table}"
        for row in db.execute(sql):
            job_id, headers = map(text_of, row)
            if not _reads(headers) or not _reads(job_id.replace(":", "").replace(",", "")):
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
    for place, table in enumerate(tables):
        for other in tables[place + 1 :]:
            sql = f"SELECT CAST(a.id AS BLOB) FROM {other} AS a JOIN {table} AS b ON b.id = a.id"
            yield from (f"{text_of(job_id)} ({table}, {other})" for (job_id,) in db.execute(sql))


# Keys


def _keys(db: apsw.Connection) -> Iterator[tuple[str, int, str | None]]:
    """Yield table, number and right key of what has another one."""
    for table in ("jobs", "failed"):
        sql = f"""SELECT seq, CAST(headers AS BLOB), CAST(unique_key AS BLOB) FROM {table}
                  WHERE unique_key IS NOT NULL OR instr(headers, 'unique:')"""
        for seq, packed, there in all_rows(db, sql):
            headers, key = text_of(packed), None if there is None else text_of(there)
            rule = unique_rule(headers) if _reads(headers) else None
            graph = "graph:" in headers and key is None
            if not graph and key != (rule.key if rule else None):
                yield table, seq, rule.key if rule else None


def _mend_keys(db: apsw.Connection) -> None:
    for table, seq, key in list(_keys(db)):
        db.execute(f"UPDATE {table} SET unique_key = ? WHERE seq = ?", (key, seq))


# Counts


def _miscounted(db: apsw.Connection) -> Iterator[str]:
    counted = ", ".join(map(_there, (*_COUNTED, 5)))
    sql = f"SELECT CAST(name AS BLOB), blocked, delayed, waiting, failed, {counted} FROM queues"
    for name, *counts in db.execute(sql):
        words, half = (*_COUNTED.values(), "failed"), len(counts) // 2
        for word, says, rows in zip(words, counts[:half], counts[half:], strict=True):
            if says != rows:
                yield f"{text_of(name)} says {says} {word}, {rows} are there"


def _there(code: int) -> str:
    """Return the SELECT that counts the jobs of a queue in a state."""
    if code not in _COUNTED:
        return "(SELECT count(*) FROM failed WHERE failed.queue = queues.id)"
    # One pass over the jobs for all queues: none has an index that this could use.
    counted = f"SELECT queue, count(*) AS n FROM jobs WHERE state = {code} GROUP BY queue"
    return f"coalesce((SELECT n FROM ({counted}) WHERE queue = queues.id), 0)"


def _recount(db: apsw.Connection) -> None:
    for code, column in (*_COUNTED.items(), (5, "failed")):
        db.execute(f"UPDATE queues SET {column} = {_there(code)}")


_BYTES = "(SELECT coalesce(sum(size), 0) FROM failed)"


def _add_up(db: apsw.Connection) -> None:
    db.execute(f"INSERT OR REPLACE INTO meta VALUES ('failed_bytes', {_BYTES})")


def _repair_subqueues(db: apsw.Connection) -> None:
    db.execute(f"""INSERT INTO subqueues (queue, task, key) SELECT DISTINCT queue, task_of(headers),
                   key_of(headers) FROM jobs WHERE {_SUBQUEUE} IS NULL AND reads(headers)""")
    db.execute(f"""UPDATE jobs SET subqueue = {_SUBQUEUE}
                   WHERE subqueue IS NOT {_SUBQUEUE} AND reads(headers)""")


_ORPHANS = """FROM attempts WHERE ended = 0 AND id NOT IN (SELECT id FROM jobs)
  AND id NOT IN (SELECT id FROM failed)"""

_ENDS = "the broker ends when it meets one of them"

RULES = (
    Rule(
        "values", "jobs", "{n} waiting jobs have values of another kind, by number: {some}",
        _typed("jobs"), _ENDS,
    ),
    Rule(
        "values", "failed", "{n} failed jobs have values of another kind, by number: {some}",
        _typed("failed"), _ENDS,
    ),
    Rule(
        "queues", "jobs", "{n} jobs are of no known queue: {some}",
        """SELECT id FROM jobs WHERE queue NOT IN (SELECT id FROM queues) UNION ALL
           SELECT id FROM failed WHERE queue NOT IN (SELECT id FROM queues)""", _ENDS,
    ),
    Rule(
        "states", "jobs", "{n} jobs are in a state that their table does not have: {some}",
        """SELECT id FROM jobs WHERE state NOT IN (0, 1, 2) UNION ALL
           SELECT id FROM failed WHERE state <> 5""",
        "nobody runs them, and they never end",
    ),
    Rule(
        "ends", "outcomes", "{n} outcomes are of no final state: {some}", _bad_ends,
        "whoever asks for these results gets a wrong answer",
    ),
    Rule(
        "headers", "jobs", "{n} jobs have headers that cannot be read: {some}", _unreadable, _ENDS
    ),
    Rule(
        "names", "names", "{n} records name a task or a worker that is not listed: {some}",
        _nameless, "listings show them without it; nothing else depends on it",
    ),
    Rule(
        "twice", "jobs", "{n} ids are in two places: {some}", _twice,
        "a job may run again after it had ended",
        'look at it with "eventmq job ID", and cancel it where it waits if it is not wanted',
    ),
    Rule(
        "numbers", "jobs", "{n} waiting jobs have the number of a failed one: {some}",
        "SELECT jobs.id FROM jobs JOIN failed ON failed.seq = jobs.seq",
        "the failed one is overwritten if the other one fails",
        'run the failed ones again or drop them with "eventmq failed" before these run',
    ),
    Rule(
        "subqueues", "subqueues", "{n} jobs stand in a subqueue that is not theirs: {some}",
        f"SELECT id FROM jobs WHERE subqueue IS NOT {_SUBQUEUE} AND reads(headers)",
        "no worker is given them, or one that does not know their task", mend=_repair_subqueues,
    ),
    Rule(
        "keys", "jobs", "{n} jobs are indexed under another unique key, by number: {some}",
        lambda db: (f"{table} {seq}" for table, seq, _ in _keys(db)),
        "a second job with their key is admitted, or one is refused without a reason",
        mend=_mend_keys,
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
        "histories", "attempts", "{n} attempts are of no job that is known: {some}",
        f"SELECT id {_ORPHANS}", "they take space for ever",
        mend=lambda db: (db.execute(f"DELETE {_ORPHANS}"), None)[1],
    ),
)  # fmt: skip
