"""Joins of graphs in the SQLite store: what waits is made ready, or cancelled, in parts.

At a join jobs wait for the ends of other jobs, its members, whose results it hands on. It may have
as many jobs as a graph, and a cancelled job breaks the next join. So that no commit is long, what
is left to do after some jobs is a row of ``pending_work`` and goes on with the next commit.
``reason`` is why the jobs are cancelled, NULL where they become ready; those before number
``cursor`` are done; ``copies`` is how many jobs share the results.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from eventmq.graph import TAKES, flags_of, paged
from eventmq.job import STATE_CODES, JobState
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.sqlite.checksums import DamagedRow, data_crc, is_sound
from eventmq.plugins.queue_stores.sqlite.rows import JOB_COLUMNS
from eventmq.store.reads import InputsPage
from eventmq.wire.batches import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import apsw

    from eventmq.job import JobRecord
    from eventmq.plugins.queue_stores.sqlite.rows import Tables
    from eventmq.store.reads import ReadInputs
    from eventmq.store.writes import AdvanceGraphs

__all__ = ["Joins", "Span", "StoredInputs", "WaitingJobs", "unfinished"]


logger = logging.getLogger("eventmq.store")

#: Bytes that MessagePack may have around id, content type and bytes of a result.
_AROUND = 16

#: Bytes of results that are forgotten in one commit.
FREED_AT_ONCE = 8 * 1024 * 1024

_OF_JOIN = "FROM member_results WHERE key BETWEEN ? AND ? AND join_key = ?"

#: What is not needed: it is kept for no job, and none waits for it.
_RELEASABLE = """SELECT key, length(result) FROM member_results WHERE key BETWEEN ? AND ?
  AND NOT EXISTS (SELECT 1 FROM inputs WHERE inputs.join_key = member_results.join_key)
  AND NOT EXISTS (SELECT 1 FROM joins WHERE joins.key = member_results.join_key) ORDER BY key"""

_BLOCKED = STATE_CODES[JobState.BLOCKED]

#: Rows of work that one commit reads.
_READ = 1000


class Span(NamedTuple):
    """Where the results of a join are: the numbers of the first and last job, and its own."""

    first: int
    final: int
    join_key: int


class StoredInputs:
    """Handler of `ReadInputs`."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    # Member results

    def size(self, span: Span) -> int:
        """Return how many bytes the results of a join have in an input, reading none."""
        sql = f"""SELECT coalesce(sum(length(result) + length(CAST(id AS BLOB))
                  + length(CAST(content_type AS BLOB)) + {_AROUND}), 0) {_OF_JOIN}"""
        (size,) = first_row(self._db, sql, span)
        return int(size)

    def ids(self, span: Span) -> dict[int, str]:
        """Return the ids of the jobs whose results are held, by number."""
        return dict(all_rows(self._db, f"SELECT key, id {_OF_JOIN}", span))

    def rows(self, span: Span) -> dict[int, tuple[str, str, bytes]]:
        """Return id, content type and bytes of results by number.

        Raises:
            DamagedRow: One was altered.
        """
        sql = f"SELECT key, id, content_type, result, crc {_OF_JOIN}"
        results: dict[int, tuple[str, str, bytes]] = {}
        try:
            for key, job, kind, data, crc in self._db.execute(sql, span):
                if not is_sound(crc, job, kind, data):
                    raise DamagedRow(f"the result of job {job}, which it takes, is damaged")
                results[key] = job, kind, data
        except UnicodeDecodeError as error:
            raise DamagedRow("a result that it takes is damaged") from error
        return results

    def delete(self, span: Span) -> None:
        """Delete the results of a join."""
        self._db.execute(f"DELETE {_OF_JOIN}", span)

    def discard(self, first: int, final: int) -> None:
        """Forget what is held of a range of jobs and needed no more, some of it in this commit."""
        sql = "INSERT INTO releasable_results (first, final) VALUES (?, ?)"
        self._db.execute(sql, (first, final))
        self.free()

    def discard_graph(self, graph: int, size: int) -> None:
        """Do the same for a graph that has ended, if anything is held of it.

        Args:
            graph: Its number, from which its jobs count.
            size: How many jobs it has.
        """
        sql = "SELECT 1 FROM member_results WHERE key >= ? AND key < ? LIMIT 1"
        if first_row(self._db, sql, (graph, graph + size)) is not None:
            self.discard(graph, graph + size - 1)

    def free(self) -> None:
        """Forget the next part of what is needed no more: to free its pages takes time."""
        db = self._db
        row = first_row(db, "SELECT key, first, final FROM releasable_results ORDER BY key LIMIT 1")
        if row is None:
            return
        number, first, final = row
        deleted, size = [], 0
        with closing(db.execute(_RELEASABLE, (first, final))) as rows:
            for key, length in rows:
                deleted.append((key,))
                size += length + _AROUND
                if size > FREED_AT_ONCE:
                    break
        db.executemany("DELETE FROM member_results WHERE key = ?", deleted)
        if size <= FREED_AT_ONCE:
            db.execute("DELETE FROM releasable_results WHERE key = ?", (number,))
        else:
            sql = "UPDATE releasable_results SET first = ? WHERE key = ?"
            db.execute(sql, (deleted[-1][0] + 1, number))

    # Jobs that need them

    def keep(self, jobs: Iterable[str], span: Span, size: int) -> None:
        """Keep the results of a join for jobs, by their ids, until each was released."""
        first, final, join_key = span
        rows = [(job, join_key, first, final, size) for job in jobs]
        self._db.executemany("INSERT OR REPLACE INTO inputs VALUES (?, ?, ?, ?, ?)", rows)

    def bytes_of(self, job: str) -> int:
        """Return how many bytes are kept for a job."""
        row = first_row(self._db, "SELECT size FROM inputs WHERE job = ?", (job,))
        return row[0] if row else 0

    def in_use(self, join_key: int) -> bool:
        """Return whether results of a join are kept for a job, or others still wait there."""
        sql = """SELECT 1 FROM inputs WHERE join_key = ?
                 UNION ALL SELECT 1 FROM joins WHERE key = ? LIMIT 1"""
        return first_row(self._db, sql, (join_key, join_key)) is not None

    def release(self, jobs: Iterable[str]) -> None:
        """Release what was kept for jobs: they need it no more."""
        db = self._db
        find = "SELECT first, final, join_key FROM inputs WHERE job = ?"
        for job in jobs:
            row = first_row(db, find, (job,))
            if row is None:
                continue
            span = Span(*row)
            db.execute("DELETE FROM inputs WHERE job = ?", (job,))
            if not self.in_use(span.join_key):
                self.discard(span.first, span.final)

    # Reading

    def page(self, write: ReadInputs) -> InputsPage | None:
        """Return the results from the cursor on, up to a number of bytes."""
        sql = "SELECT first, final, join_key FROM inputs WHERE job = ?"
        row = first_row(self._db, sql, (write.id,))
        if row is None:
            return None
        first, final, join_key = row
        sql = f"SELECT key, id, content_type, result, crc {_OF_JOIN} ORDER BY key"
        span = (max(first, write.cursor), final, join_key)
        rows: list[tuple[str, str, bytes]] = []
        size = 0
        with closing(self._db.execute(sql, span)) as cursor:
            for key, job, kind, data, crc in cursor:
                size += len(data)
                if not is_sound(crc, job, kind, data):
                    logger.error(
                        "the result of job %s, which job %s takes, is damaged", job, write.id
                    )
                    return None
                if rows and size > write.max_bytes:
                    return InputsPage(rows, key)
                rows.append((job, kind, data))
        return InputsPage(rows, 0)


class PendingWork(NamedTuple):
    """Unfinished work at a join."""

    join_key: int
    reason: str | None
    cursor: int = 0
    copies: int = 0


class WaitingJobs(Protocol):
    """Actions on jobs that wait at a join."""

    def cancel(self, jobs: Sequence[JobRecord], reason: str, write: AdvanceGraphs) -> None:
        """Cancel jobs, since a job that they waited for did not succeed."""

    def ready(self, jobs: Sequence[JobRecord], value: bytes, write: AdvanceGraphs) -> None:
        """Queue jobs, those that take it with an input."""

    def damaged(self, jobs: Sequence[JobRecord], text: str, write: AdvanceGraphs) -> None:
        """End jobs whose records, or what they take, are not what they were."""

    def too_large(
        self, jobs: Sequence[JobRecord], size: int, limit: str, write: AdvanceGraphs
    ) -> None:
        """End jobs that would take too much."""


class Joins:
    """Opens and breaks joins."""

    def __init__(self, tables: Tables, inputs: StoredInputs, waiting_jobs: WaitingJobs) -> None:
        self.tables = tables
        self.inputs = inputs
        self._waiting_jobs = waiting_jobs
        self._work: deque[PendingWork] = deque()

    # Pending work

    def reset(self) -> None:
        """Begin a commit."""
        self._work.clear()

    def load(self) -> None:
        """Take up what commits before this one have left."""
        db = self.tables.db
        sql = f"""SELECT join_key, reason, cursor, copies FROM pending_work
                  ORDER BY key LIMIT {_READ}"""
        pending = [PendingWork(*row) for row in db.execute(sql)]
        if pending:
            sql = "DELETE FROM pending_work WHERE join_key = ?"
            db.executemany(sql, [(work.join_key,) for work in pending])
            self._work.extend(pending)

    def save(self) -> bool:
        """Leave the rest to the next commit; return whether there is any."""
        db = self.tables.db
        sql = """INSERT OR IGNORE INTO pending_work (join_key, reason, cursor, copies)
                 VALUES (?, ?, ?, ?)"""
        db.executemany(sql, self._work)
        self._work.clear()
        return unfinished(db)

    def failed(self, join_key: int, reason: str) -> None:
        """Add the work of a join whose member did not succeed."""
        self._work.append(PendingWork(join_key, reason))

    def count_down(self, join_key: int, n: int) -> None:
        """Count down a join of which members have succeeded."""
        db = self.tables.db
        db.execute("UPDATE joins SET remaining = remaining - ? WHERE key = ?", (n, join_key))
        row = first_row(db, "SELECT remaining FROM joins WHERE key = ?", (join_key,))
        if row is not None and row[0] <= 0:
            self._work.append(PendingWork(join_key, None))

    def __bool__(self) -> bool:
        return bool(self._work)

    # Running it

    def run(self, write: AdvanceGraphs, limit: int) -> int:
        """Do the first work for some jobs at most; return for how many, at least 1."""
        work = self._work.popleft()
        sql = "SELECT graph, first, final, last FROM joins WHERE key = ?"
        join = first_row(self.tables.db, sql, (work.join_key,))
        if join is None:
            return 1
        graph, first, final, last = join
        span = Span(first, final, work.join_key)
        jobs = self._waiting(max(work.join_key, work.cursor), last, work.join_key, limit)
        more = len(jobs) == limit and jobs[-1].seq < last
        if work.reason is not None:
            self._waiting_jobs.cancel(jobs, work.reason, write)
        else:
            copies = work.copies or (self._count(jobs, last, work.join_key) if more else 0)
            self._open(graph, span, jobs, copies, write)
            work = work._replace(copies=copies)
        if more:
            self._work.appendleft(work._replace(cursor=jobs[-1].seq + 1))
        else:
            self._delete_join(span, succeeded=work.reason is None)
        return max(1, len(jobs))

    def _waiting(self, first: int, last: int, join_key: int, limit: int) -> list[JobRecord]:
        """Return the first of the blocked jobs of a join in a range."""
        condition, values = f"seq BETWEEN ? AND ? AND state = {_BLOCKED}", [first, last]
        if first != last:
            condition += " AND (SELECT input FROM nodes WHERE key = seq) = ?"
            values.append(join_key)
        sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE {condition} ORDER BY seq LIMIT ?"
        return self.tables.jobs(sql, (*values, limit))

    def _count(self, jobs: Sequence[JobRecord], last: int, join_key: int) -> int:
        """Return how many jobs wait at a join, of which these are the first."""
        sql = f"""SELECT count(*) FROM jobs WHERE seq BETWEEN ? AND ? AND state = {_BLOCKED}
                  AND (SELECT input FROM nodes WHERE key = seq) = ?"""
        (count,) = first_row(self.tables.db, sql, (jobs[0].seq, last, join_key))
        return int(count)

    def _delete_join(self, span: Span, *, succeeded: bool) -> None:
        """Forget a join at which nothing waits any more."""
        db = self.tables.db
        db.execute("DELETE FROM joins WHERE key = ?", (span.join_key,))
        db.execute("DELETE FROM join_arguments WHERE join_key = ?", (span.join_key,))
        if self.inputs.in_use(span.join_key):
            return
        if succeeded:
            self.inputs.delete(span)
        elif self.inputs.ids(span):  # its graph may have ended before it in this commit
            self.inputs.discard(span.first, span.final)

    # Ready

    def _open(
        self, graph: int, span: Span, jobs: Sequence[JobRecord], copies: int, write: AdvanceGraphs
    ) -> None:
        takers = _takers(jobs)
        if not takers:
            self._waiting_jobs.ready(jobs, b"", write)
            return
        try:
            self._fill(graph, span, jobs, copies, write)
        except DamagedRow as error:
            self._waiting_jobs.damaged(takers, f"{error}: its checksum is wrong", write)
            self._let_go(jobs, takers, write)

    def _fill(
        self, graph: int, span: Span, jobs: Sequence[JobRecord], copies: int, write: AdvanceGraphs
    ) -> None:
        """Make jobs ready, and give the takers among them their input."""
        takers = _takers(jobs)
        sql = "SELECT tree, crc FROM join_arguments WHERE join_key = ?"
        packed, crc = first_row(self.tables.db, sql, (span.join_key,))
        if crc != data_crc(span.join_key, "", packed):
            raise DamagedRow("the order of what it takes is damaged in the store")
        tree = unpack(packed, "a tree")
        longest = max(len(job.body) for job in takers)
        max_size = min(write.max_body - longest, write.max_copies // max(copies, len(takers)))
        size = self.inputs.size(span) + len(packed)
        if size <= max_size:
            leaves = {key - graph: leaf for key, leaf in self.inputs.rows(span).items()}
            self._waiting_jobs.ready(jobs, pack(_filled(tree, leaves)), write)
            return
        ids = {key - graph: job_id for key, job_id in self.inputs.ids(span).items()}
        value = pack(_filled(tree, ids))
        limit = _limit(size, longest + len(value), write)
        if not limit:
            self._store_inputs(takers, span, size)
            self._waiting_jobs.ready(jobs, value, write)
            return
        self._waiting_jobs.too_large(takers, size, limit, write)
        self._let_go(jobs, takers, write)

    def _let_go(
        self, jobs: Sequence[JobRecord], takers: Sequence[JobRecord], write: AdvanceGraphs
    ) -> None:
        """Make those ready that only wait."""
        taking = {job.seq for job in takers}
        self._waiting_jobs.ready([job for job in jobs if job.seq not in taking], b"", write)

    def _store_inputs(self, takers: Sequence[JobRecord], span: Span, size: int) -> None:
        """Keep results for jobs that get ids, and mark these."""
        self.inputs.keep([job.id for job in takers], span, size)
        for job in takers:
            job.headers = paged(job.headers)
        rows = [(job.headers, *self.tables.row(job)[-2:], job.seq) for job in takers]
        sql = "UPDATE jobs SET headers = ?, crc = ?, head_crc = ? WHERE seq = ?"
        self.tables.db.executemany(sql, rows)


def _takers(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that take an input."""
    return [job for job in jobs if TAKES in flags_of(job.headers) and not job.damaged]


def _limit(size: int, body: int, write: AdvanceGraphs) -> str:
    """Return why results of so many bytes cannot be paged, with a body of ids; "" if they can."""
    if size > write.max_input_bytes:
        return f"the limit is {write.max_input_bytes}, from the setting max_input_bytes"
    if body > write.max_body:
        return f"their ids alone are longer than a body, of {write.max_body} bytes"
    return ""


def _filled(tree: Any, leaves: Mapping[int, Any]) -> Any:
    """Return a tree with results, or ids, for places; those that lack are left out."""
    if not isinstance(tree, list):
        return leaves[tree]
    return [_filled(part, leaves) for part in tree if isinstance(part, list) or part in leaves]


def unfinished(db: apsw.Connection) -> bool:
    """Return whether there is pending work, or something to free."""
    sql = """SELECT 1 WHERE EXISTS (SELECT 1 FROM pending_work)
             OR EXISTS (SELECT 1 FROM releasable_results)"""
    return first_row(db, sql) is not None
