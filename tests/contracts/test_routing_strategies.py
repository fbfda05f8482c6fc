"""The built-in routing strategies keep the contract."""

from __future__ import annotations

from eventmq.app.broker import PerQueue
from eventmq.plugins.routing import LeastLoaded, LeastRecentlyUsed, Options, RoundRobin, Sticky
from eventmq.testing import KeyedRoutingSuite, RoutingStrategySuite


class TestLeastRecentlyUsed(RoutingStrategySuite):
    def make(self):
        return LeastRecentlyUsed()


class TestRoundRobin(RoutingStrategySuite):
    def make(self):
        return RoundRobin()


class TestLeastLoaded(RoutingStrategySuite):
    def make(self):
        return LeastLoaded()


class TestSticky(KeyedRoutingSuite):
    def make(self):
        return Sticky()

    def headers(self, key):
        return f"task:shop.add,routing-key:{key}"


class TestStickyByTask(KeyedRoutingSuite):
    def make(self):
        return Sticky(Options(header="task"))

    def headers(self, key):
        return f"task:shop.{key}"


class TestPerQueue(KeyedRoutingSuite):
    def make(self):
        return PerQueue(LeastRecentlyUsed(), {"q": Sticky(), "a": LeastLoaded(), "b": RoundRobin()})

    def headers(self, key):
        return f"task:shop.add,routing-key:{key}"
