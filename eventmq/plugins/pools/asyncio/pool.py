"""The pool ``asyncio``: coroutines of thousands of jobs in one event loop, in one thread.

The loop has a thread of its own, so that the job manager answers the broker whatever a job does.
Both need the interpreter's lock, so they speak to each other in batches: a chunk is given in one
call, and outcomes wait a moment for others. Blocking functions run in threads beside the loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from eventmq.execution.async_executor import AsyncExecutor
from eventmq.execution.coroutines import Interruptible
from eventmq.interfaces import PartsYielded, ProgressReported, Running, SlotDied
from eventmq.plugins.pools.assigned import GivenChunk, Outcomes, answered
from eventmq.plugins.pools.part_sink import PartSink, Timer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from eventmq.execution.executor import Executor
    from eventmq.execution.streaming import Cancellation, PartBatch
    from eventmq.interfaces import PoolEvent
    from eventmq.wire.batches import OutcomeRow

__all__ = ["AsyncioPool", "LoopWatch", "MeasuredBody", "Run", "SideThreads"]


class Run:
    """One job under way.

    Attributes:
        since: Monotonic time of its start, 0.0 while it waits for a thread.
        task: In which its coroutine runs.
        executor: Of the thread that runs it.
        stop: Of its coroutine.
        lost: Nobody wants its outcome any more.
        lost_at: Since when.
        over: It has ended.
        cancelled: It was cancelled.
        sink: Takes its parts and its progress, if it has any.
    """

    __slots__ = (
        "cancelled", "chunk", "executor", "lost", "lost_at", "over", "position", "since", "sink",
        "slot", "stop", "task",
    )  # fmt: skip

    def __init__(self, slot: int, chunk: GivenChunk, position: int) -> None:
        self.slot = slot
        self.chunk = chunk
        self.position = position
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self.executor: Executor | None = None
        self.stop: Cancellation | None = None
        self.sink: PartSink | None = None
        self.lost = self.over = self.cancelled = False
        self.lost_at = 0.0

    def begin(self, executor: Executor) -> bool:
        """Take note that a thread runs it now; say whether it is to run at all."""
        if self.lost:
            self.over = True
            return False
        self.executor = executor
        self.sink = cast("PartSink", executor.sink)
        self.since = time.monotonic()
        executor.cancellation.requested = self.cancelled
        return True

    @property
    def place(self) -> tuple[int, int]:
        """Chunk and position."""
        return self.chunk.number, self.position

    def parts(self, batch: PartBatch) -> PartsYielded:
        """Return the event of a batch of its parts."""
        return PartsYielded(self.slot, *self.place, batch.first, batch.parts, batch.body)

    def progress(self, body: bytes) -> ProgressReported:
        """Return the event of its progress."""
        return ProgressReported(self.slot, *self.place, body)

    def is_job(self, chunk: int, position: int) -> bool:
        """Say whether it is that job."""
        return self.position == position and self.chunk.number == chunk

    def running(self) -> Running | None:
        """Return what runs, None while it waits for a thread."""
        return Running(self.chunk.number, self.position, self.since) if self.since else None


class SideThreads:
    """Runs jobs one per thread; starts threads as they are needed.

    Args:
        executor: Runs the jobs; each thread has its own copy.
        most: Threads that work at once.
        lock: Guards what is decided about runs.
        done: Called in the thread with each outcome that counts.
        sink: Makes what takes the parts of the run that is under way.
    """

    def __init__(
        self,
        executor: Executor,
        most: int,
        lock: threading.Lock,
        done: Callable[[Run, OutcomeRow], None],
        sink: Callable[[Callable[[], Run]], PartSink],
    ) -> None:
        self._executor = executor
        self._most = most
        self._lock = lock
        self._done = done
        self._sink = sink
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0

    def submit(self, run: Run) -> None:
        """Run a job as soon as a thread is free."""
        with self._lock:
            more = self._idle <= self._runs.qsize() and self._threads < self._most
            if more:
                self._threads += 1
        self._runs.put(run)
        if more:
            self._start()

    def replace(self) -> None:
        """Start a thread instead of one that was given up, and ends with its job."""
        self._start()

    def end(self) -> None:
        """Let the threads end when they are free."""
        for _ in range(self._threads):
            self._runs.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="eventmq-blocking", daemon=True).start()

    def _serve(self) -> None:
        executor = self._executor.for_slot()
        runs: list[Run] = []
        executor.set_sink(self._sink(lambda: runs[-1]))
        try:
            while (run := self._next()) is not None:
                runs[:] = [run]
                if not self._work(run, executor):
                    return
        finally:
            executor.close()

    def _next(self) -> Run | None:
        with self._lock:
            self._idle += 1
        run = self._runs.get()
        with self._lock:
            self._idle -= 1
        return run

    def _work(self, run: Run, executor: Executor) -> bool:
        """Run a job; say whether the thread goes on."""
        with self._lock:
            if not run.begin(executor):  # given up before it began
                return True
        index = run.chunk.index
        routes = executor.routes(index.queue, index.templates)
        entry = index.entries[run.position]
        payload = index.payload(run.chunk.body, entry)
        row = executor.run(routes[entry.template], run.position, entry, payload)
        with self._lock:
            executor.cancellation.requested = False
            run.executor = None
            run.over = True
            lost = run.lost
        if not lost:
            self._done(run, row)
        return not lost


_log = logging.getLogger(__name__)

#: Seconds that a step may take before it is spoken of.
BLOCKED = 0.1

#: Seconds after which a step that has not ended is spoken of.
STUCK = 1.0

#: Seconds between two warnings of one task.
AGAIN = 10.0


class LoopWatch:
    """Of one loop.

    Attributes:
        lag: Seconds by which the loop was late at the last look.
    """

    def __init__(self) -> None:
        self.lag = 0.0
        #: The step under way: task and monotonic start.
        self.step: tuple[str, float] | None = None
        self._warned: dict[str, float] = {}
        self._stuck = 0.0

    def blocked(self, task: str, seconds: float, now: float) -> None:
        """A step took too long. In the thread of the loop."""
        if now - self._warned.get(task, -AGAIN) >= AGAIN:
            self._warned[task] = now
            _log.warning(
                "task %s blocked the event loop for %.0f ms, and every other job with it: use "
                "await, or make it a plain function, which runs in a thread", task, seconds * 1000,
            )  # fmt: skip

    def look(self, now: float) -> None:
        """Speak of a step that does not end. In the manager's thread."""
        step = self.step
        if step is not None and now - step[1] > STUCK and self._stuck != step[1]:
            self._stuck = step[1]
            _log.warning(
                "task %s has blocked the event loop for %.1f s, and every other job with it",
                step[0], now - step[1],
            )  # fmt: skip

    def measure(self, due: float, now: float) -> None:
        """Take note of when the loop came to what was due. In its thread."""
        self.lag = max(0.0, now - due)
        if self.lag > BLOCKED:
            _log.debug("the event loop was %.0f ms late", self.lag * 1000)

    def body(self, coroutine: Coroutine[Any, Any, Any], task: str) -> Interruptible:
        """Return what awaits the coroutine of a task, step by step."""
        return MeasuredBody(coroutine, task, self)


class MeasuredBody(Interruptible):
    """Measures the steps of a coroutine."""

    __slots__ = ("_name", "_watch")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str, watch: LoopWatch) -> None:
        self._coroutine = coroutine  # as super() does: one for every job
        self._instead = self._task = None
        self._name = name
        self._watch = watch

    def __next__(self) -> Any:
        start = self._begin()
        try:
            return self._coroutine.send(None)
        finally:
            self._end(start)

    def send(self, value: Any) -> Any:
        """Go on with the coroutine."""
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
        self._watch.step = (self._name, start)
        return start

    def _end(self, start: float) -> None:
        self._watch.step = None
        now = time.monotonic()
        if now - start > BLOCKED:
            self._watch.blocked(self._name, now - start, now)


#: Seconds that coroutines get to end after they were cancelled for good.
END_TIMEOUT = 1.0

#: Seconds between two measurements of how late the loop is.
LAG_EVERY = 0.5

#: Seconds between two calls of the job manager, while outcomes come one after the other.
CALL_EVERY = 0.004

#: Jobs that are started before those that are under way go on.
AT_ONCE = 50


def _same(run: Run) -> Run:
    return run


class AsyncioPool:
    """Implements `eventmq.interfaces.SharedPool` with coroutines.

    Args:
        concurrency: Number of slots.
        executor: Runs the jobs.
        threads: Blocking jobs that run at once.
    """

    interrupts = False
    shared = True

    def __init__(self, *, concurrency: int, executor: Executor, threads: int) -> None:
        self.slots = concurrency
        self.watch = LoopWatch()
        self._executor = AsyncExecutor.of(executor, self.watch.body)
        self._lock = threading.Lock()
        self._timer = Timer()
        self._side = SideThreads(executor, threads, self._lock, self._settle_aside, self._new_sink)
        #: What has not started. Whoever takes a job out has it: the loop takes the first,
        #: `take_back` the last.
        self._waiting: deque[tuple[GivenChunk, int]] = deque()
        #: What has, by slot.
        self._runs: list[Run | None] = [None] * concurrency
        #: Slots that run nothing, the next one last; of the loop's thread.
        self._free = list(reversed(range(concurrency)))
        self._most = concurrency
        self._outcomes = Outcomes()
        self._events: list[PoolEvent] = []
        #: What jobs have said while they ran.
        self._said: list[PoolEvent] = []
        self._lost: list[Run] = []
        #: The loop is going to start what waits.
        self._advancing = False
        self._context = copy_context()
        #: The manager was called and has not come.
        self._notified = False
        #: The loop is going to call it.
        self._calling = False
        self._called = 0.0
        self._state = "new"

    # Start and stop

    def start(self) -> None:
        """Start the loop."""
        self._executor.start()
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)  # noqa: FBT003 - positional only
        self._wakeup_writer.setblocking(False)  # noqa: FBT003 - positional only
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
        """Cancel what is left, and wait a little for it."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=END_TIMEOUT)

    def _measure(self, due: float) -> None:
        now = self._loop.time()
        self.watch.measure(due, now)
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
                run.lost = True
                if run.stop is not None:
                    run.stop.requested = True  # no failure: it is ended from outside
        self._side.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2 * END_TIMEOUT)
        self._wakeup_reader.close()
        self._wakeup_writer.close()

    # Work, in the manager's thread

    def filenos(self) -> Sequence[int]:
        """Return the descriptor of a socket that the loop and its threads write to."""
        return [self._wakeup_reader.fileno()]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Give all slots together a chunk."""
        given = GivenChunk(chunk, body, count)
        self._waiting.extend((given, position) for position in range(count))
        self._loop.call_soon_threadsafe(self._advance)

    def take_back(self, slot: int) -> int:
        """Withdraw what has not started; return how many jobs, counted from the last given."""
        waiting, taken = self._waiting, 0
        try:
            while True:
                waiting.pop()
                taken += 1
        except IndexError:
            return taken

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, None if none does."""
        run = self._runs[slot]
        return None if run is None else run.running()

    def slot_of(self, chunk: int, position: int) -> int | None:
        """Return the slot that has started a job, None if none has, or it has ended."""
        for run in self._runs:
            if run is not None and run.is_job(chunk, position):
                return run.slot
        return None

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Cancel the job's coroutine; where it is a blocking function, its next check raises."""
        run = self._runs[slot]
        if run is not None and run.is_job(chunk, position):
            self._cancel_soon(run)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Tell a job that streams how many parts were taken."""
        place = self.slot_of(chunk, position)
        run = None if place is None else self._runs[place]
        if run is not None and run.sink is not None:
            run.sink.credit(chunk, position, taken)

    def scale(self, slots: int) -> None:
        """Run no more jobs at once than that."""
        self._most = slots
        self._loop.call_soon_threadsafe(self._advance)

    def kill(self, slot: int) -> None:
        """Give up what a slot runs: it is cancelled, and its outcome dropped, whenever it comes."""
        blocking = False
        with self._lock:
            run = self._runs[slot]
            if run is not None:
                self._runs[slot] = None
                run.lost = True
                run.lost_at = time.monotonic()
                blocking = run.executor is not None
        if run is None:
            self._events.append(SlotDied(slot, 0, -1, "it ran nothing"))
        else:
            self._events.append(
                SlotDied(slot, run.chunk.number, run.position, "its job was given up")
            )
            self._lost.append(run)
            if blocking:
                self._side.replace()
            self._cancel_soon(run)
            self._loop.call_soon_threadsafe(self._release, slot)
        self._call()

    def _cancel_soon(self, run: Run) -> None:
        with self._lock:
            run.cancelled = True
            if run.executor is not None:
                run.executor.cancel()
                return
        self._loop.call_soon_threadsafe(self._cancel, run)

    @property
    def abandoned(self) -> int:
        """How many jobs were given up and still run: threads, and coroutines that will not end."""
        if not self._lost:
            return 0
        self._lost = [run for run in self._lost if not run.over]
        patience = time.monotonic() - END_TIMEOUT
        return sum(run.executor is not None or run.lost_at < patience for run in self._lost)

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call."""
        if self._state == "running":
            with suppress(BlockingIOError):
                self._wakeup_reader.recv(4096)
            self.watch.look(time.monotonic())
        with self._lock:
            self._notified = False
            taken = self._outcomes.take()
            said, self._said = self._said, []
        events, self._events = [*said, *self._events], []
        events += [answered(0, chunk, rows, ordered=False) for chunk, rows in taken.items()]
        return events

    def _call(self) -> None:
        """Call the manager. From any thread."""
        with suppress(OSError):  # full: it is notified already; closed: it has ended
            self._wakeup_writer.send(b"!")

    # In the thread of the loop

    # hot loop: benchmarks/life.py
    def _advance(self) -> None:
        """Start what waits, as far as there are slots."""
        self._advancing = False
        free, waiting, executor = self._free, self._waiting, self._executor
        for _ in range(AT_ONCE):
            if not free or self.slots - len(free) >= self._most:
                return
            try:
                chunk, position = waiting.popleft()
            except IndexError:
                return
            slot = free.pop()
            run = self._runs[slot] = Run(slot, chunk, position)
            index = chunk.read(executor)
            entry = index.entries[position]
            route = chunk.routes[entry.template]
            if route.refusal is None and (route.legacy or not route.awaits):
                self._side.submit(run)
                continue
            stop = run.stop = executor.new_cancellation()
            stop.report = partial(self._report, run)
            if route.yields:
                run.sink = stop.sink = self._new_sink(partial(_same, run))
            run.since = time.monotonic()
            call = executor.arun(route, position, entry, index.payload(chunk.body, entry), stop)
            run.task = self._loop.create_task(self._run(run, call))
        self._advancing = True
        self._loop.call_soon(self._advance)

    async def _run(self, run: Run, call: Coroutine[Any, Any, OutcomeRow]) -> None:
        row = await call
        run.over = True
        with self._lock:
            if run.lost:
                return
            self._outcomes.add(run.chunk.number, row)
            self._runs[run.slot] = None
        self._free.append(run.slot)
        if self._waiting and not self._advancing:
            self._advancing = True
            # In a context of our own: the next jobs must not find this one's variables.
            self._loop.call_soon(self._advance, context=self._context)
        if not self._calling and not self._notified:
            self._call_soon()

    def _call_soon(self) -> None:
        """Call the manager when this round of the loop is over, or a little later."""
        self._calling = True
        wait = self._called + CALL_EVERY - self._loop.time()
        if wait <= 0.0 or len(self._free) == self.slots:
            self._loop.call_soon(self._call_now, context=self._context)
        else:
            self._loop.call_later(wait, self._call_now, context=self._context)

    def _call_now(self) -> None:
        self._calling = False
        self._called = self._loop.time()
        with self._lock:
            notify, self._notified = not self._notified, True
        if notify:
            self._call()

    def _release(self, slot: int) -> None:
        self._free.append(slot)
        self._advance()

    def _cancel(self, run: Run) -> None:
        if run.stop is not None and run.task is not None and not run.over:
            run.stop.requested = True
            self._loop.call_soon(run.task.cancel)  # not before its first step

    def _report(self, run: Run, done: float, total: float | None, note: str) -> None:
        if run.sink is None:
            run.sink = self._new_sink(lambda: run)
        run.sink.progress(done, total, note)

    # In any thread

    def _new_sink(self, run: Callable[[], Run]) -> PartSink:
        """Return what takes what a run says."""
        return PartSink(
            lambda: run().place,
            lambda _place, batch: self._say(run(), run().parts(batch)),
            lambda _place, body: self._say(run(), run().progress(body)),
            self._timer,
        )

    def _say(self, run: Run, event: PoolEvent) -> None:
        """Keep for the manager what a job said."""
        with self._lock:
            if run.lost:
                return
            self._said.append(event)
            notify, self._notified = not self._notified, True
        if notify:
            self._call()

    # In a thread beside the loop

    def _settle_aside(self, run: Run, row: OutcomeRow) -> None:
        """Keep an outcome for the manager, and let the slot go on."""
        with self._lock:
            if run.lost:
                return
            self._outcomes.add(run.chunk.number, row)
            self._runs[run.slot] = None
            notify, self._notified = not self._notified, True
        if notify:
            self._call()
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._release, run.slot)
