"""Forwards what a running job says to the job manager: parts of its stream, and its progress."""

from __future__ import annotations

import threading
import time
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from eventmq.execution.streaming import BATCH_AFTER, FlowControl
from eventmq.wire.streams import encode_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.execution.streaming import PartBatch

    Place = tuple[int, int]
    Later = Callable[[float, Callable[[], None]], None]

__all__ = ["Later", "PartSink", "Timer"]

#: Seconds between two values of the progress of one slot that are sent.
PROGRESS_EVERY = 0.1

#: Seconds after which the thread of a `Timer` that has nothing to do ends.
IDLE = 1.0


class Timer:
    """Calls functions a little later, in a thread that is there while it is needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None

    def __call__(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function in so many seconds."""
        with self._changed:
            heappush(self._due, (time.monotonic() + seconds, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="eventmq-flush", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        """Wait for what is due; return None, and note the end of the thread, after idle time."""
        with self._changed:
            while not self._due or (wait := self._due[0][0] - time.monotonic()) > 0:
                if not self._changed.wait(wait if self._due else IDLE) and not self._due:
                    self._thread = None
                    return None
            return heappop(self._due)[2]


class PartSink:
    """Implements `eventmq.execution.streaming.Sink` for the jobs of one slot.

    Args:
        where: Returns chunk and position of the job that runs.
        send_batch: Hands a batch to the manager; order counts.
        send_progress: Hands `encode_progress` of something to the manager.
        later: Calls a function in some seconds.
    """

    def __init__(
        self,
        where: Callable[[], Place],
        send_batch: Callable[[Place, PartBatch], None],
        send_progress: Callable[[Place, bytes], None],
        later: Later,
    ) -> None:
        self._where = where
        self._send_batch = send_batch
        self._send_progress = send_progress
        self._later = later
        self._lock = threading.Lock()
        self._credited = threading.Event()
        self._flow = FlowControl()
        self._place: Place = (0, -1)
        self._armed = False
        self._credit_callback: Callable[[], None] | None = None
        self._progress: tuple[Place, bytes] | None = None
        self._progress_at = float("-inf")

    # The job's thread

    def begin(self) -> None:
        """Begin the stream of the job that runs now."""
        with self._lock:
            self._flow = FlowControl()
            self._place = self._where()

    # hot loop: benchmarks/stream.py
    def put(self, content_type: str, payload: bytes) -> bool:
        """Take a part; say whether something was sent."""
        with self._lock:
            batches = self._flow.add(content_type, payload, time.monotonic())
            if not batches:
                if not self._armed and not self._flow.no_reader:
                    self._armed = True
                    self._later(BATCH_AFTER, self._flush)
                return False
            for batch in batches:
                self._send_batch(self._place, batch)
            return True

    @property
    def has_credit(self) -> bool:
        """Whether there is room for another part."""
        return self._flow.has_credit

    def wait(self, seconds: float) -> bool:
        """Wait until there is room for another part; say whether there is."""
        if self._flow.has_credit:
            return True
        self._credited.clear()
        if not self._flow.has_credit:
            self._credited.wait(seconds)
        return self._flow.has_credit

    def on_credit(self, call: Callable[[], None]) -> None:
        """Have a function called, from any thread, when there may be room."""
        self._credit_callback = call

    def end(self) -> None:
        """End the stream: what waits is sent before this returns."""
        with self._lock:
            for batch in self._flow.end(time.monotonic()):
                self._send_batch(self._place, batch)
            self._place = (0, -1)
            self._credit_callback = None

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Tell how far the job is; the last value counts, and not each is sent."""
        value = self._where(), encode_progress(done, total, note)
        with self._lock:
            waits, self._progress = self._progress is not None, value
            if waits:
                return
            wait = self._progress_at + PROGRESS_EVERY - time.monotonic()
            if wait > 0:
                self._later(wait, self._report)
                return
        self._report()

    # Any thread

    def _flush(self) -> None:
        with self._lock:
            self._armed = False
            if self._place[1] >= 0:
                for batch in self._flow.flush(time.monotonic()):
                    self._send_batch(self._place, batch)

    def _report(self) -> None:
        with self._lock:
            value, self._progress = self._progress, None
            self._progress_at = time.monotonic()
            if value is not None:
                self._send_progress(*value)

    def credit(self, chunk: int, position: int, taken: int) -> None:
        """Take note of how many parts the readers of a job have taken, if it is this one."""
        with self._lock:
            if (chunk, position) != self._place:
                return
            self._flow.credit(taken)
            call, self._credit_callback = self._credit_callback, None
        self._credited.set()
        if call is not None:
            call()
