"""Conformance tests of queue stores: lookups that leave out bodies and long results."""

# ruff: noqa: S101 - suites assert; the expected number is the point

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.job import JobState
from eventmq.store.reads import FindJobs, ListJobs
from eventmq.testing.suites.queue_store_inputs import InputTests

if TYPE_CHECKING:
    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord
    from eventmq.store.reads import JobRow

__all__ = ["LookupTests"]

#: Bytes of a result that is long enough to be left unread.
_LONG = 10_000


class LookupTests(InputTests):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def find_bare(self, store: QueueStore, jobs: list[JobRecord], max_bytes: int) -> list[JobRow]:
        """Find jobs without bodies, and with results of at most so many bytes."""
        rows: dict[str, JobRow] = self.commit(store, FindJobs([job.id for job in jobs], max_bytes))[
            0
        ]
        return [rows[job.id] for job in jobs]

    def ended(self, store: QueueStore, *sizes: int) -> list[JobRecord]:
        """Return jobs that have succeeded with results of these lengths."""
        jobs = self.admitted(store, len(sizes))
        rows = [self.end(j, result=b"r" * n) for j, n in zip(jobs, sizes, strict=True)]
        self.finish(store, *rows)
        return jobs

    def test_results_are_read_up_to_the_limit_of_bytes(self) -> None:
        """The result that exceeds the limit is read as the last one, so that there is progress."""
        store = self.begin()
        jobs = self.ended(store, *[_LONG] * 12)
        for n, max_bytes in ((0, 0), (1, 1), (2, _LONG + 1), (12, 12 * _LONG)):
            for batch in (jobs, jobs[:3]):
                rows = self.find_bare(store, batch[::-1], max_bytes)
                assert [row.unread for row in rows] == [i >= n for i in range(len(batch))]
                assert all((row.result is None) == row.unread for row in rows)
                assert {row.job.state for row in rows} == {JobState.SUCCEEDED}

    def test_short_results_and_errors_are_read_in_any_case(self) -> None:
        """Whatever the limit: they are small, or what an operator looks for."""
        store = self.begin()
        short, long = self.ended(store, 4096, 4097)
        (failed,) = self.admitted(store, 1)
        self.finish(store, self.end(failed, JobState.FAILED, result=b"e" * _LONG))
        rows = self.find_bare(store, [short, long, failed], 0)
        assert [row.unread for row in rows] == [False, True, False]
        assert [len(row.result or b"") for row in rows] == [4096, 0, _LONG]

    def test_bodies_are_not_read_with_a_limit_of_bytes(self) -> None:
        """A client that waits for a result does not need them."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        (row,) = self.find_bare(store, [job], 0)
        assert (row.job.state, row.job.body, row.unread) == (JobState.QUEUED, b"", False)

    def test_an_expired_result_is_none_and_not_unread(self) -> None:
        """So that no client asks for it again."""
        store = self.begin()
        jobs = self.ended(store, _LONG)
        self.clock.advance(61.0)
        (row,) = self.find_bare(store, jobs, 0)
        assert (row.result, row.unread) == (None, False)

    def test_a_listing_has_no_long_results(self) -> None:
        """A page may have a thousand jobs."""
        store = self.begin()
        self.ended(store, _LONG)
        rows, _ = self.commit(store, ListJobs(JobState.SUCCEEDED, None, None, "", 10))[0]
        assert [row.result for row in rows] == [None]
