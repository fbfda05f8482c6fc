"""The job manager: the state machine of a worker between one broker and its pool.

Messages, pool events and the time go in; messages come out (`JobManager.take_outbox`), and chunks
are assigned to the slots of the pool. The manager knows no socket, and reads the clock only for the
time in HEARTBEATs and for the expiry of jobs. ``now`` is monotonic seconds, from the same clock as
the pool's. `runner` owns the socket, the pool and the loop.

A chunk is held from its arrival until the broker has acknowledged its last answer. READY and
HEARTBEAT list the held chunks, so that the broker notices lost messages.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.errors import ProtocolError
from eventmq.execution import joblog
from eventmq.headers import split_headers
from eventmq.interfaces import JobsEnded, PartsYielded, SlotDied
from eventmq.job import OutcomeKind
from eventmq.timekeeping import SETTLED, STEP, format_seconds
from eventmq.wire import commands
from eventmq.wire.batches import (
    ASK,
    NOW,
    OutcomeRow,
    chunk_number,
    decode_chunk,
    encode_outcomes,
    move_expiry,
)
from eventmq.wire.features import parse_waiting
from eventmq.wire.owner import EPOCH, OwnerInfo, parse_epoch
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq.worker.inputs import InputFetcher, is_paged
from eventmq.worker.session import (
    HeldChunk,
    HeldChunks,
    SharedHeldChunks,
    SuspectChunks,
    WorkerCredit,
    WorkerSession,
)
from eventmq.worker.slots import Autoscaler, SharedSlots, Slots
from eventmq.worker.streams import WorkerStreams
from eventmq.worker.watchdog import Watchdog, always_fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.clock import Clock
    from eventmq.interfaces import PoolEvent, WorkerPool
    from eventmq.worker.inputs import Spool
    from eventmq.worker.session import SessionInfo
    from eventmq.worker.watchdog import TimeoutPolicy

__all__ = ["JobManager"]

_log = logging.getLogger(__name__)

#: Seconds for which a worker that is shutting down waits for the broker's last ACKs.
LAST_ACKS = 5.0

#: The credit of a worker that is shutting down.
NO_CREDIT = WorkerCredit(0)


def _sent_at(text: str) -> float:
    """Return when a chunk was sent, by the broker's clock; 0.0 if the text is malformed."""
    return float(text) if text.replace(".", "", 1).isdecimal() else 0.0


def _exit_report(event: SlotDied) -> str:
    """Return a description of the end of a process, for people."""
    last, peak = (f"{size / 2**20:.0f} MiB" for size in (event.rss, event.peak))
    if event.rss:
        memory = f"; it last had {last} of memory"
        if event.peak > event.rss:
            memory += f", {peak} at most"
    else:
        memory = f"; it had at most {peak} of memory" if event.peak else ""
    return event.reason + memory


def _find_culprit(
    event: SlotDied, withdrawn: Sequence[tuple[HeldChunk, Sequence[int]]]
) -> tuple[tuple[int, int] | None, set[tuple[int, int]]]:
    """Return the job that killed a slot, None if it is not certain; and all started jobs.

    Args:
        event: The death of the slot.
        withdrawn: The jobs that were lost with it, the last chunk first.
    """
    lost_jobs = [
        (chunk.number, position)
        for chunk, positions in reversed(withdrawn)
        for position in positions
    ]
    started = set(lost_jobs[: event.started])
    running = (event.chunk, event.position)
    if running in lost_jobs:
        started.add(running)
    elif len(started) != 1:
        return None, started
    if event.shared_cause:
        return None, started
    return (running if running in lost_jobs else next(iter(started))), started


def _cancelled(chunk: HeldChunk, positions: Sequence[int], job: str) -> list[OutcomeRow]:
    """Return outcomes of jobs that did not start: cancel ``job``, hand back the others."""
    kinds = OutcomeKind.HANDED_BACK, OutcomeKind.CANCELLED
    entries = chunk.index.entries
    return [OutcomeRow(position, kinds[entries[position].id == job]) for position in positions]


class JobManager:
    """Job manager: one session with its held chunks.

    Args:
        info: The contents of INFORM, and the intervals.
        pool: Runs the jobs; only its ``assign``, ``take_back``, ``running``, ``interrupt``,
            ``credit``, ``kill`` and ``scale`` are used.
        clock: Gives the time in HEARTBEATs, and is compared with the broker's time.
        timeout_policy: Decides the outcome of a job that was stopped at its hard limit; by default
            the job fails.
        spool: Keeps inputs that are too large for a REQUEST; without it jobs with such inputs fail.
        memory: Returns the resident memory of the worker's processes in bytes, for HEARTBEATs; 0 if
            it is not known.
        slots: Kind of the slots; by default `SharedSlots` or `Slots`, as the pool needs.

    Attributes:
        overdue: Whether the shutdown grace has passed: kill the running jobs, then call
            `interrupted`.
        done: Whether the session has ended: send the outbox and close.
    """

    def __init__(
        self,
        info: SessionInfo,
        *,
        pool: WorkerPool,
        clock: Clock,
        timeout_policy: TimeoutPolicy = always_fail,
        spool: Spool | None = None,
        memory: Callable[[], int] = int,
        slots: type[Slots] | None = None,
    ) -> None:
        self.overdue = False
        self.done = False
        self._info = info
        self._pool = pool
        self._held_chunks = SharedHeldChunks() if pool.shared else HeldChunks(pool.slots)
        self._session = WorkerSession(
            info, self._held_chunks, clock, pages=spool is not None, memory=memory
        )
        self._streams = WorkerStreams(self._session, self._held_chunks, pool)
        self._inputs = InputFetcher(
            self._session, self._held_chunks, spool, self._assign, self._reply_unassigned
        )
        self._suspects = SuspectChunks(
            self._session, self._held_chunks, self._fetch_or_assign, self._hand_back_whole
        )
        self._watchdog = Watchdog(pool, self._held_chunks, timeout_policy, info.cancel_grace)
        kind = slots or (SharedSlots if pool.shared else Slots)
        self._slots = kind(pool, self._held_chunks, self._watchdog, info.slots or pool.slots)
        self._scaler = Autoscaler(info.slots, pool.slots) if info.slots else None
        self._clock = clock
        #: Seconds by which the broker's time is behind monotonic time, and when that was measured.
        self._broker_lag = 0.0, float("-inf")
        self._clock_differs = False
        self._drain_until: float | None = None
        self._await_acks_until: float | None = None
        #: Epoch of the owner when a chunk or CANCEL of another broker was last ignored.
        self._fenced_in = 0

    @property
    def online(self) -> bool:
        """Whether the broker has acknowledged the session."""
        return self._session.online

    @property
    def session(self) -> WorkerSession:
        """The session, which knows the reports about the owner of the store."""
        return self._session

    @property
    def lost(self) -> bool:
        """Whether the broker was silent for too long: reconnect, then call `connected`."""
        return self._session.lost

    @property
    def idle(self) -> bool:
        """Whether the session holds no chunks."""
        return not self._held_chunks.chunks

    @property
    def busy(self) -> int:
        """Number of slots that have jobs."""
        return self._slots.busy

    @property
    def credit(self) -> WorkerCredit:
        """Total credit of the worker; none while it shuts down."""
        return NO_CREDIT if self._drain_until is not None else self._slots.credit

    # Input

    def connected(self, now: float) -> None:
        """Inform the broker over a new connection."""
        self._session.connected(now)

    def ignore_old_owner(self) -> None:
        """Log, once for each owner, that another broker than the owner sent a chunk or a CANCEL.

        That broker was suspended before it could send the message, and does not know yet that it
        has lost the store. The owner has all of its commits, and sends the message if it is still
        valid.
        """
        owner = self._session.owner
        epoch = 0 if owner is None else self._session.owners.of(owner).epoch
        if epoch != self._fenced_in:
            self._fenced_in = epoch
            _log.warning(
                "messages of a broker that does not own the store are ignored; the owner has "
                "epoch %d", epoch,
            )  # fmt: skip

    def receive(self, frames: Sequence[bytes], now: float) -> None:
        """Handle a message from the broker."""
        self._session.seen(now)
        try:
            match commands.decode(frames):
                case commands.Request() as request:
                    self._receive_chunk(request, now)
                case commands.Ack() as ack:
                    self._session.receive_ack(ack, now, self.credit)
                case commands.Error() as error:
                    self._refused(error, now)
                case commands.Reply() as reply:
                    self._replied(reply, now)
                case commands.Kbai():
                    _log.debug("the broker shuts down; waiting for it to come back")
                    self._session.inform(now)
                case commands.Disconnect():
                    _log.info("the broker asks this worker to stop")
                    self.terminate(now)
                case commands.Cancel(job=job, delivery=delivery):
                    self._cancel(job, delivery, now)
                case commands.Credit() as credit:
                    self._streams.credited(credit)
                case commands.Heartbeat(status=status):
                    if status is not None:
                        self._heartbeat(status, now)
                case other:
                    _log.warning(
                        "the broker sent %s, which is not for workers", type(other).__name__
                    )
        except (ProtocolError, UnicodeDecodeError) as error:
            _log.warning("the broker sent a message that cannot be read: %s", error)

    def pool_events(self, events: Sequence[PoolEvent], now: float) -> None:
        """Handle events of the pool."""
        for event in events:
            if isinstance(event, JobsEnded):
                self._jobs_ended(event, now)
            elif isinstance(event, SlotDied):
                self._slot_died(event, now)
            elif isinstance(event, PartsYielded):
                self._streams.parts_yielded(event)
            else:
                self._streams.progress_reported(event)

    def tick(self, now: float) -> None:
        """Carry out all due actions. Call this in every step, and after `seconds_to_tick`."""
        for slot in self._slots.check(now):
            self._take_back(slot, now)
        if self._watchdog.deadlines:
            self._enforce(now)
        if self._scaler is not None and self._drain_until is None:
            self._scale(now, self._scaler)
        if self._drain_until is not None:
            self._drain(now, self._drain_until)
        if self._streams.streams:
            self._streams.tick(now)
        if self._suspects.waiting:
            self._suspects.tick(now)
        if self._inputs.waiting or self._inputs.kept:
            self._inputs.tick(now)
        if not self.done:
            self._session.tick(now, self.credit)

    def terminate(self, now: float) -> None:
        """Shut down: accept no jobs, hand back those that have not started, end after the others.

        Idempotent.
        """
        if self._drain_until is not None:
            return
        _log.info(
            "ending: takes no more jobs; running jobs have %g s to end", self._info.shutdown_grace
        )
        self._drain_until = now + self._info.shutdown_grace
        self._hand_back_waiting(now)
        for slot in range(len(self._held_chunks.jobs)):
            self._take_back(slot, now)
        self._drain(now, self._drain_until)

    def interrupted(self, now: float) -> list[tuple[str, str]]:
        """Hand back the jobs that were killed while they ran, without counting their attempts.

        Returns:
            Id and task of the jobs that ran.
        """
        self.overdue = False
        self._hand_back_waiting(now)
        started = []
        for slot in range(len(self._held_chunks.jobs)):
            withdrawn = self._held_chunks.withdraw_all(slot)
            started += [
                joblog.id_and_task(chunk.index, position)
                for chunk, position in self._held_chunks.started(withdrawn)
            ]
            self._hand_back(withdrawn, now)
        return started

    # Output

    def take_outbox(self) -> list[list[bytes]]:
        """Return and forget the messages to send, in order; lost ones are sent again later."""
        outbox, self._session.outbox = self._session.outbox, []
        return outbox

    def seconds_to_tick(self, now: float) -> float:
        """Return the seconds until the next `tick`."""
        deadline = self._session.next_tick()
        if self._watchdog.deadlines:
            deadline = min(deadline, self._watchdog.next_tick())
        if self._suspects.waiting:
            deadline = min(deadline, self._suspects.next_tick())
        if self._inputs.waiting:
            deadline = min(deadline, self._inputs.next_tick())
        if self._drain_until is not None:
            deadline = min(deadline, self._await_acks_until or self._drain_until)
        return max(0.0, min(deadline, self._slots.check_due()) - now)

    # Chunks

    def _heartbeat(self, status: str, now: float) -> None:
        if self._scaler is not None:
            self._scaler.waiting = parse_waiting(status)
        if "owner:" in status:
            self._session.receive_owner(OwnerInfo.of_heartbeat(status), now)

    def _replied(self, reply: commands.Reply, now: float) -> None:
        if not self._suspects.replied(reply, now):
            self._inputs.replied(reply, now)

    def _refused(self, error: commands.Error, now: float) -> None:
        if not self._suspects.refused(error, now) and not self._inputs.refused(error, now):
            self._session.receive_error(error, now)

    def _receive_chunk(self, request: commands.Request, now: float) -> None:
        headers = dict(split_headers(request.headers))
        number = chunk_number(headers.get("chunk", ""))
        if not number:
            raise ProtocolError("a REQUEST to this worker needs the header chunk")
        if number <= self._held_chunks.received:
            return
        if EPOCH in headers and self._is_from_old_owner(parse_epoch(headers[EPOCH])):
            self.ignore_old_owner()
            return
        self._held_chunks.received = number
        chunk = HeldChunk(number, request.id, decode_chunk(request.body), 0)
        sent = _sent_at(headers.get(NOW, ""))
        body = self._localize_expiry(chunk, request.body, sent, now) if sent else request.body
        if self._drain_until is not None:
            self._held_chunks.add(chunk)
            self._hand_back(self._held_chunks.withdraw(chunk.slot, chunk.end), now)
        elif ASK in headers:
            self._suspects.ask(chunk, body, now)
        else:
            self._fetch_or_assign(chunk, body, now)

    def _is_from_old_owner(self, epoch: int) -> bool:
        owner = self._session.owner
        return owner is not None and epoch < self._session.owners.of(owner).epoch

    def _fetch_or_assign(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Assign a chunk once the inputs of its jobs are fetched."""
        of_graphs = any("graph:" in text for text in chunk.index.templates)
        if of_graphs and is_paged(chunk.index):
            self._inputs.begin(chunk, body, now)
        else:
            self._assign(chunk, body, now)

    def _hand_back_whole(self, chunk: HeldChunk, now: float) -> None:
        """Hand back a whole chunk that was not assigned to a slot."""
        self._reply_unassigned(chunk, chunk.handed_back(), now)

    def _localize_expiry(self, chunk: HeldChunk, body: bytes, sent: float, now: float) -> bytes:
        """Return the body of a chunk with expiry times of this machine's wall clock.

        Jobs expire by the broker's clock. A difference that a time service would correct is
        ignored. Since the transit time of a chunk is not known, the fastest recent chunk determines
        the broker's time.
        """
        behind, measured_at = self._broker_lag
        if now - sent < behind or now - measured_at > SETTLED:
            behind = now - sent
            self._broker_lag = behind, now
        ahead = self._clock.now() - (now - behind)
        differs = abs(ahead) > STEP
        if differs and not self._clock_differs:
            text = "the clock of this worker differs by %s from the broker's, by which jobs expire"
            _log.warning(text, format_seconds(ahead))
        self._clock_differs = differs
        return move_expiry(body, chunk.index, ahead) if differs else body

    def _assign(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Assign a chunk to a slot."""
        chunk.slot = self._slots.choose(now)
        self._held_chunks.add(chunk)
        self._pool.assign(chunk.slot, chunk.number, body, chunk.end)

    def _reply_unassigned(self, chunk: HeldChunk, rows: Sequence[OutcomeRow], now: float) -> None:
        """Answer a chunk that was not assigned to a slot."""
        self._held_chunks.give_up(chunk)
        self._session.reply(chunk, encode_outcomes(rows), now)

    def _hand_back_waiting(self, now: float) -> None:
        """Hand back the chunks that wait for an answer of the broker, or for their inputs."""
        for chunk in (*self._suspects.take_all(), *self._inputs.take_all()):
            self._hand_back_whole(chunk, now)

    def _jobs_ended(self, event: JobsEnded, now: float) -> None:
        chunk = self._held_chunks.answer(event.slot, event.chunk, event.count, event.positions)
        if chunk is None:
            _log.error("slot %d answered chunk %d, which it does not have", event.slot, event.chunk)
            return
        self._slots.jobs_ended(event, now)
        self._session.reply(chunk, event.outcomes, now)

    def _slot_died(self, event: SlotDied, now: float) -> None:
        """Answer the jobs that were lost with a slot.

        One job may have killed its process, or was being stopped. It is known which one if it was
        running, or was the only one that had started; other started jobs had ended before it. If it
        is not known, any of the started jobs may be the cause. Jobs that had not started are handed
        back.
        """
        slot = event.slot
        self._slots.slot_died(slot)
        killed = self._watchdog.slot_ended(slot)
        withdrawn = self._held_chunks.remove_lost(event)
        other_jobs = sum(len(part) for _, part in withdrawn) - 1
        culprit, started = _find_culprit(event, withdrawn)
        cause_known = killed or culprit is not None
        for chunk, positions in withdrawn:
            rows = [
                self._watchdog.outcome(slot, chunk, position, now, killed=killed)
                or self._loss(
                    event,
                    chunk,
                    position,
                    culprit=None if killed else culprit,
                    cause_known=cause_known,
                    started=started,
                    other_jobs=other_jobs,
                )
                for position in positions
            ]
            self._session.reply(chunk, encode_outcomes(rows), now)
        if not cause_known and started:
            names = [
                joblog.id_and_task(chunk.index, position)
                for chunk, positions in reversed(withdrawn)
                for position in positions
                if (chunk.number, position) in started
            ]
            joblog.lost(_exit_report(event), names, other_jobs + 1 - len(started))
        self._watchdog.clear(slot)

    def _loss(
        self,
        event: SlotDied,
        chunk: HeldChunk,
        position: int,
        *,
        culprit: tuple[int, int] | None,
        cause_known: bool,
        started: set[tuple[int, int]],
        other_jobs: int,
    ) -> OutcomeRow:
        """Return the outcome of a job whose slot died.

        Args:
            event: The death of the slot.
            chunk: Chunk of the job.
            position: Position of the job in the chunk.
            culprit: The job to which the death is charged, None if there is none.
            cause_known: Whether the culprit is known, or the worker itself killed the slot.
            started: The jobs that had started and were not answered.
            other_jobs: Number of other jobs of the slot.
        """
        lost_job = chunk.number, position
        if lost_job != culprit and lost_job not in started:
            return OutcomeRow(position, OutcomeKind.HANDED_BACK)
        reason = _exit_report(event)
        error = encode_error(RemoteError("eventmq.errors.WorkerLost", reason))
        if lost_job != culprit:
            kind = OutcomeKind.UNANSWERED if cause_known else OutcomeKind.LOST
            return OutcomeRow(position, kind, content_type=ERROR_TYPE, result=error)
        joblog.died(reason, chunk.index, position, other_jobs)
        return OutcomeRow(position, OutcomeKind.DIED, content_type=ERROR_TYPE, result=error)

    def _cancel(self, job: str, delivery: str, now: float) -> None:
        """Cancel a job; hand back the jobs that wait in its slot."""
        if not self._session.owned:
            self.ignore_old_owner()
            return
        number = int(delivery) if delivery.isdecimal() else -1
        chunk = self._suspects.cancel(job, number) or self._inputs.cancel(job, number)
        if chunk is not None:
            self._reply_unassigned(chunk, _cancelled(chunk, range(chunk.end), job), now)
            return
        match = self._held_chunks.find(job, number)
        if match is None:
            return
        chunk, position = match
        for withdrawn, positions in self._held_chunks.withdraw(
            chunk.slot, self._pool.take_back(chunk.slot)
        ):
            rows = _cancelled(withdrawn, positions, job)
            self._session.reply(withdrawn, encode_outcomes(rows), now)
        slot = self._slots.slot_of(chunk, position)
        # If the job was not withdrawn, it has started.
        if slot is not None and position in self._held_chunks.open_positions(chunk):
            self._watchdog.cancel(slot, chunk, position, now)

    def _take_back(self, slot: int, now: float) -> None:
        if self._held_chunks.jobs[slot]:
            self._hand_back(self._held_chunks.withdraw(slot, self._pool.take_back(slot)), now)

    def _hand_back(self, withdrawn: list[tuple[HeldChunk, Sequence[int]]], now: float) -> None:
        for chunk, positions in withdrawn:
            rows = [OutcomeRow(position, OutcomeKind.HANDED_BACK) for position in positions]
            self._session.reply(chunk, encode_outcomes(rows), now)

    def _enforce(self, now: float) -> None:
        """Kill the slots of jobs past their time limit, and of cancelled ones that did not end."""
        for slot in self._watchdog.tick(now):
            if self._slots.mark_killed(slot):
                self._take_back(slot, now)
            self._watchdog.kill(slot)

    def _scale(self, now: float, scaler: Autoscaler) -> None:
        """Use more slots, or one less if the last one is idle."""
        slots = self._slots
        scaler.record(now, slots.busy)
        if scaler.size > slots.active:
            slots.active = scaler.size
        elif scaler.size < slots.active and slots.can_shrink():
            slots.active -= 1
        else:
            return
        _log.info("using %d of %d slots", slots.active, self._pool.slots)
        self._pool.scale(slots.active)

    # Shutdown

    def _drain(self, now: float, until: float) -> None:
        if any(self._held_chunks.jobs):
            self.overdue = now >= until
            return
        if self._await_acks_until is None:
            self._await_acks_until = now + LAST_ACKS
        if not self._session.replies or now >= self._await_acks_until:
            self.finish()

    def finish(self) -> None:
        """End now, even with unanswered jobs. Idempotent."""
        if not self.done:
            self.done = True
            self._session.leave()
