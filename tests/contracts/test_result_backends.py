"""The built-in result backends keep the contract."""

from __future__ import annotations

import pytest

from eventmq.interfaces import PluginContext
from eventmq.plugins.result_backends import broker, memory, sqlite
from eventmq.testing import FakeClock, ResultBackendSuite


class TestBroker(ResultBackendSuite):
    def make(self):
        return broker.make_backend(PluginContext("broker", {}, FakeClock()))


class TestMemory(ResultBackendSuite):
    shared = False

    def make(self):
        self.clock = FakeClock()
        return memory.make_backend(PluginContext("memory", {}, self.clock))

    def pass_time(self, seconds):
        self.clock.advance(seconds)


class TestSqlite(ResultBackendSuite):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.clock = FakeClock()
        self.path = tmp_path / "results.sqlite"
        self.made = []
        yield
        for backend in self.made:
            backend.close()

    def make(self):
        options = {"path": str(self.path), "durable": False}
        self.made.append(sqlite.make_backend(PluginContext("sqlite", options, self.clock)))
        return self.made[-1]

    def pass_time(self, seconds):
        self.clock.advance(seconds)
