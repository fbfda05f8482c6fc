"""One simulation from its first message to its last check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.broker.limits import Limits
from eventmq.store.reads import FindJobs, ReadEvents
from tests.simulation.auditor import Auditor, Violation
from tests.simulation.beat import BeatProcess, make_schedule
from tests.simulation.broker import BrokerProcess
from tests.simulation.client import ClientProcess
from tests.simulation.disk import Disk
from tests.simulation.events import check_events
from tests.simulation.faults import Faults, rough, sets_clocks
from tests.simulation.fire_times import check_fire_times
from tests.simulation.graphs import needs_of
from tests.simulation.legacy import LegacyWorker
from tests.simulation.owners import SharedBrokerProcess
from tests.simulation.worker import WorkerProcess
from tests.simulation.world import EPOCH, Process, World
from tests.support.shared_store import SharedDatabase
from tests.support.store_rules import audit_rows

if TYPE_CHECKING:
    from eventmq.broker.core import BrokerCore
    from tests.simulation.network import Socket
    from tests.simulation.scenario import Fault, Op, Scenario

__all__ = ["Report", "Simulation", "simulate"]

#: Simulated seconds in which all jobs must have ended after the last fault.
MAX_DRAIN = 200.0

#: Seconds that schedulers have to catch up after the last fault.
CATCH_UP = 4.0

#: Seconds between two checks of whether all jobs have ended.
CHECK_INTERVAL = 0.5

#: Intervals of a small broker with fast failure detection.
SHORT_INTERVALS: dict[str, Any] = {
    "heartbeat_interval": 1.5, "lease_interval": 1.0, "heartbeat_timeout": 6.0, "grace": 0.5,
}  # fmt: skip


class Report(NamedTuple):
    """Result of a simulation; ``failure`` is "" if no guarantee was broken."""

    failure: str
    jobs: int
    executions: int
    crashes: int
    steps: int
    seconds: float
    history: list[str]


class Simulation:
    """All processes of a scenario, with their network, disk and auditor.

    Args:
        scenario: Operations, faults and processes.
        tracing: Whether to keep a history.
    """

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.world = world = World(scenario.seed, tracing=tracing)
        shared = scenario.brokers > 1
        may_run_twice = rough(scenario.faults, shared=shared)
        clocks_set = sets_clocks(scenario.faults)
        self.auditor = Auditor(world, may_run_twice=may_run_twice, clocks_set=clocks_set)
        self.disk = Disk(world, relaxed=scenario.relaxed)
        limits = Limits(**{**SHORT_INTERVALS, **scenario.limits})
        self.database = SharedDatabase("simulated")
        self.brokers = [
            SharedBrokerProcess(world, self.disk, limits, self._after_commit, self.database, number)
            if shared
            else BrokerProcess(world, self.disk, limits, self._after_commit)
            for number in range(scenario.brokers)
        ]
        for broker in self.brokers:
            broker.before_restart = self._check_disk
            if isinstance(broker, SharedBrokerProcess):
                broker.before_blind = self._believe_clock
        self.networks = [broker.network for broker in self.brokers]
        self.clients = [
            ClientProcess(world, self.networks, self.auditor, number=number, limits=limits)
            for number in range(scenario.clients)
        ]
        self.workers = [
            WorkerProcess(
                world, self.networks, self.auditor, number=number, slots=slots, queues=queues,
                limits=limits,
            )
            for number, (slots, queues) in enumerate(scenario.workers)
        ]  # fmt: skip
        self.legacy = [
            LegacyWorker(
                world, self.networks, self.auditor, number=number, slots=slots, queues=queues,
                limits=limits,
            )
            for number, (slots, queues) in enumerate(scenario.legacy)
        ]  # fmt: skip
        self.beats = [
            BeatProcess(
                world, self.networks, self.auditor, number=number, limits=limits, role="scheduler"
            )
            for number in range(scenario.beats)
        ]
        for beat in self.beats:
            beat.declared = {name: make_schedule(name, every) for name, every in scenario.schedules}
        self.faults = Faults(self)
        self.processes: dict[str, Process] = {
            process.name: process
            for process in [*self.brokers, *self.clients, *self.workers, *self.legacy, *self.beats]
        }

    def process(self, name: str) -> Any:
        """Return the process with a name."""
        return self.processes[name]

    def socket(self, name: str) -> Socket | None:
        """Return the socket of a process, None while the process is down."""
        socket: Socket | None = self.process(name).socket(self.broker.network)
        return socket

    @property
    def broker(self) -> BrokerProcess:
        """The broker that owns the store, as far as brokers know."""
        return max(
            self.brokers,
            key=lambda b: b.alive and not b.core.standby and b.core.state.epoch,
        )

    def _believe_clock(self) -> None:
        self.auditor.clocks_set |= any(f.method == "set_clock" for f in self.scenario.faults)

    def _after_commit(self, core: BrokerCore) -> None:
        self.auditor.broker_lives = core.state.epoch
        self.auditor.check_leases(core)

    def run(self) -> None:
        """Run the scenario to its end, and check what must hold then."""
        for process in self.processes.values():
            process.start()
        for op in self.scenario.ops:
            self.world.at(op.at, lambda op=op: self._apply(op))
        for fault in self.scenario.faults:
            self.world.at(fault.at, lambda fault=fault: self._inject(fault))
        self._run_until(self.scenario.end)
        while self.faults.over > self.world.now:
            self._run_until(self.faults.over)
        self._heal()
        self._stop_beats()
        self._drain()
        self._check()

    def _run_until(self, until: float) -> None:
        self.world.run(until)

    def _apply(self, op: Op) -> None:
        client = self.clients[op.client]
        if op.method == "graph":
            self.auditor.intend(op.arguments["jobs"])
            for job_id, needs in needs_of(op.arguments["jobs"], op.arguments["expression"]).items():
                self.auditor.jobs[job_id].needs = needs
        if client.alive:
            getattr(client, op.method)(**op.arguments)

    def _inject(self, fault: Fault) -> None:
        getattr(self.faults, fault.method)(**fault.arguments)

    def _heal(self) -> None:
        """End all faults, and start the processes that are down."""
        self.world.trace("world", "is healed")
        self.disk.crashes.clear()
        self.database.faults.clear()
        self.database.down = False
        for broker in self.brokers:
            broker.dies_sending = -1
        for process in self.processes.values():
            if not process.alive:
                process.start()

    def _stop_beats(self) -> None:
        """Give schedulers time to catch up, then stop them, so that no new jobs come."""
        if not self.beats:
            return
        half_open = any(
            f.method == "half_open" for f in self.scenario.faults
        )  # noticed by a timeout only
        self._run_until(self.world.now + CATCH_UP + (10.0 if half_open else 0.0))
        self.stopped = self.world.now + EPOCH
        for beat in self.beats:
            beat.die()

    stopped = resumed = 0.0

    def _drain(self) -> None:
        bound = MAX_DRAIN + self.scenario.lapses
        end = self.world.now + bound
        while not self._drained():
            if self.world.now >= end:
                self.auditor.fail(
                    f"{bound:g} s after the last fault jobs are left: {self._unfinished()}"
                )
            self._resume()
            self._run_until(self.world.now + CHECK_INTERVAL)

    def _resume(self) -> None:
        """Resume paused queues, since a client's request to pause may arrive late."""
        broker = self.broker
        if not broker.alive or broker.core.standby or self.world.now - self.resumed < 5.0:
            return
        for name, queue in self.broker.core.state.queues.items():
            if queue.counts.paused:
                self.resumed = self.world.now
                self.clients[0].ask("resume", {"queue": name})

    def _drained(self) -> bool:
        return not self._unfinished()

    def _unfinished(self) -> str:
        broker = self.broker
        if not broker.alive:
            return "the broker is down"
        core = broker.core
        ownership = broker.store.ownership
        if core.standby or (ownership is not None and not ownership.connected):
            return "no broker owns the store"
        for name, queue in core.state.queues.items():
            counts = queue.counts
            if counts.queued or counts.delayed or counts.blocked:
                return f"queue {name}: {counts}"
        for session in core.state.sessions.values():
            if session.leases:
                return f"session {session.id} has leases {list(session.leases)}"
        for client in self.clients:
            if not client.idle:
                return f"{client.name} has requests in flight"
        if not all(worker.idle for worker in self.legacy):
            return "a legacy worker has a job"
        for worker in self.workers:
            if worker.alive and not worker.manager.idle:
                return f"{worker.name} holds {worker.manager._held_chunks.numbers()}"
        return "" if not core.has_writes else "the broker has writes to commit"

    def _check(self) -> None:
        store = self.broker.store
        store.submit([FindJobs(list(self.auditor.jobs)), ReadEvents(0, 1 << 30)])
        [[stored, (rows, _)]] = store.finished()
        self.auditor.check_end(stored)
        self._check_disk()
        check_events(self.auditor, rows, stored)
        for name, every in self.scenario.schedules:
            check_fire_times(self.auditor, name, every, stored, self.stopped)

    def _check_disk(self) -> None:
        """Audit the store; called after each death of the broker, and at the end."""
        for finding in audit_rows(self.disk.file):
            self.auditor.fail(f"the store is not sound: {finding}")

    def close(self) -> None:
        """Release the disk."""
        self.disk.close()

    def report(self, failure: str) -> Report:
        """Return the result."""
        auditor, world = self.auditor, self.world
        return Report(
            failure, len(auditor.jobs), auditor.executions,
            sum(broker.crashes for broker in self.brokers), world.steps, world.now, world.history,
        )  # fmt: skip


def simulate(scenario: Scenario, *, tracing: bool = False) -> Report:
    """Run a scenario; any exception counts as a failure."""
    simulation = Simulation(scenario, tracing=tracing)
    try:
        simulation.run()
    except Violation as violation:
        return simulation.report(str(violation))
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        return simulation.report(text)
    finally:
        simulation.close()
    return simulation.report("")
