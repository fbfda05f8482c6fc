"""Worker process: the real `JobManager` over a simulated pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.wire.identity import PREFIX
from eventmq.worker.manager import JobManager
from eventmq.worker.runner import MAX_WAIT
from eventmq.worker.session import SessionInfo
from tests.simulation.network import Socket
from tests.simulation.pool import SimPool, timeout_policy
from tests.simulation.world import Process

if TYPE_CHECKING:
    from eventmq.broker.limits import Limits
    from tests.simulation.auditor import Auditor
    from tests.simulation.network import Network
    from tests.simulation.world import World

__all__ = ["WorkerProcess"]


class WorkerProcess(Process):
    """One worker with all its restarts; the order of a tick is that of `eventmq.worker.runner`.

    Args:
        world: Event queue and clock.
        network: Network to the broker.
        auditor: Gets the start and end of each run.
        number: Number of the worker, for its name.
        slots: Number of slots of its pool.
        queues: Queues that it serves, as (weight, name).
        limits: Limits of the broker; the worker uses their intervals.
    """

    def __init__(
        self, world: World, network: Network, auditor: Auditor, *, number: int, slots: int,
        queues: tuple[tuple[int, str], ...], limits: Limits,
    ) -> None:  # fmt: skip
        super().__init__(world)
        self.name = f"worker{number}"
        self.network = network
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
        self._open()
        self.wake()

    def _open(self) -> None:
        self._sockets += 1
        self.socket = Socket(self.network, self, f"{PREFIX}worker.{self.name}-{self._sockets}")
        self._broken = False
        self.manager.connected(self.clock.monotonic())
        self._send()

    def die(self) -> None:
        """Die by SIGKILL, together with its children."""
        if self.alive:
            super().die()
            self._close()

    def _close(self) -> None:
        self.alive = False
        self.pool.stop()
        self.socket.close()

    def terminate(self) -> None:
        """Stop as by SIGTERM: running jobs have a grace, the others are handed back."""
        if self.alive:
            self.world.trace(self.name, "gets SIGTERM")
            self.manager.terminate(self.clock.monotonic())
            self.wake()

    def tick(self) -> None:
        manager, now = self.manager, self.clock.monotonic()
        inbox = self.socket.inbox
        while inbox:
            manager.receive(inbox.popleft(), now)
        manager.pool_events(self.pool.poll(), now)
        if self._reconnected():
            manager.connected(now)
        manager.tick(now)
        if manager.overdue:
            self.pool.stop()
            manager.pool_events(self.pool.poll(), now)
            manager.interrupted(now)
        self._send()
        if manager.done:
            self.world.trace(self.name, "ends")
            self._close()
            return
        if manager.lost:
            self._backlog.clear()
            self.socket.close()
            self._open()
        self.wake((int(min(MAX_WAIT, manager.seconds_to_tick(now)) * 1000) + 1) / 1000)

    def _reconnected(self) -> bool:
        """Return whether the connection was lost and has been made again."""
        back, events = False, self.socket.events
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
        while self._backlog and self.socket.send(self._backlog[0]):
            self._backlog.pop(0)
