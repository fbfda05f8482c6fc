"""Runs a scheduler: the clock, the store and the way to the broker around `Machine`.

Any number may run. The one that holds the store's lease fires; the others keep up and take over
when it ends. One turn: ask for the lease and read what changed, then fire what is due until
nothing is, or until the next look at the store. Whatever fails in between is done again, under
the same ids.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from eventmq.errors import BrokerUnavailable, EventMQError, StoreError, SubmitError
from eventmq.scheduler.clock import GuardedClock
from eventmq.scheduler.code import synchronise
from eventmq.scheduler.machine import AHEAD, Machine, job_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.clock import Clock
    from eventmq.interfaces import ScheduleStore, Trigger
    from eventmq.schedule import Progress, Saved, Schedule
    from eventmq.scheduler.machine import Entry, Firing

__all__ = ["BATCH", "LEASE", "POLL", "Batches", "BeatRunner", "Gate", "Order", "Steps"]


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


logger = logging.getLogger("eventmq.scheduler")

#: Seconds that a lease lasts, and between two times that it is asked for: whoever waits has it
#: within the sum of both after the holder's death, and that is below 2 s.
LEASE = 1.2

POLL = 0.4

#: Seconds until a store or broker that did not answer is asked again.
RETRY = 0.5

#: Schedules that are over and are removed between two firings.
CLEARED = 50

#: What passes: the broker or the store is away, or has no space. Then all is tried again.
_TROUBLE = (BrokerUnavailable, StoreError, SubmitError)


class BeatRunner:
    """One beat: ``run`` in a thread of your choice, ``stop`` from anywhere.

    Args:
        open_store: Opens the store; raises `EventMQError` where it cannot.
        gate: The way to the broker.
        make_trigger: Makes the trigger of its text.
        declared: The schedules of the app's code.
        app: Its name.
        holder: Id of this run, for the lease.
        clock: Reads time.
        on_ready: Called once when the store was read for the first time.
        batch: Schedules that are fired together at most.
    """

    def __init__(
        self,
        *,
        open_store: Callable[[], ScheduleStore],
        gate: Gate,
        make_trigger: Callable[[str], Trigger],
        declared: Callable[[], Mapping[str, Schedule]],
        app: str,
        holder: str,
        clock: Clock,
        on_ready: Callable[[], None] | None = None,
        batch: int = BATCH,
    ) -> None:
        self._open_store = open_store
        self._gate = gate
        self._make_trigger = make_trigger
        self._declared = declared
        self._app = app
        self._holder = holder
        self._clock = GuardedClock(clock)
        self._compared = False
        self._on_ready = on_ready
        self._batch = batch
        self._store: ScheduleStore | None = None
        self._synchronised = False
        self._leads = False
        self._seen = 0
        self._poll_at = 0.0
        self._prepare()

    def _prepare(self) -> None:
        self._trouble = ""
        #: What was due could not be dealt with.
        self._unfired = False
        self._over: list[Schedule] = []
        self._stopping = self._closed = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)

    # Start and stop

    def stop(self) -> None:
        """Ask `run` to end. From any thread or signal handler, any number of times."""
        self._stopping = True
        if not self._closed:
            with contextlib.suppress(OSError):  # full or just closed: awake or gone already
                os.write(self._wake, b"!")

    def install_signal_handlers(self) -> None:
        """Let SIGTERM and SIGINT stop it. In the main thread only."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: self.stop())

    def run(self) -> None:
        """Fire what is due until `stop`.

        Raises:
            EventMQError: The store cannot be used at all.
        """
        try:
            while not self._stopping:
                wait = self._guarded_turn()
                if wait > 0:
                    self._selector.select(wait)
        finally:
            self.close()

    def close(self) -> None:
        """Release everything, the lease first; `run` does it at its end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._store is not None:
            if self._leads:
                with contextlib.suppress(EventMQError):
                    self._store.release(self._holder)
            self._store.close()
        self._selector.close()
        for fd in (self._woken, self._wake):
            os.close(fd)

    # Turns

    def _guarded_turn(self) -> float:
        """Do a turn; return how many seconds to wait for the next."""
        try:
            wait = self._turn()
        except _TROUBLE as error:
            if isinstance(error, StoreError) and self._store is None:
                raise
            self._tell(str(error))
            self._poll_at = 0.0
            return RETRY
        if not self._unfired:
            self._tell("")
        return wait

    def _tell(self, trouble: str) -> None:
        """Log trouble when it begins and when it ends."""
        if trouble and not self._trouble:
            logger.warning("the scheduler waits: %s", trouble)
        elif self._trouble and not trouble:
            logger.info("the scheduler goes on")
        self._trouble = trouble

    def _turn(self) -> float:
        clock = self._clock
        now, monotonic = clock.now(), clock.monotonic()
        if monotonic >= self._poll_at:
            self._poll(now)
            self._poll_at = monotonic + POLL
        if self._leads and not self._compared:
            self._compare()
            now = clock.now()
        if clock.take_back():
            self._machine.went_back(now)
        due = self._machine.wake_at() if self._leads else None
        if due is not None and due <= now:
            self._fire()
            due = self._machine.wake_at()
        now, monotonic = clock.now(), clock.monotonic()
        wait = self._poll_at - monotonic
        return max(0.0, wait if due is None else min(wait, due - now))

    def _compare(self) -> None:
        """Go on from the broker's time, once: a clock that was wrong at the start has stepped."""
        there = self._gate.now()
        self._compared = True
        if there is not None:
            self._clock.expect(there)
        self._machine.went_back(self._clock.now(), AHEAD)

    # The store

    def _poll(self, now: float) -> None:
        """Ask for the lease, and read what changed."""
        store = self._begin() if self._store is None else self._store
        if not self._synchronised:
            self._load(store, now)
            there = {name: entry.schedule for name, entry in self._machine.entries.items()}
            synchronise(store, there, self._declared(), self._app, now)
            self._synchronised = True
        for made, remove in self._gate.heard():
            self._keep(store, made, now, remove=remove)
        leads = self._leads
        lease = store.lease(self._holder, LEASE)
        self._leads = lease.held
        self._machine.foreign = lease.foreign
        if self._leads is not leads:
            logger.info("this beat %s", "fires now" if self._leads else "waits for another one")
        if lease.revision != self._seen or self._on_ready is not None:
            self._load(store, now)
        if self._leads:
            if not leads:
                self._over = self._machine.ended()
            self._clear_up(store)
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()

    @staticmethod
    def _keep(store: ScheduleStore, made: Schedule, now: float, *, remove: bool) -> None:
        """Do what a broker without a store for schedules asks for."""
        other = store.find(made.name)
        if remove:
            store.remove(made.name, None)
        elif other is None:
            store.save([(made.begun(now), None)])
        elif other.remaining == 0 or not made.does_the_same(other):
            store.save([(made.begun(now), other.version)])

    def _begin(self) -> ScheduleStore:
        self._store = store = self._open_store()
        self._machine = Machine(store.identity, self._make_trigger)
        self._batches = Batches(
            self._machine, store=store, gate=self._gate, clock=self._clock, size=self._batch
        )
        return store

    def _load(self, store: ScheduleStore, now: float) -> None:
        loaded = store.load(self._seen)
        if loaded.whole:
            self._machine.keep_only(schedule.name for schedule in loaded.schedules)
        # Before the clock is compared, nothing is ahead of it.
        self._machine.replace(loaded.schedules, now if self._compared else float("inf"))
        self._machine.drop(loaded.gone)
        self._seen = loaded.revision

    # Firing

    def _fire(self) -> None:
        """Fire what is due until nothing is, or until the store is to be looked at again."""
        batches = self._batches
        self._unfired = True
        try:
            # Some go out in any case: looks at the store may take longer than is between them.
            while not self._stopping and batches.launch():
                pass
            while batches.open:
                if not (self._goes_on() and batches.launch()):
                    settled = batches.settle()
                    if settled is not None:
                        self._note(*settled)
        except _TROUBLE:
            batches.give_up()
            raise
        self._unfired = False

    def _goes_on(self) -> bool:
        """Whether more may fire before the store is looked at again."""
        return not self._stopping and self._clock.monotonic() < self._poll_at

    def _note(self, steps: Steps, saved: Saved) -> None:
        """Take note of what became of steps in the store."""
        for (entry, step), stored in zip(steps, saved.done, strict=True):
            if stored:
                self._machine.moved(entry, step)
            else:  # somebody else was first: what he did comes with the next look
                self._machine.wait(entry, self._clock.now())
                self._poll_at = 0.0
        if saved.revision == self._seen + sum(saved.done):
            self._seen = saved.revision
        self._over += [entry.schedule for entry, _ in steps if self._machine.is_over(entry)]

    def _clear_up(self, store: ScheduleStore) -> None:
        """Remove schedules that have fired for the last time, some at a time."""
        while self._over:
            made = self._over[-1]
            if store.remove(made.name, made.version):
                logger.info("schedule %r has ended and is removed", made.name)
            self._over.pop()
            if len(self._over) % CLEARED == 0:
                break
