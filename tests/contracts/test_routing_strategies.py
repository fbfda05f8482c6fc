"""The built-in routing strategies keep the contract."""

from __future__ import annotations

from eventmq.plugins.routing.least_recently_used import LeastRecentlyUsed
from eventmq.plugins.routing.round_robin import RoundRobin
from eventmq.testing import RoutingStrategySuite


class TestLeastRecentlyUsed(RoutingStrategySuite):
    def make(self):
        return LeastRecentlyUsed()


class TestRoundRobin(RoutingStrategySuite):
    def make(self):
        return RoundRobin()
