"""Options of every socket before it is bound, and limits for unknown peers."""

from __future__ import annotations

import ast
import ctypes
import ctypes.util
import socket as plain
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from zmq.backend import zmq_poll

from eventmq.wire import sockets as module
from eventmq.wire.sockets import (
    encrypt,
    new_context,
    new_keys,
    open_dealer,
    open_pub,
    open_router,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.wire.sockets import Link

SOURCES = Path(__file__).resolve().parents[3] / "eventmq"

SLACK = 64 * 1024


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = new_context()
    yield context
    context.destroy(0)


def test_libcs_generator_is_seeded_before_a_context_is_made(monkeypatch) -> None:
    """Routing ids are made from it, and would be the same in every process."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    libc.srand(1)
    unseeded = libc.rand()
    drawn = []

    class Context(zmq.Context):
        def __init__(self, *arguments: Any) -> None:
            drawn.append(libc.rand())
            super().__init__(*arguments)

    monkeypatch.setattr(zmq, "Context", Context)
    for _ in range(3):
        libc.srand(1)
        new_context().term()
    assert unseeded not in drawn
    assert 3 == len(set(drawn))


def test_every_context_is_made_there() -> None:
    """A `zmq.Context` made elsewhere would not be seeded."""
    for path in SOURCES.rglob("*.py"):
        if path.relative_to(SOURCES) == Path("wire/sockets.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func
                named = isinstance(called.value, ast.Name) and called.value.id == "zmq"
                assert not (named and called.attr == "Context"), path
                assert called.attr != "instance", path


def test_frames_handshakes_and_what_is_left_at_the_end_are_bounded(context) -> None:
    links: list[tuple[Link, int]] = [
        (open_router(context, max_frame=1000), 1000 + SLACK),
        (open_dealer(context, "tcp://127.0.0.1:1", max_frame=2000), 2000 + SLACK),
        (open_pub(context), 1 + SLACK),
    ]
    for link, max_length in links:
        assert max_length == link.socket.get(zmq.MAXMSGSIZE)
        assert 10_000 == link.socket.get(zmq.HANDSHAKE_IVL)
        assert 1000 == link.socket.get(zmq.LINGER)
        link.close(0)


def test_a_handshake_that_is_not_ended_is_cut(context, monkeypatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_MS", 200)
    link = open_router(context)
    host, _, port = link.bind("tcp://127.0.0.1:0").removeprefix("tcp://").rpartition(":")
    with plain.create_connection((host, int(port)), 5.0) as peer:
        peer.sendall(b"\xff" + b"\0" * 8 + b"\x7f\x03")
        began = time.monotonic()
        while peer.recv(4096):
            assert time.monotonic() - began < 5.0
    link.close(0)


def test_a_frame_over_the_limit_costs_its_connection(context) -> None:
    """At a ROUTER, and at a PUB, whose subscribers send only short messages."""
    for link, kind in ((open_router(context, max_frame=10), zmq.DEALER), (open_pub(context), 0)):
        address = link.bind("tcp://127.0.0.1:0")
        peer = context.socket(kind or zmq.XSUB)
        monitor = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        peer.connect(address)
        peer.send(b"\x01" + b"x" * (2 * SLACK))
        assert monitor.poll(5000)
        assert link.receive() is None if kind else True
        peer.disable_monitor()
        monitor.close(0)
        peer.close(0)
        link.close(0)


def test_a_subscriber_that_takes_nothing_is_cut_and_others_are_not(context, monkeypatch) -> None:
    """Its waiting messages are dropped; only their number was limited."""
    monkeypatch.setattr(module, "SUBSCRIBER_MS", 300)
    link = open_pub(context)
    cut = link.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    address = link.bind("tcp://127.0.0.1:0")
    good, bad = peers = [context.socket(zmq.SUB) for _ in range(2)]
    good.set(zmq.RCVTIMEO, 5000)
    bad.set(zmq.RCVHWM, 1)
    bad.set(zmq.RCVBUF, 65536)
    for peer in peers:
        peer.subscribe(b"")
        peer.connect(address)
    end = time.monotonic() + 10.0
    received = 0
    while not cut.poll(0):
        assert time.monotonic() < end
        link.send([b"", b"x" * 500_000])
        while good.poll(10):
            received += len(good.recv_multipart()) == 2
    assert received > 1
    link.send([b"last"])
    while good.recv_multipart() != [b"last"]:
        pass
    cut.recv_multipart()
    assert not cut.poll(0), "the other one as well"
    link.socket.disable_monitor()
    for socket in (cut, *peers):
        socket.close(0)
    link.close(0)


@pytest.mark.parametrize("kind", ["client", "worker", "scheduler"])
def test_a_socket_that_connects_has_a_routing_id_of_ours(context, kind: str) -> None:
    """The 0.3 router decodes every frame as UTF-8, and ends at one that is not."""
    router = open_router(context)
    address = router.bind("tcp://127.0.0.1:0")
    dealers = [open_dealer(context, address, kind=kind) for _ in range(2)]
    seen = set()
    for dealer in dealers:
        assert dealer.socket.poll(5000, zmq.POLLOUT)
        assert dealer.send([b"x"])
        assert router.socket.poll(5000)
        frames = router.receive()
        assert frames is not None
        assert frames[0].decode("ascii").startswith(f"eventmq1:{kind}.")
        seen.add(frames[0])
    assert len(seen) == 2, "each has its own"
    for link in (router, *dealers):
        link.close(0)


def test_a_message_behind_the_first_one_is_received_in_the_same_turn(context) -> None:
    """The link checks for a second message in another way than for the first."""
    router = open_router(context)
    dealer = open_dealer(context, router.bind("tcp://127.0.0.1:0"))
    assert dealer.socket.poll(5000, zmq.POLLOUT)
    for count in (1, 2, 3):
        texts = [str(number).encode() for number in range(count)]
        for text in texts:
            assert dealer.send([text])
        received = []
        while len(received) < count:
            assert router.socket.poll(5000)
            while (frames := router.receive()) is not None:
                received.append(frames[1])
        assert texts == received
    dealer.close(0)
    router.close(0)


def test_the_descriptor_of_a_monitor_tells_of_a_connection_made_and_of_one_lost(context) -> None:
    """It is readable once, after a read that found no event."""
    with plain.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    dealer = open_dealer(context, address)
    dealer.watch()  # no one listens yet; earlier connections have no events
    router = open_router(context)
    router.bind(address)
    for expected in (True, False):
        happened = dealer.connections()
        while not happened:
            assert zmq_poll([(dealer.monitor_fd, zmq.POLLIN)], 5000)
            happened = dealer.connections()
        assert [expected] == happened
        router.close(0)
    dealer.close(0)
    assert dealer.monitor_fd == -1


def errors_of(link: Link, deadline: float = 10.0) -> str:
    """Return the first error of a handshake, "" if none comes until the deadline."""
    end = time.monotonic() + deadline
    while not link.handshake_error and time.monotonic() < end:
        zmq_poll([(link.monitor_fd, zmq.POLLIN)], 100)
        link.connections()
    return link.handshake_error


class LateSocket(zmq.Socket[bytes]):
    """A socket whose ``connect`` returns after the other side has seen the handshake fail."""

    other: Link

    def connect(self, addr: str) -> Any:
        connected = super().connect(addr)
        assert not addr.startswith("tcp://") or errors_of(self.other)
        return connected


def test_a_handshake_that_fails_while_the_socket_connects_is_reported(context, monkeypatch) -> None:
    """If the mechanisms differ, libzmq gives the connection up and reports that only once."""
    router = open_router(context)
    encrypt(router, new_keys()[1])
    router.watch()
    address = router.bind("tcp://127.0.0.1:0")
    monkeypatch.setattr(LateSocket, "other", router, raising=False)
    monkeypatch.setattr(context, "_socket_class", LateSocket)
    link = open_dealer(context, address, watch=True)
    assert errors_of(link).startswith("the handshake failed: one side uses CURVE keys")
    link.close(0)
    router.close(0)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_a_host_that_cannot_be_resolved_is_named(context, host: str) -> None:
    link = open_dealer(context, f"tcp://{host}:47291", watch=True)
    assert errors_of(link).startswith(f"the host {host!r} cannot be resolved: ")
    link.close(0)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_of_a_host_that_nothing_listens_on_nothing_of_the_kind_is_said(
    context, monkeypatch, host: str
) -> None:
    """A name is resolved once per socket, to tell the cases apart; a number is not."""
    resolved: list[str] = []
    monkeypatch.setattr(module, "getaddrinfo", lambda name, _: resolved.append(name))
    with plain.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    link = open_dealer(context, f"tcp://{host}:{port}", watch=True)
    assert "" == errors_of(link, deadline=0.5)
    assert (["localhost"] if host == "localhost" else []) == resolved
    link.close(0)
