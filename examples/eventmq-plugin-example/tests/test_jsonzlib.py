"""The serializer keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

import zlib

import pytest
from eventmq.sdk import PluginContext, PluginError, SerializationError
from eventmq.testing import FakeClock, SerializerSuite

from eventmq_plugin_example.jsonzlib import make_serializer


def make(**options):
    return make_serializer(PluginContext("json-zlib", options, FakeClock()))


class TestContract(SerializerSuite):
    def make(self):
        return make()


def test_long_data_is_compressed_and_short_data_is_not() -> None:
    envelope = SerializerSuite().envelope()
    short, _ = make().encode([1], envelope)
    long, _ = make().encode(["x" * 10_000], envelope)
    assert short == b"j[1]"
    assert (long[:1], len(long) < 100) == (b"z", True)


def test_data_that_would_fill_the_memory_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("eventmq_plugin_example.jsonzlib.MAX_BYTES", 1000)
    bomb = b"z" + zlib.compress(b" " * 100_000)
    with pytest.raises(SerializationError, match="too long"):
        make().decode(bomb, SerializerSuite().envelope())


@pytest.mark.parametrize("level", [0, 10])
def test_a_level_that_zlib_does_not_have_is_refused(level) -> None:
    with pytest.raises(PluginError, match="from 1 to 9"):
        make(level=level)
