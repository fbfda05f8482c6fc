"""Pipes and shared memory between the job manager and a child, and a writer that does not block.

A child has four pipes of its own and a record in shared memory:

- *work*, manager to child: chunks as they came, each after a `WORK` header.
- *token*, manager to child: one byte per job, `RUN` or `SKIP`. The child takes one before each
  job. The manager holds the same read end: a job whose token it takes out of the pipe was never
  started. So the kernel decides who was first. The manager then writes as many `SKIP`, which the
  child passes over.
- *result*, child to manager: outcomes, each frame after a `RESULT` header.
- *wakeup*, manager to child: a byte asks for outcomes that a long job keeps waiting; its end means
  that the manager is gone.
- *record*: which job runs since when, written by the child before each call. After it the manager
  writes *cancel*, the job that SIGTERM is to cancel, and *credit*, how many parts of a stream its
  readers have taken; the child reads that after a wakeup. After these is one byte that the child
  sets where a job has closed its pipes.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import NamedTuple

__all__ = [
    "CANCEL",
    "CANCEL_OFFSET",
    "CREDIT",
    "CREDIT_OFFSET",
    "FLUSH_AFTER",
    "NO_PIPES_OFFSET",
    "PARTS",
    "PARTS_HEAD",
    "PROGRESS",
    "RECORD",
    "RECORD_SIZE",
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

#: Instead of the number of outcomes: the body has parts after a `PARTS_HEAD`, or a progress; the
#: seconds are the position of the job.
PARTS = 0xFFFFFFFF
PROGRESS = 0xFFFFFFFE

#: Index of the first part, number of parts.
PARTS_HEAD = Struct("!QI")

#: Number of the chunk, position of the job, monotonic start in seconds (0.0: nothing runs).
RECORD = Struct("@QQd")

#: Number of the chunk and position of the job that was cancelled, (0, 0) for none.
CANCEL = Struct("@QQ")

#: Bytes from a record to its cancel field.
CANCEL_OFFSET = 32

#: Number of the chunk, position of the job, number of parts that were taken.
CREDIT = Struct("@QQQ")

#: Bytes from a record to its credit field.
CREDIT_OFFSET = 64

#: Bytes from a record to the byte that is not 0 when a child ended because its pipes were closed.
NO_PIPES_OFFSET = 96

#: Bytes of a record: each has cache lines of its own.
RECORD_SIZE = 128

#: Seconds for which an outcome waits for others.
FLUSH_AFTER = 0.005

RUN = b"R"
SKIP = b"S"


class ChildPipes(NamedTuple):
    """The child's ends of its pipes, as descriptors, in the order in which they are passed."""

    work: int
    token: int
    result: int
    wakeup: int


class PipeWriter:
    """Writes to a non-blocking pipe and keeps what does not fit. One thread.

    A reader that is gone is no error: the fork server reports its exit.
    """

    __slots__ = ("_pending", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pending = bytearray()

    @property
    def pending(self) -> bool:
        """Whether bytes wait for space in the pipe."""
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
        """Return the bytes that were not written yet, and drop them."""
        pending = bytes(self._pending)
        self._pending.clear()
        return pending

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
