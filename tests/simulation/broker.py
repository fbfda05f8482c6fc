"""The broker's process: `BrokerCore` in the turns of its runner, on a simulated disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.core import BrokerCore
from eventmq.errors import StoreError
from eventmq.plugins.routing.least_recently_used import LeastRecentlyUsed
from eventmq.plugins.routing.weighted_fair import WeightedFair
from eventmq.store.writes import Announce
from tests.simulation.auditor import Violation
from tests.simulation.disk import Crash, open_store
from tests.simulation.network import Network
from tests.simulation.world import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.broker.limits import Limits
    from tests.simulation.disk import Disk
    from tests.simulation.world import World

__all__ = ["BrokerProcess"]

#: Seconds that a tick takes at least.
TURN = 0.0001

#: Seconds until it is started again, if it died by itself.
REVIVED = 0.3

#: Turns without a message and without a wait, after which the broker is taken to spin.
RESTLESS = 200


class BrokerProcess(Process):
    """One broker over its lives; the order of a tick is that of `eventmq.broker.runner`.

    Args:
        world: Time.
        disk: What outlives it.
        limits: Its bounds.
        look: Called after every commit.
    """

    name = "broker"

    #: Called where it starts again, before it opens the store.
    before: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, world: World, disk: Disk, limits: Limits, look: Callable[[], None]) -> None:
        super().__init__(world)
        self.disk = disk
        self.limits = limits
        self.look = look
        self.network = Network(world, self.take, self.lose)
        self.crashes = 0
        #: Messages that the next turn sends before it dies; below 0: it does not.
        self.dies_sending = -1
        self._inbox: list[list[bytes]] = []
        self._boot = self._jumped = self._wait = 0.0
        self._restless = 0

    def start(self) -> None:
        """Open the store, recover, and listen."""
        self.live()
        self._inbox.clear()
        if self.crashes:
            self.before()
        self.store = open_store(self.disk, self.clock)
        self.core = BrokerCore(self.limits, LeastRecentlyUsed(), WeightedFair, version="sim")
        recovered = self.store.open()
        self.keeper, self._jumped = recovered.keeper, 0.0
        self.core.recover(recovered, self._tell(), WeightedFair)
        self.core.state.write(Announce({}), lambda _: None)
        self._boot = self.keeper.boot
        self._wait = 0.0
        self.network.listen()
        self.world.tell(self.name, "starts", f"epoch {self.core.state.epoch}")
        self.wake()

    def die(self) -> None:
        if self.alive:
            super().die()
            self.crashes += 1
            self.dies_sending = -1
            self._inbox.clear()
            self.network.collapse()
            self.store.close()

    def take(self, frames: list[bytes]) -> None:
        if self.alive:
            self._inbox.append(frames)
            self.wake()

    def lose(self) -> None:
        """The monitor of the ROUTER says that a connection is gone."""
        if self.alive:
            self.core.heartbeats.connection_lost()
            self.wake()

    def turn(self) -> None:
        try:
            self._turn()
        except (Crash, StoreError):
            self.die()
            self.world.at(self.world.now + REVIVED, self._revive)

    def _revive(self) -> None:
        """Start again, as a service manager does it."""
        if not self.alive:
            self.start()

    def _turn(self) -> None:
        core = self.core
        now = self._notice_gap()
        inbox, self._inbox = self._inbox, []
        for frames in inbox:
            self.network.told(self.name, f"gets from {frames[0].decode()}", frames[1:])
            core.receive("main", frames, now)
        core.decide(now, caught_up=True)
        if core.has_writes:
            self._send()
            self._commit()
            self._send()
            core.decide(self._tell(), caught_up=False)
        self._send()
        now = self._tell()
        self._wait = 0.0 if core.has_writes else max(0.0, core.next_tick(now) - now)
        self._watch(inbox)
        self.wake(max(int(self._wait * 1000) / 1000 + (0.001 if self._wait else 0.0), TURN))

    def _watch(self, inbox: Sequence[object]) -> None:
        """See that it sleeps where nothing comes."""
        self._restless = 0 if inbox or self._wait > TURN else self._restless + 1
        if self._restless > RESTLESS:
            raise Violation(f"the broker takes {RESTLESS} turns in a row in which nothing comes")

    def _tell(self) -> float:
        """Read the clocks; return store time."""
        now = self.keeper.advance(self.clock.now(), self.clock.boottime())
        self._jump()
        return now

    def _jump(self) -> None:
        seconds, self._jumped = self.keeper.jumped - self._jumped, self.keeper.jumped
        if seconds:
            self.world.tell(self.name, "lets time count", f"{seconds:.1f}")
            self.core.jump(seconds)

    def _notice_gap(self) -> float:
        now = self._tell()
        away, self._boot = self.keeper.boot - self._boot, self.keeper.boot
        if away - self._wait > self.limits.heartbeat_interval:
            self.world.tell(self.name, "was away", f"{away:.1f}")
            self.core.shift(now, away)
        return now

    def _commit(self) -> None:
        writes, settle = self.core.take_batch()
        if not writes:
            return
        if self.world.told:
            kinds = " ".join(type(entry).__name__ for entry in writes)
            self.world.tell(self.name, f"commit {self.disk.commits + 1}:", kinds)
        self.store.submit(writes)
        self._jump()
        for write_results in self.store.finished():
            settle(write_results)
        self.look()

    def _send(self) -> None:
        for message in self.core.take_deferred_sends():
            if message.key.port == "subscribe":
                continue
            if self.dies_sending == 0:
                raise Crash
            self.dies_sending -= self.dies_sending > 0
            trouble = self.network.send(message.key.identity, message.frames)
            if trouble:
                reachable = trouble == "full"
                self.core.not_sent(message, self._tell(), reachable=reachable)
