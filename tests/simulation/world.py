"""Simulated time: an event queue, the clocks of machines, and the processes that run on them.

A `World` owns the only random generator of a run, so that the seed alone determines the run.
Nothing here knows what EventMQ is.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EPOCH", "HostClock", "NoProgress", "Process", "World"]

#: Unix time at which every simulation begins.
EPOCH = 1_800_000_000.0

#: Most lines that a history has.
LINES = 20_000

#: Steps after which a simulation is taken to make no progress.
STEPS = 60_000


class NoProgress(Exception):
    """A simulation took more than `STEPS` steps."""


class World:
    """Event queue of a simulation, with its clock. Times are simulated seconds from 0.0.

    Args:
        seed: Seed of the generator from which latencies and the like are drawn.
        tracing: Whether to keep a history, which doubles the time of a run.
    """

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.tracing = tracing
        self.history: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action; those of the same time run in the order of the calls."""
        self._count += 1
        heappush(self._heap, (max(when, self.now), self._count, action))

    def step(self, until: float) -> bool:
        """Run the next action due by a time and return True, or advance to that time."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, action = heappop(self._heap)
        self.steps += 1
        if self.steps > STEPS:
            raise NoProgress(f"more than {STEPS} steps: the simulation makes no progress")
        action()
        return True

    def run(self, until: float) -> None:
        """Run all actions until a time."""
        while self.step(until):
            pass

    def trace(self, name: str, event: str, *details: object) -> None:
        """Add a line to the history, if there is one."""
        if self.tracing and len(self.history) < LINES:
            text = " ".join(map(str, details))
            self.history.append(f"{self.now:9.3f}  {name:<8} {event} {text}".rstrip())


class HostClock:
    """The clocks of one machine; its wall clock may be set wrong."""

    def __init__(self, world: World, name: str = "boot") -> None:
        self._world = world
        self._name = name
        self.wall = EPOCH
        #: Number of times that the machine was booted.
        self.boots = 1
        self._booted = -1000.0

    def now(self) -> float:
        return self._world.now + self.wall

    def monotonic(self) -> float:
        return self._world.now + 1000.0

    def boottime(self) -> float:
        return self._world.now - self._booted

    def boot_id(self) -> str:
        return f"{self._name}-{self.boots}"

    def reboot(self) -> None:
        """Boot the machine again."""
        self.boots += 1
        self._booted = self._world.now


class Process:
    """Process on a machine of its own, which can be stopped for a while and can die.

    It runs in ticks: one when a message came for it, and one at the time that it asked for.
    """

    name = "process"

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = HostClock(world)
        self.alive = False
        self._paused = 0.0
        self._life = 0
        self._due = float("inf")

    def live(self) -> None:
        """Begin another run of the process."""
        self.alive = True
        self._life += 1
        self._due = float("inf")

    def die(self) -> None:
        """End at once, as by SIGKILL."""
        self.alive = False
        self.world.trace(self.name, "dies")

    def pause(self, seconds: float) -> None:
        """Stop for a while, as by SIGSTOP; messages that come meanwhile wait."""
        self._paused = max(self._paused, self.world.now + seconds)

    def wake(self, delay: float = 0.0) -> None:
        """Schedule a tick, unless an earlier one is scheduled."""
        due_at = max(self.world.now + delay, self._paused)
        if self.alive and due_at < self._due:
            self._due = due_at
            life = self._life
            self.world.at(due_at, lambda: self._wake(life, due_at))

    def _wake(self, life: int, due_at: float) -> None:
        if not self.alive or life != self._life or due_at != self._due:
            return
        self._due = float("inf")
        if self._paused > self.world.now:
            self.wake()
            return
        self.tick()

    def tick(self) -> None:
        """Do the work of one tick, and schedule the next."""
        raise NotImplementedError
