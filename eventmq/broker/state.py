"""State that the parts of the broker share: queues, peers, sessions, write batch, deferred sends.

Writes, reads and messages are only queued here: the runner commits and sends at the end of a tick.
A message that depends on a write is sent by the settle callback of the write, so never before the
write is on disk. Call `State.send` elsewhere only for messages that need no write, such as
HEARTBEAT.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.broker.limiters import Limiters
from eventmq.broker.queues import Queue, SubqueueCounts
from eventmq.broker.suspects import Suspects
from eventmq.broker.transient import TransientJobs
from eventmq.headers import parse_headers
from eventmq.job import JobState
from eventmq.store.metrics import Histogram, JobMetrics
from eventmq.store.writes import subqueue_of
from eventmq.timekeeping import Timekeeper
from eventmq.wire.batches import pack
from eventmq.wire.commands import Ack, Error, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.broker.limiters import Limiter
    from eventmq.broker.limits import Limits
    from eventmq.broker.peers import Key, Lease, Peer, Session
    from eventmq.job import JobRecord
    from eventmq.store import Write
    from eventmq.store.writes import Finished
    from eventmq.wire.owner import OwnerInfo

__all__ = ["FULL", "LINGER", "DeferredSend", "SingleWrite", "State", "fields_of"]

logger = logging.getLogger("eventmq.broker")

#: Code and text of the ERROR when the disk is full.
FULL = ("store-full", "the disk is full; nothing was stored")

#: Maximum delay in seconds of the commit of an outcome that nobody waits for: one sync then stores
#: it with the next submission. The worker keeps the outcome until it is acknowledged.
LINGER = 0.005

#: Codes of errors that are no fault of the peer: a unique key in use, an id that someone made up or
#: kept for too long, a stream that another reader has read.
NO_FAULT = frozenset({"duplicate", "job-not-found", "parts-gone"})


def nothing() -> None:
    """Do nothing: the ``undo`` of a write that needs none."""


def fields_of(job: JobRecord) -> tuple[str, str, str, int]:
    """Return the fields of a log line about a job (`eventmq.text.log_about`)."""
    return job.id, parse_headers(job.headers).task, job.queue, job.attempt


class DeferredSend(NamedTuple):
    """A message to send. If it cannot be sent, ``lease`` is undone.

    With ``coalesce`` it may wait for another message to the same peer (`eventmq.broker.runner`).
    """

    key: Key
    frames: list[bytes]
    session: Session | None = None
    lease: Lease | None = None
    coalesce: bool = False


@dataclass(slots=True, eq=False)
class State:
    """The memory of one broker."""

    limits: Limits
    version: str
    #: The setting ``durability``: where a job is stored when its receipt is sent.
    durability: str = ""
    #: Store time (`eventmq.timekeeping`): the unit of all times here except ``wall``.
    now: float = 0.0
    #: Knows how far wall time is ahead of store time.
    keeper: Timekeeper = field(default_factory=Timekeeper)
    started: float = 0.0
    epoch: int = 0
    store_id: str = ""
    #: Id of the store in its events.
    events_id: str = ""
    #: The report to peers about the owner of the store; None if no other broker can own it.
    owner: OwnerInfo | None = None
    #: Returns why a shared store cannot be used now, "" where it can; a standby sets it.
    unavailable_reason: Callable[[], str] = field(default=lambda: "")
    addresses: dict[str, str] = field(default_factory=dict)
    #: Name of a CALL -> its handler, called with peer, message id and arguments. Each part of the
    #: broker adds its handlers.
    calls: dict[str, Callable[[Peer, str, Mapping[str, Any]], None]] = field(default_factory=dict)
    #: Returns how many bytes wait for all peers; the runner sets it.
    unread_bytes: Callable[[], int] = field(default=lambda: 0)
    #: Carries `read` out beside the commits; None if the commits do. The runner sets it.
    reader: Callable[[Any, Callable[[Any], None], Callable[[str], None]], None] | None = None
    #: Metrics of the jobs, which the store counts.
    metrics: JobMetrics = field(default_factory=JobMetrics)
    #: Durations of commits; the runner sets and updates it.
    commits: Histogram = field(default_factory=lambda: Histogram(()))
    #: Returns the gauges of the store by name; the runner sets it.
    store_gauges: Callable[[], Mapping[str, float]] = field(default=dict)
    #: Returns the seconds for which a shared store was seen without a live owner; the runner sets
    #: it.
    without_owner: Callable[[], float] = field(default=lambda: 0.0)
    queues: dict[str, Queue] = field(default_factory=dict)
    #: Maker (`Peer.maker`) -> number of queues that it created and that no other peer uses.
    queue_makers: Counter[object] = field(default_factory=Counter)
    subqueue_counts: SubqueueCounts = field(default_factory=SubqueueCounts)
    #: Queues that may have jobs to dispatch, in memory or in the store.
    busy: dict[str, Queue] = field(default_factory=dict)
    peers: dict[Key, Peer] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    #: Jobs in memory by id: in a window, leased or unroutable.
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    #: Leased jobs: id -> (session, chunk, position).
    running: dict[str, tuple[Session, Lease, int]] = field(default_factory=dict)
    #: Job id -> {(peer, message id of its get)}.
    waiters: dict[str, list[tuple[Peer, str]]] = field(default_factory=dict)
    #: Job id -> peer whose REQUEST has reply-requested.
    reply_to: dict[str, Peer] = field(default_factory=dict)
    #: Job id -> ids of the sessions that have refused it, since they do not know its task.
    refusals: dict[str, set[str]] = field(default_factory=dict)
    #: Jobs that may have killed a worker.
    suspects: Suspects = field(default_factory=Suspects)
    #: Task -> measured seconds per job.
    run_times: dict[str, float] = field(default_factory=dict)
    #: The jobs without guarantee; waiting and leased ones are in ``jobs`` as well.
    transient: TransientJobs = field(init=False)
    limiters: Limiters = field(default_factory=Limiters)
    next_seq: int = 1
    next_ready_at: float | None = None
    #: Wall time of the first known expiry of a job.
    next_expiry: float | None = None
    #: Whether there are graphs; and the time of the first deadline of a part of one.
    graphs: bool = False
    next_deadline: float | None = None
    counters: Counter[str] = field(default_factory=Counter)
    #: Former workers -> how many jobs were assigned to them.
    assigned_to_former: dict[str, int] = field(default_factory=dict)
    closing: bool = False
    #: Peers and message ids of the calls ``handover``.
    handover: list[tuple[Key, str]] = field(default_factory=list)
    #: No dispatch before this time, since the disk is full.
    hold_until: float = 0.0
    deferred_sends: list[DeferredSend] = field(default_factory=list)
    #: Receipts of jobs; they are sent last, so that chunks do not wait for them.
    receipts: list[DeferredSend] = field(default_factory=list)
    #: Ends of jobs without guarantee whose events are not written yet.
    ends: list[Finished] = field(default_factory=list)
    #: Code and text of the ERROR while writes are undone.
    failure: tuple[str, str] = FULL
    #: Seconds for which a write with ``linger`` waits; the runner sets it to 0 where commits are
    #: quick.
    linger: float = LINGER
    #: Store time at which the batch is committed at the latest; None if it is empty.
    commit_at: float | None = None
    _batch: list[Write] = field(default_factory=list)
    _settles: list[Callable[[Any], None]] = field(default_factory=list)
    _undos: list[Callable[[], None]] = field(default_factory=list)
    _message: int = 0

    def __post_init__(self) -> None:
        self.transient = TransientJobs(self.limits, self.running)
        self.limiters.limit_queues(self.limits.queue_limits)
        self.subqueue_counts.limiters = self.limiters

    @property
    def wall(self) -> float:
        """Guarded wall time, for times given as Unix time and for times that people read."""
        return self.now + self.keeper.ahead

    # Out

    def message_id(self) -> str:
        """Return a new message id."""
        self._message += 1
        return f"b{self.epoch}.{self._message}"

    def continue_ids(self, old: State) -> None:
        """Make no message id that the state before this one has made in the same epoch."""
        self._message = old._message

    def send(self, peer: Peer, frames: list[bytes]) -> None:
        """Queue a message in the deferred sends, unless the peer is muted."""
        if peer.muted:
            return
        peer.sent = self.now
        self.deferred_sends.append(DeferredSend(peer.key, frames))

    def ack(self, peer: Peer, acked: str, extra: bytes | None = None) -> None:
        """Queue an ACK."""
        self.send(peer, Ack(self.message_id(), acked, extra).frames())

    def ack_answer(self, peer: Peer, acked: str) -> None:
        """Queue the ACK of an answer of a worker; it may wait for another message."""
        peer.sent = self.now
        frames = Ack(self.message_id(), acked).frames()
        self.deferred_sends.append(DeferredSend(peer.key, frames, coalesce=True))

    def receipt(self, peer: Peer, acked: str, extra: bytes | None = None) -> None:
        """Queue the ACK of a REQUEST, which is sent after all other messages of the tick."""
        if peer.muted:
            return
        peer.sent = self.now
        self.receipts.append(DeferredSend(peer.key, Ack(self.message_id(), acked, extra).frames()))

    def reply(self, peer: Peer, result: bytes, request: str, outcome: str | None = None) -> None:
        """Queue a REPLY."""
        self.send(peer, Reply(self.message_id(), result, request, outcome).frames())

    def answer(self, peer: Peer, call: str, value: object) -> None:
        """Queue the answer to a CALL."""
        self.reply(peer, pack(value), call)

    def error(self, peer: Peer, request: str, code: str, text: str) -> None:
        """Queue an ERROR if the peer can read it; count it and log the first per peer."""
        self.counters[f"errors.{code}"] += 1
        if not peer.warned and code not in NO_FAULT:
            peer.warned = True
            logger.warning("message of peer %s refused: %s: %s", peer.key, code, text)
        if peer.reads_errors:
            self.send(peer, Error(self.message_id(), request, code, text[:1000]).frames())

    # Writes

    def write(
        self,
        write: Write,
        settle: Callable[[Any], None],
        undo: Callable[[], None] = nothing,
        *,
        linger: bool = False,
    ) -> None:
        """Queue a write, or a read, until the end of the tick.

        Args:
            write: The write or read.
            settle: Called with its write result after the commit.
            undo: Called if the commit failed or the store refused the write.
            linger: Whether the write may wait for others, for as long as ``linger`` of the state.
        """
        if not linger:
            self.commit_at = 0.0
        elif self.commit_at is None:
            self.commit_at = self.now + self.linger
        self._batch.append(write)
        self._settles.append(settle)
        self._undos.append(undo)

    def read(
        self, query: Write, settle: Callable[[Any], None], refuse: Callable[[str], None]
    ) -> None:
        """Queue a read that need not see the writes of this tick: a listing.

        Args:
            query: The read.
            settle: Called with its result in a later tick.
            refuse: Called with the reason, for people, if it was not carried out.
        """
        if self.reader is None:
            self.write(query, settle)
        else:
            self.reader(query, settle, refuse)

    def record(self, write: Write) -> None:
        """Queue a write that nothing waits for, such as that of an event beside other writes."""
        self.write(write, lambda _: None)

    def report_undone(self, peer: Peer, request: str) -> Callable[[], None]:
        """Return an ``undo`` for `write` that sends a peer ERROR: nothing was stored."""
        return lambda: self.error(peer, request, *self.failure)

    def report_refused(self, peer: Peer, request: str, first: int) -> None:
        """Make writes without an ``undo`` send the peer an ERROR if the store refuses them.

        Args:
            peer: The peer that waits for an answer.
            request: Id of its message.
            first: Index of the first write for the message; all later ones are for it too.
        """

        def undo() -> None:
            if self.failure != FULL:  # if the disk is full, reads are repeated
                self.error(peer, request, *self.failure)

        for index in range(first, len(self._undos)):
            if self._undos[index] is nothing:
                self._undos[index] = undo

    def write_first(self, write: Write, undo: Callable[[], None]) -> None:
        """Queue a write before all others of this tick: it describes the state at its beginning."""
        self.commit_at = 0.0
        self._batch.insert(0, write)
        self._settles.insert(0, lambda _: None)
        self._undos.insert(0, undo)

    @property
    def writes(self) -> Sequence[Write]:
        """The writes of the batch so far."""
        return self._batch

    @property
    def has_writes(self) -> bool:
        """Whether the batch has writes."""
        return bool(self._batch)

    def take_batch(
        self,
    ) -> tuple[list[Write], list[Callable[[Any], None]], list[Callable[[], None]]]:
        """Return the batch with its callbacks, and begin a new one."""
        batch = (self._batch, self._settles, self._undos)
        self._batch, self._settles, self._undos = [], [], []
        self.commit_at = None
        return batch

    # Look-ups

    def queue(self, name: str) -> Queue:
        """Return a queue, making it if it is new."""
        queue = self.queues.get(name)
        if queue is None:
            limits = self.limits
            size, length = limits.queue_window, limits.window_bytes
            queue = Queue(name, size, length, self.now, self.subqueue_counts)
            queue.limiter = self.limiters.of_queues.get(name)
            self.queues[name] = queue
        return queue

    def queue_refusal(self, name: str, peer: Peer, kind: str, more: int) -> str:
        """Return why a peer may not create a queue, "" if it may.

        Args:
            name: Name of the new queue.
            peer: The peer.
            kind: Kind of the peer, for the text.
            more: Number of other queues that it creates with the same message.
        """
        limits = self.limits
        ends = f"queues that stay empty and are not served go after {limits.empty_queue_ttl:g} s"
        if limits.legacy_queue_fallback == "refuse":
            ends = "with legacy_queue_fallback = refuse none is forgotten"
        if len(self.queues) + more >= limits.max_queues:
            return (
                f"the queue {name!r} would be one more than the {limits.max_queues} queues of this "
                f"broker (setting max_queues); {ends}"
            )
        if self.queue_makers[peer.maker] + more >= limits.max_new_queues:
            return (
                f"the queue {name!r} would be one more than the {limits.max_new_queues} that one "
                f"{kind} may begin (setting max_new_queues); {ends}"
            )
        return ""

    def begin_queues(self, names: Iterable[str], peer: Peer) -> None:
        """Make the new queues among ``names``; call `queue_refusal` before."""
        maker = peer.maker
        for name in names:
            if name not in self.queues:
                self.queue(name).maker = maker
                self.queue_makers[maker] += 1

    def disown(self, queue: Queue) -> None:
        """Stop counting a queue for its maker."""
        maker, queue.maker = queue.maker, None
        if maker is not None:
            self.queue_makers[maker] -= 1
            if self.queue_makers[maker] <= 0:
                del self.queue_makers[maker]

    def forget_queue(self, queue: Queue) -> None:
        """Forget a queue that is not used."""
        self.disown(queue)
        del self.queues[queue.name]
        self.metrics.forget_queue(queue.name)
        for session in self.sessions.values():
            session.blocked.pop(queue.name, None)  # a new queue starts with version 0

    def enqueue(self, job: JobRecord) -> None:
        """Put a queued job that is not leased into its window, or leave it in the store.

        A job without guarantee is not in the store, so it always goes into the window.
        """
        if self.keep_out(job):
            return
        self.jobs[job.id] = job
        if job.expires and job.id not in self.transient.jobs:
            self.record_expiry(job)
        if job.deaths:
            self.suspects.add(job)
        self.update_limits(job.headers, job.seq)
        queue = self.queue(job.queue)
        self.busy[job.queue] = queue
        for displaced in queue.join(job):
            self.jobs.pop(displaced.id, None)

    def keep_out(self, job: JobRecord) -> bool:
        """Return whether a job must wait in the store, since a transient job has its id."""
        other = self.transient.jobs.get(job.id)
        if other is None or other is job:
            return False
        self.transient.kept_out[job.id] = (job.queue, subqueue_of(job.headers))
        return True

    def end_transient(self, row: Finished) -> None:
        """Forget an ended job without guarantee except for its result."""
        self.transient.end(row)
        name, subqueue = self.transient.kept_out.pop(row.job.id, ("", None))
        if subqueue is not None:
            self.busy[name] = self.queue(name)
            self.busy[name].rewind(subqueue)
        self.ends.append(row)

    def withdraw(self, jobs: Iterable[JobRecord], end: JobState) -> list[JobRecord]:
        """Remove jobs that the store has ended from their queues; return the leased ones.

        Args:
            jobs: The jobs, with their states before the end.
            end: The state in which they ended.
        """
        queues: dict[str, set[str]] = {}
        leased: list[JobRecord] = []
        for job in jobs:
            counts = self.queue(job.queue).counts
            if job.state is JobState.DELAYED:  # `record_ends` subtracts it from the queued ones
                counts.delayed -= 1
                counts.queued += 1
            elif job.state is JobState.BLOCKED:
                counts.blocked -= 1
                counts.queued += 1
            live = None if self.keep_out(job) else self.jobs.get(job.id)
            if live is None:
                continue
            live.state = end  # a write in flight must not requeue it
            if job.id in self.running:
                leased.append(job)
            else:
                queues.setdefault(job.queue, set()).add(job.id)
        for name, ids in queues.items():
            self.queues[name].remove_ids(ids)
        return leased

    def count_waiting(self, job: JobRecord) -> None:
        """Count a job that waits from now on in its queue, and record its times."""
        counts = self.queue(job.queue).counts
        if job.expires and job.state is not JobState.BLOCKED:
            self.record_expiry(job)
        if job.state is JobState.BLOCKED:
            counts.blocked += 1
        elif job.state is JobState.DELAYED:
            counts.delayed += 1
            self.next_ready_at = min(job.ready_at, self.next_ready_at or job.ready_at)
        else:
            counts.queued += 1

    def record_expiry(self, job: JobRecord) -> None:
        """Record that a job with an expiry is waiting."""
        if self.next_expiry is None or job.expires < self.next_expiry:
            self.next_expiry = job.expires

    # Limits

    def prune_limiters(self) -> None:
        """Forget limiters that are not needed."""
        if self.limiters.of:
            waiting = {key for queue in self.queues.values() for key in queue.subqueues}
            self.limiters.prune(self.now, waiting)

    def update_limits(self, headers: str, seq: int) -> None:
        """Apply the limits in the headers of a job, unless a newer job has set others.

        A job without limits in its headers, such as one submitted by name, obeys those of the other
        jobs.
        """
        if "limit-" not in headers:
            return
        known, subqueue = parse_headers(headers), subqueue_of(headers)
        if subqueue.task is None or not (subqueue.key or known.limit_rate or known.limit_running):
            return
        limiters = self.limiters
        limiter = limiters.of.get(subqueue)
        if limiter is None:
            limiter = limiters.make(subqueue)
            self._count_running(limiter)
            for queue in self.queues.values():
                queue.limit(limiter)
        limiter.used = max(limiter.used, self.now)
        if seq > limiter.seq:
            limiter.seq = seq
            limiter.set(headers, self.now)
            limiters.free(limiter)

    def _count_running(self, limiter: Limiter) -> None:
        """Count the jobs that were leased before this limiter was made.

        There are none for a limiter with a key, since each job with the key has limits in its
        headers.
        """
        if limiter.key.key:
            return
        for _, lease, position in self.running.values():
            job = lease.jobs[position]
            if job is not None and subqueue_of(job.headers) == limiter.key:
                self.limiters.leased_before(job, limiter, self.now)

    def leased(
        self, job: JobRecord, entry: tuple[Session, Lease, int], *, recovered: bool = False
    ) -> None:
        """Record that a job is leased; ``recovered`` if an earlier run of the broker did."""
        self.running[job.id] = entry
        self.queues[job.queue].running += 1
        if self.limiters.of or self.limiters.of_queues:
            self.limiters.leased(job, self.now, recovered=recovered)

    # hot loop: python -m benchmarks drain
    def leased_all(
        self, queue: Queue, jobs: Sequence[JobRecord], session: Session, lease: Lease
    ) -> None:
        """Record that the jobs of a chunk are leased."""
        running = self.running
        for position, job in enumerate(jobs):
            running[job.id] = (session, lease, position)
        queue.running += len(jobs)
        if self.limiters.of or self.limiters.of_queues:
            for job in jobs:
                self.limiters.leased(job, self.now)

    def leased_numbers(self) -> frozenset[int]:
        """Return the numbers of the jobs that are leased."""
        jobs = (lease.jobs[position] for _, lease, position in self.running.values())
        return frozenset(job.seq for job in jobs if job is not None)

    def released(self, job: JobRecord, *, unstarted: bool = False) -> bool:
        """Record that a job is no longer leased; return whether it was."""
        if self.running.pop(job.id, None) is None:
            return False
        self.queues[job.queue].running -= 1
        if self.limiters.counted:
            self.limiters.released(job.id, unstarted=unstarted)
        return True

    def forget_job(self, job: JobRecord) -> None:
        """Remove an ended or delayed job from memory."""
        self.jobs.pop(job.id, None)
        self.refusals.pop(job.id, None)
        self.suspects.forget(job)


class SingleWrite:
    """Queues writes, or reads, of which only one may be in flight at a time.

    Args:
        state: The memory of the broker.

    Attributes:
        busy: Whether one is in flight.
    """

    __slots__ = ("_state", "busy")

    def __init__(self, state: State) -> None:
        self._state = state
        self.busy = False

    def write(
        self,
        write: Write,
        settle: Callable[[Any], None],
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue a write as `State.write` does. It is in flight until it is settled or undone."""
        self.busy = True

        def settled(write_result: Any) -> None:
            self.busy = False
            settle(write_result)

        def undone() -> None:
            self.busy = False
            undo()

        self._state.write(write, settled, undone)
