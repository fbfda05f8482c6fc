"""Graphs in the SQLite store, looked at, cancelled and forgotten as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.entries import Found, GraphPage, GraphRow
from eventmq.job import Job, JobState
from eventmq.operations import Acted
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.barriers import unfinished
from eventmq.plugins.queue_stores.graphs import HANDLER
from eventmq.plugins.queue_stores.kinship import Kinship
from eventmq.plugins.queue_stores.tables import BARE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.entries import CancelGraph, EndDeadlines, FindKin, Kin, ListGraph
    from eventmq.operations import Stamp
    from eventmq.plugins.queue_stores.graphs import Graphs
    from eventmq.plugins.queue_stores.reads import Reads

__all__ = ["GraphReads", "next_deadline", "open_graphs"]

#: Graphs and their jobs that are forgotten in one go.
_SLICE = 5000


class GraphReads:
    """Handlers of `CancelGraph`, `EndDeadlines`, `FindKin` and `ListGraph`.

    Args:
        graphs: Knows which job is of which graph.
        reads: Finds jobs.
        cancel: Ends jobs as cancelled and returns them.
    """

    def __init__(
        self, graphs: Graphs, reads: Reads, cancel: Callable[[list[Job], Stamp], list[Job]]
    ) -> None:
        self.graphs = graphs
        self.tables = graphs.tables
        self._reads = reads
        self._cancel = cancel
        self._kinship = Kinship(graphs.tables.db)

    def _size(self, graph: int) -> int:
        sql = "SELECT size FROM graphs WHERE key = ?"
        (size,) = first_row(self.tables.db, sql, (graph,))
        return int(size)

    def _id(self, key: int) -> str:
        row = first_row(self.tables.db, "SELECT id FROM nodes WHERE key = ?", (key,))
        return row[0] if row else ""

    # Ends

    def _end(self, first: int, end: int, stamp: Stamp, limit: int) -> list[Job]:
        """Cancel jobs, the last ones first: what waits does not see what it waits for end."""
        sql = (
            f"SELECT {BARE_COLUMNS} FROM jobs WHERE seq >= ? AND seq < ? ORDER BY seq DESC LIMIT ?"
        )
        return self._cancel(self.tables.jobs(sql, (first, end, limit))[::-1], stamp)

    def cancel(self, entry: CancelGraph) -> tuple[str, Acted]:
        """Cancel what has not ended of a graph."""
        graph = self.graphs.known(entry.id)
        if not graph:
            return "", Acted([], {})
        jobs = self._end(graph, graph + self._size(graph), entry.stamp, entry.limit)
        return self._id(graph), Acted(jobs, {})

    def end_deadlines(self, entry: EndDeadlines) -> tuple[Acted, float | None]:
        """Cancel what is past its deadline, part by part."""
        db = self.tables.db
        sql = "SELECT key, first, end FROM deadlines WHERE at <= ? ORDER BY at LIMIT 20"
        jobs: list[Job] = []
        for key, first, end in all_rows(db, sql, (entry.now,)):
            jobs += self._end(first, end, entry.stamp, entry.limit - len(jobs))
            if len(jobs) >= entry.limit:
                break
            db.execute("DELETE FROM deadlines WHERE key = ?", (key,))
        return Acted(jobs, {}), next_deadline(self.tables.db)

    # Looking

    def kin(self, entry: FindKin) -> Kin | None:
        """Say where a job stands in its graph."""
        self._kinship.forget()  # the graph may be forgotten since, or was rolled back
        return self._kinship.find([entry.id])[0]

    def page(self, entry: ListGraph) -> GraphPage | None:
        """List jobs of a graph by place."""
        graph = self.graphs.known(entry.id)
        if not graph:
            return None
        size = self._size(graph)
        sql = """SELECT key, id, input, output FROM nodes
                 WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"""
        span = (graph + entry.first, graph + size, entry.limit)
        rows = []
        for key, job_id, before, after in all_rows(self.tables.db, sql, span):
            found = self._reads.find_one(job_id) or Found(_forgotten(job_id))
            rows.append(GraphRow(key - graph, before, max(after, 0), after == HANDLER, found))
        return GraphPage(self._id(graph), size, rows)

    # Forgetting

    def prune(self, before: float) -> bool:
        """Forget some graphs that ended before that time; say whether there are more."""
        db = self.tables.db
        sql = "SELECT key, size FROM graphs WHERE ended > 0 AND ended < ? LIMIT ?"
        taken = 0
        for key, size in all_rows(db, sql, (before, _SLICE)):
            db.execute("DELETE FROM nodes WHERE key >= ? AND key < ?", (key, key + size))
            db.execute("DELETE FROM graphs WHERE key = ?", (key,))
            taken += size
            if taken >= _SLICE:
                return True
        return False


def _forgotten(job_id: str) -> Job:
    return Job(job_id, "", "", b"", state=JobState.SUCCEEDED)


def next_deadline(db: Any) -> float | None:
    """Return the first deadline."""
    due: float | None = first_row(db, "SELECT min(at) FROM deadlines")[0]
    return due


def open_graphs(db: Any) -> bool:
    """Say whether there are graphs that have not ended, or something is left to do for one."""
    return unfinished(db) or first_row(db, "SELECT 1 FROM graphs WHERE ended = 0") is not None
