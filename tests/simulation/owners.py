"""Brokers that share a store: one of them owns it, as their real `Candidate` has it.

Their database is the disk of the simulation, with the lease and the fence of `SharedDatabase`.
Every broker has a network of its own. Beside what befalls any process, one may be stopped in the
middle of a tick: before it commits, or between the commit and what it sends of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.ownership import Candidate, stand_by, tell_peers
from eventmq.errors import Fenced, StoreError, Unknown
from eventmq.store.lease import Claimant
from eventmq.timekeeping import Reading, Timekeeper
from tests.simulation.broker import RESTART_DELAY, TICK_TIME, BrokerProcess
from tests.simulation.disk import open_store
from tests.simulation.world import HostClock
from tests.support.shared_store import SharedStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.broker.core import BrokerCore
    from eventmq.broker.limits import Limits
    from tests.simulation.disk import Disk
    from tests.simulation.world import World
    from tests.support.shared_store import SharedDatabase

__all__ = ["SharedBrokerProcess"]

#: Seconds between two renewals of an owner.
RENEW_EVERY = 1.0

#: Seconds until a standby hears that the owner's connection has ended.
FREED_AFTER = 0.005


class KilledInTick(BaseException):
    """The process was killed while it was stopped in the middle of a tick."""


class SharedBrokerProcess(BrokerProcess):
    """One of several brokers, with all its restarts; see `eventmq.broker.runner` for the order.

    Args:
        world: Event queue and clock.
        disk: Of the database.
        limits: Limits of the broker.
        after_commit: Called with the core after every commit.
        database: The lease on the disk.
        number: Number of the broker, for its name.
    """

    #: The owner is to give the store up.
    hands_over = False

    #: Called where it takes the store over from an owner that it has never seen at work.
    before_blind: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        world: World,
        disk: Disk,
        limits: Limits,
        after_commit: Callable[[BrokerCore], None],
        database: SharedDatabase,
        number: int,
    ) -> None:
        super().__init__(world, disk, limits, after_commit)
        self.name = f"broker{number}"
        self.network.address = self.name
        self.clock = HostClock(world, self.name)
        self.database = database
        self.commits = 0
        #: Number of a commit of this broker -> ``before`` or ``after`` it, for how many seconds.
        self.freezes: dict[int, tuple[str, float]] = {}
        self._verify_at = 0.0
        #: The life of the process that is in the middle of a tick, 0 for none.
        self._busy = 0
        self.core = self._new_core()
        self.core.standby = True

    def start(self) -> None:
        """Look who owns the store, and accept connections."""
        self.live()
        self._inbox.clear()
        if self.crashes:
            self.before_restart()
        self.store = store = SharedStore(self.database, lambda: open_store(self.disk, self.clock))
        store.ownership.on_freed = lambda: self.world.at(self.world.now + FREED_AFTER, self.wake)
        me = Claimant(f"{self.name}.{self._life}", self.name)
        self.candidate = Candidate(store.ownership, me, self.clock.boottime)
        self.core = self._new_core()
        self.hands_over = False
        try:
            self.candidate.read_lease()
        except StoreError:  # it ends, and is started again
            self.die()
            self.world.at(self.world.now + RESTART_DELAY, self._restart)
            return
        self._claim()
        self.network.listen()
        self.world.trace(self.name, "starts", self.candidate.info)
        self.wake()

    def tick(self) -> None:
        life = self._life
        if self._busy == life:  # it is stopped in the middle of the last tick, which goes on
            return
        self._busy = life
        try:
            super().tick()
        except KilledInTick:
            return
        finally:
            if self._busy == life:
                self._busy = 0

    def _tick(self) -> None:
        try:
            if self.core.standby:
                self._stand_by()
            else:
                self._own()
        except (Fenced, Unknown) as error:
            self.world.trace(self.name, "owns the store no more:", error)
            self.candidate.lost(error)
            self._claim()
            self.wake(TICK_TIME)

    def _own(self) -> None:
        now = self.clock.monotonic()
        if now >= self._verify_at:
            self._verify_at = now + RENEW_EVERY
            self.store.ownership.renew()  # type: ignore[union-attr]
        super()._tick()
        if self.hands_over:
            self.hands_over = False
            self.core.waiters.send_receipts(float("inf"))
            self._commit()
            self._send()
            self.candidate.release()
            self._replace_core(standby=True)

    def _stand_by(self) -> None:
        candidate, core = self.candidate, self.core
        now = self._notice_gap()
        candidate.check_freed()
        if candidate.step() and self._take_over():
            self.wake(TICK_TIME)
            return
        if candidate.info != core.state.owner:
            tell_peers(core, candidate.info)
        inbox, self._inbox = self._inbox, []
        for frames in inbox:
            core.receive("main", frames, now)
        core.idle(now)
        self._send()
        delay = candidate.watch.next_at - self.clock.boottime()
        self._wait = max(TICK_TIME, min(self.limits.heartbeat_interval / 4, delay))
        self.wake(self._wait)

    def _claim(self) -> None:
        """Take the store over if that is due, else stand by."""
        if not (self.candidate.step() and self._take_over()):
            self._replace_core(standby=True)

    def _take_over(self) -> bool:
        try:
            recovered = self.store.open()
        except (Fenced, Unknown) as error:
            self.candidate.lost(error)
            return False
        passed = self.store.ownership.claimed.passed  # type: ignore[union-attr]
        if passed.most > recovered.keeper.now:  # infinite: its own clock is all that it has
            self.before_blind()
        old, self.core = self.core, self._new_core()
        self._recover(recovered)
        tell_peers(self.core, self.candidate.info, old)
        self._verify_at = self.clock.monotonic() + RENEW_EVERY
        self.world.trace(self.name, "owns the store in epoch", recovered.epoch)
        return True

    def _replace_core(self, *, standby: bool) -> None:
        assert standby
        old, self.core = self.core, self._new_core()
        stand_by(self.core, lambda: self.candidate.watch.unavailable_reason, lambda *_: False)
        keeper, clock = Timekeeper(), self.clock
        keeper.start(Reading(clock.now(), clock.boottime(), clock.boot_id()), None)
        self.keep(keeper)
        tell_peers(self.core, self.candidate.info, old)

    def _commit(self) -> None:
        if not self.core.has_writes:
            return
        self.commits += 1
        when, seconds = self.freezes.pop(self.commits, ("", 0.0))
        if when == "before":
            self._freeze(seconds)
        super()._commit()
        if when == "after":
            self._freeze(seconds)

    def _freeze(self, seconds: float) -> None:
        """Stand still, as by SIGSTOP, while the world goes on."""
        life, end = self._life, self.world.now + seconds
        self.world.trace(self.name, "is stopped in its tick for", f"{seconds:.1f}")
        self.pause(seconds)
        while self.world.now < end:
            self.world.step(end)
        if self._life != life or not self.alive:
            raise KilledInTick
