"""Foreign peers that run jobs: each is a worker session of the broker, with a pool of one slot.

Sessions run in the gateway's thread. Leases, heartbeats, hand-backs and deaths are those of any
worker, and no request changes threads.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.app.wiring import keys_of
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
    frames_task,
)
from eventmq.worker.runner import WorkerRunner
from eventmq.worker.session import SessionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    import zmq

    from eventmq.app import EventMQ
    from eventmq.execution.streaming import PartBatch
    from eventmq.interfaces import PoolEvent

__all__ = ["PeerWorker"]

#: Maximum number of parts of one peer that wait for readers, and of their bytes: few protocols can
#: tell a peer to pause.
MAX_PARTS, MAX_BYTES = 16_384, 16 * 1024 * 1024


class _AssignedJob(NamedTuple):
    chunk: int
    position: int
    entry: ChunkEntry
    headers: str
    payload: bytes


class _PartBuffer:
    """The parts of one job on their way to the readers of its stream."""

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

        If too many wait, all are sent: the broker then discards them and informs the readers, and
        the job continues.
        """
        if self._flow.no_reader:
            return []
        self._waiting.append(payload)
        self._size += len(payload)
        self._overrun |= len(self._waiting) > MAX_PARTS or self._size > MAX_BYTES
        return self._pump(now)

    def credit(self, taken: int, now: float) -> list[PartBatch]:
        """Record the parts that were read; return the batches that can be sent now."""
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


class _PeerPool:
    """A `eventmq.interfaces.WorkerPool` of one peer; see `PeerWorker`."""

    slots = 1
    interrupts = False
    shared = False
    abandoned = 0

    def __init__(
        self, ask: Callable[[str, str, list[bytes]], None], disconnect: Callable[[], None]
    ) -> None:
        self._ask = ask
        self._disconnect = disconnect
        self._waiting: deque[_AssignedJob] = deque()
        self._current: _AssignedJob | None = None
        self._parts: _PartBuffer | None = None
        #: The answer to the running job, while parts of it wait.
        self._final: Sequence[bytes] | None = None
        self._since = 0.0
        self._started = 0.0
        self._events: list[PoolEvent] = []
        self._stopped = False

    @property
    def news(self) -> bool:
        """Whether `poll` has events."""
        return bool(self._events)

    def start(self) -> None:
        """Do nothing: the peer runs already."""

    def filenos(self) -> Sequence[int]:
        """Return no descriptors: the session reads `news`."""
        return ()

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Queue the jobs of a chunk, and send the peer one if it is idle."""
        index = decode_chunk(body)
        for position, entry in enumerate(index.entries):
            payload = index.payload(body, entry)
            work = _AssignedJob(chunk, position, entry, index.templates[entry.template], payload)
            self._waiting.append(work)
        self._next()

    def _next(self) -> None:
        """Send the peer the next job that has not expired."""
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

    # From the peer

    def part(self, job_id: str, frames: Sequence[bytes]) -> None:
        """Receive a part of the job's stream."""
        work = self._current
        if work is not None and work.entry.id == job_id and self._final is None:
            parts = self._parts = self._parts or _PartBuffer()
            self._stream(work, parts.add(encode_frames(frames), time.monotonic()))

    def answer(self, job_id: str, frames: Sequence[bytes]) -> None:
        """Receive the answer; it is reported after the last part."""
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
        """Report that the peer is lost, together with its job."""
        work, self._current = self._current, None
        chunk, position = (0, -1) if work is None else (work.chunk, work.position)
        if not self._stopped:
            self._stopped = True
            self._events.append(SlotDied(0, chunk, position, reason))

    # From the job manager

    def take_back(self, slot: int) -> int:
        """Drop the jobs that were not sent to the peer; return their number."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def running(self, slot: int) -> Running | None:
        """Return the job that the peer has."""
        work = self._current
        return None if work is None else Running(work.chunk, work.position, self._since)

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Do nothing: a foreign job cannot be interrupted."""

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Send the parts that readers have credit for now."""
        work, parts = self._current, self._parts
        if work is None or parts is None:
            return
        if (work.chunk, work.position) == (chunk, position):
            self._stream(work, parts.credit(taken, time.monotonic()))
            self._finish(work)

    def scale(self, slots: int) -> None:
        """Do nothing: there is one peer."""

    def kill(self, slot: int) -> None:
        """Disconnect the peer; a later answer from it is ignored."""
        self.lose("the job had to end, so its peer was disconnected")
        self._disconnect()

    def poll(self) -> list[PoolEvent]:
        """Return the events since the last call."""
        if self._current is not None and self._parts is not None:
            self._stream(self._current, self._parts.flush(time.monotonic()))
        events, self._events = self._events, []
        return events

    def stop(self, grace: float) -> None:
        """Send the peer no more jobs. Idempotent."""
        self._stopped = True
        self._waiting.clear()
        self._current = None


class PeerWorker:
    """A foreign peer as a worker of one queue: its worker session, as a `LoopMember`.

    It gets the jobs of the queue whose bodies are frames (``app.send_raw(queue, frames)``), one at
    a time. All methods are called in the thread of the `RouterLoop`.

    Args:
        app: The app of the gateway.
        queue: Name of the queue.
        name: Name of the session in listings.
        context: The ZeroMQ context of the loop.
        ask: Called with job id, header text and frames of the next job, which ends by `answer` or
            `leave`.
        ended: Called when the peer must be disconnected: its session has ended, or its job has to
            end and there is no other way.
    """

    def __init__(
        self,
        app: EventMQ,
        queue: str,
        *,
        name: str,
        context: zmq.Context[Any] | None,
        ask: Callable[[str, str, list[bytes]], None],
        ended: Callable[[], Any],
    ) -> None:
        settings = app.settings
        self._pool = _PeerPool(ask, ended)
        self._runner = WorkerRunner(
            self._pool,
            brokers=settings.broker,
            info=SessionInfo(
                session="",
                name=name,
                queues=((10, queue),),
                tasks=(frames_task(queue),),
                heartbeat=settings.heartbeat_interval,
                heartbeat_timeout=settings.heartbeat_timeout,
                shutdown_grace=settings.shutdown_grace,
                cancel_grace=settings.cancel_grace,
            ),
            max_frame=settings.max_frame,
            context=context,
            clock=app.clock,
        )
        self._runner.keys = keys_of(settings)
        self._ended = ended
        #: Job id and frames of a part of its stream, in order.
        self.part = self._pool.part
        #: Job id and frames of its result.
        self.answer = self._pool.answer
        self._leaving = self._over = False
        #: The last poll items, None after a step.
        self._items: Sequence[tuple[Any, int]] | None = None
        self._sources: AbstractSet[Any] = frozenset()
        self._due = 0.0

    def begin(self) -> None:
        """Connect."""
        self._runner.begin()

    def poll_items(self, now: float) -> tuple[Sequence[tuple[Any, int]], float]:
        """Send the broker the results of the peer; return what to poll."""
        if not self._over and (self._pool.news or self._leaving):
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

    def leave(self, *, lost: str = "") -> None:
        """End the session and hand back its jobs.

        Args:
            lost: Reason why the peer is lost; if given, that counts as a death for the running job.
        """
        self._leaving = True
        if lost:
            self._pool.lose(lost)
        self._runner.stop(now=True)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._over = True
        self._runner.end()
        if not self._leaving:
            self._leaving = True
            self._ended()
