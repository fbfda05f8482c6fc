"""The private server of the tests, and the properties that tests of failures rely on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import Home, Server, Unavailable, alive, pgbouncer, program, until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own(postgres):
    """A server that only one test uses, so that it may stop it."""
    home = Home()
    yield Server.make(home)
    home.close()
    assert not home.folder.exists()


def test_the_server_syncs_and_does_not_run_as_root(postgres):
    """Without fsync, tests of crashes would prove nothing."""
    assert [("on",)] == postgres.sql("SHOW fsync")
    assert [("on",)] == postgres.sql("SHOW full_page_writes")
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0


def test_each_database_is_empty_and_sorts_text_by_a_locale(postgres, database_url):
    """Therefore an index whose order matters has to name ``COLLATE "C"``."""
    with psycopg.connect(database_url) as connection:
        count = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        assert (0,) == connection.execute(count).fetchone()
        assert (True,) == connection.execute("SELECT 'a' < 'B'").fetchone()
    with postgres.database() as other:
        assert other != database_url


def test_committed_rows_outlive_a_kill(own):
    """The server restarts with the same port."""
    own.sql("CREATE TABLE kept (n int)")
    own.sql("INSERT INTO kept VALUES (1)")
    port, pids = own.port, [own.pid, *own.backends()]
    own.kill()
    assert len(pids) > 3
    assert [] == list(filter(alive, pids))
    with pytest.raises(psycopg.OperationalError):
        own.sql("SELECT 1")
    own.start()
    assert (port, [(1,)]) == (own.port, own.sql("SELECT n FROM kept"))
    own.restart()
    assert [(1,)] == own.sql("SELECT n FROM kept")


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_replica_follows_and_takes_over(own, synchronous):
    replica = own.replica("copy", synchronous=synchronous)
    own.sql("CREATE TABLE kept (n int)")
    assert [("copy",)] == own.sql("SELECT application_name FROM pg_stat_replication")
    until(lambda: replica.sql("SELECT to_regclass('kept') IS NOT NULL") == [(True,)], "it follows")
    assert [(True,)] == replica.sql("SELECT pg_is_in_recovery()")
    own.kill()
    replica.promote()
    assert [] == replica.sql("INSERT INTO kept VALUES (1)")
    assert [(1,)] == replica.sql("SELECT n FROM kept")


def test_a_pooler_shares_connections(postgres):
    try:
        program("pgbouncer", "pgbouncer")
    except Unavailable as error:
        pytest.skip(str(error))
    with pgbouncer(postgres) as port:
        url = postgres.url().replace(str(postgres.port), str(port))
        with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url) as two:
            query = "SELECT pg_backend_pid()"
            assert one.execute(query).fetchone() == two.execute(query).fetchone()


KILLED = """
import os, signal
from tests.support.postgres import Home, Server, pgbouncer
home = Home()
server = Server.make(home)
print(home.folder, server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_test_leaves_no_server_and_no_files(postgres):
    run = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL
    folder, pid = run.stdout.split()
    until(lambda: not alive(int(pid)), "the server ends")
    until(lambda: not Path(folder).exists(), "the folder is removed")
