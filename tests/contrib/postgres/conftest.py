"""A server for all tests, with a new database for each, or one that is emptied after each."""

from __future__ import annotations

import psycopg
import pytest

from eventmq.interfaces import PluginContext
from eventmq.sdk import Claimant
from eventmq_contrib.postgres import eventmq_queue_stores
from eventmq_contrib.postgres.connection import Database
from eventmq_contrib.postgres.rowstore import PostgresRows
from tests.support.broker_harness import Broker
from tests.support.postgres_fixtures import database_url, postgres

__all__ = ["PostgresBroker", "broker", "database_url", "postgres", "rows_url"]


class PostgresBroker(Broker):
    """A broker core on a store in PostgreSQL, whose URL is its path."""

    def make_store(self):
        make = eventmq_queue_stores()["postgresql"]
        store = make(PluginContext("postgresql", {"url": self.path}, self.clock))
        me = Claimant("me", "tcp://127.0.0.1:47291")
        assert store.ownership.claim(store.ownership.look(), me)
        return store


@pytest.fixture
def broker(rows_url):
    """A broker that owns its store."""
    broker = PostgresBroker(rows_url)
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def _tables_url(postgres):
    """The URL of a database with tables, which take longer to create than most tests to run."""
    with postgres.database() as url:
        PostgresRows.open(Database.of(url)).close()
        yield url


@pytest.fixture
def rows_url(_tables_url):
    """The URL of a database with the empty tables of a queue store."""
    yield _tables_url
    with psycopg.connect(_tables_url, autocommit=True) as connection:
        tables = "relkind = 'r' AND relnamespace = 'eventmq'::regnamespace"
        for (name,) in connection.execute(
            f"SELECT relname FROM pg_class WHERE {tables}"
        ).fetchall():
            if name[-1].isdigit():  # of a period
                connection.execute(f'DROP TABLE eventmq."{name}"')
            elif name == "meta":
                connection.execute("DELETE FROM eventmq.meta WHERE name <> 'store_id'")
            elif name not in {"lease", "beats"}:
                connection.execute(f'DELETE FROM eventmq."{name}"')
