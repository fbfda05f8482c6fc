"""Jobs without guarantee: in memory only, at most once, limited; stored jobs are not affected."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.limits import Limits
from eventmq.job import OutcomeKind
from eventmq.wire.batches import decode_exceptions, encode_batch, pack, unpack
from eventmq.wire.commands import Ack, Call, Cancel, Error, Inform, Kbai, Ready, Reply, Request
from eventmq.wire.results import decode_error
from tests.support.broker_harness import TASK, Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLAIN = b'["run", {}]'
FREE = f"{TASK},guarantee:False"

SMALL = Limits(
    transient_jobs=3, transient_bytes=1000, transient_results=3, transient_result_bytes=1000,
    transient_result_ttl=100.0,
)  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, limits=SMALL)
    yield broker
    broker.close()


def submit(broker: Broker, more: str = "", **fields: Any) -> str:
    """Submit a job without guarantee; check its ACK."""
    job_id, got = broker.submit(headers=",".join(filter(None, ["guarantee:False", more])), **fields)
    [ack] = got
    assert isinstance(ack, Ack)
    assert ack.acked == job_id
    return job_id


def result_of(broker: Broker, job_id: str) -> tuple[str, bytes | None]:
    """Return state and result of an ended job; ("", None) for an unknown one."""
    [[_, state, _, result]] = broker.call("get", ids=[job_id])
    return state, result


def stored(broker: Broker) -> dict[str, int]:
    """Return the numbers of rows that the store has."""
    db = broker.store._db
    names = ["jobs", "failed", "chunks"]
    names += [f"outcomes_{n}" for n in broker.store.engine.tables.periods]
    return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def ids(broker: Broker) -> list[list[str]]:
    """Return the ids of all chunks in order."""
    return [[entry.id for entry in index.entries] for _, index in chunks(broker.dispatched)]


def test_a_job_without_guarantee_costs_no_commit_from_receipt_to_result(broker: Broker) -> None:
    """It is kept in memory, and acknowledged when admitted."""
    broker.worker()
    broker.put(b"client", Request("j", "default", f"ack-requested,{FREE}", b"x"))
    broker.core.decide(broker.clock.now())
    assert not broker.core.has_writes
    broker.tick()
    assert [m.acked for m in broker.took(b"client") if isinstance(m, Ack)] == ["j"]
    broker.put(b"client", Call("c", "get", pack({"ids": ["j"]})))
    [chunk] = broker.dispatched
    assert [m for m in broker.answer(b"worker", chunk, [row()]) if isinstance(m, Ack)]
    [reply] = broker.took(b"client")
    assert isinstance(reply, Reply)
    assert unpack(reply.result, "") == [["j", "succeeded", "msgpack", b"\xc0"]]
    assert set(stored(broker).values()) == {0}


def test_the_result_is_kept_for_a_while_and_then_the_job_is_unknown(small: Broker) -> None:
    small.worker()
    job_id = submit(small)
    small.answer(b"worker", small.dispatched[0], [row(result=b"\x07")])
    assert result_of(small, job_id) == ("succeeded", b"\x07")
    assert small.call("state", ids=[job_id]) == [[job_id, "succeeded"]]
    small.wait(101.0)
    assert result_of(small, job_id) == ("", None)
    assert len(small.core.state.transient.results) == 0


def test_results_are_bounded_in_number_and_bytes(small: Broker) -> None:
    """The oldest ones are forgotten first."""
    small.worker()
    done = []
    for n in range(5):
        done.append(submit(small))
        small.answer(b"worker", small.dispatched[-1], [row(result=b"x" * 400)])
        small.ready(b"worker", 1, received=n + 1)
    assert [result_of(small, job_id)[0] for job_id in done] == ["", "", "", *["succeeded"] * 2]
    assert small.core.state.transient.results._bytes == 800


def test_an_ignored_result_leaves_the_state(broker: Broker) -> None:
    broker.worker()
    job_id = submit(broker, "ignore-result")
    broker.answer(b"worker", broker.dispatched[0], [row()])
    assert result_of(broker, job_id) == ("succeeded", None)


def test_more_jobs_than_the_bound_are_refused_with_a_reason(small: Broker) -> None:
    """Limited in number and in bytes; ended jobs make room."""
    small.worker()
    for _ in range(3):
        submit(small)
    _, [error] = small.submit(headers="guarantee:False")
    assert isinstance(error, Error)
    text = "the broker has 3 jobs without guarantee, its maximum"
    assert (error.code, error.text) == ("queue-full", text)
    small.answer(b"worker", small.dispatched[0], [row()])
    _, [error] = small.submit(headers="guarantee:False", body=b"x" * 999)
    assert isinstance(error, Error)
    assert "1000 bytes" in error.text
    submit(small, body=b"x" * 998)
    assert small.core.state.transient.bytes == 1000


def test_stored_jobs_are_not_counted_against_the_bound(small: Broker) -> None:
    for _ in range(5):
        assert isinstance(small.submit()[1][0], Ack)
    submit(small)


def test_they_fill_a_queue_together_with_stored_ones(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=Limits(max_queue_length=3))
    submit(broker)
    broker.submit()
    submit(broker, "countdown:5")
    for headers in ("", "guarantee:False"):
        _, [error] = broker.submit(headers=headers)
        assert isinstance(error, Error)
        assert error.code == "queue-full"
    broker.close()


def test_the_same_id_again_is_the_same_job(broker: Broker) -> None:
    """A client that missed the ACK repeats its REQUEST, also after the job has ended."""
    broker.worker()
    job_id = submit(broker)
    submit(broker, job_id=job_id)
    broker.answer(b"worker", broker.dispatched[0], [row()])
    submit(broker, job_id=job_id)
    assert ids(broker) == [[job_id]]


@pytest.mark.parametrize("headers", ["guarantee:False,retry-count:2"])
def test_retries_without_guarantee_are_refused(broker: Broker, headers: str) -> None:
    job_id, [error] = broker.submit(headers=headers)
    assert isinstance(error, Error)
    assert error.code == "bad-header"
    assert "retry-count" in error.text
    assert broker.call("state", ids=[job_id]) == [[job_id, ""]]


def test_one_batch_may_have_jobs_of_both_kinds(small: Broker) -> None:
    """Both kinds are refused by index."""
    templates = [("default", TASK), ("default", FREE), ("default", f"{FREE},retry-count:1")]
    names = [small.new_id() for _ in range(7)]
    jobs = [(job_id, (0, 1, 1, 2, 1, 1, 0)[i], b"x") for i, job_id in enumerate(names)]
    body = encode_batch(templates, jobs)
    [ack] = small.tell(b"client", Request("m", "", "batch:7", body))
    assert isinstance(ack, Ack)
    refused = decode_exceptions(ack.extra or b"")
    assert {position: code for position, (code, _) in refused.items()} == {
        3: "bad-header",
        5: "queue-full",
    }
    assert stored(small)["jobs"] == 2
    assert len(small.core.state.transient.jobs) == 3


def test_a_batch_without_guarantee_needs_no_commit(broker: Broker) -> None:
    names = [broker.new_id() for _ in range(3)]
    body = encode_batch([("default", FREE)], [(job_id, 0, b"x") for job_id in names])
    broker.put(b"client", Request("m", "", "batch:3", body))
    assert not broker.core.has_writes
    broker.tick()
    assert [m.acked for m in broker.took(b"client") if isinstance(m, Ack)] == ["m"]


def test_both_kinds_of_a_queue_go_out_in_the_order_of_rank(broker: Broker) -> None:
    """A chunk has one kind of jobs; the better rank comes first, whatever its kind."""
    first = submit(broker)
    broker.wait(1.0)
    second, _ = broker.submit()
    broker.wait(1.0)
    third = submit(broker)
    urgent, _ = broker.submit(headers="priority:9")
    broker.worker(window=4)
    sent = [job_id for chunk in ids(broker) for job_id in chunk]
    assert sent == [urgent, first, second, third]
    numbers = [chunk.headers for chunk, _ in chunks(broker.dispatched)]
    assert numbers == [f"chunk:{n}" for n in range(1, 5)]


@pytest.mark.parametrize("more", ["", "limit-key:k"], ids=["by rank", "with keys"])
def test_jobs_of_both_kinds_that_come_together_go_out_in_a_chunk_of_each(
    broker: Broker, more: str
) -> None:
    """Even if they alternate, since a chunk is either stored or not."""
    kept = ",".join(filter(None, [TASK, more]))
    names = [broker.new_id() for _ in range(8)]
    jobs = [(job_id, i % 2, b"x") for i, job_id in enumerate(names)]
    body = encode_batch([("default", kept), ("default", FREE)], jobs)
    broker.tell(b"client", Request("m", "", "batch:8", body))
    broker.core.state.run_times["shop.add"] = 0.0001
    broker.worker()
    broker.ready(b"worker", 2, received=1, held=(1,))
    assert sorted(map(sorted, ids(broker))) == sorted([names[::2], names[1::2]])
    assert stored(broker)["chunks"] == 1


def test_what_is_not_stored_stays_in_memory_where_the_rest_leaves_it(tmp_path: Path) -> None:
    """The limit of the window applies to jobs that can be read again."""
    broker = Broker(tmp_path, limits=Limits(queue_window=50))
    other = "task:shop.other,content-type:msgpack"
    for count, text in ((60, FREE), (48, TASK), (4, other)):
        body = encode_batch([("default", text)], [(broker.new_id(), 0, b"x") for _ in range(count)])
        broker.tell(b"client", Request(broker.new_id(), "", f"batch:{count}", body))
    queue = broker.core.state.queues["default"]
    in_memory = {key.transient: len(each) for key, each in queue.subqueues.items()}
    assert (queue.transient, in_memory[True], len(queue)) == (60, 60, 110)
    assert set(broker.core.state.transient.jobs) <= set(broker.core.state.jobs)
    broker.close()


@pytest.mark.parametrize("more", ["", "countdown:1"], ids=["ready", "delayed"])
@pytest.mark.parametrize("stored_first", [True, False])
def test_a_stored_job_with_the_same_id_runs_as_well(
    broker: Broker, more: str, *, stored_first: bool
) -> None:
    """It has a receipt; it waits in the store until the transient job has ended."""
    job_id = broker.new_id()
    if stored_first and more:
        broker.submit(job_id, headers=more)
    submit(broker, job_id=job_id)
    if not stored_first or not more:
        broker.submit(job_id, headers=more)
    broker.wait(2.0)
    broker.worker(window=2)
    assert ids(broker) == [[job_id]]
    assert stored(broker) | {"jobs": 1, "chunks": 0} == stored(broker)
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.ready(b"worker", 1, received=1)
    broker.wait(0.5)
    assert ids(broker) == [[job_id], [job_id]]
    assert stored(broker)["chunks"] == 1
    broker.answer(b"worker", broker.dispatched[1], [row(result=b"\x05")])
    assert result_of(broker, job_id)[0] == "succeeded"
    assert stored(broker)["jobs"] == 0
    assert broker.core.state.queues["default"].counts.queued == 0


@pytest.mark.parametrize("leased", [False, True], ids=["waiting", "leased"])
def test_the_end_of_a_stored_job_leaves_the_other_one_with_its_id(
    broker: Broker, *, leased: bool
) -> None:
    job_id = submit(broker)
    broker.submit(job_id)
    if leased:
        broker.worker()
    operation = {"id": "s", "action": "cancel", "queue": "default"}
    assert broker.call("bulk", **operation)["done"] is False
    broker.wait(1.0)
    assert broker.call("bulk", id="s")["count"] == 1
    if not leased:
        broker.worker()
    queue = broker.core.state.queues["default"]
    assert (stored(broker)["jobs"], queue.running, queue.counts.queued) == (0, 1, 1)
    broker.answer(b"worker", broker.dispatched[0], [row(result=b"\x05")])
    assert broker.core.state.counters["stale_outcomes"] == 0
    assert (queue.running, queue.counts.queued, len(queue)) == (0, 0, 0)
    assert broker.core.state.transient.jobs == {}


def test_a_stored_job_of_the_same_id_is_the_same_job(broker: Broker) -> None:
    """While it is in memory, no second one is admitted beside it."""
    job_id, _ = broker.submit()
    submit(broker, job_id=job_id)
    broker.worker()
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.ready(b"worker", 1, received=1)
    assert ids(broker) == [[job_id]]
    assert stored(broker)["jobs"] == 0


def test_what_suits_the_worker_is_not_held_up_by_the_other_kind(broker: Broker) -> None:
    other = "task:shop.other,content-type:msgpack"
    broker.tell(b"c", Request("far", "default", other, b"x"))
    near = submit(broker)
    broker.worker(tasks=("shop.add",))
    assert ids(broker) == [[near]]


def test_a_delayed_job_waits_for_its_time(broker: Broker) -> None:
    broker.worker()
    job_id = submit(broker, "countdown:5")
    assert broker.call("state", ids=[job_id]) == [[job_id, "delayed"]]
    assert broker.core.next_tick(broker.clock.now() + 4.9) == broker.clock.now() + 5.0
    broker.wait(5.0)
    assert ids(broker) == [[job_id]]


def test_a_job_that_expired_while_it_waited_is_not_started(broker: Broker) -> None:
    job_id = submit(broker, f"expires:{broker.clock.now() + 5}")
    broker.wait(6.0)
    broker.worker()
    assert result_of(broker, job_id)[0] == "expired"
    assert broker.dispatched == []


def test_a_job_expires_without_a_worker_and_without_a_commit(broker: Broker) -> None:
    job_id = submit(broker, f"expires:{broker.clock.now() + 5}")
    broker.wait(4.0)
    assert broker.call("state", ids=[job_id]) == [[job_id, "queued"]]
    broker.clock.time += 2.0
    broker.core.decide(broker.now())
    assert {type(write).__name__ for write in broker.core.state.writes} == {"RecordEnds"}
    broker.tick()
    assert result_of(broker, job_id)[0] == "expired"
    assert len(broker.core.state.queues["default"]) == 0


# At most once


def lost(broker: Broker, job_id: str) -> None:
    state, result = result_of(broker, job_id)
    assert state == "failed"
    assert decode_error(result or b"").type == "eventmq.errors.WorkerLost"
    assert broker.core.state.counters["transient_lost"] == 1


def test_the_jobs_of_a_lost_worker_end_and_are_not_run_again(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """They may have run; waiting peers are answered, and the loss is counted and logged."""
    broker.worker()
    job_id = submit(broker)
    with caplog.at_level(logging.WARNING, "eventmq.broker"):
        broker.tell(b"worker", Kbai("bye"))
    lost(broker, job_id)
    assert f"the first is {job_id}" in caplog.text
    broker.worker(b"other", "other")
    assert ids(broker) == [[job_id]]


@pytest.mark.parametrize(
    "kind", [OutcomeKind.DIED, OutcomeKind.LOST, OutcomeKind.UNANSWERED], ids=lambda kind: kind.name
)
def test_a_job_whose_process_died_is_lost_and_its_companions_go_on(
    broker: Broker, kind: OutcomeKind
) -> None:
    """Started jobs may have run, whatever the cause; handed-back jobs had not."""
    first, second = submit(broker), submit(broker)
    broker.core.state.run_times["shop.add"] = 0.001
    broker.worker()
    [chunk] = broker.dispatched
    rows = [row(0, kind), row(1, OutcomeKind.HANDED_BACK)]
    broker.answer(b"worker", chunk, rows)
    lost(broker, first)
    broker.ready(b"worker", 1, received=1)
    assert ids(broker) == [[first, second], [second]]


def test_a_chunk_that_could_not_be_sent_goes_to_another_worker(broker: Broker) -> None:
    broker.worker(b"w1", "one")
    broker.unreachable.add(b"w1")
    job_id = submit(broker)
    assert broker.dispatched == []
    broker.worker(b"w2", "two")
    assert ids(broker) == [[job_id]]


def test_a_chunk_that_the_worker_never_had_is_given_out_again(broker: Broker) -> None:
    """The worker has received a later chunk, and does not list this one."""
    broker.worker(window=2)
    first, second = submit(broker), submit(broker)
    broker.ready(b"worker", 2, received=2, held=(2,))
    assert ids(broker) == [[first], [second], [first]]


def test_a_resent_chunk_that_could_not_be_sent_is_lost_with_its_session(broker: Broker) -> None:
    """The first copy may have arrived."""
    broker.worker()
    job_id = submit(broker)
    broker.wait(4.0)
    broker.unreachable.add(b"worker")
    broker.ready(b"worker", 1, received=0)
    assert [[job_id, "running"]] == broker.call("state", ids=[job_id])
    broker.wait(broker.limits.grace + 1.0)
    lost(broker, job_id)
    broker.worker(b"w2", "two")
    assert ids(broker) == [[job_id]]


def test_a_task_that_asks_for_another_try_has_failed(broker: Broker) -> None:
    broker.worker()
    job_id = submit(broker)
    broker.answer(b"worker", broker.dispatched[0], [row(0, OutcomeKind.RETRY, b"why")])
    assert result_of(broker, job_id) == ("failed", b"why")


def test_jobs_without_guarantee_are_gone_after_a_restart(broker: Broker) -> None:
    """A later answer is acknowledged and changes nothing."""
    broker.worker()
    job_id = submit(broker)
    [chunk] = broker.dispatched
    broker.crash()
    broker.worker(received=1, held=(1,))
    assert broker.call("state", ids=[job_id]) == [[job_id, ""]]
    [ack] = broker.answer(b"worker", chunk, [row()])
    assert isinstance(ack, Ack)


def test_unfinished_jobs_are_counted_in_the_log_when_the_broker_ends(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    submit(broker)
    with caplog.at_level(logging.WARNING, "eventmq.broker"):
        broker.core.close(broker.clock.now())
    assert "1 unfinished jobs without guarantee are lost" in caplog.text


def test_a_task_that_no_worker_knows_fails_after_the_grace(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=Limits(unknown_task_grace=5.0))
    broker.worker(tasks=("shop.other",))
    job_id = submit(broker)
    broker.wait(4.0)
    assert broker.call("state", ids=[job_id]) == [[job_id, "queued"]]
    broker.wait(3.0)
    state, result = result_of(broker, job_id)
    assert state == "failed"
    assert decode_error(result or b"").type == "eventmq.errors.UnknownTask"
    broker.close()


def test_the_grace_stands_still_while_the_broker_is_away(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=Limits(unknown_task_grace=5.0))
    broker.worker(tasks=("shop.other",))
    first = submit(broker)
    broker.wait(4.0)
    second = submit(broker)
    for _ in range(2):
        broker.clock.time += 3600.0
        broker.core.shift(broker.now(), 3600.0)
        broker.tick()
    assert broker.call("state", ids=[first, second]) == [[first, "queued"], [second, "queued"]]
    broker.wait(2.0)
    assert broker.call("state", ids=[first, second]) == [[first, "failed"], [second, "failed"]]
    third = submit(broker)
    broker.wait(4.0)
    assert broker.call("state", ids=[third]) == [[third, "queued"]]
    broker.close()


def test_a_delayed_job_waits_from_when_it_is_due_within_the_time_away(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=Limits(unknown_task_grace=5.0))
    broker.worker(tasks=("shop.other",))
    job_id = submit(broker, "countdown:1000")
    broker.clock.time += 3600.0
    broker.core.shift(broker.now(), 3600.0)
    broker.wait(4.0)
    assert broker.call("state", ids=[job_id]) == [[job_id, "queued"]]
    broker.wait(3.0)
    assert broker.call("state", ids=[job_id]) == [[job_id, "failed"]]
    broker.close()


def test_a_worker_that_does_not_know_the_task_is_not_asked_twice(broker: Broker) -> None:
    broker.worker(b"w1", "one")
    job_id = submit(broker)
    broker.answer(b"w1", broker.dispatched[0], [row(0, OutcomeKind.UNKNOWN_TASK)])
    broker.ready(b"w1", 1, received=1)
    assert len(broker.dispatched) == 1
    broker.worker(b"w2", "two")
    assert ids(broker) == [[job_id], [job_id]]


# Cancelling


def test_jobs_without_guarantee_can_be_cancelled(broker: Broker) -> None:
    """Waiting, delayed or running; a running one's answer is stale."""
    broker.worker()
    running = submit(broker)
    delayed = submit(broker, "countdown:5")
    waiting, kept = submit(broker), submit(broker)
    broker.sent.clear()
    rows = broker.call("cancel", ids=[running, delayed, waiting, "nobody"], reason="enough")
    assert rows[:3] == [
        [running, "cancelled", "running"],
        [delayed, "cancelled", "delayed"],
        [waiting, "cancelled", "queued"],
    ]
    assert [m.job for m in broker.took(b"worker") if isinstance(m, Cancel)] == [running]
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.ready(b"worker", 2, received=2, held=(2,))
    broker.wait(6.0)
    assert {result_of(broker, i)[0] for i in (running, delayed, waiting)} == {"cancelled"}
    assert ids(broker) == [[running], [kept]]
    assert broker.core.state.transient.bytes == 1


def test_a_paused_queue_gives_out_no_jobs_without_guarantee(broker: Broker) -> None:
    broker.worker(window=0)
    job_id = submit(broker)
    broker.call("pause", queue="default")
    broker.ready(b"worker", 1)
    assert ids(broker) == []
    broker.call("resume", queue="default")
    broker.tick()
    assert ids(broker) == [[job_id]]


# Legacy peers


def test_legacy_peers_take_part(broker: Broker) -> None:
    """guarantee:False alone requests no ACK; the result is sent if it was requested."""
    broker.tell(b"old", Inform("i", '[[10, "default"]]', "worker"))
    broker.tell(b"old", Ready("r"))
    got = broker.tell(b"c", Request("p", "default", "guarantee:False", PLAIN))
    assert got == []
    assert [request.id for request in broker.dispatched] == ["p"]
    broker.tell(b"old", Reply("x", b'{"value": 3}', "p"))
    broker.tell(b"old", Ready("r2"))
    broker.tell(b"c", Request("q", "default", "guarantee:False,reply-requested", PLAIN))
    broker.tell(b"old", Reply("y", b'{"value": 4}'))
    answers = [m for m in broker.took(b"c") if isinstance(m, Reply)]
    assert [(m.result, m.request) for m in answers] == [(b'{"value": 4}', "q")]
    assert set(stored(broker).values()) == {0}


def test_a_repeated_legacy_request_gets_the_reply_that_it_missed(broker: Broker) -> None:
    broker.worker(callables=("jobs.*",))
    broker.tell(b"c", Request("p", "default", "guarantee:False", PLAIN))
    broker.answer(b"worker", broker.dispatched[0], [row(result=b'{"value": 1}')])
    got = broker.tell(b"c", Request("p", "default", "guarantee:False,reply-requested", PLAIN))
    assert [m.result for m in got if isinstance(m, Reply)] == [b'{"value": 1}']
    assert len(broker.dispatched) == 1


def test_a_legacy_lease_that_ends_by_itself_is_lost(broker: Broker) -> None:
    broker.tell(b"old", Inform("i", '[[10, "default"]]', "worker"))
    broker.tell(b"old", Ready("r"))
    broker.tell(b"c", Request("p", "default", "guarantee:False,timeout:10", PLAIN))
    for _ in range(5):
        broker.wait(10.0)
        broker.tell(b"old", Ready("r"))
    lost(broker, "p")
    assert len(broker.dispatched) == 1


# Listings


def test_jobs_in_memory_are_counted_and_listed_with_the_others(broker: Broker) -> None:
    """The newest first, page by page, with the same columns."""
    jobs = [submit(broker), broker.submit()[0], submit(broker), submit(broker)]
    jobs += [broker.submit()[0], submit(broker, "countdown:60")]
    seen, cursor = [], ""
    while True:
        page = broker.call("jobs", limit=2, cursor=cursor)
        seen += [entry["id"] for entry in page["jobs"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert seen == jobs[::-1]
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["delayed"], queue["running"]) == (5, 1, 0)
    broker.worker()
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["delayed"], queue["running"]) == (4, 1, 1)
    info = broker.call("info", id=jobs[0])
    assert (info["state"], info["worker"], info["delivery"]) == ("running", "w", 1)
    [running] = broker.call("jobs", state="running")["jobs"]
    assert running["id"] == jobs[0]


@pytest.mark.parametrize("when", ["countdown:86400000", f"eta:{2**31}"])
def test_delayed_jobs_that_are_cancelled_do_not_add_up(broker: Broker, when: str) -> None:
    for _ in range(100):
        job_id, _ = broker.submit(headers=f"guarantee:False,{when}")
        broker.call("cancel", ids=[job_id])
    transient = broker.core.state.transient
    assert not transient.jobs
    assert len(transient.delayed) + len(transient.by_wall) < 5
