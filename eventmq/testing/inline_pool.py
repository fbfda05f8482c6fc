"""A worker pool without processes and threads: jobs run when, and where, a test says so."""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from eventmq.interfaces import Answered
from eventmq.job import OutcomeKind
from eventmq.wire.bulk import decode_chunk, encode_outcomes
from eventmq.worker.coroutines import CoroutineRunner
from eventmq.worker.lookahead import LONG_JOB

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from eventmq.interfaces import PoolEvent
    from eventmq.worker.execution import Executor
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

    def scale(self, slots: int) -> None:
        """Do nothing: there is one slot."""

    def poll(self) -> list[PoolEvent]:
        """Run the next job, if there is one."""
        event = self.run_next()
        return [] if event is None else [event]

    def stop(self, grace: float) -> None:
        """Close the event loop, if a task needed one. Idempotent."""
        self._executor.close()

    def run_next(self) -> Answered | None:
        """Run the jobs of the next chunk here and now, None if there is none."""
        if not self._chunks:
            return None
        number, body, _ = self._chunks.popleft()
        index = decode_chunk(body)
        routes = self._executor.routes(index.queue, index.templates)
        rows = [
            self._executor.run(routes[entry.template], place, entry, index.payload(body, entry))
            for place, entry in enumerate(index.entries)
        ]
        self.ran += sum(row.kind in _RAN for row in rows)
        # As if it had been long: then the manager looks ahead no further than the next job.
        return Answered(0, number, len(rows), len(rows) * LONG_JOB, encode_outcomes(rows))
