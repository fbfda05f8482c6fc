"""Broker process: the real `BrokerCore`, with the ticks of its runner, on a simulated disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.core import BrokerCore
from eventmq.errors import StoreError
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair
from eventmq.store.writes import Announce
from tests.simulation.auditor import Violation
from tests.simulation.disk import Crash, open_store
from tests.simulation.network import Network
from tests.simulation.world import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.broker.limits import Limits
    from eventmq.interfaces import QueueStore
    from eventmq.store.recovery import Recovered
    from eventmq.timekeeping import Timekeeper
    from tests.simulation.disk import Disk
    from tests.simulation.world import World

__all__ = ["BrokerProcess"]

#: Seconds that a tick takes at least.
TICK_TIME = 0.0001

#: Seconds until the broker is restarted after it died of a fault of its disk.
RESTART_DELAY = 0.3

#: Ticks in a row without a message and without a wait, after which the broker is taken to spin.
MAX_IDLE_TICKS = 200


class BrokerProcess(Process):
    """One broker with all its restarts; the order of a tick is that of `eventmq.broker.runner`.

    Args:
        world: Event queue and clock.
        disk: Disk of its store.
        limits: Limits of the broker.
        after_commit: Called with the core after every commit.
    """

    name = "broker"
    store: QueueStore

    #: Called before it opens the store after a crash.
    before_restart: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        world: World,
        disk: Disk,
        limits: Limits,
        after_commit: Callable[[BrokerCore], None],
    ) -> None:
        super().__init__(world)
        self.disk = disk
        self.limits = limits
        self.after_commit = after_commit
        self.network = Network(world, self.receive, self.connection_lost)
        self.crashes = 0
        #: Messages that the broker sends before it dies; below 0: it does not die.
        self.dies_sending = -1
        self._inbox: list[list[bytes]] = []
        self._boot = self._jumped = self._wait = 0.0
        self._idle_ticks = 0

    def start(self) -> None:
        """Open the store, recover, and accept connections."""
        self.live()
        self._inbox.clear()
        if self.crashes:
            self.before_restart()
        self.store = open_store(self.disk, self.clock)
        self.core = self._new_core()
        self._recover(self.store.open())
        self.network.listen()
        self.world.trace(self.name, "starts", f"epoch {self.core.state.epoch}")
        self.wake()

    def _new_core(self) -> BrokerCore:
        return BrokerCore(self.limits, LeastRecentlyUsed(), WeightedFair, version="sim")

    def _recover(self, recovered: Recovered) -> None:
        self.keep(recovered.keeper)
        self.core.recover(recovered, self._read_clocks())
        self.core.state.write(Announce({}), lambda _: None)

    def keep(self, keeper: Timekeeper) -> None:
        """Go by the time of a store."""
        self.keeper, self._jumped = keeper, 0.0
        self._boot, self._wait = keeper.boot, 0.0

    def die(self) -> None:
        if self.alive:
            super().die()
            self.crashes += 1
            self.dies_sending = -1
            self._inbox.clear()
            self.network.collapse()
            self.store.close()

    def receive(self, frames: list[bytes]) -> None:
        if self.alive:
            self._inbox.append(frames)
            self.wake()

    def connection_lost(self) -> None:
        """Handle the loss of a connection, as reported by the monitor of the ROUTER."""
        if self.alive:
            self.core.heartbeats.connection_lost()
            self.wake()

    def tick(self) -> None:
        try:
            self._tick()
        except (Crash, StoreError):
            self.die()
            self.world.at(self.world.now + RESTART_DELAY, self._restart)

    def _restart(self) -> None:
        """Start the broker again, as a service manager does."""
        if not self.alive:
            self.start()

    def _tick(self) -> None:
        core = self.core
        now = self._notice_gap()
        inbox, self._inbox = self._inbox, []
        for frames in inbox:
            self.network.trace(self.name, f"gets from {frames[0].decode()}", frames[1:])
            core.receive("main", frames, now)
        core.decide(now, caught_up=True)
        if core.must_commit(now):
            self._send()
            self._commit()
            self._send()
            core.decide(self._read_clocks(), caught_up=False)
        self._send()
        now = self._read_clocks()
        self._wait = 0.0 if core.must_commit(now) else max(0.0, core.next_tick(now) - now)
        self._check_idle(inbox)
        self.wake(max(int(self._wait * 1000) / 1000 + (0.001 if self._wait else 0.0), TICK_TIME))

    def _check_idle(self, inbox: Sequence[object]) -> None:
        """Fail if the broker does not sleep although no message comes."""
        self._idle_ticks = 0 if inbox or self._wait > TICK_TIME else self._idle_ticks + 1
        if self._idle_ticks > MAX_IDLE_TICKS:
            raise Violation(f"the broker has {MAX_IDLE_TICKS} ticks in a row without a message")

    def _read_clocks(self) -> float:
        """Read the clocks; return store time."""
        now = self.keeper.advance(self.clock.now(), self.clock.boottime())
        self._jump()
        return now

    def _jump(self) -> None:
        seconds, self._jumped = self.keeper.jumped - self._jumped, self.keeper.jumped
        if seconds:
            self.world.trace(self.name, "lets time count", f"{seconds:.1f}")
            self.core.jump(seconds)

    def _notice_gap(self) -> float:
        now = self._read_clocks()
        away, self._boot = self.keeper.boot - self._boot, self.keeper.boot
        if away - self._wait > self.limits.heartbeat_interval:
            self.world.trace(self.name, "was away", f"{away:.1f}")
            self.core.shift(now, away)
        return now

    def _commit(self) -> None:
        writes, settle = self.core.take_batch()
        if not writes:
            return
        if self.world.tracing:
            kinds = " ".join(type(entry).__name__ for entry in writes)
            self.world.trace(self.name, f"commit {self.disk.commits + 1}:", kinds)
        self.store.submit(writes)
        self._jump()
        for write_results in self.store.finished():
            settle(write_results)
        self.after_commit(self.core)

    def _send(self) -> None:
        for message in self.core.take_deferred_sends():
            if message.key.port == "subscribe":
                continue
            if self.dies_sending == 0:
                raise Crash
            self.dies_sending -= self.dies_sending > 0
            error = self.network.send(message.key.identity, message.frames)
            if error:
                reachable = error == "full"
                self.core.not_sent(message, self._read_clocks(), reachable=reachable)
