"""Inline apps for tests: jobs run in the test's thread, when the test requests it.

`use_app` needs no pytest; the fixtures in `eventmq.testing.plugin` use it.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, cast

from eventmq.client.client import ClientRunner, Transport
from eventmq.client.io_loop import Waiter
from eventmq.client.requests import NEVER, PendingCall
from eventmq.errors import BrokerUnavailable, NotAllowed, ResultTimeout
from eventmq.testing.clock import FakeClock
from eventmq.testing.cluster import Enqueued, ExpectedJob, SimulatedCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.app import EventMQ
    from eventmq.client.io_loop import IoLoop
    from eventmq.client.requests import PendingRequest
    from eventmq.task.task import Task

__all__ = ["InlineApp", "InlineRunner", "use_app"]


#: Maximum number of jobs that may run while a call waits for one.
LIMIT = 10_000

#: Reasons why a job will not end, by its state.
_HINTS = {
    "blocked": "it waits for other jobs",
    "queued": "its queue is paused, or it may not run now",
    "running": "it is the job that waits, or one below it",
}


class _Waiter(Waiter):
    """Waiter that never blocks, since nothing happens in the background."""

    __slots__ = ("_notified",)

    def __init__(self) -> None:
        super().__init__()
        self._notified = False

    def notify(self) -> None:
        """Let `wait` return."""
        self._notified = True

    def wait(self, timeout: float | None) -> bool:
        """Return True if `notify` was called since the last call.

        Raises:
            NotAllowed: It was not called.
        """
        if not self._notified:
            raise NotAllowed("nothing more will happen: in a test no job runs in the background")
        self._notified = False
        return True


def _has_ended(call: PendingCall) -> bool:
    """Return whether the end of a stream has arrived, and not only parts."""
    answers = call.answers
    return call.done or (
        bool(answers) and isinstance(answers[-1], tuple) and isinstance(answers[-1][1], list)
    )


class _Loop:
    """Replaces `IoLoop`: passes requests to the client's machine and delivers messages."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.machine = cluster.machine
        self.ended = False

    def begin(self, request: PendingRequest) -> None:
        """Process a request as far as possible; a call for results runs jobs."""
        cluster = self._cluster
        if self.ended:
            request.done, request.error = True, BrokerUnavailable("the test has ended")
            return
        self.machine.begin(request, cluster.clock.monotonic())
        cluster.pump()
        if not isinstance(request, PendingCall) or request.done:
            return
        if request.name == "get":
            cluster.run(LIMIT, lambda: request.done)
            if not request.done:
                self._report_stuck(request, next(iter(request.ids)))
        elif request.name == "stream":
            cluster.run(LIMIT, lambda: _has_ended(request))
            if not _has_ended(request):
                self._report_stuck(request, request.subject)

    def drive_until_done(self, request: PendingRequest) -> bool:
        """Do the same, and return True, since waiting would change nothing."""
        self.begin(request)
        return True

    def forget(self, call: PendingCall) -> None:
        """End a call."""
        self.machine.forget(call)
        self._cluster.pump()

    def stop(self, timeout: float) -> None:
        """End."""
        self.ended = True

    def credit(self, call: PendingCall) -> None:
        """Report to the broker how many parts of a stream were read."""
        self.machine.credit(call)
        self._cluster.pump()

    def _report_stuck(self, call: PendingCall, job_id: str) -> None:
        state, reason = self._reason(job_id)
        self.machine.forget(call)
        call.error = ResultTimeout(reason, job_id=job_id, state=state)
        self._cluster.pump()

    def _reason(self, job_id: str) -> tuple[str, str]:
        """Return the state of a job, and the reason why it does not end."""
        call = PendingCall(
            [], id=self.machine.message_id(), deadline=NEVER, name="info", arguments={"id": job_id}
        )
        self.begin(call)
        if call.error is not None or not call.answers:
            return "unknown", f"the broker does not know job {job_id}"
        info: dict[str, Any] = call.answers.popleft()
        state = info["state"]
        message = f"nothing is left to run, and job {job_id} of task {info['task']!r} is {state}"
        if state == "delayed":
            wait = info["due"] - self._cluster.clock.now()
            return state, f"{message}, due in {wait:.6g} s: travel there first"
        if state == "queued" and info["task"] not in self._cluster.app.tasks:
            return state, f"{message}: no task of that name is registered in this app"
        return state, f"{message}: {_HINTS.get(state, 'it never will')}"


class InlineRunner(ClientRunner):
    """A `ClientRunner` without sockets and threads. Use it from one thread at a time.

    Args:
        cluster: The cluster with the broker.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(lambda: Transport(["memory://"]), clock=cluster.clock)
        self._inline = _Loop(cluster)

    def _start(self) -> IoLoop:
        return cast("IoLoop", self._inline)

    @staticmethod
    def waiter() -> Waiter:
        """Return the object with which a thread waits."""
        return _Waiter()


#: Maximum number of ids in one call to the broker.
_PAGE = 1000

_WAITING = frozenset({"queued", "delayed", "blocked"})


class InlineApp:
    """An app with its own broker in memory; jobs run only when the test requests it.

    Attributes:
        app: The app.
    """

    def __init__(self, app: EventMQ, cluster: SimulatedCluster, clock: FakeClock) -> None:
        self.app = app
        self._cluster = cluster
        self._clock = clock
        #: Monotonic time of the machine at the last `travel`.
        self._last_travel = time.monotonic()

    def __repr__(self) -> str:
        return f"<InlineApp {self.app.name}>"

    # Running

    def drain(self, *, limit: int = LIMIT, strict: bool = False) -> int:
        """Run due jobs, and the jobs that they submit, until none is left.

        Args:
            limit: Maximum number of jobs, which stops a task that submits itself.
            strict: Raise what `Job.get` raises for the first job that failed for good.

        Returns:
            The number of jobs that ran; every attempt of a job counts.

        Raises:
            AssertionError: There were more than ``limit``.
        """
        before = self._ids("failed") if strict else set()
        count = self._cluster.run(limit)
        if count >= limit and any(job.state == "queued" for job in self.enqueued()):
            raise AssertionError(
                f"drain() has run {count} jobs and there are more: does a task submit itself? "
                "drain(limit=...) sets another bound"
            )
        failed = self._ids("failed") - before if strict else set()
        for job_id in self._cluster.submitted:
            if job_id in failed:
                self.app.job(job_id).get()
        return count

    # Inspecting

    def enqueued(self, task: Task[Any, Any] | str | None = None) -> list[Enqueued]:
        """Return the waiting jobs, in the order of their submission.

        Args:
            task: Return only jobs of this task, or of the task of this name.
        """
        waiting = self._ids(*_WAITING)
        submitted = self._cluster.submitted
        jobs = [
            Enqueued.read(self.app, self.app.ask("info", {"id": job_id}), submitted[job_id])
            for job_id in submitted
            if job_id in waiting
        ]
        name = None if task is None else _name(task)
        return [job for job in jobs if name in {None, job.task}]

    def _ids(self, *states: str) -> set[str]:
        """Return the ids of submitted jobs in one of these states."""
        ids = list(self._cluster.submitted)
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
        """Fail unless a matching job waits.

        Args:
            task: The task, or its name.
            args: All positional arguments; None matches any.
            kwargs: All keyword arguments; None matches any.
            queue: Name of the queue; None matches any.
            count: Number of matching jobs; None for one or more.

        Returns:
            The jobs.

        Raises:
            AssertionError: There is none, or another number; the message lists the waiting jobs.
        """
        keywords = None if kwargs is None else dict(kwargs)
        expected = ExpectedJob(_name(task), args, keywords, queue)
        jobs = self.enqueued()
        matching = [job for job in jobs if expected.matches(job)]
        if len(matching) == count or (count is None and matching):
            return matching
        number = "no job waits" if not matching else f"{len(matching)} jobs wait"
        lines = [
            f"{number} that is {expected}; expected: {'1 or more' if count is None else count}"
        ]
        lines += [f"waiting: {job}" for job in jobs] or ["nothing waits at all"]
        raise AssertionError("\n".join(lines))

    # Time

    @property
    def now(self) -> datetime:
        """The present time of this app, in UTC. Only `travel` changes it."""
        return datetime.fromtimestamp(self._clock.now(), timezone.utc)

    def travel(self, seconds: float | timedelta) -> None:
        """Advance the time of the app, and add the real time of the test. Runs no jobs.

        Args:
            seconds: More than 0.

        Raises:
            ValueError: ``seconds`` is not more than 0.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not 0 < seconds < float("inf"):
            raise ValueError(f"cannot travel {seconds!r} seconds; allowed is more than 0")
        # So that times which the test computed from the real clock have been reached.
        before, self._last_travel = self._last_travel, time.monotonic()
        self._cluster.travel(seconds + self._last_travel - before)

    def travel_to(self, when: datetime) -> None:
        """Advance the time of the app to a given time.

        Args:
            when: An aware datetime in the future.

        Raises:
            ValueError: It is in the past, or has no time zone.
        """
        if when.tzinfo is None:
            raise ValueError(f"{when!r} has no time zone; add one: tzinfo=timezone.utc")
        seconds = when.timestamp() - self._clock.now()
        if seconds < 0:
            raise ValueError(f"{when!r} is past for the app, for which it is {self.now!r}")
        self._cluster.travel(seconds)


def _name(task: Task[Any, Any] | str) -> str:
    return task if isinstance(task, str) else task.name


@contextmanager
def use_app(app: EventMQ) -> Iterator[InlineApp]:
    """Run an app inline during a ``with`` block.

    Jobs of the app go to a broker in memory, whatever its settings, and run in the test's thread,
    when the test waits for results or calls `InlineApp.drain`. Afterwards the app is as it was
    before. That broker keeps the results, whatever the result backend.

    Args:
        app: Your app, which no other ``use_app`` may use.
    """
    clock = FakeClock(time.time())
    app.load_tasks()
    with app.components.replaced_client(clock, lambda: InlineRunner(cluster)):
        cluster = SimulatedCluster(app, clock)
        try:
            yield InlineApp(app, cluster, clock)
        finally:
            cluster.close()
