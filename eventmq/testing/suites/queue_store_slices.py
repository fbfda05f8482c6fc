"""Conformance tests of queue stores: large graphs advance in slices, one per commit."""

# ruff: noqa: S101 - suites assert; the expected number is the point

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.graph import PAGED, Chain, Group, Signature, flags_of
from eventmq.job import JobState
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import AdvanceGraphs, AuditFields, CancelGraph, EndDeadlines, GraphChanges
from eventmq.testing.suites.queue_store_lookups import LookupTests
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord

__all__ = ["SliceTests"]

_A, _B, _C = map(Signature, "abc")


class SliceTests(LookupTests):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def go_on(
        self, store: QueueStore, first: GraphChanges, limit: int, **more: int
    ) -> list[GraphChanges]:
        """Commit until no change is left; return the changes of each commit."""
        changes = [first]
        while changes[-1].unfinished:
            write = AdvanceGraphs(self.clock.now(), 60.0, 100.0, limit=limit, **more)
            changes += self.commit(store, write)
        return changes

    def test_many_jobs_become_ready_in_slices(self) -> None:
        """In order, each with its input."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 7))))
        changes = self.go_on(store, self.after(store, self.end(jobs[0]), limit=3), 3)
        assert [len(change.ready) for change in changes] == [3, 3, 1]
        ready = [job for change in changes for job in change.ready]
        assert [job.id for job in ready] == [job.id for job in jobs[1:]]
        assert {job.body for job in ready} == {ready[0].body}
        assert self.states(store, jobs) == ["succeeded", *["queued"] * 7]

    def test_slices_continue_after_a_restart(self) -> None:
        """The recovered state says that slices are left."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 7))))
        assert self.after(store, self.end(jobs[0]), limit=3).unfinished
        store, recovered = self.reopen(store)
        assert recovered.graphs
        assert recovered.counts["q"] == QueueCounts(queued=3, blocked=4)
        [change] = self.commit(store, AdvanceGraphs(self.clock.now(), limit=9))
        assert [job.id for job in change.ready] == [job.id for job in jobs[4:]]
        assert not change.unfinished

    def test_a_failure_cancels_in_slices(self) -> None:
        """All jobs that wait for it, directly or not, with the first failure as the reason."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 4), _C, _C)))
        first = self.after(store, self.end(jobs[0], JobState.FAILED), limit=2)
        changes = self.go_on(store, first, 2)
        assert [len(change.ended) for change in changes] == [2, 2, 2]
        assert self.states(store, jobs) == ["failed", *["cancelled"] * 6]
        reasons = {decode_error(row.result).message for change in changes for row in change.ended}
        assert [reason[:10] for reason in reasons] == ["dependency"]
        assert self.counts(store) == QueueCounts(failed=1)

    def test_jobs_that_end_between_slices_count(self) -> None:
        """Jobs of a slice may end before others are ready."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 4), _C)))
        self.after(store, self.end(jobs[0]), limit=2)
        changes = self.after(store, *(self.end(job) for job in jobs[1:3]), limit=1)
        changes = self.go_on(store, changes, 1)[-1]
        assert self.states(store, jobs)[3:] == ["queued", "queued", "blocked"]
        changes = self.after(store, *(self.end(job) for job in jobs[3:5]), limit=1)
        assert [job.id for job in changes.ready] == [jobs[5].id]
        self.after(store, self.end(jobs[5]))
        assert self.after(store) == GraphChanges([], [], [])

    def test_results_are_kept_until_the_last_slice(self) -> None:
        """Even if the jobs of the first slice have ended by then."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 4))))
        row = self.end(jobs[0], result=b"x" * 1000)
        first = self.after(store, row, limit=2, max_copies=1200)
        ends = [self.end(job) for job in first.ready]
        changes = [self.after(store, *ends, limit=1, max_copies=1200)]
        changes = self.go_on(store, changes[0], 1, max_copies=1200)
        last = [job for change in changes for job in change.ready]
        assert [job.id for job in last] == [job.id for job in jobs[3:]]
        assert all(PAGED in flags_of(job.headers) for job in (*first.ready, *last))
        assert [self.page(store, job).rows[0][2] for job in last] == [row.result] * 2
        self.after(store, *(self.end(job) for job in last))
        assert not any(self.keeps(store, job) for job in jobs)

    def test_large_results_are_deleted_in_slices(self) -> None:
        """Until none is left."""
        members, size = 5, 5_000_000
        store, jobs, _ = self.started(Chain((Group((_A,) * members), _B)))
        for job in jobs[:members]:
            changes = self.after(store, self.end(job, result=bytes(size), ttl=0.0), max_body=1000)
        [taker] = changes.ready
        changes = self.after(store, self.end(taker))
        assert changes.unfinished
        assert not self.keeps(store, taker)
        count = len(self.go_on(store, changes, 1000))
        assert 1 < count <= members
        assert self.after(store) == GraphChanges([], [], [])

    def test_a_graph_is_cancelled_in_slices(self) -> None:
        """The last jobs first, so that all have the same reason."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 4), _C)))
        audit = AuditFields(self.clock.now(), 60.0, content_type="error", result=b"enough")
        touched: list[JobRecord] = []
        for count in (4, 2, 0):
            write = CancelGraph(jobs[2].id, audit, 4)
            [(root, affected), changes] = self.commit(store, write, AdvanceGraphs(self.clock.now()))
            assert (root, len(affected.jobs), changes) == (
                jobs[0].id,
                count,
                GraphChanges([], [], []),
            )
            touched += affected.jobs
        assert {job.id for job in touched} == {job.id for job in jobs}
        rows = self.find(store, *jobs)
        assert {rows[job.id].result for job in jobs} == {b"enough"}

    def test_a_deadline_ends_its_part_in_slices(self) -> None:
        """It stays the next deadline until no job is left."""
        store, jobs, _ = self.started(Chain((Group((_A,) * 5, deadline=10.0), _B)))
        now = self.clock.now() + 20.0
        audit = AuditFields(now, 60.0)
        counts = []
        deadline: float | None = now
        while deadline is not None and deadline <= now:
            [(affected, deadline), _] = self.commit(
                store, EndDeadlines(now, audit, 2), AdvanceGraphs(now)
            )
            counts.append(len(affected.jobs))
        assert counts == [2, 2, 1]
        assert self.states(store, jobs) == ["cancelled"] * 6
