"""The built-in queue stores keep the contract."""

from __future__ import annotations

import apsw
import pytest

from eventmq.interfaces import PluginContext
from eventmq.plugins.queue_stores import memory
from eventmq.plugins.queue_stores.sqlite import store
from eventmq.testing import QueueStoreSuite


@pytest.fixture(autouse=True)
def no_cursor_is_held(monkeypatch):
    """Every commit ends with no statement under way: a held one would keep the log for ever."""
    submit = store.SqliteStore.submit

    def submitted(store, batch):
        submit(store, batch)
        assert apsw.SQLITE_TXN_NONE == store._db.txn_state()

    monkeypatch.setattr(store.SqliteStore, "submit", submitted)


class TestSqlite(QueueStoreSuite):
    def open_store(self, path, clock):
        options = {"directory": str(path / "data"), "reserve": 0}
        options["dedupe_window"] = self.dedupe_window
        return store.make_store(PluginContext("sqlite", options, clock))


class TestMemory(QueueStoreSuite):
    durable = False

    def open_store(self, path, clock):
        options = {"dedupe_window": self.dedupe_window}
        return memory.make_store(PluginContext("memory", options, clock))
