"""What travels between the job manager and a child, and writing to a pipe without waiting.

A child has four pipes of its own and a note in shared memory:

- *work*, manager to child: chunks as they came, each after a `WORK` header.
- *token*, manager to child: one byte per job, `RUN` or `SKIP`. The child takes one before each
  job. The manager holds the same read end: what it takes out of the pipe was never started. So
  the kernel decides who was first. It then puts as many `SKIP` in, for the child to pass over.
- *result*, child to manager: outcomes, each frame after a `RESULT` header.
- *poke*, manager to child: a byte asks for outcomes that a long job keeps waiting, and its end
  means that the manager is gone.
- *note*: which job runs since when, written by the child before each call; behind it the
  manager's *order*: which job SIGTERM is to cancel, and its *grant*: how many parts of the job
  that streams were taken, looked at after a poke; and behind these one byte in which the child
  says that a job has closed its pipes.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import NamedTuple

__all__ = [
    "FLUSH_AFTER",
    "GRANT",
    "GRANT_OFFSET",
    "NOTE",
    "NOTE_SIZE",
    "NO_PIPES_OFFSET",
    "ORDER",
    "ORDER_OFFSET",
    "PARTS",
    "PARTS_HEAD",
    "PROGRESS",
    "RESULT",
    "RUN",
    "SKIP",
    "WORK",
    "ChildPipes",
    "PipeWriter",
]

#: Number of the chunk, position of the first job, number of jobs, length of the body.
WORK = Struct("!QIII")

#: Number of the chunk, number of outcomes, seconds that they ran, length of the body.
RESULT = Struct("!QIdI")

#: Instead of the number of outcomes: the body has parts behind a `PARTS_HEAD`, or a progress; the
#: seconds are the position of the job.
PARTS = 0xFFFFFFFF
PROGRESS = 0xFFFFFFFE

#: Index of the first part, number of parts.
PARTS_HEAD = Struct("!QI")

#: Number of the chunk, position of the job, monotonic start in seconds (0.0: nothing runs).
NOTE = Struct("@QQd")

#: Number of the chunk and position of the job that was cancelled, (0, 0) for none.
ORDER = Struct("@QQ")

#: Bytes from a note to the order.
ORDER_OFFSET = 32

#: Number of the chunk, position of the job, number of parts that were taken.
GRANT = Struct("@QQQ")

#: Bytes from a note to the grant.
GRANT_OFFSET = 64

#: Bytes from a note to the byte that is not 0 when a child ended because its pipes were closed.
NO_PIPES_OFFSET = 96

#: Bytes from one child's note to the next: cache lines of its own.
NOTE_SIZE = 128

#: Seconds that a finished outcome waits for others.
FLUSH_AFTER = 0.005

RUN = b"R"
SKIP = b"S"


class ChildPipes(NamedTuple):
    """The child's ends, as descriptors, in the order in which they are passed."""

    work: int
    token: int
    result: int
    poke: int


class PipeWriter:
    """Writes to a non-blocking pipe and keeps what does not fit. One thread.

    A reader that is gone is no error: its end is reported by who started it.
    """

    __slots__ = ("_pending", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pending = bytearray()

    @property
    def pending(self) -> bool:
        """Whether something waits for room in the pipe."""
        return bool(self._pending)

    def write(self, *parts: bytes) -> None:
        """Write now what fits, the rest at the next `flush`."""
        if self._pending:
            self._pending += b"".join(parts)
            return
        try:
            written = os.writev(self.fd, parts)
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            return
        if written < sum(map(len, parts)):
            self._pending += memoryview(b"".join(parts))[written:]

    def flush(self) -> None:
        """Go on writing what did not fit."""
        pending = self._pending
        try:
            while pending:
                del pending[: os.write(self.fd, memoryview(pending)[: 1 << 20])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pending.clear()

    def take_pending(self) -> bytes:
        """Return what was not written yet, and forget it."""
        pending = bytes(self._pending)
        self._pending.clear()
        return pending

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
