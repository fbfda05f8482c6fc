"""The order keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

from collections import Counter

import pytest
from eventmq import EventMQ
from eventmq.sdk import PluginError
from eventmq.testing import QueueOrderSuite

from eventmq_order_example import lottery
from eventmq_order_example.lottery import Lottery, Options


class TestContract(QueueOrderSuite):
    def make(self):
        return Lottery(Options())


def test_queues_are_served_by_their_weights() -> None:
    order = Lottery(Options(seed=7))
    drawn = Counter(order.choose([(40, "mail"), (10, "default")]) for _ in range(10_000))
    assert 3.8 < drawn["mail"] / drawn["default"] < 4.2


def test_a_seed_makes_the_draws_repeatable() -> None:
    queues = [(40, "mail"), (10, "default")]
    first, second = Lottery(Options(seed=7)), Lottery(Options(seed=7))
    assert [first.choose(queues) for _ in range(99)] == [second.choose(queues) for _ in range(99)]


def app(**options) -> EventMQ:
    return EventMQ(
        "test", broker="memory://", plugins=[lottery],
        queue_order="lottery", plugin_options={"lottery": options},
    )  # fmt: skip


def test_a_broker_uses_it() -> None:
    with app(seed=7) as shop:
        total = shop.task(name="total")(sum)
        assert total.delay([1, 2, 3]).get(timeout=30) == 6
        assert "lottery" in [row["in_use"] for row in shop.plugins.listing()]


def test_a_wrong_option_ends_the_broker_at_its_start() -> None:
    with app(least=0) as shop, pytest.raises(PluginError, match=r"'least' .* from 1, not 0"):
        shop.task(name="total")(sum).delay([1])
