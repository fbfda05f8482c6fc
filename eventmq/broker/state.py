"""What the parts of the broker share: queues, peers, sessions, the write batch and the outbox.

Nothing that depends on the disk is sent before it is there: such a message is sent by the settle
callback of its entry. `State.send` outside of one is for what needs no disk, such as HEARTBEAT.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.broker.peers import Key, Lease, Peer, Session
from eventmq.broker.queues import Queue
from eventmq.wire.commands import Ack, Error, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.broker.limits import Limits
    from eventmq.entries import Write
    from eventmq.job import Job

__all__ = ["Outgoing", "State"]

logger = logging.getLogger("eventmq.broker")


class Outgoing(NamedTuple):
    """A message on its way out; ``lease`` is undone if it cannot be sent."""

    key: Key
    frames: list[bytes]
    session: Session | None = None
    lease: Lease | None = None


class State:
    """The memory of one broker."""

    def __init__(self, limits: Limits, *, version: str) -> None:
        self.limits = limits
        self.version = version
        self.now = 0.0
        self.started = 0.0
        self.epoch = 0
        self.store_id = ""
        self.addresses: dict[str, str] = {}
        self.queues: dict[str, Queue] = {}
        #: Queues that may have something to dispatch or to claim.
        self.busy: dict[str, Queue] = {}
        self.peers: dict[Key, Peer] = {}
        self.sessions: dict[str, Session] = {}
        #: Jobs in memory by id: in a window, leased or parked.
        self.jobs: dict[str, Job] = {}
        #: Leased jobs: id -> (session, chunk, position).
        self.running: dict[str, tuple[Session, Lease, int]] = {}
        #: Job id -> {(peer, message id of its get)}.
        self.waiters: dict[str, list[tuple[Peer, str]]] = {}
        #: Job id -> peer whose REQUEST said reply-requested.
        self.reply_to: dict[str, Peer] = {}
        #: Job id -> sessions that said they do not know its task.
        self.refusals: dict[str, set[str]] = {}
        #: Task -> measured seconds per job.
        self.run_time: dict[str, float] = {}
        self.next_seq = 1
        self.next_due: float | None = None
        self.counters: Counter[str] = Counter()
        self.closing = False
        self.outbox: list[Outgoing] = []
        self._batch: list[Write] = []
        self._settles: list[Callable[[Any], None]] = []
        self._undos: list[Callable[[], None]] = []
        self._message = 0

    # Out

    def message_id(self) -> str:
        """Return a new message id."""
        self._message += 1
        return f"b{self.epoch}.{self._message}"

    def send(self, peer: Peer, frames: list[bytes]) -> None:
        """Put a message into the outbox."""
        peer.sent = self.now
        self.outbox.append(Outgoing(peer.key, frames))

    def ack(self, peer: Peer, acked: str, extra: bytes | None = None) -> None:
        """Send an ACK."""
        self.send(peer, Ack(self.message_id(), acked, extra).frames())

    def reply(
        self, peer: Peer, result: bytes, request: str, outcome: str | None = None
    ) -> None:
        """Send a REPLY."""
        self.send(peer, Reply(self.message_id(), result, request, outcome).frames())

    def error(self, peer: Peer, request: str, code: str, text: str) -> None:
        """Send an ERROR if the peer can read it; count it and log the first per peer."""
        self.counters[f"errors.{code}"] += 1
        if not peer.warned:
            peer.warned = True
            logger.warning("message of peer %s refused: %s: %s", peer.key, code, text)
        if peer.reads_errors:
            self.send(peer, Error(self.message_id(), request, code, text[:1000]).frames())

    # Writes

    def write(
        self,
        entry: Write,
        settle: Callable[[Any], None],
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        """Add an entry to the batch, with what to do once it is on disk, or could not be."""
        self._batch.append(entry)
        self._settles.append(settle)
        self._undos.append(undo)

    @property
    def has_writes(self) -> bool:
        """Whether the batch has entries."""
        return bool(self._batch)

    def take_batch(
        self,
    ) -> tuple[list[Write], list[Callable[[Any], None]], list[Callable[[], None]]]:
        """Return the batch with its callbacks, and begin a new one."""
        taken = (self._batch, self._settles, self._undos)
        self._batch, self._settles, self._undos = [], [], []
        return taken

    # Look-ups

    def queue(self, name: str) -> Queue:
        """Return a queue, making it if it is new."""
        queue = self.queues.get(name)
        if queue is None:
            limits = self.limits
            queue = Queue(name, limits.window, limits.window_bytes, self.now)
            self.queues[name] = queue
        return queue

    def joined(self, job: Job) -> None:
        """Put a queued job that is on disk into its window, or leave it to the store."""
        self.jobs[job.id] = job
        queue = self.queue(job.queue)
        self.busy[job.queue] = queue
        for displaced in queue.join(job):
            self.jobs.pop(displaced.id, None)

    def forget(self, job: Job) -> None:
        """Remove an ended or delayed job from memory."""
        self.jobs.pop(job.id, None)
        self.refusals.pop(job.id, None)
