"""Conformance suite for queue stores: admission, outcomes, waiting jobs, listings, unique keys."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.job import HELD, JobState
from eventmq.store.reads import FindJobs, History, ListJobs, ReadEvents, ReadQueued
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import (
    Admit,
    Chunk,
    Expire,
    Finish,
    LeaseChunk,
    PartlyStored,
    Promote,
    Requeue,
    SubqueueKey,
    UniqueRule,
    WriteResult,
    unique_rule,
)
from eventmq.testing.suites.queue_store_events import EventTests
from eventmq.testing.suites.queue_store_graphs import GraphTests
from eventmq.testing.suites.queue_store_operations import OperationTests
from eventmq.testing.suites.queue_store_recovery import ENDS, RecoveryTests, fields

if TYPE_CHECKING:
    from collections.abc import Container

    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord
    from eventmq.store.reads import JobRow

__all__ = ["QueueStoreSuite"]

_FIRST = (-(2**63), -1)

#: Bytes of a result that is long enough to be left unread.
_LONG = 10_000

_HEADERS = "task:t,content-type:json"
_MODES = pytest.mark.parametrize("mode", ["reject", "replace", "keep_last"])


class QueueStoreSuite(EventTests, OperationTests, RecoveryTests, GraphTests):
    """Subclass it and return your store from `open_store`.

    ``dedupe_window`` is the dedupe window of your store; ``durable`` is False for a store that
    keeps nothing beyond its process.
    """

    # Admission

    @pytest.mark.parametrize("body", [b"", b"\x00\xff" * 9, b"x" * 2_000_000], ids=len)
    def test_an_admitted_job_is_found_as_it_was(self, store: QueueStore, body: bytes) -> None:
        """All fields, with any bytes as its body, and delivery 0."""
        job = self.job(
            body=body, queue="a:ü/ \U0001f680", expires=2e9, attempt=3, deaths=1, rank=-5
        )
        before = fields(job)
        job.delivery = 1  # by a lease in the same commit, which stores it with the chunk
        assert self.commit(store, Admit([job])) == [{}]
        assert fields(self.find(store, job)[job.id].job) == before

    def test_what_cannot_be_kept_is_left_out_and_the_rest_is_stored(
        self, store: QueueStore
    ) -> None:
        """A number that is too large, of whoever sends it, is no fault of the others."""
        first, large, second = self.job(), self.job(expires=2e9), self.job()
        large.delivery = large.attempt = 1 << 63
        batch = Admit([first]), Admit([self.job(), large]), ReadEvents((1 << 63) - 1, 100)
        results = self.commit(store, *batch, Admit([second]))
        assert isinstance(results, PartlyStored)
        assert list(results) == [{}, None, None, {}]
        assert list(results.refused) == [1, 2]
        assert all(results.refused.values())
        assert self.find(store, first, large, second).keys() == {first.id, second.id}
        large.attempt = 1
        assert self.commit(store, Admit([large])) == [{}]
        assert self.counts(store) == QueueCounts(queued=3)

    def test_an_id_that_is_waiting_is_refused_with_its_state(self, store: QueueStore) -> None:
        """Other jobs of the same write are admitted: the write result names exceptions by index."""
        queued, delayed = self.job(), self.delayed(60.0)
        self.commit(store, Admit([queued, delayed]))
        resubmitted = [self.job(id=queued.id), self.job(), self.job(id=delayed.id)]
        assert self.commit(store, Admit(resubmitted)) == [
            {0: WriteResult("same_id", "queued"), 2: WriteResult("same_id", "delayed")}
        ]
        assert self.find(store, queued)[queued.id].job.seq == queued.seq
        assert self.state(store, resubmitted[1]) is JobState.QUEUED

    @pytest.mark.parametrize("state", ENDS)
    def test_an_id_that_has_ended_is_refused_with_its_state(
        self, store: QueueStore, state: JobState
    ) -> None:
        """A client may therefore resend a job that was not acknowledged."""
        (job,) = self.admitted(store, 1)
        self.finish(store, self.end(job, state, ttl=0.0))
        self.clock.advance(self.dedupe_window * 0.9)
        assert self.commit(store, Admit([self.job(id=job.id)])) == [
            {0: WriteResult("same_id", state.value)}
        ]
        assert self.state(store, job) is state

    def test_an_id_is_forgotten_some_time_after_the_dedupe_window(self, store: QueueStore) -> None:
        """Ids are kept for a bounded time; failed jobs stay."""
        ended, failed = self.admitted(store, 2)
        self.finish(store, self.end(ended), self.end(failed, JobState.FAILED))
        self.clock.advance(self.dedupe_window * 3)
        self.admitted(store, 1)
        assert self.state(store, ended) is None
        assert self.state(store, failed) is JobState.FAILED

    def test_an_id_that_ended_before_a_restart_is_forgotten_too(self, store: QueueStore) -> None:
        """It is refused within the dedupe window, and unknown some time after it."""
        (ended,) = self.admitted(store, 1)
        self.finish(store, self.end(ended))
        self.clock.advance(self.dedupe_window * 0.5)
        store, _ = self.reopen(store)
        self.admitted(store, 1)
        assert self.state(store, ended) is JobState.SUCCEEDED
        self.clock.advance(self.dedupe_window * 3)
        self.admitted(store, 1)
        assert self.state(store, ended) is None

    def test_one_id_twice_in_a_commit_is_stored_once(self, store: QueueStore) -> None:
        """Within a write, and across the writes of a batch."""
        job = self.job()
        same = WriteResult("same_id", "queued")
        duplicates = [job, self.job(id=job.id), self.job()]
        assert self.commit(store, Admit(duplicates), Admit([self.job(id=job.id)])) == [
            {1: same},
            {0: same},
        ]
        assert self.find(store, job)[job.id].job.seq == job.seq

    @pytest.mark.parametrize("job_id", ["job-1", "ü" * 50, "f" * 32, "0" * 12 + "7" + "0" * 19])
    def test_an_id_may_be_any_text_in_any_order(self, store: QueueStore, job_id: str) -> None:
        """Legacy clients choose ids of their own."""
        self.admitted(store, 3)
        job = self.job(id=job_id)
        assert self.commit(store, Admit([job])) == [{}]
        assert self.commit(store, Admit([self.job(id=job_id)])) == [
            {0: WriteResult("same_id", "queued")}
        ]
        self.finish(store, self.end(job))
        assert self.commit(store, Admit([self.job(), self.job(id=job_id)])) == [
            {1: WriteResult("same_id", "succeeded")}
        ]

    def test_empty_writes_are_legal(self, store: QueueStore) -> None:
        """A tick may have nothing to write."""
        assert self.commit(store) == []
        assert self.commit(store, Admit([]), Finish([]), Requeue([])) == [{}, {}, {}]

    # Ends

    @pytest.mark.parametrize("state", ENDS)
    def test_a_job_that_ended_is_found_with_its_outcome(
        self, store: QueueStore, state: JobState
    ) -> None:
        """A failed job keeps its body and headers, with its error as the result."""
        (job,) = self.admitted(store, 1, attempt=2, delivery=3)
        row = self.end(job, state, result=b"\x00r")
        assert self.finish(store, row) == {}
        stored = self.find(store, job)[job.id]
        assert stored[1:7] == (row.at, "json", b"\x00r", row.started, 1.5, "worker-1")
        record = stored.job
        assert (record.state, record.queue, record.attempt, record.delivery) == (state, "q", 2, 3)
        if state is JobState.FAILED:
            assert (record.body, record.headers) == (job.body, job.headers)

    @pytest.mark.parametrize("state", ENDS)
    def test_a_job_that_asks_for_it_ends_with_its_arguments(
        self, store: QueueStore, state: JobState
    ) -> None:
        """Headers and body stay as long as the outcome, longer than its result."""
        headers = "task:t,content-type:json,priority:7,keep-arguments"
        [kept] = self.admitted(store, 1, headers=headers, body=b"kept", attempt=2)
        [plain] = self.admitted(store, 1)
        [mentions] = self.admitted(store, 1, headers="task:t,x-note:keep-arguments")
        self.finish(store, *(self.end(job, state, ttl=1.0) for job in (kept, plain, mentions)))
        self.clock.advance(self.dedupe_window * 0.9)
        store = self.reopen(store)[0] if self.durable else store
        rows = self.find(store, kept, plain, mentions)
        assert (rows[kept.id].job.headers, rows[kept.id].job.body) == (headers, b"kept")
        if state is not JobState.FAILED:
            assert [rows[job.id].job.body for job in (plain, mentions)] == [b"", b""]
        found, history = self.commit(store, FindJobs([kept.id], 0), History(kept.id))
        assert (found[kept.id].job.body, history) == (b"", [])
        self.clock.advance(self.dedupe_window * 2)
        self.admitted(store, 1)
        assert (self.state(store, kept) is None) == (state is not JobState.FAILED)

    def test_a_job_is_replaced_with_its_arguments(self, store: QueueStore) -> None:
        """By another one that has its unique key."""
        headers = f"{_HEADERS},unique:k,unique-mode:replace,keep-arguments"
        [first] = self.admitted(store, 1, headers=headers)
        self.commit(store, Admit([self.job(headers=headers)]))
        row = self.find(store, first)[first.id]
        assert (row.job.state, row.job.body) == (JobState.CANCELLED, first.body)

    def test_arguments_are_those_of_the_last_job_with_an_id(self, store: QueueStore) -> None:
        """An id may be used again as soon as its outcome is forgotten."""
        [first] = self.admitted(store, 1, headers=f"{_HEADERS},keep-arguments")
        self.finish(store, self.end(first))
        while self.state(store, first) is not None:
            self.clock.advance(self.dedupe_window / 24)
        [again] = self.admitted(store, 1, id=first.id)
        self.finish(store, self.end(again))
        assert self.find(store, again)[again.id].job.body == b""

    def test_a_job_ends_once(self, store: QueueStore) -> None:
        """A second outcome is ``stale_lease``; the others of its write are stored."""
        first, second, third = self.admitted(store, 3)
        self.finish(store, self.end(first))
        rows = [
            self.end(first, JobState.FAILED),
            self.end(second),
            self.end(second, JobState.FAILED),
            self.end(self.job()),
            self.end(third, JobState.CANCELLED),
        ]
        assert self.finish(store, *rows) == dict.fromkeys((0, 2, 3), WriteResult("stale_lease"))
        assert self.states(store, [first, second, third]) == ["succeeded", "succeeded", "cancelled"]

    def test_a_result_is_kept_for_its_ttl(self, store: QueueStore) -> None:
        """Afterwards the state is still known, and the result is None, not empty."""
        short, long, none = self.admitted(store, 3)
        self.finish(
            store, self.end(short, ttl=10.0), self.end(long, ttl=600.0), self.end(none, ttl=0.0)
        )
        self.clock.advance(11.0)
        stored = self.find(store, short, long, none).values()
        assert [row.result for row in stored] == [None, b"r", None]
        assert {row.job.state for row in stored} == {JobState.SUCCEEDED}

    def test_a_delayed_job_can_end(self, store: QueueStore) -> None:
        """A delayed job that was cancelled is not promoted."""
        job = self.delayed(10.0)
        self.commit(store, Admit([job]))
        assert self.finish(store, self.end(job, JobState.CANCELLED)) == {}
        self.clock.advance(20.0)
        assert self.commit(store, Promote(self.clock.now(), 9)) == [([], None)]

    # Waiting

    def test_requeue_writes_what_changed(self, store: QueueStore) -> None:
        """A retry is delayed with a new attempt; a hand-back is queued with a new delivery."""
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
        after: tuple[int, int] = _FIRST,
        limit: int = 100,
        size: int = 10**6,
        *,
        queue: str = "q",
        task: str | None = "t",
        key: str = "",
    ) -> tuple[list[str], bool]:
        """Commit a `ReadQueued`; return the ids of the jobs and whether there are more."""
        subqueue = SubqueueKey(task, key)
        jobs, more = self.commit(store, ReadQueued(queue, subqueue, after, limit, size))[0]
        return [job.id for job in jobs], more

    def test_queued_jobs_are_read_by_rank_and_number(self, store: QueueStore) -> None:
        """They are those of one queue, without delayed and ended jobs."""
        jobs = [self.job(rank=rank) for rank in (5, -3, 5, 2**40, -3)]
        ended, other = self.job(rank=0), self.job(queue="other", rank=0)
        self.commit(store, Admit([*jobs, ended, other, self.delayed(9.0, rank=0)]))
        self.finish(store, self.end(ended))
        [(claimed, more)] = self.commit(
            store, ReadQueued("q", SubqueueKey("t"), _FIRST, 100, 10**6)
        )
        expected = sorted(jobs, key=lambda job: (job.rank, job.seq))
        assert [fields(job) for job in claimed] == [fields(job) for job in expected]
        assert more is False
        assert self.claim(store, queue="never used") == ([], False)

    def test_queued_jobs_are_read_for_one_task(self, store: QueueStore) -> None:
        """Jobs of other tasks are passed over, whatever their rank; task None means legacy jobs."""
        self.admitted(store, 9, rank=-5)
        [job_of_task] = self.admitted(store, 1, rank=5, headers="content-type:json,task:mine")
        [legacy] = self.admitted(store, 1, rank=5, headers="")
        assert self.claim(store, limit=1, task="mine") == ([job_of_task.id], False)
        assert self.claim(store, limit=1, task=None) == ([legacy.id], False)
        assert self.claim(store, task="other") == ([], False)

    def test_queued_jobs_are_read_for_one_limit_key(self, store: QueueStore) -> None:
        """Jobs of the same task with another key, or with none, are passed over."""
        [none] = self.admitted(store, 1)
        of = {
            key: self.admitted(store, 2, headers=f"content-type:json,task:t,limit-key:{key}")
            for key in ("a", "b")
        }
        for key, jobs in of.items():
            assert self.claim(store, key=key) == ([job.id for job in jobs], False)
        assert self.claim(store) == ([none.id], False)

    def test_queued_jobs_are_read_after_a_position_with_a_flag_for_more(
        self, store: QueueStore
    ) -> None:
        """The broker thus refills a window from where it ends."""
        jobs = self.admitted(store, 5, rank=1)
        ids = [job.id for job in jobs]
        assert self.claim(store, limit=2) == (ids[:2], True)
        assert self.claim(store, (1, jobs[1].seq), limit=2) == (ids[2:4], True)
        assert self.claim(store, (1, jobs[3].seq), limit=2) == (ids[4:], False)

    def test_reading_queued_jobs_stops_at_the_limit_of_bytes(self, store: QueueStore) -> None:
        """At least one job is read; otherwise a large one would block its queue."""
        first, second, *_ = self.admitted(store, 4, body=b"x" * 1000)
        assert self.claim(store, size=1500) == ([first.id, second.id], True)
        assert self.claim(store, size=10) == ([first.id], True)

    def test_promote_queues_jobs_whose_time_has_come(self, store: QueueStore) -> None:
        """They are ordered by time; the write result has the time of the next delayed job."""
        jobs = [self.delayed(countdown) for countdown in (30.0, 10.0, 20.0, 40.0)]
        self.commit(store, Admit(jobs))
        now = self.clock.now()
        assert self.commit(store, Promote(now, 9)) == [([], now + 10.0)]
        for ready, following in (jobs[1:3], now + 30.0), (jobs[:1], now + 40.0):
            promoted, next_ready_at = self.commit(store, Promote(now + 30.0, 2))[0]
            assert [job.id for job in promoted] == [job.id for job in ready]
            assert {job.state for job in promoted} == {JobState.QUEUED}
            assert next_ready_at == following
        assert set(self.claim(store)[0]) == {job.id for job in jobs[:3]}

    def test_a_job_expires_with_its_arguments(self, store: QueueStore) -> None:
        """If it asks for it; one that is leased goes on."""
        now, headers = self.clock.now(), f"{_HEADERS},keep-arguments"
        jobs = [self.job(headers=headers, body=b"x" * n, expires=now) for n in (1, 5_000_000) * 3]
        jobs.append(self.job(expires=now))
        self.commit(store, Admit(jobs))
        expired, _ = self.commit(store, Expire(now, 60.0, {jobs[0].seq}, 99))[0]
        assert [job.body for job in expired] == [b""] * 6
        bodies = [row.job.body for row in self.find(store, *jobs[1:]).values()]
        assert bodies == [*(job.body for job in jobs[1:-1]), b""]
        self.finish(store, self.end(jobs[0], JobState.EXPIRED))
        assert self.find(store, jobs[0])[jobs[0].id].job.body == b"x"

    def test_expire_ends_jobs_that_waited_too_long(self, store: QueueStore) -> None:
        """They expire by time, except leased jobs; the result has the time of the next expiry."""
        now = self.clock.now()
        jobs = [self.job(expires=now + seconds) for seconds in (30.0, 10.0, 20.0, 40.0)]
        jobs += [self.delayed(90.0), self.job()]
        jobs[4].expires = now + 15.0
        self.commit(store, Admit(jobs))
        assert self.commit(store, Expire(now, 60.0, (), 9)) == [([], now + 10.0)]
        write = Expire(now + 30.0, 60.0, {jobs[2].seq}, 2)
        expired, following = self.commit(store, write)[0]
        assert ([job.id for job in expired], following) == ([jobs[1].id, jobs[4].id], now + 30.0)
        assert [job.state for job in expired] == [JobState.QUEUED, JobState.DELAYED]
        expired, following = self.commit(store, write)[0]
        assert ([job.id for job in expired], following) == ([jobs[0].id], now + 40.0)
        assert self.states(store, jobs) == [
            "expired", "expired", "queued", "queued", "expired", "queued"
        ]  # fmt: skip

    # Lookups and listings

    def test_an_unknown_id_is_not_found(self, store: QueueStore) -> None:
        """It is missing from the write result."""
        (job,) = self.admitted(store, 1)
        assert list(self.find(store, self.job(), job, self.job(id="x"))) == [job.id]

    def test_many_are_found_at_once(self, store: QueueStore) -> None:
        """They are in the order of the request, whatever their states, each as if found alone."""
        jobs = [*self.admitted(store, 250, body=b"b"), self.delayed(9.0)]
        self.commit(store, Admit(jobs[-1:]))
        for job, state in zip(jobs, ENDS[:3] * 40, strict=False):
            self.finish(store, self.end(job, state))
        rows = self.find(store, jobs[-1], self.job(), *jobs[:200], jobs[3])
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
            rows, cursor, *_ = self.commit(store, ListJobs(state, queue, task, cursor, limit))[0]
            assert len(rows) <= limit
            ids += [row.job.id for row in rows]
            if not cursor:
                return ids
        pytest.fail("the listing has no end")

    def test_a_listing_shows_every_job_once_the_newest_first(self, store: QueueStore) -> None:
        """Waiting, delayed and ended jobs, page by page, whatever the size of the pages."""
        jobs = [*self.admitted(store, 7), self.delayed(9.0)]
        self.commit(store, Admit(jobs[-1:]))
        self.finish(store, *map(self.end, jobs, ENDS))
        for limit in (1, 3, 100):
            assert self.listed(store, limit) == [job.id for job in jobs[::-1]]
        queued = [job.id for job in jobs[6:3:-1]]  # those before have ended, the last is delayed
        assert self.listed(store, 2, state=JobState.QUEUED) == queued

    def test_a_job_that_ends_between_two_pages_is_listed_once(self, store: QueueStore) -> None:
        """Although it moves to another table meanwhile."""
        jobs = self.admitted(store, 4)
        first, cursor, *_ = self.commit(store, ListJobs(None, None, None, "", 2))[0]
        self.finish(store, self.end(jobs[0]), self.end(jobs[3]))
        second, *_ = self.commit(store, ListJobs(None, None, None, cursor, 9))[0]
        assert [row.job.id for row in (*first, *second)] == [job.id for job in jobs[::-1]]

    def test_a_listing_keeps_to_times_and_key(self, store: QueueStore) -> None:
        """Jobs are found by the time of their submission, whatever their ids."""
        ids = []
        for n in range(6):
            headers = f"task:send,content-type:c,limit-key:{'vip' if n % 2 else ''}"
            job = self.admitted(store, 1, headers=headers)[0]
            ids.append((job.created, job.id))
            self.clock.advance(2 * 86_400.0 if n in {1, 3} else 1.0)
        since, until = ids[2][0], ids[4][0]
        query = ListJobs(None, None, None, "", 9, since=since, until=until)
        page = self.commit(store, query)[0]
        assert [row.job.id for row in page.rows] == [ids[3][1], ids[2][1]]
        assert (page.cursor, page.searched_to <= since) == ("", True)
        assert page.examined < len(ids)  # jobs of other days are skipped
        [row] = self.commit(store, query._replace(key="vip"))[0].rows
        assert row.job.id == ids[3][1]

    def test_a_listing_keeps_to_its_filters(self, store: QueueStore) -> None:
        """The filters are state, queue, task, and all of them together."""
        mail = self.admitted(store, 3, queue="mail", headers="task:send")
        others = self.admitted(store, 3)
        self.finish(store, self.end(mail[0]), self.end(mail[1], JobState.FAILED))
        ids = [job.id for job in (*mail, *others)]
        queued = JobState.QUEUED
        table: list[tuple[dict[str, Any], list[str]]] = [
            ({"queue": "mail"}, ids[:3]),
            ({"task": "send"}, ids[:3]),
            ({"state": JobState.SUCCEEDED}, ids[:1]),
            ({"state": JobState.FAILED}, ids[1:2]),
            ({"state": queued}, ids[2:]),
            ({"state": queued, "queue": "mail", "task": "send"}, ids[2:3]),
            ({"state": queued, "queue": "mail", "task": "t"}, []),
            ({"queue": "never used"}, []),
        ]
        for filters, expected in table:
            assert sorted(self.listed(store, 2, **filters)) == sorted(expected), filters

    # Lookups without bodies and long results

    def find_bare(self, store: QueueStore, jobs: list[JobRecord], max_bytes: int) -> list[JobRow]:
        """Find jobs without bodies, and with results of at most so many bytes."""
        rows = self.commit(store, FindJobs([job.id for job in jobs], max_bytes))[0]
        return [rows[job.id] for job in jobs]

    def ended(self, store: QueueStore, *sizes: int) -> list[JobRecord]:
        """Return jobs that have succeeded with results of these lengths."""
        jobs = self.admitted(store, len(sizes))
        results = zip(jobs, sizes, strict=True)
        self.finish(store, *(self.end(job, result=b"r" * size) for job, size in results))
        return jobs

    def test_results_are_read_up_to_the_limit_of_bytes(self, store: QueueStore) -> None:
        """The result that exceeds the limit is read as the last one, so that there is progress."""
        jobs = self.ended(store, *[_LONG] * 12)
        for n, max_bytes in ((0, 0), (1, 1), (2, _LONG + 1), (12, 12 * _LONG)):
            for batch in (jobs, jobs[:3]):
                rows = self.find_bare(store, batch[::-1], max_bytes)
                assert [row.unread for row in rows] == [i >= n for i in range(len(batch))]
                assert all((row.result is None) == row.unread for row in rows)
                assert {row.job.state for row in rows} == {JobState.SUCCEEDED}

    def test_short_results_and_errors_are_read_in_any_case(self, store: QueueStore) -> None:
        """The limit does not matter: they are small, or needed by an operator."""
        short, long = self.ended(store, 4096, 4097)
        (failed,) = self.admitted(store, 1)
        self.finish(store, self.end(failed, JobState.FAILED, result=b"e" * _LONG))
        rows = self.find_bare(store, [short, long, failed], 0)
        assert [row.unread for row in rows] == [False, True, False]
        assert [len(row.result or b"") for row in rows] == [4096, 0, _LONG]

    def test_bodies_are_not_read_with_a_limit_of_bytes(self, store: QueueStore) -> None:
        """A client that waits for a result does not need them."""
        (job,) = self.admitted(store, 1)
        (row,) = self.find_bare(store, [job], 0)
        assert (row.job.state, row.job.body, row.unread) == (JobState.QUEUED, b"", False)

    def test_an_expired_result_is_none_and_not_unread(self, store: QueueStore) -> None:
        """No client then requests it again."""
        jobs = self.ended(store, _LONG)
        self.clock.advance(61.0)
        (row,) = self.find_bare(store, jobs, 0)
        assert (row.result, row.unread) == (None, False)

    def test_a_listing_has_no_long_results(self, store: QueueStore) -> None:
        """A page may have a thousand jobs."""
        self.ended(store, _LONG)
        rows, *_ = self.commit(store, ListJobs(JobState.SUCCEEDED, None, None, "", 10))[0]
        assert [row.result for row in rows] == [None]

    # Unique keys

    def keyed(
        self,
        mode: str = "",
        *,
        key: str = "k",
        more: str = "",
        ready_at: float = 0.0,
        **changes: Any,
    ) -> JobRecord:
        """Return a new job with a unique key, delayed if it has a time."""
        parts = [_HEADERS, f"unique:{key}", f"unique-mode:{mode}" if mode else "", more]
        changes["state"] = JobState.DELAYED if ready_at else JobState.QUEUED
        return self.job(headers=",".join(filter(None, parts)), ready_at=ready_at, **changes)

    def taken(self, store: QueueStore, mode: str = "", **changes: Any) -> JobRecord:
        """Admit a job whose unique key is free, and return it."""
        job = self.keyed(mode, **changes)
        assert self.try_admit(store, job) == ("done", "")
        return job

    def try_admit(
        self, store: QueueStore, job: JobRecord, running: Container[str] = ()
    ) -> tuple[str, str]:
        """Admit a job; return code and detail of its write result."""
        (write_results,) = self.commit(store, Admit([job], running))
        code, detail, _ = write_results.get(0, WriteResult("done"))
        return code, detail

    def promoted(self, store: QueueStore, now: float) -> list[str]:
        """Promote what is due, and return its ids."""
        return [job.id for job in self.commit(store, Promote(now, 10))[0][0]]

    def test_a_rule_is_read_from_the_headers(self) -> None:
        """The default mode is reject; by default the unfinished states count."""
        unfinished = frozenset({JobState.BLOCKED, JobState.DELAYED, JobState.QUEUED})
        rule = UniqueRule("k", "reject", 0.0, unfinished | {JobState.RUNNING})
        assert unique_rule(self.keyed().headers) == rule
        assert unique_rule(_HEADERS) is None

    @_MODES
    def test_a_free_key_is_taken_and_free_again_at_the_end(
        self, store: QueueStore, mode: str
    ) -> None:
        """The end state does not matter. Jobs with another key, or none, are not affected."""
        for state in ENDS:
            job = self.taken(store, mode)
            self.taken(store, mode, key="k2" + state)
            assert self.try_admit(store, self.job()) == ("done", "")
            assert self.finish(store, self.end(job, state)) == {}
        self.taken(store, mode)

    def test_reject_refuses_and_names_the_holder(self, store: QueueStore) -> None:
        """Queued, delayed and leased jobs hold their keys."""
        queued, delayed = self.keyed(), self.keyed(key="d", ready_at=self.clock.now() + 9)
        assert self.commit(store, Admit([queued, delayed])) == [{}]
        assert self.try_admit(store, self.keyed()) == ("unique_conflict", queued.id)
        assert self.try_admit(store, self.keyed(), {queued.id}) == ("unique_conflict", queued.id)
        assert self.try_admit(store, self.keyed(key="d")) == ("unique_conflict", delayed.id)
        assert self.claim(store)[0] == [queued.id]

    @_MODES
    def test_the_same_id_is_no_conflict_with_itself(self, store: QueueStore, mode: str) -> None:
        """This holds while the job waits, after its end, and after it was replaced."""
        job = self.taken(store, mode)
        again = self.keyed(mode, id=job.id)
        assert self.try_admit(store, again) == ("same_id", "queued")
        if mode == "reject":
            self.finish(store, self.end(job))
        else:
            assert self.try_admit(store, self.keyed(mode))[0] == "replaced"
        ended = "succeeded" if mode == "reject" else "cancelled"
        assert self.try_admit(store, again) == ("same_id", ended)

    def test_two_in_one_commit_conflict(self, store: QueueStore) -> None:
        """Jobs of one write are checked in order, each against those before it."""
        jobs = [self.keyed(), self.keyed(), self.job(), self.keyed("replace"), self.keyed()]
        (write_results,) = self.commit(store, Admit(jobs))
        codes = {index: write_result[:2] for index, write_result in write_results.items()}
        assert codes == {
            1: ("unique_conflict", jobs[0].id),
            3: ("replaced", jobs[0].id),
            4: ("unique_conflict", jobs[3].id),
        }
        assert self.claim(store)[0] == [jobs[2].id, jobs[3].id]

    def test_one_id_twice_in_one_commit_is_the_same(self, store: QueueStore) -> None:
        """The keys do not matter: the first one is stored."""
        job, other = self.keyed(), self.keyed(key="other")
        again = [self.keyed(key=key, id=job.id) for key in ("k", "other", "third")]
        (write_results,) = self.commit(store, Admit([job, again[0], other, *again[1:]]))
        codes = {index: write_result[:2] for index, write_result in write_results.items()}
        assert codes == dict.fromkeys((1, 3, 4), ("same_id", "queued"))
        assert self.claim(store)[0] == [job.id, other.id]

    @pytest.mark.parametrize("countdown", [5, 0])
    def test_replace_cancels_the_waiting_one_and_keeps_its_own_time(
        self, store: QueueStore, countdown: int
    ) -> None:
        """Both in one commit; the write result has the cancelled job."""
        now = self.clock.now()
        first = self.taken(store, "replace", ready_at=countdown and now + countdown)
        second = self.keyed("replace", ready_at=now + 60)
        (write_results,) = self.commit(store, Admit([second]))
        (row,) = write_results[0].ended
        assert (row.job.id, row.state, row.job.state) == (first.id, "cancelled", first.state)
        assert self.state(store, first) is JobState.CANCELLED
        assert self.find(store, second)[second.id].job.ready_at == now + 60
        assert self.promoted(store, now + 59) == []
        assert self.promoted(store, now + 61) == [second.id]

    def test_replace_is_refused_beside_a_leased_job(self, store: QueueStore) -> None:
        """A job that a worker has is not replaced."""
        first = self.taken(store, "replace")
        assert self.try_admit(store, self.keyed("replace"), {first.id}) == (
            "unique_conflict", first.id
        )  # fmt: skip
        assert self.claim(store)[0] == [first.id]

    @pytest.mark.parametrize("countdown", [5, 0])
    def test_keep_last_takes_over_time_and_rank(self, store: QueueStore, countdown: int) -> None:
        """The work thus cannot be postponed for ever, and keeps its place in the queue."""
        now = self.clock.now()
        first = self.taken(store, "keep_last", rank=3, ready_at=countdown and now + countdown)
        second = self.keyed("keep_last", rank=8, ready_at=now + 60)
        assert self.try_admit(store, second) == ("replaced", first.id)
        stored = self.find(store, second)[second.id].job
        assert (stored.rank, stored.state, stored.ready_at) == (3, first.state, first.ready_at)
        assert self.state(store, first) is JobState.CANCELLED

    def test_keep_last_waits_for_the_leased_job_and_one_waits_at_most(
        self, store: QueueStore
    ) -> None:
        """The new job is delayed until the leased one ends; a third one replaces it."""
        now = self.clock.now()
        first = self.taken(store, "keep_last")
        second, third = self.keyed("keep_last"), self.keyed("keep_last")
        assert self.try_admit(store, second, {first.id}) == ("held", first.id)
        assert self.state(store, second) is JobState.DELAYED
        assert self.try_admit(store, third, {first.id}) == ("replaced", second.id)
        assert self.find(store, third)[third.id].job.ready_at >= HELD
        assert self.promoted(store, now + 1e6) == []
        assert self.finish(store, self.end(first)) == {}
        (promoted,), _ = self.commit(store, Promote(now, 10))[0]
        assert (promoted.id, promoted.ready_at) == (third.id, pytest.approx(now, abs=1e-3))

    def test_a_held_job_keeps_its_own_time(self, store: QueueStore) -> None:
        """It is ready at its own time, or when the leased job ends, whichever is later."""
        ready_at = self.clock.now() + 60
        first = self.taken(store, "keep_last")
        second = self.keyed("keep_last", ready_at=ready_at)
        assert self.try_admit(store, second, {first.id}) == ("held", first.id)
        self.finish(store, self.end(first))
        assert self.promoted(store, ready_at - 1) == []
        assert self.promoted(store, ready_at + 1) == [second.id]

    @_MODES
    @pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED])
    def test_a_period_outlasts_the_job(self, store: QueueStore, mode: str, end: JobState) -> None:
        """The period counts from the admission of the job that ran."""
        first = self.taken(store, mode)
        self.clock.advance(30.0)
        self.finish(store, self.end(first, end))
        self.clock.advance(29.0)
        assert self.try_admit(store, self.keyed(mode, more="unique-period:60")) == (
            "unique_conflict", first.id,
        )  # fmt: skip
        self.clock.advance(2.0)
        self.taken(store, mode, more="unique-period:60")

    def test_a_job_that_never_ran_starts_no_period(self, store: QueueStore) -> None:
        """Cancelled and expired jobs block nothing."""
        for state in (JobState.CANCELLED, JobState.EXPIRED, JobState.CANCELLED):
            self.finish(store, self.end(self.taken(store, more="unique-period:60"), state))

    def test_the_states_that_count_can_be_chosen(self, store: QueueStore) -> None:
        """With ``queued`` alone, one may wait beside a running one; ended states count if named."""
        first = self.taken(store)
        second = self.keyed(more="unique-states:queued")
        assert self.try_admit(store, second, {first.id}) == ("done", "")
        third = self.keyed(more="unique-states:queued")
        assert self.try_admit(store, third, {first.id}) == ("unique_conflict", second.id)
        self.finish(store, self.end(first, JobState.FAILED), self.end(second))
        failed = self.keyed(more="unique-states:failed")
        assert self.try_admit(store, failed) == ("unique_conflict", first.id)
        self.taken(store, more="unique-states:cancelled")

    def test_keys_survive_opening_again(self, store: QueueStore) -> None:
        """A job that waits for a leased one survives as well: it is ready when that ends."""
        first, second = self.keyed("keep_last"), self.keyed("keep_last")
        other = self.keyed(key="x", more="unique-period:600")
        self.commit(store, Admit([first, other]), LeaseChunk(Chunk("s", 1, [(first, 1)])))
        assert self.try_admit(store, second, {first.id}) == ("held", first.id)
        self.finish(store, self.end(other))
        store, _ = self.reopen(store)
        assert self.try_admit(store, self.keyed()) == ("unique_conflict", first.id)
        again = self.keyed(key="x", more="unique-period:600")
        assert self.try_admit(store, again) == ("unique_conflict", other.id)
        assert self.promoted(store, self.clock.now()) == []
        self.commit(store, Finish([self.end(first)]))
        assert self.promoted(store, self.clock.now()) == [second.id]

    def test_counts_follow_replaced_and_held_jobs(self, store: QueueStore) -> None:
        """The counts of the queue equal those of its stored jobs."""
        first = self.taken(store, "keep_last")
        for _ in range(2):
            self.try_admit(store, self.keyed("keep_last"), {first.id})
        self.taken(store, "replace", key="d", ready_at=self.clock.now() + 9)
        self.try_admit(store, self.keyed("replace", key="d"))
        assert self.counts(store) == QueueCounts(queued=2, delayed=1)
