"""A worker pool without processes and threads: jobs run when, and where, a test says so."""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from eventmq.interfaces import Answered, Progressed, Streamed
from eventmq.job import OutcomeKind
from eventmq.wire.bulk import decode_chunk, encode_outcomes
from eventmq.wire.streams import encode_progress
from eventmq.worker.coroutines import CoroutineRunner
from eventmq.worker.lookahead import LONG_JOB
from eventmq.worker.partflow import PartFlow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from eventmq.interfaces import PoolEvent
    from eventmq.worker.execution import Executor
    from eventmq.worker.partflow import Batch
    from eventmq.worker.stopsign import StopSign

__all__ = ["InlinePool"]

T = TypeVar("T")

_RAN = frozenset({OutcomeKind.SUCCEEDED, OutcomeKind.FAILED, OutcomeKind.RETRY})


def _aside(function: Callable[[], T]) -> T:
    """Call a function, in a thread of its own where this one has a running event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:  # noqa: SLF001 - it is for such
        return function()
    ends: list[tuple[T | None, BaseException | None]] = []

    def main() -> None:
        try:
            ends.append((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised by the caller below
            ends.append((None, error))

    thread = threading.Thread(target=copy_context().run, args=(main,))
    thread.start()
    thread.join()
    value, error = ends[0]
    if error is not None:
        raise error
    return cast("T", value)


class _Coroutines(CoroutineRunner):
    """Runs coroutines also where the test itself is one: event loops do not nest."""

    __slots__ = ()

    def run(
        self, coroutine: Coroutine[Any, Any, Any], soft: float = 0.0, stop: StopSign | None = None
    ) -> Any:
        """Return what the coroutine returns."""
        return _aside(partial(super().run, coroutine, soft, stop))

    def close(self) -> None:
        """Close the loop. Idempotent."""
        _aside(super().close)


class InlineSink:
    """Takes all parts of the job that runs: nobody could read them meanwhile."""

    room = True

    def __init__(self) -> None:
        self.place = (0, -1)
        self._flow = PartFlow()
        self._events: list[PoolEvent] = []

    def begin(self) -> None:
        """Begin the stream of the job that runs now."""
        self._flow = PartFlow()

    def put(self, content_type: str, payload: bytes) -> bool:
        """Take a part."""
        return self._send(self._flow.add(content_type, payload, 0.0))

    def _send(self, batches: Sequence[Batch]) -> bool:
        for batch in batches:
            self._events.append(Streamed(0, *self.place, batch.first, batch.parts, batch.body))
            self._flow.credit(batch.first + batch.parts)
        return bool(batches)

    def wait(self, seconds: float) -> bool:
        """Say that there is room."""
        return True

    def when_room(self, call: Callable[[], None]) -> None:
        """Call it: there is room."""
        call()

    def end(self) -> None:
        """End the stream."""
        self._send(self._flow.end(0.0))

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Take how far the job is."""
        self._events.append(Progressed(0, *self.place, encode_progress(done, total, note)))

    def take(self) -> list[PoolEvent]:
        """Return what jobs said, and forget it."""
        events, self._events = self._events, []
        return events


class InlinePool:
    """A `eventmq.interfaces.WorkerPool` of one slot; `run_next` runs one job and returns.

    Limits of time are not kept in blocking code: nobody could interrupt the test's own thread.

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
        self.ran = 0

    def start(self) -> None:
        """Do nothing: it is ready."""

    def filenos(self) -> Sequence[int]:
        """Return nothing: nothing happens by itself."""
        return ()

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Keep a chunk until `run_next`."""
        self._chunks.append((chunk, body, count))

    def take_back(self, slot: int) -> int:
        """Withdraw what has not started; return how many jobs."""
        taken = sum(count for _, _, count in self._chunks)
        self._chunks.clear()
        return taken

    def running(self, slot: int) -> None:
        """Return None, for the same reason."""

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Do nothing: what runs is below the caller."""

    def kill(self, slot: int) -> None:
        """Do nothing, for the same reason."""

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Do nothing: parts wait for no reader."""

    def scale(self, slots: int) -> None:
        """Do nothing: there is one slot."""

    def poll(self) -> list[PoolEvent]:
        """Run the next job, if there is one."""
        return self.run_next()

    def stop(self, grace: float) -> None:
        """Close the event loop, if a task needed one. Idempotent."""
        self._executor.close()

    def run_next(self) -> list[PoolEvent]:
        """Run the jobs of the next chunk here and now; return nothing if there is none."""
        if not self._chunks:
            return []
        number, body, _ = self._chunks.popleft()
        index = decode_chunk(body)
        routes = self._executor.routes(index.queue, index.templates)
        rows = []
        events: list[PoolEvent] = []
        outer = self._sink.place
        for place, entry in enumerate(index.entries):
            self._sink.place = number, place
            payload = index.payload(body, entry)
            rows.append(self._executor.run(routes[entry.template], place, entry, payload))
            events += self._sink.take()
        self._sink.place = outer
        self.ran += sum(row.kind in _RAN for row in rows)
        # As if it had been long: then the manager looks ahead no further than the next job.
        ran = len(rows) * LONG_JOB
        return [*events, Answered(0, number, len(rows), ran, encode_outcomes(rows))]
