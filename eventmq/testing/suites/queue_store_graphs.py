"""Conformance tests of queue stores: graphs."""

# ruff: noqa: PLR2004, S101 - suites assert; the expected number is the point

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.events import rows_of
from eventmq.graph import Chain, Expression, Group, Signature, build
from eventmq.job import JobState
from eventmq.store.reads import FindLineage, ListGraph, ReadEvents
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
    WriteResult,
)
from eventmq.testing.suites.store_harness import StoreHarness
from eventmq.wire.batches import unpack
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import QueueStore
    from eventmq.job import JobRecord

__all__ = ["GraphTests"]

_A, _B, _C, _D = map(Signature, "abcd")


def _names(jobs: Sequence[JobRecord]) -> list[str]:
    return sorted(job.headers[5] for job in jobs)


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
        followed: GraphChanges = self.commit(
            store, Finish(rows), AdvanceGraphs(self.clock.now(), 60.0, 100.0, **more)
        )[1]
        return followed

    def states(self, store: QueueStore, jobs: Sequence[JobRecord]) -> list[str]:
        """Return the states of jobs."""
        rows = self.find(store, *jobs)
        return [rows[job.id].job.state.value for job in jobs]

    def counts(self, store: QueueStore) -> QueueCounts:
        """Return the counts of the queue after a restart."""
        _, recovered = self.reopen(store)
        return recovered.counts["q"]

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

    def test_a_graph_with_a_known_id_is_refused_whole(self) -> None:
        """None of its jobs is stored."""
        store = self.begin()
        jobs, write = self.graph(Group((_A, _B)))
        other = self.job(id=jobs[1].id)
        self.commit(store, Admit([other]))
        assert self.commit(store, write) == [WriteResult("taken", jobs[1].id)]
        assert self.find(store, jobs[0]) == {}

    # Ends

    def test_the_next_link_is_ready_with_the_result(self) -> None:
        """Its body has its own arguments and the result; its rank is that of now."""
        store, jobs, _ = self.started(Chain((_A, _B)))
        followed = self.after(store, self.end(jobs[0], result=b"7", ttl=0.0))
        [ready] = followed.ready
        assert (ready.id, ready.state, followed.ended) == (jobs[1].id, JobState.QUEUED, [])
        body, value = unpack(ready.body, "a body")
        assert (body, unpack(value, "an input")) == (b"b", [jobs[0].id, "json", b"7"])
        assert ready.rank == int(self.clock.now() * 1_000_000)

    def test_a_ready_job_survives_a_restart_with_its_input(self) -> None:
        """So does the count of a join."""
        store, jobs, _ = self.started(Chain((Group((_A, _B)), _C)))
        self.after(store, self.end(jobs[1], result=b"2"))
        store, recovered = self.reopen(store)
        assert (recovered.graphs, recovered.next_seq) == (True, jobs[-1].seq + 1)
        followed = self.after(store, self.end(jobs[0], result=b"1"))
        store, _ = self.reopen(store)
        record = self.find(store, jobs[2])[jobs[2].id].job
        assert (record.state, record.body) == (JobState.QUEUED, followed.ready[0].body)
        value = unpack(unpack(record.body, "a body")[1], "an input")
        assert value == [[jobs[0].id, "json", b"1"], [jobs[1].id, "json", b"2"]]

    def test_results_are_in_order_and_nested(self) -> None:
        """Whatever the order in which the members end."""
        store, jobs, _ = self.started(Chain((Group((_A, Group((_B, _C)))), _D)))
        for index in (2, 0):
            assert self.after(store, self.end(jobs[index], result=b"%d" % index)).ready == []
        [ready] = self.after(store, self.end(jobs[1], result=b"1")).ready
        first, (second, third) = unpack(unpack(ready.body, "a body")[1], "an input")
        assert (first[2], second[2], third[2]) == (b"0", b"1", b"2")

    def test_members_that_end_together_count_together(self) -> None:
        """All members that end in one commit are counted."""
        store, jobs, _ = self.started(Chain((Group((_A,) * 50), _B)))
        followed = self.after(store, *(self.end(job) for job in jobs[:50]))
        assert [job.id for job in followed.ready] == [jobs[50].id]

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
        """With the reason as their error; other jobs are not affected."""
        store, jobs, _ = self.started(Group((Chain((_A, _B, _C)), _D)))
        followed = self.after(store, self.end(jobs[0], JobState.FAILED, result=b""))
        assert [row.job.id for row in followed.ended] == [jobs[1].id, jobs[2].id]
        assert self.states(store, jobs) == ["failed", "cancelled", "cancelled", "queued"]
        for row in followed.ended:
            reason = decode_error(row.result).message
            assert reason == f"dependency: job {jobs[0].id} failed"
        assert self.counts(store) == QueueCounts(queued=1, failed=1)

    def test_every_outcome_but_success_cancels_dependent_jobs(self) -> None:
        """So does an operator who cancels a job, even without `AdvanceGraphs` in that commit."""
        for end in (JobState.EXPIRED, JobState.CANCELLED):
            store, jobs, _ = self.started(Chain((Group((_A, _B)), _C)))
            [row] = self.after(store, self.end(jobs[0], end)).ended
            assert (row.job.id, row.state) == (jobs[2].id, JobState.CANCELLED)
            assert self.after(store, self.end(jobs[1])) == GraphChanges([], [], [])
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
        value = unpack(unpack(ready.body, "a body")[1], "an input")
        assert [leaf[2] for leaf in value] == [b"0", b"3"]

    def test_a_cancelled_callback_stays_cancelled(self) -> None:
        """The members run on, and nothing follows their end."""
        store, jobs, _ = self.started(Chain((_A, _B)))
        self.after(store, self.end(jobs[1], JobState.CANCELLED))
        assert self.after(store, self.end(jobs[0])) == GraphChanges([], [], [])

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
        assert self.after(store, self.end(affected.jobs[0])) == GraphChanges([], [], [])

    # Handlers

    def test_a_handler_is_called_for_the_first_failure(self) -> None:
        """Once, with id, state and error of that job; handlers of outer parts are called too."""
        inner = Group((_A, _B)).on_error(Signature("x"))
        outer = Chain((inner, _C)).on_error(Signature("y"))
        store, jobs, _ = self.started(outer)
        followed = self.after(store, self.end(jobs[1], JobState.FAILED, result=b"why"))
        assert _names(followed.ready) == ["x", "y"]
        value = unpack(unpack(followed.ready[0].body, "a body")[1], "an input")
        assert value == [jobs[1].id, "failed", "json", b"why"]
        assert self.after(store, self.end(jobs[0], JobState.FAILED)).ready == []

    def test_a_handler_that_was_not_called_is_cancelled_at_the_end(self) -> None:
        """With the end of the last job."""
        store, jobs, _ = self.started(Chain((_A, _B)).on_error(Signature("x")))
        followed = self.after(store, self.end(jobs[0]))
        assert followed.ended == []
        [row] = self.after(store, self.end(followed.ready[0])).ended
        assert (row.job.id, row.state) == (jobs[2].id, JobState.CANCELLED)
        assert self.counts(store) == QueueCounts()

    def test_a_graph_page_marks_handlers(self) -> None:
        """Before a handler is called, afterwards, and when the graph has ended."""
        store, jobs, _ = self.started(Chain((_A.on_error(Signature("x")), _B)))
        for rows in ([], [self.end(jobs[0], JobState.FAILED)], [self.end(jobs[2])]):
            self.after(store, *rows)
            [page] = self.commit(store, ListGraph(jobs[0].id, 0, 10))
            assert [row.handler for row in page.rows] == [False, False, True]
            assert [row.output > 0 for row in page.rows] == [True, False, False]

    # The whole

    def test_a_graph_is_cancelled_whole(self) -> None:
        """By the id of any of its jobs; jobs that have ended keep their states."""
        store, jobs, _ = self.started(Chain((_A, Group((_B, _C)), _D)))
        self.after(store, self.end(jobs[0]))
        audit = AuditFields(self.clock.now(), 60.0)
        [(root, affected)] = self.commit(store, CancelGraph(jobs[2].id, audit))
        assert (root, _names(affected.jobs)) == (jobs[0].id, ["b", "c", "d"])
        assert self.states(store, jobs) == ["succeeded", *["cancelled"] * 3]
        assert self.counts(store) == QueueCounts()
        assert self.commit(self.stores[-1], CancelGraph("unknown", audit))[0][0] == ""

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
        """By the id of any of its jobs."""
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
        self.after(store, self.end(jobs[0]))
        self.after(store, self.end(jobs[1]))
        assert self.commit(store, FindLineage(jobs[0].id))[0] is not None
        self.clock.advance(3 * self.dedupe_window)
        self.commit(store, Finish([]))
        assert self.commit(store, FindLineage(jobs[0].id)) == [None]
        _, recovered = self.reopen(store)
        assert recovered.graphs is False

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
