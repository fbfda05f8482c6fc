"""Running jobs: cancellation, soft limits, coroutines, and the streams of generator tasks.

`Cancellation` can stop a job. `CoroutineRunner` runs the coroutines of ``async def`` tasks, with
one event loop per slot; asyncio takes 70 ms to import, so it is imported for the first coroutine.
`run_generator` and `run_async_generator` send the parts that a task yields to the `Sink` of the
pool; `FlowControl` pauses the task while its readers are behind.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from eventmq.errors import JobCancelled, SoftTimeLimitExceeded, TimeLimitExceeded
from eventmq.wire.streams import NO_READER, WINDOW, WINDOW_BYTES, encode_parts

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

    from eventmq.errors import EventMQError

    Encode = Callable[[object], tuple[str, bytes]]

__all__ = [
    "BATCH_AFTER",
    "Alarm",
    "Cancellation",
    "CoroutineRunner",
    "FlowControl",
    "Interruptible",
    "PartBatch",
    "PartError",
    "Sink",
    "cancelled",
    "past_hard_limit",
    "past_soft_limit",
    "run_async_generator",
    "run_generator",
]


#: Seconds for which a part waits for others; the first part after such a pause is sent at once.
BATCH_AFTER = 0.005

#: Maximum number of parts and bytes of a batch, not counting its last part.
BATCH_PARTS = 256

BATCH_BYTES = 64 * 1024


class PartBatch(NamedTuple):
    """Parts that travel together: index of the first, number of parts, and the encoded parts."""

    first: int
    parts: int
    body: bytes


class FlowControl:
    """Flow control of one stream: the parts that were yielded and not consumed by readers.

    Attributes:
        no_reader: The stream has no reader: no more parts are sent, and the task does not wait.
    """

    def __init__(self) -> None:
        self.no_reader = False
        self._content_type = ""
        self._waiting: list[bytes] = []
        self._size = 0
        self._next = 0
        self._consumed = 0
        self._sent_at = float("-inf")
        self._sent_any = False
        #: (index after the last part, bytes) of the batches that were sent and not consumed.
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0

    @property
    def has_credit(self) -> bool:
        """Whether the job may yield another part."""
        return (
            self._next - self._consumed < WINDOW
            and self._in_flight_bytes + self._size < WINDOW_BYTES
        ) or self.no_reader

    @property
    def waiting(self) -> bool:
        """Whether some parts were not sent yet."""
        return bool(self._waiting)

    def add(self, content_type: str, payload: bytes, now: float) -> list[PartBatch]:
        """Add a part; return the batches to send now."""
        if self.no_reader:
            return []
        batches = []
        if self._waiting and content_type != self._content_type:
            batches.append(self._cut(now))
        self._content_type = content_type
        self._waiting.append(payload)
        self._size += len(payload)
        self._next += 1
        enough = len(self._waiting) >= BATCH_PARTS or self._size >= BATCH_BYTES
        if enough or now - self._sent_at >= BATCH_AFTER or not self.has_credit:
            batches.append(self._cut(now))
        return batches

    def flush(self, now: float) -> list[PartBatch]:
        """Return the waiting batches."""
        return [self._cut(now)] if self._waiting else []

    def end(self, now: float) -> list[PartBatch]:
        """Return the last batches; an empty one if there was no part."""
        if self._sent_any or self._waiting or self.no_reader:
            return self.flush(now)
        return [self._cut(now)]

    def _cut(self, now: float) -> PartBatch:
        parts, self._waiting = self._waiting, []
        size, self._size = self._size, 0
        self._sent_at = now
        self._sent_any = True
        self._in_flight.append((self._next, size))
        self._in_flight_bytes += size
        return PartBatch(
            self._next - len(parts), len(parts), encode_parts(self._content_type, parts)
        )

    def credit(self, taken: int) -> None:
        """Record the number of parts that all readers have consumed."""
        if taken >= NO_READER:
            self.no_reader = True
            self._waiting, self._size = [], 0
        self._consumed = max(self._consumed, min(taken, self._next))
        while self._in_flight and self._in_flight[0][0] <= self._consumed:
            self._in_flight_bytes -= self._in_flight.popleft()[1]


class Alarm(Protocol):
    """Raises `SoftTimeLimitExceeded` in blocking code; a pool may have none."""

    def arm(self, seconds: float) -> None:
        """Raise it after ``seconds`` in the code that is running then."""

    def disarm(self) -> None:
        """Cancel the alarm. Idempotent."""


def cancelled() -> JobCancelled:
    """Return the exception that is raised in a cancelled task."""
    return JobCancelled("the job was cancelled while it ran")


def past_hard_limit(seconds: float) -> TimeLimitExceeded:
    """Return the error of a job that was stopped at its ``timeout``."""
    return TimeLimitExceeded(f"the job was stopped after its timeout of {seconds:g} s")


def past_soft_limit(seconds: float) -> SoftTimeLimitExceeded:
    """Return the exception that is raised in a task whose ``soft_timeout`` has passed."""
    return SoftTimeLimitExceeded(f"the job has run for its soft_timeout of {seconds:g} s")


class Cancellation:
    """Cancellation and soft limit of the running job: one per slot, or per coroutine of a loop.

    Args:
        monotonic: Reads the time.

    Attributes:
        requested: The job was cancelled.
        in_task: The task's own code runs: only there may a signal handler raise.
        sink: Receives the parts of an async generator, if each job has its own cancellation.
        report: Sends the progress of the job; None if the pool does not support it.
    """

    __slots__ = ("_monotonic", "_soft", "_soft_due", "in_task", "report", "requested", "sink")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.requested = False
        self.in_task = False
        self.report: Callable[[float, float | None, str], None] | None = None
        self.sink: Sink | None = None
        self._monotonic = monotonic
        self._soft = self._soft_due = 0.0

    def set_soft_limit(self, seconds: float) -> None:
        """Start the soft limit of a job; 0.0 ends it."""
        self._soft = seconds
        self._soft_due = self._monotonic() + seconds if seconds else 0.0

    @property
    def soft_limit_passed(self) -> bool:
        """Whether the soft limit has passed."""
        return bool(self._soft_due) and self._monotonic() >= self._soft_due

    def soft_limit_error(self) -> SoftTimeLimitExceeded:
        """Return the exception of a passed soft limit, and clear the limit: it is raised once."""
        self._soft_due = 0.0
        return past_soft_limit(self._soft)

    def check(self) -> None:
        """Raise the exception that stops the task, if it has to stop.

        Raises:
            JobCancelled: The job was cancelled.
            SoftTimeLimitExceeded: The soft limit has passed; raised once.
        """
        if self.requested:
            raise cancelled()
        if self.soft_limit_passed:
            raise self.soft_limit_error()


#: Seconds between two checks of a paused job for its cancellation and soft limit.
STOP_CHECK_EVERY = 0.05


class PartError(Exception):
    """A part cannot be sent: the job fails for good, since a retry would not help."""

    def __init__(self, error: EventMQError) -> None:
        super().__init__(str(error))
        self.error = error


class Sink(Protocol):
    """Receives the parts of the jobs of a slot, one job after the other."""

    def begin(self) -> None:
        """Begin the stream of the job that runs now."""

    def put(self, content_type: str, payload: bytes) -> bool:
        """Add a part; return whether anything was sent."""

    def wait(self, seconds: float) -> bool:
        """Wait for credit for another part; return whether there is any."""

    @property
    def has_credit(self) -> bool:
        """Whether the job may yield another part."""

    def on_credit(self, call: Callable[[], None]) -> None:
        """Call a function, from any thread, when there may be credit."""

    def end(self) -> None:
        """End the stream: waiting parts are sent before this returns."""

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Report the progress of the job; the last value counts, and some values are not sent."""


# hot loop: python -m benchmarks stream
def run_generator(
    generator: Generator[Any, Any, Any], sink: Sink, encode: Encode, cancellation: Cancellation
) -> Any:
    """Send the parts that a generator yields; return its return value.

    The generator is always closed. A cancelled task gets GeneratorExit where it yielded, and the
    soft limit is raised there; neither may come between a part and the pipe that it is written to.

    Args:
        generator: Generator of the task.
        sink: Receives the parts.
        encode: Returns content type and payload of a part; raises `PartError`.
        cancellation: Cancellation of the slot.
    """
    pending_error: BaseException | None = None
    step = generator.__next__
    put, wait = sink.put, sink.wait
    cancellation.in_task = False
    sink.begin()
    try:
        while True:
            # The task's own code: only here may a signal handler raise.
            cancellation.in_task = True
            try:
                part = step() if pending_error is None else generator.throw(pending_error)
            except StopIteration as end:
                return end.value
            finally:
                cancellation.in_task = False
            put(*encode(part))
            # No credit: the reader may be slow, but a cancellation must not wait for it.
            while (
                not wait(STOP_CHECK_EVERY)
                and not cancellation.requested
                and not cancellation.soft_limit_passed
            ):
                pass
            if cancellation.requested:
                raise cancelled()
            pending_error = (
                cancellation.soft_limit_error() if cancellation.soft_limit_passed else None
            )
    finally:
        try:
            generator.close()
        finally:
            sink.end()


async def run_async_generator(
    generator: AsyncGenerator[Any, Any], sink: Sink, encode: Encode
) -> None:
    """Send the parts that an async generator yields, in an event loop that also cancels it.

    Args:
        generator: Generator of the task.
        sink: Receives the parts.
        encode: Returns content type and payload of a part; raises `PartError`.
    """
    import asyncio

    sink.begin()
    try:
        async for part in generator:
            if sink.put(*encode(part)):
                await asyncio.sleep(0)  # lets other jobs, and a cancellation, run
            while not sink.has_credit:
                await _await_credit(sink)
    finally:
        try:
            await generator.aclose()
        finally:
            sink.end()


async def _await_credit(sink: Sink) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    credited = asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(credited.set)

    sink.on_credit(notify)
    if not sink.has_credit:
        await credited.wait()


class Interruptible:
    """Awaits a coroutine, and can raise another exception than CancelledError in it.

    ``await Interruptible(coroutine)`` behaves like ``await coroutine``.
    """

    __slots__ = ("_coroutine", "_instead", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._instead: BaseException | None = None
        self._task: Task[Any] | None = None

    def interrupt(self, task: Task[Any], error: BaseException) -> None:
        """Raise ``error`` where the coroutine waits. In the thread of the loop, between steps.

        Args:
            task: Task in which the coroutine runs.
            error: The exception.
        """
        self._instead = error
        self._task = task
        task.cancel()

    def __await__(self) -> Interruptible:
        return self

    def __iter__(self) -> Interruptible:
        return self

    def __next__(self) -> Any:
        return self._coroutine.send(None)

    def send(self, value: Any) -> Any:
        """Resume the coroutine."""
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an exception in the coroutine; that of `interrupt` if it was called."""
        error = kind if value is None else value
        instead, self._instead = self._instead, None
        if instead is not None:
            error = instead
            uncancel = getattr(self._task, "uncancel", None)  # Python 3.11
            if uncancel is not None:  # the task itself was not cancelled
                uncancel()
        return self._coroutine.throw(error)

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()


async def _await(coroutine: Interruptible) -> Any:
    return await coroutine


class CoroutineRunner:
    """Owns the event loop of a slot, created for the first coroutine. One thread."""

    __slots__ = ("_loop", "_task")

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None
        self._task: Task[Any] | None = None

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        soft: float = 0.0,
        cancellation: Cancellation | None = None,
    ) -> Any:
        """Run a coroutine, and return its value; tasks that it left running are cancelled.

        Args:
            coroutine: Coroutine of a task.
            soft: Seconds after which `SoftTimeLimitExceeded` is raised in it, 0.0 for never.
            cancellation: Cancellation of the job, which may be requested already.
        """
        import asyncio

        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
        body = Interruptible(coroutine)
        task = self._task = loop.create_task(_await(body))
        if cancellation is not None and cancellation.requested:  # after `cancel` can find the task
            loop.call_soon(task.cancel)
        if soft:
            timer = loop.call_later(soft, body.interrupt, task, past_soft_limit(soft))
        try:
            return loop.run_until_complete(task)
        finally:
            self._task = None
            if soft:
                timer.cancel()
            remaining = asyncio.all_tasks(loop)
            if remaining:
                for task_left in remaining:
                    task_left.cancel()
                loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))

    def cancel(self) -> bool:
        """Cancel the running coroutine, if any; return whether there is one. From any thread."""
        task, loop = self._task, self._loop
        if task is None or loop is None:
            return False
        loop.call_soon_threadsafe(task.cancel)
        return True

    def close(self) -> None:
        """Close the loop. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
