"""The built-in result backends keep the contract."""

from __future__ import annotations

from eventmq.interfaces import PluginContext
from eventmq.plugins.result_backends import broker, memory
from eventmq.testing import FakeClock, ResultBackendSuite


class TestBroker(ResultBackendSuite):
    def make(self):
        return broker.make_backend(PluginContext("broker", {}, FakeClock()))


class TestMemory(ResultBackendSuite):
    def make(self):
        self.clock = FakeClock()
        return memory.make_backend(PluginContext("memory", {}, self.clock))

    def pass_time(self, seconds):
        self.clock.advance(seconds)
