"""A database that was restored while no broker ran is refused by brokers that saw later beats."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys

import pytest

from eventmq.sdk import Claimant, StoreError
from eventmq_contrib.postgres import memory as memory_module
from eventmq_contrib.postgres import upkeep as upkeep_module
from eventmq_contrib.postgres.connection import Database
from eventmq_contrib.postgres.memory import FILE_NAME, SeenLease, SeenLeaseFile
from eventmq_contrib.postgres.ownership import PostgresOwnership
from eventmq_contrib.postgres.upkeep import PostgresUpkeep
from tests.support.system import DEADLINE, System

ME = Claimant("one", "tcp://10.0.0.1:47291")


# The file


class Time:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(memory_module, "time", time)
    return time


def test_the_seen_lease_outlives_a_restart(tmp_path, time):
    """A new epoch is written at once, and beats every ten seconds and at the end."""
    folder = tmp_path / "new" / "data"
    memory = SeenLeaseFile(folder)
    assert SeenLease() == memory.load("a")
    assert not folder.exists(), "loading creates nothing"
    memory.save("a", SeenLease(1, 5, "77", "00000001"))
    assert SeenLease(1, 5, "77", "00000001") == SeenLeaseFile(folder).load("a")
    time.now += 9.0
    memory.save("a", SeenLease(1, 14, "77", "00000001"))
    assert 5 == SeenLeaseFile(folder).load("a").beat
    time.now += 1.0
    memory.save("a", SeenLease(1, 15, "77", "00000001"))
    assert 15 == SeenLeaseFile(folder).load("a").beat
    memory.save("a", SeenLease(1, 16, "77", "00000001"), now=True)
    assert 16 == SeenLeaseFile(folder).load("a").beat
    memory.save("a", SeenLease(2, 16, "77", "00000002"))
    assert SeenLease(2, 16, "77", "00000002") == SeenLeaseFile(folder).load("a")
    assert SeenLease() == SeenLeaseFile(folder).load("b")
    assert "0o700" == oct(folder.stat().st_mode & 0o777)
    assert [FILE_NAME] == [path.name for path in folder.iterdir()]
    assert "0o600" == oct((folder / FILE_NAME).stat().st_mode & 0o777)


def test_brokers_may_share_a_folder(tmp_path, time):
    """A broker that has seen an earlier beat does not overwrite a later one."""
    one, other = SeenLeaseFile(tmp_path), SeenLeaseFile(tmp_path)
    one.save("a", SeenLease(1, 500))
    other.save("b", SeenLease(9, 9))
    other.save("a", SeenLease(1, 20))
    assert (SeenLease(1, 500), SeenLease(9, 9)) == (one.load("a"), one.load("b"))


def test_stores_of_long_ago_are_forgotten(tmp_path, time):
    memory = SeenLeaseFile(tmp_path)
    for number in range(20):
        memory.save(f"store {number}", SeenLease(number + 1, 1), now=True)
    assert SeenLease() == memory.load("store 3")
    assert SeenLease(5, 1) == memory.load("store 4")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"a": 1}', '{"a": {"epoch": "1"}}', '{"a": {"era": 1}}', "\xff"]
)
def test_an_unreadable_file_is_logged_once_and_replaced(tmp_path, time, caplog, text):
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    memory = SeenLeaseFile(tmp_path)
    assert SeenLease() == memory.load("a")
    memory.save("a", SeenLease(1, 1))
    assert 1 == caplog.text.count(f"cannot read {tmp_path / FILE_NAME}: ")
    assert "may not notice that the database was restored" in caplog.text
    assert SeenLease(1, 1) == SeenLeaseFile(tmp_path).load("a")


def test_a_folder_that_cannot_be_written_is_only_logged(tmp_path, time, caplog):
    (tmp_path / "file").touch()
    memory = SeenLeaseFile(tmp_path / "file" / "data")
    with caplog.at_level(logging.WARNING):
        for beat in range(3):
            memory.save("a", SeenLease(1, beat), now=True)
    assert 1 == caplog.text.count("cannot ")


# Brokers


@pytest.fixture
def start(database_url, tmp_path):
    """Starts the ownership of a broker. With a folder it remembers the lease."""
    ownerships = []

    def start(folder="data"):
        memory = SeenLeaseFile(tmp_path / folder) if folder else None
        database = Database.of(database_url)
        ownerships.append(PostgresOwnership(database, PostgresUpkeep(database, {}, memory)))
        return ownerships[-1]

    yield start
    for ownership in ownerships:
        ownership.close()


@pytest.fixture
def sql(postgres, database_url):
    name = database_url.rpartition("/")[2]
    return lambda statement, *values: postgres.sql(statement, *values, database=name)


def own(broker, beats=3):
    """Own the store for some beats, and end as a stopped broker does."""
    assert broker.claim(broker.look(), ME)
    for _ in range(beats):
        broker.renew()
    broker.release()
    broker.close()


@pytest.fixture
def promote(monkeypatch):
    """Returns a function that makes the server report another timeline."""
    ask = upkeep_module._server

    def promote(timeline):
        monkeypatch.setattr(
            upkeep_module, "_server", lambda connection: ask(connection)._replace(timeline=timeline)
        )

    return promote


def test_a_broker_remembers_its_own_beats(start, sql, tmp_path):
    own(start())
    [(lease,)] = [json.loads((tmp_path / "data" / FILE_NAME).read_text()).values()]
    [(epoch, beat)] = sql("SELECT epoch, (SELECT beat FROM eventmq.beats) FROM eventmq.lease")
    assert (epoch, beat) == (lease["epoch"], lease["beat"])
    assert beat == 3
    [(system, timeline)] = sql(
        "SELECT (SELECT system_identifier FROM pg_control_system())::text, "
        "left(pg_walfile_name(pg_current_wal_lsn()), 8)"
    )
    assert (system, timeline) == (lease["system"], lease["timeline"])


@pytest.mark.parametrize(
    "change", ["UPDATE eventmq.beats SET beat = beat - 1", "UPDATE eventmq.lease SET epoch = 0"]
)
def test_a_store_that_was_restored_while_no_broker_ran_is_refused(start, sql, change, database_url):
    """The error is that of a broker that ran meanwhile. Accepting the restore ends it."""
    own(start())
    own(start("other"))
    sql(change)
    with pytest.raises(
        StoreError, match=r"was restored: epoch and beat of its owner are .* were \("
    ):
        start("other").look()
    assert start(None).look(), "a broker without the file cannot tell"
    upkeep = start("other")._upkeep
    assert ["restore"] == [finding.check for finding in upkeep.check()]
    assert "may run again" in upkeep.accept_restore()[-1]
    assert [] == upkeep.check()
    own(start())
    own(start("other"))
    own(start())


def test_a_claim_is_remembered_before_the_first_beat(start, sql):
    own(start(), beats=0)
    sql("UPDATE eventmq.lease SET epoch = 0")
    with pytest.raises(StoreError, match=r"are \(0, 0\), and were \(\d+, 0\)"):
        start().look()


def test_a_standby_remembers_the_lease_of_the_owner(start, sql):
    """The owner has no folder to remember its beats in."""
    owner, standby = start(None), start()
    assert owner.claim(owner.look(), ME)
    owner.renew()
    standby.look()
    owner.release()
    owner.close()
    standby.close()
    sql("UPDATE eventmq.beats SET beat = 0")
    with pytest.raises(StoreError, match="was restored"):
        start().look()


def test_a_failover_while_no_broker_ran_is_no_restore(start, sql, promote):
    """The last commits may be missing, as in a failover while brokers run."""
    own(start(), beats=20)
    sql("UPDATE eventmq.beats SET beat = beat - 10")
    promote("00000002")
    assert start().look().epoch > 1_700_000_000


def test_a_dump_from_before_a_failover_is_refused_afterwards(start, sql, promote):
    """Such a dump names the earlier timeline, and this broker has seen the later one."""
    own(start(), beats=20)
    [(server,)] = sql("SELECT text_value FROM eventmq.meta WHERE name = 'server'")
    promote("00000002")
    own(start())
    sql("UPDATE eventmq.meta SET text_value = %s WHERE name = 'server'", server)
    sql("UPDATE eventmq.beats SET beat = beat - 10")
    sql("UPDATE eventmq.lease SET epoch = 1")
    with pytest.raises(StoreError, match="was restored"):
        start().look()


def test_a_failover_after_an_accepted_restore_is_no_restore(start, sql, promote, database_url):
    """There are fewer beats than the broker has seen before the accepted restore."""
    own(start())
    sql("UPDATE eventmq.beats SET beat = 1000")
    own(start())
    sql("UPDATE eventmq.beats SET beat = 5")
    PostgresUpkeep(Database.of(database_url), {}).accept_restore()
    promote("00000002")
    own(start())


def test_an_accepted_restore_gets_a_higher_epoch_despite_the_clocks(start, sql):
    """The next epoch is above the one that this folder remembers."""
    own(start())
    sql("UPDATE eventmq.lease SET epoch = 4000000000")
    own(start())
    sql("UPDATE eventmq.lease SET epoch = 2")
    start()._upkeep.accept_restore()
    assert 4_000_000_001 < start().look().epoch


def test_another_store_in_the_same_database_is_another_one(start, sql):
    own(start())
    sql("DROP SCHEMA eventmq CASCADE")
    assert 0 == start().look().epoch


@pytest.mark.timeout(120)
def test_a_broker_process_is_refused_until_the_restore_is_accepted(tmp_path, postgres):
    """It ends with exit code 1 and one error, as with every unusable store."""
    name = postgres.new_database()
    url, system = postgres.url(name), System(tmp_path)
    folder = str(tmp_path / "data")
    arguments = ("broker", "--store", url, "--bind", "tcp://127.0.0.1:0", "--data-dir", folder)

    def run(*command):
        return subprocess.run(
            [sys.executable, "-m", "eventmq", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )

    def run_once():
        process, _ = system.start(*arguments)
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(DEADLINE)

    try:
        run_once()
        copy = postgres.new_database(f"TEMPLATE {name}")
        run_once()
        postgres.drop_database(name)
        postgres.sql(f"CREATE DATABASE {name} TEMPLATE {copy}")
        refused = run(*arguments)
        assert 1 == refused.returncode
        assert "was restored: epoch and beat of its owner are (" in refused.stderr
        assert "eventmq store accept-restore --store URL" in refused.stderr
        assert 0 == run("store", "accept-restore", "--store", url).returncode
        run_once()
    finally:
        system.stop()
        postgres.drop_database(name)
