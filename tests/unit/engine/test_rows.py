"""The rows that a queue store shares: names, numbers and counts, and how they are pruned."""

from __future__ import annotations

from contextlib import closing
from zlib import crc32

import pytest

from eventmq.engine import rows
from eventmq.engine.engine import Engine
from eventmq.engine.rows import Tables
from eventmq.engine.tables import TABLES
from eventmq.engine.writes import Attempts, LimitRows, Writes
from eventmq.plugins.database import SqliteRows, connect, definitions
from eventmq.store.writes import ForgetQueues, SubqueueKey, subqueue_of
from eventmq.testing import FakeClock
from eventmq.timekeeping import Timekeeper


class Counted(SqliteRows):
    """Counts how often `get` is called."""

    trips = 0

    def get(self, *arguments, **more):
        self.trips += 1
        return super().get(*arguments, **more)


@pytest.fixture
def tables():
    with closing(connect(":memory:", busy=0.0)) as db:
        for table in TABLES:
            for text in () if table.periodic else definitions(table):
                db.execute(text)
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        yield Tables(Counted(db, TABLES), 3600.0)


def test_a_number_without_a_name_may_get_one(tables):
    """A damaged row asks for the name of a number before the number is given out."""
    assert tables.name(1) == ""
    assert tables.name_id("task") == 1
    assert tables.name(1) == "task"


def test_names_are_read_once_those_of_removed_queues_too(tables):
    queue, empty = tables.queue_id("q"), tables.name_id("")
    assert tables.forget_queues(["q"], 5.0) == ["q"]
    tables.store.trips = 0
    assert {tables.queue_name(queue) for _ in range(10)} == {"q"}
    assert {tables.name(empty) for _ in range(10)} == {""}
    assert tables.store.trips == 2
    with pytest.raises(KeyError):
        tables.queue_name(queue + 1)


def test_jobs_are_not_scanned_where_no_subqueue_is_idle(tables, monkeypatch):
    """Only an idle subqueue may be forgotten, so jobs are read only if there is one."""
    monkeypatch.setattr(rows, "_CACHED", 2)
    monkeypatch.setattr(SqliteRows, "tally", None)
    store = tables.store
    store.insert("queues", ("id", "name"), [(1, "q")])
    keys = ("id", "queue", "legacy", "task", "key")
    store.insert("subqueues", keys, [(n, 1, 0, "t", f"k{n}") for n in (1, 2, 3)])
    insert = """INSERT INTO jobs SELECT id, 'job ' || id, 1, 0, 2, 1, 0, 0, 0.0, 0.0, 0.0, 0.0, 1,
        1, NULL, id, '', x'' FROM subqueues"""
    store.db.execute(insert)
    assert ["k1", "k2", "k3"] == [head.subqueue.key for head in tables.subqueues()]
    store.db.execute("UPDATE jobs SET state = 1 WHERE seq = 1")
    store.db.execute("DELETE FROM jobs WHERE seq = 2")
    monkeypatch.undo()
    monkeypatch.setattr(rows, "_CACHED", 2)
    assert ["k3"] == [head.subqueue.key for head in tables.subqueues()]
    assert [(1,), (3,)] == list(store.scan("subqueues", ("id",))), "a delayed job names the first"


def test_a_subqueue_is_read_once(tables):
    number = tables.subqueue_id("q", "task:t")
    tables.reload()
    tables.store.trips = 0
    assert {tables.known_subqueue("q", subqueue_of("task:t")) for _ in range(10)} == {number}
    assert tables.subqueue_id("q", "task:t") == number
    assert tables.store.trips == 1
    assert tables.known_subqueue("q", SubqueueKey("other", "")) == -1


def add_attempt(tables, job_id, number, ended):
    columns = (
        "id", "attempt", "delivery", "at", "started", "run_time", "worker", "content_type", "error",
        "ended",
    )  # fmt: skip
    row = (job_id, number, 1, 1.0, 1.0, 1.0, 1, "", b"", ended)
    tables.store.insert("attempts", columns, [row])


def test_histories_go_with_their_outcomes_damaged_ones_too(tables, monkeypatch):
    monkeypatch.setattr("eventmq.engine.writes.SLICE", 2)
    for number, ended in enumerate((0.0, 3.0, 4.0, 5.0, 6.0)):
        add_attempt(tables, f"j{number}", 1, ended)
    tables.store.db.execute("UPDATE attempts SET id = CAST(x'ff' AS TEXT) WHERE ended = 4")
    attempts = Attempts(tables, Timekeeper())
    assert attempts.prune(6.0)
    assert not attempts.prune(6.0)
    assert not attempts.prune(6.0)
    assert list(tables.store.scan("attempts", ("id",))) == [("j0",), ("j4",)]


def test_a_damaged_limiter_does_not_fail_the_commit_that_prunes(tables):
    rows = [("a", "", 1.0, 1.0, 1.0), ("b", "", 1.0, 1.0, 1.0), ("c", "", 1.0, 9.0, 1.0)]
    tables.store.put("limiters", ("task", "key", "tokens", "updated", "period"), rows)
    tables.store.db.execute("UPDATE limiters SET task = CAST(x'ff' AS TEXT) WHERE task = 'a'")
    LimitRows(tables).prune(5.0)
    remaining = [key for (key,) in tables.store.scan("limiters", ("task",), damaged=True)]
    assert remaining == ["c", b"\xff"]


def test_the_newest_outcome_of_an_id_is_returned(tables):
    """Failed outcomes are in a table of their own, which takes precedence."""
    columns = (
        "id", "state", "at", "until", "crc", "content_type", "queue", "task", "attempt", "delivery",
        "created", "started", "run_time", "worker",
    )  # fmt: skip
    for at, state in ((0.0, 4), (7200.0, 6), (3600.0, 7)):
        row = ("id", state, at, at, crc32(b""), "", 1, 1, 1, 1, 1.0, 1.0, 1.0, 1)
        tables.store.put(tables.period(at), columns, [row])
    writes = Writes(tables, 86_400.0, Timekeeper())
    assert writes._ended_states(["id", "other"]) == {"id": 6}


class SharedPeriod(SqliteRows):
    """Has a period that other sessions read, so that it cannot be dropped."""

    in_use = 1

    def drop_period(self, table, number):
        return number != self.in_use and super().drop_period(table, number)


def test_outcomes_are_forgotten_up_to_the_first_period_that_remains(tables):
    """A period that is in use is dropped by a later call, as are the periods after it."""
    for hour in range(4):
        tables.period(3600.0 * hour)
    store = SharedPeriod(tables.store.db, TABLES)
    tables.store = store
    assert tables.drop_periods_before(10_900.0) == 7200.0
    assert (store.periods("outcomes"), list(tables.periods)) == ([1, 2, 3], [1, 2, 3])
    store.in_use = None
    assert tables.drop_periods_before(10_900.0) == 10_900.0
    assert (store.periods("outcomes"), list(tables.periods)) == ([3], [3])


def test_a_queue_stays_as_long_as_a_period_that_may_name_it():
    """Without the name of their queue, outcomes would be taken for damaged ones."""
    clock = FakeClock()
    with closing(connect(":memory:", busy=0.0)) as db:
        for table in TABLES:
            for text in () if table.periodic else definitions(table):
                db.execute(text)
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        engine = Engine(clock, dedupe_window=60.0, keep_results=60.0)
        rows = SharedPeriod(db, TABLES)
        engine.open(rows)
        rows.in_use = int(engine.keeper.now // 5.0)
        queue = engine.tables.queue_id("q")
        engine.tables.queue_id("later")  # the greatest number stays in any case
        engine.tables.period(engine.keeper.now)
        engine.commit([ForgetQueues(("q",), engine.keeper.now)])
        for _ in range(3):
            clock.advance(600.0)
            engine.commit([])
        assert rows.periods("outcomes") == [rows.in_use]
        assert rows.get("queues", ("name",), [queue]) == [("q",)]
        assert engine.tables.queue_name(queue) == "q"
        rows.in_use = None
        for _ in range(3):
            clock.advance(600.0)
            engine.commit([])
        assert rows.periods("outcomes") == []
        assert rows.get("queues", ("name",), [queue]) == [], "no period names it"
