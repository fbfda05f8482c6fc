"""Runs generator tasks: hands on what they yield, pauses them, and closes them.

The pool gives the `Sink`; whoever calls gives the way to encode a part. Knows no thread.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from eventmq.errors import JobCancelled, SoftTimeLimitExceeded, TimeLimitExceeded
from eventmq.wire.streams import NO_READER, WINDOW, WINDOW_BYTES, encode_parts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from eventmq.errors import EventMQError

    Encode = Callable[[object], tuple[str, bytes]]

__all__ = [
    "BATCH_AFTER",
    "Alarm",
    "Batch",
    "Cancellation",
    "FlowControl",
    "PartError",
    "Sink",
    "adrive",
    "cancelled",
    "drive",
    "past_hard_limit",
    "past_soft_limit",
]


#: Seconds that a part waits for others, unless nothing was sent for so long.
BATCH_AFTER = 0.005

#: Parts and bytes of one batch, beside the last part.
BATCH_PARTS = 256

BATCH_BYTES = 64 * 1024


class Batch(NamedTuple):
    """Parts that travel together: index of the first, how many, `encode_parts` of them."""

    first: int
    parts: int
    body: bytes


class FlowControl:
    """What a job has yielded and its readers have not taken.

    Attributes:
        unread: Nobody will read the rest: nothing more is sent, and nothing waits.
    """

    def __init__(self) -> None:
        self.unread = False
        self._content_type = ""
        self._waiting: list[bytes] = []
        self._size = 0
        self._next = 0
        self._taken = 0
        self._sent_at = float("-inf")
        self._told = False
        #: (index that follows the last part, bytes) of what was sent and not taken.
        self._out: deque[tuple[int, int]] = deque()
        self._out_bytes = 0

    @property
    def room(self) -> bool:
        """Whether the job may yield another part."""
        return (
            self._next - self._taken < WINDOW and self._out_bytes + self._size < WINDOW_BYTES
        ) or self.unread

    @property
    def waiting(self) -> bool:
        """Whether there are parts that were not sent."""
        return bool(self._waiting)

    def add(self, content_type: str, payload: bytes, now: float) -> list[Batch]:
        """Take a part; return what is to be sent now."""
        if self.unread:
            return []
        batches = []
        if self._waiting and content_type != self._content_type:
            batches.append(self._cut(now))
        self._content_type = content_type
        self._waiting.append(payload)
        self._size += len(payload)
        self._next += 1
        enough = len(self._waiting) >= BATCH_PARTS or self._size >= BATCH_BYTES
        if enough or now - self._sent_at >= BATCH_AFTER or not self.room:
            batches.append(self._cut(now))
        return batches

    def flush(self, now: float) -> list[Batch]:
        """Return what waits."""
        return [self._cut(now)] if self._waiting else []

    def end(self, now: float) -> list[Batch]:
        """Return what waits, or an empty batch if there was none at all: it says so."""
        if self._told or self._waiting or self.unread:
            return self.flush(now)
        return [self._cut(now)]

    def _cut(self, now: float) -> Batch:
        parts, self._waiting = self._waiting, []
        size, self._size = self._size, 0
        self._sent_at = now
        self._told = True
        self._out.append((self._next, size))
        self._out_bytes += size
        return Batch(self._next - len(parts), len(parts), encode_parts(self._content_type, parts))

    def credit(self, taken: int) -> None:
        """Take note of how many parts every reader has taken."""
        if taken >= NO_READER:
            self.unread = True
            self._waiting, self._size = [], 0
        self._taken = max(self._taken, min(taken, self._next))
        while self._out and self._out[0][0] <= self._taken:
            self._out_bytes -= self._out.popleft()[1]


class Alarm(Protocol):
    """Raises `SoftTimeLimitExceeded` in blocking code. Where a pool has none, nothing can."""

    def arm(self, seconds: float) -> None:
        """Raise it after so many seconds in the code that runs then."""

    def disarm(self) -> None:
        """Raise nothing any more. Idempotent."""


def cancelled() -> JobCancelled:
    """Return what is raised in a task that somebody cancelled."""
    return JobCancelled("the job was cancelled while it ran")


def past_hard_limit(seconds: float) -> TimeLimitExceeded:
    """Return with what a job fails that was stopped at its ``timeout``."""
    return TimeLimitExceeded(f"the job was stopped after its timeout of {seconds:g} s")


def past_soft_limit(seconds: float) -> SoftTimeLimitExceeded:
    """Return what is raised in a task whose ``soft_timeout`` has passed."""
    return SoftTimeLimitExceeded(f"the job has run for its soft_timeout of {seconds:g} s")


class Cancellation:
    """One per slot, or per job where jobs share a thread.

    Args:
        monotonic: Reads the time.

    Attributes:
        requested: Somebody cancelled the job.
        inside: The task's own code runs: only there may a signal raise.
        sink: Takes the parts of an async generator that has a stop sign of its own.
        report: Sends how far the job is; None where nobody would hear of it.
    """

    __slots__ = ("_monotonic", "_soft", "_soft_due", "inside", "report", "requested", "sink")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.requested = False
        self.inside = False
        self.report: Callable[[float, float | None, str], None] | None = None
        self.sink: Sink | None = None
        self._monotonic = monotonic
        self._soft = self._soft_due = 0.0

    def limit(self, seconds: float) -> None:
        """Begin the soft limit of a job; 0.0 ends it."""
        self._soft = seconds
        self._soft_due = self._monotonic() + seconds if seconds else 0.0

    @property
    def late(self) -> bool:
        """Whether the soft limit has passed."""
        return bool(self._soft_due) and self._monotonic() >= self._soft_due

    def overdue(self) -> SoftTimeLimitExceeded:
        """Return what is raised in a task that is late, which it is not twice."""
        self._soft_due = 0.0
        return past_soft_limit(self._soft)

    def check(self) -> None:
        """Raise what stops the task, if something does.

        Raises:
            JobCancelled: Somebody cancelled the job.
            SoftTimeLimitExceeded: Its soft limit has passed; raised once.
        """
        if self.requested:
            raise cancelled()
        if self.late:
            raise self.overdue()


#: Seconds after which a paused job looks whether it is to stop.
LOOK = 0.05


class PartError(Exception):
    """A part cannot be sent: the job fails for good, by no fault that another try could mend."""

    def __init__(self, error: EventMQError) -> None:
        super().__init__(str(error))
        self.error = error


class Sink(Protocol):
    """Takes the parts of the jobs of a slot, one job after the other."""

    def begin(self) -> None:
        """Begin the stream of the job that runs now."""

    def put(self, content_type: str, payload: bytes) -> bool:
        """Take a part; say whether something was sent."""

    def wait(self, seconds: float) -> bool:
        """Wait until there is room for another part; say whether there is."""

    @property
    def room(self) -> bool:
        """Whether there is room for another part."""

    def when_room(self, call: Callable[[], None]) -> None:
        """Have a function called, from any thread, when there may be room."""

    def end(self) -> None:
        """End the stream: what waits is sent before this returns."""

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Tell how far the job is; the last value counts, and not each is sent."""


# hot loop: benchmarks/stream.py
def drive(
    generator: Generator[Any, Any, Any], sink: Sink, encode: Encode, stop: Cancellation
) -> Any:
    """Send what a generator yields; return its return value.

    It is closed in any case. A cancelled job hears of it as GeneratorExit where it yielded, and the
    soft limit is raised there; neither may come between a part and the pipe that it is written to.

    Args:
        generator: Of the task.
        sink: Takes the parts.
        encode: Returns content type and payload of a part; raises `PartError`.
        stop: Of the slot.
    """
    late: BaseException | None = None
    step = generator.__next__
    put, wait = sink.put, sink.wait
    stop.inside = False
    sink.begin()
    try:
        while True:
            # The task's own code: only here may a signal raise.
            stop.inside = True
            try:
                part = step() if late is None else generator.throw(late)
            except StopIteration as end:
                return end.value
            finally:
                stop.inside = False
            put(*encode(part))
            # A full window: the reader has the time that it needs, somebody who cancels has not.
            while not wait(LOOK) and not stop.requested and not stop.late:
                pass
            if stop.requested:
                raise cancelled()
            late = stop.overdue() if stop.late else None
    finally:
        try:
            generator.close()
        finally:
            sink.end()


async def adrive(generator: AsyncGenerator[Any, Any], sink: Sink, encode: Encode) -> None:
    """Do the same for an async generator, in an event loop that also cancels it.

    Args:
        generator: Of the task.
        sink: Takes the parts.
        encode: Returns content type and payload of a part; raises `PartError`.
    """
    import asyncio

    sink.begin()
    try:
        async for part in generator:
            if sink.put(*encode(part)):
                await asyncio.sleep(0)  # for those who share the loop, and those who cancel
            while not sink.room:
                await _await_room(sink)
    finally:
        try:
            await generator.aclose()
        finally:
            sink.end()


async def _await_room(sink: Sink) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    there = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(there.set)

    sink.when_room(wake)
    if not sink.room:
        await there.wait()
