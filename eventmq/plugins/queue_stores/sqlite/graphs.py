"""Graphs in the SQLite store: what waits for what, as rows that change in the commit of an end.

A node has the number of its job, so the jobs of a graph are a range of numbers from that of the
graph on. A join has the number of the first job that waits at it. ``member_results`` has the
results that a join still needs, whatever their time to live; they go into the bodies of the jobs
that waited, or stay where they are too long for that (`eventmq.plugins.queue_stores.sqlite.joins`).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.graph import COLLECTED, PAGED, TAKES, flags_of, refs_of
from eventmq.headers import parse_headers
from eventmq.job import STATE_CODES, JobRecord, JobState
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.sqlite.checksums import data_crc
from eventmq.plugins.queue_stores.sqlite.joins import Joins, StoredInputs, unfinished
from eventmq.plugins.queue_stores.sqlite.rows import (
    BARE_COLUMNS,
    INSERT_COLUMNS,
    JOB_COLUMNS,
    damage_of,
)
from eventmq.store.reads import GraphPage, GraphRow, JobRow, Lineage
from eventmq.store.writes import (
    AdvanceGraphs,
    AffectedJobs,
    Finish,
    Finished,
    GraphChanges,
    WriteResult,
)
from eventmq.wire.batches import pack
from eventmq.wire.results import ERROR_TYPE, RemoteError, decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import apsw

    from eventmq.graph import Plan
    from eventmq.plugins.queue_stores.sqlite.reads import Reads
    from eventmq.plugins.queue_stores.sqlite.rows import Tables
    from eventmq.store.reads import FindLineage, ListGraph
    from eventmq.store.writes import AdmitGraph, AuditFields, CancelGraph, EndDeadlines

__all__ = ["HANDLER", "GraphReads", "GraphWrites", "LineageIndex", "next_deadline", "open_graphs"]


logger = logging.getLogger("eventmq.store")

_BLOCKED = STATE_CODES[JobState.BLOCKED]

_INSERT = f"INSERT INTO jobs ({INSERT_COLUMNS}, subqueue) VALUES ({', '.join('?' * 17)})"

#: The output of a node that is there for failures: nothing waits for it.
HANDLER = -1

#: Why a job ended that waited for another; what follows the colon names that.
DEPENDENCY = "dependency"

#: Characters of a reason.
_REASON = 500

#: Ready jobs that a write result has with their bodies.
_WITH_BODIES = 200

#: Ids in one statement.
_MANY = 250

#: Jobs that are remembered, for the events of their ends; a few megabytes.
_REMEMBERED = 20_000

_FIND = """SELECT nodes.id, root.id, parent.id FROM nodes
           JOIN nodes root ON root.key = nodes.graph
           LEFT JOIN nodes parent ON parent.key = nodes.parent WHERE nodes.id IN ({})"""

_FIND_ONE = _FIND.format("?")

_FIND_MANY = _FIND.format(", ".join("?" * _MANY))

#: Graphs and their jobs that are forgotten in one go.
_SLICE = 5000


class GraphWrites:
    """Handlers of `AdmitGraph` and `AdvanceGraphs`.

    Args:
        tables: Of the store.
        finish: Ends jobs, which comes back to `ended`.
    """

    def __init__(self, tables: Tables, finish: Callable[[Finish], Any]) -> None:
        self.tables = tables
        self.inputs = StoredInputs(tables.db)
        self.joins = Joins(tables, self.inputs, self)
        self._finish = finish
        #: Ends of jobs of graphs in this commit that nothing followed from yet.
        self.pending: list[Finished] = []
        self._changes = GraphChanges([], [], [])
        #: Jobs that were cancelled since what they waited for did not succeed.
        self._caused: set[int] = set()
        #: Bytes of the bodies in the changes.
        self._bytes = 0
        #: Whether `advance` has run since `reset`.
        self.advanced = False

    def reset(self) -> None:
        """Forget what an earlier commit did, or was to do: another one begins."""
        self.advanced = False
        self.pending.clear()
        self._caused.clear()
        self._bytes = 0
        self._changes = GraphChanges([], [], [])
        self.joins.reset()

    # Admission

    def known(self, job_id: str) -> int:
        """Return the number of the graph of a job, 0 for none."""
        sql = "SELECT graph FROM nodes WHERE id = ?"
        row = first_row(self.tables.db, sql, (job_id,))
        return row[0] if row else 0

    def admit(
        self, write: AdmitGraph, find_taken: Callable[[Sequence[JobRecord]], str]
    ) -> WriteResult | None:
        """Insert the jobs of a graph, all or none.

        Args:
            write: The graph.
            find_taken: Returns an id that is not free, or "".
        """
        jobs = write.jobs
        if self.known(jobs[0].id):
            return WriteResult("same_id")
        other = find_taken(jobs)
        if other:
            return WriteResult("same_id" if other == jobs[0].id else "taken", other)
        tables, places = self.tables, dict[tuple[str, str], int]()
        rows = []
        for job in jobs:
            subqueue = places.get((job.queue, job.headers))
            if subqueue is None:
                subqueue = places[job.queue, job.headers] = tables.subqueue_id(
                    job.queue, job.headers
                )
            rows.append((*tables.row(job), subqueue))
        tables.db.executemany(_INSERT, rows)
        for (queue, state), n in Counter((job.queue, job.state) for job in jobs).items():
            name = "waiting" if state is JobState.QUEUED else state.value
            tables.count(tables.queue_id(queue), **{name: n})
        self._insert(jobs, write.plan)
        return None

    def _insert(self, jobs: Sequence[JobRecord], plan: Plan) -> None:
        db, graph, now = self.tables.db, jobs[0].seq, jobs[0].created
        joins, outputs = _joins(graph, plan)
        watched = {handler.node: graph + handler.first for handler in plan.handlers}
        nodes = [
            (job.seq, job.id, graph, joins[number][0], output, joins[number][3])
            if number >= 0
            else (job.seq, job.id, graph, 0, output, watched.get(job.seq - graph, 0))
            for job, number, output in zip(jobs, plan.inputs, outputs, strict=True)
        ]
        arguments = [
            (row[0], packed, data_crc(row[0], "", packed))
            for row, packed in zip(joins, map(pack, plan.joins), strict=True)
        ]
        db.execute("INSERT INTO graphs VALUES (?, ?, ?, 0)", (graph, len(jobs), len(jobs)))
        db.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?)", nodes)
        db.executemany("INSERT INTO joins VALUES (?, ?, ?, ?, ?, ?)", joins)
        db.executemany("INSERT INTO join_arguments VALUES (?, ?, ?)", arguments)
        db.executemany(
            "INSERT INTO handlers VALUES (?, ?, ?, ?)",
            [(graph + node, graph, graph + a, graph + z) for node, a, z in plan.handlers],
        )
        db.executemany(
            "INSERT INTO deadlines (graph, first, end, at) VALUES (?, ?, ?, ?)",
            [(graph, graph + a, graph + z, now + s) for a, z, s in plan.deadlines],
        )

    # Ends

    def ended(self, rows: Iterable[Finished]) -> None:
        """Record ends, for `advance`."""
        ours = [row for row in rows if "graph:" in row.job.headers]
        self.pending += ours
        self.inputs.release([
            row.job.id for row in ours
            if row.state is not JobState.FAILED and PAGED in flags_of(row.job.headers)
        ])  # fmt: skip

    def advance(self, write: AdvanceGraphs) -> GraphChanges:
        """Do what the recorded ends cause, and what that causes, for some jobs at most."""
        self.advanced = True
        joins, remaining = self.joins, write.limit
        joins.load()
        self.inputs.free()
        while self.pending or (joins and remaining > 0):
            if self.pending:
                rows, self.pending = self.pending, []
                self._step(rows, write)
            else:
                remaining -= joins.run(write, remaining)
        self._changes = self._changes._replace(unfinished=joins.save())
        return self._changes

    # hot loop: python -m benchmarks chord_members
    def _step(self, rows: Sequence[Finished], write: AdvanceGraphs) -> None:
        db = self.tables.db
        find = "SELECT graph, output FROM nodes WHERE key = ?"
        ended_of: Counter[int] = Counter()
        counts: Counter[int] = Counter()
        broken: dict[int, Finished] = {}
        member_results: list[tuple[Any, ...]] = []
        for row in rows:
            job = row.job
            node = first_row(db, find, (job.seq,))
            if node is None:  # an operator has queued it again
                continue
            graph, output = node
            ended_of[graph] += 1
            if row.state is JobState.SUCCEEDED:
                if output > 0:
                    counts[output] += 1
                    crc = data_crc(crc32(job.id.encode()), row.content_type, row.result)
                    member_results.append(
                        (job.seq, output, job.id, row.content_type, row.result, crc)
                    )
                continue
            if job.seq not in self._caused:
                self._call_handlers(graph, row, write)
            if output > 0 and COLLECTED in flags_of(job.headers):
                counts[output] += 1
            elif output > 0:
                broken.setdefault(output, row)
        db.executemany(
            "INSERT OR REPLACE INTO member_results VALUES (?, ?, ?, ?, ?, ?)", member_results
        )
        for join_key, row in broken.items():
            self.joins.failed(join_key, _reason(row, caused=row.job.seq in self._caused))
        for join_key, n in counts.items():
            self.joins.count_down(join_key, n)
        for graph, n in ended_of.items():
            self._count(graph, n, write)

    def _count(self, graph: int, n: int, write: AdvanceGraphs) -> None:
        """Count ended jobs of a graph; forget what it needed once all have ended."""
        db = self.tables.db
        db.execute("UPDATE graphs SET remaining = remaining - ? WHERE key = ?", (n, graph))
        row = first_row(db, "SELECT remaining, size FROM graphs WHERE key = ?", (graph,))
        if row is None:
            return
        remaining, size = row
        unused = all_rows(db, "SELECT key FROM handlers WHERE graph = ?", (graph,))
        if remaining and remaining == len(unused):
            db.execute("DELETE FROM handlers WHERE graph = ?", (graph,))
            waiting = [job for (key,) in unused for job in self._handler(key)]
            self.cancel(waiting, "not needed: nothing failed", write)
        elif remaining <= 0:
            db.execute("UPDATE graphs SET ended = ? WHERE key = ?", (write.at or 1.0, graph))
            self.inputs.discard_graph(graph, size)
            db.execute("DELETE FROM deadlines WHERE graph = ?", (graph,))
            db.execute("DELETE FROM handlers WHERE graph = ?", (graph,))

    def _handler(self, key: int) -> list[JobRecord]:
        """Return the job of this number, if it is blocked."""
        condition = f"seq = ? AND state = {_BLOCKED}"
        return self.tables.jobs(f"SELECT {JOB_COLUMNS} FROM jobs WHERE {condition}", (key,))

    # What waits

    def cancel(self, jobs: Sequence[JobRecord], reason: str, write: AdvanceGraphs) -> None:
        """Cancel jobs, since a job that they waited for did not succeed."""
        error = encode_error(RemoteError("eventmq.errors.JobCancelled", reason))
        self._caused.update(job.seq for job in jobs)
        self._end_jobs(jobs, JobState.CANCELLED, error, write)

    def _end_jobs(
        self, jobs: Sequence[JobRecord], state: JobState, error: bytes, write: AdvanceGraphs
    ) -> None:
        rows = [Finished(job, state, write.at, write.ttl, ERROR_TYPE, error) for job in jobs]
        self._finish(Finish(rows))
        self._changes.ended.extend(rows)

    def _call_handlers(self, graph: int, row: Finished, write: AdvanceGraphs) -> None:
        """Make ready what is there for the failure of a job."""
        db, seq = self.tables.db, row.job.seq
        sql = "SELECT key FROM handlers WHERE graph = ? AND first <= ? AND end > ?"
        for (key,) in all_rows(db, sql, (graph, seq, seq)):
            db.execute("DELETE FROM handlers WHERE key = ?", (key,))
            leaf = [row.job.id, row.state.value, row.content_type, row.result]
            self.ready(self._handler(key), pack(leaf), write)

    def ready(self, jobs: Sequence[JobRecord], value: bytes, write: AdvanceGraphs) -> None:
        """Queue jobs, those that take it with an input."""
        db, tables = self.tables.db, self.tables
        for job in jobs:
            if job.damaged:
                self.damaged([job], damage_of(job.id), write)
                continue
            if TAKES in flags_of(job.headers):
                if len(job.body) + len(value) > write.max_body:  # the error of a job, for a handler
                    limit = f"its body may have {write.max_body}, arguments and all"
                    self.too_large([job], len(value), limit, write)
                    continue
                job.body = pack([job.body, value])
            _start(job, write)
            sql = """UPDATE jobs SET state = ?, rank = ?, ready_at = ?, eta = ?, body = ?, crc = ?
                     WHERE seq = ?"""
            code, crc = STATE_CODES[job.state], tables.row(job)[-2]
            db.execute(sql, (code, job.rank, job.ready_at, job.eta, job.body, crc, job.seq))
            delayed = job.state is JobState.DELAYED
            tables.count(tables.queue_id(job.queue), not delayed, delayed, blocked=-1)
            self._report(job, write)

    def _report(self, job: JobRecord, write: AdvanceGraphs) -> None:
        self._bytes += len(job.body)
        if self._bytes > write.max_bytes or len(self._changes.ready) >= _WITH_BODIES:
            job.body = b""
            self._changes.more.append(job)
        else:
            self._changes.ready.append(job)

    def damaged(self, jobs: Sequence[JobRecord], text: str, write: AdvanceGraphs) -> None:
        """End jobs that cannot run, for their records or what they take are not what they were."""
        error = encode_error(RemoteError("eventmq.errors.StoreError", text))
        logger.error("jobs of a graph failed: %s", text)
        self._end_jobs(jobs, JobState.FAILED, error, write)

    def too_large(
        self, jobs: Sequence[JobRecord], size: int, limit: str, write: AdvanceGraphs
    ) -> None:
        """End jobs that would take too much."""
        text = f"what it takes has {size} bytes; {limit}: return references to large data"
        error = encode_error(RemoteError("eventmq.errors.ResultTooLarge", text))
        self._end_jobs(jobs, JobState.FAILED, error, write)


def _joins(graph: int, plan: Plan) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the rows of the joins, and by place the number of the one that is counted down.

    That is 0 where nothing waits, and `HANDLER` for handlers.
    """
    spans: dict[int, tuple[int, int]] = {}
    for node, number in enumerate(plan.inputs):
        first, _ = spans.get(number, (graph + node, 0))
        spans[number] = first, graph + node
    outputs = [0] * len(plan.inputs)
    for handler in plan.handlers:
        outputs[handler.node] = HANDLER
    rows: list[tuple[int, ...]] = []
    for number, tree in enumerate(plan.joins):
        key, last = spans[number]
        refs = refs_of(tree)
        for node in refs:
            outputs[node] = key
        rows.append((key, graph, len(refs), graph + min(refs), graph + max(refs), last))
    return rows, outputs


def _reason(row: Finished, *, caused: bool) -> str:
    """Return why jobs are cancelled that waited for this one: the first that did not succeed.

    Args:
        row: The end of this one.
        caused: It was cancelled itself for such a reason, which is handed on.
    """
    text = f"{DEPENDENCY}: job {row.job.id} {row.state}"
    if row.content_type != ERROR_TYPE or not row.result:
        return text
    error = decode_error(row.result)
    if caused:
        return error.message
    kind = error.type.removeprefix("builtins.").removeprefix("eventmq.errors.")
    return f"{text}: {kind}: {error.message}"[:_REASON]


def _start(job: JobRecord, write: AdvanceGraphs) -> None:
    """Give a job that waits no more its time and its place in the queue."""
    headers = parse_headers(job.headers)
    ready_at = write.at + headers.countdown if headers.countdown else 0.0
    job.eta = headers.eta if headers.eta - write.ahead > max(ready_at, write.at) else 0.0
    ready_at = job.eta - write.ahead if job.eta else ready_at
    delayed = ready_at > write.at
    job.ready_at = ready_at if delayed else write.at
    job.state = JobState.DELAYED if delayed else JobState.QUEUED
    job.rank = int((job.ready_at - headers.priority * write.step) * 1_000_000)


class LineageIndex:
    """Reads the table ``nodes``, which has the jobs of graphs until these are forgotten."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._lineages: dict[str, Lineage] = {}

    def clear(self) -> None:
        """Forget what was read: some of it may have been rolled back."""
        self._lineages.clear()

    # hot loop: python -m benchmarks chord_members
    def find(self, ids: Sequence[str]) -> list[Lineage | None]:
        """Return where each job stands, None for one of no known graph."""
        lineages = self._lineages
        missing = [job_id for job_id in ids if job_id not in lineages]
        if missing:
            if len(lineages) > _REMEMBERED:
                lineages.clear()
                missing = list(ids)
            self._read(missing)
        return [lineages.get(job_id) for job_id in ids]

    def _read(self, ids: Sequence[str]) -> None:
        execute, lineages = self._db.execute, self._lineages
        # Of the rest, which is less than a statement has, each has its own.
        even = len(ids) - len(ids) % _MANY
        for start in range(0, even, _MANY):
            for job_id, root, parent in execute(_FIND_MANY, ids[start : start + _MANY]):
                lineages[job_id] = Lineage(root, parent or "")
        for requested in ids[even:]:
            for job_id, root, parent in execute(_FIND_ONE, (requested,)):
                lineages[job_id] = Lineage(root, parent or "")


class GraphReads:
    """Handlers of `CancelGraph`, `EndDeadlines`, `FindLineage` and `ListGraph`.

    Args:
        graphs: Knows which job is of which graph.
        reads: Finds jobs.
        cancel: Ends jobs as cancelled and returns them.
    """

    def __init__(
        self,
        graphs: GraphWrites,
        reads: Reads,
        cancel: Callable[[list[JobRecord], AuditFields], list[JobRecord]],
    ) -> None:
        self.graphs = graphs
        self.tables = graphs.tables
        self._reads = reads
        self._cancel = cancel
        self._lineage = LineageIndex(graphs.tables.db)

    def _size(self, graph: int) -> int:
        sql = "SELECT size FROM graphs WHERE key = ?"
        (size,) = first_row(self.tables.db, sql, (graph,))
        return int(size)

    def _id(self, key: int) -> str:
        row = first_row(self.tables.db, "SELECT id FROM nodes WHERE key = ?", (key,))
        return row[0] if row else ""

    # Ends

    def _end_jobs(self, first: int, end: int, audit: AuditFields, limit: int) -> list[JobRecord]:
        """Cancel jobs, the last ones first: what waits does not see what it waits for end."""
        sql = (
            f"SELECT {BARE_COLUMNS} FROM jobs WHERE seq >= ? AND seq < ? ORDER BY seq DESC LIMIT ?"
        )
        return self._cancel(self.tables.jobs(sql, (first, end, limit))[::-1], audit)

    def cancel(self, write: CancelGraph) -> tuple[str, AffectedJobs]:
        """Cancel what has not ended of a graph."""
        graph = self.graphs.known(write.id)
        if not graph:
            return "", AffectedJobs([], {})
        jobs = self._end_jobs(graph, graph + self._size(graph), write.audit, write.limit)
        return self._id(graph), AffectedJobs(jobs, {})

    def end_deadlines(self, write: EndDeadlines) -> tuple[AffectedJobs, float | None]:
        """Cancel what is past its deadline, part by part."""
        db = self.tables.db
        sql = "SELECT key, first, end FROM deadlines WHERE at <= ? ORDER BY at LIMIT 20"
        jobs: list[JobRecord] = []
        for key, first, end in all_rows(db, sql, (write.now,)):
            jobs += self._end_jobs(first, end, write.audit, write.limit - len(jobs))
            if len(jobs) >= write.limit:
                break
            db.execute("DELETE FROM deadlines WHERE key = ?", (key,))
        return AffectedJobs(jobs, {}), next_deadline(self.tables.db)

    # Reads

    def lineage(self, write: FindLineage) -> Lineage | None:
        """Return where a job stands in its graph."""
        self._lineage.clear()  # the graph may be forgotten since, or was rolled back
        return self._lineage.find([write.id])[0]

    def page(self, write: ListGraph) -> GraphPage | None:
        """List jobs of a graph by place."""
        graph = self.graphs.known(write.id)
        if not graph:
            return None
        size = self._size(graph)
        sql = """SELECT key, id, input, output FROM nodes
                 WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"""
        span = (graph + write.first, graph + size, write.limit)
        rows = []
        for key, job_id, before, after in all_rows(self.tables.db, sql, span):
            row = self._reads.find_one(job_id) or JobRow(_forgotten(job_id))
            rows.append(GraphRow(key - graph, before, max(after, 0), after == HANDLER, row))
        return GraphPage(self._id(graph), size, rows)

    # Forgetting

    def prune(self, before: float) -> bool:
        """Forget some graphs that ended before that time; return whether more did."""
        db = self.tables.db
        sql = "SELECT key, size FROM graphs WHERE ended > 0 AND ended < ? LIMIT ?"
        forgotten = 0
        for key, size in all_rows(db, sql, (before, _SLICE)):
            db.execute("DELETE FROM nodes WHERE key >= ? AND key < ?", (key, key + size))
            db.execute("DELETE FROM graphs WHERE key = ?", (key,))
            forgotten += size
            if forgotten >= _SLICE:
                return True
        return False


def _forgotten(job_id: str) -> JobRecord:
    return JobRecord(job_id, "", "", b"", state=JobState.SUCCEEDED)


def next_deadline(db: Any) -> float | None:
    """Return the first deadline."""
    deadline: float | None = first_row(db, "SELECT min(at) FROM deadlines")[0]
    return deadline


def open_graphs(db: Any) -> bool:
    """Return whether a graph has not ended, or has pending work."""
    return unfinished(db) or first_row(db, "SELECT 1 FROM graphs WHERE ended = 0") is not None
