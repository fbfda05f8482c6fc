"""What every gateway must do: start, serve, survive what strangers send, stop."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.interfaces import Gateway

__all__ = ["GatewaySuite"]

#: Seconds that anything may take.
_DEADLINE = 20.0

#: Seconds that a stop may take beside its grace.
_SLACK = 8.0

#: Connections that say nothing.
_SILENT = 200


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _pour(peer: socket.socket) -> None:
    end = time.monotonic() + _DEADLINE
    while time.monotonic() < end:
        peer.sendall(b"\xff" * 1024 * 1024)


class GatewaySuite:
    """Subclass it, return your gateway from `make` and prove that it serves in `knock`."""

    def make(self, **options: object) -> Gateway:
        """Return a gateway, not started, on free ports of loopback unless ``options`` say else.

        ``bind`` and ``insecure`` are the options that the suite gives.
        """
        raise NotImplementedError(
            "define make() in your subclass: it returns your gateway, not started"
        )

    def knock(self, addresses: list[str]) -> None:
        """Have one conversation of the protocol; raise if the gateway does not answer."""
        raise NotImplementedError(
            "define knock() in your subclass: it has one conversation with your gateway"
        )

    def close(self) -> None:
        """Release what `make` needed, such as an app; called when all gateways have stopped."""

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
        """Port 0 takes a free one, and what is returned is where it is."""
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
        """`BindError` names the address; stopping what did not start is legal."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            gateway = self.new(bind=f"tcp://127.0.0.1:{port}")
            with pytest.raises(BindError, match=str(port)):
                gateway.start()
            assert not gateway.running()
            gateway.stop(0.0)

    def test_an_address_for_others_must_be_allowed(self) -> None:
        """In the clear, off loopback needs the option ``insecure``."""
        with pytest.raises(NotAllowed, match="insecure"):
            self.new(bind="tcp://0.0.0.0:0").start()
        gateway = self.new(bind="tcp://0.0.0.0:0", insecure=True)
        gateway.start()
        assert gateway.running()

    def test_making_one_opens_nothing(self) -> None:
        """A gateway that is not started has no thread."""
        before = set(threading.enumerate())
        self.new()
        assert not set(threading.enumerate()) - before

    # Limits

    def test_garbage_harms_nobody_else(self) -> None:
        """Bytes of any other protocol cost that connection at most."""
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

    def test_silent_connections_keep_nobody_out(self) -> None:
        """Two hundred that are open and say nothing; the next one is served."""
        addresses = list(self.new().start())
        with ExitStack() as silent:
            for address in addresses:
                for _ in range(_SILENT):
                    peer = socket.create_connection(_host_port(address), _DEADLINE)
                    silent.enter_context(peer)
            self.knock(addresses)

    def test_who_never_stops_sending_nonsense_is_cut(self) -> None:
        """Its connection ends, at the latest after some seconds for it to read why."""
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

    def test_stop_keeps_to_its_grace(self) -> None:
        """A peer that is connected and silent keeps nothing up."""
        gateway = self.new()
        address = _host_port(next(iter(gateway.start())))
        with socket.create_connection(address, _DEADLINE):
            began = time.monotonic()
            gateway.stop(0.2)
            assert time.monotonic() - began < _SLACK
