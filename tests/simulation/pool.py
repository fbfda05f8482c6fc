"""Worker pool whose jobs take simulated time and end as their bodies say.

It keeps the contract of `eventmq.interfaces.WorkerPool`: a slot runs its chunks in order,
`take_back` withdraws the jobs that have not started, and `kill` loses all jobs of the slot. A body
lists seconds and fate for each run; later runs repeat the last entry.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from eventmq.headers import parse_headers
from eventmq.interfaces import JobsEnded, PartsYielded, Running, SlotDied
from eventmq.job import OutcomeKind
from eventmq.wire.batches import ChunkEntry, ChunkIndex, OutcomeRow, decode_chunk, encode_outcomes
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq.wire.streams import encode_parts
from tests.simulation.auditor import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import PoolEvent
    from tests.simulation.auditor import Auditor
    from tests.simulation.world import Process

__all__ = ["SimPool", "make_body", "timeout_policy"]

_ERROR = encode_error(RemoteError("ValueError", "as the plan says"))


class Task(NamedTuple):
    """Job that was assigned to a slot."""

    chunk: int
    position: int
    entry: ChunkEntry
    headers: str
    payload: bytes


def make_body(runs: Sequence[tuple[float, str]]) -> bytes:
    """Encode (seconds, fate) for each run of a job.

    Fates are ``ok``, ``fail`` (retried if the job has retries), ``die`` (kills its process) and
    ``deaf`` (ignores cancellation).
    """
    return msgpack.packb([[list(run) for run in runs], {}])


class Slot:
    """One process of the pool."""

    def __init__(self) -> None:
        self.queue: deque[Task] = deque()
        self.runs: Task | None = None
        self.since = 0.0
        self.fate = ""
        #: Number of the run; actions that were scheduled for an earlier one are ignored.
        self.number = 0
        self.execution: Any = None


class SimPool:
    """Pool of one run of a worker.

    Args:
        owner: Worker, whose clock the jobs use.
        auditor: Gets the start and end of each run.
        slots: Number of slots.
    """

    interrupts = True
    shared = False
    abandoned = 0

    def __init__(self, owner: Process, auditor: Auditor, slots: int) -> None:
        self.slots = slots
        self.alive = True
        self._owner = owner
        self._auditor = auditor
        self._slots = [Slot() for _ in range(slots)]
        self._events: list[PoolEvent] = []

    # Contract of worker pools

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        index = decode_chunk(body)
        self._slots[slot].queue += tasks_of(chunk, index, body)
        self._next(slot)

    def take_back(self, slot: int) -> int:
        queue = self._slots[slot].queue
        count = len(queue)
        queue.clear()
        return count

    def running(self, slot: int) -> Running | None:
        runs = self._slots[slot].runs
        return runs and Running(runs.chunk, runs.position, self._slots[slot].since)

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        runs = self._slots[slot].runs
        runs_it = runs is not None and (runs.chunk, runs.position) == (chunk, position)
        if runs_it and self._slots[slot].fate != "deaf":
            self._end(slot, "cancelled")

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Do nothing: jobs here never yield more than their credit."""

    def scale(self, slots: int) -> None:
        """Do nothing: the number of slots is fixed."""

    def kill(self, slot: int) -> None:
        """Kill a slot; the watchdog makes the outcome of its job."""
        self._lose(slot, "it was killed", OutcomeKind.FAILED)

    def poll(self) -> list[PoolEvent]:
        events, self._events = self._events, []
        return events

    def stop(self, grace: float = 0.0) -> None:
        """End with the worker; running jobs are lost."""
        self.alive = False
        for slot in self._slots:
            slot.number += 1
            if slot.runs is not None:
                self._auditor.interrupted(slot.execution)

    # Faults

    def kill_child(self, slot: int) -> None:
        """Let a child die of a signal."""
        self._lose(slot % self.slots, "killed by signal 9")

    # Running

    def _next(self, number: int) -> None:
        slot = self._slots[number]
        if slot.runs is not None or not slot.queue or not self.alive:
            return
        task = slot.queue.popleft()
        entry, owner = task.entry, self._owner
        if not entry.id:  # it was withdrawn before the chunk was sent again
            self._answer(
                number,
                task,
                OutcomeRow(task.position, int(OutcomeKind.HANDED_BACK), 0.0, 0.0, "", b""),
            )
            return
        now = owner.clock.now()
        if entry.expires and entry.expires < now:
            row = OutcomeRow(task.position, int(OutcomeKind.EXPIRED), 0.0, 0.0, "", b"")
            self._answer(number, task, row)
            return
        slot.runs = task
        slot.since = owner.clock.monotonic()
        slot.execution = self._auditor.started(entry, task.payload, owner)
        seconds, slot.fate = fate_of(task.payload, slot.execution.run)
        run = slot.number = slot.number + 1
        owner.world.at(owner.world.now + seconds, lambda: self._run_ended(number, run))
        if ",stream" in task.headers:
            for part in range(PARTS):
                at = owner.world.now + seconds * (part + 0.5) / PARTS
                owner.world.at(at, lambda part=part: self._yield(number, run, part))

    def _yield(self, number: int, run: int, part: int) -> None:
        slot = self._slots[number]
        if not self.alive or slot.number != run or slot.runs is None:
            return
        task = slot.runs
        body = encode_parts("msgpack", [part_of(task.entry.id, task.entry.delivery, part)])
        self._events.append(PartsYielded(number, task.chunk, task.position, part, 1, body))
        self._owner.wake()

    def _run_ended(self, number: int, run: int) -> None:
        slot = self._slots[number]
        if self.alive and slot.number == run:
            if slot.fate == "die":
                self._lose(number, "killed by signal 11")
            else:
                self._end(number, slot.fate)

    def _end(self, number: int, fate: str) -> None:
        slot = self._slots[number]
        task, slot.runs = slot.runs, None
        slot.number += 1
        assert task is not None
        run_time = self._owner.clock.monotonic() - slot.since
        row = outcome(task, fate, max(0.0, self._owner.clock.now() - run_time), run_time)
        self._auditor.ended(slot.execution, OutcomeKind(row.kind))
        self._answer(number, task, row)

    def _answer(self, number: int, task: Task, row: OutcomeRow) -> None:
        body = encode_outcomes([row])
        self._events.append(JobsEnded(number, task.chunk, 1, row.run_time, body))
        self._owner.wake()
        self._next(number)

    def _lose(self, number: int, reason: str, kind: OutcomeKind = OutcomeKind.DIED) -> None:
        slot = self._slots[number]
        task, slot.runs = slot.runs, None
        slot.number += 1
        slot.queue.clear()
        chunk, position = (task.chunk, task.position) if task else (0, -1)
        if task is not None:
            self._auditor.ended(slot.execution, kind)
        self._events.append(SlotDied(number, chunk, position, reason))
        self._owner.wake()


def part_of(job_id: str, delivery: int, index: int) -> bytes:
    """Return a part that a run of a job yields."""
    return f"{job_id}/{delivery}/{index}".encode()


def timeout_policy(
    queue: str, text: str, position: int, entry: ChunkEntry, run_time: float
) -> OutcomeRow:
    """Return the outcome of a job that exceeded its time limit: a retry or a failure."""
    return outcome(Task(0, position, entry, text, b""), "fail", 1.0, run_time)


def tasks_of(chunk: int, index: ChunkIndex, body: bytes) -> list[Task]:
    """Return the jobs of a chunk."""
    return [
        Task(chunk, position, entry, index.templates[entry.template], index.payload(body, entry))
        for position, entry in enumerate(index.entries)
    ]


def fate_of(payload: bytes, run: int) -> tuple[float, str]:
    """Return seconds and fate of a run of a job, counted from 1."""
    value = msgpack.unpackb(payload)
    if isinstance(value[0], bytes):  # with prepended results
        value = msgpack.unpackb(value[0])
    runs = value[0]
    seconds, fate = runs[min(run, len(runs)) - 1]
    return float(seconds), fate


def outcome(task: Task, fate: str, started: float, run_time: float) -> OutcomeRow:
    """Return the outcome of a run as the executor of a worker makes it."""
    entry, position = task.entry, task.position
    if fate == "cancelled":
        return OutcomeRow(position, int(OutcomeKind.CANCELLED), started, run_time, "", b"")
    if fate != "fail":
        result = msgpack.packb(f"{entry.id}/{entry.attempt}")
        return OutcomeRow(
            position, int(OutcomeKind.SUCCEEDED), started, run_time, "msgpack", result
        )
    kind, countdown = OutcomeKind.FAILED, 0.0
    if entry.attempt <= parse_headers(task.headers).retry_count:
        kind, countdown = OutcomeKind.RETRY, 0.5 * entry.attempt
    return OutcomeRow(position, int(kind), started, run_time, ERROR_TYPE, _ERROR, countdown)
