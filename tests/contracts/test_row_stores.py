"""The built-in stores of rows keep the contract of the engine."""

from __future__ import annotations

import pytest

from eventmq.engine import TABLES
from eventmq.plugins.database import SqliteRows, connect
from eventmq.plugins.queue_stores.sqlite.schema import prepare
from eventmq.testing import RowStoreSuite


class TestSqlite(RowStoreSuite):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = str(tmp_path / "rows.sqlite")

    def make(self):
        db = connect(self.path, busy=1.0)
        prepare(db, self.path)
        return SqliteRows(db, TABLES)

    def close(self, rows):
        rows.db.close()


class TestMemory(TestSqlite):
    durable = False

    @pytest.fixture(autouse=True)
    def _file(self):
        self.path = ":memory:"
