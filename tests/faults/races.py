"""Races between commits, checkpoints and readers: no row may be lost.

The store is the real one with its real threads. The log is moved after a few pages instead of
megabytes, so that commits, checkpoints and restarts of the log coincide all the time.
"""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from eventmq.clock import SystemClock
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.plugins.database import all_rows, first_row, open_to_read
from eventmq.plugins.queue_stores.sqlite import wal
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.schema import bucket_name, buckets
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.writes import Admit, Finish, Finished
from tests.faults.crashes import Lost
from tests.support.store_rules import audit

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

__all__ = ["Raced", "race"]

#: Pages after which the thread moves the log, and the committing thread restarts it, or waits.
WAKE, RESTART, WAIT = 2, 6, 64

#: Most jobs in the store.
ALIVE = 200

#: Commits between two comparisons of all rows.
COMPARE_EVERY = 5000


class Raced(NamedTuple):
    """Result of a race."""

    commits: int
    jobs: int
    #: How often the log was restarted, and how often others read the store.
    restarts: int
    reads: int


class _Model:
    """Model of the store: its jobs by number, and the number of ended jobs."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        clock = SystemClock()
        self.new_id, self.now = IdFactory(clock).new, clock.now()
        self.alive: dict[int, JobRecord] = {}
        self.made = self.ended = 0

    def admit(self) -> Admit:
        jobs = []
        for _ in range(self.chance.randint(1, 3)):
            self.made += 1
            seq = self.made
            body = seq.to_bytes(8, "big") * self.chance.randint(1, 600)
            jobs.append(JobRecord(self.new_id(), "q", "task:t", body, seq, seq, created=self.now))
            self.alive[seq] = jobs[-1]
        return Admit(jobs)

    def finish(self) -> Finish:
        seqs = self.chance.sample(sorted(self.alive), min(len(self.alive), 4))
        jobs = [self.alive.pop(seq) for seq in seqs]
        self.ended += len(jobs)
        return Finish([Finished(j, JobState.SUCCEEDED, self.now, 60.0, "", b"") for j in jobs])


def race(folder: Path, commits: int, seed: int = 1, durability: str = "memory") -> Raced:
    """Commit many times; compare all rows now and then, and at the end after reopening the store.

    Args:
        folder: New folder.
        commits: Number of commits.
        seed: Seed of the jobs.
        durability: ``memory`` never syncs, which is fastest and races most.

    Raises:
        Lost: Rows are missing or altered, or are there although their jobs ended.
    """
    model = _Model(seed)
    with (
        patch.object(wal, "NOTIFY_FRAMES", WAKE),
        patch.object(wal, "RESTART_FRAMES", RESTART),
        patch.object(wal, "WAIT_FRAMES", WAIT),
    ):
        store = SqliteStore(folder, SystemClock(), reserve=0, durability=durability)
        store.open()
        restarts = _log_number(folder)
        readers = _Readers(folder)
        try:
            for number in range(1, commits + 1):
                full = len(model.alive) > ALIVE
                batch = [model.finish(), model.admit()] if full else [model.admit()]
                store.submit(batch)
                if store.finished() != [[{}] * len(batch)]:
                    raise Lost(f"commit {number}: outcomes of stored jobs are refused")
                if number % COMPARE_EVERY == 0:
                    _compare(folder, model, number)
            _compare(folder, model, commits)
            restarts = _log_number(folder) - restarts
        finally:
            readers.stop()
            store.close()
    store = SqliteStore(folder, SystemClock(), reserve=0)
    store.open()
    store.close()
    _compare(folder, model, commits)
    if findings := audit(folder):
        raise Lost(f"the store is not sound: {findings}")
    return Raced(commits, model.made, restarts, readers.reads)


def _log_number(folder: Path) -> int:
    """Return the sequence number in the header of the log, which grows at every restart."""
    with (folder / f"{FILE_NAME}-wal").open("rb") as log:
        return int.from_bytes(log.read(16)[12:], "big")


def _compare(folder: Path, model: _Model, commits: int) -> None:
    with contextlib.closing(open_to_read(folder / FILE_NAME)) as db:
        stored = dict(all_rows(db, "SELECT seq, body FROM jobs"))
        expected = {seq: job.body for seq, job in model.alive.items()}
        if stored != expected:
            missing, more = sorted(expected.keys() - stored), sorted(stored.keys() - expected)
            raise Lost(f"after {commits} commits: {missing[:5]} missing, {more[:5]} stored again")
        if (ended := _ended(db)) != model.ended:
            raise Lost(f"after {commits} commits: {ended} outcomes of {model.ended}")


def _ended(db: apsw.Connection) -> int:
    return sum(
        first_row(db, f"SELECT count(*) FROM {bucket_name(bucket)}")[0] for bucket in buckets(db)
    )


class _Readers:
    """Thread that reads the store again and again, and checks that it sees whole commits."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self.reads = 0
        self._error: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with contextlib.closing(open_to_read(self._path)) as db:
                while not self._ending.wait(0.001):
                    db.execute("BEGIN")
                    (rows,) = first_row(db, "SELECT count(*) FROM jobs")
                    waiting = first_row(db, "SELECT waiting FROM queues") or (0,)
                    db.execute("COMMIT")
                    if waiting != (rows,):
                        raise Lost(f"a reader saw {rows} jobs, and a count of {waiting[0]}")
                    self.reads += 1
        except Exception as error:  # noqa: BLE001 - raised by stop()
            self._error = error

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
