"""The gateway keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

import socket

import pytest
from eventmq import EventMQ
from eventmq.errors import PluginError
from eventmq.sdk import PluginContext
from eventmq.testing import FakeClock, GatewaySuite

from eventmq_gateway_example import plugin


def add(a: int, b: int) -> int:
    return a + b


class TestContract(GatewaySuite):
    def setup_method(self):
        self.app = EventMQ("lines", broker="memory://")
        self.app.task(name="add")(add)

    def close(self):
        self.app.close()

    def make(self, **options):
        context = PluginContext(
            "lines", {"bind": "tcp://127.0.0.1:0", **options}, FakeClock(), self.app
        )
        return plugin.make_gateway(context)

    def ask(self, address: str, line: bytes) -> bytes:
        host, port = address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), 10) as peer:
            peer.sendall(line)
            return peer.makefile("rb").readline()

    def knock(self, addresses):
        assert self.ask(addresses[0], b"add 1 2\n") == b"3\n"

    def test_what_is_wrong_is_an_answer(self):
        address = next(iter(self.new().start()))
        for line, answer in (
            (b"sub 1 2\n", b"error: there is no task sub\n"),
            (b"add 1 two\n", b"error: invalid literal for int() with base 10: 'two'\n"),
            (b"add 1\n", b"error: task add: missing a required argument: 'b'\n"),
        ):
            assert self.ask(address, line) == answer

    def test_a_line_that_is_too_long_ends_its_connection(self):
        address = next(iter(self.new(max_line=10).start()))
        assert self.ask(address, b"add 1000000 2000000\n") != b"3000000\n"
        self.knock([address])


@pytest.mark.parametrize("options", [{"max_line": 0}, {"max_line": "long"}, {"maxline": 1}])
def test_wrong_options_are_refused(options) -> None:
    context = PluginContext("lines", options, FakeClock(), EventMQ())
    with pytest.raises(PluginError, match="max_line"):
        plugin.make_gateway(context)


def test_the_command_line_has_its_option() -> None:
    (option,) = plugin.eventmq_command_options()["lines"]
    assert (option.name, option.minimum) == ("max_line", 1)
