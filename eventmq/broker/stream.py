"""One stream: the parts that its slowest reader has not taken, and how far each reader is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from eventmq.wire.streams import WINDOW, WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.broker.peers import Peer, Session
    from eventmq.headers import Headers
    from eventmq.wire.streams import PartHead

    #: What a batch says of itself, the same as it came, and its parts.
    Kept = tuple[PartHead, str, bytes]

__all__ = ["IDLE", "Reader", "Stream"]

#: Seconds without a reader after which parts are discarded, unless the task says otherwise.
IDLE = 60.0


class Reader:
    """One call ``stream`` of a peer.

    Attributes:
        peer: Who reads.
        call: Message id of the call.
        delivery: Which run of the job it reads, 0 for any.
        taken: Index that follows the last part that it has taken.
        sent: Index that follows the last part that was sent to it.
    """

    __slots__ = ("call", "delivery", "peer", "sent", "taken")

    def __init__(self, peer: Peer, call: str, delivery: int, taken: int) -> None:
        self.peer = peer
        self.call = call
        self.delivery = delivery
        self.taken = self.sent = taken

    def restart(self, head: PartHead) -> bool:
        """Go to the first part of a run; return False if parts before it are missing."""
        if self.delivery not in {0, head.delivery}:
            self.taken = 0
        elif not self.delivery:
            self.taken = head.first
        self.delivery = head.delivery
        self.sent = self.taken
        return self.taken >= head.first


class Stream:
    """The parts of one run of a job.

    Attributes:
        job_id: Of the job.
        delivery: Which run; 0 while no part has come.
        base: Index of the first part that is kept.
        end: Index that follows the last one.
        size: Bytes that are kept.
        readers: By (peer, call).
        session: Whose worker makes the parts.
        ended: The job has ended.
        idle_since: Since when nobody reads.
        idle: Seconds without a reader after which the parts are discarded.
        patient: The task has said so itself.
        cancels: The job is cancelled then.
        replayable: Each run makes the same parts.
    """

    __slots__ = (
        "_kept", "base", "cancels", "delivery", "end", "ended", "idle", "idle_since", "job_id",
        "patient", "readers", "replayable", "session", "size",
    )  # fmt: skip

    def __init__(self, job_id: str, now: float) -> None:
        self.job_id = job_id
        self.delivery = self.base = self.end = self.size = 0
        self.readers: dict[tuple[Peer, str], Reader] = {}
        self.session: Session | None = None
        self.ended = self.cancels = self.replayable = self.patient = False
        self.idle = IDLE
        self.idle_since = now
        self._kept: deque[Kept] = deque()

    @property
    def finished(self) -> bool:
        """Whether it has ended and every part was taken."""
        return self.ended and self.base == self.end

    @property
    def full(self) -> bool:
        """Whether the job waits for somebody to take parts."""
        return self.end - self.base >= WINDOW or self.size >= WINDOW_BYTES

    def read_options(self, headers: Headers) -> None:
        """Take what the task says about its streams."""
        self.idle = IDLE if headers.stream_idle is None else headers.stream_idle
        self.patient = headers.stream_idle is not None
        self.cancels = headers.stream_unread == "cancel"
        self.replayable = headers.replayable

    def restart(self, head: PartHead, headers: Headers) -> int:
        """Begin with the parts of another run; return the bytes that are kept no more."""
        freed, self.size = self.size, 0
        self._kept.clear()
        self.delivery = head.delivery
        self.base = self.end = head.first
        self.read_options(headers)
        return freed

    def add(self, head: PartHead, outcome: str, body: bytes) -> None:
        """Keep the next batch."""
        self._kept.append((head, outcome, body))
        self.end = head.end
        self.size += len(body)

    def after(self, index: int) -> Iterator[Kept]:
        """Yield the batches with parts from an index on."""
        if self._kept and self._kept[-1][0].first >= index:  # the usual case: only the last is new
            start = len(self._kept) - 1
            while start and self._kept[start - 1][0].end > index:
                start -= 1
            for place in range(start, len(self._kept)):
                yield self._kept[place]
            return
        yield from [kept for kept in self._kept if kept[0].end > index]

    def join(self, reader: Reader) -> bool:
        """Add a reader; return False if parts that it needs are not kept."""
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
        """Forget what all readers have taken; return the bytes of it, None if nothing is new."""
        taken = min((reader.taken for reader in self.readers.values()), default=self.base)
        if taken <= self.base:
            return None
        self.base = taken
        freed = 0
        while self._kept and self._kept[0][0].end <= taken:
            freed += len(self._kept.popleft()[2])
        self.size -= freed
        return freed
