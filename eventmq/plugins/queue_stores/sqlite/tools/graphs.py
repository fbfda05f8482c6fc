"""Rules of graphs: every job that waits for others waits for something that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.plugins.queue_stores.sqlite.tools.rule import Rule
from eventmq.wire.batches import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

__all__ = ["RULES"]

#: The jobs of a graph that have not ended.
_OPEN = """(SELECT count(*) FROM jobs WHERE jobs.seq >= graphs.key
  AND jobs.seq < graphs.key + graphs.size)"""

#: The jobs that a join still waits for.
_AWAITED = """(SELECT count(*) FROM nodes JOIN jobs ON jobs.seq = nodes.key
  WHERE nodes.graph = joins.graph AND nodes.key BETWEEN joins.first AND joins.final
  AND nodes.output = joins.key)"""

_IDLE = "joins.key NOT IN (SELECT join_key FROM pending_work)"

#: Results that no job waits for, and that are not about to be forgotten.
_UNNEEDED = """FROM member_results WHERE join_key NOT IN (SELECT key FROM joins)
  AND join_key NOT IN (SELECT join_key FROM inputs)
  AND NOT EXISTS (SELECT 1 FROM releasable_results
                  WHERE member_results.key BETWEEN first AND final)
  AND NOT EXISTS (SELECT 1 FROM nodes JOIN graphs ON graphs.key = nodes.graph
                  WHERE nodes.key = member_results.key AND graphs.ended = 0)"""

_UNASKED = """FROM inputs WHERE job NOT IN (SELECT id FROM jobs)
  AND job NOT IN (SELECT id FROM failed)"""

_LOOSE_NODES = """FROM nodes WHERE graph NOT IN (SELECT key FROM graphs)
  AND key NOT IN (SELECT seq FROM jobs)"""

_GONE = "NOT IN (SELECT key FROM graphs WHERE ended = 0)"

#: Table -> which of its rows belong to nothing any more.
_LOOSE = {
    "join_arguments": "join_key NOT IN (SELECT key FROM joins)",
    "pending_work": "join_key NOT IN (SELECT key FROM joins)",
    "handlers": f"graph {_GONE}",
    "deadlines": f"graph {_GONE}",
}


def _loose(db: apsw.Connection) -> Iterator[str]:
    yield from (f"node {key}" for (key,) in db.execute(f"SELECT key {_LOOSE_NODES}"))
    for table, where in _LOOSE.items():
        for (key,) in db.execute(f"SELECT rowid FROM {table} WHERE {where}"):
            yield f"{table} {key}"


def _drop_loose(db: apsw.Connection) -> None:
    db.execute(f"DELETE {_LOOSE_NODES}")
    for table, where in _LOOSE.items():
        db.execute(f"DELETE FROM {table} WHERE {where}")


def _unreadable_arguments(db: apsw.Connection) -> Iterator[str]:
    sql = "SELECT joins.key, tree FROM joins LEFT JOIN join_arguments ON join_key = joins.key"
    for key, packed in db.execute(sql):
        try:
            unpack(packed, "a tree")
        except Exception:  # noqa: BLE001 - whatever it is, it is no tree
            yield str(key)


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


def _drop_member_results(db: apsw.Connection) -> None:
    db.execute(f"DELETE {_UNNEEDED}")


def _drop_inputs(db: apsw.Connection) -> None:
    db.execute(f"DELETE {_UNASKED}")


RULES = (
    Rule(
        "graph-counts", "graphs", "{n} graphs count their unfinished jobs wrong: {some}",
        f"""SELECT key || ' says ' || remaining || ', ' || {_OPEN} || ' are there' FROM graphs
            WHERE remaining <> {_OPEN} OR (remaining = 0) <> (ended > 0)""",
        "they are forgotten too early, or never", mend=_count_graphs,
    ),
    Rule(
        "graph-nodes", "nodes", "{n} graphs have not as many nodes as jobs: {some}",
        """SELECT key FROM graphs WHERE size <> (SELECT count(*) FROM nodes
           WHERE nodes.key >= graphs.key AND nodes.key < graphs.key + size)""",
        "jobs of these graphs may wait for ever", 'cancel them with "eventmq cancel", by any id',
    ),
    Rule(
        "graph-jobs", "nodes", "{n} jobs of a graph have a node of another id: {some}",
        """SELECT jobs.id FROM jobs JOIN nodes ON nodes.key = jobs.seq
           WHERE nodes.id <> jobs.id""",
        "what waits for these jobs starts too early, or never",
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
        _unreadable_arguments,
        "the broker ends when the jobs behind them become ready",
    ),
    Rule(
        "inputs", "inputs", "{n} jobs are to read results that are not there: {some}",
        """SELECT job FROM inputs WHERE NOT EXISTS (SELECT 1 FROM member_results WHERE
           member_results.join_key = inputs.join_key
           AND member_results.key BETWEEN inputs.first AND inputs.final)""",
        "they fail when they run", "submit these graphs again",
    ),
    Rule(
        "inputs-left", "inputs", "inputs are kept for {n} jobs that are gone: {some}",
        f"SELECT job {_UNASKED}", "they take space for ever", mend=_drop_inputs,
    ),
    Rule(
        "results-left", "member_results",
        "{n} results are kept that nothing waits for, by number of their job: {some}",
        f"SELECT key {_UNNEEDED}", "they take space for ever", mend=_drop_member_results,
    ),
    Rule(
        "loose", "nodes", "{n} rows are left of graphs that are gone: {some}", _loose,
        "they take space for ever; a graph that is asked for may not be found",
        mend=_drop_loose,
    ),
)  # fmt: skip
