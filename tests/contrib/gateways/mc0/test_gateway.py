"""The gateway ``mc0`` over real sockets, with the topics of an app behind it."""

from __future__ import annotations

import random
import time

import pytest

from eventmq.errors import PluginError
from tests.contrib.gateways.raw_dealer import DEADLINE
from tests.support.fuzz import GROWTH, MESSAGES, endless, rss

NOOP = [b"", b"NOOP"]

MIB = 1024 * 1024


@pytest.fixture
def address(start):
    return start("mc0", bind="tcp://127.0.0.1:0")[0]


def subscribed(dealer, address, *topics):
    peer = dealer(address)
    assert [b"", b"OK", b"ID", b"s"] == peer.ask("", "SUB", "ID", "s", "", *topics)
    return peer


def message(topic, *body):
    return [b"", b"MESSAGE", b"TOPIC", topic.encode(), b"", *body]


def test_mc0_clients_receive_messages_of_each_other(dealer, address):
    peer = subscribed(dealer, address, "t")
    sender = dealer(address)
    assert [b"", b"OK", b"ID", b"1"] == sender.ask("", "PUT", "TOPIC", "t", "ID", "1", "", "x", "")
    assert message("t", b"x", b"") == peer.next()


def test_what_the_app_publishes_reaches_mc0_subscribers(app, dealer, address):
    peer = subscribed(dealer, address, "news")
    app.publish("newsletter", "not this")
    app.publish("news", b"raw")
    app.publish("news", {"a": 1})
    assert message("news", b"raw") == peer.next()
    assert message("news", b'{"a": 1}') == peer.next()


def test_what_mc0_clients_put_reaches_the_app(app, dealer, address):
    with app.subscribe("news") as messages:
        peer = dealer(address)
        peer.send("", "PUT", "TOPIC", "news", "", b"\xff")
        peer.send("", "PUT", "TOPIC", "news", "", "a", "b")
        assert [b"\xff", [b"a", b"b"]] == [next(messages).value for _ in range(2)]


def test_no_client_gets_a_message_twice(app, dealer, address):
    """It goes through the broker, and comes back to the gateway that put it there."""
    peer = subscribed(dealer, address, "t")
    with app.subscribe("t") as messages:
        peer.send("", "PUT", "TOPIC", "t", "", "1")
        assert b"1" == next(messages).value
        app.publish("t", "2")
        assert "2" == next(messages).value
    assert [message("t", b"1"), message("t", b"2")] == [peer.next(), peer.next()]
    assert [b"", b"OK", b"ID", b"x"] == peer.ask("", "NOOP", "ID", "x")


def test_two_gateways_share_the_topics_with_headers_in_order(start, dealer, address):
    (other,) = start("mc0", bind="tcp://127.0.0.1:0")
    far = subscribed(dealer, other, "t")
    near = subscribed(dealer, address, "t")
    near.send("", "PUT", "X-B", "1", "TOPIC", "t", "ID", "9", "X-A", "2", "", "a", "b")
    assert [b"", b"OK", b"ID", b"9"] == near.next()
    expected = [b"", b"MESSAGE", b"X-B", b"1", b"TOPIC", b"t", b"X-A", b"2", b"", b"a", b"b"]
    assert [expected, expected] == [near.next(), far.next()]


def test_a_client_is_kept_alive_both_ways(dealer, address):
    """NOOPs come while it is silent; then it is forgotten, and they end."""
    peer = dealer(address)
    assert [b"", b"OK", b"ID", b"c"] == peer.ask("", "CONNECT", "TTL", "200", "ID", "c")
    assert NOOP == peer.next()
    peer.send("", "NOOP")
    assert NOOP == peer.next()
    deadline = time.monotonic() + DEADLINE
    while peer.next(0.5) is not None:
        assert time.monotonic() < deadline


def test_answers_are_the_next_frames_while_messages_come_in(dealer, address):
    """Requests with IDs are answered in their order, whatever else is published."""
    peer = subscribed(dealer, address, "t")
    other = dealer(address)
    for number in range(200):
        other.send("", "PUT", "TOPIC", "t", "", str(number))
        peer.send("", "NOOP", "ID", str(number))
    messages = [peer.next() for _ in range(400)]
    assert [b"%d" % n for n in range(200)] == [f[3] for f in messages if f[1] == b"OK"]
    assert [b"%d" % n for n in range(200)] == [f[5] for f in messages if f[1] == b"MESSAGE"]


def test_thousands_of_malformed_messages_leave_it_serving(app, dealer, address):
    """Messages of any frames, and some without an end; a neighbour is served all the while."""
    before = rss()
    dice = random.Random(3)
    words = [b"", b"PUT", b"SUB", b"CONNECT", b"TTL", b"TOPIC", b"ID", b"t", b"UNSUB", b"MESSAGE"]
    neighbour = subscribed(dealer, address, "neighbour")
    hostile = [dealer(address) for _ in range(20)]
    for number in range(MESSAGES):
        frames = [
            dice.choice(words) if dice.random() < 0.8 else dice.randbytes(dice.randrange(300))
            for _ in range(dice.randrange(1, 9))
        ]
        dice.choice(hostile).send(*([b"", *frames] if dice.random() < 0.7 else frames))
        if number % (MESSAGES // 10) == 0:
            endless(dealer(address).socket)
            neighbour.send("", "PUT", "TOPIC", "neighbour", "", str(number))
            assert message("neighbour", b"%d" % number) == neighbour.next()
        hostile[number % 20].next(0)
    assert rss() - before < 2 * GROWTH  # of both sides: they share a process
    hostile[0].send(*[b""] * 5000)
    hostile[1].send(b"", b"PUT", b"TOPIC", b"t", b"", b"x" * (20 << 20))
    app.publish("neighbour", "still")
    assert message("neighbour", b"still") == neighbour.next()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bind": "x"}, "not an address"),
        ({"max_peers": 0}, "above 0, not 0"),
        ({"a": 1}, "no option 'a'"),
    ],
    ids=str,
)
def test_a_wrong_option_is_a_plugin_error(start, options, match):
    with pytest.raises(PluginError, match=match):
        start("mc0", **options)


def test_a_subscriber_that_never_reads_does_not_fill_the_gateway(start, dealer, caplog):
    """It misses messages beyond its buffer; others miss none; it receives again once it reads."""
    (address,) = start("mc0", bind="tcp://127.0.0.1:0", max_unsent_bytes=4 * MIB)
    lazy = dealer(address, cramped=True)
    assert [b"", b"OK", b"ID", b"s"] == lazy.ask("", "SUB", "ID", "s", "", "t")
    neighbour, sender = subscribed(dealer, address, "t"), dealer(address)
    before, size, count = rss(), 900_000, 60
    for number in range(count):
        sender.send_when_routable("", "PUT", "TOPIC", "t", "", b"%d" % number, b"x" * size)
        assert b"%d" % number == neighbour.next()[5]
    assert rss() - before < 4 * MIB + 64 * MIB + 20 * MIB  # with what waits for the broker
    assert 1 == caplog.text.count("slow to read")
    messages = []
    while (frames := lazy.next(0.2)) is not None:
        messages.append(int(frames[5]))
    assert sorted(set(messages)) == messages
    assert 4 * MIB // size <= len(messages) < count // 2
    sender.send("", "PUT", "TOPIC", "t", "", "again")
    assert message("t", b"again") == lazy.next()
