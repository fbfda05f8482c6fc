"""The queue store in PostgreSQL: its writes, and lost or fenced sessions."""

from __future__ import annotations

import contextlib
import secrets

import psycopg
import pytest

from eventmq import EventMQ
from eventmq.clock import SystemClock
from eventmq.interfaces import PluginContext
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.sdk import Claimant, Fenced, PluginError, StoreError, Unknown
from eventmq.store.reads import FindJobs
from eventmq.store.writes import Admit, Chunk, LeaseChunk
from eventmq.testing import QueueStoreSuite
from eventmq_contrib.postgres import eventmq_queue_stores
from eventmq_contrib.postgres.connection import DatabaseUnavailable
from eventmq_contrib.postgres.pipeline import Pipeline
from tests.support.system import until

ME = Claimant("me", "tcp://127.0.0.1:47291")


def make_store(url, clock=None, **options):
    make = eventmq_queue_stores()["postgresql"]
    return make(PluginContext("postgresql", {"url": url, **options}, clock or SystemClock()))


def owned(store):
    """Claim a store and open it."""
    assert store.ownership.claim(store.ownership.look(), ME)
    return store.open()


class TestPostgres(QueueStoreSuite):
    shared = True

    @pytest.fixture(autouse=True)
    def _database(self, rows_url):
        self.url = rows_url

    def open_store(self, path, clock):
        return make_store(self.url, clock, dedupe_window=self.dedupe_window)


@pytest.fixture
def make(rows_url):
    """Makes the store of one more broker."""
    stores = []

    def make(**options):
        stores.append(make_store(rows_url, **options))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def other(rows_url):
    """Another session of the same database."""
    with psycopg.connect(rows_url, autocommit=True) as connection:
        connection.execute("SET search_path = eventmq")
        yield connection


IDS = IdFactory(SystemClock())


def job(seq):
    return JobRecord(IDS.new(), "q", "task:t", b"body", seq, state=JobState.QUEUED)


def commit(store, *writes):
    store.submit(writes)
    [result] = store.finished()
    return result


def terminate(connection):
    """End the session of the owner, and return a row for it."""
    cursor = connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks "
        "WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'"
    )
    return cursor.fetchall()


def test_only_the_owner_opens_a_store(make):
    """A standby has no session that could read the store."""
    store = make()
    with pytest.raises(Unknown, match="not owned"):
        store.open()
    store.ownership.look()
    with pytest.raises(Unknown, match="not owned"):
        store.open()
    assert owned(store).epoch == store.ownership.epoch


def test_a_batch_whose_session_was_lost_is_not_stored(make, other):
    """This batch and the next are Unknown; then the store is claimed and read again."""
    store, stored, refused = make(), job(1), job(2)
    epoch = owned(store).epoch
    assert commit(store, Admit([stored])) == [{}]
    assert terminate(other) == [(True,)]
    for _ in range(2):
        assert isinstance(commit(store, Admit([refused])), Unknown)
    recovered = owned(store)
    assert recovered.epoch > epoch
    assert recovered.next_seq == 2
    [jobs] = commit(store, FindJobs([stored.id, refused.id]))
    assert list(jobs) == [stored.id]
    assert commit(store, Admit([job(2)])) == [{}]


def test_a_superseded_broker_is_fenced_or_has_lost_the_store(make):
    """Its later jobs are not stored; the new owner has all earlier ones."""
    one, two, stored = make(), make(), job(1)
    owned(one)
    assert commit(one, Admit([stored])) == [{}]
    assert owned(two).counts["q"].queued == 1
    late = job(2)
    assert isinstance(commit(one, Admit([late])), (Unknown, Fenced))
    [jobs] = commit(two, FindJobs([stored.id, late.id]))
    assert list(jobs) == [stored.id]


def test_the_fence_stops_a_session_that_could_not_be_ended(make, rows_url, other):
    """Behind a partitioned network the session lives on, but the lease is lost."""
    one, two = make(), make()
    owned(one)
    other.execute("UPDATE lease SET backend = ''")
    owned(two)
    with pytest.raises(Fenced):
        one.ownership.renew()
    assert one.ownership.rows is None, "its session is used no more"
    owned(one)
    other.execute("UPDATE lease SET backend = ''")
    owned(two)
    assert isinstance(commit(one, Admit([job(1)])), Fenced)
    assert one.ownership.rows is None
    with pytest.raises(Unknown):
        one.ownership.renew()
    assert two.ownership.renew() is None
    assert commit(two, Admit([job(1)])) == [{}]


def test_the_beat_goes_on_during_recovery(make, monkeypatch):
    """Otherwise a standby would take the store from a broker that has just claimed it."""
    monkeypatch.setattr("eventmq_contrib.postgres.ownership.BEAT_EVERY", 0.0)
    store, standby = make(), make()
    before = standby.ownership.look().beat
    owned(store)
    assert standby.ownership.look().beat > before
    beat = standby.ownership.look().beat
    commit(store, Admit([job(1)]))
    assert standby.ownership.look().beat == beat


def test_jobs_of_many_subqueues_are_admitted_in_a_few_trips(make, monkeypatch):
    """Their number must not depend on the number of limit keys."""
    store, trips = make(), []
    owned(store)
    sync = Pipeline._sync
    monkeypatch.setattr(Pipeline, "_sync", lambda pipeline: (trips.append(1), sync(pipeline)))
    keyed = [JobRecord(IDS.new(), "q", f"task:t,content-type:json,limit-key:k{n % 300}", b"b", n)
             for n in range(1, 601)]  # fmt: skip
    assert commit(store, Admit(keyed[:450])) == [{}]
    assert len(trips) < 30  # the first commit of a store reads more rows
    trips.clear()
    assert commit(store, Admit(keyed[450:])) == [{}]
    assert len(trips) == 2
    recovered = owned(store)
    assert len(recovered.subqueues) == 300


def test_after_a_refused_batch_the_store_is_claimed_and_read_again(make):
    """It is not stored. The broker claims the store again, after growing pauses.

    A refused request of a peer is left out of its batch instead; see `QueueStoreSuite`.
    """
    store, stored, refused = make(), job(1), job(2)
    owned(store)
    assert commit(store, Admit([stored])) == [{}]
    long = LeaseChunk(Chunk(secrets.token_urlsafe(6000), 1, [(stored, 1)]))
    for _ in range(2):
        result = commit(store, Admit([refused]), long)
        assert isinstance(result, Unknown)
        assert "index row size" in str(result)
        until(lambda: claimed(store), "it may claim the store again")
        assert store.open().chunks == []
        [jobs] = commit(store, FindJobs([stored.id, refused.id]))
        assert list(jobs) == [stored.id]
    assert commit(store, Admit([refused])) == [{}]


def claimed(store):
    """Claim a store, and return the epoch, or 0 during a pause."""
    with contextlib.suppress(DatabaseUnavailable):
        return store.ownership.claim(store.ownership.look(), ME)
    return 0


def test_after_a_commit_that_cannot_be_undone_the_store_is_read_again(make, monkeypatch):
    """The rows in memory may be wrong after any failure."""
    store, refused = make(), job(1)
    owned(store)

    def fail(*_):
        raise ValueError("bad luck")

    with monkeypatch.context() as patched:
        patched.setattr(store._engine.tables, "flush_counts", fail)
        patched.setattr(store._engine.tables, "reload", fail)
        result = commit(store, Admit([refused]))
    assert isinstance(result, Unknown)
    assert "bad luck" in str(result)
    assert commit(store, FindJobs([refused.id])) is result
    assert owned(store).counts == {}
    assert commit(store, Admit([refused])) == [{}]


def test_another_store_than_the_expected_one_is_refused(make):
    """The broker ends without having written anything."""
    store = make()
    store_id = owned(store).store_id
    store.ownership.release()
    store.close()
    assert owned(make(expect_store=store_id)).store_id == store_id
    with pytest.raises(StoreError, match=f"has the id {store_id}, and expect_store says other"):
        owned(make(expect_store="other"))


def test_a_store_that_is_damaged_is_refused(make, other):
    """The error names the damage, as with a file."""
    other.execute("UPDATE meta SET integer_value = 5, text_value = NULL WHERE name = 'store_id'")
    try:
        with pytest.raises(StoreError, match="is damaged: its store_id"):
            owned(make())
    finally:
        other.execute(
            "UPDATE meta SET integer_value = NULL, text_value = 'x' WHERE name = 'store_id'"
        )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durability": "relaxed"}, "durability"),
        ({"dedupe_window": -1}, "dedupe_window"),
        ({"directory": "x"}, "directory"),
    ],
)
def test_a_wrong_option_is_refused(rows_url, options, text):
    """The error names the option."""
    with pytest.raises(PluginError, match=text):
        make_store(rows_url, **options)


def test_frames_that_exceed_a_value_of_the_server_are_refused(rows_url):
    """A value of PostgreSQL has at most a gigabyte, and a batch is one value."""
    app = EventMQ("big", max_frame=300 * 1024**2)
    make = eventmq_queue_stores()["postgresql"]
    with pytest.raises(PluginError, match="max_frame is 314,572,800 bytes"):
        make(PluginContext("postgresql", {"url": rows_url}, SystemClock(), app))


def test_a_store_without_a_free_session_for_its_beat_is_claimed_again(database_url, monkeypatch):
    """The owner works; only the server has no free session for a while."""
    store = make_store(database_url)
    assert store.ownership.claim(store.ownership.look(), ME)

    def refused(*_):
        raise DatabaseUnavailable("sorry, too many clients already")

    with monkeypatch.context() as patched:
        patched.setattr(store.ownership, "recovering", refused)
        with pytest.raises(Unknown, match="too many clients"):
            store.open()
    owned(store)
    store.close()


@pytest.mark.parametrize("options", ["", "?application_name=shop"])
def test_the_owner_counts_the_brokers_that_stand_by(rows_url, make, options):
    """Its own sessions and those of tools are none; one that ends counts no more."""
    url = f"{rows_url}{options}"
    stores = [make_store(url) for _ in range(3)]
    owner, *others = stores

    def standbys():
        owner.ownership.renew()
        return owner.gauges()["standbys"]

    try:
        owned(owner)
        assert 0 == standbys()
        for n, each in enumerate(others, 1):
            assert each.ownership.look().connected
            assert n == standbys()
        others[0].close()
        until(lambda: standbys() == 1, "the end of a session is seen")
        assert {} == others[1].gauges()
    finally:
        for each in stores:
            each.close()


@pytest.mark.parametrize(
    "statements",
    [
        ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_class"],
        ["SELECT txid_current()"],
    ],
    ids=["reads", "writes"],
)
def test_the_owner_measures_dead_rows_and_the_oldest_snapshot(
    make, rows_url, monkeypatch, statements
):
    """It measures them regularly with its beat. Other brokers report no gauges."""
    monkeypatch.setattr("eventmq_contrib.postgres.ownership.GAUGE_EVERY", 0.0)
    store = make()
    assert store.gauges() == {}
    owned(store)
    store.ownership.renew()
    gauges = store.gauges()
    assert {"standbys", "dead_rows", "oldest_snapshot_seconds"} == gauges.keys()
    assert gauges["dead_rows"] >= 0
    with psycopg.connect(rows_url) as other:
        for each in statements:
            other.execute(each)

        def held():
            store.ownership.renew()
            return store.gauges()["oldest_snapshot_seconds"] >= 1

        until(held, "the open transaction is seen")
    store.ownership.release()
    assert store.gauges() == {}
