"""Graphs in the SQLite store, looked at, cancelled and forgotten as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.entries import Found, GraphPage, GraphRow, Kin
from eventmq.job import Job, JobState
from eventmq.operations import Acted
from eventmq.plugins.queue_stores.graphs import HANDLER
from eventmq.plugins.queue_stores.tables import JOB_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.entries import CancelGraph, EndDeadlines, FindKin, ListGraph
    from eventmq.operations import Stamp
    from eventmq.plugins.queue_stores.graphs import Graphs
    from eventmq.plugins.queue_stores.reads import Reads

__all__ = ["GraphReads", "next_deadline", "open_graphs"]

_NO_BODY = JOB_COLUMNS.replace("body", "x''")

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

    def _size(self, graph: int) -> int:
        sql = "SELECT size FROM graphs WHERE key = ?"
        (size,) = self.tables.db.execute(sql, (graph,)).fetchone()
        return int(size)

    def _id(self, key: int) -> str:
        row = self.tables.db.execute("SELECT id FROM nodes WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""

    # Ends

    def _end(self, first: int, end: int, stamp: Stamp) -> list[Job]:
        sql = f"SELECT {_NO_BODY} FROM jobs WHERE seq >= ? AND seq < ? ORDER BY seq"
        return self._cancel(self.tables.jobs(sql, (first, end)), stamp)

    def cancel(self, entry: CancelGraph) -> tuple[str, Acted]:
        """Cancel what has not ended of a graph."""
        graph = self.graphs.known(entry.id)
        if not graph:
            return "", Acted([], {})
        jobs = self._end(graph, graph + self._size(graph), entry.stamp)
        return self._id(graph), Acted(jobs, {})

    def end_deadlines(self, entry: EndDeadlines) -> tuple[Acted, float | None]:
        """Cancel what is past its deadline, part by part."""
        db = self.tables.db
        sql = "SELECT key, first, end FROM deadlines WHERE due <= ? ORDER BY due LIMIT 20"
        jobs: list[Job] = []
        for key, first, end in db.execute(sql, (entry.now,)).fetchall():
            db.execute("DELETE FROM deadlines WHERE key = ?", (key,))
            jobs += self._end(first, end, entry.stamp)
        return Acted(jobs, {}), next_deadline(self.tables.db)

    # Looking

    def kin(self, entry: FindKin) -> Kin | None:
        """Say where a job stands in its graph."""
        sql = "SELECT graph, input FROM nodes WHERE id = ?"
        row = self.tables.db.execute(sql, (entry.id,)).fetchone()
        if row is None:
            return None
        graph, barrier = row
        sql = "SELECT min(key) FROM nodes WHERE key >= ? AND key < ? AND output = ?"
        span = (graph, barrier, barrier)
        parent = self.tables.db.execute(sql, span).fetchone()[0] if barrier else None
        return Kin(self._id(graph), self._id(parent) if parent else "")

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
        for key, job_id, before, after in self.tables.db.execute(sql, span).fetchall():
            found = self._reads.find_one(job_id) or Found(_forgotten(job_id))
            rows.append(GraphRow(key - graph, before, max(after, 0), after == HANDLER, found))
        return GraphPage(self._id(graph), size, rows)

    # Forgetting

    def prune(self, before: float) -> bool:
        """Forget some graphs that ended before that time; say whether there are more."""
        db = self.tables.db
        sql = "SELECT key, size FROM graphs WHERE ended > 0 AND ended < ? LIMIT ?"
        taken = 0
        for key, size in db.execute(sql, (before, _SLICE)).fetchall():
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
    due: float | None = db.execute("SELECT min(due) FROM deadlines").fetchone()[0]
    return due


def open_graphs(db: Any) -> bool:
    """Say whether there are graphs that have not ended."""
    return db.execute("SELECT 1 FROM graphs WHERE ended = 0").fetchone() is not None
