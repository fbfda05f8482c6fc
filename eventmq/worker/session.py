"""Session of a worker with its broker: INFORM until it is acknowledged, heartbeats, replies.

`JobManager` owns one, and passes it the credit of the worker. Replies are kept until the broker has
acknowledged them, and sent again until then. ``now`` is monotonic seconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.execution import joblog
from eventmq.job import OutcomeKind
from eventmq.wire import commands
from eventmq.wire.batches import OutcomeRow, decode_outcomes, encode_outcomes
from eventmq.wire.features import EXTENSIONS, Features, Status, format_queues
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error, too_large
from eventmq.worker.slots import WorkerCredit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.clock import Clock
    from eventmq.wire.batches import ChunkIndex
    from eventmq.worker.chunks import HeldChunk, HeldChunks

__all__ = ["RESEND_AFTER", "Replies", "SessionInfo", "WorkerSession", "fit_outcomes"]


#: Seconds after which an answer without an acknowledgement is sent again.
RESEND_AFTER = 5.0

#: Most bytes of an outcome beside its result.
_ROW = 256


class _Sent:
    __slots__ = ("at", "chunk", "frames")

    def __init__(self, chunk: HeldChunk, frames: list[bytes], at: float) -> None:
        self.chunk = chunk
        self.frames = frames
        self.at = at


class Replies:
    """Replies that the broker has not acknowledged, in the order in which they were first sent."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, id: str, chunk: HeldChunk, frames: list[bytes], now: float) -> None:
        """Keep a message until `acked` names it."""
        chunk.unacked += 1
        self._sent[id] = _Sent(chunk, frames, now)

    def acked(self, id: str) -> HeldChunk | None:
        """Forget a message; return the chunk that it answered, None for an unknown id."""
        sent = self._sent.pop(id, None)
        if sent is None:
            return None
        sent.chunk.unacked -= 1
        return sent.chunk

    def to_resend(self, now: float, *, everything: bool = False) -> list[list[bytes]]:
        """Return the messages that are to be sent again now."""
        again = []
        for sent in self._sent.values():
            if everything or now - sent.at >= RESEND_AFTER:
                sent.at = now
                again.append(sent.frames)
        return again

    def oldest(self) -> float | None:
        """Return when the message that waits longest was last sent, None if there is none."""
        return min([sent.at for sent in self._sent.values()], default=None)


def _too_large(row: OutcomeRow, limit: int, index: ChunkIndex) -> OutcomeRow:
    message = too_large(len(row.result), limit)
    joblog.result_too_large(index, row.position, message)
    error = encode_error(RemoteError("eventmq.errors.ResultTooLarge", message))
    return row._replace(
        kind=int(OutcomeKind.FAILED), content_type=ERROR_TYPE, result=error, countdown=0.0
    )


def _split(rows: Sequence[OutcomeRow], limit: int) -> list[list[OutcomeRow]]:
    parts: list[list[OutcomeRow]] = [[]]
    size = 0
    for row in rows:
        length = len(row.result) + len(row.content_type) + _ROW
        if parts[-1] and size + length > limit:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += length
    return parts


def fit_outcomes(body: bytes, limit: int, index: ChunkIndex) -> list[bytes]:
    """Return the same outcomes in bodies of at most ``limit`` bytes (0: no limit).

    A result that fits into none becomes the failure `ResultTooLarge`, and is logged as that.

    Args:
        body: The encoded outcomes.
        limit: Frame limit of the broker in bytes.
        index: Index of the chunk that they answer.
    """
    if not limit or len(body) <= limit:
        return [body]
    rows = [OutcomeRow(*row) for row in decode_outcomes(body)]
    rows = [_too_large(r, limit, index) if len(r.result) + _ROW > limit else r for r in rows]
    return [encode_outcomes(part) for part in _split(rows, limit)]


_log = logging.getLogger(__name__)

#: Seconds without an ACK after which INFORM is sent again.
INFORM_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """Description of a worker, as INFORM sends it, and its timeouts. Times are seconds.

    Attributes:
        session: Id of this run.
        name: For people, such as ``host:pid``.
        queues: (weight, name) pairs; none means the broker's default.
        tasks: Names of the registered tasks.
        callables: Patterns of dotted paths that legacy jobs may call.
        heartbeat: Time between two heartbeats.
        heartbeat_timeout: A broker that is silent for so long is taken for dead.
        shutdown_grace: Time that running jobs have when the worker is told to end.
        cancel_grace: Time that a running job has when it is cancelled.
        slots: How many of the pool's slots are used at first and at least; more as they are
            needed. 0 uses all of them, always.
        max_abandoned_threads: Threads of the pool that may be abandoned; with more the worker
            shuts down, to be started anew. 0 allows any number.
    """

    session: str
    name: str = ""
    queues: tuple[tuple[int, str], ...] = ()
    tasks: tuple[str, ...] = ()
    callables: tuple[str, ...] = ()
    heartbeat: float = 3.0
    heartbeat_timeout: float = 15.0
    shutdown_grace: float = 30.0
    cancel_grace: float = 5.0
    slots: int = 0
    max_abandoned_threads: int = 0


def _nothing() -> None:
    """Do nothing."""


class WorkerSession:
    """Session of a worker with one broker.

    Args:
        info: The contents of INFORM.
        held_chunks: The held chunks.
        clock: For the text of a HEARTBEAT.
        pages: The worker fetches inputs in pages that are too large for a REQUEST.

    Attributes:
        online: The broker has acknowledged INFORM.
        lost: The broker was silent for too long.
        replies: Replies that the broker has not acknowledged.
        outbox: Messages to send.
        max_frame: Longest frame that the broker accepts, 0 while that is not known.
        streams: The broker accepts parts of streams.
        registrations: How often the broker has acknowledged INFORM.
        on_registered: Called after the broker has acknowledged INFORM and READY is in the outbox.
    """

    def __init__(
        self, info: SessionInfo, held_chunks: HeldChunks, clock: Clock, *, pages: bool = False
    ) -> None:
        self.info = info
        self._extensions = tuple(name for name in EXTENSIONS if pages or name != "inputs")
        self.online = False
        self.lost = False
        self.replies = Replies()
        self.outbox: list[list[bytes]] = []
        self.max_frame = 0
        self.streams = False
        self.registrations = 0
        self.on_registered: Callable[[], None] = _nothing
        self._held_chunks = held_chunks
        self._clock = clock
        self._ids = 0
        self._inform_id = ""
        self._inform_due = 0.0
        self._last_seen = 0.0
        self._heartbeat_due = 0.0
        self._credit = WorkerCredit(-1)
        self._epoch = 0

    def new_id(self) -> str:
        """Return a message id that the session has not used."""
        self._ids += 1
        return f"{self.info.session[:8]}-{self._ids:x}"

    def connected(self, now: float) -> None:
        """Inform the broker over a new connection."""
        self.lost = False
        self._last_seen = now
        self.inform(now)

    def seen(self, now: float) -> None:
        """Record that a message came from the broker."""
        self._last_seen = now

    def inform(self, now: float) -> None:
        """Send INFORM. Nothing else is sent until the broker has acknowledged it."""
        self.online = False
        self._inform_id = self.new_id()
        self._send_inform(now)

    def _send_inform(self, now: float) -> None:
        """Send INFORM, under the same id until it is acknowledged: the ACK may be slow."""
        self._inform_due = now + INFORM_EVERY
        info = self.info
        features = Features(
            extensions=self._extensions,
            session=info.session,
            name=info.name,
            tasks=info.tasks,
            callables=info.callables,
            received=self._held_chunks.received,
            held=self._held_chunks.numbers(),
        )
        queues = format_queues(info.queues) if info.queues else ""
        inform = commands.Inform(self._inform_id, queues, "worker", features.format())
        # Unsent replies are kept in `replies` and follow the ACK.
        self.outbox = [inform.frames()]

    def receive_ack(self, ack: commands.Ack, now: float, credit: WorkerCredit) -> None:
        """Handle an ACK, of INFORM or of a reply."""
        if ack.acked == self._inform_id and not self.online:
            self._registered(ack, now, credit)
        else:
            self._reply_acked(ack.acked)

    def _reply_acked(self, reply: str) -> None:
        chunk = self.replies.acked(reply)
        if chunk is not None:
            self._held_chunks.release(chunk)

    def _registered(self, ack: commands.Ack, now: float, credit: WorkerCredit) -> None:
        """Send READY, and what the broker may have missed: it has acknowledged INFORM."""
        if ack.extra is None:
            self._legacy_broker(now)
            return
        features = Features.parse(ack.extra.decode())
        if self._epoch and features.epoch != self._epoch:
            _log.info("the broker was restarted; sending %d replies again", len(self.replies))
        self._epoch = features.epoch
        self.max_frame = features.max_frame
        self.streams = "stream" in features.extensions
        self.online = True
        self.registrations += 1
        self._heartbeat_due = now + self.info.heartbeat
        self.ready(credit)
        self.on_registered()
        self.outbox += self.replies.to_resend(now, everything=True)

    def _legacy_broker(self, now: float) -> None:
        """Log that a legacy broker, which knows no chunks, cannot be served; inform it later."""
        _log.error(
            "the broker speaks the legacy protocol, without chunks; this worker cannot serve "
            "it yet: use a broker of EventMQ 1.0 or later"
        )
        self._inform_due = now + self.info.heartbeat_timeout

    def receive_error(self, error: commands.Error, now: float) -> None:
        """Handle an ERROR: inform again, or drop the reply that the broker refuses."""
        if error.code == "inform-again":
            if self.online:
                self.inform(now)
        elif error.request == self._inform_id:
            _log.error("the broker refuses this worker: %s", error.text)
            self._inform_due = now + self.info.heartbeat_timeout
        else:
            _log.error("the broker refuses a reply (%s): %s", error.code, error.text)
            self._reply_acked(error.request)

    def reply(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Answer jobs of a chunk, in as many replies as the broker's frame limit requires."""
        for part in fit_outcomes(body, self.max_frame, chunk.index):
            number = f"chunk:{chunk.number}"
            reply = commands.Reply(self.new_id(), part, chunk.message, number)
            frames = reply.frames()
            self.replies.add(reply.id, chunk, frames, now)
            if self.online:
                self.outbox.append(frames)

    def ready(self, credit: WorkerCredit) -> None:
        """Send READY: the held chunks and the credit."""
        self._credit = credit
        self.outbox.append(commands.Ready(self.new_id(), self._status()).frames())

    def _status(self) -> str:
        chunks, jobs = self._credit
        return Status(
            self._held_chunks.received, chunks, self._held_chunks.numbers(), jobs
        ).format()

    def tick(self, now: float, credit: WorkerCredit) -> None:
        """Do what is due."""
        if now - self._last_seen > self.info.heartbeat_timeout and not self.lost:
            _log.debug(
                "the broker was silent for %g s; connecting anew", self.info.heartbeat_timeout
            )
            self.online = False
            self.lost = True
        if self.online:
            self.outbox += self.replies.to_resend(now)
            if now >= self._heartbeat_due:
                self._heartbeat(now, credit)
            elif credit != self._credit:
                self.ready(credit)
        elif now >= self._inform_due and not self.lost:
            self._send_inform(now)

    def _heartbeat(self, now: float, credit: WorkerCredit) -> None:
        self._heartbeat_due = now + self.info.heartbeat
        self._credit = credit
        stamp = f"{self._clock.now():.2f}"
        self.outbox.append(commands.Heartbeat(self.new_id(), stamp, self._status()).frames())

    def next_tick(self) -> float:
        """Return when `tick` has something to do."""
        deadline = self._last_seen + self.info.heartbeat_timeout
        if not self.online:
            return min(deadline, self._inform_due)
        first = self.replies.oldest()
        if first is not None:
            deadline = min(deadline, first + RESEND_AFTER)
        return min(deadline, self._heartbeat_due)

    def leave(self) -> None:
        """End the session: send KBAI."""
        if self.replies:
            _log.warning("%d replies were not acknowledged by the broker", len(self.replies))
        if self.online:
            self.outbox.append(commands.Kbai(self.new_id()).frames())
