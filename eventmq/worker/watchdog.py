"""Watchdog: ends jobs that exceeded their hard limit, or were cancelled and did not end.

The job manager notifies it of running and cancelled jobs. The watchdog lets the pool kill a slot,
and decides the outcome of the job afterwards. ``now`` is monotonic seconds, from the same clock as
the pool's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from eventmq.execution import joblog
from eventmq.execution.failures import describe
from eventmq.execution.streaming import past_hard_limit
from eventmq.job import OutcomeKind
from eventmq.wire.batches import OutcomeRow
from eventmq.wire.results import ERROR_TYPE, encode_error

if TYPE_CHECKING:
    from eventmq.interfaces import Running, WorkerPool
    from eventmq.wire.batches import ChunkEntry
    from eventmq.worker.session import HeldChunk, HeldChunks

__all__ = ["TimeoutPolicy", "Watchdog"]

#: Shortest time in seconds after which a job that has not started is interrupted again.
INTERRUPT_AGAIN_AFTER = 1.0


class TimeoutPolicy(Protocol):
    """Decides the outcome of a job that was stopped at its hard limit: retry or failure."""

    def __call__(
        self, queue: str, text: str, position: int, entry: ChunkEntry, run_time: float, /
    ) -> OutcomeRow:
        """Return the outcome; see `eventmq.execution.executor.Executor.timed_out`."""


def always_fail(
    _queue: str, _text: str, position: int, entry: ChunkEntry, run_time: float, /
) -> OutcomeRow:
    """Fail the job for good: the default policy."""
    error = describe(past_hard_limit(entry.timeout))
    kind = OutcomeKind.FAILED
    return OutcomeRow(position, kind, 0.0, run_time, ERROR_TYPE, encode_error(error))


class _Deadline(NamedTuple):
    """Deadline of the job in a slot, at which it is killed, and whether the job was cancelled."""

    chunk: int
    position: int
    at: float
    since: float
    cancelled: bool


class Watchdog:
    """Enforces time limits and cancellations for one session.

    Args:
        pool: Where jobs run; used to interrupt a job and to kill a slot.
        held_chunks: The held chunks.
        timeout_policy: Decides the outcome of a job that exceeded its limit.
        grace: Seconds that a cancelled job has before it is killed.
    """

    def __init__(
        self, pool: WorkerPool, held_chunks: HeldChunks, timeout_policy: TimeoutPolicy, grace: float
    ) -> None:
        self._pool = pool
        self._held_chunks = held_chunks
        self._timeout_policy = timeout_policy
        self._grace = grace
        self.deadlines: dict[int, _Deadline] = {}
        #: Slots that are being killed; the pool has not reported their death yet.
        self.killed: set[int] = set()

    def watch(self, slot: int, running: Running) -> None:
        """Set the deadline of the job that a slot runs, if it has a time limit."""
        chunk = self._held_chunks.chunks.get(running.chunk)
        if chunk is None or slot in self.killed:
            return
        timeout = chunk.index.entries[running.position].timeout
        old = self.deadlines.get(slot)
        if not timeout or (old is not None and old[:2] == running[:2]):
            return
        deadline = running.since + timeout
        self.deadlines[slot] = _Deadline(*running[:2], deadline, running.since, cancelled=False)

    def cancel(self, slot: int, chunk: HeldChunk, position: int, now: float) -> None:
        """Interrupt a job that has started in a slot, and kill the slot after the grace."""
        if slot in self.killed:
            return
        deadline = now + self._grace
        old = self.deadlines.get(slot)
        if old is not None and old[:2] == (chunk.number, position):
            if old.cancelled:
                return
            deadline = min(deadline, old.at)
        self.deadlines[slot] = _Deadline(chunk.number, position, deadline, now, cancelled=True)
        self._pool.interrupt(slot, chunk.number, position)

    def next_tick(self) -> float:
        """Return the time of the next `tick`."""
        if not self.deadlines:
            return float("inf")
        return min(
            (deadline.at for slot, deadline in self.deadlines.items() if slot not in self.killed),
            default=float("inf"),
        )

    def tick(self, now: float) -> list[int]:
        """Return the slots to kill now; take back the waiting jobs of each, then call `kill`."""
        overdue: list[int] = []
        for slot, deadline in list(self.deadlines.items()):
            if now < deadline.at or slot in self.killed:
                continue
            running = self._pool.running(slot)
            if running is not None and running[:2] == deadline[:2]:
                overdue.append(slot)
            elif deadline.cancelled and self._held_chunks.is_open(slot, *deadline[:2]):
                self.deadlines[slot] = deadline._replace(
                    at=now + max(self._grace, INTERRUPT_AGAIN_AFTER)
                )
                self._pool.interrupt(slot, *deadline[:2])
            else:
                del self.deadlines[slot]
        return overdue

    def kill(self, slot: int) -> None:
        """Kill a slot. Log a cancellation; a timeout is logged with its outcome."""
        deadline = self.deadlines[slot]
        if deadline.cancelled:
            index = self._held_chunks.chunks[deadline.chunk].index
            why = f"it was cancelled and did not end within {self._grace:g} s"
            joblog.stopped(index, deadline.position, why)
        self.killed.add(slot)
        self._pool.kill(slot)

    def slot_ended(self, slot: int) -> bool:
        """Record the death of a slot; return whether the watchdog killed it."""
        killed = slot in self.killed
        self.killed.discard(slot)
        return killed

    def outcome(
        self, slot: int, chunk: HeldChunk, position: int, now: float, *, killed: bool
    ) -> OutcomeRow | None:
        """Return the outcome of a job that was lost with its slot; None if it had no deadline.

        ``killed`` is true if `kill` ended the slot.
        """
        deadline = self.deadlines.get(slot)
        if deadline is None or deadline[:2] != (chunk.number, position):
            return None
        if deadline.cancelled:
            return OutcomeRow(position, OutcomeKind.CANCELLED)
        if not killed:  # the slot died by itself
            return None
        index = chunk.index
        entry = index.entries[position]
        text = index.templates[entry.template]
        return self._timeout_policy(
            index.queue, text, position, entry, max(0.0, now - deadline.since)
        )

    def clear(self, slot: int) -> None:
        """Forget the deadline in a slot."""
        self.deadlines.pop(slot, None)
