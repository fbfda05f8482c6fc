"""What every socket of ours is told before it is bound, and what strangers may not do to it."""

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

from eventmq.wire import socket as module
from eventmq.wire.socket import new_context, open_dealer, open_pub, open_router

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.wire.socket import Link

SOURCES = Path(__file__).resolve().parents[2] / "eventmq"

SLACK = 64 * 1024


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = new_context()
    yield context
    context.destroy(0)


def test_libcs_generator_is_seeded_before_a_context_is_made(monkeypatch) -> None:
    """Routing ids come from it, and unseeded they are the same in every process."""
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
        if path.relative_to(SOURCES) == Path("wire/socket.py"):
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
    for link, longest in links:
        assert longest == link.socket.get(zmq.MAXMSGSIZE)
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
    """Of a ROUTER, and of a PUB, whose subscribers have nothing long to say."""
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


def test_an_identity_that_deployed_software_could_not_read_is_refused(context) -> None:
    """Its router decodes every frame as UTF-8, the identity too."""
    with pytest.raises(UnicodeEncodeError):
        open_dealer(context, "tcp://127.0.0.1:1", identity="\N{SNOWMAN}")
