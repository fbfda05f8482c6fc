"""The longest texts that a broker takes fit into every index, however hard they are to compress."""

from __future__ import annotations

import random
from urllib.parse import quote

import psycopg
import pytest

from eventmq.broker.limits import Limits
from eventmq.engine import SCHEDULE_TABLES, TABLES, pack_row, period_name
from eventmq.graph import Signature
from eventmq.job import OutcomeKind
from eventmq.schedule import Schedule
from eventmq.wire.commands import Ack, Request
from eventmq_contrib.postgres.connection import Database
from eventmq_contrib.postgres.rowstore import PostgresRows
from tests.support.broker_harness import chunks, row
from tests.support.graph_jobs import request

LIMITS = Limits()

RANDOM = random.Random(1)

#: Bytes that the texts of indexes have at most, by column; a number stands for any name.
NAME, KEY = 4 * LIMITS.max_id, LIMITS.max_unique
BYTES = {
    "id": NAME, "job": NAME, "session": NAME, "task": KEY, "key": KEY, "unique_key": KEY,
    # Of a task, with the owner of its job behind a tab: a fingerprint and a group.
    ("names", "name"): KEY + 1 + 200,
    ("queues", "name"): NAME, ("schedules", "name"): NAME,
}  # fmt: skip


def text(size):
    """Return a text of so many bytes, in characters of four bytes each but the last."""
    wide = "".join(chr(RANDOM.randrange(0x10000, 0x10FFFF)) for _ in range(size // 4))
    return wide + "x" * (size % 4)


def name():
    """Return a name or an id as long as a broker takes it."""
    return text(NAME)


def key():
    """Return a key, or the name of a task, as long as a broker takes it."""
    return text(KEY)


@pytest.mark.parametrize("table", [*TABLES, *SCHEDULE_TABLES], ids=lambda table: table.name)
def test_every_index_has_place_for_the_longest_texts(rows_url, table):
    """Together, where an index has several."""
    rows = PostgresRows.open(Database.of(rows_url))
    indexed = {*table.key, *(column for index in table.indexes for column in index.columns)}
    values = {
        column.name: text(BYTES.get(column.name) or BYTES[table.name, column.name])
        if column.type == "text" and column.name in indexed
        else {"text": "", "integer": 1, "real": 1.0, "bytes": b""}[column.type]
        for column in table.columns
    }
    try:
        rows.begin(careful=True)
        where = table.name
        if table.periodic:
            rows.make_period(table.name, 7)
            where = period_name(table.name, 7)
        rows.insert(where, list(values), [tuple(values.values())])
        rows.commit()
        [row] = rows.scan(where, list(values))
        assert row == tuple(values.values())
    finally:
        rows.close()


def submit(broker, task, queue, **headers):
    """Submit a job with an id as long as may be; return the id."""
    all_headers = {"task": task, "content-type": "msgpack", **headers}
    listed = ",".join(f"{name}:{quote(value)}" for name, value in all_headers.items())
    job_id = name()
    [answer] = broker.tell(b"client", Request(job_id, queue, f"ack-requested,{listed}", b"x"))
    assert isinstance(answer, Ack), answer
    return job_id


def work(broker, session, queue, failing):
    """Be the worker of all jobs that come, of which some fail."""
    broker.worker(session=session, window=9, queues=f'[[10, "{queue}"], [10, "default"]]')
    answered = 0
    while answered < len(broker.dispatched):
        [(chunk, index)] = chunks(broker.dispatched[answered : answered + 1])
        answered += 1
        kinds = [OutcomeKind.FAILED if job.id in failing else 0 for job in index.entries]
        rows = [row(position, int(kind)) for position, kind in enumerate(kinds)]
        broker.answer(b"worker", chunk, rows)
        broker.ready(b"worker", 9, received=answered)


def test_a_broker_stores_the_longest_texts_that_it_takes(broker, rows_url):
    """Over the lives of jobs that succeed and fail, in graphs, and in schedules."""
    queue, task, limits = name(), key(), {"limit-rate": "1/d", "limit-running": "9"}
    done = submit(broker, task, queue, unique=key(), **{"limit-key": key()}, **limits)
    failed = submit(broker, task, queue, unique=key(), **{"limit-key": key()}, **limits)
    ids, graph = request(broker, Signature("a") | Signature("b"))
    [answer] = broker.tell(b"client", graph)
    assert isinstance(answer, Ack)
    worker = name()
    work(broker, worker, queue, {failed})
    schedule = Schedule(name=name(), task="t", queue=queue, trigger="every:{}")
    broker.core.schedules.check = lambda trigger: None
    saved = broker.call("schedules.save", rows=[[list(pack_row(schedule)), None]])
    assert saved["done"] == [True]
    broker.call("pause", queue=queue)
    before = dict(broker.call("state", ids=[done, failed, *ids]))
    assert list(before.values()) == ["succeeded", "failed", "succeeded", "succeeded"]
    broker.crash()
    assert dict(broker.call("state", ids=list(before))) == before
    broker.call("bulk", id=name(), action="drop", queue=queue)
    broker.tick()
    assert broker.call("state", ids=[failed]) == [[failed, ""]]
    with psycopg.connect(rows_url) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM eventmq.names")}
    assert {task, worker} <= names
