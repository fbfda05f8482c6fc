"""What can go wrong: each method does one thing to a simulation, and says when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.timekeeping import STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.run import Simulation
    from tests.simulation.scenario import Fault
    from tests.simulation.world import Process

__all__ = ["Faults", "rough", "sets_clocks"]

#: What any number of may happen without a job running twice.
_HARMLESS = frozenset({"jump", "low", "full", "crash_commit", "crash_sending"})

#: What may happen once in a run without that, and how hard.
_GENTLE = {"part": 3.0, "clog": 9.0, "child": 0.0}


def rough(faults: Sequence[Fault]) -> bool:
    """Say whether jobs may run twice for what goes wrong: only if a worker is lost, or seems so.

    A broker that is started again waits for its workers; one that was stopped for a while hears
    them out first; a connection may be lost and made again.
    """
    worse = [fault for fault in faults if fault.what not in _HARMLESS]
    return len(worse) > 1 or any(map(_is_rough, worse))


def sets_clocks(faults: Sequence[Fault]) -> bool:
    """Return whether jobs may start early or late for what goes wrong with clocks.

    A step of the broker's counts neither before it has stood for ten minutes, which no run takes,
    nor after a restart on the same boot.
    """
    jumps = [fault.arguments for fault in faults if fault.what == "jump"]
    reboots = any(fault.what == "power" for fault in faults)
    return any(reboots or jump["who"] != "broker" or abs(jump["seconds"]) <= STEP for jump in jumps)


def _is_rough(fault: Fault) -> bool:
    who = fault.arguments.get("who", "")
    if who.startswith("client"):
        return False
    if fault.what == "kill":
        return who != "broker" or fault.arguments["after"] > 2.0
    if fault.what == "pause":
        return who != "broker" and fault.arguments["seconds"] > 2.0
    if fault.what == "cut":
        return fault.arguments["noticed"] > 0.0
    return fault.arguments.get("seconds", 0.0) > _GENTLE.get(fault.what, -1.0)


class Faults:
    """Of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        #: When the last of them is over.
        self.over = 0.0

    def _until(self, seconds: float) -> float:
        end = self.world.now + seconds
        self.over = max(self.over, end)
        return end

    def _restart(self, process: Process, after: float) -> None:
        self.world.at(self._until(after), lambda: None if process.alive else process.start())

    def _lost(self, who: str) -> None:
        """Let the auditor know that the connection of a worker ends, or may end."""
        self.simulation.auditor.losses += who.startswith("worker")

    # Processes

    def kill(self, who: str, after: float) -> None:
        """SIGKILL; somebody starts it again after a while."""
        process = self.simulation.process(who)
        process.die()
        self._lost(who)
        self._restart(process, after)

    def stop(self, who: str, after: float) -> None:
        """SIGTERM for a worker."""
        process = self.simulation.process(who)
        process.terminate()
        self._lost(who)
        self.world.at(self._until(after + 10.0), process.die)
        self._restart(process, after + 10.0)

    def child(self, who: str, slot: int) -> None:
        """A process of a worker's pool dies."""
        process = self.simulation.process(who)
        if process.alive:
            self.world.tell(who, "loses the process of slot", slot)
            process.pool.kill_child(slot)

    def pause(self, who: str, seconds: float) -> None:
        """SIGSTOP and, later, SIGCONT."""
        self.world.tell(who, "is stopped for", f"{seconds:.1f}")
        self.simulation.process(who).pause(seconds)
        self._lost(who)
        self._until(seconds)

    def jump(self, who: str, seconds: float) -> None:
        """The wall clock of a machine is set."""
        self.world.tell(who, "has its clock set by", f"{seconds:.0f}")
        self.simulation.process(who).clock.wall += seconds

    # The disk of the broker

    def crash_commit(self, ahead: int, when: str) -> None:
        """The broker dies before or after a commit to come, or its disk gives an error."""
        disk = self.simulation.disk
        disk.crashes[disk.commits + ahead] = when

    def crash_sending(self, messages: int) -> None:
        """The broker dies in the midst of what it sends next."""
        self.simulation.broker.dies_sending = messages

    def power(self, after: float) -> None:
        """The machine of the broker loses power."""
        simulation = self.simulation
        simulation.broker.die()
        simulation.disk.lose_power()
        simulation.broker.clock.reboot()
        simulation.auditor.rolled_back |= bool(simulation.scenario.relaxed)
        self._restart(simulation.broker, after)

    def full(self, seconds: float) -> None:
        """The disk has no further page."""
        self.world.tell("disk", "is full for", f"{seconds:.1f}")
        self.simulation.disk.full_until = self._until(seconds)

    def low(self, seconds: float) -> None:
        """The free space is under the reserve."""
        self.world.tell("disk", "is low for", f"{seconds:.1f}")
        self.simulation.disk.low_until = self._until(seconds)

    # The network

    def cut(self, who: str, arriving: int, noticed: float) -> None:
        """A connection is lost; the broker sees it at once, or later."""
        socket = self.simulation.socket(who)
        if socket is not None:
            self.world.tell(who, "loses its connection;", f"the broker sees it in {noticed:.1f}")
            self.simulation.network.cut(socket, arriving=arriving, noticed=noticed)
            self._lost(who)
            self._until(noticed)

    def deafen(self, who: str) -> None:
        """A connection is half open: nothing comes through, and nobody is told."""
        socket = self.simulation.socket(who)
        if socket is not None:
            self.world.tell(who, "is cut off, and nobody is told")
            self.simulation.network.deafen(socket)
            self._lost(who)

    def part(self, seconds: float) -> None:
        """Nothing comes through for a while; then all of it does."""
        self.world.tell("network", "is parted for", f"{seconds:.1f}")
        self.simulation.network.part(seconds)
        self._lost("workers")
        self._until(seconds)

    def slow(self, latency: float, seconds: float) -> None:
        """Messages take their time."""
        network = self.simulation.network
        network.slow = latency
        self.world.at(self._until(seconds), lambda: setattr(network, "slow", 0.001))

    def clog(self, seconds: float) -> None:
        """The pipes of the ROUTER are full."""
        network = self.simulation.network
        network.filled, network.full = self.world.now, self._until(seconds)
        self._lost("workers")
