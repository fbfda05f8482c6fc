"""A job and its result in one exchange: the broker pushes the result, which is a receipt too."""

from __future__ import annotations

from typing import Any

import pytest

from eventmq.client.requests import PendingCall, PendingSubmit
from eventmq.errors import BrokerUnavailable, DuplicateJob, ProtocolError, ResultTimeout
from eventmq.wire.batches import pack
from eventmq.wire.commands import Ack, Call, Reply, Request
from tests.support.client_harness import FakeBroker, Net

#: How a job without a result of its own to speak of ended.
ROW = ["j1", "succeeded", "msgpack", b""]


def call(
    net: Net, job_id: str = "j1", *, timeout: float = 60.0, requested: str = "late-ack"
) -> PendingCall:
    """Submit a job and ask for its result with it."""
    frames = Request(job_id, "default", f"{requested},task:t", b"x").frames()
    submit = PendingSubmit(
        frames, id=job_id, deadline=net.now + 5.0, extension="late-ack", asks_for_result=True
    )
    pending_call = PendingCall(
        [], id=net.machine.message_id(), deadline=net.now + timeout, name="get", ids={job_id},
        subject=job_id, submit=submit,
    )  # fmt: skip
    net.begin(pending_call)
    return pending_call


def delay(net: Net, job_id: str = "j1", *, timeout: float = 5.0) -> PendingSubmit:
    """Submit a job, for a receipt alone."""
    frames = Request(job_id, "default", "ack-requested,task:t", b"x").frames()
    submit = PendingSubmit(frames, id=job_id, deadline=net.now + timeout)
    net.begin(submit)
    return submit


def confirm(net: Net, broker: FakeBroker) -> None:
    """Let the broker send the receipts that it holds."""
    net.deliver(0, broker.confirm())
    net.run()


def gets(broker: FakeBroker) -> int:
    return sum(isinstance(m, Call) and m.name == "get" for m in broker.received)


def rows(pending_call: PendingCall) -> list[Any]:
    return list(pending_call.answers)


@pytest.mark.parametrize("receipt", ["none", "late", "at once"])
def test_a_job_and_its_result_are_one_message_each_way(receipt: str) -> None:
    broker = FakeBroker()
    net = Net(broker)
    requested = "ack-requested,reply-requested" if receipt == "at once" else "late-ack"
    pending_call = call(net, requested=requested)
    if receipt == "late":
        confirm(net, broker)
    assert not pending_call.done
    assert (pending_call.submit is None) == (receipt != "none")
    broker.finish("j1", "succeeded", data=b"r")
    net.advance(0.5)
    assert [["j1", "succeeded", "msgpack", b"r"]] == rows(pending_call)
    assert (pending_call.done, pending_call.error, pending_call.target, pending_call.store) == (
        True,
        None,
        0,
        "s1",
    )
    assert broker.kinds() == ["Inform", "Request"]
    assert not net.machine.busy


def test_a_job_that_had_ended_before_is_answered_at_once() -> None:
    broker = FakeBroker()
    broker.finish("j1", "failed", "error", b"e")
    net = Net(broker)
    pending_call = call(net)
    assert [["j1", "failed", "error", b"e"]] == rows(pending_call)
    assert gets(broker) == 0


def test_where_the_broker_will_push_nothing_the_result_is_asked_for() -> None:
    broker = FakeBroker(replies=False)
    net = Net(broker)
    pending_call = call(net)
    assert gets(broker) == 1
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert [ROW] == rows(pending_call)


@pytest.mark.parametrize("confirmed", [False, True])
@pytest.mark.parametrize("event", ["restart", "reconnection", "both"])
def test_a_call_survives_a_restart_and_a_lost_connection(event: str, *, confirmed: bool) -> None:
    """Before the receipt the REQUEST is sent again, after it the result is asked for."""
    broker = FakeBroker()
    net = Net(broker, heartbeat=1.0)
    pending_call = call(net)
    if confirmed:
        confirm(net, broker)
    if event != "reconnection":
        broker.restart()
    if event != "restart":
        net.lose(0)
        net.restore(0)
    net.advance(3.0)
    assert gets(broker) == confirmed
    assert broker.kinds().count("Request") == 2 - confirmed
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert [ROW] == rows(pending_call)
    assert pending_call.error is None


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_receipt_or_an_end_from_a_broker_that_shuts_down_counts(*, confirmed: bool) -> None:
    """They may come behind its KBAI."""
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    pending_call = call(net)
    net.machine._on_kbai(net.machine.connections[0], net.now)
    answer = Ack("b", "j1") if confirmed else Reply("b", pack(ROW), "j1", "ended")
    net.machine.received(0, answer.frames(), net.now)
    assert pending_call.submit is None
    assert pending_call.done is not confirmed
    assert pending_call.assigned_to == -1


def test_a_refused_job_ends_the_call() -> None:
    broker = FakeBroker(refuse={"j1": ("duplicate", "j0")})
    pending_call = call(Net(broker))
    assert isinstance(pending_call.error, DuplicateJob)
    assert pending_call.error.job_id == "j0"


def test_without_a_receipt_the_broker_is_unavailable_at_the_deadline_of_the_submission() -> None:
    """The timeout of the result does not matter, even if it has passed before."""
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    pending_call = call(net, timeout=3.0)
    net.advance(4.5)
    assert not pending_call.done
    assert pending_call.last_deadline == net.now + 0.5
    net.advance(1.0)
    assert isinstance(pending_call.error, BrokerUnavailable)
    assert (pending_call.error.job_id, pending_call.error.maybe_accepted) == ("j1", True)


@pytest.mark.parametrize("late", [False, True])
def test_a_result_that_does_not_come_is_a_timeout_once_there_is_a_receipt(*, late: bool) -> None:
    broker = FakeBroker()
    net = Net(broker)
    pending_call = call(net, timeout=3.0)
    if not late:
        confirm(net, broker)
    net.advance(3.5)
    assert pending_call.done is not late
    confirm(net, broker)
    net.advance(0.5)
    assert isinstance(pending_call.error, ResultTimeout)
    assert not net.machine.busy
    assert net.machine._in_flight.pushed == {}


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_call_that_is_left_asks_for_nothing_more(*, confirmed: bool) -> None:
    """The job goes on, and its submission too."""
    broker = FakeBroker()
    net = Net(broker)
    pending_call = call(net)
    if confirmed:
        confirm(net, broker)
    net.machine.forget(pending_call)
    net.run()
    assert pending_call.done
    assert net.machine.busy is not confirmed
    confirm(net, broker)
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert not net.machine.busy
    assert gets(broker) == 0


def test_a_second_call_of_the_same_id_gets_the_result_as_well() -> None:
    """It may come before or after the receipt of the first: the broker pushes the result once."""
    broker = FakeBroker()
    net = Net(broker)
    first, second = call(net), call(net)
    confirm(net, broker)
    third = call(net)
    confirm(net, broker)
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert rows(first) == rows(second) == rows(third) == [ROW]
    assert gets(broker) == 2


def test_the_followers_of_a_call_fail_with_it() -> None:
    broker = FakeBroker(refuse={"j1": ("queue-full", "no room")}, silent=False)
    net = Net(broker)
    net.cut.add(0)
    first, second = call(net), call(net)
    net.cut.clear()
    net.run()
    assert type(first.error) is type(second.error)
    assert "no room" in str(second.error)


def test_a_call_behind_a_submission_without_a_result_asks_for_it() -> None:
    """The REQUEST that was sent asked for a receipt alone, so the broker pushes nothing."""
    broker = FakeBroker()
    net = Net(broker)
    net.cut.add(0)
    submitted, pending_call = delay(net), call(net)
    net.cut.clear()
    net.run()
    assert (submitted.done, submitted.error) == (True, None)
    assert broker.kinds() == ["Inform", "Request", "Call"]
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert rows(pending_call) == [ROW]
    assert not net.machine.busy


def test_the_receipt_of_an_earlier_submission_promises_no_result() -> None:
    """The one that was sent has timed out; its receipt comes before the next one is sent."""
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    submitted, pending_call = delay(net, timeout=1.0), call(net)
    net.cut.add(0)
    net.advance(1.5)
    assert isinstance(submitted.error, BrokerUnavailable)
    broker.jobs["j1"] = Request("j1", "default", "ack-requested,task:t", b"x")
    net.machine.received(0, Ack("b", "j1").frames(), net.now)
    net.cut.clear()
    broker.finish("j1", "succeeded")
    net.advance(1.0)
    assert rows(pending_call) == [ROW]
    assert gets(broker) == 1


def test_a_submission_behind_a_call_shares_its_receipt() -> None:
    broker = FakeBroker()
    net = Net(broker)
    pending_call, submitted = call(net), delay(net)
    assert not submitted.done
    confirm(net, broker)
    assert (submitted.done, submitted.error) == (True, None)
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert rows(pending_call) == [ROW]
    assert gets(broker) == 0


def test_a_call_behind_a_submission_to_a_broker_without_results_fails() -> None:
    broker = FakeBroker(features=False)
    net = Net(broker)
    net.cut.add(0)
    submitted, pending_call = delay(net), call(net)
    net.cut.clear()
    net.run()
    assert (submitted.done, submitted.confirmed) == (True, False)
    assert isinstance(pending_call.error, ProtocolError)
    assert "states and results of jobs cannot be read" in str(pending_call.error)
    assert not net.machine.busy


@pytest.mark.parametrize("earlier", ["first", "second"])
def test_calls_of_one_id_time_out_each_at_its_own_deadline(earlier: str) -> None:
    """The one that began first sends the REQUEST for both."""
    broker = FakeBroker(hold={"j1"})
    net = Net(broker)
    calls = [call(net), call(net)]
    first, second = calls if earlier == "first" else calls[::-1]
    assert second.submit is not None
    second.submit.deadline += 3.0
    net.advance(6.0)
    assert isinstance(first.error, BrokerUnavailable)
    assert not second.done
    net.advance(3.0)
    assert isinstance(second.error, BrokerUnavailable)
    assert not net.machine.busy


def test_a_broker_without_results_is_told_nothing() -> None:
    """As ``delay().get()`` fails, but before the job is submitted."""
    broker = FakeBroker(features=False)
    pending_call = call(Net(broker))
    assert isinstance(pending_call.error, ProtocolError)
    assert "states and results of jobs cannot be read" in str(pending_call.error)
    assert broker.kinds() == ["Inform"]


def test_a_malformed_end_is_dropped() -> None:
    broker = FakeBroker()
    net = Net(broker)
    pending_call = call(net)
    for body in (b"\xc1", pack(["j1", 3]), pack("j1")):
        net.machine.received(0, Reply("b", body, "j1", "ended").frames(), net.now)
    assert not pending_call.done
    broker.finish("j1", "succeeded")
    net.advance(0.5)
    assert pending_call.done
