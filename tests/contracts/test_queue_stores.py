"""The built-in queue stores keep the contract."""

from __future__ import annotations

from eventmq.interfaces import PluginContext
from eventmq.plugins.queue_stores import memory, sqlite
from eventmq.testing import QueueStoreSuite


class TestSqlite(QueueStoreSuite):
    def open_store(self, path, clock):
        options = {"directory": str(path / "data"), "reserve": 0}
        options["dedupe_window"] = self.dedupe_window
        return sqlite.make_store(PluginContext("sqlite", options, clock))


class TestMemory(QueueStoreSuite):
    durable = False

    def open_store(self, path, clock):
        options = {"dedupe_window": self.dedupe_window}
        return memory.make_store(PluginContext("memory", options, clock))
