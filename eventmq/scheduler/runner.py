"""Runs a scheduler: clock, schedule store and broker client around `SchedulerMachine`.

Any number may run. The one that holds the store's lease fires; the others read the store, and one
of them takes over when it ends. One turn renews the lease and reads the changes, then fires what is
due until nothing is, or until the next poll of the store. Whatever fails is done again, with the
same job ids.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from eventmq.errors import BrokerUnavailable, EventMQError, StoreError, SubmitError
from eventmq.notify import Notifier
from eventmq.schedule import DeferredScheduleStore
from eventmq.scheduler.machine import MAX_AHEAD, SchedulerMachine, job_headers, synchronise
from eventmq.timekeeping import SETTLED, STEP, GuardedWall, Reading, format_seconds
from eventmq.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.clock import Clock
    from eventmq.interfaces import ScheduleStore, Trigger
    from eventmq.schedule import Progress, Saved, Schedule
    from eventmq.scheduler.machine import Entry, Firing

__all__ = [
    "BATCH",
    "LEASE",
    "POLL",
    "Batches",
    "BeatClient",
    "BeatRunner",
    "GuardedClock",
    "ScheduledJob",
    "Steps",
]

logger = logging.getLogger("eventmq.scheduler")

#: Schedules and the steps to store for them.
Steps: TypeAlias = "Sequence[tuple[Entry, Progress]]"

#: Number of schedules in one batch: one message to the broker, and one to the schedule store.
BATCH = 1000

#: Number of batches that may wait for receipts: the broker works on one while the next is sent.
IN_FLIGHT = 2


class ScheduledJob(NamedTuple):
    """One job to submit."""

    id: str
    task: str
    queue: str
    headers: str
    body: bytes


class BeatClient(Protocol):
    """A beat's client of a broker."""

    def received_schedules(self) -> Sequence[tuple[Schedule, bool]]:
        """Return schedules that brokers received for this beat, and whether to remove each."""

    def submit(self, jobs: Sequence[ScheduledJob]) -> Callable[[], Sequence[bool | None]]:
        """Submit jobs; return a function that waits for the receipts.

        It returns one value per job: True if the broker has it, False if it has to be submitted
        again, None if it was refused for good. After an error it may never be called. For a broker
        without receipts, that function submits the jobs.

        Raises:
            BrokerUnavailable: The client was closed.
        """

    def now(self) -> float | None:
        """Return the broker's guarded wall time, None if it has none. Blocks.

        Raises:
            BrokerUnavailable: The broker does not answer.
        """

    def unfinished(self, ids: Sequence[str]) -> Mapping[str, bool]:
        """Return whether each job has not ended. Blocks; raises `BrokerUnavailable`."""


class GuardedClock:
    """Guarded wall time; logs the steps of the wall clock.

    Args:
        clock: The clock to guard.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guarded = GuardedWall(Reading(clock.now(), clock.boottime()))
        #: Seconds of a step that was logged and does not count yet, 0.0 for none.
        self._logged = 0.0
        #: Seconds by which guarded time was set back since `take_back`.
        self._set_back = 0.0
        self.monotonic = clock.monotonic

    def now(self) -> float:
        """Return guarded wall time."""
        guarded, clock = self._guarded, self._clock
        counted = guarded.advance(clock.now(), clock.boottime())
        if counted or guarded.step or self._logged:
            self._log(counted)
        return guarded.now

    def expect(self, guarded: float) -> None:
        """Continue from the guarded time of the broker: a clock that differs has stepped."""
        clock = self._clock
        self._guarded.expect(guarded, clock.now(), clock.boottime())
        self._log(0.0)

    def take_back(self) -> float:
        """Return the seconds by which time was set back since the last call."""
        seconds, self._set_back = self._set_back, 0.0
        return seconds

    def _log(self, counted: float) -> None:
        step, logged = self._guarded.step, self._logged
        if counted:
            self._set_back += max(0.0, -counted)
            text = "the clock has stepped by %s, and that counts now"
            logger.warning(text, format_seconds(counted))
        elif logged and not step:
            text = "the clock is back after a step of %s, which never counted"
            logger.warning(text, format_seconds(logged))
        elif step and (not logged or abs(step - logged) > STEP):
            text = (
                "the clock steps by %s, or differs from the broker's by that: this counts in "
                "%.0f minutes"
            )
            logger.warning(text, format_seconds(step), SETTLED / 60)
        else:
            return
        self._logged = step


@dataclass(slots=True, eq=False)
class _Batch:
    """Schedules that fire together.

    Attributes:
        entries: The due schedules.
        firings: The jobs and the step of each.
        receipts: Waits for the receipts of the jobs.
        steps: The steps to store afterwards.
        stored: Waits for the store's answer.
    """

    entries: Sequence[Entry]
    firings: Sequence[Firing] = ()
    receipts: Callable[[], Sequence[bool | None]] = tuple
    steps: Steps = ()
    stored: Callable[[], Saved] | None = None


class Batches:
    """Batches that wait for receipts or for the store.

    Args:
        machine: Decides what is due.
        store: Store of the schedules.
        client: Submits the jobs.
        clock: Guarded time.
        size: Maximum number of schedules in one batch.
    """

    def __init__(
        self,
        machine: SchedulerMachine,
        *,
        store: ScheduleStore,
        client: BeatClient,
        clock: GuardedClock,
        size: int,
    ) -> None:
        self._machine = machine
        self._begin_advance = _advancing(store)
        self._client = client
        self._clock = clock
        self._size = size
        self._submitted: deque[_Batch] = deque()
        self._storing: deque[_Batch] = deque()

    @property
    def open(self) -> bool:
        """Whether a batch still waits for receipts or for the store."""
        return bool(self._submitted or self._storing)

    def launch(self) -> bool:
        """Submit the jobs of one batch; return False if none is due or `IN_FLIGHT` are submitted.

        Raises:
            BrokerUnavailable: The broker does not answer, or the client was closed.
        """
        machine, now = self._machine, self._clock.now()
        next_tick = machine.next_tick()
        if next_tick is None or next_tick > now or len(self._submitted) >= IN_FLIGHT:
            return False
        batch = _Batch(machine.due(now, self._size))
        self._submitted.append(batch)
        awaited = machine.awaited_jobs(batch.entries)
        unfinished = self._client.unfinished(awaited) if awaited else {}
        fired = [machine.fire(entry, now, unfinished) for entry in batch.entries]
        batch.firings = [firing for firing in fired if firing is not None]
        jobs = [job for firing in batch.firings for job in _scheduled_jobs(firing)]
        if jobs:
            batch.receipts = self._client.submit(jobs)
        return True

    def await_receipts(self) -> tuple[Steps, Saved] | None:
        """Wait for the receipts of the oldest batch, and for the store if necessary.

        The store's answer is awaited one batch later: when the receipts of the next batch have
        arrived, or when there are no other receipts to wait for.

        Returns:
            Steps and the store's answer, None if the next batch may be launched first.

        Raises:
            BrokerUnavailable: There was no answer.
            StoreError: The store did not store the steps.
            SubmitError: The store has no space.
        """
        confirmed = bool(self._submitted)
        if confirmed:
            self._store_steps(self._submitted[0])
            self._submitted.popleft()
        if not self._storing or (confirmed and len(self._storing) == 1):
            return None
        batch = self._storing[0]
        assert batch.stored is not None  # noqa: S101 - it was begun
        saved = batch.stored()
        self._storing.popleft()
        return batch.steps, saved

    def _store_steps(self, batch: _Batch) -> None:
        """Wait for receipts and begin to store the steps; retry schedules without receipts."""
        results = batch.receipts()
        steps: list[tuple[Entry, Progress]] = []
        start, now = 0, self._clock.now()
        for firing in batch.firings:
            end = start + len(firing.fires)
            step = firing.step(results[start:end])
            start = end
            if step is None:
                self._machine.wait(firing.entry, now)
            else:
                steps.append((firing.entry, step))
        if steps:
            batch.steps = steps
            batch.stored = self._begin_advance([step for _, step in steps])
            self._storing.append(batch)

    def drop_all(self) -> None:
        """Drop all batches; their schedules are retried, with the same job ids."""
        now = self._clock.now()
        for batches in (self._submitted, self._storing):
            for batch in batches:
                for entry in batch.entries:
                    self._machine.wait(entry, now)
            batches.clear()


def _advancing(store: ScheduleStore) -> Callable[[Sequence[Progress]], Callable[[], Saved]]:
    """Return the store's `begin_advance`, or a replacement that waits at once."""
    if isinstance(store, DeferredScheduleStore):
        return store.begin_advance

    def advance(rows: Sequence[Progress]) -> Callable[[], Saved]:
        saved = store.advance(rows)
        return lambda: saved

    return advance


def _scheduled_jobs(firing: Firing) -> list[ScheduledJob]:
    """Return the jobs of a firing."""
    of = firing.entry.schedule
    return [
        ScheduledJob(fire.id, of.task, of.queue, job_headers(of, fire.fire_time), of.body)
        for fire in firing.fires
    ]


#: Seconds that a lease lasts. After its owner's death another beat has it within `LEASE` + `POLL`,
#: or if the store has no clock, such as PostgreSQL, within `LEASE` + twice `POLL`: 2 s.
LEASE = 1.2

#: Seconds between two polls of the store, each of which requests the lease.
POLL = 0.4

#: Seconds until a request to a store or broker that did not answer is repeated.
RETRY = 0.5

#: Maximum number of ended schedules that one poll removes.
MAX_REMOVED = 50

#: Temporary errors: broker or store is unreachable, or has no space. The beat then retries.
_TEMPORARY = (BrokerUnavailable, StoreError, SubmitError)


class BeatRunner:
    """One beat: `run` in a thread of your choice, `stop` from anywhere.

    Args:
        open_store: Opens the schedule store; raises `EventMQError` if it cannot.
        client: Client of the broker.
        make_trigger: Makes a trigger from its text.
        declared: Returns the schedules of the app's code.
        app: Name of the app.
        owner: Id of this run, for the lease.
        clock: The clock, not guarded yet.
        on_ready: Called once when the store was read for the first time.
        batch: Maximum number of schedules that are fired together.
    """

    def __init__(
        self,
        *,
        open_store: Callable[[], ScheduleStore],
        client: BeatClient,
        make_trigger: Callable[[str], Trigger],
        declared: Callable[[], Mapping[str, Schedule]],
        app: str,
        owner: str,
        clock: Clock,
        on_ready: Callable[[], None] | None = None,
        batch: int = BATCH,
    ) -> None:
        self._open_store = open_store
        self._client = client
        self._make_trigger = make_trigger
        self._declared = declared
        self._app = app
        self._owner = owner
        self._clock = GuardedClock(clock)
        self._compared = False
        self._on_ready = on_ready
        self._batch = batch
        self._store: ScheduleStore | None = None
        self._synchronised = False
        self._leads = False
        self._revision = 0
        self._poll_at = 0.0
        #: Text of the temporary error that was logged, "" for none.
        self._failure = ""
        #: Whether due schedules could not be fired.
        self._unfired = False
        self._ended: list[Schedule] = []
        self._stopping = self._closed = False
        #: Whether `restart`, or `stop`, was called.
        self._restart_requested = self._stop_requested = False
        self._wakeup = Wakeup()
        self._selector = selectors.DefaultSelector()
        #: Notifies a service manager; `run` sends it keep-alive messages.
        self.notifier = Notifier({})
        self._selector.register(self._wakeup.fd, selectors.EVENT_READ)

    # Start and stop

    def stop(self) -> None:
        """Make `run` end. Idempotent; from any thread or signal handler."""
        self._stop_requested = self._stopping = True
        self._wakeup.set()

    def restart(self) -> None:
        """Make `run` end with `needs_restart` set. From any thread or signal handler."""
        self._restart_requested = self._stopping = True
        self._wakeup.set()

    @property
    def needs_restart(self) -> bool:
        """Whether `restart`, and not `stop`, has ended it."""
        return self._restart_requested and not self._stop_requested

    def install_signal_handlers(self) -> None:
        """Stop at SIGTERM and SIGINT. In the main thread only."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: self.stop())

    def run(self) -> None:
        """Fire what is due until `stop`.

        Raises:
            EventMQError: The store cannot be used.
        """
        try:
            while not self._stopping:
                wait = min(self._guarded_tick(), self.notifier.every)
                self.notifier.turn(self._clock.monotonic())
                if wait > 0:
                    self._selector.select(wait)
            if self._stop_requested:
                self.notifier.stopping("ending")
        finally:
            self.close()

    def close(self) -> None:
        """Release the lease, then everything else; called at the end of `run`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._store is not None:
            if self._leads:
                with contextlib.suppress(EventMQError):
                    self._store.release(self._owner)
            self._store.close()
        self._selector.close()
        self._wakeup.close()

    # Turns

    def _guarded_tick(self) -> float:
        """Do a turn, catch temporary errors; return the seconds to wait for the next turn."""
        try:
            wait = self._tick()
        except _TEMPORARY as error:
            if isinstance(error, StoreError) and self._store is None:
                raise
            self._log_failure(str(error))
            self._poll_at = 0.0
            return RETRY
        if not self._unfired:
            self._log_failure("")
        return wait

    def _log_failure(self, failure: str) -> None:
        """Log when a temporary error begins and when it ends."""
        if failure and not self._failure:
            logger.warning("the scheduler waits: %s", failure)
        elif self._failure and not failure:
            logger.info("the scheduler continues")
        self._failure = failure

    def _tick(self) -> float:
        clock = self._clock
        now, monotonic = clock.now(), clock.monotonic()
        if monotonic >= self._poll_at:
            self._poll(now)
            self._poll_at = monotonic + POLL
        if self._leads and not self._compared:
            self._compare()
            now = clock.now()
        if clock.take_back():
            self._machine.clock_set_back(now)
        next_tick = self._machine.next_tick() if self._leads else None
        if next_tick is not None and next_tick <= now:
            self._fire()
            next_tick = self._machine.next_tick()
        now, monotonic = clock.now(), clock.monotonic()
        wait = self._poll_at - monotonic
        return max(0.0, wait if next_tick is None else min(wait, next_tick - now))

    def _compare(self) -> None:
        """Adopt the broker's time, once: a clock that was wrong at the start has stepped."""
        broker_time = self._client.now()
        self._compared = True
        if broker_time is not None:
            self._clock.expect(broker_time)
        self._machine.clock_set_back(self._clock.now(), MAX_AHEAD)

    # The store

    def _poll(self, now: float) -> None:
        """Request the lease and read the changes."""
        store = self._open() if self._store is None else self._store
        if not self._synchronised:
            self._load(store, now)
            stored = {name: entry.schedule for name, entry in self._machine.entries.items()}
            synchronise(store, stored, self._declared(), self._app, now)
            self._synchronised = True
        for schedule, remove in self._client.received_schedules():
            self._store_received(store, schedule, now, remove=remove)
        leads = self._leads
        lease = store.lease(self._owner, LEASE)
        self._leads = lease.held
        self._machine.foreign = lease.foreign
        if self._leads is not leads:
            logger.info(
                "this beat fires the schedules now"
                if self._leads
                else "another beat fires the schedules; this one waits"
            )
        if lease.revision != self._revision or self._on_ready is not None:
            self._load(store, now)
        if self._leads:
            if not leads:
                self._ended = self._machine.ended()
            self._remove_ended(store)
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()

    @staticmethod
    def _store_received(
        store: ScheduleStore, schedule: Schedule, now: float, *, remove: bool
    ) -> None:
        """Store or remove a schedule for a broker that has no schedule store."""
        stored = store.find(schedule.name)
        if remove:
            store.remove(schedule.name, None)
        elif stored is None:
            store.save([(schedule.started(now), None)])
        elif stored.remaining == 0 or not schedule.does_the_same(stored):
            store.save([(schedule.started(now), stored.version)])

    def _open(self) -> ScheduleStore:
        self._store = store = self._open_store()
        self._machine = SchedulerMachine(store.identity, self._make_trigger)
        self._batches = Batches(
            self._machine, store=store, client=self._client, clock=self._clock, size=self._batch
        )
        return store

    def _load(self, store: ScheduleStore, now: float) -> None:
        loaded = store.load(self._revision)
        if loaded.whole:
            self._machine.keep_only(schedule.name for schedule in loaded.schedules)
        # Before the clock is compared, no fire time counts as ahead of it.
        self._machine.replace(loaded.schedules, now if self._compared else float("inf"))
        self._machine.drop(loaded.removed)
        self._revision = loaded.revision

    # Firing

    def _fire(self) -> None:
        """Fire what is due until nothing is, or until the next poll of the store."""
        batches = self._batches
        self._unfired = True
        try:
            # Submit at least one round: a poll of the store may take longer than `POLL`.
            while not self._stopping and batches.launch():
                pass
            while batches.open:
                if not (self._may_continue() and batches.launch()):
                    settled = batches.await_receipts()
                    if settled is not None:
                        self._apply(*settled)
        except _TEMPORARY:
            batches.drop_all()
            raise
        self._unfired = False

    def _may_continue(self) -> bool:
        """Return whether more schedules may fire before the next poll of the store."""
        return not self._stopping and self._clock.monotonic() < self._poll_at

    def _apply(self, steps: Steps, saved: Saved) -> None:
        """Apply the store's answer about steps."""
        for (entry, step), stored in zip(steps, saved.done, strict=True):
            if stored:
                self._machine.moved(entry, step)
            else:  # another beat was first: the next poll reads its step
                self._machine.wait(entry, self._clock.now())
                self._poll_at = 0.0
        if saved.revision == self._revision + sum(saved.done):
            self._revision = saved.revision
        self._ended += [entry.schedule for entry, _ in steps if self._machine.is_over(entry)]

    def _remove_ended(self, store: ScheduleStore) -> None:
        """Remove schedules that have fired for the last time, `MAX_REMOVED` at a poll."""
        while self._ended:
            schedule = self._ended[-1]
            if store.remove(schedule.name, schedule.version):
                logger.info("schedule %r has ended and is removed", schedule.name)
            self._ended.pop()
            if len(self._ended) % MAX_REMOVED == 0:
                break
