"""Conformance tests of queue stores: inputs of a join that are too large for the body of a job."""

# ruff: noqa: PLR2004, S101 - suites assert; the expected number is the point

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.graph import PAGED, Chain, Group, Signature, flags_of
from eventmq.job import JobState
from eventmq.store.reads import FindJobs, ReadInputs
from eventmq.store.writes import AdvanceGraphs, ApplyToJobs, AuditFields, Finish, PruneFailed
from eventmq.testing.suites.queue_store_graphs import GraphTests
from eventmq.wire.batches import unpack
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord
    from eventmq.store.reads import InputsPage

__all__ = ["InputTests"]

_A, _B, _C = map(Signature, "abc")

#: Bytes of a result, and of the largest body.
_SIZE, _BODY = 1000, 2000


class InputTests(GraphTests):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def chord(
        self, members: int = 4, takers: int = 1
    ) -> tuple[QueueStore, list[JobRecord], list[JobRecord]]:
        """Return a store with a chord whose members have ended, the members, and the takers."""
        after = _B if takers == 1 else Group((_B,) * takers)
        store, jobs, _ = self.started(Chain((Group((_A,) * members), after)))
        rows = [
            self.end(job, result=bytes([index]) * _SIZE, ttl=0.0)
            for index, job in enumerate(jobs[:members])
        ]
        followed = self.after(store, *rows, max_body=_BODY)
        assert [job.id for job in followed.ready] == [job.id for job in jobs[members:]]
        return store, jobs[:members], followed.ready

    def page(
        self, store: QueueStore, job: JobRecord, cursor: int = 0, max_bytes: int = 10**9
    ) -> InputsPage:
        """Return one page of the inputs of a job."""
        page = self.commit(store, ReadInputs(job.id, cursor, max_bytes))[0]
        assert page is not None
        return page  # type: ignore[no-any-return]

    def keeps(self, store: QueueStore, job: JobRecord) -> bool:
        """Return whether the store keeps inputs for a job."""
        return self.commit(store, ReadInputs(job.id, 0, 1))[0] is not None

    def test_inputs_that_are_too_large_become_ids(self) -> None:
        """In order, with a flag in the headers; the results are kept although their ttl is 0."""
        store, members, [taker] = self.chord()
        body, value = unpack(taker.body, "a body")
        assert (body, unpack(value, "an input")) == (b"b", [job.id for job in members])
        assert PAGED in flags_of(taker.headers)
        assert self.page(store, taker) == (
            [(job.id, "json", bytes([index]) * _SIZE) for index, job in enumerate(members)],
            0,
        )

    def test_inputs_are_read_page_by_page(self) -> None:
        """A page has as many bytes as requested, or one result."""
        store, members, [taker] = self.chord()
        first = self.page(store, taker, max_bytes=2 * _SIZE)
        second = self.page(store, taker, first.next, max_bytes=1)
        third = self.page(store, taker, second.next)
        pages = [[row[0] for row in page.rows] for page in (first, second, third)]
        ids = [job.id for job in members]
        assert pages == [ids[:2], ids[2:3], ids[3:]]
        assert third.next == 0

    def test_inputs_survive_a_restart(self) -> None:
        """So does the job that takes them."""
        store, members, [taker] = self.chord()
        store, _ = self.reopen(store)
        assert len(self.page(store, taker).rows) == len(members)
        record = self.find(store, taker)[taker.id].job
        assert (record.headers, record.body) == (taker.headers, taker.body)

    def test_inputs_are_deleted_when_their_last_taker_has_ended(self) -> None:
        """Whatever its outcome."""
        store, _, [first, second] = self.chord(takers=2)
        self.after(store, self.end(first))
        assert (self.keeps(store, first), self.keeps(store, second)) == (False, True)
        assert len(self.page(store, second).rows) == 4
        self.commit(store, ApplyToJobs("cancel", [second.id], AuditFields(self.clock.now(), 60.0)))
        assert not self.keeps(store, second)

    def test_inputs_with_too_many_copies_become_ids(self) -> None:
        """One limit is for a body, another for all bodies of a join together."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 10))))
        ready = self.after(store, self.end(jobs[0], result=b"x" * 200), max_copies=1000).ready
        assert {unpack(unpack(job.body, "a body")[1], "an input") for job in ready} == {jobs[0].id}
        assert len(ready) == 10

    def test_inputs_of_a_failed_job_are_kept_for_its_retry(self) -> None:
        """Even after its graph has ended, until the retried job ends."""
        store, members, [taker] = self.chord()
        self.after(store, self.end(taker, JobState.FAILED))
        audit = AuditFields(self.clock.now(), 60.0, seq=taker.seq + 1)
        [affected] = self.commit(store, ApplyToJobs("retry", [taker.id], audit))
        assert len(self.page(store, taker).rows) == len(members)
        self.after(store, self.end(affected.jobs[0]))
        assert not self.keeps(store, taker)

    def test_inputs_of_a_failed_job_are_deleted_with_it(self) -> None:
        """When an operator drops it."""
        store, _, [taker] = self.chord()
        self.after(store, self.end(taker, JobState.FAILED))
        self.commit(store, ApplyToJobs("drop", [taker.id], AuditFields(self.clock.now(), 60.0)))
        assert not self.keeps(store, taker)

    def test_inputs_count_towards_the_bytes_of_failed_jobs(self) -> None:
        """They are pruned with the failed job."""
        store, _, [taker] = self.chord()
        self.after(store, self.end(taker, JobState.FAILED))
        [pruned] = self.commit(store, PruneFailed(0.0, 4 * _SIZE, 100))
        assert pruned.queues == {"q": 1}
        assert not self.keeps(store, taker)

    def test_a_job_with_too_large_inputs_fails(self) -> None:
        """Jobs that wait for it are cancelled."""
        store, jobs, _ = self.started(Chain((_A, _B, _C)))
        followed = self.after(
            store, self.end(jobs[0], result=b"x" * 2000), max_body=1000, max_input_bytes=1500
        )
        assert [row.state.value for row in followed.ended] == ["failed", "cancelled"]
        error = decode_error(followed.ended[0].result)
        assert error.type == "eventmq.errors.ResultTooLarge"
        assert "the limit is 1500, from the setting max_input_bytes" in error.message

    def test_no_inputs_are_kept_for_jobs_that_have_them_in_their_body(self) -> None:
        """Small inputs are part of the body."""
        store, jobs, _ = self.started(Chain((_A, _B)))
        rows = [self.end(jobs[0])]
        _, followed, page, stored = self.commit(
            store, Finish(rows), AdvanceGraphs(self.clock.now()), ReadInputs(jobs[1].id, 0, 10),
            FindJobs([jobs[1].id]),
        )  # fmt: skip
        assert page is None
        assert followed.ready[0].body == stored[jobs[1].id].job.body
