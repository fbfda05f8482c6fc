"""The schedule store ``postgresql``: the contract, concurrent beats, and a lost server."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventmq import every
from eventmq.engine import schedules as engine_schedules
from eventmq.errors import BrokerUnavailable, PluginError, StoreError
from eventmq.schedule import Progress, Schedule
from eventmq.sdk import PluginContext, SystemClock
from eventmq.testing import FakeClock, ScheduleStoreSuite
from eventmq_contrib.postgres import eventmq_schedule_stores
from eventmq_contrib.postgres.connection import DatabaseUnavailable
from tests.support.postgres import until
from tests.support.system import System


def make_store(url, clock=None, **options):
    context = PluginContext("postgresql", {"url": url, **options}, clock or SystemClock())
    return eventmq_schedule_stores()["postgresql"](context)


def schedule(name, **more):
    return Schedule(name=name, task="shop.send", trigger='every:{"seconds":5.0}', **more)


@pytest.fixture
def make(database_url):
    """Return a function that makes a store with a database of the test's own."""
    stores = []

    def make_one(url=database_url, **options):
        stores.append(make_store(url, **options))
        return stores[-1]

    yield make_one
    for store in stores:
        store.close()


@pytest.fixture
def sql(postgres, database_url):
    """Return a function that runs a statement in that database."""
    name = database_url.rpartition("/")[2]
    return lambda statement, *values: postgres.sql(statement, *values, database=name)


class TestContract(ScheduleStoreSuite):
    too_many = 200

    @pytest.fixture(autouse=True)
    def _database(self, make, monkeypatch):
        self.make_one = make
        monkeypatch.setattr(engine_schedules, "MAX_TOMBSTONES", 100)

    def make(self, clock):
        return self.make_one(clock=clock)

    second = make


# Concurrent beats


def test_several_beats_advance_a_schedule_once(make):
    """Each version is written by one beat, and no step is lost."""
    first = make()
    first.save([(schedule("a"), None)])
    stores = [make() for _ in range(4)]
    start = threading.Barrier(len(stores))

    def move(store):
        start.wait()
        moved = 0
        while moved < 10:
            version = store.find("a").version
            [done] = store.advance([Progress("a", version, float(version), None, "")]).done
            moved += done
        return moved

    with ThreadPoolExecutor(len(stores)) as threads:
        assert [10] * 4 == list(threads.map(move, stores))
    assert 41 == first.find("a").version == first.load().revision


def test_several_beats_start_with_an_empty_database(make):
    """One of them creates the tables; all have the same identity, which ids of jobs contain."""
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(lambda _: make(), range(4)))
    assert 1 == len({store.identity for store in stores})
    assert stores[0].identity.startswith("postgresql.")


def test_a_change_waits_for_another_one_up_to_its_limit(make, postgres, database_url, monkeypatch):
    """The holder of the lock may be suspended; the beat logs the error and tries again."""
    monkeypatch.setattr("eventmq_contrib.postgres.schedules.LIMIT", 0.3)
    store = make()
    with postgres.connect(database_url.rpartition("/")[2]) as other, other.transaction():
        other.execute("SELECT FROM eventmq_schedules.meta WHERE name = 'identity' FOR UPDATE")
        with pytest.raises(DatabaseUnavailable, match="did not answer in time"):
            store.save([(schedule("a"), None)])
        assert not store.load().schedules, "reading waits for no lock"
    assert [True] == store.save([(schedule("a"), None)]).done


def test_a_lease_ends_by_the_clock_of_the_beat_that_waits(make):
    """Each renewal restarts the wait. The holder's clock does not count."""
    clocks = one, two = FakeClock(), FakeClock(5.0)
    first, second = (make(clock=clock) for clock in clocks)
    assert first.lease("a", 1.0).held
    one.advance(3600.0)
    assert not second.lease("b", 1.0).held
    two.advance(0.9)
    assert not second.lease("b", 1.0).held
    assert first.lease("a", 1.0).held
    two.advance(0.9)
    assert not second.lease("b", 1.0).held
    two.set_now(two.now() + 3600.0)
    two.advance(0.9)
    assert not second.lease("b", 1.0).held
    two.advance(0.2)
    assert second.lease("b", 1.0).held
    assert not first.lease("a", 1.0).held


def test_a_lease_that_was_released_and_acquired_again_is_a_new_one(make):
    """This also holds for the same holder, so a waiting beat starts to count again."""
    clock = FakeClock()
    first, second = make(), make(clock=clock)
    assert first.lease("a", 1.0).held
    assert not second.lease("b", 1.0).held
    first.release("a")
    assert first.lease("a", 1.0).held
    clock.advance(1.5)
    assert not second.lease("b", 1.0).held
    clock.advance(1.5)
    assert second.lease("b", 1.0).held


def test_a_forked_child_leaves_the_connection_of_its_parent_alone(make):
    store = make()
    store.save([(schedule("a"), None)])
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if store.find("a") and store.lease("child", 60.0).held else 2
            store.close()
        finally:
            os._exit(code)
    assert 0 == os.waitpid(child, 0)[1]
    assert not store.lease("parent", 60.0).held


# Failures


def test_a_lost_connection_is_replaced(make, sql):
    """Calls do not fail if the server was restarted between them."""
    store = make()
    store.save([(schedule("a"), None)])
    for change in (lambda: store.find("a"), lambda: store.remove("a", None)):
        [terminated] = sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'eventmq%'"
        )
        assert (True,) == terminated
        assert change()


def test_a_call_while_the_database_is_down_fails_and_the_next_one_works(make, postgres):
    store = make()
    postgres.stop()
    try:
        with pytest.raises(StoreError, match="Connection refused; start the server"):
            store.lease("a", 1.0)
        with pytest.raises(BrokerUnavailable, match="cannot connect to postgresql://"):
            make()
    finally:
        postgres.start()
    assert store.lease("a", 1.0).held


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"url": "postgresql:"}, "name the database"),
        ({"schema": "Bad"}, "the name of a schema"),
        ({"max_result": 5}, "max_result"),
    ],
)
def test_a_wrong_option_is_named(database_url, more, text):
    with pytest.raises(PluginError, match=text):
        make_store(**{"url": database_url, **more})


def test_tables_of_other_programs_are_refused(make, sql):
    """Those of a queue store are refused too, as the broker has schedules of its own."""
    sql("CREATE SCHEMA eventmq_schedules")
    sql("CREATE TABLE eventmq_schedules.schedules (name text)")
    with pytest.raises(StoreError, match="has a table schedules that is not EventMQ's"):
        make()
    make(schema="mine")
    sql("COMMENT ON TABLE mine.meta IS 'queue store of EventMQ, version 1'")
    with pytest.raises(StoreError, match="is that of a queue store of EventMQ"):
        make(schema="mine")
    sql("COMMENT ON TABLE mine.meta IS 'schedule store of EventMQ, version 7'")
    with pytest.raises(StoreError, match="made by another version of EventMQ: it has a schedule"):
        make(schema="mine")


def test_a_damaged_schedule_leaves_the_others(make, sql, caplog):
    store = make()
    store.save([(schedule(name), None) for name in "abc"])
    sql("UPDATE eventmq_schedules.schedules SET definition = 'x' WHERE name = 'b'")
    assert ["a", "c"] == sorted(each.name for each in store.load().schedules)
    assert "the schedule 'b' is damaged" in caplog.text


# Beats as processes


def test_beats_fire_each_time_once_while_server_and_beat_are_killed(
    postgres, database_url, tmp_path, monkeypatch
):
    """Of two beats on one store, exactly one submits a job for each fire time."""
    monkeypatch.setenv("EVENTMQ_SCHEDULE_STORE", database_url)
    system = System(tmp_path)
    times = 16
    try:
        system.broker()
        system.worker()
        beat = ("beat", "-A", "survivor", "--broker", system.address)
        first, _ = system.start(*beat)
        app = system.app(schedule_store=database_url)
        work = app.task(name="survivor.work")(lambda number: number)
        app.schedule("often", work.s(1), every(seconds=0.5), run_count=times)
        until(lambda: system.executed()["1"] >= 2, "it fires")
        system.start(*beat)
        postgres.kill()
        postgres.start()
        fired = system.executed()["1"]
        until(lambda: system.executed()["1"] > fired, "it goes on")
        first.kill9()
        until(lambda: system.executed()["1"] >= times, "it fires to the end")
        until(lambda: not app.schedules.list(), "the schedule that has ended is removed")
        assert {"1": times} == system.executed()
    finally:
        system.stop()


def test_a_beat_waits_for_a_database_that_is_down_at_its_start(
    postgres, database_url, tmp_path, monkeypatch
):
    monkeypatch.setenv("EVENTMQ_SCHEDULE_STORE", database_url)
    system = System(tmp_path)
    try:
        system.broker()
        postgres.stop()
        try:
            beat, _ = system.start("beat", "-A", "survivor", "--broker", system.address, wait=False)
            log = tmp_path / "beat.log"
            until(lambda: "the scheduler waits: cannot connect" in log.read_text(), "it says so")
        finally:
            postgres.start()
        assert "ready" in system.ready(beat)
    finally:
        system.stop()
