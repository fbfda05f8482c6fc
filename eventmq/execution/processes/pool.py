"""Process pool: one child process per slot, forked from a clean fork server.

No lock is shared with a child, so a kill at any moment harms only the job that it ran.
"""

from __future__ import annotations

import logging
import mmap
import os
import selectors
import signal
import time
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError
from eventmq.execution.processes.forkclient import ForkServerHandle, shared_records
from eventmq.execution.processes.pipes import RECORD_SIZE
from eventmq.execution.processes.recycling import resident_of
from eventmq.execution.processes.slot import AssignedJobs, ProcessSlot
from eventmq.interfaces import Running, SlotDied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.interfaces import PoolEvent

__all__ = ["ProcessPool"]


_log = logging.getLogger(__name__)

#: Seconds: a child that answered nothing and ended earlier than this is replaced after as long.
EARLY_DEATH = 1.0

#: Seconds between two measurements of the memory of busy children.
MEASURE_MEMORY_EVERY = 1.0

#: Early deaths in a row after which the pool fails: no child can live.
MAX_EARLY_DEATHS = 10


class ProcessPool:
    """Implements `eventmq.interfaces.WorkerPool` with processes (Linux, macOS).

    Args:
        concurrency: Number of slots.
        loader: ``module:function``, called in the fork server; returns the `Executor`.
        arguments: Keyword arguments of the loader, plain data (they travel as JSON).
        start_timeout: Seconds within which the app must be loaded.
        recycling: Jobs and bytes of memory after which a child is replaced, 0 for never.
        initial: Slots that have a child from the start; all of them if None.
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
        self._memory_due = 0.0
        self._state = "new"

    # Start and stop

    def start(self) -> None:
        """Start the fork server and a child per slot.

        Raises:
            EventMQError: The app cannot be loaded; one sentence says why.
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
            if "spawned" in message:
                self._slots[message["spawned"]].set_pid(message["pid"])
            elif message["pid"]:  # it has exited already
                slot = self._slots[message["exited"]]
                self._events += self._report_exit(slot, message["reason"], message["code"])
            else:
                raise PluginError(message["reason"])

    def _start_server(self) -> None:
        self._server.start(self._start_timeout)
        self._selector.register(self._server.fileno(), selectors.EVENT_READ, None)

    def _watch(self, slot: ProcessSlot) -> None:
        self._selector.register(slot.result, selectors.EVENT_READ, slot)

    def _spawn(self, slot: ProcessSlot) -> None:
        assert slot.ends is not None  # noqa: S101 - renewed, or new
        try:
            self._server.spawn(slot.number, slot.ends)
        except EOFError:  # poll sees it again and starts another server
            self._vacant[slot.number] = 0.0
            return
        slot.spawned_at = time.monotonic()
        slot.alive = True
        slot.close_child_ends()

    def pids(self) -> list[int | None]:
        """Return the process id of each slot, None where the child is not there yet."""
        return [slot.pid for slot in self._slots]

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds, then kill.

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
        while any(slot.alive for slot in self._slots) and time.monotonic() < deadline:
            self._selector.select(min(0.1, max(0.0, deadline - time.monotonic())))
            self._events += self._collect()
        self._server.close()
        for slot in self._slots:
            self._events += slot.take_events()
            slot.close()
        self._selector.close()
        self._records.close()
        os.close(self._records_fd)
        self._state = "stopped"

    # Work

    def filenos(self) -> Sequence[int]:
        """Return one descriptor, readable when any pipe or socket is."""
        return [self._selector.fileno()]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk to a slot. What does not fit into its pipe is written by `poll`."""
        self._give(self._slots[slot], [AssignedJobs(chunk, body, count)])

    def _give(self, slot: ProcessSlot, parts: Sequence[AssignedJobs]) -> None:
        for part in parts:
            slot.assign(part)
        if slot.work.pending:
            self._watch_writing(slot)

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return how many, counted from the last one."""
        return self._slots[slot].take_back()

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, None if none does."""
        record = self._slots[slot].record()
        return Running(*record) if record[2] else None

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Raise `JobCancelled` in the job by SIGTERM; the child is replaced when it has ended."""
        self._slots[slot].interrupt(chunk, position)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Pass the credit of its readers to a job that streams."""
        self._slots[slot].credit(chunk, position, taken)

    def scale(self, slots: int) -> None:
        """Start children for the first ``slots`` slots, end those of the others."""
        for slot in self._slots:
            was, slot.unused = slot.unused, slot.number >= slots
            if slot.unused:
                self._vacant.pop(slot.number, None)
                if slot.alive:
                    slot.kill()
            elif was and not slot.alive:  # else when its last child has exited
                self._vacant[slot.number] = 0.0

    def kill(self, slot: int) -> None:
        """Kill the child of a slot; `SlotDied` follows."""
        self._slots[slot].kill()

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call, per slot in order.

        Raises:
            PluginError: Children end at once, again and again.
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
        if now < self._memory_due:
            return
        self._memory_due = now + MEASURE_MEMORY_EVERY
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
                self._go_on_writing(slot)
            else:
                events += slot.take_events()
        # After the outcomes: those of a child come before its exit.
        if ends:
            events += self._receive()
        return events

    def _watch_writing(self, slot: ProcessSlot) -> None:
        if slot.work.fd not in self._selector.get_map():
            self._selector.register(slot.work.fd, selectors.EVENT_WRITE, slot)

    def _go_on_writing(self, slot: ProcessSlot) -> None:
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
            reason: Text for people.
            code: Exit status, or the number of the signal below 0.
            peak: Most bytes of memory that it had.
            shared_cause: Other slots died at the same moment of the same cause.
        """
        events: list[PoolEvent] = list(slot.take_events())
        chunk, position, _ = slot.record()
        now = time.monotonic()
        unanswered = slot.unanswered()
        started = slot.started()
        # The death of a child that took a job does not mean that the next one dies.
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
        level = logging.DEBUG if quiet else logging.WARNING
        _log.log(level, "slot %d: %s; it is replaced", slot.number, reason)
        rss = slot.rss
        to_be_killed = slot.to_be_killed
        self._renew(slot)
        if slot.unused:
            return events
        self._vacant[slot.number] = now + EARLY_DEATH if early else now
        if unanswered is not None and quiet and not to_be_killed:  # the next child gets it
            self._give(slot, unanswered)
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
