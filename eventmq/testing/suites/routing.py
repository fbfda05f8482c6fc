# ruff: noqa: S101
"""Conformance suites for routing strategies."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from eventmq.headers import Headers, format_headers
from eventmq.interfaces import WorkerView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import KeyedRouting, RoutingStrategy

__all__ = ["KeyedRoutingSuite", "RoutingStrategySuite"]


class RoutingStrategySuite:
    """Subclass it and return your strategy from `make`."""

    def make(self) -> RoutingStrategy:
        """Return the strategy; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your strategy")

    def check(
        self, strategy: RoutingStrategy, queue: str, workers: Sequence[WorkerView], n: int
    ) -> list[str]:
        """Return the choice of the strategy, checked against the contract."""
        chosen = list(strategy.choose(queue, workers, n))
        credit = {worker.session: worker.credit for worker in workers}
        assert len(chosen) <= n, f"chose {len(chosen)} sessions for {n} chunks"
        assert set(chosen) <= set(credit), "chose a session that was not offered"
        over = [session for session, count in Counter(chosen).items() if count > credit[session]]
        assert not over, f"chose {over} more often than their credit allows"
        assert chosen, "chose no session: the jobs would wait although a worker has credit"
        return chosen

    def test_a_single_worker_gets_the_chunk(self) -> None:
        """A strategy cannot refuse the only worker."""
        assert self.check(self.make(), "q", [WorkerView("a", 3, 0)], 1) == ["a"]

    def test_credit_is_never_exceeded(self) -> None:
        """This holds for one worker and for many."""
        strategy = self.make()
        self.check(strategy, "q", [WorkerView("a", 2, 5)], 9)
        self.check(strategy, "q", [WorkerView(str(i), 1, i) for i in range(5)], 9)

    def test_many_workers_and_chunks(self) -> None:
        """The numbers are those of a large installation."""
        workers = [WorkerView(str(i), 1 + i % 7, i % 11) for i in range(1000)]
        self.check(self.make(), "q", workers, 5000)

    def test_any_sequence_of_calls_is_answered(self) -> None:
        """Workers, queues and credit are random; seeded, so a failure repeats."""
        strategy, random = self.make(), Random(20250101)
        for _ in range(2000):
            names = random.sample(range(20), random.randint(1, 8))
            workers = [
                WorkerView(f"w{i}", random.randint(1, 5), random.randint(0, 9)) for i in names
            ]
            self.check(strategy, random.choice("abc"), workers, random.randint(1, 30))

    def test_it_says_whether_it_looks_at_keys(self) -> None:
        """The broker decides by it, once; one with keys keeps `KeyedRouting` too."""
        assert type(self.make().by_key) is bool

    def test_the_offered_workers_are_not_changed(self) -> None:
        """The broker uses the same list afterwards."""
        workers = [WorkerView("a", 1, 0), WorkerView("b", 2, 1)]
        before = list(workers)
        self.check(self.make(), "q", workers, 3)
        assert workers == before


#: Seconds after which no key may wait while a worker has credit.
MAX_WAIT = 3600.0


class KeyedRoutingSuite(RoutingStrategySuite):
    """Subclass it, return your strategy from `make`, and headers with a key from `headers`."""

    def make(self) -> KeyedRouting:
        """Return the strategy; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your strategy")

    def headers(self, key: str) -> str:
        """Return the header text of a job with this key."""
        raise NotImplementedError(
            "define headers() in your subclass: it returns headers with a key"
        )

    def preferred(
        self, strategy: KeyedRouting, key: str, workers: Sequence[WorkerView], now: float
    ) -> str | None:
        """Return the session that the strategy prefers, checked against the contract."""
        session = strategy.prefer("q", key, workers, now)
        able = {worker.session for worker in workers if worker.credit > 0}
        assert session is None or session in able, f"{session!r} was not offered, or has no credit"
        return session

    def test_by_key_is_true(self) -> None:
        """Without this attribute the broker passes no keys to the strategy."""
        assert self.make().by_key is True

    def test_keys_come_from_headers(self) -> None:
        """Equal headers have the same key; a job without headers has none."""
        strategy = self.make()
        first, second = (strategy.key("q", self.headers(key)) for key in ("a", "b"))
        assert first == strategy.key("q", self.headers("a"))
        assert first
        assert second != first
        assert strategy.key("q", "") == ""
        assert strategy.key("q", format_headers(Headers(task="shop.add", priority=3))) in {
            "",
            "shop.add",
        }

    def test_idle_workers_keep_their_keys(self) -> None:
        """This holds while no worker joins or leaves, and all have free slots."""
        strategy = self.make()
        workers = [WorkerView(f"w{i}", 4, 0) for i in range(7)]
        keys = [f"tenant-{i}" for i in range(50)]
        first = [self.preferred(strategy, key, workers, 0.0) for key in keys]
        assert None not in first
        assert first == [self.preferred(strategy, key, workers, 9.0) for key in keys]

    def test_a_single_worker_gets_every_key(self) -> None:
        """While it has credit, however busy it is."""
        assert self.preferred(self.make(), "a", [WorkerView("w", 1, 9)], 0.0) == "w"

    def test_a_worker_without_credit_gets_no_key(self) -> None:
        """The waiting time of the key does not matter."""
        strategy, full = self.make(), [WorkerView(f"w{i}", 0, 4) for i in range(3)]
        for now in (0.0, 1.0, MAX_WAIT):
            assert self.preferred(strategy, "a", full, now) is None

    def test_no_key_waits_for_ever_while_a_worker_has_credit(self) -> None:
        """Any worker with credit will do."""
        for free in range(4):
            strategy = self.make()
            workers = [WorkerView(f"w{i}", int(i == free), 4 + i) for i in range(4)]
            for key in "abcdefgh":
                self.preferred(strategy, key, workers, 0.0)
                for now in (MAX_WAIT / 2, MAX_WAIT):
                    last = self.preferred(strategy, key, workers, now)
                assert last == f"w{free}"

    def test_any_sequence_of_loads_is_answered(self) -> None:
        """Workers and loads are random; seeded, so a failure repeats."""
        strategy, random = self.make(), Random(20250101)
        for number in range(2000):
            names = random.sample(range(20), random.randint(1, 8))
            workers = [
                WorkerView(f"w{i}", random.randint(0, 5), random.randint(0, 9)) for i in names
            ]
            self.preferred(strategy, random.choice("abcdef"), workers, number / 10)
