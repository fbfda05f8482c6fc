"""Worker process: the real `JobManager` over a simulated pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.wire.features import ROUTING_PREFIX
from eventmq.worker.manager import JobManager
from eventmq.worker.runner import MAX_WAIT, NEVER, NEXT_AFTER
from eventmq.worker.session import OwnerListener, SessionInfo
from tests.simulation.network import Socket
from tests.simulation.pool import SimPool, timeout_policy
from tests.simulation.world import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.limits import Limits
    from eventmq.worker.session import WorkerSession
    from tests.simulation.auditor import Auditor
    from tests.simulation.network import Network
    from tests.simulation.world import World

__all__ = ["WorkerProcess"]


class _Beside:
    """The link to a broker beside that of the session."""

    def __init__(
        self, network: Network, socket: Socket, session: WorkerSession, now: float
    ) -> None:
        self.network = network
        self.socket = socket
        self.listener = OwnerListener(session)
        self.listener.connected(now)
        self.broken = False

    def step(self, now: float) -> bool:
        """Do what is due; return False where something came that only the owner may send."""
        listener, allowed = self.listener, True
        while self.socket.inbox:
            allowed = listener.receive(self.socket.inbox.popleft(), now) and allowed
        while self.socket.events:
            made = self.socket.events.popleft()
            if made and self.broken:
                listener.connected(now)
            self.broken = not made
        listener.tick(now)
        while listener.outbox and self.socket.send(listener.outbox[0]):
            del listener.outbox[0]
        return allowed


class WorkerProcess(Process):
    """One worker with all its restarts; the order of a tick is that of `eventmq.worker.runner`.

    Of brokers that share a store it is connected to all, as there.

    Args:
        world: Event queue and clock.
        networks: Network to each broker.
        auditor: Gets the start and end of each run.
        number: Number of the worker, for its name.
        slots: Number of slots of its pool.
        queues: Queues that it serves, as (weight, name).
        limits: Limits of the broker; the worker uses their intervals.
    """

    def __init__(
        self, world: World, networks: Sequence[Network], auditor: Auditor, *, number: int,
        slots: int, queues: tuple[tuple[int, str], ...], limits: Limits,
    ) -> None:  # fmt: skip
        super().__init__(world)
        self.name = f"worker{number}"
        self.networks = networks
        self._network = networks[0]
        self._beside: list[_Beside] = []
        self.auditor = auditor
        self.slots = slots
        self.queues = queues
        self.limits = limits
        self._sockets = 0

    def start(self) -> None:
        """Start the worker with a new session."""
        self.live()
        info = SessionInfo(
            session=f"{self.name}.{self._life}",
            name=self.name,
            queues=self.queues,
            heartbeat=self.limits.heartbeat_interval,
            heartbeat_timeout=self.limits.heartbeat_timeout,
            shutdown_grace=4.0,
            cancel_grace=1.0,
        )
        self.pool = SimPool(self, self.auditor, self.slots)
        self.manager = JobManager(
            info, pool=self.pool, clock=self.clock, timeout_policy=timeout_policy
        )
        self.world.trace(self.name, "starts")
        self._backlog: list[list[bytes]] = []
        self._was_online = False
        self._connect()
        self.wake()

    def _open(self, network: Network) -> Socket:
        self._sockets += 1
        return Socket(network, self, f"{ROUTING_PREFIX}worker.{self.name}-{self._sockets}")

    def _connect(self) -> None:
        self._main = self._open(self._network)
        self._broken = False
        now = self.clock.monotonic()
        self._next_at = now + NEXT_AFTER if len(self.networks) > 1 else NEVER
        self.manager.connected(now)
        self._send()

    def socket(self, network: Network) -> Socket | None:
        """Return the socket of a network, None while there is none."""
        if not self.alive:
            return None
        links = [(self._network, self._main), *((b.network, b.socket) for b in self._beside)]
        return next((socket for other, socket in links if other is network), None)

    def die(self) -> None:
        """Die by SIGKILL, together with its children."""
        if self.alive:
            super().die()
            self._close()

    def _close(self) -> None:
        self.alive = False
        self.pool.stop()
        self._main.close()
        while self._beside:
            self._beside.pop().socket.close()

    def terminate(self) -> None:
        """Stop as by SIGTERM: running jobs have a grace, the others are handed back."""
        if self.alive:
            self.world.trace(self.name, "gets SIGTERM")
            self.manager.terminate(self.clock.monotonic())
            self.wake()

    def tick(self) -> None:
        manager, now = self.manager, self.clock.monotonic()
        inbox = self._main.inbox
        while inbox:
            manager.receive(inbox.popleft(), now)
        manager.pool_events(self.pool.poll(), now)
        if self._reconnected():
            manager.connected(now)
        manager.tick(now)
        if manager.session.owner is not None or self._beside:
            self._follow_owner(now)
        if manager.overdue:
            self.pool.stop()
            manager.pool_events(self.pool.poll(), now)
            manager.interrupted(now)
        self._send()
        if manager.done:
            self.world.trace(self.name, "ends")
            self._close()
            return
        self._was_online = self._was_online or manager.online
        untried = now >= self._next_at and not self._was_online and manager.session.owner is None
        if manager.lost or untried:
            self._backlog.clear()
            self._main.close()
            if len(self.networks) > 1 and manager.idle and manager.session.owner is None:
                index = self.networks.index(self._network) + 1
                self._network = self.networks[index % len(self.networks)]
            self._connect()
        wait = min(MAX_WAIT, manager.seconds_to_tick(now))
        for beside in self._beside:
            wait = min(wait, max(0.0, beside.listener.next_tick() - now))
        self.wake((int(wait * 1000) + 1) / 1000)

    def _follow_owner(self, now: float) -> None:
        """Listen to the other brokers, and go over to the owner."""
        session = self.manager.session
        for beside in self._beside:
            if not beside.step(now):
                self.manager.ignore_old_owner()
        if not session.owned:
            owner = next((each for each in self._beside if each.listener.owned), None)
            if owner is not None:
                self._go_over(owner, now)
            elif session.online:
                session.wait_for_owner(now)
        for beside in [each for each in self._beside if each.listener.lost]:
            self._beside.remove(beside)
            beside.socket.close()
        known = [self._network, *(each.network for each in self._beside)]
        for network in self.networks:
            if network not in known and session.owner is not None:
                self._beside.append(_Beside(network, self._open(network), session, now))

    def _go_over(self, owner: _Beside, now: float) -> None:
        self.world.trace(self.name, "goes over to", owner.network.address)
        session = self.manager.session
        self._beside.remove(owner)
        old = _Beside(self._network, self._main, session, now)
        old.broken = self._broken
        self._beside.append(old)
        self._network, self._main, self._broken = owner.network, owner.socket, owner.broken
        self._next_at = NEVER
        self._backlog.clear()
        session.owner = owner.listener.owner
        self.manager.connected(now)
        self._send()

    def _reconnected(self) -> bool:
        """Return whether the connection was lost and has been made again."""
        back, events = False, self._main.events
        while events:
            made = events.popleft()
            back = made and (self._broken or back)
            self._broken = not made
        return back

    def _send(self) -> None:
        outbox = self.manager.take_outbox()
        if outbox and not self.manager.online:
            self._backlog.clear()
        self._backlog += outbox
        while self._backlog and self._main.send(self._backlog[0]):
            self._backlog.pop(0)
