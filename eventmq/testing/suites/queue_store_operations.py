"""Conformance tests of queue stores: operations on jobs and queues, failed jobs, histories."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest

from eventmq.job import JobState
from eventmq.store.reads import (
    CountJobs,
    GroupFailures,
    History,
    ListFailed,
    ListJobs,
    ReadLogs,
    ReadQueued,
)
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
    JobLog,
    Operation,
    Pause,
    PruneFailed,
    Requeue,
    SubqueueKey,
    WriteResult,
)
from eventmq.testing.suites.queue_store_recovery import StoreHarness
from eventmq.wire.results import RemoteError, decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord

__all__ = ["OperationTests"]

_ANY = Operation("")

#: Reads the queued jobs of the tests from the first one.
_QUEUED = ReadQueued("q", SubqueueKey("t"), (-(2**63), -1), 9, 999)


class OperationTests(StoreHarness):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def apply(self, store: QueueStore, action: str, *ids: str, seq: int = 10_000) -> AffectedJobs:
        """Apply an operation to jobs by id."""
        audit = AuditFields(self.clock.now(), 60.0, "error", b"why", seq, 60.0)
        return cast("AffectedJobs", self.commit(store, ApplyToJobs(action, ids, audit))[0])

    def broken(self, store: QueueStore, n: int, **changes: object) -> list[JobRecord]:
        """Admit jobs and let them fail, one per second."""
        jobs = self.admitted(store, n, **changes)
        for job in jobs:
            self.finish(store, self.end(job, JobState.FAILED, result=b"error"))
            self.clock.advance(1.0)
        return jobs

    def start(self, store: QueueStore, operation: Operation, last: JobRecord) -> BulkOperation:
        """Begin a bulk operation on jobs up to the last one, and return it."""
        record = BulkOperation("s", operation, self.clock.now(), last.seq)
        return cast("BulkOperation", self.commit(store, BeginBulkOperation(record))[0])

    def run_slices(self, store: QueueStore) -> int:
        """Run the bulk operation to its end; return how many jobs it affected."""
        touched = 0
        for number in range(100):
            affected, bulk = self.slice(store, seq=20_000 + 100 * number)
            touched += len(affected.jobs)
            if bulk.done:
                return touched
        raise AssertionError("the bulk operation never ends")

    def slice(
        self, store: QueueStore, excluded: Collection[int] = (), seq: int = 20_000
    ) -> tuple[AffectedJobs, BulkOperation]:
        """Run one slice of two jobs."""
        audit = AuditFields(self.clock.now(), 60.0, "error", b"why", seq, 60.0)
        sliced = self.commit(store, ContinueBulkOperation("s", audit, excluded, 2))[0]
        return cast("tuple[AffectedJobs, BulkOperation]", sliced)

    # Cancelling

    def test_queued_and_delayed_jobs_can_be_cancelled(self, store: QueueStore) -> None:
        """The write result has their state before, their number and their queue."""
        queued, delayed = self.job(), self.delayed(60.0)
        self.commit(store, Admit([queued, delayed]))
        affected = self.apply(store, "cancel", queued.id, delayed.id, "unknown")
        assert [(j.id, j.state, j.queue, j.seq) for j in affected.jobs] == [
            (queued.id, JobState.QUEUED, "q", queued.seq),
            (delayed.id, JobState.DELAYED, "q", delayed.seq),
        ]
        assert affected.unaffected == {}
        rows = self.find(store, queued, delayed).values()
        assert {(f.job.state, f.content_type, f.result) for f in rows} == {
            (JobState.CANCELLED, "error", b"why")
        }
        assert self.commit(store, _QUEUED)[0] == ([], False)
        assert self.reopen(store)[1].counts == {"q": QueueCounts()}

    def test_ended_jobs_are_not_cancelled(self, store: QueueStore) -> None:
        """The write result has their states; cancelling twice changes nothing."""
        jobs = self.admitted(store, 3)
        self.finish(store, self.end(jobs[0]), self.end(jobs[1], JobState.FAILED))
        self.apply(store, "cancel", jobs[2].id)
        ids = [job.id for job in jobs]
        expected = dict(zip(ids, ["succeeded", "failed", "cancelled"], strict=True))
        assert self.apply(store, "cancel", *ids) == AffectedJobs([], expected)

    def test_a_cancelled_job_ends_no_second_time(self, store: QueueStore) -> None:
        """Its lease is over: an outcome or a requeue in the same commit is stale."""
        (job,) = self.admitted(store, 1)
        audit = AuditFields(self.clock.now(), 60.0)
        writes = (ApplyToJobs("cancel", [job.id], audit), Requeue([job]), Finish([self.end(job)]))
        affected, _, write_result = self.commit(store, *writes)
        assert len(affected.jobs) == 1
        assert write_result == {0: WriteResult("stale_lease")}
        assert self.state(store, job) is JobState.CANCELLED

    def test_a_job_is_cancelled_with_its_arguments(self, store: QueueStore) -> None:
        """If it asks for it, whether by id or by filters; a second operation changes nothing."""
        headers = "task:t,content-type:json,keep-arguments"
        jobs = [*self.admitted(store, 3, headers=headers), *self.admitted(store, 1)]
        self.apply(store, "cancel", jobs[0].id)
        self.start(store, Operation("cancel", queue="q"), jobs[-1])
        assert self.run_slices(store) == 3  # noqa: PLR2004 - all but the first
        self.apply(store, "cancel", *(job.id for job in jobs))
        rows = self.find(store, *jobs)
        assert [(rows[job.id].job.state, rows[job.id].result) for job in jobs] == (
            [(JobState.CANCELLED, b"why")] * 4
        )
        assert [rows[job.id].job.body for job in jobs] == [*(job.body for job in jobs[:3]), b""]
        assert [rows[job.id].job.headers for job in jobs[:3]] == [headers] * 3

    # Retrying and dropping

    def test_a_failed_job_is_queued_again_as_its_next_attempt(self, store: QueueStore) -> None:
        """It has a new number and the same body; its error becomes part of its history."""
        (job,) = self.broken(store, 1, body=b"body", deaths=2, delivery=4)
        affected = self.apply(store, "retry", job.id, seq=77)
        assert [(j.id, j.seq, j.attempt, j.deaths) for j in affected.jobs] == [(job.id, 77, 2, 0)]
        record = self.find(store, job)[job.id].job
        assert (record.state, record.body, record.attempt) == (JobState.QUEUED, b"body", 2)
        (claimed,), _ = self.commit(store, _QUEUED)[0]
        assert (claimed.id, claimed.seq) == (job.id, 77)
        (attempt,) = self.commit(store, History(job.id))[0]
        assert (attempt.attempt, attempt.error, attempt.worker) == (1, b"error", "worker-1")
        recovered = self.reopen(store)[1]
        assert recovered.counts == {"q": QueueCounts(queued=1)}
        assert recovered.next_seq > 77  # noqa: PLR2004 - the number above

    def test_only_the_attempt_that_is_named_is_retried(self, store: QueueStore) -> None:
        """A repeated request changes nothing."""
        one, two = self.broken(store, 2)
        write = ApplyToJobs(
            "retry", [one.id, two.id], AuditFields(self.clock.now(), seq=77), [1, 2]
        )
        (affected,) = self.commit(store, write)
        assert [(job.id, job.attempt) for job in affected.jobs] == [(one.id, 2)]
        assert affected.unaffected == {two.id: "failed"}
        assert self.commit(store, write) == [AffectedJobs([], {one.id: "queued", two.id: "failed"})]

    def test_a_dropped_job_is_unknown(self, store: QueueStore) -> None:
        """Its id may be used again."""
        one, two = self.broken(store, 2)
        assert [job.id for job in self.apply(store, "drop", one.id).jobs] == [one.id]
        assert set(self.find(store, one, two)) == {two.id}
        assert self.commit(store, Admit([self.job(id=one.id)])) == [{}]
        assert self.reopen(store)[1].counts == {"q": QueueCounts(queued=1, failed=1)}

    @pytest.mark.parametrize("action", ["retry", "drop"])
    def test_only_failed_jobs_are_retried_or_dropped(self, store: QueueStore, action: str) -> None:
        """The write result has the states of the others."""
        waiting, ended = self.admitted(store, 2)
        self.finish(store, self.end(ended))
        affected = self.apply(store, action, waiting.id, ended.id, "unknown")
        assert affected == AffectedJobs([], {waiting.id: "queued", ended.id: "succeeded"})

    # Bulk operations

    def test_a_bulk_operation_runs_in_slices_over_matching_jobs(self, store: QueueStore) -> None:
        """Jobs of other queues, later jobs and excluded ones are not affected."""
        first = self.admitted(store, 3)
        self.admitted(store, 2, queue="other")
        last = self.admitted(store, 2)
        later = self.admitted(store, 1)
        self.start(store, Operation("cancel", queue="q"), last[1])
        affected, bulk = self.slice(store, excluded={first[0].seq})
        assert [job.id for job in affected.jobs] == [first[1].id]
        assert (bulk.touched, bulk.done) == (1, False)
        assert self.run_slices(store) == 3  # noqa: PLR2004 - what is left of five
        assert self.states(store, [*first, *last, *later]) == [
            "queued", *["cancelled"] * 4, "queued"
        ]  # fmt: skip

    def test_a_bulk_operation_continues_after_a_restart(self, store: QueueStore) -> None:
        """It continues from its stored record; each job is counted once."""
        jobs = self.admitted(store, 5)
        operation = Operation("cancel", queue="q", reason="purged")
        bulk = self.start(store, operation, jobs[-1])
        assert (bulk.id, bulk.operation, bulk.done) == ("s", operation, False)
        self.slice(store)
        store, recovered = self.reopen(store)
        (bulk,) = recovered.bulk_operations
        assert (bulk.operation, bulk.touched, bulk.done) == (operation, 2, False)
        assert self.run_slices(store) == 3  # noqa: PLR2004 - what is left of five
        store, recovered = self.reopen(store)
        (bulk,) = recovered.bulk_operations
        assert (bulk.touched, bulk.done) == (5, True)
        assert self.states(store, jobs) == ["cancelled"] * 5

    def test_a_bulk_operation_begins_once(self, store: QueueStore) -> None:
        """A repeated request gets the progress of the first; an unknown operation has no slices."""
        jobs = self.admitted(store, 2)
        operation = Operation("cancel", queue="q")
        self.start(store, operation, jobs[-1])
        self.run_slices(store)
        bulk = self.start(store, Operation("cancel", task="t"), jobs[0])
        assert (bulk.operation, bulk.touched, bulk.done) == (operation, 2, True)
        assert self.commit(store, ContinueBulkOperation("other", AuditFields(0.0), (), 2)) == [
            (AffectedJobs([], {}), None)
        ]

    def test_a_bulk_operation_on_waiting_jobs_filters_by_task_and_state(
        self, store: QueueStore
    ) -> None:
        """A job must match all filters."""
        self.admitted(store, 2)
        fits = self.delayed(60.0)
        others = [self.job(headers="task:u"), self.delayed(60.0, headers="task:u")]
        self.commit(store, Admit([fits, *others]))
        self.start(store, Operation("cancel", task="t", state=JobState.DELAYED), others[-1])
        assert self.run_slices(store) == 1
        assert self.state(store, fits) is JobState.CANCELLED

    @pytest.mark.parametrize("action", ["retry", "drop"])
    def test_a_bulk_operation_on_failed_jobs_filters_by_queue_and_time(
        self, store: QueueStore, action: str
    ) -> None:
        """Each job is affected once, even if it fails again after its retry."""
        start = self.clock.now()
        jobs = [*self.broken(store, 5), *self.broken(store, 1, queue="other")]
        operation = Operation(action, queue="q", since=start + 1.0, until=start + 4.0)
        self.start(store, operation, jobs[-1])
        assert self.run_slices(store) == 3  # noqa: PLR2004 - those of three seconds
        failed, expected = JobState.FAILED, None if action == "drop" else JobState.QUEUED
        states = [self.state(store, job) for job in jobs]
        assert states == [failed, expected, expected, expected, failed, failed]

    # Queues

    def test_a_paused_queue_is_paused_after_a_restart(self, store: QueueStore) -> None:
        """This includes a queue that never had a job."""
        self.admitted(store, 1)
        assert self.commit(store, Pause("q", True), Pause("new", True)) == [None, None]  # noqa: FBT003
        store, recovered = self.reopen(store)
        assert recovered.counts == {
            "q": QueueCounts(queued=1, paused=True),
            "new": QueueCounts(paused=True),
        }
        self.commit(store, Pause("q", False))  # noqa: FBT003
        assert self.counts(store) == QueueCounts(queued=1)

    def test_an_empty_queue_can_be_removed_and_used_again(self, store: QueueStore) -> None:
        """Outcomes keep its name. A queue with jobs, even failed ones, or a paused one stays."""
        now = self.clock.now()
        (old,) = self.admitted(store, 1, queue="old")
        self.finish(store, self.end(old, JobState.SUCCEEDED))
        self.admitted(store, 1, queue="full")
        self.commit(store, Pause("paused", True))  # noqa: FBT003
        write = ForgetQueues(["old", "full", "paused", "never"], now)
        assert self.commit(store, write) == [["old", "never"]]
        assert self.find(store, old)[old.id].job.queue == "old"
        (new,) = self.admitted(store, 1, queue="new")
        store, recovered = self.reopen(store)
        assert sorted(recovered.counts) == ["full", "new", "paused"]
        assert self.find(store, old, new)[old.id].job.queue == "old"
        self.admitted(store, 1, queue="old")
        assert self.reopen(store)[1].counts["old"] == QueueCounts(queued=1)

    def test_a_queue_with_a_job_in_the_same_commit_is_not_lost(self, store: QueueStore) -> None:
        """The order of the writes does not matter."""
        job = self.job()
        removal = ForgetQueues(["q"], self.clock.now())
        assert self.commit(store, Admit([job]), removal) == [{}, []]
        self.finish(store, self.end(job))
        assert self.commit(store, removal, Admit([self.job()])) == [["q"], {}]
        assert self.counts(store) == QueueCounts(queued=1)

    def test_a_queue_whose_last_job_ends_in_the_commit_that_removes_it_is_empty(
        self, store: QueueStore
    ) -> None:
        """It has no jobs either when it is used again."""
        (job,) = self.admitted(store, 1)
        removal = ForgetQueues(["q", "q"], self.clock.now())
        assert self.commit(store, Finish([self.end(job)]), removal) == [{}, ["q", "q"]]
        self.commit(store, Pause("q", True))  # noqa: FBT003
        assert self.reopen(store)[1].counts == {"q": QueueCounts(paused=True)}

    # Failed jobs

    def test_failed_jobs_are_listed_newest_first(self, store: QueueStore) -> None:
        """Page by page, without bodies, with their errors."""
        jobs = self.broken(store, 5, body=b"long")
        listed, cursor = [], ""
        for _ in range(3):
            rows, cursor, *_ = self.commit(store, ListFailed(_ANY, cursor, 2))[0]
            listed += rows
        assert [row.job.id for row in listed] == [job.id for job in reversed(jobs)]
        assert {(f.job.body, f.result, f.job.state) for f in listed} == {
            (b"", b"error", JobState.FAILED)
        }
        assert cursor == ""
        nothing = self.commit(store, ListFailed(Operation("", queue="no"), "", 2))[0]
        assert nothing == ([], "", 0.0, 0)

    def fail_with(
        self, store: QueueStore, queue: str, task: str, error: RemoteError, n: int = 1
    ) -> list[JobRecord]:
        """Let jobs fail with an error."""
        jobs = self.admitted(store, n, queue=queue, headers=f"task:{task},content-type:c")
        ends = [self.end(job, JobState.FAILED, result=encode_error(error)) for job in jobs]
        self.finish(store, *ends)
        self.clock.advance(1.0)
        return jobs

    def failures(self, store: QueueStore) -> dict[str, list[str]]:
        """Let jobs of two queues and tasks fail with three errors; return their ids by queue."""
        lost = RemoteError("builtins.ConnectionError", "host Ä is away", "in line 7")
        wrong = RemoteError("shop.errors.Declined", "card 1")
        mail = self.fail_with(store, "mail", "send", lost, 2)
        mail += self.fail_with(store, "mail", "send", wrong)
        other = self.fail_with(store, "other", "pay", RemoteError("Declined", "card 2"))
        return {"mail": [job.id for job in mail], "other": [job.id for job in other]}

    @pytest.mark.parametrize(
        ("filters", "text", "expected"),
        [
            ({"queue": "mail"}, "", ["mail 2", "mail 1", "mail 0"]),
            ({"task": "pay"}, "", ["other 0"]),
            ({"error": "Declined"}, "", ["other 0", "mail 2"]),
            ({"error": "shop.errors.Declined"}, "", ["mail 2"]),
            ({"error": "Declined", "queue": "mail"}, "", ["mail 2"]),
            ({"task": "send", "queue": "other"}, "", []),
            ({}, "HOST ä", ["mail 1", "mail 0"]),
            ({}, "line 7", ["mail 1", "mail 0"]),
            ({}, "no such text", []),
        ],
    )
    def test_failed_jobs_are_found_by_filters(
        self, store: QueueStore, filters: dict[str, Any], text: str, expected: list[str]
    ) -> None:
        """By queue, task and error, with text in any case; page by page."""
        ids = self.failures(store)
        operation = Operation("", **filters)
        found, cursor = [], ""
        for _ in range(9):
            page = self.commit(store, ListFailed(operation, cursor, 1, text))[0]
            found += [row.job.id for row in page.rows]
            cursor = page.cursor
            if not cursor:
                break
        named = {name: (queue, int(n)) for name in expected for queue, n in [name.split()]}
        assert found == [ids[queue][n] for queue, n in named.values()]

    def test_failed_jobs_are_found_by_time(self, store: QueueStore) -> None:
        """From a time on, and before another."""
        ids = self.failures(store)
        end = self.clock.now()
        times = Operation("", since=end - 2.5, until=end - 0.5)
        page = self.commit(store, ListFailed(times, "", 9))[0]
        assert [row.job.id for row in page.rows] == [ids["other"][0], ids["mail"][2]]
        assert page.searched_to == page.rows[-1].at

    def test_failed_jobs_are_grouped_by_task_and_error(self, store: QueueStore) -> None:
        """Each group with its counts, its times, and the job that failed last."""
        ids = self.failures(store)
        groups, cursor, _ = self.commit(store, GroupFailures(_ANY, ""))[0]
        assert cursor == ""
        assert [(g.task, g.error, g.size, g.queues, g.sample) for g in groups] == [
            ("pay", "Declined", 1, {"other": 1}, ids["other"][0]),
            ("send", "Declined", 1, {"mail": 1}, ids["mail"][2]),
            ("send", "ConnectionError", 2, {"mail": 2}, ids["mail"][1]),
        ]
        assert decode_error(groups[2].result).message == "host Ä is away"
        assert groups[2].first <= groups[2].last < groups[1].first
        query = GroupFailures(Operation("", error="x.ConnectionError"), "")
        [group] = self.commit(store, query)[0][0]
        assert group.queues == {"mail": 2}

    def test_jobs_that_an_operation_would_affect_are_counted(self, store: QueueStore) -> None:
        """Failed jobs for retry and drop, unfinished ones for cancel, but for excluded ones."""
        self.failures(store)
        waiting = self.admitted(store, 3, queue="mail", headers="task:send")
        expected = [
            (Operation("retry", error="Declined"), 2),
            (Operation("drop", queue="mail", task="send"), 3),
            (Operation("cancel", task="send"), 3),
            (Operation("cancel", queue="other"), 0),
        ]
        for operation, n in expected:
            assert self.commit(store, CountJobs(operation)) == [(n, True)]
        excluded = frozenset({waiting[0].seq})
        assert self.commit(store, CountJobs(Operation("cancel", "mail"), excluded)) == [(2, True)]

    def test_a_reader_answers_beside_the_commits(self, store: QueueStore) -> None:
        """It sees each commit that ended before, new queues and removed ones included."""
        open_reader = store.reader()
        if open_reader is None:
            pytest.skip("only commits read this store")
        with closing(open_reader()) as reader:
            for n in range(3):
                self.fail_with(store, f"queue {n}", "send", RemoteError("E", "m"))
                [waiting] = self.admitted(store, 1, queue=f"new {n}")
                for query in (
                    ListJobs(None, None, None, "", 99), ListFailed(_ANY, "", 99),
                    CountJobs(Operation("retry")), GroupFailures(_ANY, ""),
                ):  # fmt: skip
                    assert repr(reader.read(query)) == repr(self.commit(store, query)[0])
                self.finish(store, self.end(waiting, JobState.SUCCEEDED))
                self.commit(store, ForgetQueues([f"new {n}"], self.clock.now()))
                page = reader.read(ListJobs(JobState.SUCCEEDED, None, None, "", 1))
                assert [(row.job.id, row.job.queue) for row in page.rows] == [
                    (waiting.id, f"new {n}")
                ]

    def test_failed_jobs_are_pruned_by_age(self, store: QueueStore) -> None:
        """The oldest first, up to a limit per commit."""
        start = self.clock.now()
        jobs = self.broken(store, 4)
        for expected in ({"q": 2}, True, start + 2.0), ({"q": 1}, False, start + 3.0):
            (pruned,) = self.commit(store, PruneFailed(start + 2.5, 10**9, 2))
            assert (pruned.queues, pruned.more, pruned.oldest) == expected
        assert set(self.find(store, *jobs)) == {jobs[3].id}
        assert self.reopen(store)[1].counts == {"q": QueueCounts(failed=1)}

    def test_failed_jobs_are_pruned_by_bytes(self, store: QueueStore) -> None:
        """Those stored before a restart count, dropped ones do not."""
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

    def test_the_last_ten_failed_attempts_are_kept(self, store: QueueStore) -> None:
        """The oldest first, after a restart, and after the end of the job."""
        (job,) = self.admitted(store, 1)
        attempts = [self.attempt(job, number) for number in range(1, 14)]
        for attempt in attempts:
            job.attempt += 1
            self.commit(store, Requeue([job], [attempt]))
        assert self.commit(store, History(job.id), History("unknown")) == [attempts[3:], []]
        store, _ = self.reopen(store)
        self.finish(store, self.end(job))
        assert self.commit(store, History(job.id)) == [attempts[3:]]

    def log(
        self, job: JobRecord, number: int, text: bytes = b"said\n", *, until: float = 0.0
    ) -> JobLog:
        """Return what an attempt logged, of which a job keeps 1,000 bytes."""
        return JobLog(job.id, number, self.clock.now(), 60.0, until, 1000, text)

    def logs(self, store: QueueStore, job: JobRecord) -> list[tuple[int, bytes]]:
        """Return what is kept of what a job logged, by attempt."""
        return [(log.attempt, log.text) for log in self.commit(store, ReadLogs(job.id))[0]]

    def test_logs_of_attempts_are_kept_as_long_as_the_result(self, store: QueueStore) -> None:
        """They survive a restart; a log replaces an earlier one of the same attempt."""
        job, other = self.admitted(store, 2)
        for text in (b"first\n", b"again\n"):
            job.attempt = 2
            self.commit(store, Requeue([job], logs=[self.log(job, 1, text)]))
        store, _ = self.reopen(store)
        last = self.log(job, 2, b"last\n", until=self.clock.now() + 60.0)
        self.commit(store, Finish([self.end(job), self.end(other)], logs=[last]))
        assert self.logs(store, job) == [(1, b"again\n"), (2, b"last\n")]
        assert self.logs(store, other) == []
        self.clock.advance(61.0)
        assert self.logs(store, job) == []

    def test_a_job_that_ends_without_a_log_lets_the_earlier_ones_go(
        self, store: QueueStore
    ) -> None:
        """A job ends so if it is cancelled, or expires, before its next attempt."""
        (job,) = self.admitted(store, 1)
        job.attempt = 2
        self.commit(store, Requeue([job], logs=[self.log(job, 1)]))
        self.clock.advance(3600.0)
        assert self.logs(store, job) == [(1, b"said\n")]
        self.finish(store, self.end(job, JobState.CANCELLED, ttl=0.0))
        assert self.logs(store, job) == [(1, b"said\n")]
        self.clock.advance(61.0)
        self.commit(store)
        assert self.logs(store, job) == []

    def test_logs_of_a_failed_job_stay_until_it_is_dropped_or_pruned(
        self, store: QueueStore
    ) -> None:
        """They count as bytes of failed jobs; a job that is tried again takes them along."""
        jobs = self.admitted(store, 3)
        for job in jobs:
            end = self.end(job, JobState.FAILED)
            self.commit(store, Finish([end], logs=[self.log(job, 1, b"x" * 900)]))
            self.clock.advance(1.0)
        self.clock.advance(3600.0)
        assert {1} == {len(self.logs(store, job)) for job in jobs}
        [retried] = self.apply(store, "retry", jobs[2].id).jobs
        self.finish(store, self.end(retried))
        assert self.logs(store, jobs[2]) == [(1, b"x" * 900)]
        pruned = self.commit(store, PruneFailed(0.0, 1500, 10))[0]
        assert (pruned.queues, pruned.more) == ({"q": 1}, False)
        assert [len(self.logs(store, job)) for job in jobs[:2]] == [0, 1]
        self.apply(store, "drop", jobs[1].id)
        assert self.logs(store, jobs[1]) == []

    def test_the_logs_of_the_last_attempts_are_kept(self, store: QueueStore) -> None:
        """What makes room for later ones is empty; of more than ten the first are gone."""
        (job,) = self.admitted(store, 1)
        texts = [*(b"%d\n" % number for number in range(1, 11)), b"x" * 400, b"y" * 400]
        for job.attempt, text in enumerate(texts, 2):
            log = self.log(job, job.attempt - 1, text)
            self.commit(store, Requeue([job], logs=[log]))
        assert self.logs(store, job) == [*enumerate(texts, 1)][2:]
        job.attempt = 14
        self.commit(store, Requeue([job], logs=[self.log(job, 13, b"y" * 900)]))
        kept_logs = self.logs(store, job)
        assert kept_logs[-3:] == [(11, b""), (12, b""), (13, b"y" * 900)]
        assert all(not text for _, text in kept_logs[:-1])

    def test_a_job_that_has_ended_gets_no_further_log(self, store: QueueStore) -> None:
        """What is stale changes nothing."""
        (job,) = self.admitted(store, 1)
        self.finish(store, self.end(job))
        self.commit(store, Requeue([job], logs=[self.log(job, 1)]))
        self.commit(store, Finish([self.end(job)], logs=[self.log(job, 1)]))
        assert self.logs(store, job) == []

    def test_a_job_that_has_ended_gets_no_further_history(self, store: QueueStore) -> None:
        """A requeue after its end is stale."""
        (job,) = self.admitted(store, 1)
        self.finish(store, self.end(job))
        self.commit(store, Requeue([job], [self.attempt(job, 1)]))
        assert self.commit(store, History(job.id)) == [[]]

    def test_the_history_is_deleted_with_its_job(self, store: QueueStore) -> None:
        """When it is dropped, or pruned as a failed job."""
        jobs = self.admitted(store, 2)
        for job in jobs:
            job.attempt = 2
            self.commit(store, Requeue([job], [self.attempt(job, 1)]))
            self.finish(store, self.end(job, JobState.FAILED))
        self.apply(store, "drop", jobs[0].id)
        self.commit(store, PruneFailed(self.clock.now() + 1.0, 10**9, 10))
        assert self.commit(store, *(History(job.id) for job in jobs)) == [[], []]
