"""Conformance suite for gateways: start, serve, survive hostile peers, stop."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import BindError, NotAllowed
from eventmq.gateway import Watchable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.interfaces import Gateway

__all__ = ["GatewaySuite"]

#: Seconds until an operation has failed.
_DEADLINE = 20.0

#: Seconds that a stop may take beyond its grace.
_SLACK = 8.0

#: Number of connections that send nothing.
_SILENT = 200


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _pour(peer: socket.socket) -> None:
    end = time.monotonic() + _DEADLINE
    while time.monotonic() < end:
        peer.sendall(b"\xff" * 1024 * 1024)


class GatewaySuite:
    """Subclass it, return your gateway from `make`, and check in `knock` that it serves."""

    def make(self, **options: object) -> Gateway:
        """Return a gateway, not started, on free loopback ports unless ``options`` name others.

        The suite passes the options ``bind`` and ``insecure``.
        """
        raise NotImplementedError(
            "define make() in your subclass: it returns your gateway, not started"
        )

    def knock(self, addresses: list[str]) -> None:
        """Exchange one request and answer; raise an exception if the gateway does not answer."""
        raise NotImplementedError(
            "define knock() in your subclass: it exchanges one request and answer with your gateway"
        )

    def close(self) -> None:
        """Release resources of `make`, such as an app; called when all gateways have stopped."""

    @pytest.fixture(autouse=True)
    def _around(self) -> Iterator[None]:
        self.made: list[Gateway] = []
        yield
        for gateway in self.made:
            gateway.stop(0.0)
        self.close()

    def new(self, **options: object) -> Gateway:
        """Return a gateway that is stopped at the end of the test."""
        self.made.append(self.make(**options))
        return self.made[-1]

    # Start

    def test_start_gives_real_addresses_and_serves(self) -> None:
        """Port 0 picks a free port, and ``start`` returns the real addresses."""
        gateway = self.new()
        assert not gateway.running()
        addresses = list(gateway.start())
        assert addresses
        for address in addresses:
            assert _host_port(address)[1] > 0
            socket.create_connection(_host_port(address), _DEADLINE).close()
        assert gateway.running()
        self.knock(addresses)

    def test_an_address_that_is_taken_is_a_clear_error(self) -> None:
        """`BindError` names the address; stopping a gateway that did not start is legal."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            gateway = self.new(bind=f"tcp://127.0.0.1:{port}")
            with pytest.raises(BindError, match=str(port)):
                gateway.start()
            assert not gateway.running()
            gateway.stop(0.0)

    def test_a_public_address_needs_the_option_insecure(self) -> None:
        """Unencrypted traffic beyond loopback must be allowed explicitly."""
        with pytest.raises(NotAllowed, match="insecure"):
            self.new(bind="tcp://0.0.0.0:0").start()
        gateway = self.new(bind="tcp://0.0.0.0:0", insecure=True)
        gateway.start()
        assert gateway.running()

    def test_its_loops_turn_if_it_can_be_watched(self) -> None:
        """Each loop turns at least once a second; one that does not is stuck."""
        gateway = self.new()
        if not isinstance(gateway, Watchable):
            return
        gateway.start()
        first, end = gateway.turns(), time.monotonic() + _DEADLINE
        while not all(new > old for new, old in zip(gateway.turns(), first, strict=True)):
            assert time.monotonic() < end, f"{gateway.turns()} turns, and {first} before"
            time.sleep(0.01)

    def test_a_gateway_starts_no_thread_before_start(self) -> None:
        """Making a gateway opens nothing."""
        before = set(threading.enumerate())
        self.new()
        assert not set(threading.enumerate()) - before

    # Limits

    def test_garbage_harms_no_other_connection(self) -> None:
        """Bytes of another protocol end that connection at most."""
        gateway = self.new()
        addresses = list(gateway.start())
        for address in addresses:
            for garbage in (b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
                with socket.create_connection(_host_port(address), _DEADLINE) as peer:
                    peer.sendall(garbage)
            idle = [socket.create_connection(_host_port(address), _DEADLINE) for _ in range(50)]
            for peer in idle:
                peer.close()
        self.knock(addresses)
        assert gateway.running()

    def test_silent_connections_do_not_keep_others_out(self) -> None:
        """With two hundred silent connections open, the next one is served."""
        addresses = list(self.new().start())
        with ExitStack() as silent:
            for address in addresses:
                for _ in range(_SILENT):
                    peer = socket.create_connection(_host_port(address), _DEADLINE)
                    silent.enter_context(peer)
            self.knock(addresses)

    def test_a_peer_that_floods_garbage_is_disconnected(self) -> None:
        """It may get some seconds to read the reason."""
        addresses = list(self.new().start())
        for address in addresses:
            with (
                socket.create_connection(_host_port(address), _DEADLINE) as peer,
                pytest.raises(ConnectionError),
            ):
                _pour(peer)
        self.knock(addresses)

    # Stop

    def test_stop_is_idempotent_and_frees_the_address(self) -> None:
        """Stopping before the start, and twice, is legal; the address can be bound again."""
        self.new().stop(1.0)
        gateway = self.new()
        addresses = list(gateway.start())
        self.knock(addresses)
        gateway.stop(1.0)
        gateway.stop(1.0)
        assert not gateway.running()
        with socket.create_server(_host_port(addresses[0])):
            pass

    def test_stop_ends_after_its_grace(self) -> None:
        """A connected, silent peer does not delay it."""
        gateway = self.new()
        address = _host_port(next(iter(gateway.start())))
        with socket.create_connection(address, _DEADLINE):
            start = time.monotonic()
            gateway.stop(0.2)
            assert time.monotonic() - start < _SLACK
