"""What every routing strategy must do."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from eventmq.interfaces import WorkerView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import RoutingStrategy

__all__ = ["RoutingStrategySuite"]


class RoutingStrategySuite:
    """Subclass it and return your strategy from `make`."""

    def make(self) -> RoutingStrategy:
        """Return the strategy; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your strategy")

    def check(
        self, strategy: RoutingStrategy, queue: str, workers: Sequence[WorkerView], n: int
    ) -> list[str]:
        """Return what the strategy chooses, once it is what it may choose."""
        chosen = list(strategy.choose(queue, workers, n))
        room = {worker.session: worker.room for worker in workers}
        assert len(chosen) <= n, f"chose {len(chosen)} sessions where {n} were wanted"
        assert set(chosen) <= set(room), "chose a session that was not offered"
        over = [session for session, count in Counter(chosen).items() if count > room[session]]
        assert not over, f"chose {over} more often than there is room"
        assert chosen, "chose nobody: the jobs would wait although there is room"
        return chosen

    def test_a_single_worker_gets_the_chunk(self) -> None:
        """Where there is no choice there is no refusal."""
        assert self.check(self.make(), "q", [WorkerView("a", 3, 0)], 1) == ["a"]

    def test_room_is_never_exceeded(self) -> None:
        """Not with one worker and more chunks, not with many workers."""
        strategy = self.make()
        self.check(strategy, "q", [WorkerView("a", 2, 5)], 9)
        self.check(strategy, "q", [WorkerView(str(i), 1, i) for i in range(5)], 9)

    def test_many_workers_and_chunks(self) -> None:
        """The sizes of a large installation."""
        workers = [WorkerView(str(i), 1 + i % 7, i % 11) for i in range(1000)]
        self.check(self.make(), "q", workers, 5000)

    def test_any_sequence_of_calls_is_answered(self) -> None:
        """Workers come and go, queues differ, rooms differ; seeded, so a failure repeats."""
        strategy, random = self.make(), Random(20250101)
        for _ in range(2000):
            names = random.sample(range(20), random.randint(1, 8))
            workers = [
                WorkerView(f"w{i}", random.randint(1, 5), random.randint(0, 9)) for i in names
            ]
            self.check(strategy, random.choice("abc"), workers, random.randint(1, 30))

    def test_the_offered_workers_are_not_changed(self) -> None:
        """The broker goes on with the same list."""
        workers = [WorkerView("a", 1, 0), WorkerView("b", 2, 1)]
        before = list(workers)
        self.check(self.make(), "q", workers, 3)
        assert workers == before
