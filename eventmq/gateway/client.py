"""The client side of gateways: the app's client in their thread, an event loop, calls of tasks."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from eventmq.errors import BrokerUnavailable, ProtocolError
from eventmq.headers import parse_headers
from eventmq.wire.results import is_reference

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Future

    from eventmq.app import EventMQ
    from eventmq.client.handle import Job
    from eventmq.client.io_loop import IoLoop
    from eventmq.task.task import Task

__all__ = [
    "InProcessClient",
    "LoopThread",
    "call_task",
    "close_server",
    "extra_headers",
    "kept_elsewhere",
]

#: Seconds between attempts to drive the client's I/O loop while another thread drives it.
RETRY_AFTER = 0.01


class InProcessClient:
    """The client of an app as a `eventmq.gateway.router.LoopMember`, without a change of threads.

    While another thread drives the client's I/O loop, or after the client was closed, it has no
    sockets to poll, and callbacks run in that other thread.

    Args:
        app: The app.
    """

    def __init__(self, app: EventMQ) -> None:
        self._runner = app.components.client.runner
        self._loop: IoLoop | None = None
        self._driving = False

    def poll_items(self, now: float) -> tuple[Sequence[tuple[Any, int]], float]:
        """Send pending requests; return what to poll."""
        if not self._driving and not self._drive():
            return (), RETRY_AFTER
        assert self._loop is not None  # noqa: S101 - it is driven
        items, due = self._loop.prepare()
        return items, max(0.0, due - now)

    def _drive(self) -> bool:
        try:
            self._loop = self._runner.loop()
        except BrokerUnavailable:
            return False
        self._driving = self._loop.attach()
        return self._driving

    def step(self, ready: Sequence[tuple[Any, int]], sources: AbstractSet[Any], now: float) -> bool:
        """Read the received messages; return True, since it lasts as long as the gateway."""
        if self._driving and self._loop is not None:
            self._driving = self._loop.step(ready)
        return True

    def close(self) -> None:
        """Leave the client to other threads. Idempotent."""
        loop, self._loop, self._driving = self._loop, None, False
        if loop is not None:
            loop.detach()


logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two turns of an event loop that `LoopThread.turns` counts.
TURN_EVERY = 0.5

#: Maximum seconds for cancelled coroutines to end.
CANCEL_TIMEOUT = 2.0

#: Iterations of the event loop until accepted connections have reached their handlers, with
#: reserve.
ACCEPTING = 8


class LoopThread:
    """An event loop in a thread.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns = 0

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        assert self._loop is not None  # noqa: S101 - made by start
        asyncio.set_event_loop(self._loop)
        self._turn()
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _turn(self) -> None:
        assert self._loop is not None  # noqa: S101 - it calls this
        self._turns += 1
        self._loop.call_later(TURN_EVERY, self._turn)

    def turns(self) -> int:
        """Return the number of turns of the loop, for `eventmq.gateway.Watchable`."""
        return self._turns

    def running(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine and return its future. From any thread."""
        assert self._loop is not None  # noqa: S101 - started
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its value. Not from a coroutine."""
        return self.submit(coroutine).result()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine without waiting; an exception is logged. From any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            coroutine.close()
            return
        loop.call_soon_threadsafe(self._begin, coroutine)

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        assert self._loop is not None  # noqa: S101 - it calls this
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s: a coroutine failed", self._name, exc_info=task.exception())

    def stop(self, grace: float = 0.0) -> None:
        """Let coroutines end within ``grace`` seconds, then cancel the others. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            return
        self.run(self._finish(grace))
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join(CANCEL_TIMEOUT)

    async def _finish(self, grace: float) -> None:
        if self._tasks and grace > 0:
            await asyncio.wait(self._tasks, timeout=grace)
        current = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not current]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=CANCEL_TIMEOUT)


async def close_server(server: asyncio.Server) -> None:
    """Stop accepting, and close a server once its accepted connections have reached their handlers.

    asyncio never closes a connection that it accepts in the same iteration as ``server.close()``.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(ACCEPTING):
        await asyncio.sleep(0)
    server.close()


async def call_task(
    task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, timeout: float
) -> Job[Any]:
    """Submit a job with arguments from a peer, and wait for its end, in one exchange.

    Like ``task.acall(*args, **kwargs)``, except that parameters may have any name, even
    ``timeout``.

    Args:
        task: A task of ``app.tasks``.
        args: Positional arguments.
        kwargs: Keyword arguments.
        timeout: Seconds.

    Returns:
        The job, which has ended: ``aget()`` returns its result as it was serialised, since peers do
        not have the task's classes.

    Raises:
        TypeError: The function does not accept these arguments.
        SerializationError: They cannot be encoded.
        BrokerUnavailable: No broker accepted the job in time.
        SubmitError: The broker refused the job.
        ResultTimeout: The job did not end in time; ``job_id`` has its id.
    """
    task.check(args, kwargs)
    template = replace(task.template, results=None)
    return await task.app.submitter.call(template, args, kwargs, timeout=timeout)


def extra_headers(text: str) -> dict[str, str]:
    """Return the headers that a caller, a middleware or a gateway added.

    Args:
        text: Headers as they are on the wire, in listings and in topics; a malformed text has
            none.
    """
    try:
        return dict(parse_headers(text).extra)
    except ProtocolError:
        return {}


def kept_elsewhere(job: Job[Any]) -> bool:
    """Return whether the result of an ended job is in a result backend, so ``get()`` may block.

    Args:
        job: The job that ``app.follow_raw`` passes to its callback.
    """
    return job.row is not None and is_reference(job.row.content_type)
