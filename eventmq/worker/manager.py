"""The job manager: the state machine of a worker between one broker and its pool.

Messages, pool events and the time go in, messages come out (`JobManager.take_outbox`), and the
pool is told what to run. It knows no socket and reads no clock but for the text of a HEARTBEAT
and for when jobs expire; ``now`` is monotonic seconds, the same clock as the pool's. `runner` owns
what is real.

A chunk is held from its arrival until the broker has acknowledged the last of its answers. READY
and HEARTBEAT say what is held, so that whatever the network loses is missed by the broker.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.errors import ProtocolError
from eventmq.execution import joblog
from eventmq.headers import parse_headers
from eventmq.interfaces import JobsEnded, PartsYielded, SlotDied
from eventmq.job import OutcomeKind
from eventmq.timekeeping import SETTLED, STEP, say_seconds
from eventmq.wire import commands
from eventmq.wire.batches import ASK, NOW, OutcomeRow, decode_chunk, encode_outcomes, move_expiry
from eventmq.wire.features import parse_waiting
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq.worker.chunks import HeldChunk, Ledger
from eventmq.worker.inputs import Inputs, is_paged
from eventmq.worker.session import Session
from eventmq.worker.slots import Autoscaler, SharedLedger, SharedSlots, Slots, Wanted
from eventmq.worker.streams import Streams
from eventmq.worker.suspects import Suspects
from eventmq.worker.watchdog import Watchdog, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.clock import Clock
    from eventmq.interfaces import PoolEvent, WorkerPool
    from eventmq.worker.inputs import Spool
    from eventmq.worker.session import SessionInfo
    from eventmq.worker.watchdog import TimeoutPolicy

__all__ = ["JobManager"]

_log = logging.getLogger(__name__)

#: Seconds that a worker which ends waits for the broker's last ACKs.
SETTLE = 5.0

#: What a worker wants that ends.
NOTHING = Wanted(0)

_HANDED_BACK = int(OutcomeKind.HANDED_BACK)
_CANCELLED = int(OutcomeKind.CANCELLED)
_DIED = int(OutcomeKind.DIED)
_LOST = int(OutcomeKind.LOST)
_UNANSWERED = int(OutcomeKind.UNANSWERED)


def _row(position: int, kind: int, error: bytes = b"") -> OutcomeRow:
    return OutcomeRow(position, kind, 0.0, 0.0, ERROR_TYPE if error else "", error)


def _chunk_of(headers: str) -> int:
    """Return the number of a chunk, 0 for none; mostly it is all that the headers say."""
    name, _, number = headers.partition(":")
    if name == "chunk" and number.isascii() and number.isdigit() and len(number) < 16:  # noqa: PLR2004
        return int(number)
    return parse_headers(headers).chunk


def _sent_at(headers: str) -> float:
    """Return when a chunk was sent, by the broker's clock; 0.0 where that cannot be read."""
    text = headers.partition(f",{NOW}:")[2].partition(",")[0]
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else 0.0
    except ValueError:
        return 0.0


def _last_words(event: SlotDied) -> str:
    """Return how a process ended, for people."""
    last, most = (f"{size / 2**20:.0f} MiB" for size in (event.rss, event.peak))
    if event.rss:
        memory = f"; it last had {last} of memory"
        if event.peak > event.rss:
            memory += f", {most} at most"
    else:
        memory = f"; it had at most {most} of memory" if event.peak else ""
    return event.reason + memory


def _suspects(
    event: SlotDied, taken: Sequence[tuple[HeldChunk, Sequence[int]]]
) -> tuple[tuple[int, int] | None, set[tuple[int, int]]]:
    """Return which job killed a slot, None where that is not certain, and all that had started.

    Args:
        event: The slot's end.
        taken: What was lost with it, the last chunk first.
    """
    lost = [(chunk.number, place) for chunk, places in reversed(taken) for place in places]
    started = set(lost[: event.started])
    running = (event.chunk, event.position)
    if running in lost:
        started.add(running)
    elif len(started) != 1:
        return None, started
    if event.together:
        return None, started
    return (running if running in lost else next(iter(started))), started


class JobManager:
    """One session with its chunks.

    Args:
        info: What INFORM says, and the intervals.
        pool: Runs the jobs; only its ``assign``, ``take_back``, ``running``, ``interrupt``,
            ``credit``, ``kill`` and ``scale`` are used.
        clock: For the text of a HEARTBEAT, and to tell the broker's time from this machine's.
        timeout_policy: Decides the outcome of a job that was stopped at its hard limit; by default
            it fails.
        spool: Keeps inputs that are too large for a REQUEST; without it such a job fails.

    Attributes:
        overdue: The grace has passed: kill what runs, then call `interrupted`.
        done: Everything is said: send the outbox and close.
    """

    def __init__(
        self,
        info: SessionInfo,
        *,
        pool: WorkerPool,
        clock: Clock,
        timeout_policy: TimeoutPolicy = fail,
        spool: Spool | None = None,
    ) -> None:
        self.overdue = False
        self.done = False
        self._info = info
        self._pool = pool
        self._ledger = SharedLedger() if pool.shared else Ledger(pool.slots)
        self._session = Session(info, self._ledger, clock, pages=spool is not None)
        self._streams = Streams(self._session, self._ledger, pool)
        self._inputs = Inputs(self._session, self._ledger, spool, self._start, self._not_started)
        self._asking = Suspects(self._session, self._ledger, self._begin, self._back)
        self._watchdog = Watchdog(pool, self._ledger, timeout_policy, info.cancel_grace)
        kind = SharedSlots if pool.shared else Slots
        self._slots = kind(pool, self._ledger, self._watchdog, info.slots or pool.slots)
        self._scaler = Autoscaler(info.slots, pool.slots) if info.slots else None
        self._clock = clock
        #: How far the broker's time is behind the monotonic one, and when that was found.
        self._behind = 0.0, float("-inf")
        self._differs = False
        self._drain_until: float | None = None
        self._settle_until: float | None = None

    @property
    def online(self) -> bool:
        """Whether the broker has acknowledged the session."""
        return self._session.online

    @property
    def lost(self) -> bool:
        """Whether the broker was silent for too long: connect anew, then call `connected`."""
        return self._session.lost

    @property
    def idle(self) -> bool:
        """Whether the session holds nothing."""
        return not self._ledger.chunks

    @property
    def wanted(self) -> Wanted:
        """How much there is room for in total."""
        return NOTHING if self._drain_until is not None else self._slots.wanted

    # What comes in

    def connected(self, now: float) -> None:
        """Take note of a new connection, and inform the broker."""
        self._session.connected(now)

    def receive(self, frames: Sequence[bytes], now: float) -> None:
        """Take a message of the broker."""
        self._session.heard(now)
        try:
            match commands.decode(frames):
                case commands.Request() as request:
                    self._receive_chunk(request, now)
                case commands.Ack() as ack:
                    self._session.receive_ack(ack, now, self.wanted)
                case commands.Error() as error:
                    self._refused(error, now)
                case commands.Reply() as reply:
                    self._replied(reply, now)
                case commands.Kbai():
                    _log.debug("the broker goes away; waiting for it to come back")
                    self._session.inform(now)
                case commands.Disconnect():
                    _log.info("the broker asks this worker to end")
                    self.terminate(now)
                case commands.Cancel(job=job, delivery=delivery):
                    self._cancel(job, delivery, now)
                case commands.Credit() as credit:
                    self._streams.credited(credit)
                case commands.Heartbeat(status=status):
                    if status is not None and self._scaler is not None:
                        self._scaler.waiting = parse_waiting(status)
                case other:
                    _log.warning("the broker sent %s, not for workers", type(other).__name__)
        except (ProtocolError, UnicodeDecodeError) as error:
            _log.warning("the broker sent a message that cannot be read: %s", error)

    def pool_events(self, events: Sequence[PoolEvent], now: float) -> None:
        """Take what happened in the pool."""
        for event in events:
            if isinstance(event, JobsEnded):
                self._answered(event, now)
            elif isinstance(event, SlotDied):
                self._died(event, now)
            elif isinstance(event, PartsYielded):
                self._streams.streamed(event)
            else:
                self._streams.progressed(event)

    def tick(self, now: float) -> None:
        """Do what is due. Call it in every turn, and when `wait` says."""
        for slot in self._slots.look(now):
            self._take_back(slot, now)
        self._enforce(now)
        if self._scaler is not None and self._drain_until is None:
            self._scale(now, self._scaler)
        if self._drain_until is not None:
            self._drain(now, self._drain_until)
        self._streams.tick(now)
        self._asking.tick(now)
        self._inputs.tick(now)
        if not self.done:
            self._session.tick(now, self.wanted)

    def terminate(self, now: float) -> None:
        """Take no new jobs, hand back what has not started, end when the rest is done.

        Idempotent.
        """
        if self._drain_until is not None:
            return
        _log.info("ending: no new jobs; what runs has %g s", self._info.shutdown_grace)
        self._drain_until = now + self._info.shutdown_grace
        self._unfetched(now)
        for slot in range(len(self._ledger.jobs)):
            self._take_back(slot, now)
        self._drain(now, self._drain_until)

    def interrupted(self, now: float) -> list[tuple[str, str]]:
        """Take note that what ran was killed: it goes back, as a delivery that does not count.

        Returns:
            Id and task of the jobs that ran.
        """
        self.overdue = False
        self._unfetched(now)
        ran = []
        for slot in range(len(self._ledger.jobs)):
            taken = self._ledger.take_all(slot)
            ran += [
                joblog.named(chunk.index, place) for chunk, place in self._ledger.started(taken)
            ]
            self._hand_back(taken, now)
        return ran

    # What goes out

    def take_outbox(self) -> list[list[bytes]]:
        """Return the messages to send, in order, and forget them: what is lost is sent again."""
        outbox, self._session.outbox = self._session.outbox, []
        return outbox

    def wait(self, now: float) -> float:
        """Return in how many seconds `tick` has something to do."""
        due = min(self._session.due(), self._watchdog.due(), self._inputs.due())
        due = min(due, self._asking.due())
        if self._drain_until is not None:
            due = min(due, self._settle_until or self._drain_until)
        return max(0.0, min(due, self._slots.look_due()) - now)

    # Chunks

    def _replied(self, reply: commands.Reply, now: float) -> None:
        if not self._asking.replied(reply, now):
            self._inputs.replied(reply, now)

    def _refused(self, error: commands.Error, now: float) -> None:
        if not self._asking.refused(error, now) and not self._inputs.refused(error, now):
            self._session.receive_error(error, now)

    def _receive_chunk(self, request: commands.Request, now: float) -> None:
        number = _chunk_of(request.headers)
        if not number:
            raise ProtocolError("a REQUEST to this worker needs the header chunk")
        if number <= self._ledger.received:
            return
        self._ledger.received = number
        chunk = HeldChunk(number, request.id, decode_chunk(request.body), 0)
        body = self._in_own_time(chunk, request, now)
        if self._drain_until is not None:
            self._ledger.add(chunk)
            self._hand_back(self._ledger.take(chunk.slot, chunk.end), now)
        elif f",{ASK}:" in request.headers:
            self._asking.ask(chunk, body, now)
        else:
            self._begin(chunk, body, now)

    def _begin(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Start a chunk, once what its jobs take is there."""
        if is_paged(chunk.index):
            self._inputs.begin(chunk, body, now)
        else:
            self._start(chunk, body, now)

    def _back(self, chunk: HeldChunk, now: float) -> None:
        """Hand back a chunk that no slot was given."""
        rows = [_row(position, _HANDED_BACK) for position in range(chunk.end)]
        self._not_started(chunk, rows, now)

    def _in_own_time(self, chunk: HeldChunk, request: commands.Request, now: float) -> bytes:
        """Return the body of a chunk whose jobs expire by this machine's wall clock.

        The broker's counts. A clock that differs from it by no more than a time service corrects
        is taken for the same. What a chunk travelled is not known: the one that took the least
        time lately says how late it is at the broker.
        """
        sent = _sent_at(request.headers) if f",{NOW}:" in request.headers else 0.0
        if not sent:
            return request.body
        behind, noted = self._behind
        if now - sent < behind or now - noted > SETTLED:
            behind = now - sent
            self._behind = behind, now
        ahead = self._clock.now() - (now - behind)
        differs = abs(ahead) > STEP
        if differs and not self._differs:
            text = "the clock of this worker differs by %s from the broker's, by which jobs expire"
            _log.warning(text, say_seconds(ahead))
        self._differs = differs
        return move_expiry(request.body, chunk.index, ahead) if differs else request.body

    def _start(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Give a chunk to a slot."""
        chunk.slot = self._slots.best(now)
        self._ledger.add(chunk)
        self._pool.assign(chunk.slot, chunk.number, body, chunk.end)

    def _not_started(self, chunk: HeldChunk, rows: Sequence[OutcomeRow], now: float) -> None:
        """Answer for a chunk that no slot was given."""
        self._ledger.give_up(chunk)
        self._session.reply(chunk, encode_outcomes(rows), now)

    def _unfetched(self, now: float) -> None:
        """Hand back what waits for the broker's word, or for what it takes."""
        for chunk in (*self._asking.take_all(), *self._inputs.take_all()):
            self._back(chunk, now)

    def _answered(self, event: JobsEnded, now: float) -> None:
        chunk = self._ledger.answer(event.slot, event.chunk, event.count, event.positions)
        if chunk is None:
            _log.error("slot %d answers chunk %d, which it has not", event.slot, event.chunk)
            return
        self._slots.answered(event, now)
        self._session.reply(chunk, event.outcomes, now)

    def _died(self, event: SlotDied, now: float) -> None:
        """Answer for what a slot has lost.

        One job may have killed its process, or was to be stopped. Which one it was is certain where
        it was running, or was the only one that had started: others that had started ended before
        it. Where it is not certain, it may be each that had started. What had not goes back.
        """
        slot = event.slot
        self._slots.died(slot)
        ours = self._watchdog.ended(slot)
        taken = self._ledger.lose(event)
        others = sum(len(part) for _, part in taken) - 1
        culprit, started = _suspects(event, taken)
        known = ours or culprit is not None
        for chunk, positions in taken:
            rows = [
                self._watchdog.outcome(slot, chunk, position, now, killed=ours)
                or self._loss(
                    event,
                    chunk,
                    position,
                    culprit=None if ours else culprit,
                    known=known,
                    started=started,
                    others=others,
                )
                for position in positions
            ]
            self._session.reply(chunk, encode_outcomes(rows), now)
        if not known and started:
            joblog.lost(_last_words(event), len(started), others + 1 - len(started))
        self._watchdog.forget(slot)

    def _loss(
        self,
        event: SlotDied,
        chunk: HeldChunk,
        position: int,
        *,
        culprit: tuple[int, int] | None,
        known: bool,
        started: set[tuple[int, int]],
        others: int,
    ) -> OutcomeRow:
        """Return the outcome of a job whose slot died.

        Args:
            event: The slot's end.
            chunk: The job's.
            position: The job's, in the chunk.
            culprit: The job that is charged, None where none is.
            known: Whether the cause is known: the culprit, or that the slot was stopped.
            started: What had started, and was not answered.
            others: How many the slot had beside the job.
        """
        place = chunk.number, position
        if place != culprit and place not in started:
            return _row(position, _HANDED_BACK)
        reason = _last_words(event)
        error = encode_error(RemoteError("eventmq.errors.WorkerLost", reason))
        if place != culprit:
            return _row(position, _UNANSWERED if known else _LOST, error)
        joblog.died(reason, chunk.index, position, others)
        return _row(position, _DIED, error)

    def _cancel(self, job: str, delivery: str, now: float) -> None:
        """End a job. Those that wait beside it go back: they are withdrawn together."""
        number = int(delivery) if delivery.isdecimal() else -1
        chunk = self._asking.cancel(job, number) or self._inputs.cancel(job, number)
        if chunk is not None:
            kinds = [_CANCELLED if e.id == job else _HANDED_BACK for e in chunk.index.entries]
            self._not_started(chunk, [_row(*pair) for pair in enumerate(kinds)], now)
            return
        chunk = self._ledger.find(job, number)
        if chunk is None:
            return
        for taken, positions in self._ledger.take(chunk.slot, self._pool.take_back(chunk.slot)):
            entries = taken.index.entries
            kinds = [_CANCELLED if entries[p].id == job else _HANDED_BACK for p in positions]
            rows = [_row(*pair) for pair in zip(positions, kinds, strict=True)]
            self._session.reply(taken, encode_outcomes(rows), now)
        for position in self._ledger.open(chunk):  # it has started, then
            entry = chunk.index.entries[position]
            if (entry.id, entry.delivery) == (job, number):
                slot = self._slots.slot_of(chunk, position)
                if slot is not None:
                    self._watchdog.cancel(slot, chunk, position, now)

    def _take_back(self, slot: int, now: float) -> None:
        if self._ledger.jobs[slot]:
            self._hand_back(self._ledger.take(slot, self._pool.take_back(slot)), now)

    def _hand_back(self, taken: list[tuple[HeldChunk, Sequence[int]]], now: float) -> None:
        for chunk, positions in taken:
            rows = [_row(position, _HANDED_BACK) for position in positions]
            self._session.reply(chunk, encode_outcomes(rows), now)

    def _enforce(self, now: float) -> None:
        """Stop what has run into its limit, or was cancelled and did not obey."""
        for slot in self._watchdog.tick(now):
            if self._slots.doomed(slot):
                self._take_back(slot, now)
            self._watchdog.kill(slot)

    def _scale(self, now: float, scaler: Autoscaler) -> None:
        """Use more slots, or fewer: the last of them, when it is idle."""
        slots = self._slots
        scaler.note(now, slots.busy)
        if scaler.size > slots.active:
            slots.active = scaler.size
        elif scaler.size < slots.active and slots.may_retire():
            slots.active -= 1
        else:
            return
        _log.info("using %d of %d slots", slots.active, self._pool.slots)
        self._pool.scale(slots.active)

    # The end

    def _drain(self, now: float, until: float) -> None:
        if any(self._ledger.jobs):
            self.overdue = now >= until
            return
        if self._settle_until is None:
            self._settle_until = now + SETTLE
        if not self._session.replies or now >= self._settle_until:
            self.finish()

    def finish(self) -> None:
        """End now, whatever is open. Idempotent."""
        if not self.done:
            self.done = True
            self._session.leave()
