"""The relay sends committed rows at least once, in the order of a key, and keeps what it cannot."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import psycopg
import pytest
from click.testing import CliRunner

from eventmq import BrokerUnavailable, EventMQ, StoreError, chain
from eventmq_contrib import outbox
from eventmq_contrib.outbox.command import outbox as command
from eventmq_contrib.outbox.database import Database, connect
from eventmq_contrib.outbox.relay import Relay
from tests.contrib.outbox.conftest import DAY, SUBMIT_TIMEOUT
from tests.support.postgres import pgbouncer
from tests.support.system import until

DEADLINE = 20.0


def memory_app(name, **settings):
    """Return an app with a broker of its own in this process."""
    return EventMQ(name, broker="memory://", **{"submit_timeout": SUBMIT_TIMEOUT, **settings})


def write(shop, *signatures, key=""):
    """Write rows in one transaction; return the handles."""
    connection = shop.connect()
    jobs = [outbox.send(connection, signature, key=key) for signature in signatures]
    connection.commit()
    return jobs


def change(shop, column, value, job):
    """Change a column of the row of a job."""
    sql = f"UPDATE eventmq_outbox SET {column} = %s WHERE job_id = %s"
    shop.database.execute(sql, (value, getattr(job, "root", job.id)))


def test_rows_are_deleted_after_their_receipts_and_the_jobs_run(shop, app):
    add = app.tasks["add"]
    jobs = write(shop, *(add.s(i, 1) for i in range(3)), chain(add.s(1, 1), add.s(5)))
    relay = shop.relay(app)
    assert 4 == relay.step()
    assert 0 == relay.step()
    assert [] == shop.rows()
    assert [1, 2, 3, 7] == [job.get() for job in jobs]


def test_a_row_that_is_committed_late_is_sent_although_later_ones_were_sent_before(shop, app):
    early = shop.connect()
    late = outbox.delay(early, app.tasks["add"], 1, 2)
    if shop.database.vendor == "sqlite":  # which has one writer at a time
        early.rollback()
        late = outbox.delay(early, app.tasks["add"], 1, 2)
    else:
        [after] = write(shop, app.tasks["add"].s(3, 4))
        assert 1 == shop.relay(app).step()
        assert 7 == after.get()
    early.commit()
    assert 1 == shop.relay(app).step()
    assert 3 == late.get()


def test_rows_of_a_key_are_sent_one_after_the_other(shop, app):
    a = write(shop, *(app.tasks["add"].s(i, 0) for i in range(3)), key="a")
    b = write(shop, app.tasks["add"].s(0, 0), key="A")
    other = write(shop, app.tasks["add"].s(0, 0))
    relay = shop.relay(app)
    messages = []
    submit = relay._submit
    relay._submit = lambda rows, ends: (
        messages.append([r.job_id for r in rows]),
        submit(rows, ends),
    )
    assert 5 == relay.step()
    assert [[a[0].id, b[0].id, other[0].id], [a[1].id], [a[2].id]] == messages
    assert [0, 1, 2, 0, 0] == [job.get() for job in [*a, *b, *other]]


def test_a_row_of_a_key_that_waits_holds_up_the_rest_of_its_key(shop):
    with memory_app("order", max_queue_length=1) as app:
        keep = app.task(name="keep")(print)
        later = keep.options(queue="full", countdown=60)
        first, full, behind = write(shop, later.s(0), later.s(1), keep.s(2), key="k")
        [other] = write(shop, keep.s(3), key="l")
        relay = shop.relay(app)
        assert [2, 0] == [relay.step() for _ in range(2)]
        other.get()
        assert [(full.id, ""), (behind.id, "")] == shop.rows()
        first.cancel()
        relay._full.clear()
        assert 2 == relay.step()
        behind.get()


def test_relays_share_the_rows_and_each_job_runs_once(shop, app):
    app.noted.clear()
    note = app.tasks["note"].options(priority=0)
    connection = shop.connect()
    for number in range(120):
        outbox.send(connection, note.s(number), key=f"key {number % 5}" if number < 40 else "")
    connection.commit()
    relays = [shop.relay(app) for _ in range(3)]
    threads = [threading.Thread(target=relay.run) for relay in relays]
    for thread in threads:
        thread.start()
    until(lambda: not shop.rows() and len(app.noted) >= 120, "all rows are sent", DEADLINE)
    for relay in relays:
        relay.stop()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(app.noted) == list(range(120))


def test_a_claimed_row_and_the_rest_of_its_key_are_for_one_relay(shop, app):
    if shop.database.vendor == "sqlite":
        return  # it claims nothing: a transaction would stop the application
    note = app.tasks["note"]
    keyed = write(shop, note.s(0), note.s(1), key="k")
    with closing(connect(shop.url)) as first, closing(connect(shop.url)) as second:
        claimed = first.claim(10)
        assert [job.id for job in keyed] == [row.job_id for row in claimed]
        keyed += write(shop, note.s(3), key="k")
        [free] = write(shop, note.s(2))
        assert [free.id] == [row.job_id for row in second.claim(10)]
        second.close()
        [row] = second.claim(10)
        assert free.id == row.job_id
        first.finish([claimed[0].seq], [], [])
        assert [job.id for job in keyed[1:]] == [row.job_id for row in first.claim(10)]


class Slow(Database):
    """The database of a relay, in which another acts between mark and claim of its rows."""

    def execute(self, sql, values=()):
        rows = super().execute(sql, values)
        if sql.startswith("COMMIT AND CHAIN"):
            self.meanwhile()
        return rows


def test_a_row_that_two_relays_have_marked_is_for_the_first_that_claims_it(shop, app):
    """What the other knows of it then is that it may have been sent before."""
    if shop.database.vendor == "sqlite":
        return
    write(shop, app.tasks["note"].s(0), app.tasks["note"].s(1))
    good = shop.database
    slow = Slow(good.vendor, good.name, good._open, good._error)
    claims = []
    with closing(slow), closing(connect(shop.url)) as other:

        def be_first():
            claims.append([row.seq for row in other.claim(1)])
            other.finish(claims[0], [], [])
            other.claim(1)
            other.execute("ROLLBACK")  # as when it dies

        slow.meanwhile = be_first
        [row] = slow.claim(10)
        assert [row.seq - 1] == claims[0]
        assert 2 == row.sends
        slow.finish([], [], [row.seq])
        assert [row.sent] == marks(shop)


def test_without_its_first_row_the_others_of_a_key_are_left_to_another_relay(shop, app):
    """It may have claimed the key between the mark and the claim, when its turn is to be locked."""
    if shop.database.vendor == "sqlite":
        return
    jobs = write(shop, *(app.tasks["note"].s(n) for n in range(3)), key="k")
    good = shop.database
    slow = Slow(good.vendor, good.name, good._open, good._error)
    other = shop.connect()
    with closing(slow):
        sql = "SELECT seq FROM eventmq_outbox ORDER BY seq LIMIT 1 FOR UPDATE"
        slow.meanwhile = lambda: other.cursor().execute(sql)
        assert [] == slow.claim(10)
        slow.finish([], [], [])
        other.rollback()
        slow.meanwhile = list
        assert [job.id for job in jobs] == [row.job_id for row in slow.claim(10)]


def test_the_writers_do_not_wait_for_a_relay(shop, app):
    write(shop, app.tasks["note"].s(0), key="k")
    rows = shop.database.claim(10)
    [later] = write(shop, app.tasks["note"].s(1), key="k")
    shop.database.finish([row.seq for row in rows], [], [])
    assert [(later.id, "")] == shop.rows()


class Dying(Database):
    """The database of a relay that dies before it deletes what it has sent."""

    def finish(self, sent, kept, unsent):
        self.close()
        raise StoreError("killed")


def test_a_row_that_was_sent_and_not_deleted_is_sent_again_and_runs_once(shop, app):
    app.noted.clear()
    jobs = write(shop, *(app.tasks["note"].s(i) for i in range(3)))
    die_while_sending(shop, app)
    assert 3 == len(shop.rows())
    assert 3 == len(marks(shop))
    for job in jobs:
        job.get()
    assert 3 == shop.relay(app).step()
    assert [] == shop.rows()
    [last] = write(shop, app.tasks["note"].s(3))
    shop.relay(app).step()
    last.get()
    assert [0, 1, 2, 3] == sorted(app.noted)


def die_while_sending(shop, app):
    """Let a relay send all rows and die."""
    good = shop.database
    dying = Dying(good.vendor, good.name, good._open, good._error)
    with pytest.raises(StoreError, match="killed"):
        Relay(dying, app, window=1000.0).step()


def marks(shop):
    """Return since when rows may have been sent."""
    sql = "SELECT sent FROM eventmq_outbox WHERE sent IS NOT NULL"
    return [row[0] for row in shop.database.execute(sql)]


def test_a_row_that_may_have_been_sent_before_the_window_is_kept_until_someone_decides(shop, app):
    [job] = write(shop, app.tasks["add"].s(1, 2))
    die_while_sending(shop, app)
    [fresh] = write(shop, app.tasks["add"].s(3, 4))
    [sent] = marks(shop)
    assert time.time() - DEADLINE < sent <= time.time()
    shop.database.execute("UPDATE eventmq_outbox SET sent = sent - 950")
    assert 2 == shop.relay(app, window=1000.0).step()
    [(job_id, error)] = shop.rows()
    assert job.id == job_id
    assert error.startswith("NotAllowed: the row may have been sent 0.3 hours ago")
    assert f"eventmq outbox retry {job.id}" in error
    assert 7 == fresh.get()
    assert 0 == shop.relay(app, window=1000.0).step()
    assert 0 == CliRunner().invoke(command, ["retry", "--database", shop.url, job.id]).exit_code
    assert 1 == shop.relay(app, window=1000.0).step()
    assert 3 == job.get()
    assert [] == shop.rows() == marks(shop)


def test_a_row_that_was_never_sent_is_sent_however_old_it_is(shop, app):
    """It waited for a broker that was away, or for a queue that was full, or for a relay."""
    [old] = write(shop, app.tasks["add"].s(1, 2))
    change(shop, "created", time.time() - 10 * 86_400, old)
    away = EventMQ("away", broker="tcp://127.0.0.1:9", submit_timeout=0.2)
    with away, pytest.raises(BrokerUnavailable):
        shop.relay(away).step()
    assert [] == marks(shop)
    assert 1 == shop.relay(app).step()
    assert 3 == old.get()
    assert [] == marks(shop)


def test_rows_that_the_broker_refuses_or_no_one_can_read_are_kept_with_reasons(shop, caplog):
    with memory_app("small", max_frame=2000) as app:
        keep = app.task(name="keep")(print)
        first, header, large, graph, key, last = write(
            shop, keep.s("first"), keep.s("header"), keep.s("x" * 5000),
            chain(keep.s(1), keep.si(2)), keep.s("key"), keep.s("last"),
        )  # fmt: skip
        change(shop, "headers", "task:keep,content-type:msgpack,unique:k,unique-mode:never", key)
        change(shop, "headers", "priority:much", header)
        change(shop, "body", b"\xc1", graph)
        change(shop, "ordering_key", "same", large)
        change(shop, "ordering_key", "same", last)
        relay = shop.relay(app)
        assert 6 == relay.step()  # what is kept does not hold up its key
        assert 0 == relay.step()
        kept = dict(shop.rows())
        assert {header.id, large.id, graph.root, key.id} == set(kept)
        assert kept[header.id].startswith("ProtocolError: the broker refused: header 'priority' ")
        assert kept[large.id].startswith("MessageTooLarge")
        assert "plan" in kept[graph.root] or "body" in kept[graph.root]
        assert kept[key.id].startswith("ProtocolError")
        assert "unique" in kept[key.id]
        for job in (first, last):
            job.get()
        for job_id, reason in kept.items():
            assert f"job {job_id} is kept in the outbox: {reason}" in caplog.text


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", "[[1],{}]"), ("headers", b"task:keep"), ("queue", b"q"), ("job_id", b"id"),
        ("ordering_key", b"key"), ("sent", "yesterday"),
    ],
)  # fmt: skip
def test_a_row_whose_columns_have_other_types_is_kept(shop, app, column, value):
    keep = app.tasks["keep"]
    broken, other = write(shop, keep.s(1), keep.s(2))
    change(shop, column, value, broken)
    assert 2 == shop.relay(app).step()
    assert other.get() is None
    [(_, error)] = shop.rows()
    assert "body is a blob" in error


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["job_id", "queue", "headers", "body", "ordering_key", "sent"])
def test_a_row_with_text_that_is_not_utf_8_is_kept_and_listed(shop, app, column, caplog):
    keep = app.tasks["keep"]
    broken, other = write(shop, keep.s(1), keep.s(2), key="k")
    sql = f"UPDATE eventmq_outbox SET {column} = CAST(x'61ff' AS TEXT) WHERE job_id = %s"
    shop.database.execute(sql, (broken.id,))
    assert 2 == shop.relay(app).step()
    assert other.get() is None
    [(job_id, error)] = shop.rows()
    assert "text in UTF-8" in error
    assert f"job {job_id} is kept in the outbox: {error}" in caplog.text
    listed = CliRunner().invoke(command, ["list", "--database", shop.url])
    assert (0, True) == (listed.exit_code, "ProtocolError" in listed.stdout)


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_texts_that_are_not_utf_8_where_no_relay_reads_stop_nothing(shop, app):
    keep = app.tasks["keep"]
    jobs = write(shop, keep.s(1), keep.s(2), keep.s(3))
    for column, job in zip(("created", "sends", "error"), jobs, strict=True):
        sql = f"UPDATE eventmq_outbox SET {column} = CAST(x'61ff' AS TEXT) WHERE job_id = %s"
        shop.database.execute(sql, (job.id,))
    relay = shop.relay(app)
    relay._database.check()
    assert 2 == relay.step()
    assert [(jobs[2].id, b"a\xff")] == shop.rows()
    assert 0 == CliRunner().invoke(command, ["list", "--database", shop.url]).exit_code


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_row_whose_id_is_too_long_is_kept(shop):
    """The broker would not answer, as if it was away; PostgreSQL and MySQL take no such id."""
    with memory_app("ids", submit_timeout=20.0) as app:
        keep = app.task(name="keep")(print)
        long, broken, other = write(shop, *(keep.s(number) for number in range(3)))
        change(shop, "job_id", "i" * 255, long)
        change(shop, "job_id", "i" * 256, broken)
        assert 3 == shop.relay(app).step()
        other.get()
        assert app.job("i" * 255).get() is None
        assert [("i" * 256, "ProtocolError: job_id has at most 255 characters")] == shop.rows()


def test_rows_of_a_full_queue_wait_and_those_of_others_do_not(shop, caplog):
    with memory_app("full", max_queue_length=2) as app:
        keep = app.task(name="keep")(print)
        full = write(shop, *(keep.options(queue="full", countdown=60).s(i) for i in range(5)))
        relay = shop.relay(app)
        relay.step()
        [other] = write(shop, keep.s("other"))
        assert 1 == relay.step()
        other.get()
        waiting = [job_id for job_id, error in shop.rows() if not error]
        assert 3 <= len(waiting) <= 5
        assert [] == marks(shop)
        assert {job.id for job in full} >= set(waiting)
        assert 1 == caplog.text.count("rows of a full queue wait in the outbox")


def test_a_job_whose_unique_key_is_taken_is_dropped_as_delay_would_refuse_it(shop, app, caplog):
    caplog.set_level("INFO")
    later = app.tasks["add"].options(unique="one", countdown=60)
    first, second = write(shop, later.s(1, 2), later.s(1, 2))
    assert 2 == shop.relay(app).step()
    assert [] == shop.rows()
    assert (
        f"job {second.id} is not submitted: job {first.id} has the same unique key" in caplog.text
    )
    first.cancel()


def test_rows_wait_for_a_broker_that_is_away(shop):
    with EventMQ("away", broker="tcp://127.0.0.1:9", submit_timeout=0.2) as app:
        keep = app.task(name="keep")(print)
        jobs = write(shop, keep.s(1), chain(keep.s(1), keep.s(2)))
        with pytest.raises(BrokerUnavailable):
            shop.relay(app).step()
        assert [(job, "") for job in (jobs[0].id, jobs[1].root)] == shop.rows()


def test_a_relay_goes_on_after_its_session_was_ended(shop, app, caplog):
    if shop.database.vendor == "sqlite":
        return  # it has no sessions
    relay = shop.relay(app)
    relay.step()
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        mysql = shop.database.vendor == "mysql"
        pid = "connection_id()" if mysql else "pg_backend_pid()"
        mine = shop.database.execute(f"SELECT {pid}")[0][0]
        if mysql:
            ids = [
                row[0]
                for row in shop.database.execute(
                    "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
                )
            ]
            for each in set(ids) - {mine}:
                shop.database.execute(f"KILL {each}")
        else:
            shop.database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                "current_database() AND pid <> pg_backend_pid()"
            )
        [job] = write(shop, app.tasks["add"].s(1, 2))
        until(lambda: not shop.rows(), "the row is sent", DEADLINE)
        assert 3 == job.get()
    finally:
        relay.stop()
        thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_session_of_a_pooler_is_given_back_without_settings_of_the_relay(shop, app, postgres):
    with pgbouncer(postgres) as port:
        url = shop.url.replace(f":{postgres.port}/", f":{port}/")
        with closing(connect(url)) as database:
            write(shop, app.tasks["add"].s(1, 2))
            assert 1 == Relay(database, app, window=DAY).step()
            database.wait(0.01)
        with closing(psycopg.connect(url, autocommit=True)) as other:
            changed = "SELECT name FROM pg_settings WHERE source = 'session'"
            assert {("application_name",)} >= {*other.execute(changed).fetchall()}


def test_postgresql_wakes_the_relay(database_url, app):
    with closing(connect(database_url)) as database, closing(connect(database_url)) as other:
        for statement in outbox.DDL["postgresql"]:
            database.execute(statement)
        begin = time.monotonic()
        database.wait(0.3)
        assert time.monotonic() - begin >= 0.3
        other.execute("SELECT pg_notify('eventmq_outbox', '')")
        begin = time.monotonic()
        database.wait(DEADLINE)
        assert time.monotonic() - begin < DEADLINE / 2


def test_large_bodies_are_read_in_parts(shop, app, monkeypatch):
    monkeypatch.setattr("eventmq_contrib.outbox.database.BYTES", 5000)
    jobs = write(shop, *(app.tasks["keep"].s("x" * 2000) for _ in range(5)))
    relay = shop.relay(app)
    assert [2, 2, 1, 0] == [relay.step() for _ in range(4)]
    for job in jobs:
        job.get()
