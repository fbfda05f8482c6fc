"""Conformance tests of queue stores: opening, restarts, time, chunks, and commits that fail.

`StoreHarness` has the helpers of all tests of queue stores: make jobs, commit, reopen.
"""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

import select
import time
from collections import Counter
from itertools import count, pairwise
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from eventmq.errors import StoreError
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.store.lease import Claimant
from eventmq.store.reads import FindJobs
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import (
    Admit,
    Chunk,
    CloseChunk,
    Finish,
    Finished,
    KeepTime,
    LeaseChunk,
    LimitRow,
    Promote,
    Requeue,
    SaveLimits,
    SaveSuspects,
    SubqueueKey,
    SuspectEnd,
    SuspectRow,
    WriteResult,
)
from eventmq.testing.clock import FakeClock
from eventmq.timekeeping import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eventmq.clock import Clock
    from eventmq.interfaces import QueueStore
    from eventmq.store import Write
    from eventmq.store.reads import JobRow
    from eventmq.store.recovery import Recovered

__all__ = ["ENDS", "RecoveryTests", "StoreHarness", "fields"]

#: The states in which a job has ended.
ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)


#: Seconds until a commit has failed.
_DEADLINE = 30.0

_JOB_FIELDS = [
    "id",
    "queue",
    "headers",
    "body",
    "seq",
    "rank",
    "state",
    "attempt",
    "delivery",
    "ready_at",
    "expires",
    "created",
    "deaths",
    "eta",
]


class StoreHarness:
    """Opens stores on one path, and commits to them."""

    #: Seconds during which the id of an ended job is refused; results are kept no longer.
    dedupe_window = 86_400.0
    #: Whether the data is still there when the path is opened again.
    durable = True

    def open_store(self, path: Path, clock: Clock) -> QueueStore:
        """Return a store on a directory, not opened, with `dedupe_window`."""
        raise NotImplementedError(
            "define open_store() in your subclass: it returns your queue store, not opened"
        )

    @pytest.fixture(autouse=True)
    def _around(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path
        self.clock = FakeClock()
        self.ids = IdFactory(self.clock)
        self.numbers = count(1)
        self.stores: list[QueueStore] = []
        yield
        for store in self.stores:
            store.close()

    def begin(self) -> QueueStore:
        """Return an open store."""
        return self.open()[0]

    @pytest.fixture
    def store(self) -> QueueStore:
        """Return an open store, the only one of its test."""
        return self.begin()

    def open(self) -> tuple[QueueStore, Recovered]:
        """Open the path; the store is closed after the test."""
        store = self.open_store(self.path, self.clock)
        self.stores.append(store)
        if store.ownership is not None:
            lease = store.ownership.look()
            assert store.ownership.claim(lease, Claimant("suite", "tcp://127.0.0.1:47291"))
        return store, store.open()

    def reopen(self, store: QueueStore) -> tuple[QueueStore, Recovered]:
        """Close the store and open its path again, as a restarted broker does."""
        if not self.durable:
            pytest.skip("this store keeps nothing beyond its process")
        store.close()
        return self.open()

    def wait(self, store: QueueStore, batches: int) -> list[Sequence[Any] | Exception]:
        """Wait for a number of batches; return their write results."""
        results: list[Sequence[Any] | Exception] = []
        deadline = time.monotonic() + _DEADLINE
        while len(results) < batches:
            assert time.monotonic() < deadline, "the store did not finish a commit"
            descriptor = store.fileno()
            if descriptor is not None:
                select.select([descriptor], [], [], 1.0)
            results += store.finished()
        assert len(results) == batches, "the store returned more results than there were commits"
        return results

    def commit(self, store: QueueStore, *writes: Write) -> Sequence[Any]:
        """Commit one batch and return its write results; a failure fails the test."""
        store.submit(writes)
        (write_results,) = self.wait(store, 1)
        assert not isinstance(write_results, Exception), f"the commit failed: {write_results!r}"
        assert len(write_results) == len(writes), "there must be one result per write"
        return write_results

    def fail(self, store: QueueStore, *writes: Write) -> None:
        """Commit writes and one that no store knows, and expect the failure as the result."""
        store.submit([*writes, cast("Any", object())])
        assert isinstance(self.wait(store, 1)[0], Exception), "a commit with a bad write succeeded"

    # Jobs

    def job(self, **changes: Any) -> JobRecord:
        """Return a new job, with the next number and id."""
        number = next(self.numbers)
        values: dict[str, Any] = {
            "id": self.ids.new(),
            "queue": "q",
            "headers": "task:t,content-type:json",
            "body": b"[%d]" % number,
            "seq": number,
            "rank": number,
            "created": self.clock.now(),
        }
        return JobRecord(**(values | changes))

    def delayed(self, countdown: float, **changes: Any) -> JobRecord:
        """Return a job that is ready ``countdown`` seconds from now."""
        return self.job(state=JobState.DELAYED, ready_at=self.clock.now() + countdown, **changes)

    def admitted(self, store: QueueStore, n: int, **changes: Any) -> list[JobRecord]:
        """Admit ``n`` jobs and return them."""
        jobs = [self.job(**changes) for _ in range(n)]
        assert self.commit(store, Admit(jobs)) == [{}]
        return jobs

    def end(
        self,
        job: JobRecord,
        state: JobState = JobState.SUCCEEDED,
        *,
        ttl: float = 60.0,
        result: bytes = b"r",
    ) -> Finished:
        """Return the outcome of a job that ends now."""
        now = self.clock.now()
        return Finished(job, state, now, ttl, "json", result, now - 2.0, 1.5, "worker-1")

    def finish(self, store: QueueStore, *rows: Finished) -> Any:
        """Commit outcomes of jobs, and return the write result."""
        return self.commit(store, Finish(rows))[0]

    def find(self, store: QueueStore, *jobs: JobRecord) -> dict[str, JobRow]:
        """Find jobs; return their rows by id."""
        rows = self.commit(store, FindJobs([job.id for job in jobs]))[0]
        return cast("dict[str, JobRow]", rows)

    def state(self, store: QueueStore, job: JobRecord) -> JobState | None:
        """Return the state of a job, None where it is unknown."""
        rows = self.find(store, job)
        return rows[job.id].job.state if rows else None

    def states(self, store: QueueStore, jobs: Sequence[JobRecord]) -> list[str]:
        """Return the states of jobs, all of them known."""
        rows = self.find(store, *jobs)
        return [rows[job.id].job.state.value for job in jobs]

    def counts(self, store: QueueStore) -> QueueCounts:
        """Return the counts of the queue after a restart."""
        return self.reopen(store)[1].counts["q"]


def fields(job: JobRecord) -> dict[str, Any]:
    """Return a job's fields, for comparison."""
    return {name: getattr(job, name) for name in _JOB_FIELDS}


class RecoveryTests(StoreHarness):
    """Part of `eventmq.testing.QueueStoreSuite`."""

    #: Whether several stores may have one path open.
    shared = False

    # Opening

    def test_a_new_store_is_empty(self) -> None:
        """It has an id, an epoch and a first number."""
        _, recovered = self.open()
        assert recovered.store_id
        assert recovered.epoch >= 1
        assert recovered.next_seq >= 1
        assert (recovered.counts, recovered.chunks, recovered.next_ready_at) == ({}, [], None)

    def test_a_store_of_one_process_has_no_ownership(self) -> None:
        """Only a store that several brokers can have open says which of them owns it."""
        store, _ = self.open()
        assert self.shared or store.ownership is None

    def test_verify_passes_while_the_store_is_in_place(self, store: QueueStore) -> None:
        """It passes after opening and after a commit; the broker calls it once a second."""
        store.verify()
        self.admitted(store, 3)
        store.verify()

    def test_token_buckets_survive_a_restart(self) -> None:
        """They have their last values, until they would be full anyway."""
        store, recovered = self.open()
        assert recovered.limiters == []
        now = self.clock.now()
        first = LimitRow(SubqueueKey("t"), 2.5, now, 60.0)
        second = LimitRow(SubqueueKey("t", "key,:%"), 0.25, now, 3600.0)
        assert self.commit(store, SaveLimits([first, second._replace(tokens=9.0)])) == [None]
        self.commit(store, SaveLimits([second]), SaveLimits([]))
        store, recovered = self.reopen(store)
        assert sorted(recovered.limiters) == [first, second]
        self.clock.advance(61.0)
        assert self.reopen(store)[1].limiters == [second]

    def test_suspects_survive_a_restart(self) -> None:
        """They have their last values; those of ended jobs are deleted."""
        store, recovered = self.open()
        assert recovered.suspects == []
        first, second, third = self.admitted(store, 3)
        end = SuspectEnd(7, 2, "session", 4)
        rows = [
            SuspectRow(first.seq, 1, 2, 3, 4, [end]), SuspectRow(second.seq, 1),
            SuspectRow(third.seq, 1), SuspectRow(third.seq + 1000, 1),
        ]  # fmt: skip
        assert self.commit(store, SaveSuspects(rows)) == [None]
        changed = SuspectRow(first.seq, 5, 6, 7, 0, [end, end._replace(delivery=8)])
        self.commit(store, SaveSuspects([changed], [second.seq], [(second.seq, 2)]))
        self.finish(store, self.end(third))
        store, recovered = self.reopen(store)
        assert recovered.suspects == [changed._replace(queue=first.queue, id=first.id)]
        assert [row.job.deaths for row in self.find(store, first, second).values()] == [0, 2]

    def test_subqueues_with_queued_jobs_survive_a_restart(self, store: QueueStore) -> None:
        """They have queue, task and limit key; a subqueue without queued jobs does not survive."""
        self.admitted(store, 2, headers="content-type:json,task:t,limit-key:k%2C")
        self.admitted(store, 2, headers="task:plain")
        [ended] = self.admitted(store, 1, headers="content-type:json,task:t,limit-key:ended")
        self.finish(store, self.end(ended))
        recovered = self.reopen(store)[1]
        subqueues = [(queue, subqueue) for queue, subqueue, _ in recovered.subqueues]
        assert sorted(subqueues, key=str) == [
            ("q", SubqueueKey("t", "k,")),
            ("q", SubqueueKey(None)),
        ]

    def test_each_restart_has_a_larger_epoch(self) -> None:
        """The id of the store stays, and no number is used twice."""
        store, recovered = self.open()
        recoveries = [recovered]
        for _ in range(3):
            jobs = self.admitted(store, 2)
            self.finish(store, self.end(jobs[0], JobState.FAILED))
            store, recovered = self.reopen(store)
            recoveries.append(recovered)
            assert recovered.next_seq > jobs[1].seq
        assert all(before.epoch < after.epoch for before, after in pairwise(recoveries))
        assert len({recovered.store_id for recovered in recoveries}) == 1

    def test_jobs_survive_a_restart(self, store: QueueStore) -> None:
        """Waiting, delayed, ended and failed ones, with every field and outcome."""
        jobs = [*self.admitted(store, 5, body=b"\x00body"), self.delayed(50.0)]
        self.commit(store, Admit(jobs[-1:]))
        self.finish(store, self.end(jobs[0]), self.end(jobs[1], JobState.FAILED))
        jobs[2].delivery = 9
        self.commit(store, Requeue(jobs[2:3]))
        before = {key: (fields(f.job), f[1:]) for key, f in self.find(store, *jobs).items()}
        assert len(before) == len(jobs)
        store, recovered = self.reopen(store)
        after = {key: (fields(f.job), f[1:]) for key, f in self.find(store, *jobs).items()}
        assert after == before
        assert (recovered.next_ready_at, recovered.next_expiry) == (jobs[-1].ready_at, None)
        duplicates = [self.job(id=job.id) for job in jobs]
        states = ["succeeded", "failed", "queued", "queued", "queued", "delayed"]
        assert self.commit(store, Admit(duplicates)) == [
            {i: WriteResult("same_id", state) for i, state in enumerate(states)}
        ]

    # Time

    @pytest.mark.parametrize("step", [400 * 86_400.0, -365 * 86_400.0])
    def test_store_time_continues_over_a_restart_whatever_the_wall_clock_does(
        self, step: float
    ) -> None:
        """In the same boot it follows boot time, which includes the machine's sleep."""
        store, recovered = self.open()
        begin = recovered.keeper.now
        self.clock.advance(5.0)
        self.commit(store, KeepTime())
        assert recovered.keeper.now == begin + 5.0
        self.clock.sleep(100.0)
        self.clock.set_now(self.clock.now() + step)
        keeper = self.reopen(store)[1].keeper
        assert (keeper.now, keeper.wall) == (begin + 105.0, begin + 105.0)
        assert keeper.status()["step"] == step

    @pytest.mark.parametrize("off", [60.0, 7 * 86_400.0])
    def test_after_another_boot_at_most_an_hour_of_store_time_has_passed(self, off: float) -> None:
        """The remaining time is unconfirmed, over further boots too, until it is accepted."""
        store, recovered = self.open()
        begin = recovered.keeper.now
        self.commit(store, KeepTime())
        self.clock.reboot(off)
        store, recovered = self.reopen(store)
        assert recovered.keeper.now == begin + min(off, AT_ONCE)
        self.clock.reboot(0.0)
        store, recovered = self.reopen(store)
        assert recovered.keeper.status()["unconfirmed"] == max(0.0, off - AT_ONCE)
        recovered.keeper.accept()
        self.commit(store, KeepTime())
        assert recovered.keeper.now == begin + off
        keeper = self.reopen(store)[1].keeper
        assert keeper.now == begin + off
        assert not any(keeper.status().values())

    def test_jobs_with_an_eta_are_ready_by_wall_time_and_ranked_by_it(
        self, store: QueueStore
    ) -> None:
        """Jobs with a countdown are ready by store time, however far the two are apart."""
        now = self.clock.now()
        waits = self.delayed(100.0)
        at = self.delayed(50.0, eta=now + 50.0, rank=int((now + 50.0) * 1e6))
        self.commit(store, Admit([waits, at]))
        write = Promote(now + 10.0, 10, ahead=1000.0, since=now + 5.0)
        [([job], next_ready_at)] = self.commit(store, write)
        assert (job.id, job.ready_at, job.rank) == (at.id, now + 5.0, int((now + 5.0) * 1e6))
        assert next_ready_at == now + 100.0
        [(jobs, next_ready_at)] = self.commit(store, Promote(now + 100.0, 10, ahead=-1e9))
        assert ([job.id for job in jobs], next_ready_at) == ([waits.id], None)

    def test_a_second_owner_is_refused(self) -> None:
        """Two brokers on one data directory would dispatch every job twice."""
        if self.shared or not self.durable:
            pytest.skip("this store may be opened more than once")
        self.begin()
        with pytest.raises(StoreError):
            self.open()

    def test_closing_twice_is_legal(self, store: QueueStore) -> None:
        """Closing a store that was never opened is legal as well."""
        store.close()
        store.close()
        self.open_store(self.path, self.clock).close()

    # Chunks

    def test_open_chunks_are_recovered_with_jobs_and_deliveries(self, store: QueueStore) -> None:
        """After a restart of the broker, these jobs wait for their sessions."""
        jobs = self.admitted(store, 6)
        leases = [(job, position + 1) for position, job in enumerate(jobs)]
        chunks = [
            Chunk("s1", 1, leases[:2]),
            Chunk("s1", 2, leases[2:3]),
            Chunk("s2", 1, leases[3:], leased=12.5),
        ]
        assert self.commit(store, *map(LeaseChunk, chunks)) == [{}, {}, {}]
        assert self.commit(store, CloseChunk("s1", 2), CloseChunk("unknown", 7)) == [{}, {}]
        recovered = self.reopen(store)[1]
        assert self.leased(recovered) == {
            ("s1", 1): [(jobs[0].id, 1), (jobs[1].id, 2)],
            ("s2", 1): [(jobs[3].id, 4), (jobs[4].id, 5), (jobs[5].id, 6)],
        }
        assert [chunk.leased for chunk in recovered.chunks] == [0.0, 12.5]

    def test_an_ended_job_keeps_its_position_in_its_chunk(self, store: QueueStore) -> None:
        """Workers answer by position, so positions must not change."""
        jobs = self.admitted(store, 4)
        self.commit(store, LeaseChunk(Chunk("s", 1, [(job, 1) for job in jobs])))
        self.finish(store, self.end(jobs[0]), self.end(jobs[2], JobState.FAILED))
        recovered = self.reopen(store)[1]
        assert self.leased(recovered) == {("s", 1): [None, (jobs[1].id, 1), None, (jobs[3].id, 1)]}
        assert list(recovered.chunks[0].ids) == [job.id for job in jobs]

    def test_chunks_survive_several_restarts_until_they_are_closed(self, store: QueueStore) -> None:
        """A broker may restart again before a session has come back."""
        (job,) = self.admitted(store, 1)
        self.commit(store, LeaseChunk(Chunk("s", 1, [(job, 1)])))
        store, _ = self.reopen(store)
        store, recovered = self.reopen(store)
        assert self.leased(recovered) == {("s", 1): [(job.id, 1)]}
        self.commit(store, CloseChunk("s", 1))
        assert self.reopen(store)[1].chunks == []

    def test_a_job_that_was_handed_back_has_left_its_chunk(self, store: QueueStore) -> None:
        """The other jobs of the chunk stay leased; the job may be leased again."""
        jobs = self.admitted(store, 2)
        self.commit(store, LeaseChunk(Chunk("s1", 1, [(job, 1) for job in jobs])))
        jobs[0].delivery = 1
        self.commit(store, Requeue(jobs[:1]), LeaseChunk(Chunk("s2", 1, [(jobs[0], 2)])))
        expected = {("s1", 1): [None, (jobs[1].id, 1)], ("s2", 1): [(jobs[0].id, 2)]}
        assert self.leased(self.reopen(store)[1]) == expected

    def test_the_numbers_of_ended_jobs_in_open_chunks_are_not_used_again(
        self, store: QueueStore
    ) -> None:
        """Otherwise a late answer to an old chunk would end a new job."""
        jobs = self.admitted(store, 2)
        self.commit(store, LeaseChunk(Chunk("s1", 1, [(job, 1) for job in jobs])))
        self.finish(store, self.end(jobs[1]))
        assert self.reopen(store)[1].next_seq > jobs[1].seq

    def leased(self, recovered: Recovered) -> dict[tuple[str, int], list[tuple[str, int] | None]]:
        """Return (session, number) -> (id, delivery) or None by position."""
        return {
            (c.session, c.number): [(job.id, n) if job else None for job, n in c.leases]
            for c in recovered.chunks
        }

    # Commits

    def test_results_come_in_the_order_of_submission(self, store: QueueStore) -> None:
        """Several commits may be in flight."""
        job = self.job()
        store.submit([Admit([job])])
        store.submit([Admit([self.job(id=job.id)]), FindJobs([job.id])])
        store.submit([Finish([self.end(job)])])
        first, (refused, rows), third = cast("list[Sequence[Any]]", self.wait(store, 3))
        assert (list(first), list(third)) == ([{}], [{}])
        assert refused == {0: WriteResult("same_id", "queued")}
        assert list(rows) == [job.id]
        assert store.finished() == []

    def test_writes_see_what_those_before_them_wrote(self, store: QueueStore) -> None:
        """A batch is one transaction; its writes are applied in order."""
        job = self.job()
        _, rows, _ = self.commit(store, Admit([job]), FindJobs([job.id]), Finish([self.end(job)]))
        assert list(rows) == [job.id]
        assert self.state(store, job) is JobState.SUCCEEDED

    def test_a_commit_that_fails_changes_nothing(self, store: QueueStore) -> None:
        """The failure is returned as its result, not raised; other commits are not affected."""
        waiting, ended = self.admitted(store, 2)
        refused = self.job()
        self.fail(store, Admit([refused]), Finish([self.end(ended)]))
        store, recovered = self.reopen(store)
        assert set(self.find(store, waiting, ended, refused)) == {waiting.id, ended.id}
        assert self.state(store, ended) is JobState.QUEUED
        assert recovered.counts == {"q": QueueCounts(queued=2)}
        assert self.commit(store, Admit([refused])) == [{}]

    def test_many_jobs_in_one_commit(self, store: QueueStore) -> None:
        """The number is that of a tick under load."""
        jobs = self.admitted(store, 3000)
        assert self.finish(store, *map(self.end, jobs)) == {}
        assert {f.job.state for f in self.find(store, *jobs).values()} == {JobState.SUCCEEDED}

    # Counts

    def test_counts_follow_every_change(self, store: QueueStore) -> None:
        """Compared with a simple model over random changes; seeded, so a failure repeats."""
        random = Random(20250101)
        alive: dict[str, JobRecord] = {}
        failed: Counter[str] = Counter()
        for step in range(120):
            fresh = [self.any_job(random) for _ in range(random.randint(0, 4))]
            alive |= {job.id: job for job in fresh}
            ending = [alive.pop(i) for i in random.sample(sorted(alive), min(len(alive), 2))]
            rows = [self.end(job, random.choice(ENDS)) for job in ending]
            failed.update(row.job.queue for row in rows if row.state is JobState.FAILED)
            requeued = [alive[i] for i in random.sample(sorted(alive), min(len(alive), 2))]
            for job in requeued:
                job.state = JobState.QUEUED if job.state is JobState.DELAYED else JobState.DELAYED
            self.commit(store, Admit(fresh), Finish(rows), Requeue(requeued))
            if step % 40 == 39 and self.durable:  # noqa: PLR2004 - some of the steps
                store, recovered = self.reopen(store)
                waiting = Counter((job.queue, job.state) for job in alive.values())
                for queue in "abc":
                    assert recovered.counts.get(queue, QueueCounts()) == QueueCounts(
                        queued=waiting[queue, JobState.QUEUED],
                        delayed=waiting[queue, JobState.DELAYED],
                        failed=failed[queue],
                    )

    def any_job(self, random: Random) -> JobRecord:
        """Return a job of one of three queues, delayed or not."""
        queue = random.choice("abc")
        return self.delayed(50.0, queue=queue) if random.random() < 0.3 else self.job(queue=queue)  # noqa: PLR2004
