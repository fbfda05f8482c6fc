"""The result backend ``postgresql``: the contract, its table, connections and failures."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from eventmq import EventMQ
from eventmq.errors import PluginError, ResultTooLarge, ResultUnavailable
from eventmq.sdk import PluginContext, SystemClock
from eventmq.testing import ResultBackendSuite
from eventmq_contrib.postgres import eventmq_result_backends, results
from tests.support.postgres import Home, Server, Unavailable, free_port, until
from tests.support.system import System

SHIFT = "UPDATE eventmq.backend_results SET until = until + make_interval(secs => %s)"


class WrongClock(SystemClock):
    """The machine's clock, wrong by some seconds."""

    def __init__(self, wrong):
        self.wrong = wrong

    def now(self):
        return super().now() + self.wrong


def make_backend(url, clock=None, **options):
    context = PluginContext("postgresql", {"url": url, **options}, clock or SystemClock())
    return eventmq_result_backends()["postgresql"](context)


@pytest.fixture
def make(database_url):
    """Return a function that makes a backend with a database of the test's own."""
    backends = []

    def make_one(clock=None, url=database_url, **options):
        backends.append(make_backend(url, clock, **options))
        return backends[-1]

    yield make_one
    for backend in backends:
        backend.close()


@pytest.fixture
def sql(postgres, database_url):
    """Return a function that runs a statement in that database."""
    name = database_url.rpartition("/")[2]
    return lambda statement, *values: postgres.sql(statement, *values, database=name)


class TestContract(ResultBackendSuite):
    @pytest.fixture(autouse=True)
    def _database(self, make, sql):
        self.make, self.sql = make, sql

    def pass_time(self, seconds):
        """Move the ends of all results, as a test cannot set the clock of the database."""
        self.sql(SHIFT, -seconds)


# How long results are kept


def test_puts_delete_expired_results_in_slices(make, sql, monkeypatch):
    """Results that have not expired stay."""
    monkeypatch.setattr(results, "SLICE", 3)
    backend = make()
    for number in range(8):
        backend.put(f"job-{number}", b"x", 10.0)
    reference = backend.put("kept", b"kept", 100.0)
    sql(SHIFT, -20)
    count = "SELECT count(*) FROM eventmq.backend_results"
    assert [(9,)] == sql(count)
    other = make()  # deletes with its first put, and until no result has expired
    for expected in (7, 4, 2):
        other.put("new", b"x", 60.0)
        assert [(expected,)] == sql(count)
    assert b"kept" == backend.get(reference)
    sql(SHIFT, -200)
    other.put("new", b"x", 60.0)
    assert [(2,)] == sql(count), "its last search was less than 30 seconds ago"


def test_processes_that_delete_at_once_do_not_wait_for_each_other(make, sql, postgres):
    backend = make()
    old = backend.put("old", b"x", 10.0)
    sql(SHIFT, -20)
    with postgres.connect(backend._database.parameters["dbname"]) as other, other.transaction():
        other.execute("SELECT FROM eventmq.backend_results WHERE id = 'old' FOR UPDATE")
        make(timeout=5).put("new", b"x", 60.0)
    with pytest.raises(ResultUnavailable):
        backend.get(old)


@pytest.mark.parametrize("wrong", [-1e6, 1e6])
def test_a_machine_whose_clock_is_wrong_ends_no_result_early(make, sql, wrong):
    """It puts, gets and removes results as other machines do."""
    backend = make()
    others = backend.put("job-1", b"others", 60.0)
    with_wrong_clock = make(WrongClock(wrong))
    own = with_wrong_clock.put("job-2", b"own", 60.0)
    for reader in (backend, with_wrong_clock):
        assert [b"others", b"own"] == [reader.get(others), reader.get(own)]
    seconds = "SELECT extract(epoch FROM until - now())::float FROM eventmq.backend_results"
    assert all(0 < remaining <= 60 for (remaining,) in sql(seconds))


def test_a_database_whose_clock_was_set_ends_no_result_early(make, sql):
    """The database is an hour ahead, and the machine's clock says that the result is valid."""
    backend = make(WrongClock(-3600.0))
    reference = backend.put("job-1", b"x", 60.0)
    sql(SHIFT, -100)
    make(WrongClock(-3600.0)).put("job-2", b"x", 60.0)
    assert b"x" == backend.get(reference)


def test_the_longest_time_is_no_error(make):
    backend = make()
    assert b"x" == backend.get(backend.put("job-1", b"x", 1e18))


def test_a_failed_deletion_costs_no_result(make, sql, caplog):
    """A user may lack the right to delete, for instance."""
    backend = make()
    backend.put("job-0", b"x", 60.0)
    sql("""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
        AS $$BEGIN RAISE 'no deleting here'; END$$""")
    sql("""CREATE TRIGGER t BEFORE DELETE ON eventmq.backend_results
        FOR EACH ROW EXECUTE FUNCTION refuse()""")
    sql(SHIFT, -100)
    with caplog.at_level(logging.WARNING):
        other = make()
        assert b"y" == other.get(other.put("job-1", b"y", 60.0))
    assert "cannot be removed: no deleting here" in caplog.text


# Refusals


@pytest.mark.parametrize("job_id", ["", "a\0b", "\udc80"])
def test_an_id_that_is_no_valid_text_is_refused(make, job_id):
    """The error is EventMQ's, and not one of the library."""
    with pytest.raises(ResultUnavailable, match="no job has the id"):
        make().put(job_id, b"x", 60.0)


def test_a_reference_that_is_no_valid_text_is_refused(make):
    for reference in (b"a\0b", b"\xff", b""):
        with pytest.raises(ResultUnavailable, match="not one of this backend"):
            make().get(reference)


def test_a_result_that_is_too_long_names_the_option(make):
    with pytest.raises(
        ResultTooLarge, match=r"has 11 bytes; .* keeps 10 at most: its option max_r"
    ):
        make(max_result=10).put("job-1", b"x" * 11, 60.0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/d?max_result=0", "'max_result' of 'postgresql' must be a whole number"),
        ("postgresql://h/d?schema=A", "the name of a schema has at most 63"),
        ("postgresql://h/d?shema=a", "unknown option 'shema'; did you mean 'schema'"),
        ("postgresql://u:p/q@h/d", "PostgreSQL's library cannot read the URL"),
        ("postgresql", "name the database: postgresql://USER:PASSWORD@HOST:PORT/DATABASE"),
    ],
)
def test_a_wrong_option_is_named(url, message):
    with EventMQ("shop", result_backend=url) as app, pytest.raises(PluginError) as error:
        app.job("1").get()
    assert message in str(error.value)
    assert "postgres" in str(error.value)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(PluginError, match=r"needs psycopg: pip install '\.\[postgres\]'"):
        make_backend("postgresql://h/d")


def test_options_of_libpq_stay_in_the_url(make, database_url, sql):
    backend = make(url=f"{database_url}?application_name=shop&schema=mine&durable=no")
    assert b"x" == backend.get(backend.put("job-1", b"x", 60.0))
    assert [("mine",)] == sql("SELECT schemaname FROM pg_tables WHERE tablename LIKE 'backend%%'")
    assert [(1,)] == sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'")


@pytest.mark.parametrize(("durable", "expected"), [("yes", "on"), ("no", "off")])
def test_a_result_is_on_disk_before_its_job_has_ended(make, durable, expected):
    with make(durable=durable)._connect() as connection:
        assert (expected,) == connection.execute("SHOW synchronous_commit").fetchone()


def test_a_table_of_another_version_is_not_touched(make, sql):
    backend = make()
    backend.put("job-1", b"x", 60.0)
    sql("COMMENT ON TABLE eventmq.backend_results IS 'results of EventMQ, version 2'")
    for call in (lambda: make().get(b"job-1"), lambda: make().put("job-2", b"x", 60.0)):
        with pytest.raises(ResultUnavailable, match="a table backend_results that this EventMQ do"):
            call()
    assert [("job-1",)] == sql("SELECT id FROM eventmq.backend_results")


def test_reading_creates_no_table(make, sql):
    """A client needs no right to create tables."""
    with pytest.raises(
        ResultUnavailable, match=r"the results in the schema eventmq of .* have none of job"
    ):
        make().get(b"job-1")
    assert [] == sql("SELECT FROM pg_namespace WHERE nspname = 'eventmq'")


def test_the_rights_to_read_and_write_the_table_suffice(make, sql, postgres, database_url):
    backend = make()
    reference = backend.put("job-1", b"x", 60.0)
    sql("CREATE ROLE clerk LOGIN PASSWORD 'pw'")
    try:
        clerk = make(url=database_url.replace("eventmq@", "clerk:pw@"))
        with pytest.raises(ResultUnavailable, match="clerk may not use the schema eventmq"):
            clerk.get(reference)
        sql("GRANT USAGE ON SCHEMA eventmq TO clerk")
        sql("GRANT SELECT ON eventmq.backend_results TO clerk")
        assert b"x" == clerk.get(reference)
        with pytest.raises(ResultUnavailable, match="cannot be written: permission denied for tab"):
            clerk.put("job-2", b"y", 60.0)
        sql("GRANT INSERT, UPDATE, DELETE ON eventmq.backend_results TO clerk")
        assert b"y" == backend.get(clerk.put("job-2", b"y", 60.0))
        clerk.close()
    finally:
        sql("DROP OWNED BY clerk")
        sql("DROP ROLE clerk")


def test_the_error_of_a_missing_right_says_what_to_grant(make, sql, database_url):
    sql("CREATE ROLE clerk LOGIN PASSWORD 'pw'")
    try:
        with pytest.raises(
            ResultUnavailable, match=r"cannot be written: .* GRANT CREATE ON DATABA"
        ):
            make(url=database_url.replace("eventmq@", "clerk:pw@")).put("job-1", b"x", 60.0)
    finally:
        sql("DROP ROLE clerk")


def test_a_wrong_password_is_an_error_at_once_and_not_shown(make, sql, database_url):
    with pytest.raises(ResultUnavailable, match="password authentication failed") as error:
        make(url=database_url.replace("eventmq@", "clerk:secret@"), timeout=1000).put("1", b"", 9)
    assert "secret" not in str(error.value)


# Connections


def test_threads_share_a_few_connections(make, sql):
    backend = make(connections=2)
    with ThreadPoolExecutor(8) as pool:
        references = list(pool.map(lambda n: backend.put(f"job-{n}", b"x", 60.0), range(50)))
        assert {b"x"} == set(pool.map(backend.get, references))
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'eventmq results'"
    assert sql(query)[0][0] in {1, 2}
    backend.close()
    until(lambda: sql(query) == [(0,)], "the connections are closed")
    assert b"x" == backend.get(references[0])


def test_the_error_of_a_thread_without_a_connection_names_the_option(make, postgres):
    backend = make(connections=1, timeout=0.3)
    backend.put("job-1", b"x", 60.0)
    with postgres.connect(backend._database.parameters["dbname"]) as other, other.transaction():
        other.execute("LOCK TABLE eventmq.backend_results")
        blocked = threading.Thread(target=backend.put, args=("job-2", b"x", 60.0))
        blocked.start()
        until(lambda: not backend._pools[os.getpid()].free._value, "the connection is in use")
        with pytest.raises(ResultUnavailable, match="option connections allows 1, and all are in"):
            backend.get(b"job-1")
    blocked.join()
    assert b"x" == backend.get(b"job-2")


def test_a_connection_that_is_in_use_is_closed_after_close(make, postgres, sql):
    backend = make()
    backend.put("job-1", b"x", 60.0)
    with postgres.connect(backend._database.parameters["dbname"]) as other, other.transaction():
        other.execute("LOCK TABLE eventmq.backend_results")
        put = threading.Thread(target=backend.put, args=("job-2", b"x", 60.0))
        put.start()
        until(lambda: not backend._pools[os.getpid()]._idle, "the connection is in use")
        backend.close()
    put.join()
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'eventmq results'"
    until(lambda: sql(query) == [(0,)], "the connection is closed")


def test_a_forked_process_has_connections_of_its_own(make):
    """It leaves the connections of its parent alone."""
    backend = make()
    backend.put("job-1", b"parent", 60.0)
    child = os.fork()
    if not child:
        status = 1
        try:
            same = backend.get(b"job-1") == b"parent"
            backend.put("job-2", b"child", 60.0)
            backend.close()
            status = 0 if same else 2
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert [b"parent", b"child"] == [backend.get(b"job-1"), backend.get(b"job-2")]
    assert [os.getpid()] == list(backend._pools)


# Failures


def test_a_lost_connection_is_replaced(make, sql):
    """Idle connections that were lost cause no error either."""
    backend = make()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: backend.put(f"job-{n}", b"x", 60.0), range(20)))
    query = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE application_name = 'eventmq results'"""
    assert {(True,)} == set(sql(query))
    assert b"x" == backend.get(b"job-3")
    sql(query)
    backend.put("job-3", b"y", 60.0)
    assert b"y" == backend.get(b"job-3")


def test_a_statement_whose_session_is_lost_is_repeated(make, postgres, sql):
    """It waits for a lock when its session ends."""
    backend = make()
    backend.put("job-1", b"old", 60.0)
    name = backend._database.parameters["dbname"]
    with ThreadPoolExecutor(1) as pool, postgres.connect(name) as other:
        with other.transaction():
            other.execute("LOCK TABLE eventmq.backend_results")
            put = pool.submit(backend.put, "job-1", b"new", 60.0)
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            until(lambda: sql(waits), "it waits for the lock")
            ((first,),) = sql(waits)
            sql("SELECT pg_terminate_backend(%s, 5000)", first)
            until(lambda: sql(waits) not in ([], [(first,)]), "it waits again")
        assert b"job-1" == put.result()
    assert b"new" == backend.get(b"job-1")


def test_results_wait_for_a_server_that_was_killed(make, postgres):
    """Stored results are kept, and new ones are stored after the restart."""
    backend = make()
    reference = backend.put("job-1", b"before", 60.0)
    with ThreadPoolExecutor(2) as pool:
        postgres.kill()
        try:
            put = pool.submit(backend.put, "job-2", b"meanwhile", 60.0)
            get = pool.submit(backend.get, reference)
        finally:
            postgres.start()
        assert b"before" == get.result()
        assert b"meanwhile" == backend.get(put.result())


def test_results_survive_a_failover_to_a_synchronous_replica(postgres, make):
    """The URL names both servers, and puts wait until the replica is the primary."""
    home = Home()
    try:
        primary = Server.make(home)
        replica = primary.replica("copy", synchronous=True)
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        backend = make(url=f"postgresql://eventmq@{hosts}/postgres")
        references = [backend.put(f"job-{number}", b"x", 60.0) for number in range(20)]
        with ThreadPoolExecutor(1) as pool:
            primary.kill()
            meanwhile = pool.submit(backend.put, "job-20", b"x", 60.0)
            replica.promote()
            references.append(meanwhile.result())
        assert {b"x"} == set(map(backend.get, references))
        backend.close()
    finally:
        home.close()


def test_results_wait_for_room_on_a_full_disk(make, postgres, caplog):
    """Stored results can be read, and a put fails if there is no room in time."""
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(postgres.small_disk(16_000_000))
        except Unavailable as error:
            pytest.skip(str(error))
        references, data = [], os.urandom(1_000_000)
        hasty, waiting = make(url=disk.url, timeout=0.2), make(url=disk.url, timeout=30)
        full = "cannot be written: could not extend file"
        with pytest.raises(ResultUnavailable, match=full):
            references.extend(hasty.put(f"job-{number}", data, 60.0) for number in range(1000))
        assert len(references) > 3
        assert {data} == set(map(hasty.get, references))
        with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.DEBUG):
            caplog.clear()
            put = pool.submit(waiting.put, "late", data, 60.0)
            until(lambda: "could not extend file" in caplog.text, "it tries again")
            disk.grow(64_000_000)
            assert data == hasty.get(put.result())
        hasty.close()
        waiting.close()


def test_a_server_that_stays_down_is_an_error_in_time(make):
    backend = make(url=f"postgresql://eventmq@127.0.0.1:{free_port()}/shop", timeout=0.3)
    with pytest.raises(ResultUnavailable, match=r"cannot be written: .* Connection refused; start"):
        backend.put("job-1", b"x", 60.0)
    with pytest.raises(
        ResultUnavailable, match=r"cannot be read: .* Connection refused; start the"
    ):
        backend.get(b"job-1")


def test_puts_wait_for_a_database_that_is_read_only(make, sql, database_url, caplog):
    """This happens after a failover, until the address leads to the new primary."""
    backend = make()
    reference = backend.put("job-1", b"x", 60.0)
    name = database_url.rpartition("/")[2]
    sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    backend.close()
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.DEBUG):
        put = pool.submit(backend.put, "job-2", b"y", 60.0)
        until(lambda: "takes no writes" in caplog.text, "it tries again")
        sql(f"BEGIN READ WRITE; ALTER DATABASE {name} RESET default_transaction_read_only; COMMIT")
        put.result()
    assert [b"x", b"y"] == [backend.get(reference), backend.get(b"job-2")]


def test_a_dropped_table_is_created_again(make, sql):
    """The database may be restored without it."""
    backend = make()
    reference = backend.put("job-1", b"x", 60.0)
    sql("DROP SCHEMA eventmq CASCADE")
    with pytest.raises(
        ResultUnavailable, match=r"the results in the schema eventmq of .* have none of job"
    ):
        backend.get(reference)
    assert b"y" == backend.get(backend.put("job-2", b"y", 60.0))


# With an app


def test_jobs_of_an_app(database_url):
    with EventMQ("shop", broker="memory://", result_backend=database_url) as app:

        @app.task(name="fill")
        def fill(n):
            return "x" * n

        assert 20_000_000 == len(fill.delay(20_000_000).get(timeout=30)), "above max_frame"
        assert [1, 2, 3] == [len(job.get(timeout=30)) for job in fill.map([(1,), (2,), (3,)])]


def test_workers_keep_results_through_a_crash_of_the_server(
    postgres, database_url, tmp_path, monkeypatch
):
    """Worker processes wait for the server, and each job runs once."""
    monkeypatch.setenv("EVENTMQ_RESULT_BACKEND", database_url)
    system = System(tmp_path)
    try:
        system.broker()
        system.worker()
        app = system.app(result_backend=database_url)
        work = app.task(name="survivor.work")(lambda number: number)
        assert [*range(20)] == [job.get(timeout=30) for job in work.map([(n,) for n in range(20)])]
        postgres.kill()
        try:
            jobs = work.map([(n,) for n in range(20, 40)])
            until(lambda: system.executed()["20"], "a job has run")
        finally:
            postgres.start()
        assert [*range(20, 40)] == [job.get(timeout=30) for job in jobs]
        assert {1} == set(system.executed().values())
    finally:
        system.stop()
