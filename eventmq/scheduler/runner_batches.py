"""Fires schedules: their jobs go to the broker, then how far that is goes into the store.

That is done for a batch of schedules at a time. While one waits for its receipts and another for
the store, the next one is made, so that scheduler and broker work at the same time. A schedule is
in one batch at a time: it is due again when its step is in the store, or is to be tried again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from eventmq.scheduler.plan import job_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.interfaces import ScheduleStore
    from eventmq.schedule import Progress, Saved, Schedule
    from eventmq.scheduler.machine import Machine
    from eventmq.scheduler.plan import Entry, Firing
    from eventmq.scheduler.runner_clock import GuardedClock

__all__ = ["BATCH", "Batches", "Gate", "Order", "Steps"]

#: Schedules, and where they go.
Steps: TypeAlias = "Sequence[tuple[Entry, Progress]]"

#: Schedules of one batch: one message to the broker, and one to its store.
BATCH = 1000

#: Batches that wait for receipts at a time: one that the broker works on, and one that comes.
IN_FLIGHT = 2


class Order(NamedTuple):
    """One job to be submitted."""

    id: str
    task: str
    queue: str
    headers: str
    body: bytes


class Gate(Protocol):
    """The way to the broker."""

    def heard(self) -> Sequence[tuple[Schedule, bool]]:
        """Return schedules that brokers sent to be kept here, and whether each is to go."""

    def submit(self, orders: Sequence[Order]) -> Callable[[], Sequence[bool | None]]:
        """Submit jobs; return a function that waits for the receipts.

        It returns per job: True if the broker has it, False if it is to be submitted again, None
        if it was refused for good. After trouble it can be that it is never called. Where there
        are no receipts, it is the function that submits.

        Raises:
            BrokerUnavailable: The client was closed.
        """

    def now(self) -> float | None:
        """Wait for the broker's guarded wall time; None where it does not say it.

        Raises:
            BrokerUnavailable: It does not answer.
        """

    def unfinished(self, ids: Sequence[str]) -> Mapping[str, bool]:
        """Wait, and say which jobs have not ended. Raises `BrokerUnavailable`."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Schedules that fire together.

    Attributes:
        entries: All of them.
        firings: What is done for them.
        receipts: Waits for what became of their jobs.
        steps: What is to be stored then.
        stored: Waits for the store.
    """

    entries: Sequence[Entry]
    firings: Sequence[Firing] = ()
    receipts: Callable[[], Sequence[bool | None]] = tuple
    steps: Steps = ()
    stored: Callable[[], Saved] | None = None


class Batches:
    """What is on its way.

    Args:
        machine: Says what is due.
        store: Keeps how far that is.
        gate: Takes the jobs.
        clock: Tells guarded time.
        size: Schedules of one batch at most.
    """

    def __init__(
        self, machine: Machine, *, store: ScheduleStore, gate: Gate, clock: GuardedClock, size: int
    ) -> None:
        self._machine = machine
        self._begin_advance = _advancing(store)
        self._gate = gate
        self._clock = clock
        self._size = size
        self._flying: deque[_Batch] = deque()
        self._storing: deque[_Batch] = deque()

    @property
    def open(self) -> bool:
        """Whether there is something to `settle`."""
        return bool(self._flying or self._storing)

    def launch(self) -> bool:
        """Submit the jobs of what is due; return False if nothing is, or enough is on its way.

        Raises:
            BrokerUnavailable: It does not say which jobs have ended, or the client was closed.
        """
        machine, now = self._machine, self._clock.now()
        due = machine.wake_at()
        if due is None or due > now or len(self._flying) >= IN_FLIGHT:
            return False
        batch = _Batch(machine.due(now, self._size))
        self._flying.append(batch)
        asked = machine.asks(batch.entries)
        unfinished = self._gate.unfinished(asked) if asked else {}
        fired = [machine.fire(entry, now, unfinished) for entry in batch.entries]
        batch.firings = [firing for firing in fired if firing is not None]
        orders = [order for firing in batch.firings for order in _orders(firing)]
        if orders:
            batch.receipts = self._gate.submit(orders)
        return True

    def settle(self) -> tuple[Steps, Saved] | None:
        """Wait for something: the receipts of the oldest batch, and then perhaps for the store.

        The store gets the time of one more batch for its answer: it is waited for when receipts
        of the next one are there, or when there are no other receipts to wait for.

        Returns:
            Steps and what the store says of them, None if the next ones may be launched first.

        Raises:
            BrokerUnavailable: There was no answer.
            StoreError: The store did not take them.
            SubmitError: It has no space.
        """
        landed = bool(self._flying)
        if landed:
            self._land(self._flying[0])
            self._flying.popleft()
        if not self._storing or (landed and len(self._storing) == 1):
            return None
        batch = self._storing[0]
        assert batch.stored is not None  # noqa: S101 - it was begun
        saved = batch.stored()
        self._storing.popleft()
        return batch.steps, saved

    def _land(self, batch: _Batch) -> None:
        """Wait for receipts, and begin to store what they say. What was not taken waits."""
        results = batch.receipts()
        steps: list[tuple[Entry, Progress]] = []
        place, now = 0, self._clock.now()
        for firing in batch.firings:
            end = place + len(firing.shots)
            step = firing.step(results[place:end])
            place = end
            if step is None:
                self._machine.wait(firing.entry, now)
            else:
                steps.append((firing.entry, step))
        if steps:
            batch.steps = steps
            batch.stored = self._begin_advance([step for _, step in steps])
            self._storing.append(batch)

    def give_up(self) -> None:
        """Forget all that is on its way: it is done again, under the same ids."""
        now = self._clock.now()
        for batches in (self._flying, self._storing):
            for batch in batches:
                for entry in batch.entries:
                    self._machine.wait(entry, now)
            batches.clear()


def _advancing(store: ScheduleStore) -> Callable[[Sequence[Progress]], Callable[[], Saved]]:
    """Return the store's `begin_advance`, or what does the same at once."""
    begin = getattr(store, "begin_advance", None)
    if begin is not None:
        return begin  # type: ignore[no-any-return]

    def advance(rows: Sequence[Progress]) -> Callable[[], Saved]:
        saved = store.advance(rows)
        return lambda: saved

    return advance


def _orders(firing: Firing) -> list[Order]:
    """Return the jobs of a firing."""
    made = firing.entry.schedule
    return [
        Order(shot.id, made.task, made.queue, job_headers(made, shot.slot), made.body)
        for shot in firing.shots
    ]
