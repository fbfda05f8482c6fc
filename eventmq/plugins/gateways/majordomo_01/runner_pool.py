"""A foreign worker as a pool of one slot, and the worker session around it.

`eventmq.worker.runner.WorkerRunner` runs in a thread per foreign worker: leases, heartbeats, what
is handed back and what counts as a death are those of any worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.runner_waits import Bell
from eventmq.errors import EventMQError
from eventmq.interfaces import Answered, Died, Running
from eventmq.job import OutcomeKind
from eventmq.wire.bulk import ChunkEntry, OutcomeRow, decode_chunk, encode_outcomes
from eventmq.wire.frames import FRAMES_TYPE, decode_frames, encode_frames
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.interfaces import PoolEvent
    from eventmq.worker.runner import WorkerRunner

__all__ = ["ForeignPool", "ForeignWorker"]

logger = logging.getLogger(__name__)


class _Work(NamedTuple):
    chunk: int
    position: int
    entry: ChunkEntry
    headers: str
    payload: bytes


class ForeignPool:
    """Implements `eventmq.interfaces.WorkerPool` for one worker elsewhere.

    Args:
        ask: Called with job id, header text and frames of the next job, from any thread; its end
            comes by `answer` or `lose`.
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
        self._lock = threading.Lock()
        self._bell = Bell()
        self._waiting: deque[_Work] = deque()
        self._current: _Work | None = None
        self._since = 0.0
        self._started = 0.0
        self._events: list[PoolEvent] = []
        self._stopped = False

    def start(self) -> None:
        """Start nothing: the worker runs already."""

    def filenos(self) -> Sequence[int]:
        """Return the descriptor that is readable when `poll` has something."""
        return [self._bell.fd]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Take a chunk, and give the worker its first job if it has none."""
        index = decode_chunk(body)
        with self._lock:
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
            self._current = work
            self._ask(work.entry.id, work.headers, frames)

    def _end(self, work: _Work, kind: OutcomeKind, content_type: str, result: bytes) -> None:
        ran = time.monotonic() - self._since
        row = OutcomeRow(work.position, int(kind), self._started, ran, content_type, result)
        self._events.append(Answered(0, work.chunk, 1, ran, encode_outcomes([row])))
        self._bell.ring()

    def answer(self, job_id: str, frames: Sequence[bytes]) -> None:
        """The worker has done its job."""
        with self._lock:
            work = self._current
            if work is not None and work.entry.id == job_id:
                self._current = None
                self._end(work, OutcomeKind.SUCCEEDED, FRAMES_TYPE, encode_frames(frames))
                self._next()

    def lose(self, reason: str) -> None:
        """The worker is gone for good; what it was doing may be why."""
        with self._lock:
            work, self._current = self._current, None
            chunk, position = (0, -1) if work is None else (work.chunk, work.position)
            if not self._stopped:
                self._stopped = True
                self._events.append(Died(0, chunk, position, reason))
            self._bell.ring()

    def take_back(self, slot: int) -> int:
        """Withdraw what the worker was not given."""
        with self._lock:
            count = len(self._waiting)
            self._waiting.clear()
            return count

    def running(self, slot: int) -> Running | None:
        """Return the job that the worker was given."""
        with self._lock:
            work = self._current
            return None if work is None else Running(work.chunk, work.position, self._since)

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Do nothing: the protocol has no word for it."""

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Do nothing: foreign workers get no credit."""

    def scale(self, slots: int) -> None:
        """Do nothing: the worker is there or not."""

    def kill(self, slot: int) -> None:
        """Send the worker away from what it does; what it answers to that is not heard."""
        self.lose("it was to end, and the majordomo worker was sent away")
        self._give_up()

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call."""
        with suppress(OSError):
            self._bell.hush()
        with self._lock:
            events, self._events = self._events, []
            return events

    def stop(self, grace: float) -> None:
        """Give the worker nothing more. Idempotent."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            self._current = None

    def close(self) -> None:
        """Release the bell, when the session has ended. Idempotent."""
        self._bell.close()


class ForeignWorker:
    """The session of one foreign worker, in a thread.

    Args:
        pool: The worker.
        runner: The session, which runs the pool.
        name: Of the thread.
        ended: Called when the session ended by itself.
    """

    def __init__(
        self, pool: ForeignPool, runner: WorkerRunner, name: str, ended: Callable[[], Any]
    ) -> None:
        self.pool = pool
        self._runner = runner
        self._ended = ended
        self._leaving = False
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def _main(self) -> None:
        try:
            self._runner.run()
        except Exception:
            logger.exception("the session of a foreign worker ended by an error")
        finally:
            self.pool.close()
        if not self._leaving:
            self._ended()

    def leave(self, *, died: bool) -> None:
        """End the session: what is held goes back, a death counts for what was being done."""
        self._leaving = True
        if died:
            self.pool.lose("the majordomo worker was silent for too long")
        self._runner.stop(now=True)
