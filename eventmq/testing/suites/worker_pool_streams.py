"""What every worker pool must do with jobs that yield parts, or tell how far they are."""

# ruff: noqa: S101 - suites assert

from __future__ import annotations

from itertools import pairwise

import msgpack
import pytest

from eventmq.interfaces import Answered, Died, Progressed, Streamed
from eventmq.job import OutcomeKind
from eventmq.testing.suites.pool_harness import PoolHarness
from eventmq.wire.results import decode_error
from eventmq.wire.streams import NO_READER, WINDOW, decode_parts, decode_progress

__all__ = ["WorkerPoolStreams"]

#: Tasks that yield the numbers up to their argument.
GENERATORS = pytest.mark.parametrize("task", ["count_up", "acount_up"])


class WorkerPoolStreams(PoolHarness):
    """A part of `eventmq.testing.WorkerPoolSuite`."""

    def batches(self, chunk: int, position: int = 0) -> list[Streamed]:
        """Return the parts of a job that came so far."""
        return [
            event
            for event in self.events
            if isinstance(event, Streamed) and (event.chunk, event.position) == (chunk, position)
        ]

    def parts(self, chunk: int, position: int = 0) -> list[object]:
        """Return the values of them."""
        bodies = [decode_parts(event.body)[1] for event in self.batches(chunk, position)]
        return [msgpack.unpackb(payload) for body in bodies for payload in body]

    @GENERATORS
    def test_a_generator_yields_its_parts_before_its_answer(self, task: str) -> None:
        """In order, numbered without gaps, in batches; the return value is the result."""
        pool = self.begin()
        rows = self.run(pool, 0, 1, (task, (600,)), ("add", (1, 1)))
        assert [row.kind for row in rows] == [OutcomeKind.SUCCEEDED] * 2
        assert msgpack.unpackb(rows[0].result) == ("done" if task == "count_up" else None)
        assert self.parts(1) == list(range(600))
        batches = self.batches(1)
        assert batches[0].first == 0
        assert batches[0].count == 1  # the first one at once
        assert all(a.first + a.count == b.first for a, b in pairwise(batches))
        assert len(batches) < 600  # noqa: PLR2004 - as many as there are parts
        answered = next(n for n, e in enumerate(self.events) if isinstance(e, Answered))
        assert max(self.events.index(batch) for batch in batches) < answered

    @GENERATORS
    def test_a_generator_without_parts_says_so(self, task: str) -> None:
        """By one empty batch: nobody need wonder whether some were lost."""
        self.run(self.begin(), 0, 1, (task, (0,)))
        assert [(batch.first, batch.count) for batch in self.batches(1)] == [(0, 0)]

    @GENERATORS
    def test_a_full_window_pauses_the_task_until_there_is_credit(self, task: str) -> None:
        """It is never further ahead of what was taken than the window."""
        pool = self.begin()
        self.give(pool, 0, 1, (task, (2 * WINDOW + 10,)))
        for taken in (0, WINDOW):
            pool.credit(0, 1, 0, taken)
            self.pump(pool, lambda taken=taken: len(self.parts(1)) >= taken + WINDOW)  # type: ignore[misc]
            for _ in range(5):
                self.events += pool.poll()
            assert len(self.parts(1)) == taken + WINDOW
        assert self.rows(0, 1) == []
        pool.credit(0, 1, 0, 2 * WINDOW)
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert self.parts(1) == list(range(2 * WINDOW + 10))

    @GENERATORS
    def test_a_task_that_nobody_reads_goes_on_without_parts(self, task: str) -> None:
        """Its result is as good."""
        pool = self.begin()
        self.give(pool, 0, 1, (task, (3 * WINDOW,)))
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        pool.credit(0, 1, 0, NO_READER)
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert self.rows(0, 1)[0].kind == OutcomeKind.SUCCEEDED
        assert len(self.parts(1)) == WINDOW

    def test_credit_for_another_job_is_passed_over(self) -> None:
        """It may be late."""
        pool = self.begin()
        pool.credit(0, 9, 0, 5)
        self.give(pool, 0, 1, ("count_up", (WINDOW + 10,)))
        pool.credit(0, 9, 0, 5000)
        pool.credit(0, 1, 1, 5000)
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        assert self.rows(0, 1) == []
        pool.credit(0, 1, 0, WINDOW)
        self.pump(pool, lambda: bool(self.rows(0, 1)))

    def test_what_was_yielded_is_not_kept_waiting(self) -> None:
        """Also if the task then takes its time."""
        pool = self.begin()
        pipe = self.path / "go-on"
        self.give(pool, 0, 1, ("yield_and_wait", (3, str(pipe))))
        self.pump(pool, lambda: len(self.parts(1)) == 3)  # noqa: PLR2004 - all that there are
        assert self.rows(0, 1) == []
        pipe.touch()
        self.pump(pool, lambda: bool(self.rows(0, 1)))

    @pytest.mark.parametrize("task", ["endless", "aendless"])
    def test_a_cancelled_generator_is_closed(self, task: str) -> None:
        """Also in the middle of a full window; its ``finally`` has run before the answer."""
        pool = self.begin()
        path = self.path / "closed"
        self.give(pool, 0, 1, (task, (str(path),)))
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        assert not path.exists()
        pool.interrupt(0, 1, 0)
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert self.rows(0, 1)[0].kind == OutcomeKind.CANCELLED
        assert path.exists()

    def test_a_killed_generator_says_nothing_more(self) -> None:
        """The parts before its end are those of a run that has failed."""
        pool = self.begin()
        self.give(pool, 0, 1, ("endless", (str(self.path / "closed"),)))
        self.pump(pool, lambda: len(self.parts(1)) >= WINDOW)
        pool.kill(0)
        self.pump(pool, lambda: any(isinstance(event, Died) for event in self.events))
        self.run(pool, 0, 2, ("count_up", (3,)))
        assert self.parts(2) == [0, 1, 2]
        assert len(self.parts(1)) == WINDOW

    @pytest.mark.parametrize("task", ["yield_what", "ayield_what"])
    def test_a_part_that_cannot_be_serialised_fails_the_job(self, task: str) -> None:
        """For good, and says which part it was; those before it have gone out."""
        pool = self.begin()
        bad, good = self.run(pool, 0, 1, (task, ()), ("add", (1, 1)))
        assert (bad.kind, good.kind) == (OutcomeKind.FAILED, OutcomeKind.SUCCEEDED)
        error = decode_error(bad.result)
        assert error.type == "eventmq.errors.SerializationError"
        assert "part 1, a object, cannot be serialised" in error.message
        assert self.parts(1) == ["fine"]

    def test_a_generator_that_raises_fails_behind_its_parts(self) -> None:
        """As any task that raises."""
        (row,) = self.run(self.begin(), 0, 1, ("yield_and_fail", ("no",)))
        assert row.kind == OutcomeKind.FAILED
        assert decode_error(row.result).message == "no"
        assert self.parts(1) == [0]

    @pytest.mark.parametrize("task", ["tell", "atell"])
    def test_progress_is_told_while_the_job_runs_and_not_each_time(self, task: str) -> None:
        """The first value at once, of the others some, the last one not after the rest."""
        pool = self.begin()
        path = self.path / "go-on"
        self.give(pool, 0, 1, (task, (500, str(path))))

        def told() -> list[tuple[float, float | None, str]]:
            events = [event for event in self.events if isinstance(event, Progressed)]
            assert all((event.chunk, event.position) == (1, 0) for event in events)
            return [decode_progress(event.body) for event in events]

        self.pump(pool, lambda: told()[-1:] == [(500, 500, "telling")])
        assert self.rows(0, 1) == []
        path.touch()
        self.pump(pool, lambda: bool(self.rows(0, 1)))
        assert len(told()) < 100  # noqa: PLR2004 - of 500
        assert told() == sorted(told())
