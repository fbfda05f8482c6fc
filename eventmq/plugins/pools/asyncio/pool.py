"""Pool ``asyncio``: runs the coroutines of thousands of jobs in one event loop.

The loop runs in its own thread, so that the job manager can answer the broker whatever a job does.
Both threads need the interpreter lock, so they exchange batches: a chunk is assigned in one call,
and outcomes are collected for some milliseconds. Blocking functions run in `BlockingThreads`.
`LoopMonitor` warns of coroutines that block the loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from eventmq.sdk import (
    AssignedChunk,
    AsyncExecutor,
    Interruptible,
    PartSink,
    PartsYielded,
    PendingOutcomes,
    ProgressReported,
    Running,
    SlotDied,
    Timer,
    jobs_ended,
)
from eventmq.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from eventmq.sdk import Cancellation, Executor, OutcomeRow, PartBatch, PoolEvent

__all__ = ["AsyncioPool", "BlockingThreads", "JobRun", "LoopMonitor", "MeasuredCoroutine"]


class JobRun:
    """One running job.

    Attributes:
        since: Monotonic time of its start, 0.0 while it waits for a thread.
        task: The asyncio task of its coroutine.
        executor: Executor of the thread that runs it.
        stop: Cancellation of its coroutine.
        abandoned: Whether its outcome will be dropped.
        abandoned_at: Monotonic time at which it was abandoned.
        ended: Whether it has ended.
        cancelled: Whether it was cancelled.
        sink: Receives its parts and its progress, if it has any.
    """

    __slots__ = (
        "abandoned",
        "abandoned_at",
        "cancelled",
        "chunk",
        "ended",
        "executor",
        "position",
        "since",
        "sink",
        "slot",
        "stop",
        "task",
    )  # fmt: skip

    def __init__(self, slot: int, chunk: AssignedChunk, position: int) -> None:
        self.slot = slot
        self.chunk = chunk
        self.position = position
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self.executor: Executor | None = None
        self.stop: Cancellation | None = None
        self.sink: PartSink | None = None
        self.abandoned = self.ended = self.cancelled = False
        self.abandoned_at = 0.0

    def begin(self, executor: Executor) -> bool:
        """Record the start in a thread; return False if the job was abandoned before."""
        if self.abandoned:
            self.ended = True
            return False
        self.executor = executor
        self.sink = cast("PartSink", executor.sink)
        self.since = time.monotonic()
        executor.cancellation.requested = self.cancelled
        return True

    @property
    def job(self) -> tuple[int, int]:
        """Chunk and position of the job."""
        return self.chunk.number, self.position

    def parts(self, batch: PartBatch) -> PartsYielded:
        """Return the pool event for a batch of its parts."""
        return PartsYielded(self.slot, *self.job, batch.first, batch.parts, batch.body)

    def progress(self, body: bytes) -> ProgressReported:
        """Return the pool event for its progress."""
        return ProgressReported(self.slot, *self.job, body)

    def is_job(self, chunk: int, position: int) -> bool:
        """Return whether this run is of a job."""
        return self.position == position and self.chunk.number == chunk

    def running(self) -> Running | None:
        """Return the running job, None while it waits for a thread."""
        return Running(self.chunk.number, self.position, self.since) if self.since else None


class BlockingThreads:
    """Threads for blocking functions, each of which runs one job at a time; started on demand.

    Args:
        executor: Runs the jobs; each thread has its own copy.
        max_threads: Maximum number of threads that run jobs at once.
        lock: Guards the state of runs.
        done: Called in the thread with the outcome of each run that was not abandoned.
        sink: Creates the part sink of a thread from a function that returns the current run.
    """

    def __init__(
        self,
        executor: Executor,
        max_threads: int,
        lock: threading.Lock,
        done: Callable[[JobRun, OutcomeRow], None],
        sink: Callable[[Callable[[], JobRun]], PartSink],
    ) -> None:
        self._executor = executor
        self._max_threads = max_threads
        self._lock = lock
        self._done = done
        self._sink = sink
        self._runs: queue.SimpleQueue[JobRun | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0

    def submit(self, run: JobRun) -> None:
        """Run a job as soon as a thread is free."""
        with self._lock:
            more = self._idle <= self._runs.qsize() and self._threads < self._max_threads
            if more:
                self._threads += 1
        self._runs.put(run)
        if more:
            self._start()

    def replace(self) -> None:
        """Start a thread in place of one that was abandoned, which ends after its job."""
        self._start()

    def end(self) -> None:
        """Let the threads end when they are free."""
        for _ in range(self._threads):
            self._runs.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="eventmq-blocking", daemon=True).start()

    def _serve(self) -> None:
        executor = self._executor.for_slot()
        runs: list[JobRun] = []
        executor.set_sink(self._sink(lambda: runs[-1]))
        try:
            while (run := self._next()) is not None:
                runs[:] = [run]
                if not self._work(run, executor):
                    return
        finally:
            executor.close()

    def _next(self) -> JobRun | None:
        with self._lock:
            self._idle += 1
        run = self._runs.get()
        with self._lock:
            self._idle -= 1
        return run

    def _work(self, run: JobRun, executor: Executor) -> bool:
        """Run a job; return whether the thread may run more jobs."""
        with self._lock:
            if not run.begin(executor):  # abandoned before it started
                return True
        index = run.chunk.index
        routes = executor.routes(index.queue, index.templates)
        entry = index.entries[run.position]
        payload = index.payload(run.chunk.body, entry)
        row = executor.run(routes[entry.template], run.position, entry, payload)
        with self._lock:
            executor.cancellation.requested = False
            run.executor = None
            run.ended = True
            abandoned = run.abandoned
        if not abandoned:
            self._done(run, row)
        return not abandoned


_log = logging.getLogger(__name__)

#: Seconds that a step of a coroutine may take before a warning.
BLOCKED_AFTER = 0.1

#: Seconds after which a warning is logged for a step that has not ended.
STUCK_AFTER = 1.0

#: Minimum seconds between two warnings about one task.
WARN_EVERY = 10.0


class LoopMonitor:
    """Warns of tasks that block the event loop.

    Attributes:
        lag: Seconds by which the loop was late at the last measurement.
    """

    def __init__(self) -> None:
        self.lag = 0.0
        #: Task and monotonic start of the current step.
        self.step: tuple[str, float] | None = None
        self._warned: dict[str, float] = {}
        self._stuck_since = 0.0

    def blocked(self, task: str, seconds: float, now: float) -> None:
        """Warn of a step that took too long. Called in the thread of the loop."""
        if now - self._warned.get(task, -WARN_EVERY) >= WARN_EVERY:
            self._warned[task] = now
            _log.warning(
                "task %s blocked the event loop for %.0f ms, and every other job with it: use "
                "await, or make it a plain function, which runs in a thread", task, seconds * 1000,
            )  # fmt: skip

    def check_step(self, now: float) -> None:
        """Warn of a step that does not end. Called in the manager's thread."""
        step = self.step
        if step is not None and now - step[1] > STUCK_AFTER and self._stuck_since != step[1]:
            self._stuck_since = step[1]
            _log.warning(
                "task %s has blocked the event loop for %.1f s, and every other job with it",
                step[0], now - step[1],
            )  # fmt: skip

    def measure(self, expected_at: float, now: float) -> None:
        """Measure how late the loop is. Called in its thread."""
        self.lag = max(0.0, now - expected_at)
        if self.lag > BLOCKED_AFTER:
            _log.debug("the event loop was %.0f ms late", self.lag * 1000)

    def body(self, coroutine: Coroutine[Any, Any, Any], task: str) -> Interruptible:
        """Return an awaitable that measures each step of the coroutine of a task."""
        return MeasuredCoroutine(coroutine, task, self)


class MeasuredCoroutine(Interruptible):
    """Awaitable that measures the steps of a coroutine."""

    __slots__ = ("_monitor", "_name")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], name: str, monitor: LoopMonitor
    ) -> None:
        # Set here and not by super().__init__(), which costs time for every job.
        self._coroutine = coroutine
        self._instead = self._task = None
        self._name = name
        self._monitor = monitor

    def __next__(self) -> Any:
        start = self._begin()
        try:
            return self._coroutine.send(None)
        finally:
            self._end(start)

    def send(self, value: Any) -> Any:
        """Continue the coroutine."""
        start = self._begin()
        try:
            return self._coroutine.send(value)
        finally:
            self._end(start)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an exception in the coroutine."""
        start = self._begin()
        try:
            return super().throw(kind, value, traceback)
        finally:
            self._end(start)

    def _begin(self) -> float:
        start = time.monotonic()
        self._monitor.step = (self._name, start)
        return start

    def _end(self, start: float) -> None:
        self._monitor.step = None
        now = time.monotonic()
        if now - start > BLOCKED_AFTER:
            self._monitor.blocked(self._name, now - start, now)


#: Seconds for which the pool waits for cancelled coroutines when it stops.
END_TIMEOUT = 1.0

#: Seconds between two measurements of how late the loop is.
LAG_EVERY = 0.5

#: Minimum seconds between two notifications of the job manager while jobs end one by one.
NOTIFY_EVERY = 0.004

#: Maximum number of jobs that are started before running ones continue.
MAX_STARTS = 50


def _same_run(run: JobRun) -> JobRun:
    return run


class AsyncioPool:
    """Implements `eventmq.interfaces.SharedPool` with coroutines.

    Args:
        concurrency: Number of slots.
        executor: Runs the jobs.
        threads: Maximum number of blocking jobs that run at once.
    """

    interrupts = False
    shared = True

    def __init__(self, *, concurrency: int, executor: Executor, threads: int) -> None:
        self.slots = concurrency
        self.monitor = LoopMonitor()
        self._executor = AsyncExecutor.of(executor, self.monitor.body)
        self._lock = threading.Lock()
        self._timer = Timer()
        self._blocking = BlockingThreads(
            executor, threads, self._lock, self._settle_blocking, self._make_sink
        )
        #: Jobs that have not started. The loop pops the first, `take_back` pops the last; as these
        #: operations are atomic, each job is popped once.
        self._waiting: deque[tuple[AssignedChunk, int]] = deque()
        #: Running jobs by slot.
        self._runs: list[JobRun | None] = [None] * concurrency
        #: Idle slots, the next one last; only the loop's thread uses it.
        self._free = list(reversed(range(concurrency)))
        self._max_running = concurrency
        self._outcomes = PendingOutcomes()
        self._events: list[PoolEvent] = []
        #: Parts and progress of running jobs.
        self._job_events: list[PoolEvent] = []
        self._abandoned: list[JobRun] = []
        #: Whether `_advance` is scheduled in the loop.
        self._advancing = False
        self._context = copy_context()
        #: Whether the manager was notified and has not polled since.
        self._notified = False
        #: Whether a notification of the manager is scheduled in the loop.
        self._notifying = False
        self._notified_at = 0.0
        self._state = "new"

    # Start and stop

    def start(self) -> None:
        """Start the loop."""
        self._executor.start()
        self._wakeup = Wakeup()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="eventmq-loop", daemon=True)
        self._state = "running"
        self._thread.start()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.call_soon(self._measure, loop.time())
        try:
            loop.run_forever()
            loop.run_until_complete(self._end_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _end_all(self) -> None:
        """Cancel the remaining tasks, and wait for them for up to `END_TIMEOUT`."""
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        for task in remaining:
            task.cancel()
        if remaining:
            await asyncio.wait(remaining, timeout=END_TIMEOUT)

    def _measure(self, expected_at: float) -> None:
        now = self._loop.time()
        self.monitor.measure(expected_at, now)
        self._loop.call_at(now + LAG_EVERY, self._measure, now + LAG_EVERY)

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds, then cancel. Idempotent."""
        if self._state != "running":
            return
        self._state = "stopped"
        deadline = time.monotonic() + grace
        self.take_back(0)
        while any(self._runs) and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._lock:
            for run in filter(None, self._runs):
                run.abandoned = True
                if run.stop is not None:
                    run.stop.requested = True  # the cancellation is then no failure
        self._blocking.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2 * END_TIMEOUT)
        self._wakeup.close()

    # Called in the manager's thread

    def filenos(self) -> Sequence[int]:
        """Return the descriptor of a socket that the loop and its threads write to."""
        return [self._wakeup.fd]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk to all slots together."""
        assigned = AssignedChunk(chunk, body, count)
        self._waiting.extend((assigned, position) for position in range(count))
        self._loop.call_soon_threadsafe(self._advance)

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return how many, counted from the last one."""
        waiting, count = self._waiting, 0
        try:
            while True:
                waiting.pop()
                count += 1
        except IndexError:
            return count

    def running(self, slot: int) -> Running | None:
        """Return the running job of a slot, None if there is none."""
        run = self._runs[slot]
        return None if run is None else run.running()

    def slot_of(self, chunk: int, position: int) -> int | None:
        """Return the slot of a running job, None if the job has not started or has ended."""
        for run in self._runs:
            if run is not None and run.is_job(chunk, position):
                return run.slot
        return None

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Cancel the coroutine of a job; in a blocking function its next ``check()`` raises."""
        run = self._runs[slot]
        if run is not None and run.is_job(chunk, position):
            self._cancel_soon(run)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Pass credit of the readers of a stream to its job."""
        slot_of_job = self.slot_of(chunk, position)
        run = None if slot_of_job is None else self._runs[slot_of_job]
        if run is not None and run.sink is not None:
            run.sink.credit(chunk, position, taken)

    def scale(self, slots: int) -> None:
        """Run at most ``slots`` jobs at once."""
        self._max_running = slots
        self._loop.call_soon_threadsafe(self._advance)

    def kill(self, slot: int) -> None:
        """Abandon the job of a slot: cancel it, and drop its outcome."""
        blocking = False
        with self._lock:
            run = self._runs[slot]
            if run is not None:
                self._runs[slot] = None
                run.abandoned = True
                run.abandoned_at = time.monotonic()
                blocking = run.executor is not None
        if run is None:
            self._events.append(SlotDied(slot, 0, -1, "it ran nothing"))
        else:
            self._events.append(
                SlotDied(slot, run.chunk.number, run.position, "its job was abandoned")
            )
            self._abandoned.append(run)
            if blocking:
                self._blocking.replace()
            self._cancel_soon(run)
            self._loop.call_soon_threadsafe(self._release, slot)
        self._wakeup.set()

    def _cancel_soon(self, run: JobRun) -> None:
        with self._lock:
            run.cancelled = True
            if run.executor is not None:
                run.executor.cancel()
                return
        self._loop.call_soon_threadsafe(self._cancel, run)

    @property
    def abandoned(self) -> int:
        """Number of abandoned jobs that still run in threads, or do not end after `END_TIMEOUT`."""
        if not self._abandoned:
            return 0
        self._abandoned = [run for run in self._abandoned if not run.ended]
        deadline = time.monotonic() - END_TIMEOUT
        return sum(
            run.executor is not None or run.abandoned_at < deadline for run in self._abandoned
        )

    def poll(self) -> list[PoolEvent]:
        """Return the events since the last call."""
        if self._state == "running":
            self._wakeup.clear()
            self.monitor.check_step(time.monotonic())
        with self._lock:
            self._notified = False
            outcomes = self._outcomes.take()
            job_events, self._job_events = self._job_events, []
        events, self._events = [*job_events, *self._events], []
        events += [jobs_ended(0, chunk, rows, ordered=False) for chunk, rows in outcomes.items()]
        return events

    # Called in the thread of the loop

    # hot loop: python -m benchmarks async_io
    def _advance(self) -> None:
        """Start waiting jobs in the idle slots."""
        self._advancing = False
        free, waiting, executor = self._free, self._waiting, self._executor
        for _ in range(MAX_STARTS):
            if not free or self.slots - len(free) >= self._max_running:
                return
            try:
                chunk, position = waiting.popleft()
            except IndexError:
                return
            slot = free.pop()
            run = self._runs[slot] = JobRun(slot, chunk, position)
            index = chunk.read(executor)
            entry = index.entries[position]
            route = chunk.routes[entry.template]
            if route.refusal is None and (route.legacy or not route.awaits):
                self._blocking.submit(run)
                continue
            stop = run.stop = executor.new_cancellation()
            stop.report = partial(self._report, run)
            if route.yields:
                run.sink = stop.sink = self._make_sink(partial(_same_run, run))
            run.since = time.monotonic()
            call = executor.arun(route, position, entry, index.payload(chunk.body, entry), stop)
            run.task = self._loop.create_task(self._run(run, call))
        self._advancing = True
        self._loop.call_soon(self._advance)

    async def _run(self, run: JobRun, call: Coroutine[Any, Any, OutcomeRow]) -> None:
        row = await call
        run.ended = True
        with self._lock:
            if run.abandoned:
                return
            self._outcomes.add(run.chunk.number, row)
            self._runs[run.slot] = None
        self._free.append(run.slot)
        if self._waiting and not self._advancing:
            self._advancing = True
            # In the context of the pool, so that jobs do not see each other's context variables.
            self._loop.call_soon(self._advance, context=self._context)
        if not self._notifying and not self._notified:
            self._notify_soon()

    def _notify_soon(self) -> None:
        """Notify the manager after this iteration of the loop, or `NOTIFY_EVERY` after the last."""
        self._notifying = True
        wait = self._notified_at + NOTIFY_EVERY - self._loop.time()
        if wait <= 0.0 or len(self._free) == self.slots:
            self._loop.call_soon(self._notify_now, context=self._context)
        else:
            self._loop.call_later(wait, self._notify_now, context=self._context)

    def _notify_now(self) -> None:
        self._notifying = False
        self._notified_at = self._loop.time()
        with self._lock:
            self._notify()

    def _release(self, slot: int) -> None:
        self._free.append(slot)
        self._advance()

    def _cancel(self, run: JobRun) -> None:
        if run.stop is not None and run.task is not None and not run.ended:
            run.stop.requested = True
            self._loop.call_soon(run.task.cancel)  # not before its first step

    def _report(self, run: JobRun, done: float, total: float | None, note: str) -> None:
        if run.sink is None:
            run.sink = self._make_sink(lambda: run)
        run.sink.progress(done, total, note)

    # Called in any thread

    def _make_sink(self, run: Callable[[], JobRun]) -> PartSink:
        """Return a part sink for the job that ``run`` returns at each call."""
        return PartSink(
            lambda: run().job,
            lambda _job, batch: self._emit(run(), run().parts(batch)),
            lambda _job, body: self._emit(run(), run().progress(body)),
            self._timer,
        )

    def _emit(self, run: JobRun, event: PoolEvent) -> None:
        """Queue parts or progress of a job for the manager."""
        with self._lock:
            if run.abandoned:
                return
            self._job_events.append(event)
            self._notify()

    def _notify(self) -> None:
        """Notify the manager, once until it polls. The caller holds the lock."""
        if not self._notified:
            self._notified = True
            self._wakeup.set()

    # Called in a thread of `BlockingThreads`

    def _settle_blocking(self, run: JobRun, row: OutcomeRow) -> None:
        """Queue an outcome for the manager, and free the slot."""
        with self._lock:
            if run.abandoned:
                return
            self._outcomes.add(run.chunk.number, row)
            self._runs[run.slot] = None
            self._notify()
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._release, run.slot)
