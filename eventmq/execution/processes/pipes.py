"""Pipes and shared memory between the job manager and a child: what is in them.

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
