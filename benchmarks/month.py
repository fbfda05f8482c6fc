"""The row about a month of the store in PostgreSQL: sizes of its tables, and times of commits.

A month is simulated: the clocks of the store are ours, and each day has its whole share of
retention, with a fiftieth of a million jobs. What frees space counts rows and not time, so that is
as large as it would be: vacuum begins at as many dead rows, looks for them each second where a
minute would have a day of a million jobs pass 700, and the snapshot that is held spans 41,667 jobs,
an hour of a million a day, before the next one takes its place. A commit has ten jobs, as 86,400
commits of a second would have: each of them writes counts and clocks too.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict, deque
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.servers import postgresql, server_versions
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.store.reads import ReadQueued
from eventmq.store.writes import (
    Admit,
    Attempt,
    Chunk,
    CloseChunk,
    Finish,
    Finished,
    LeaseChunk,
    PruneFailed,
    Requeue,
    subqueue_of,
)
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS", "Month"]

#: Days, jobs of a day, and number of jobs that always wait.
_SIZES = (30, 20_000, 20_000)

#: Jobs that end while a snapshot is held: an hour of a million a day.
SNAPSHOT = 1_000_000 // 24

#: Jobs of a commit, and jobs that are read at once.
TOGETHER, WINDOW = 10, 1000

DAY = 86_400.0

#: One in this number of jobs fails, and another one is retried.
FAILS = 50

_SETTINGS = ("ALTER SYSTEM SET autovacuum_naptime = 1", "SELECT pg_reload_conf()")

_TABLES = """SELECT regexp_replace(relname::text, '_[0-9]+$', ''), pg_total_relation_size(oid)
    FROM pg_class WHERE relnamespace = 'eventmq'::regnamespace AND relkind = 'r'"""

_CATALOG = """SELECT sum(pg_total_relation_size(oid))::int8 FROM pg_class
    WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'"""


class Month:
    """A store, with a clock that advances with the jobs.

    Args:
        url: URL of an empty database.
        jobs: Jobs of a day.
        waiting: Number of jobs that always wait.
        snapshot: Number of jobs during which a snapshot is held, 0 for no snapshot.
        together: Jobs of a commit.
    """

    def __init__(
        self, url: str, jobs: int, waiting: int, snapshot: int = 0, together: int = TOGETHER
    ) -> None:
        import psycopg

        from eventmq.sdk import Claimant
        from eventmq_contrib.postgres.connection import Database
        from eventmq_contrib.postgres.store import PostgresStore

        self._jobs, self._snapshot, self._together = jobs, snapshot, together
        self._clock = FakeClock()
        self._ids = IdFactory(self._clock)
        self._store = PostgresStore(
            Database.of(url), self._clock, dedupe_window=DAY, keep_results=DAY,
            events_ring=4 * 1024**2,
        )  # fmt: skip
        self._ownership = self._store.ownership
        self._ownership.claim(self._ownership.look(), Claimant("month", "tcp://127.0.0.1:1"))
        self._keeper = self._store.open().keeper
        self._beside = psycopg.connect(url, autocommit=True)
        self._holding = psycopg.connect(url)
        self._holding.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._headers = "task:month.work,content-type:msgpack"
        self._subqueue = subqueue_of(self._headers)
        self._seq = self._chunks = 0
        #: Jobs that have ended since the snapshot; the first snapshot is taken at once.
        self._ended = snapshot
        self._after = (0, 0)
        self._window: deque[JobRecord] = deque()
        #: Seconds of each commit of the day.
        self.commits: list[float] = []
        while self._seq < waiting:
            self._commit(Admit(self._new(1000)))

    def close(self) -> None:
        """Close all sessions."""
        self._holding.close()
        self._beside.close()
        self._store.close()

    def _commit(self, *batch: Any) -> list[Any]:
        begin = time.perf_counter()
        self._store.submit(batch)
        [results] = self._store.finished()
        self.commits.append(time.perf_counter() - begin)
        if isinstance(results, Exception):
            raise results
        return list(results)

    def _new(self, count: int) -> list[JobRecord]:
        now = self._keeper.now
        jobs = [
            JobRecord(
                self._ids.new(), "month", self._headers, b"x" * 250, seq,
                rank=int(now * 1e6) + seq, created=now,
            )
            for seq in range(self._seq + 1, self._seq + count + 1)
        ]  # fmt: skip
        self._seq += count
        return jobs

    def _next(self) -> list[JobRecord]:
        """Return the first jobs of the queue, read as a broker does."""
        if len(self._window) < self._together:
            read = ReadQueued("month", self._subqueue, self._after, WINDOW, 1 << 30)
            [(jobs, _)] = self._commit(read)
            self._after = jobs[-1].rank, jobs[-1].seq
            self._window.extend(jobs)
        return [self._window.popleft() for _ in range(self._together)]

    def day(self) -> None:
        """Admit and end the jobs of a day."""
        self.commits.clear()
        step = DAY * self._together / self._jobs
        for number in range(self._jobs // self._together):
            self._clock.advance(step)
            jobs, self._chunks = self._next(), self._chunks + 1
            lease = LeaseChunk(Chunk("session", self._chunks, [(job, 1) for job in jobs]))
            self._commit(Admit(self._new(len(jobs))), lease)
            again = [job for job in jobs if job.seq % FAILS == 1 and job.attempt == 1]
            ended = [job for job in jobs if job not in again]
            now = self._keeper.now
            close = CloseChunk("session", self._chunks)
            self._commit(Finish([self._end(job, now) for job in ended]), *self._retry(again), close)
            self._ended += len(ended)
            self._hold()
            if number % 10 == 0:
                self._ownership.renew()
                self._commit(PruneFailed(now - DAY, 1 << 40, 1000))

    def _retry(self, jobs: list[JobRecord]) -> Iterator[Requeue]:
        """Queue jobs again; they run once more later."""
        if not jobs:
            return
        now = self._keeper.now
        attempts = [
            Attempt(job.id, 1, 1, now, now, 0.1, "worker", "msgpack", b"e" * 300) for job in jobs
        ]
        for job in jobs:
            job.attempt, job.delivery = 2, 1
            job.rank = int(now * 1e6) + job.seq
        yield Requeue(jobs, attempts, at=now, worker="worker")

    def _end(self, job: JobRecord, now: float) -> Finished:
        job.delivery += 1
        state = JobState.FAILED if job.seq % FAILS == 0 else JobState.SUCCEEDED
        return Finished(job, state, now, DAY, "msgpack", b"r" * 20, now, 0.1, "worker")

    def _hold(self) -> None:
        """Replace the held snapshot when it is old enough."""
        if self._snapshot and self._ended >= self._snapshot:
            self._ended = 0
            self._holding.rollback()
            self._holding.execute("SELECT count(*) FROM eventmq.meta")

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each table with its indexes, and of the catalog."""
        sizes: dict[str, int] = defaultdict(int)
        for name, size in self._beside.execute(_TABLES):
            sizes[name] += size
        [(sizes["catalog"],)] = self._beside.execute(_CATALOG)
        return sizes

    def compact(self) -> dict[str, int]:
        """Return the sizes of the tables after a rewrite."""
        self._holding.rollback()
        self._beside.execute("VACUUM FULL")
        return self.sizes()


def month(figures: Figures) -> None:
    """A simulated month in PostgreSQL: sizes and commits, with and without a held snapshot."""
    days, jobs, waiting = figures.sizes or _SIZES
    figures.more |= {"store": "postgresql", **server_versions(["postgresql"])}
    for name, snapshot in (("", 0), ("held_", SNAPSHOT)):
        folder = Path(tempfile.mkdtemp(prefix="eventmq-bench-"))
        folder.chmod(0o755)  # the server has a user of its own
        try:
            _month(figures, name, folder, (days, jobs, waiting, snapshot))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _month(figures: Figures, name: str, folder: Path, of: tuple[int, int, int, int]) -> None:
    days, jobs, waiting, snapshot = of
    (folder / "server").mkdir()
    with ExitStack() as stack:
        url = stack.enter_context(postgresql(folder / "server")).url
        _vacuum_often(url)
        run = stack.enter_context(closing(Month(url, jobs, waiting, snapshot)))
        daily: list[dict[str, int]] = []
        commits = []
        for _ in range(days):
            run.day()
            daily.append(run.sizes())
            commits.append(sorted(run.commits))
        compact = run.compact()
    sizes, totals = daily[-1], [sum(day.values()) - day["catalog"] for day in daily]
    week = max(1, days // 4)
    figures.more |= {
        f"{name}mib_of_tables": {
            table: [round(size / 2**20, 2), round(compact[table] / 2**20, 2)]
            for table, size in sizes.items() if size > 2**18
        }
    }  # fmt: skip
    figures.add(**{
        f"{name}mib": totals[-1] / 2**20,
        f"{name}growth": max(totals[-week:]) / max(totals[week : 2 * week]),
        f"{name}over_compact": totals[-1] / (sum(compact.values()) - compact["catalog"]),
        f"{name}catalog_growth": daily[-1]["catalog"] / daily[week]["catalog"],
        f"{name}commit_p50_ms": _share(commits[-week:], 0.5),
        f"{name}commit_p99_ms": _share(commits[-week:], 0.99),
        f"{name}commit_growth":
            _share(commits[-week:], 0.5) / _share(commits[week : 2 * week], 0.5),
    })  # fmt: skip


def _vacuum_often(url: str) -> None:
    """Make the server check for tables to vacuum each second, once it has started."""
    import psycopg

    end = time.monotonic() + 60.0
    while True:
        try:
            with closing(psycopg.connect(url, autocommit=True)) as connection:
                for statement in _SETTINGS:
                    connection.execute(statement)
            return
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _share(days: list[list[float]], share: float) -> float:
    """Return a quantile of the times of commits of some days, in milliseconds."""
    ordered = sorted(seconds for day in days for seconds in day)
    return ordered[int(len(ordered) * share)] * 1000


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {"month": month}

#: Name -> figure -> its goal.
GOALS: dict[str, dict[str, str]] = {
    "month": {
        "growth": "<= 1.1", "over_compact": "<= 2", "commit_growth": "<= 1.1",
        "held_growth": "<= 1.1", "held_commit_growth": "<= 1.1",
    },
}  # fmt: skip
