"""Simulated time: what happens next, in which order, and what was written down about it.

A `World` owns the one random generator that everything draws from while it runs, so that a seed
says all. Nothing here knows what EventMQ is.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EPOCH", "Endless", "HostClock", "Process", "World"]

#: Unix time at which every simulation begins.
EPOCH = 1_800_000_000.0

#: Lines of history that are kept.
LINES = 20_000

#: Steps after which a simulation runs in circles.
STEPS = 60_000


class Endless(Exception):
    """A simulation runs in circles."""


class World:
    """What happens, in order. Times are simulated seconds from 0.0.

    Args:
        seed: Of the generator that latencies and the like are drawn from.
        told: Whether to keep a history: it costs as much as the rest.
    """

    def __init__(self, seed: int, *, told: bool = False) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.told = told
        self.history: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Do something at a time; things of one time happen in the order in which they came."""
        self._count += 1
        heappush(self._heap, (max(when, self.now), self._count, do))

    def step(self, until: float) -> bool:
        """Do what comes next, if it comes before a time; else let that time come."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, do = heappop(self._heap)
        self.steps += 1
        if self.steps > STEPS:
            raise Endless(f"more than {STEPS} steps: it runs in circles")
        do()
        return True

    def run(self, until: float) -> None:
        """Let time pass."""
        while self.step(until):
            pass

    def tell(self, who: str, what: str, *details: object) -> None:
        """Write a line of history."""
        if self.told and len(self.history) < LINES:
            text = " ".join(map(str, details))
            self.history.append(f"{self.now:9.3f}  {who:<8} {what} {text}".rstrip())


class HostClock:
    """The clocks of one machine; its wall clock may be set wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.wall = EPOCH
        #: How often the machine was started, and when the last time.
        self.boots = 1
        self._booted = -1000.0

    def now(self) -> float:
        return self._world.now + self.wall

    def monotonic(self) -> float:
        return self._world.now + 1000.0

    def boottime(self) -> float:
        return self._world.now - self._booted

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def reboot(self) -> None:
        """The machine is started anew."""
        self.boots += 1
        self._booted = self._world.now


class Process:
    """Something that lives on one machine, can be stopped for a while, and can die.

    It has turns: one when something came for it, and one when it asked to be woken.
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
        """Begin a life."""
        self.alive = True
        self._life += 1
        self._due = float("inf")

    def die(self) -> None:
        """End at once, without a word."""
        self.alive = False
        self.world.tell(self.name, "dies")

    def pause(self, seconds: float) -> None:
        """Stop for a while, as by SIGSTOP: what comes meanwhile waits."""
        self._paused = max(self._paused, self.world.now + seconds)

    def wake(self, delay: float = 0.0) -> None:
        """Take a turn soon, unless one comes earlier anyway."""
        due = max(self.world.now + delay, self._paused)
        if self.alive and due < self._due:
            self._due = due
            life = self._life
            self.world.at(due, lambda: self._wake(life, due))

    def _wake(self, life: int, due: float) -> None:
        if not self.alive or life != self._life or due != self._due:
            return
        self._due = float("inf")
        if self._paused > self.world.now:
            self.wake()
            return
        self.turn()

    def turn(self) -> None:
        """Do what is to be done, and say when the next turn is wanted."""
        raise NotImplementedError
