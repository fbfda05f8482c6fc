"""Peers that ask and do not read: the broker's memory is bounded, and nothing is lost by it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgpack
import pytest

from tests.support.raw_peer import DEADLINE, RawPeer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zmq

    from tests.support.emqp_broker import BrokerProcess, Connect, StartBroker

MIB = 1024 * 1024

#: Bytes that may wait for a peer here, and further bytes while the broker makes answers.
BOUND, MARGIN = 8 * MIB, 16 * MIB

#: A result, and how often it is asked for: some 135 MB.
SIZE, TIMES = 900_000, 150

FEATURES = b"call,error,outcome"


#: Seconds within which the broker notices that a peer has read, even on a busy machine.
NOTICE = 0.15

#: What may wait for all peers here, and how many of them ask and never read.
SUM, MANY, EACH = 48 * MIB, 100, 60


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(max_unsent_bytes=BOUND, heartbeat_timeout=60.0, heartbeat_interval=0.25)


@pytest.fixture
def lazy(context: zmq.Context[zmq.Socket[bytes]], broker: BrokerProcess) -> Iterator[RawPeer]:
    """A peer with small buffers for unread messages."""
    peer = RawPeer(context, broker["main"], cramped=True)
    yield peer
    peer.close()


def big_result(broker: BrokerProcess, connect: Connect, size: int = SIZE) -> bytes:
    """Have a job done whose result is large; return its id."""
    worker, client = connect(broker["worker"]), connect(broker["main"])
    worker.inform(b"worker", b'[[10, "large"]]')
    worker.send(b"READY")
    job = client.send(b"REQUEST", b"large", b"guarantee,reply-requested", b"x")
    client.expect(b"ACK")
    worker.expect(b"REQUEST")
    worker.send(b"REPLY", b'{"value": "%s"}' % (b"x" * size), job)
    assert size < len(client.expect(b"REPLY")[4])
    return job


def ask(peer: RawPeer, job: bytes) -> bytes:
    arguments = msgpack.packb({"ids": [job.decode()]})
    return peer.send(b"CALL", b"get", arguments)


def ping(peer: RawPeer) -> None:
    id = peer.send(b"CALL", b"ping", msgpack.packb({}))
    assert peer.expect(b"REPLY")[5] == id


def warnings(broker: BrokerProcess) -> int:
    """Return how often the log reports that a peer does not read."""
    return broker.log().count("slow to read")


def test_a_client_that_asks_and_never_reads_does_not_fill_the_broker(
    broker: BrokerProcess, connect: Connect, lazy: RawPeer
) -> None:
    """Not even where all that it asks for comes in one turn; and it gets it all when it reads."""
    job = big_result(broker, connect)
    neighbour = connect(broker["main"])
    neighbour.inform(b"client", b"", FEATURES)
    lazy.inform(b"client", b"", FEATURES)
    before = broker.peak()
    os.kill(broker.pid, signal.SIGSTOP)
    requests = [ask(lazy, job) for _ in range(TIMES)]
    os.kill(broker.pid, signal.SIGCONT)
    for _ in range(20):
        ping(neighbour)
    ask(neighbour, job)
    assert SIZE < len(neighbour.expect(b"REPLY")[4])
    assert broker.peak() - before < BOUND + MARGIN
    replies = [lazy.expect(b"REPLY") for _ in requests]
    assert [frames[5] for frames in replies] == requests
    assert {len(frames[4]) > SIZE for frames in replies} == {True}


def test_a_subscriber_that_never_reads_is_asked_to_inform_again_behind_waiting_messages(
    broker: BrokerProcess, connect: Connect, lazy: RawPeer
) -> None:
    """It is logged once, others miss nothing, and the peer receives again once it has read."""
    topics = msgpack.packb({"topics": ["news"]})
    neighbour = connect(broker["main"])
    for peer in (lazy, neighbour):
        peer.inform(b"client", b"", FEATURES)
        peer.send(b"CALL", b"subscribe", topics)
        peer.expect(b"REPLY")
    before = broker.peak()
    publisher = connect(broker["publish"])
    for _ in range(60):
        publisher.send(b"PUBLISH", b"news", b"x" * SIZE)
        assert SIZE < len(neighbour.expect(b"REPLY")[4])
    assert broker.peak() - before < BOUND + MARGIN
    assert warnings(broker) == 1
    messages = []
    while not messages or messages[-1][2] != b"ERROR":
        frames = lazy.receive()
        assert frames is not None, "the peer got no message"
        messages.append(frames)
    assert messages[-1][5] == b"inform-again"
    assert BOUND / 2 < sum(len(frames[4]) for frames in messages)
    while lazy.receive(0.1) is not None:
        pass
    lazy.inform(b"client", b"", FEATURES)
    request = lazy.send(b"CALL", b"subscribe", topics)
    assert lazy.expect(b"REPLY")[5] == request
    publisher.send(b"PUBLISH", b"news", b"again")
    assert b"again" in lazy.expect(b"REPLY")[4]


def test_a_worker_that_does_not_read_keeps_no_jobs_from_another(
    broker: BrokerProcess, connect: Connect, lazy: RawPeer
) -> None:
    """It has slots for all of them; what does not fit goes to one that comes later."""
    lazy.inform(b"worker", b'[[10, "large"]]')
    for _ in range(40):
        lazy.send(b"READY")
    client = connect(broker["main"])
    jobs = {client.send(b"REQUEST", b"large", b"guarantee", b"x" * SIZE) for _ in range(40)}
    assert {client.expect(b"ACK")[4] for _ in jobs} == jobs
    worker = connect(broker["main"])
    worker.inform(b"worker", b'[[10, "large"]]')
    for _ in range(40):
        worker.send(b"READY")
    ids = set()
    while len(ids) < 15:  # the other has room for some ten of the forty
        ids.add(worker.expect(b"REQUEST")[3])
    assert warnings(broker)
    end = time.monotonic() + DEADLINE
    while ids != jobs:
        assert time.monotonic() < end, "some are lost"
        for peer in (lazy, worker):
            messages = peer.all_within(0.05)
            ids |= {frames[3] for frames in messages if frames[2] == b"REQUEST"}


def test_peers_that_ask_and_never_read_do_not_fill_the_broker_together(
    start_broker: StartBroker, connect: Connect, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """Each is far below its own bound. Peers that read are served meanwhile, then the others."""
    broker = start_broker(
        max_total_unsent_bytes=SUM, heartbeat_timeout=120.0, heartbeat_interval=0.25
    )
    job = big_result(broker, connect, size=SIZE // 6)
    neighbour = connect(broker["main"])
    neighbour.inform(b"client", b"", FEATURES)
    lazy = [RawPeer(context, broker["main"], cramped=True) for _ in range(MANY)]
    try:
        before = broker.peak()
        for peer in lazy:
            peer.inform(b"client", b"", FEATURES)
            for _ in range(EACH):  # 0.9 GB in all
                ask(peer, job)
        for _ in range(50):
            ask(neighbour, job)
            assert SIZE / 6 < len(neighbour.expect(b"REPLY", 3 * DEADLINE)[4])
            ping(neighbour)
        assert broker.peak() - before < 1.25 * SUM + MARGIN
        assert broker.peak() - before > SUM / 3, "they did make it keep something"
        waits = msgpack.unpackb(status_of(neighbour))["unread_bytes"]
        assert SUM / 3 < waits <= SUM
        for peer in lazy[:3]:
            sizes = [len(peer.expect(b"REPLY")[4]) > SIZE / 6 for _ in range(EACH)]
            assert sizes == [True] * EACH
    finally:
        for peer in lazy:
            peer.close()


def test_what_is_sent_to_many_that_never_read_is_dropped_where_the_sum_is_taken(
    start_broker: StartBroker, connect: Connect, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """It is logged once for all, and those that read miss nothing."""
    broker = start_broker(
        max_total_unsent_bytes=SUM, heartbeat_timeout=120.0, heartbeat_interval=0.25
    )
    topics = msgpack.packb({"topics": ["news"]})
    neighbour = connect(broker["main"])
    lazy = [RawPeer(context, broker["main"], cramped=True) for _ in range(MANY)]
    try:
        for peer in [*lazy, neighbour]:
            peer.inform(b"client", b"", FEATURES)
            peer.send(b"CALL", b"subscribe", topics)
            peer.expect(b"REPLY")
        before = broker.peak()
        publisher = connect(broker["publish"])
        for _ in range(40):
            publisher.send(b"PUBLISH", b"news", b"x" * (SIZE // 3))
            assert SIZE / 3 < len(neighbour.expect(b"REPLY")[4])
            # A thread of pyzmq notices that it was read, for which it has to get a core.
            noticed = time.monotonic() + NOTICE
            while time.monotonic() < noticed:
                ping(neighbour)
        assert broker.peak() - before < 1.25 * SUM + MARGIN
        assert broker.log().count("max_total_unsent_bytes") == 1
    finally:
        for peer in lazy:
            peer.close()


def status_of(peer: RawPeer) -> bytes:
    """Return the status of the broker."""
    peer.send(b"CALL", b"status", msgpack.packb({}))
    return peer.expect(b"REPLY")[4]
