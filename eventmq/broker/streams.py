"""Streams: parts that workers send and readers receive, and the progress of jobs.

Parts are not stored. The broker sends them to the readers with the deferred sends of the tick in
which they arrive, and keeps them in memory until the slowest reader has acknowledged them; only
then the worker gets new credit. So a stream is bounded from the submission of its job on, with and
without a reader.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, JobState
from eventmq.store.reads import FindJobs
from eventmq.wire.batches import pack
from eventmq.wire.commands import Credit, Reply, read_number, read_text
from eventmq.wire.streams import (
    NO_READER,
    PART,
    WINDOW,
    WINDOW_BYTES,
    PartHead,
    decode_progress,
    format_end,
    parse_progress,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from eventmq.broker.peers import Peer, Session
    from eventmq.broker.state import State
    from eventmq.headers import Headers
    from eventmq.job import JobRecord
    from eventmq.store.reads import JobRow
    from eventmq.store.writes import Finished

    #: A batch of parts: its head, its outcome as sent, and its body.
    _Batch = tuple[PartHead, str, bytes]

__all__ = ["IDLE", "BrokerStream", "Reader", "Streams"]


#: Seconds without a reader after which parts are discarded, unless the task sets another time.
IDLE = 60.0

logger = logging.getLogger("eventmq.broker")

#: Seconds between two scans for streams without a reader.
SCAN_EVERY = 0.5

#: Seconds that a full stream waits for a reader if a peer waits only for the result of its job.
RESULT_ONLY = 1.0

#: Number of jobs for which discarded parts are remembered, and of jobs whose progress is kept.
REMEMBERED = 100_000

#: Text of the error for parts that cannot be read any more: job and reason.
_GONE = "parts of job {!r} were not kept: {}; get() has its result"


class Reader:
    """A peer that reads a stream: one call ``stream``.

    Attributes:
        peer: The peer.
        call: Message id of the call.
        delivery: Delivery of the job that it reads, 0 for any.
        taken: Index after the last part that it has acknowledged.
        sent: Index after the last part that was sent to it.
    """

    __slots__ = ("call", "delivery", "peer", "sent", "taken")

    def __init__(self, peer: Peer, call: str, delivery: int, taken: int) -> None:
        self.peer = peer
        self.call = call
        self.delivery = delivery
        self.taken = self.sent = taken

    def restart(self, head: PartHead) -> bool:
        """Start reading another run; return False if its first parts are missing."""
        if self.delivery not in {0, head.delivery}:
            self.taken = 0
        elif not self.delivery:
            self.taken = head.first
        self.delivery = head.delivery
        self.sent = self.taken
        return self.taken >= head.first


class BrokerStream:
    """The parts of one run of a job that not all readers have acknowledged.

    Attributes:
        job_id: Id of the job.
        delivery: Delivery of the run; 0 before the first part.
        base: Index of the first kept part.
        end: Index after the last kept part.
        size: Bytes of the kept parts.
        readers: Readers by peer and call.
        session: The worker session that sends the parts.
        ended: The job has ended.
        idle_since: Time since which the stream has no reader.
        idle: Seconds without a reader after which the parts are discarded.
        keeps_waiting: The task has set ``idle`` itself.
        cancels: The job is cancelled after ``idle`` seconds without a reader.
        replayable: Each run of the job yields the same parts.
    """

    __slots__ = (
        "_batches", "base", "cancels", "delivery", "end", "ended", "idle", "idle_since", "job_id",
        "keeps_waiting", "readers", "replayable", "session", "size",
    )  # fmt: skip

    def __init__(self, job_id: str, now: float) -> None:
        self.job_id = job_id
        self.delivery = self.base = self.end = self.size = 0
        self.readers: dict[tuple[Peer, str], Reader] = {}
        self.session: Session | None = None
        self.ended = self.cancels = self.replayable = self.keeps_waiting = False
        self.idle = IDLE
        self.idle_since = now
        self._batches: deque[_Batch] = deque()

    @property
    def finished(self) -> bool:
        """Whether the job has ended and every part was acknowledged."""
        return self.ended and self.base == self.end

    @property
    def full(self) -> bool:
        """Whether the job must wait until a reader acknowledges parts."""
        return self.end - self.base >= WINDOW or self.size >= WINDOW_BYTES

    def read_options(self, headers: Headers) -> None:
        """Apply the stream options of the task."""
        self.idle = IDLE if headers.stream_idle is None else headers.stream_idle
        self.keeps_waiting = headers.stream_idle is not None
        self.cancels = headers.stream_unread == "cancel"
        self.replayable = headers.replayable

    def restart(self, head: PartHead, headers: Headers) -> int:
        """Discard the parts and start with another run; return the bytes that this frees."""
        freed, self.size = self.size, 0
        self._batches.clear()
        self.delivery = head.delivery
        self.base = self.end = head.first
        self.read_options(headers)
        return freed

    def add(self, head: PartHead, outcome: str, body: bytes) -> None:
        """Keep another batch."""
        self._batches.append((head, outcome, body))
        self.end = head.end
        self.size += len(body)

    def after(self, index: int) -> Iterator[_Batch]:
        """Yield the batches with parts from an index on."""
        if self._batches and self._batches[-1][0].first >= index:  # usual: only the last is new
            start = len(self._batches) - 1
            while start and self._batches[start - 1][0].end > index:
                start -= 1
            for number in range(start, len(self._batches)):
                yield self._batches[number]
            return
        yield from [batch for batch in self._batches if batch[0].end > index]

    def join(self, reader: Reader) -> bool:
        """Add a reader; return False if parts that it needs are no longer kept."""
        if not reader.delivery:
            reader.delivery, reader.taken = self.delivery, self.base
        elif self.delivery and reader.delivery != self.delivery:
            reader.delivery, reader.taken = self.delivery, 0
        if self.delivery and reader.taken < self.base:
            return False
        reader.sent = reader.taken
        self.readers[reader.peer, reader.call] = reader
        return True

    def advance(self) -> int | None:
        """Forget the parts that all readers have acknowledged; return the bytes, None if none."""
        taken = min((reader.taken for reader in self.readers.values()), default=self.base)
        if taken <= self.base:
            return None
        self.base = taken
        freed = 0
        while self._batches and self._batches[0][0].end <= taken:
            freed += len(self._batches.popleft()[2])
        self.size -= freed
        return freed


class Streams:
    """All streams of a broker.

    Args:
        state: The memory of the broker.
        cancel: Cancels a job, given its id and a reason.
    """

    def __init__(self, state: State, cancel: Callable[[str, str], None]) -> None:
        self.state = state
        self._cancel = cancel
        self.of: dict[str, BrokerStream] = {}
        #: Job -> its progress, as ``info`` shows it.
        self.progress: dict[str, dict[str, Any]] = {}
        #: Job -> the last delivery whose parts were discarded, and why.
        self._discarded: dict[str, tuple[int, str]] = {}
        self._bytes = 0
        self._scanned_at = 0.0
        state.calls["stream"] = self.open

    # From workers

    def reply(self, peer: Peer, message: Reply) -> None:
        """Handle parts, or progress; drop those of a delivery that is not leased."""
        session, outcome, job_id = peer.session, message.outcome or "", message.request or ""
        if session is None or session.legacy:
            self.state.error(peer, message.id, "inform-again", "send INFORM as a worker first")
        elif outcome.startswith(PART):
            if not self._receive(session, job_id, PartHead.parse(outcome), message):
                self.state.error(peer, message.id, "inform-again", "parts before these are missing")
        elif self._leased(session, job_id, parse_progress(outcome)) is not None:
            self._record_progress(job_id, message.result)

    def _record_progress(self, job_id: str, body: bytes) -> None:
        done, total, note = decode_progress(body)
        if len(self.progress) >= REMEMBERED:
            del self.progress[next(iter(self.progress))]
        self.progress[job_id] = {"done": done, "total": total, "note": note, "at": self.state.wall}

    def _leased(self, session: Session, job_id: str, delivery: int) -> JobRecord | None:
        """Return the job if the session holds this delivery of it."""
        entry = self.state.running.get(job_id)
        if entry is None or entry[0] is not session or entry[1].deliveries[entry[2]] != delivery:
            return None
        return entry[1].jobs[entry[2]]

    def _receive(self, session: Session, job_id: str, head: PartHead, message: Reply) -> bool:
        """Handle a batch of parts; return False if earlier ones are missing."""
        stream = self.of.get(job_id)
        job = self._leased(session, job_id, head.delivery)
        if job is None or head.delivery <= self._discarded.get(job_id, (0, ""))[0]:
            self.state.counters["stale_parts"] += head.parts
            same = stream is not None and stream.delivery == head.delivery
            taken = stream.base if stream is not None and same else NO_READER
            self._credit(session, job_id, head.delivery, taken)
            return True
        if stream is None:
            stream = self._new(job_id)
        stream.session = session
        if head.delivery > stream.delivery:
            self._restart(stream, head, job)
        if head.first > stream.end:
            return False
        if head.first < stream.end:  # the worker has sent it again
            self._credit(session, job_id, head.delivery, stream.base)
            return True
        self._accept(stream, head, message)
        return True

    def _new(self, job_id: str) -> BrokerStream:
        if len(self.of) >= self.state.limits.max_streams:
            idle = [stream for stream in self.of.values() if not stream.readers]
            if idle:
                oldest = min(idle, key=lambda stream: stream.idle_since)
                self._discard(oldest, "the broker had too many streams")
        stream = self.of[job_id] = BrokerStream(job_id, self.state.now)
        return stream

    def _restart(self, stream: BrokerStream, head: PartHead, job: JobRecord) -> None:
        """Start with the parts of another run, which readers recognise by its delivery."""
        self._bytes -= stream.restart(head, parse_headers(job.headers))
        for reader in list(stream.readers.values()):
            if not reader.restart(head):
                self._refuse(stream, reader, "they were lost with a restart of the broker")

    # hot loop: python -m benchmarks stream
    def _accept(self, stream: BrokerStream, head: PartHead, message: Reply) -> None:
        limits, size = self.state.limits, len(message.result)
        if stream.end - stream.base > limits.stream_parts or stream.size > limits.stream_bytes:
            self._discard(stream, "its worker has sent more than the window")
            return
        if self._bytes + size > limits.max_stream_bytes and not self._make_room(stream, size):
            self._discard(stream, "the broker has no room for more")
            return
        self._bytes += size
        stream.add(head, message.outcome or "", message.result)
        for reader in stream.readers.values():
            self._forward(stream, reader)

    def _make_room(self, stream: BrokerStream, size: int) -> bool:
        """Discard the streams that have had no reader for the longest time."""
        idle = [s for s in self.of.values() if not s.readers and s.size and s is not stream]
        for other in sorted(idle, key=lambda s: s.idle_since):
            self._discard(other, "the broker had no room for more")
            if self._bytes + size <= self.state.limits.max_stream_bytes:
                return True
        return False

    def _credit(self, session: Session, job_id: str, delivery: int, taken: int) -> None:
        if session.peer is not None:
            state = self.state
            message = Credit(state.message_id(), job_id, str(delivery), str(taken))
            state.send(session.peer, message.frames())

    # Readers

    def open(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        """Handle the call ``stream``: add a reader."""
        job_id = read_text(arguments, "id")
        reader = Reader(
            peer, call, read_number(arguments, "delivery"), read_number(arguments, "taken")
        )
        if len(peer.streams) >= self.state.limits.max_subscriptions:
            raise ProtocolError(
                f"this peer reads {len(peer.streams)} streams already", code="too-many"
            )

        def settle(stored: Mapping[str, JobRow]) -> None:
            if self.state.peers.get(peer.key) is not peer:
                return
            rows = {**self.state.transient.find([job_id], self.state.now), **stored}
            try:
                self._add_reader(reader, job_id, rows.get(job_id))
            except ProtocolError as error:
                self.state.error(peer, call, error.code, str(error))

        self.state.write(FindJobs([job_id]), settle)

    def _add_reader(self, reader: Reader, job_id: str, known: JobRow | None) -> None:
        if known is None:
            raise ProtocolError(f"no job with id {job_id!r}", code="job-not-found")
        stream, job = self.of.get(job_id), known.job
        ended = job.state in TERMINAL
        if job_id in self._discarded and (
            ended or self._running_delivery(job_id) == self._discarded[job_id][0]
        ):
            raise ProtocolError(_GONE.format(job_id, self._discarded[job_id][1]), code="parts-gone")
        row = (job_id, job.state.value, known.content_type, known.result)
        headers = parse_headers(job.headers)
        if stream is None:
            if ended and job.state is JobState.SUCCEEDED:
                raise self._without_parts(job)
            if not ended and len(self.of) >= self.state.limits.max_streams:
                raise ProtocolError("the broker has too many streams", code="too-many")
            stream = BrokerStream(job_id, self.state.now)
            if not ended:
                self.of[job_id] = stream
        stream.read_options(headers)
        if not stream.join(reader):
            raise ProtocolError(_GONE.format(job_id, "they were taken"), code="parts-gone")
        reader.peer.streams[reader.call] = job_id
        start = {"delivery": stream.delivery, "base": stream.base, "replayable": stream.replayable}
        self.state.reply(reader.peer, pack(start), reader.call, "part")
        self._forward(stream, reader)
        if ended:
            self._end(stream, reader, row)

    def _running_delivery(self, job_id: str) -> int:
        """Return the delivery of a leased job, 0 if the job is not leased."""
        entry = self.state.running.get(job_id)
        return 0 if entry is None else entry[1].deliveries[entry[2]]

    def _forward(self, stream: BrokerStream, reader: Reader) -> None:
        for head, outcome, body in stream.after(reader.sent):
            self.state.reply(reader.peer, body, reader.call, outcome)
            reader.sent = head.end

    def _end(self, stream: BrokerStream, reader: Reader, row: tuple[Any, ...]) -> None:
        outcome = format_end(stream.delivery, stream.end)
        self.state.reply(reader.peer, pack(row), reader.call, outcome)

    @staticmethod
    def _without_parts(job: JobRecord) -> ProtocolError:
        """Return the error for a reader of a job that has succeeded and has no parts."""
        headers = parse_headers(job.headers)
        if headers.stream:
            msg = _GONE.format(job.id, "it has ended, and they were read or had no reader")
            return ProtocolError(msg, code="parts-gone")
        task = f" of task {headers.task!r}" if headers.task else ""
        msg = f"job {job.id!r}{task} has no parts: only generators stream, and parts are not stored"
        return ProtocolError(msg, code="not-a-stream")

    def credit(self, peer: Peer, message: Credit) -> None:
        """Record what a reader has acknowledged, and send the worker new credit."""
        stream = self.of.get(peer.streams.get(message.subject, ""))
        reader = None if stream is None else stream.readers.get((peer, message.subject))
        delivery, taken = message.numbers()
        if stream is None or reader is None or delivery != reader.delivery:
            return
        reader.taken = max(reader.taken, min(taken, stream.end))
        self._advance(stream)

    def _advance(self, stream: BrokerStream) -> None:
        """Forget the parts that all readers have acknowledged, and send the worker credit."""
        freed = stream.advance()
        if freed is None:
            return
        self._bytes -= freed
        if stream.session is not None:
            self._credit(stream.session, stream.job_id, stream.delivery, stream.base)

    def remove_reader(self, peer: Peer, call: str) -> None:
        """Remove a reader; the parts that it has not acknowledged stay for the next one."""
        stream = self.of.get(peer.streams.pop(call, ""))
        if stream is None or stream.readers.pop((peer, call), None) is None:
            return
        if stream.readers:
            self._advance(stream)
            return
        stream.idle_since = self.state.now
        if stream.finished:
            self._forget_parts(stream, "they were read")
        elif not stream.delivery and not stream.ended:
            self._drop(stream)

    def _refuse(self, stream: BrokerStream, reader: Reader, why: str) -> None:
        """End a reader with an ERROR."""
        reader.peer.streams.pop(reader.call, None)
        stream.readers.pop((reader.peer, reader.call), None)
        stream.idle_since = self.state.now
        self.state.error(reader.peer, reader.call, "parts-gone", _GONE.format(stream.job_id, why))

    # Ends

    def ended(self, rows: Iterable[Finished]) -> None:
        """End the streams of jobs that have just ended."""
        for row in rows:
            job = row.job
            self.progress.pop(job.id, None)
            stream = self.of.get(job.id)
            if stream is None:
                continue
            stream.ended = True
            result = row.result if row.ttl > 0 else None
            end = (job.id, row.state.value, row.content_type, result)
            bare = row.state is JobState.SUCCEEDED and not stream.delivery
            bare = bare and not parse_headers(job.headers).stream
            for reader in list(stream.readers.values()):
                if bare:
                    error = self._without_parts(job)
                    self.state.error(reader.peer, reader.call, error.code, str(error))
                else:
                    self._end(stream, reader, end)
            if not stream.readers:
                stream.idle_since = self.state.now
            if bare or not stream.delivery:
                self._drop(stream)

    def _drop(self, stream: BrokerStream) -> None:
        self._bytes -= stream.size
        self.of.pop(stream.job_id, None)
        for reader in stream.readers.values():
            reader.peer.streams.pop(reader.call, None)

    def _forget_parts(self, stream: BrokerStream, why: str) -> None:
        """Forget a stream, and remember why its parts cannot be read."""
        if len(self._discarded) >= REMEMBERED:
            del self._discarded[next(iter(self._discarded))]
        self._discarded[stream.job_id] = (stream.delivery, why)
        self._drop(stream)

    def _discard(self, stream: BrokerStream, why: str) -> None:
        """Discard the parts; the job continues without flow control, and its result is kept."""
        for reader in list(stream.readers.values()):
            self._refuse(stream, reader, why)
        self.state.counters["streams_discarded"] += 1
        logger.info("the parts of job %s are discarded: %s", stream.job_id, why)
        self._forget_parts(stream, why)
        if stream.session is not None:
            self._credit(stream.session, stream.job_id, stream.delivery, NO_READER)

    def _holds_back_a_result(self, stream: BrokerStream) -> bool:
        """Return whether a job waits for a reader while a peer waits for its result."""
        settled = stream.ended or stream.cancels or stream.keeps_waiting
        return not settled and stream.full and stream.job_id in self.state.waiters

    def tick(self) -> None:
        """Discard streams that had no reader for too long, or cancel their jobs."""
        now = self.state.now
        if 0.0 <= now - self._scanned_at < SCAN_EVERY:
            return
        self._scanned_at = now
        for stream in list(self.of.values()):
            if stream.readers:
                continue
            stream.idle_since = min(stream.idle_since, now)
            idle = RESULT_ONLY if self._holds_back_a_result(stream) else stream.idle
            if now - stream.idle_since < idle:
                continue
            why = f"they had no reader for {idle:g} s"
            if stream.ended:
                self._forget_parts(stream, why)
            elif stream.cancels:
                self._drop(stream)
                self._cancel(stream.job_id, why.replace("they", "its stream"))
            else:
                self._discard(stream, why)
