"""The prefork pool: one child process per slot, forked from a clean fork server.

No lock is shared with a child, so one that is killed at any moment harms only the job it ran.
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
from eventmq.interfaces import Running, SlotDied
from eventmq.plugins.pools.prefork.forkclient import ForkServerHandle, shared_notes
from eventmq.plugins.pools.prefork.pipes import NOTE_SIZE
from eventmq.plugins.pools.prefork.recycling import resident_of
from eventmq.plugins.pools.prefork.slot import Given, Slot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.interfaces import PoolEvent

__all__ = ["PreforkPool"]


_log = logging.getLogger(__name__)

#: Seconds: a child that answered nothing and ended earlier than this is replaced so much later.
EARLY_DEATH = 1.0

#: Seconds between two looks at the memory of busy children.
WEIGH_EVERY = 1.0

#: So many early deaths in a row mean that no child can live.
MAX_EARLY_DEATHS = 10


class PreforkPool:
    """Implements `eventmq.interfaces.WorkerPool` with processes (Linux, macOS).

    Args:
        concurrency: Number of slots.
        loader: ``module:function``, called in the fork server; returns the `Executor`.
        arguments: Keyword arguments of the loader, plain data (they travel as JSON).
        start_timeout: Seconds within which the app must be loaded.
        wear: Jobs and bytes of memory after which a child is replaced, 0 for never.
        initial: Slots that have a child from the start on; all of them if None.
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
        wear: tuple[int, int] = (0, 0),
        initial: int | None = None,
    ) -> None:
        self.slots = concurrency
        self._loader = loader
        self._arguments = arguments
        self._start_timeout = start_timeout
        self._wear = wear
        self._initial = concurrency if initial is None else initial
        self._slots: list[Slot] = []
        self._events: list[PoolEvent] = []
        self._early_deaths = 0
        #: Slots that wait for a child of their own: number -> monotonic time to ask for it.
        self._vacant: dict[int, float] = {}
        self._weigh_due = 0.0
        self._state = "new"

    # Start and stop

    def start(self) -> None:
        """Start the fork server and a child per slot.

        Raises:
            EventMQError: The app cannot be loaded; one sentence says why.
            PluginError: No process can be started.
        """
        self._notes_fd = shared_notes(self.slots * NOTE_SIZE)
        self._notes = mmap.mmap(self._notes_fd, 0)
        self._selector = selectors.DefaultSelector()
        self._server = ForkServerHandle(self._loader, self._arguments, self._notes_fd, self._wear)
        self._state = "running"
        try:
            self._start_server()
            for number in range(self.slots):
                slot = Slot(number, self._notes, keep=any(self._wear))
                self._slots.append(slot)
                self._watch(slot)
                slot.parked = number >= self._initial
                if not slot.parked:
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
                self._slots[message["spawned"]].born(message["pid"])
            elif message["pid"]:  # one has ended already
                slot = self._slots[message["exited"]]
                self._events += self._bury(slot, message["reason"], message["code"])
            else:
                raise PluginError(message["reason"])

    def _start_server(self) -> None:
        self._server.start(self._start_timeout)
        self._selector.register(self._server.fileno(), selectors.EVENT_READ, None)

    def _watch(self, slot: Slot) -> None:
        self._selector.register(slot.result, selectors.EVENT_READ, slot)

    def _spawn(self, slot: Slot) -> None:
        assert slot.ends is not None  # noqa: S101 - renewed, or new
        try:
            self._server.spawn(slot.number, slot.ends)
        except EOFError:  # seen again by poll, which starts another server
            self._vacant[slot.number] = 0.0
            return
        slot.spawned_at = time.monotonic()
        slot.alive = True
        slot.passed()

    def pids(self) -> list[int | None]:
        """Return the process id of each slot, None where the child is not there yet."""
        return [slot.pid for slot in self._slots]

    def stop(self, grace: float) -> None:
        """Let running jobs finish within ``grace`` seconds, then kill.

        What they answered is had from `poll` afterwards. Idempotent.
        """
        if self._state != "running":
            return
        self._state = "stopping"
        deadline = time.monotonic() + grace
        for slot in self._slots:
            slot.take_back()
            self._forget_writing(slot)
            slot.work.close()
        while any(slot.alive for slot in self._slots) and time.monotonic() < deadline:
            self._selector.select(min(0.1, max(0.0, deadline - time.monotonic())))
            self._events += self._collect()
        self._server.close()
        for slot in self._slots:
            self._events += slot.answers()
            slot.close()
        self._selector.close()
        self._notes.close()
        os.close(self._notes_fd)
        self._state = "stopped"

    # Work

    def filenos(self) -> Sequence[int]:
        """Return one descriptor, which stands for all pipes and sockets."""
        return [self._selector.fileno()]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Give a slot a chunk. What does not fit into its pipe follows in `poll`."""
        self._give(self._slots[slot], [Given(chunk, body, count)])

    def _give(self, slot: Slot, parts: Sequence[Given]) -> None:
        for part in parts:
            slot.assign(part)
        if slot.work.pending:
            self._watch_writing(slot)

    def take_back(self, slot: int) -> int:
        """Withdraw what has not started; return how many jobs, counted from the last given."""
        return self._slots[slot].take_back()

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, None if none does."""
        note = self._slots[slot].note()
        return Running(*note) if note[2] else None

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Raise `JobCancelled` in the job by SIGTERM; the child is replaced when it has ended."""
        self._slots[slot].interrupt(chunk, position)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Tell a job that streams how many parts were taken."""
        self._slots[slot].credit(chunk, position, taken)

    def scale(self, slots: int) -> None:
        """Start children for the first slots, end those of the others."""
        for slot in self._slots:
            was, slot.parked = slot.parked, slot.number >= slots
            if slot.parked:
                self._vacant.pop(slot.number, None)
                if slot.alive:
                    slot.kill()
            elif was and not slot.alive:  # else when its last child has ended
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
                slot.poke()
            self._weigh()
        return events

    def _weigh(self) -> None:
        """Take note of the memory of children that are busy, for when one dies."""
        now = time.monotonic()
        if now < self._weigh_due:
            return
        self._weigh_due = now + WEIGH_EVERY
        for slot in self._slots:
            if slot.pid is not None and slot.note()[2]:
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
                events += slot.answers()
        # After the answers: what a child said before its end comes before its end.
        if ends:
            events += self._hear_server()
        return events

    def _watch_writing(self, slot: Slot) -> None:
        if slot.work.fd not in self._selector.get_map():
            self._selector.register(slot.work.fd, selectors.EVENT_WRITE, slot)

    def _go_on_writing(self, slot: Slot) -> None:
        slot.flush()
        if not slot.work.pending:
            self._forget_writing(slot)

    def _forget_writing(self, slot: Slot) -> None:
        if slot.work.fd in self._selector.get_map():
            self._selector.unregister(slot.work.fd)

    # Births and deaths

    def _hear_server(self) -> list[PoolEvent]:
        try:
            message = self._server.message()
        except EOFError:
            return self._lose_server()
        if "spawned" in message:
            self._slots[message["spawned"]].born(message["pid"])
            return []
        slot = self._slots[message["exited"]]
        return self._bury(slot, message["reason"], message["code"], message["peak"])

    def _bury(
        self,
        slot: Slot,
        reason: str,
        code: int = -signal.SIGKILL,
        peak: int = 0,
        *,
        shared_cause: bool = False,
    ) -> list[PoolEvent]:
        """Return the last answers of a child and its end; make room for the next child.

        Args:
            slot: Whose child has ended.
            reason: For people.
            code: Exit status, or the signal's number below 0.
            peak: Bytes of memory that it had at most.
            shared_cause: Other slots died at the same moment of the same cause.
        """
        events: list[PoolEvent] = list(slot.answers())
        chunk, position, _ = slot.note()
        now = time.monotonic()
        rest = slot.rest()
        started = slot.started()
        # Of a child that took a job the end says nothing about the next one.
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
        # A child that has served long enough, or was cancelled, ends by itself between jobs.
        orderly = not code and position < 0 and slot.served and not started
        quiet = slot.condemned or orderly
        level = logging.DEBUG if quiet else logging.WARNING
        _log.log(level, "slot %d: %s; it is replaced", slot.number, reason)
        rss = slot.rss
        condemned = slot.condemned
        self._renew(slot)
        if slot.parked:
            return events
        self._vacant[slot.number] = now + EARLY_DEATH if early else now
        if rest is not None and quiet and not condemned:  # it is the next child's
            self._give(slot, rest)
            return events
        number = slot.number
        died = SlotDied(
            number, chunk, position, reason, max(0, -code), rss, peak, started, shared_cause
        )
        return [*events, died]

    def _renew(self, slot: Slot) -> None:
        self._selector.unregister(slot.result)
        self._forget_writing(slot)
        slot.renew()
        self._watch(slot)

    def _fill_vacancies(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._vacant.items() if due <= now]:
            del self._vacant[number]
            self._spawn(self._slots[number])

    def _lose_server(self) -> list[PoolEvent]:
        """Go on with another fork server; the children of the old one are killed first."""
        _log.error("the fork server ended; it and its children are replaced")
        self._selector.unregister(self._server.fileno())
        events: list[PoolEvent] = []
        shared_cause = sum(slot.alive and bool(slot.note()[2]) for slot in self._slots) > 1
        for slot in self._slots:
            slot.signal(signal.SIGKILL)
            if slot.alive:
                slot.served = True  # its end says nothing about it
                reason = "the process was killed: the fork server had ended"
                events += self._bury(slot, reason, shared_cause=shared_cause)
        self._server.close()
        if self._state == "running":
            self._start_server()
        return events
