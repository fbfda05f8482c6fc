"""The parts of one running job: numbered, gathered into batches, held back by the window.

It knows no thread and reads no clock; `eventmq.plugins.pools.partsink` puts a lock around it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from eventmq.wire.streams import NO_READER, WINDOW, WINDOW_BYTES, encode_parts

__all__ = ["BATCH_AFTER", "Batch", "PartFlow"]

#: Seconds that a part waits for others, unless nothing was sent for so long.
BATCH_AFTER = 0.005

#: Parts and bytes of one batch, beside the last part.
BATCH_PARTS = 256
BATCH_BYTES = 64 * 1024


class Batch(NamedTuple):
    """Parts that travel together: index of the first, how many, `encode_parts` of them."""

    first: int
    parts: int
    body: bytes


class PartFlow:
    """What a job has yielded and its readers have not taken.

    Attributes:
        unread: Nobody will read the rest: nothing more is sent, and nothing waits.
    """

    def __init__(self) -> None:
        self.unread = False
        self._content_type = ""
        self._waiting: list[bytes] = []
        self._size = 0
        self._next = 0
        self._taken = 0
        self._sent_at = float("-inf")
        self._told = False
        #: (index that follows the last part, bytes) of what was sent and not taken.
        self._out: deque[tuple[int, int]] = deque()
        self._out_bytes = 0

    @property
    def room(self) -> bool:
        """Whether the job may yield another part."""
        return (
            self._next - self._taken < WINDOW and self._out_bytes + self._size < WINDOW_BYTES
        ) or self.unread

    @property
    def waiting(self) -> bool:
        """Whether there are parts that were not sent."""
        return bool(self._waiting)

    def add(self, content_type: str, payload: bytes, now: float) -> list[Batch]:
        """Take a part; return what is to be sent now."""
        if self.unread:
            return []
        batches = []
        if self._waiting and content_type != self._content_type:
            batches.append(self._cut(now))
        self._content_type = content_type
        self._waiting.append(payload)
        self._size += len(payload)
        self._next += 1
        enough = len(self._waiting) >= BATCH_PARTS or self._size >= BATCH_BYTES
        if enough or now - self._sent_at >= BATCH_AFTER or not self.room:
            batches.append(self._cut(now))
        return batches

    def flush(self, now: float) -> list[Batch]:
        """Return what waits."""
        return [self._cut(now)] if self._waiting else []

    def end(self, now: float) -> list[Batch]:
        """Return what waits, or an empty batch if there was none at all: it says so."""
        if self._told or self._waiting or self.unread:
            return self.flush(now)
        return [self._cut(now)]

    def _cut(self, now: float) -> Batch:
        parts, self._waiting = self._waiting, []
        size, self._size = self._size, 0
        self._sent_at = now
        self._told = True
        self._out.append((self._next, size))
        self._out_bytes += size
        return Batch(self._next - len(parts), len(parts), encode_parts(self._content_type, parts))

    def credit(self, taken: int) -> None:
        """Take note of how many parts every reader has taken."""
        if taken >= NO_READER:
            self.unread = True
            self._waiting, self._size = [], 0
        self._taken = max(self._taken, min(taken, self._next))
        while self._out and self._out[0][0] <= self._taken:
            self._out_bytes -= self._out.popleft()[1]
