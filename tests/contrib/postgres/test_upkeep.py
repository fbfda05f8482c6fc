"""Settings that brokers of a store share, rights, and servers that failed over or were restored."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack, closing

import psycopg
import pytest

from eventmq import EventMQ
from eventmq.sdk import Claimant, LeaseRow, StoreError, Unknown
from eventmq_contrib.postgres import upkeep
from eventmq_contrib.postgres.connection import Database, DatabaseUnavailable, connect
from eventmq_contrib.postgres.ownership import PostgresOwnership
from eventmq_contrib.postgres.pipeline import Pipeline
from eventmq_contrib.postgres.upkeep import SHARED, PostgresUpkeep, shared_settings
from tests.support.postgres import Home, Server, Unavailable, until

ME = Claimant("one", "tcp://10.0.0.1:47291")

FOLLOWS = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"

ARCHIVED = """SELECT 1 FROM pg_stat_archiver
    WHERE last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 1)"""


@pytest.fixture
def make(database_url):
    """Makes the ownership of one more broker, with its settings."""
    ownerships = []

    def make(url=database_url, upkeep=None, **settings):
        database = Database.of(url)
        ownerships.append(PostgresOwnership(database, upkeep or PostgresUpkeep(database, settings)))
        return ownerships[-1]

    yield make
    for ownership in ownerships:
        ownership.close()


@pytest.fixture
def sql(postgres, database_url):
    name = database_url.rpartition("/")[2]
    return lambda statement, *values: postgres.sql(statement, *values, database=name)


def upkeep_of(url, **settings):
    return PostgresUpkeep(Database.of(url), settings)


def value(sql, name):
    [(text,)] = sql("SELECT text_value FROM eventmq.meta WHERE name = %s", name) or [(None,)]
    return text


# Settings


def test_a_broker_with_other_settings_is_refused_with_each_difference(make):
    """The error names both values of each setting that differs."""
    make(dedupe_window=60.0, result_ttl=5.0, queue_limits=(("mail", "5/s", 0),)).look()
    same = make(dedupe_window=60.0, result_ttl=5.0, queue_limits=(("mail", "5/s", 0),))
    assert 0 == same.look().epoch
    with pytest.raises(StoreError) as caught:
        make(dedupe_window=90.0, result_ttl=5.0, queue_limits=()).look()
    text = str(caught.value)
    assert "dedupe_window = 60.0 and not 90.0" in text
    assert 'queue_limits = [["mail", "5/s", 0]] and not []' in text
    assert "result_ttl" not in text
    assert "eventmq store accept-settings" in text


def test_accepted_settings_apply_to_all_brokers(make, database_url):
    make(dedupe_window=60.0).look()
    upkeep = upkeep_of(database_url, dedupe_window=90.0)
    assert ["settings"] == [finding.check for finding in upkeep.check()]
    standby = make(dedupe_window=60.0)
    standby.look()
    assert ["dedupe_window = 90.0, before 60.0"] == upkeep.accept_settings()
    assert ["the settings were the same: nothing to do"] == upkeep.accept_settings()
    assert [] == upkeep.check()
    make(dedupe_window=90.0).look()
    for broker in (make(dedupe_window=60.0), standby):
        with pytest.raises(StoreError, match=r"dedupe_window = 90\.0 and not 60\.0"):
            broker.look()
    upkeep_of(database_url, dedupe_window=60.0).accept_settings()
    standby.look()


def test_a_setting_that_a_later_release_shares_is_added(make):
    """The first broker with the setting stores it."""
    make(result_ttl=5.0).look()
    make(result_ttl=5.0, dedupe_window=60.0).look()
    make(result_ttl=5.0).look()
    with pytest.raises(StoreError, match="dedupe_window"):
        make(dedupe_window=61.0).look()


def test_shared_settings_are_those_of_the_app():
    with EventMQ("shop", dedupe_window=5.0) as app:
        shared = shared_settings(app)
    assert set(SHARED) == set(shared)
    assert 5.0 == shared["dedupe_window"]
    assert {} == shared_settings(None)


# Commands


def test_init_creates_the_store_once(database_url, sql):
    upkeep = upkeep_of(database_url, dedupe_window=5.0)
    with pytest.raises(StoreError, match=r"does not exist: eventmq store init creates it"):
        upkeep.check()
    with pytest.raises(StoreError, match="does not exist"):
        upkeep.accept_restore()
    assert [] == sql("SELECT 1 FROM pg_namespace WHERE nspname = 'eventmq'"), "nothing is created"
    [done] = upkeep.init()
    assert "was created" in done
    [done] = upkeep.init()
    assert "nothing to do" in done
    assert [] == upkeep.check()
    assert "nothing that only an earlier release needs" in upkeep.contract()[0]
    sql("COMMENT ON TABLE eventmq.meta IS 'queue store of EventMQ, version 7'")
    for act in (
        upkeep.init,
        upkeep.check,
        upkeep.contract,
        upkeep.accept_settings,
        upkeep.accept_restore,
    ):
        with pytest.raises(StoreError, match="was made by another version of EventMQ"):
            act()


def test_missing_rights_are_found(postgres, database_url, sql, make):
    name = database_url.rpartition("/")[2]
    upkeep_of(database_url).init()
    sql("CREATE ROLE reader LOGIN PASSWORD 'secret'")
    try:
        sql("GRANT ALL ON SCHEMA eventmq TO reader")
        sql("GRANT ALL ON ALL TABLES IN SCHEMA eventmq TO reader")
        upkeep = upkeep_of(postgres.url(name, "reader", "secret"))
        assert [] == upkeep.check(), "an ordinary user can read what is checked"
        sql("REVOKE DELETE ON eventmq.jobs FROM reader")
        sql("REVOKE CREATE ON SCHEMA eventmq FROM reader")
        [finding] = upkeep.check()
        assert ("rights", "the schema eventmq") == (finding.check, finding.where)
        for grant in finding.help.split("; "):
            sql(grant)
        assert [] == upkeep.check(), "the help consists of statements"
        sql("REVOKE ALL ON eventmq.meta FROM reader")
        pattern = "denied for table meta; .* GRANT ALL ON ALL TABLES IN SCHEMA eventmq TO reader"
        with pytest.raises(StoreError, match=pattern):
            upkeep.check()
        with pytest.raises(StoreError, match="GRANT ALL ON ALL TABLES IN SCHEMA eventmq TO reader"):
            make(postgres.url(name, "reader", "secret")).look()
    finally:
        sql("DROP OWNED BY reader")
        sql("DROP ROLE reader")


@pytest.fixture
def second(sql):
    """A user with all rights, who created nothing."""
    sql("CREATE ROLE second LOGIN PASSWORD 'second'")
    sql("GRANT ALL ON SCHEMA eventmq TO second")
    sql("GRANT ALL ON ALL TABLES IN SCHEMA eventmq TO second")
    yield "second"
    sql("DROP OWNED BY second")
    sql("DROP ROLE second")


@pytest.fixture
def initialized(database_url):
    upkeep_of(database_url).init()


@pytest.mark.parametrize(
    "missing",
    ["INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA eventmq", "CREATE ON SCHEMA eventmq"],
)
def test_a_broker_whose_user_lacks_rights_is_refused(
    postgres, database_url, sql, make, initialized, second, missing
):
    """Otherwise it would fail later, again and again."""
    sql(f"REVOKE {missing} FROM second")
    sql("CREATE TABLE eventmq.backend_results (n int)")  # a table that the store does not use
    broker = make(postgres.url(database_url.rpartition("/")[2], second, second))
    with pytest.raises(StoreError) as error:
        broker.look()
    assert not isinstance(error.value, DatabaseUnavailable)
    grants = str(error.value).split("; ", 1)[1]
    assert grants == (
        "GRANT ALL ON SCHEMA eventmq TO second; GRANT ALL ON ALL TABLES IN SCHEMA eventmq TO second"
    )
    for grant in grants.split("; "):
        sql(grant)
    sql("REVOKE ALL ON eventmq.backend_results FROM second")
    broker.look()


def test_a_broker_that_cannot_drop_the_tables_of_periods_is_refused(
    postgres, database_url, sql, make, initialized, second
):
    """Another user created them: all brokers need one user, or a common role."""
    broker = make(postgres.url(database_url.rpartition("/")[2], second, second))
    sql("CREATE ROLE first")
    try:
        sql("CREATE TABLE eventmq.outcomes_7 (LIKE eventmq.outcomes INCLUDING ALL)")
        sql("ALTER TABLE eventmq.outcomes_7 OWNER TO first")
        sql("GRANT ALL ON ALL TABLES IN SCHEMA eventmq TO first, second")
        sql("GRANT ALL ON SCHEMA eventmq TO first")
        with pytest.raises(
            StoreError, match="let all brokers use one user, or a common role: GRANT"
        ):
            broker.look()
        upkeep = upkeep_of(postgres.url(database_url.rpartition("/")[2], second, second))
        [finding] = upkeep.check()
        assert ("rights", "outcomes") == (finding.check, finding.where)
        for statement in finding.help.partition(": ")[2].split("; "):
            sql(statement)
        broker.look()
        assert [] == upkeep.check()
    finally:
        sql("DROP OWNED BY first")
        sql("DROP ROLE first")


def test_a_store_on_a_full_disk_is_not_half_created(postgres):
    """The error contains the server's message."""
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(postgres.small_disk(8_500_000))
        except Unavailable as error:
            pytest.skip(str(error))
        with psycopg.connect(disk.url, autocommit=True) as connection:
            with pytest.raises(psycopg.errors.DiskFull):
                connection.execute("CREATE TABLE big AS SELECT repeat('x', 1000) FROM "
                                   "generate_series(1, 10000)")  # fmt: skip
            connection.execute("CREATE TABLE small (x text)")
            small = ["INSERT INTO small VALUES (repeat('x', 1000))"] * 10_000
            with pytest.raises(psycopg.errors.DiskFull):
                list(map(connection.execute, small))
            with pytest.raises(StoreError, match=r"cannot .* could not (extend|write init) file"):
                upkeep_of(disk.url).init()
            cursor = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'eventmq'")
            assert [] == cursor.fetchall()


# Replicas


def test_replicated_serves_only_while_commits_wait_for_a_replica(postgres, database_url):
    """Each new connection, each read of the lease and each beat checks it."""
    database = Database.of(database_url)
    upkeep = PostgresUpkeep(database, {"durability": "replicated"})
    upkeep.init()
    [finding] = upkeep.check()
    assert ("durability", "synchronous_standby_names") == (finding.check, finding.where)
    broker = PostgresOwnership(database, upkeep)
    with pytest.raises(
        DatabaseUnavailable, match=r"wait for no replica.*: set synchronous_standby_names"
    ):
        broker.look()
    try:
        postgres.configure(synchronous_standby_names="ANY 1 (a)")
        postgres.reload()
        with closing(connect(database, "test")) as connection:
            upkeep.admit(connection)
            pipeline = Pipeline(connection, database.name)
            upkeep.check_session(pipeline)
            postgres.configure(synchronous_standby_names="")
            postgres.reload()
            with pytest.raises(Unknown, match="wait for no replica"):
                upkeep.check_session(pipeline)
            PostgresUpkeep(database, {}).check_session(pipeline)
    finally:
        postgres.configure(synchronous_standby_names="")
        postgres.reload()


# Servers


def test_a_failover_gives_a_new_epoch_and_new_ids_of_events(caplog):
    """A running broker's next epoch is above all epochs that peers have seen."""
    home = Home()
    try:
        primary = Server.make(home)
        replica = primary.replica("replica")
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        database = Database.of(f"postgresql://eventmq@{hosts}/postgres")
        upkeep = PostgresUpkeep(database, {"dedupe_window": 5.0})
        with closing(PostgresOwnership(database, upkeep)) as ownership:
            lease = ownership.look()
            assert ownership.claim(lease, ME)
            ownership.renew()
            until(lambda: primary.sql(FOLLOWS), "the replica has it all")
            primary.kill()
            replica.promote()
            with pytest.raises(Unknown):
                ownership.renew()
            with caplog.at_level(logging.WARNING):
                row = ownership.look()
            assert "since a failover" in caplog.text
            assert row.epoch > 1_700_000_000
            assert row.epoch < ownership.claim(row, ME)
            ownership.renew()
            [(events_id,)] = replica.sql(
                "SELECT text_value FROM eventmq.meta WHERE name = 'events_id'"
            )
            assert 16 == len(events_id)
            ownership.look()
            again = replica.sql("SELECT text_value FROM eventmq.meta WHERE name = 'events_id'")
            assert [(events_id,)] == again, "once"
        assert [] == PostgresUpkeep(database, {"dedupe_window": 5.0}).check()
    finally:
        home.close()


def test_a_store_that_was_recovered_to_an_earlier_time_is_refused_until_that_is_accepted():
    """The server's settings tell, so a broker needs no earlier knowledge of the store."""
    home = Home()
    try:
        primary = Server.make(home)
        archive = home.new_folder("archive")
        archive.mkdir()
        shutil.chown(archive, (primary.folder).owner())
        primary.configure(archive_mode="on", archive_command=f"cp %p {archive}/%f")
        primary.restart()
        database = Database.of(primary.url())
        with closing(PostgresOwnership(database)) as ownership:
            ownership.look()
        copy = primary.replica("copy")
        copy.stop()
        primary.sql("SELECT pg_create_restore_point('here')")
        primary.sql("SELECT pg_switch_wal()")
        until(lambda: primary.sql(ARCHIVED), "the log is archived")
        primary.stop()
        (copy.folder / "standby.signal").unlink()
        (copy.folder / "recovery.signal").touch()
        copy.configure(
            restore_command=f"cp {archive}/%f %p", recovery_target_name="here",
            recovery_target_action="promote", primary_conninfo="",
        )  # fmt: skip
        copy.start()
        until(lambda: copy.sql("SELECT NOT pg_is_in_recovery()") == [(True,)], "recovered")
        database = Database.of(copy.url())
        with closing(PostgresOwnership(database)) as ownership:
            with pytest.raises(StoreError, match=r"was recovered to an earlier time.*_name=here"):
                ownership.look()
            upkeep = PostgresUpkeep(database, {})
            assert ["server"] == [finding.check for finding in upkeep.check()]
            assert "may run again" in upkeep.accept_restore()[-1]
            assert [] == upkeep.check()
            assert ownership.look().epoch > 1_700_000_000
    finally:
        home.close()


def test_a_copy_on_another_server_is_refused_until_that_is_accepted(make, sql, database_url):
    """A dump that was restored on another server is such a copy."""
    make().look()
    sql("""UPDATE eventmq.meta SET text_value = replace(text_value, '["', '["9')
        WHERE name = 'server'""")
    with pytest.raises(StoreError, match="was copied or restored to another server"):
        make().look()
    before = value(sql, "store_id")
    sql("INSERT INTO eventmq.meta (name, integer_value) VALUES ('journal_sealed', 7)")
    upkeep_of(database_url).accept_restore()
    make().look()
    assert before == value(sql, "store_id"), "peers identify the store by its id"
    assert [] == sql("SELECT 1 FROM eventmq.meta WHERE name = 'journal_sealed'"), (
        "the numbers up to there are given to other events"
    )


def test_a_broker_notices_that_its_server_was_restored(make, sql, database_url):
    """Restored files name the same server, so only a broker that saw later beats can tell."""
    broker = make()
    row = broker.look()
    epoch = broker.claim(row, ME)
    broker.renew()
    broker.look()
    sql("UPDATE eventmq.beats SET beat = 0")
    with pytest.raises(
        StoreError, match=rf"was restored: epoch and beat of its owner are \({epoch}, 0\)"
    ):
        broker.claim(LeaseRow(row.store_id, epoch), ME)
    upkeep_of(database_url).accept_restore()
    assert broker.look().epoch > epoch


def promote(monkeypatch):
    """Make the server report another timeline."""
    ask, promoted = upkeep._server, "00000002"
    monkeypatch.setattr(upkeep, "_server", lambda session: ask(session)._replace(timeline=promoted))


def test_a_new_epoch_is_above_one_that_the_server_does_not_know(make, monkeypatch):
    """Clocks may have been set back, and peers follow only a higher epoch."""
    broker, highest = make(), 4_000_000_000
    broker.look()
    broker._upkeep.record_seen(highest, 7)
    promote(monkeypatch)
    broker.close()
    assert highest + 1 == broker.look().epoch


@pytest.mark.parametrize(("beats", "refused"), [(59, False), (61, True)])
def test_a_failover_may_lose_the_last_commits_and_no_more(make, sql, monkeypatch, beats, refused):
    """A claim may be lost too. If more beats are missing, the database was restored."""
    broker = make()
    row = broker.look()
    assert broker.claim(row, ME)
    sql("UPDATE eventmq.beats SET beat = 100")
    broker.look()
    sql("UPDATE eventmq.beats SET beat = %s", 100 - beats)
    sql("UPDATE eventmq.lease SET epoch = 0")
    promote(monkeypatch)
    broker.close()
    if refused:
        with pytest.raises(StoreError, match=r"epoch and beat .* are \(0, 39\), and were"):
            broker.look()
    else:
        assert broker.look().epoch > 1_700_000_000
