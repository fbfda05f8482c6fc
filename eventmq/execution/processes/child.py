"""Child process: reads chunks from its pipe and runs their jobs one by one.

The order around a job, with reasons: the token first (from then on the job has started), then
outcomes that have waited too long, then the record (so that a death is charged to the right job),
then the call. A thread that sleeps on the wakeup pipe sends outcomes while a long job runs, and
ends the process when the manager has ended; it costs nothing while it sleeps.

A job may close descriptors of the child, whose numbers other files may then get. Before outcomes
are sent, each pipe is compared with its original identity. A child without its pipes ends, and
records the job that closed them if that is certain.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from eventmq.execution.poolkit import PartSink, Timer
from eventmq.execution.processes.pipes import (
    CANCEL,
    CANCEL_OFFSET,
    CREDIT,
    CREDIT_OFFSET,
    FLUSH_AFTER,
    NO_PIPES_OFFSET,
    PARTS,
    PARTS_HEAD,
    PROGRESS,
    RECORD,
    RESULT,
    RUN,
    WORK,
)
from eventmq.execution.streaming import cancelled
from eventmq.interfaces import current
from eventmq.text import printable
from eventmq.titles import set_title
from eventmq.wire.batches import OutcomeRow, decode_chunk, encode_outcomes

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    from eventmq.execution.executor import Executor
    from eventmq.execution.processes.pipes import ChildPipes
    from eventmq.execution.processes.recycling import ChildRecycling
    from eventmq.execution.routes import Route
    from eventmq.execution.streaming import Cancellation, PartBatch
    from eventmq.wire.batches import ChunkEntry

__all__ = ["PoolChild", "SignalAlarm", "install_cancel_handler"]


class SignalAlarm:
    """An `Alarm` by setitimer. It does not work for a task that uses SIGALRM itself.

    Args:
        stop: Cancellation of the process, which knows whether the task's own code runs.
    """

    def __init__(self, stop: Cancellation) -> None:
        self._stop = stop
        self._seconds = 0.0

    def arm(self, seconds: float) -> None:
        """Raise `SoftTimeLimitExceeded` in the main thread after ``seconds``."""
        self._seconds = seconds
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def disarm(self) -> None:
        """Cancel the alarm."""
        self._seconds = 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _on_alarm(self, *_: object) -> None:
        seconds, self._seconds = self._seconds, 0.0
        if seconds and self._stop.in_task:
            raise self._stop.soft_limit_error()


def install_cancel_handler(executor: Executor, records: mmap.mmap, offset: int) -> None:
    """Make SIGTERM cancel the job that the manager has recorded as cancelled.

    Args:
        executor: Executor of this process.
        records: Memory that is shared with the manager.
        offset: Offset of this child's record in it.
    """
    own_pid = os.getpid()

    def on_sigterm(*_: object) -> None:
        chunk, position, start = RECORD.unpack_from(records, offset)
        cancel = CANCEL.unpack_from(records, offset + CANCEL_OFFSET)
        if not start or cancel != (chunk, position) or os.getpid() != own_pid:
            return
        if current.get(None) is None:  # the job has ended, and the next is not recorded yet
            return
        notified = executor.cancel()
        if executor.cancellation.in_task and not notified:
            raise cancelled()

    signal.signal(signal.SIGTERM, on_sigterm)


#: Bytes of results after which they are sent, not counting the last one.
FLUSH_BYTES = 128 * 1024

#: Chunk and position if no job is shown.
NO_JOB = (0, -1)

#: Exit status of a child whose pipes were closed (EX_IOERR of sysexits.h).
NO_PIPES = 74


def _identity(fd: int) -> tuple[int, int]:
    """Return the identity of an open file: its device and inode."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class PoolChild:
    """A child of a process pool: runs jobs until the work pipe ends.

    Args:
        executor: Executor of this process.
        pipes: Its ends of the pipes.
        records: Memory that is shared with the manager.
        offset: Offset of this child's record in it.
        recycling: Decides when the process is replaced, None for never.
    """

    def __init__(
        self,
        executor: Executor,
        pipes: ChildPipes,
        records: mmap.mmap,
        offset: int,
        recycling: ChildRecycling | None = None,
    ) -> None:
        self._executor = executor
        self._pipes = pipes
        self._records = records
        self._offset = offset
        self._recycling = recycling
        self._lock = threading.Lock()
        self._chunk = 0
        #: Number, routes and entries of the running chunk.
        self._running: tuple[int, Sequence[Route], Sequence[ChunkEntry]] = (0, (), ())
        #: Chunk and position of the job whose task is in the title of the process.
        self._shown = NO_JOB
        self._rows: list[OutcomeRow] = []
        self._flushed = 0.0
        self._disowned = False
        self._identities = [_identity(fd) for fd in pipes]

    def serve(self) -> None:
        """Run jobs; return at the end of the work pipe."""
        try:
            self._serve()
        except OSError:
            if self._disowned or self._intact():
                raise
            # The last job that ran closed a pipe: its own token could still be read.
            self._end_without_pipes(self._rows[-1].position if self._rows else -1)

    def _serve(self) -> None:
        set_title("child")
        self._executor.start()
        os.register_at_fork(after_in_child=self._disown)
        self._executor.alarm = SignalAlarm(self._executor.cancellation)
        self._sink = PartSink(self._current_job, self._send_parts, self._send_progress, Timer())
        self._executor.set_sink(self._sink)
        install_cancel_handler(self._executor, self._records, self._offset)
        threading.Thread(target=self._watch, name="eventmq-watch", daemon=True).start()
        # Not closed here: `serve` compares it when there is an error.
        work = open(self._pipes.work, "rb", buffering=1 << 17, closefd=False)  # noqa: SIM115
        while len(header := work.read(WORK.size)) == WORK.size:
            self._chunk, first, count, length = WORK.unpack(header)
            body = work.read(length)
            if len(body) < length or not self._run_chunk(body, first, first + count):
                break
        self._executor.close()
        if not self._disowned:
            self._executor.stop()

    # hot loop: python -m benchmarks drain
    def _run_chunk(self, body: bytes, begin: int, end: int) -> bool:
        """Run the jobs of a chunk from one position to another; return whether to continue."""
        chunk = self._chunk
        queue, templates, entries, base = decode_chunk(body)
        routes = self._executor.routes(queue, templates)
        self._running = chunk, routes, entries
        run = self._executor.run
        stop = self._executor.cancellation
        recycling = self._recycling
        read = os.read
        token = self._pipes.token
        monotonic = time.monotonic
        record = RECORD.pack_into
        records = self._records
        offset = self._offset
        rows = self._rows
        append = rows.append
        size = 0
        self._flushed = monotonic()
        for position, entry in enumerate(entries[begin:end], begin):
            try:
                permit = read(token, 1)
            except BlockingIOError:  # the manager is withdrawing jobs; its SKIPs follow
                permit = self._await_token()
            if not permit:  # the manager has ended, or a task forked this process
                return False
            if permit != RUN:
                record(records, offset, chunk, 0, 0.0)
                self.flush()
                return self._skip(end - position - 1)
            start = monotonic()
            if start - self._flushed > FLUSH_AFTER:
                self.flush()
            record(records, offset, chunk, position, start)
            first = base + entry.offset
            payload = body[first : first + entry.length]
            row = run(routes[entry.template], position, entry, payload)
            append(row)
            size += len(row.result)
            if stop.requested or (recycling is not None and recycling.count_job()):
                return self._leave()
            if size > FLUSH_BYTES:
                self.flush()
                size = 0
        if self._disowned:
            return False
        # No job runs from here on, even when the manager has read the last outcome.
        record(records, offset, chunk, 0, 0.0)
        self.flush()
        return True

    def _leave(self) -> bool:
        """Let the process end for a new one, which gets the jobs that have not started."""
        if not self._disowned:
            RECORD.pack_into(self._records, self._offset, self._chunk, 0, 0.0)
            self.flush()
        return False

    def _await_token(self) -> bytes:
        poller = select.poll()
        poller.register(self._pipes.token, select.POLLIN)
        while True:
            poller.poll()
            try:
                return os.read(self._pipes.token, 1)
            except BlockingIOError:  # the manager withdrew it too
                continue

    def _skip(self, remaining: int) -> bool:
        """Read the SKIPs of the remaining jobs of the chunk."""
        while remaining:
            try:
                count = len(os.read(self._pipes.token, remaining))
            except BlockingIOError:
                count = len(self._await_token())
            if not count:
                return False
            remaining -= count
        return True

    def flush(self, *, running: bool = False) -> None:
        """Send the waiting outcomes. Called by both threads.

        Args:
            running: Whether a job may run meanwhile.
        """
        with self._lock:
            rows = self._rows[:]  # the other thread may append meanwhile
            self._flushed = time.monotonic()
            if self._shown is not NO_JOB and not running:
                self._shown = NO_JOB
                set_title("child")
            if not rows:
                return
            if not self._disowned and not self._intact():
                self._end_for_closed_pipes(rows, running=running)
            del self._rows[: len(rows)]
            body = encode_outcomes(rows)
            run_time = sum([row.run_time for row in rows])
            self._write(RESULT.pack(self._chunk, len(rows), run_time, len(body)) + body)

    def _intact(self) -> bool:
        """Return whether all pipes are the ones that the child started with."""
        try:
            return [_identity(fd) for fd in self._pipes] == self._identities
        except OSError:
            return False

    def _end_for_closed_pipes(self, rows: list[OutcomeRow], *, running: bool) -> NoReturn:
        """End because one of these jobs, or the running one, closed the pipes."""
        if running and RECORD.unpack_from(self._records, self._offset)[2]:
            self._end_without_pipes(None)  # the running job is recorded already
        try:
            had_token = _identity(self._pipes.token) == self._identities[1]
        except OSError:
            had_token = False
        # The last job got its token, so it is the one that closed the token pipe.
        self._end_without_pipes(rows[-1].position if len(rows) == 1 or not had_token else -1)

    def _end_without_pipes(self, position: int | None) -> NoReturn:
        """End; record the position of the job that closed the pipes: -1 unknown, None recorded."""
        if position is not None:
            start = time.monotonic() if position >= 0 else 0.0
            RECORD.pack_into(self._records, self._offset, self._chunk, max(0, position), start)
        self._records[self._offset + NO_PIPES_OFFSET] = 1
        os._exit(NO_PIPES)

    def _write(self, frame: bytes) -> None:
        data = memoryview(frame)
        while data:
            data = data[os.write(self._pipes.result, data) :]

    # Parts and progress

    def _current_job(self) -> tuple[int, int]:
        chunk, position, _ = RECORD.unpack_from(self._records, self._offset)
        return chunk, position

    def _send_parts(self, job: tuple[int, int], batch: PartBatch) -> None:
        head = PARTS_HEAD.pack(batch.first, batch.parts)
        size = len(head) + len(batch.body)
        with self._lock:
            self._send_event(RESULT.pack(job[0], PARTS, job[1], size) + head + batch.body)

    def _send_progress(self, job: tuple[int, int], body: bytes) -> None:
        with self._lock:
            self._send_event(RESULT.pack(job[0], PROGRESS, job[1], len(body)) + body)

    def _send_event(self, frame: bytes) -> None:
        """Write parts or progress of the running job."""
        if not self._disowned and not self._intact():
            self._end_without_pipes(None)
        self._write(frame)

    def _watch(self) -> None:
        try:
            with suppress(OSError):
                while os.read(self._pipes.wakeup, 64):
                    self._sink.credit(*self._credit())
                    self.flush(running=True)
                    self._show_task()
            # A file that has replaced the pipe ends as well.
            if not self._disowned and not self._intact():
                self._end_without_pipes(None)
        finally:
            os._exit(1)  # the manager has ended

    def _show_task(self) -> None:
        """Show the task of the running job in the title of the process.

        The manager wakes a child whose job has run for a while. Short jobs skip this: they would
        end before a user could read the title.
        """
        with self._lock:
            chunk, position, start = RECORD.unpack_from(self._records, self._offset)
            number, routes, entries = self._running
            if start and chunk == number and (chunk, position) != self._shown:
                self._shown = chunk, position
                task = routes[entries[position].template].task
                set_title("child", printable(task) or "(legacy)")

    def _credit(self) -> tuple[int, int, int]:
        """Return the credit from the manager; two equal reads show that none was half written."""
        offset = self._offset + CREDIT_OFFSET
        credit: tuple[int, int, int] = CREDIT.unpack_from(self._records, offset)
        while True:
            second: tuple[int, int, int] = CREDIT.unpack_from(self._records, offset)
            if second == credit:
                return credit
            credit = second

    def _disown(self) -> None:
        """Detach a process that a task forked, which must not act as this child."""
        self._disowned = True
        null = os.open(os.devnull, os.O_RDWR)
        for fd in self._pipes:
            os.dup2(null, fd, inheritable=False)
        os.close(null)
