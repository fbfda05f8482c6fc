"""Peers that follow no document: the broker serves its neighbours, bounded and undisturbed.

Messages come from a seeded generator and go over real sockets to a real broker, port by port.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq

from tests.support.fuzz import GROWTH, MESSAGES, endless
from tests.support.raw_peer import DEADLINE, PROTOCOL, RawPeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.emqp_broker import BrokerProcess, Connect, StartBroker

BODY = b'["run", {"callable": "add", "path": "jobs"}]'

COMMANDS = [
    b"INFORM", b"ACK", b"READY", b"REQUEST", b"REPLY", b"HEARTBEAT", b"SCHEDULE", b"UNSCHEDULE",
    b"PUBLISH", b"STATUS", b"CALL", b"CANCEL", b"ERROR", b"request", b"DANCE", b"",
]  # fmt: skip
VERSIONS = [b"eMQP/1.1", b"eMQP/2.0", b"EMQP/1.0", b"MDPC02", b"", b"eMQP/1.0 "]
TEXTS = [
    b"", b"default", b"worker", b"king", b"[[10,", b'[[10, "\\ud800"]]', b"timeout:soon", b"\xff",
    b"\xed\xa0\x80", b"batch:9999999", b"chunk:1", b"get", b"\x00" * 40, b"x" * 3000, b"%" * 50,
    "chunk:\N{SUPERSCRIPT TWO}".encode(), b"received:9,window:9,held:x", b"1" * 400,
]  # fmt: skip


def junk(rng: random.Random) -> bytes:
    return rng.choice([rng.choice(TEXTS), rng.randbytes(rng.randrange(60))])


def malformed(rng: random.Random) -> list[bytes]:
    """Return the frames of a message that no peer may send like this."""
    id = b"bad-%d" % rng.randrange(10**6)
    kind = rng.randrange(7)
    if kind == 0:  # random frames
        return [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 12))]
    if kind == 1:  # another version
        return [b"", rng.choice(VERSIONS), b"READY", id]
    if kind == 2:  # no leading empty frame
        return [PROTOCOL, rng.choice(COMMANDS), id, junk(rng)]
    if kind == 3:  # far too many frames
        return [b"", PROTOCOL, rng.choice(COMMANDS), id, *[b""] * rng.randrange(20, 300)]
    if kind == 4:  # a message id that is none
        return [b"", PROTOCOL, rng.choice(COMMANDS), rng.choice([b"", b"\xff\xfe", b"x" * 999])]
    if kind == 5:  # an unknown command
        return [b"", PROTOCOL, rng.choice([b"DANCE", b"request", b"", b"\xff"]), id, junk(rng)]
    # a real command with frames that make no sense, or one that is not for this port
    frames = [junk(rng) for _ in range(rng.randrange(5))]
    return [b"", PROTOCOL, rng.choice(COMMANDS), id, *frames]


class Neighbour:
    """A client and a worker that continue their work meanwhile."""

    def __init__(self, broker: BrokerProcess, connect: Connect) -> None:
        self.client = connect(broker["main"])
        self.worker = connect(broker["main"])
        self.worker.inform(b"worker", b'[[10, "neighbour"]]')

    def lives(self) -> None:
        """Send a heartbeat of the worker, as all workers do at an interval."""
        self.worker.send(b"HEARTBEAT", f"{time.time():.2f}".encode())

    def works(self) -> bool:
        """Hand in a job, work it off and get the result."""
        job = self.client.send(b"REQUEST", b"neighbour", b"reply-requested", BODY)
        assert self.client.expect(b"ACK")[4] == job
        self.worker.send(b"READY")
        assert self.worker.expect(b"REQUEST")[3] == job
        self.worker.send(b"REPLY", b'{"value": 3}', job)
        reply = self.client.expect(b"REPLY")
        return reply[4:] == [b'{"value": 3}', job]


@pytest.fixture
def neighbour(broker: BrokerProcess, connect: Connect) -> Neighbour:
    neighbour = Neighbour(broker, connect)
    assert neighbour.works()
    return neighbour


@pytest.fixture
def raw(
    broker: BrokerProcess, context: zmq.Context[zmq.Socket[bytes]]
) -> Iterator[Callable[[str], zmq.Socket[bytes]]]:
    """Call it with a port to get a DEALER without manners."""
    dealers = []

    def make(port: str) -> zmq.Socket[bytes]:
        dealer = context.socket(zmq.DEALER)
        dealers.append(dealer)
        dealer.linger = 0
        dealer.connect(broker[port])
        return dealer

    yield make
    for dealer in dealers:
        dealer.close(0)


def counters_of(admin: RawPeer) -> dict[str, int]:
    """Read the counters of the broker: an extension, MessagePack in and out."""
    admin.send(b"CALL", b"status", msgpack.packb({}))
    return msgpack.unpackb(admin.expect(b"REPLY")[4])["counters"]


def refusals(broker: BrokerProcess) -> list[str]:
    return re.findall(
        "^WARNING eventmq.broker message of peer .* refused.*$", broker.log(), re.MULTILINE
    )


def drain(dealer: zmq.Socket[bytes]) -> int:
    """Read what came back; return how many messages that were."""
    count = 0
    while dealer.poll(0):
        dealer.recv_multipart()
        count += 1
    return count


@pytest.mark.parametrize("port", ["main", "worker", "admin", "publish"])
def test_malformed_messages_by_the_thousand_leave_the_broker_serving_a_neighbour(
    broker: BrokerProcess,
    connect: Connect,
    neighbour: Neighbour,
    raw: Callable[[str], zmq.Socket[bytes]],
    port: str,
) -> None:
    """Counted, answered, logged once per peer, with bounded memory; no other peer is affected."""
    rng = random.Random(f"hostile {port}")
    before = broker.rss()
    admin = connect(broker["admin"])
    dealers = [raw(port) for _ in range(4)]
    answers = 0
    for n in range(MESSAGES):
        dealers[n % 4].send_multipart(malformed(rng))
        if n % 100 == 0:
            neighbour.lives()
        if n % (MESSAGES // 10) == 0:
            endless(raw(port))
            assert neighbour.works()
            answers += sum(map(drain, dealers))
    end = time.monotonic() + DEADLINE
    while counters_of(admin)["messages"] < MESSAGES:
        assert time.monotonic() < end, "the broker does not read the messages"
        neighbour.lives()
    answers += sum(map(drain, dealers))
    assert neighbour.works()
    counters = counters_of(admin)
    refused = sum(count for name, count in counters.items() if name.startswith("errors."))
    assert refused > MESSAGES / 2
    assert answers > 0
    assert broker.rss() - before < GROWTH
    assert len(refusals(broker)) == len(dealers)


def test_a_peer_with_many_bad_messages_is_logged_once(
    broker: BrokerProcess, connect: Connect
) -> None:
    """At warning, and with no payload."""
    peer = connect(broker["main"])
    for _ in range(100):
        peer.send(b"REQUEST", b"default", b"timeout:soon", b"SECRET")
        peer.expect(b"ERROR")
    assert len(refusals(broker)) == 1
    assert "bad-header" in broker.log()
    assert "SECRET" not in broker.log()


def test_a_registered_legacy_peer_gets_no_error_that_it_could_not_read(
    broker: BrokerProcess, connect: Connect
) -> None:
    """It knows only the published document."""
    peer = connect(broker["main"])
    peer.inform(b"worker")
    peer.send(b"REQUEST", b"default", b"timeout:soon", b"")
    peer.socket.send_multipart([b"", b"eMQP/9.9", b"READY", b"1"])
    assert peer.silent()
    assert len(refusals(broker)) == 1


def test_a_frame_over_the_limit_is_refused_and_a_huge_one_ends_the_connection(
    start_broker: StartBroker, connect: Connect
) -> None:
    """max-frame is the limit of a body; the transport cuts connections that send far more."""
    broker = start_broker(max_frame=100_000)
    neighbour = Neighbour(broker, connect)
    peer = connect(broker["main"])
    job = peer.send(b"REQUEST", b"default", b"guarantee", b"x" * 100_000)
    assert peer.expect(b"ACK")[4] == job
    job = peer.send(b"REQUEST", b"default", b"guarantee", b"x" * 100_001)
    assert peer.expect(b"ERROR")[4:6] == [job, b"too-large"]
    before = broker.rss()
    for _ in range(20):
        huge = connect(broker["main"])
        huge.send(b"REQUEST", b"default", b"guarantee", b"x" * 10_000_000)
    assert huge.receive(0.3) is None
    assert neighbour.works()
    assert broker.rss() - before < GROWTH


@pytest.mark.parametrize("frame", [b"", b"x" * 100])
def test_a_message_of_a_hundred_thousand_frames_is_one_bad_message(
    broker: BrokerProcess, neighbour: Neighbour, connect: Connect, frame: bytes
) -> None:
    """It costs nothing once it was read."""
    peer = connect(broker["main"])
    before = broker.rss()
    for _ in range(3):
        sent = peer.send(b"READY", *[frame] * 100_000)
        assert peer.expect(b"ERROR")[4:6] == [sent, b"frame-count"]
    assert neighbour.works()
    assert broker.rss() - before < GROWTH


def test_strangers_that_come_and_go_are_forgotten(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Peers are bounded; a further one gets an error, and is accepted after a while."""
    broker = start_broker(max_peers=20, heartbeat_timeout=1.0, heartbeat_interval=0.2)
    for n in range(30):
        peer = connect(broker["main"], b"eventmq1:client.%d" % n)
        peer.send(b"HEARTBEAT", b"1")
        error = peer.expect(b"ERROR")
    assert error[5] == b"too-many-peers"
    peer.all_within(1.5)
    assert Neighbour(broker, connect).works()


@pytest.mark.parametrize("port", ["main", "worker", "admin", "publish", "subscribe"])
def test_bytes_that_are_not_zeromq_harm_no_other_peer(
    broker: BrokerProcess, neighbour: Neighbour, port: str
) -> None:
    """HTTP, noise and half a handshake, on every port."""
    host, _, number = broker[port].removeprefix("tcp://").rpartition(":")
    rng = random.Random(port)
    handshake = b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48
    for data in (b"GET / HTTP/1.1\r\n\r\n", handshake, b"\xff" * 64, *(
        rng.randbytes(rng.randrange(1, 500)) for _ in range(40)
    )):  # fmt: skip
        with socket.create_connection((host, int(number)), DEADLINE) as connection:
            connection.sendall(data)
    assert neighbour.works()


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.PUSH, zmq.SUB, zmq.DEALER, zmq.ROUTER])
@pytest.mark.parametrize("port", ["main", "subscribe"])
def test_sockets_of_the_wrong_kind_harm_no_other_peer(
    broker: BrokerProcess,
    neighbour: Neighbour,
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    port: str,
) -> None:
    wrong = context.socket(kind)
    wrong.linger = 0
    wrong.sndtimeo = 200  # it can seem connected until the types were compared
    wrong.connect(broker[port])
    if kind == zmq.SUB:
        wrong.subscribe(b"")
    elif kind != zmq.ROUTER:
        with contextlib.suppress(zmq.Again):
            wrong.send(b"\xff" * 30)
    assert neighbour.works()
    wrong.close()


def test_a_worker_that_makes_impossible_claims_loses_no_job(
    broker: BrokerProcess, neighbour: Neighbour, connect: Connect
) -> None:
    """FEATURES without manners: numbers that are too high, chunks that it never had."""
    liar = connect(broker["main"])
    features = b"session,chunk,outcome,error,session:liar,received:999999999999999,held:1+2+3"
    liar.inform(b"worker", b'[[10, "neighbour"]]', features)
    for status in (
        b"received:0,window:999999999999999,held:",
        b"window:-1",
        b"received:1+2,held:a",
    ):
        liar.send(b"READY", status)
        liar.send(b"HEARTBEAT", b"never", status)
    for outcome in (b"chunk:1", b"chunk:0", "chunk:\N{SUPERSCRIPT TWO}".encode(), b"part"):
        for body in (b"", b"\xc1", b"\x90", b"\x91\x97\x00\x02\xcb\x7f\xf8" + b"\0" * 30):
            liar.send(b"REPLY", body, b"x", outcome)
    assert neighbour.works()
    liar.send(b"KBAI")
    assert neighbour.works()


def test_a_second_peer_cannot_take_the_routing_id_of_a_first(
    broker: BrokerProcess, connect: Connect
) -> None:
    """No handover: messages for one peer never reach another."""
    first: RawPeer = connect(broker["main"], b"same")
    first.inform(b"worker", b'[[10, "mine"]]')
    second = connect(broker["main"], b"same")
    second.send(b"READY")
    client = connect(broker["main"])
    job = client.send(b"REQUEST", b"mine", b"guarantee", BODY)
    client.expect(b"ACK")
    first.send(b"READY")
    assert first.expect(b"REQUEST")[3] == job
    assert second.receive(0.3) is None
