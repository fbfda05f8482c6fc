"""The settings of a connection, and the reasons why one is refused, on a real server."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from select import select

import psycopg
import pytest

from eventmq.errors import PluginError, StoreError
from eventmq_contrib.postgres import connection as module
from eventmq_contrib.postgres.connection import (
    Database,
    DatabaseUnavailable,
    connect,
    describe,
    limited,
    making_tables,
    split_url,
)
from eventmq_contrib.postgres.rowstore import PostgresRows
from tests.support.postgres import Home, Server, Unavailable, free_port, pgbouncer

SECRET = "tell/no@one"
QUOTED = "tell%2Fno%40one"


@pytest.fixture
def guest(postgres, database_url):
    """The URL of the database, with a user who has a password and no rights."""
    postgres.sql(f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'")
    yield database_url.replace("eventmq@", f"guest:{QUOTED}@")
    database = database_url.rpartition("/")[2]
    postgres.sql("DROP OWNED BY guest CASCADE", database=database)
    postgres.drop_database(database)
    postgres.sql("DROP OWNED BY guest")
    postgres.sql("DROP ROLE guest")


def refusal(url, kind=StoreError, schema=module.SCHEMA):
    """Return why a connection is refused; it is one sentence without the password."""
    with pytest.raises(StoreError) as error:
        connect(Database.of(url, schema), "test").close()
    assert type(error.value) is kind
    text = str(error.value)
    assert error.value.__cause__ is None  # whose traceback may have the password
    assert "\n" not in text
    assert not any(part in text for part in (SECRET, QUOTED, "tell"))
    return text


# What it is


def test_a_session_has_the_settings_that_the_tables_need(postgres, database_url):
    """Whatever the database says: what a receipt means must not depend on it."""
    name = database_url.rpartition("/")[2]
    for setting in (
        "synchronous_commit = off",
        "statement_timeout = 9000",
        "idle_session_timeout = 9000",
        "default_transaction_isolation = serializable",
        "search_path = public",
    ):
        postgres.sql(f"ALTER DATABASE {name} SET {setting}")
    expected = {
        "synchronous_commit": "on",
        "statement_timeout": "0",
        "idle_session_timeout": "0",
        "default_transaction_isolation": "read committed",
        "search_path": '"shop", pg_temp',
        "idle_in_transaction_session_timeout": "2s",
        "application_name": "eventmq results",
        "client_encoding": "UTF8",
    }
    with connect(Database.of(database_url, "shop"), "results") as connection:
        assert connection.autocommit
        actual = {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in expected}
    assert expected == actual


def test_a_session_can_have_other_settings(database_url):
    with connect(Database.of(database_url), "t", idle=9, synchronous_commit="off") as connection:
        assert ("off",) == connection.execute("SHOW synchronous_commit").fetchone()
        show = "SHOW idle_in_transaction_session_timeout"
        assert ("9s",) == connection.execute(show).fetchone()


def test_a_session_can_have_a_name_of_the_user(database_url):
    database = Database.of(f"{database_url}?application_name=shop")
    with connect(database, "results") as connection:
        assert ("shop",) == connection.execute("SHOW application_name").fetchone()


def test_a_transaction_that_waits_for_its_client_is_ended(database_url):
    """This releases the locks of a machine that has failed."""
    with connect(Database.of(database_url), "test", idle=0.05) as connection:
        connection.execute("BEGIN")
        assert select([connection], [], [], 20)[0]  # the server ends the session with a reason
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout) as error:
            connection.execute("SELECT 1")
    assert describe(error.value) == "terminating connection due to idle-in-transaction timeout"


def test_an_error_contains_no_value_of_a_row(rows_url):
    """Errors go into logs and to peers; PostgreSQL names values in the details of an error."""
    with connect(Database.of(rows_url), "test") as connection:
        insert = "INSERT INTO queues (id, name) VALUES (1, 'secret')"
        connection.execute(insert)
        with pytest.raises(psycopg.errors.UniqueViolation) as error:
            connection.execute(insert)
    assert "Key (id)=(1) already exists" in str(error.value)
    assert describe(error.value) == ('duplicate key value violates unique constraint "queues_pkey"')
    rows = PostgresRows.open(Database.of(rows_url))
    rows.begin(careful=True)
    rows.insert("queues", ("id", "name"), [(2, "secret")])
    with pytest.raises(StoreError) as refused:
        rows.commit()
    rows.close()
    assert "queues_name" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_of_several_hosts_the_one_that_accepts_writes_is_used(postgres, database_url):
    """Hosts that do not exist are skipped."""
    name = database_url.rpartition("/")[2]
    url = f"postgresql://eventmq@127.0.0.1:{free_port()},127.0.0.1:{postgres.port}/{name}"
    with connect(Database.of(url), "test") as connection:
        assert postgres.port == connection.info.port


def test_of_several_hosts_each_has_its_share_of_the_time(postgres, database_url):
    """A silent machine does not keep a broker from the host that serves."""
    name = database_url.rpartition("/")[2]
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        url = f"postgresql://eventmq@127.0.0.1:{port},127.0.0.1:{port},127.0.0.1:{{}}/{name}"
        before = time.monotonic()
        with connect(Database.of(url.format(postgres.port)), "test") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            assert connection.autocommit
        message = refusal(url.format(port) + "?connect_timeout=1", DatabaseUnavailable)
        assert time.monotonic() - before < 6
    assert message.count(f"127.0.0.1:{port}: timeout expired") == 1
    message = refusal(
        f"postgresql://127.0.0.1:{free_port()},nowhere.invalid/shop", DatabaseUnavailable
    )
    assert "Connection refused" in message
    assert message.endswith("check the name of the host")


# Refused connections


def test_a_host_that_does_not_answer():
    url = f"postgresql://guest:{QUOTED}@127.0.0.1:{free_port()}/shop"
    message = refusal(url, DatabaseUnavailable)
    assert message.startswith("cannot connect to postgresql://guest@127.0.0.1:")
    assert message.endswith(
        "Connection refused; start the server, or check listen_addresses and the port"
    )


def test_a_host_that_never_answers():
    """It accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://guest:{QUOTED}@127.0.0.1:{silent.getsockname()[1]}/shop"
        message = refusal(f"{url}?connect_timeout=2", DatabaseUnavailable)
    assert message.endswith("timeout expired; check the address, and the firewalls before it")


def test_a_server_that_stops_answering_in_a_session(database_url):
    """Its kernel still acknowledges data, so psycopg itself would wait for ever."""
    database = Database.of(database_url)
    with closing(connect(database, "test")) as connection:
        with (
            pytest.raises(DatabaseUnavailable, match=r"did not answer within 1 s"),
            limited(connection, database, 0.6),
        ):
            connection.execute("SELECT pg_sleep(60)")
        assert connection.broken
    with closing(connect(database, "test")) as connection:
        with limited(connection, database, 60.0):
            connection.execute("SELECT 1")
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_a_host_without_address():
    message = refusal(f"postgresql://guest:{QUOTED}@nowhere.invalid/shop", DatabaseUnavailable)
    assert message.startswith(
        "cannot connect to postgresql://guest@nowhere.invalid/shop: failed to"
    )
    assert message.endswith("; check the name of the host")


def test_a_wrong_password(postgres, guest):
    message = refusal(guest.replace(QUOTED, "tell"))
    assert 'password authentication failed for user "guest"; check user and password' in message


def test_no_password(guest):
    message = refusal(guest.replace(f":{QUOTED}", ""))
    assert message.endswith(
        "no password supplied; name it in the URL, in ~/.pgpass or in PGPASSWORD"
    )


def test_a_missing_database(postgres):
    message = refusal(postgres.url("nothing"))
    assert message.endswith(
        'database "nothing" does not exist; make it, or name another in the URL'
    )


def test_too_many_connections(postgres, guest):
    """The error is temporary."""
    postgres.sql("ALTER ROLE guest CONNECTION LIMIT 0")
    assert "too many connections" in refusal(guest, DatabaseUnavailable)


def test_a_version_that_is_too_old(monkeypatch, database_url):
    monkeypatch.setattr(module, "OLDEST", 990_000)
    message = refusal(database_url)
    assert message.startswith("postgresql://eventmq@127.0.0.1:")
    assert message.endswith("; EventMQ needs 99 or later")


@pytest.mark.parametrize("pool_mode", ["session", "transaction"])
def test_a_pooler_in_between(postgres, database_url, pool_mode):
    """A pooler that shares sessions passes locks and settings on to other clients."""
    try:
        with pgbouncer(postgres, pool_mode) as port:
            message = refusal(database_url.replace(f":{postgres.port}", f":{port}"))
    except Unavailable as error:
        pytest.skip(str(error))
    assert "is a pooler" in message
    assert message.endswith(": name the server itself")


@pytest.mark.parametrize(("setting", "act"), [("fsync", "restart"), ("full_page_writes", "reload")])
def test_a_server_that_may_lose_commits(postgres, database_url, setting, act):
    postgres.configure(**{setting: "off"})
    postgres.reload()
    try:
        message = refusal(database_url)
    finally:
        postgres.configure(**{setting: "on"})
        postgres.reload()
    assert f"runs without {setting}: set {setting} = on in postgresql.conf and {act} it" in message
    connect(Database.of(database_url), "test").close()


def test_a_replica(postgres, database_url):
    """The error is temporary, as replicas may be promoted. A primary in the URL is used instead."""
    home = Home()
    try:
        replica = Server.make(home)
        replica.stop()
        (replica.folder / "standby.signal").touch()
        replica.start()
        message = refusal(replica.url(), DatabaseUnavailable)
        assert "is a replica, which takes no writes: name the primary" in message
        both = f"postgresql://eventmq@127.0.0.1:{replica.port},127.0.0.1:{postgres.port}/postgres"
        with connect(Database.of(both), "test") as connection:
            assert postgres.port == connection.info.port
        postgres.stop()
        try:
            message = refusal(both, DatabaseUnavailable)
            assert f"127.0.0.1:{replica.port}: server is in hot standby mode" in message
            assert f"127.0.0.1:{postgres.port}: Connection refused" in message
        finally:
            postgres.start()
    finally:
        home.close()


def test_a_database_that_is_read_only(postgres, database_url):
    name = database_url.rpartition("/")[2]
    postgres.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    message = refusal(database_url, DatabaseUnavailable)
    assert message.endswith("takes no writes: set default_transaction_read_only = off")


def test_a_database_without_unicode(postgres):
    name = postgres.new_database("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        message = refusal(postgres.url(name))
    finally:
        postgres.drop_database(name)
    assert "has the encoding SQL_ASCII" in message
    assert message.endswith("CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0")


def test_a_schema_of_others(postgres, guest):
    postgres.sql("CREATE SCHEMA eventmq", database=guest.rpartition("/")[2])
    message = refusal(guest)
    assert "guest may not use the schema eventmq of postgresql://guest@127.0.0.1" in message
    assert "GRANT USAGE, CREATE ON SCHEMA eventmq TO guest" in message


# Rights


def make_table(url, schema=module.SCHEMA, *, more="SELECT 1"):
    database = Database.of(url, schema)
    with connect(database, "test") as connection, making_tables(connection, database):
        connection.execute("CREATE TABLE IF NOT EXISTS made (n int)")
        connection.execute(more)


def test_the_error_of_a_missing_schema_says_what_to_grant(postgres, guest):
    name = guest.rpartition("/")[2]
    with pytest.raises(StoreError) as error:
        make_table(guest)
    message = str(error.value)
    assert "has no schema eventmq, and guest may not create it" in message
    assert f"GRANT CREATE ON DATABASE {name} TO guest" in message
    postgres.sql(f"GRANT CREATE ON DATABASE {name} TO guest")
    make_table(guest)
    make_table(guest)


def test_the_error_of_missing_tables_says_what_to_grant(postgres, guest):
    name = guest.rpartition("/")[2]
    postgres.sql("CREATE SCHEMA eventmq", database=name)
    postgres.sql("GRANT USAGE ON SCHEMA eventmq TO guest", database=name)
    connect(Database.of(guest), "test").close()
    with pytest.raises(StoreError) as error:
        make_table(guest)
    assert "may not create tables in the schema eventmq" in str(error.value)
    grant = "GRANT USAGE, CREATE ON SCHEMA eventmq TO guest"
    assert grant in str(error.value)
    postgres.sql(grant, database=name)
    make_table(guest)


def test_tables_are_created_once_where_several_start_together(database_url):
    """``IF NOT EXISTS`` alone does not prevent errors of concurrent statements."""
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make_table, [database_url] * 12))


def test_a_failed_creation_is_rolled_back(postgres, database_url):
    with pytest.raises(psycopg.errors.DivisionByZero):
        make_table(database_url, more="SELECT 1 / 0")
    query = "SELECT 1 FROM pg_namespace WHERE nspname = 'eventmq'"
    assert [] == postgres.sql(query, database=database_url.rpartition("/")[2])


@pytest.mark.parametrize("schema", ["shop", "user", "_1", "x" * 63])
def test_schemas_are_independent(database_url, schema):
    """Several installations may share a database."""
    make_table(database_url)
    make_table(database_url, schema)
    with psycopg.connect(database_url) as connection:
        query = "SELECT schemaname FROM pg_tables WHERE tablename = 'made' ORDER BY 1"
        schemas = {name for (name,) in connection.execute(query)}
    assert {"eventmq", schema} == schemas


@pytest.mark.parametrize(
    "schema", ["", "Shop", "pg_shop", "1", "a b", 'a"', "x" * 64, "ä", "information_schema", "a\n"]
)
def test_a_schema_with_a_name_that_would_need_quotes_is_refused(schema):
    with pytest.raises(PluginError, match="the name of a schema has at most 63"):
        Database.of("postgresql://127.0.0.1/shop", schema)


# URLs


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://guest:{SECRET}@127.0.0.1/shop",
        "postgresql://guest:tell/no@127.0.0.1/shop",
        "postgresql://guest:12/tell@127.0.0.1/shop",
        "postgresql://guest:12@tell@127.0.0.1/shop",
        "postgresql://guest:tell%no@127.0.0.1/shop",
        "postgresql://guest:no@127.0.0.1:tell/shop",
        "postgresql://guest:no@127.0.0.1/shop?tell=1",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_showing_a_password(url):
    with pytest.raises(PluginError, match="PostgreSQL's library cannot read the URL") as e:
        Database.of(url)
    assert "tell" not in str(e.value)
    assert "%2F" in str(e.value)
    assert "tell" not in repr(e.value.__cause__)


def test_several_hosts_of_which_one_may_recover(postgres):
    """A permanent error of one host does not hide a temporary error of another."""
    url = f"postgresql://eventmq@127.0.0.1:{postgres.port},127.0.0.1:{free_port()}/nothing"
    message = refusal(url, DatabaseUnavailable)
    assert f'127.0.0.1:{postgres.port}: database "nothing" does not exist' in message
    assert ": Connection refused; make it, or name another in the URL; start the server" in message


def test_the_password_is_shown_nowhere():
    database = Database.of(f"postgresql://guest:{QUOTED}@db.example:5433,db2.example/shop")
    assert database.name == "postgresql://guest@db.example:5433,db2.example/shop"
    assert "tell" not in repr(database)
    assert database.parameters["password"] == SECRET
    assert database.parameters["target_session_attrs"] == "primary"


def test_a_url_may_omit_the_defaults_of_libpq():
    """libpq reads them from ``PGHOST``, ``PGUSER`` and its files."""
    assert "postgresql:///" == Database.of("postgresql://").name
    assert "postgresql:///run/pg/shop" == Database.of("postgresql:///shop?host=/run/pg").name


@pytest.mark.parametrize(
    ("url", "rest", "options"),
    [
        ("postgresql://h/d", "postgresql://h/d", {}),
        ("postgresql://h/d?schema=a%5Fb", "postgresql://h/d", {"schema": "a_b"}),
        ("postgresql://h/d?sslmode=x&schema=a&port=1", "postgresql://h/d?sslmode=x&port=1",
         {"schema": "a"}),
        ("postgresql://u:a?b@h/d?schema=c", "postgresql://u:a?b@h/d", {"schema": "c"}),
        ("postgresql://h/d?user=a@b&schema=c", "postgresql://h/d?user=a@b", {"schema": "c"}),
    ],
)  # fmt: skip
def test_options_of_plugins_are_removed_from_a_url(url, rest, options):
    assert (rest, options) == split_url(url, {"schema"})


def test_an_option_that_is_unknown_is_named():
    with pytest.raises(PluginError, match="unknown option 'schem'; did you mean 'schema'"):
        split_url("postgresql://h/d?schem=a", {"schema"})
    with pytest.raises(PluginError, match="unknown option 'sslmod'; did you mean 'sslmode'"):
        split_url("postgresql://h/d?sslmod=a", {"schema"})
    with pytest.raises(PluginError, match="the URL has an unknown option; ") as error:
        split_url("postgresql://u:p/a?tell=1@h/d", {"schema"})
    assert "tell" not in str(error.value)
