"""Runs generator tasks: hands on what they yield, pauses them, and closes them.

The pool gives the `Sink`; whoever calls gives the way to encode a part. Knows no thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from eventmq.worker.stopsign import cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from eventmq.errors import EventMQError
    from eventmq.worker.stopsign import StopSign

    Encode = Callable[[object], tuple[str, bytes]]

__all__ = ["PartError", "Sink", "adrive", "drive"]

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
def drive(generator: Generator[Any, Any, Any], sink: Sink, encode: Encode, stop: StopSign) -> Any:
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
