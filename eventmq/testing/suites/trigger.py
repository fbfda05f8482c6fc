"""What every trigger must do."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventmq.interfaces import Trigger

__all__ = ["TriggerSuite"]

#: Where the tests begin: a Sunday in 2026 on which clocks in Europe are put back.
START = 1_792_886_400.0

#: Slots that are looked at.
SLOTS = 200


class TriggerSuite:
    """Subclass it and return your trigger from `make`."""

    def make(self) -> Trigger:
        """Return the trigger; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your trigger")

    def slots(self, trigger: Trigger, start: float = START) -> list[float]:
        """Return the first slots after a time."""
        found: list[float] = []
        slot = trigger.next_after(start)
        while slot is not None and len(found) < SLOTS:
            found.append(slot)
            slot = trigger.next_after(slot)
        return found

    def test_slots_go_forward(self) -> None:
        """Each comes after the one before, in seconds as float."""
        found = [START, *self.slots(self.make())]
        assert all(isinstance(slot, float) for slot in found)
        assert found == sorted(set(found))

    def test_an_answer_depends_on_the_slot_alone(self) -> None:
        """Beats on several hosts compute the same, in whatever order they ask."""
        first, second = self.make(), self.make()
        found = self.slots(first)
        assert self.slots(second) == found == self.slots(first)
        for before, slot in reversed(list(pairwise(found))):
            assert second.next_after(before) == slot

    def test_the_latest_slot_is_that_of_many_steps(self) -> None:
        """So that a long pause costs no steps."""
        trigger = self.make()
        found = self.slots(trigger)
        for place in (0, len(found) // 2, len(found) - 1):
            if found:
                assert trigger.latest(START, found[place]) == found[place]
        first = trigger.next_after(START)
        assert trigger.latest(START, START) is None
        if first is not None:
            assert trigger.latest(START, (START + first) / 2) is None
