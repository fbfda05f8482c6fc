"""Commits that race with the thread that moves the log, and with readers: is every row there?

The store is the real one with its real threads. The log is moved after a few pages instead of
after megabytes, so that commits, the thread and new beginnings of the log meet all the time.
"""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from eventmq.clock import SystemClock
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.plugins.database import all_rows, first_row
from eventmq.plugins.queue_stores.sqlite import checkpoint
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.reading import open_to_read
from eventmq.plugins.queue_stores.sqlite.schema import bucket_name, buckets
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.writes import Admit, Finish, Finished
from tests.faults.crashes import Lost
from tests.support.store_rules import audit

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

__all__ = ["Raced", "race"]

#: Pages after which the thread moves the log, the committing thread begins it anew, and waits.
WAKE, RESTART, WAIT = 2, 6, 64

#: Jobs that are there at most.
ALIVE = 200

#: Commits between two looks at all rows.
LOOK_EVERY = 5000


class Raced(NamedTuple):
    """What came of a race."""

    commits: int
    jobs: int
    #: How often the log was begun anew, and how often others read the store meanwhile.
    begun: int
    reads: int


class _Model:
    """What must be in the store: jobs by number, with the sum of their bytes."""

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
        few = self.chance.sample(sorted(self.alive), min(len(self.alive), 4))
        jobs = [self.alive.pop(seq) for seq in few]
        self.ended += len(jobs)
        return Finish([Finished(j, JobState.SUCCEEDED, self.now, 60.0, "", b"") for j in jobs])


def race(folder: Path, commits: int, seed: int = 1, durability: str = "memory") -> Raced:
    """Commit so many times; look at all rows now and then, and at the end after a new opening.

    Args:
        folder: A new one.
        commits: How many.
        seed: Of what is committed.
        durability: ``memory`` syncs nothing, which is fastest and meets most.

    Raises:
        Lost: Rows are missing, altered, or there though they ended.
    """
    model = _Model(seed)
    with (
        patch.object(checkpoint, "NOTIFY_FRAMES", WAKE),
        patch.object(checkpoint, "RESTART_FRAMES", RESTART),
        patch.object(checkpoint, "WAIT_FRAMES", WAIT),
    ):
        store = SqliteStore(folder, SystemClock(), reserve=0, durability=durability)
        store.open()
        begun = _begun(folder)
        readers = _Readers(folder)
        try:
            for number in range(1, commits + 1):
                full = len(model.alive) > ALIVE
                batch = [model.finish(), model.admit()] if full else [model.admit()]
                store.submit(batch)
                if store.finished() != [[{}] * len(batch)]:
                    raise Lost(f"commit {number}: jobs that are there cannot be ended")
                if number % LOOK_EVERY == 0:
                    _compare(folder, model, number)
            _compare(folder, model, commits)
            begun = _begun(folder) - begun
        finally:
            readers.stop()
            store.close()
    store = SqliteStore(folder, SystemClock(), reserve=0)
    store.open()
    store.close()
    _compare(folder, model, commits)
    if findings := audit(folder):
        raise Lost(f"the store is not sound: {findings}")
    return Raced(commits, model.made, begun, readers.reads)


def _begun(folder: Path) -> int:
    """Return the sequence number of the log's last beginning, as its header has it."""
    with (folder / f"{FILE_NAME}-wal").open("rb") as log:
        return int.from_bytes(log.read(16)[12:], "big")


def _compare(folder: Path, model: _Model, commits: int) -> None:
    with contextlib.closing(open_to_read(folder / FILE_NAME)) as db:
        there = dict(all_rows(db, "SELECT seq, body FROM jobs"))
        wanted = {seq: job.body for seq, job in model.alive.items()}
        if there != wanted:
            missing, more = sorted(wanted.keys() - there), sorted(there.keys() - wanted)
            raise Lost(f"after {commits} commits: {missing[:5]} missing, {more[:5]} there again")
        if (ended := _ended(db)) != model.ended:
            raise Lost(f"after {commits} commits: {ended} outcomes of {model.ended}")


def _ended(db: apsw.Connection) -> int:
    return sum(
        first_row(db, f"SELECT count(*) FROM {bucket_name(bucket)}")[0] for bucket in buckets(db)
    )


class _Readers:
    """A thread that reads the store over and over: each time it sees whole commits only."""

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
                    said = first_row(db, "SELECT waiting FROM queues") or (0,)
                    db.execute("COMMIT")
                    if said != (rows,):
                        raise Lost(f"a reader saw {rows} jobs where the queue says {said[0]}")
                    self.reads += 1
        except Exception as error:  # noqa: BLE001 - told where it can be
            self._error = error

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
