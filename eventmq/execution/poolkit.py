"""Kit of worker pools in the job manager's process and in children.

`AssignedChunk` and `PendingOutcomes` hold the input and the output of a slot; `PartSink` forwards
the parts and the progress of a running job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from eventmq.execution.streaming import BATCH_AFTER, FlowControl
from eventmq.interfaces import JobsEnded
from eventmq.wire.batches import decode_chunk, encode_outcomes
from eventmq.wire.streams import encode_progress

if TYPE_CHECKING:
    from eventmq.execution.executor import Executor
    from eventmq.execution.routes import Route
    from eventmq.execution.streaming import PartBatch
    from eventmq.wire.batches import ChunkIndex, OutcomeRow

    JobPosition = tuple[int, int]

__all__ = ["AssignedChunk", "CallLater", "PartSink", "PendingOutcomes", "Timer", "jobs_ended"]

#: Calls a function after some seconds, in another thread or in an event loop.
CallLater = Callable[[float, Callable[[], None]], None]

#: Minimum seconds between two progress reports of one slot.
PROGRESS_EVERY = 0.1

#: Seconds after which the idle thread of a `Timer` ends.
IDLE_TIMEOUT = 1.0


class AssignedChunk:
    """A chunk that is assigned to a slot; its index is decoded when its first job starts.

    Attributes:
        index: Ids, deliveries and payloads of its jobs, once decoded.
        routes: Routes of its jobs, by template.
    """

    __slots__ = ("_read", "body", "count", "number", "routes")

    def __init__(self, number: int, body: bytes, count: int) -> None:
        self.number = number
        self.body = body
        self.count = count
        self._read: ChunkIndex | None = None
        self.routes: list[Route] = []

    def read(self, executor: Executor) -> ChunkIndex:
        """Return the index of the chunk; the first call decodes it and makes the routes."""
        if self._read is None:
            self._read = decode_chunk(self.body)
            self.routes = executor.routes(self._read.queue, self._read.templates)
        return self._read

    @property
    def index(self) -> ChunkIndex:
        """Index of the chunk."""
        assert self._read is not None  # noqa: S101 - read before its first job runs
        return self._read


class PendingOutcomes:
    """Outcomes by chunk, in order, until the manager polls. Threads share it under a lock."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, list[OutcomeRow]] = {}

    def add(self, chunk: int, row: OutcomeRow) -> None:
        """Add an outcome."""
        rows = self._rows.get(chunk)
        if rows is None:
            self._rows[chunk] = [row]
        else:
            rows.append(row)

    def take(self) -> dict[int, list[OutcomeRow]]:
        """Remove and return all outcomes."""
        rows, self._rows = self._rows, {}
        return rows


def jobs_ended(slot: int, chunk: int, rows: list[OutcomeRow], *, ordered: bool = True) -> JobsEnded:
    """Return the pool event for outcomes of one chunk.

    Args:
        slot: The slot that ran the jobs.
        chunk: Number of the chunk.
        rows: The outcomes.
        ordered: Whether these are the next jobs of the chunk, in their order.
    """
    positions = () if ordered else tuple([row.position for row in rows])
    run_time = sum([row.run_time for row in rows])
    return JobsEnded(slot, chunk, len(rows), run_time, encode_outcomes(rows), positions)


class Timer:
    """Calls functions after a delay, in a thread that ends when it is idle."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None

    def __call__(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function after ``seconds``."""
        with self._changed:
            heappush(self._calls, (time.monotonic() + seconds, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="eventmq-timer", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next call; return None, and drop the thread, after `IDLE_TIMEOUT`."""
        with self._changed:
            while not self._calls or (wait := self._calls[0][0] - time.monotonic()) > 0:
                if (
                    not self._changed.wait(wait if self._calls else IDLE_TIMEOUT)
                    and not self._calls
                ):
                    self._thread = None
                    return None
            return heappop(self._calls)[2]


class PartSink:
    """Implements `eventmq.execution.streaming.Sink` for the jobs of one slot.

    Args:
        current_job: Returns chunk and position of the running job.
        send_batch: Passes a batch to the manager, in order.
        send_progress: Passes an encoded progress to the manager.
        call_later: Calls a function after some seconds.
    """

    def __init__(
        self,
        current_job: Callable[[], JobPosition],
        send_batch: Callable[[JobPosition, PartBatch], None],
        send_progress: Callable[[JobPosition, bytes], None],
        call_later: CallLater,
    ) -> None:
        self._current_job = current_job
        self._send_batch = send_batch
        self._send_progress = send_progress
        self._call_later = call_later
        self._lock = threading.Lock()
        self._credited = threading.Event()
        self._flow = FlowControl()
        self._job: JobPosition = (0, -1)
        self._armed = False
        self._credit_callback: Callable[[], None] | None = None
        self._progress: tuple[JobPosition, bytes] | None = None
        self._progress_at = float("-inf")

    # The job's thread

    def begin(self) -> None:
        """Begin the stream of the running job."""
        with self._lock:
            self._flow = FlowControl()
            self._job = self._current_job()

    # hot loop: python -m benchmarks stream
    def put(self, content_type: str, payload: bytes) -> bool:
        """Add a part; return whether anything was sent."""
        with self._lock:
            batches = self._flow.add(content_type, payload, time.monotonic())
            if not batches:
                if not self._armed and not self._flow.no_reader:
                    self._armed = True
                    self._call_later(BATCH_AFTER, self._flush)
                return False
            for batch in batches:
                self._send_batch(self._job, batch)
            return True

    @property
    def has_credit(self) -> bool:
        """Whether the job may yield another part."""
        return self._flow.has_credit

    def wait(self, seconds: float) -> bool:
        """Wait for credit for another part; return whether there is any."""
        if self._flow.has_credit:
            return True
        self._credited.clear()
        if not self._flow.has_credit:
            self._credited.wait(seconds)
        return self._flow.has_credit

    def on_credit(self, call: Callable[[], None]) -> None:
        """Call a function, from any thread, when there may be credit."""
        self._credit_callback = call

    def end(self) -> None:
        """End the stream: waiting parts are sent before this returns."""
        with self._lock:
            for batch in self._flow.end(time.monotonic()):
                self._send_batch(self._job, batch)
            self._job = (0, -1)
            self._credit_callback = None

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Report the progress of the job; the latest is sent at most every `PROGRESS_EVERY`."""
        value = self._current_job(), encode_progress(done, total, note)
        with self._lock:
            waits, self._progress = self._progress is not None, value
            if waits:
                return
            wait = self._progress_at + PROGRESS_EVERY - time.monotonic()
            if wait > 0:
                self._call_later(wait, self._report)
                return
        self._report()

    # Any thread

    def _flush(self) -> None:
        with self._lock:
            self._armed = False
            if self._job[1] >= 0:
                for batch in self._flow.flush(time.monotonic()):
                    self._send_batch(self._job, batch)

    def _report(self) -> None:
        with self._lock:
            value, self._progress = self._progress, None
            self._progress_at = time.monotonic()
            if value is not None:
                self._send_progress(*value)

    def credit(self, chunk: int, position: int, taken: int) -> None:
        """Record how many parts the readers of a job have consumed, if it is the running one."""
        with self._lock:
            if (chunk, position) != self._job:
                return
            self._flow.credit(taken)
            call, self._credit_callback = self._credit_callback, None
        self._credited.set()
        if call is not None:
            call()
