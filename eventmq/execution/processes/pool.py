"""Process pool: one child process per slot, forked from a clean fork server.

A `ProcessSlot` has the job manager's ends of the pipes of a child, and its record.

No lock is shared with a child, so a kill at any time affects only the job that the child ran.
"""

from __future__ import annotations

import logging
import mmap
import os
import selectors
import signal
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import PluginError
from eventmq.execution.processes.forkclient import ForkServerHandle, shared_records
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
)
from eventmq.execution.processes.recycling import resident_of
from eventmq.interfaces import JobsEnded, PartsYielded, ProgressReported, Running, SlotDied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.interfaces import PoolEvent

__all__ = ["ProcessPool"]


_log = logging.getLogger(__name__)

#: Seconds: a child that ended earlier than this without an answer is replaced after this delay.
EARLY_DEATH = 1.0

#: Seconds between two measurements of the memory of busy children.
MEASURE_MEMORY_EVERY = 1.0

#: Number of consecutive early deaths after which the pool fails.
MAX_EARLY_DEATHS = 10

#: Seconds that children without a job get to end by themselves.
EXIT_TIMEOUT = 5.0

#: Seconds after which the title of a child shows the task of its running job.
SHOW_AFTER = 0.02

#: Requested capacity in bytes of the pipes of chunks and results (Linux; 64 KiB elsewhere).
PIPE_SIZE = 256 * 1024

#: Bytes of one read: malloc reuses such a buffer (it maps buffers over 128 KiB each time).
READ_SIZE = 64 * 1024


class PipeWriter:
    """Writes to a non-blocking pipe and keeps what does not fit. One thread.

    A closed reader is not an error: the fork server reports the exit of the child.
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
        """Write what fits now, and the rest at the next `flush`."""
        if self._pending:
            self._pending += b"".join(parts)
            return
        try:
            count = os.writev(self.fd, parts)
        except BlockingIOError:
            count = 0
        except BrokenPipeError:
            return
        if count < sum(map(len, parts)):
            self._pending += memoryview(b"".join(parts))[count:]

    def flush(self) -> None:
        """Continue to write what did not fit."""
        pending = self._pending
        try:
            while pending:
                del pending[: os.write(self.fd, memoryview(pending)[: 1 << 20])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pending.clear()

    def take_pending(self) -> bytes:
        """Remove and return the bytes that were not written yet."""
        pending = bytes(self._pending)
        self._pending.clear()
        return pending

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _pipe(*, size: int = 0) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    if size:
        try:
            import fcntl

            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, size)
        except (AttributeError, OSError):  # not Linux, or over the user's limit: only slower
            pass
    return read_end, write_end


class AssignedJobs(NamedTuple):
    """Jobs of one chunk that were assigned to a child."""

    chunk: int
    body: bytes
    jobs: int
    #: Position of the first of these jobs; the jobs before it were answered.
    first: int = 0


class ProcessSlot:
    """One slot. Its pipes are new for every child, so no data of a dead child remains.

    Args:
        number: Number of the slot.
        records: Memory that is shared with the children.
        keep: Keep assigned jobs until they are answered, for the next child.
    """

    def __init__(self, number: int, records: mmap.mmap, *, keep: bool = False) -> None:
        self.number = number
        self.pid: int | None = None
        #: Whether a child was requested and has not exited.
        self.alive = False
        #: Whether the slot is not used, and has no child.
        self.unused = False
        self.spawned_at = 0.0
        self._keeps_jobs = keep
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
        # Shares the open file with the child's end, so the child's end does not block either.
        self._token_out = os.dup(token)
        self.result = result_out
        self._wakeup = wakeup_in
        for fd in (work_in, token_in, token, result_out, wakeup_in):
            os.set_blocking(fd, False)
        self._buffer = bytearray()
        #: The last chunk with an answer, and the number of its answered jobs.
        self._answered = (0, 0)
        self._woken_for = (0, -1)
        #: Assigned jobs without an answer, if they are kept.
        self._assigned: deque[AssignedJobs] = deque()
        #: Number of assigned jobs that are neither answered nor withdrawn.
        self._open_jobs = 0
        #: Memory of the child in bytes when it was last measured.
        self.rss = 0
        self.served = False
        #: Whether the child was killed, or will be.
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
        """Close the child's ends of the pipes, once the child has them."""
        for fd in self.ends or ():
            os.close(fd)
        self.ends = None

    def assign(self, part: AssignedJobs) -> None:
        """Assign jobs to the child: their tokens first, so that it never waits for them."""
        chunk, body, count, first = part
        if self._keeps_jobs:
            self._assigned.append(part)
        if first:
            self._answered = (chunk, first)
        self._open_jobs += count
        self._tokens.write(RUN * count)
        self.work.write(WORK.pack(chunk, first, count, len(body)), body)

    def unanswered(self) -> list[AssignedJobs] | None:
        """Return the unanswered jobs for the next child, None if they are not kept."""
        return list(self._assigned) if self._keeps_jobs else None

    def _drop_answered(self, count: int) -> None:
        """Drop the first kept jobs, which were answered."""
        assigned = self._assigned
        while assigned and count:
            head = assigned.popleft()
            part = min(count, head.jobs)
            count -= part
            if part < head.jobs:
                assigned.appendleft(head._replace(jobs=head.jobs - part, first=head.first + part))

    def _drop_withdrawn(self, count: int) -> None:
        """Drop the last kept jobs, which were withdrawn."""
        assigned = self._assigned
        while assigned and count:
            tail = assigned.pop()
            part = min(count, tail.jobs)
            count -= part
            if part < tail.jobs:
                assigned.append(tail._replace(jobs=tail.jobs - part))

    def take_back(self) -> int:
        """Withdraw the jobs that have not started; return their number."""
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
        """Take back all tokens; return the number of jobs that an exited child left unanswered.

        It had started these: it had no token for the other jobs.
        """
        self.take_back()
        return self._open_jobs

    @property
    def without_pipes(self) -> bool:
        """Whether the child ended because a job had closed its pipes."""
        return bool(self._records[self._offset + NO_PIPES_OFFSET])

    def flush(self) -> None:
        """Continue to write what did not fit into the pipes."""
        self._tokens.flush()
        self.work.flush()

    def _read(self, fd: int, size: int) -> bytes:
        try:
            return os.read(fd, size)
        except BlockingIOError:
            return b""

    def take_events(self) -> list[PoolEvent]:
        """Return the events that the child has sent since the last call."""
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
        with suppress(BlockingIOError, BrokenPipeError):  # it wakes anyway, or has exited
            os.write(self._wakeup, b"!")

    def record(self) -> tuple[int, int, float]:
        """Return chunk, position and monotonic start of the running job, (0, -1, 0.0) if none.

        The child writes without a lock: two equal reads show that none was half written.
        """
        record: tuple[int, int, float] = RECORD.unpack_from(self._records, self._offset)
        while True:
            second: tuple[int, int, float] = RECORD.unpack_from(self._records, self._offset)
            if second == record:
                return record if record[2] else (0, -1, 0.0)
            record = second

    def interrupt(self, chunk: int, position: int) -> None:
        """Make the child cancel a job, if that is running."""
        if self.pid is not None and self.record()[:2] == (chunk, position):
            CANCEL.pack_into(self._records, self._offset + CANCEL_OFFSET, chunk, position)
            self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child, now or as soon as its process id is known. Idempotent."""
        self.to_be_killed = True
        self.signal(signal.SIGKILL)

    def signal(self, signum: int) -> None:
        """Send the child a signal, if its process id is known."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def set_pid(self, pid: int) -> None:
        """Set the process id of the child; kill it if that was requested before."""
        self.pid = pid
        if self.to_be_killed:
            self.kill()

    def request_flush(self) -> None:
        """Request outcomes that a long job delays, and the title of the child, once per job."""
        chunk, position, start = self.record()
        if not start or (chunk, position) == self._woken_for:
            return
        before = self._answered[1] if self._answered[0] == chunk else 0
        if time.monotonic() - start > (FLUSH_AFTER if position > before else SHOW_AFTER):
            self._woken_for = (chunk, position)
            self._wake_child()


class ProcessPool:
    """Implements `eventmq.interfaces.WorkerPool` with processes (Linux, macOS).

    Args:
        concurrency: Number of slots.
        loader: ``module:function``, called in the fork server; returns the `Executor`.
        arguments: Keyword arguments of the loader, plain data (they travel as JSON).
        start_timeout: Seconds within which the app must be loaded.
        recycling: Jobs and bytes of memory after which a child is replaced, 0 for never.
        initial: Number of slots that have a child from the start; all of them if None.
    """

    interrupts = True
    shared = False
    abandoned = 0

    def __init__(
        self,
        *,
        concurrency: int,
        loader: str,
        arguments: Mapping[str, Any],
        start_timeout: float = 60.0,
        recycling: tuple[int, int] = (0, 0),
        initial: int | None = None,
    ) -> None:
        self.slots = concurrency
        self._loader = loader
        self._arguments = arguments
        self._start_timeout = start_timeout
        self._recycling = recycling
        self._initial = concurrency if initial is None else initial
        self._slots: list[ProcessSlot] = []
        self._events: list[PoolEvent] = []
        self._early_deaths = 0
        #: Slots without a child: number -> monotonic time at which one is started.
        self._vacant: dict[int, float] = {}
        self._next_measurement = 0.0
        self._state = "new"

    # Start and stop

    def start(self) -> None:
        """Start the fork server and a child per slot.

        Raises:
            EventMQError: The app cannot be loaded; the message has the reason.
            PluginError: No process can be started.
        """
        self._records_fd = shared_records(self.slots * RECORD_SIZE)
        self._records = mmap.mmap(self._records_fd, 0)
        self._selector = selectors.DefaultSelector()
        self._server = ForkServerHandle(
            self._loader, self._arguments, self._records_fd, self._recycling
        )
        self._state = "running"
        try:
            self._start_server()
            for number in range(self.slots):
                slot = ProcessSlot(number, self._records, keep=any(self._recycling))
                self._slots.append(slot)
                self._watch(slot)
                slot.unused = number >= self._initial
                if not slot.unused:
                    self._spawn(slot)
            self._await_children()
        except BaseException:
            self.stop(0.0)
            raise

    def _await_children(self) -> None:
        """Wait until every slot has its first child."""
        while any(slot.alive and slot.pid is None for slot in self._slots):
            try:
                message = self._server.message()
            except EOFError:
                raise PluginError("the process that starts the worker's children ended") from None
            if not message["pid"]:
                raise PluginError(message["reason"])
            self._events += self._handle(message)

    def _start_server(self) -> None:
        self._server.start(self._start_timeout)
        self._selector.register(self._server.fileno(), selectors.EVENT_READ, None)

    def _watch(self, slot: ProcessSlot) -> None:
        self._selector.register(slot.result, selectors.EVENT_READ, slot)

    def _spawn(self, slot: ProcessSlot) -> None:
        assert slot.ends is not None  # noqa: S101 - renewed, or new
        try:
            self._server.spawn(slot.number, slot.ends)
        except EOFError:  # poll gets it too and starts another server
            self._vacant[slot.number] = 0.0
            return
        slot.spawned_at = time.monotonic()
        slot.alive = True
        slot.close_child_ends()

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds, then kill the children.

        `poll` returns their last outcomes afterwards. Idempotent.
        """
        if self._state != "running":
            return
        self._state = "stopping"
        deadline = time.monotonic() + grace
        for slot in self._slots:
            slot.take_back()
            self._unwatch_writing(slot)
            slot.work.close()
        self._await_exits(self._slots, deadline)
        # `Executor.stop`, which runs at their end, has a time limit of its own.
        idle = [slot for slot in self._slots if not slot.record()[2]]
        self._await_exits(idle, time.monotonic() + EXIT_TIMEOUT)
        self._server.close()
        for slot in self._slots:
            self._events += slot.take_events()
            slot.close()
        self._selector.close()
        self._records.close()
        os.close(self._records_fd)
        self._state = "stopped"

    def _await_exits(self, slots: Sequence[ProcessSlot], deadline: float) -> None:
        while any(slot.alive for slot in slots) and time.monotonic() < deadline:
            self._selector.select(min(0.1, max(0.0, deadline - time.monotonic())))
            self._events += self._collect()

    # Work

    def filenos(self) -> Sequence[int]:
        """Return one descriptor, which is readable when any pipe or socket is."""
        return [self._selector.fileno()]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk to a slot. What does not fit into its pipe is written by `poll`."""
        self._assign_parts(self._slots[slot], [AssignedJobs(chunk, body, count)])

    def _assign_parts(self, slot: ProcessSlot, parts: Sequence[AssignedJobs]) -> None:
        for part in parts:
            slot.assign(part)
        if slot.work.pending:
            self._watch_writing(slot)

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return their number, counted from the last."""
        return self._slots[slot].take_back()

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, None if none does."""
        record = self._slots[slot].record()
        return Running(*record) if record[2] else None

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Raise `JobCancelled` in the job by SIGTERM; the child is replaced when the job ends."""
        self._slots[slot].interrupt(chunk, position)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Pass the credit of its readers to a job that streams."""
        self._slots[slot].credit(chunk, position, taken)

    def scale(self, slots: int) -> None:
        """Start children for the first ``slots`` slots, and end those of the others."""
        for slot in self._slots:
            was, slot.unused = slot.unused, slot.number >= slots
            if slot.unused:
                self._vacant.pop(slot.number, None)
                if slot.alive:
                    slot.kill()
            elif was and not slot.alive:  # otherwise when its last child has exited
                self._vacant[slot.number] = 0.0

    def kill(self, slot: int) -> None:
        """Kill the child of a slot; `SlotDied` follows."""
        self._slots[slot].kill()

    def poll(self) -> list[PoolEvent]:
        """Return the events since the last call, in order per slot.

        Raises:
            PluginError: Children end at once, repeatedly.
        """
        events, self._events = self._events, []
        if self._state == "running":
            events += self._collect()
            if self._vacant:
                self._fill_vacancies()
            for slot in self._slots:
                slot.request_flush()
            self._measure_memory()
        return events

    def _measure_memory(self) -> None:
        """Measure the memory of busy children, for the report of a death."""
        now = time.monotonic()
        if now < self._next_measurement:
            return
        self._next_measurement = now + MEASURE_MEMORY_EVERY
        for slot in self._slots:
            if slot.pid is not None and slot.record()[2]:
                slot.rss = resident_of(slot.pid) or slot.rss

    def _collect(self) -> list[PoolEvent]:
        events: list[PoolEvent] = []
        ends = False
        for key, mask in self._selector.select(0):
            slot = key.data
            if slot is None:
                ends = True
            elif mask & selectors.EVENT_WRITE:
                self._continue_writing(slot)
            else:
                events += slot.take_events()
        # After the outcomes, since those of a child precede its exit.
        if ends:
            events += self._receive()
        return events

    def _watch_writing(self, slot: ProcessSlot) -> None:
        if slot.work.fd not in self._selector.get_map():
            self._selector.register(slot.work.fd, selectors.EVENT_WRITE, slot)

    def _continue_writing(self, slot: ProcessSlot) -> None:
        slot.flush()
        if not slot.work.pending:
            self._unwatch_writing(slot)

    def _unwatch_writing(self, slot: ProcessSlot) -> None:
        if slot.work.fd in self._selector.get_map():
            self._selector.unregister(slot.work.fd)

    # Children

    def _receive(self) -> list[PoolEvent]:
        try:
            message = self._server.message()
        except EOFError:
            return self._replace_server()
        return self._handle(message)

    def _handle(self, message: Mapping[str, Any]) -> list[PoolEvent]:
        """Handle a message of the fork server."""
        if "spawned" in message:
            self._slots[message["spawned"]].set_pid(message["pid"])
            return []
        slot = self._slots[message["exited"]]
        return self._report_exit(slot, message["reason"], message["code"], message["peak"])

    def _report_exit(
        self,
        slot: ProcessSlot,
        reason: str,
        code: int = -signal.SIGKILL,
        peak: int = 0,
        *,
        shared_cause: bool = False,
    ) -> list[PoolEvent]:
        """Return the last events of a child and its death; prepare the slot for the next child.

        Args:
            slot: The slot whose child has exited.
            reason: The reason as text.
            code: Exit status, or the number of the signal below 0.
            peak: Peak memory in bytes.
            shared_cause: Other slots died at the same time of the same cause.
        """
        events: list[PoolEvent] = list(slot.take_events())
        chunk, position, _ = slot.record()
        now = time.monotonic()
        unanswered = slot.unanswered()
        started = slot.started()
        # The death of a child that started a job does not mean that the next one dies too.
        harmless = not slot.served and not started and position < 0
        early = harmless and now - slot.spawned_at < EARLY_DEATH
        if slot.without_pipes:
            reason = "a job closed the pipes of its process (os.closerange or the like)"
        slot.pid = None
        slot.alive = False
        if self._state != "running":
            return events
        self._early_deaths = self._early_deaths + 1 if early else 0
        if self._early_deaths >= MAX_EARLY_DEATHS:
            msg = f"the worker's processes end as soon as they are started: {reason}"
            raise PluginError(msg)
        # A child that is recycled, or whose job was cancelled, exits by itself between jobs.
        orderly = not code and position < 0 and slot.served and not started
        quiet = slot.to_be_killed or orderly
        # If it ran a job, the log line about that job has the reason.
        level = logging.DEBUG if quiet or started or position >= 0 else logging.WARNING
        _log.log(level, "slot %d: %s; it is replaced", slot.number, reason)
        rss = slot.rss
        to_be_killed = slot.to_be_killed
        self._renew(slot)
        if slot.unused:
            return events
        self._vacant[slot.number] = now + EARLY_DEATH if early else now
        if unanswered is not None and quiet and not to_be_killed:  # the next child gets these jobs
            self._assign_parts(slot, unanswered)
            return events
        number = slot.number
        died = SlotDied(
            number, chunk, position, reason, max(0, -code), rss, peak, started, shared_cause
        )
        return [*events, died]

    def _renew(self, slot: ProcessSlot) -> None:
        self._selector.unregister(slot.result)
        self._unwatch_writing(slot)
        slot.renew()
        self._watch(slot)

    def _fill_vacancies(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._vacant.items() if due <= now]:
            del self._vacant[number]
            self._spawn(self._slots[number])

    def _replace_server(self) -> list[PoolEvent]:
        """Replace a fork server that ended; its children are killed first."""
        _log.error("the fork server ended; it and its children are replaced")
        self._selector.unregister(self._server.fileno())
        events: list[PoolEvent] = []
        shared_cause = sum(slot.alive and bool(slot.record()[2]) for slot in self._slots) > 1
        for slot in self._slots:
            slot.signal(signal.SIGKILL)
            if slot.alive:
                slot.served = True  # it was killed: not an early death
                reason = "the process was killed: the fork server had ended"
                events += self._report_exit(slot, reason, shared_cause=shared_cause)
        self._server.close()
        if self._state == "running":
            self._start_server()
        return events
