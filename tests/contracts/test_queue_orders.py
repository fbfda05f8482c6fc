"""The built-in queue orders keep the contract."""

from __future__ import annotations

from eventmq.plugins.routing import Strict, WeightedFair
from eventmq.testing import QueueOrderSuite


class TestWeightedFair(QueueOrderSuite):
    def make(self):
        return WeightedFair()


class TestStrict(QueueOrderSuite):
    def make(self):
        return Strict()
