"""Ends of jobs that come without a ``get``, since the REQUEST asked for them."""

from __future__ import annotations

from typing import Any

import pytest

from eventmq.client.machine import MAX_PUSHED, PROMPT, WaitPredictor
from eventmq.client.requests import PendingCall, PendingSubmit
from eventmq.client.templates import ACK_AND_REPLY_REQUESTED, ACK_REQUESTED, REPLY_REQUESTED
from eventmq.wire.batches import pack
from eventmq.wire.commands import Call, Reply, Request
from tests.support.client_harness import FakeBroker, Net


def submit(net: Net, job_id: str = "j1") -> PendingSubmit:
    """Submit a job and ask for its end with it."""
    frames = Request(job_id, "default", "ack-requested,reply-requested,task:t", b"x").frames()
    pending = PendingSubmit(frames, id=job_id, deadline=net.now + 5.0, reply_requested=True)
    net.begin(pending)
    assert pending.done
    assert pending.error is None
    return pending


def get(net: Net, job_id: str = "j1") -> PendingCall:
    asked = PendingCall(
        [], id=net.machine.message_id(), deadline=net.now + 60.0, name="get", ids={job_id},
        subject=job_id,
    )  # fmt: skip
    net.begin(asked)
    return asked


def gets(broker: FakeBroker) -> int:
    return sum(isinstance(m, Call) and m.name == "get" for m in broker.received)


def rows(asked: PendingCall) -> list[Any]:
    return list(asked.answers)


def test_a_get_of_a_pushed_result_sends_nothing() -> None:
    """The broker sends it by itself."""
    broker = FakeBroker()
    net = Net(broker)
    submit(net)
    asked = get(net)
    assert not asked.done
    broker.finish("j1", "succeeded", data=b"r")
    net.advance(0.5)
    assert [["j1", "succeeded", "msgpack", b"r"]] == rows(asked)
    assert asked.done
    assert asked.error is None
    assert gets(broker) == 0


def test_an_end_that_came_before_anybody_asked_is_there_at_once() -> None:
    broker = FakeBroker()
    broker.finish("j1", "failed", "error", b"e")
    net = Net(broker)
    submit(net)
    asked = get(net)
    assert [["j1", "failed", "error", b"e"]] == rows(asked)
    assert asked.done
    assert gets(broker) == 0


@pytest.mark.parametrize("why", ["no promise", "restart", "reconnection", "too late"])
def test_a_result_that_is_not_pushed_any_more_is_asked_for(why: str) -> None:
    """A broker that is not asked within the interval may have forgotten who it owes what."""
    broker = FakeBroker(replies=why != "no promise")
    net = Net(broker, heartbeat=3.0)
    submit(net)
    if why == "restart":
        broker.restart()
        net.machine.lost(0, net.now)
    elif why == "reconnection":
        net.lose(0)
        net.restore(0)
    elif why == "too late":
        net.advance(4.0)
    asked = get(net)
    assert gets(broker) == 1
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert [["j1", "succeeded", "msgpack", b""]] == rows(asked)


@pytest.mark.parametrize("cut", [False, True])
def test_a_get_of_a_pushed_result_asks_when_the_broker_is_back(*, cut: bool) -> None:
    """A waiting get() survives a restart of the broker, and a lost connection."""
    broker = FakeBroker()
    net = Net(broker, heartbeat=1.0)
    submit(net)
    asked = get(net)
    broker.restart()
    if cut:
        net.lose(0)
        net.restore(0)
    net.advance(3.0)
    assert gets(broker) == 1
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert [["j1", "succeeded", "msgpack", b""]] == rows(asked)


def test_an_end_is_a_receipt_too() -> None:
    """The ACK may come behind it."""
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    frames = Request("j1", "default", "reply-requested,task:t", b"x").frames()
    pending = PendingSubmit(frames, id="j1", deadline=net.now + 5.0, reply_requested=True)
    net.begin(pending)
    assert not pending.done
    row = ["j1", "succeeded", "msgpack", b"r"]
    net.machine.received(0, Reply("b", pack(row), "j1", "ended").frames(), net.now)
    net.run()
    assert pending.done
    assert pending.error is None
    assert [row] == rows(get(net))
    assert gets(broker) == 0


def test_a_second_caller_asks_for_itself() -> None:
    broker = FakeBroker()
    net = Net(broker)
    submit(net)
    first, second = get(net), get(net)
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert rows(first) == rows(second) == [["j1", "succeeded", "msgpack", b""]]
    assert gets(broker) == 1


def test_pushed_results_without_a_get_are_bounded() -> None:
    """The oldest are forgotten, and asked for."""
    broker = FakeBroker()
    net = Net(broker)
    ids = [f"j{n}" for n in range(MAX_PUSHED + 1)]
    for job_id in ids:
        broker.finish(job_id, "succeeded")
        submit(net, job_id)
    assert all(get(net, job_id).done for job_id in ids)
    assert gets(broker) == 1


def test_a_malformed_end_is_dropped() -> None:
    broker = FakeBroker()
    net = Net(broker)
    submit(net)
    asked = get(net)
    for body in (b"\xc1", pack(["j1", 3]), pack("j1")):
        net.machine.received(0, Reply("b", body, "j1", "ended").frames(), net.now)
    assert not asked.done
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert asked.done


def test_after_two_jobs_in_a_row_with_get_the_next_is_predicted() -> None:
    """And one that is not ends it."""
    now = 0.0
    predictor = WaitPredictor(lambda: now)
    said = []
    for job_id in ("a", "b", "c"):
        said.append(predictor.submitting(job_id))
        predictor.submitted()
        now += 1.0
        predictor.waiting(job_id)
    assert said == [ACK_REQUESTED, ACK_REQUESTED, ACK_AND_REPLY_REQUESTED]
    assert predictor.submitting("d") == ACK_AND_REPLY_REQUESTED
    assert predictor.submitting("e") == ACK_REQUESTED
    predictor.waiting("d")
    predictor.waiting("e")
    assert predictor.submitting("f") == ACK_REQUESTED


def test_the_receipt_is_not_waited_for_where_get_follows_at_once() -> None:
    """Who does something else between ``delay`` and ``get`` has the receipt at once again."""
    now = 0.0
    predictor = WaitPredictor(lambda: now)

    def said(job_id: str, pause: float) -> str:
        nonlocal now
        requested = predictor.submitting(job_id)
        predictor.submitted()
        now += pause
        predictor.waiting(job_id)
        return requested

    assert [ACK_REQUESTED, ACK_REQUESTED, REPLY_REQUESTED] == [
        said(job_id, 0.0) for job_id in "abc"
    ]
    assert [REPLY_REQUESTED, ACK_AND_REPLY_REQUESTED, ACK_AND_REPLY_REQUESTED] == [
        said(job_id, PROMPT) for job_id in "def"
    ]
    assert [ACK_AND_REPLY_REQUESTED, ACK_AND_REPLY_REQUESTED, REPLY_REQUESTED] == [
        said(job_id, 0.0) for job_id in "ghi"
    ]
