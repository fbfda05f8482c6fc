"""The peers of a server's connections, from the monitors of its sockets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import zmq
from zmq.backend import zmq_poll

from eventmq.wire.connections import Connections
from eventmq.wire.sockets import encrypt, new_context, new_keys, open_dealer, open_router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventmq.wire.sockets import IdentifiedLink, Link

DEADLINE = 10.0


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = new_context()
    yield context
    context.term()


class Server:
    """A ROUTER whose connections are watched."""

    def __init__(self, context: zmq.Context) -> None:
        self.lost: list[str] = []
        self.failed: list[str] = []
        self.connections = Connections(self.lost.append, self.failed.append)
        self.link: IdentifiedLink = open_router(context, identified_by="Peer-Address")  # type: ignore[assignment]

    def bind(self) -> str:
        self.connections.watch("main", self.link)
        return self.link.bind("tcp://127.0.0.1:0")

    def receive(self) -> tuple[bytes, int, str]:
        """Receive a message; return its sender, connection and user."""
        assert self.link.socket.poll(DEADLINE * 1000)
        frames = self.link.receive()
        assert frames is not None
        return frames[0], self.link.connection, self.link.user

    def until(self, done: Callable[[], object]) -> None:
        """Read the monitor whenever its descriptor is readable, until a condition holds."""
        end = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < end
            if zmq_poll([(self.link.monitor_fd, zmq.POLLIN)], int(DEADLINE * 1000)):
                self.connections.read("main")


@pytest.fixture
def server(context: zmq.Context) -> Iterator[Server]:
    server = Server(context)
    yield server
    server.link.close(0)


def send_message(dealer: Link) -> None:
    assert dealer.socket.poll(DEADLINE * 1000, zmq.POLLOUT)
    assert dealer.send([b"x"])


def test_a_peer_is_known_until_its_connection_is_lost(server: Server, context) -> None:
    address = server.bind()
    first, second = (open_dealer(context, address) for _ in range(2))
    known = {}
    for dealer in (first, second):
        send_message(dealer)
        identity, connection, user = server.receive()
        server.connections.add("main", identity, connection, user)
        known["main", identity] = (connection, user)
    assert known == server.connections.peers
    first.close(0)
    server.until(lambda: server.lost)
    assert server.lost == ["main"]
    assert list(server.connections.peers) == list(known)[1:]
    second.close(0)
    server.until(lambda: len(server.lost) == 2)
    assert server.connections.peers == {}


def test_the_loss_of_an_earlier_connection_leaves_the_peer(server: Server, context) -> None:
    """It has reconnected with its routing id before the loss was read."""
    address = server.bind()
    dealer = open_dealer(context, address)
    send_message(dealer)
    identity, connection, user = server.receive()
    server.connections.add("main", identity, connection, user)
    server.connections.add("main", identity, connection + 1000, user)
    dealer.close(0)
    server.until(lambda: server.lost)
    assert server.connections.peers == {("main", identity): (connection + 1000, user)}


def test_a_peer_can_be_forgotten_while_it_is_connected(server: Server, context) -> None:
    address = server.bind()
    dealer = open_dealer(context, address)
    send_message(dealer)
    identity, connection, user = server.receive()
    server.connections.add("main", identity, connection, user)
    server.connections.remove("main", identity)
    assert server.connections.peers == {}
    dealer.close(0)
    server.until(lambda: server.lost)


def test_a_handshake_that_fails_before_its_key_is_asked_about_is_reported(
    server: Server, context
) -> None:
    """One side uses CURVE, and the other does not."""
    _, secret = new_keys()
    encrypt(server.link, secret)
    dealer = open_dealer(context, server.bind())
    server.until(lambda: server.failed)
    assert server.failed[0] == "main"
    dealer.close(0)


def test_a_port_that_is_forgotten_is_not_read_any_more(server: Server, context) -> None:
    server.bind()
    server.connections.forget("main")
    server.link.close(0)
    server.connections.read_all()
    assert server.lost == server.failed == []
