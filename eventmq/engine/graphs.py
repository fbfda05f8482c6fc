"""Graphs: rows that say which jobs wait for which; they change in the commit in which a job ends.

A node has the number of its job, so the jobs of a graph are a range of numbers that begins with the
number of the graph. At a join, jobs wait until other jobs, its members, have ended, and get their
results. A join has the number of the first job that waits at it. ``member_results`` has the results
that a join still needs, whatever their time to live. They are copied into the bodies of the waiting
jobs, or stay in the table if they are too long for that.

A join may have as many jobs as a graph, and a cancelled job breaks the next join. To keep commits
short, each handles a limited number of jobs; the rest is stored as a row of ``pending_work``, with
which the next commit goes on. In such a row ``reason`` is why the jobs are cancelled, or NULL if
they become ready; jobs before the number ``cursor`` are done; ``copies`` is how many jobs share the
results.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from eventmq.engine import damaged
from eventmq.engine.rows import (
    INSERT_ROW,
    JOB_ROW,
    DamagedRow,
    damage_of,
    data_crc,
    is_intact,
)
from eventmq.graph import COLLECTED, PAGED, TAKES, flags_of, paged, refs_of
from eventmq.headers import parse_headers
from eventmq.job import STATE_CODES, JobState
from eventmq.store.reads import InputsPage
from eventmq.store.writes import AdvanceGraphs, Finish, Finished, GraphChanges, WriteResult
from eventmq.wire.batches import pack, unpack
from eventmq.wire.results import ERROR_TYPE, RemoteError, decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from eventmq.engine.contract import RowStore
    from eventmq.engine.rows import Tables
    from eventmq.graph import Plan
    from eventmq.job import JobRecord
    from eventmq.store.reads import ReadInputs
    from eventmq.store.writes import AdmitGraph

__all__ = ["HANDLER", "GraphWrites", "Joins", "ResultRange", "StoredInputs", "unfinished"]


logger = logging.getLogger("eventmq.store")

_BLOCKED = STATE_CODES[JobState.BLOCKED]

#: Columns of the tables of graphs, in the order in which rows are inserted.
_GRAPH = ("key", "size", "remaining", "ended")
_NODE = ("key", "id", "graph", "input", "output", "parent")
_JOIN = ("key", "graph", "remaining", "first", "final", "last")
_ARGUMENTS = ("join_key", "tree", "crc")
_HANDLER = ("key", "graph", "first", "end")
_DEADLINE = ("graph", "first", "end", "at")
_RESULT = ("key", "join_key", "id", "content_type", "result", "crc")
_LEAF = ("key", "id", "content_type", "result", "crc")
_INPUT = ("job", "join_key", "first", "final", "size")
_WORK = ("join_key", "reason", "cursor", "copies")

_STATE = JOB_ROW.index("state")

#: Columns that change when a blocked job becomes ready.
_READY = ("state", "rank", "ready_at", "eta", "body", "crc")

#: Output of the node of a failure handler: no join waits for it.
HANDLER = -1

#: Prefix of the reason why a waiting job was cancelled; the job it waited for follows.
DEPENDENCY = "dependency"

#: Maximum characters of a reason.
_REASON = 500

#: Maximum number of ready jobs that a write result contains with their bodies.
_WITH_BODIES = 200

#: Bytes that MessagePack adds to id, content type and data of a result.
_AROUND = 16

#: Maximum bytes of results that one commit deletes.
FREED_AT_ONCE = 8 * 1024 * 1024

#: Maximum number of results that are scanned at once for that, and of scans in one commit.
_FREED_ROWS, _FREED_SPANS = 10_000, 20

#: Nodes, or sizes of results, that one scan reads.
_SLICE = 5000

#: Joins that are read ahead, together with the next one that has pending work.
_AHEAD = 100

#: Maximum number of rows of pending work that one commit reads.
_READ = 1000


class GraphWrites:
    """Handlers of `AdmitGraph` and `AdvanceGraphs`.

    Args:
        tables: The tables of the store.
        finish: Ends jobs; it calls `ended` for them.
    """

    def __init__(self, tables: Tables, finish: Callable[[Finish], Any]) -> None:
        self.tables = tables
        self.inputs = StoredInputs(tables)
        self.joins = Joins(tables, self.inputs, self)
        self._finish = finish
        #: Ends of graph jobs in this commit whose consequences `advance` has not carried out.
        self.pending: list[Finished] = []
        self._changes = GraphChanges([], [], [])
        #: Jobs that were cancelled because a job that they waited for did not succeed.
        self._cancelled: set[int] = set()
        #: Bytes of the bodies in `_changes`.
        self._bytes = 0
        #: Whether `advance` has run since `reset`.
        self.advanced = False

    def reset(self) -> None:
        """Clear the state of the previous commit, before the next one."""
        self.advanced = False
        self.pending.clear()
        self._cancelled.clear()
        self._bytes = 0
        self._changes = GraphChanges([], [], [])
        self.joins.reset()

    # Admission

    def known(self, job_id: str) -> int:
        """Return the number of the graph of a job, 0 for none."""
        for (graph,) in self.tables.store.get("nodes", ("graph",), [job_id], by="nodes_id"):
            return int(graph)
        return 0

    def admit(
        self, write: AdmitGraph, find_duplicate: Callable[[Sequence[JobRecord]], str]
    ) -> WriteResult | None:
        """Insert the jobs of a graph, all or none.

        Args:
            write: The graph.
            find_duplicate: Returns the id of a job that is stored already, or "".
        """
        jobs = write.jobs
        if self.known(jobs[0].id):
            return WriteResult("same_id")
        duplicate = find_duplicate(jobs)
        if duplicate:
            return WriteResult("same_id" if duplicate == jobs[0].id else "taken", duplicate)
        tables, subqueues = self.tables, dict[tuple[str, str], int]()
        rows = []
        for job in jobs:
            subqueue = subqueues.get((job.queue, job.headers))
            if subqueue is None:
                subqueue = subqueues[job.queue, job.headers] = tables.subqueue_id(
                    job.queue, job.headers
                )
            rows.append((*tables.row(job), subqueue))
        tables.store.insert("jobs", (*INSERT_ROW, "subqueue"), rows)
        for (queue, state), n in Counter((job.queue, job.state) for job in jobs).items():
            name = "waiting" if state is JobState.QUEUED else state.value
            tables.count(tables.queue_id(queue), **{name: n})
        self._insert(jobs, write.plan)
        return None

    def _insert(self, jobs: Sequence[JobRecord], plan: Plan) -> None:
        insert, graph, now = self.tables.store.insert, jobs[0].seq, jobs[0].created
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
        handlers = [(graph + node, graph, graph + a, graph + z) for node, a, z in plan.handlers]
        deadlines = [(graph, graph + a, graph + z, now + s) for a, z, s in plan.deadlines]
        insert("graphs", _GRAPH, [(graph, len(jobs), len(jobs), 0.0)])
        insert("nodes", _NODE, nodes)
        insert("joins", _JOIN, joins)
        insert("join_arguments", _ARGUMENTS, arguments)
        insert("handlers", _HANDLER, handlers)
        insert("deadlines", _DEADLINE, deadlines)

    # Ends

    def ended(self, rows: Iterable[Finished]) -> None:
        """Record ends of jobs, whose consequences `advance` carries out."""
        graph_rows = [row for row in rows if "graph:" in row.job.headers]
        self.pending += graph_rows
        self.inputs.release([
            row.job.id for row in graph_rows
            if row.state is not JobState.FAILED and PAGED in flags_of(row.job.headers)
        ])  # fmt: skip

    def advance(self, write: AdvanceGraphs) -> GraphChanges:
        """Carry out the consequences of the recorded ends, for ``write.limit`` jobs at most."""
        self.advanced = True
        joins, remaining = self.joins, write.limit
        joins.load()
        self.inputs.free()
        while self.pending or (joins and remaining > 0):
            if self.pending:
                rows, self.pending = self.pending, []
                self._step(rows, write)
            while joins and remaining > 0:
                remaining -= joins.run(write, remaining)
        self._changes = self._changes._replace(unfinished=joins.save())
        return self._changes

    # hot loop: python -m benchmarks chord_members
    def _step(self, rows: Sequence[Finished], write: AdvanceGraphs) -> None:
        store = self.tables.store
        nodes = {
            key: (graph, output)
            for key, graph, output in store.get(
                "nodes", ("key", "graph", "output"), list({row.job.seq for row in rows})
            )
        }
        ended_of: Counter[int] = Counter()
        counts: Counter[int] = Counter()
        broken: dict[int, Finished] = {}
        failed: list[tuple[int, Finished]] = []
        member_results: list[tuple[Any, ...]] = []
        for row in rows:
            job = row.job
            node = nodes.get(job.seq)
            if node is None:  # an operator had queued the job again
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
            if job.seq not in self._cancelled:
                failed.append((graph, row))
            if output > 0 and COLLECTED in flags_of(job.headers):
                counts[output] += 1
            elif output > 0:
                broken.setdefault(output, row)
        if not ended_of:
            return
        handlers = store.get("handlers", _HANDLER, list(ended_of), by="handlers_graph")
        if handlers and failed:
            handlers = self._call_handlers(handlers, failed, write)
        for join_key, row in broken.items():
            self.joins.failed(join_key, _reason(row, cancelled=row.job.seq in self._cancelled))
        if counts:
            waiting = self.joins.count_down(counts)
            # A join that is broken needs no results.
            needed = [row for row in member_results if row[1] in waiting]
            store.put("member_results", _RESULT, needed)
        self._count(ended_of, handlers, write)

    def _count(
        self, ended_of: Mapping[int, int], handlers: Sequence[tuple[Any, ...]], write: AdvanceGraphs
    ) -> None:
        """Count the ended jobs of graphs; delete what a graph needed once all its jobs have ended.

        Args:
            ended_of: Graph -> number of jobs that ended in this step.
            handlers: Rows of the handlers of these graphs that were not called.
            write: The write.
        """
        store = self.tables.store
        unused_of: dict[int, list[int]] = {}
        for key, graph, _, _ in handlers:
            unused_of.setdefault(graph, []).append(key)
        open_graphs, ended, unused = [], [], list[int]()
        for graph, before in store.get("graphs", ("key", "remaining"), list(ended_of)):
            remaining = before - ended_of[graph]
            keys = unused_of.get(graph, [])
            if remaining > 0:
                open_graphs.append((remaining, graph))
            else:
                ended.append((remaining, write.at or 1.0, graph))
            if remaining <= 0 or remaining == len(keys):
                unused += keys
        store.update("graphs", ("remaining",), open_graphs)
        if unused:
            store.delete("handlers", unused)
            self.cancel(self.blocked(unused), "not needed: nothing failed", write)
        if ended:
            store.update("graphs", ("remaining", "ended"), ended)
            graphs = [row[-1] for row in ended]
            deadlines = store.get("deadlines", ("key",), graphs, by="deadlines_graph")
            store.delete("deadlines", [key for (key,) in deadlines])

    def blocked(self, keys: Sequence[int]) -> list[JobRecord]:
        """Return those of the jobs with these numbers that are blocked, in order of number."""
        rows = self.tables.get("jobs", JOB_ROW, keys)
        rows.sort(key=itemgetter(0))
        return [self.tables.job(row) for row in rows if row[_STATE] == _BLOCKED]

    # Waiting jobs

    def cancel(self, jobs: Sequence[JobRecord], reason: str, write: AdvanceGraphs) -> None:
        """Cancel jobs because a job that they waited for did not succeed."""
        self._cancelled.update(job.seq for job in jobs)
        self._end_jobs(
            jobs, JobState.CANCELLED, RemoteError("eventmq.errors.JobCancelled", reason), write
        )

    def _end_jobs(
        self, jobs: Sequence[JobRecord], state: JobState, why: RemoteError, write: AdvanceGraphs
    ) -> None:
        error = encode_error(why)
        rows = [Finished(job, state, write.at, write.ttl, ERROR_TYPE, error) for job in jobs]
        self._finish(Finish(rows))
        self._changes.ended.extend(rows)

    def _call_handlers(
        self,
        handlers: list[tuple[Any, ...]],
        failed: Sequence[tuple[int, Finished]],
        write: AdvanceGraphs,
    ) -> list[tuple[Any, ...]]:
        """Make the failure handlers of failed jobs ready.

        Args:
            handlers: Rows of all handlers of the graphs of these jobs.
            failed: Graph and end of each failed job.
            write: The write.

        Returns:
            The rows of the handlers that were not called.
        """
        leaves: dict[int, bytes] = {}
        for graph, row in failed:
            leaf = [row.job.id, row.state.value, row.content_type, row.result]
            for key, of, first, end in handlers:
                if of == graph and first <= row.job.seq < end and key not in leaves:
                    leaves[key] = pack(leaf)
        if leaves:
            self.tables.store.delete("handlers", list(leaves))
            jobs = {job.seq: job for job in self.blocked(list(leaves))}
            for key, value in leaves.items():
                if key in jobs:
                    self.ready([jobs[key]], value, write)
        return [row for row in handlers if row[0] not in leaves]

    def ready(self, jobs: Sequence[JobRecord], value: bytes, write: AdvanceGraphs) -> None:
        """Queue jobs; those that take an input get ``value``, packed."""
        tables, rows = self.tables, []
        for job in jobs:
            if job.damaged:
                self.damaged([job], damage_of(job.id), write)
                continue
            if TAKES in flags_of(job.headers):
                # Results were measured before; a handler's input, an error, was not.
                if len(job.body) + len(value) > write.max_body:
                    limit = f"its body may have {write.max_body}, arguments and all"
                    self.too_large([job], len(value), limit, write)
                    continue
                job.body = pack([job.body, value])
            _start(job, write)
            code, crc = STATE_CODES[job.state], tables.row(job)[-2]
            rows.append((code, job.rank, job.ready_at, job.eta, job.body, crc, job.seq))
            delayed = job.state is JobState.DELAYED
            tables.count(tables.queue_id(job.queue), not delayed, delayed, blocked=-1)
            self._report(job, write)
        tables.store.update("jobs", _READY, rows)

    def _report(self, job: JobRecord, write: AdvanceGraphs) -> None:
        self._bytes += len(job.body)
        if self._bytes > write.max_bytes or len(self._changes.ready) >= _WITH_BODIES:
            job.body = b""
            self._changes.more.append(job)
        else:
            self._changes.ready.append(job)

    def damaged(self, jobs: Sequence[JobRecord], text: str, write: AdvanceGraphs) -> None:
        """Fail jobs whose records or inputs are damaged in the store."""
        logger.error("%d jobs of a graph failed, the first is %s: %s", len(jobs), jobs[0].id, text)
        why = RemoteError("eventmq.errors.StoreError", text)
        self._end_jobs(jobs, JobState.FAILED, why, write)

    def too_large(
        self, jobs: Sequence[JobRecord], size: int, limit: str, write: AdvanceGraphs
    ) -> None:
        """Fail jobs whose input is too large."""
        text = f"the input has {size} bytes; {limit}: return references to large data"
        why = RemoteError("eventmq.errors.ResultTooLarge", text)
        self._end_jobs(jobs, JobState.FAILED, why, write)


def _joins(graph: int, plan: Plan) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the rows of the joins, and for each node the number of the join that it counts down.

    That number is 0 if nothing waits for the node, and `HANDLER` for handlers.
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


def _reason(row: Finished, *, cancelled: bool) -> str:
    """Return the reason for cancelling jobs that wait for a job that did not succeed.

    Args:
        row: The end of that job.
        cancelled: Whether it was itself cancelled for such a reason, which is then passed on, so
            that all reasons name the first job that did not succeed.
    """
    text = f"{DEPENDENCY}: job {row.job.id} {row.state}"
    if row.content_type != ERROR_TYPE or not row.result:
        return text
    error = decode_error(row.result)
    if cancelled:
        return error.message
    kind = error.type.removeprefix("builtins.").removeprefix("eventmq.errors.")
    return f"{text}: {kind}: {error.message}"[:_REASON]


def _start(job: JobRecord, write: AdvanceGraphs) -> None:
    """Set the state, ready time and rank of a job that no longer waits for others."""
    headers = parse_headers(job.headers)
    ready_at = write.at + headers.countdown if headers.countdown else 0.0
    job.eta = headers.eta if headers.eta - write.ahead > max(ready_at, write.at) else 0.0
    ready_at = job.eta - write.ahead if job.eta else ready_at
    delayed = ready_at > write.at
    job.ready_at = ready_at if delayed else write.at
    job.state = JobState.DELAYED if delayed else JobState.QUEUED
    job.rank = int((job.ready_at - headers.priority * write.step) * 1_000_000)


# Joins


class ResultRange(NamedTuple):
    """Location of a join's results: numbers of its first and last member, and of the join."""

    first: int
    final: int
    join_key: int


class StoredInputs:
    """Table ``member_results``, and ``inputs``: which jobs read them. Handles `ReadInputs`."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._store = tables.store

    # Member results

    def rows(self, join_key: int) -> dict[int, tuple[str, str, bytes]]:
        """Return id, content type and data of a join's results, by number of the member.

        Raises:
            DamagedRow: A result is damaged.
        """
        results: dict[int, tuple[str, str, bytes]] = {}
        try:
            rows = list(self._store.scan("member_results", _LEAF, (join_key,)))
        except UnicodeDecodeError as error:
            raise DamagedRow("a result in the input is damaged") from error
        for key, job, kind, data, crc in rows:
            if not is_intact(crc, job, kind, data):
                raise DamagedRow(f"the result of job {job}, an input, is damaged")
            results[key] = job, kind, data
        return results

    def discard(self, join_keys: Sequence[int]) -> None:
        """Schedule results that joins no longer need for deletion, and delete the first of them."""
        if not join_keys:
            return
        rows = [(join_key, join_key) for join_key in join_keys]
        self._store.insert("releasable_results", ("first", "final"), rows)
        self.tables.graph_work = True
        self.free()

    def free(self) -> None:
        """Delete some of the results that are no longer needed; all at once would take too long."""
        if not self.tables.graph_work:
            return
        remaining, done = FREED_AT_ONCE, []
        spans = list(
            self._store.scan("releasable_results", ("key", "first", "final"), limit=_FREED_SPANS)
        )
        for number, first, final in spans:
            next_join, remaining = self._free(first, final, remaining)
            if next_join is not None:
                self._store.update("releasable_results", ("first",), [(next_join, number)])
                break
            done.append(number)
        self._store.delete("releasable_results", done)

    def _free(self, first: int, final: int, remaining: int) -> tuple[int | None, int]:
        """Delete results of a range of joins, except those that a job or a join still needs.

        Args:
            first: Number of the first join.
            final: Number of the last join.
            remaining: Bytes that this commit may still delete.

        Returns:
            The join to go on with, None if the range is done; and the bytes that remain.
        """
        columns = ("join_key", "key", "size")
        rows = list(
            self._store.scan("member_results", columns, ge=(first,), le=(final,), limit=_FREED_ROWS)
        )
        used = self.in_use({row[0] for row in rows})
        deleted: list[tuple[int, int]] = []
        next_join = None
        for join_key, key, size in rows:
            if join_key in used:
                continue
            deleted.append((join_key, key))
            remaining -= size + _AROUND
            if remaining < 0:
                next_join = join_key
                break
        self._store.delete("member_results", deleted)
        if next_join is None and len(rows) == _FREED_ROWS:
            next_join = rows[-1][0] + (rows[-1][0] in used)
        return next_join, remaining

    # Jobs that need them

    def bytes_of(self, job: str) -> int:
        """Return the size, in bytes, of the results that are kept for a job."""
        for (size,) in self._store.get("inputs", ("size",), [job]):
            return int(size)
        return 0

    def in_use(self, join_keys: Iterable[int]) -> set[int]:
        """Return those of the joins whose results jobs still read, or at which jobs still wait."""
        keys = list(join_keys)
        used = {key for (key,) in self._store.get("joins", ("key",), keys)}
        firsts = self._store.heads("inputs_join_key", ("join_key",), [(key,) for key in keys])
        return used | {first[0] for first in firsts if first is not None}

    def release(self, jobs: Iterable[str]) -> None:
        """Release the results that were kept for jobs, which no longer need them."""
        ids = list(jobs)
        rows = self._store.get("inputs", ("job", "join_key"), ids) if ids else []
        if rows:
            self._store.delete("inputs", [job for job, _ in rows])
            join_keys = {join_key for _, join_key in rows}
            self.discard(sorted(join_keys - self.in_use(join_keys)))

    # Reading

    def page(self, write: ReadInputs) -> InputsPage | None:
        """Return results from the cursor on, up to a number of bytes; None if none are kept."""
        joins = self._store.get("inputs", ("join_key",), [write.id])
        if not joins:
            return None
        [join] = joins
        rows: list[tuple[str, str, bytes]] = []
        last, following = self._page_end(join, write)
        if last is None:
            return InputsPage(rows, 0)
        scan = self._store.scan("member_results", _LEAF, join, ge=(write.cursor,), le=(last,))
        for _, job, kind, data, crc in list(scan):
            if not is_intact(crc, job, kind, data):
                logger.error("the result of job %s, an input of job %s, is damaged", job, write.id)
                return None
            rows.append((job, kind, data))
        return InputsPage(rows, following)

    def _page_end(self, join: tuple[int], write: ReadInputs) -> tuple[int | None, int]:
        """Return the number of the last result of a page, and of the next one, 0 for none."""
        last, size = None, 0
        sizes = list(self._store.scan(
            "member_results", ("key", "size"), join, ge=(write.cursor,), limit=_SLICE
        ))  # fmt: skip
        for key, length in sizes:
            size += length
            if last is not None and size > write.max_bytes:
                return last, key
            last = key
        return last, sizes[-1][0] + 1 if len(sizes) == _SLICE else 0


class PendingWork(NamedTuple):
    """Unfinished work at a join."""

    join_key: int
    reason: str | None
    cursor: int = 0
    copies: int = 0


class LoadedJoin(NamedTuple):
    """A join that was read ahead of its pending work."""

    graph: int
    result_range: ResultRange
    last: int
    #: The waiting job, if the join has only one.
    jobs: list[JobRecord]
    #: The packed order of its results, and the checksum of that.
    arguments: list[tuple[bytes, int]]
    in_use: bool


class Joins:
    """Opens joins whose members all succeeded, and breaks those of which a member did not."""

    def __init__(self, tables: Tables, inputs: StoredInputs, waiting_jobs: GraphWrites) -> None:
        self.tables = tables
        self.inputs = inputs
        self._waiting_jobs = waiting_jobs
        self._work: deque[PendingWork] = deque()
        #: Number -> join, None if it does not exist any more; read in this commit.
        self._loaded: dict[int, LoadedJoin | None] = {}
        #: Joins that were broken in this commit; nothing needs their results.
        self._broken: list[int] = []

    # Pending work

    def reset(self) -> None:
        """Clear the state of the previous commit."""
        self._work.clear()
        self._loaded.clear()
        self._broken.clear()

    def load(self) -> None:
        """Read the work that earlier commits left."""
        store = self.tables.store
        if self.tables.graph_work:
            pending = list(store.scan("pending_work", ("key", *_WORK), limit=_READ))
            store.delete("pending_work", [row[0] for row in pending])
            self._work.extend(PendingWork(*row[1:]) for row in pending)

    def save(self) -> bool:
        """Store the remaining work for the next commit; return whether there is any."""
        tables, keys = self.tables, [(key,) for key in self._broken]
        if keys:
            heads = tables.store.heads("member_results", ("join_key",), keys)
            self.inputs.discard([head[0] for head in heads if head is not None])
            self._broken.clear()
        if self._work:
            firsts = {work.join_key: work for work in reversed(self._work)}
            tables.store.insert_new("pending_work", _WORK, list(firsts.values())[::-1])
            self._work.clear()
            tables.graph_work = True
        elif tables.graph_work:
            tables.graph_work = unfinished(tables.store)
        return tables.graph_work

    def failed(self, join_key: int, reason: str) -> None:
        """Add the work of a join whose member did not succeed."""
        self._work.append(PendingWork(join_key, reason))

    def count_down(self, counts: Mapping[int, int]) -> set[int]:
        """Count down joins by their succeeded members; return those that still exist."""
        store = self.tables.store
        before = dict(store.get("joins", ("key", "remaining"), list(counts)))
        after = [(before[key] - n, key) for key, n in counts.items() if key in before]
        store.update("joins", ("remaining",), after)
        self._work.extend(PendingWork(key, None) for remaining, key in after if remaining <= 0)
        return set(before)

    def __bool__(self) -> bool:
        return bool(self._work)

    # Running the work

    def run(self, write: AdvanceGraphs, limit: int) -> int:
        """Run the first work for up to ``limit`` jobs; return for how many it ran, at least 1."""
        work = self._work.popleft()
        if work.join_key not in self._loaded:
            self._load([work, *islice(self._work, _AHEAD)])
        join = self._loaded.pop(work.join_key)
        if join is None:
            return 1
        jobs, last = join.jobs, join.last
        if last != work.join_key:
            jobs = self._waiting(max(work.join_key, work.cursor), last, work.join_key, limit)
        more = len(jobs) == limit and jobs[-1].seq < last
        in_use = join.in_use
        if work.reason is not None:
            self._waiting_jobs.cancel(jobs, work.reason, write)
        else:
            copies = work.copies or (self._count(jobs, last, work.join_key) if more else 0)
            in_use |= self._open(join, jobs, copies, write)
            work = work._replace(copies=copies)
        if more:
            self._work.appendleft(work._replace(cursor=jobs[-1].seq + 1))
        else:
            self._delete_join(work.join_key, succeeded=work.reason is None, in_use=in_use)
        return max(1, len(jobs))

    def _load(self, works: Sequence[PendingWork]) -> None:
        """Read the joins of some work that were not read yet."""
        store = self.tables.store
        keys = list({work.join_key for work in works} - self._loaded.keys())
        joins = store.get("joins", ("key", "graph", "first", "final", "last"), keys)
        self._loaded.update(dict.fromkeys(keys))
        keys = [join[0] for join in joins]
        if not keys:
            return
        single = [join[0] for join in joins if join[0] == join[4]]
        jobs = {job.seq: job for job in self._waiting_jobs.blocked(single)}
        opened = list({work.join_key for work in works if work.reason is None}.intersection(keys))
        rows = store.get("join_arguments", _ARGUMENTS, opened)
        arguments = {key: (packed, crc) for key, packed, crc in rows}
        used = store.heads("inputs_join_key", ("join_key",), [(key,) for key in keys])
        for (key, graph, first, final, last), input_row in zip(joins, used, strict=True):
            self._loaded[key] = LoadedJoin(
                graph, ResultRange(first, final, key), last, [jobs[key]] if key in jobs else [],
                [arguments[key]] if key in arguments else [], input_row is not None,
            )  # fmt: skip

    def _waiting(self, first: int, last: int, join_key: int, limit: int) -> list[JobRecord]:
        """Return up to ``limit`` blocked jobs of a join in a range of numbers."""
        jobs: list[JobRecord] = []
        keys = self._nodes(first, last, join_key)
        while len(jobs) < limit and (batch := list(islice(keys, limit))):
            jobs += self._waiting_jobs.blocked(batch)
        return jobs[:limit]

    def _nodes(self, first: int, last: int, join_key: int) -> Iterator[int]:
        """Yield the numbers of the jobs in a range that wait at a join or did so before."""
        rows = damaged.pages(
            self.tables.store, "nodes", ("key", "input"), lambda row: row[:1], portion=_SLICE,
            gt=(first - 1,), le=(last,),
        )  # fmt: skip
        return (key for key, at in rows if at == join_key)

    def _count(self, jobs: Sequence[JobRecord], last: int, join_key: int) -> int:
        """Return how many jobs wait at a join; ``jobs`` are the first of them."""
        keys, count = self._nodes(jobs[0].seq, last, join_key), 0
        while batch := list(islice(keys, _SLICE)):
            states = self.tables.store.get("jobs", ("state",), batch)
            count += sum(state == _BLOCKED for (state,) in states)
        return count

    def _delete_join(self, key: int, *, succeeded: bool, in_use: bool) -> None:
        """Delete a join at which no job waits any more.

        Args:
            key: The number of the join.
            succeeded: Whether the join was opened, not broken.
            in_use: Whether jobs will still read its results.
        """
        store = self.tables.store
        store.delete("joins", [key])
        store.delete("join_arguments", [key])
        self._loaded[key] = None
        if in_use:
            return
        if succeeded:
            store.delete_range("member_results", (key,))
        else:
            self._broken.append(key)

    # Ready

    def _open(
        self, join: LoadedJoin, jobs: Sequence[JobRecord], copies: int, write: AdvanceGraphs
    ) -> bool:
        """Make jobs ready; return whether results are kept for them to read."""
        consumers = [job for job in jobs if TAKES in flags_of(job.headers) and not job.damaged]
        if not consumers:
            self._waiting_jobs.ready(jobs, b"", write)
            return False
        try:
            return self._ready_with_input(join, jobs, consumers, copies, write)
        except DamagedRow as error:
            self._waiting_jobs.damaged(consumers, f"{error}: its checksum is wrong", write)
            self._ready_others(jobs, consumers, write)
            return False

    def _ready_with_input(
        self,
        join: LoadedJoin,
        jobs: Sequence[JobRecord],
        consumers: Sequence[JobRecord],
        copies: int,
        write: AdvanceGraphs,
    ) -> bool:
        """Make jobs ready with their input, inline or kept; return whether results are kept."""
        [(packed, crc)] = join.arguments
        graph, result_range, key = join.graph, join.result_range, join.result_range.join_key
        if crc != data_crc(key, "", packed):
            raise DamagedRow("the order of the results in the input is damaged in the store")
        tree = unpack(packed, "a tree")
        longest_body = max(len(job.body) for job in consumers)
        max_size = min(
            write.max_body - longest_body, write.max_copies // max(copies, len(consumers))
        )
        columns = ("result", "id", "content_type")
        count, length = self.tables.store.measure("member_results", columns, (key,))
        size = length + _AROUND * count + len(packed)
        if size <= max_size:
            leaves = {number - graph: leaf for number, leaf in self.inputs.rows(key).items()}
            self._waiting_jobs.ready(jobs, pack(_substitute(tree, leaves)), write)
            return False
        held = self.tables.store.scan("member_results", ("key", "id"), (key,))
        ids = {number - graph: job_id for number, job_id in held}
        value = pack(_substitute(tree, ids))
        limit = _limit(size, longest_body + len(value), write)
        if not limit:
            self._store_inputs(consumers, result_range, size)
            self._waiting_jobs.ready(jobs, value, write)
            return True
        self._waiting_jobs.too_large(consumers, size, limit, write)
        self._ready_others(jobs, consumers, write)
        return False

    def _ready_others(
        self, jobs: Sequence[JobRecord], consumers: Sequence[JobRecord], write: AdvanceGraphs
    ) -> None:
        """Make the jobs ready that take no input."""
        consuming = {job.seq for job in consumers}
        self._waiting_jobs.ready([job for job in jobs if job.seq not in consuming], b"", write)

    def _store_inputs(
        self, consumers: Sequence[JobRecord], result_range: ResultRange, size: int
    ) -> None:
        """Keep results for jobs that get ids in their bodies, until each is released."""
        store, (first, final, key) = self.tables.store, result_range
        store.put("inputs", _INPUT, [(job.id, key, first, final, size) for job in consumers])
        for job in consumers:
            job.headers = paged(job.headers)
        rows = [(job.headers, *self.tables.row(job)[-2:], job.seq) for job in consumers]
        store.update("jobs", ("headers", "crc", "head_crc"), rows)


def _limit(size: int, body: int, write: AdvanceGraphs) -> str:
    """Return why results of ``size`` bytes cannot be read by id, "" if they can."""
    if size > write.max_input_bytes:
        return f"the limit is {write.max_input_bytes}, from the setting max_input_bytes"
    if body > write.max_body:
        return f"their ids alone are longer than a body, of {write.max_body} bytes"
    return ""


def _substitute(tree: Any, leaves: Mapping[int, Any]) -> Any:
    """Return a tree with results, or ids, in place of node numbers; missing ones are left out."""
    if not isinstance(tree, list):
        return leaves[tree]
    return [_substitute(part, leaves) for part in tree if isinstance(part, list) or part in leaves]


def unfinished(store: RowStore) -> bool:
    """Return whether there is pending work, or results to delete."""
    tables = ("pending_work", "releasable_results")
    return any(list(store.scan(table, ("key",), limit=1)) for table in tables)
