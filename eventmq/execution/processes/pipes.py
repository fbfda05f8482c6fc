"""Pipes and shared memory between the job manager and a child: their formats.

A child has four pipes of its own and a record in shared memory:

- *work*, manager to child: chunks as the broker sent them, each after a `WORK` header.
- *token*, manager to child: one byte per job, `RUN` or `SKIP`. The child reads one before each
  job. The manager holds the same read end: a job whose token it reads from the pipe was never
  started. So the kernel decides the race. The manager then writes as many `SKIP`, which the child
  discards.
- *result*, child to manager: outcomes, each frame after a `RESULT` header.
- *wakeup*, manager to child: a byte requests outcomes that a long job delays; its end means that
  the manager has ended.
- *record*: the running job and its start, written by the child before each call. After it the
  manager writes *cancel*, the job that SIGTERM cancels, and *credit*, the number of parts of a
  stream that its readers have consumed; the child reads that after a wakeup. The last byte is set
  by the child if a job has closed its pipes.
"""

from __future__ import annotations

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
]

#: Number of the chunk, position of the first job, number of jobs, length of the body.
WORK = Struct("!QIII")

#: Number of the chunk, number of outcomes, total run time in seconds, length of the body.
RESULT = Struct("!QIdI")

#: In place of the number of outcomes: the body has parts after a `PARTS_HEAD`, or a progress; the
#: run time is then the position of the job.
PARTS = 0xFFFFFFFF
PROGRESS = 0xFFFFFFFE

#: Index of the first part, number of parts.
PARTS_HEAD = Struct("!QI")

#: Number of the chunk, position of the job, monotonic start in seconds (0.0: no job runs).
RECORD = Struct("@QQd")

#: Number of the chunk and position of the job that was cancelled, (0, 0) for none.
CANCEL = Struct("@QQ")

#: Bytes from a record to its cancel field.
CANCEL_OFFSET = 32

#: Number of the chunk, position of the job, number of consumed parts.
CREDIT = Struct("@QQQ")

#: Bytes from a record to its credit field.
CREDIT_OFFSET = 64

#: Bytes from a record to the byte that is set when a child ended because its pipes were closed.
NO_PIPES_OFFSET = 96

#: Bytes of a record: each has its own cache lines.
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
