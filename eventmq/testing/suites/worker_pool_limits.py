"""What every worker pool must do with jobs that are stopped: hard and soft limits, cancellation."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from eventmq.job import OutcomeKind
from eventmq.testing.suites.pool_harness import Call, PoolHarness, make_chunk
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from pathlib import Path

    from eventmq.interfaces import WorkerPool

__all__ = ["WorkerPoolLimits"]


class WorkerPoolLimits(PoolHarness):
    """A part of `eventmq.testing.WorkerPoolSuite`."""

    def begin_job(self, pool: WorkerPool, task: str, *more: Any, headers: str = "") -> Path:
        """Give slot 0 chunk 1 with one job and one behind it; return the job's file when it runs.

        The job behind it is taken back, as the job manager does.
        """
        path = self.path / task
        calls: list[Call] = [(task, (str(path), *more)), ("add", (1, 1))]
        pool.assign(0, 1, make_chunk(calls, headers=headers), len(calls))
        self.pump(pool, path.exists)
        assert pool.take_back(0) == 1
        return path

    def test_it_says_which_job_runs(self) -> None:
        """Chunk, position and monotonic time."""
        pool = self.begin()
        assert pool.running(0) is None
        pipe = self.block(pool, 0, 7)
        running = pool.running(0)
        assert running is not None
        assert (running.chunk, running.position) == (7, 0)
        self.release(pipe)
        self.pump(pool, lambda: bool(self.rows(0, 7)) and pool.running(0) is None)

    @pytest.mark.parametrize("task", ["spin", "linger", "block"])
    def test_a_running_job_can_be_killed(self, task: str) -> None:
        """The manager kills at the hard limit: one `Died`, no answer, and the slot goes on."""
        pool = self.begin()
        self.begin_job(pool, task, *([3.0] if task == "block" else []))
        pool.kill(0)
        self.pump(pool, lambda: bool(self.died()))
        died = self.died()[0]
        assert (died.slot, died.chunk, died.position) == (0, 1, 0)
        assert self.run(pool, 0, 2, ("add", (2, 2)))[0].kind == OutcomeKind.SUCCEEDED
        self.pump(pool, lambda: task == "block" or not pool.abandoned)
        assert self.rows(0, 1) == []
        assert len(self.died()) == 1

    def test_the_late_answer_of_a_killed_job_is_dropped(self) -> None:
        """Also where it could not be ended, and its thread runs on to its end."""
        pool = self.begin()
        pipe = self.block(pool, 0, 1)
        pool.kill(0)
        self.pump(pool, lambda: bool(self.died()))
        if not self.processes:
            assert pool.abandoned == 1
            self.release(pipe)
        self.pump(pool, lambda: not pool.abandoned)
        self.run(pool, 0, 2, ("add", (2, 2)))
        assert self.rows(0, 1) == []

    def test_an_idle_slot_can_be_killed(self) -> None:
        """Whoever kills may be late; what the slot was given since is lost with it, and told."""
        pool = self.begin()
        pool.kill(0)
        self.pump(pool, lambda: bool(self.died()))
        assert (self.died()[0].slot, self.died()[0].position) == (0, -1)
        assert self.run(pool, 0, 2, ("add", (2, 2)))[0].kind == OutcomeKind.SUCCEEDED

    def test_a_job_that_checks_ends_when_it_is_cancelled(self) -> None:
        """It is answered as cancelled, whatever retries it has, and the slot goes on."""
        pool = self.begin()
        self.begin_job(pool, "spin", headers=",retry-count:5")
        pool.interrupt(0, 1, 0)
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert [row.kind for row in self.rows(0, 1)] == [OutcomeKind.CANCELLED]
        self.goes_on(pool)

    def goes_on(self, pool: WorkerPool) -> None:
        """See that the slot runs jobs, be it after its process was replaced."""
        chunk = 2
        while not self.rows(0, chunk):
            chunk += 1
            before = len(self.died())
            self.give(pool, 0, chunk, ("add", (1, 1)))
            self.pump(pool, partial(self.answered_or_died, chunk, before))
        assert self.rows(0, chunk)[0].kind == OutcomeKind.SUCCEEDED

    def answered_or_died(self, chunk: int, before: int) -> bool:
        """Say whether a chunk of slot 0 was answered, or the slot has lost it."""
        return bool(self.rows(0, chunk)) or len(self.died()) > before

    def test_a_coroutine_is_cancelled(self) -> None:
        """It gets CancelledError where it waits."""
        pool = self.begin()
        path = self.begin_job(pool, "linger")
        pool.interrupt(0, 1, 0)
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert [row.kind for row in self.rows(0, 1)] == [OutcomeKind.CANCELLED]
        assert path.with_name("linger.cancelled").exists()
        self.goes_on(pool)

    def test_a_cancel_that_comes_too_late_hits_no_other_job(self) -> None:
        """It names chunk and position."""
        pool = self.begin()
        pipe = self.block(pool, 0, 1)
        pool.interrupt(0, 1, 1)
        pool.interrupt(0, 9, 0)
        self.release(pipe)
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert self.rows(0, 1)[0].kind == OutcomeKind.SUCCEEDED

    def test_the_soft_limit_is_raised_in_a_coroutine(self) -> None:
        """As an exception that it can catch."""
        pool = self.begin()
        self.begin_job(pool, "late", headers=",soft-limit:0.1")
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert msgpack.unpackb(self.rows(0, 1)[0].result) == "SoftTimeLimitExceeded"

    def test_the_soft_limit_is_raised_where_a_job_checks(self) -> None:
        """It is a failure like any other, with its retries."""
        pool = self.begin()
        self.begin_job(pool, "spin", headers=",soft-limit:0.1,retry-count:1")
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        (row,) = self.rows(0, 1)
        assert row.kind == OutcomeKind.RETRY
        assert decode_error(row.result).type == "eventmq.errors.SoftTimeLimitExceeded"
        assert self.run(pool, 0, 2, ("add", (2, 2)))[0].kind == OutcomeKind.SUCCEEDED

    def test_blocking_code_is_interrupted_where_the_pool_says_so(self) -> None:
        """At the soft limit; a pool that cannot says ``interrupts = False`` and lets it run."""
        pool = self.begin()
        seconds = 20.0 if pool.interrupts else 0.3
        self.begin_job(pool, "block", seconds, headers=",soft-limit:0.1")
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        (row,) = self.rows(0, 1)
        assert row.kind == (OutcomeKind.FAILED if pool.interrupts else OutcomeKind.SUCCEEDED)
        assert row.ran < seconds + 5.0
