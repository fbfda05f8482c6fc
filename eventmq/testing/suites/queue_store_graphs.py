"""Conformance tests of queue stores: graphs, the inputs of their jobs, and slices of large ones."""

# ruff: noqa: PLR2004, S101 - suites assert; the expected number is the point

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from eventmq.events import rows_of
from eventmq.graph import PAGED, Chain, Expression, Group, Signature, build, flags_of
from eventmq.job import JobState
from eventmq.store.reads import FindJobs, FindLineage, ListGraph, ReadEvents, ReadInputs
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import (
    Admit,
    AdmitGraph,
    AdvanceGraphs,
    ApplyToJobs,
    AuditFields,
    CancelGraph,
    EndDeadlines,
    Finish,
    GraphChanges,
    PruneFailed,
    WriteResult,
)
from eventmq.testing.suites.queue_store_recovery import StoreHarness
from eventmq.wire.batches import unpack
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord
    from eventmq.store.reads import InputsPage

__all__ = ["GraphTests"]

_A, _B, _C, _D = map(Signature, "abcd")

#: What follows from outcomes outside of graphs.
_NO_CHANGES = GraphChanges([], [], [])

#: Bytes of a result, and of the largest body.
_SIZE, _BODY = 1000, 2000


def _names(jobs: Sequence[JobRecord]) -> list[str]:
    return sorted(job.headers[5] for job in jobs)


def _parts(job: JobRecord) -> tuple[bytes, Any]:
    """Return the body that a ready job was submitted with, and its input."""
    body, value = unpack(job.body, "a body")
    return body, unpack(value, "an input")


class GraphTests(StoreHarness):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def graph(self, expression: Expression, **headers: str) -> tuple[list[JobRecord], AdmitGraph]:
        """Return the jobs of an expression, numbered, and the write that admits them."""
        nodes, plan, _ = build(expression)
        waiting = {handler.node for handler in plan.handlers}
        jobs = []
        for index, node in enumerate(nodes):
            name = node.signature.task
            text = f"task:{name},content-type:json,graph:{node.flags}{headers.get(name, '')}"
            blocked = index in waiting or plan.inputs[index] >= 0
            state = JobState.BLOCKED if blocked else JobState.QUEUED
            jobs.append(self.job(headers=text, body=name.encode(), state=state))
        return jobs, AdmitGraph(jobs, plan)

    def started(
        self, expression: Expression, **headers: str
    ) -> tuple[QueueStore, list[JobRecord], AdmitGraph]:
        """Return an open store with a graph, its jobs and the write."""
        store = self.begin()
        jobs, write = self.graph(expression, **headers)
        assert self.commit(store, write) == [None]
        return store, jobs, write

    def after(self, store: QueueStore, *rows: Any, **more: Any) -> GraphChanges:
        """Commit outcomes, and return the changes that they cause in graphs."""
        advance = AdvanceGraphs(self.clock.now(), 60.0, 100.0, **more)
        return cast("GraphChanges", self.commit(store, Finish(rows), advance)[1])

    # Admission

    def test_jobs_that_wait_for_others_are_blocked(self) -> None:
        """They are stored in the same commit, and have a count of their own."""
        store, jobs, _ = self.started(Chain((_A, _B, _C)))
        assert self.states(store, jobs) == ["queued", "blocked", "blocked"]
        assert self.counts(store) == QueueCounts(queued=1, blocked=2)

    def test_a_graph_is_admitted_once(self) -> None:
        """The second time it is ``same_id``, even after it has ended."""
        store, jobs, write = self.started(Group((_A, _B)))
        assert self.commit(store, write) == [WriteResult("same_id")]
        self.after(store, *(self.end(job) for job in jobs))
        assert self.commit(store, write) == [WriteResult("same_id")]

    def test_a_graph_with_a_known_id_is_refused_whole(self, store: QueueStore) -> None:
        """None of its jobs is stored."""
        jobs, write = self.graph(Group((_A, _B)))
        self.commit(store, Admit([self.job(id=jobs[1].id)]))
        assert self.commit(store, write) == [WriteResult("taken", jobs[1].id)]
        assert self.find(store, jobs[0]) == {}

    # Ends

    def test_the_next_link_is_ready_with_the_result(self) -> None:
        """Its body has its own arguments and the result; its rank is that of now."""
        store, jobs, _ = self.started(Chain((_A, _B)))
        followed = self.after(store, self.end(jobs[0], result=b"7", ttl=0.0))
        [ready] = followed.ready
        assert (ready.id, ready.state, followed.ended) == (jobs[1].id, JobState.QUEUED, [])
        assert _parts(ready) == (b"b", [jobs[0].id, "json", b"7"])
        assert ready.rank == int(self.clock.now() * 1_000_000)

    def test_a_ready_job_survives_a_restart_with_its_input(self) -> None:
        """The count of a join survives as well."""
        store, jobs, _ = self.started(Chain((Group((_A, _B)), _C)))
        self.after(store, self.end(jobs[1], result=b"2"))
        store, recovered = self.reopen(store)
        assert (recovered.graphs, recovered.next_seq) == (True, jobs[-1].seq + 1)
        followed = self.after(store, self.end(jobs[0], result=b"1"))
        store, _ = self.reopen(store)
        record = self.find(store, jobs[2])[jobs[2].id].job
        assert (record.state, record.body) == (JobState.QUEUED, followed.ready[0].body)
        assert _parts(record)[1] == [[jobs[0].id, "json", b"1"], [jobs[1].id, "json", b"2"]]

    def test_results_are_in_order_and_nested(self) -> None:
        """The order in which the members end does not matter."""
        store, jobs, _ = self.started(Chain((Group((_A, Group((_B, _C)))), _D)))
        for index in (2, 0):
            assert self.after(store, self.end(jobs[index], result=b"%d" % index)).ready == []
        [ready] = self.after(store, self.end(jobs[1], result=b"1")).ready
        first, (second, third) = _parts(ready)[1]
        assert (first[2], second[2], third[2]) == (b"0", b"1", b"2")

    def test_members_that_end_together_count_together(self) -> None:
        """All members that end in one commit are counted."""
        store, jobs, _ = self.started(Chain((Group((_A,) * 50), _B)))
        [ready] = self.after(store, *map(self.end, jobs[:50])).ready
        assert ready.id == jobs[50].id

    def test_a_job_with_an_immutable_signature_keeps_its_body(self) -> None:
        """It waits for the others, and does not take their results."""
        store, jobs, _ = self.started(Chain((_A, Signature("b", immutable=True))))
        [ready] = self.after(store, self.end(jobs[0])).ready
        assert ready.body == b"b"

    def test_a_ready_job_may_have_to_wait_for_its_time(self) -> None:
        """Its countdown starts when the jobs before it have ended."""
        store, jobs, _ = self.started(Chain((_A, _B)), b=",countdown:5")
        self.clock.advance(100.0)
        [ready] = self.after(store, self.end(jobs[0])).ready
        assert (ready.state, ready.ready_at) == (JobState.DELAYED, self.clock.now() + 5.0)
        assert self.counts(store) == QueueCounts(delayed=1)

    def test_a_failed_link_cancels_the_jobs_that_depend_on_it(self) -> None:
        """Their error is the reason; other jobs are not affected."""
        store, jobs, _ = self.started(Group((Chain((_A, _B, _C)), _D)))
        followed = self.after(store, self.end(jobs[0], JobState.FAILED, result=b""))
        assert [row.job.id for row in followed.ended] == [jobs[1].id, jobs[2].id]
        assert self.states(store, jobs) == ["failed", "cancelled", "cancelled", "queued"]
        reasons = [decode_error(row.result).message for row in followed.ended]
        assert reasons == [f"dependency: job {jobs[0].id} failed"] * 2
        assert self.counts(store) == QueueCounts(queued=1, failed=1)

    def test_every_outcome_but_success_cancels_dependent_jobs(self) -> None:
        """So does cancelling the job, even without `AdvanceGraphs` in that commit."""
        for end in (JobState.EXPIRED, JobState.CANCELLED):
            store, jobs, _ = self.started(Chain((Group((_A, _B)), _C)))
            [row] = self.after(store, self.end(jobs[0], end)).ended
            assert (row.job.id, row.state) == (jobs[2].id, JobState.CANCELLED)
            assert self.after(store, self.end(jobs[1])) == _NO_CHANGES
            store.close()
            self.path /= "other"
            self.path.mkdir()
        store, jobs, _ = self.started(Chain((_A, _B)))
        self.commit(store, ApplyToJobs("cancel", [jobs[0].id], AuditFields(self.clock.now(), 60.0)))
        assert self.states(store, jobs) == ["cancelled", "cancelled"]

    def test_a_group_may_continue_without_failed_members(self) -> None:
        """The other results come in order."""
        group = Group((_A, Chain((_B, _B)), _A), on_failure="continue")
        store, jobs, _ = self.started(Chain((group, _C)))
        self.after(store, self.end(jobs[3], result=b"3"), self.end(jobs[0], result=b"0"))
        followed = self.after(store, self.end(jobs[1], JobState.FAILED))
        assert _names([row.job for row in followed.ended]) == ["b"]
        [ready] = followed.ready
        assert [leaf[2] for leaf in _parts(ready)[1]] == [b"0", b"3"]

    def test_a_cancelled_callback_stays_cancelled(self) -> None:
        """The members run on, and nothing follows their end."""
        store, jobs, _ = self.started(Chain((_A, _B)))
        self.after(store, self.end(jobs[1], JobState.CANCELLED))
        assert self.after(store, self.end(jobs[0])) == _NO_CHANGES

    def test_many_ready_jobs_are_returned_without_bodies(self) -> None:
        """The broker reads these by `ReadQueued` later."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 10))))
        followed = self.after(store, self.end(jobs[0], result=b"x" * 100), max_bytes=500)
        assert 1 <= len(followed.ready) <= 5
        assert len(followed.ready) + len(followed.more) == 10
        assert {job.body for job in followed.more} == {b""}

    def test_a_job_that_an_operator_retries_does_not_count_in_its_graph(self) -> None:
        """The graph has continued without it."""
        store, jobs, _ = self.started(Chain((_A, _B)))
        self.after(store, self.end(jobs[0], JobState.FAILED, result=b""))
        audit = AuditFields(self.clock.now(), 60.0, seq=jobs[-1].seq + 1)
        [affected] = self.commit(store, ApplyToJobs("retry", [jobs[0].id], audit))
        assert self.after(store, self.end(affected.jobs[0])) == _NO_CHANGES

    # Handlers

    def test_a_handler_is_called_for_the_first_failure(self) -> None:
        """Once, with id, state and error of that job; handlers of outer parts are called too."""
        inner = Group((_A, _B)).on_error(Signature("x"))
        store, jobs, _ = self.started(Chain((inner, _C)).on_error(Signature("y")))
        ready = self.after(store, self.end(jobs[1], JobState.FAILED, result=b"why")).ready
        assert _names(ready) == ["x", "y"]
        assert _parts(ready[0])[1] == [jobs[1].id, "failed", "json", b"why"]
        assert self.after(store, self.end(jobs[0], JobState.FAILED)).ready == []

    def test_a_handler_that_was_not_called_is_cancelled_at_the_end(self) -> None:
        """It is cancelled when the last job ends."""
        store, jobs, _ = self.started(Chain((_A, _B)).on_error(Signature("x")))
        followed = self.after(store, self.end(jobs[0]))
        assert followed.ended == []
        [row] = self.after(store, self.end(followed.ready[0])).ended
        assert (row.job.id, row.state) == (jobs[2].id, JobState.CANCELLED)
        assert self.counts(store) == QueueCounts()

    def test_a_graph_page_marks_handlers(self) -> None:
        """The mark is right before and after a handler is called, and when the graph has ended."""
        store, jobs, _ = self.started(Chain((_A.on_error(Signature("x")), _B)))
        for rows in ([], [self.end(jobs[0], JobState.FAILED)], [self.end(jobs[2])]):
            self.after(store, *rows)
            [page] = self.commit(store, ListGraph(jobs[0].id, 0, 10))
            assert [row.handler for row in page.rows] == [False, False, True]
            assert [row.output > 0 for row in page.rows] == [True, False, False]

    # The whole

    def test_a_graph_is_cancelled_whole(self) -> None:
        """The id of any of its jobs will do; jobs that have ended keep their states."""
        store, jobs, _ = self.started(Chain((_A, Group((_B, _C)), _D)))
        self.after(store, self.end(jobs[0]))
        audit = AuditFields(self.clock.now(), 60.0)
        [(root, affected)] = self.commit(store, CancelGraph(jobs[2].id, audit))
        assert (root, _names(affected.jobs)) == (jobs[0].id, ["b", "c", "d"])
        assert self.states(store, jobs) == ["succeeded", *["cancelled"] * 3]
        assert self.counts(store) == QueueCounts()
        assert self.commit(self.stores[-1], CancelGraph("unknown", audit))[0][0] == ""

    @pytest.mark.parametrize("end", ["cancel", "deadline", "failure"])
    def test_jobs_of_a_graph_are_cancelled_with_their_arguments(self, end: str) -> None:
        """If they ask for it, however they are cancelled."""
        keep = ",keep-arguments"
        expression = Group((Chain((_A, _B)), _C), deadline=10.0)
        store, jobs, _ = self.started(expression, b=keep, c=keep)
        audit = AuditFields(self.clock.now(), 60.0)
        if end == "failure":
            self.after(store, self.end(jobs[0], JobState.FAILED), self.end(jobs[2]))
        elif end == "cancel":
            self.commit(store, CancelGraph(jobs[0].id, audit))
        else:
            self.commit(store, EndDeadlines(self.clock.now() + 10.0, audit))
        rows = self.find(store, *jobs)
        assert rows[jobs[1].id].job.state is JobState.CANCELLED
        assert [rows[job.id].job.body for job in jobs[1:]] == [b"b", b"c"]
        assert rows[jobs[1].id].job.headers == jobs[1].headers

    def test_a_deadline_cancels_its_part_of_the_graph(self) -> None:
        """Its unfinished jobs; the write result has the time of the next deadline."""
        part = Group((_A, _B), on_failure="continue", deadline=10.0)
        store, jobs, _ = self.started(Group((Chain((part, _C)), Group((_D,), deadline=99.0))))
        store, recovered = self.reopen(store)
        begin = self.clock.now()
        assert recovered.next_deadline == begin + 10.0
        self.after(store, self.end(jobs[0], result=b"0"))
        self.clock.advance(10.0)
        now, audit = self.clock.now(), AuditFields(self.clock.now(), 60.0)
        (affected, next_deadline), followed = self.commit(
            store, EndDeadlines(now, audit), AdvanceGraphs(now, 60.0, 60.0)
        )
        assert (_names(affected.jobs), next_deadline) == (["b"], begin + 99.0)
        assert _names(followed.ready) == ["c"]

    def test_lineage_and_pages_show_the_structure_of_a_graph(self) -> None:
        """The id of any of its jobs will do."""
        store, jobs, _ = self.started(Chain((_A, Group((_B, _C)), _D)).on_error(Signature("x")))
        lineage = [self.commit(store, FindLineage(job.id))[0] for job in jobs]
        assert [entry.root for entry in lineage] == [jobs[0].id] * 5
        a, b = jobs[0].id, jobs[1].id
        assert [entry.parent for entry in lineage] == ["", a, a, b, a]
        [page] = self.commit(store, ListGraph(jobs[3].id, 1, 3))
        assert (page.root, page.size) == (jobs[0].id, 5)
        assert [row.job_row.job.id for row in page.rows] == [job.id for job in jobs[1:4]]
        assert page.rows[0].input == page.rows[1].input != page.rows[2].input
        assert page.rows[0].output == page.rows[2].input
        assert self.commit(store, ListGraph("unknown", 0, 9), FindLineage("unknown")) == [
            None,
            None,
        ]

    def test_an_ended_graph_is_forgotten_with_its_outcomes(self) -> None:
        """After a restart the store reports that no graph is left."""
        store, jobs, _ = self.started(Chain((_A, _B)))
        for job in jobs:
            self.after(store, self.end(job))
        assert self.commit(store, FindLineage(jobs[0].id))[0] is not None
        self.clock.advance(3 * self.dedupe_window)
        self.commit(store, Finish([]))
        assert self.commit(store, FindLineage(jobs[0].id)) == [None]
        assert self.reopen(store)[1].graphs is False

    def test_jobs_of_graphs_have_events_with_root_and_parent(self) -> None:
        """Each job has one event when it is admitted, one when it is ready and one when it ends."""
        store, jobs, _ = self.started(Chain((_A, _B, _C)))
        [ready] = self.after(store, self.end(jobs[0])).ready
        self.after(store, self.end(ready, JobState.FAILED, result=b""))
        rows, _ = self.commit(store, ReadEvents(0, 1 << 20))[0]
        events = [row for first, _, body in rows for row in rows_of("b", first, body)]
        names = {job.id: job.headers[5] for job in jobs}
        kinds = [(row["kind"], names[row["job_id"]]) for row in events]
        assert sorted(kinds[:3]) == [("delayed", "b"), ("delayed", "c"), ("enqueued", "a")]
        assert {row["root_id"] for row in events} == {jobs[0].id}
        parents = {(names[row["job_id"]], names.get(row.get("parent_id", ""))) for row in events}
        assert parents == {("a", None), ("b", "a"), ("c", "b")}
        assert kinds[3:] == [
            ("succeeded", "a"), ("enqueued", "b"), ("failed", "b"), ("cancelled", "c"),
        ]  # fmt: skip

    # Inputs that are too large for the body of a job

    def chord(
        self, members: int = 4, consumers: int = 1
    ) -> tuple[QueueStore, list[JobRecord], list[JobRecord]]:
        """Return a store with a chord whose members have ended, the members, and the takers."""
        after = _B if consumers == 1 else Group((_B,) * consumers)
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
        return cast("InputsPage", page)

    def has_inputs(self, store: QueueStore, job: JobRecord) -> bool:
        """Return whether the store keeps inputs for a job."""
        return self.commit(store, ReadInputs(job.id, 0, 1))[0] is not None

    def test_inputs_that_are_too_large_become_ids(self) -> None:
        """The ids are in order, with a flag in the headers; results are kept despite a ttl of 0."""
        store, members, [consumer] = self.chord()
        assert _parts(consumer) == (b"b", [job.id for job in members])
        assert PAGED in flags_of(consumer.headers)
        assert self.page(store, consumer) == (
            [(job.id, "json", bytes([index]) * _SIZE) for index, job in enumerate(members)],
            0,
        )

    def test_inputs_are_read_page_by_page(self) -> None:
        """A page has as many bytes as requested, or one result."""
        store, members, [consumer] = self.chord()
        cursor = 0
        for size, expected in (2 * _SIZE, members[:2]), (1, members[2:3]), (10**9, members[3:]):
            rows, cursor = self.page(store, consumer, cursor, size)
            assert [row[0] for row in rows] == [job.id for job in expected]
        assert cursor == 0

    def test_inputs_survive_a_restart(self) -> None:
        """The job that gets them survives as well."""
        store, members, [consumer] = self.chord()
        store, _ = self.reopen(store)
        assert len(self.page(store, consumer).rows) == len(members)
        record = self.find(store, consumer)[consumer.id].job
        assert (record.headers, record.body) == (consumer.headers, consumer.body)

    def test_inputs_are_deleted_when_their_last_taker_has_ended(self) -> None:
        """The outcome does not matter."""
        store, _, [first, second] = self.chord(consumers=2)
        self.after(store, self.end(first))
        assert (self.has_inputs(store, first), self.has_inputs(store, second)) == (False, True)
        assert len(self.page(store, second).rows) == 4
        self.commit(store, ApplyToJobs("cancel", [second.id], AuditFields(self.clock.now(), 60.0)))
        assert not self.has_inputs(store, second)

    def test_inputs_with_too_many_copies_become_ids(self) -> None:
        """One limit is for a body, another for all bodies of a join together."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 10))))
        ready = self.after(store, self.end(jobs[0], result=b"x" * 200), max_copies=1000).ready
        assert [_parts(job)[1] for job in ready] == [jobs[0].id] * 10

    def test_inputs_of_a_failed_job_are_kept_for_its_retry(self) -> None:
        """They are kept after the graph has ended, until the retried job ends."""
        store, members, [consumer] = self.chord()
        self.after(store, self.end(consumer, JobState.FAILED))
        audit = AuditFields(self.clock.now(), 60.0, seq=consumer.seq + 1)
        [affected] = self.commit(store, ApplyToJobs("retry", [consumer.id], audit))
        assert len(self.page(store, consumer).rows) == len(members)
        self.after(store, self.end(affected.jobs[0]))
        assert not self.has_inputs(store, consumer)

    @pytest.mark.parametrize("action", ["drop", "prune"])
    def test_inputs_of_a_failed_job_are_deleted_with_it(self, action: str) -> None:
        """When an operator drops it, or it is pruned: they count towards its bytes."""
        store, _, [consumer] = self.chord()
        self.after(store, self.end(consumer, JobState.FAILED))
        drop = ApplyToJobs("drop", [consumer.id], AuditFields(self.clock.now(), 60.0))
        self.commit(store, drop if action == "drop" else PruneFailed(0.0, 4 * _SIZE, 100))
        assert self.find(store, consumer) == {}
        assert not self.has_inputs(store, consumer)

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
        store, (first, second), _ = self.started(Chain((_A, _B)))
        _, followed, page, stored = self.commit(
            store, Finish([self.end(first)]), AdvanceGraphs(self.clock.now()),
            ReadInputs(second.id, 0, 10), FindJobs([second.id]),
        )  # fmt: skip
        assert page is None
        assert followed.ready[0].body == stored[second.id].job.body

    # Large graphs advance in slices, one per commit

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
        """The jobs are in order, each with its input."""
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
        failed = self.end(jobs[0], JobState.FAILED)
        changes = self.go_on(store, self.after(store, failed, limit=2), 2)
        assert [len(change.ended) for change in changes] == [2, 2, 2]
        assert self.states(store, jobs) == ["failed", *["cancelled"] * 6]
        reasons = {decode_error(row.result).message for change in changes for row in change.ended}
        assert [reason[:10] for reason in reasons] == ["dependency"]
        assert self.counts(store) == QueueCounts(failed=1)

    def test_jobs_that_end_between_slices_count(self) -> None:
        """Jobs of a slice may end before others are ready."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 4), _C)))
        self.after(store, self.end(jobs[0]), limit=2)
        self.go_on(store, self.after(store, *map(self.end, jobs[1:3]), limit=1), 1)
        assert self.states(store, jobs)[3:] == ["queued", "queued", "blocked"]
        [ready] = self.after(store, *map(self.end, jobs[3:5]), limit=1).ready
        assert ready.id == jobs[5].id
        self.after(store, self.end(jobs[5]))
        assert self.after(store) == _NO_CHANGES

    def test_results_are_kept_until_the_last_slice(self) -> None:
        """The jobs of the first slice may have ended by then."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 4))))
        row = self.end(jobs[0], result=b"x" * 1000)
        first = self.after(store, row, limit=2, max_copies=1200)
        second = self.after(store, *map(self.end, first.ready), limit=1, max_copies=1200)
        changes = self.go_on(store, second, 1, max_copies=1200)
        last = [job for change in changes for job in change.ready]
        assert [job.id for job in last] == [job.id for job in jobs[3:]]
        assert all(PAGED in flags_of(job.headers) for job in (*first.ready, *last))
        assert [self.page(store, job).rows[0][2] for job in last] == [row.result] * 2
        self.after(store, *map(self.end, last))
        assert not any(self.has_inputs(store, job) for job in jobs)

    def test_large_results_are_deleted_in_slices(self) -> None:
        """The last slice leaves none."""
        members, size = 5, 5_000_000
        store, jobs, _ = self.started(Chain((Group((_A,) * members), _B)))
        for job in jobs[:members]:
            changes = self.after(store, self.end(job, result=bytes(size), ttl=0.0), max_body=1000)
        [consumer] = changes.ready
        changes = self.after(store, self.end(consumer))
        assert changes.unfinished
        assert not self.has_inputs(store, consumer)
        assert 1 < len(self.go_on(store, changes, 1000)) <= members
        assert self.after(store) == _NO_CHANGES

    def test_a_graph_is_cancelled_in_slices(self) -> None:
        """The last jobs first, so that all have the same reason."""
        store, jobs, _ = self.started(Chain((_A, Group((_B,) * 4), _C)))
        audit = AuditFields(self.clock.now(), 60.0, content_type="error", result=b"enough")
        touched: list[JobRecord] = []
        for count in (4, 2, 0):
            write = CancelGraph(jobs[2].id, audit, 4)
            [(root, affected), changes] = self.commit(store, write, AdvanceGraphs(self.clock.now()))
            assert (root, len(affected.jobs), changes) == (jobs[0].id, count, _NO_CHANGES)
            touched += affected.jobs
        assert {job.id for job in touched} == {job.id for job in jobs}
        assert {row.result for row in self.find(store, *jobs).values()} == {b"enough"}

    def test_a_deadline_ends_its_part_in_slices(self) -> None:
        """It stays the next deadline until no job is left."""
        store, jobs, _ = self.started(Chain((Group((_A,) * 5, deadline=10.0), _B)))
        now = self.clock.now() + 20.0
        write = EndDeadlines(now, AuditFields(now, 60.0), 2)
        for count, more in ((2, True), (2, True), (1, False)):
            [(affected, deadline), _] = self.commit(store, write, AdvanceGraphs(now))
            assert (len(affected.jobs), deadline is not None and deadline <= now) == (count, more)
        assert self.states(store, jobs) == ["cancelled"] * 6
