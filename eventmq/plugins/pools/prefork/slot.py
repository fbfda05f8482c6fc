"""The job manager's side of one child: the other ends of its pipes, and its note."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from eventmq.interfaces import JobsEnded, PartsYielded, ProgressReported
from eventmq.plugins.pools.prefork.pipes import (
    FLUSH_AFTER,
    GRANT,
    GRANT_OFFSET,
    NO_PIPES_OFFSET,
    NOTE,
    NOTE_SIZE,
    ORDER,
    ORDER_OFFSET,
    PARTS_HEAD,
    PROGRESS,
    RESULT,
    RUN,
    SKIP,
    WORK,
    ChildPipes,
    PipeWriter,
)

if TYPE_CHECKING:
    import mmap

    from eventmq.interfaces import PoolEvent

__all__ = ["Given", "Slot"]

#: Bytes that the pipes of chunks and results should hold (Linux; 64 KiB otherwise).
PIPE_SIZE = 256 * 1024

#: Bytes of one read: a buffer that malloc keeps at hand (those over 128 KiB are mapped anew).
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


class Given(NamedTuple):
    """A part of a chunk that a child was given."""

    chunk: int
    body: bytes
    jobs: int
    #: Position of the first of them: those before were answered.
    first: int = 0


class Slot:
    """One slot. Its pipes are new for every child, so nothing of a dead one is left.

    Args:
        number: The slot's number.
        notes: Shared with the children.
        keep: Keep what was given until it is answered, for the next child.
    """

    def __init__(self, number: int, notes: mmap.mmap, *, keep: bool = False) -> None:
        self.number = number
        self.pid: int | None = None
        #: A child was asked for and has not ended.
        self.alive = False
        #: It is not used, and has no child.
        self.parked = False
        self.spawned_at = 0.0
        self._keep = keep
        self._notes = notes
        self._offset = number * NOTE_SIZE
        self._open()

    def _open(self) -> None:
        work, work_in = _pipe(size=PIPE_SIZE)
        token, token_in = _pipe()
        result_out, result = _pipe(size=PIPE_SIZE)
        poke, poke_in = _pipe()
        #: The child's ends, until they were passed on.
        self.ends: ChildPipes | None = ChildPipes(work, token, result, poke)
        self.work = PipeWriter(work_in)
        self._tokens = PipeWriter(token_in)
        # One open file with the child's end: so that does not wait either.
        self._token_out = os.dup(token)
        self.result = result_out
        self._poke = poke_in
        for fd in (work_in, token_in, token, result_out, poke_in):
            os.set_blocking(fd, False)
        self._buffer = bytearray()
        #: The last chunk that was answered, and how far.
        self._answered = (0, 0)
        self._poked = (0, -1)
        #: What was given and is not answered, where it is kept.
        self._given: deque[Given] = deque()
        #: How many jobs were given, and neither answered nor taken back.
        self._open_jobs = 0
        #: Bytes of memory that the child had at the last look.
        self.rss = 0
        self.served = False
        #: It is to be killed, or was.
        self.condemned = False
        NOTE.pack_into(self._notes, self._offset, 0, 0, 0.0)
        ORDER.pack_into(self._notes, self._offset + ORDER_OFFSET, 0, 0)
        GRANT.pack_into(self._notes, self._offset + GRANT_OFFSET, 0, 0, 0)
        self._notes[self._offset + NO_PIPES_OFFSET] = 0

    def renew(self) -> None:
        """Open new pipes for the next child."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close everything; a child that lives ends at once. Idempotent."""
        self.passed()
        self.work.close()
        self._tokens.close()
        for fd in (self._token_out, self.result, self._poke):
            if fd >= 0:
                os.close(fd)
        self._token_out = self.result = self._poke = -1

    def passed(self) -> None:
        """Close the child's ends: it has them now."""
        for fd in self.ends or ():
            os.close(fd)
        self.ends = None

    def assign(self, part: Given) -> None:
        """Give the child a part of a chunk: first its tokens, so that it never waits for them."""
        chunk, body, count, first = part
        if self._keep:
            self._given.append(part)
        if first:
            self._answered = (chunk, first)
        self._open_jobs += count
        self._tokens.write(RUN * count)
        self.work.write(WORK.pack(chunk, first, count, len(body)), body)

    def rest(self) -> list[Given] | None:
        """Return what the child was given and left for the next one, None if it was not kept."""
        return list(self._given) if self._keep else None

    def _settled(self, count: int) -> None:
        """Forget the first jobs that are kept: they are answered."""
        given = self._given
        while given and count:
            head = given.popleft()
            part = min(count, head.jobs)
            count -= part
            if part < head.jobs:
                given.appendleft(head._replace(jobs=head.jobs - part, first=head.first + part))

    def _withdrawn(self, count: int) -> None:
        """Forget the last jobs that are kept: they were taken back."""
        given = self._given
        while given and count:
            tail = given.pop()
            part = min(count, tail.jobs)
            count -= part
            if part < tail.jobs:
                given.append(tail._replace(jobs=tail.jobs - part))

    def take_back(self) -> int:
        """Take what has not started; return how many jobs it was."""
        tokens = b""
        while part := self._read(self._token_out, 1 << 16):
            tokens += part
        tokens += self._tokens.take_pending()
        self._tokens.write(SKIP * len(tokens))
        taken = tokens.count(RUN)
        self._open_jobs -= taken
        self._withdrawn(taken)
        return taken

    def started(self) -> int:
        """Return how many jobs a child that has ended had started and not answered.

        For what it was given beyond that it had taken no token.
        """
        self.take_back()
        return self._open_jobs

    @property
    def without_pipes(self) -> bool:
        """Whether the child ended because a job had closed its pipes."""
        return bool(self._notes[self._offset + NO_PIPES_OFFSET])

    def flush(self) -> None:
        """Go on writing what did not fit into the pipes."""
        self._tokens.flush()
        self.work.flush()

    def _read(self, fd: int, size: int) -> bytes:
        try:
            return os.read(fd, size)
        except BlockingIOError:
            return b""

    def answers(self) -> list[PoolEvent]:
        """Read what the child answered since the last call."""
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
                events.append(self._said(count, chunk, int(run_time), outcomes))
                start += length
                continue
            events.append(JobsEnded(self.number, chunk, count, run_time, outcomes))
            before = self._answered[1] if self._answered[0] == chunk else 0
            self._answered = (chunk, before + count)
            self._open_jobs -= count
            self._settled(count)
            start += length
        del buffer[:start]
        self.served = self.served or bool(events)
        return events

    def _said(self, kind: int, chunk: int, position: int, body: bytes) -> PoolEvent:
        """Return what a job said while it runs."""
        if kind == PROGRESS:
            return ProgressReported(self.number, chunk, position, body)
        first, count = PARTS_HEAD.unpack_from(body)
        return PartsYielded(self.number, chunk, position, first, count, body[PARTS_HEAD.size :])

    def credit(self, chunk: int, position: int, taken: int) -> None:
        """Tell the child how many parts of the job that runs were taken."""
        GRANT.pack_into(self._notes, self._offset + GRANT_OFFSET, chunk, position, taken)
        self._poke_child()

    def _poke_child(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # it looks anyway, or is gone
            os.write(self._poke, b"!")

    def note(self) -> tuple[int, int, float]:
        """Return chunk, position and monotonic start of the job that runs, (0, -1, 0.0) if none.

        The child writes without a lock: what was read twice the same was not half written.
        """
        note: tuple[int, int, float] = NOTE.unpack_from(self._notes, self._offset)
        while True:
            again: tuple[int, int, float] = NOTE.unpack_from(self._notes, self._offset)
            if again == note:
                return note if note[2] else (0, -1, 0.0)
            note = again

    def interrupt(self, chunk: int, position: int) -> None:
        """Let the child cancel a job if it is the one that runs."""
        if self.pid is not None and self.note()[:2] == (chunk, position):
            ORDER.pack_into(self._notes, self._offset + ORDER_OFFSET, chunk, position)
            self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child, now or as soon as its process id is known. Idempotent."""
        self.condemned = True
        self.signal(signal.SIGKILL)

    def signal(self, signum: int) -> None:
        """Send the child a signal, if it is there."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def born(self, pid: int) -> None:
        """Take note of the child's process id."""
        self.pid = pid
        if self.condemned:
            self.kill()

    def poke(self) -> None:
        """Ask for outcomes that the running job keeps waiting, once per job."""
        chunk, position, start = self.note()
        if not start or (chunk, position) == self._poked:
            return
        before = self._answered[1] if self._answered[0] == chunk else 0
        if position > before and time.monotonic() - start > FLUSH_AFTER:
            self._poked = (chunk, position)
            self._poke_child()
