"""Scheduler harness: beats in one process on a fake clock.

The broker is a dictionary that refuses a known id, like the real one. A beat can die at any wait:
before or after the store or the broker has acted.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.errors import BrokerUnavailable
from eventmq.plugins.schedule_stores import SqliteSchedules
from eventmq.plugins.triggers import At, Cron, Every
from eventmq.policies import Timing
from eventmq.schedule import Schedule, ScheduleStore
from eventmq.scheduler.runner import BATCH, BeatRunner
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.policies import Timing as Trigger

KINDS: dict[str, Any] = {"every": Every, "cron": Cron, "at": At}


def make_trigger(text: str) -> Any:
    timing = Timing.parse(text)
    return KINDS[timing.name](**timing.options)


class Killed(BaseException):
    """The process was killed; no handler may catch this."""


class Broker:
    """Accepts jobs; ``order`` has the accepted jobs in order, as (id, Unix time)."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.order: list[tuple[str, float]] = []
        #: The same in boot time.
        self.boots: list[float] = []
        self.states: dict[str, str] = {}
        self.bodies: dict[str, bytes] = {}
        self.refused = 0
        self.down = False
        #: Guarded time of the broker, None if it does not report it.
        self.time: float | None = None

    def take(self, order: Any) -> None:
        if order.id in self.states:
            self.refused += 1
            return
        self.states[order.id] = "queued"
        self.bodies[order.id] = order.body
        self.order.append((order.id, self.clock.now()))
        self.boots.append(self.clock.boottime())


#: Kinds of a `Store`: when it advances schedules.
KINDS_OF_STORES = ("direct", "eager", "late")


class CrashingBeatClient:
    """Client of one beat, which can crash at any call."""

    def __init__(self, broker: Broker, crash: Callable[[str], None]) -> None:
        self.broker = broker
        self.crash = crash
        self.accepted: dict[bytes, bool | None] = {}
        self.asked: list[str] = []

    def received_schedules(self):
        return ()

    def submit(self, jobs):
        self.crash("before submit")
        if self.broker.down:
            return lambda: [False] * len(jobs)
        results = []
        for order in jobs:
            accepted = self.accepted.get(order.body, True)
            if accepted:
                self.broker.take(order)
            results.append(accepted)
            self.crash("within submit")

        def receipts():
            self.crash("before receipts")
            return results

        return receipts

    def now(self):
        if self.broker.down:
            raise BrokerUnavailable("no broker")
        return self.broker.time

    def unfinished(self, ids):
        if self.broker.down:
            raise BrokerUnavailable("no broker")
        self.asked += ids
        return {i: self.broker.states.get(i, "") == "queued" for i in ids}


class Store:
    """One beat's view of the shared store.

    ``kind`` is when it advances schedules: ``direct`` within `advance`, ``eager`` within
    `begin_advance`, ``late`` when the caller waits for the result.
    """

    def __init__(
        self, shared: SqliteSchedules, broker: Broker, crash: Callable[[str], None], kind: str
    ) -> None:
        self.shared = shared
        self.broker = broker
        self.crash = crash
        for name in vars(ScheduleStore):  # own attributes: checks of the protocol look for them
            if not name.startswith("_") and name != "close":
                setattr(self, name, self.forward(name))
        if kind == "eager":
            self.begin_advance = self.advance_now
        elif kind == "late":
            self.begin_advance = lambda rows: partial(self.advance, rows)
        self.identity = "shared"

    def advance_now(self, rows):
        saved = self.advance(rows)

        def wait():
            self.crash("after advance")
            return saved

        return wait

    def forward(self, name):
        method = getattr(self.shared, name)

        def call(*arguments):
            if self.broker.down:
                raise BrokerUnavailable("no broker")
            self.crash(f"before {name}")
            result = method(*arguments)
            self.crash(f"after {name}")
            return result

        return call

    def close(self):
        pass


def nothing(where: str) -> None:
    """Survive."""


class Beats:
    """A store, a broker, a clock and any number of beats.

    Args:
        now: Unix time.
        kind: Kind of the `Store`.
        batch: Maximum number of schedules that a beat fires together.
    """

    def __init__(
        self, now: float = 1_800_000_000.0, *, kind: str = "direct", batch: int = BATCH
    ) -> None:
        self.kind = kind
        self.batch = batch
        self.clock = FakeClock(now)
        self.store = SqliteSchedules(None, self.clock)
        self.broker = Broker(self.clock)
        self._made: list[BeatRunner] = []

    def add(self, name: str, trigger: Trigger, **more: Any) -> None:
        """Store a schedule that starts now."""
        made = Schedule(name=name, trigger=str(trigger), body=name.encode(), **more)
        self.store.save([(made.started(self.clock.now()), None)])

    def start(
        self, crash: Callable[[str], None] = nothing, declared: dict[str, Schedule] | None = None
    ) -> BeatRunner:
        """Return a beat, to be driven by `tick`."""
        beat = BeatRunner(
            open_store=lambda: Store(self.store, self.broker, crash, self.kind),
            client=CrashingBeatClient(self.broker, crash),
            make_trigger=make_trigger,
            declared=lambda: declared or {},
            app="app",
            owner=f"beat{len(self._made)}",
            clock=self.clock,
            batch=self.batch,
        )
        self._made.append(beat)
        return beat

    def close(self) -> None:
        """End all beats."""
        for beat in self._made:
            beat._store = None
            beat.close()
        self.store.close()

    def tick(self, beat: BeatRunner) -> float:
        """Run one tick of a beat; return the seconds until the next."""
        return beat._guarded_tick()

    def run(self, beat: BeatRunner, seconds: float) -> None:
        """Run a beat alone for some seconds."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            wait = self.tick(beat)
            self.clock.advance(min(max(wait, 0.001), max(0.0, end - self.clock.now()) or 0.001))
        self.tick(beat)

    def fired(self, name: str) -> list[float]:
        """Return the times of the jobs of a schedule, in order."""
        body = name.encode()
        return [at for i, at in self.broker.order if self.broker.bodies[i] == body]

    def fire_times(self, name: str) -> list[float]:
        """Return the fire times (to the millisecond) of the jobs of a schedule, in order."""
        body = name.encode()
        ids = [i for i, _ in self.broker.order if self.broker.bodies[i] == body]
        return [int(i[:12], 16) / 1000 for i in ids]

    def executed(self, name: str) -> Counter[float]:
        return Counter(self.fire_times(name))
