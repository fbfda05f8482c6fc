"""What is done in one simulation, as data: it can be printed, and parts of it left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from eventmq.broker.dispatch import LEGACY_SLACK
from tests.simulation.world import EPOCH

__all__ = ["PLAIN", "Fault", "JobPlan", "Op", "Scenario", "id_of"]


def id_of(number: int, at: float) -> str:
    """Return the id of a job, in the time-ordered layout of our clients."""
    return f"{int((EPOCH + at) * 1000):012x}7{number & 0xFFF:03x}8{number:015x}"


#: Headers of jobs for legacy workers, and the seconds after which a lease of theirs ends.
PLAIN, PLAIN_LEASE = "timeout:3", 3.0 + LEGACY_SLACK


class JobPlan(NamedTuple):
    """One job: what its headers say, and what happens in each of its runs."""

    id: str
    queue: str
    headers: str
    runs: tuple[tuple[float, str], ...]


class Op(NamedTuple):
    """Something that a client does at a time: ``what`` names a method of `ClientProcess`."""

    at: float
    client: int
    what: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        said = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"at {self.at:.3f} client{self.client} {self.what} {said}"


class Fault(NamedTuple):
    """Something that goes wrong at a time: ``what`` names a method of `Faults`."""

    at: float
    what: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"at {self.at:.3f} FAULT {self.what} {said}"


@dataclass(frozen=True)
class Scenario:
    """A simulation.

    Attributes:
        seed: Of what is drawn while it runs.
        ops: What clients do.
        faults: What goes wrong.
        workers: Per worker, its slots and the queues that it serves.
        clients: How many.
        legacy: The same of legacy workers.
        beats: How many schedulers.
        schedules: Of their app: name and seconds between two slots.
        relaxed: Seconds between two syncs of the disk, 0.0 for ``durable``.
        limits: Bounds of the broker that differ from the usual ones.
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

    @property
    def end(self) -> float:
        """When the last of it begins."""
        return max([0.0, *(op.at for op in self.ops), *(fault.at for fault in self.faults)])

    @property
    def lapses(self) -> float:
        """Seconds that leases of legacy workers take to end if they do so one after the other.

        A legacy worker cannot say that its process died, and with a limit of its queue each such
        job keeps the others from running until its lease has ended.
        """
        if not self.limits.get("queue_limits"):
            return 0.0
        jobs = (job for op in self.ops for job in op.arguments.get("jobs", ()))
        return PLAIN_LEASE * sum(job.headers == PLAIN and job.runs[0][1] == "die" for job in jobs)

    def lines(self) -> list[str]:
        """Return it as people read it."""
        head = f"seed {self.seed}: {self.clients} clients, {self.beats} beats {self.schedules}, "
        head += f"workers {self.workers}, legacy {self.legacy}, relaxed {self.relaxed:g}, "
        head += f"limits {self.limits}"
        return [head, *map(str, sorted([*self.ops, *self.faults], key=lambda item: item.at))]


def _short(value: Any) -> str:
    if isinstance(value, JobPlan):
        return f"[...{value.id[-6:]} {value.queue} {value.headers} {value.runs}]"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_short, value)) + "]"
    if isinstance(value, str) and len(value) == 32:
        return f"...{value[-6:]}"
    return str(value)
