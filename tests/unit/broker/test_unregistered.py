"""Peers that act as registered without INFORM: what the broker sends them, and what not."""

from __future__ import annotations

import logging

import pytest

from eventmq.broker.grants import Grant
from eventmq.broker.limits import Limits
from eventmq.broker.peers import Key
from eventmq.wire.commands import (
    Ack,
    Command,
    Disconnect,
    Error,
    Heartbeat,
    Inform,
    Ready,
    Reply,
    Request,
    Schedule,
)
from eventmq.wire.features import is_ours, is_version_0_3, routing_id
from tests.support.broker_harness import Broker

#: Routing ids of EventMQ 0.3, of another implementation, and of EventMQ 1.
DEPLOYED = b"6f2a0c0e-0d3c-4a77-9e57-0c8c5b0d8f11"
FOREIGN = b"somebody"
OURS = b"eventmq1:client.1"

BODY = b'["run", {"callable": "add", "path": "jobs"}]'


def kinds(messages: list[Command]) -> list[str]:
    return [type(message).__name__ for message in messages]


@pytest.mark.parametrize("identity", [DEPLOYED, FOREIGN, b"\x00\xff\x01\x02\x03"])
@pytest.mark.parametrize("port", ["main", "worker", "admin", "publish"])
def test_a_heartbeat_of_a_stranger_is_not_answered(
    broker: Broker, identity: bytes, port: str
) -> None:
    """Deployed software would count the answer as a sign of life, and never inform again."""
    for n in range(5):
        assert broker.tell(identity, Heartbeat(str(n), "1.0"), port) == []


def test_a_stranger_of_ours_informs_again(broker: Broker) -> None:
    """Its HEARTBEAT has the same five frames; its routing id identifies it."""
    [error] = broker.tell(OURS, Heartbeat("1", "1.0"))
    assert isinstance(error, Error)
    assert error.code == "inform-again"


@pytest.mark.parametrize("message", [Ready("1"), Reply("1", b"null", "job"), Reply("1", b"null")])
def test_a_deployed_job_manager_is_told_once_to_begin_anew(
    broker: Broker, message: Command
) -> None:
    """Its message shows that it is one; a DISCONNECT makes it inform at once."""
    assert kinds(broker.tell(DEPLOYED, message)) == ["Disconnect"]
    for again in (message, Heartbeat("2", "1.0")):
        assert broker.tell(DEPLOYED, again) == []


@pytest.mark.parametrize("message", [Ready("1"), Reply("1", b"null", "job")])
def test_no_other_peer_is_sent_a_disconnect(broker: Broker, message: Command) -> None:
    """By the document a DISCONNECT stops a worker."""
    assert broker.tell(FOREIGN, message) == []


def test_a_deployed_scheduler_is_sent_nothing_until_it_informs(broker: Broker) -> None:
    """Its REQUESTs want an ACK and a REPLY; their jobs are accepted nevertheless."""
    broker.tell(DEPLOYED, Heartbeat("1", "1.0"))
    job = broker.new_id()
    assert broker.tell(DEPLOYED, Request(job, "default", "reply-requested", BODY)) == []
    assert broker.call("state", ids=[job]) == [[job, "queued"]]
    broker.tell(b"w", Inform("i", "", "worker"))
    broker.tell(b"w", Ready("r"))
    broker.tell(b"w", Reply("p", b'{"value": 1}', job))
    assert broker.call("state", ids=[job]) == [[job, "succeeded"]]
    assert broker.took(DEPLOYED) == []
    assert kinds(broker.tell(DEPLOYED, Inform("2", "", "scheduler"))) == ["Ack", "Heartbeat"]
    assert kinds(broker.tell(DEPLOYED, Request("j", "default", "guarantee", BODY))) == ["Ack"]


def test_nor_is_it_told_that_something_was_refused(broker: Broker) -> None:
    broker.tell(DEPLOYED, Heartbeat("1", "1.0"))
    assert broker.tell(DEPLOYED, Schedule("s", "default", "", b"x")) == []


def test_a_client_that_has_not_informed_is_answered(broker: Broker) -> None:
    """Deployed clients never inform, and send no HEARTBEAT."""
    assert kinds(broker.tell(DEPLOYED, Request("j", "default", "guarantee", BODY))) == ["Ack"]
    [error] = broker.tell(DEPLOYED, Schedule("s", "default", "", b"x"))
    assert isinstance(error, Error)


def test_an_inform_is_always_answered(broker: Broker) -> None:
    broker.tell(DEPLOYED, Heartbeat("1", "1.0"))
    [error] = broker.tell(DEPLOYED, Inform("i", "[[", "worker"))
    assert isinstance(error, Error)
    [ack, _] = broker.tell(DEPLOYED, Inform("i", "", "worker"))
    assert isinstance(ack, Ack)
    assert len(ack.frames()) == 5


def test_what_is_owed_to_one_does_not_keep_it_for_ever(broker: Broker) -> None:
    """A silent client may wait for its REPLY; this one no longer uses the routing id."""
    broker.tell(DEPLOYED, Heartbeat("1", "1.0"))
    broker.tell(DEPLOYED, Request(broker.new_id(), "default", "reply-requested", BODY))
    broker.wait(broker.limits.heartbeat_timeout + 1)
    assert broker.core.state.peers == {}


def test_a_broker_that_has_all_its_peers_does_not_answer_strangers(tmp_path) -> None:
    """A further peer gets an ERROR, unless it would count that as a sign of life."""
    broker = Broker(tmp_path, Limits(max_peers=1))
    try:
        broker.tell(b"c", Inform("i", "", "client"))
        for message in (Heartbeat("1", "1.0"), Ready("2"), Reply("3", b"", "x")):
            assert broker.tell(DEPLOYED, message) == []
            assert kinds(broker.tell(OURS, message)) == ["Error"]
        assert kinds(broker.tell(DEPLOYED, Inform("4", "", "worker"))) == ["Error"]
    finally:
        broker.close()


def test_with_a_key_it_is_no_deployed_software(broker: Broker) -> None:
    """Deployed software knows no CURVE, so such a peer gets an ERROR."""
    broker.tell(FOREIGN, Request("j", "default", "guarantee", BODY))
    peer = broker.core.state.peers[Key("main", FOREIGN)]
    peer.grant = Grant("key", "name", frozenset({"worker"}))
    [error] = broker.tell(FOREIGN, Ready("1"))
    assert isinstance(error, Error)


def test_a_broker_that_ends_dismisses_no_peer(broker: Broker) -> None:
    broker.tell(b"admin", Disconnect("d"), "admin")
    assert broker.tell(DEPLOYED, Ready("1")) == []


def test_strangers_are_counted_and_the_first_message_of_each_is_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "eventmq.broker"):
        for n in range(3):
            broker.tell(DEPLOYED, Heartbeat(str(n), "1.0"))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "has not sent INFORM; it is sent nothing until it does" in caplog.text
    assert broker.call("status")["counters"]["muted"] == 1


# Routing ids


def test_routing_ids_are_told_apart() -> None:
    ours = routing_id("worker", "1f")
    assert ours == b"eventmq1:worker.1f"
    assert [is_ours(identity) for identity in (ours, DEPLOYED, FOREIGN, b"")] == [
        True, False, False, False,
    ]  # fmt: skip
    others = (ours, FOREIGN, DEPLOYED + b"0")
    assert [is_version_0_3(identity) for identity in (DEPLOYED, *others)] == [
        True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("unique", ["\N{SNOWMAN}", "a\n", "x" * 255])
def test_a_routing_id_that_deployed_software_could_not_read_is_refused(unique: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        routing_id("client", unique)
