"""The built-in queue stores keep the contract."""

from __future__ import annotations

import apsw
import pytest

from eventmq.engine import arguments, engine, listings, operations
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
    """Reads in portions have portions of few rows."""

    durable = False

    @pytest.fixture(autouse=True)
    def small_portions(self, monkeypatch):
        for module, name, size in (
            (operations, "_PORTION", 2), (operations, "_RETRIED_BYTES", 1),
            (listings, "_PORTION", 2), (engine, "_PAGE", 1), (arguments, "_PORTION", 1),
        ):  # fmt: skip
            assert isinstance(getattr(module, name), int)
            monkeypatch.setattr(module, name, size)

    def open_store(self, path, clock):
        options = {"dedupe_window": self.dedupe_window}
        return memory.make_store(PluginContext("memory", options, clock))
