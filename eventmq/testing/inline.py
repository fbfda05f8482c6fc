"""An app whose jobs run when the test says so: `use_app`, and what it gives.

It needs no pytest; the fixtures in `eventmq.testing.plugin` are made of it.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, cast

from eventmq.testing.clock import FakeClock
from eventmq.testing.enqueued import Enqueued, Wanted
from eventmq.testing.inline_client import LIMIT, InlineRunner
from eventmq.testing.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.app import EventMQ
    from eventmq.app.runner_wiring import Wiring
    from eventmq.task.task import Task

__all__ = ["InlineApp", "use_app"]

#: Ids in one question to the broker.
_PAGE = 1000

_WAITING = frozenset({"queued", "delayed", "blocked"})


class InlineApp:
    """An app on a broker of its own in memory, with nothing that runs by itself.

    Attributes:
        app: The app.
    """

    def __init__(self, app: EventMQ, stage: Stage, clock: FakeClock) -> None:
        self.app = app
        self._stage = stage
        self._clock = clock
        #: Time of the machine when the clock was last set by it.
        self._seen = time.monotonic()

    def __repr__(self) -> str:
        return f"<InlineApp {self.app.name}>"

    # Running

    def drain(self, *, limit: int = LIMIT, strict: bool = False) -> int:
        """Run what is due, and what that submits, until nothing is left.

        Args:
            limit: Most jobs, so that a task which submits itself ends.
            strict: Raise what `Job.get` raises for the first job that failed for good.

        Returns:
            How many jobs were run; one that is tried again counts each time.

        Raises:
            AssertionError: There were more than ``limit``.
        """
        before = self._ids("failed") if strict else set()
        ran = self._stage.run(limit)
        if ran >= limit and any(job.state == "queued" for job in self.enqueued()):
            msg = f"drain() has run {ran} jobs and there are more: does a task submit itself? "
            raise AssertionError(msg + "drain(limit=...) sets another bound")
        failed = self._ids("failed") - before if strict else set()
        for job_id in self._stage.submitted:
            if job_id in failed:
                self.app.job(job_id).get()
        return ran

    # Looking

    def enqueued(self, task: Task[Any, Any] | str | None = None) -> list[Enqueued]:
        """Return the jobs that wait to be run, in the order of their submission.

        Args:
            task: Only those of this task, or of the task of this name.
        """
        waiting = self._ids(*_WAITING)
        submitted = self._stage.submitted
        jobs = [
            Enqueued.read(self.app, self.app.ask("info", {"id": job_id}), submitted[job_id])
            for job_id in submitted
            if job_id in waiting
        ]
        name = None if task is None else _name(task)
        return [job for job in jobs if name in {None, job.task}]

    def _ids(self, *states: str) -> set[str]:
        """Return the ids of what was submitted and is in one of these states."""
        ids = list(self._stage.submitted)
        pages = [ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE)]
        rows = [row for page in pages for row in self.app.ask("state", {"ids": page})]
        return {job_id for job_id, state in rows if state in states}

    def assert_enqueued(
        self,
        task: Task[Any, Any] | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        count: int | None = None,
    ) -> list[Enqueued]:
        """Fail unless such a job waits.

        Args:
            task: The task, or its name.
            args: All positional arguments; None is any.
            kwargs: All keyword arguments; None is any.
            queue: Name of the queue; None is any.
            count: How many; None is one or more.

        Returns:
            The jobs.

        Raises:
            AssertionError: There is none, or another number; it says what waits instead.
        """
        keywords = None if kwargs is None else dict(kwargs)
        wanted = Wanted(_name(task), args, keywords, queue)
        jobs = self.enqueued()
        found = [job for job in jobs if wanted.fits(job)]
        if len(found) == count or (count is None and found):
            return found
        number = "no job waits" if not found else f"{len(found)} jobs wait"
        lines = [f"{number} that is {wanted}; expected: {'1 or more' if count is None else count}"]
        lines += [f"waiting: {job}" for job in jobs] or ["nothing waits at all"]
        raise AssertionError("\n".join(lines))

    # Time

    @property
    def now(self) -> datetime:
        """The time for this app, in UTC. It stands still but for `travel`."""
        return datetime.fromtimestamp(self._clock.now(), timezone.utc)

    def travel(self, seconds: float | timedelta) -> None:
        """Let time pass for the app; run nothing. What the test itself took passes too.

        Args:
            seconds: More than 0.

        Raises:
            ValueError: Time goes forward only.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not 0 < seconds < float("inf"):
            raise ValueError(f"cannot travel {seconds!r} seconds; allowed is more than 0")
        self._travel(seconds)

    def travel_to(self, moment: datetime) -> None:
        """Let time pass until a moment.

        Args:
            moment: An aware datetime that is not past.

        Raises:
            ValueError: It is past, or has no time zone.
        """
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone; say which: tzinfo=timezone.utc")
        seconds = moment.timestamp() - self._clock.now()
        if seconds < 0:
            raise ValueError(f"{moment!r} is past for the app, for which it is {self.now!r}")
        self._stage.travel(seconds)

    def _travel(self, seconds: float) -> None:
        # Moments that the test made of the machine's time are then not a hair too late.
        seen, self._seen = self._seen, time.monotonic()
        self._stage.travel(seconds + self._seen - seen)


def _name(task: Task[Any, Any] | str) -> str:
    return task if isinstance(task, str) else task.name


@contextmanager
def use_app(app: EventMQ) -> Iterator[InlineApp]:
    """Run an app inline for the time of a ``with`` block.

    What the app submits goes to a broker in memory, whatever its settings say, and runs in the
    test's thread, when the test asks for results or calls `InlineApp.drain`. Afterwards the app
    is as it was. Results are kept by that broker, whatever the result backend.

    Args:
        app: Your app; it may not be in use by another ``use_app``.
    """
    wiring = cast("Wiring", app.host)
    clock, before = FakeClock(time.time()), app.clock
    app.load_tasks()
    app.clock = clock
    try:
        with wiring.lent(clock, lambda: InlineRunner(stage)):
            stage = Stage(app, clock)
            try:
                yield InlineApp(app, stage, clock)
            finally:
                stage.close()
    finally:
        app.clock = before
