"""Clients of a shared store: requests go to its owner, and to the next one when that changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.client.machine import NAMED
from eventmq.client.requests import OneWayMessage, PendingCall, PendingSubmit
from eventmq.errors import BrokerUnavailable
from eventmq.wire.batches import encode_batch, encode_exceptions, pack
from eventmq.wire.commands import Ack, Call, Error, Heartbeat, Inform, Publish, Reply, Request
from eventmq.wire.curve import ClientKeys
from eventmq.wire.owner import ACTIVE, STANDBY, OwnerInfo, no_owner
from tests.support.client_harness import FakeBroker, Net

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, ELSEWHERE = "broker0", "broker1", "tcp://10.0.0.9:47291"

KEY, OTHER_KEY = "k" * 40, "o" * 40


def active(epoch: int, address: str = A, key: str = "") -> OwnerInfo:
    return OwnerInfo(epoch, ACTIVE, address, key, "s1")


def standby(epoch: int, address: str = A, key: str = "") -> OwnerInfo:
    return OwnerInfo(epoch, STANDBY, address, key, "s1")


class Shared(Net):
    """A client, and the brokers of one store."""

    def __init__(self, *owners: OwnerInfo | None, **options: Any) -> None:
        self.jobs: dict[str, Request] = {}
        self.results: dict[str, tuple[str, str, bytes | None]] = {}
        super().__init__(*map(self.broker, owners), **options)

    def broker(self, owner: OwnerInfo | None) -> FakeBroker:
        """Return one more broker."""
        return FakeBroker(owner=owner, jobs=self.jobs, results=self.results)

    def submit(self, job_id: str, timeout: float = 5.0) -> PendingSubmit:
        """Begin a submission, and return it."""
        frames = Request(job_id, "default", "ack-requested,task:t", b"body").frames()
        submit = PendingSubmit(frames, id=job_id, deadline=self.now + timeout)
        self.begin(submit)
        return submit

    def call(self, name: str, **more: Any) -> PendingCall:
        """Begin a call, and return it."""
        call_id = self.machine.message_id()
        call = PendingCall([], id=call_id, deadline=self.now + 60.0, name=name, **more)
        self.begin(call)
        return call

    def received_ids(self, kind: type[Any] = Request) -> list[list[str]]:
        """Return the ids of the messages of a kind that each broker got, in order."""
        return [[m.id for m in broker.received if isinstance(m, kind)] for broker in self.brokers]

    def names(self) -> list[list[str]]:
        """Return the names of the CALLs that each broker got, in order."""
        return [[m.name for m in b.received if isinstance(m, Call)] for b in self.brokers]


def reason(request: PendingSubmit | PendingCall) -> str:
    assert isinstance(request.error, BrokerUnavailable)
    return str(request.error)


def test_requests_go_to_the_owner_only() -> None:
    """The order of the addresses does not matter."""
    net = Shared(standby(3, B), active(3, B), standby(3, B))
    assert net.submit("a").done
    net.call("queues")
    assert net.received_ids() == [[], ["a"], []]
    assert net.names() == [[], ["queues"], []]


def test_what_is_unanswered_is_sent_to_the_next_owner() -> None:
    """The first one was stopped in the middle: its connection is there, and it says nothing."""
    net = Shared(active(3), standby(3))
    net.brokers[0].silent = True
    net.brokers[1].finish("x", "succeeded", data=b"1")
    job, pending_call = net.submit("a"), net.call("get", ids={"x"}, subject="x")
    assert not job.done
    assert not pending_call.done
    net.send_owner(1, active(4, B))
    assert job.done
    assert job.error is None
    assert net.received_ids() == [["a"], ["a"]]
    assert net.names() == [["get"], ["get"]]
    assert [list(row[:2]) for row in pending_call.answers] == [["x", "succeeded"]]
    assert net.submit("b").done
    assert net.received_ids() == [["a"], ["a", "b"]]


def test_the_news_may_come_from_a_third_broker() -> None:
    net = Shared(active(3), standby(3), standby(3))
    net.brokers[1].owner = active(4, B)
    net.send_owner(2, standby(4, B))
    job = net.submit("a")
    assert not job.sent
    net.send_owner(1, active(4, B))
    assert job.done
    assert net.received_ids() == [[], ["a"], []]


def test_a_lower_epoch_is_not_followed() -> None:
    """A former owner may not know yet that it has lost the store."""
    net = Shared(active(3), standby(3))
    net.send_owner(1, active(4, B))
    net.send_owner(0, active(3, "tcp://renamed:1"))
    net.lose(0)
    net.restore(0)
    assert net.submit("a").done
    assert net.received_ids() == [[], ["a"]]
    net.send_owner(0, active(5))
    assert net.submit("b").done
    assert net.received_ids() == [["b"], ["a"]]


def test_an_owner_that_gives_the_store_up_is_sent_nothing_more() -> None:
    net = Shared(active(3), standby(3))
    net.brokers[0].hold.add("a")
    job = net.submit("a")
    net.send_owner(0, standby(3, B))
    assert net.received_ids() == [["a"], []]
    net.send_owner(1, active(4, B))
    assert job.done
    assert net.received_ids() == [["a"], ["a"]]


def test_an_owner_in_a_new_epoch_is_informed_and_sent_everything_again() -> None:
    """It lost its database and took the store over again; its window and leases are lost."""
    net = Shared(active(3))
    net.brokers[0].hold.add("a")
    job = net.submit("a")
    net.brokers[0].hold.clear()
    net.send_owner(0, active(4))
    assert job.done
    assert net.received_ids() == [["a", "a"]]
    assert len(net.received_ids(Inform)[0]) == 2


def test_the_same_news_again_change_nothing() -> None:
    net = Shared(active(3), standby(3))
    for _ in range(3):
        net.send_owner(0, active(3))
        net.send_owner(1, standby(3))
    assert [len(ids) for ids in net.received_ids(Inform)] == [1, 1]


def test_no_owner_is_tried_again_until_there_is_one() -> None:
    """The broker knows it before the peers do."""
    net = Shared(active(3))
    net.brokers[0].refuse["a"] = ("no-owner", "this broker does not own its store")
    job = net.submit("a")
    net.advance(2.0)
    assert not job.done
    tried = len(net.received_ids()[0])
    assert 2 < tried <= 11
    net.brokers[0].refuse.clear()
    net.advance(0.5)
    assert job.done
    assert job.error is None


def test_no_owner_is_told_at_the_deadline() -> None:
    net = Shared(active(3), standby(3))
    net.brokers[0].refuse["a"] = ("no-owner", "no owner is known now")
    job = net.submit("a")
    net.advance(5.0)
    assert reason(job) == (
        "the owner of the store could not be reached in time: broker0 (no owner is known now), "
        "broker1 (a standby; the owner is broker0)"
    )


def test_an_old_refusal_does_not_take_the_request_from_the_next_owner() -> None:
    net = Shared(active(3), standby(3))
    net.brokers[0].silent = True
    net.brokers[1].hold.add("a")
    job = net.submit("a")
    net.send_owner(1, active(4, B))
    net.machine.received(0, Error("b", "a", "no-owner", "late").frames(), net.now)
    assert job.assigned_to == 1


@pytest.mark.parametrize("code", ["store-full", "unavailable", "bad-body"])
def test_a_refusal_of_an_owner_before_does_not_end_what_the_next_one_has(code: str) -> None:
    """The next owner may have stored the job when the refusal arrives."""
    net = Shared(active(3), standby(3))
    net.brokers[0].silent = True
    net.brokers[1].hold.add("a")
    job, pending_call = net.submit("a"), net.call("queues")
    net.send_owner(0, standby(4, B))
    for _ in range(2):
        for request in (job.id, pending_call.id):
            net.machine.received(0, Error("b", request, code, "late").frames(), net.now)
        assert not job.done
        net.brokers[1].calls["queues"] = []
        net.send_owner(1, active(4, B))
    assert list(pending_call.answers) == [[]]
    net.machine.received(1, Error("b", "a", code, "mine").frames(), net.now)
    assert job.done
    assert "mine" in str(job.error)


def test_of_a_batch_the_next_owner_says_what_is_refused() -> None:
    """The one before has refused a job, and the next one stores it."""
    net = Shared(active(3), standby(3))
    net.brokers[0].silent = True
    body = encode_batch([("default", "task:t")], [("x", 0, b""), ("y", 0, b"")])
    frames = Request("a", "default", "batch:2", body).frames()
    batch = PendingSubmit(frames, id="a", deadline=net.now + 5.0, count=2)
    net.begin(batch)
    net.send_owner(0, standby(4, B))
    extra = encode_exceptions({1: ("queue-full", "late")})
    net.machine.received(0, Ack("b", "a", extra).frames(), net.now)
    assert not batch.done
    net.send_owner(1, active(4, B))
    assert batch.done
    assert batch.refused == {}
    assert list(net.jobs) == ["x", "y"]


def test_a_receipt_of_an_owner_before_counts() -> None:
    """It has stored the job, whichever broker owns the store now."""
    net = Shared(active(3), standby(3))
    net.brokers[0].silent = True
    job = net.submit("a")
    net.send_owner(0, standby(4, B))
    net.machine.received(0, Ack("b", "a").frames(), net.now)
    assert job.done
    assert job.error is None


def test_standbys_alone_are_named_in_the_error() -> None:
    net = Shared(standby(0, A), standby(3, A))
    job = net.submit("a")
    net.advance(5.0)
    assert not job.sent
    assert "broker0 (a standby; the owner is broker0), broker1 (a standby; the owner" in reason(job)


def test_a_request_that_a_standby_does_not_refuse_goes_to_the_owner() -> None:
    net = Shared(active(3), standby(3))
    net.brokers[0].hold.add("a")
    net.brokers[0].owner = standby(3, "")
    net.brokers[0].silent = True
    net.machine.received(0, Heartbeat("b", "0.0", standby(3, "").format()).frames(), net.now)
    job = net.submit("a")
    assert job.assigned_to == 0
    net.send_owner(1, active(4, B))
    assert job.done
    assert job.error is None


def test_a_request_that_one_standby_refuses_is_sent_to_the_owner() -> None:
    net = Shared(standby(3, ""), standby(3, ""))
    net.brokers[0].silent = net.brokers[1].silent = True
    job = net.submit("a")
    net.brokers[1].silent = False
    net.machine.received(0, no_owner("b", "a", standby(3, "")).frames(), net.now)
    net.run()
    assert net.received_ids() == [["a"], ["a"]]
    net.send_owner(1, active(4, B))
    assert job.done


def test_standbys_that_know_no_owner_are_asked_why_once() -> None:
    """The error of the caller has the reason, such as a database that is away."""
    net = Shared(standby(3, ""), standby(3, ""))
    jobs = [net.submit("a"), net.submit("b", timeout=6.0)]
    notice = OneWayMessage(Publish("p", "topic", "", b"").frames(), id="p", deadline=net.now + 1.0)
    net.begin(notice)
    net.advance(7.0)
    assert net.received_ids() == [["a"], ["a"]]
    assert net.received_ids(Publish) == [[], []]
    for job in jobs:
        assert "broker0 (a standby; this broker does not own its store; no owner is" in reason(job)
    net.send_owner(0, active(4))
    assert net.submit("c").done


# The address of the owner


def test_an_owner_at_another_address_is_connected_to() -> None:
    net = Shared(standby(3, ELSEWHERE))
    job = net.submit("a")
    assert net.machine.connections[1].address == ELSEWHERE
    assert net.machine.connections[1].last_error == NAMED
    net.answer(net.broker(active(3, ELSEWHERE)))
    assert job.done
    assert net.received_ids() == [[], ["a"]]


def test_there_is_one_connection_for_such_owners() -> None:
    """However often the owner gets another address, as machines of a cluster do."""
    net = Shared(standby(3, ELSEWHERE))
    net.answer(net.broker(active(3, ELSEWHERE)))
    net.send_owner(0, standby(4, "tcp://10.0.0.10:47291"))
    net.brokers[1] = net.broker(active(4, "tcp://10.0.0.10:47291"))
    assert net.machine.reopen == [1]
    net.answer()
    assert [c.address for c in net.machine.connections] == [A, "tcp://10.0.0.10:47291"]
    assert net.submit("a").done
    net.send_owner(0, active(5))
    assert net.submit("b").done
    assert net.received_ids() == [["b"], ["a"]]


def test_an_owner_under_a_name_of_its_own_is_not_connected_to_twice() -> None:
    """A client may know it by the name of its host."""
    net = Shared(active(3, ELSEWHERE), standby(3, ELSEWHERE))
    assert net.submit("a").done
    assert len(net.machine.connections) == 2


@pytest.mark.parametrize("owner", [None, active(9, ELSEWHERE)._replace(store_id="s2")])
def test_a_broker_with_another_store_is_not_taken_for_the_owner(owner: OwnerInfo | None) -> None:
    """Such as one on this machine, where an owner elsewhere is known as 127.0.0.1."""
    net = Shared(standby(3, ELSEWHERE))
    wrong = FakeBroker(store="s2", owner=owner)
    net.answer(wrong)
    job = net.submit("a")
    net.advance(5.0)
    assert f"{ELSEWHERE} (it does not have the store s1)" in reason(job)
    assert wrong.jobs == {}


def keys(*others: str) -> ClientKeys:
    return ClientKeys(KEY.encode(), b"p" * 40, b"s" * 40, tuple(key.encode() for key in others))


@pytest.mark.parametrize(("own", "key"), [(None, ""), (keys(), KEY), (keys(OTHER_KEY), OTHER_KEY)])
def test_an_owner_with_a_key_that_is_configured_is_trusted(
    own: ClientKeys | None, key: str
) -> None:
    net = Shared(standby(3, ELSEWHERE, key), keys=own)
    assert net.machine.connections[1].server_key == key
    assert net.machine.reopen == [1]


@pytest.mark.parametrize(
    ("own", "key", "problem"),
    [
        (keys(), OTHER_KEY, f"its public key {OTHER_KEY} is not in broker_key_file: add its "),
        (keys(), "", "it has no CURVE key, and this peer connects with keys only"),
        (None, KEY, "it has a CURVE key and this peer has none: set key_file and broker_key_"),
    ],
)
def test_an_owner_that_is_not_trusted_is_not_connected_to(
    own: ClientKeys | None, key: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of the caller and the log say what to configure."""
    with caplog.at_level(logging.WARNING):
        net = Shared(standby(3, ELSEWHERE, key), keys=own)
    job = net.submit("a")
    net.advance(5.0)
    assert len(net.machine.connections) == 1
    assert f"broker0 (a standby; the owner is {ELSEWHERE}, but {problem}" in reason(job)
    assert f"the owner is {ELSEWHERE}, but {problem}" in caplog.text


# Questions


@pytest.mark.parametrize("name", ["ping", "status"])
def test_the_only_broker_answers_for_itself(name: str) -> None:
    """A standby does so too, so that its status can be read."""
    net = Shared(standby(3, ELSEWHERE))
    net.answer(net.broker(active(3, ELSEWHERE)))
    net.call(name)
    net.call("queues")
    assert net.names() == [[name], ["queues"]]


def test_of_several_brokers_the_owner_is_asked() -> None:
    net = Shared(standby(3, B), active(3, B))
    net.call("status")
    assert net.names() == [[], ["status"]]


def test_a_job_of_an_unknown_broker_is_asked_of_the_owner() -> None:
    """Not only after the timeout for the first address, which does not answer."""
    net = Shared(None, active(3, B))
    net.brokers[0].silent = True
    net.lose(0)
    net.machine.connections[0].features = None
    net.call("state", target=0, arguments={"ids": ["x"]})
    assert net.names() == [[], ["state"]]


def test_a_handover_is_asked_for_once() -> None:
    """The next owner would hand the store back."""
    net = Shared(active(3), standby(3))
    net.brokers[0].silent = True
    pending_call = net.call("handover")
    net.send_owner(0, standby(3, ""))
    net.send_owner(1, active(4, B))
    assert net.names() == [["handover"], []]
    answer = Reply("b", pack({"owner": B, "epoch": 4}), pending_call.id).frames()
    net.machine.received(0, answer, net.now)
    assert list(pending_call.answers) == [{"owner": B, "epoch": 4}]


# Liveness of standbys


def advanced(net: Shared, seconds: float, senders: Sequence[int]) -> None:
    """Let time pass while these brokers send HEARTBEATs."""
    for _ in range(int(seconds)):
        net.advance(1.0)
        for index in senders:
            owner = net.brokers[index].owner
            assert owner is not None
            net.send_owner(index, owner)


def test_a_standby_that_falls_silent_gets_a_new_connection() -> None:
    """The client would not hear from it that it owns the store."""
    net = Shared(active(3), standby(3))
    net.call("subscribe", arguments={"topics": []})
    advanced(net, 30.0, senders=[0, 1])
    assert net.machine.reopen == []
    advanced(net, 14.0, senders=[0])
    assert net.machine.reopen == []
    advanced(net, 6.0, senders=[0])
    assert net.machine.reopen == [1]


def test_a_standby_may_be_silent_while_nothing_is_asked() -> None:
    """A client that waits for nothing reads nothing."""
    net = Shared(active(3), standby(3))
    net.now += 3600.0
    assert net.submit("a").done
    net.machine.tick(net.now, net.now)
    net.run()
    assert net.machine.reopen == []
    assert net.brokers[1].kinds() == ["Inform", "Heartbeat"]


def test_a_client_that_slept_through_a_takeover_finds_the_owner() -> None:
    """The standby forgot it meanwhile, and the owner that it knows stands still."""
    net = Shared(active(3), standby(3))
    net.now += 3600.0
    net.brokers[0].silent = True
    net.brokers[1].peers.clear()
    net.brokers[1].owner = active(4, B)
    job = net.submit("a")
    assert not job.done
    assert net.machine.next_tick() <= net.now
    net.machine.tick(net.now, net.now)
    net.run()
    assert job.done
    assert job.error is None
    assert net.received_ids() == [["a"], ["a"]]


def test_a_standby_that_forgot_the_client_is_informed_again() -> None:
    net = Shared(active(3), standby(3))
    net.brokers[1].peers.clear()
    net.call("subscribe", arguments={"topics": []})
    net.advance(4.0)
    assert net.brokers[1].kinds() == ["Inform", "Heartbeat", "Inform"]
