"""Conformance suite for queue stores: admission, outcomes, waiting jobs and listings."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.job import JobState
from eventmq.store.reads import ListJobs, ReadQueued
from eventmq.store.writes import Admit, Expire, Finish, Promote, Requeue, SubqueueKey, WriteResult
from eventmq.testing.suites.queue_store_events import EventTests
from eventmq.testing.suites.queue_store_operations import OperationTests
from eventmq.testing.suites.queue_store_recovery import RecoveryTests
from eventmq.testing.suites.queue_store_slices import SliceTests
from eventmq.testing.suites.queue_store_unique import UniqueTests
from eventmq.testing.suites.store_harness import fields

if TYPE_CHECKING:
    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord

__all__ = ["QueueStoreSuite"]

_FIRST = (-(2**63), -1)
_ENDS = [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED]


class QueueStoreSuite(EventTests, OperationTests, RecoveryTests, SliceTests, UniqueTests):
    """Subclass it and return your store from `open_store`.

    ``dedupe_window`` is the dedupe window of your store; ``durable`` is False for a store that
    keeps nothing beyond its process.
    """

    # Admission

    @pytest.mark.parametrize("body", [b"", b"\x00\xff" * 9, b"x" * 2_000_000], ids=len)
    def test_an_admitted_job_is_found_as_it_was(self, body: bytes) -> None:
        """All fields, with any bytes as its body, and delivery 0."""
        store = self.begin()
        changes: dict[str, Any] = {"attempt": 3, "deaths": 1, "rank": -5}
        job = self.job(body=body, queue="a:ü/ \U0001f680", expires=2e9, **changes)
        before = fields(job)
        job.delivery = 1  # by a lease in the same commit, which stores it with the chunk
        assert self.commit(store, Admit([job])) == [{}]
        assert fields(self.find(store, job)[job.id].job) == before

    def test_an_id_that_is_waiting_is_refused_with_its_state(self) -> None:
        """Other jobs of the same write are admitted: the write result names exceptions by index."""
        store = self.begin()
        queued, delayed = self.job(), self.delayed(60.0)
        self.commit(store, Admit([queued, delayed]))
        again = [self.job(id=queued.id), self.job(), self.job(id=delayed.id)]
        write_result = self.commit(store, Admit(again))[0]
        assert write_result == {
            0: WriteResult("same_id", "queued"),
            2: WriteResult("same_id", "delayed"),
        }
        assert self.find(store, queued)[queued.id].job.seq == queued.seq
        assert self.state(store, again[1]) is JobState.QUEUED

    @pytest.mark.parametrize("state", _ENDS)
    def test_an_id_that_has_ended_is_refused_with_its_state(self, state: JobState) -> None:
        """So a client may resend a job that was not acknowledged."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        self.finish(store, self.end(job, state, ttl=0.0))
        self.clock.advance(self.dedupe_window * 0.9)
        assert self.commit(store, Admit([self.job(id=job.id)])) == [
            {0: WriteResult("same_id", state.value)}
        ]
        assert self.state(store, job) is state

    def test_an_id_is_forgotten_some_time_after_the_dedupe_window(self) -> None:
        """Ids are kept for a bounded time; failed jobs stay."""
        store = self.begin()
        ended, failed = self.admitted(store, 2)
        self.finish(store, self.end(ended), self.end(failed, JobState.FAILED))
        self.clock.advance(self.dedupe_window * 3)
        self.admitted(store, 1)
        assert self.state(store, ended) is None
        assert self.state(store, failed) is JobState.FAILED

    def test_an_id_that_ended_before_a_restart_is_forgotten_too(self) -> None:
        """It is refused within the dedupe window, and unknown some time after it."""
        store = self.begin()
        (ended,) = self.admitted(store, 1)
        self.finish(store, self.end(ended))
        self.clock.advance(self.dedupe_window * 0.5)
        store, _ = self.reopen(store)
        self.admitted(store, 1)
        assert self.state(store, ended) is JobState.SUCCEEDED
        self.clock.advance(self.dedupe_window * 3)
        self.admitted(store, 1)
        assert self.state(store, ended) is None

    def test_one_id_twice_in_a_commit_is_stored_once(self) -> None:
        """Within a write, and across the writes of a batch."""
        store = self.begin()
        job = self.job()
        same = WriteResult("same_id", "queued")
        twins = [job, self.job(id=job.id), self.job()]
        assert self.commit(store, Admit(twins), Admit([self.job(id=job.id)])) == [
            {1: same},
            {0: same},
        ]
        assert self.find(store, job)[job.id].job.seq == job.seq

    @pytest.mark.parametrize("job_id", ["job-1", "ü" * 50, "f" * 32, "0" * 12 + "7" + "0" * 19])
    def test_an_id_may_be_any_text_in_any_order(self, job_id: str) -> None:
        """Legacy clients choose ids of their own."""
        store = self.begin()
        self.admitted(store, 3)
        job = self.job(id=job_id)
        assert self.commit(store, Admit([job])) == [{}]
        assert self.commit(store, Admit([self.job(id=job_id)])) == [
            {0: WriteResult("same_id", "queued")}
        ]
        self.finish(store, self.end(job))
        write_result = self.commit(store, Admit([self.job(), self.job(id=job_id)]))[0]
        assert write_result == {1: WriteResult("same_id", "succeeded")}

    def test_empty_writes_are_legal(self) -> None:
        """A tick may have nothing to write."""
        store = self.begin()
        assert self.commit(store) == []
        assert self.commit(store, Admit([]), Finish([]), Requeue([])) == [{}, {}, {}]

    # Ends

    @pytest.mark.parametrize("state", _ENDS)
    def test_a_job_that_ended_is_found_with_its_outcome(self, state: JobState) -> None:
        """A failed job keeps its body and headers, with its error as the result."""
        store = self.begin()
        (job,) = self.admitted(store, 1, attempt=2, delivery=3)
        row = self.end(job, state, result=b"\x00r")
        assert self.finish(store, row) == {}
        stored = self.find(store, job)[job.id]
        assert stored[1:7] == (row.at, "json", b"\x00r", row.started, 1.5, "worker-1")
        record = stored.job
        assert (record.state, record.queue, record.attempt, record.delivery) == (state, "q", 2, 3)
        if state is JobState.FAILED:
            assert (record.body, record.headers) == (job.body, job.headers)

    def test_a_job_ends_once(self) -> None:
        """A second outcome is ``stale_lease``; the others of its write are stored."""
        store = self.begin()
        first, second, third = self.admitted(store, 3)
        self.finish(store, self.end(first))
        stale = WriteResult("stale_lease")
        rows = [
            self.end(first, JobState.FAILED),
            self.end(second),
            self.end(second, JobState.FAILED),
            self.end(self.job()),
            self.end(third, JobState.CANCELLED),
        ]
        assert self.finish(store, *rows) == {0: stale, 2: stale, 3: stale}
        states = [self.state(store, job) for job in (first, second, third)]
        assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.CANCELLED]

    def test_a_result_is_kept_for_its_ttl(self) -> None:
        """Afterwards the state is still known, and the result is None, not empty."""
        store = self.begin()
        short, long, none = self.admitted(store, 3)
        rows = [self.end(short, ttl=10.0), self.end(long, ttl=600.0), self.end(none, ttl=0.0)]
        self.finish(store, *rows)
        self.clock.advance(11.0)
        stored = self.find(store, short, long, none)
        assert [stored[j.id].result for j in (short, long, none)] == [None, b"r", None]
        assert {stored[j.id].job.state for j in (short, long, none)} == {JobState.SUCCEEDED}

    def test_a_delayed_job_can_end(self) -> None:
        """A delayed job that was cancelled is not promoted."""
        store = self.begin()
        job = self.delayed(10.0)
        self.commit(store, Admit([job]))
        assert self.finish(store, self.end(job, JobState.CANCELLED)) == {}
        self.clock.advance(20.0)
        assert self.commit(store, Promote(self.clock.now(), 9)) == [([], None)]

    # Waiting

    def test_requeue_writes_what_changed(self) -> None:
        """A retry is delayed with a new attempt; a hand-back is queued with a new delivery."""
        store = self.begin()
        retried, returned = self.admitted(store, 2)
        retried.state, retried.ready_at = JobState.DELAYED, self.clock.now() + 5.0
        retried.attempt, retried.delivery, retried.deaths, retried.rank = 2, 1, 1, 77
        returned.delivery = 4
        before = [fields(retried), fields(returned)]
        assert self.commit(store, Requeue([retried, returned, self.job()]))[0].keys() == {2}
        rows = self.find(store, retried, returned)
        assert [fields(rows[job.id].job) for job in (retried, returned)] == before

    def claim(
        self,
        store: QueueStore,
        queue: str,
        after: tuple[int, int],
        limit: int,
        size: int,
        *,
        task: str | None = "t",
        key: str = "",
    ) -> tuple[list[JobRecord], bool]:
        """Commit a `ReadQueued`; return the jobs and whether there are more."""
        jobs, more = self.commit(
            store, ReadQueued(queue, SubqueueKey(task, key), after, limit, size)
        )[0]
        return list(jobs), more

    def test_queued_jobs_are_read_by_rank_and_number(self) -> None:
        """Of one queue, without delayed and ended jobs."""
        store = self.begin()
        jobs = [self.job(rank=rank) for rank in (5, -3, 5, 2**40, -3)]
        ended, other = self.job(rank=0), self.job(queue="other", rank=0)
        self.commit(store, Admit([*jobs, ended, other, self.delayed(9.0, rank=0)]))
        self.finish(store, self.end(ended))
        claimed, more = self.claim(store, "q", _FIRST, 100, 10**6)
        expected = sorted(jobs, key=lambda job: (job.rank, job.seq))
        assert [fields(job) for job in claimed] == [fields(job) for job in expected]
        assert more is False
        assert self.claim(store, "never used", _FIRST, 100, 10**6) == ([], False)

    def test_queued_jobs_are_read_for_one_task(self) -> None:
        """Jobs of other tasks are passed over, whatever their rank; task None means legacy jobs."""
        store = self.begin()
        self.admitted(store, 9, rank=-5)
        [job_of_task] = self.admitted(store, 1, rank=5, headers="content-type:json,task:mine")
        [legacy] = self.admitted(store, 1, rank=5, headers="")
        claimed, more = self.claim(store, "q", _FIRST, 1, 10**6, task="mine")
        assert ([job.id for job in claimed], more) == ([job_of_task.id], False)
        claimed, more = self.claim(store, "q", _FIRST, 1, 10**6, task=None)
        assert ([job.id for job in claimed], more) == ([legacy.id], False)
        assert self.claim(store, "q", _FIRST, 9, 10**6, task="other") == ([], False)

    def test_queued_jobs_are_read_for_one_limit_key(self) -> None:
        """Jobs of the same task with another key, or with none, are passed over."""
        store = self.begin()
        [none] = self.admitted(store, 1)
        of = {
            key: self.admitted(store, 2, headers=f"content-type:json,task:t,limit-key:{key}")
            for key in ("a", "b")
        }
        for key, jobs in of.items():
            claimed, more = self.claim(store, "q", _FIRST, 9, 10**6, key=key)
            assert ([job.id for job in claimed], more) == ([job.id for job in jobs], False)
        claimed, _ = self.claim(store, "q", _FIRST, 9, 10**6)
        assert [job.id for job in claimed] == [none.id]

    def test_queued_jobs_are_read_after_a_position_with_a_flag_for_more(self) -> None:
        """So the broker refills a window from where it ends."""
        store = self.begin()
        jobs = self.admitted(store, 5, rank=1)
        seen: list[int] = []
        after, more = _FIRST, True
        while more:
            claimed, more = self.claim(store, "q", after, 2, 10**6)
            assert len(claimed) <= 2  # noqa: PLR2004 - the limit
            seen += [job.seq for job in claimed]
            after = (claimed[-1].rank, claimed[-1].seq)
        assert seen == [job.seq for job in jobs]

    def test_reading_queued_jobs_stops_at_the_limit_of_bytes(self) -> None:
        """At least one job is read, or a large one would block its queue."""
        store = self.begin()
        jobs = self.admitted(store, 4, body=b"x" * 1000)
        claimed, more = self.claim(store, "q", _FIRST, 100, 1500)
        assert ([job.id for job in claimed], more) == ([job.id for job in jobs[:2]], True)
        claimed, more = self.claim(store, "q", _FIRST, 100, 10)
        assert ([job.id for job in claimed], more) == ([jobs[0].id], True)

    def test_promote_queues_jobs_whose_time_has_come(self) -> None:
        """By time, up to the limit; the write result has the time of the next delayed job."""
        store = self.begin()
        jobs = [self.delayed(countdown) for countdown in (30.0, 10.0, 20.0, 40.0)]
        self.commit(store, Admit(jobs))
        now = self.clock.now()
        assert self.commit(store, Promote(now, 9)) == [([], now + 10.0)]
        promoted, next_ready_at = self.commit(store, Promote(now + 30.0, 2))[0]
        assert [job.id for job in promoted] == [jobs[1].id, jobs[2].id]
        assert {job.state for job in promoted} == {JobState.QUEUED}
        assert next_ready_at == now + 30.0
        promoted, next_ready_at = self.commit(store, Promote(now + 30.0, 2))[0]
        assert ([job.id for job in promoted], next_ready_at) == ([jobs[0].id], now + 40.0)
        claimed, _ = self.claim(store, "q", _FIRST, 9, 10**6)
        assert {job.id for job in claimed} == {job.id for job in jobs[:3]}

    def test_expire_ends_jobs_that_waited_too_long(self) -> None:
        """By time, leased jobs excepted; the write result has the time of the next expiry."""
        store = self.begin()
        now = self.clock.now()
        jobs = [self.job(expires=now + seconds) for seconds in (30.0, 10.0, 20.0, 40.0)]
        jobs += [self.delayed(90.0), self.job()]
        jobs[4].expires = now + 15.0
        self.commit(store, Admit(jobs))
        assert self.commit(store, Expire(now, 60.0, (), 9)) == [([], now + 10.0)]
        end = now + 30.0
        expired, following = self.commit(store, Expire(end, 60.0, {jobs[2].seq}, 2))[0]
        assert ([job.id for job in expired], following) == ([jobs[1].id, jobs[4].id], end)
        assert [job.state for job in expired] == [JobState.QUEUED, JobState.DELAYED]
        expired, following = self.commit(store, Expire(end, 60.0, {jobs[2].seq}, 2))[0]
        assert ([job.id for job in expired], following) == ([jobs[0].id], now + 40.0)
        states = {key: row.job.state.value for key, row in self.find(store, *jobs).items()}
        expected = ["expired", "expired", "queued", "queued", "expired", "queued"]
        assert [states[job.id] for job in jobs] == expected

    # Lookups and listings

    def test_an_unknown_id_is_not_found(self) -> None:
        """It is missing from the write result."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        assert list(self.find(store, self.job(), job, self.job(id="x"))) == [job.id]

    def test_many_are_found_at_once(self) -> None:
        """In the order of the request, whatever their states; each as when it is found alone."""
        store = self.begin()
        jobs = [*self.admitted(store, 250, body=b"b"), self.delayed(9.0)]
        self.commit(store, Admit(jobs[-1:]))
        ends = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
        for index, job in enumerate(jobs[:120]):
            self.finish(store, self.end(job, ends[index % 3]))
        requested = [jobs[-1], self.job(), *jobs[:200], jobs[3]]
        rows = self.find(store, *requested)
        assert list(rows) == [jobs[-1].id, *(job.id for job in jobs[:200])]
        for job in jobs[100:140]:
            alone = self.find(store, job)[job.id]
            assert (fields(rows[job.id].job), rows[job.id][1:]) == (
                fields(alone.job), alone[1:]
            )  # fmt: skip

    def listed(
        self,
        store: QueueStore,
        limit: int,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        task: str | None = None,
    ) -> list[str]:
        """Return the ids of all pages of a listing."""
        ids: list[str] = []
        cursor = ""
        for _ in range(1000):
            rows, cursor = self.commit(store, ListJobs(state, queue, task, cursor, limit))[0]
            assert len(rows) <= limit
            ids += [row.job.id for row in rows]
            if not cursor:
                return ids
        pytest.fail("the listing has no end")

    def test_a_listing_shows_every_job_once_page_by_page(self) -> None:
        """Waiting, delayed and ended jobs, whatever the size of the pages."""
        store = self.begin()
        jobs = [*self.admitted(store, 7), self.delayed(9.0)]
        self.commit(store, Admit(jobs[-1:]))
        self.finish(store, *(self.end(job, end) for job, end in zip(jobs, _ENDS, strict=False)))
        for limit in (1, 3, 100):
            assert sorted(self.listed(store, limit)) == sorted(job.id for job in jobs)

    def test_a_listing_begins_with_the_newest(self) -> None:
        """Whatever the states of the jobs."""
        store = self.begin()
        jobs = [*self.admitted(store, 7), self.delayed(9.0)]
        self.commit(store, Admit(jobs[-1:]))
        self.finish(store, *(self.end(job, end) for job, end in zip(jobs, _ENDS, strict=False)))
        newest = sorted((job.id for job in jobs), reverse=True)
        for limit in (1, 3, 100):
            assert self.listed(store, limit) == newest
        queued = self.listed(store, 2, state=JobState.QUEUED)
        assert queued == sorted(queued, reverse=True)

    def test_a_job_that_ends_between_two_pages_is_listed_once(self) -> None:
        """Although it moves to another table meanwhile."""
        store = self.begin()
        jobs = self.admitted(store, 4)
        first, cursor = self.commit(store, ListJobs(None, None, None, "", 2))[0]
        self.finish(store, self.end(jobs[0]), self.end(jobs[3]))
        second, _ = self.commit(store, ListJobs(None, None, None, cursor, 9))[0]
        listed = [row.job.id for row in (*first, *second)]
        assert listed == sorted((job.id for job in jobs), reverse=True)

    def test_a_listing_keeps_to_its_filters(self) -> None:
        """By state, queue, task, and all of them together."""
        store = self.begin()
        mail = self.admitted(store, 3, queue="mail", headers="task:send")
        others = self.admitted(store, 3)
        self.finish(store, self.end(mail[0]), self.end(mail[1], JobState.FAILED))
        ids = [job.id for job in (*mail, *others)]
        assert sorted(self.listed(store, 2, queue="mail")) == sorted(ids[:3])
        assert sorted(self.listed(store, 2, task="send")) == sorted(ids[:3])
        assert self.listed(store, 2, state=JobState.SUCCEEDED) == [ids[0]]
        assert self.listed(store, 2, state=JobState.FAILED) == [ids[1]]
        assert sorted(self.listed(store, 2, state=JobState.QUEUED)) == sorted(ids[2:])
        assert self.listed(store, 2, state=JobState.QUEUED, queue="mail", task="t") == []
        assert self.listed(store, 2, queue="never used") == []
