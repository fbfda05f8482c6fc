"""The built-in schedule stores keep the contract."""

from __future__ import annotations

import pytest

from eventmq.engine import schedules
from eventmq.errors import EventMQError, QueueFull, StoreError
from eventmq.plugins.database import connect
from eventmq.plugins.schedule_stores import BrokerSchedules, SqliteSchedules
from eventmq.testing import ScheduleStoreSuite
from eventmq.wire.commands import Error
from tests.support.broker_harness import Broker


class ForgetsSoon(ScheduleStoreSuite):
    """The stores have the table of `TestMemory`, which forgets as late as it does for users."""

    too_many = 200

    @pytest.fixture(autouse=True)
    def forgets_soon(self, monkeypatch):
        monkeypatch.setattr(schedules, "MAX_TOMBSTONES", 100)


class TestMemory(ScheduleStoreSuite):
    def make(self, clock):
        return SqliteSchedules(None, clock)


class TestSqlite(ForgetsSoon):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "folder" / "schedules.sqlite"

    def make(self, clock):
        return SqliteSchedules(self.path, clock)

    second = make


class TestBroker(ForgetsSoon):
    """On a broker's core and its real store."""

    @pytest.fixture(autouse=True)
    def brokers(self, tmp_path):
        self.path = tmp_path
        self.broker = None
        yield
        if self.broker is not None:
            self.broker.close()

    def make(self, clock):
        self.broker = Broker(self.path, clock=clock)
        return self.second(clock)

    def second(self, clock):
        return BrokerSchedules(self.ask, self.begin_ask)

    def begin_ask(self, name, arguments):
        answer = self.ask(name, arguments)
        return lambda: answer

    def ask(self, name, arguments):
        answer = self.broker.call(name, **arguments)
        if isinstance(answer, Error):
            raise (QueueFull if answer.code == "store-full" else EventMQError)(answer.text)
        return answer


def test_schedules_of_a_file_survive_its_end(tmp_path, clock):
    suite = TestSqlite()
    suite.path = tmp_path / "s"
    store = suite.make(clock)
    identity = store.identity
    suite.test_a_saved_schedule_is_found_unchanged(store)
    store.close()
    store = suite.make(clock)
    assert "nightly" == store.find("nightly").name
    assert identity == store.identity
    store.close()


@pytest.fixture
def clock():
    from eventmq.testing import FakeClock

    return FakeClock()


def test_only_its_owner_can_read_the_file(tmp_path, clock):
    """Schedules have arguments; a beat may be there before the broker."""
    store = SqliteSchedules(tmp_path / "data" / "s", clock)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "data").iterdir()}
    store.close()
    assert dict.fromkeys(["s", "s-wal", "s-shm"], "0o600") == modes
    assert "0o700" == oct((tmp_path / "data").stat().st_mode & 0o777)


def test_a_second_host_is_refused_with_the_reason(tmp_path, clock):
    """SQLite's locks do not hold across machines."""
    store = SqliteSchedules(tmp_path / "s", clock, host="one")
    store.lease("a", 1.0)
    with pytest.raises(StoreError, match="used by a beat on host 'one', and this is 'two'"):
        SqliteSchedules(tmp_path / "s", clock, host="two")
    clock.advance(61)
    second = SqliteSchedules(tmp_path / "s", clock, host="two")
    assert second.lease("b", 1.0).held
    with pytest.raises(StoreError, match="used by a beat on host 'two'"):
        store.lease("a", 1.0)
    store.close()
    second.close()


def test_a_lease_of_another_start_of_the_machine_is_void(tmp_path, clock):
    """Even if boot time seems to continue, as after a machine was off for long."""
    store = SqliteSchedules(tmp_path / "s", clock)
    assert store.lease("a", 1.0).held
    before = clock.boottime()
    clock.reboot(0.0)
    clock.sleep(before + 0.5 - clock.boottime())
    assert store.lease("b", 1.0).held
    assert not store.lease("a", 1.0).held
    store.close()


def test_without_a_boot_id_a_lease_that_is_too_long_is_of_another_start(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(clock, "boot_id", lambda: "")
    store = SqliteSchedules(tmp_path / "s", clock)
    assert store.lease("a", 1.0).held
    assert not store.lease("b", 1.0).held
    clock.reboot(0.0)
    assert store.lease("b", 1.0).held
    store.close()


def test_a_file_of_something_else_is_refused(tmp_path, clock):
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(StoreError, match="cannot open the schedules"):
        SqliteSchedules(tmp_path / "text", clock)
    db = connect(tmp_path / "other", busy=0.0)
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(StoreError, match="is not a schedule file of EventMQ"):
        SqliteSchedules(tmp_path / "other", clock)


def test_schedules_of_a_broker_survive_its_end(tmp_path, clock):
    suite = TestBroker()
    suite.path = tmp_path
    store = suite.make(clock)
    suite.test_a_saved_schedule_is_found_unchanged(store)
    revision = store.lease("a", 1.0).revision
    suite.broker.crash()
    assert "nightly" == store.find("nightly").name
    lease = store.lease("b", 1.0)
    assert (lease.held, lease.revision) == (True, revision)
    suite.broker.close()


def test_one_schedule_that_cannot_be_read_leaves_the_others(tmp_path, clock, caplog):
    store = SqliteSchedules(tmp_path / "s", clock)
    TestSqlite().test_the_results_of_a_save_are_in_order(store)
    store._db.execute("UPDATE schedules SET definition = x'00' WHERE name = 'b'")
    assert ["a", "c"] == sorted(s.name for s in store.load().schedules)
    assert "the schedule 'b' is damaged" in caplog.text
    store.close()
