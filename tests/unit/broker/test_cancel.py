"""Cancelling jobs by id: a job ends at once, wherever it is, and stays ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import QueueFull
from eventmq.job import OutcomeKind
from eventmq.wire.batches import encode_outcomes, pack, unpack
from eventmq.wire.commands import Ack, Call, Cancel, Error, Inform, Ready, Reply, Request
from eventmq.wire.features import Features
from eventmq.wire.results import decode_error
from tests.support.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from eventmq.wire.commands import Command


def cancel(broker: Broker, *ids: str, reason: str = "changed my mind") -> Any:
    """Cancel jobs as another client would; return the rows."""
    return broker.call("cancel", client=b"boss", ids=list(ids), reason=reason)


def counts(broker: Broker) -> tuple[int, int, int]:
    """Return waiting, delayed and running of the only queue."""
    [queue] = broker.call("queues", client=b"looker")
    return queue["waiting"], queue["delayed"], queue["running"]


def cancels(messages: list[Command]) -> list[Cancel]:
    return [message for message in messages if isinstance(message, Cancel)]


def states(broker: Broker, *ids: str) -> list[str]:
    return [state for _, state in broker.call("state", client=b"looker", ids=list(ids))]


# Waiting jobs


def test_a_waiting_job_ends_at_once_and_never_runs(broker: Broker) -> None:
    """It is removed from the window and from the store."""
    first, _ = broker.submit()
    second, _ = broker.submit()
    assert cancel(broker, first) == [[first, "cancelled", "queued"]]
    assert counts(broker) == (1, 0, 0)
    [(_, index)] = chunks(broker.worker())
    assert [entry.id for entry in index.entries] == [second]
    assert states(broker, first) == ["cancelled"]


def test_a_delayed_job_ends_at_once_and_never_runs(broker: Broker) -> None:
    job_id, _ = broker.submit(headers="countdown:5")
    assert cancel(broker, job_id) == [[job_id, "cancelled", "delayed"]]
    assert counts(broker) == (0, 0, 0)
    broker.wait(10.0)
    assert chunks(broker.worker()) == []


def test_who_waits_is_told_at_once_with_the_reason(broker: Broker) -> None:
    job_id, _ = broker.submit()
    assert broker.tell(b"c", Call("7", "get", pack({"ids": [job_id]}))) == []
    cancel(broker, job_id, reason="out of stock")
    [reply] = broker.took(b"c")
    assert isinstance(reply, Reply)
    [[answered, state, _, error]] = unpack(reply.result, "")
    assert (answered, state) == (job_id, "cancelled")
    assert decode_error(error).message == "out of stock"


def test_the_reason_is_there_later_too(broker: Broker) -> None:
    """It explains later why the job never ran."""
    job_id, _ = broker.submit()
    cancel(broker, job_id, reason="out of stock")
    broker.crash()
    assert decode_error(broker.call("info", id=job_id)["error"]).message == "out of stock"


def test_a_reason_cannot_forge_a_line_of_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller chooses the reason; it is escaped and cut."""
    job_id, _ = broker.submit()
    with caplog.at_level(logging.INFO, "eventmq.broker"):
        cancel(broker, job_id, reason="no\nERROR the disk burns" + "x" * 1000)
    [line] = [record.getMessage() for record in caplog.records]
    assert job_id in line
    assert "\n" not in line
    assert len(line) < 700


def test_a_legacy_client_is_told_the_state(broker: Broker) -> None:
    """It reads text only."""
    job_id = broker.new_id()
    broker.tell(b"old", Request(job_id, "default", "reply-requested", b"[]"))
    cancel(broker, job_id)
    [reply] = broker.took(b"old")
    assert isinstance(reply, Reply)
    assert reply.result == b'{"value": "cancelled"}'


def test_cancelling_twice_is_harmless(broker: Broker) -> None:
    """A client may repeat an unanswered call."""
    job_id, _ = broker.submit()
    cancel(broker, job_id)
    assert cancel(broker, job_id) == [[job_id, "cancelled", "cancelled"]]
    broker.crash()
    assert cancel(broker, job_id) == [[job_id, "cancelled", "cancelled"]]
    assert broker.core.state.counters["cancelled"] == 0


def test_an_ended_job_keeps_its_end_and_an_unknown_one_has_none(broker: Broker) -> None:
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    assert cancel(broker, job_id, "nobody") == [
        [job_id, "succeeded", "succeeded"],
        ["nobody", "", ""],
    ]


def test_a_cancelled_job_stays_cancelled_over_a_crash(broker: Broker) -> None:
    """No answer is sent before the cancel is on disk."""
    first, _ = broker.submit()
    second, _ = broker.submit()
    cancel(broker, first)
    broker.crash()
    assert states(broker, first, second) == ["cancelled", "queued"]
    assert counts(broker) == (1, 0, 0)
    [(_, index)] = chunks(broker.worker())
    assert [entry.id for entry in index.entries] == [second]


def test_the_id_of_a_cancelled_job_is_refused_as_of_any_ended_one(broker: Broker) -> None:
    """A resent REQUEST does not bring it back."""
    job_id, _ = broker.submit()
    cancel(broker, job_id)
    _, again = broker.submit(job_id)
    assert [type(message) for message in again] == [Ack]
    assert counts(broker) == (0, 0, 0)


def test_without_space_nothing_happens_and_the_caller_is_told(broker: Broker) -> None:
    job_id, _ = broker.submit()
    broker.put(b"boss", Call("7", "cancel", pack({"ids": [job_id]})))
    broker.core.decide(broker.clock.now())
    _, settle = broker.core.take_batch()
    settle(QueueFull("no space"))
    broker.tick()
    [error] = broker.took(b"boss")
    assert isinstance(error, Error)
    assert (error.request, error.code) == ("7", "store-full")
    assert states(broker, job_id) == ["queued"]


# Running jobs


def test_the_worker_of_a_running_job_is_told_to_stop_it(broker: Broker) -> None:
    job_id, _ = broker.submit()
    broker.worker()
    assert cancel(broker, job_id) == [[job_id, "cancelled", "running"]]
    [message] = cancels(broker.took(b"worker"))
    assert (message.job, message.delivery, message.reason) == (job_id, "1", "changed my mind")
    assert counts(broker) == (0, 0, 0)


def test_a_late_answer_is_acknowledged_counted_and_changes_nothing(broker: Broker) -> None:
    """The lease is fenced for every outcome: success, failure and retry."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    cancel(broker, job_id)
    for kind in (OutcomeKind.SUCCEEDED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK):
        answers = broker.answer(b"worker", chunk, [row(kind=kind)])
        assert [type(message) for message in answers] == [Ack]
    assert broker.core.state.counters["stale_outcomes"] == 3
    assert states(broker, job_id) == ["cancelled"]
    assert counts(broker) == (0, 0, 0)


def test_a_chunk_whose_only_job_is_cancelled_is_closed(broker: Broker) -> None:
    """In memory and in the store."""
    job_id, _ = broker.submit()
    broker.worker()
    cancel(broker, job_id)
    assert broker.core.state.sessions["w"].leases == {}
    broker.crash()
    assert broker.core.state.sessions == {}


def test_the_other_jobs_of_its_chunk_go_on(broker: Broker) -> None:
    """Only its position ends; the chunk closes when the other jobs are answered."""
    broker.core.state.run_times["shop.add"] = 1e-6
    ids = [broker.new_id() for _ in range(3)]
    broker.submit_batch(ids)
    [(chunk, index)] = chunks(broker.worker())
    assert len(index.entries) == 3
    cancel(broker, ids[1])
    assert len(cancels(broker.took(b"worker"))) == 1
    assert broker.core.state.sessions["w"].leases[1].remaining == 2
    broker.answer(b"worker", chunk, [row(0), row(1), row(2)])
    assert states(broker, *ids) == ["succeeded", "cancelled", "succeeded"]
    assert broker.core.state.sessions["w"].leases == {}
    assert counts(broker) == (0, 0, 0)


def test_after_a_crash_the_chunk_is_held_without_the_cancelled_job(broker: Broker) -> None:
    broker.core.state.run_times["shop.add"] = 1e-6
    ids = [broker.new_id() for _ in range(2)]
    broker.submit_batch(ids)
    [(chunk, _)] = chunks(broker.worker())
    cancel(broker, ids[0])
    broker.crash()
    broker.worker(received=1, held=(1,))
    assert counts(broker) == (0, 0, 1)
    broker.answer(b"worker", chunk, [row(0), row(1)])
    assert states(broker, *ids) == ["cancelled", "succeeded"]
    assert broker.core.state.counters["stale_outcomes"] == 1


def test_a_session_that_was_away_is_told_when_it_is_back(broker: Broker) -> None:
    """Also if the broker was restarted meanwhile."""
    broker.core.state.run_times["shop.add"] = 1e-6
    ids = [broker.new_id() for _ in range(2)]
    broker.submit_batch(ids)
    broker.worker()
    broker.crash()
    cancel(broker, ids[0])
    [message] = cancels(broker.worker(received=1, held=(1,)))
    assert (message.job, message.delivery) == (ids[0], "1")


def test_a_lost_session_does_not_bring_a_cancelled_job_back(broker: Broker) -> None:
    job_id, _ = broker.submit()
    broker.worker()
    cancel(broker, job_id)
    broker.wait(30.0)
    assert chunks(broker.worker(b"w2", "other")) == []
    assert counts(broker) == (0, 0, 0)


# Within one turn


@pytest.mark.parametrize(
    "kind", [OutcomeKind.SUCCEEDED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK, OutcomeKind.DIED]
)
@pytest.mark.parametrize("first", ["cancel", "reply"])
def test_an_answer_and_a_cancel_in_one_turn_agree_on_one_end(
    broker: Broker, kind: OutcomeKind, first: str
) -> None:
    """The message that was read first wins, and the counts are right in both cases."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    call = Call("7", "cancel", pack({"ids": [job_id]}))
    body = encode_outcomes([row(kind=kind, countdown=5.0)])
    reply = Reply(broker.new_id(), body, chunk.id, chunk.headers)
    messages = [(b"boss", call), (b"worker", reply)]
    for identity, message in messages if first == "cancel" else reversed(messages):
        broker.put(identity, message)
    broker.tick()
    done = first == "reply" and kind is OutcomeKind.SUCCEEDED
    assert states(broker, job_id) == ["succeeded" if done else "cancelled"]
    assert counts(broker) == (0, 0, 0)
    broker.wait(10.0)
    assert chunks(broker.took(b"worker")) == []
    assert broker.core.state.running == {}
    assert broker.core.state.jobs == {}


def test_a_job_that_is_submitted_and_cancelled_in_one_turn_is_not_handed_out(
    broker: Broker,
) -> None:
    """Although a worker waits: the job was leased in the same commit."""
    broker.worker()
    job_id = broker.new_id()
    broker.put(b"c", Request(job_id, "default", "task:shop.add,content-type:msgpack", b"x"))
    broker.put(b"boss", Call("7", "cancel", pack({"ids": [job_id]})))
    broker.tick()
    assert chunks(broker.took(b"worker")) == []
    assert states(broker, job_id) == ["cancelled"]
    assert broker.core.state.sessions["w"].leases == {}
    broker.submit()
    assert len(chunks(broker.took(b"worker"))) == 1


# A broker that is killed


def commit_and_die(broker: Broker) -> None:
    """End a tick with its commit, and do nothing after it."""
    broker.core.decide(broker.clock.now())
    entries, _ = broker.core.take_batch()
    assert entries
    broker.store.submit(entries)
    broker.crash()


@pytest.mark.parametrize("leased", [True, False])
def test_a_broker_killed_right_after_the_commit_has_cancelled(broker: Broker, leased: bool) -> None:
    """The repeated call returns the cancelled state; the worker's answer changes nothing."""
    job_id, _ = broker.submit()
    if leased:
        broker.worker()
    call = Call("7", "cancel", pack({"ids": [job_id]}))
    broker.put(b"boss", call)
    commit_and_die(broker)
    assert cancel(broker, job_id) == [[job_id, "cancelled", "cancelled"]]
    broker.worker(received=1, held=(1,) if leased else ())
    if leased:
        answers = broker.answer(b"worker", broker.dispatched[-1], [row()])
        assert [type(message) for message in answers] == [Ack]
    assert states(broker, job_id) == ["cancelled"]
    assert counts(broker) == (0, 0, 0)


def test_a_broker_killed_right_before_the_commit_has_not(broker: Broker) -> None:
    """The repeated call cancels the job."""
    job_id, _ = broker.submit()
    broker.put(b"boss", Call("7", "cancel", pack({"ids": [job_id]})))
    broker.core.decide(broker.clock.now())
    broker.crash()
    assert states(broker, job_id) == ["queued"]
    assert cancel(broker, job_id) == [[job_id, "cancelled", "queued"]]


# Legacy workers


def legacy_worker(broker: Broker, slots: int = 1) -> None:
    broker.tell(b"old", Inform("1", '[[10, "default"]]', "worker"))
    for n in range(slots):
        broker.tell(b"old", Ready(f"r{n}"))


def legacy_job(broker: Broker) -> str:
    job_id = broker.new_id()
    broker.tell(b"c", Request(job_id, "default", "", b'["run", {}]'))
    return job_id


@pytest.mark.parametrize("names_it", [True, False])
def test_a_legacy_worker_is_only_fenced(broker: Broker, names_it: bool) -> None:
    """It cannot be notified; its late answer changes nothing, not even its next job."""
    legacy_worker(broker)
    job_id = legacy_job(broker)
    cancel(broker, job_id)
    assert cancels(broker.took(b"old")) == []
    other = legacy_job(broker)
    late_reply = Reply("z", b'{"value": 1}', job_id if names_it else None)
    broker.tell(b"old", late_reply)
    broker.tell(b"old", Ready("r9"))
    broker.tell(b"old", Reply("y", b'{"value": 2}', other))
    assert states(broker, job_id, other) == ["cancelled", "succeeded"]
    assert broker.core.state.counters["stale_outcomes"] == 1
    [session] = broker.core.state.sessions.values()
    assert session.leases == {}


def test_a_legacy_worker_that_never_answers_gets_its_next_job(broker: Broker) -> None:
    """When its slots are free, the lease of the cancelled job ends."""
    legacy_worker(broker)
    broker.wait(6.0)  # until its READYs do not count its slots any more
    job_id = legacy_job(broker)
    cancel(broker, job_id)
    broker.tell(b"old", Ready("r9"))
    broker.wait(5.0)
    [session] = broker.core.state.sessions.values()
    assert session.leases == {}
    broker.took(b"old")
    other = legacy_job(broker)
    assert [m.id for m in broker.took(b"old") if isinstance(m, Request)] == [other]


def test_features_of_a_worker_say_that_it_can_be_told() -> None:
    assert "cancel" in Features().extensions


# Bad arguments


@pytest.mark.parametrize(
    "arguments", [{}, {"ids": "x"}, {"ids": [1]}, {"ids": ["x"] * 1001}, {"ids": [], "reason": 3}]
)
def test_bad_arguments_are_refused(broker: Broker, arguments: Any) -> None:
    error = broker.call("cancel", **arguments)
    assert isinstance(error, Error)
    assert error.code == "bad-arguments"


# Over a restart


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_worker_is_told_of_a_cancel_after_a_restart(broker: Broker, jobs: int) -> None:
    """The broker was killed after the commit of the cancel and before it sent CANCEL."""
    broker.core.state.run_times["shop.add"] = 1e-6
    ids = [broker.submit()[0] for _ in range(jobs)]
    [(chunk, index)] = chunks(broker.worker())
    assert [entry.id for entry in index.entries] == ids
    broker.put(b"boss", Call("c", "cancel", pack({"ids": ids[:1], "reason": ""})))
    broker.core.decide(broker.clock.now())
    entries, _ = broker.core.take_batch()
    broker.store.submit(entries)
    broker.crash()
    got = broker.worker(b"again", received=1, held=(1,))
    assert [(c.job, c.delivery) for c in cancels(got)] == [(ids[0], "1")]
    rows = [row(position) for position in range(jobs)]
    assert Ack in map(type, broker.answer(b"again", chunk, rows))
    assert states(broker, *ids) == ["cancelled"] + ["succeeded"] * (jobs - 1)


def test_a_worker_is_told_nothing_of_what_it_has_answered(broker: Broker) -> None:
    """Its chunk is open for the other jobs, and it may still wait for an ACK."""
    broker.core.state.run_times["shop.add"] = 1e-6
    for _ in range(3):
        broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(0), row(1, OutcomeKind.RETRY)])
    broker.crash()
    assert cancels(broker.worker(b"again", received=1, held=(1,))) == []


def test_a_worker_that_dropped_its_chunk_is_told_nothing(broker: Broker) -> None:
    job_id, _ = broker.submit()
    broker.worker()
    cancel(broker, job_id)
    broker.crash()
    assert cancels(broker.worker(b"again", received=1)) == []
