"""A foreign worker as a pool of one slot, and the worker session around it.

Sessions are members of the gateway's thread, one per foreign worker: leases, heartbeats, what is
handed back and what counts as a death are those of any worker, and no request changes threads.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import EventMQError
from eventmq.execution.streaming import FlowControl
from eventmq.interfaces import JobsEnded, PartsYielded, Running, SlotDied
from eventmq.job import OutcomeKind
from eventmq.wire.batches import ChunkEntry, OutcomeRow, decode_chunk, encode_outcomes
from eventmq.wire.results import (
    ERROR_TYPE,
    FRAMES_TYPE,
    RemoteError,
    decode_frames,
    encode_error,
    encode_frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from eventmq.execution.streaming import Batch
    from eventmq.interfaces import PoolEvent
    from eventmq.worker.runner import WorkerRunner

__all__ = ["ForeignPool", "ForeignWorker"]

logger = logging.getLogger(__name__)

#: PARTIALs of one worker, and their bytes, that wait for readers: the protocol has no word by which
#: it could be told to pause.
MOST_PARTS, MOST_BYTES = 16_384, 16 * 1024 * 1024


class _Work(NamedTuple):
    chunk: int
    position: int
    entry: ChunkEntry
    headers: str
    payload: bytes


class _Parts:
    """The PARTIALs of one job on their way to the readers of its stream."""

    def __init__(self) -> None:
        self._flow = FlowControl()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._overrun = False

    @property
    def waiting(self) -> bool:
        """Whether some wait for room."""
        return bool(self._waiting)

    def add(self, payload: bytes, now: float) -> list[Batch]:
        """Take a part; return what is to be sent now.

        Where too many wait, all are sent: the broker then discards the parts, tells the readers so,
        and the job goes on.
        """
        if self._flow.unread:
            return []
        self._waiting.append(payload)
        self._size += len(payload)
        self._overrun |= len(self._waiting) > MOST_PARTS or self._size > MOST_BYTES
        return self._pump(now)

    def credit(self, taken: int, now: float) -> list[Batch]:
        """Take note of what was taken; return what there is room for now."""
        self._flow.credit(taken)
        return self._pump(now)

    def flush(self, now: float) -> list[Batch]:
        """Return what waits for others to travel with."""
        return self._flow.flush(now)

    def _pump(self, now: float) -> list[Batch]:
        batches: list[Batch] = []
        while self._waiting and (self._flow.room or self._overrun):
            payload = self._waiting.popleft()
            self._size -= len(payload)
            batches += self._flow.add(FRAMES_TYPE, payload, now)
        return batches


class ForeignPool:
    """Implements `eventmq.interfaces.WorkerPool` for one worker elsewhere.

    Args:
        ask: Called with job id, header text and frames of the next job; its end comes by `answer`
            or `lose`.
        give_up: Called when the worker must end what it does: it cannot be told, so it is sent
            away.
    """

    slots = 1
    interrupts = False
    shared = False
    abandoned = 0

    def __init__(
        self, ask: Callable[[str, str, list[bytes]], None], give_up: Callable[[], None]
    ) -> None:
        self._ask = ask
        self._give_up = give_up
        self._waiting: deque[_Work] = deque()
        self._current: _Work | None = None
        self._parts: _Parts | None = None
        #: What the job that runs returned, while parts of it wait.
        self._final: Sequence[bytes] | None = None
        self._since = 0.0
        self._started = 0.0
        self._events: list[PoolEvent] = []
        self._stopped = False

    @property
    def news(self) -> bool:
        """Whether `poll` has something."""
        return bool(self._events)

    def start(self) -> None:
        """Start nothing: the worker runs already."""

    def filenos(self) -> Sequence[int]:
        """Return no descriptor: who changes something asks `news`."""
        return ()

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Take a chunk, and give the worker its first job if it has none."""
        index = decode_chunk(body)
        for position, entry in enumerate(index.entries):
            payload = index.payload(body, entry)
            work = _Work(chunk, position, entry, index.templates[entry.template], payload)
            self._waiting.append(work)
        self._next()

    def _next(self) -> None:
        """Give the worker the next job that it can be given."""
        while self._current is None and self._waiting and not self._stopped:
            work = self._waiting.popleft()
            self._since, self._started = time.monotonic(), time.time()
            if work.entry.expires and work.entry.expires < self._started:
                self._end(work, OutcomeKind.EXPIRED, "", b"")
                continue
            try:
                frames = decode_frames(work.payload)
            except EventMQError as error:
                reason = RemoteError("eventmq.errors.ProtocolError", str(error))
                self._end(work, OutcomeKind.FAILED, ERROR_TYPE, encode_error(reason))
                continue
            self._current, self._parts, self._final = work, None, None
            self._ask(work.entry.id, work.headers, frames)

    def _end(self, work: _Work, kind: OutcomeKind, content_type: str, result: bytes) -> None:
        run_time = time.monotonic() - self._since
        row = OutcomeRow(work.position, int(kind), self._started, run_time, content_type, result)
        self._events.append(JobsEnded(0, work.chunk, 1, run_time, encode_outcomes([row])))

    # What the worker says

    def part(self, job_id: str, frames: Sequence[bytes]) -> None:
        """Take a PARTIAL for the stream of the job, where it waits for the readers."""
        work = self._current
        if work is not None and work.entry.id == job_id and self._final is None:
            parts = self._parts = self._parts or _Parts()
            self._stream(work, parts.add(encode_frames(frames), time.monotonic()))

    def answer(self, job_id: str, frames: Sequence[bytes]) -> None:
        """The worker has done its job; that is told behind the last of its parts."""
        work = self._current
        if work is not None and work.entry.id == job_id and self._final is None:
            self._final = frames
            self._finish(work)

    def _stream(self, work: _Work, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._events.append(PartsYielded(0, work.chunk, work.position, *batch))

    def _finish(self, work: _Work) -> None:
        """Answer for a job of which nothing is waited for any more."""
        parts, final = self._parts, self._final
        if final is None or (parts is not None and parts.waiting):
            return
        if parts is not None:
            self._stream(work, parts.flush(time.monotonic()))
        self._current = None
        self._end(work, OutcomeKind.SUCCEEDED, FRAMES_TYPE, encode_frames(final))
        self._next()

    def lose(self, reason: str) -> None:
        """The worker is gone for good; what it was doing may be why."""
        work, self._current = self._current, None
        chunk, position = (0, -1) if work is None else (work.chunk, work.position)
        if not self._stopped:
            self._stopped = True
            self._events.append(SlotDied(0, chunk, position, reason))

    # What the job manager says

    def take_back(self, slot: int) -> int:
        """Withdraw what the worker was not given."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def running(self, slot: int) -> Running | None:
        """Return the job that the worker was given."""
        work = self._current
        return None if work is None else Running(work.chunk, work.position, self._since)

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Do nothing: the protocol has no word for it."""

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Send on what readers have room for now."""
        work, parts = self._current, self._parts
        if (
            work is not None
            and parts is not None
            and (work.chunk, work.position)
            == (
                chunk,
                position,
            )
        ):
            self._stream(work, parts.credit(taken, time.monotonic()))
            self._finish(work)

    def scale(self, slots: int) -> None:
        """Do nothing: the worker is there or not."""

    def kill(self, slot: int) -> None:
        """Send the worker away from what it does; what it answers to that is not heard."""
        self.lose("it was to end, and the majordomo worker was sent away")
        self._give_up()

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call."""
        if self._current is not None and self._parts is not None:
            self._stream(self._current, self._parts.flush(time.monotonic()))
        events, self._events = self._events, []
        return events

    def stop(self, grace: float) -> None:
        """Give the worker nothing more. Idempotent."""
        self._stopped = True
        self._waiting.clear()
        self._current = None


class ForeignWorker:
    """The session of one foreign worker: a `eventmq.gateway.router.LoopMember`.

    Args:
        pool: The worker.
        runner: The session, which runs the pool.
        ended: Called when the session ended by itself.
    """

    def __init__(self, pool: ForeignPool, runner: WorkerRunner, ended: Callable[[], Any]) -> None:
        self.pool = pool
        self._runner = runner
        self._ended = ended
        self._leaving = self._over = False
        #: What was polled last, None after a step.
        self._items: Sequence[tuple[Any, int]] | None = None
        self._sources: AbstractSet[Any] = frozenset()
        self._due = 0.0

    def begin(self) -> None:
        """Connect."""
        self._runner.begin()

    def wanted(self, now: float) -> tuple[Sequence[tuple[Any, int]], float]:
        """Tell the broker what the worker has done; return what to poll."""
        if not self._over and (self.pool.news or self._leaving):
            self._step(frozenset())
        if self._over:
            return (), 0.0
        if self._items is None:
            self._items, patience = self._runner.to_poll()
            self._sources = {source for source, _ in self._items}
            self._due = now + patience
        return self._items, max(0.0, self._due - now)

    def step(self, ready: Sequence[tuple[Any, int]], sources: AbstractSet[Any], now: float) -> bool:
        """Take what the broker said, and do what is due."""
        due = now >= self._due or self._leaving
        if not self._over and (due or not self._sources.isdisjoint(sources)):
            self._step(sources)
        return not self._over

    def _step(self, sources: AbstractSet[Any]) -> None:
        self._items = None
        self._runner.poll_pool_next()
        self._over = not self._runner.step(sources)

    def leave(self, *, died: bool) -> None:
        """End the session: what is held goes back, a death counts for what was being done."""
        self._leaving = True
        if died:
            self.pool.lose("the majordomo worker was silent for too long")
        self._runner.stop(now=True)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._over = True
        self._runner.end()
        if not self._leaving:
            self._leaving = True
            self._ended()
