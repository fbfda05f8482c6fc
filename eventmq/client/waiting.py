"""Waits for many jobs at once; the brokers push their ends as they come."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.outcomes import EndRow
from eventmq.errors import ResultTimeout
from eventmq.wire.calls import MAX_IDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from eventmq.client.handle import Default, Job, ResultClient
    from eventmq.client.requests import PendingCall

__all__ = ["Completed", "Waited", "await_", "wait"]

#: Maximum number of open calls, of 1,000 jobs each: a broker bounds what a peer waits for.
MAX_OPEN_CALLS = 50


class Waited(NamedTuple):
    """What ``app.wait`` returns: the jobs that have ended and the others, each in their order."""

    done: list[Job[Any]]
    pending: list[Job[Any]]


class Completed:
    """Iterates over jobs as they end; for ``for`` and ``async for``, once.

    A job that no broker knows counts as ended: its `get` raises `JobNotFound`. Iterating raises
    `ResultTimeout` after the timeout and `BrokerUnavailable` if a broker cannot be asked.

    Args:
        jobs: Handles.
        results: Their result client.
        timeout: Seconds for all of them together.
        explain: `ResultTimeout` has a diagnosis of the first of the others, for which the
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
        #: Ids that no call has, by (broker, store).
        self._remaining: dict[tuple[int, str], list[str]] = {}
        #: Ids of open calls, and calls with answers that were not read.
        self._open: set[str] = set()
        self._news: deque[PendingCall] = deque()
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

    def _calls(self, deadline: float) -> Iterator[PendingCall]:
        """Yield the calls that may begin now."""
        while self._remaining and len(self._open) < MAX_OPEN_CALLS:
            (broker, store), ids = next(iter(self._remaining.items()))
            call = self._runner.new_call(
                "get", timeout=None, ids=ids[:MAX_IDS], target=broker, store=store
            )
            call.deadline = deadline
            del ids[:MAX_IDS]
            if not ids:
                del self._remaining[broker, store]
            self._open.add(call.id)
            yield call

    def _ask(self, deadline: float, notify: Callable[[], None], begun: list[PendingCall]) -> None:
        """Begin the calls that may begin; those with answers go to ``_news``."""

        def notifier(call: PendingCall) -> Callable[[], None]:
            def news() -> None:
                self._news.append(call)
                notify()

            return news

        for call in self._calls(deadline):
            call.notify = notifier(call)
            begun.append(call)
            self._runner.begin(call)

    def _read(self) -> None:
        """Read the answers."""
        while self._news:
            call = self._news.popleft()
            while call.answers:
                row = EndRow(*call.answers.popleft())
                for job in self._handles.pop(row.id, ()):
                    job.row = row if row.state else None
                    self._ended.append(job)
            if call.done and call.id in self._open:
                self._open.discard(call.id)
                if call.error is not None:
                    raise call.error

    @property
    def _finished(self) -> bool:
        return not self._open and not self._remaining

    def __iter__(self) -> Iterator[Job[Any]]:
        waiter = self._runner.waiter()
        deadline = self._runner.deadline(self._timeout)
        begun: list[PendingCall] = []
        try:
            while True:
                while self._ended:
                    yield self._ended.popleft()
                if self._finished:
                    return
                self._ask(deadline, waiter.notify, begun)
                waiter.wait(None)
                self._read()
        except ResultTimeout as error:
            job = self._first_remaining()
            if job is not None:
                error = self._results.explained(job, self._timeout, error)
            raise self._timed_out(error) from None
        finally:
            self._forget(begun)

    async def __aiter__(self) -> AsyncIterator[Job[Any]]:
        waiter = self._runner.async_waiter()
        deadline = self._runner.deadline(self._timeout)
        begun: list[PendingCall] = []
        try:
            while True:
                while self._ended:
                    yield self._ended.popleft()
                if self._finished:
                    return
                self._ask(deadline, waiter.notify, begun)
                await waiter.wait()
                self._read()
        except ResultTimeout as error:
            job = self._first_remaining()
            if job is not None:
                error = await self._results.aexplained(job, self._timeout, error)
            raise self._timed_out(error) from None
        finally:
            self._forget(begun)

    def _first_remaining(self) -> Job[Any] | None:
        """Return a job that has not ended, if the error should have a diagnosis."""
        jobs = next(iter(self._handles.values()), None)
        return jobs[0] if jobs and self._explain else None

    def _timed_out(self, error: ResultTimeout) -> ResultTimeout:
        """Return the error for all jobs that have not ended, with the text about the first."""
        remaining = sum(map(len, self._handles.values()))
        text = f"{remaining} of {self._count} jobs had not ended in time; the first: {error}"
        return ResultTimeout(text, job_id=error.job_id, state=error.state)

    def _forget(self, begun: list[PendingCall]) -> None:
        for call in begun:
            self._runner.forget(call)


def wait(jobs: list[Job[Any]], results: ResultClient, timeout: float | Default | None) -> Waited:
    """Wait until all jobs have ended or the timeout has passed."""
    done: set[int] = set()
    with suppress(ResultTimeout):
        done.update(id(job) for job in Completed(jobs, results, timeout, explain=False))
    return _sorted(jobs, done)


async def await_(
    jobs: list[Job[Any]], results: ResultClient, timeout: float | Default | None
) -> Waited:
    """Do the same as `wait` in a coroutine."""
    done: set[int] = set()
    with suppress(ResultTimeout):
        async for job in Completed(jobs, results, timeout, explain=False):
            done.add(id(job))
    return _sorted(jobs, done)


def _sorted(jobs: list[Job[Any]], done: set[int]) -> Waited:
    return Waited(
        [job for job in jobs if id(job) in done], [job for job in jobs if id(job) not in done]
    )
