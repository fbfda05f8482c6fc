"""Two releases side by side: tables are expanded for the later one, and contracted afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from eventmq.engine import Mismatch
from eventmq.sdk import StoreError
from eventmq_contrib.postgres import versions
from eventmq_contrib.postgres.connection import Database, connect
from eventmq_contrib.postgres.rowstore import PostgresRows
from eventmq_contrib.postgres.tables import QUEUE_STORE, Step
from tests.support import later_release
from tests.support.later_release import later
from tests.support.postgres import until

LATER = later()

JOB = ("seq", "id", "queue", "rank", "state", "attempt", "delivery", "deaths", "ready_at",
       "expires", "created", "head_crc", "crc", "headers", "body")  # fmt: skip


def job(number):
    return number, f"j{number}", 1, 1, 1, 1, 1, 0, 0.0, 0.0, 1.0, 0, 0, "", b"body"


def admit(rows, number, **options):
    rows.begin(**options)
    rows.insert("jobs", JOB, [job(number)])
    rows.commit()


def admit_again(rows, number):
    """Admit a job as the engine does after a change of columns."""
    with pytest.raises(Mismatch):
        admit(rows, number)
    rows.rollback()
    admit(rows, number, careful=True)


@pytest.fixture
def database(database_url):
    return Database.of(database_url)


@pytest.fixture
def session(database):
    """Returns a function that opens a session of another process."""
    connections = []

    def make():
        connections.append(connect(database, "test"))
        return connections[-1]

    yield make
    for connection in connections:
        connection.close()


@pytest.fixture
def earlier(database):
    """The rows of a broker of the earlier release."""
    with closing(PostgresRows.open(database, 5.0)) as rows:
        yield rows


def test_an_earlier_release_goes_on_while_tables_are_expanded(database, session, earlier):
    """Its session writes rows of all its columns, even if their order has changed."""
    admit(earlier, 1)
    earlier.begin()
    earlier.make_period("outcomes", 7)
    earlier.commit()
    assert 1 == versions.expand(session(), database, LATER)
    assert 0 == versions.expand(session(), database, LATER), "once"
    admit_again(earlier, 2)
    earlier.begin()
    earlier.make_period("outcomes", 8)
    earlier.commit()
    admit(earlier, 3)
    other = session()
    assert [(1,), (2,), (3,)] == other.execute("SELECT seq FROM jobs ORDER BY 1").fetchall()
    for table in ("outcomes", "outcomes_7", "outcomes_8"):
        other.execute(f"SELECT note FROM {table}")
    with closing(PostgresRows.open(database, 5.0)) as another:
        admit(another, 4)


def test_a_later_release_asks_for_expanded_tables(database, session, earlier):
    with pytest.raises(StoreError, match=r"earlier version.*version 2: run eventmq store init"):
        versions.prepare(session(), database, LATER)
    versions.expand(session(), database, LATER)
    versions.prepare(session(), database, LATER)
    [(comment,)] = session().execute("SELECT obj_description('meta'::regclass)")
    assert comment.endswith(f"version 2, tables {LATER.digest}, for brokers from version 1 on")


def test_tables_are_contracted_when_no_earlier_broker_is_connected(database, session, earlier):
    """An earlier broker that connects afterwards is refused with an error."""
    versions.expand(session(), database, LATER)
    with closing(connect(database, "store")) as broker:
        versions.prepare(broker, database, LATER)
        with pytest.raises(StoreError, match=r"version 1 use the store.*eventmq store from 127"):
            versions.contract(session(), database, LATER)
        admit_later = "SELECT indexrelid FROM pg_index WHERE indexrelid = 'jobs_expires'::regclass"
        assert broker.execute(admit_later).fetchall(), "nothing was done"
        earlier.close()
        assert 1 == versions.contract(session(), database, LATER)
        assert 0 == versions.contract(session(), database, LATER)
    with pytest.raises(StoreError, match=r"another version.*version 2.*needs a .*version 1.*later"):
        versions.prepare(session(), database)
    [(removed,)] = session().execute("SELECT to_regclass('jobs_expires') IS NULL")
    assert removed


def test_a_broker_that_starts_while_tables_are_contracted_is_refused(database, session):
    """It waits for the end of the transaction, and then reads the new version."""
    versions.prepare(first := session(), database)
    versions.expand(session(), database, LATER)
    first.close()
    contracting, late, errors = session(), session(), []

    def come():
        try:
            versions.prepare(late, database)
        except StoreError as error:
            errors.append(str(error))

    waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with contracting.transaction():
        assert 1 == versions.contract(contracting, database, LATER)
        thread = threading.Thread(target=come)
        thread.start()
        until(lambda: session().execute(waits).fetchone(), "it waits")
    thread.join()
    [text] = errors
    assert "was made by another version" in text


def test_an_expansion_does_not_wait_for_a_table_in_use_while_brokers_wait(
    database, session, monkeypatch
):
    """A dump reads the table. The failed call changes nothing, and a later one succeeds."""
    monkeypatch.setattr(versions, "PAUSE", 0.0)
    monkeypatch.setattr(versions, "TRIES", 3)
    versions.prepare(session(), database)
    dump = session()
    with dump.transaction():
        dump.execute("SELECT count(*) FROM jobs")
        with pytest.raises(StoreError, match="such as a dump, has them locked"):
            versions.expand(other := session(), database, LATER)
        other.close()
    assert 1 == versions.expand(session(), database, LATER)
    versions.prepare(session(), database, LATER)


def test_one_process_at_a_time_changes_the_tables(database, session):
    """Otherwise one of them would overwrite the comment of the other."""
    versions.prepare(session(), database)
    indexing = session()
    with versions._exclusive(indexing, database):
        for change in (versions.expand, versions.contract):
            with pytest.raises(StoreError, match="another process expands or contracts"):
                change(session(), database, LATER)
    assert 1 == versions.expand(session(), database, LATER)


def test_an_expansion_that_failed_can_be_continued(database, session):
    """An invalid index of a failed call is created again."""
    versions.prepare(session(), database)
    broken = LATER._replace(steps={1: Step(
        QUEUE_STORE.digest,
        (*later_release.STEP.expand[:1],
         'CREATE UNIQUE INDEX CONCURRENTLY jobs_size ON jobs ("size")'),
    )})  # fmt: skip
    with closing(PostgresRows.open(database, 5.0)) as rows:
        admit(rows, 1)
        admit(rows, 2)
    with pytest.raises(psycopg.errors.UniqueViolation):
        versions.expand(first := session(), database, broken)
    first.close()
    versions.prepare(session(), database)
    assert 1 == versions.expand(session(), database, LATER)
    [(valid,)] = session().execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'jobs_size'::regclass"
    )
    assert valid


def test_a_dropped_column_is_left_out_at_once(database, session):
    """Until then a later broker writes NULL into it."""
    with_colour = QUEUE_STORE._replace(rest=(
        *QUEUE_STORE.rest, "ALTER TABLE jobs ADD COLUMN colour text",
    ))  # fmt: skip
    versions.prepare(connection := session(), database, with_colour)
    connection.close()
    without = QUEUE_STORE._replace(version=2, steps={1: Step(
        with_colour.digest, (), ("ALTER TABLE jobs DROP COLUMN IF EXISTS colour",)
    )})  # fmt: skip
    versions.expand(session(), database, without)
    versions.prepare(connection := connect(database, "store"), database, without)
    with closing(PostgresRows(connection, database.name, 5.0)) as rows:
        admit(rows, 1)
        versions.contract(session(), database, without)
        admit_again(rows, 2)
    assert [(2,)] == session().execute("SELECT count(*) FROM jobs").fetchall()


def run_later(*arguments):
    program = [sys.executable, later_release.__file__, sys.executable, "-m", "eventmq"]
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, check=False, cwd=Path.cwd()
    )


def test_commands_expand_and_contract(database_url, database, session):
    """The later release runs ``eventmq store init`` and ``eventmq store contract``."""
    with closing(PostgresRows.open(database)):
        done = run_later("store", "init", "--store", database_url)
        assert (0, "") == (done.returncode, done.stderr)
        assert "brokers of version 1 can use it until eventmq store contract is run" in done.stdout
        done = run_later("store", "contract", "--store", database_url)
        assert 1 == done.returncode
        assert "brokers of version 1 use the store" in done.stderr
    done = run_later("store", "contract", "--store", database_url)
    assert (0, "") == (done.returncode, done.stderr)
    assert "was contracted: brokers of version 1 are refused now" in done.stdout
    now = subprocess.run(
        [sys.executable, "-m", "eventmq", "broker", "--store", database_url, "--bind",
         "tcp://127.0.0.1:0"], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert 1 == now.returncode
    assert "start the later EventMQ in the place of this one" in " ".join(now.stderr.split())
