"""Reads: handlers that read jobs and graphs, and the recovery when a store is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.engine import damaged
from eventmq.engine.arguments import KeptArguments
from eventmq.engine.graphs import HANDLER, unfinished
from eventmq.engine.rows import (
    BARE_FAILED_ROW,
    BARE_OUTCOME_ROW,
    BARE_ROW,
    FAILED_ROW,
    JOB_ROW,
    OUTCOME_ROW,
    job_prefix,
)
from eventmq.job import JobRecord, JobState
from eventmq.store.reads import GraphPage, GraphRow, JobRow, Lineage
from eventmq.store.writes import AffectedJobs, Chunk
from eventmq.wire.batches import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eventmq.engine.contract import RowStore
    from eventmq.engine.graphs import GraphWrites
    from eventmq.engine.rows import Tables
    from eventmq.store.reads import FindJobs, FindLineage, ListGraph, ReadQueued
    from eventmq.store.writes import AuditFields, CancelGraph, EndDeadlines
    from eventmq.timekeeping import Timekeeper

__all__ = [
    "GraphReads",
    "LineageIndex",
    "Reads",
    "highest_id",
    "ids_between",
    "next_deadline",
    "next_seq",
    "open_graphs",
    "recover_chunks",
]

_QUEUED = (
    "seq", "id", "rank", "attempt", "delivery", "deaths", "ready_at", "expires", "created",
    "headers", "body", "crc",
)  # fmt: skip

_CHUNK = ("session", "number", "leases", "leased")

#: Leased jobs that are read at once when a store is opened.
_LEASES = 5000

#: Maximum number of cached lineages, used for the events of job ends; a few megabytes.
_CACHED = 20_000

#: Maximum number of graphs, and of their jobs, that one commit deletes.
_SLICE = 5000


class Reads:
    """Handlers of `ReadQueued` and `FindJobs`."""

    def __init__(self, tables: Tables, keeper: Timekeeper) -> None:
        self.tables = tables
        self.keeper = keeper
        self.arguments = KeptArguments(tables)

    def read_queued(self, write: ReadQueued) -> tuple[list[JobRecord], bool]:
        """Read the next queued jobs of a subqueue in rank order."""
        key = self.tables.known_subqueue(write.queue, write.subqueue)
        if key < 0:
            return [], False
        try:
            return self._read_queued(key, write)
        except (UnicodeDecodeError, AttributeError, TypeError):  # damaged values
            return self._read_damaged(key, write)

    # hot loop: python -m benchmarks rows, drain
    def _read_queued(self, key: int, write: ReadQueued) -> tuple[list[JobRecord], bool]:
        """Read jobs whose rows are sound; their queue is that of the subqueue, not read again."""
        jobs: list[JobRecord] = []
        size, limit, max_bytes, queue = 0, write.limit, write.max_bytes, write.queue
        text, data, state = "", b"", JobState.QUEUED
        prefix = common = job_prefix(queue, "")
        rows = self.tables.store.scan(
            "jobs_ready", _QUEUED, (key,), gt=write.after, limit=limit + 1
        )
        for row in rows:
            if len(jobs) == limit or size > max_bytes:
                return jobs, True
            (
                seq,
                job_id,
                rank,
                attempt,
                delivery,
                deaths,
                ready_at,
                expires,
                created,
                headers,
                body,
                crc,
            ) = row
            if headers != text:  # most jobs share headers: keep one copy in memory
                text = headers
                prefix = job_prefix(queue, text)
                common = crc32(data, prefix)
            if body != data:  # jobs without arguments share bodies
                data = body
                common = crc32(body, prefix)
            id_crc = crc32(job_id.encode())
            if id_crc ^ common == crc:
                job = JobRecord(
                    job_id, queue, text, body, seq, rank, state, attempt, delivery, ready_at,
                    expires, created, deaths, id_crc,
                )  # fmt: skip
            else:
                [job] = map(self.tables.job, self.tables.get("jobs", JOB_ROW, (seq,)))
                job.queue, job.damaged = queue, True
            size += len(body)
            jobs.append(job)
        return jobs, False

    def _read_damaged(self, key: int, write: ReadQueued) -> tuple[list[JobRecord], bool]:
        """Read jobs some of which are damaged; a damaged one belongs to the subqueue's queue."""
        jobs: list[JobRecord] = []
        size = 0
        rows = self.tables.store.scan(
            "jobs_ready", JOB_ROW, (key,), gt=write.after, limit=write.limit + 1, damaged=True
        )
        for row in rows:
            if len(jobs) == write.limit or size > write.max_bytes:
                return jobs, True
            job = self.tables.job(row)
            if job.queue != write.queue:
                job.queue, job.damaged = write.queue, True
            size += len(job.body)
            jobs.append(job)
        return jobs, False

    def find(self, write: FindJobs) -> dict[str, JobRow]:
        """Look jobs up by id."""
        ids = list(dict.fromkeys(write.ids))
        if write.max_bytes is None:
            rows = self.look_up(ids)
            self.arguments.restore(rows)
            return rows
        return self._find_bare(ids, write.max_bytes)

    def look_up(self, ids: Sequence[str], *, results: bool = True) -> dict[str, JobRow]:
        """Return the jobs with these ids, in that order.

        Args:
            ids: The ids, each once.
            results: Whether to read long results of ended jobs.
        """
        outcome = OUTCOME_ROW if results else BARE_OUTCOME_ROW
        rows = self._unfinished(ids, JOB_ROW, FAILED_ROW)
        remaining = [job_id for job_id in ids if job_id not in rows]
        for _, row in self._ended(outcome, remaining):
            rows[row[0]] = self.tables.outcome(row[: len(OUTCOME_ROW)], self.keeper)
        return {job_id: rows[job_id] for job_id in ids if job_id in rows}

    def _find_bare(self, ids: Sequence[str], max_bytes: int) -> dict[str, JobRow]:
        """Look jobs up without their bodies; read long results up to a total of ``max_bytes``."""
        rows = self._unfinished(ids, BARE_ROW, BARE_FAILED_ROW)
        keeper, tables = self.keeper, self.tables
        remaining = [job_id for job_id in ids if job_id not in rows]
        long: dict[str, tuple[str, int]] = {}
        for table, (*row, length) in self._ended(BARE_OUTCOME_ROW, remaining):
            outcome = rows[row[0]] = tables.outcome(tuple(row), keeper)
            if length and not outcome.job.damaged and row[3] + keeper.spared(row[2]) > keeper.now:
                long[row[0]] = table, length
                rows[row[0]] = outcome._replace(unread=True)
        fitting: dict[str, list[str]] = {}
        for job_id in filter(long.__contains__, ids):
            if max_bytes <= 0:
                break
            table, length = long[job_id]
            fitting.setdefault(table, []).append(job_id)
            max_bytes -= length
        for table, batch in fitting.items():
            for whole in tables.get(table, OUTCOME_ROW, batch):
                rows[whole[0]] = tables.outcome(whole, keeper)
        return {job_id: rows[job_id] for job_id in ids if job_id in rows}

    def _unfinished(
        self, ids: Sequence[str], columns: Sequence[str], failed: Sequence[str]
    ) -> dict[str, JobRow]:
        """Return unfinished jobs, read with ``columns``, and failed jobs, read with ``failed``."""
        tables = self.tables
        requests = ("jobs", columns, ids, "jobs_id"), ("failed", failed, ids, "failed_id")
        job_rows, failed_rows = damaged.get_all(tables.store, requests)
        rows = {row[1]: tables.failed(row) for row in failed_rows}
        return rows | {row[1]: JobRow(tables.job(row)) for row in job_rows}

    def _ended(
        self, columns: Sequence[str], ids: Sequence[str]
    ) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield (table, row) for the ended ones of these jobs, one row for each id."""
        if not ids:
            return
        tables, seen = self.tables, set[str]()
        periods = {i: tables.periods_of(i) for i in ids}
        names = reversed(tables.periods.values())
        batches = [(name, [i for i in ids if name in periods[i]]) for name in names]
        requests = [(name, columns, batch, "") for name, batch in batches if batch]
        stored = damaged.get_all(tables.store, requests)
        for (table, *_), rows in zip(requests, stored, strict=True):
            for row in rows:
                if row[0] not in seen:
                    seen.add(row[0])
                    yield table, row


# Graphs


class LineageIndex:
    """Finds the graph and the parent of jobs in the table ``nodes``, and caches them."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._lineages: dict[str, Lineage] = {}

    def clear(self) -> None:
        """Clear the cache, as after a rollback some of it may be wrong."""
        self._lineages.clear()

    # hot loop: python -m benchmarks chord_members
    def find(self, ids: Sequence[str]) -> list[Lineage | None]:
        """Return the lineage of each job, None for a job without a known graph."""
        lineages = self._lineages
        missing = [job_id for job_id in ids if job_id not in lineages]
        if missing:
            if len(lineages) > _CACHED:
                lineages.clear()
                missing = list(ids)
            self._read(missing)
        return [lineages.get(job_id) for job_id in ids]

    def _read(self, ids: Sequence[str]) -> None:
        get, lineages = self._store.get, self._lineages
        rows = get("nodes", ("id", "graph", "parent"), ids, by="nodes_id")
        keys = {key for row in rows for key in row[1:] if key}
        named = dict(get("nodes", ("key", "id"), list(keys))) if keys else {}
        for job_id, root, parent in rows:
            if root in named:
                lineages[job_id] = Lineage(named[root], named.get(parent, ""))


class GraphReads:
    """Handlers of `CancelGraph`, `EndDeadlines`, `FindLineage` and `ListGraph`.

    Args:
        graphs: Finds the graph of a job.
        reads: Looks up jobs.
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

    def _size(self, graph: int) -> int:
        [(size,)] = self.tables.store.get("graphs", ("size",), [graph])
        return int(size)

    def _id(self, key: int) -> str:
        for (job_id,) in self.tables.store.get("nodes", ("id",), [key]):
            return str(job_id)
        return ""

    # Ends

    def _end_jobs(self, first: int, end: int, audit: AuditFields, limit: int) -> list[JobRecord]:
        """Cancel jobs, the last ones first, so that no waiting job becomes ready meanwhile."""
        rows = self.tables.scan(
            "jobs", BARE_ROW, ge=(first,), lt=(end,), limit=limit, descending=True
        )
        return self._cancel([self.tables.job(row) for row in rows][::-1], audit)

    def cancel(self, write: CancelGraph) -> tuple[str, AffectedJobs]:
        """Cancel unfinished jobs of a graph; return the id of the graph, and the jobs."""
        graph = self.graphs.known(write.id)
        if not graph:
            return "", AffectedJobs([], {})
        jobs = self._end_jobs(graph, graph + self._size(graph), write.audit, write.limit)
        return self._id(graph), AffectedJobs(jobs, {})

    def end_deadlines(self, write: EndDeadlines) -> tuple[AffectedJobs, float | None]:
        """Cancel jobs past their deadline, up to a limit; return also the next deadline."""
        store = self.tables.store
        expired = store.scan("deadlines_at", ("key", "first", "end"), le=(write.now,), limit=20)
        jobs: list[JobRecord] = []
        for key, first, end in list(expired):
            jobs += self._end_jobs(first, end, write.audit, write.limit - len(jobs))
            if len(jobs) >= write.limit:
                break
            store.delete("deadlines", [key])
        return AffectedJobs(jobs, {}), next_deadline(store)

    # Reads

    def lineage(self, write: FindLineage) -> Lineage | None:
        """Return the lineage of a job."""
        return LineageIndex(self.tables.store).find([write.id])[0]

    def page(self, write: ListGraph) -> GraphPage | None:
        """List jobs of a graph in order of their nodes; None for a job of no graph."""
        graph = self.graphs.known(write.id)
        if not graph:
            return None
        size = self._size(graph)
        nodes = list(self.tables.store.scan(
            "nodes", ("key", "id", "input", "output"), ge=(graph + write.first,),
            lt=(graph + size,), limit=write.limit,
        ))  # fmt: skip
        known = self._reads.look_up([node[1] for node in nodes])
        rows = [
            GraphRow(
                key - graph, input_, max(output, 0), output == HANDLER,
                # A job whose outcome is no longer kept counts as succeeded.
                known.get(job_id)
                or JobRow(JobRecord(job_id, "", "", b"", state=JobState.SUCCEEDED)),
            )
            for key, job_id, input_, output in nodes
        ]  # fmt: skip
        return GraphPage(self._id(graph), size, rows)

    # Pruning

    def prune(self, before: float) -> bool:
        """Delete some graphs that ended before a time; return whether there may be more."""
        store = self.tables.store
        ended = store.scan("graphs_ended", ("key", "size"), gt=(0.0,), lt=(before,), limit=_SLICE)
        deleted = 0
        for key, size in list(ended):
            store.delete_range("nodes", ge=(key,), lt=(key + size,))
            store.delete("graphs", [key])
            deleted += size
            if deleted >= _SLICE:
                return True
        return False


def next_deadline(store: RowStore) -> float | None:
    """Return the earliest deadline of a graph, None if there is none."""
    return next((at for (at,) in list(store.scan("deadlines_at", ("at",), limit=1))), None)


def open_graphs(store: RowStore) -> bool:
    """Return whether any graph has not ended or has pending work."""
    return unfinished(store) or bool(list(store.scan("graphs_ended", ("key",), (0.0,), limit=1)))


# Recovery


def recover_chunks(tables: Tables) -> list[Chunk]:
    """Return the open chunks of earlier epochs with their jobs.

    A lease has None in place of a job that has ended, or that was handed back since: its row then
    has the delivery of the lease or a later one.
    """
    rows = [
        (session, number, unpack(packed, "a chunk row"), leased)
        for session, number, packed, leased in tables.store.scan("chunks", _CHUNK)
    ]
    numbers = list({seq for row in rows for seq, _, _ in row[2]} - {0})
    jobs: dict[int, JobRecord] = {}
    for start in range(0, len(numbers), _LEASES):
        records = map(tables.job, tables.get("jobs", JOB_ROW, numbers[start : start + _LEASES]))
        jobs |= {
            job.seq: job for job in records if job.state is JobState.QUEUED and not job.damaged
        }

    def held(seq: int, delivery: int, job_id: str) -> JobRecord | None:
        job = jobs.get(seq)
        return job if job and job.delivery < delivery and job.id == job_id else None

    return [
        Chunk(
            session, number, [(held(*lease), lease[1]) for lease in leases],
            [job_id for _, _, job_id in leases], leased,
        )
        for session, number, leases, leased in rows
    ]  # fmt: skip


def _ids(tables: Tables, **bounds: Any) -> Iterator[str]:
    """Yield the ids that a scan with these bounds returns from each table of jobs."""
    for index in ("jobs_id", "failed_id", *tables.periods.values()):
        yield from (job_id for (job_id,) in tables.store.scan(index, ("id",), **bounds))


def highest_id(tables: Tables, below: str) -> str:
    """Return the largest id below ``below`` of all jobs, ended ones included; "" if none."""
    return max(_ids(tables, lt=(below,), limit=1, descending=True), default="")


def ids_between(tables: Tables, lowest: str, below: str) -> set[str]:
    """Return the ids of all jobs in a range, ended jobs included."""
    return set(_ids(tables, ge=(lowest,), lt=(below,)))


def next_seq(tables: Tables) -> int:
    """Return a number larger than that of any job that a row refers to, chunks included."""
    scan, numbers = tables.store.scan, [0]
    for table, key in (("jobs", "seq"), ("failed", "seq"), ("nodes", "key")):
        numbers += [row[0] for row in scan(table, (key,), limit=1, descending=True)]
    for (packed,) in scan("chunks", ("leases",)):
        numbers += [row[0] for row in unpack(packed, "a chunk row")]
    return 1 + max(numbers)
