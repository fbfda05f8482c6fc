"""Conformance suite for queue orders."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventmq.interfaces import QueueOrder

__all__ = ["QueueOrderSuite"]


class QueueOrderSuite:
    """Subclass it and return your order from `make`."""

    def make(self) -> QueueOrder:
        """Return the order; called once per test. The broker makes one for each session."""
        raise NotImplementedError("define make() in your subclass: it returns your queue order")

    def test_a_single_queue_is_chosen(self) -> None:
        """An order cannot refuse the only queue."""
        assert self.make().choose([(10, "default")]) == "default"

    def test_one_of_the_offered_queues_is_chosen_whatever_was_charged(self) -> None:
        """Queues and weights are random; seeded, so a failure repeats."""
        order, random = self.make(), Random(20250101)
        for _ in range(2000):
            names = random.sample("abcdefgh", random.randint(1, 8))
            queues = [(random.randint(1, 100), name) for name in names]
            chosen = order.choose(queues)
            assert chosen in names
            weight = next(weight for weight, name in queues if name == chosen)
            order.charge(chosen, weight, random.randint(1, 300))

    def test_jobs_that_are_handed_back_are_tolerated(self) -> None:
        """More may come back than were charged, since a restarted broker makes a new order."""
        order = self.make()
        order.charge("a", 10, 100)
        for jobs in (-99, -1000):
            order.charge("a", 10, jobs)
            assert order.choose([(10, "a"), (20, "b")]) in {"a", "b"}

    def test_choosing_without_a_charge_is_legal(self) -> None:
        """The broker charges only for jobs that it dispatched."""
        order = self.make()
        assert {order.choose([(10, "a"), (20, "b")]) for _ in range(9)} <= {"a", "b"}

    def test_invalid_weights_are_tolerated(self) -> None:
        """Workers of other makes may send 0 or less."""
        order = self.make()
        for _ in range(20):
            chosen = order.choose([(0, "a"), (-5, "b")])
            assert chosen in {"a", "b"}
            order.charge(chosen, 0, 1)

    def test_the_offered_queues_are_not_changed(self) -> None:
        """The broker uses the same list afterwards."""
        queues = [(10, "a"), (20, "b")]
        self.make().choose(queues)
        assert queues == [(10, "a"), (20, "b")]
