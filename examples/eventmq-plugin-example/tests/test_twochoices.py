"""The routing strategy keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

from collections import Counter
from random import Random

from eventmq.sdk import PluginContext, WorkerView
from eventmq.testing import FakeClock, RoutingStrategySuite

from eventmq_plugin_example.twochoices import RandomTwoChoices, make_strategy


def make(**options):
    return make_strategy(PluginContext("random-two-choices", options, FakeClock()))


class TestContract(RoutingStrategySuite):
    def make(self):
        return RandomTwoChoices(Random(7))


def test_work_is_spread_nearly_evenly() -> None:
    workers = [WorkerView(str(i), 1000, 0) for i in range(10)]
    shares = Counter(make(seed=7).choose("q", workers, 1000))
    assert max(shares.values()) - min(shares.values()) < 20


def test_a_seed_makes_the_choices_repeatable() -> None:
    workers = [WorkerView(str(i), 9, 0) for i in range(10)]
    assert make(seed=7).choose("q", workers, 50) == make(seed=7).choose("q", workers, 50)
