"""Conformance tests of queue stores: unique keys."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.job import HELD, JobState
from eventmq.store.reads import ReadQueued
from eventmq.store.writes import (
    Admit,
    Chunk,
    Finish,
    LeaseChunk,
    Promote,
    SubqueueKey,
    UniqueRule,
    WriteResult,
    unique_rule,
)
from eventmq.testing.suites.store_harness import StoreHarness

if TYPE_CHECKING:
    from collections.abc import Container

    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord

__all__ = ["UniqueTests"]

_HEADERS = "task:t,content-type:json"


class UniqueTests(StoreHarness):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def keyed(self, mode: str = "", *, key: str = "k", more: str = "", **changes: Any) -> JobRecord:
        """Return a new job with a unique key."""
        parts = [_HEADERS, f"unique:{key}", f"unique-mode:{mode}" if mode else "", more]
        return self.job(headers=",".join(filter(None, parts)), **changes)

    def try_admit(
        self, store: QueueStore, job: JobRecord, running: Container[str] = ()
    ) -> tuple[str, str]:
        """Admit a job; return code and detail of its write result."""
        (write_results,) = self.commit(store, Admit([job], running))
        code, detail, _ = write_results.get(0, WriteResult("done"))
        return code, detail

    def waiting(self, store: QueueStore) -> list[str]:
        """Return the ids of the queued jobs in order."""
        jobs, _ = self.commit(
            store, ReadQueued("q", SubqueueKey("t"), (-(1 << 60), 0), 100, 1 << 30)
        )[0]
        return [job.id for job in jobs]

    def test_a_rule_is_read_from_the_headers(self) -> None:
        """The default mode is reject; by default the unfinished states count."""
        unfinished = frozenset({JobState.BLOCKED, JobState.DELAYED, JobState.QUEUED})
        rule = UniqueRule("k", "reject", 0.0, unfinished | {JobState.RUNNING})
        assert unique_rule(self.keyed().headers) == rule
        assert unique_rule(_HEADERS) is None

    @pytest.mark.parametrize("mode", ["reject", "replace", "keep_last"])
    def test_a_free_key_is_taken_and_free_again_at_the_end(self, mode: str) -> None:
        """In whatever state the job ended. Jobs with another key, or none, are not affected."""
        store = self.begin()
        first = self.keyed(mode)
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED):
            assert self.try_admit(store, first) == ("done", "")
            assert self.try_admit(store, self.keyed(mode, key="k2" + state)) == ("done", "")
            assert self.try_admit(store, self.job()) == ("done", "")
            assert self.finish(store, self.end(first, state)) == {}
            first = self.keyed(mode)

    def test_reject_refuses_and_names_the_holder(self) -> None:
        """Queued, delayed and leased jobs hold their keys."""
        store = self.begin()
        queued = self.keyed()
        delayed = self.keyed(key="d", state=JobState.DELAYED, ready_at=self.clock.now() + 9)
        assert self.commit(store, Admit([queued, delayed])) == [{}]
        assert self.try_admit(store, self.keyed()) == ("unique_conflict", queued.id)
        assert self.try_admit(store, self.keyed(), {queued.id}) == ("unique_conflict", queued.id)
        assert self.try_admit(store, self.keyed(key="d")) == ("unique_conflict", delayed.id)
        assert self.waiting(store) == [queued.id]

    @pytest.mark.parametrize("mode", ["reject", "replace", "keep_last"])
    def test_the_same_id_is_no_conflict_with_itself(self, mode: str) -> None:
        """Neither while the job waits nor after its end, nor after it was replaced."""
        store = self.begin()
        job = self.keyed(mode)
        assert self.try_admit(store, job) == ("done", "")
        again = self.keyed(mode, id=job.id)
        assert self.try_admit(store, again) == ("same_id", "queued")
        if mode == "reject":
            self.finish(store, self.end(job))
            ended = "succeeded"
        else:
            assert self.try_admit(store, self.keyed(mode))[0] == "replaced"
            ended = "cancelled"
        assert self.try_admit(store, again) == ("same_id", ended)

    def test_two_in_one_commit_conflict(self) -> None:
        """Jobs of one write are checked in order, each against those before it."""
        store = self.begin()
        jobs = [self.keyed(), self.keyed(), self.job(), self.keyed("replace"), self.keyed()]
        (write_results,) = self.commit(store, Admit(jobs))
        codes = {index: write_result[:2] for index, write_result in write_results.items()}
        assert codes == {
            1: ("unique_conflict", jobs[0].id),
            3: ("replaced", jobs[0].id),
            4: ("unique_conflict", jobs[3].id),
        }
        assert self.waiting(store) == [jobs[2].id, jobs[3].id]

    @pytest.mark.parametrize("delayed", [True, False])
    def test_replace_cancels_the_waiting_one_and_keeps_its_own_time(self, delayed: bool) -> None:  # noqa: FBT001
        """Both in one commit; the write result has the cancelled job."""
        store = self.begin()
        now = self.clock.now()
        changes: dict[str, Any] = (
            {"state": JobState.DELAYED, "ready_at": now + 5} if delayed else {}
        )
        first = self.keyed("replace", **changes)
        assert self.try_admit(store, first) == ("done", "")
        second = self.keyed("replace", state=JobState.DELAYED, ready_at=now + 60)
        (write_results,) = self.commit(store, Admit([second]))
        (row,) = write_results[0].ended
        assert (row.job.id, row.state, row.job.state) == (first.id, "cancelled", first.state)
        assert self.state(store, first) is JobState.CANCELLED
        assert self.find(store, second)[second.id].job.ready_at == now + 60
        assert self.commit(store, Promote(now + 59, 10))[0][0] == []
        assert [job.id for job in self.commit(store, Promote(now + 61, 10))[0][0]] == [second.id]

    def test_replace_is_refused_beside_a_leased_job(self) -> None:
        """A job that a worker has is not replaced."""
        store = self.begin()
        first = self.keyed("replace")
        assert self.try_admit(store, first) == ("done", "")
        write_result = self.try_admit(store, self.keyed("replace"), {first.id})
        assert write_result == ("unique_conflict", first.id)
        assert self.waiting(store) == [first.id]

    @pytest.mark.parametrize("delayed", [True, False])
    def test_keep_last_takes_over_time_and_rank(self, delayed: bool) -> None:  # noqa: FBT001
        """So the work cannot be put off for ever, and keeps its place in the queue."""
        store = self.begin()
        now = self.clock.now()
        changes: dict[str, Any] = (
            {"state": JobState.DELAYED, "ready_at": now + 5} if delayed else {}
        )
        first = self.keyed("keep_last", rank=3, **changes)
        assert self.try_admit(store, first) == ("done", "")
        second = self.keyed("keep_last", rank=8, state=JobState.DELAYED, ready_at=now + 60)
        assert self.try_admit(store, second) == ("replaced", first.id)
        stored = self.find(store, second)[second.id].job
        assert (stored.rank, stored.state, stored.ready_at) == (3, first.state, first.ready_at)
        assert self.state(store, first) is JobState.CANCELLED

    def test_keep_last_waits_for_the_leased_job_and_one_waits_at_most(self) -> None:
        """The new job is delayed until the leased one ends; a third one replaces it."""
        store = self.begin()
        now = self.clock.now()
        first, second, third = (self.keyed("keep_last") for _ in range(3))
        assert self.try_admit(store, first) == ("done", "")
        running = {first.id}
        assert self.try_admit(store, second, running) == ("held", first.id)
        assert self.state(store, second) is JobState.DELAYED
        assert self.try_admit(store, third, running) == ("replaced", second.id)
        assert self.find(store, third)[third.id].job.ready_at >= HELD
        assert self.commit(store, Promote(now + 1e6, 10))[0][0] == []
        assert self.finish(store, self.end(first)) == {}
        (promoted,), _ = self.commit(store, Promote(now, 10))[0]
        assert (promoted.id, promoted.ready_at) == (third.id, pytest.approx(now, abs=1e-3))

    def test_a_held_job_keeps_its_own_time(self) -> None:
        """It is ready at its own time, or when the leased job ends, whichever is later."""
        store = self.begin()
        ready_at = self.clock.now() + 60
        first = self.keyed("keep_last")
        second = self.keyed("keep_last", state=JobState.DELAYED, ready_at=ready_at)
        assert self.try_admit(store, first) == ("done", "")
        assert self.try_admit(store, second, {first.id}) == ("held", first.id)
        self.finish(store, self.end(first))
        assert self.commit(store, Promote(ready_at - 1, 10))[0][0] == []
        assert [job.id for job in self.commit(store, Promote(ready_at + 1, 10))[0][0]] == [
            second.id
        ]

    @pytest.mark.parametrize("mode", ["reject", "replace", "keep_last"])
    @pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED])
    def test_a_period_outlasts_the_job(self, mode: str, end: JobState) -> None:
        """The period counts from the admission of the job that ran."""
        store = self.begin()
        first = self.keyed(mode)
        assert self.try_admit(store, first) == ("done", "")
        self.clock.advance(30.0)
        self.finish(store, self.end(first, end))
        self.clock.advance(29.0)
        assert self.try_admit(store, self.keyed(mode, more="unique-period:60")) == (
            "unique_conflict", first.id,
        )  # fmt: skip
        self.clock.advance(2.0)
        assert self.try_admit(store, self.keyed(mode, more="unique-period:60")) == ("done", "")

    def test_a_job_that_never_ran_starts_no_period(self) -> None:
        """Cancelled and expired jobs block nothing."""
        store = self.begin()
        for state in (JobState.CANCELLED, JobState.EXPIRED, JobState.CANCELLED):
            job = self.keyed(more="unique-period:60")
            assert self.try_admit(store, job) == ("done", "")
            self.finish(store, self.end(job, state))

    def test_the_states_that_count_can_be_chosen(self) -> None:
        """With ``queued`` alone, one may wait beside a running one; ended states count if named."""
        store = self.begin()
        first = self.keyed()
        assert self.try_admit(store, first) == ("done", "")
        second = self.keyed(more="unique-states:queued")
        assert self.try_admit(store, second, {first.id}) == ("done", "")
        third = self.keyed(more="unique-states:queued")
        assert self.try_admit(store, third, {first.id}) == ("unique_conflict", second.id)
        self.finish(store, self.end(first, JobState.FAILED), self.end(second))
        failed = self.keyed(more="unique-states:failed")
        assert self.try_admit(store, failed) == ("unique_conflict", first.id)
        assert self.try_admit(store, self.keyed(more="unique-states:cancelled")) == ("done", "")

    def test_keys_survive_opening_again(self) -> None:
        """So does the job that waits for a leased one: it is ready when that ends."""
        store = self.begin()
        first, second = self.keyed("keep_last"), self.keyed("keep_last")
        other = self.keyed(key="x", more="unique-period:600")
        self.commit(store, Admit([first, other]), LeaseChunk(Chunk("s", 1, [(first, 1)])))
        assert self.try_admit(store, second, {first.id}) == ("held", first.id)
        self.finish(store, self.end(other))
        store, _ = self.reopen(store)
        assert self.try_admit(store, self.keyed()) == ("unique_conflict", first.id)
        again = self.keyed(key="x", more="unique-period:600")
        assert self.try_admit(store, again) == ("unique_conflict", other.id)
        assert self.commit(store, Promote(self.clock.now(), 9))[0][0] == []
        self.commit(store, Finish([self.end(first)]))
        assert [job.id for job in self.commit(store, Promote(self.clock.now(), 9))[0][0]] == [
            second.id
        ]

    def test_counts_follow_replaced_and_held_jobs(self) -> None:
        """The counts of the queue equal those of its stored jobs."""
        store = self.begin()
        first, second, third = (self.keyed("keep_last") for _ in range(3))
        self.try_admit(store, first)
        self.try_admit(store, second, {first.id})
        self.try_admit(store, third, {first.id})
        delayed = self.keyed(
            "replace", key="d", state=JobState.DELAYED, ready_at=self.clock.now() + 9
        )
        self.try_admit(store, delayed)
        self.try_admit(store, self.keyed("replace", key="d"))
        _, recovered = self.reopen(store)
        counts = recovered.counts["q"]
        assert (counts.queued, counts.delayed, counts.failed) == (2, 1, 0)
