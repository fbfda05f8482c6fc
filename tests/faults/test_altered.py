"""Altered values on the disk: the job fails by name, and nothing else is affected."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.engine.schedules import ScheduleTable
from eventmq.engine.tables import SCHEDULE_TABLES
from eventmq.errors import QueueFull, StoreError
from eventmq.graph import Group, Signature
from eventmq.job import OutcomeKind
from eventmq.plugins.database import SqliteRows, change, connect, definitions
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.store.reads import LoadSchedules
from eventmq.store.writes import Finish
from eventmq.testing.suites.schedule_store import new_schedule
from eventmq.wire.batches import LoggedRow
from eventmq.wire.results import RemoteError, decode_error, encode_error
from tests.support.broker_harness import Broker, chunks, row
from tests.support.graph_jobs import Worker, submit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eventmq.store.reports import Finding


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.close()


def alter(broker: Broker, *sqls: str) -> None:
    """Stop the broker, alter its store, and start it again."""
    assert broker.path is not None
    broker.store.close()
    with closing(connect(broker.path / FILE_NAME, busy=0.0)) as db:
        for sql in sqls:
            assert change(db, sql) == 1, sql
    broker.start()


def run(broker: Broker, session: str = "w") -> list[bytes]:
    """Let a worker run all jobs; return their bodies."""
    identity, bodies, done = session.encode(), [], len(broker.dispatched)
    broker.worker(identity, session)
    while done < len(broker.dispatched):
        [(chunk, index)] = chunks(broker.dispatched[done : done + 1])
        bodies += [index.payload(chunk.body, entry) for entry in index.entries]
        done += 1
        answers = [row(position, result=b"\x05") for position in range(len(index.entries))]
        broker.answer(identity, chunk, answers)
        broker.ready(identity, 1, received=done)
    return bodies


def states(broker: Broker, *ids: str) -> list[str]:
    return [state for _, state in broker.call("state", ids=list(ids))]


def error_of(broker: Broker, job_id: str) -> RemoteError:
    """Return the error of a job as a client gets it."""
    [[_, state, content_type, data]] = broker.call("get", ids=[job_id])
    assert (state, content_type) == ("failed", "error")
    return decode_error(data)


def checksums(broker: Broker) -> list[Finding]:
    """Return the findings of fsck about checksums."""
    assert broker.path is not None
    findings = SqliteTools(broker.path / FILE_NAME, durable=True).check()
    return [finding for finding in findings if finding.check == "checksums"]


_WAITING = "WHERE seq = 2"

#: Alterations of the second of three jobs.
ALTERED = [
    f"UPDATE jobs SET body = 'x' || substr(body, 2) {_WAITING}",
    f"UPDATE jobs SET body = (SELECT body FROM jobs WHERE seq = 1) {_WAITING}",
    f"UPDATE jobs SET headers = replace(headers, 'shop.add', 'shop.bad') {_WAITING}",
    f"UPDATE jobs SET headers = 'priority:many,' || headers {_WAITING}",
    f"UPDATE jobs SET headers = CAST(x'ff' || headers AS TEXT) {_WAITING}",
    f"UPDATE jobs SET crc = crc + 1 {_WAITING}",
]  # fmt: skip


@pytest.mark.parametrize("sql", ALTERED)
def test_an_altered_job_fails_by_name_and_the_others_run(
    broker: Broker, sql: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is never dispatched; fsck lists it, and it cannot be retried."""
    broker.submit(queue="other", body=b"another")
    ids = [broker.submit(body=b"%d---" % n)[0] for n in range(3)]
    alter(broker, sql.replace("seq = 2", "seq = 3").replace("seq = 1", "seq = 2"))
    assert [finding.where for finding in checksums(broker)] == ["jobs"]
    assert ids[1] in checksums(broker)[0].found
    assert run(broker) == [b"0---", b"2---"]
    assert states(broker, *ids) == ["succeeded", "failed", "succeeded"]
    assert ids[1] in caplog.text
    error = error_of(broker, ids[1])
    assert (error.type, ids[1] in error.message) == ("eventmq.errors.StoreError", True)
    [queue] = [row for row in broker.call("queues") if row["name"] == "default"]
    assert (queue["waiting"], queue["failed"]) == (0, 1)
    for _ in range(2):
        assert broker.call("retry", ids=[ids[1]]) == [[ids[1], "failed", "failed"]]
        broker.crash()
    assert run(broker, "v") == []
    [finding] = checksums(broker)
    assert (finding.where, ids[1] in finding.found) == ("failed", True)
    kinds = [event["kind"] for event in broker.events() if event["job_id"] == ids[1]]
    assert kinds == ["enqueued", "failed"]


def test_an_altered_name_of_a_queue_keeps_its_jobs_from_another_queue(broker: Broker) -> None:
    """A worker of the queue with the other name gets none of its jobs."""
    ids = [broker.submit(queue="mail", body=b"mine")[0] for _ in range(2)]
    alter(broker, "UPDATE queues SET name = 'nail' WHERE name = 'mail'")
    broker.worker(queues='[[10, "nail"]]')
    assert broker.dispatched == []
    assert states(broker, *ids) == ["failed", "failed"]
    assert all(job_id in checksums(broker)[0].found for job_id in ids)


@pytest.mark.parametrize("number", ["77", "(SELECT id FROM queues WHERE name = 'other')"])
def test_an_altered_number_of_a_queue_moves_no_job(broker: Broker, number: str) -> None:
    """It is dispatched from the queue that its checksum fits, or not at all."""
    broker.submit(queue="other", body=b"another")
    job_id, _ = broker.submit(body=b"mine")
    alter(broker, f"UPDATE jobs SET queue = {number} WHERE seq = 2")
    assert job_id in checksums(broker)[0].found
    broker.worker(b"v", "v", queues='[[10, "other"]]')
    [(chunk, index)] = chunks(broker.dispatched)
    assert [index.payload(chunk.body, entry) for entry in index.entries] == [b"another"]
    assert run(broker) == [b"mine"]
    [queue] = [row for row in broker.call("queues") if row["name"] == "default"]
    assert (queue["waiting"], queue["failed"]) == (0, 0)


def test_an_altered_job_that_is_delayed_fails_when_it_is_due(broker: Broker) -> None:
    sound, altered = (broker.submit(headers="countdown:5", body=b"1---")[0] for _ in range(2))
    alter(broker, "UPDATE jobs SET body = x'00' WHERE seq = 2")
    assert states(broker, sound, altered) == ["delayed", "delayed"]
    broker.worker()
    broker.wait(6.0)
    assert states(broker, sound, altered) == ["running", "failed"]
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["delayed"], queue["failed"]) == (0, 0, 1)


def test_an_altered_job_that_was_leased_is_not_handed_out_again(broker: Broker) -> None:
    """Its worker may be lost, and the stored job differs from the one that it had."""
    job_id, _ = broker.submit(body=b"1---")
    broker.worker()
    assert len(broker.dispatched) == 1
    alter(broker, "UPDATE jobs SET body = x'00' WHERE seq = 1")
    broker.dispatched.clear()
    assert run(broker, "other") == []
    broker.wait(60.0)
    assert broker.dispatched == []
    assert states(broker, job_id) == ["failed"]


def test_an_altered_job_that_is_in_memory_runs_as_it_was(broker: Broker) -> None:
    """A job that this broker admitted is not read from the disk."""
    job_id, _ = broker.submit(body=b"1---")
    broker.store._db.execute("UPDATE jobs SET body = x'00'")
    queue = broker.core.state.queues["default"]
    queue.rewind(next(iter(queue.subqueues)))
    assert run(broker) == [b"1---"]
    assert states(broker, job_id) == ["succeeded"]


def test_a_full_disk_does_not_lose_the_end_of_an_altered_job(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written when there is space again; until then the job is not dispatched."""
    job_id, _ = broker.submit(body=b"1---")
    alter(broker, "UPDATE jobs SET body = x'00' WHERE seq = 1")
    commit, refused = broker.store._commit, []

    def full_once(batch: Sequence[Any]) -> Any:
        if not refused and any(isinstance(entry, Finish) for entry in batch):
            refused.append(batch)
            return QueueFull("the disk is full")
        return commit(batch)

    monkeypatch.setattr(broker.store, "_commit", full_once)
    assert run(broker) == []
    assert len(refused) == 1
    broker.wait(2.0)
    assert states(broker, job_id) == ["failed"]
    assert broker.dispatched == []


# Results


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE {} SET result = x'06' || substr(result, 2)",
        "UPDATE {} SET content_type = 'json'",
        "UPDATE {} SET content_type = CAST(x'ff' AS TEXT)",
        "UPDATE {} SET crc = 7",
        "UPDATE {} SET result = NULL",
        "UPDATE {} SET state = 5",
        "UPDATE queues SET name = 'other'",
        "UPDATE names SET name = 'other.task' WHERE name = 'shop.add'",
    ],
)
def test_an_altered_result_is_an_error_with_the_name_of_its_job(
    broker: Broker, sql: str, caplog: pytest.LogCaptureFixture, *, long: bool
) -> None:
    """Even if it is long, and read after its row."""
    job_id, _ = broker.submit()
    broker.worker()
    [(chunk, _)] = chunks(broker.dispatched)
    broker.answer(b"worker", chunk, [row(result=b"\x05" * (9000 if long else 2))])
    assert broker.call("get", ids=[job_id])[0][1] == "succeeded"
    [period] = broker.store.engine.tables.periods
    alter(broker, sql.format(f"outcomes_{period}"))
    error = error_of(broker, job_id)
    assert (error.type, job_id in error.message) == ("eventmq.errors.StoreError", True)
    assert job_id in caplog.text
    assert broker.call("list", limit=5)
    assert [job_id in finding.found for finding in checksums(broker)] == [True]


def test_an_altered_error_of_a_failed_job_is_reported(broker: Broker) -> None:
    """The job itself is sound and may be retried; each attempt has its own error."""
    job_id, _ = broker.submit(body=b"1---")
    broker.worker()
    [(chunk, _)] = chunks(broker.dispatched)
    failed = {"kind": int(OutcomeKind.FAILED), "content_type": "error"}
    error = encode_error(RemoteError("ValueError", "no"))
    broker.answer(b"worker", chunk, [row(result=error, **failed)])
    alter(broker, "UPDATE failed SET result = replace(result, 'no', 'on')")
    assert job_id in error_of(broker, job_id).message
    assert broker.call("retry", ids=[job_id]) == [[job_id, "queued", "failed"]]
    assert run(broker, "v") == [b"1---"]


def test_an_altered_error_of_an_attempt_is_reported(broker: Broker) -> None:
    job_id, _ = broker.submit()
    broker.worker()
    [(chunk, _)] = chunks(broker.dispatched)
    error = encode_error(RemoteError("ValueError", "no"))
    broker.answer(b"worker", chunk, [row(0, int(OutcomeKind.RETRY), error, content_type="error")])
    alter(broker, "UPDATE attempts SET error = x'00'")
    assert "is damaged in the store" in str(broker.call("info", id=job_id))


def test_an_altered_log_is_reported(broker: Broker) -> None:
    job_id, _ = broker.submit()
    broker.worker()
    broker.answer(b"worker", broker.dispatched[0], [LoggedRow.of(row(), b"sold 3\n")])
    alter(broker, "UPDATE job_logs SET body = CAST('sold 9' || x'0a' AS BLOB)")
    [log] = broker.call("info", id=job_id, logs=True)["logs"]
    assert log["text"].startswith(f"[the record of job {job_id} is damaged in the store")


# Graphs


def half_done(broker: Broker) -> list[str]:
    """Return the ids of ``(a, b) | c``, with ``a`` ended and ``b`` leased."""
    a, b, c = map(Signature, "abc")
    ids = submit(broker, Group((a, b)) | c)
    broker.worker(window=1, session="w0")
    [(chunk, index)] = chunks(broker.dispatched[:1])
    index_ids = [entry.id for entry in index.entries]
    broker.answer(
        b"worker", chunk, [row(index_ids.index(ids[0]), result=b"a", content_type="json")]
    )
    broker.dispatched.clear()
    return ids


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("UPDATE member_results SET result = x'00'", 0),
        ("UPDATE member_results SET id = CAST(x'ff' AS TEXT)", None),
        ("UPDATE join_arguments SET tree = x'9101'", None),
        ("UPDATE jobs SET body = x'00' WHERE state = 0", 2),
    ],
)
def test_a_job_with_an_altered_input_fails(broker: Broker, sql: str, named: int | None) -> None:
    """It gets neither another value nor another order of values."""
    ids = half_done(broker)
    alter(broker, sql)
    assert checksums(broker)
    worker = Worker(broker)
    broker.wait(60.0)  # until the worker from before is lost
    worker.join()
    worker.work()
    assert "c" not in "".join(worker.ran)
    error = error_of(broker, ids[2])
    assert "damaged" in error.message
    assert named is None or ids[named] in error.message
    assert states(broker, *ids[:2]) == ["succeeded", "succeeded"]


# Schedules


def test_an_altered_schedule_does_not_fire_and_can_be_defined_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others fire; the arguments of its job are altered."""
    with closing(connect(tmp_path / "s", busy=0.0)) as db:
        for statement in [text for table in SCHEDULE_TABLES for text in definitions(table)]:
            db.execute(statement)
        table = ScheduleTable(SqliteRows(db, SCHEDULE_TABLES))
        for name in ("good", "bad", "ugly"):
            assert table.put(new_schedule(name), 1.0)[0] == "done"
        db.execute("UPDATE schedules SET definition = replace(definition, 't', 'u') "
                   "WHERE name = 'bad'")  # fmt: skip
        db.execute("UPDATE schedules SET name = CAST(x'ff' AS TEXT) WHERE name = 'ugly'")
        assert [row.name for row in table.load(LoadSchedules()).rows] == ["good"]
        assert "the schedule 'bad' is damaged in the store: define it again" in caplog.text
        with pytest.raises(StoreError, match="'bad' is damaged"):
            table.find("bad")
        assert table.put(new_schedule("bad"), 1.0)[0] == "done"
        assert [row.name for row in table.load(LoadSchedules()).rows] == ["good", "bad"]
