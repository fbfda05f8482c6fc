"""A real broker on free ports for the tests of this folder, and raw sockets to talk to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from tests.support.emqp_broker import BrokerProcess
from tests.support.raw_peer import RawPeer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.emqp_broker import Connect, StartBroker


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Call it with limits to get a broker of one's own; it must end well."""
    with contextlib.ExitStack() as stack:

        def start(**limits: Any) -> BrokerProcess:
            broker = BrokerProcess(tmp_path, limits)
            stack.callback(broker.stop)
            broker.start()
            return broker

        yield start


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker with heartbeats quick enough for tests."""
    return start_broker(heartbeat_interval=0.25, lease_interval=0.25, heartbeat_timeout=3.0)


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def connect(context: zmq.Context) -> Iterator[Connect]:
    """Call it with an address to get a raw peer."""
    peers: list[RawPeer] = []

    def make(
        address: str, identity: bytes = b"", keys: tuple[bytes, bytes, bytes] | None = None
    ) -> RawPeer:
        peers.append(RawPeer(context, address, identity, keys))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()
