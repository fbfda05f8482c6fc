"""Brokers as processes: their common settings, synchronous replicas, and failovers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from eventmq import BrokerUnavailable
from tests.support.postgres import Home, Server, Unavailable, pgbouncer
from tests.support.system import DEADLINE, System, until

pytestmark = pytest.mark.timeout(120)


class Brokers(System):
    """Brokers that share a store."""

    def __init__(self, folder, url):
        super().__init__(folder)
        self.url = url

    def start_broker(self, *more):
        bind = self.address or "tcp://127.0.0.1:0"
        process, line = self.start("broker", "--store", self.url, "--bind", bind, *more)
        self.address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
        return process, line

    def run(self, *command):
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "eventmq", *command], cwd=self.folder, text=True,
            capture_output=True, check=False, timeout=DEADLINE,
        )  # fmt: skip


@pytest.fixture
def brokers(tmp_path, database_url):
    system = Brokers(tmp_path, database_url)
    yield system
    system.stop()


@pytest.fixture
def pair():
    """A primary and a synchronous replica."""
    home = Home()
    try:
        primary = Server.make(home)
        yield primary, primary.replica("replica", synchronous=True)
    finally:
        home.close()


def tasks(system):
    app = system.app(submit_timeout=30.0)

    @app.task(name="survivor.work")
    def work(number):
        """Record the number, and return it."""

    return app, work


def test_a_broker_with_other_settings_ends_and_names_them(brokers, monkeypatch):
    """The first broker stores its settings; a command replaces them with others."""
    store = ("--store", brokers.url)
    _, line = brokers.start_broker()
    assert "durability=durable" in line.split()
    monkeypatch.setenv("EVENTMQ_QUEUE_LIMITS", "mail:rate=5/s")
    monkeypatch.setenv("EVENTMQ_DEDUPE_WINDOW", "60")
    ended = brokers.run("broker", *store, "--bind", "tcp://127.0.0.1:0")
    assert (1, "") == (ended.returncode, ended.stdout)
    assert "dedupe_window = 86400.0 and not 60.0" in ended.stderr
    assert 'queue_limits = [] and not [["mail", "5/s", 0]]' in ended.stderr
    check = brokers.run("store", "check", *store)
    assert 1 == check.returncode
    assert "dedupe_window" in check.stdout
    accepted = brokers.run("store", "accept-settings", *store)
    assert (0, 2) == (accepted.returncode, len(accepted.stdout.splitlines()))
    assert 0 == brokers.run("store", "check", *store).returncode
    other = Brokers(brokers.folder, brokers.url)
    try:
        other.start_broker()
    finally:
        other.stop()


def test_a_command_creates_the_store(brokers):
    store = ("--store", brokers.url)
    assert 1 == brokers.run("store", "check", *store).returncode
    initialized = brokers.run("store", "init", *store)
    assert (0, True) == (initialized.returncode, "was created" in initialized.stdout), (
        initialized.stderr
    )
    for name in ("check", "contract", "accept-restore"):
        assert 0 == brokers.run("store", name, *store).returncode
    brokers.start_broker()
    brokers.worker()
    _, work = tasks(brokers)
    assert 1 == work.delay(1).get(DEADLINE)


def test_brokers_need_no_right_to_create_a_schema(brokers, postgres, database_url):
    """A store that another user created needs only the granted rights."""
    name = database_url.rpartition("/")[2]
    assert 0 == brokers.run("store", "init", "--store", brokers.url).returncode
    postgres.sql("CREATE ROLE serving LOGIN PASSWORD 'secret'")
    try:
        brokers.url = postgres.url(name, "serving", "secret")
        for right in ("USAGE, CREATE ON SCHEMA", "ALL ON ALL TABLES IN SCHEMA"):
            postgres.sql(f"GRANT {right} eventmq TO serving", database=name)
        checked = brokers.run("store", "check", "--store", brokers.url)
        assert 0 == checked.returncode, checked.stdout
        for _ in range(2):
            broker, _ = brokers.start_broker()
            brokers.worker()
            _, work = tasks(brokers)
            assert 1 == work.delay(1).get(DEADLINE)
            broker.kill9()
    finally:
        brokers.stop()
        postgres.sql("DROP OWNED BY serving", database=name)
        postgres.sql("DROP ROLE serving")


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x", "postgresql://h/d?bad=1"])
def test_the_error_of_an_unusable_store_is_one_line(brokers, url):
    assert_refused(brokers, url)


def assert_refused(brokers, url, reason="", check=""):
    """Assert that each command that would use the store ends with one line, and with code 1.

    Args:
        brokers: They run the commands.
        url: The store.
        reason: What each error says.
        check: What the error of ``eventmq store check`` says, if that is something else.
    """
    for command in ("store init", "store check", "broker --bind tcp://127.0.0.1:0"):
        ended = brokers.run(*command.split(), "--store", url)
        assert (1, "", 1) == (ended.returncode, ended.stdout, len(ended.stderr.splitlines()))
        assert ended.stderr.startswith("error: ")
        assert (check if check and command == "store check" else reason) in ended.stderr


@pytest.mark.parametrize("fault", ["read-only", "rights", "fsync", "encoding", "pooler"])
def test_a_database_that_cannot_be_used_is_refused_and_left_as_it_is(
    brokers, postgres, database_url, fault
):
    name = database_url.rpartition("/")[2]
    postgres.sql("CREATE ROLE visitor LOGIN PASSWORD 'secret'")
    legacy = postgres.new_database("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        if fault == "read-only":
            postgres.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            assert_refused(brokers, brokers.url, "takes no writes")
        elif fault == "rights":
            url = postgres.url(name, "visitor", "secret")
            assert_refused(brokers, url, "visitor may not create it", check="does not exist")
        elif fault == "fsync":
            postgres.configure(fsync="off")
            postgres.reload()
            assert_refused(brokers, brokers.url, "runs without fsync")
        elif fault == "encoding":
            assert_refused(brokers, postgres.url(legacy), "has the encoding SQL_ASCII")
        else:
            with pgbouncer(postgres, "session") as port:
                url = brokers.url.replace(f":{postgres.port}", f":{port}")
                assert_refused(brokers, url, "is a pooler")
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        if fault == "fsync":
            postgres.configure(fsync="on")
            postgres.reload()
        for database in (name, legacy):
            made = postgres.sql(
                "SELECT count(*) FROM pg_namespace WHERE nspname = 'eventmq'", database=database
            )
            assert [(0,)] == made
        postgres.drop_database(legacy)
        postgres.sql("DROP ROLE visitor")


def test_a_replicated_broker_serves_only_while_commits_wait_for_a_replica(pair, tmp_path):
    """Otherwise it stands by, tells clients why, and serves again later."""
    primary, _ = pair
    system = Brokers(tmp_path, primary.url())
    try:
        _, line = system.start_broker("--durability", "replicated")
        assert "durability=replicated" in line.split()
        system.worker()
        app, work = tasks(system)
        assert 1 == work.delay(1).get(DEADLINE)
        shown = system.run("status", "--broker", system.address)
        assert "on the disks of the database and of a replica" in shown.stdout
        primary.configure(synchronous_standby_names="")
        primary.reload()
        until(lambda: app.ask("status")["role"] == "standby", "it serves no more")
        hasty = system.app(submit_timeout=1.0).task(name="survivor.work")(lambda number: number)
        with pytest.raises(BrokerUnavailable, match="wait for no replica"):
            hasty.delay(2)
        primary.configure(synchronous_standby_names="replica")
        primary.reload()
        assert 3 == work.delay(3).get(DEADLINE)
    finally:
        system.stop()


def test_receipts_survive_a_failover_to_a_synchronous_replica(pair, tmp_path):
    """Events get a new id, and the store keeps its own."""
    primary, replica = pair
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
    system = Brokers(tmp_path, f"postgresql://eventmq@{hosts}/postgres")
    try:
        system.start_broker()
        app, work = tasks(system)
        before = app.ask("ping")
        jobs = [work.delay(n) for n in range(100)]
        primary.kill()
        replica.promote()
        more = work.delay(100)
        system.worker()
        assert [*range(101)] == [job.get(DEADLINE) for job in [*jobs, more]]
        after = app.ask("ping")
        assert before["store"] == after["store"] == before["events_id"]
        assert after["events_id"] not in {"", before["events_id"]}
        assert after["epoch"] > before["epoch"]
        assert {1} == set(system.executed().values())
        assert "by another server since a failover" in (tmp_path / "broker.log").read_text()
    finally:
        system.stop()
