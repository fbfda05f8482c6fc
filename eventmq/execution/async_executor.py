"""Async executor: runs many jobs at once as coroutines of one event loop.

Its outcomes are those of `eventmq.execution.executor`. Thousands of jobs may run; each has its own
`Cancellation`, and its own context variables, since each is an asyncio task.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError
from eventmq.execution import kept_logs
from eventmq.execution.executor import Executor, compose
from eventmq.execution.failures import is_misfit
from eventmq.execution.streaming import Cancellation, past_soft_limit, run_async_generator
from eventmq.interfaces import AsyncExecution, Envelope, JobContext, current
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from eventmq.execution.routes import Route
    from eventmq.execution.streaming import Interruptible
    from eventmq.wire.batches import ChunkEntry

    Body = Callable[[Coroutine[Any, Any, Any], str], Interruptible]

__all__ = ["AsyncExecutor"]

_SUCCEEDED = int(OutcomeKind.SUCCEEDED)


class AsyncExecutor(Executor):
    """Runs many jobs at once; one per event loop. Made by `of`."""

    _body: Body
    _awaits: Callable[..., Any] | None

    @classmethod
    def of(cls, executor: Executor, body: Body) -> AsyncExecutor:
        """Return an async executor for the same tasks.

        Args:
            executor: Executor of the tasks.
            body: Wraps the coroutine of a task; also gets the task's name.

        Raises:
            PluginError: A middleware has ``execute`` and no ``aexecute``.
        """
        async_executor = cls.__new__(cls)
        vars(async_executor).update(vars(executor.for_slot()))
        async_executor._body = body  # noqa: SLF001 - its own kind
        calls = []
        for middleware in executor.around:
            if not isinstance(middleware, AsyncExecution):
                msg = f"the middleware {type(middleware).__name__} has execute and no aexecute: it "
                raise PluginError(f"{msg}cannot wrap coroutines; use a pool without an event loop")
            calls.append(middleware.aexecute)
        async_executor._awaits = compose(calls)  # noqa: SLF001
        return async_executor

    def _keep_logs(self) -> None:
        super()._keep_logs()
        self.arun = kept_logs.keeping_async(self.arun, self._max_log)  # type: ignore[method-assign,assignment]

    def new_cancellation(self) -> Cancellation:
        """Return the cancellation of one job."""
        return Cancellation(self._monotonic)

    # hot loop: python -m benchmarks async_io
    async def arun(
        self,
        route: Route,
        position: int,
        entry: ChunkEntry,
        payload: bytes,
        cancellation: Cancellation,
    ) -> OutcomeRow:
        """Run one job to its end, in its own asyncio task. Never raises, whatever the job does.

        Args:
            route: Route of the job's queue and header text; its ``awaits`` is true.
            position: Position of the job in its chunk.
            entry: Id, delivery, attempt and expiry.
            payload: The encoded ``[args, kwargs]``.
            cancellation: Cancellation of the job, and the sink of its parts.
        """
        start = self._monotonic()
        started = start + self._offset
        if entry.expires and entry.expires < started:
            return OutcomeRow(position, OutcomeKind.EXPIRED)
        if route.refusal is not None:
            return self._refused(route, position, entry, started)
        job = JobContext(
            entry.id, route.task, route.queue, entry.attempt, entry.delivery, route.text,
            cancellation,
        )  # fmt: skip
        current.set(job)
        envelope = Envelope(
            entry.id, route.content_type, route.task, route.queue, route.created, route.expires,
            route.signature,
        )  # fmt: skip
        try:
            if route.fetches:  # it may block
                args, kwargs = await asyncio.to_thread(route.decode, payload, envelope)
            else:
                args, kwargs = route.decode(payload, envelope)
        except Exception as error:  # noqa: BLE001 - serializers are plugins
            return self._unreadable(route, position, job, start, error)
        try:
            coroutine = route.spec.function(*args, **kwargs)
            if cancellation.sink is not None:
                coroutine = run_async_generator(
                    coroutine, cancellation.sink, self._part_encoder(job)
                )
            body = self._body(coroutine, route.task)
            if self._awaits is None and not route.soft:
                value = await body
            else:
                value = await self._await(route, job, body)
        except BaseException as error:  # noqa: BLE001 - also a cancellation
            misfit = is_misfit(error, route.spec.function, args, kwargs)
            return self._failed(route, position, job, start, error, final=misfit)
        run_time = self._monotonic() - start
        if route.ignore_result:
            return OutcomeRow(position, _SUCCEEDED, started, run_time)
        end = (route, position, job, value, started, run_time, envelope)
        if not self._location.inline:  # it may block
            return await asyncio.to_thread(self._succeeded, *end)
        return self._succeeded(*end)

    async def _await(self, route: Route, job: JobContext, body: Interruptible) -> Any:
        call = body if self._awaits is None else self._awaits(job, lambda: body)
        if not route.soft:
            return await call
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - see arun
        job.cancellation.set_soft_limit(route.soft)
        error = past_soft_limit(route.soft)
        timer = asyncio.get_running_loop().call_later(route.soft, body.interrupt, task, error)
        try:
            return await call
        finally:
            timer.cancel()
            job.cancellation.set_soft_limit(0.0)
