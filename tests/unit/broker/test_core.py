"""The broker's core against a real store with a fake clock."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.limits import Limits
from eventmq.broker.state import LINGER
from eventmq.errors import QueueFull
from eventmq.job import OutcomeKind
from eventmq.plugins.routing import LeastRecentlyUsed
from eventmq.wire.batches import decode_exceptions, encode_batch, encode_outcomes, pack, unpack
from eventmq.wire.commands import (
    Ack,
    Admin,
    Call,
    Cancel,
    Disconnect,
    Error,
    Heartbeat,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
    Schedule,
)
from eventmq.wire.features import Features
from eventmq.wire.results import RemoteError, decode_error, encode_error
from tests.support import broker_harness
from tests.support.broker_harness import TASK, Broker, chunks, row

if TYPE_CHECKING:
    from types import FrameType


def kinds(messages: object) -> list[str]:
    return [type(m).__name__ for m in messages]  # type: ignore[attr-defined]


# Admission


def test_a_receipt_comes_after_the_commit_and_only_then(broker: Broker) -> None:
    """No receipt is sent before the job is on disk."""
    job_id = broker.new_id()
    broker.put(b"c", Request(job_id, "default", "ack-requested", b"x"))
    broker.core.decide(broker.clock.now())
    assert broker.core.take_deferred_sends() == []
    broker.tick()
    [ack] = broker.took(b"c")
    assert isinstance(ack, Ack)
    assert ack.acked == job_id


def test_a_worker_hears_that_its_answer_is_kept_after_the_commit_and_only_then(
    broker: Broker,
) -> None:
    """Until then it keeps the answer, to repeat it if the broker is killed before the commit."""
    broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    answer = Reply(broker.new_id(), encode_outcomes([row()]), chunk.id, chunk.headers)
    broker.put(b"worker", answer)
    broker.core.decide(broker.clock.now())
    assert broker.core.take_deferred_sends() == []
    broker.tick()
    assert [ack.acked for ack in broker.took(b"worker") if isinstance(ack, Ack)] == [answer.id]


def test_a_request_that_asks_for_nothing_is_stored_without_an_ack(broker: Broker) -> None:
    """A legacy REQUEST with none of the headers is stored the same way and not ACKed."""
    assert broker.tell(b"c", Request(broker.new_id(), "q", "", b"x")) == []
    assert broker.call("queues")[0]["waiting"] == 1


@pytest.mark.parametrize(
    "header", ["guarantee", "reply-requested", "ack-requested", "guarantee:True"]
)
def test_each_of_three_headers_asks_for_an_ack(broker: Broker, header: str) -> None:
    """ACKed after the commit if it carries guarantee, reply-requested or ack-requested."""
    assert kinds(broker.tell(b"c", Request(broker.new_id(), "q", header, b"x"))) == ["Ack"]


def test_the_same_id_twice_is_one_job_and_two_receipts(broker: Broker) -> None:
    """Resending is safe."""
    job_id, first = broker.submit()
    _, second = broker.submit(job_id)
    assert kinds(first) == kinds(second) == ["Ack"]
    assert broker.call("queues")[0]["waiting"] == 1


@pytest.mark.parametrize("message", ["request", "batch"])
def test_jobs_that_are_sent_twice_in_one_tick_are_leased_once(broker: Broker, message: str) -> None:
    """Both copies could be in one chunk, which has many jobs once the task is known to be quick."""
    broker.submit()
    [(chunk, _)] = chunks(broker.worker(b"a", "a"))
    broker.answer(b"a", chunk, [row()])
    broker.ready(b"a", 1, received=1)
    ids = [broker.new_id() for _ in range(3 if message == "batch" else 1)]
    batch = encode_batch([("default", TASK)], [(id, 0, b"x") for id in ids])
    for _ in range(2):
        if message == "batch":
            broker.put(b"c", Request("m", "", "batch:3", batch))
        else:
            broker.put(b"c", Request(ids[0], "default", f"{TASK},ack-requested", b"x"))
    broker.tick()
    [(chunk, index)] = chunks(broker.took(b"a"))
    assert [(entry.id, entry.delivery) for entry in index.entries] == [(id, 1) for id in ids]
    assert chunks(broker.worker(b"b", "b")) == []
    broker.answer(b"a", chunk, [row(position) for position in range(len(ids))])
    assert broker.call("state", ids=ids) == [[id, "succeeded"] for id in ids]
    assert broker.core.state.queues["default"].running == 0


def test_a_session_that_ends_in_a_commit_without_space_ends_later(broker: Broker) -> None:
    """Its connection informs as another session; its job is requeued and run by others."""
    job_id, _ = broker.submit()
    assert chunks(broker.worker(b"a", "one"))
    features = Features(session="two", name="two").format()
    broker.put(b"a", Inform(broker.new_id(), '[[10, "default"]]', "worker", features))
    broker.core.decide(broker.clock.now())
    _, settle = broker.core.take_batch()
    settle(QueueFull("no space"))
    broker.core.take_deferred_sends()
    assert list(broker.core.state.sessions["one"].leases)
    for _ in range(120):
        broker.clock.time += 0.5
        broker.put(b"a", Heartbeat(broker.new_id(), "0"))
        broker.tick()
    assert "one" not in broker.core.state.sessions
    assert broker.call("state", ids=[job_id]) == [[job_id, "queued"]]
    assert chunks(broker.worker(b"b", "three"))


def test_the_id_of_a_finished_job_is_refused_within_the_dedupe_window(broker: Broker) -> None:
    """A resent REQUEST of a finished job gets its receipt and does not run again."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    broker.crash()
    _, again = broker.submit(job_id)
    assert kinds(again) == ["Ack"]
    assert broker.call("queues")[0]["waiting"] == 0


def test_jobs_that_come_one_by_one_are_dealt_to_all_idle_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that got no job beside another one is offered the next jobs."""
    monkeypatch.setattr(broker_harness, "FirstWorker", LeastRecentlyUsed)
    broker = Broker(tmp_path)
    for name in ("a", "b"):
        broker.worker(name.encode(), name, window=4)
    dealt = []
    for _ in range(6):
        broker.submit()
        dealt += [name for name in (b"a", b"b") if chunks(broker.took(name))]
    broker.close()
    assert dealt == [b"a", b"b"] * 3


def test_a_batch_is_one_receipt_with_exceptions_by_index(tmp_path: Path) -> None:
    """A receipt for many jobs carries its exceptions by index."""
    broker = Broker(tmp_path, Limits(max_id=40))
    ids = [broker.new_id(), "x" * 41, broker.new_id()]
    [ack] = broker.submit_batch(ids)
    assert isinstance(ack, Ack)
    assert ack.extra is not None
    assert {k: v[0] for k, v in decode_exceptions(ack.extra).items()} == {1: "too-large"}
    assert broker.call("queues")[0]["waiting"] == 2
    broker.close()


def test_a_full_queue_refuses_with_an_error(tmp_path: Path) -> None:
    """Limits refuse external input with an error."""
    broker = Broker(tmp_path, Limits(max_queue_length=2))
    broker.submit()
    broker.submit()
    _, [error] = broker.submit()
    assert isinstance(error, Error)
    assert error.code == "queue-full"
    broker.close()


@pytest.mark.parametrize("first", [0, 1], ids=["a new queue", "a queue with a job"])
@pytest.mark.parametrize(
    "headers",
    [
        (TASK, f"{TASK},priority:3"),
        (TASK, f"{TASK},countdown:9"),
        (TASK, f"{TASK},guarantee:False"),
        (f"{TASK},guarantee:False", TASK),
        (f"{TASK},guarantee:False", f"{TASK},guarantee:False,priority:3"),
    ],
    ids=str,
)
def test_jobs_of_one_batch_fill_a_queue_together(
    tmp_path: Path, first: int, headers: tuple[str, str]
) -> None:
    """Whatever their headers: the jobs of all templates count together."""
    broker = Broker(tmp_path, Limits(max_queue_length=2 + first))
    for _ in range(first):
        broker.submit()
    ids = [broker.new_id() for _ in range(4)]
    templates = [("default", text) for text in headers]
    body = encode_batch(templates, [(job_id, i // 2, b"x") for i, job_id in enumerate(ids)])
    [ack] = broker.tell(b"client", Request(broker.new_id(), "", "batch:4", body))
    assert isinstance(ack, Ack)
    assert ack.extra is not None
    refused = decode_exceptions(ack.extra)
    assert {2: "queue-full", 3: "queue-full"} == {i: code for i, (code, _) in refused.items()}
    assert broker.core.state.queues["default"].length == 2 + first
    broker.close()


def test_jobs_that_are_refused_take_no_room_from_others_of_the_batch(tmp_path: Path) -> None:
    broker = Broker(tmp_path, Limits(max_queue_length=3, max_subqueues=1))
    broker.submit()
    templates = [("default", "task:shop.other,content-type:msgpack"), ("default", TASK)]
    ids = [broker.new_id() for _ in range(4)]
    body = encode_batch(templates, [(job_id, i // 2, b"x") for i, job_id in enumerate(ids)])
    [ack] = broker.tell(b"client", Request(broker.new_id(), "", "batch:4", body))
    assert isinstance(ack, Ack)
    assert ack.extra is not None
    refused = decode_exceptions(ack.extra)
    assert {0: "too-many-subqueues", 1: "too-many-subqueues"} == {
        i: c for i, (c, _) in refused.items()
    }
    broker.close()


@pytest.mark.parametrize("headers", [TASK, f"{TASK},countdown:9", f"{TASK},limit-rate:9/s"])
def test_messages_of_one_tick_fill_a_queue_together(tmp_path: Path, headers: str) -> None:
    """Each is accepted or refused before any of them is on disk."""
    broker = Broker(tmp_path, Limits(max_queue_length=2))
    for _ in range(3):
        broker.put(b"client", Request(broker.new_id(), "default", f"{headers},ack-requested", b"x"))
    broker.tick()
    codes = [each.code for each in broker.took(b"client") if isinstance(each, Error)]
    assert codes == ["queue-full"]
    queue = broker.core.state.queues["default"]
    assert (queue.length, queue.coming) == (2, 0)
    broker.close()


def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    """MessageTooLarge has an answer of its own."""
    broker = Broker(tmp_path, Limits(max_frame=10))
    _, [error] = broker.submit(body=b"x" * 11)
    assert isinstance(error, Error)
    assert error.code == "too-large"
    broker.close()


# A tick

#: The modules of the broker that handle a job if nothing else happens.
ON_THE_WAY = {
    "admission", "core", "dispatch", "outcomes", "peers", "queues", "state", "waiters",
}  # fmt: skip


def test_a_job_meets_only_the_parts_that_have_something_to_do(broker: Broker) -> None:
    """Without graphs, streams, suspects, delays and limits none of their functions is called."""
    folder = Path(sys.modules[type(broker.core).__module__].__file__ or "").parent
    met: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == folder and frame.f_code.co_name != "<module>":
            met.add(path.stem)

    broker.tell(b"client", Inform("i", "", "client", Features(session="c").format()))
    broker.worker()
    for number, traced in ((1, False), (2, True)):
        sys.setprofile(profile if traced else None)
        job_id, _ = broker.submit()
        broker.put(b"client", Call("c", "get", pack({"ids": [job_id]})))
        broker.tick()
        broker.answer(b"worker", broker.dispatched[-1], [row()])
        sys.setprofile(None)
        assert [type(message) for message in broker.took(b"client")] == [Reply]
        broker.ready(b"worker", 1, received=number)
    assert met == ON_THE_WAY


# Dispatch and outcomes


def test_a_worker_gets_jobs_in_the_order_of_admission(broker: Broker) -> None:
    """First deliveries within one queue and priority are FIFO."""
    ids = [broker.new_id() for _ in range(5)]
    broker.submit_batch(ids)
    got = []
    messages = broker.worker()
    while pairs := chunks(messages):
        [(chunk, index)] = pairs
        got += [entry.id for entry in index.entries]
        messages = broker.answer(b"worker", chunk, [row(i) for i in range(len(index.entries))])
    assert got == ids


def test_a_higher_priority_goes_first(broker: Broker) -> None:
    """0 to 255, higher first."""
    low, _ = broker.submit(headers="priority:1")
    high, _ = broker.submit(headers="priority:9")
    [(_, index)] = chunks(broker.worker())
    assert [entry.id for entry in index.entries] == [high]
    assert low != high


@pytest.mark.parametrize(("waited", "urgent_first"), [(119.0, True), (121.0, False)])
def test_a_job_that_waits_rises(broker: Broker, waited: float, *, urgent_first: bool) -> None:
    """A step of priority is worth ``priority_seconds`` seconds of waiting, 60 by default."""
    low, _ = broker.submit(headers="priority:3")
    broker.wait(waited)
    high, _ = broker.submit(headers="priority:5")
    [(_, index)] = chunks(broker.worker())
    assert [entry.id for entry in index.entries] == [high if urgent_first else low]


def test_a_result_reaches_who_waits(broker: Broker) -> None:
    """The REPLY of the worker is acknowledged, and the result is forwarded."""
    job_id, _ = broker.submit()
    call = Call(broker.new_id(), "get", pack({"ids": [job_id]}))
    assert broker.tell(b"client", call) == []
    [(chunk, index)] = chunks(broker.worker())
    assert index.entries[0].delivery == 1
    acks = broker.answer(b"worker", chunk, [row(result=b"\x05")])
    assert kinds(acks) == ["Ack"]
    [reply] = broker.took(b"client")
    assert isinstance(reply, Reply)
    assert reply.request == call.id
    assert reply.outcome is None
    assert unpack(reply.result, "") == [[job_id, "succeeded", "msgpack", b"\x05"]]


def _answer_in_a_tick(broker: Broker, headers: str = "", *, get: bool = False) -> Reply:
    """Let a worker answer its only job, and end the reading part of the tick."""
    job_id, _ = broker.submit(headers=headers)
    if get:
        broker.tell(b"other", Call(broker.new_id(), "get", pack({"ids": [job_id]})))
    [(chunk, _)] = chunks(broker.worker())
    answer = Reply(broker.new_id(), encode_outcomes([row()]), chunk.id, chunk.headers)
    broker.put(b"worker", answer)
    broker.core.decide(broker.now())
    return answer


def test_an_end_that_nobody_waits_for_shares_the_commit_of_the_next_job(broker: Broker) -> None:
    """One sync stores both, so that a client that sends job after job waits for one each."""
    answer = _answer_in_a_tick(broker)
    assert [type(w).__name__ for w in broker.core.state.writes] == ["CloseChunk", "Finish"]
    assert not broker.core.must_commit(broker.now())
    assert broker.core.next_tick(broker.now()) == pytest.approx(broker.now() + LINGER)
    broker.put(b"client", Request("next", "default", f"{TASK},ack-requested", b"x"))
    broker.core.decide(broker.now())
    assert broker.core.must_commit(broker.now())
    broker.tick()
    assert [m.acked for m in broker.took(b"client") if isinstance(m, Ack)] == ["next"]
    assert answer.id in [m.acked for m in broker.took(b"worker") if isinstance(m, Ack)]


def test_an_end_is_committed_after_a_while_without_another_message(broker: Broker) -> None:
    """It waits for a few milliseconds only."""
    answer = _answer_in_a_tick(broker)
    broker.clock.time += LINGER
    assert broker.core.must_commit(broker.now())
    broker.tick()
    assert [m.acked for m in broker.took(b"worker") if isinstance(m, Ack)] == [answer.id]


def test_an_end_is_committed_at_once_where_commits_are_quick(broker: Broker) -> None:
    """Another sync costs less there than the wait."""
    broker.core.state.linger = 0.0
    _answer_in_a_tick(broker)
    assert broker.core.must_commit(broker.now())


@pytest.mark.parametrize(
    ("headers", "get"), [("", True), ("reply-requested", False), ("limit-running:1", False)]
)
def test_an_end_that_somebody_waits_for_is_committed_at_once(
    broker: Broker, headers: str, *, get: bool
) -> None:
    """A client waits for the result, or another job for the place of this one."""
    _answer_in_a_tick(broker, headers, get=get)
    assert broker.core.must_commit(broker.now())


def test_an_end_is_committed_at_once_while_jobs_wait(broker: Broker) -> None:
    """Its worker is to have the next one; a wait would also change the shares of the queues."""
    waiting, _ = broker.submit(queue="unserved")
    _answer_in_a_tick(broker)
    assert broker.core.must_commit(broker.now())
    assert broker.call("state", ids=[waiting]) == [[waiting, "queued"]]


def test_a_get_after_the_end_is_answered_at_once(broker: Broker) -> None:
    """Also after a restart; an unknown id has no state."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"\x05")])
    broker.crash()
    rows = broker.call("get", ids=[job_id, "nobody"])
    assert sorted(rows) == sorted(
        [[job_id, "succeeded", "msgpack", b"\x05"], ["nobody", "", "", None]]
    )


def test_a_reply_for_a_lease_that_is_gone_changes_nothing(broker: Broker) -> None:
    """It is acknowledged and counted."""
    broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    again = broker.answer(b"worker", chunk, [row(kind=OutcomeKind.FAILED)])
    assert kinds(again) == ["Ack"]
    assert broker.call("status")["counters"]["stale_outcomes"] == 1
    assert broker.call("queues")[0]["failed"] == 0


def test_a_reply_of_a_revoked_session_changes_nothing_of_the_job_that_another_has(
    broker: Broker,
) -> None:
    """Leases are fenced by delivery: only the session that holds the job can end it."""
    job_id, _ = broker.submit()
    [(old, _)] = chunks(broker.worker(b"w1", "one"))
    broker.wait(broker.limits.heartbeat_timeout + 1)
    [(new, index)] = chunks(broker.worker(b"w2", "two"))
    assert [(entry.id, entry.delivery) for entry in index.entries] == [(job_id, 2)]
    broker.worker(b"w1", "one", received=1, held=(1,), window=0)
    assert kinds(broker.answer(b"w1", old, [row(result=b"\x01")])) == ["Ack"]
    assert broker.call("state", ids=[job_id]) == [[job_id, "running"]]
    assert broker.call("status")["counters"]["stale_outcomes"] == 1
    broker.answer(b"w2", new, [row(result=b"\x02")])
    assert broker.call("get", ids=[job_id]) == [[job_id, "succeeded", "msgpack", b"\x02"]]


def test_a_handed_back_job_costs_a_delivery_and_no_attempt(broker: Broker) -> None:
    """A hand-back costs a delivery, never an attempt."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    answers = broker.answer(b"worker", chunk, [row(kind=OutcomeKind.HANDED_BACK)])
    [(_, index)] = chunks(answers)
    [entry] = index.entries
    assert (entry.id, entry.delivery, entry.attempt) == (job_id, 2, 1)


def test_a_retry_waits_its_countdown_and_is_the_next_attempt(broker: Broker) -> None:
    """The retry is one transaction: attempt + 1, delayed, and survives a restart."""
    broker.submit(headers="retry-count:1")
    [(chunk, _)] = chunks(broker.worker())
    assert (
        chunks(broker.answer(b"worker", chunk, [row(kind=OutcomeKind.RETRY, countdown=5.0)])) == []
    )
    assert broker.call("queues")[0]["delayed"] == 1
    broker.crash()
    broker.worker()
    broker.wait(4.0)
    assert chunks(broker.took(b"worker")) == []
    broker.worker()
    broker.wait(1.5)
    [(_, index)] = chunks(broker.took(b"worker"))
    assert index.entries[0].attempt == 2


def test_a_failed_job_is_kept_with_its_error(broker: Broker) -> None:
    """The failed jobs are the dead letters."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(
        b"worker", chunk, [row(kind=OutcomeKind.FAILED, content_type="error", result=b"why")]
    )
    broker.crash()
    info = broker.call("info", id=job_id)
    assert (info["state"], info["error"], info["task"]) == ("failed", b"why", "shop.add")
    assert broker.call("queues")[0]["failed"] == 1


def test_a_job_says_when_its_worker_got_it(broker: Broker) -> None:
    """Only while a worker has it."""
    job_id, _ = broker.submit()
    assert broker.call("info", id=job_id)["leased"] == 0.0
    [(chunk, _)] = chunks(broker.worker())
    info = broker.call("info", id=job_id)
    assert (info["state"], info["leased"]) == ("running", broker.core.state.now)
    broker.answer(b"worker", chunk, [row()])
    assert broker.call("info", id=job_id)["leased"] == 0.0


def test_the_third_death_fails_the_job_as_suspected_killer(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A death counts against the job that was executing; the third one ends it, as the log says."""
    job_id, _ = broker.submit()
    messages = broker.worker()
    for _ in range(3):
        [(chunk, _)] = chunks(messages)
        messages = broker.answer(b"worker", chunk, [row(kind=OutcomeKind.DIED, result=b"")])
    assert chunks(messages) == []
    info = broker.call("info", id=job_id)
    assert info["state"] == "failed"
    assert "suspected killer" in decode_error(info["error"]).message
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.getMessage() == (
        f"job {job_id} of task shop.add failed for good: suspected killer of 3 processes, "
        "the last of w"
    )


def test_a_suspected_killer_says_how_its_last_process_died(broker: Broker) -> None:
    """With signal and memory, as the worker reported them."""
    job_id, _ = broker.submit()
    messages = broker.worker()
    for signal in ("SIGBUS", "SIGBUS", "SIGSEGV"):
        error = encode_error(RemoteError("x", f"killed by {signal}; it had 9 MiB of memory"))
        [(chunk, _)] = chunks(messages)
        messages = broker.answer(b"worker", chunk, [row(kind=OutcomeKind.DIED, result=error)])
    error = decode_error(broker.call("info", id=job_id)["error"])
    assert error.type == "eventmq.errors.WorkerLost"
    assert error.message == (
        "suspected killer: 3 processes died, or were lost, with this job, the last like this: "
        "killed by SIGSEGV; it had 9 MiB of memory"
    )


def test_an_expired_job_is_not_dispatched(broker: Broker) -> None:
    """expires: Unix time after which it must not start."""
    job_id, _ = broker.submit(headers=f"expires:{broker.clock.now() + 5}")
    broker.wait(6.0)
    assert chunks(broker.worker()) == []
    assert broker.call("state", ids=[job_id]) == [[job_id, "expired"]]


def test_a_delayed_job_waits_for_its_time(broker: Broker) -> None:
    """countdown is kept by the broker."""
    broker.submit(headers="countdown:10")
    broker.worker()
    broker.wait(9.0)
    assert chunks(broker.took(b"worker")) == []
    broker.ready(b"worker", 1)
    broker.wait(1.5)
    assert len(chunks(broker.took(b"worker"))) == 1


def test_chunks_grow_with_the_measured_run_time(broker: Broker) -> None:
    """The first job of an unmeasured task travels alone; quick ones then travel together."""
    broker.submit_batch([broker.new_id() for _ in range(100)])
    [(chunk, index)] = chunks(broker.worker())
    assert len(index.entries) == 1
    [(_, index)] = chunks(broker.answer(b"worker", chunk, [row(run_time=0.0001)]))
    assert len(index.entries) == 99


def test_a_window_smaller_than_the_queue_loses_nothing(tmp_path: Path) -> None:
    """Jobs outside the window are claimed from the store in rank order."""
    broker = Broker(tmp_path, Limits(queue_window=4, chunk_jobs=3))
    ids = [broker.new_id() for _ in range(30)]
    broker.submit_batch(ids)
    got = []
    messages = broker.worker()
    while pairs := chunks(messages):
        [(chunk, index)] = pairs
        got += [entry.id for entry in index.entries]
        messages = broker.answer(
            b"worker", chunk, [row(i, run_time=1e-6) for i in range(len(index.entries))]
        )
    assert got == ids
    assert broker.call("queues")[0]["waiting"] == 0
    broker.close()


# Sessions


def test_inform_is_answered_by_ack_and_a_heartbeat(broker: Broker) -> None:
    """A deployed job manager starts its workers only when it receives a HEARTBEAT."""
    got = broker.tell(b"w", Inform("1", '[[10, "default"]]', "worker"))
    assert kinds(got) == ["Ack", "Heartbeat"]
    assert isinstance(got[0], Ack)
    assert got[0].acked == "1"
    assert len(got[0].frames()) == 5


def test_features_are_answered_with_ours(broker: Broker) -> None:
    """ACK has broker epoch, store id and max-frame."""
    ack = broker.tell(b"w", Inform("1", "", "client", Features(session="s").format()))[0]
    assert isinstance(ack, Ack)
    assert ack.extra is not None
    features = Features.parse(ack.extra.decode())
    assert features.epoch == 1
    assert features.store
    assert features.max_frame == broker.limits.max_frame


def test_bad_queues_are_not_registered_and_answered_with_an_error(broker: Broker) -> None:
    """Bad JSON: not registered, and ours answers with an ERROR."""
    [error] = broker.tell(b"w", Inform("1", "[[10,", "worker"))
    assert isinstance(error, Error)
    assert error.code == "bad-queues"
    assert broker.call("workers") == []


def test_a_silent_worker_loses_its_leases_after_the_heartbeat_timeout(broker: Broker) -> None:
    """Leases follow heartbeats."""
    broker.submit()
    broker.worker(b"w1", "one")
    broker.wait(broker.limits.heartbeat_timeout + 1)
    [(_, index)] = chunks(broker.worker(b"w2", "two"))
    assert index.entries[0].delivery == 2


def test_an_unreachable_worker_keeps_its_leases_for_the_grace(broker: Broker) -> None:
    """EHOSTUNREACH starts a grace to inform again, then its leases are revoked."""
    broker.submit()
    [(chunk, _)] = chunks(broker.worker(b"w1", "one"))
    broker.unreachable.add(b"w1")
    broker.wait(0.6)
    got = broker.worker(b"w1b", "one", received=1, held=(1,))
    assert chunks(got) == []
    assert kinds(broker.answer(b"w1b", chunk, [row()])) == ["Ack"]
    assert broker.call("status")["counters"].get("lease_lost", 0) == 0


def test_an_unreachable_worker_that_stays_away_is_revoked_within_a_second(broker: Broker) -> None:
    """worker: under 1 s on a closed connection, after the next heartbeat to it."""
    broker.submit()
    broker.worker(b"w1", "one")
    broker.unreachable.add(b"w1")
    broker.wait(1.5)
    assert len(chunks(broker.worker(b"w2", "two"))) == 1


def test_a_chunk_that_was_received_but_is_not_held_is_queued_again(broker: Broker) -> None:
    """Proof of possession."""
    broker.submit()
    broker.worker(window=1)
    [(_, index)] = chunks(broker.ready(b"worker", 1, received=1, held=()))
    assert index.entries[0].delivery == 2


def test_a_chunk_above_received_is_sent_again_under_its_number(broker: Broker) -> None:
    """After an interval it is sent again with its number."""
    broker.submit()
    [(first, _)] = chunks(broker.worker())
    assert chunks(broker.ready(b"worker", 1)) == []
    broker.wait(broker.limits.heartbeat_interval)
    [(second, index)] = chunks(broker.ready(b"worker", 1))
    assert second.headers == first.headers
    assert index.entries[0].delivery == 1


def test_after_a_restart_leased_jobs_wait_for_their_session(broker: Broker) -> None:
    """Exactly the jobs in chunk rows wait one heartbeat timeout; the rest is dispatched at once."""
    leased, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker(b"w1", "one"))
    waiting, _ = broker.submit()
    broker.crash()
    broker.wait(1.0)
    [(_, index)] = chunks(broker.worker(b"w2", "two"))
    assert [entry.id for entry in index.entries] == [waiting]
    broker.worker(b"w1", "one", received=1, held=(1,))
    assert kinds(broker.answer(b"w1", chunk, [row()])) == ["Ack"]
    assert broker.call("state", ids=[leased]) == [[leased, "succeeded"]]


def test_after_a_restart_jobs_of_a_session_that_stays_away_are_dispatched(broker: Broker) -> None:
    """A recovered lease ends after one heartbeat timeout."""
    broker.submit()
    broker.worker(b"w1", "one")
    broker.crash()
    broker.worker(b"w2", "two")
    broker.wait(broker.limits.heartbeat_timeout - 1)
    assert chunks(broker.took(b"w2")) == []
    broker.ready(b"w2", 1)
    broker.wait(2.0)
    [(_, index)] = chunks(broker.took(b"w2"))
    assert index.entries[0].delivery == 2


def test_after_a_restart_chunk_numbers_go_on_above_what_the_worker_received(
    broker: Broker,
) -> None:
    """A manager ignores numbers that it has received already."""
    broker.submit()
    broker.crash()
    [(chunk, _)] = chunks(broker.worker(received=7))
    assert chunk.headers == "chunk:8"


def test_a_handed_back_job_is_not_recovered_into_its_old_chunk(broker: Broker) -> None:
    """Its row has the delivery that was handed back; it may run elsewhere by then."""
    broker.submit()
    [(first, _)] = chunks(broker.worker())
    ids = [broker.new_id(), broker.new_id()]
    broker.submit_batch(ids)
    [(chunk, index)] = chunks(broker.answer(b"worker", first, [row()]))
    assert [entry.id for entry in index.entries] == ids
    broker.answer(b"worker", chunk, [row(0, OutcomeKind.HANDED_BACK)])
    broker.crash()
    broker.worker(window=0, received=2, held=(2,))
    [(_, index)] = chunks(broker.worker(b"other", "other"))
    assert [(entry.id, entry.delivery) for entry in index.entries] == [(ids[0], 2)]


def test_a_window_full_of_expired_jobs_is_worked_off(broker: Broker) -> None:
    """Whatever their number."""
    expiry = broker.clock.now() + 5
    ids = [broker.submit(headers=f"expires:{expiry}")[0] for _ in range(1200)]
    broker.clock.time += 6
    assert chunks(broker.worker()) == []
    assert broker.call("state", ids=ids[-1:]) == [[ids[-1], "expired"]]


def test_a_revoked_session_that_returns_is_told_to_drop_what_it_holds(broker: Broker) -> None:
    """It gets CANCEL for these deliveries, once; its late answers change nothing."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker(b"w1", "one"))
    broker.wait(broker.limits.heartbeat_timeout + 1)
    assert len(chunks(broker.worker(b"w2", "two"))) == 1
    got = broker.worker(b"w1b", "one", window=0, received=1, held=(1,))
    cancels = [m for m in got if isinstance(m, Cancel)]
    assert [(m.job, m.delivery) for m in cancels] == [(job_id, "1")]
    assert kinds(broker.answer(b"w1b", chunk, [row()])) == ["Ack"]
    assert broker.call("state", ids=[job_id]) == [[job_id, "running"]]


def test_a_stopped_broker_loses_no_peer_for_its_own_silence(broker: Broker) -> None:
    """A tick longer than a heartbeat interval extends every lease by its length."""
    broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.clock.time += 60
    broker.core.shift(broker.clock.now(), 60.0)
    broker.tick()
    assert kinds(broker.answer(b"worker", chunk, [row()])) == ["Ack"]
    assert broker.call("status")["counters"].get("lease_lost", 0) == 0


@pytest.mark.parametrize(
    ("identity", "messages"),
    [
        (b"eventmq1:worker.1", [Ready("1"), Heartbeat("2", "1.0"), Reply("3", b"", "x")]),
        (b"other", [Ready("1", "s"), Heartbeat("2", "1.0", "s"), Reply("3", b"", "x", "chunk:1")]),
    ],
)
def test_a_stranger_of_ours_is_told_to_inform_again(
    broker: Broker, identity: bytes, messages: list[Any]
) -> None:
    """Its routing id shows what it is, or a frame that only peers with FEATURES send."""
    for message in messages:
        [error] = broker.tell(identity, message)
        assert isinstance(error, Error)
        assert error.code == "inform-again"


def test_kbai_gives_back_what_the_worker_held(broker: Broker) -> None:
    """The receiver cleans up references to the disconnecting component."""
    broker.submit()
    broker.worker(b"w1", "one")
    broker.tell(b"w1", Kbai("1"))
    assert len(chunks(broker.worker(b"w2", "two"))) == 1


# Tasks


def test_a_worker_is_not_offered_tasks_that_it_does_not_know(broker: Broker) -> None:
    """Others are not offered to it; one that knows the task gets the job."""
    broker.submit()
    assert chunks(broker.worker(b"w1", "one", tasks=("other.task",))) == []
    assert len(chunks(broker.worker(b"w2", "two", tasks=("shop.add",)))) == 1


def test_a_job_that_no_worker_knows_fails_after_the_grace_and_stops_no_other(
    broker: Broker,
) -> None:
    """A job fails as UnknownTask only after unknown_task_grace without a session that knows it."""
    job_id, _ = broker.submit()
    broker.worker(b"w1", "one", tasks=("other.task",))
    broker.wait(2.0)
    broker.tell(
        b"c", Request(broker.new_id(), "default", "task:other.task,content-type:json", b"x")
    )
    assert len(chunks(broker.took(b"w1"))) == 1
    for _ in range(31):
        broker.tell(b"w1", Heartbeat(broker.new_id(), "1"))
        broker.wait(10.0)
    assert broker.call("state", ids=[job_id]) == [[job_id, "failed"]]
    assert "UnknownTask" in decode_error(broker.call("info", id=job_id)["error"]).type


def test_jobs_wait_for_ever_while_no_worker_serves_the_queue(broker: Broker) -> None:
    """A queue without workers has no unknown tasks."""
    job_id, _ = broker.submit()
    broker.wait(400.0)
    assert broker.call("state", ids=[job_id]) == [[job_id, "queued"]]


def test_a_legacy_job_goes_to_a_session_that_admits_callables(broker: Broker) -> None:
    """It fails only if no worker of the queue admits it."""
    job_id = broker.new_id()
    broker.tell(b"c", Request(job_id, "default", "guarantee", b'["run", {}]'))
    assert chunks(broker.worker(b"w1", "one")) == []
    [(chunk, _)] = chunks(broker.worker(b"w2", "two", callables=("jobs.*",)))
    broker.answer(b"w2", chunk, [row(kind=OutcomeKind.UNKNOWN_TASK, result=b"no")])
    assert broker.call("state", ids=[job_id]) == [[job_id, "failed"]]


# Legacy peers


def test_a_legacy_worker_gets_one_legacy_job_per_ready_and_its_reply_ends_it(
    broker: Broker,
) -> None:
    """A peer that knows only the published document can work."""
    broker.submit()  # a typed job: not for a legacy worker
    job_id = broker.new_id()
    broker.tell(b"c", Request(job_id, "default", "reply-requested,timeout:7", b'["run", {}]'))
    broker.tell(b"w", Inform("1", "[10, 'default']", "worker"))
    [request] = broker.tell(b"w", Ready("2"))
    assert isinstance(request, Request)
    assert request.id == job_id
    assert request.headers == "reply-requested,timeout:7"
    assert request.body == b'["run", {}]'
    broker.tell(b"w", Reply("3", b'{"value": 4}', job_id))
    replies = [m for m in broker.took(b"c") if isinstance(m, Reply)]
    assert [(r.result, r.request) for r in replies] == [(b'{"value": 4}', job_id)]


def test_a_five_frame_reply_belongs_to_the_oldest_lease(broker: Broker) -> None:
    """Five frames: the session's oldest lease."""
    job_id = broker.new_id()
    broker.tell(b"c", Request(job_id, "default", "", b'["run", {}]'))
    broker.tell(b"w", Inform("1", "", "worker"))
    broker.tell(b"w", Ready("2"))
    broker.tell(b"w", Reply("3", b"True"))
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]


def test_a_legacy_lease_ends_after_the_timeout_and_thirty_seconds(broker: Broker) -> None:
    """A lease also ends at the job's timeout plus 30 s."""
    broker.tell(b"c", Request(broker.new_id(), "default", "timeout:5", b'["run", {}]'))
    broker.tell(b"w", Inform("1", "", "worker"))
    broker.tell(b"w", Ready("2"))
    for _ in range(4):
        broker.tell(b"w", Heartbeat(broker.new_id(), "1"))
        broker.wait(9.0)
    assert broker.call("status")["counters"]["lease_lost"] == 1


def test_a_legacy_worker_whose_slots_are_all_free_again_lost_its_job(broker: Broker) -> None:
    """An unanswered job died with its process if all slots of the worker are free."""
    broker.tell(b"c", Request(broker.new_id(), "default", "", b'["run", {}]'))
    broker.tell(b"w", Inform("1", "", "worker"))
    broker.tell(b"w", Ready("2"))
    broker.wait(6.0)
    broker.tell(b"w", Ready("3"))
    broker.wait(3.0)
    assert broker.call("status")["counters"]["lease_lost"] == 1


def test_an_unserved_legacy_queue_is_served_by_workers_of_default(broker: Broker) -> None:
    """A legacy REQUEST for a queue that no session has served for 30 s goes to default."""
    broker.tell(b"c", Request(broker.new_id(), "old", "", b'["run", {}]'))
    broker.tell(b"w", Inform("1", "", "worker"))
    assert broker.tell(b"w", Ready("2")) == []
    for _ in range(7):
        broker.tell(b"w", Heartbeat(broker.new_id(), "1"))
        broker.wait(5.0)
        if any(isinstance(m, Request) for m in broker.took(b"w")):
            break
    else:
        pytest.fail("the job never went to a worker of default")


def test_a_document_only_client_can_schedule_through_a_scheduler(broker: Broker) -> None:
    """client -> broker -> scheduler."""
    message = Schedule("1", "default", "nohaste,interval:5", b"body")
    broker.tell(b"s", Inform("1", "", "scheduler"))
    broker.tell(b"c", message)
    assert broker.took(b"s") == [message]


# Ports and administration


def test_status_answers_json_with_the_deployed_keys(broker: Broker) -> None:
    """STATUS on the administration port."""
    broker.submit()
    [reply] = broker.tell(b"a", Admin("1", "STATUS"), "admin")
    assert isinstance(reply, Reply)
    status = json.loads(reply.result)
    assert status["waiting_messages_by_queue"] == {"default": 1}
    assert {"connected_workers", "connected_queues", "connected_schedulers"} <= set(status)


def test_disconnect_says_goodbye_and_lets_pending_jobs_complete(broker: Broker) -> None:
    """ACK, KBAI to all, stop taking messages, let pending jobs complete."""
    broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.tell(b"plain", Inform("1", "", "scheduler"))
    broker.took(b"plain")
    assert kinds(broker.tell(b"a", Disconnect("9"), "admin")) == ["Ack"]
    assert [m.word for m in broker.took(b"plain") if isinstance(m, Kbai)] == ["KBAI", "KBYE"]
    assert not broker.core.done
    _, [error] = broker.submit()
    assert isinstance(error, Error)
    assert error.code == "closing"
    broker.answer(b"worker", chunk, [row()])
    assert broker.core.done


def test_disconnect_on_another_port_is_refused(broker: Broker) -> None:
    """DISCONNECT is for the administration port."""
    [error] = broker.tell(b"a", Disconnect("9"))
    assert isinstance(error, Error)
    assert error.code == "not-allowed"


def test_a_published_message_reaches_subscribers_by_prefix(broker: Broker) -> None:
    """CALL subscribe; both frame forms of PUBLISH."""
    call = Call(broker.new_id(), "subscribe", pack({"topics": ["news."]}))
    broker.tell(b"s", call)
    broker.tell(b"p", Publish("1", "news.uk", None, b"a"))
    broker.tell(b"p", Publish("2", "news.fr", "x:1", b"b"), "publish")
    broker.tell(b"p", Publish("3", "other", None, b"c"))
    got = [unpack(m.result, "") for m in broker.took(b"s") if isinstance(m, Reply)]
    assert got == [["news.uk", "", b"a"], ["news.fr", "x:1", b"b"]]


def test_too_many_peers_are_told_so(tmp_path: Path) -> None:
    """Peers are bounded."""
    broker = Broker(tmp_path, Limits(max_peers=1))
    broker.tell(b"a", Inform("1", "", "client"))
    [error] = broker.tell(b"b", Inform("1", "", "client"))
    assert isinstance(error, Error)
    assert error.code == "too-many-peers"
    broker.close()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"x", b"eMQP/1.0", b"READY", b"1"], "envelope"),
        ([b"", b"eMQP/2.0", b"READY", b"1"], "version"),
        ([b"", b"eMQP/1.0", b"DANCE", b"1"], "unknown-command"),
        ([b"", b"eMQP/1.0", b"READY", b"1", b"", b""], "frame-count"),
        ([b"", b"eMQP/1.0", b"READY", b"\xff"], "not-utf8"),
        ([b"", b"eMQP/1.0", b"READY", b""], "no-id"),
        ([b"", b"eMQP/1.0", b"REQUEST", b"1", b"q", b"timeout:soon", b""], "bad-header"),
        ([b"", b"eMQP/1.0", b"REQUEST", b"1", b"q", b"batch:2", b"x"], "bad-body"),
        ([b"", b"eMQP/1.0", b"CALL", b"1", b"dance", b"\x80"], "unknown-call"),
        ([b"", b"eMQP/1.0", b"CALL", b"1", b"get", b"\x80"], "bad-arguments"),
        ([b"", b"eMQP/1.0", b"CALL", b"1", b"get", b"\x81\xa3ids\x91\xa1\x00"], "bad-arguments"),
        ([b"", b"eMQP/1.0", b"REQUEST", b"1", b"q", b"task:%00", b""], "not-utf8"),
        ([b"", b"eMQP/1.0", b"INFORM", b"1", b"", b"king"], "bad-role"),
        ([b"", b"eMQP/1.0", b"CANCEL", b"1", b"", b"", b""], "not-allowed"),
        ([b""], "envelope"),
    ],
)
def test_a_bad_message_is_counted_and_answered(
    broker: Broker, frames: list[bytes], code: str
) -> None:
    """Answered with ERROR where the peer can read it, never a crash, never a lost job."""
    job_id, _ = broker.submit()
    broker.core.receive("main", [b"bad", *frames], broker.clock.now())
    broker.tick()
    [error] = broker.took(b"bad")
    assert isinstance(error, Error)
    assert error.code == code
    assert broker.call("status")["counters"][f"errors.{code}"] == 1
    assert broker.call("state", ids=[job_id]) == [[job_id, "queued"]]


def test_a_commit_that_fails_for_space_changes_nothing_in_memory(broker: Broker) -> None:
    """No receipt is sent, and all messages can be repeated."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    store = broker.store

    class Full:
        def submit(self, entries: object) -> None:
            self.entries = entries

        def finished(self) -> list[object]:
            return [QueueFull("no space")]

    broker.store = Full()
    assert broker.answer(b"worker", chunk, [row()]) == []
    _, [error] = broker.submit()
    assert isinstance(error, Error)
    assert error.code == "store-full"
    broker.store = store
    assert kinds(broker.answer(b"worker", chunk, [row()])) == ["Ack"]
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]


def test_typed_headers_reach_the_worker_unchanged(broker: Broker) -> None:
    """Unknown headers are kept and passed on between peers with FEATURES."""
    broker.submit(headers="x-tenant:a%2Cb")
    [(_, index)] = chunks(broker.worker())
    assert index.templates == [f"{TASK},ack-requested,x-tenant:a%2Cb"]


def test_a_job_comes_back_into_an_emptied_window(broker: Broker) -> None:
    """A retry without delay is read from the store, as another record of the same job."""
    broker.submit(headers="retry-count:1")
    [(chunk, _)] = chunks(broker.worker())
    again = broker.answer(b"worker", chunk, [row(kind=OutcomeKind.RETRY)])
    [(_, index)] = chunks(again)
    assert index.entries[0].attempt == 2


def test_a_chunk_leaves_before_the_receipt_of_its_jobs(broker: Broker) -> None:
    """Both wait for the same commit, but the way through the worker is longer."""
    broker.worker()
    broker.put(b"client", Request(broker.new_id(), "default", f"{TASK},ack-requested", b"x"))
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    assert broker.core.take_deferred_sends() == []
    broker.store.submit(entries)
    settle(broker.store.finished()[0])
    sends = broker.core.take_deferred_sends()
    assert [message.key.identity for message in sends] == [b"worker", b"client"]


def test_a_worker_is_told_the_brokers_time_where_a_job_expires(broker: Broker) -> None:
    """It is guarded wall time, by which the broker itself lets jobs expire."""
    now = broker.clock.now()
    broker.submit()
    broker.submit(headers=f"expires:{now + 300:.3f}")
    [first] = broker.worker(b"w1", "one")[-1:]
    assert isinstance(first, Request)
    broker.clock.wrong = 86_400.0
    broker.tick()
    [second] = broker.worker(b"w2", "two")[-1:]
    assert isinstance(second, Request)
    both = sorted((first, second), key=lambda message: len(message.headers))
    assert [message.headers for message in both] == ["chunk:1", f"chunk:1,now:{now:.3f}"]
