"""One simulation from its first message to its last check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.broker.limits import Limits
from eventmq.plugins.queue_stores.sqlite.tools.fsck import check_rows
from eventmq.store.reads import FindJobs, ReadEvents
from tests.simulation.auditor import Auditor, Violation
from tests.simulation.beat import BeatProcess, make_schedule
from tests.simulation.broker import BrokerProcess
from tests.simulation.client import ClientProcess
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults, rough, sets_clocks
from tests.simulation.graphs import needs_of
from tests.simulation.ledger import check_events
from tests.simulation.legacy import LegacyWorker
from tests.simulation.slots import check_slots
from tests.simulation.worker import WorkerProcess
from tests.simulation.world import EPOCH, Process, World

if TYPE_CHECKING:
    from tests.simulation.network import Socket
    from tests.simulation.scenario import Fault, Op, Scenario

__all__ = ["Report", "Simulation", "simulate"]

#: Simulated seconds in which all is done once nothing goes wrong any more.
BOUND = 200.0

#: Seconds that beats have once nothing goes wrong any more.
CATCH_UP = 4.0

#: Seconds between looks at whether all is done.
LOOK = 0.5

#: The intervals of a small, quick installation.
QUICK: dict[str, Any] = {
    "heartbeat_interval": 1.5, "lease_interval": 1.0, "heartbeat_timeout": 6.0, "grace": 0.5,
}  # fmt: skip


class Report(NamedTuple):
    """What came of a simulation; ``failure`` is empty where all was kept."""

    failure: str
    jobs: int
    executions: int
    crashes: int
    steps: int
    seconds: float
    history: list[str]


class Simulation:
    """All processes of a scenario.

    Args:
        scenario: What is done.
        told: Whether to keep a history.
    """

    def __init__(self, scenario: Scenario, *, told: bool = False) -> None:
        self.scenario = scenario
        self.world = world = World(scenario.seed, told=told)
        twice, clocks = rough(scenario.faults), sets_clocks(scenario.faults)
        self.auditor = Auditor(world, twice=twice, clocks=clocks)
        self.disk = Disk(world, relaxed=scenario.relaxed)
        limits = Limits(**{**QUICK, **scenario.limits})
        self.broker = BrokerProcess(world, self.disk, limits, self._look)
        self.broker.before = self._check_disk
        self.network = self.broker.network
        self.clients = [
            ClientProcess(world, self.network, self.auditor, number=number, limits=limits)
            for number in range(scenario.clients)
        ]
        self.workers = [
            WorkerProcess(
                world, self.network, self.auditor, number=number, slots=slots, queues=queues,
                limits=limits,
            )
            for number, (slots, queues) in enumerate(scenario.workers)
        ]  # fmt: skip
        self.legacy = [
            LegacyWorker(
                world, self.network, self.auditor, number=number, slots=slots, queues=queues,
                limits=limits,
            )
            for number, (slots, queues) in enumerate(scenario.legacy)
        ]  # fmt: skip
        self.beats = [
            BeatProcess(
                world, self.network, self.auditor, number=number, limits=limits, role="scheduler"
            )
            for number in range(scenario.beats)
        ]
        for beat in self.beats:
            beat.declared = {name: make_schedule(name, every) for name, every in scenario.schedules}
        self.faults = Faults(self)
        self.processes: dict[str, Process] = {
            process.name: process
            for process in [self.broker, *self.clients, *self.workers, *self.legacy, *self.beats]
        }

    def process(self, who: str) -> Any:
        """Return a process by its name."""
        return self.processes[who]

    def socket(self, who: str) -> Socket | None:
        """Return the socket of a process, if it is there."""
        process = self.process(who)
        return process.socket if process.alive else None

    def _look(self) -> None:
        self.auditor.lives = self.broker.core.state.epoch
        self.auditor.look(self.broker.core)

    def run(self) -> None:
        """Do all of it, and check it."""
        for process in self.processes.values():
            process.start()
        for op in self.scenario.ops:
            self.world.at(op.at, lambda op=op: self._do(op))
        for fault in self.scenario.faults:
            self.world.at(fault.at, lambda fault=fault: self._break(fault))
        self._pass(self.scenario.end)
        while self.faults.over > self.world.now:
            self._pass(self.faults.over)
        self._heal()
        self._end_beats()
        self._drain()
        self._check()

    def _pass(self, until: float) -> None:
        self.world.run(until)

    def _do(self, op: Op) -> None:
        client = self.clients[op.client]
        if op.what == "graph":
            self.auditor.intend(op.arguments["jobs"])
            for job_id, needs in needs_of(op.arguments["jobs"], op.arguments["expression"]).items():
                self.auditor.jobs[job_id].needs = needs
        if client.alive:
            getattr(client, op.what)(**op.arguments)

    def _break(self, fault: Fault) -> None:
        getattr(self.faults, fault.what)(**fault.arguments)

    def _heal(self) -> None:
        """From here on nothing goes wrong."""
        self.world.tell("world", "is healed")
        self.disk.crashes.clear()
        self.broker.dies_sending = -1
        for process in self.processes.values():
            if not process.alive:
                process.start()

    def _end_beats(self) -> None:
        """Give beats time to make up for what they missed; then there is to be an end of jobs."""
        if not self.beats:
            return
        late = any(f.what == "deafen" for f in self.scenario.faults)  # is noticed by silence
        self._pass(self.world.now + CATCH_UP + (10.0 if late else 0.0))
        self.stopped = self.world.now + EPOCH
        for beat in self.beats:
            beat.die()

    stopped = resumed = 0.0

    def _drain(self) -> None:
        bound = BOUND + self.scenario.lapses
        end = self.world.now + bound
        while not self._drained():
            if self.world.now >= end:
                self.auditor.fail(
                    f"{bound:g} s after the last fault not all is done: {self._left()}"
                )
            self._resume()
            self._pass(self.world.now + LOOK)

    def _resume(self) -> None:
        """Let paused queues go on: what a client asked for may come late."""
        if not self.broker.alive or self.world.now - self.resumed < 5.0:
            return
        for name, queue in self.broker.core.state.queues.items():
            if queue.counts.paused:
                self.resumed = self.world.now
                self.clients[0].ask("resume", {"queue": name})

    def _drained(self) -> bool:
        return not self._left()

    def _left(self) -> str:
        if not self.broker.alive:
            return "the broker is down"
        core = self.broker.core
        for name, queue in core.state.queues.items():
            counts = queue.counts
            if counts.waiting or counts.delayed or counts.blocked:
                return f"queue {name}: {counts}"
        for session in core.state.sessions.values():
            if session.leases:
                return f"session {session.id} has leases {list(session.leases)}"
        for client in self.clients:
            if not client.idle:
                return f"{client.name} waits for something"
        if not all(worker.idle for worker in self.legacy):
            return "a legacy worker has a job"
        for worker in self.workers:
            if worker.alive and not worker.manager.idle:
                return f"{worker.name} holds {worker.manager._held.numbers()}"
        return "" if not core.has_writes else "the broker has something to write"

    def _check(self) -> None:
        store = self.broker.store
        store.submit([FindJobs(list(self.auditor.jobs)), ReadEvents(0, 1 << 30)])
        [[found, (rows, _)]] = store.finished()
        self.auditor.close(found)
        self._check_disk()
        check_events(self.auditor, rows, found)
        for name, every in self.scenario.schedules:
            check_slots(self.auditor, name, every, found, self.stopped)

    def _check_disk(self) -> None:
        """See that a store is in order where its broker has ended, and at the end."""
        for finding in check_rows(self.disk.file):
            self.auditor.fail(f"fsck finds {finding}")

    def close(self) -> None:
        """Release the disk."""
        self.disk.close()

    def report(self, failure: str) -> Report:
        """Return what came of it."""
        auditor, world = self.auditor, self.world
        return Report(
            failure, len(auditor.jobs), auditor.executions, self.broker.crashes, world.steps,
            world.now, world.history,
        )  # fmt: skip


def simulate(scenario: Scenario, *, told: bool = False) -> Report:
    """Run a scenario; an exception of EventMQ is a failure too."""
    simulation = Simulation(scenario, told=told)
    try:
        simulation.run()
    except Violation as violation:
        return simulation.report(str(violation))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is found here
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return simulation.report(text)
    finally:
        simulation.close()
    return simulation.report("")
