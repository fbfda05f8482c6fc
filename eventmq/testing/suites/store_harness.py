"""Helpers of the conformance tests of queue stores: make jobs, commit, reopen."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

import select
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.store.reads import FindJobs
from eventmq.store.writes import Admit, Finish, Finished
from eventmq.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eventmq.clock import Clock
    from eventmq.interfaces import QueueStore
    from eventmq.store import Write
    from eventmq.store.reads import JobRow
    from eventmq.store.recovery import Recovered

__all__ = ["StoreHarness", "fields"]

#: Seconds until a commit has failed.
_DEADLINE = 30.0

_JOB_FIELDS = [
    "id",
    "queue",
    "headers",
    "body",
    "seq",
    "rank",
    "state",
    "attempt",
    "delivery",
    "ready_at",
    "expires",
    "created",
    "deaths",
    "eta",
]


class StoreHarness:
    """Opens stores on one path, and commits to them."""

    #: Seconds during which the id of an ended job is refused; results are kept no longer.
    dedupe_window = 86_400.0
    #: Whether the data is still there when the path is opened again.
    durable = True

    def open_store(self, path: Path, clock: Clock) -> QueueStore:
        """Return a store on a directory, not opened, with `dedupe_window`."""
        raise NotImplementedError(
            "define open_store() in your subclass: it returns your queue store, not opened"
        )

    @pytest.fixture(autouse=True)
    def _around(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path
        self.clock = FakeClock()
        self.ids = IdFactory(self.clock)
        self.numbers = count(1)
        self.stores: list[QueueStore] = []
        yield
        for store in self.stores:
            store.close()

    def begin(self) -> QueueStore:
        """Return an open store."""
        return self.open()[0]

    def open(self) -> tuple[QueueStore, Recovered]:
        """Open the path; the store is closed after the test."""
        store = self.open_store(self.path, self.clock)
        self.stores.append(store)
        return store, store.open()

    def reopen(self, store: QueueStore) -> tuple[QueueStore, Recovered]:
        """Close the store and open its path again, as a restarted broker does."""
        if not self.durable:
            pytest.skip("this store keeps nothing beyond its process")
        store.close()
        return self.open()

    def wait(self, store: QueueStore, batches: int) -> list[Sequence[Any] | Exception]:
        """Wait for a number of batches; return their write results."""
        results: list[Sequence[Any] | Exception] = []
        deadline = time.monotonic() + _DEADLINE
        while len(results) < batches:
            assert time.monotonic() < deadline, "the store did not finish a commit"
            descriptor = store.fileno()
            if descriptor is not None:
                select.select([descriptor], [], [], 1.0)
            results += store.finished()
        assert len(results) == batches, "the store returned more results than there were commits"
        return results

    def commit(self, store: QueueStore, *writes: Write) -> Sequence[Any]:
        """Commit one batch and return its write results; a failure fails the test."""
        store.submit(writes)
        (write_results,) = self.wait(store, 1)
        assert not isinstance(write_results, Exception), f"the commit failed: {write_results!r}"
        assert len(write_results) == len(writes), "there must be one result per write"
        return write_results

    # Jobs

    def job(self, **changes: Any) -> JobRecord:
        """Return a new job, with the next number and id."""
        number = next(self.numbers)
        values: dict[str, Any] = {
            "id": self.ids.new(),
            "queue": "q",
            "headers": "task:t,content-type:json",
            "body": b"[%d]" % number,
            "seq": number,
            "rank": number,
            "created": self.clock.now(),
        }
        return JobRecord(**(values | changes))

    def delayed(self, countdown: float, **changes: Any) -> JobRecord:
        """Return a job that is ready ``countdown`` seconds from now."""
        return self.job(state=JobState.DELAYED, ready_at=self.clock.now() + countdown, **changes)

    def admitted(self, store: QueueStore, n: int, **changes: Any) -> list[JobRecord]:
        """Admit ``n`` jobs and return them."""
        jobs = [self.job(**changes) for _ in range(n)]
        assert self.commit(store, Admit(jobs)) == [{}]
        return jobs

    def end(
        self,
        job: JobRecord,
        state: JobState = JobState.SUCCEEDED,
        *,
        ttl: float = 60.0,
        result: bytes = b"r",
    ) -> Finished:
        """Return the outcome of a job that ends now."""
        now = self.clock.now()
        return Finished(job, state, now, ttl, "json", result, now - 2.0, 1.5, "worker-1")

    def finish(self, store: QueueStore, *rows: Finished) -> Any:
        """Commit outcomes of jobs, and return the write result."""
        return self.commit(store, Finish(rows))[0]

    def find(self, store: QueueStore, *jobs: JobRecord) -> dict[str, JobRow]:
        """Find jobs; return their rows by id."""
        rows: dict[str, JobRow] = self.commit(store, FindJobs([job.id for job in jobs]))[0]
        return rows

    def state(self, store: QueueStore, job: JobRecord) -> JobState | None:
        """Return the state of a job, None where it is unknown."""
        rows = self.find(store, job)
        return rows[job.id].job.state if rows else None


def fields(job: JobRecord) -> dict[str, Any]:
    """Return a job's fields, for comparison."""
    return {name: getattr(job, name) for name in _JOB_FIELDS}
