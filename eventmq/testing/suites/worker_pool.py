# ruff: noqa: S101
"""Conformance suites for worker pools."""

from __future__ import annotations

import os
import select
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from eventmq.interfaces import JobsEnded, PartsYielded, ProgressReported, SlotDied
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow, decode_outcomes, encode_chunk
from eventmq.wire.results import decode_error
from eventmq.wire.streams import NO_READER, WINDOW, decode_parts, decode_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from eventmq.interfaces import PoolEvent, WorkerPool

__all__ = ["DEADLINE", "Call", "WorkerPoolSuite", "make_chunk"]


#: Seconds until a job of the suite has failed.
DEADLINE = 30.0

Call = tuple[str, tuple[Any, ...]]


def make_chunk(calls: Sequence[Call], expires: float = 0.0, headers: str = "") -> bytes:
    """Return the body of a chunk of calls."""
    more = f"content-type:msgpack{headers}"
    return encode_chunk(
        "q",
        [
            (f"job-{i}", 1, 1, f"task:{task},{more}", 0.0, expires, msgpack.packb([args, {}]))
            for i, (task, args) in enumerate(calls)
        ],
    )


#: Tasks that yield the numbers below their argument.
_GENERATORS = pytest.mark.parametrize("task", ["count_up", "acount_up"])


class WorkerPoolSuite:
    """Subclass it and return your pool from `make`.

    The pool runs `eventmq.testing.suites.pool_tasks`; ``processes`` is False where all slots
    share the process of the tests, so that none can die alone.
    """

    processes = True

    def make(self, slots: int) -> WorkerPool:
        """Return a pool with so many slots, not started."""
        raise NotImplementedError(
            "define make() in your subclass: it returns your pool, not started"
        )

    @pytest.fixture(autouse=True)
    def _around(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path
        self.pools: list[WorkerPool] = []
        self.events: list[PoolEvent] = []
        yield
        for pool in self.pools:
            pool.stop(0.0)

    def begin(self, slots: int = 1) -> WorkerPool:
        """Return a started pool."""
        pool = self.make(slots)
        self.pools.append(pool)
        pool.start()
        return pool

    @pytest.fixture
    def pool(self) -> WorkerPool:
        """Return a started pool with one slot."""
        return self.begin()

    def assign(self, pool: WorkerPool, slot: int, chunk: int, *calls: Call) -> None:
        """Assign a chunk of calls to a slot."""
        pool.assign(slot, chunk, make_chunk(calls), len(calls))

    def pump(self, pool: WorkerPool, done: Callable[[], bool]) -> None:
        """Poll the pool, as the job manager does, until ``done`` returns True."""
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline, f"the pool reported only {self.events}"
            select.select(pool.filenos(), [], [], 0.02)
            self.events += pool.poll()

    def rows(self, slot: int, chunk: int) -> list[OutcomeRow]:
        """Return the outcomes of a chunk so far; the events of a `SharedPool` name no slot."""
        slot = 0 if self.pools[0].shared else slot
        return [
            OutcomeRow(*row)
            for event in self.events
            if isinstance(event, JobsEnded) and (event.slot, event.chunk) == (slot, chunk)
            for row in decode_outcomes(event.outcomes)
        ]

    def answers(
        self, pool: WorkerPool, count: int = 1, slot: int = 0, chunk: int = 1
    ) -> list[OutcomeRow]:
        """Wait until a chunk has so many outcomes, and return them."""
        self.pump(pool, lambda: len(self.rows(slot, chunk)) >= count)
        return self.rows(slot, chunk)

    def run(self, pool: WorkerPool, slot: int, chunk: int, *calls: Call) -> list[OutcomeRow]:
        """Assign a chunk to a slot, and return all of its outcomes."""
        self.assign(pool, slot, chunk, *calls)
        return self.answers(pool, len(calls), slot, chunk)

    def check_runs(self, pool: WorkerPool) -> None:
        """Check that slot 0 runs further jobs."""
        assert self.run(pool, 0, 2, ("add", (2, 2)))[0].kind == OutcomeKind.SUCCEEDED

    def block(self, pool: WorkerPool, slot: int, chunk: int, *others: Call) -> str:
        """Assign a chunk whose first job waits for a pipe; return the pipe when the job runs."""
        pipe = str(self.path / f"pipe-{slot}-{chunk}")
        os.mkfifo(pipe)
        self.assign(pool, slot, chunk, ("wait", (pipe,)), *others)
        self.pump(pool, lambda: pool.running(slot) is not None)
        return pipe

    def release(self, pipe: str) -> None:
        """Let the job that waits for a pipe end."""
        with open(pipe, "w", encoding="utf-8") as writer:  # noqa: PTH123 - a pipe, not a file
            writer.write("released")

    def died(self) -> list[SlotDied]:
        """Return the deaths of slots that were reported so far."""
        return [event for event in self.events if isinstance(event, SlotDied)]

    def need_processes(self) -> None:
        """Skip the test if no slot of this pool can die."""
        if not self.processes:
            pytest.skip("the slots of this pool cannot die alone")

    def death(self, pool: WorkerPool) -> SlotDied:
        """Wait for the death of a slot, and return it: the only one so far."""
        self.pump(pool, lambda: bool(self.died()))
        (died,) = self.died()
        return died

    # Time limits and cancellation

    def begin_job(self, pool: WorkerPool, task: str, *more: Any, headers: str = "") -> Path:
        """Assign chunk 1 with two jobs to slot 0; return the file of the first one when it runs.

        The second one is taken back, as the job manager does.
        """
        path = self.path / task
        calls: list[Call] = [(task, (str(path), *more)), ("add", (1, 1))]
        pool.assign(0, 1, make_chunk(calls, headers=headers), len(calls))
        self.pump(pool, path.exists)
        assert pool.take_back(0) == 1
        return path

    def test_running_names_the_job_that_runs(self, pool: WorkerPool) -> None:
        """Its chunk, position and start in monotonic time, for deadlines; None for an idle slot."""
        assert pool.running(0) is None
        before = time.monotonic()
        pipe = self.block(pool, 0, 7)
        running = pool.running(0)
        assert running is not None
        assert (running.chunk, running.position) == (7, 0)
        assert before - 0.1 <= running.since <= time.monotonic()
        self.release(pipe)
        self.pump(pool, lambda: bool(self.rows(0, 7)) and pool.running(0) is None)

    @pytest.mark.parametrize("task", ["spin", "linger", "block"])
    def test_a_running_job_can_be_killed(self, pool: WorkerPool, task: str) -> None:
        """As at the hard limit: one `SlotDied`, no outcome, and the slot runs further jobs."""
        self.begin_job(pool, task, *([3.0] if task == "block" else []))
        pool.kill(0)
        died = self.death(pool)
        assert (died.slot, died.chunk, died.position) == (0, 1, 0)
        self.check_runs(pool)
        self.pump(pool, lambda: task == "block" or not pool.abandoned)
        assert (self.rows(0, 1), self.died()) == ([], [died])

    def test_the_late_answer_of_a_killed_job_is_dropped(self, pool: WorkerPool) -> None:
        """Even if its thread could not be ended, and runs to its end."""
        pipe = self.block(pool, 0, 1)
        pool.kill(0)
        self.death(pool)
        if not self.processes:
            assert pool.abandoned == 1
            self.release(pipe)
        self.pump(pool, lambda: not pool.abandoned)
        self.run(pool, 0, 2, ("add", (2, 2)))
        assert self.rows(0, 1) == []

    def test_an_idle_slot_can_be_killed(self, pool: WorkerPool) -> None:
        """The kill may come too late; it is reported, and the slot runs further jobs."""
        pool.kill(0)
        died = self.death(pool)
        assert (died.slot, died.position) == (0, -1)
        self.check_runs(pool)

    @pytest.mark.parametrize("task", ["spin", "linger"])
    def test_a_job_ends_when_it_is_cancelled(self, pool: WorkerPool, task: str) -> None:
        """Where it checks; a coroutine gets CancelledError where it waits.

        Its outcome is cancelled, whatever its retries, and the slot runs further jobs, if need be
        after its process was replaced.
        """
        path = self.begin_job(pool, task, headers=",retry-count:5")
        pool.interrupt(0, 1, 0)
        assert [row.kind for row in self.answers(pool)] == [OutcomeKind.CANCELLED]
        assert path.with_name("linger.cancelled").exists() == (task == "linger")
        before = len(self.died())
        self.assign(pool, 0, 3, ("add", (1, 1)))
        self.pump(pool, lambda: bool(self.rows(0, 3)) or len(self.died()) > before)
        rows = self.rows(0, 3) or self.run(pool, 0, 4, ("add", (1, 1)))
        assert rows[0].kind == OutcomeKind.SUCCEEDED

    def test_a_late_cancel_does_not_affect_another_job(self, pool: WorkerPool) -> None:
        """A cancel names chunk and position."""
        pipe = self.block(pool, 0, 1)
        pool.interrupt(0, 1, 1)
        pool.interrupt(0, 9, 0)
        self.release(pipe)
        assert self.answers(pool)[0].kind == OutcomeKind.SUCCEEDED

    def test_the_soft_limit_is_raised_in_a_coroutine(self, pool: WorkerPool) -> None:
        """The coroutine can catch it."""
        self.begin_job(pool, "late", headers=",soft-limit:0.1")
        assert msgpack.unpackb(self.answers(pool)[0].result) == "SoftTimeLimitExceeded"

    def test_the_soft_limit_is_raised_where_a_job_checks(self, pool: WorkerPool) -> None:
        """It is a failure like any other, with its retries."""
        self.begin_job(pool, "spin", headers=",soft-limit:0.1,retry-count:1")
        (row,) = self.answers(pool)
        assert row.kind == OutcomeKind.RETRY
        assert decode_error(row.result).type == "eventmq.errors.SoftTimeLimitExceeded"
        self.check_runs(pool)

    def test_blocking_code_is_interrupted_if_the_pool_interrupts(self, pool: WorkerPool) -> None:
        """At the soft limit; a pool with ``interrupts = False`` lets it run."""
        seconds = 20.0 if pool.interrupts else 0.3
        self.begin_job(pool, "block", seconds, headers=",soft-limit:0.1")
        (row,) = self.answers(pool)
        assert row.kind == (OutcomeKind.FAILED if pool.interrupts else OutcomeKind.SUCCEEDED)
        assert row.run_time < seconds + 5.0

    # Streams and progress

    def batches(self, chunk: int, position: int = 0) -> list[PartsYielded]:
        """Return the batches of parts of a job so far."""
        return [
            event
            for event in self.events
            if isinstance(event, PartsYielded)
            and (event.chunk, event.position) == (chunk, position)
        ]

    def parts(self, chunk: int, position: int = 0) -> list[object]:
        """Return the parts of a job so far."""
        bodies = [decode_parts(event.body)[1] for event in self.batches(chunk, position)]
        return [msgpack.unpackb(payload) for body in bodies for payload in body]

    @_GENERATORS
    def test_a_generator_yields_its_parts_before_its_answer(
        self, pool: WorkerPool, task: str
    ) -> None:
        """In order, numbered without gaps, in batches; the return value is the result."""
        rows = self.run(pool, 0, 1, (task, (600,)), ("add", (1, 1)))
        assert [row.kind for row in rows] == [OutcomeKind.SUCCEEDED] * 2
        assert msgpack.unpackb(rows[0].result) == ("done" if task == "count_up" else None)
        assert self.parts(1) == list(range(600))
        batches = self.batches(1)
        assert (batches[0].first, batches[0].count) == (0, 1)  # the first part at once
        assert all(a.first + a.count == b.first for a, b in pairwise(batches))
        assert len(batches) < 600  # noqa: PLR2004 - as many as there are parts
        answered = next(n for n, e in enumerate(self.events) if isinstance(e, JobsEnded))
        assert max(self.events.index(batch) for batch in batches) < answered

    @_GENERATORS
    def test_a_generator_without_parts_yields_one_empty_batch(self, task: str) -> None:
        """So that readers can tell it from lost parts."""
        self.run(self.begin(), 0, 1, (task, (0,)))
        assert [(batch.first, batch.count) for batch in self.batches(1)] == [(0, 0)]

    @_GENERATORS
    def test_a_full_window_pauses_the_task_until_there_is_credit(
        self, pool: WorkerPool, task: str
    ) -> None:
        """It is never further ahead of the credit than the window."""
        self.assign(pool, 0, 1, (task, (2 * WINDOW + 10,)))
        for taken in (0, WINDOW):
            pool.credit(0, 1, 0, taken)
            self.pump(pool, lambda taken=taken: len(self.parts(1)) >= taken + WINDOW)  # type: ignore[misc]
            for _ in range(5):
                self.events += pool.poll()
            assert len(self.parts(1)) == taken + WINDOW
        assert self.rows(0, 1) == []
        pool.credit(0, 1, 0, 2 * WINDOW)
        self.answers(pool)
        assert self.parts(1) == list(range(2 * WINDOW + 10))

    @_GENERATORS
    def test_a_generator_without_a_reader_runs_on_without_parts(
        self, pool: WorkerPool, task: str
    ) -> None:
        """Its result is not affected."""
        self.assign(pool, 0, 1, (task, (3 * WINDOW,)))
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        pool.credit(0, 1, 0, NO_READER)
        assert self.answers(pool)[0].kind == OutcomeKind.SUCCEEDED
        assert len(self.parts(1)) == WINDOW

    def test_credit_for_another_job_is_ignored(self, pool: WorkerPool) -> None:
        """Such credit has come too late."""
        pool.credit(0, 9, 0, 5)
        self.assign(pool, 0, 1, ("count_up", (WINDOW + 10,)))
        pool.credit(0, 9, 0, 5000)
        pool.credit(0, 1, 1, 5000)
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        assert self.rows(0, 1) == []
        pool.credit(0, 1, 0, WINDOW)
        self.answers(pool)

    def test_parts_are_sent_without_delay(self, pool: WorkerPool) -> None:
        """Even if the task yields no further part for a while."""
        pipe = self.path / "go-on"
        self.assign(pool, 0, 1, ("yield_and_wait", (3, str(pipe))))
        self.pump(pool, lambda: len(self.parts(1)) == 3)  # noqa: PLR2004 - all that there are
        assert self.rows(0, 1) == []
        pipe.touch()
        self.answers(pool)

    @pytest.mark.parametrize("task", ["endless", "aendless"])
    def test_a_cancelled_generator_is_closed(self, pool: WorkerPool, task: str) -> None:
        """Even while it waits for credit; its ``finally`` runs before the outcome."""
        path = self.path / "closed"
        self.assign(pool, 0, 1, (task, (str(path),)))
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        assert not path.exists()
        pool.interrupt(0, 1, 0)
        assert self.answers(pool)[0].kind == OutcomeKind.CANCELLED
        assert path.exists()

    def test_a_killed_generator_yields_no_further_parts(self, pool: WorkerPool) -> None:
        """Not even when the slot runs the next generator."""
        self.assign(pool, 0, 1, ("endless", (str(self.path / "closed"),)))
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        pool.kill(0)
        self.death(pool)
        self.run(pool, 0, 2, ("count_up", (3,)))
        assert self.parts(2) == [0, 1, 2]
        assert len(self.parts(1)) == WINDOW

    @pytest.mark.parametrize("task", ["yield_what", "ayield_what"])
    def test_a_part_that_cannot_be_serialised_fails_the_job(
        self, pool: WorkerPool, task: str
    ) -> None:
        """Without a retry; the error names the part. The parts before it have been sent."""
        bad, good = self.run(pool, 0, 1, (task, ()), ("add", (1, 1)))
        assert (bad.kind, good.kind) == (OutcomeKind.FAILED, OutcomeKind.SUCCEEDED)
        error = decode_error(bad.result)
        assert error.type == "eventmq.errors.SerializationError"
        assert "part 1, a object, cannot be serialised" in error.message
        assert self.parts(1) == ["fine"]

    def test_a_generator_that_raises_fails_after_its_parts(self) -> None:
        """The parts before the exception have been sent."""
        (row,) = self.run(self.begin(), 0, 1, ("yield_and_fail", ("no",)))
        assert row.kind == OutcomeKind.FAILED
        assert decode_error(row.result).message == "no"
        assert self.parts(1) == [0]

    @pytest.mark.parametrize("task", ["tell", "atell"])
    def test_progress_is_reported_while_the_job_runs(self, pool: WorkerPool, task: str) -> None:
        """In order, not every value, but always the last one."""
        path = self.path / "go-on"
        self.assign(pool, 0, 1, (task, (500, str(path))))

        def reported() -> list[tuple[float, float | None, str]]:
            events = [event for event in self.events if isinstance(event, ProgressReported)]
            assert all((event.chunk, event.position) == (1, 0) for event in events)
            return [decode_progress(event.body) for event in events]

        self.pump(pool, lambda: reported()[-1:] == [(500, 500, "telling")])
        assert self.rows(0, 1) == []
        path.touch()
        self.answers(pool)
        assert len(reported()) < 100  # noqa: PLR2004 - of 500
        assert reported() == sorted(reported())

    # Running

    def test_a_pool_has_the_requested_number_of_slots(self) -> None:
        """Idle slots run nothing."""
        pool = self.begin(2)
        assert pool.slots == 2  # noqa: PLR2004 - the number above
        assert [pool.running(0), pool.running(1)] == [None, None]
        assert all(type(descriptor) is int for descriptor in pool.filenos())
        assert pool.poll() == []

    def test_a_job_is_answered_with_its_result(self) -> None:
        """Its outcome has the start, the run time and the content type."""
        before = time.time()
        (row,) = self.run(self.begin(), 0, 1, ("add", (2, 3)))
        assert (row.position, row.kind) == (0, OutcomeKind.SUCCEEDED)
        assert (row.content_type, msgpack.unpackb(row.result)) == ("msgpack", 5)
        assert before - 1.0 < row.started < time.time() + 1.0
        assert 0.0 <= row.run_time < DEADLINE

    def test_jobs_are_answered_in_the_order_of_their_chunks(self, pool: WorkerPool) -> None:
        """Positions without gaps, chunk after chunk; ``count`` is the outcomes of an event."""
        for chunk in (1, 2, 3):
            self.assign(pool, 0, chunk, *(("add", (chunk, i)) for i in range(300)))
        for chunk in (1, 2, 3):
            rows = self.answers(pool, 300, chunk=chunk)
            assert [row.position for row in rows] == list(range(300))
            assert [msgpack.unpackb(row.result) for row in rows] == [chunk + i for i in range(300)]
        answered = [event for event in self.events if isinstance(event, JobsEnded)]
        assert [event.chunk for event in answered] == sorted(event.chunk for event in answered)
        assert all(event.count == len(decode_outcomes(event.outcomes)) for event in answered)

    def test_slots_do_not_wait_for_each_other(self) -> None:
        """A busy slot does not delay another one."""
        pool = self.begin(2)
        pipe = self.block(pool, 0, 1)
        rows = self.run(pool, 1, 2, *(("add", (i, i)) for i in range(20)))
        assert len(rows) == 20  # noqa: PLR2004 - all of them
        assert self.rows(0, 1) == []
        self.release(pipe)
        self.answers(pool)

    def test_an_outcome_does_not_wait_for_the_next_job(self, pool: WorkerPool) -> None:
        """Even if that job takes long."""
        pipe = str(self.path / "pipe")
        os.mkfifo(pipe)
        self.assign(pool, 0, 1, ("add", (1, 1)), ("wait", (pipe,)))
        self.answers(pool)
        self.release(pipe)
        self.answers(pool, 2)

    def test_every_job_has_an_outcome(self, pool: WorkerPool) -> None:
        """One that fails, is unknown, or has expired; the jobs after it run."""
        rows = self.run(pool, 0, 1, ("fail", ("no",)), ("nothing", ()), ("add", (1, 1)))
        expected = [OutcomeKind.FAILED, OutcomeKind.UNKNOWN_TASK, OutcomeKind.SUCCEEDED]
        assert [row.kind for row in rows] == expected
        error = decode_error(rows[0].result)
        assert (error.type.rpartition(".")[2], error.message) == ("ValueError", "no")
        pool.assign(0, 2, make_chunk([("add", (1, 1))], expires=1.0), 1)
        assert self.answers(pool, chunk=2)[0].kind == OutcomeKind.EXPIRED

    # Taking back

    def test_jobs_that_have_not_started_can_be_taken_back(self, pool: WorkerPool) -> None:
        """They never run; the running job has an outcome, and the slot runs further jobs."""
        pipe = self.block(pool, 0, 1, *[("add", (1, 1))] * 4)
        self.assign(pool, 0, 2, *[("add", (2, 2))] * 3)
        assert pool.take_back(0) == 7  # noqa: PLR2004 - four and three
        assert pool.take_back(0) == 0
        self.release(pipe)
        assert [row.kind for row in self.run(pool, 0, 3, ("add", (3, 3)))] == [
            OutcomeKind.SUCCEEDED
        ]
        assert [row.position for row in self.rows(0, 1)] == [0]
        assert self.rows(0, 2) == []

    def test_no_job_is_both_taken_back_and_run(self, pool: WorkerPool) -> None:
        """Whenever it is called, outcomes and jobs taken back make up the chunk."""
        for chunk in range(1, 30):
            self.assign(pool, 0, chunk, *(("add", (i, i)) for i in range(50)))
            self.events += pool.poll()
            remaining = 50 - pool.take_back(0)
            rows = self.answers(pool, remaining, chunk=chunk)
            assert [row.position for row in rows] == list(range(remaining))

    def test_an_idle_slot_has_nothing_to_take_back(self, pool: WorkerPool) -> None:
        """0, before and after it has run jobs."""
        assert pool.take_back(0) == 0
        self.run(pool, 0, 1, ("add", (1, 1)))
        assert pool.take_back(0) == 0

    # Ends

    def test_a_death_is_reported_with_the_job_that_ran(self) -> None:
        """After the outcomes before it; the pool replaces the process by itself."""
        self.need_processes()
        pool = self.begin()
        self.assign(pool, 0, 1, ("add", (1, 1)), ("die", ()), ("add", (2, 2)))
        died = self.death(pool)
        assert (died.slot, died.chunk, died.position) == (0, 1, 1)
        assert died.reason
        assert [row.position for row in self.rows(0, 1)] in ([], [0])
        self.check_runs(pool)

    def test_a_death_does_not_affect_other_slots(self) -> None:
        """Their jobs run on."""
        self.need_processes()
        pool = self.begin(2)
        pipe = self.block(pool, 1, 1)
        self.assign(pool, 0, 1, ("die", ()))
        self.death(pool)
        self.release(pipe)
        assert self.answers(pool, slot=1)[0].kind == OutcomeKind.SUCCEEDED

    def test_stopping_twice_is_legal(self) -> None:
        """So is stopping a pool that was not started."""
        self.make(1).stop(0.0)
        pool = self.begin()
        pool.stop(1.0)
        pool.stop(1.0)

    def test_stop_lets_a_running_job_finish(self, pool: WorkerPool) -> None:
        """``poll`` returns its outcome afterwards; jobs that had not started never run."""
        self.release(self.block(pool, 0, 1, ("add", (1, 1))))
        pool.stop(DEADLINE)
        self.events += pool.poll()
        row = self.rows(0, 1)[0]  # the other may have started before the stop arrived
        assert (row.kind, msgpack.unpackb(row.result)) == (OutcomeKind.SUCCEEDED, "released")

    def test_stop_does_not_wait_longer_than_the_grace(self, pool: WorkerPool) -> None:
        """A job that does not end is killed, or abandoned if that is impossible."""
        pipe = self.block(pool, 0, 1)
        before = time.monotonic()
        pool.stop(0.1)
        assert time.monotonic() - before < DEADLINE / 2
        if not self.processes:
            self.release(pipe)
