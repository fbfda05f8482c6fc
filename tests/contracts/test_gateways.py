"""The built-in gateways keep the contract."""

from __future__ import annotations

from typing import ClassVar

import zmq

from eventmq.app import EventMQ
from eventmq.registry.names import GATEWAY
from eventmq.testing import GatewaySuite
from eventmq_contrib.gateways.emp import EmpClient


class AppGatewaySuite(GatewaySuite):
    """Makes a gateway of an app that has its broker in this process."""

    name = ""

    settings: ClassVar = {"broker": "memory://"}

    def setup_method(self):
        self.app = EventMQ("contracts", **self.settings)

    def close(self):
        self.app.close()

    def make(self, **options):
        options = {"bind": "tcp://127.0.0.1:0", **options}
        return self.app.plugins.make(GATEWAY, self.name, options=options)


class TestEmp(AppGatewaySuite):
    name = "emp"

    def knock(self, addresses):
        host, port = addresses[0].removeprefix("tcp://").split(":")
        with EmpClient(host, int(port)) as client:
            assert client.call("$echo", {"a": 1}) == {"a": 1}


class TestMc0(AppGatewaySuite):
    name = "mc0"

    def knock(self, addresses):
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.connect(addresses[0].replace("0.0.0.0", "127.0.0.1"))
            peer.send_multipart([b"", b"NOOP", b"ID", b"1"])
            assert peer.poll(20_000)
            assert peer.recv_multipart() == [b"", b"OK", b"ID", b"1"]


class TestMajordomo(AppGatewaySuite):
    """Its broker is unreachable: the suite needs none."""

    name = "majordomo"

    settings: ClassVar = {"broker": "tcp://127.0.0.1:1", "submit_timeout": 0.5}

    def make(self, **options):
        return super().make(**{"worker_bind": "tcp://127.0.0.1:0", **options})

    def knock(self, addresses):
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.connect(addresses[1])
            peer.send_multipart([b"MDPW02", b"PING"])
            assert peer.poll(20_000)
            assert peer.recv_multipart() == [b"MDPW02", b"\x06"]


del AppGatewaySuite
