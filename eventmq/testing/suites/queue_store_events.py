"""Conformance tests of queue stores: the event log."""

# ruff: noqa: D102, PLR2004, S101 - suites assert; names are sentences, and numbers the point

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from eventmq.events import SCHEMA_VERSION, EventKind, rows_of
from eventmq.job import JobState
from eventmq.store.reads import EventLogHead, ReadEvents
from eventmq.store.writes import (
    Act,
    Admit,
    ApplyToJobs,
    Attempt,
    AuditFields,
    BeginBulkOperation,
    BulkOperation,
    ContinueBulkOperation,
    Finish,
    Operation,
    Promote,
    RecordEvents,
    RecordOperation,
    Requeue,
    RequeueReason,
    SealEvents,
)
from eventmq.testing.suites.queue_store_recovery import ENDS, StoreHarness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import QueueStore

__all__ = ["EventTests"]

_UNLIMITED = 1 << 30


class EventTests(StoreHarness):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    def events(self, store: QueueStore, after: int = 0) -> list[Mapping[str, Any]]:
        """Return the events after a number."""
        rows, _ = self.commit(store, ReadEvents(after, _UNLIMITED))[0]
        events = [row for first, _, body in rows for row in rows_of("b", first, body)]
        return [row for row in events if row["seq"] > after]

    def kinds(self, store: QueueStore, after: int = 0) -> list[tuple[str, str]]:
        """Return (kind, job id) of the events after a number."""
        return [(row["kind"], row["job_id"]) for row in self.events(store, after)]

    def head(self, store: QueueStore) -> EventLogHead:
        """Return the head of the event log."""
        return cast("EventLogHead", self.commit(store, ReadEvents(0, 1))[0][1])

    def test_a_new_store_has_no_events(self) -> None:
        store, recovered = self.open()
        assert recovered.next_event == 1
        assert self.commit(store, ReadEvents(0, 100)) == [([], EventLogHead(1, 1))]

    def test_a_job_without_incidents_has_two_events(self, store: QueueStore) -> None:
        """The second one describes its run."""
        (job,) = self.admitted(store, 1, body=b"12345")
        job.delivery = 1
        now = self.clock.now()
        self.commit(store, Finish([self.end(job, result=b"123")], now - 3.0))
        began, ended = self.events(store)
        assert (began["seq"], began["kind"], began["bytes_in"]) == (1, "enqueued", 5)
        assert began["ts_us"] == int(job.created * 1e6)
        assert ended == {
            "broker_id": "b", "seq": 2, "ts_us": int(now * 1e6), "kind": "succeeded",
            "job_id": job.id, "task": "t", "queue": "q", "attempt": 1, "delivery": 1,
            "worker_id": "worker-1", "wait_us": 0, "run_us": 1_500_000, "bytes_out": 3,
            "schema_version": SCHEMA_VERSION, "leased_us": int((now - 3.0) * 1e6),
            "started_us": int((now - 2.0) * 1e6),
        }  # fmt: skip

    def test_each_outcome_has_an_event_kind(self, store: QueueStore) -> None:
        """Succeeded, failed, cancelled and expired."""
        jobs = self.admitted(store, len(ENDS))
        self.finish(store, *map(self.end, jobs, ENDS))
        expected = sorted((end.value, job.id) for job, end in zip(jobs, ENDS, strict=True))
        assert sorted(self.kinds(store, len(ENDS))) == expected

    def test_a_write_without_effect_makes_no_event(self, store: QueueStore) -> None:
        """Such as an outcome for a job that has ended, or a read."""
        (job,) = self.admitted(store, 1)
        self.finish(store, self.end(job))
        requeue = Requeue([job], (), [RequeueReason(EventKind.LEASE_LOST)], self.clock.now())
        self.commit(store, Finish([self.end(job)]), requeue, ReadEvents(0, 1))
        assert [kind for kind, _ in self.kinds(store)] == ["enqueued", "succeeded"]

    def test_a_known_id_makes_an_event_of_kind_duplicate(self, store: QueueStore) -> None:
        (job,) = self.admitted(store, 1)
        other = self.job()
        self.commit(store, Admit([self.job(id=job.id), other]))
        assert set(self.kinds(store, 1)) == {("duplicate", job.id), ("enqueued", other.id)}

    def test_a_delayed_job_has_an_event_now_and_when_its_time_has_come(
        self, store: QueueStore
    ) -> None:
        """``delayed``, then ``enqueued``."""
        job = self.delayed(5.0)
        self.commit(store, Admit([job]))
        self.clock.advance(6.0)
        self.commit(store, Promote(self.clock.now(), 10))
        first, second = self.events(store)
        assert (first["kind"], first["due_us"]) == ("delayed", int(job.ready_at * 1e6))
        assert (second["kind"], second["ts_us"]) == ("enqueued", int(self.clock.now() * 1e6))

    def test_requeued_jobs_have_events_with_the_reason(self, store: QueueStore) -> None:
        """They describe the lease that has ended and, for a retry, the failed attempt."""
        jobs = self.admitted(store, 3)
        now = self.clock.now()
        for job in jobs:
            job.delivery = 1
        jobs[0].state, jobs[0].attempt, jobs[0].ready_at = JobState.DELAYED, 2, now + 9.0
        failure = Attempt(jobs[0].id, 1, 1, now, now - 1.0, 0.5, "w:1", "e", b"??")
        reasons = [
            RequeueReason(kind)
            for kind in (EventKind.RETRY, EventKind.LEASE_LOST, EventKind.HANDED_BACK)
        ]
        self.commit(store, Requeue(jobs, [failure], reasons, now, "w:1", now - 2.0, [now - 4.0]))
        events = self.events(store, 3)
        assert [row["kind"] for row in events] == ["retry", "lease_lost", "handed_back"]
        assert {(row["host"], row["leased_us"]) for row in events} == {("w", int((now - 2) * 1e6))}
        assert [row["attempt"] for row in events] == [1, 1, 1]
        assert (events[0]["due_us"], events[0]["run_us"]) == (int((now + 9.0) * 1e6), 500_000)
        assert [row.get("wait_us") for row in events] == [3_000_000, None, None]

    def test_operations_of_operators_make_events(self, store: QueueStore) -> None:
        """On jobs by id, and in bulk. Dropping makes none: the job has ended before."""
        waiting, failed, in_bulk = self.admitted(store, 3)
        self.finish(store, *(self.end(job, JobState.FAILED) for job in (failed, in_bulk)))
        at = self.clock.now()
        audit = AuditFields(at, 60.0, "e", b"no", seq=1000, step=60.0)
        for write in (
            ApplyToJobs("cancel", [waiting.id], audit),
            ApplyToJobs("retry", [failed.id], audit),
            BeginBulkOperation(BulkOperation("s", Operation("retry"), at, 999)),
            ContinueBulkOperation("s", audit._replace(seq=2000), frozenset(), 10),
        ):
            self.commit(store, write)
        assert self.kinds(store, 5) == [
            ("cancelled", waiting.id), ("replayed", failed.id), ("replayed", in_bulk.id),
        ]  # fmt: skip
        assert [row["attempt"] for row in self.events(store, 6)] == [2, 2]

    def test_recorded_events_are_in_the_log(self, store: QueueStore) -> None:
        (job,) = self.admitted(store, 1)
        now = self.clock.now()
        write = RecordEvents(EventKind.LEASED, [job], now, "w:1", now - 9.0)
        assert self.commit(store, write) == [None]
        (row,) = self.events(store, 1)
        assert (row["kind"], row["worker_id"]) == ("leased", "w:1")
        assert row["leased_us"] == int((now - 9.0) * 1e6)

    def test_who_acted_is_in_the_log(self, store: QueueStore) -> None:
        """An act on a queue is of no job; what an act on jobs caused says who did it as well."""
        one, two = self.admitted(store, 2)
        now = self.clock.now()
        pause, cancel = Act("pause", "anna", now), Act("cancel", "bob", now)
        assert self.commit(store, RecordOperation(pause, "q")) == [None]
        self.commit(store, ApplyToJobs("cancel", [one.id], AuditFields(now, 60.0, act=cancel)))
        self.commit(store, ApplyToJobs("cancel", [two.id], AuditFields(now, 60.0)))
        names = ("kind", "operation", "actor", "job_id")
        assert [tuple(row.get(name) for name in names) for row in self.events(store, 2)] == [
            ("operation", "pause", "anna", None), ("operation", "cancel", "bob", one.id),
            ("cancelled", "cancel", "bob", one.id), ("cancelled", None, None, two.id),
        ]  # fmt: skip

    # Numbers

    def test_a_commit_that_fails_leaves_no_event_and_no_gap(self, store: QueueStore) -> None:
        (job,) = self.admitted(store, 1)
        self.fail(store, Finish([self.end(job)]))
        self.finish(store, self.end(job))
        assert [row["seq"] for row in self.events(store)] == [1, 2]

    def test_numbers_go_on_when_the_store_is_opened_again(self, store: QueueStore) -> None:
        jobs = self.admitted(store, 3)
        store, recovered = self.reopen(store)
        assert recovered.next_event == 4
        self.finish(store, *map(self.end, jobs))
        assert [row["seq"] for row in self.events(store)] == [1, 2, 3, 4, 5, 6]

    def test_events_are_read_after_a_number_and_in_whole_rows(self, store: QueueStore) -> None:
        """At least one row, even if it is larger than the requested number of bytes."""
        for n in (3, 2, 4):
            self.admitted(store, n)
        rows, head = self.commit(store, ReadEvents(0, 1))[0]
        assert [row[:2] for row in rows] == [(1, 3)]
        assert head == EventLogHead(1, 10)
        for after, firsts in ((2, [1, 4, 6]), (3, [4, 6]), (5, [6]), (8, [6]), (9, []), (99, [])):
            rows = self.commit(store, ReadEvents(after, _UNLIMITED))[0][0]
            assert [row.first for row in rows] == firsts, after

    def test_the_event_log_can_be_read_beside_the_broker_or_there_is_no_reader(
        self, store: QueueStore
    ) -> None:
        """A reader sees what was committed; a store that cannot have one returns None."""
        self.admitted(store, 3)
        reader = store.event_log()
        if reader is None:
            return
        rows, head = reader.read(0, _UNLIMITED)
        assert rows == self.commit(store, ReadEvents(0, _UNLIMITED))[0][0]
        assert head == self.head(store)
        assert reader.store_id
        assert isinstance(reader.addresses(), dict)
        self.admitted(store, 2)
        assert [row[:2] for row in reader.read(3, _UNLIMITED)[0]] == [(4, 2)]
        reader.close()
        reader.close()

    # Sealing

    def seal(self, store: QueueStore, sealed: int, journal: str = "j") -> tuple[EventLogHead, bool]:
        """Record that a journal has the events up to a number."""
        write = SealEvents(journal, sealed, self.clock.now(), 30.0)
        return cast("tuple[EventLogHead, bool]", self.commit(store, write)[0])

    def test_events_that_a_journal_has_are_pruned(self, store: QueueStore) -> None:
        """By a later commit; numbers continue, even after a restart."""
        for n in (3, 2, 4):
            self.admitted(store, n)
        head, refused = self.seal(store, 6)
        assert (head.next, head.journal, head.sealed, refused) == (10, "j", 6, False)
        self.admitted(store, 1)
        assert self.head(store) == EventLogHead(6, 11, "j", 6)
        assert [row["seq"] for row in self.events(store, 6)] == [7, 8, 9, 10]
        self.seal(store, 10)
        self.commit(store, Admit([]))
        assert self.head(store).next == 11
        store, recovered = self.reopen(store)
        assert recovered.next_event == 11
        assert self.head(store)[2:] == ("j", 10)

    def test_a_second_journal_is_refused_until_the_first_is_silent(self, store: QueueStore) -> None:
        self.admitted(store, 4)
        self.seal(store, 2)
        assert self.seal(store, 0, "other") == (EventLogHead(1, 5, "j", 2), True)
        assert self.seal(store, 3) == (EventLogHead(1, 5, "j", 3), False)
        self.clock.advance(31.0)
        assert self.seal(store, 0, "other") == (EventLogHead(1, 5, "other", 0), False)

    def test_a_journal_that_comes_too_late_gets_a_gap_event(self, store: QueueStore) -> None:
        """It has the first and the last number that are missing."""
        for _ in range(3):
            self.admitted(store, 2)
        self.seal(store, 4)
        self.admitted(store, 1)
        self.clock.advance(31.0)
        self.seal(store, 1, "other")
        self.commit(store, Admit([]))
        row = self.events(store)[-1]
        assert (row["kind"], row["gap_first"], row["gap_last"]) == ("gap", 2, 4)
        assert "job_id" not in row

    def test_a_journal_with_more_events_than_the_store_changes_nothing(
        self, store: QueueStore
    ) -> None:
        """It is a journal of another history of this store."""
        self.admitted(store, 2)
        assert self.seal(store, 3) == (EventLogHead(1, 3), False)
        assert self.seal(store, 2) == (EventLogHead(1, 3, "j", 2), False)
