"""Ends jobs that must not go on: past their hard limit, or cancelled and not obeying.

The job manager tells it what runs and what was cancelled; it tells the pool to kill, and says what
becomes of the job when the pool has done so. ``now`` is monotonic seconds, the clock of the pool.
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
    from eventmq.worker.chunks import HeldChunk, Ledger

__all__ = ["TimeoutPolicy", "Watchdog"]

#: Least time in seconds after which a job that has not started is cancelled once more.
AGAIN = 1.0

_CANCELLED = int(OutcomeKind.CANCELLED)


class TimeoutPolicy(Protocol):
    """Says what becomes of a job that was stopped at its limit: another attempt, or failure."""

    def __call__(
        self, queue: str, text: str, position: int, entry: ChunkEntry, run_time: float, /
    ) -> OutcomeRow:
        """Return its outcome; see `eventmq.execution.executor.Executor.timed_out`."""


def fail(
    _queue: str, _text: str, position: int, entry: ChunkEntry, run_time: float, /
) -> OutcomeRow:
    """TimeoutPolicy that every such job has failed for good."""
    error = describe(past_hard_limit(entry.timeout))
    failed = int(OutcomeKind.FAILED)
    return OutcomeRow(position, failed, 0.0, run_time, ERROR_TYPE, encode_error(error))


class _Deadline(NamedTuple):
    """What is to happen in a slot: the job, when it is killed, and whether it was cancelled."""

    chunk: int
    position: int
    due: float
    since: float
    cancelled: bool


class Watchdog:
    """Of one session.

    Args:
        pool: Kills.
        ledger: What is held.
        timeout_policy: Says what becomes of a job that ran into its limit.
        grace: Seconds that a cancelled job has before it is killed.
    """

    def __init__(
        self, pool: WorkerPool, ledger: Ledger, timeout_policy: TimeoutPolicy, grace: float
    ) -> None:
        self._pool = pool
        self._ledger = ledger
        self._timeout_policy = timeout_policy
        self._grace = grace
        self._deadlines: dict[int, _Deadline] = {}
        #: Slots that the pool was told to kill and has not reported.
        self.killed: set[int] = set()

    def watch(self, slot: int, running: Running) -> None:
        """Take note of what a slot runs."""
        chunk = self._ledger.chunks.get(running.chunk)
        if chunk is None or slot in self.killed:
            return
        timeout = chunk.index.entries[running.position].timeout
        old = self._deadlines.get(slot)
        if not timeout or (old is not None and old[:2] == running[:2]):
            return
        due = running.since + timeout
        self._deadlines[slot] = _Deadline(*running[:2], due, running.since, cancelled=False)

    def cancel(self, slot: int, chunk: HeldChunk, position: int, now: float) -> None:
        """Ask a job that has started in a slot to end, and kill it after the grace."""
        if slot in self.killed:
            return
        due = now + self._grace
        old = self._deadlines.get(slot)
        if old is not None and old[:2] == (chunk.number, position):
            if old.cancelled:
                return
            due = min(due, old.due)
        self._deadlines[slot] = _Deadline(chunk.number, position, due, now, cancelled=True)
        self._pool.interrupt(slot, chunk.number, position)

    def due(self) -> float:
        """Return when `tick` has something to do."""
        if not self._deadlines:
            return float("inf")
        return min(
            (s.due for slot, s in self._deadlines.items() if slot not in self.killed),
            default=float("inf"),
        )

    def tick(self, now: float) -> list[int]:
        """Return the slots that must be killed now: empty each first, then call `kill`."""
        late: list[int] = []
        for slot, deadline in list(self._deadlines.items()):
            if now < deadline.due or slot in self.killed:
                continue
            running = self._pool.running(slot)
            if running is not None and running[:2] == deadline[:2]:
                late.append(slot)
            elif deadline.cancelled and self._ledger.is_open(slot, *deadline[:2]):
                self._deadlines[slot] = deadline._replace(due=now + max(self._grace, AGAIN))
                self._pool.interrupt(slot, *deadline[:2])
            else:
                del self._deadlines[slot]
        return late

    def kill(self, slot: int) -> None:
        """End what runs in a slot."""
        deadline = self._deadlines[slot]
        index = self._ledger.chunks[deadline.chunk].index
        if deadline.cancelled:
            why = f"it was cancelled and did not end within {self._grace:g} s"
        else:
            why = f"its timeout of {index.entries[deadline.position].timeout:g} s has passed"
        joblog.overdue(index, deadline.position, why)
        self.killed.add(slot)
        self._pool.kill(slot)

    def ended(self, slot: int) -> bool:
        """Take note that a slot has lost everything; say whether we had it killed."""
        ours = slot in self.killed
        self.killed.discard(slot)
        return ours

    def outcome(
        self, slot: int, chunk: HeldChunk, position: int, now: float, *, killed: bool
    ) -> OutcomeRow | None:
        """Return the outcome of a job that a slot has lost; None if nobody wanted its end.

        ``killed`` says that the slot was lost by `kill`.
        """
        deadline = self._deadlines.get(slot)
        if deadline is None or deadline[:2] != (chunk.number, position):
            return None
        if deadline.cancelled:
            return OutcomeRow(position, _CANCELLED, 0.0, 0.0, "", b"")
        if not killed:  # it died by itself
            return None
        index = chunk.index
        entry = index.entries[position]
        text = index.templates[entry.template]
        return self._timeout_policy(
            index.queue, text, position, entry, max(0.0, now - deadline.since)
        )

    def forget(self, slot: int) -> None:
        """Forget what was to happen in a slot."""
        self._deadlines.pop(slot, None)
