"""Session of a worker with its broker: INFORM until it is acknowledged, heartbeats, replies.

`JobManager` owns a session, and passes it the credit of the worker. `HeldChunks` records which
chunks the session holds, the slot of each, and the answered jobs. Replies are kept and sent again
until the broker has acknowledged them. `SuspectChunks` announces a job that may have killed a
worker to the broker before it runs. ``now`` is monotonic seconds.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import ProtocolError
from eventmq.execution import joblog
from eventmq.job import OutcomeKind
from eventmq.wire import commands
from eventmq.wire.batches import LoggedRow, OutcomeRow, encode_outcomes, pack, read_outcomes
from eventmq.wire.features import EXTENSIONS, Features, Status, format_queues
from eventmq.wire.owner import OwnerInfo, Owners
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error, too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.clock import Clock
    from eventmq.interfaces import SlotDied
    from eventmq.wire.batches import ChunkIndex

__all__ = [
    "RESEND_AFTER",
    "RETRY_LATER",
    "HeldChunk",
    "HeldChunks",
    "OwnerListener",
    "Replies",
    "SessionInfo",
    "SharedHeldChunks",
    "SuspectChunks",
    "WorkerCredit",
    "WorkerSession",
    "fit_outcomes",
]

_log = logging.getLogger(__name__)

#: Seconds without an ACK after which INFORM is sent again.
INFORM_EVERY = 1.0

#: Seconds after which an answer without an acknowledgement is sent again.
RESEND_AFTER = 5.0

#: Error codes after which a CALL is sent again later.
RETRY_LATER = frozenset({"rate-limited", "store-full", "inform-again", "no-owner"})

#: Upper bound of the bytes of an outcome beside its result.
_ROW = 256


class WorkerCredit(NamedTuple):
    """Total credit of a worker: chunks, and jobs if it counts jobs, else 0."""

    chunks: int
    jobs: int = 0


class HeldChunk:
    """A chunk from its arrival until the broker has acknowledged its last answer.

    Attributes:
        number: Number of the chunk in the session.
        message: Id of its REQUEST.
        index: Ids, deliveries and limits of its jobs.
        slot: The slot that runs it.
        next: First unanswered position.
        end: Position after the last job of its slot; jobs from here on were handed back.
        unacked: Number of replies that the broker has not acknowledged.
        open: Unanswered positions, in a chunk whose jobs end in any order.
        timed: Whether a job has a time limit.
        since: Monotonic time since which its slot was seen to run it, 0.0 before.
    """

    __slots__ = (
        "end", "index", "message", "next", "number", "open", "since", "slot", "timed", "unacked",
    )  # fmt: skip

    def __init__(self, number: int, message: str, index: ChunkIndex, slot: int) -> None:
        self.number = number
        self.message = message
        self.index = index
        self.slot = slot
        self.next = 0
        self.end = len(index.entries)
        self.unacked = 0
        self.open: set[int] = set()
        self.timed = False
        self.since = 0.0

    def handed_back(self) -> list[OutcomeRow]:
        """Return the outcomes that hand back the whole chunk."""
        return [OutcomeRow(position, OutcomeKind.HANDED_BACK) for position in range(self.end)]

    def position_of(self, job: str, delivery: int) -> int | None:
        """Return the position of a delivery, None if it is not in the chunk."""
        entries = enumerate(self.index.entries)
        return next((n for n, e in entries if e.id == job and e.delivery == delivery), None)


class HeldChunks:
    """The chunks that one session holds. A slot runs its chunks in the order of `add`.

    Attributes:
        received: Highest received chunk number.
        chunks: The held chunks by number.
        jobs: Number of assigned and unanswered jobs, by slot.
    """

    __slots__ = ("_queues", "chunks", "jobs", "received")

    def __init__(self, slots: int) -> None:
        self.received = 0
        self.chunks: dict[int, HeldChunk] = {}
        self.jobs = [0] * slots
        self._queues: list[deque[HeldChunk]] = [deque() for _ in range(slots)]

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of the held chunks."""
        return tuple(sorted(self.chunks))

    def hold(self, chunk: HeldChunk) -> None:
        """Hold a chunk that is not assigned to a slot yet."""
        self.chunks[chunk.number] = chunk

    def give_up(self, chunk: HeldChunk) -> None:
        """Mark a held chunk that will not be assigned to a slot: none of its jobs is open."""
        chunk.end = chunk.next

    def add(self, chunk: HeldChunk) -> None:
        """Assign a chunk to its slot."""
        self.chunks[chunk.number] = chunk
        self._queues[chunk.slot].append(chunk)
        self.jobs[chunk.slot] += chunk.end

    def answer(
        self, slot: int, number: int, count: int, positions: Sequence[int]
    ) -> HeldChunk | None:
        """Record ``count`` answers of a slot; return the chunk, None if the slot does not have it.

        Args:
            slot: The slot that answers.
            number: Number of the chunk.
            count: Number of answered jobs: the next ones of the chunk.
            positions: Positions of these jobs, if jobs end in any order.
        """
        chunk = self.chunks.get(number)
        if chunk is None or chunk.slot != slot or chunk.next + count > chunk.end:
            return None
        chunk.next += count
        self.jobs[slot] -= count
        self._close(slot)
        return chunk

    def withdraw(self, slot: int, count: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the last ``count`` jobs of a slot; return them by chunk, the last chunk first."""
        withdrawn: list[tuple[HeldChunk, Sequence[int]]] = []
        for chunk in reversed(self._queues[slot]):
            part = min(count, chunk.end - chunk.next)
            if part:
                withdrawn.append((chunk, range(chunk.end - part, chunk.end)))
                chunk.end -= part
                self.jobs[slot] -= part
                count -= part
        self._close(slot)
        return withdrawn

    def withdraw_all(self, slot: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove all jobs of a slot; return them by chunk, the last chunk first."""
        return self.withdraw(slot, self.jobs[slot])

    def started(
        self, withdrawn: Sequence[tuple[HeldChunk, Sequence[int]]]
    ) -> list[tuple[HeldChunk, int]]:
        """Return the job removed by `withdraw_all` that had started: the next to be answered."""
        return [(chunk, positions[0]) for chunk, positions in withdrawn[-1:]]

    def remove_lost(self, event: SlotDied) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the jobs that were lost with a slot, and return them."""
        return self.withdraw_all(event.slot)

    def release(self, chunk: HeldChunk) -> None:
        """Forget a chunk if none of its jobs is open and all its replies are acknowledged."""
        if self._is_done(chunk) and not chunk.unacked:
            self.chunks.pop(chunk.number, None)

    def find(self, job: str, delivery: int) -> tuple[HeldChunk, int] | None:
        """Return chunk and position of an unanswered delivery in a slot, None if there is none."""
        for chunk in chain.from_iterable(self._queues):
            position = chunk.position_of(job, delivery)
            if position is not None and position in self.open_positions(chunk):
                return chunk, position
        return None

    def is_open(self, slot: int, number: int, position: int) -> bool:
        """Return whether a job of a slot is unanswered."""
        chunk = self.chunks.get(number)
        return chunk is not None and chunk.slot == slot and position in self.open_positions(chunk)

    def open_positions(self, chunk: HeldChunk) -> Sequence[int]:
        """Return the unanswered positions of a chunk that its slot has."""
        return range(chunk.next, chunk.end)

    def _is_done(self, chunk: HeldChunk) -> bool:
        return chunk.next == chunk.end

    def _close(self, slot: int) -> None:
        """Remove the chunks without open jobs from the queue of a slot."""
        queue = self._queues[slot]
        while queue and queue[0].next == queue[0].end:
            queue.popleft()
        while queue and queue[-1].next == queue[-1].end:
            queue.pop()


class SharedHeldChunks(HeldChunks):
    """Held chunks that slots share: jobs end in any order, and slot 0 stands for all slots.

    Attributes:
        timed: Number of chunks that have jobs with a time limit.
    """

    __slots__ = ("timed",)

    def __init__(self) -> None:
        super().__init__(1)
        self.timed = 0

    def add(self, chunk: HeldChunk) -> None:
        """Assign a chunk to the slots."""
        chunk.open = set(range(chunk.end))
        chunk.timed = any(entry.timeout for entry in chunk.index.entries)
        self.timed += chunk.timed
        super().add(chunk)

    def answer(
        self, slot: int, number: int, count: int, positions: Sequence[int]
    ) -> HeldChunk | None:
        """Record answers; return the chunk, None if one of the jobs is not open."""
        chunk = self.chunks.get(number)
        if chunk is None or not chunk.open.issuperset(positions):
            return None
        chunk.open.difference_update(positions)
        self.jobs[0] -= count
        self._close(0)
        return chunk

    def withdraw(self, slot: int, count: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the last ``count`` jobs; return them by chunk, the last chunk first."""
        withdrawn: list[tuple[HeldChunk, Sequence[int]]] = []
        for chunk in reversed(self._queues[0]):
            part = min(count, chunk.end)
            if part:
                positions = range(chunk.end - part, chunk.end)
                chunk.open.difference_update(positions)
                withdrawn.append((chunk, positions))
                chunk.end -= part
                self.jobs[0] -= part
                count -= part
        self._close(0)
        return withdrawn

    def started(
        self, withdrawn: Sequence[tuple[HeldChunk, Sequence[int]]]
    ) -> list[tuple[HeldChunk, int]]:
        """Return all jobs removed by `withdraw_all`, the oldest first: each may have started."""
        return [
            (chunk, position) for chunk, positions in reversed(withdrawn) for position in positions
        ]

    def withdraw_all(self, slot: int) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove all jobs; return them by chunk, the last chunk first."""
        withdrawn: list[tuple[HeldChunk, Sequence[int]]] = [
            (chunk, sorted(chunk.open)) for chunk in reversed(self._queues[0]) if chunk.open
        ]
        for chunk, _ in withdrawn:
            chunk.open.clear()
        self.jobs[0] = 0
        self._close(0)
        return withdrawn

    def remove_lost(self, event: SlotDied) -> list[tuple[HeldChunk, Sequence[int]]]:
        """Remove the job that was lost with a slot, and return it."""
        chunk = self.answer(0, event.chunk, 1, (event.position,))
        return [] if chunk is None else [(chunk, (event.position,))]

    def is_open(self, slot: int, number: int, position: int) -> bool:
        """Return whether a job is unanswered."""
        chunk = self.chunks.get(number)
        return chunk is not None and position in chunk.open

    def open_positions(self, chunk: HeldChunk) -> Sequence[int]:
        """Return the unanswered positions of a chunk."""
        return sorted(chunk.open)

    def _is_done(self, chunk: HeldChunk) -> bool:
        return not chunk.open

    def _close(self, slot: int) -> None:
        queue = self._queues[0]
        for chunk in [chunk for chunk in queue if not chunk.open]:
            queue.remove(chunk)
            self.timed -= chunk.timed


@dataclass(slots=True, eq=False)
class _Sent:
    chunk: HeldChunk
    frames: list[bytes]
    at: float


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
        """Return the messages to send again now."""
        messages = []
        for sent in self._sent.values():
            if everything or now - sent.at >= RESEND_AFTER:
                sent.at = now
                messages.append(sent.frames)
        return messages

    def oldest(self) -> float | None:
        """Return the earliest time at which a kept message was last sent, None without messages."""
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
        length = len(row.result) + len(row.content_type) + len(b"".join(row[7:])) + _ROW
        if parts[-1] and size + length > limit:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += length
    return parts


def fit_outcomes(body: bytes, limit: int, index: ChunkIndex, *, logs: bool = True) -> list[bytes]:
    """Return the same outcomes in bodies of at most ``limit`` bytes (0: no limit).

    A result that is too large for a body becomes the failure `ResultTooLarge`, which is logged. A
    kept log that does not fit beside its result is left out.

    Args:
        body: The encoded outcomes.
        limit: Frame limit of the broker in bytes.
        index: Index of the chunk that they answer.
        logs: Whether the broker keeps the logs of jobs.
    """
    if logs and (not limit or len(body) <= limit):
        return [body]
    limit = limit or sys.maxsize
    decoded, job_logs = read_outcomes(body)
    if not job_logs and len(body) <= limit:
        return [body]
    rows = [OutcomeRow(*row) for row in decoded]
    rows = [_too_large(r, limit, index) if len(r.result) + _ROW > limit else r for r in rows]
    if logs:
        rows = [_with_log(row, job_logs.get(row.position, b""), limit) for row in rows]
    return [encode_outcomes(part) for part in _split(rows, limit)]


def _with_log(row: OutcomeRow, log: bytes, limit: int) -> OutcomeRow:
    fits = len(row.result) + len(row.content_type) + len(log) + _ROW <= limit
    return LoggedRow.of(row, log if fits else b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """Description of a worker, as INFORM sends it, and its timeouts. Times are seconds.

    Attributes:
        session: Id of this run of the worker.
        name: Name for people, such as ``host:pid``.
        queues: (weight, name) pairs; empty for the broker's default queue.
        tasks: Names of the registered tasks.
        callables: Patterns of dotted paths that legacy jobs may call.
        heartbeat: Time between two heartbeats.
        heartbeat_timeout: A broker that is silent for this time counts as dead.
        shutdown_grace: Time that running jobs have to end when the worker is stopped.
        cancel_grace: Time that a running job has to end when it is cancelled.
        slots: Number of slots of the pool that are used at first and at least; more are used when
            needed. 0 always uses all of them.
        max_abandoned_threads: Number of threads of the pool that may be abandoned; with more the
            worker restarts. 0 allows any number.
        pool: Name of the pool, for people.
        max_slots: Number of jobs that the pool can run at once, for people.
        version: Version of this software, for people.
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
    pool: str = ""
    max_slots: int = 0
    version: str = ""


def _nothing() -> None:
    """Do nothing."""


class WorkerSession:
    """Session of a worker with one broker.

    A broker that does not own its store gets INFORM at intervals, and no other messages.

    Args:
        info: The contents of INFORM.
        held_chunks: The held chunks.
        clock: Gives the time in HEARTBEATs.
        pages: Whether the worker can fetch inputs that are too large for a REQUEST in pages.
        memory: Returns the resident memory of the worker's processes in bytes, 0 if unknown.

    Attributes:
        online: Whether the broker has acknowledged INFORM.
        lost: Whether the broker was silent for too long.
        replies: Replies that the broker has not acknowledged.
        outbox: Messages to send.
        max_frame: Bytes of the longest frame that the broker accepts, 0 if it is not known.
        streams: Whether the broker accepts parts of streams.
        logs: Whether the broker keeps the logs of jobs.
        registrations: Number of times that the broker has acknowledged INFORM.
        on_registered: Called after the broker has acknowledged INFORM and READY is in the outbox.
        owner: Last report of the broker about the owner of its store; None if it is not shared.
        owners: Reports of all brokers of the worker.
    """

    def __init__(
        self,
        info: SessionInfo,
        held_chunks: HeldChunks,
        clock: Clock,
        *,
        pages: bool = False,
        memory: Callable[[], int] = int,
    ) -> None:
        self.info = info
        self._memory = memory
        self._extensions = tuple(name for name in EXTENSIONS if pages or name != "inputs")
        self.online = False
        self.lost = False
        self.replies = Replies()
        self.outbox: list[list[bytes]] = []
        self.max_frame = 0
        self.streams = False
        self.logs = False
        self.registrations = 0
        self.on_registered: Callable[[], None] = _nothing
        self._held_chunks = held_chunks
        self._clock = clock
        self.owner: OwnerInfo | None = None
        self.owners = Owners()
        self._ids = 0
        self._inform_id = ""
        self._inform_due = 0.0
        #: The queues in the last INFORM.
        self._informed = info.queues
        self._last_seen = 0.0
        self._heartbeat_due = 0.0
        self._credit = WorkerCredit(-1)
        self._epoch = 0

    def new_id(self) -> str:
        """Return a message id that the session has not used."""
        self._ids += 1
        return f"{self.info.session[:8]}-{self._ids:x}"

    @property
    def owned(self) -> bool:
        """Whether the broker owns its store, by the reports of all brokers of the worker."""
        return self.owner is None or self.owners.owns(self.owner)

    def connected(self, now: float) -> None:
        """Inform the broker over a new connection."""
        self.lost = False
        self._last_seen = now
        self.inform(now)

    def seen(self, now: float) -> None:
        """Record that the broker has sent a message."""
        self._last_seen = now

    def inform(self, now: float) -> None:
        """Send INFORM, and nothing else until the broker has acknowledged it."""
        self.online = False
        self._inform_id = self.new_id()
        self._send_inform(now)

    def _send_inform(self, now: float) -> None:
        """Send INFORM; it keeps its id until it is acknowledged, since the ACK may be slow."""
        self._inform_due = now + INFORM_EVERY
        info = self.info
        self._informed = info.queues
        features = Features(
            extensions=self._extensions,
            session=info.session,
            name=info.name,
            tasks=info.tasks,
            callables=info.callables,
            pool=info.pool,
            slots=info.max_slots,
            version=info.version,
            received=self._held_chunks.received,
            held=self._held_chunks.numbers(),
        )
        queues = format_queues(info.queues) if info.queues else ""
        inform = commands.Inform(self._inform_id, queues, "worker", features.format())
        # Unsent replies are kept in `replies` and follow the ACK.
        self.outbox = [inform.frames()]

    def serve(self, queues: tuple[tuple[int, str], ...], now: float) -> None:
        """Inform the broker of other queues, (weight, name) pairs, if they have changed."""
        if queues != self.info.queues:
            self.info = replace(self.info, queues=queues)
        if self.online and queues != self._informed:
            self.inform(now)

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
        """Handle the ACK of INFORM: send READY, and the replies that the broker may have missed."""
        if ack.extra is None:
            self._legacy_broker(now)
            return
        features = Features.parse(ack.extra.decode())
        self.owner = features.owner
        if self.owner is not None:
            self.owners.register(self.owner)
            if not self.owned:
                self.wait_for_owner(now)
                return
        if self._epoch and features.epoch != self._epoch:
            what = "broker was restarted" if self.owner is None else "store has another owner"
            _log.info("the %s; sending %d replies again", what, len(self.replies))
        self._epoch = features.epoch
        self.max_frame = features.max_frame
        self.streams = "stream" in features.extensions
        self.logs = "logs" in features.extensions
        self.online = True
        self.registrations += 1
        self._heartbeat_due = now + self.info.heartbeat
        self.ready(credit)
        self.on_registered()
        self.outbox += self.replies.to_resend(now, everything=True)

    def receive_owner(self, report: OwnerInfo | None, now: float) -> None:
        """Handle the report about the owner of a shared store in a HEARTBEAT."""
        if report is None or report == self.owner:
            return
        self.owner = report
        self.owners.register(report)
        if self.owned:
            self.inform(now)
        else:
            self.wait_for_owner(now)

    def wait_for_owner(self, now: float) -> None:
        """Send only INFORM, at intervals, while the broker does not own its store."""
        self.online = False
        self._inform_due = now + self.info.heartbeat

    def _legacy_broker(self, now: float) -> None:
        """Log that a legacy broker, which knows no chunks, cannot be served; inform it later."""
        _log.error(
            "the broker speaks the legacy protocol, without chunks; this worker cannot serve "
            "it yet: use a broker of EventMQ 1.0 or later"
        )
        self._inform_due = now + self.info.heartbeat_timeout

    def receive_error(self, error: commands.Error, now: float) -> None:
        """Handle an ERROR: inform again, or drop the refused reply."""
        if error.code == "inform-again":
            if self.online:
                self.inform(now)
        elif error.request == self._inform_id:
            _log.error("the broker refuses this worker: %s", error.text)
            self._inform_due = now + self.info.heartbeat_timeout
        elif error.code != "no-owner":  # which is sent again
            _log.error("the broker refuses a reply (%s): %s", error.code, error.text)
            self._reply_acked(error.request)

    def reply(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Answer jobs of a chunk, in as many replies as the frame limit of the broker requires."""
        for part in fit_outcomes(body, self.max_frame, chunk.index, logs=self.logs):
            number = f"chunk:{chunk.number}"
            reply = commands.Reply(self.new_id(), part, chunk.message, number)
            frames = reply.frames()
            self.replies.add(reply.id, chunk, frames, now)
            if self.online:
                self.outbox.append(frames)

    def ready(self, credit: WorkerCredit) -> None:
        """Send READY, with the held chunks and the credit."""
        self._credit = credit
        self.outbox.append(commands.Ready(self.new_id(), self._status()).frames())

    def _status(self, rss: int = 0) -> str:
        chunks, jobs = self._credit
        return Status(
            self._held_chunks.received, chunks, self._held_chunks.numbers(), jobs, rss
        ).format()

    def tick(self, now: float, credit: WorkerCredit) -> None:
        """Check the silence of the broker; send due replies, HEARTBEAT, READY or INFORM."""
        if now - self._last_seen > self.info.heartbeat_timeout and not self.lost:
            _log.debug("the broker was silent for %g s; reconnecting", self.info.heartbeat_timeout)
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
        timestamp = f"{self._clock.now():.2f}"
        status = self._status(self._memory())
        self.outbox.append(commands.Heartbeat(self.new_id(), timestamp, status).frames())

    def next_tick(self) -> float:
        """Return the time of the next `tick`."""
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
            _log.warning(
                "%d replies were not acknowledged by the broker: their jobs may run again",
                len(self.replies),
            )
        if self.online:
            self.outbox.append(commands.Kbai(self.new_id()).frames())


class OwnerListener:
    """Receives the reports of another broker than that of the session about the owner of the store.

    It informs as a client, which gets no jobs, and again at each heartbeat interval.

    Args:
        session: The session.

    Attributes:
        owner: Last report of the broker, None before the first.
        lost: Whether the broker was silent for too long.
        outbox: Messages to send.
    """

    def __init__(self, session: WorkerSession) -> None:
        self.owner: OwnerInfo | None = None
        self.lost = False
        self.outbox: list[list[bytes]] = []
        self._session = session
        self._sent = 0
        self._inform_at = 0.0
        self._last_seen = 0.0

    @property
    def owned(self) -> bool:
        """Whether the broker owns the store of the session, by the reports of all brokers."""
        report, other = self.owner, self._session.owner
        if report is None or other is None or report.store_id != other.store_id:
            return False
        return self._session.owners.owns(report)

    def connected(self, now: float) -> None:
        """Inform the broker over a new connection."""
        self.lost = False
        self._last_seen = self._inform_at = now

    def receive(self, frames: Sequence[bytes], now: float) -> bool:
        """Handle a message; return False if only the owner may send it to a worker."""
        self._last_seen = now
        try:
            match commands.decode(frames):
                case commands.Ack(extra=bytes() as features):
                    self._inform_at = now + self._session.info.heartbeat
                    self._register(Features.parse(features.decode()).owner)
                case commands.Heartbeat(status=str() as status):
                    self._register(OwnerInfo.of_heartbeat(status))
                case commands.Request() | commands.Cancel():
                    return False
        except (ProtocolError, UnicodeDecodeError) as error:
            _log.warning("a broker sent a message that cannot be read: %s", error)
        return True

    def _register(self, report: OwnerInfo | None) -> None:
        if report is not None:
            self.owner = report
            self._session.owners.register(report)

    def tick(self, now: float) -> None:
        """Check the silence of the broker; send INFORM if it is due."""
        info = self._session.info
        self.lost = self.lost or now - self._last_seen > info.heartbeat_timeout
        if now >= self._inform_at:
            self._inform_at = now + INFORM_EVERY
            self._sent += 1
            features = Features(name=info.name).format()
            inform = commands.Inform(f"o{self._sent:x}", "", "client", features)
            self.outbox = [inform.frames()]

    def next_tick(self) -> float:
        """Return the time of the next `tick`."""
        return min(self._inform_at, self._last_seen + self._session.info.heartbeat_timeout)


@dataclass(slots=True, eq=False)
class _Suspect:
    """A chunk that waits for the answer to its CALL ``begin``.

    Attributes:
        chunk: The chunk.
        body: Body of its REQUEST.
        call: Id of the CALL, "" before the first.
        resend_at: Monotonic time at which the CALL is sent again.
        registrations: Value of `WorkerSession.registrations` when it was sent.
    """

    chunk: HeldChunk
    body: bytes
    call: str = ""
    resend_at: float = 0.0
    registrations: int = 0


class SuspectChunks:
    """The suspect chunks of one session whose start the broker has not confirmed yet.

    A chunk with the header ``ask`` has one job, which may have killed a worker. The manager
    announces it with the CALL ``begin`` and starts it after the answer: if the worker is lost then,
    the broker knows that the job had reached it. Each chunk has a CALL of its own, so these jobs do
    not wait for each other.

    Args:
        session: Sends the CALLs.
        held_chunks: The held chunks.
        begin: Starts a chunk that the broker has confirmed.
        refuse: Hands back a chunk that the broker has refused.
    """

    def __init__(
        self,
        session: WorkerSession,
        held_chunks: HeldChunks,
        begin: Callable[[HeldChunk, bytes, float], None],
        refuse: Callable[[HeldChunk, float], None],
    ) -> None:
        self._session = session
        self._held_chunks = held_chunks
        self._begin = begin
        self._refuse = refuse
        #: Number of the chunk -> the waiting chunk.
        self.waiting: dict[int, _Suspect] = {}
        #: Id of the CALL -> number of the chunk.
        self._calls: dict[str, int] = {}

    def ask(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Announce a chunk to the broker, and start it after the answer."""
        self._held_chunks.hold(chunk)
        suspect = self.waiting[chunk.number] = _Suspect(chunk, body)
        if self._session.online:
            self._call_begin(suspect, now)

    def cancel(self, job: str, delivery: int) -> HeldChunk | None:
        """Remove and return the waiting chunk of a delivery; None if there is none."""
        for suspect in self.waiting.values():
            if suspect.chunk.position_of(job, delivery) is not None:
                return self._pop(suspect).chunk
        return None

    def take_all(self) -> list[HeldChunk]:
        """Remove and return all waiting chunks."""
        return [self._pop(suspect).chunk for suspect in list(self.waiting.values())]

    def next_tick(self) -> float:
        """Return the time of the next `tick`."""
        if not self.waiting or not self._session.online:
            return float("inf")
        return min(suspect.resend_at for suspect in self.waiting.values())

    def tick(self, now: float) -> None:
        """Repeat unanswered CALLs, all of them after the broker has acknowledged INFORM again."""
        if not self.waiting or not self._session.online:
            return
        registrations = self._session.registrations
        for suspect in self.waiting.values():
            if now >= suspect.resend_at or suspect.registrations != registrations:
                self._call_begin(suspect, now)

    def replied(self, reply: commands.Reply, now: float) -> bool:
        """Handle a REPLY; return whether it is about a waiting chunk."""
        suspect = self._of(reply.request or "")
        if suspect is None:
            return False
        self._pop(suspect)
        self._begin(suspect.chunk, suspect.body, now)
        return True

    def refused(self, error: commands.Error, now: float) -> bool:
        """Handle an ERROR; return whether it is about a waiting chunk."""
        suspect = self._of(error.request)
        if suspect is None:
            return False
        if error.code not in RETRY_LATER:  # else `tick` sends the CALL again
            _log.warning("a job is not started: %s", error.text)
            self._refuse(self._pop(suspect).chunk, now)
        return True

    def _of(self, call: str) -> _Suspect | None:
        return self.waiting.get(self._calls.get(call, 0))

    def _pop(self, suspect: _Suspect) -> _Suspect:
        self._calls.pop(suspect.call, None)
        return self.waiting.pop(suspect.chunk.number)

    def _call_begin(self, suspect: _Suspect, now: float) -> None:
        session, entry = self._session, suspect.chunk.index.entries[0]
        self._calls.pop(suspect.call, None)
        suspect.call = session.new_id()
        self._calls[suspect.call] = suspect.chunk.number
        suspect.resend_at, suspect.registrations = now + RESEND_AFTER, session.registrations
        arguments = pack({"id": entry.id, "delivery": entry.delivery})
        session.outbox.append(commands.Call(suspect.call, "begin", arguments).frames())
