"""Conformance suite for triggers."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventmq.interfaces import Trigger

__all__ = ["TriggerSuite"]

#: Start of the tests: a Sunday in 2026 on which clocks in Europe are put back.
START = 1_792_886_400.0

#: Number of fire times that are checked.
FIRE_TIMES = 200


class TriggerSuite:
    """Subclass it and return your trigger from `make`."""

    def make(self) -> Trigger:
        """Return the trigger; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your trigger")

    def fire_times(self, trigger: Trigger, start: float = START) -> list[float]:
        """Return the first fire times after a time."""
        times: list[float] = []
        fire_time = trigger.next_after(start)
        while fire_time is not None and len(times) < FIRE_TIMES:
            times.append(fire_time)
            fire_time = trigger.next_after(fire_time)
        return times

    def test_fire_times_go_forward(self) -> None:
        """Each comes after the one before, in seconds as float."""
        times = [START, *self.fire_times(self.make())]
        assert all(isinstance(fire_time, float) for fire_time in times)
        assert times == sorted(set(times))

    def test_the_next_fire_time_depends_on_the_last_one_alone(self) -> None:
        """Beats on several hosts compute the same, in whatever order."""
        first, second = self.make(), self.make()
        times = self.fire_times(first)
        assert self.fire_times(second) == times == self.fire_times(first)
        for before, fire_time in reversed(list(pairwise(times))):
            assert second.next_after(before) == fire_time

    def test_latest_agrees_with_next_after(self) -> None:
        """It gives the last fire time of a long pause in one step."""
        trigger = self.make()
        times = self.fire_times(trigger)
        for index in (0, len(times) // 2, len(times) - 1):
            if times:
                assert trigger.latest(START, times[index]) == times[index]
        first = trigger.next_after(START)
        assert trigger.latest(START, START) is None
        if first is not None:
            assert trigger.latest(START, (START + first) / 2) is None
