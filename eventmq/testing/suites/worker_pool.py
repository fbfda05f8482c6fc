"""What every worker pool must do."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

import os
import time
from functools import partial

import msgpack
import pytest

from eventmq.interfaces import Answered, Died
from eventmq.job import OutcomeKind
from eventmq.testing.suites.pool_harness import DEADLINE, make_chunk
from eventmq.testing.suites.worker_pool_limits import WorkerPoolLimits
from eventmq.testing.suites.worker_pool_streams import WorkerPoolStreams
from eventmq.wire.bulk import decode_outcomes
from eventmq.wire.results import decode_error

__all__ = ["WorkerPoolSuite"]


class WorkerPoolSuite(WorkerPoolLimits, WorkerPoolStreams):
    """Subclass it and return your pool from `make`.

    The pool runs `eventmq.testing.suites.pool_tasks`; ``processes`` is False where all slots
    share the process of the tests, so that none can die alone.
    """

    # Running

    def test_it_has_the_slots_that_were_wanted(self) -> None:
        """And idle ones run nothing."""
        pool = self.begin(2)
        assert pool.slots == 2  # noqa: PLR2004 - what was wanted
        assert [pool.running(0), pool.running(1)] == [None, None]
        assert all(type(descriptor) is int for descriptor in pool.filenos())
        assert pool.poll() == []

    def test_a_job_is_answered_with_its_result(self) -> None:
        """With times, and the type of the content."""
        before = time.time()
        (row,) = self.run(self.begin(), 0, 1, ("add", (2, 3)))
        assert (row.position, row.kind) == (0, OutcomeKind.SUCCEEDED)
        assert (row.content_type, msgpack.unpackb(row.result)) == ("msgpack", 5)
        assert before - 1.0 < row.started < time.time() + 1.0
        assert 0.0 <= row.ran < DEADLINE

    def test_jobs_are_answered_in_the_order_of_their_chunks(self) -> None:
        """Positions without gaps, chunk after chunk; ``count`` is how many an event has."""
        pool = self.begin()
        for chunk in (1, 2, 3):
            self.give(pool, 0, chunk, *(("add", (chunk, i)) for i in range(300)))
        self.pump(pool, lambda: sum(self.counts()) == 900)  # noqa: PLR2004 - three times 300
        answered = [event for event in self.events if isinstance(event, Answered)]
        assert [event.chunk for event in answered] == sorted(event.chunk for event in answered)
        for chunk in (1, 2, 3):
            rows = self.rows(0, chunk)
            assert [row.position for row in rows] == list(range(300))
            assert [msgpack.unpackb(row.result) for row in rows] == [chunk + i for i in range(300)]
        assert [len(decode_outcomes(event.outcomes)) for event in answered] == self.counts()

    def counts(self) -> list[int]:
        """Return how many jobs each answer has."""
        return [event.count for event in self.events if isinstance(event, Answered)]

    def test_slots_do_not_wait_for_each_other(self) -> None:
        """One that is busy keeps nothing back."""
        pool = self.begin(2)
        pipe = self.block(pool, 0, 1)
        rows = self.run(pool, 1, 2, *(("add", (i, i)) for i in range(20)))
        assert len(rows) == 20  # noqa: PLR2004 - all of them
        assert self.rows(0, 1) == []
        self.release(pipe)
        self.pump(pool, lambda: len(self.rows(0, 1)) == 1)

    def test_what_has_finished_is_answered_while_the_next_job_runs(self) -> None:
        """Nothing waits behind a long job."""
        pool = self.begin()
        pipe = str(self.path / "pipe")
        os.mkfifo(pipe)
        self.give(pool, 0, 1, ("add", (1, 1)), ("wait", (pipe,)))
        self.pump(pool, lambda: len(self.rows(0, 1)) == 1)
        self.release(pipe)
        self.pump(pool, lambda: len(self.rows(0, 1)) == 2)  # noqa: PLR2004 - both

    def test_a_job_that_cannot_succeed_has_an_outcome(self) -> None:
        """It fails, it is unknown, it came too late; the jobs after it run."""
        pool = self.begin()
        failed, unknown, fine = self.run(
            pool, 0, 1, ("fail", ("no",)), ("nothing", ()), ("add", (1, 1))
        )
        assert [failed.kind, unknown.kind, fine.kind] == [
            OutcomeKind.FAILED,
            OutcomeKind.UNKNOWN_TASK,
            OutcomeKind.SUCCEEDED,
        ]
        error = decode_error(failed.result)
        assert (error.type.rpartition(".")[2], error.message) == ("ValueError", "no")
        pool.assign(0, 2, make_chunk([("add", (1, 1))], expires=1.0), 1)
        self.pump(pool, lambda: bool(self.rows(0, 2)))
        assert self.rows(0, 2)[0].kind == OutcomeKind.EXPIRED

    def test_a_running_job_can_be_seen(self) -> None:
        """Deadlines are measured by it, so it is monotonic time."""
        pool = self.begin()
        before = time.monotonic()
        pipe = self.block(pool, 0, 1)
        running = pool.running(0)
        assert running is not None
        assert before - 0.1 <= running.since <= time.monotonic()
        self.release(pipe)
        self.pump(pool, lambda: bool(self.rows(0, 1)) and pool.running(0) is None)

    # Taking back

    def test_what_has_not_started_can_be_taken_back(self) -> None:
        """It never runs; what had started is answered, and the slot goes on."""
        pool = self.begin()
        pipe = self.block(pool, 0, 1, *[("add", (1, 1))] * 4)
        self.give(pool, 0, 2, *[("add", (2, 2))] * 3)
        assert pool.take_back(0) == 7  # noqa: PLR2004 - four and three
        assert pool.take_back(0) == 0
        self.release(pipe)
        rows = self.run(pool, 0, 3, ("add", (3, 3)))
        assert [row.kind for row in rows] == [OutcomeKind.SUCCEEDED]
        assert [row.position for row in self.rows(0, 1)] == [0]
        assert self.rows(0, 2) == []

    def test_no_job_is_both_taken_back_and_run(self) -> None:
        """Whatever the moment: answers and what was taken back make up the chunk."""
        pool = self.begin()
        for chunk in range(1, 30):
            self.give(pool, 0, chunk, *(("add", (i, i)) for i in range(50)))
            self.events += pool.poll()
            left = 50 - pool.take_back(0)
            self.pump(pool, partial(self.has, chunk, left))
            assert [row.position for row in self.rows(0, chunk)] == list(range(left))

    def has(self, chunk: int, count: int) -> bool:
        """Say whether so many outcomes of a chunk of slot 0 are there."""
        return len(self.rows(0, chunk)) >= count

    def test_an_idle_slot_has_nothing_to_take_back(self) -> None:
        """Zero, also after work."""
        pool = self.begin()
        assert pool.take_back(0) == 0
        self.run(pool, 0, 1, ("add", (1, 1)))
        assert pool.take_back(0) == 0

    # Ends

    def test_a_death_is_told_with_the_job_that_ran(self) -> None:
        """After the answers before it; the pool replaces the process by itself."""
        if not self.processes:
            pytest.skip("the slots of this pool cannot die alone")
        pool = self.begin()
        self.give(pool, 0, 1, ("add", (1, 1)), ("die", ()), ("add", (2, 2)))
        self.pump(pool, lambda: any(isinstance(event, Died) for event in self.events))
        (died,) = [event for event in self.events if isinstance(event, Died)]
        assert (died.slot, died.chunk, died.position) == (0, 1, 1)
        assert died.reason
        assert [row.position for row in self.rows(0, 1)] in ([], [0])
        assert self.run(pool, 0, 2, ("add", (3, 3)))[0].kind == OutcomeKind.SUCCEEDED

    def test_a_death_disturbs_no_other_slot(self) -> None:
        """Nothing is shared that could break."""
        if not self.processes:
            pytest.skip("the slots of this pool cannot die alone")
        pool = self.begin(2)
        pipe = self.block(pool, 1, 1)
        self.give(pool, 0, 1, ("die", ()))
        self.pump(pool, lambda: any(isinstance(event, Died) for event in self.events))
        self.release(pipe)
        self.pump(pool, lambda: len(self.rows(1, 1)) == 1)
        assert self.rows(1, 1)[0].kind == OutcomeKind.SUCCEEDED

    def test_stopping_twice_is_legal(self) -> None:
        """Also before the start."""
        self.make(1).stop(0.0)
        pool = self.begin()
        pool.stop(1.0)
        pool.stop(1.0)

    def test_stop_lets_a_running_job_finish(self) -> None:
        """Its answer is had from ``poll`` afterwards; what had not started never runs."""
        pool = self.begin()
        pipe = self.block(pool, 0, 1, ("add", (1, 1)))
        self.release(pipe)
        pool.stop(DEADLINE)
        self.events += pool.poll()
        rows = self.rows(0, 1)
        assert rows[0].kind == OutcomeKind.SUCCEEDED
        assert msgpack.unpackb(rows[0].result) == "released"

    def test_stop_does_not_wait_longer_than_the_grace(self) -> None:
        """A job that will not end is killed, or left behind where it cannot be."""
        pool = self.begin()
        pipe = self.block(pool, 0, 1)
        before = time.monotonic()
        pool.stop(0.1)
        assert time.monotonic() - before < DEADLINE / 2
        if not self.processes:
            self.release(pipe)
