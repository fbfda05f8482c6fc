"""Scenario of one simulation as data, which can be printed and made smaller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from eventmq.broker.dispatch import LEGACY_SLACK
from tests.simulation.world import EPOCH

__all__ = ["LEGACY_HEADERS", "Fault", "JobPlan", "Op", "Scenario", "id_of"]


def id_of(number: int, at: float) -> str:
    """Return the id of a job, ordered by time like those that EventMQ's clients make."""
    return f"{int((EPOCH + at) * 1000):012x}7{number & 0xFFF:03x}8{number:015x}"


#: Headers of jobs for legacy workers, and the seconds after which such a lease ends.
LEGACY_HEADERS, LEGACY_LEASE = "timeout:3", 3.0 + LEGACY_SLACK


class JobPlan(NamedTuple):
    """Job of a scenario: its headers, and for each run its seconds and its fate."""

    id: str
    queue: str
    headers: str
    runs: tuple[tuple[float, str], ...]


class Op(NamedTuple):
    """Operation of a client: calls ``method`` of its `ClientProcess` at a time."""

    at: float
    client: int
    method: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"at {self.at:.3f} client{self.client} {self.method} {arguments}"


class Fault(NamedTuple):
    """Fault: calls ``method`` of `Faults` at a time."""

    at: float
    method: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"at {self.at:.3f} FAULT {self.method} {arguments}"


@dataclass(frozen=True)
class Scenario:
    """Everything that a simulation needs to run.

    Attributes:
        seed: Seed of the run.
        ops: Operations of the clients.
        faults: Faults that are injected.
        workers: For each worker, its number of slots and the queues that it serves.
        clients: Number of clients.
        beats: Number of schedulers.
        schedules: For each schedule, its name and the seconds between two fire times.
        relaxed: Seconds between two syncs of the disk, 0.0 for ``durable``.
        limits: Limits of the broker that differ from the usual ones.
        legacy: Slots and queues of each legacy worker.
        brokers: Number of brokers; more than one share their store.
    """

    seed: int
    ops: tuple[Op, ...]
    faults: tuple[Fault, ...] = ()
    workers: tuple[tuple[int, tuple[tuple[int, str], ...]], ...] = ((2, ((10, "q0"),)),)
    clients: int = 1
    beats: int = 0
    schedules: tuple[tuple[str, float], ...] = ()
    relaxed: float = 0.0
    limits: dict[str, Any] = field(default_factory=dict)
    legacy: tuple[tuple[int, tuple[tuple[int, str], ...]], ...] = ()
    brokers: int = 1

    @property
    def end(self) -> float:
        """Time of the last operation or fault."""
        return max([0.0, *(op.at for op in self.ops), *(fault.at for fault in self.faults)])

    @property
    def lapses(self) -> float:
        """Seconds after which the leases of legacy workers have ended, one after the other.

        A legacy worker cannot report that its process died. If the queue has a limit, each such job
        keeps the others from running until its lease has ended.
        """
        if not self.limits.get("queue_limits"):
            return 0.0
        jobs = (job for op in self.ops for job in op.arguments.get("jobs", ()))
        return LEGACY_LEASE * sum(
            job.headers == LEGACY_HEADERS and job.runs[0][1] == "die" for job in jobs
        )

    def lines(self) -> list[str]:
        """Return the scenario as text, one line for each operation and fault."""
        head = f"seed {self.seed}: {self.clients} clients, {self.beats} beats {self.schedules}, "
        head += f"workers {self.workers}, legacy {self.legacy}, relaxed {self.relaxed:g}, "
        head += f"limits {self.limits}, brokers {self.brokers}"
        return [head, *map(str, sorted([*self.ops, *self.faults], key=lambda item: item.at))]


def _short(value: Any) -> str:
    if isinstance(value, JobPlan):
        return f"[...{value.id[-6:]} {value.queue} {value.headers} {value.runs}]"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_short, value)) + "]"
    if isinstance(value, str) and len(value) == 32:
        return f"...{value[-6:]}"
    return str(value)
