"""What jobs of a session say while they run: parts, kept until they were taken, and progress.

What is kept is sent again to a broker that may have missed it, or was restarted.
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
    from eventmq.worker.chunks import HeldChunk, Ledger
    from eventmq.worker.session import Session

__all__ = ["Streams"]

_log = logging.getLogger(__name__)

#: Seconds that the parts of a job that has ended are kept.
KEEP = 60.0

#: Seconds between two looks for such.
LOOK = 5.0


class Flow:
    """The parts of one delivery of a job.

    Attributes:
        chunk: In which it came.
        position: Its place there.
        entry: What the chunk says of it.
    """

    __slots__ = ("batches", "chunk", "ended", "entry", "position")

    def __init__(self, chunk: HeldChunk, position: int) -> None:
        self.chunk = chunk
        self.position = position
        self.entry: ChunkEntry = chunk.index.entries[position]
        self.batches: deque[tuple[PartHead, bytes]] = deque()
        #: When it was seen first that the job had ended.
        self.ended = 0.0

    @property
    def key(self) -> tuple[str, int]:
        """Job and delivery."""
        return self.entry.id, self.entry.delivery


class Streams:
    """The streams of a session; what it keeps is bounded by the windows of its jobs.

    Args:
        session: Sends.
        ledger: What is held.
        pool: Is told what was taken.
    """

    def __init__(self, session: Session, ledger: Ledger, pool: WorkerPool) -> None:
        self._session = session
        self._ledger = ledger
        self._pool = pool
        self._flows: dict[tuple[str, int], Flow] = {}
        self._looked = 0.0
        session.on_welcome = self._send_again

    # From the pool

    def streamed(self, event: PartsYielded) -> None:
        """Send a batch of parts, and keep it until it was taken."""
        chunk = self._ledger.chunks.get(event.chunk)
        if chunk is None or not self._ledger.is_open(chunk.slot, chunk.number, event.position):
            return  # it was given up
        session = self._session
        if session.online and not session.streams:
            self._pool.credit(chunk.slot, chunk.number, event.position, NO_READER)
            return
        if session.max_frame and len(event.body) > session.max_frame:
            what = "parts of job %s are lost: they have %d bytes, and the broker takes frames of %d"
            job = chunk.index.entries[event.position].id
            _log.error(what, job, len(event.body), session.max_frame)
            return
        entry = chunk.index.entries[event.position]
        flow = self._flows.get((entry.id, entry.delivery))
        if flow is None:
            flow = self._flows[entry.id, entry.delivery] = Flow(chunk, event.position)
        head = PartHead(entry.delivery, event.first, event.count)
        flow.batches.append((head, event.body))
        if session.online:
            self._send(entry.id, head, event.body)

    def progressed(self, event: ProgressReported) -> None:
        """Tell how far a job is, if there is somebody to tell."""
        chunk = self._ledger.chunks.get(event.chunk)
        session = self._session
        if chunk is None or not session.online or not session.streams:
            return
        entry = chunk.index.entries[event.position]
        outcome = f"{PROGRESS}{entry.delivery}"
        reply = commands.Reply(session.new_id(), event.body, entry.id, outcome)
        session.outbox.append(reply.frames())

    # From the broker

    def credited(self, credit: commands.Credit) -> None:
        """Forget what was taken, and let the job go on."""
        delivery, taken = credit.numbers()
        flow = self._flows.get((credit.subject, delivery))
        if flow is None:
            return
        while flow.batches and flow.batches[0][0].end <= taken:
            flow.batches.popleft()
        if self._runs(flow):
            self._pool.credit(flow.chunk.slot, flow.chunk.number, flow.position, taken)
        elif not flow.batches:
            del self._flows[flow.key]

    def _runs(self, flow: Flow) -> bool:
        """Whether the job of a flow is still with its slot."""
        chunk = flow.chunk
        return self._ledger.is_open(chunk.slot, chunk.number, flow.position)

    def _send(self, job: str, head: PartHead, body: bytes) -> None:
        session = self._session
        reply = commands.Reply(session.new_id(), body, job, head.format())
        session.outbox.append(reply.frames())

    def _send_again(self) -> None:
        """Send all that was not taken: this broker may be a new one."""
        if not self._session.streams:
            for flow in self._flows.values():
                if self._runs(flow):
                    number, position = flow.chunk.number, flow.position
                    self._pool.credit(flow.chunk.slot, number, position, NO_READER)
            self._flows.clear()
        for flow in self._flows.values():
            for head, body in flow.batches:
                self._send(flow.entry.id, head, body)

    def tick(self, now: float) -> None:
        """Forget what belongs to jobs that ended some time ago."""
        if not self._flows or now - self._looked < LOOK:
            return
        self._looked = now
        for flow in [flow for flow in self._flows.values() if not self._runs(flow)]:
            flow.ended = flow.ended or now
            if not flow.batches or now - flow.ended >= KEEP:
                del self._flows[flow.key]
