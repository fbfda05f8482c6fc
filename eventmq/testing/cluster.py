"""Simulated cluster: client, broker and workers in one thread, driven by the test.

There are no sockets and no real time. The state machines are the real ones, with the memory store;
messages pass between them by function calls. A submission returns with its receipt, jobs run in
`SimulatedCluster.run`, and time passes in `SimulatedCluster.travel`.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from eventmq.app.broker import limits_of, make_routing
from eventmq.broker.core import BrokerCore
from eventmq.client.machine import ClientMachine
from eventmq.client.templates import ACK_AND_REPLY_REQUESTED, ACK_REQUESTED, LATE_ACK
from eventmq.execution.streaming import CoroutineRunner, FlowControl
from eventmq.headers import parse_headers
from eventmq.interfaces import Envelope, JobsEnded, PartsYielded, PluginContext, ProgressReported
from eventmq.job import OutcomeKind
from eventmq.plugins.queue_stores.memory import make_store
from eventmq.registry.names import QUEUE_ORDER
from eventmq.wire.batches import decode_batch, decode_chunk, decode_graph, encode_outcomes
from eventmq.wire.commands import Heartbeat, Request, decode
from eventmq.wire.streams import encode_progress
from eventmq.worker.inputs import SpoolDirectory, new_spool
from eventmq.worker.manager import JobManager
from eventmq.worker.session import SessionInfo
from eventmq.worker.slots import LONG_JOB

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from eventmq.app import EventMQ
    from eventmq.execution.executor import Executor
    from eventmq.execution.streaming import Cancellation, PartBatch
    from eventmq.interfaces import PoolEvent, QueueOrder
    from eventmq.testing.clock import FakeClock

__all__ = ["Enqueued", "ExpectedJob", "InlinePool", "SimulatedCluster"]


T = TypeVar("T")

_EXECUTED = frozenset({OutcomeKind.SUCCEEDED, OutcomeKind.FAILED, OutcomeKind.RETRY})


def _outside_loop(function: Callable[[], T]) -> T:
    """Call a function; in a new thread if this one has a running event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:  # noqa: SLF001 - it is for such
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, function).result()


class _Coroutines(CoroutineRunner):
    """Coroutine runner that works inside an async test, as event loops cannot be nested."""

    __slots__ = ()

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        soft: float = 0.0,
        stop: Cancellation | None = None,
    ) -> Any:
        """Run a coroutine to its end, and return its value."""
        return _outside_loop(partial(super().run, coroutine, soft, stop))

    def close(self) -> None:
        """Close the loop. Idempotent."""
        _outside_loop(super().close)


class InlineSink:
    """Stream sink that accepts every part at once, since no reader can be waited for."""

    has_credit = True

    def __init__(self) -> None:
        self.job_position = (0, -1)
        self._flow = FlowControl()
        self._events: list[PoolEvent] = []

    def begin(self) -> None:
        """Begin the stream of the running job."""
        self._flow = FlowControl()

    def put(self, content_type: str, payload: bytes) -> bool:
        """Accept a part."""
        return self._send(self._flow.add(content_type, payload, 0.0))

    def _send(self, batches: Sequence[PartBatch]) -> bool:
        for batch in batches:
            self._events.append(
                PartsYielded(0, *self.job_position, batch.first, batch.parts, batch.body)
            )
            self._flow.credit(batch.first + batch.parts)
        return bool(batches)

    def wait(self, seconds: float) -> bool:
        """Return True: there is always credit."""
        return True

    def on_credit(self, call: Callable[[], None]) -> None:
        """Call the function at once: there is always credit."""
        call()

    def end(self) -> None:
        """End the stream."""
        self._send(self._flow.end(0.0))

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Record the progress of the job."""
        self._events.append(
            ProgressReported(0, *self.job_position, encode_progress(done, total, note))
        )

    def take(self) -> list[PoolEvent]:
        """Remove and return the events of the job."""
        events, self._events = self._events, []
        return events


class InlinePool:
    """A `eventmq.interfaces.WorkerPool` of one slot; `run_next` runs one job and returns.

    Time limits are not enforced in blocking code: the test's own thread cannot be interrupted.

    Args:
        executor: Runs the jobs; the pool uses a copy.
    """

    slots = 1
    interrupts = False
    shared = False
    abandoned = 0

    def __init__(self, executor: Executor) -> None:
        self._executor = executor.for_slot()
        self._sink = InlineSink()
        self._executor.set_sink(self._sink)
        self._executor._coroutines = _Coroutines()  # noqa: SLF001 - made for it
        self._chunks: deque[tuple[int, bytes, int]] = deque()
        #: Number of jobs that were run.
        self.jobs_run = 0

    def start(self) -> None:
        """Do nothing: it is ready."""

    def filenos(self) -> Sequence[int]:
        """Return no descriptors: nothing happens in the background."""
        return ()

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Keep a chunk until `run_next`."""
        self._chunks.append((chunk, body, count))

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return their number."""
        withdrawn = sum(count for _, _, count in self._chunks)
        self._chunks.clear()
        return withdrawn

    def running(self, slot: int) -> None:
        """Return None: no job runs between calls."""

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Do nothing: the job runs further down the caller's stack."""

    def kill(self, slot: int) -> None:
        """Do nothing: the job runs further down the caller's stack."""

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Do nothing: parts do not wait for readers."""

    def scale(self, slots: int) -> None:
        """Do nothing: there is one slot."""

    def poll(self) -> list[PoolEvent]:
        """Run the next job, if there is one."""
        return self.run_next()

    def stop(self, grace: float) -> None:
        """Close the event loop, if a task needed one. Idempotent."""
        self._executor.close()

    def run_next(self) -> list[PoolEvent]:
        """Run the jobs of the next chunk now; return nothing if there is none."""
        if not self._chunks:
            return []
        number, body, _ = self._chunks.popleft()
        index = decode_chunk(body)
        routes = self._executor.routes(index.queue, index.templates)
        rows = []
        events: list[PoolEvent] = []
        outer = self._sink.job_position
        for position, entry in enumerate(index.entries):
            self._sink.job_position = number, position
            payload = index.payload(body, entry)
            rows.append(self._executor.run(routes[entry.template], position, entry, payload))
            events += self._sink.take()
        self._sink.job_position = outer
        self.jobs_run += sum(row.kind in _EXECUTED for row in rows)
        # As if they had been long: the manager then requests no further jobs in advance.
        run_time = len(rows) * LONG_JOB
        return [*events, JobsEnded(0, number, len(rows), run_time, encode_outcomes(rows))]


#: Maximum number of rounds until all messages must be delivered.
MAX_ROUNDS = 100_000

#: Seconds between two checks of the broker for delayed jobs.
STEP = 0.3

#: Parts and bytes of a stream: a generator runs to its end before its parts are read.
UNBOUNDED = 1 << 53

_CLIENT = b"client"

#: Weight of every queue: all are equal, whatever the settings of a worker.
_WEIGHT = 10


class SimulatedCluster:
    """The client, broker and workers of one app.

    Args:
        app: The app, whose tasks run. Its settings apply, except for broker and result backend.
        clock: The time of all machines.
    """

    def __init__(self, app: EventMQ, clock: FakeClock) -> None:
        self.app = app
        self.clock = clock
        #: Submitted jobs by id: queue, header text and body.
        self.submitted: dict[str, tuple[str, str, bytes]] = {}
        settings = app.settings
        limits = replace(
            limits_of(settings),
            chunk_jobs=1,
            stream_parts=UNBOUNDED,
            stream_bytes=UNBOUNDED,
            max_stream_bytes=UNBOUNDED,
        )
        self.core = BrokerCore(limits, make_routing(app.settings, app.plugins), self._order)
        self._store = make_store(
            PluginContext("memory", {"dedupe_window": settings.dedupe_window}, clock)
        )
        self.core.recover(self._store.open(), clock.now())
        self.machine = ClientMachine(["memory://"], session="0" * 32, name=app.name)
        self._inbox: deque[tuple[bytes, Sequence[bytes]]] = deque()
        self._workers: dict[bytes, JobManager] = {}
        self._joined = 0
        self.machine.opened(0, clock.monotonic())
        self.pump()

    def close(self) -> None:
        """Discard everything."""
        self._store.close()

    def _order(self) -> QueueOrder:
        return self.app.plugins.make(QUEUE_ORDER, self.app.settings.queue_order)

    # Messages

    def pump(self) -> None:
        """Deliver messages until none is left. Runs no jobs."""
        for _ in range(MAX_ROUNDS):
            if not self._round():
                return
        raise RuntimeError("client, broker and worker never come to rest")

    def _round(self) -> bool:
        now, inbox = self.clock.now(), self._inbox
        self.machine.flush(0, self._from_client, self.clock.monotonic())
        self._notify()
        for identity, manager in self._workers.items():
            manager.tick(self.clock.monotonic())
            inbox.extend((identity, frames) for frames in manager.take_outbox())
        moved = bool(inbox)
        while inbox:
            identity, frames = inbox.popleft()
            self.core.receive("main", [identity, *frames], now)
        self.core.decide(now)
        while self.core.has_writes:
            moved = True
            entries, settle_batch = self.core.take_batch()
            self._store.submit(entries)
            for write_results in self._store.finished():
                settle_batch(write_results)
            self.core.decide(now)
        sends = self.core.take_deferred_sends()
        for message in sends:
            if not self._deliver(message.key.identity, message.frames):
                self.core.not_sent(message, now, reachable=False)
        self._notify()
        return moved or bool(sends)

    def _from_client(self, frames: Sequence[bytes]) -> bool:
        message = decode(frames)
        if isinstance(message, Request):
            self._record(message)
        self._inbox.append((_CLIENT, frames))
        return True

    def _record(self, request: Request) -> None:
        """Remember submitted jobs, so that waiting jobs can be listed with their arguments."""
        headers = parse_headers(request.headers)
        if not headers.batch and not headers.nodes:
            text = request.headers
            for requested in (ACK_AND_REPLY_REQUESTED, ACK_REQUESTED, LATE_ACK):
                text = text.removeprefix(requested).removeprefix(",")
            self.submitted.setdefault(request.id, (request.queue, text, request.body))
            return
        if headers.nodes:
            templates, rows, _ = decode_graph(request.body, headers.nodes)
        else:
            templates, rows = decode_batch(request.body, headers.batch)
        for job_id, template, body in rows:
            self.submitted.setdefault(job_id, (*templates[template], body))

    def _deliver(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        if identity == _CLIENT:
            self.machine.received(0, frames, self.clock.monotonic())
            return True
        manager = self._workers.get(identity)
        if manager is None:
            return False
        manager.receive(frames, self.clock.monotonic())
        return True

    def _notify(self) -> None:
        to_notify = self.machine.to_notify
        while to_notify:
            to_notify.pop(0).notify()

    # Jobs

    def run(self, limit: int, done: Callable[[], bool] = lambda: False) -> int:
        """Run due jobs, one after the other, until none is left.

        A job that itself waits for others is on the stack of this call, and calls it again.

        Args:
            limit: Maximum number of jobs.
            done: Ends the run earlier by returning True.

        Returns:
            The number of jobs that ran.
        """
        count = 0
        while True:
            queues = self._queues()
            count += self._run_session(queues, limit - count, done)
            # The jobs may have used another queue for the first time.
            if count >= limit or done() or self._queues() == queues:
                return count

    def _run_session(self, queues: set[str], limit: int, done: Callable[[], bool]) -> int:
        """Start a worker, run jobs in it, and stop it."""
        spool = SpoolDirectory(new_spool())
        executor = self.app.make_executor(str(spool.path))
        pool = InlinePool(executor)
        self._joined += 1
        identity = b"worker-%d" % self._joined
        info = SessionInfo(
            session=identity.decode(),
            queues=tuple((_WEIGHT, name) for name in sorted(queues)),
            tasks=tuple(executor.tasks),
            callables=executor.allow_callables,
        )
        manager = JobManager(info, pool=pool, clock=self.clock, spool=spool)
        self._workers[identity] = manager
        manager.connected(self.clock.monotonic())
        try:
            self.pump()
            while pool.jobs_run < limit and not done():
                events = pool.run_next()
                if not events:
                    break
                manager.pool_events(events, self.clock.monotonic())
                self.pump()
        finally:
            spool.close()
            pool.take_back(0)  # the broker queues them again when the worker ends
            manager.finish()
            self.pump()
            del self._workers[identity]
            pool.stop(0.0)
        return pool.jobs_run

    def _queues(self) -> set[str]:
        settings = self.app.settings
        served = {name for _, name in settings.queues} | {settings.default_queue}
        return served | set(self.core.state.queues)

    # Time

    def travel(self, seconds: float) -> None:
        """Advance the time. No job runs, and no peer times out."""
        skipped = seconds - 2 * STEP
        if skipped > 0:
            self.clock.advance(skipped)
            self._stay_alive()
            self.core.shift(self.clock.now(), skipped)
            self.pump()
        for step in (STEP, STEP) if skipped > 0 else (seconds,):
            self.clock.advance(step)
            self.pump()

    def _stay_alive(self) -> None:
        frames: list[Any] = Heartbeat("alive", f"{self.clock.now():.2f}").frames()
        for identity in (_CLIENT, *self._workers):
            self._deliver(identity, frames)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that waits.

    Attributes:
        id: The job's id.
        task: Name of its task, "" for a legacy job.
        args: As the task will get them; for a legacy job the body.
        kwargs: As the task will get them.
        queue: Name of its queue.
        state: ``queued``, ``delayed`` or ``blocked``.
        due: Seconds until it is due, 0.0 if it is due.
        priority: Its priority.
        attempt: Number of the attempt, from 1.
        headers: The header text.
    """

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    state: str
    due: float
    priority: int
    attempt: int
    headers: str

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        text = f"{self.task or 'a legacy job'}({', '.join(arguments)}) in queue {self.queue}"
        return f"{text}, due in {self.due:.6g} s" if self.state == "delayed" else text

    @classmethod
    def read(
        cls, app: EventMQ, info: dict[str, Any], submitted: tuple[str, str, bytes]
    ) -> Enqueued:
        """Return the waiting job for the broker's information about it.

        Args:
            app: The app, which has the serializers.
            info: The broker's answer about the job.
            submitted: Queue, header text and body.
        """
        queue, text, body = submitted
        headers = parse_headers(text)
        args: Sequence[Any] = (body,)
        kwargs: dict[str, Any] = {}
        if headers.content_type:
            envelope = Envelope(
                info["id"],
                headers.content_type,
                headers.task,
                queue,
                headers.created,
                headers.expires,
                headers.signature,
            )
            args, kwargs = app.plugins.serializer(headers.content_type).decode(body, envelope)
        return cls(
            info["id"],
            headers.task,
            tuple(args),
            kwargs,
            info["queue"],
            info["state"],
            max(0.0, info["due"] - app.clock.now()) if info["due"] else 0.0,
            headers.priority,
            info["attempt"],
            text,
        )


@dataclass(frozen=True, slots=True)
class ExpectedJob:
    """A job that a test expects to wait; None matches anything.

    Attributes:
        task: Name of the task.
        args: Positional arguments.
        kwargs: Keyword arguments.
        queue: Name of the queue.
    """

    task: str
    args: Sequence[Any] | None = None
    kwargs: dict[str, Any] | None = None
    queue: str | None = None

    def matches(self, job: Enqueued) -> bool:
        """Return whether a job matches; lists and tuples are equal."""
        return (
            job.task == self.task
            and self.queue in {None, job.queue}
            and (self.args is None or _with_lists(job.args) == _with_lists(self.args))
            and (self.kwargs is None or _with_lists(job.kwargs) == _with_lists(self.kwargs))
        )

    def __str__(self) -> str:
        args = None if self.args is None else tuple(self.args)
        expected = {"args": args, "kwargs": self.kwargs, "queue": self.queue}
        words = (f"{name}={value!r}" for name, value in expected.items() if value is not None)
        return " ".join((self.task, *words))


def _with_lists(value: Any) -> Any:
    """Return a value with tuples converted to lists, as some serializers do."""
    if isinstance(value, (list, tuple)):
        return [_with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return value
