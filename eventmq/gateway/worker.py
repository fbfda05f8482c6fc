"""A Majordomo worker as a pool of one slot, and its worker session at the broker.

Sessions run in the gateway's thread, one per Majordomo worker: leases, heartbeats, hand-backs and
deaths are those of any worker, and no request changes threads.
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

    from eventmq.execution.streaming import PartBatch
    from eventmq.interfaces import PoolEvent
    from eventmq.worker.runner import WorkerRunner

__all__ = ["MajordomoPool", "MajordomoWorker"]

logger = logging.getLogger(__name__)

#: PARTIALs of one worker, and their bytes, that wait for readers: the protocol has no word by which
#: it could be told to pause.
MAX_PARTS, MAX_BYTES = 16_384, 16 * 1024 * 1024


class _AssignedJob(NamedTuple):
    chunk: int
    position: int
    entry: ChunkEntry
    headers: str
    payload: bytes


class _PartBuffer:
    """The PARTIALs of one job on their way to the readers of its stream."""

    def __init__(self) -> None:
        self._flow = FlowControl()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._overrun = False

    @property
    def waiting(self) -> bool:
        """Whether parts wait for readers."""
        return bool(self._waiting)

    def add(self, payload: bytes, now: float) -> list[PartBatch]:
        """Add a part; return the batches that can be sent now.

        If too many wait, all are sent: the broker then discards them and tells the readers, and
        the job goes on.
        """
        if self._flow.no_reader:
            return []
        self._waiting.append(payload)
        self._size += len(payload)
        self._overrun |= len(self._waiting) > MAX_PARTS or self._size > MAX_BYTES
        return self._pump(now)

    def credit(self, taken: int, now: float) -> list[PartBatch]:
        """Grant credit for parts that were read; return the batches that can be sent now."""
        self._flow.credit(taken)
        return self._pump(now)

    def flush(self, now: float) -> list[PartBatch]:
        """Return parts that wait to be batched."""
        return self._flow.flush(now)

    def _pump(self, now: float) -> list[PartBatch]:
        batches: list[PartBatch] = []
        while self._waiting and (self._flow.has_credit or self._overrun):
            payload = self._waiting.popleft()
            self._size -= len(payload)
            batches += self._flow.add(FRAMES_TYPE, payload, now)
        return batches


class MajordomoPool:
    """A `eventmq.interfaces.WorkerPool` of one Majordomo worker.

    Args:
        ask: Called with job id, header text and frames of the next job; it ends by `answer` or
            `lose`.
        give_up: Called to disconnect the worker, which is the only way to end its job.
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
        self._waiting: deque[_AssignedJob] = deque()
        self._current: _AssignedJob | None = None
        self._parts: _PartBuffer | None = None
        #: FINAL of the running job, while parts of it wait.
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
        """Do nothing: the worker runs already."""

    def filenos(self) -> Sequence[int]:
        """Return no descriptors: the session asks `news`."""
        return ()

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Queue the jobs of a chunk, and send the worker one if it is idle."""
        index = decode_chunk(body)
        for position, entry in enumerate(index.entries):
            payload = index.payload(body, entry)
            work = _AssignedJob(chunk, position, entry, index.templates[entry.template], payload)
            self._waiting.append(work)
        self._next()

    def _next(self) -> None:
        """Send the worker the next job that has not expired."""
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

    def _end(self, work: _AssignedJob, kind: OutcomeKind, content_type: str, result: bytes) -> None:
        run_time = time.monotonic() - self._since
        row = OutcomeRow(work.position, int(kind), self._started, run_time, content_type, result)
        self._events.append(JobsEnded(0, work.chunk, 1, run_time, encode_outcomes([row])))

    # From the worker

    def part(self, job_id: str, frames: Sequence[bytes]) -> None:
        """Receive a PARTIAL: a part of the job's stream."""
        work = self._current
        if work is not None and work.entry.id == job_id and self._final is None:
            parts = self._parts = self._parts or _PartBuffer()
            self._stream(work, parts.add(encode_frames(frames), time.monotonic()))

    def answer(self, job_id: str, frames: Sequence[bytes]) -> None:
        """Receive a FINAL; it is reported after the last part."""
        work = self._current
        if work is not None and work.entry.id == job_id and self._final is None:
            self._final = frames
            self._finish(work)

    def _stream(self, work: _AssignedJob, batches: Sequence[PartBatch]) -> None:
        for batch in batches:
            self._events.append(PartsYielded(0, work.chunk, work.position, *batch))

    def _finish(self, work: _AssignedJob) -> None:
        """Report a finished job once all its parts are sent."""
        parts, final = self._parts, self._final
        if final is None or (parts is not None and parts.waiting):
            return
        if parts is not None:
            self._stream(work, parts.flush(time.monotonic()))
        self._current = None
        self._end(work, OutcomeKind.SUCCEEDED, FRAMES_TYPE, encode_frames(final))
        self._next()

    def lose(self, reason: str) -> None:
        """Report that the worker died, and the job it had."""
        work, self._current = self._current, None
        chunk, position = (0, -1) if work is None else (work.chunk, work.position)
        if not self._stopped:
            self._stopped = True
            self._events.append(SlotDied(0, chunk, position, reason))

    # From the job manager

    def take_back(self, slot: int) -> int:
        """Drop the jobs that the worker was not sent; return how many."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def running(self, slot: int) -> Running | None:
        """Return the job that the worker has."""
        work = self._current
        return None if work is None else Running(work.chunk, work.position, self._since)

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Do nothing: the protocol cannot interrupt a job."""

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Send parts that readers have room for now."""
        work, parts = self._current, self._parts
        if work is None or parts is None:
            return
        if (work.chunk, work.position) == (chunk, position):
            self._stream(work, parts.credit(taken, time.monotonic()))
            self._finish(work)

    def scale(self, slots: int) -> None:
        """Do nothing: there is one worker."""

    def kill(self, slot: int) -> None:
        """Disconnect the worker; a later answer of it is ignored."""
        self.lose("it was to end, and the majordomo worker was sent away")
        self._give_up()

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call."""
        if self._current is not None and self._parts is not None:
            self._stream(self._current, self._parts.flush(time.monotonic()))
        events, self._events = self._events, []
        return events

    def stop(self, grace: float) -> None:
        """Send the worker nothing more. Idempotent."""
        self._stopped = True
        self._waiting.clear()
        self._current = None


class MajordomoWorker:
    """The session of one Majordomo worker, as a `eventmq.gateway.router.LoopMember`.

    Args:
        pool: The worker.
        runner: The session, which runs the pool.
        ended: Called when the session ended by itself.
    """

    def __init__(self, pool: MajordomoPool, runner: WorkerRunner, ended: Callable[[], Any]) -> None:
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

    def poll_items(self, now: float) -> tuple[Sequence[tuple[Any, int]], float]:
        """Send the broker what the worker has done; return what to poll."""
        if not self._over and (self.pool.news or self._leaving):
            self._step(frozenset())
        if self._over:
            return (), 0.0
        if self._items is None:
            self._items, timeout = self._runner.to_poll()
            self._sources = {source for source, _ in self._items}
            self._due = now + timeout
        return self._items, max(0.0, self._due - now)

    def step(self, ready: Sequence[tuple[Any, int]], sources: AbstractSet[Any], now: float) -> bool:
        """Read the broker's messages, and do what is due."""
        due = now >= self._due or self._leaving
        if not self._over and (due or not self._sources.isdisjoint(sources)):
            self._step(sources)
        return not self._over

    def _step(self, sources: AbstractSet[Any]) -> None:
        self._items = None
        self._runner.poll_pool_next()
        self._over = not self._runner.step(sources)

    def leave(self, *, died: bool) -> None:
        """End the session: held jobs go back; a death counts for the running one."""
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
