"""Events of a store in PostgreSQL, read by other processes than its broker."""

from __future__ import annotations

from itertools import pairwise

import pytest

from eventmq import BrokerUnavailable
from eventmq.sdk import Claimant, StoreError, SystemClock
from eventmq_contrib.postgres.connection import Database
from eventmq_contrib.postgres.events import PostgresEventLogReader
from eventmq_contrib.postgres.store import PostgresStore
from eventmq_contrib.postgres.upkeep import PostgresUpkeep
from tests.contrib.postgres.test_agreement import Brokers, tasks
from tests.support.system import DEADLINE

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def store(database_url):
    """An open store, whose owner has an address."""
    queue_store = PostgresStore(Database.of(database_url), SystemClock())
    lease = queue_store.ownership
    assert lease.claim(lease.look(), Claimant("one", "tcp://10.0.0.1:47291"))
    queue_store.open()
    yield queue_store
    queue_store.close()


def test_a_reader_needs_a_store_and_creates_none(database_url, postgres):
    with pytest.raises(StoreError, match="there is no store in the schema eventmq"):
        PostgresEventLogReader(Database.of(database_url))
    name = database_url.rpartition("/")[2]
    schemas = postgres.sql("SELECT 1 FROM pg_namespace WHERE nspname = 'eventmq'", database=name)
    assert [] == schemas


def test_a_reader_knows_where_the_owner_is(store):
    """The lease names the address that peers connect to."""
    reader = store.event_log()
    assert {"main": "tcp://10.0.0.1:47291"} == reader.addresses()
    store.ownership.release()
    assert {} == reader.addresses()
    reader.close()
    reader.close()


def test_a_reader_outlasts_a_stopped_database(store, postgres):
    reader = store.event_log()
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                reader.read(0, 1000)
    finally:
        postgres.start()
    rows, head = reader.read(0, 1000)
    assert ([], 1) == (rows, head.next)
    reader.close()


def test_a_reader_ends_after_a_restore(store, database_url):
    """Their numbers may be used twice, so they belong to another journal."""
    reader = store.event_log()
    PostgresUpkeep(Database.of(database_url), {}).accept_restore()
    with pytest.raises(StoreError, match="begin another journal, with another --out"):
        reader.read(0, 1000)
    reader.close()
    other = store.event_log()
    assert other.store_id not in {"", reader.store_id}
    other.close()


def test_a_journal_reads_the_store_while_a_broker_owns_it_and_when_none_does(
    tmp_path, database_url
):
    """It reports sealed events to the owner that the lease names."""
    pytest.importorskip("pyarrow")
    system = Brokers(tmp_path, database_url)
    journal = ("journal", "--store", database_url, "--once", "--out")
    try:
        broker, _ = system.start_broker()
        system.worker()
        app, work = tasks(system)
        assert [1, 2, 3] == [job.get(DEADLINE) for job in [work.delay(n) for n in (1, 2, 3)]]
        first = system.run(*journal, "journal")
        assert 0 == first.returncode, first.stderr
        head = app.ask("events.read")
        sealed = head["sealed"]
        assert 6 <= sealed == head["next"] - 1, "the broker knows it"
        assert f"up to {sealed}" in first.stderr
        assert f"broker={app.ask('ping')['store']}" in first.stdout
        work.delay(4).get(DEADLINE)
        broker.kill9()
        second = system.run(*journal, "journal")
        assert 0 == second.returncode, second.stderr
        assert f"after={sealed}" in second.stdout.split()
        files = list((tmp_path / "journal").rglob("*.parquet"))
        names = [path.stem.split("-") for path in files]
        numbers = sorted((int(name[1]), int(name[2])) for name in names)
        assert 1 == numbers[0][0]
        assert all(a[1] + 1 == b[0] for a, b in pairwise(numbers))
        assert numbers[-1][1] > sealed
    finally:
        system.stop()
