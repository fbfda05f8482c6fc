"""Runs the coroutine of one job among many, in an event loop that they share.

What `execution` does for one job after the other, with the same outcomes. Thousands may be under
way; each has its own stop sign, and its own context variables, since each is a task of asyncio.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError
from eventmq.execution.context import current
from eventmq.execution.executor import Executor, compose
from eventmq.execution.streaming import Cancellation, adrive, past_soft_limit
from eventmq.interfaces import Envelope, JobContext
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from eventmq.execution.coroutines import Interruptible
    from eventmq.execution.routes import Route
    from eventmq.wire.batches import ChunkEntry

    Body = Callable[[Coroutine[Any, Any, Any], str], Interruptible]

__all__ = ["AsyncExecutor"]

_SUCCEEDED = int(OutcomeKind.SUCCEEDED)
_EXPIRED = int(OutcomeKind.EXPIRED)


def _envelope(route: Route, job: JobContext) -> Envelope:
    about = (job.id, route.content_type, job.task, job.queue)
    return Envelope(*about, route.created, route.expires, route.signature)


async def _decoded(route: Route, payload: bytes, envelope: Envelope) -> Any:
    if route.fetches:
        return await asyncio.to_thread(route.decode, payload, envelope)
    return route.decode(payload, envelope)


class AsyncExecutor(Executor):
    """Runs jobs beside each other; one per event loop. Made by `of`."""

    _body: Body
    _awaits: Callable[..., Any] | None

    @classmethod
    def of(cls, executor: Executor, body: Body) -> AsyncExecutor:
        """Return one for the same tasks.

        Args:
            executor: Knows them.
            body: Makes what awaits a coroutine, given the name of its task.

        Raises:
            PluginError: A middleware has ``execute`` and no ``aexecute``.
        """
        other = cls.__new__(cls)
        vars(other).update(vars(executor.for_slot()))
        other._body = body  # noqa: SLF001 - its own kind
        for middleware in executor.around:
            if not hasattr(middleware, "aexecute"):
                name = type(middleware).__name__
                msg = (
                    f"the middleware {name} has execute and no aexecute: it cannot wrap coroutines"
                )
                raise PluginError(f"{msg} of the pool 'asyncio'; use the pool prefork or threads")
        calls = [m.aexecute for m in executor.around]  # type: ignore[attr-defined]
        other._awaits = compose(calls)  # noqa: SLF001
        return other

    def new_stop(self) -> Cancellation:
        """Return the stop sign of one job."""
        return Cancellation(self._monotonic)

    # hot loop: benchmarks/life.py
    async def arun(
        self, route: Route, position: int, entry: ChunkEntry, payload: bytes, stop: Cancellation
    ) -> OutcomeRow:
        """Run one job to its end, in a task of its own. Raises nothing, whatever the job does.

        Args:
            route: Of the job's queue and header text; its ``awaits`` is true.
            position: The job's place in its chunk.
            entry: Id, delivery, attempt and expiry.
            payload: The encoded ``[args, kwargs]``.
            stop: Says whether it was cancelled, and what takes its parts.
        """
        start = self._monotonic()
        started = start + self._offset
        if entry.expires and entry.expires < started:
            return OutcomeRow(position, _EXPIRED, 0.0, 0.0, "", b"")
        if route.refusal is not None:
            return self._refused(route, position, entry, started)
        about = (entry.id, route.task, route.queue, entry.attempt, entry.delivery, route.text)
        job = JobContext(*about, stop)
        current.set(job)
        envelope = _envelope(route, job)
        try:
            args, kwargs = await _decoded(route, payload, envelope)
        except Exception as error:  # noqa: BLE001 - serializers are plugins
            return self._unreadable(route, position, job, start, error)
        try:
            coroutine = route.spec.function(*args, **kwargs)
            if stop.sink is not None:
                coroutine = adrive(coroutine, stop.sink, self._part_encoder(job))
            body = self._body(coroutine, route.task)
            if self._awaits is None and not route.soft:
                value = await body
            else:
                value = await self._await(route, job, body)
        except BaseException as error:  # noqa: BLE001 - also a cancellation
            return self._failed(route, position, job, start, error)
        run_time = self._monotonic() - start
        if route.ignore_result:
            return OutcomeRow(position, _SUCCEEDED, started, run_time, "", b"")
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
        job.stop.limit(route.soft)
        error = past_soft_limit(route.soft)
        timer = asyncio.get_running_loop().call_later(route.soft, body.interrupt, task, error)
        try:
            return await call
        finally:
            timer.cancel()
            job.stop.limit(0.0)
