"""Streams of a worker: parts of running jobs, kept until readers acknowledge them, and progress.

Kept parts are sent again if the broker may have missed them, or was restarted.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from eventmq.wire import commands
from eventmq.wire.streams import NO_READER, PROGRESS, PartHead

if TYPE_CHECKING:
    from eventmq.interfaces import PartsYielded, ProgressReported, WorkerPool
    from eventmq.wire.batches import ChunkEntry
    from eventmq.worker.session import HeldChunk, HeldChunks, WorkerSession

__all__ = ["WorkerStreams"]

_log = logging.getLogger(__name__)

#: Seconds for which the parts of a job are kept after its end.
KEEP = 60.0

#: Seconds between two removals of such parts.
CLEANUP_EVERY = 5.0


class UnacknowledgedParts:
    """The parts of one delivery of a job that readers have not acknowledged.

    Attributes:
        chunk: The chunk of the job.
        position: Position of the job in the chunk.
        entry: Entry of the job in the index of the chunk.
    """

    __slots__ = ("batches", "chunk", "ended", "entry", "position")

    def __init__(self, chunk: HeldChunk, position: int) -> None:
        self.chunk = chunk
        self.position = position
        self.entry: ChunkEntry = chunk.index.entries[position]
        self.batches: deque[tuple[PartHead, bytes]] = deque()
        #: Monotonic time at which the job was first seen to have ended, 0.0 before.
        self.ended = 0.0

    @property
    def key(self) -> tuple[str, int]:
        """Job and delivery."""
        return self.entry.id, self.entry.delivery


class WorkerStreams:
    """The streams of one session. Flow control limits the kept parts of each job.

    Args:
        session: Sends the parts.
        held_chunks: The held chunks.
        pool: Gets the credit of readers.
    """

    def __init__(self, session: WorkerSession, held_chunks: HeldChunks, pool: WorkerPool) -> None:
        self._session = session
        self._held_chunks = held_chunks
        self._pool = pool
        self.streams: dict[tuple[str, int], UnacknowledgedParts] = {}
        self._cleaned_at = 0.0
        session.on_registered = self._resend

    # From the pool

    def parts_yielded(self, event: PartsYielded) -> None:
        """Send a batch of parts, and keep it until its readers acknowledge it."""
        chunk = self._held_chunks.chunks.get(event.chunk)
        if chunk is None or not self._held_chunks.is_open(chunk.slot, chunk.number, event.position):
            return  # it was handed back or killed
        session = self._session
        if session.online and not session.streams:
            self._pool.credit(chunk.slot, chunk.number, event.position, NO_READER)
            return
        if session.max_frame and len(event.body) > session.max_frame:
            message = (
                "parts of job %s are lost: they have %d bytes, and the broker takes frames of %d"
            )
            job = chunk.index.entries[event.position].id
            _log.error(message, job, len(event.body), session.max_frame)
            return
        entry = chunk.index.entries[event.position]
        stream = self.streams.get((entry.id, entry.delivery))
        if stream is None:
            stream = self.streams[entry.id, entry.delivery] = UnacknowledgedParts(
                chunk, event.position
            )
        head = PartHead(entry.delivery, event.first, event.count)
        stream.batches.append((head, event.body))
        if session.online:
            self._queue_reply(entry.id, head, event.body)

    def progress_reported(self, event: ProgressReported) -> None:
        """Send the progress of a job, unless the broker is lost or does not accept it."""
        chunk = self._held_chunks.chunks.get(event.chunk)
        session = self._session
        if chunk is None or not session.online or not session.streams:
            return
        entry = chunk.index.entries[event.position]
        outcome = f"{PROGRESS}{entry.delivery}"
        reply = commands.Reply(session.new_id(), event.body, entry.id, outcome)
        session.outbox.append(reply.frames())

    # From the broker

    def credited(self, credit: commands.Credit) -> None:
        """Forget acknowledged parts, and pass the credit on to the job."""
        delivery, taken = credit.numbers()
        stream = self.streams.get((credit.subject, delivery))
        if stream is None:
            return
        while stream.batches and stream.batches[0][0].end <= taken:
            stream.batches.popleft()
        if self._runs(stream):
            self._pool.credit(stream.chunk.slot, stream.chunk.number, stream.position, taken)
        elif not stream.batches:
            del self.streams[stream.key]

    def _runs(self, stream: UnacknowledgedParts) -> bool:
        """Return whether the job of a stream is still with its slot."""
        chunk = stream.chunk
        return self._held_chunks.is_open(chunk.slot, chunk.number, stream.position)

    def _queue_reply(self, job: str, head: PartHead, body: bytes) -> None:
        session = self._session
        reply = commands.Reply(session.new_id(), body, job, head.format())
        session.outbox.append(reply.frames())

    def _resend(self) -> None:
        """Send all unacknowledged parts again, since the broker may be a new one."""
        if not self._session.streams:
            for stream in self.streams.values():
                if self._runs(stream):
                    number, position = stream.chunk.number, stream.position
                    self._pool.credit(stream.chunk.slot, number, position, NO_READER)
            self.streams.clear()
        for stream in self.streams.values():
            for head, body in stream.batches:
                self._queue_reply(stream.entry.id, head, body)

    def tick(self, now: float) -> None:
        """Forget the parts of jobs that ended more than `KEEP` seconds ago."""
        if not self.streams or now - self._cleaned_at < CLEANUP_EVERY:
            return
        self._cleaned_at = now
        for stream in [stream for stream in self.streams.values() if not self._runs(stream)]:
            stream.ended = stream.ended or now
            if not stream.batches or now - stream.ended >= KEEP:
                del self.streams[stream.key]
