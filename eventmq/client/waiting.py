"""Waits for many jobs at once; the brokers push their ends as they happen."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.requests import News
from eventmq.errors import ResultTimeout
from eventmq.wire.commands import MAX_IDS
from eventmq.wire.outcomes import EndRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from eventmq.client.client import Pending, Steps
    from eventmq.client.handle import Default, Job, ResultClient
    from eventmq.client.requests import PendingCall

__all__ = ["Completed", "Waited", "wait"]

#: Maximum number of open calls, of 1,000 jobs each: brokers limit the jobs that a peer waits for.
MAX_OPEN_CALLS = 50


class Waited(NamedTuple):
    """Result of ``app.wait``: the jobs that have ended and the others, each in their order."""

    done: list[Job[Any]]
    pending: list[Job[Any]]


class Completed:
    """Iterates over jobs as they end; for ``for`` and ``async for``, once.

    A job that no broker knows counts as ended: its `get` raises `JobNotFound`. The iteration raises
    `ResultTimeout` after the timeout and `BrokerUnavailable` if a broker cannot be asked.

    Args:
        jobs: Handles.
        results: Their result client.
        timeout: Seconds for all of them together.
        explain: Add a diagnosis of the first unfinished job to `ResultTimeout`, for which the
            broker is asked.
    """

    def __init__(
        self,
        jobs: Iterable[Job[Any]],
        results: ResultClient,
        timeout: float | Default | None,
        *,
        explain: bool = True,
    ) -> None:
        self._results = results
        self._runner = results.runner
        self._timeout = results.timeout(timeout)
        self._explain = explain
        self._count = 0
        self._handles: dict[str, list[Job[Any]]] = {}
        #: Jobs that have ended and were not yielded yet.
        self._ended: deque[Job[Any]] = deque()
        #: Ids that are in no call yet, by (broker, store).
        self._remaining: dict[tuple[int, str], list[str]] = {}
        #: Open calls by id.
        self._open: dict[str, PendingCall] = {}
        #: Deadline of the iteration, None before the first `next`.
        self._deadline: float | None = None
        for job in jobs:
            self._add(job)

    def _add(self, job: Job[Any]) -> None:
        origin = self._results.sent(job)
        self._count += 1
        if job.row is not None:
            self._ended.append(job)
            return
        handles = self._handles.setdefault(job.id, [])
        handles.append(job)
        if len(handles) == 1:
            self._remaining.setdefault((origin.broker, origin.store), []).append(job.id)

    def _begin_calls(self) -> None:
        """Begin calls, up to `MAX_OPEN_CALLS`."""
        if self._deadline is None:
            self._deadline = self._runner.deadline(self._timeout)
        while self._remaining and len(self._open) < MAX_OPEN_CALLS:
            (broker, store), ids = next(iter(self._remaining.items()))
            call = self._runner.new_call(
                "get", timeout=None, ids=ids[:MAX_IDS], target=broker, store=store
            )
            call.deadline = self._deadline
            del ids[:MAX_IDS]
            if not ids:
                del self._remaining[broker, store]
            self._open[call.id] = call
            self._runner.begin(call)

    def _read(self) -> None:
        """Read the answers."""
        for call in list(self._open.values()):
            while call.answers:
                row = EndRow(*call.answers.popleft())
                for job in self._handles.pop(row.id, ()):
                    job.row = row if row.state else None
                    self._ended.append(job)
            if call.done:
                del self._open[call.id]
                if call.error is not None:
                    raise call.error

    def __iter__(self) -> Iterator[Job[Any]]:
        try:
            while (job := self._runner.run(self.next()).wait()) is not None:
                yield job
        finally:
            self.close()

    async def __aiter__(self) -> AsyncIterator[Job[Any]]:
        try:
            while (job := await self._runner.run(self.next())) is not None:
                yield job
        finally:
            self.close()

    def next(self) -> Steps[Job[Any] | None]:
        """Return the steps to the next job that has ended, None after the last."""
        try:
            while not self._ended:
                self._read()
                self._begin_calls()
                if self._ended or not self._open:
                    break
                yield News(self._open.values(), None)
        except ResultTimeout as error:
            job = self._first_remaining()
            if job is not None:
                error = yield from self._results.explaining(job, self._timeout, error)
            raise self._timed_out(error) from None
        return self._ended.popleft() if self._ended else None

    def close(self) -> None:
        """Stop waiting for the remaining jobs."""
        for call in self._open.values():
            self._runner.forget(call)

    def _first_remaining(self) -> Job[Any] | None:
        """Return a job that has not ended, if the error needs a diagnosis."""
        jobs = next(iter(self._handles.values()), None)
        return jobs[0] if jobs and self._explain else None

    def _timed_out(self, error: ResultTimeout) -> ResultTimeout:
        """Return the error for all jobs that have not ended, with the text about the first."""
        remaining = sum(map(len, self._handles.values()))
        text = f"{remaining} of {self._count} jobs had not ended in time; the first: {error}"
        return ResultTimeout(text, job_id=error.job_id, state=error.state)


def wait(
    jobs: list[Job[Any]], results: ResultClient, timeout: float | Default | None
) -> Pending[Waited]:
    """Wait until all jobs have ended or the timeout has passed."""
    return results.runner.run(_waiting(jobs, results, timeout))


def _waiting(
    jobs: list[Job[Any]], results: ResultClient, timeout: float | Default | None
) -> Steps[Waited]:
    completed = Completed(jobs, results, timeout, explain=False)
    ended: set[int] = set()
    try:
        with suppress(ResultTimeout):
            while (job := (yield from completed.next())) is not None:
                ended.add(id(job))
    finally:
        completed.close()
    return Waited(
        [job for job in jobs if id(job) in ended], [job for job in jobs if id(job) not in ended]
    )
