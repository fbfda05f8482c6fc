"""What runs in a child process: takes chunks from its pipe and runs their jobs one by one.

The order of things around a job, and why: the token first (from then on the job is ours), then
outcomes that wait too long already, then the note (a death is charged to the right job), then the
call. A thread that sleeps in the poke pipe sends finished outcomes while a long job runs, and
ends the process when the manager is gone; while nobody pokes it costs nothing.

A job may close descriptors that are not its own, and others may get their numbers. Before outcomes
are sent, each pipe is compared with what it was; a child without its pipes ends, and leaves a note
of the job that did it where that is certain.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from eventmq.execution.context import current
from eventmq.execution.streaming import cancelled
from eventmq.plugins.pools.part_sink import PartSink, Timer
from eventmq.plugins.pools.prefork.pipes import (
    FLUSH_AFTER,
    GRANT,
    GRANT_OFFSET,
    NO_PIPES_OFFSET,
    NOTE,
    ORDER,
    ORDER_OFFSET,
    PARTS,
    PARTS_HEAD,
    PROGRESS,
    RESULT,
    RUN,
    WORK,
)
from eventmq.wire.batches import OutcomeRow, decode_chunk, encode_outcomes

if TYPE_CHECKING:
    import mmap

    from eventmq.execution.executor import Executor
    from eventmq.execution.streaming import Cancellation, PartBatch
    from eventmq.plugins.pools.prefork.pipes import ChildPipes
    from eventmq.plugins.pools.prefork.recycling import Wear

__all__ = ["Child", "SignalAlarm", "obey_cancels"]


class SignalAlarm:
    """An `Alarm` by setitimer. A task that uses SIGALRM itself loses it.

    Args:
        stop: Says whether the task's own code runs.
    """

    def __init__(self, stop: Cancellation) -> None:
        self._stop = stop
        self._seconds = 0.0

    def arm(self, seconds: float) -> None:
        """Raise `SoftTimeLimitExceeded` in the main thread after so many seconds."""
        self._seconds = seconds
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def disarm(self) -> None:
        """Raise nothing any more."""
        self._seconds = 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _on_alarm(self, *_: object) -> None:
        seconds, self._seconds = self._seconds, 0.0
        if seconds and self._stop.in_task:
            raise self._stop.soft_limit_error()


def obey_cancels(executor: Executor, notes: mmap.mmap, offset: int) -> None:
    """Let SIGTERM cancel the job that the manager's order names.

    Args:
        executor: Of this process.
        notes: Shared with the manager.
        offset: Where in it this child's note is.
    """
    own = os.getpid()

    def on_sigterm(*_: object) -> None:
        chunk, position, start = NOTE.unpack_from(notes, offset)
        order = ORDER.unpack_from(notes, offset + ORDER_OFFSET)
        if not start or order != (chunk, position) or os.getpid() != own:
            return
        if current.get(None) is None:  # it has ended, and the next one is not noted yet
            return
        told = executor.cancel()
        if executor.cancellation.in_task and not told:
            raise cancelled()

    signal.signal(signal.SIGTERM, on_sigterm)


#: Bytes of results that are sent together, at most and beside the last one.
FLUSH_BYTES = 128 * 1024

#: Exit status of a child whose pipes were closed (EX_IOERR of sysexits.h).
NO_PIPES = 74


def _identity(fd: int) -> tuple[int, int]:
    """Return what tells an open file from every other one."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class Child:
    """Runs jobs until the work pipe ends.

    Args:
        executor: Of this process alone.
        pipes: Its ends.
        notes: Shared with the manager.
        offset: Where in it this child's note is.
        wear: Says when the process has served long enough, None for never.
    """

    def __init__(
        self,
        executor: Executor,
        pipes: ChildPipes,
        notes: mmap.mmap,
        offset: int,
        wear: Wear | None = None,
    ) -> None:
        self._executor = executor
        self._pipes = pipes
        self._notes = notes
        self._offset = offset
        self._wear = wear
        self._lock = threading.Lock()
        self._chunk = 0
        self._rows: list[OutcomeRow] = []
        self._flushed = 0.0
        self._disowned = False
        self._identities = [_identity(fd) for fd in pipes]

    def serve(self) -> None:
        """Run jobs; return when the manager wants no more."""
        try:
            self._serve()
        except OSError:
            if self._disowned or self._intact():
                raise
            # A token could be taken before the last job that ran, and not after it.
            self._end_without_pipes(self._rows[-1].position if self._rows else -1)

    def _serve(self) -> None:
        self._executor.start()
        os.register_at_fork(after_in_child=self._disown)
        self._executor.alarm = SignalAlarm(self._executor.cancellation)
        self._sink = PartSink(self._where, self._send_parts, self._send_progress, Timer())
        self._executor.set_sink(self._sink)
        obey_cancels(self._executor, self._notes, self._offset)
        threading.Thread(target=self._watch, name="eventmq-watch", daemon=True).start()
        # Not closed: `serve` looks at it when something fails.
        work = open(self._pipes.work, "rb", buffering=1 << 17, closefd=False)  # noqa: SIM115
        while len(header := work.read(WORK.size)) == WORK.size:
            self._chunk, first, count, length = WORK.unpack(header)
            body = work.read(length)
            if len(body) < length or not self._run_chunk(body, first, first + count):
                break
        self._executor.close()

    # hot loop: benchmarks/pool.py
    def _run_chunk(self, body: bytes, begin: int, end: int) -> bool:
        """Run the jobs of a chunk from one position to another; return whether to go on."""
        chunk = self._chunk
        queue, templates, entries, base = decode_chunk(body)
        routes = self._executor.routes(queue, templates)
        run = self._executor.run
        stop = self._executor.cancellation
        wear = self._wear
        read = os.read
        token = self._pipes.token
        monotonic = time.monotonic
        note = NOTE.pack_into
        notes = self._notes
        offset = self._offset
        rows = self._rows
        append = rows.append
        size = 0
        self._flushed = monotonic()
        for position, entry in enumerate(entries[begin:end], begin):
            try:
                permit = read(token, 1)
            except BlockingIOError:  # the manager is taking back, and its SKIPs come
                permit = self._await_token()
            if not permit:  # the manager is gone, or we are a copy that a task forked
                return False
            if permit != RUN:
                note(notes, offset, chunk, 0, 0.0)
                self.flush()
                return self._pass_over(end - position - 1)
            start = monotonic()
            if start - self._flushed > FLUSH_AFTER:
                self.flush()
            note(notes, offset, chunk, position, start)
            first = base + entry.offset
            payload = body[first : first + entry.length]
            row = run(routes[entry.template], position, entry, payload)
            append(row)
            size += len(row.result)
            if stop.requested or (wear is not None and wear.out()):
                return self._leave()
            if size > FLUSH_BYTES:
                self.flush()
                size = 0
        if self._disowned:
            return False
        # Nothing runs from here on, also not for whoever reads the last outcome.
        note(notes, offset, chunk, 0, 0.0)
        self.flush()
        return True

    def _leave(self) -> bool:
        """Make room for a new process: what this one was given beyond that goes back."""
        if not self._disowned:
            NOTE.pack_into(self._notes, self._offset, self._chunk, 0, 0.0)
            self.flush()
        return False

    def _await_token(self) -> bytes:
        poller = select.poll()
        poller.register(self._pipes.token, select.POLLIN)
        while True:
            poller.poll()
            try:
                return os.read(self._pipes.token, 1)
            except BlockingIOError:  # taken by the manager again
                continue

    def _pass_over(self, left: int) -> bool:
        """Take the SKIPs of the chunk's other jobs."""
        while left:
            try:
                taken = len(os.read(self._pipes.token, left))
            except BlockingIOError:
                taken = len(self._await_token())
            if not taken:
                return False
            left -= taken
        return True

    def flush(self, *, running: bool = False) -> None:
        """Send the outcomes that are there. Called by both threads.

        Args:
            running: A job may run meanwhile.
        """
        with self._lock:
            rows = self._rows[:]  # the other thread may append meanwhile
            self._flushed = time.monotonic()
            if not rows:
                return
            if not self._disowned and not self._intact():
                self._blame(rows, running=running)
            del self._rows[: len(rows)]
            body = encode_outcomes(rows)
            run_time = sum([row.run_time for row in rows])
            self._write(RESULT.pack(self._chunk, len(rows), run_time, len(body)) + body)

    def _intact(self) -> bool:
        """Return whether all pipes are what they were when the child began."""
        try:
            return [_identity(fd) for fd in self._pipes] == self._identities
        except OSError:
            return False

    def _blame(self, rows: list[OutcomeRow], *, running: bool) -> NoReturn:
        """End because some of these jobs, or the one that runs, closed the pipes."""
        if running and NOTE.unpack_from(self._notes, self._offset)[2]:
            self._end_without_pipes(None)  # that one is noted already
        try:
            had_token = _identity(self._pipes.token) == self._identities[1]
        except OSError:
            had_token = False
        # There was a token for the last job, so who closed that pipe was the last.
        self._end_without_pipes(rows[-1].position if len(rows) == 1 or not had_token else -1)

    def _end_without_pipes(self, position: int | None) -> NoReturn:
        """End; leave a note of the job that closed the pipes, -1: not known, None: as it is."""
        if position is not None:
            start = time.monotonic() if position >= 0 else 0.0
            NOTE.pack_into(self._notes, self._offset, self._chunk, max(0, position), start)
        self._notes[self._offset + NO_PIPES_OFFSET] = 1
        os._exit(NO_PIPES)

    def _write(self, frame: bytes) -> None:
        data = memoryview(frame)
        while data:
            data = data[os.write(self._pipes.result, data) :]

    # What a job says while it runs

    def _where(self) -> tuple[int, int]:
        chunk, position, _ = NOTE.unpack_from(self._notes, self._offset)
        return chunk, position

    def _send_parts(self, place: tuple[int, int], batch: PartBatch) -> None:
        head = PARTS_HEAD.pack(batch.first, batch.parts)
        size = len(head) + len(batch.body)
        with self._lock:
            self._say(RESULT.pack(place[0], PARTS, place[1], size) + head + batch.body)

    def _send_progress(self, place: tuple[int, int], body: bytes) -> None:
        with self._lock:
            self._say(RESULT.pack(place[0], PROGRESS, place[1], len(body)) + body)

    def _say(self, frame: bytes) -> None:
        """Write what the running job says."""
        if not self._disowned and not self._intact():
            self._end_without_pipes(None)
        self._write(frame)

    def _watch(self) -> None:
        try:
            while os.read(self._pipes.poke, 64):
                self._sink.credit(*self._grant())
                self.flush(running=True)
        except OSError:
            if not self._disowned and not self._intact():
                self._end_without_pipes(None)
        finally:
            os._exit(1)  # nobody is left to answer to

    def _grant(self) -> tuple[int, int, int]:
        """Return the manager's grant: what was read twice the same was not half written."""
        place = self._offset + GRANT_OFFSET
        grant: tuple[int, int, int] = GRANT.unpack_from(self._notes, place)
        while True:
            again: tuple[int, int, int] = GRANT.unpack_from(self._notes, place)
            if again == grant:
                return grant
            grant = again

    def _disown(self) -> None:
        """In a process that a task forked: it must not act as this child, whatever it does."""
        self._disowned = True
        null = os.open(os.devnull, os.O_RDWR)
        for fd in self._pipes:
            os.dup2(null, fd, inheritable=False)
        os.close(null)
