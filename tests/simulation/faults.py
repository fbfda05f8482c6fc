"""Faults: each method injects one, and extends the time until which faults last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.timekeeping import STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.run import Simulation
    from tests.simulation.scenario import Fault
    from tests.simulation.world import Process

__all__ = ["Faults", "rough", "sets_clocks"]

#: Faults of which any number may happen without a job running twice.
_HARMLESS = frozenset({
    "set_clock", "low", "full", "crash_commit", "crash_sending", "freeze", "lose", "away",
    "backend", "hand_over",
})  # fmt: skip

#: Faults of which one may happen without a job running twice, with their longest duration.
_GENTLE = {"partition": 3.0, "fill_pipes": 9.0, "child": 0.0}


def rough(faults: Sequence[Fault], *, shared: bool = False) -> bool:
    """Return whether jobs may run twice: only if a worker is lost, or seems to be.

    A broker that was restarted waits for its workers, one that was stopped for a while first reads
    their messages, and a lost connection is made again. Where brokers share a store, workers go
    over from one to the other with what they have: no fault of a broker makes a job run twice.
    """
    worse = [fault for fault in faults if fault.method not in _HARMLESS]
    if shared:
        worse = [fault for fault in worse if not fault.arguments.get("name", "").startswith("b")]
    return len(worse) > 1 or any(map(_is_rough, worse))


def sets_clocks(faults: Sequence[Fault]) -> bool:
    """Return whether jobs may start early or late because clocks are set.

    The broker ignores a step of its own clock for ten minutes, longer than any run, and after a
    restart in the same boot. So does one that takes a store over from another that it has seen.
    """
    jumps = [fault.arguments for fault in faults if fault.method == "set_clock"]
    reboots = any(fault.method == "power" for fault in faults)
    return any(
        reboots or not jump["name"].startswith("broker") or abs(jump["seconds"]) <= STEP
        for jump in jumps
    )


def _is_rough(fault: Fault) -> bool:
    name = fault.arguments.get("name", "")
    if name.startswith("client"):
        return False
    if fault.method == "kill":
        return name != "broker" or fault.arguments["after"] > 2.0
    if fault.method == "pause":
        return name != "broker" and fault.arguments["seconds"] > 2.0
    if fault.method == "cut":
        return fault.arguments["noticed"] > 0.0
    return fault.arguments.get("seconds", 0.0) > _GENTLE.get(fault.method, -1.0)


class Faults:
    """Injects the faults of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        #: Time at which the last fault has ended.
        self.over = 0.0

    def _until(self, seconds: float) -> float:
        end = self.world.now + seconds
        self.over = max(self.over, end)
        return end

    def _restart(self, process: Process, after: float) -> None:
        self.world.at(self._until(after), lambda: None if process.alive else process.start())

    def _lost(self, name: str) -> None:
        """Tell the auditor that a worker has lost its connection, or may lose it."""
        self.simulation.auditor.losses += name.startswith("worker")

    # Processes

    def kill(self, name: str, after: float) -> None:
        """Kill a process, and restart it after a while."""
        process = self.simulation.process(name)
        process.die()
        self._lost(name)
        self._restart(process, after)

    def stop(self, name: str, after: float) -> None:
        """Stop a worker by SIGTERM, and restart it after a while."""
        process = self.simulation.process(name)
        process.terminate()
        self._lost(name)
        self.world.at(self._until(after + 10.0), process.die)
        self._restart(process, after + 10.0)

    def child(self, name: str, slot: int) -> None:
        """Kill a child process of a worker."""
        process = self.simulation.process(name)
        if process.alive:
            self.world.trace(name, "loses the process of slot", slot)
            process.pool.kill_child(slot)

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process by SIGSTOP, and continue it after a while."""
        self.world.trace(name, "is stopped for", f"{seconds:.1f}")
        self.simulation.process(name).pause(seconds)
        self._lost(name)
        self._until(seconds)

    def set_clock(self, name: str, seconds: float) -> None:
        """Set the wall clock of a machine."""
        self.world.trace(name, "has its clock set by", f"{seconds:.0f}")
        self.simulation.process(name).clock.wall += seconds

    # The disk of the broker

    def crash_commit(self, ahead: int, when: str) -> None:
        """Kill the broker before or after a later commit, or let that commit fail."""
        disk = self.simulation.disk
        disk.crashes[disk.commits + ahead] = when

    def crash_sending(self, messages: int) -> None:
        """Kill the broker when it has sent so many messages."""
        self.simulation.broker.dies_sending = messages

    def power(self, after: float) -> None:
        """Cut the power of the broker's machine."""
        simulation = self.simulation
        simulation.broker.die()
        simulation.disk.lose_power()
        simulation.broker.clock.reboot()
        simulation.auditor.rolled_back |= bool(simulation.scenario.relaxed)
        self._restart(simulation.broker, after)

    def full(self, seconds: float) -> None:
        """Fill the disk for a while."""
        self.world.trace("disk", "is full for", f"{seconds:.1f}")
        self.simulation.disk.full_until = self._until(seconds)

    def low(self, seconds: float) -> None:
        """Lower the free space below the reserve for a while."""
        self.world.trace("disk", "is low for", f"{seconds:.1f}")
        self.simulation.disk.low_until = self._until(seconds)

    # Brokers that share a store

    def freeze(self, name: str, commits: int, when: str, seconds: float) -> None:
        """Stop a broker for a while before one of its next commits, or between that and sending."""
        broker = self.simulation.process(name)
        broker.freezes[broker.commits + commits] = (when, seconds)
        self._until(seconds + 2.0)

    def lose(self, ahead: int, when: str) -> None:
        """Lose the connection to the database in a later commit, before or after it is stored."""
        self.simulation.database.faults += [""] * (ahead - 1) + [when]

    def backend(self) -> None:
        """End the owner's connection to the database."""
        database = self.simulation.database
        lease = database.lease_of(database.row.owner)
        if lease is not None:
            self.world.trace("database", "ends the connection of", database.row.owner)
            lease.disconnect()

    def away(self, seconds: float) -> None:
        """Take the database away for a while."""
        database = self.simulation.database
        self.world.trace("database", "is away for", f"{seconds:.1f}")
        database.go_away()
        self.world.at(self._until(seconds), lambda: setattr(database, "down", False))

    def hand_over(self) -> None:
        """Let the owner give the store up."""
        self.simulation.broker.hands_over = True

    # The network

    def cut(self, name: str, arriving: int, noticed: float) -> None:
        """Cut a connection; the broker notices at once, or later."""
        socket = self.simulation.socket(name)
        if socket is not None:
            self.world.trace(name, "loses its connection;", f"the broker sees it in {noticed:.1f}")
            socket.network.cut(socket, arriving=arriving, noticed=noticed)
            self._lost(name)
            self._until(noticed)

    def half_open(self, name: str) -> None:
        """Make a connection half open: messages are lost, without an error at either end."""
        socket = self.simulation.socket(name)
        if socket is not None:
            self.world.trace(name, "has a half-open connection")
            socket.network.half_open(socket)
            self._lost(name)

    def partition(self, seconds: float) -> None:
        """Partition the network for a while; messages are delayed, not lost."""
        self.world.trace("network", "is partitioned for", f"{seconds:.1f}")
        for network in self.simulation.networks:
            network.partition(seconds)
        self._lost("workers")
        self._until(seconds)

    def slow(self, latency: float, seconds: float) -> None:
        """Raise the latency of all messages for a while."""
        until = self._until(seconds)
        for network in self.simulation.networks:
            network.slow = latency
            self.world.at(until, lambda network=network: setattr(network, "slow", 0.001))

    def fill_pipes(self, seconds: float) -> None:
        """Fill the pipes of the ROUTER for a while."""
        for network in self.simulation.networks:
            network.filled, network.full = self.world.now, self._until(seconds)
        self._lost("workers")
