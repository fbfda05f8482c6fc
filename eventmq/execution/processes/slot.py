"""Slot of a process pool: the job manager's ends of the pipes of a child, and its record."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from eventmq.execution.processes.pipes import (
    CANCEL,
    CANCEL_OFFSET,
    CREDIT,
    CREDIT_OFFSET,
    FLUSH_AFTER,
    NO_PIPES_OFFSET,
    PARTS_HEAD,
    PROGRESS,
    RECORD,
    RECORD_SIZE,
    RESULT,
    RUN,
    SKIP,
    WORK,
    ChildPipes,
    PipeWriter,
)
from eventmq.interfaces import JobsEnded, PartsYielded, ProgressReported

if TYPE_CHECKING:
    import mmap

    from eventmq.interfaces import PoolEvent

__all__ = ["AssignedJobs", "ProcessSlot"]

#: Bytes that the pipes of chunks and results should hold (Linux; 64 KiB otherwise).
PIPE_SIZE = 256 * 1024

#: Bytes of one read: malloc reuses such a buffer (those over 128 KiB are mapped anew).
READ_SIZE = 64 * 1024


def _pipe(*, size: int = 0) -> tuple[int, int]:
    read, write = os.pipe()
    if size:
        try:
            import fcntl

            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size)
        except (AttributeError, OSError):  # not Linux, or past the user's limit: only slower
            pass
    return read, write


class AssignedJobs(NamedTuple):
    """Jobs of one chunk that were assigned to a child."""

    chunk: int
    body: bytes
    jobs: int
    #: Position of the first of these: the jobs before it were answered.
    first: int = 0


class ProcessSlot:
    """One slot. Its pipes are new for every child, so nothing remains of a dead one.

    Args:
        number: Number of the slot.
        records: Memory that is shared with the children.
        keep: Keep assigned jobs until they are answered, for the next child.
    """

    def __init__(self, number: int, records: mmap.mmap, *, keep: bool = False) -> None:
        self.number = number
        self.pid: int | None = None
        #: A child was asked for and has not exited.
        self.alive = False
        #: The slot is not used, and has no child.
        self.unused = False
        self.spawned_at = 0.0
        self._keep = keep
        self._records = records
        self._offset = number * RECORD_SIZE
        self._open()

    def _open(self) -> None:
        work, work_in = _pipe(size=PIPE_SIZE)
        token, token_in = _pipe()
        result_out, result = _pipe(size=PIPE_SIZE)
        wakeup, wakeup_in = _pipe()
        #: The child's ends of the pipes, until the fork server has them.
        self.ends: ChildPipes | None = ChildPipes(work, token, result, wakeup)
        self.work = PipeWriter(work_in)
        self._tokens = PipeWriter(token_in)
        # One open file with the child's end: so that does not wait either.
        self._token_out = os.dup(token)
        self.result = result_out
        self._wakeup = wakeup_in
        for fd in (work_in, token_in, token, result_out, wakeup_in):
            os.set_blocking(fd, False)
        self._buffer = bytearray()
        #: The last chunk that was answered, and how many of its jobs.
        self._answered = (0, 0)
        self._woken_for = (0, -1)
        #: Assigned jobs that are not answered, where they are kept.
        self._assigned: deque[AssignedJobs] = deque()
        #: How many assigned jobs are neither answered nor withdrawn.
        self._open_jobs = 0
        #: Bytes of memory of the child when it was last measured.
        self.rss = 0
        self.served = False
        #: The child is to be killed, or was.
        self.to_be_killed = False
        RECORD.pack_into(self._records, self._offset, 0, 0, 0.0)
        CANCEL.pack_into(self._records, self._offset + CANCEL_OFFSET, 0, 0)
        CREDIT.pack_into(self._records, self._offset + CREDIT_OFFSET, 0, 0, 0)
        self._records[self._offset + NO_PIPES_OFFSET] = 0

    def renew(self) -> None:
        """Open new pipes for the next child."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close everything; a living child ends at once. Idempotent."""
        self.close_child_ends()
        self.work.close()
        self._tokens.close()
        for fd in (self._token_out, self.result, self._wakeup):
            if fd >= 0:
                os.close(fd)
        self._token_out = self.result = self._wakeup = -1

    def close_child_ends(self) -> None:
        """Close the child's ends of the pipes: the child has them now."""
        for fd in self.ends or ():
            os.close(fd)
        self.ends = None

    def assign(self, part: AssignedJobs) -> None:
        """Assign jobs to the child: first their tokens, so that it never waits for them."""
        chunk, body, count, first = part
        if self._keep:
            self._assigned.append(part)
        if first:
            self._answered = (chunk, first)
        self._open_jobs += count
        self._tokens.write(RUN * count)
        self.work.write(WORK.pack(chunk, first, count, len(body)), body)

    def unanswered(self) -> list[AssignedJobs] | None:
        """Return the unanswered jobs for the next child, None if they are not kept."""
        return list(self._assigned) if self._keep else None

    def _drop_answered(self, count: int) -> None:
        """Drop the first jobs that are kept: they are answered."""
        kept = self._assigned
        while kept and count:
            head = kept.popleft()
            part = min(count, head.jobs)
            count -= part
            if part < head.jobs:
                kept.appendleft(head._replace(jobs=head.jobs - part, first=head.first + part))

    def _drop_withdrawn(self, count: int) -> None:
        """Drop the last jobs that are kept: they were withdrawn."""
        kept = self._assigned
        while kept and count:
            tail = kept.pop()
            part = min(count, tail.jobs)
            count -= part
            if part < tail.jobs:
                kept.append(tail._replace(jobs=tail.jobs - part))

    def take_back(self) -> int:
        """Withdraw the jobs that have not started; return how many."""
        tokens = b""
        while part := self._read(self._token_out, 1 << 16):
            tokens += part
        tokens += self._tokens.take_pending()
        self._tokens.write(SKIP * len(tokens))
        count = tokens.count(RUN)
        self._open_jobs -= count
        self._drop_withdrawn(count)
        return count

    def started(self) -> int:
        """Take back all tokens; return how many jobs an exited child had started and not answered.

        It had taken no token for the other jobs.
        """
        self.take_back()
        return self._open_jobs

    @property
    def without_pipes(self) -> bool:
        """Whether the child ended because a job had closed its pipes."""
        return bool(self._records[self._offset + NO_PIPES_OFFSET])

    def flush(self) -> None:
        """Go on writing what did not fit into the pipes."""
        self._tokens.flush()
        self.work.flush()

    def _read(self, fd: int, size: int) -> bytes:
        try:
            return os.read(fd, size)
        except BlockingIOError:
            return b""

    def take_events(self) -> list[PoolEvent]:
        """Return what the child has sent since the last call."""
        events: list[PoolEvent] = []
        buffer = self._buffer
        while part := self._read(self.result, READ_SIZE):
            buffer += part
            if len(part) < READ_SIZE:
                break
        start, end, head = 0, len(buffer), RESULT.size
        while end - start >= head:
            chunk, count, run_time, length = RESULT.unpack_from(buffer, start)
            if end - start - head < length:
                break
            start += head
            outcomes = bytes(memoryview(buffer)[start : start + length])
            if count >= PROGRESS:
                events.append(self._job_event(count, chunk, int(run_time), outcomes))
                start += length
                continue
            events.append(JobsEnded(self.number, chunk, count, run_time, outcomes))
            before = self._answered[1] if self._answered[0] == chunk else 0
            self._answered = (chunk, before + count)
            self._open_jobs -= count
            self._drop_answered(count)
            start += length
        del buffer[:start]
        self.served = self.served or bool(events)
        return events

    def _job_event(self, kind: int, chunk: int, position: int, body: bytes) -> PoolEvent:
        """Return the pool event for parts or progress of a job."""
        if kind == PROGRESS:
            return ProgressReported(self.number, chunk, position, body)
        first, count = PARTS_HEAD.unpack_from(body)
        return PartsYielded(self.number, chunk, position, first, count, body[PARTS_HEAD.size :])

    def credit(self, chunk: int, position: int, taken: int) -> None:
        """Pass the credit of readers to the running job."""
        CREDIT.pack_into(self._records, self._offset + CREDIT_OFFSET, chunk, position, taken)
        self._wake_child()

    def _wake_child(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # it will wake anyway, or is gone
            os.write(self._wakeup, b"!")

    def record(self) -> tuple[int, int, float]:
        """Return chunk, position and monotonic start of the running job, (0, -1, 0.0) if none.

        The child writes without a lock: a value that was read twice was not half written.
        """
        record: tuple[int, int, float] = RECORD.unpack_from(self._records, self._offset)
        while True:
            again: tuple[int, int, float] = RECORD.unpack_from(self._records, self._offset)
            if again == record:
                return record if record[2] else (0, -1, 0.0)
            record = again

    def interrupt(self, chunk: int, position: int) -> None:
        """Let the child cancel a job, if it is the running one."""
        if self.pid is not None and self.record()[:2] == (chunk, position):
            CANCEL.pack_into(self._records, self._offset + CANCEL_OFFSET, chunk, position)
            self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child, now or as soon as its process id is known. Idempotent."""
        self.to_be_killed = True
        self.signal(signal.SIGKILL)

    def signal(self, signum: int) -> None:
        """Send the child a signal, if it is there."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def set_pid(self, pid: int) -> None:
        """Set the process id of the child; kill it if that was requested before."""
        self.pid = pid
        if self.to_be_killed:
            self.kill()

    def request_flush(self) -> None:
        """Ask for outcomes that the running job keeps waiting, once per job."""
        chunk, position, start = self.record()
        if not start or (chunk, position) == self._woken_for:
            return
        before = self._answered[1] if self._answered[0] == chunk else 0
        if position > before and time.monotonic() - start > FLUSH_AFTER:
            self._woken_for = (chunk, position)
            self._wake_child()
