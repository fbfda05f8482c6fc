"""Conformance tests of queue stores: operations on jobs and queues, failed jobs, histories."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.job import JobState
from eventmq.store.reads import History, ListFailed, ReadQueued
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import (
    Admit,
    AffectedJobs,
    ApplyToJobs,
    Attempt,
    AuditFields,
    BeginBulkOperation,
    BulkOperation,
    ContinueBulkOperation,
    Finish,
    ForgetQueues,
    Operation,
    Pause,
    PruneFailed,
    Requeue,
    SubqueueKey,
    WriteResult,
)
from eventmq.testing.suites.store_harness import StoreHarness

if TYPE_CHECKING:
    from collections.abc import Collection

    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord

__all__ = ["OperationTests"]

_FIRST = (-(2**63), -1)
_ANY = Operation("")


class OperationTests(StoreHarness):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def apply(self, store: QueueStore, action: str, *ids: str, seq: int = 10_000) -> AffectedJobs:
        """Apply an operation to jobs by id."""
        audit = AuditFields(self.clock.now(), 60.0, "error", b"why", seq, 60.0)
        affected: AffectedJobs = self.commit(store, ApplyToJobs(action, ids, audit))[0]
        return affected

    def broken(self, store: QueueStore, n: int, **changes: object) -> list[JobRecord]:
        """Admit jobs and let them fail, one per second."""
        jobs = self.admitted(store, n, **changes)
        for job in jobs:
            self.finish(store, self.end(job, JobState.FAILED, result=b"error"))
            self.clock.advance(1.0)
        return jobs

    def bulk(
        self, store: QueueStore, operation: Operation, bound: int, *, begin: bool = True
    ) -> list[int]:
        """Run a bulk operation to its end; return the number of jobs of each slice."""
        record = BulkOperation("s", operation, self.clock.now(), bound)
        if begin:
            self.commit(store, BeginBulkOperation(record))
        sizes: list[int] = []
        for _ in range(100):
            affected, bulk = self.slice(store, seq=20_000 + 100 * len(sizes))
            sizes.append(len(affected.jobs))
            if bulk.done:
                return sizes
        raise AssertionError("the bulk operation never ends")

    def slice(
        self, store: QueueStore, excluded: Collection[int] = (), seq: int = 20_000
    ) -> tuple[AffectedJobs, BulkOperation]:
        """Run one slice of two jobs."""
        audit = AuditFields(self.clock.now(), 60.0, "error", b"why", seq, 60.0)
        write_result: tuple[AffectedJobs, BulkOperation] = self.commit(
            store, ContinueBulkOperation("s", audit, excluded, 2)
        )[0]
        return write_result

    # Cancelling

    def test_queued_and_delayed_jobs_can_be_cancelled(self) -> None:
        """The write result has their state before, their number and their queue."""
        store = self.begin()
        queued, delayed = self.job(), self.delayed(60.0)
        self.commit(store, Admit([queued, delayed]))
        affected = self.apply(store, "cancel", queued.id, delayed.id, "unknown")
        assert [(j.id, j.state, j.queue, j.seq) for j in affected.jobs] == [
            (queued.id, JobState.QUEUED, "q", queued.seq),
            (delayed.id, JobState.DELAYED, "q", delayed.seq),
        ]
        assert affected.unaffected == {}
        rows = self.find(store, queued, delayed)
        assert {f.job.state for f in rows.values()} == {JobState.CANCELLED}
        assert {(f.content_type, f.result) for f in rows.values()} == {("error", b"why")}
        assert self.commit(store, ReadQueued("q", SubqueueKey("t"), _FIRST, 9, 999))[0] == (
            [],
            False,
        )
        _, recovered = self.reopen(store)
        assert recovered.counts == {"q": QueueCounts()}

    def test_ended_jobs_are_not_cancelled(self) -> None:
        """The write result has their states; cancelling twice changes nothing."""
        store = self.begin()
        jobs = self.admitted(store, 3)
        self.finish(store, self.end(jobs[0]), self.end(jobs[1], JobState.FAILED))
        self.apply(store, "cancel", jobs[2].id)
        affected = self.apply(store, "cancel", *(job.id for job in jobs))
        states = ["succeeded", "failed", "cancelled"]
        expected = {job.id: state for job, state in zip(jobs, states, strict=True)}
        assert affected == AffectedJobs([], expected)

    def test_a_cancelled_job_ends_no_second_time(self) -> None:
        """Its lease is over: an outcome or a requeue in the same commit is stale."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        audit = AuditFields(self.clock.now(), 60.0)
        writes = (ApplyToJobs("cancel", [job.id], audit), Requeue([job]), Finish([self.end(job)]))
        affected, _, write_result = self.commit(store, *writes)
        assert len(affected.jobs) == 1
        assert write_result == {0: WriteResult("stale_lease")}
        assert self.state(store, job) is JobState.CANCELLED

    # Retrying and dropping

    def test_a_failed_job_is_queued_again_as_its_next_attempt(self) -> None:
        """With a new number and the same body; its error becomes part of its history."""
        store = self.begin()
        (job,) = self.broken(store, 1, body=b"body", deaths=2, delivery=4)
        affected = self.apply(store, "retry", job.id, seq=77)
        assert [(j.id, j.seq, j.attempt, j.deaths) for j in affected.jobs] == [(job.id, 77, 2, 0)]
        record = self.find(store, job)[job.id].job
        assert (record.state, record.body, record.attempt) == (JobState.QUEUED, b"body", 2)
        (claimed,), _ = self.commit(store, ReadQueued("q", SubqueueKey("t"), _FIRST, 9, 999))[0]
        assert (claimed.id, claimed.seq) == (job.id, 77)
        (attempt,) = self.commit(store, History(job.id))[0]
        assert (attempt.attempt, attempt.error, attempt.worker) == (1, b"error", "worker-1")
        store, recovered = self.reopen(store)
        assert recovered.counts == {"q": QueueCounts(queued=1)}
        assert recovered.next_seq > 77  # noqa: PLR2004 - the number above

    def test_only_the_attempt_that_is_named_is_retried(self) -> None:
        """So a repeated request changes nothing."""
        store = self.begin()
        one, two = self.broken(store, 2)
        write = ApplyToJobs(
            "retry", [one.id, two.id], AuditFields(self.clock.now(), seq=77), [1, 2]
        )
        (affected,) = self.commit(store, write)
        assert [(job.id, job.attempt) for job in affected.jobs] == [(one.id, 2)]
        assert affected.unaffected == {two.id: "failed"}
        assert self.commit(store, write) == [AffectedJobs([], {one.id: "queued", two.id: "failed"})]

    def test_a_dropped_job_is_unknown(self) -> None:
        """Its id may be used again."""
        store = self.begin()
        one, two = self.broken(store, 2)
        affected = self.apply(store, "drop", one.id)
        assert [job.id for job in affected.jobs] == [one.id]
        assert set(self.find(store, one, two)) == {two.id}
        assert self.commit(store, Admit([self.job(id=one.id)])) == [{}]
        _, recovered = self.reopen(store)
        assert recovered.counts == {"q": QueueCounts(queued=1, failed=1)}

    @pytest.mark.parametrize("action", ["retry", "drop"])
    def test_only_failed_jobs_are_retried_or_dropped(self, action: str) -> None:
        """The write result has the states of the others."""
        store = self.begin()
        waiting, ended = self.admitted(store, 2)
        self.finish(store, self.end(ended))
        affected = self.apply(store, action, waiting.id, ended.id, "unknown")
        assert affected == AffectedJobs([], {waiting.id: "queued", ended.id: "succeeded"})

    # Bulk operations

    def test_a_bulk_operation_runs_in_slices_over_matching_jobs(self) -> None:
        """Jobs of other queues, later jobs and excluded ones are not affected."""
        store = self.begin()
        first = self.admitted(store, 3)
        self.admitted(store, 2, queue="other")
        last = self.admitted(store, 2)
        later = self.admitted(store, 1)
        operation = Operation("cancel", queue="q")
        self.commit(
            store, BeginBulkOperation(BulkOperation("s", operation, self.clock.now(), last[1].seq))
        )
        affected, bulk = self.slice(store, excluded={first[0].seq})
        assert [job.id for job in affected.jobs] == [first[1].id]
        assert (bulk.touched, bulk.done) == (1, False)
        sizes = self.bulk(store, operation, 0, begin=False)
        assert sum(sizes) == 3  # noqa: PLR2004 - what is left of five
        states = [self.state(store, job) for job in (*first, *last, *later)]
        cancelled = JobState.CANCELLED
        assert states == [JobState.QUEUED, *[cancelled] * 4, JobState.QUEUED]

    def test_a_bulk_operation_continues_after_a_restart(self) -> None:
        """From its stored record; each job is counted once."""
        store = self.begin()
        jobs = self.admitted(store, 5)
        operation = Operation("cancel", queue="q", reason="purged")
        record = BulkOperation("s", operation, self.clock.now(), jobs[-1].seq)
        (bulk,) = self.commit(store, BeginBulkOperation(record))
        assert (bulk.id, bulk.operation, bulk.done) == ("s", operation, False)
        self.slice(store)
        store, recovered = self.reopen(store)
        (bulk,) = recovered.bulk_operations
        assert (bulk.operation, bulk.touched, bulk.done) == (operation, 2, False)
        assert sum(self.bulk(store, operation, 0, begin=False)) == 3  # noqa: PLR2004
        store, recovered = self.reopen(store)
        (bulk,) = recovered.bulk_operations
        assert (bulk.touched, bulk.done) == (5, True)
        assert {self.state(store, job) for job in jobs} == {JobState.CANCELLED}

    def test_a_bulk_operation_begins_once(self) -> None:
        """A repeated request gets the progress of the first; an unknown operation has no slices."""
        store = self.begin()
        jobs = self.admitted(store, 2)
        operation = Operation("cancel", queue="q")
        self.bulk(store, operation, jobs[-1].seq)
        again = BulkOperation("s", Operation("cancel", task="t"), 0.0, 0)
        (bulk,) = self.commit(store, BeginBulkOperation(again))
        assert (bulk.operation, bulk.touched, bulk.done) == (operation, 2, True)
        write = ContinueBulkOperation("other", AuditFields(0.0), (), 2)
        assert self.commit(store, write) == [(AffectedJobs([], {}), None)]

    def test_a_bulk_operation_on_waiting_jobs_filters_by_task_and_state(self) -> None:
        """A job must match all filters."""
        store = self.begin()
        self.admitted(store, 2)
        fits = self.delayed(60.0)
        others = [self.job(headers="task:u"), self.delayed(60.0, headers="task:u")]
        self.commit(store, Admit([fits, *others]))
        operation = Operation("cancel", task="t", state=JobState.DELAYED)
        assert sum(self.bulk(store, operation, others[-1].seq)) == 1
        assert self.state(store, fits) is JobState.CANCELLED

    @pytest.mark.parametrize("action", ["retry", "drop"])
    def test_a_bulk_operation_on_failed_jobs_filters_by_queue_and_time(self, action: str) -> None:
        """Each job is affected once, even if it fails again after its retry."""
        store = self.begin()
        start = self.clock.now()
        jobs = self.broken(store, 5)
        other = self.broken(store, 1, queue="other")
        operation = Operation(action, queue="q", since=start + 1.0, until=start + 4.0)
        assert sum(self.bulk(store, operation, other[0].seq)) == 3  # noqa: PLR2004
        failed = JobState.FAILED
        expected = None if action == "drop" else JobState.QUEUED
        states = [self.state(store, job) for job in (*jobs, *other)]
        assert states == [failed, expected, expected, expected, failed, failed]

    # Queues

    def test_a_paused_queue_is_paused_after_a_restart(self) -> None:
        """Even a queue that never had a job."""
        store = self.begin()
        self.admitted(store, 1)
        assert self.commit(store, Pause("q", True), Pause("new", True)) == [None, None]  # noqa: FBT003
        store, recovered = self.reopen(store)
        assert recovered.counts == {
            "q": QueueCounts(queued=1, paused=True),
            "new": QueueCounts(paused=True),
        }
        self.commit(store, Pause("q", False))  # noqa: FBT003
        _, recovered = self.reopen(store)
        assert recovered.counts["q"] == QueueCounts(queued=1)

    def test_an_empty_queue_can_be_removed_and_used_again(self) -> None:
        """Outcomes keep its name. A queue with jobs, even failed ones, or a paused one stays."""
        store = self.begin()
        now = self.clock.now()
        (old,) = self.admitted(store, 1, queue="old")
        self.finish(store, self.end(old, JobState.SUCCEEDED))
        self.admitted(store, 1, queue="full")
        self.commit(store, Pause("paused", True))  # noqa: FBT003
        names = ["old", "full", "paused", "never"]
        assert self.commit(store, ForgetQueues(names, now)) == [["old", "never"]]
        assert self.find(store, old)[old.id].job.queue == "old"
        (new,) = self.admitted(store, 1, queue="new")
        store, recovered = self.reopen(store)
        assert sorted(recovered.counts) == ["full", "new", "paused"]
        assert self.find(store, old, new)[old.id].job.queue == "old"
        self.admitted(store, 1, queue="old")
        store, recovered = self.reopen(store)
        assert recovered.counts["old"] == QueueCounts(queued=1)

    def test_a_queue_with_a_job_in_the_same_commit_is_not_lost(self) -> None:
        """Whichever write comes first."""
        store = self.begin()
        job = self.job(queue="q")
        removal = ForgetQueues(["q"], self.clock.now())
        assert self.commit(store, Admit([job]), removal) == [{}, []]
        self.finish(store, self.end(job, JobState.SUCCEEDED))
        job = self.job(queue="q")
        assert self.commit(store, removal, Admit([job])) == [["q"], {}]
        _, recovered = self.reopen(store)
        assert recovered.counts["q"] == QueueCounts(queued=1)

    # Failed jobs

    def test_failed_jobs_are_listed_newest_first(self) -> None:
        """Page by page, without bodies, with their errors."""
        store = self.begin()
        jobs = self.broken(store, 5, body=b"long")
        seen, cursor = [], ""
        for _ in range(3):
            rows, cursor = self.commit(store, ListFailed(_ANY, cursor, 2))[0]
            seen += rows
        assert [row.job.id for row in seen] == [job.id for job in reversed(jobs)]
        assert {(f.job.body, f.result, f.job.state) for f in seen} == {
            (b"", b"error", JobState.FAILED)
        }
        assert cursor == ""
        assert self.commit(store, ListFailed(Operation("", queue="no"), "", 2)) == [([], "")]

    def test_failed_jobs_are_pruned_by_age(self) -> None:
        """The oldest first, up to a limit per commit."""
        store = self.begin()
        start = self.clock.now()
        jobs = self.broken(store, 4)
        (pruned,) = self.commit(store, PruneFailed(start + 2.5, 10**9, 2))
        assert (pruned.queues, pruned.more, pruned.oldest) == ({"q": 2}, True, start + 2.0)
        (pruned,) = self.commit(store, PruneFailed(start + 2.5, 10**9, 2))
        assert (pruned.queues, pruned.more, pruned.oldest) == ({"q": 1}, False, start + 3.0)
        assert set(self.find(store, *jobs)) == {jobs[3].id}
        _, recovered = self.reopen(store)
        assert recovered.counts == {"q": QueueCounts(failed=1)}

    def test_failed_jobs_are_pruned_by_bytes(self) -> None:
        """Those stored before a restart count, dropped ones do not."""
        store = self.begin()
        jobs = self.broken(store, 4, body=b"x" * 1000)
        self.apply(store, "drop", jobs[3].id)
        store, _ = self.reopen(store)
        (pruned,) = self.commit(store, PruneFailed(0.0, 2500, 100))
        assert (pruned.queues, pruned.more) == ({"q": 1}, False)
        assert set(self.find(store, *jobs)) == {jobs[1].id, jobs[2].id}
        (pruned,) = self.commit(store, PruneFailed(0.0, 0, 100))
        assert (pruned.queues, pruned.oldest) == ({"q": 2}, None)

    # Histories

    def attempt(self, job: JobRecord, number: int) -> Attempt:
        """Return a failed attempt."""
        now = self.clock.now()
        return Attempt(job.id, number, number, now, now - 2.0, 1.5, "w", "error", b"%d" % number)

    def test_the_last_ten_failed_attempts_are_kept(self) -> None:
        """The oldest first, after a restart, and after the end of the job."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        attempts = [self.attempt(job, number) for number in range(1, 14)]
        for attempt in attempts:
            job.attempt += 1
            self.commit(store, Requeue([job], [attempt]))
        assert self.commit(store, History(job.id), History("unknown")) == [attempts[3:], []]
        store, _ = self.reopen(store)
        self.finish(store, self.end(job))
        assert self.commit(store, History(job.id)) == [attempts[3:]]

    def test_a_job_that_has_ended_gets_no_further_history(self) -> None:
        """A requeue after its end is stale."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        self.finish(store, self.end(job))
        self.commit(store, Requeue([job], [self.attempt(job, 1)]))
        assert self.commit(store, History(job.id)) == [[]]

    def test_the_history_is_deleted_with_its_job(self) -> None:
        """When it is dropped, or pruned as a failed job."""
        store = self.begin()
        jobs = self.admitted(store, 2)
        for job in jobs:
            job.attempt = 2
            self.commit(store, Requeue([job], [self.attempt(job, 1)]))
            self.finish(store, self.end(job, JobState.FAILED))
        self.apply(store, "drop", jobs[0].id)
        self.commit(store, PruneFailed(self.clock.now() + 1.0, 10**9, 10))
        assert self.commit(store, *(History(job.id) for job in jobs)) == [[], []]
