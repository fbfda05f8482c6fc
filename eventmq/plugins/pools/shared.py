"""What the built-in pools share: options, jobs of slots, and parts of streams."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError
from eventmq.execution.streaming import BATCH_AFTER, FlowControl
from eventmq.interfaces import JobsEnded
from eventmq.plugins.options import read_options
from eventmq.wire.batches import decode_chunk, encode_outcomes
from eventmq.wire.streams import encode_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.execution.executor import Executor
    from eventmq.execution.routes import Route
    from eventmq.execution.streaming import Batch
    from eventmq.interfaces import PluginContext
    from eventmq.wire.batches import ChunkIndex, OutcomeRow

    Place = tuple[int, int]
    Later = Callable[[float, Callable[[], None]], None]

__all__ = ["GivenChunk", "Later", "Outcomes", "PartSink", "PoolOptions", "Timer", "answered"]


class GivenChunk:
    """A chunk as it came.

    Attributes:
        index: What it says about its jobs, once it was read.
        routes: How its jobs are run, by template.
    """

    __slots__ = ("_read", "body", "count", "number", "routes")

    def __init__(self, number: int, body: bytes, count: int) -> None:
        self.number = number
        self.body = body
        self.count = count
        self._read: ChunkIndex | None = None
        self.routes: list[Route] = []

    def read(self, executor: Executor) -> ChunkIndex:
        """Return what it says about its jobs; find their routes at the first call."""
        if self._read is None:
            self._read = decode_chunk(self.body)
            self.routes = executor.routes(self._read.queue, self._read.templates)
        return self._read

    @property
    def index(self) -> ChunkIndex:
        """What it says about its jobs."""
        assert self._read is not None  # noqa: S101 - read before its first job runs
        return self._read


class Outcomes:
    """Outcomes by chunk, in the order in which they came. Whoever shares it with threads locks."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, list[OutcomeRow]] = {}

    def add(self, chunk: int, row: OutcomeRow) -> None:
        """Keep an outcome."""
        rows = self._rows.get(chunk)
        if rows is None:
            self._rows[chunk] = [row]
        else:
            rows.append(row)

    def take(self) -> dict[int, list[OutcomeRow]]:
        """Return what is there, and forget it."""
        rows, self._rows = self._rows, {}
        return rows


def answered(slot: int, chunk: int, rows: list[OutcomeRow], *, ordered: bool = True) -> JobsEnded:
    """Return the event that tells of outcomes of one chunk.

    Args:
        slot: That ran them.
        chunk: Its number.
        rows: The outcomes.
        ordered: They are the next ones of the chunk, in their order.
    """
    positions = () if ordered else tuple([row.position for row in rows])
    run_time = sum([row.run_time for row in rows])
    return JobsEnded(slot, chunk, len(rows), run_time, encode_outcomes(rows), positions)


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
        send_batch: Callable[[Place, Batch], None],
        send_progress: Callable[[Place, bytes], None],
        later: Later,
    ) -> None:
        self._where = where
        self._send_batch = send_batch
        self._send_progress = send_progress
        self._later = later
        self._lock = threading.Lock()
        self._room = threading.Event()
        self._flow = FlowControl()
        self._place: Place = (0, -1)
        self._armed = False
        self._on_room: Callable[[], None] | None = None
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
                if not self._armed and not self._flow.unread:
                    self._armed = True
                    self._later(BATCH_AFTER, self._flush)
                return False
            for batch in batches:
                self._send_batch(self._place, batch)
            return True

    @property
    def room(self) -> bool:
        """Whether there is room for another part."""
        return self._flow.room

    def wait(self, seconds: float) -> bool:
        """Wait until there is room for another part; say whether there is."""
        if self._flow.room:
            return True
        self._room.clear()
        if not self._flow.room:
            self._room.wait(seconds)
        return self._flow.room

    def when_room(self, call: Callable[[], None]) -> None:
        """Have a function called, from any thread, when there may be room."""
        self._on_room = call

    def end(self) -> None:
        """End the stream: what waits is sent before this returns."""
        with self._lock:
            for batch in self._flow.end(time.monotonic()):
                self._send_batch(self._place, batch)
            self._place = (0, -1)
            self._on_room = None

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
            call, self._on_room = self._on_room, None
        self._room.set()
        if call is not None:
            call()


_OF_THE_APP = frozenset({"concurrency", "loader", "arguments", "executor", "initial"})


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Validated options of a pool. ``own`` has all that the user may set."""

    concurrency: int
    loader: str
    arguments: Mapping[str, Any]
    executor: Executor | None
    initial: int | None
    own: Mapping[str, Any]

    @classmethod
    def of(cls, context: PluginContext, defaults: Mapping[str, Any]) -> PoolOptions:
        """Read the options of ``context``; ``defaults`` are those of the user.

        Raises:
            PluginError: An option is unknown or wrong.
        """
        options = context.options
        own = {name: value for name, value in options.items() if name not in _OF_THE_APP}
        concurrency = options.get("concurrency")
        if not isinstance(concurrency, int) or concurrency < 1:
            msg = f"the pool {context.name!r} needs a concurrency from 1, not {concurrency!r}"
            raise PluginError(msg)
        return cls(
            concurrency,
            str(options.get("loader", "")),
            options.get("arguments", {}),
            options.get("executor"),
            options.get("initial"),
            read_options(replace(context, options=own), defaults),
        )
