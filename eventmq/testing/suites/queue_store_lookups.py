"""What a queue store reads of jobs of which not everything is wanted."""

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

#: Bytes of a result that is not read in any case.
_LONG = 10_000


class LookupTests(InputTests):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def look(self, store: QueueStore, jobs: list[JobRecord], max_bytes: int) -> list[JobRow]:
        """Return what is known of jobs of which all are known."""
        rows: dict[str, JobRow] = self.commit(store, FindJobs([job.id for job in jobs], max_bytes))[0]
        return [rows[job.id] for job in jobs]

    def ended(self, store: QueueStore, *sizes: int) -> list[JobRecord]:
        """Return jobs that have succeeded with results of these lengths."""
        jobs = self.admitted(store, len(sizes))
        rows = [self.end(j, result=b"r" * n) for j, n in zip(jobs, sizes, strict=True)]
        self.finish(store, *rows)
        return jobs

    def test_results_are_read_while_there_is_room(self) -> None:
        """The one that passes it is the last, so that there always is progress."""
        store = self.begin()
        jobs = self.ended(store, *[_LONG] * 12)
        for n, max_bytes in ((0, 0), (1, 1), (2, _LONG + 1), (12, 12 * _LONG)):
            for batch in (jobs, jobs[:3]):
                rows = self.look(store, batch[::-1], max_bytes)
                assert [row.unread for row in rows] == [i >= n for i in range(len(batch))]
                assert all((row.result is None) == row.unread for row in rows)
                assert {row.job.state for row in rows} == {JobState.SUCCEEDED}

    def test_short_results_and_errors_are_read_in_any_case(self) -> None:
        """They are few bytes, or what an operator looks for."""
        store = self.begin()
        short, long = self.ended(store, 4096, 4097)
        (failed,) = self.admitted(store, 1)
        self.finish(store, self.end(failed, JobState.FAILED, result=b"e" * _LONG))
        rows = self.look(store, [short, long, failed], 0)
        assert [row.unread for row in rows] == [False, True, False]
        assert [len(row.result or b"") for row in rows] == [4096, 0, _LONG]

    def test_bodies_are_not_read_where_there_is_a_room(self) -> None:
        """Who waits for a job has no use for them."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        (row,) = self.look(store, [job], 0)
        assert (row.job.state, row.job.body, row.unread) == (JobState.QUEUED, b"", False)

    def test_a_result_whose_time_is_up_is_none_and_not_unread(self) -> None:
        """Nobody is to ask for it again."""
        store = self.begin()
        jobs = self.ended(store, _LONG)
        self.clock.advance(61.0)
        (row,) = self.look(store, jobs, 0)
        assert (row.result, row.unread) == (None, False)

    def test_a_listing_has_no_long_results(self) -> None:
        """It says how jobs are, a thousand at a time."""
        store = self.begin()
        self.ended(store, _LONG)
        rows, _ = self.commit(store, ListJobs(JobState.SUCCEEDED, None, None, "", 10))[0]
        assert [row.result for row in rows] == [None]
