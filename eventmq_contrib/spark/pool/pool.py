"""Spark pool: one Spark task per slot, each with a process that runs jobs on its executor.

Leases, retries and acknowledgements stay with the job manager. Spark only places the slots and
reports their end; its own retries are off. A chunk costs no Spark job.
"""

from __future__ import annotations

import logging
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from eventmq.errors import PluginError
from eventmq.sdk import PoolEvent, PoolOptions, Running, Wakeup
from eventmq_contrib.spark.pool.remote import Ticket, serve
from eventmq_contrib.spark.pool.slot import SlotLink, SparkSlot
from eventmq_contrib.spark.session import spark_session

__all__ = ["SparkPool"]

logger = logging.getLogger("eventmq.spark.pool")

#: Settings of Spark without which a slot could be served twice.
CONFIG = {"spark.task.maxFailures": "1", "spark.speculation": "false"}

#: Seconds of silence after which the pool stops waiting for a slot to withdraw its jobs: a slot
#: that runs sends a message each second.
SILENCE = 3.0

#: Seconds: a slot that answered nothing and ended earlier than this is restarted after as long.
EARLY_END = 1.0

#: Early ends in a row after which the pool fails, since no slot can run.
MAX_EARLY_ENDS = 10

#: Line of a traceback that names the exception.
_RAISED = re.compile(r"(?!org\.|java\.)[A-Za-z_][\w.]*(Error|Exception|NotFound): ")

#: Maximum characters of the text in which Spark reports an end.
_MAX_END_TEXT = 300

#: Seconds beyond the grace within which a slot reports that it has stopped.
STOP_SLACK = 3.0


class SparkPool:
    """Implements `eventmq.interfaces.WorkerPool` with Spark tasks.

    Args:
        options: Options of the app: ``concurrency``, the number of slots, each of which keeps a
            core of the cluster; ``initial``, how many of them start at first; ``loader``, called on
            the executors with ``arguments``, returns the `Executor`. Options of the user: see
            `eventmq_contrib.spark.pool`.
    """

    interrupts = True
    shared = False
    abandoned = 0

    def __init__(self, options: PoolOptions[Any]) -> None:
        self.slots = options.concurrency
        self._loader, self._arguments = options.loader, dict(options.arguments)
        self._initial = self.slots if options.initial is None else options.initial
        own = options.own
        self._master, self._link_host = own.master, own.link_host
        self._start_timeout, self._link_timeout = own.start_timeout, own.link_timeout
        self._slots: list[SparkSlot] = []
        self._events: list[PoolEvent] = []
        self._threads: dict[str, threading.Thread] = {}
        #: (identity, reason) of the Spark tasks that have ended.
        self._ended_tasks: list[tuple[str, str]] = []
        self._vacant: dict[int, float] = {}
        self._early_ends = 0
        self._state = "new"

    # Start

    def start(self) -> None:
        """Start Spark if it does not run, and a task per slot.

        Raises:
            PluginError: Spark cannot be started, or the slots cannot.
        """
        self._wakeup = Wakeup()
        self._state = "starting"
        self._link: SlotLink | None = None
        self._owns_session = False
        self._session: SparkSession | None = None
        try:
            self._context = self._begin_spark()
            host = self._link_host or self._context.getConf().get("spark.driver.host", "127.0.0.1")
            self._link = SlotLink(host, self._wakeup.set)
            for number in range(self.slots):
                slot = SparkSlot(number, self._link)
                self._slots.append(slot)
                slot.unused = number >= self._initial
                if not slot.unused:
                    self._start_task(slot)
            self._await_slots()
            self._state = "running"
        except BaseException:
            self.stop(0.0)
            raise

    def _begin_spark(self) -> SparkContext:
        self._owns_session = SparkSession.getActiveSession() is None
        # Spark would handle Ctrl-C itself; the worker must end its jobs first.
        main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT) if main else None
        session = spark_session(
            "eventmq worker",
            master=self._master or None,
            config=CONFIG if self._owns_session else None,
        )
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        self._session = session
        return session.sparkContext

    def _start_task(self, slot: SparkSlot) -> None:
        """Ask Spark for a task that serves a slot."""
        assert self._link is not None  # noqa: S101 - there from the start on
        identity, token = slot.begin()
        ticket = Ticket(
            self._link.endpoint, self._link.public_key, identity, token, self._loader,
            self._arguments, self._start_timeout, self._link_timeout, tuple(sys.path),
        )  # fmt: skip
        self._threads[identity] = threading.Thread(
            target=self._serve, args=(identity, ticket), name=f"eventmq-{identity}", daemon=True
        )
        self._threads[identity].start()

    def _serve(self, identity: str, ticket: Ticket) -> None:
        """Let Spark run the task of a slot to its end."""
        reason = "its Spark task ended"
        context = self._context
        try:
            context.setJobGroup(identity, f"eventmq {identity}", interruptOnCancel=False)
            context.parallelize([ticket], 1).mapPartitions(_serve_each).collect()
        except Exception as error:  # noqa: BLE001 - any reason is reported
            reason = f"its Spark task ended: {_end_text(error)}"
        self._ended_tasks.append((identity, reason))
        self._wakeup.set()

    def _await_slots(self) -> None:
        """Wait until the tasks of all used slots have connected."""
        deadline = time.monotonic() + self._start_timeout
        used = [slot for slot in self._slots if not slot.unused]
        while missing := [slot for slot in used if not slot.up]:
            self._events += self._listen()
            for slot in missing:
                if slot.ended:
                    raise PluginError(f"slot {slot.number} of the pool 'spark': {slot.ended}")
            if time.monotonic() > deadline:
                ready = len(used) - len(missing)
                raise PluginError(
                    f"{ready} of {len(used)} slots connected within {self._start_timeout:g} s "
                    "(pool option start_timeout): each needs a core of the cluster, see -c"
                )
            self._wait(0.1)

    def _wait(self, seconds: float) -> None:
        select.select([self._wakeup.fd], [], [], seconds)

    # Work

    def filenos(self) -> Sequence[int]:
        """Return the descriptor of a socket that other threads write to."""
        return [self._wakeup.fd]

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk to a slot."""
        self._slots[slot].assign(chunk, body, count)

    def take_back(self, slot: int) -> int:
        """Withdraw the jobs that have not started; return how many, counted from the last one.

        This asks the executor and waits for its answer, some milliseconds on a network. A silent
        executor keeps its jobs: it continues them, or they are lost with it.
        """
        target = self._slots[slot]
        self._events += self._listen()
        count = target.withdraw()
        if not target.up or target.silence >= SILENCE:
            return count
        target.request_withdrawal()
        while target.withdrawing:
            self._events += self._listen()
            if target.silence >= SILENCE:
                target.cancel_withdrawal()
            elif target.withdrawing:
                self._wait(0.05)
        return count + (target.withdrawn or 0)

    def running(self, slot: int) -> Running | None:
        """Return the job that runs in the slot, as last reported by its executor."""
        return self._slots[slot].running()

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Raise `JobCancelled` in the job."""
        self._slots[slot].send("interrupt", chunk, position)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Pass the credit of the readers of a stream to its job."""
        self._slots[slot].send("credit", chunk, position, taken)

    def scale(self, slots: int) -> None:
        """Run Spark tasks for the first ``slots`` slots only; the others release their cores."""
        for slot in self._slots:
            before, slot.unused = slot.unused, slot.number >= slots
            if slot.unused and not before:
                self._vacant.pop(slot.number, None)
                if slot.up:
                    slot.send("stop", 0.0)
                else:
                    self._cancel(slot)
                slot.clear()
            elif before and not slot.unused:
                self._vacant[slot.number] = 0.0

    def kill(self, slot: int) -> None:
        """Kill the process that runs the slot's job; `SlotDied` follows."""
        killed = self._slots[slot]
        if killed.up:
            killed.send("kill")
        elif killed.identity:
            self._events.append(self._replace_lost(killed, "it was killed before it had connected"))
        else:
            self._events.append(killed.death("it was killed"))
        self._wakeup.set()

    def poll(self) -> list[PoolEvent]:
        """Return what happened since the last call, per slot in order.

        Raises:
            PluginError: Slots repeatedly end as soon as they are started.
        """
        events, self._events = self._events, []
        if self._state != "running":
            return events
        events += self._listen()
        now = time.monotonic()
        for slot in self._slots:
            if slot.up and slot.ended:
                events.append(self._replace_lost(slot, slot.ended))
            elif slot.up and now - slot.last_seen > self._link_timeout:
                silence = f"its executor was silent for {self._link_timeout:g} s"
                events.append(self._replace_lost(slot, silence))
        for number in [number for number, ready_at in self._vacant.items() if ready_at <= now]:
            del self._vacant[number]
            self._start_task(self._slots[number])
        return events

    # Input

    def _listen(self) -> list[PoolEvent]:
        """Return the events of the slots; handle the tasks that have ended."""
        self._wakeup.clear()
        ended, self._ended_tasks = self._ended_tasks, []
        assert self._link is not None  # noqa: S101 - there from the start on
        events: list[PoolEvent] = []
        while self._link.inbox:
            identity, (name, *fields) = self._link.inbox.popleft()
            slot = self._slot_of(identity)
            event = slot.receive(name, fields) if slot is not None else None
            if event is not None:
                events.append(event)
        for identity, reason in ended:  # after their messages
            self._threads.pop(identity, None)
            slot = self._slot_of(identity)
            if slot is not None:
                slot.ended = slot.ended or reason
                if self._state == "running":
                    events.append(self._replace_lost(slot, slot.ended))
        return events

    def _slot_of(self, identity: str) -> SparkSlot | None:
        return next((slot for slot in self._slots if slot.identity == identity), None)

    def _replace_lost(self, slot: SparkSlot, reason: str) -> PoolEvent:
        """Return the death of a slot, which is restarted."""
        now = time.monotonic()
        early = not slot.served and now - slot.started < EARLY_END
        self._early_ends = self._early_ends + 1 if early else 0
        if self._early_ends >= MAX_EARLY_ENDS:
            raise PluginError(f"the slots of the pool 'spark' end as soon as they start: {reason}")
        logger.warning("slot %d: %s; it is restarted", slot.number, reason)
        death = slot.death(reason)
        self._cancel(slot)
        slot.clear()
        self._vacant[slot.number] = now + EARLY_END if early else now
        return death

    def _cancel(self, slot: SparkSlot) -> None:
        """Let Spark cancel the task of a slot, if it has not ended."""
        if slot.identity in self._threads:
            with suppress(Exception):  # Spark itself may have ended
                self._context.cancelJobGroup(slot.identity)

    # Stop

    def stop(self, grace: float) -> None:
        """Stop within ``grace`` seconds, then kill; end Spark if the pool has started it.

        `poll` returns the last outcomes of the slots afterwards. Idempotent.
        """
        if self._state not in {"starting", "running"}:
            return
        self._state = "stopping"
        deadline = time.monotonic() + grace + STOP_SLACK
        for slot in self._slots:
            slot.withdraw()
            if not slot.up:  # it would start when another task ends
                self._cancel(slot)
        for slot in self._slots:
            slot.send("stop", grace)
        while time.monotonic() <= deadline and any(
            slot.up and not (slot.bye or slot.ended) for slot in self._slots
        ):
            self._events += self._listen()
            self._wait(0.05)
        for slot in self._slots:
            if not slot.bye:
                self._cancel(slot)
        for thread in list(self._threads.values()):
            thread.join(STOP_SLACK)  # so that its core is free
        if self._owns_session and self._session is not None:
            with suppress(Exception):  # it may have been lost
                self._session.stop()
        if self._link is not None:
            self._link.close()
        self._wakeup.close()
        self._state = "stopped"


def _serve_each(tickets: Iterable[Ticket]) -> Iterator[int]:
    """Serve the slot of the only ticket of a Spark task."""
    for ticket in tickets:
        yield from serve(ticket)


def _end_text(error: Exception) -> str:
    """Return the text in which Spark reports the end of a task, without its stack traces."""
    cause = getattr(error, "java_exception", None)
    text = str(cause.getMessage()) if cause is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [type(error).__name__])[-1 if raised else 0][:_MAX_END_TEXT]
