"""A worker that is killed: its connection is lost, and its jobs start elsewhere after its grace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.keyed_broker import House

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import zmq

    from tests.support.emqp_broker import BrokerProcess, Connect, StartBroker
    from tests.support.raw_peer import RawPeer

#: A broker whose heartbeat timeout is longer than a test waits.
SLOW = {
    "heartbeat_interval": 60.0,
    "lease_interval": 60.0,
    "heartbeat_timeout": 180.0,
    "grace": 0.1,
}

HEADERS = b"task:t,content-type:msgpack,ack-requested"


def begin(worker: RawPeer, session: bytes) -> None:
    """Inform as one of our workers and offer room for one job."""
    worker.inform(b"worker", b'[[10, "default"]]', b"session:" + session)
    worker.send(b"READY", b"received:0,window:1,held:")


def kill_one_of_two(client: RawPeer, killed: RawPeer, other: RawPeer) -> None:
    """Let the first worker vanish with a job, and see that the second gets it."""
    begin(killed, b"first")
    client.send(b"REQUEST", b"default", HEADERS, b"\x92\x90\x80")
    client.expect(b"ACK")
    killed.expect(b"REQUEST")
    begin(other, b"second")
    killed.close()
    other.expect(b"REQUEST")


@pytest.mark.parametrize("port", ["main", "worker"])
def test_a_lost_connection_is_noticed_at_once(
    start_broker: StartBroker, connect: Connect, port: str
) -> None:
    broker = start_broker(**SLOW)
    kill_one_of_two(connect(broker["main"]), connect(broker[port]), connect(broker[port]))


@pytest.fixture
def house(tmp_path: Path, context: zmq.Context) -> Iterator[House]:
    house = House(tmp_path, context, **SLOW)
    for name in ("wendy", "walt"):
        house.keys.authorize(name, "worker")
    house.keys.authorize("alice", "client")
    house.start()
    yield house
    house.stop()


def test_with_keys_it_is_noticed_too(house: House) -> None:
    kill_one_of_two(house.peer("alice"), house.peer("wendy"), house.peer("walt"))


def sleeps(broker: BrokerProcess, peer: RawPeer) -> None:
    """See that the broker does nothing where nothing comes."""
    before = broker.cpu()
    assert peer.silent(1.0)
    assert broker.cpu() - before < 0.3


def test_connections_that_came_and_went_do_not_wake_it_for_good(
    start_broker: StartBroker, connect: Connect
) -> None:
    """All events of a monitor are read: a descriptor that stays readable would spin."""
    broker = start_broker(**SLOW)
    for _ in range(50):
        peer = connect(broker["main"])
        peer.inform(b"client")
        peer.close()
    sleeps(broker, connect(broker["main"]))


def test_with_keys_they_do_not_either(house: House) -> None:
    for port in ("main", "worker", "admin"):
        for _ in range(20):
            peer = house.peer("wendy" if port == "worker" else "alice", port)
            peer.send_unheard(b"INFORM", b"", b"worker" if port == "worker" else b"client")
            peer.close()
    sleeps(house.broker, house.peer("alice"))
