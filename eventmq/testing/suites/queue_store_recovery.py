"""Conformance tests of queue stores: opening, restarts, time, chunks, and commits that fail."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import StoreError
from eventmq.job import JobState
from eventmq.store.reads import FindJobs
from eventmq.store.recovery import QueueCounts
from eventmq.store.writes import (
    Admit,
    Chunk,
    CloseChunk,
    Finish,
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
from eventmq.testing.suites.store_harness import StoreHarness, fields
from eventmq.timekeeping import AT_ONCE

if TYPE_CHECKING:
    from eventmq.job import JobRecord
    from eventmq.store.recovery import Recovered

__all__ = ["RecoveryTests"]


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

    def test_verify_passes_while_the_store_is_in_place(self) -> None:
        """After it was opened, and after a commit; the broker calls it once a second."""
        store, _ = self.open()
        store.verify()
        self.admitted(store, 3)
        store.verify()

    def test_token_buckets_survive_a_restart(self) -> None:
        """With their last values, until they would be full anyway."""
        store, recovered = self.open()
        assert recovered.limiters == []
        now = self.clock.now()
        first = LimitRow(SubqueueKey("t"), 2.5, now, 60.0)
        second = LimitRow(SubqueueKey("t", "key,:%"), 0.25, now, 3600.0)
        write_results = self.commit(store, SaveLimits([first, second._replace(tokens=9.0)]))
        assert write_results[0] is None
        self.commit(store, SaveLimits([second]), SaveLimits([]))
        store, recovered = self.reopen(store)
        assert sorted(recovered.limiters) == [first, second]
        self.clock.advance(61.0)
        store, recovered = self.reopen(store)
        assert recovered.limiters == [second]

    def test_suspects_survive_a_restart(self) -> None:
        """With their last values; those of ended jobs are deleted."""
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
        stored = self.find(store, first, second)
        assert [stored[job.id].job.deaths for job in (first, second)] == [0, 2]

    def test_subqueues_with_queued_jobs_survive_a_restart(self) -> None:
        """With queue, task and limit key; a subqueue without queued jobs does not."""
        store = self.begin()
        self.admitted(store, 2, headers="content-type:json,task:t,limit-key:k%2C")
        self.admitted(store, 2, headers="task:plain")
        [ended] = self.admitted(store, 1, headers="content-type:json,task:t,limit-key:ended")
        self.finish(store, self.end(ended))
        _, recovered = self.reopen(store)
        subqueues = [(queue, subqueue) for queue, subqueue, _ in recovered.subqueues]
        assert sorted(subqueues, key=str) == [
            ("q", SubqueueKey("t", "k,")),
            ("q", SubqueueKey(None)),
        ]

    def test_each_restart_has_a_larger_epoch(self) -> None:
        """The id of the store stays, and no number is used twice."""
        store, recovered = self.open()
        seen = [recovered]
        for _ in range(3):
            jobs = self.admitted(store, 2)
            self.finish(store, self.end(jobs[0], JobState.FAILED))
            store, recovered = self.reopen(store)
            seen.append(recovered)
            assert recovered.next_seq > jobs[1].seq
        epochs = [recovered.epoch for recovered in seen]
        assert epochs == sorted(set(epochs))
        assert len({recovered.store_id for recovered in seen}) == 1

    def test_jobs_survive_a_restart(self) -> None:
        """Waiting, delayed, ended and failed ones, with every field and outcome."""
        store = self.begin()
        jobs = [*self.admitted(store, 5, body=b"\x00body"), self.delayed(50.0)]
        self.commit(store, Admit(jobs[-1:]))
        self.finish(store, self.end(jobs[0]), self.end(jobs[1], JobState.FAILED))
        jobs[2].delivery = 9
        self.commit(store, Requeue(jobs[2:3]))
        before = {key: (fields(f.job), f[1:]) for key, f in self.find(store, *jobs).items()}
        store, recovered = self.reopen(store)
        after = {key: (fields(f.job), f[1:]) for key, f in self.find(store, *jobs).items()}
        assert len(after) == len(jobs)
        assert after == before
        assert recovered.next_ready_at == jobs[-1].ready_at
        assert recovered.next_expiry is None
        again = [self.job(id=job.id) for job in jobs]
        states = ["succeeded", "failed", "queued", "queued", "queued", "delayed"]
        expected = {i: WriteResult("same_id", state) for i, state in enumerate(states)}
        assert self.commit(store, Admit(again)) == [expected]

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
        _, recovered = self.reopen(store)
        assert recovered.keeper.now == begin + 105.0
        assert recovered.keeper.wall == begin + 105.0
        assert recovered.keeper.status()["step"] == step

    @pytest.mark.parametrize("off", [60.0, 7 * 86_400.0])
    def test_after_another_boot_at_most_an_hour_of_store_time_has_passed(self, off: float) -> None:
        """The remaining time is unconfirmed, over further boots too, until it is accepted."""
        store, recovered = self.open()
        begin = recovered.keeper.now
        self.commit(store, KeepTime())
        hour, unconfirmed = min(off, AT_ONCE), max(0.0, off - AT_ONCE)
        self.clock.reboot(off)
        store, recovered = self.reopen(store)
        assert recovered.keeper.now == begin + hour
        self.clock.reboot(0.0)
        store, recovered = self.reopen(store)
        assert recovered.keeper.status()["unconfirmed"] == unconfirmed
        recovered.keeper.accept()
        self.commit(store, KeepTime())
        assert recovered.keeper.now == begin + off
        _, recovered = self.reopen(store)
        assert recovered.keeper.now == begin + off
        assert not any(recovered.keeper.status().values())

    def test_jobs_with_an_eta_are_ready_by_wall_time_and_ranked_by_it(self) -> None:
        """Jobs with a countdown are ready by store time, however far the two are apart."""
        store = self.begin()
        now = self.clock.now()
        waits = self.delayed(100.0)
        at = self.delayed(50.0, eta=now + 50.0, rank=int((now + 50.0) * 1e6))
        self.commit(store, Admit([waits, at]))
        write = Promote(now + 10.0, 10, ahead=1000.0, since=now + 5.0)
        [(jobs, next_ready_at)] = self.commit(store, write)
        assert [job.id for job in jobs] == [at.id]
        assert (jobs[0].ready_at, jobs[0].rank) == (now + 5.0, int((now + 5.0) * 1e6))
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

    def test_closing_twice_is_legal(self) -> None:
        """So is closing a store that was never opened."""
        store = self.begin()
        store.close()
        store.close()
        self.open_store(self.path, self.clock).close()

    # Chunks

    def test_open_chunks_are_recovered_with_jobs_and_deliveries(self) -> None:
        """After a restart of the broker, these jobs wait for their sessions."""
        store = self.begin()
        jobs = self.admitted(store, 6)
        leases = [(job, position + 1) for position, job in enumerate(jobs)]
        chunks = [
            Chunk("s1", 1, leases[:2]),
            Chunk("s1", 2, leases[2:3]),
            Chunk("s2", 1, leases[3:], leased=12.5),
        ]
        assert self.commit(store, *map(LeaseChunk, chunks)) == [{}, {}, {}]
        assert self.commit(store, CloseChunk("s1", 2), CloseChunk("unknown", 7)) == [{}, {}]
        _, recovered = self.reopen(store)
        assert self.leased(recovered) == {
            ("s1", 1): [(jobs[0].id, 1), (jobs[1].id, 2)],
            ("s2", 1): [(jobs[3].id, 4), (jobs[4].id, 5), (jobs[5].id, 6)],
        }
        times = [(chunk.session, chunk.leased) for chunk in recovered.chunks]
        assert times == [("s1", 0.0), ("s2", 12.5)]

    def test_an_ended_job_keeps_its_position_in_its_chunk(self) -> None:
        """Workers answer by position, so positions must not change."""
        store = self.begin()
        jobs = self.admitted(store, 4)
        self.commit(store, LeaseChunk(Chunk("s", 1, [(job, 1) for job in jobs])))
        self.finish(store, self.end(jobs[0]), self.end(jobs[2], JobState.FAILED))
        _, recovered = self.reopen(store)
        assert self.leased(recovered) == {("s", 1): [None, (jobs[1].id, 1), None, (jobs[3].id, 1)]}
        assert list(recovered.chunks[0].ids) == [job.id for job in jobs]

    def test_chunks_survive_several_restarts_until_they_are_closed(self) -> None:
        """A broker may restart again before a session has come back."""
        store = self.begin()
        (job,) = self.admitted(store, 1)
        self.commit(store, LeaseChunk(Chunk("s", 1, [(job, 1)])))
        store, _ = self.reopen(store)
        store, recovered = self.reopen(store)
        assert self.leased(recovered) == {("s", 1): [(job.id, 1)]}
        self.commit(store, CloseChunk("s", 1))
        store, recovered = self.reopen(store)
        assert recovered.chunks == []

    def test_a_job_that_was_handed_back_has_left_its_chunk(self) -> None:
        """The other jobs of the chunk stay leased; the job may be leased again."""
        store = self.begin()
        jobs = self.admitted(store, 2)
        self.commit(store, LeaseChunk(Chunk("s1", 1, [(job, 1) for job in jobs])))
        jobs[0].delivery = 1
        self.commit(store, Requeue(jobs[:1]), LeaseChunk(Chunk("s2", 1, [(jobs[0], 2)])))
        _, recovered = self.reopen(store)
        expected = {("s1", 1): [None, (jobs[1].id, 1)], ("s2", 1): [(jobs[0].id, 2)]}
        assert self.leased(recovered) == expected

    def test_the_numbers_of_ended_jobs_in_open_chunks_are_not_used_again(self) -> None:
        """Or a late answer to an old chunk would end a new job."""
        store = self.begin()
        jobs = self.admitted(store, 2)
        self.commit(store, LeaseChunk(Chunk("s1", 1, [(job, 1) for job in jobs])))
        self.finish(store, self.end(jobs[1]))
        _, recovered = self.reopen(store)
        assert recovered.next_seq > jobs[1].seq

    def leased(self, recovered: Recovered) -> dict[tuple[str, int], list[tuple[str, int] | None]]:
        """Return (session, number) -> (id, delivery) or None by position."""
        return {
            (c.session, c.number): [(job.id, n) if job else None for job, n in c.leases]
            for c in recovered.chunks
        }

    # Commits

    def test_results_come_in_the_order_of_submission(self) -> None:
        """Several commits may be in flight."""
        store = self.begin()
        job = self.job()
        store.submit([Admit([job])])
        store.submit([Admit([self.job(id=job.id)]), FindJobs([job.id])])
        store.submit([Finish([self.end(job)])])
        first, second, third = self.wait(store, 3)
        assert not isinstance(second, Exception)
        assert list(first) == [{}]  # type: ignore[arg-type]
        assert second[0] == {0: WriteResult("same_id", "queued")}
        assert list(second[1]) == [job.id]
        assert list(third) == [{}]  # type: ignore[arg-type]
        assert store.finished() == []

    def test_writes_see_what_those_before_them_wrote(self) -> None:
        """A batch is one transaction; its writes are applied in order."""
        store = self.begin()
        job = self.job()
        write_results = self.commit(
            store, Admit([job]), FindJobs([job.id]), Finish([self.end(job)])
        )
        assert list(write_results[1]) == [job.id]
        assert self.state(store, job) is JobState.SUCCEEDED

    def test_a_commit_that_fails_changes_nothing(self) -> None:
        """The failure is returned as its result, not raised; other commits are not affected."""
        store = self.begin()
        waiting, ended = self.admitted(store, 2)
        wrong: Any = object()
        refused = self.job()
        store.submit([Admit([refused]), Finish([self.end(ended)]), wrong])
        (write_result,) = self.wait(store, 1)
        assert isinstance(write_result, Exception)
        store, recovered = self.reopen(store)
        assert set(self.find(store, waiting, ended, refused)) == {waiting.id, ended.id}
        assert self.state(store, ended) is JobState.QUEUED
        assert recovered.counts == {"q": QueueCounts(queued=2)}
        assert self.commit(store, Admit([refused])) == [{}]

    def test_many_jobs_in_one_commit(self) -> None:
        """As in a tick under load."""
        store = self.begin()
        jobs = self.admitted(store, 3000)
        assert self.finish(store, *map(self.end, jobs)) == {}
        assert {f.job.state for f in self.find(store, *jobs).values()} == {JobState.SUCCEEDED}

    # Counts

    def test_counts_follow_every_change(self) -> None:
        """Compared with a simple model over random changes; seeded, so a failure repeats."""
        store, random = self.begin(), Random(20250101)
        alive: dict[str, JobRecord] = {}
        failed: dict[str, int] = {}
        for step in range(120):
            fresh = [self.any_job(random) for _ in range(random.randint(0, 4))]
            alive |= {job.id: job for job in fresh}
            numbers = sorted(alive)
            ending = [alive.pop(i) for i in random.sample(numbers, min(len(numbers), 2))]
            rows = [self.end(job, random.choice(list(_ENDS))) for job in ending]
            for row in rows:
                failed[row.job.queue] = failed.get(row.job.queue, 0) + (row.state in _FAILED)
            requeued = [alive[i] for i in random.sample(sorted(alive), min(len(alive), 2))]
            writes: list[Any] = [Admit(fresh), Finish(rows)]
            self.commit(store, *writes, Requeue([self.toggle_delay(job) for job in requeued]))
            if step % 40 == 39 and self.durable:  # noqa: PLR2004 - some of the steps
                store, recovered = self.reopen(store)
                self.compare(recovered.counts, alive, failed)

    def any_job(self, random: Random) -> JobRecord:
        """Return a job of one of three queues, delayed or not."""
        queue = random.choice("abc")
        return self.delayed(50.0, queue=queue) if random.random() < 0.3 else self.job(queue=queue)  # noqa: PLR2004

    def toggle_delay(self, job: JobRecord) -> JobRecord:
        """Make a queued job delayed, or a delayed one queued, and return it."""
        job.state = JobState.QUEUED if job.state is JobState.DELAYED else JobState.DELAYED
        return job

    def compare(
        self, counts: dict[str, QueueCounts], alive: dict[str, JobRecord], failed: dict[str, int]
    ) -> None:
        """Compare the store's counts with those of the model."""
        expected = {queue: QueueCounts() for queue in "abc"}
        for job in alive.values():
            if job.state is JobState.DELAYED:
                expected[job.queue].delayed += 1
            else:
                expected[job.queue].queued += 1
        for queue, number in failed.items():
            expected[queue].failed = number
        assert {queue: counts.get(queue, QueueCounts()) for queue in "abc"} == expected


_FAILED = frozenset({JobState.FAILED})
_ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
