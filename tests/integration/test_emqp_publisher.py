"""eMQP/1.0 as a publisher and a subscriber see it that know only the published document.

Six frames are the publisher's form of PUBLISH, seven the client's; subscribers are SUB sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zmq

from tests.support.raw_peer import DEADLINE, QUIET, RawPeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.emqp_broker import BrokerProcess, Connect

Subscribe = "Callable[..., zmq.Socket[bytes]]"


@pytest.fixture
def subscribe(
    broker: BrokerProcess, context: zmq.Context[zmq.Socket[bytes]], connect: Connect
) -> Iterator[Callable[..., zmq.Socket[bytes]]]:
    """Return a function of a topic that returns a SUB socket which receives."""
    sockets = []

    def make(topic: bytes) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.SUB)
        sockets.append(socket)
        socket.linger = 0
        socket.subscribe(topic)
        socket.connect(broker["subscribe"])
        # A subscription takes time to arrive, without an acknowledgement.
        publisher, begin = connect(broker["publish"]), topic + b"?begin"
        for _ in range(int(DEADLINE / 0.02)):
            publisher.send(b"PUBLISH", begin, b"")
            if socket.poll(20):
                break
        return socket

    yield make
    for socket in sockets:
        socket.close(0)


def received(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Return the next message that is none of those of `subscribe`."""
    while socket.poll(int(DEADLINE * 1000)):
        frames = socket.recv_multipart()
        if not frames[0].endswith(b"?begin"):
            return frames
    raise AssertionError("nothing was published")


@pytest.mark.parametrize("port", ["main", "publish"])
@pytest.mark.parametrize("rest", [[b"\xff body"], [b"", b"\xff body"], [b"x-any:1", b"\xff body"]])
def test_subscribers_get_topic_and_body_in_both_forms(
    broker: BrokerProcess,
    connect: Connect,
    subscribe: Callable[..., zmq.Socket[bytes]],
    port: str,
    rest: list[bytes],
) -> None:
    """Two frames; the forms of PUBLISH are distinguished by their count."""
    socket = subscribe(b"news")
    connect(broker[port]).send(b"PUBLISH", b"news.uk", *rest)
    assert received(socket) == [b"news.uk", b"\xff body"]


def test_a_subscriber_gets_the_topics_of_its_prefix(
    broker: BrokerProcess, connect: Connect, subscribe: Callable[..., zmq.Socket[bytes]]
) -> None:
    socket = subscribe(b"news.uk")
    publisher = connect(broker["publish"])
    for topic in (b"news.fr", b"news.uk.london", b"sport", b"news.uk"):
        publisher.send(b"PUBLISH", topic, topic)
    assert received(socket) == [b"news.uk.london"] * 2
    assert received(socket) == [b"news.uk"] * 2
    assert not socket.poll(int(QUIET * 1000))


def test_every_subscriber_gets_a_copy_in_order(
    broker: BrokerProcess, connect: Connect, subscribe: Callable[..., zmq.Socket[bytes]]
) -> None:
    sockets = [subscribe(b"news"), subscribe(b"news")]
    publisher = connect(broker["publish"])
    for n in range(50):
        publisher.send(b"PUBLISH", b"news", b"%d" % n)
    for socket in sockets:
        assert [received(socket)[1] for _ in range(50)] == [b"%d" % n for n in range(50)]


def test_publishing_is_not_answered_unless_that_was_asked_for(
    broker: BrokerProcess, connect: Connect
) -> None:
    """The document knows no answer; ack-requested is a header of this implementation."""
    publisher = connect(broker["publish"])
    publisher.send(b"PUBLISH", b"news", b"body")
    publisher.send(b"PUBLISH", b"news", b"", b"body")
    request = publisher.send(b"PUBLISH", b"news", b"ack-requested", b"body")
    assert publisher.expect(b"ACK")[4] == request
    assert publisher.silent(0.1)


def test_the_publish_port_is_for_publishing(broker: BrokerProcess, connect: Connect) -> None:
    publisher = connect(broker["publish"])
    job = publisher.send(b"REQUEST", b"default", b"guarantee", b"x")
    assert publisher.expect(b"ERROR")[4:6] == [job, b"not-allowed"]


def test_a_topic_without_subscribers_is_no_error(broker: BrokerProcess, connect: Connect) -> None:
    publisher = connect(broker["publish"])
    request = publisher.send(b"PUBLISH", b"nobody", b"ack-requested", b"body")
    assert publisher.expect(b"ACK")[4] == request


def test_subscribers_find_the_broker_again_after_kill_9(
    broker: BrokerProcess, connect: Connect, subscribe: Callable[..., zmq.Socket[bytes]]
) -> None:
    socket = subscribe(b"news")
    while socket.poll(50):
        socket.recv_multipart()
    broker.kill()
    broker.start()
    publisher: RawPeer = connect(broker["publish"])
    for _ in range(int(DEADLINE / 0.02)):
        publisher.send(b"PUBLISH", b"news", b"again")
        if socket.poll(20):
            break
    assert received(socket) == [b"news", b"again"]
