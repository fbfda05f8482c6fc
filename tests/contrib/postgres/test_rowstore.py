"""Rows in PostgreSQL: the contract of the engine, and failures that only a server has."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from eventmq.engine import Mismatch
from eventmq.sdk import Fenced, QueueFull, StoreError, Unknown
from eventmq.testing import RowStoreSuite
from eventmq_contrib.postgres import tables
from eventmq_contrib.postgres.connection import Database, DatabaseUnavailable
from eventmq_contrib.postgres.pipeline import CHUNK, Pipeline
from eventmq_contrib.postgres.rowstore import PostgresRows
from tests.support.postgres import until

PAIR = ("seq", "record")

JOB = (
    "seq", "id", "queue", "rank", "state", "attempt", "delivery", "deaths", "ready_at", "expires",
    "created", "head_crc", "crc", "headers", "body",
)  # fmt: skip


def job(seq):
    return (seq, f"j{seq}", 1, seq, 2, 1, 0, 0, 0.0, 0.0, 1.5, 7, 8, "task:t", b"body")


def open_rows(url, limit=None, schema="eventmq"):
    return PostgresRows.open(Database.of(url, schema), limit)


class TestPostgres(RowStoreSuite):
    @pytest.fixture(autouse=True)
    def _database(self, rows_url):
        self.url = rows_url

    def make(self):
        return open_rows(self.url)

    def close(self, rows):
        rows.close()


@pytest.fixture
def rows(database_url):
    """An empty store."""
    opened = open_rows(database_url)
    yield opened
    opened.close()


@pytest.fixture
def other(database_url):
    """Another session of the same database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET search_path = eventmq")
        yield connection


def count(connection, table="suspects"):
    return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def terminate(connection):
    """End the sessions of all stores, and return their number."""
    ended = connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'eventmq store'"
    ).fetchall()
    return len(ended)


# Trips and plans


def test_a_commit_is_two_trips_and_a_read_one_more(rows, monkeypatch):
    """A batch takes the same number of trips, however many jobs it has."""
    trips = []
    sync = Pipeline._sync

    def counted(pipeline):
        trips.append(len(pipeline._sent))
        sync(pipeline)

    def write():
        rows.begin()
        rows.insert("jobs", JOB, [job(1), job(2), job(3)])
        rows.insert_new("suspects", PAIR, [(1, b"")])
        rows.update("jobs", ["rank"], [(5, 3)])
        assert rows.delete_runs("jobs", [(1, 2)], 2) == 2
        rows.delete("suspects", [1])
        rows.delete_range("jobs")
        rows.set_values({"a": 1})
        rows.commit()

    write()
    monkeypatch.setattr(Pipeline, "_sync", counted)
    write()
    assert len(trips) == 2
    trips.clear()
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b"")])
    assert rows.get("suspects", PAIR, [1]) == [(1, b"")]
    assert rows.heads("jobs_ready", ["seq"], [(1,), (2,)]) == [None, None]
    rows.delete("suspects", [1])
    rows.commit()
    assert len(trips) == 4
    trips.clear()
    rows.begin()
    rows.commit()
    assert trips == []


def test_each_statement_has_its_index(rows):
    """The plans hold even if the table was empty when it was last analyzed."""
    rows.begin()
    rows.insert("jobs", JOB, [job(n) for n in range(3000)])
    rows.update("jobs", ["delivery"], [(1, 5), (1, 7)])
    rows.delete("jobs", [9, 11])
    rows.delete_runs("jobs", [(20, 21)], 2)
    rows.delete_runs("jobs", [(30, 31), (40, 41)], 4)
    rows.get("jobs", ["seq"], [1, 2])
    rows.get("jobs", ["seq"], ["j1", "j2"], by="jobs_id")
    rows.get("jobs", ["seq"], [(0, 1), (0, 2)], by="jobs_ready")
    list(rows.scan("jobs_ready", ["seq"], [0], gt=[5, 5], limit=10))
    list(rows.scan("jobs_ready", ["seq"], [0], descending=True, limit=10))
    list(rows.scan("jobs_delayed", ["seq"], le=[5.0], limit=10))
    list(rows.scan("jobs", ["seq"], gt=[5], limit=10))
    rows.heads("jobs_ready", ["seq"], [(0,), (1,)])
    rows.measure("jobs_expires", ["body"])
    rows.insert("chunks", ("session", "number", "epoch", "leases"), [("s", 1, 1, b"")])
    rows.delete("chunks", [("s", 1), ("s", 2)])
    pipeline = rows.pipeline
    texts = {name: sql for sql, name in pipeline._names.items() if '"jobs"' in sql}
    texts = {name: sql for name, sql in texts.items() if not sql.startswith("INSERT")}
    assert len(texts) == 13
    for name, sql in texts.items():
        nulls = ", ".join(["NULL"] * (sql.count("$") and max(map(int, sql_numbers(sql)))))
        plan = pipeline.ask(f"EXPLAIN EXECUTE {name.decode()}{nulls and f'({nulls})'}")
        text = "\n".join(line for (line,) in plan)
        assert "using jobs_" in text, (sql, text)
        assert "Seq Scan" not in text, (sql, text)
        assert "Sort" not in text, (sql, text)
    rows.rollback()


def sql_numbers(sql):
    """Return the numbers of the parameters of a statement."""
    parts = sql.split("$")[1:]
    return ["".join(c for c in part[:2] if c.isdigit()) for part in parts]


def test_many_rows_are_read_in_chunks(rows):
    """A scan without a limit holds a part of its rows in memory."""
    rows.begin()
    rows.insert("suspects", PAIR, [(n, b"%d" % n) for n in range(10 * CHUNK)])
    scan = rows.scan("suspects", PAIR)
    assert next(scan) == (0, b"0")
    assert len(scan._rows) == CHUNK - 1
    assert sum(1 for _ in scan) == 10 * CHUNK - 1
    rows.commit()


def test_an_older_library_reads_all_rows_at_once(rows, monkeypatch):
    """Older versions of libpq cannot return rows in chunks."""
    monkeypatch.setattr("eventmq_contrib.postgres.pipeline._CHUNKED", 10**9)
    written = [(n, b"%d" % n) for n in range(3 * CHUNK)]
    rows.begin()
    rows.insert("suspects", PAIR, written)
    assert list(rows.scan("suspects", PAIR)) == written
    rows.commit()


def test_long_rows_take_several_statements(rows, monkeypatch):
    """A parameter has a size limit, and the server holds it in memory twice."""
    monkeypatch.setattr("eventmq_contrib.postgres.records.MAX_BYTES", 1000)
    written = [(n, b"x" * (n * 7 % 400)) for n in range(100)]
    rows.begin(careful=True)
    rows.insert("suspects", PAIR, written)
    assert rows.insert_new("suspects", PAIR, [*written[:40], (100, b""), *written[40:]]) == [
        *range(40), *range(41, 101),
    ]  # fmt: skip
    rows.commit()
    assert list(rows.scan("suspects", PAIR)) == [*written, (100, b"")]


# Ends


def test_the_fence_is_queried_first(rows, other):
    """If the query of the fence returns no row, nothing of the batch is stored."""
    other.execute("CREATE TABLE owner (epoch int8); INSERT INTO owner VALUES (5)")
    rows.fence = "SELECT 1 FROM owner WHERE epoch = 5 FOR SHARE", ()
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b"")])
    rows.commit()
    other.execute("UPDATE owner SET epoch = 6")
    rows.begin()
    rows.insert("suspects", PAIR, [(2, b"")])
    with pytest.raises(Fenced, match="another broker owns the store"):
        rows.commit()
    rows.rollback()
    assert count(other) == 1


def test_a_claim_waits_for_the_commit_in_progress(rows, other):
    """Therefore commits of two epochs are never interleaved."""
    other.execute("CREATE TABLE owner (epoch int8); INSERT INTO owner VALUES (5)")
    rows.fence = "SELECT 1 FROM owner WHERE epoch = 5 FOR SHARE", ()
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b"")])
    assert rows.measure("suspects") == (1, 0)
    other.execute("SET lock_timeout = 100")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        other.execute("UPDATE owner SET epoch = 6")
    rows.commit()
    other.execute("UPDATE owner SET epoch = 6")


@pytest.mark.parametrize("reads", [False, True], ids=["commit", "read"])
def test_a_connection_that_is_lost_before_the_commit_stores_nothing(rows, other, reads):
    """The error tells so, and each later transaction fails too."""
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b"")])
    rows.measure("suspects")
    rows.insert("suspects", PAIR, [(2, b"")])
    assert terminate(other) == 1
    with pytest.raises(DatabaseUnavailable, match=r"postgresql://.*terminating connection"):
        rows.measure("suspects") if reads else rows.commit()
    rows.rollback()
    assert count(other) == 0
    rows.begin()
    with pytest.raises(DatabaseUnavailable):
        rows.get("suspects", PAIR, [1])
    rows.rollback()


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60);
    RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON suspects DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION slow()"""

COMMITTING = "SELECT 1 FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active'"


def test_a_connection_that_is_lost_during_the_commit_is_unknown(rows, other):
    """The server may have stored the rows; here it has not."""
    other.execute(SLOW)
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b"")])
    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(rows.commit)
        until(lambda: other.execute(COMMITTING).fetchall(), "it commits")
        assert terminate(other) == 1
        with pytest.raises(Unknown, match="about to commit"):
            committed.result()
    rows.rollback()
    assert count(other) == 0


def test_a_commit_without_an_answer_is_unknown_after_the_limit(database_url, rows, other):
    """Results that arrive after the limit are discarded."""
    other.execute(SLOW)
    limited = open_rows(database_url, limit=0.5)
    limited.begin()
    limited.insert("suspects", PAIR, [(1, b"")])
    before = time.monotonic()
    with pytest.raises(Unknown, match="did not answer in time"):
        limited.commit()
    assert 0.4 < time.monotonic() - before < 5
    limited.rollback()
    with pytest.raises(DatabaseUnavailable):
        limited.values()
    limited.close()


def test_a_statement_without_an_answer_fails_after_the_limit(database_url, other):
    """COMMIT was not sent, so nothing is stored."""
    limited = open_rows(database_url, limit=0.5)
    with other.transaction():
        other.execute("LOCK TABLE suspects")
        limited.begin()
        limited.insert("suspects", PAIR, [(1, b"")])
        with pytest.raises(DatabaseUnavailable, match="did not answer in time"):
            limited.commit()
        limited.rollback()
    assert count(other) == 0
    limited.close()


def test_a_full_disk_is_a_full_queue(rows, other):
    """The broker refuses new jobs, and goes on."""
    other.execute(
        """CREATE FUNCTION full() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION USING ERRCODE = ''53100'', MESSAGE = ''no space''; END';
        CREATE TRIGGER filled BEFORE INSERT ON jobs EXECUTE FUNCTION full()""".replace(
            "full()", "filled()"
        )
    )
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b"")])
    rows.insert("jobs", JOB, [job(1)])
    with pytest.raises(QueueFull, match="no space"):
        rows.commit()
    rows.rollback()
    rows.begin()
    rows.insert("suspects", PAIR, [(2, b"")])
    rows.commit()
    assert count(other) == 1


def test_an_error_shows_no_values(rows):
    """Bodies must not get into logs."""
    rows.begin()
    rows.insert("suspects", ["record"], [(b"secret",)])
    with pytest.raises(StoreError, match="null value in column") as caught:
        rows.commit()
    rows.rollback()
    assert b"secret".hex() not in str(caught.value)


def test_a_statement_that_failed_is_prepared_again(rows):
    """Statements after it in the batch were neither run nor prepared."""
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b""), (1, b"")])
    rows.insert("jobs", JOB, [job(1)])
    with pytest.raises(Mismatch):
        rows.commit()
    rows.rollback()
    rows.begin()
    rows.insert("suspects", PAIR, [(1, b"")])
    rows.insert("jobs", JOB, [job(1)])
    rows.commit()
    assert rows.measure("jobs") == (1, 0)


# Tables


def test_brokers_that_start_at_once_create_the_tables_once(database_url):
    """All of them read the same values."""
    start = threading.Barrier(4)

    def opened(_):
        start.wait()
        rows = open_rows(database_url)
        values = rows.values()
        rows.close()
        return values

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(opened, range(4)))
    assert [list(values) for values in results] == [["store_id"]] * 4
    assert results == results[:1] * 4


def test_two_stores_in_one_database_have_schemas_of_their_own(database_url):
    """The names of their tables are the same."""
    one, two = open_rows(database_url), open_rows(database_url, schema="two")
    one.begin()
    one.insert("suspects", PAIR, [(1, b"")])
    one.commit()
    assert (one.measure("suspects"), two.measure("suspects")) == ((1, 0), (0, 0))
    one.close()
    two.close()


def test_tables_of_another_version_are_refused(rows, other, database_url):
    """The error names both versions."""
    other.execute("COMMENT ON TABLE meta IS 'queue store of EventMQ, version 7, tables 0123'")
    with pytest.raises(StoreError, match=r"has a queue .* 7, tables 0123, and .* 1, tables"):
        open_rows(database_url)


def test_a_schema_with_other_tables_is_refused(other, database_url):
    """No table is created in it."""
    other.execute("CREATE SCHEMA eventmq; CREATE TABLE jobs (id int)")
    with pytest.raises(StoreError, match="a table jobs that is not EventMQ's: name another schema"):
        open_rows(database_url)
    query = "SELECT count(*) FROM pg_class WHERE relnamespace = 'eventmq'::regnamespace"
    assert other.execute(query).fetchone() == (1,)
    other.execute("ALTER TABLE jobs RENAME TO meta")
    with pytest.raises(StoreError, match="a table meta that is not EventMQ's"):
        open_rows(database_url)


def test_hot_tables_are_vacuumed_soon(rows, other):
    """All hot tables are created with such settings, and bodies are stored uncompressed."""
    query = """SELECT relname FROM pg_class
        WHERE relkind = 'r' AND 'autovacuum_vacuum_cost_delay=0' = ANY(reloptions)"""
    names = {name for (name,) in other.execute(query)}
    assert names == {table.name for table in tables.ALL_TABLES if table.hot}
    query = """SELECT attstorage FROM pg_attribute WHERE attname = 'body'
        AND attrelid = 'jobs'::regclass"""
    assert other.execute(query).fetchone() == ("e",)


# Periods


def test_a_period_that_is_read_is_dropped_later(rows, other):
    """A dump locks all tables while it runs, and the commit does not wait for it."""
    rows.begin()
    for number in (1, 2):
        rows.make_period("outcomes", number)
    rows.commit()
    assert rows.measure("outcomes_1") == (0, 0)
    with other.transaction():
        other.execute("LOCK TABLE outcomes_1 IN ACCESS SHARE MODE")
        rows.limit = 5.0
        rows.begin()
        rows.insert("suspects", PAIR, [(1, b"before")])
        assert rows.drop_period("outcomes", 2) is True
        assert rows.drop_period("outcomes", 1) is False
        rows.insert("suspects", PAIR, [(2, b"after")])
        rows.commit()
        assert rows.periods("outcomes") == [1]
        assert rows.measure("outcomes_1") == (0, 0)
    rows.begin()
    assert rows.drop_period("outcomes", 1) is True
    rows.commit()
    assert rows.periods("outcomes") == []
    assert count(other) == 2
    assert rows.ask("SELECT current_setting('lock_timeout')") == [("0",)]
