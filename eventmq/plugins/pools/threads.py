"""Pool ``threads``: runs jobs in threads of the job manager's process, on any system.

The app sets its options, ``concurrency`` and ``executor``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.sdk import (
    AssignedChunk,
    PartSink,
    PartsYielded,
    PendingOutcomes,
    PoolOptions,
    ProgressReported,
    Running,
    SlotDied,
    Timer,
    hookimpl,
    jobs_ended,
)
from eventmq.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import (
        CallLater,
        Executor,
        Factory,
        OutcomeRow,
        PartBatch,
        PluginContext,
        PoolEvent,
        WorkerPool,
    )

__all__ = ["ThreadsPool", "eventmq_worker_pools", "make_threads_pool"]

#: Minimum seconds between two notifications of the job manager while a slot has more jobs.
NOTIFY_AFTER = 0.005


class _SlotThread:
    """Thread of a slot, and the jobs that are assigned to it.

    The thread pops the first job off the deque and runs it, `take_back` pops the last; as these
    operations are atomic, each job is popped once.
    """

    def __init__(
        self, number: int, executor: Executor, wakeup: Wakeup, call_later: CallLater
    ) -> None:
        self.number = number
        self.executor = executor
        self.sink = PartSink(self._current_job, self._send_parts, self._send_progress, call_later)
        executor.set_sink(self.sink)
        self._job_events: list[PoolEvent] = []
        self._jobs: deque[tuple[AssignedChunk, int]] = deque()
        #: True for each assigned chunk, False to end the thread.
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        #: The running job, None if there is none.
        self.current: Running | None = None
        #: Guards the running job against concurrent `interrupt` and `abandon`.
        self._lock = threading.Lock()
        self._abandoned = False
        self._wakeup = wakeup
        self._outcomes = PendingOutcomes()
        self._last_notified = 0.0
        name = f"eventmq-slot-{number}"
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def assign(self, chunk: AssignedChunk) -> None:
        self._jobs.extend((chunk, position) for position in range(chunk.count))
        self._calls.put(True)  # noqa: FBT003 - positional for speed

    def end(self) -> None:
        self._calls.put(False)  # noqa: FBT003

    def take_back(self) -> int:
        count = 0
        try:
            while True:
                self._jobs.pop()
                count += 1
        except IndexError:
            return count

    def interrupt(self, chunk: int, position: int) -> None:
        """Cancel a job if it is running."""
        with self._lock:
            if self.current is not None and self.current[:2] == (chunk, position):
                self.executor.cancel()

    def abandon(self) -> Running | None:
        """Let the thread end after its running job, and drop the outcome; return that job."""
        with self._lock:
            self._abandoned = True
            self._jobs.clear()
            if self.current is not None:
                self.executor.cancel()  # best effort: a coroutine then ends, and with it the thread
        self.end()
        return self.current

    def _serve(self) -> None:
        while self._calls.get():
            self._run_all()
        self.executor.close()

    def _run_all(self) -> None:
        while (job := self._next()) is not None:
            chunk, position = job
            row = self._run(chunk, position)
            with self._lock:
                self.current = None
                self.executor.cancellation.requested = False
                if self._abandoned:
                    return
                self._outcomes.add(chunk.number, row)
            # Notify the manager after the last job, or after `NOTIFY_AFTER`.
            now = time.monotonic()
            if not self._jobs or now - self._last_notified > NOTIFY_AFTER:
                self._last_notified = now
                self._wakeup.set()

    def _next(self) -> tuple[AssignedChunk, int] | None:
        with self._lock:
            try:
                chunk, position = self._jobs.popleft()
            except IndexError:
                return None
            self.current = Running(chunk.number, position, time.monotonic())
        return chunk, position

    def _run(self, chunk: AssignedChunk, position: int) -> OutcomeRow:
        index = chunk.read(self.executor)
        entry = index.entries[position]
        payload = index.payload(chunk.body, entry)
        return self.executor.run(chunk.routes[entry.template], position, entry, payload)

    # Parts and progress

    def _current_job(self) -> tuple[int, int]:
        current = self.current
        return (0, -1) if current is None else current[:2]

    def _send_parts(self, job: tuple[int, int], batch: PartBatch) -> None:
        self._emit(PartsYielded(self.number, *job, batch.first, batch.parts, batch.body))

    def _send_progress(self, job: tuple[int, int], body: bytes) -> None:
        self._emit(ProgressReported(self.number, *job, body))

    def _emit(self, event: PoolEvent) -> None:
        if not self._abandoned:
            self._job_events.append(event)
            self._wakeup.set()

    def take_events(self) -> list[PoolEvent]:
        """Return the events since the last call: first parts and progress, then outcomes."""
        with self._lock:
            outcomes = self._outcomes.take()
        job_events = self._job_events[:]
        del self._job_events[: len(job_events)]
        return [
            *job_events,
            *(jobs_ended(self.number, chunk, rows) for chunk, rows in outcomes.items()),
        ]


class ThreadsPool:
    """Implements `eventmq.interfaces.WorkerPool` with threads.

    A thread cannot be killed. If its job must end, or still runs after the grace period, the thread
    is abandoned: it ends with its job or with the process, and the outcome is dropped. Tasks can
    call ``current_job().check()`` to end earlier. The pool raises no exception in a thread from
    outside, since PyThreadState_SetAsyncExc can hit any line, even one that releases a lock.

    Args:
        concurrency: Number of slots.
        executor: Runs the jobs; each slot has its own copy.
    """

    interrupts = False
    shared = False

    def __init__(self, *, concurrency: int, executor: Executor) -> None:
        self.slots = concurrency
        self._executor = executor
        self._threads: list[_SlotThread] = []
        self._abandoned: list[_SlotThread] = []
        self._events: list[PoolEvent] = []
        self._state = "new"
        self._timer = Timer()

    def start(self) -> None:
        """Start the threads."""
        self._executor.start()
        self._wakeup = Wakeup()
        self._state = "running"
        for number in range(self.slots):
            self._threads.append(self._start_thread(number))

    def _start_thread(self, number: int) -> _SlotThread:
        thread = _SlotThread(number, self._executor.for_slot(), self._wakeup, self._timer)
        thread.thread.start()
        return thread

    @property
    def abandoned(self) -> int:
        """Number of abandoned threads that still run."""
        if self._abandoned:
            self._abandoned = [thread for thread in self._abandoned if thread.thread.is_alive()]
        return len(self._abandoned)

    def filenos(self) -> Sequence[int]:
        """Return the descriptor of a socket that threads write to."""
        return [self._wakeup.fd]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk to a slot."""
        self._threads[slot].assign(AssignedChunk(chunk, body, count))

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return how many, counted from the last one."""
        return self._threads[slot].take_back()

    def running(self, slot: int) -> Running | None:
        """Return the running job of a slot, None if there is none."""
        return self._threads[slot].current

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Cancel the coroutine of a job, or let its next ``check()`` raise."""
        self._threads[slot].interrupt(chunk, position)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Pass credit of the readers of a stream to its job."""
        self._threads[slot].sink.credit(chunk, position, taken)

    def scale(self, slots: int) -> None:
        """Do nothing, since an idle slot costs nearly nothing."""

    def kill(self, slot: int) -> None:
        """Abandon the thread of a slot, and start a new one for the slot."""
        thread = self._threads[slot]
        running = thread.abandon()
        self._events += thread.take_events()
        chunk, position = running[:2] if running is not None else (0, -1)
        reason = "its thread was abandoned"
        self._events.append(SlotDied(slot, chunk, position, reason))
        self._abandoned.append(thread)
        self._threads[slot] = self._start_thread(slot)
        self._wakeup.set()

    def poll(self) -> list[PoolEvent]:
        """Return the events since the last call; those of a slot are in order."""
        if self._state == "running":
            self._wakeup.clear()
        events, self._events = self._events, []
        for thread in self._threads:
            events += thread.take_events()
        return events

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds. Idempotent."""
        if self._state != "running":
            return
        self._state = "stopped"
        deadline = time.monotonic() + grace
        for thread in self._threads:
            thread.take_back()
            thread.end()
        for thread in self._threads:
            thread.thread.join(max(0.0, deadline - time.monotonic()))
        self._wakeup.close()


def make_threads_pool(context: PluginContext) -> WorkerPool:
    """Return the pool.

    Raises:
        PluginError: An option is wrong.
    """
    options = PoolOptions.of(context, object)
    if options.executor is None:
        raise PluginError("it needs the option executor")
    return ThreadsPool(concurrency=options.concurrency, executor=options.executor)


@hookimpl
def eventmq_worker_pools() -> Mapping[str, Factory[WorkerPool]]:
    """Provide the pool."""
    return {"threads": make_threads_pool}
