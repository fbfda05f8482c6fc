"""eMQP/1.0 as a client sees it that knows only the published document.

Raw sockets, written from the sections "Global Frames", "eMQP / Client" and "Headers".
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.emqp_broker import BrokerProcess, Connect, StartBroker
    from tests.support.raw_peer import RawPeer

BODY = b'["run", {"callable": "add", "path": "jobs", "args": [1, 2], "kwargs": {}}]'


@pytest.fixture
def client(broker: BrokerProcess, connect: Connect) -> RawPeer:
    return connect(broker["main"])


@pytest.fixture
def worker(broker: BrokerProcess, connect: Connect) -> RawPeer:
    worker = connect(broker["main"])
    worker.inform(b"worker", b'[[10, "default"], [5, "email"]]')
    return worker


def work(worker: RawPeer, result: bytes = b'{"value": 3}') -> list[bytes]:
    """Take one job and reply; return its REQUEST."""
    worker.send(b"READY")
    request = worker.expect(b"REQUEST")
    worker.send(b"REPLY", result, request[3])
    return request


def test_a_request_reaches_a_worker_as_it_was_sent(client: RawPeer, worker: RawPeer) -> None:
    """REQUEST: seven frames; the id is the client's, unchanged."""
    job = client.send(b"REQUEST", b"default", b"", BODY)
    request = work(worker)
    assert len(request) == 7
    assert request[2:5] == [b"REQUEST", job, b"default"]
    assert request[6] == BODY


def test_a_flood_of_one_client_does_not_keep_another_waiting(
    broker: BrokerProcess, connect: Connect
) -> None:
    """Clients SHOULD be served fairly: one behind 5,000 requests does not wait for all of them."""
    flood, other = connect(broker["main"]), connect(broker["main"])
    for peer in (flood, other):
        peer.send(b"REQUEST", b"default", b"guarantee", BODY)
        peer.expect(b"ACK")
    os.kill(broker.pid, signal.SIGSTOP)
    for _ in range(5000):
        flood.send(b"REQUEST", b"default", b"guarantee", BODY)
    job = other.send(b"REQUEST", b"default", b"guarantee", BODY)
    os.kill(broker.pid, signal.SIGCONT)
    assert other.expect(b"ACK")[4] == job
    served = 0
    while flood.receive(0) is not None:
        served += 1
    assert served < 5000


def test_a_client_needs_no_inform_and_headers_may_be_an_empty_text(
    client: RawPeer, worker: RawPeer
) -> None:
    """If there are no headers an empty string is sent; nothing then is answered."""
    client.send(b"REQUEST", b"email", b"", BODY)
    work(worker)
    assert client.silent()


@pytest.mark.parametrize("header", [b"guarantee", b"reply-requested"])
def test_a_request_that_counts_on_the_broker_gets_an_ack(client: RawPeer, header: bytes) -> None:
    """ACK: protocol, command, an id of its own and the id of the message."""
    job = client.send(b"REQUEST", b"default", header, BODY)
    ack = client.expect(b"ACK")
    assert len(ack) == 5
    assert ack[:3] == [b"", b"eMQP/1.0", b"ACK"]
    assert ack[3] not in {b"", job}
    assert ack[4] == job


def test_a_finished_job_is_replied_to_if_that_was_requested(
    client: RawPeer, worker: RawPeer
) -> None:
    """reply-requested: once the job is finished, a reply with information from the job."""
    job = client.send(b"REQUEST", b"default", b"reply-requested", BODY)
    client.expect(b"ACK")
    work(worker)
    reply = client.expect(b"REPLY")
    assert reply[:3] == [b"", b"eMQP/1.0", b"REPLY"]
    assert reply[3] not in {b"", job}
    assert json.loads(reply[4]) == {"value": 3}
    assert reply[5:] == [job]


def test_a_job_without_information_is_replied_to_with_true(
    client: RawPeer, worker: RawPeer
) -> None:
    """If there is no information reply with a True value."""
    client.send(b"REQUEST", b"default", b"reply-requested", BODY)
    client.expect(b"ACK")
    work(worker, b"")
    assert json.loads(client.expect(b"REPLY")[4]) == {"value": True}


def test_many_requests_are_in_flight_and_each_gets_its_reply(
    client: RawPeer, worker: RawPeer
) -> None:
    """Every message has an id of its own."""
    jobs = [client.send(b"REQUEST", b"default", b"reply-requested", BODY) for _ in range(20)]
    acks = [client.expect(b"ACK") for _ in jobs]
    for n in range(20):
        work(worker, b"%d" % n)
    replies = [client.expect(b"REPLY") for _ in jobs]
    assert [ack[4] for ack in acks] == jobs
    assert [reply[5] for reply in replies] == jobs
    assert [reply[4] for reply in replies] == [b"%d" % n for n in range(20)]
    assert len({frames[3] for frames in [*acks, *replies]}) == 40


def test_headers_of_the_document_reach_the_worker(client: RawPeer, worker: RawPeer) -> None:
    """retry-count, timeout and guarantee are for the worker that runs the job."""
    client.send(b"REQUEST", b"default", b"retry-count:2,timeout:7,guarantee", BODY)
    client.expect(b"ACK")
    headers = work(worker)[5].split(b",")
    assert {b"retry-count:2", b"timeout:7", b"guarantee"} <= set(headers)


def test_a_request_is_routed_by_the_name_of_its_queue(
    broker: BrokerProcess, client: RawPeer, connect: Connect
) -> None:
    """Requests are routed by an abstracted service name."""
    workers = {}
    for name in (b"a", b"b"):
        workers[name] = connect(broker["main"])
        workers[name].inform(b"worker", json.dumps([[10, name.decode()]]).encode())
        workers[name].send(b"READY")
    job = client.send(b"REQUEST", b"b", b"", BODY)
    assert workers[b"b"].expect(b"REQUEST")[3] == job
    assert workers[b"a"].silent()


def test_requests_wait_for_a_worker_in_their_order(
    broker: BrokerProcess, client: RawPeer, connect: Connect
) -> None:
    """The broker handles a set of named queues."""
    jobs = [client.send(b"REQUEST", b"later", b"guarantee", BODY) for _ in range(5)]
    for _ in jobs:
        client.expect(b"ACK")
    worker = connect(broker["main"])
    worker.inform(b"worker", b'[[10, "later"]]')
    assert [work(worker)[3] for _ in jobs] == jobs


def test_the_same_request_twice_is_one_job(client: RawPeer, worker: RawPeer) -> None:
    """A client that saw no ACK sends the message again."""
    job = client.send(b"REQUEST", b"default", b"guarantee", BODY)
    client.expect(b"ACK")
    client.send(b"REQUEST", b"default", b"guarantee", BODY, id=job)
    assert client.expect(b"ACK")[4] == job
    work(worker)
    worker.send(b"READY")
    assert worker.silent()


def test_a_reply_goes_to_the_connection_that_asked(
    broker: BrokerProcess, client: RawPeer, worker: RawPeer, connect: Connect
) -> None:
    """The ROUTER's identity frame tells clients apart; it is none of the message's."""
    other = connect(broker["main"], b"other")
    job = other.send(b"REQUEST", b"default", b"reply-requested", BODY)
    other.expect(b"ACK")
    work(worker)
    assert other.expect(b"REPLY")[5] == job
    assert client.silent(0.1)


def test_a_client_waits_for_its_reply_without_a_word(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Only worker, scheduler and broker must send heartbeats."""
    broker = start_broker(heartbeat_interval=0.1, lease_interval=0.1, heartbeat_timeout=0.5)
    client, worker = connect(broker["main"]), connect(broker["main"])
    job = client.send(b"REQUEST", b"default", b"reply-requested", BODY)
    client.expect(b"ACK")
    assert client.all_within(1.2) == []
    worker.inform(b"worker")
    work(worker)
    assert client.expect(b"REPLY")[5] == job


def test_a_job_is_on_disk_when_its_ack_comes(broker: BrokerProcess, connect: Connect) -> None:
    """guarantee: the broker is responsible for the job, even after kill -9."""
    client = connect(broker["main"])
    job = client.send(b"REQUEST", b"default", b"guarantee", BODY)
    client.expect(b"ACK")
    broker.kill()
    broker.start()
    worker = connect(broker["main"])
    worker.inform(b"worker")
    assert work(worker)[3] == job


def test_a_wrong_message_is_answered_with_an_error_that_names_it(client: RawPeer) -> None:
    """ERROR is an extension; a client that never informed can pass over it."""
    bad = client.send(b"REQUEST", b"default", b"timeout:soon", BODY)
    error = client.expect(b"ERROR")
    assert len(error) == 7
    assert error[4:6] == [bad, b"bad-header"]
    assert error[6].decode().startswith("header 'timeout'")
