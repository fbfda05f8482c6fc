"""The longest texts that a broker accepts fit into each index, even without compression."""

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

#: Column -> the most bytes of its texts in indexes. Columns of numbers of names are not among them.
NAME, KEY = 4 * LIMITS.max_id, LIMITS.max_unique
BYTES = {
    "id": NAME, "job": NAME, "session": NAME, "task": KEY, "key": KEY, "unique_key": KEY,
    # The name of a task, a tab, and the owner of the job: a fingerprint and a group.
    ("names", "name"): KEY + 1 + 200,
    # 200 characters of the type of an error.
    ("failed", "error"): 4 * 200,
    ("queues", "name"): NAME, ("schedules", "name"): NAME,
}  # fmt: skip


def text(size):
    """Return a text of this many bytes, made of characters of four bytes."""
    wide = "".join(chr(RANDOM.randrange(0x10000, 0x10FFFF)) for _ in range(size // 4))
    return wide + "x" * (size % 4)


def name():
    """Return a name or an id of the greatest length that a broker accepts."""
    return text(NAME)


def key():
    """Return a key, or the name of a task, of the greatest length that a broker accepts."""
    return text(KEY)


@pytest.mark.parametrize("table", [*TABLES, *SCHEDULE_TABLES], ids=lambda table: table.name)
def test_every_index_has_room_for_the_longest_texts(rows_url, table):
    """An index of several columns has to hold the longest texts of all of them."""
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
    """Submit a job with the longest id, and return the id."""
    all_headers = {"task": task, "content-type": "msgpack", **headers}
    listed = ",".join(f"{name}:{quote(value)}" for name, value in all_headers.items())
    job_id = name()
    [answer] = broker.tell(b"client", Request(job_id, queue, f"ack-requested,{listed}", b"x"))
    assert isinstance(answer, Ack), answer
    return job_id


def work(broker, session, queue, failing):
    """Run all jobs as a worker, and let those with ids in ``failing`` fail."""
    broker.worker(session=session, window=9, queues=f'[[10, "{queue}"], [10, "default"]]')
    answered = 0
    while answered < len(broker.dispatched):
        [(chunk, index)] = chunks(broker.dispatched[answered : answered + 1])
        answered += 1
        kinds = [OutcomeKind.FAILED if job.id in failing else 0 for job in index.entries]
        rows = [row(position, int(kind)) for position, kind in enumerate(kinds)]
        broker.answer(b"worker", chunk, rows)
        broker.ready(b"worker", 9, received=answered)


def test_a_broker_stores_the_longest_texts_that_it_accepts(broker, rows_url):
    """The jobs succeed, fail, or belong to graphs, and there is a schedule."""
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
